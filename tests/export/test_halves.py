"""A large recording is exported by two processes: the tables are those of one."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from ddptop.export import halves
from ddptop.export.output import write
from ddptop.export.reading import Selection
from ddptop.export.tables import CsvSink
from ddptop.recording.ahead import start_second
from ddptop.recording.reader import Recording
from tests.benchmarks.bench_export import make

STEPS_MADE = 16_000
WHOLE = Selection()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four simulated ranks, one of them slow now and then, bucket detail in every second step."""
    path = tmp_path_factory.mktemp("halves") / "train.ddptop"
    make(path, 4, STEPS_MADE, 2)
    return path


@pytest.fixture(scope="module")
def expected(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Its tables as one process writes them."""
    return by_one(recording, tmp_path_factory.mktemp("one") / "csv")


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Small recordings are exported by two processes. Returns whether the halves fitted together."""
    monkeypatch.setattr(halves, "LEAST_BLOCKS", 16)
    monkeypatch.setattr(halves, "TOGETHER_S", 2.0)
    monkeypatch.setattr(halves.os, "sched_getaffinity", lambda _: {0, 1})
    found: list[bool] = []
    join = halves.joined

    def joined(here: halves.Known, half: halves.Half) -> object:
        end = join(here, half)
        found.append(end is not None)
        return end

    monkeypatch.setattr(halves, "joined", joined)
    return found


def tables(path: Path, to: Path, form: str = "csv", selection: Selection = WHOLE) -> dict[str, object]:
    """By file of the export its content; and the damage that was found."""
    parquet = pytest.importorskip("pyarrow.parquet") if form == "parquet" else None
    with Recording.open(path) as recording:
        write(recording, form, to, selection)
        found: dict[str, object] = {"damage": recording.damage}
        assert recording.share_read > 0.9
    if parquet is None:
        return found | {file.name: file.read_bytes() for file in to.iterdir()}
    return found | {file.name: parquet.read_table(file).unify_dictionaries() for file in to.iterdir()}


def by_one(path: Path, to: Path, form: str = "csv", selection: Selection = WHOLE) -> dict[str, object]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "LEAST_BLOCKS", 1 << 30)
        return tables(path, to, form, selection)


@pytest.mark.parametrize(
    ("form", "selection"),
    [
        pytest.param("parquet", WHOLE, marks=pytest.mark.slow),
        pytest.param("csv", Selection(500, 15_500, frozenset({0, 3})), marks=pytest.mark.slow),
    ],
)
def test_two_processes_write_the_tables_of_one(
    recording: Path, tmp_path: Path, joined: list[bool], form: str, selection: Selection
) -> None:
    one = by_one(recording, tmp_path / "one", form, selection)
    assert joined == []
    assert tables(recording, tmp_path / "two", form, selection) == one
    assert joined == [True]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.slow
def test_damage_in_the_second_half_is_said(recording: Path, tmp_path: Path, joined: list[bool]) -> None:
    data = bytearray(recording.read_bytes())
    at = len(data) * 3 // 4
    data[at : at + 64] = bytes(64)
    path = tmp_path / "damaged.ddptop"
    path.write_bytes(data)
    found = tables(path, tmp_path / "two")
    assert joined == [True] and "cannot be read" in str(found["damage"])
    assert found == by_one(path, tmp_path / "one")


@pytest.mark.slow
def test_where_the_halves_do_not_agree_one_process_goes_on(
    recording: Path,
    expected: dict[str, object],
    tmp_path: Path,
    joined: list[bool],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan_of = halves.plan_of

    def too_late(recording: Recording, blocks: range) -> halves.Plan | None:
        plan = plan_of(recording, blocks)
        return plan and plan._replace(earlier=plan.seam - 1)

    monkeypatch.setattr(halves, "plan_of", too_late)
    assert tables(recording, tmp_path / "two") == expected
    assert joined == [False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import os; os.write(1, b'nonsense')",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
    ],
    ids=["fails", "is stopped"],
)
def test_where_the_second_process_does_not_answer_the_first_goes_on(
    recording: Path,
    expected: dict[str, object],
    tmp_path: Path,
    joined: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    code: str,
) -> None:
    monkeypatch.setattr(halves, "STOPPED_S", 1)
    monkeypatch.setattr(halves, "_CODE", code)
    assert tables(recording, tmp_path / "two") == expected
    assert joined == []


def test_the_second_process_ends_with_the_first(
    recording: Path, tmp_path: Path, joined: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits here for a writer of the pipe that it should read: that nobody reads its stdout ends it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with Recording.open(recording) as opened, closing(CsvSink(opened, WHOLE, tmp_path)) as sink:
        plan = halves.plan_of(opened, sink.blocks())
    assert plan is not None
    request = halves.Request(CsvSink, path, WHOLE, tmp_path, plan)
    process = start_second(halves._CODE, request, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(60) == 1
