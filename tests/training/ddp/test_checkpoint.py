"""Checkpoints of one rank; those of several are in test_ranks.py."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DataParallel

from ddptop.training.ddp.checkpoint import Checkpoint, latest, write_whole
from ddptop.training.ddp.group import Group


@pytest.fixture
def group() -> Group:
    return Group.current()


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_checkpoint_gives_back_all_that_it_was_given(group: Group, tmp_path: Path) -> None:
    model, optimizer = trained()
    extra = {"scheduler": {"last_epoch": 3}, "best": torch.tensor(0.5), "words": ["a", None, True]}
    path = group.save(tmp_path / "run" / "a.pt", model, optimizer, epoch=3, step=40, extra=extra)
    other, fresh = nn.Linear(2, 2), None
    fresh = torch.optim.Adam(other.parameters())
    found = group.load(path, other, fresh)
    assert (found.epoch, found.step, found.path) == (3, 40, path)
    assert found.extra == extra
    assert same(model.state_dict(), other.state_dict())
    assert torch.equal(
        fresh.state_dict()["state"][0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"]
    )


def test_names_in_the_file_are_those_of_the_bare_model(group: Group, tmp_path: Path) -> None:
    model, _ = trained()
    path = group.save(tmp_path / "a.pt", DataParallel(model))
    assert list(torch.load(path, weights_only=True)["model"]) == ["weight", "bias"]
    group.load(path, DataParallel(nn.Linear(2, 2)))


def test_files_of_others_are_read(group: Group, tmp_path: Path) -> None:
    model, _ = trained()
    wrapped = OrderedDict((f"module.{name}", value) for name, value in model.state_dict().items())
    for i, stored in enumerate((wrapped, {"state_dict": wrapped, "epoch": 7}, {"model_state_dict": wrapped})):
        torch.save(stored, tmp_path / f"{i}.pt")
        other = nn.Linear(2, 2)
        assert group.load(tmp_path / f"{i}.pt", other).epoch == (7 if i == 1 else 0)
        assert same(model.state_dict(), other.state_dict())


def test_the_latest_of_a_folder_is_the_furthest(group: Group, tmp_path: Path) -> None:
    model, optimizer = trained()
    assert latest(tmp_path) is None
    assert latest(tmp_path / "not there") is None
    assert group.resume(tmp_path, model, optimizer) == Checkpoint()
    last = group.save(tmp_path, model, epoch=10, step=5)
    group.save(tmp_path, model, epoch=9, step=100)
    (tmp_path / ".checkpoint-00011-000000000.pt.ddptop-part").write_bytes(b"half")
    (tmp_path / "notes.pt").write_bytes(b"")
    assert latest(tmp_path) == last
    assert group.resume(tmp_path, model).epoch == 10
    assert group.load(tmp_path, model).epoch == 10


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_whole(path, lambda file: file.write(b"old"))

    def fail(file: Any) -> None:
        file.write(b"new, but not all of")
        raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_is_at_its_place_before_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_whole(
        path, lambda file: (file.write(b"x"), file.flush(), not path.exists() or pytest.fail("early"))
    )
    assert path.read_bytes() == b"x"


def test_what_cannot_be_loaded_is_told_in_words(group: Group, tmp_path: Path) -> None:
    model, _ = trained()
    with pytest.raises(FileNotFoundError, match=r"no checkpoint-\*\.pt in"):
        group.load(tmp_path, model)
    with pytest.raises(FileNotFoundError):
        group.load(tmp_path / "a.pt", model)
    path = group.save(tmp_path / "a.pt", nn.Linear(3, 2))
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        group.load(path, model)
    with pytest.raises(RuntimeError, match="Missing key"):
        group.load(path, nn.Sequential(model))
    torch.save({"model": model.state_dict(), "args": Path("x")}, path)
    with pytest.raises(RuntimeError, match="if you trust it, load it with weights_only=False"):
        group.load(path, model)
    assert group.load(path, model, weights_only=False).path == path
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RuntimeError):
        group.load(path, model)
