"""The part of a rank in `ddptop attach`: where it begins, and what takes it out again."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from ddptop.training import attached
from ddptop.training.torch_compat import process_groups


class Rank:
    """One rank whose forwards have given numbers of collectives before them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun_at: int | None = None
        self._sequence = 0
        self._report = attached.AttachReport(folder)
        self._beginning = attached.Beginning(self._report, "number", [])
        monkeypatch.setattr(process_groups, "sequence_of", lambda _group: self._sequence)
        monkeypatch.setattr(dist, "get_rank", lambda: 1)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(
            self._beginning, "begin_recording", lambda _ddp: setattr(self, "begun_at", self._sequence)
        )

    def forward(self, sequence: int) -> bool:
        """Whether the recorder's part in this rank is over, begun or not."""
        return self.call(sequence, SimpleNamespace(process_group=dist.group.WORLD))

    def call(self, sequence: int, first: Any) -> bool:
        """The same of any call, with its first argument."""
        self._sequence = sequence
        return self._beginning.call_begins(first)

    def reported(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(next(self._report.folder.glob("rank-*")).read_text())
        return report


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    monkeypatch.setattr(attached, "REPORT_S", -1.0)
    return Rank(tmp_path, monkeypatch)


def test_a_rank_begins_at_the_first_forward_that_has_reached_the_number(rank: Rank, tmp_path: Path) -> None:
    assert [rank.forward(number) for number in (4, 4, 8)] == [False] * 3
    reported = rank.reported()
    assert (reported["rank"], reported["world"]) == (1, 2)
    assert [number for number, _ in reported["forwards"]] == [4, 8], "an accumulated forward adds none"
    (tmp_path / attached.GO).write_text("14")
    assert [rank.forward(number) for number in (12, 16)] == [False, True]
    assert rank.begun_at == 16


def test_without_a_model_a_rank_begins_at_a_backward(rank: Rank, tmp_path: Path) -> None:
    loss = SimpleNamespace(device="cpu")
    (tmp_path / attached.GO).write_text("14")
    assert [rank.call(number, loss) for number in (12, 16)] == [False, True]
    assert rank.begun_at == 16


@pytest.mark.parametrize(
    ("go", "words"), [("-1", "called off"), ("8", "the step at which ranks begin had passed")]
)
def test_a_rank_that_is_called_off_or_late_does_not_begin(
    rank: Rank, tmp_path: Path, go: str, words: str
) -> None:
    assert not rank.forward(8)
    (tmp_path / attached.GO).write_text(go)
    assert rank.forward(12)
    assert rank.begun_at is None
    assert words in rank.reported()["why"]


def test_a_rank_does_not_wait_for_a_command_that_has_ended(
    rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not rank.forward(4)
    monkeypatch.setattr(attached.time, "monotonic", lambda: float("inf"))
    assert rank.forward(8)
    assert rank.reported()["why"] == "called off"


def test_forwards_call_until_it_is_over_and_then_nothing_is_left() -> None:
    class Model:
        def _pre_forward(self, *inputs: int) -> str:
            return f"forward of {inputs}"

    original = Model._pre_forward
    called: list[Any] = []

    def then(model: Any) -> bool:
        assert Model._pre_forward is original, "what begins now wraps torch's own function"
        called.append(model)
        return len(called) == 2

    attached.AtCall((Model, "_pre_forward"), then).install_wrapper()
    model = Model()
    assert [model._pre_forward(1) for _ in range(4)] == ["forward of (1,)"] * 4
    assert called == [model, model]
    attached.AtCall((Model, "_pre_forward"), lambda first: first is None).install_wrapper()
    assert Model._pre_forward(self=model) == "forward of ()", "a call without positional arguments"
    assert Model._pre_forward is original
