"""`ddptop export`: what is written, and what is said of what cannot be."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.cli.main import main
from ddptop.host.installation import install_command
from tests.made_up_run import write_recording


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train-k7qf.ddptop"
    write_recording(path)
    return path


def test_a_folder_of_tables_is_written_once(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(recording), "--to", "csv", "--ranks", "1", "--steps", "10:12"]) == 0
    assert capsys.readouterr() == ("train-k7qf-csv\n", "")
    folder = recording.parent / "train-k7qf-csv"
    assert len((folder / "steps.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert main(["export", str(recording), "--to", "csv"]) == 1
    assert capsys.readouterr().err == "ddptop: train-k7qf-csv: exists; --force replaces it\n"
    assert main(["export", str(recording), "--to", "csv", "--force"]) == 0
    assert len((folder / "steps.csv").read_text(encoding="utf-8").splitlines()) == 201


@pytest.mark.parametrize(("form", "name"), [("json", "x.jsonl"), ("csv", "tables")])
def test_a_disk_without_room_is_told_with_the_file_and_leaves_nothing(
    recording: Path, capsys: pytest.CaptureFixture[str], form: str, name: str
) -> None:
    # Once without the limit, which would also cut off the compiled modules that an import keeps.
    assert main(["export", str(recording), "--to", form, "-o", "whole"]) == 0
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    capsys.readouterr()
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        assert main(["export", str(recording), "--to", form, "-o", name]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert capsys.readouterr().err == f"ddptop: {name}: File too large\n"
    assert {path.name for path in recording.parent.iterdir()} == {recording.name, "whole"}


def test_json_goes_into_a_pipe(ddptop: Callable[..., object], recording: Path) -> None:
    done = ddptop("export", str(recording), "--to", "json", "-o", "-")
    assert (done.returncode, done.stderr) == (0, "")
    tables = [json.loads(line)["table"] for line in done.stdout.splitlines()]
    assert {*tables} == {"run", "ranks", "steps", "buckets", "events", "ledger", "waited_for"}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--to", "csv", "--steps", "100:"], 2, "holds steps 0 to 99"),
        (["--to", "csv", "--ranks", "2"], 2, "holds ranks 0 to 1"),
        (["--to", "csv", "--steps", "7"], 2, "no range of steps"),
        (["--to", "csv", "-o", "-"], 2, "for perfetto or json"),
        (["--to", "pdf"], 2, "invalid choice"),
        (["--to", "csv", "-o", "nowhere/csv"], 1, "nowhere: no such folder"),
        (["--to", "json", "-o", "/proc/x.jsonl"], 1, "ddptop: /proc/x.jsonl: "),
    ],
)
def test_what_cannot_be_exported_is_one_line(
    recording: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["export", str(recording), *words]) == code
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.startswith("ddptop: ") and err.count("\n") == 1
    assert [one.name for one in recording.parent.iterdir()] == [recording.name]


def test_a_recording_that_is_none_and_one_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.ddptop").write_bytes(b"something else")
    for name in ("a.ddptop", "b.ddptop"):
        assert main(["export", str(tmp_path / name), "--to", "json"]) == 3
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(("form", "package"), [("parquet", "pyarrow"), ("perfetto", "perfetto")])
def test_a_missing_extra_is_named(
    recording: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    package: str,
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"ddptop.export.{form}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["export", str(recording), "--to", form]) == 1
    assert capsys.readouterr().err == f"ddptop: --to {form} needs {package}: {install_command(form)}\n"


def test_damage_is_said_and_the_rest_exported(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(recording.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 32] = bytes(32)
    recording.write_bytes(data)
    assert main(["export", str(recording), "--to", "json"]) == 0
    out, err = capsys.readouterr()
    assert out == "train-k7qf.jsonl\n" and "messages are missing; the rest was exported" in err


def test_a_device_or_pipe_is_never_replaced(
    recording: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main(["export", str(recording), "--to", "json", "-o", str(pipe), "--force"]) == 1
    assert capsys.readouterr().err == f"ddptop: {pipe}: is a device or a pipe, which is not replaced\n"
    assert pipe.is_fifo()
