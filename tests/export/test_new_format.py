"""A new format of exports is one class in one module, and one line in `export/formats.py`."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from ddptop.cli.main import main
from ddptop.export.formats import FORMATS, Format
from ddptop.export.reading import End, Selection, Sink
from ddptop.export.rows import Batch
from ddptop.recording.reader import Recording
from tests.made_up_run import a_run, write


class CountSink(Sink):
    """Writes how many steps there are."""

    def __init__(self, recording: Recording, selection: Selection, file: IO[bytes]) -> None:
        super().__init__(recording, selection)
        self._file, self._steps = file, 0

    def write_steps(self, batch: Batch) -> None:
        self._steps += len(batch.evaluated.divided)

    def write_end(self, end: End) -> None:
        self._file.write(b"%d steps\n" % self._steps)


def test_a_declared_format_is_an_export_and_in_the_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(FORMATS, "count", Format("tests.export.test_new_format:CountSink", ".txt"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run.ddptop", a_run(30))
    assert main(["export", "run.ddptop", "--to", "count"]) == 0
    assert (tmp_path / "run.txt").read_text() == "30 steps\n"
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    assert "perfetto, parquet, csv, json, count" in capsys.readouterr().out
