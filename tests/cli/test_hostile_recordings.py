"""Recordings made to take all time or memory of who reads them are refused, or read as far as possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.cli.errors import Exit
from ddptop.cli.main import main
from ddptop.recording import history, records
from ddptop.recording.reader import Recording, RecordingError
from tests.made_up_run import a_run, write
from tests.recording import hostile_files

BYTES = 150_000
UNPACKED_BYTES = 4 << 20
"""In place of those limits of a file of usual size."""

COMMANDS = (
    "report FILE",
    "replay FILE --once",
    "check FILE --against FILE",
    "export FILE --to json -o OUT/x.jsonl",
    "export FILE --to csv -o OUT/csv",
)

CLAIMS, UNPACKS = "which no recording of ddptop holds", "which no recording of ddptop does"

REFUSED = {
    **dict.fromkeys(("empty_records", "heartbeats", "events"), CLAIMS),
    **dict.fromkeys(("uncounted_records", "same_steps", "nested_lists"), UNPACKS),
}
"""By kind: why. Others are read as far as they are recordings."""


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "UNPACKED_BYTES", UNPACKED_BYTES)
    monkeypatch.setattr(history, "UNPACKED_BYTES", UNPACKED_BYTES)


@pytest.mark.parametrize("kind", hostile_files.KINDS)
def test_every_command_ends_with_a_line(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile_files.KINDS[kind](tmp_path / "run.ddptop", BYTES)
    for command in COMMANDS:
        code = main(command.replace("FILE", str(path)).replace("OUT", str(tmp_path)).split())
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err, command
        if kind in REFUSED:
            assert (code, shown.out) == (Exit.NOT_FOUND, ""), command
            assert shown.err.count("\n") == 1 and REFUSED[kind] in shown.err, shown.err
        else:
            assert code in (Exit.DONE, Exit.NOT_FOUND, Exit.UNKNOWN), (command, shown.err)
            assert shown.err.count("\n") <= 3, shown.err
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == [], "nothing is left"


def test_pieces_of_the_history_are_bounded_too(tmp_path: Path) -> None:
    path = hostile_files.KINDS["histories"](tmp_path / "run.ddptop", BYTES)
    with Recording.open(path) as recording, pytest.raises(RecordingError, match=UNPACKS):
        recording.history_pieces()


def test_a_block_with_more_records_than_its_summary_says_is_damaged(tmp_path: Path) -> None:
    path = hostile_files.KINDS["uncounted_records"](tmp_path / "run.ddptop", BYTES // 10)
    with Recording.open(path) as recording:
        sizes = [sum(len(run) for run in recording.runs(block, block + 1)) for block in range(3)]
        assert sizes == [7, 0, 0], "an empty record is no message"
        assert "2 of 6 blocks cannot be read" in str(recording.damage)


def test_the_dullest_recording_is_far_from_every_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 ranks whose steps differ in nothing."""
    path = tmp_path / "run.ddptop"
    write(path, a_run(100, world=512))
    monkeypatch.setattr(records, "UNPACKED_BYTES", 0)
    with Recording.open(path) as recording:
        assert sum(len(run) for run in recording.runs()) == recording.messages
        assert recording.damage is None
