"""`ddptop [RUN]`: which run is meant, and what is shown of it without a screen."""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from ddptop.cli import show
from ddptop.cli.commands import relay
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.launch_options import split_exec
from ddptop.cli.main import main
from ddptop.cli.run_over_hosts import RunOverHosts
from ddptop.cli.runs import MachineRuns
from ddptop.frames.frame import Frame
from ddptop.host.meeting import OpenRendezvous
from ddptop.host.runs import RunFile, starting_run
from ddptop.sources.request_pace import RequestPace
from ddptop.tui.app import DdptopApp
from tests.made_up_run import write_recording


class FakeSource:
    """Hands out given frames, each one once, and the last one for ever."""

    def __init__(self, *frames: Frame | None, status: str | None = None) -> None:
        self.frames: Iterator[Frame | None] = iter(frames)
        self.last: Frame | None = None
        self.reason = status
        self.closed = False
        self.pace = RequestPace()

    def start(self) -> None: ...

    def latest(self) -> Frame | None:
        self.last = next(self.frames, self.last)
        return self.last

    def status(self) -> str | None:
        return self.reason

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, frame: Frame) -> list[RunFile]:
    """The runs that were opened; each is a fake that ends at once."""
    opened: list[RunFile] = []

    def source(run: RunFile) -> FakeSource:
        opened.append(run)
        return FakeSource(frame, replace(frame, run=replace(frame.run, state="finished")))

    monkeypatch.setattr("ddptop.sources.live.LiveSource", source)
    return opened


def test_the_only_live_run_is_meant(live_run, watched, capsys: pytest.CaptureFixture[str]) -> None:
    run = live_run("train-k7qf", "aa11")
    assert main(["--json"]) == 0
    assert watched == [run]
    assert json.loads(capsys.readouterr().out)["run"]["name"] == "train-k7qf"


@pytest.mark.parametrize("word", ["train-k7qf", "train-k", "bb22", "bb"])
def test_a_name_an_id_or_how_one_begins(live_run, watched, word: str) -> None:
    live_run("train-a9a9", "aa11")
    live_run("train-k7qf", "bb22")
    assert main([word, "--once"]) == 0
    assert [run.name for run in watched] == ["train-k7qf"]


def test_an_exact_name_wins_over_a_longer_one(live_run, watched) -> None:
    live_run("train-2", "aa11")
    live_run("train", "bb22")
    assert main(["train", "--once"]) == 0
    assert watched[0].name == "train"


def test_of_several_matches_the_newest_is_meant_and_a_line_says_so(
    live_run, watched, capsys: pytest.CaptureFixture[str]
) -> None:
    live_run("train-k7qf", "bb22", started_at=2.0)
    live_run("train-a9a9", "aa11", started_at=1.0)
    assert main(["train", "--once"]) == 0
    assert watched[0].name == "train-k7qf"
    said = capsys.readouterr().err
    assert said == "ddptop: 2 live runs match 'train'; this is the newest, train-k7qf\n"


def test_without_a_live_run_the_newest_readable_recording_is_shown(
    home_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, modified in (("old", 1), ("new", 2), ("broken", 3)):
        path = home_here / "state" / "ddptop" / f"{name}.ddptop"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if name == "broken":
            path.write_bytes(b"no recording")
        else:
            write_recording(path)
        os.utime(path, (modified, modified))
    assert main(["--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["source"] == "replay"
    assert shown.err == "ddptop: the newest recording: new\n"
    assert main(["report"]) == 0
    assert "newest recording: new" in capsys.readouterr().err
    assert main(["replay", "--once"]) == 0
    assert "newest recording: new" in capsys.readouterr().err
    assert main(["replay", "old", "--once"]) == 0
    assert "newest" not in capsys.readouterr().err


def test_of_a_name_that_was_used_again_the_newest_run_is_meant(
    home_here: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = home_here / "state" / "ddptop"
    folder.mkdir(mode=0o700)
    # As `numbered` names them; a run of the name `case-9` is another one.
    for file, name, steps, modified in (
        ("case", "case", 20, 1),
        ("case-2", "case", 30, 2),
        ("case-9", "case-9", 40, 3),
    ):
        write_recording(folder / f"{file}.ddptop", name=name, count=steps)
        os.utime(folder / f"{file}.ddptop", (modified, modified))

    def step_shown(*words: str) -> int:
        assert main(list(words)) == 0
        shown = capsys.readouterr()
        assert shown.err == "ddptop: 2 recordings match 'case'; this is the newest, case-2\n"
        return json.loads(shown.out)["group"]["step"]

    assert step_shown("case", "--json") == 29
    assert step_shown("replay", "case", "--json") == 29
    assert main(["report", "case", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reading"]["steps"] == 30
    assert main(["export", "case", "--to", "csv", "-o", str(tmp_path / "tables")]) == 0
    assert len((tmp_path / "tables" / "steps.csv").read_text(encoding="utf-8").splitlines()) == 61
    assert relay.run_meant("case") == folder / "case-2.ddptop"
    capsys.readouterr()
    assert main(["case-9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["group"]["step"] == 39


def test_a_file_is_opened_as_the_recording_of_a_run_that_has_ended(
    home_here: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_recording(folder / "copy.ddptop", name="case", count=20)
    (folder / "copy").write_bytes((folder / "copy.ddptop").read_bytes())
    # A path is not waited for as a run that may come.
    with starting_run():
        for word in ("./copy.ddptop", str(folder / "copy.ddptop"), "copy.ddptop"):
            assert main([word, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["group"]["step"] == 19
    assert main(["copy", "--json"]) == 0
    capsys.readouterr()
    assert main(["./missing.ddptop"]) == Exit.NOT_FOUND
    assert "no such file" in capsys.readouterr().err
    (folder / "train.py").write_text("import torch\n" * 100)
    assert main(["train.py"]) == Exit.NOT_FOUND
    assert "is not a ddptop recording" in capsys.readouterr().err
    (folder / "runs").mkdir()
    assert main(["runs"]) == Exit.NOT_FOUND
    assert "ddptop ls lists" in capsys.readouterr().err


def test_a_run_comes_before_a_file_of_its_name(
    live_run, watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copies"
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_recording(folder / "train", name="train", count=20)
    run = live_run("train-k7qf", "aa11", recording=str(folder / "train"))
    assert main(["train", "--once"]) == 0
    assert watched == [run]
    # The file that a live run still writes is shown live.
    assert main(["./train", "--once"]) == 0
    assert watched == [run, run]
    # Also where a home is reached by a link.
    (tmp_path / "link").symlink_to(folder)
    write_recording(folder / "other", name="other", count=20)
    other = live_run("other-k8qf", "aa12", recording=str(tmp_path / "link" / "other"))
    assert main(["./other", "--once"]) == 0
    assert watched[-1] == other


def test_a_run_that_a_launcher_is_starting_is_waited_for(
    live_run, watched, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with starting_run() as begun:
        monkeypatch.setattr("time.sleep", lambda _: (live_run("train", "aa11"), begun.close()))
        assert main(["train", "--once"]) == 0
    assert watched[0].name == "train"
    assert "ddptop: waiting for run train" in capsys.readouterr().err


def test_the_wait_ends_with_the_launcher_and_with_its_time(
    live_run, home_here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    with starting_run() as begun:
        monkeypatch.setattr("time.sleep", lambda s: (asked.append(s), begun.close()))
        assert main(["--once"]) == 3
    assert len(asked) == 1, "it has failed to start a run"
    with starting_run():
        clock = itertools.count(step=4.0)
        monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
        monkeypatch.setattr("time.sleep", asked.append)
        assert main(["--once"]) == 3
    assert not list((home_here / "runtime" / "ddptop").glob("starting.*"))


def test_an_older_recording_is_not_taken_for_the_run_that_is_starting(
    home_here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As while its launcher waits for other hosts."""
    folder = home_here / "state" / "ddptop"
    folder.mkdir(mode=0o700, parents=True)
    write_recording(folder / "train.ddptop")
    with starting_run():
        assert main(["--once", "--wait", "0"]) == 3
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("ddptop: a run is starting, but has no ranks yet: ")
        assert main(["train", "--once", "--wait", "0"]) == 0
        out, err = capsys.readouterr()
        assert "FINISHED" in out and err.startswith("ddptop: a run is starting, but has no ranks yet: ")
    assert main(["--once", "--wait", "0"]) == 0


def test_a_run_whose_hosts_have_not_met_says_who_has_come(
    home_here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddptop.cli.run_over_hosts.LATE_MEETING_S", 0.0)
    for name in ("DDPTOP_RUN_DIR", "DDPTOP_RUN_ID", "PYTHONPATH"):
        monkeypatch.setenv(name, "")
    parts = split_exec(["--ddptop-exec", "train.py"])
    assert parts is not None
    run = RunOverHosts.begin_run(parts[0], "train", ["train.py"])
    one, two = (OpenRendezvous("a:1", 3, 3, True, come) for come in (("a",), ("a", "b")))
    for meeting in (one, two, two):
        run.note_meeting(meeting)
    # Once, though it goes on.
    assert capsys.readouterr().err == "ddptop: run train waits for its hosts: 1 of 3 has come: a\n"
    sentence = "run train waits for its hosts: 2 of 3 have come: a, b"
    assert main(["--once", "--wait", "0"]) == 3
    assert capsys.readouterr().err.startswith(f"ddptop: {sentence}; look again later")
    assert main(["ls"]) == 0
    assert capsys.readouterr().err == f"ddptop: {sentence}\n"
    for word in ("train", "tr"):
        assert main([word, "--once", "--wait", "0"]) == 3
        assert capsys.readouterr().err.splitlines()[-1] == f"ddptop: {sentence}; look again later"
    assert main(["other", "--once", "--wait", "0"]) == 3
    assert "no run is called 'other'" in capsys.readouterr().err
    run.end_run(1)
    run.note_meeting(one)
    assert main(["ls"]) == 0
    assert capsys.readouterr().err.startswith("ddptop: no runs and no recordings yet")
    assert not list((home_here / "runtime" / "ddptop").glob("*/meeting"))


def test_a_launcher_that_was_killed_is_not_waited_for(live_run, home_here: Path) -> None:
    folder = home_here / "runtime" / "ddptop"
    folder.mkdir(mode=0o700)
    mark = folder / "starting.4711"
    mark.touch(mode=0o600)
    assert main(["--once"]) == 3
    assert not mark.exists()


def test_no_such_run(ddptop) -> None:
    done = ddptop("trian-k7qf")
    assert done.returncode == 3
    assert done.stderr.startswith("ddptop: no run is called 'trian-k7qf'")
    assert "did you mean ls?" in ddptop("lss").stderr
    assert "ddptop ls lists" in ddptop("runs").stderr
    done = ddptop("compare", "new", "base")
    assert done.returncode == 2 and "ddptop check NEW --against BASE" in done.stderr
    assert "ddptop-run" in ddptop().stderr
    assert ddptop().returncode == 3


def test_without_a_terminal_the_list_goes_to_stderr(live_run, ddptop) -> None:
    live_run("train-a9a9", "aa11")
    live_run("train-k7qf", "bb22")
    done = ddptop("--json")
    assert (done.returncode, done.stdout) == (3, "")
    assert "2 live runs" in done.stderr
    assert re.search(r"live +train-k7qf +2 +train.py", done.stderr)


@pytest.mark.parametrize(("typed", "name"), [("2\n", "older"), ("\n", "newer"), ("9\nx\n1\n", "newer")])
def test_on_a_terminal_a_number_picks(
    live_run, watched, monkeypatch: pytest.MonkeyPatch, typed: str, name: str
) -> None:
    live_run("older", "aa11", started_at=1.0)
    live_run("newer", "bb22", started_at=2.0)
    monkeypatch.setattr(show, "has_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert main(["--once"]) == 0
    assert watched[0].name == name


def test_several_live_runs_open_the_picker_on_a_screen(live_run, monkeypatch: pytest.MonkeyPatch) -> None:
    live_run("older", "aa11", started_at=1.0)
    live_run("newer", "bb22", started_at=2.0)
    monkeypatch.setattr(show, "has_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    seen: list[tuple[str, list[str]]] = []

    def run(app: DdptopApp) -> None:
        assert app.runs is not None
        seen.append((app.place.view, [choice.name for choice in app.runs.choices()]))

    monkeypatch.setattr(DdptopApp, "run", run)
    assert main([]) == 0
    assert seen == [("picker", ["newer", "older"])]


def test_the_picker_opens_live_runs_and_recordings(live_run, tmp_path: Path) -> None:
    path = tmp_path / "state" / "ddptop" / "old.ddptop"
    path.parent.mkdir(mode=0o700)
    write_recording(path)
    live_run("newer", "bb22")
    runs = MachineRuns()
    live, old = runs.choices()
    assert (live.name, live.state, old.name, old.live) == ("newer", "live", "old", False)
    assert type(runs.open(live)).__name__ == "LiveSource"
    source = runs.open(old)
    assert type(source).__name__ == "ReplaySource"
    path.unlink()
    with pytest.raises(ValueError, match="old cannot be opened"):
        runs.open(old)
    with pytest.raises(ValueError, match="has ended and left no recording"):
        runs.open(replace(live, id="gone"))


def test_nothing_picked(live_run, watched, monkeypatch: pytest.MonkeyPatch) -> None:
    live_run("older", "aa11")
    live_run("newer", "bb22")
    monkeypatch.setattr(show, "has_terminal", lambda: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["--once"]) == 130
    assert watched == []


def test_an_open_run_directory_is_refused(ddptop, home: dict[str, str], tmp_path) -> None:
    folder = tmp_path / "runtime" / "ddptop"
    folder.mkdir()
    folder.chmod(0o755)
    done = ddptop("ls")
    assert done.returncode == 4
    assert "chmod 700" in done.stderr
    assert done.stderr.count("\n") == 1


def test_watch_prints_until_the_run_ends(frame: Frame, capsys: pytest.CaptureFixture[str]) -> None:
    ended = replace(frame, run=replace(frame.run, state="finished"))
    source = FakeSource(None, frame, frame, ended)
    options = argparse.Namespace(watch=True, once=False, json=False)
    mode = show.choose_mode(options, live=True)
    assert show.show_source(source, mode, show_settings()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["live", "finished"]
    assert source.closed


def test_watch_goes_on_when_failed_ranks_are_started_again(
    frame: Frame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = replace(frame, run=replace(frame.run, state="failed", exit_code=None))
    ended = replace(frame, run=replace(frame.run, state="failed", exit_code=1))
    source = FakeSource(failed, failed, frame, ended, status="the run has failed")
    assert show.show_source(source, show.Mode.WATCH, show_settings()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["failed", "failed"], "the restart, and the end"
    monkeypatch.setattr(show, "GONE_S", 0.0)
    silent = FakeSource(failed, status="the run has failed")
    assert show.show_source(silent, show.Mode.WATCH, show_settings()) == 0, "nobody ever told an exit code"


def test_watch_outlives_a_collector_that_is_started_again(
    frame: Frame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = replace(frame, run=replace(frame.run, state="lost"))
    ended = replace(frame, run=replace(frame.run, state="finished"))
    settings = show_settings()
    assert (
        show.show_source(FakeSource(lost, lost, frame, ended, status="gone"), show.Mode.WATCH, settings) == 0
    )
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == ["lost", "finished"]
    monkeypatch.setattr(show, "GONE_S", 0.0)
    with pytest.raises(CliError, match="gone"):
        show.show_source(FakeSource(lost, status="gone"), show.Mode.WATCH, settings)
    with pytest.raises(CliError, match="cannot be read"):
        show.show_source(FakeSource(frame, status="cannot be read"), show.Mode.WATCH, settings)


def test_a_silent_run_says_why(frame: Frame) -> None:
    with pytest.raises(CliError, match="its collector is gone") as caught:
        show.first_frame(FakeSource(status="its collector is gone"), patience_s=0.0)
    assert caught.value.code == Exit.FAILED


@pytest.mark.parametrize("ends", [True, False])
def test_of_a_run_that_ends_while_its_frame_is_waited_for_the_recording_is_shown(
    live_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ends: bool
) -> None:
    write_recording(tmp_path / "train.ddptop")
    run = live_run("train-k7qf", "aa11", recording=str(tmp_path / "train.ddptop"))

    class Ending(FakeSource):
        def status(self) -> str | None:
            if ends:
                (run.directory / "run.json").unlink(missing_ok=True)
            return "waiting for the collector of train-k7qf"

    monkeypatch.setattr("ddptop.sources.live.LiveSource", lambda _: Ending())
    monkeypatch.setattr(show, "first_frame", partial(show.first_frame, patience_s=0.0))
    assert main(["--json"]) == (Exit.DONE if ends else Exit.FAILED)
    printed = capsys.readouterr()
    if ends:
        assert json.loads(printed.out)["source"] == "replay"
    else:
        why = "no answer from the run in 0 s (waiting for the collector of train-k7qf); try again"
        assert printed.err == f"ddptop: {why}\n"


@pytest.mark.parametrize(
    ("terminal", "term", "live", "mode"),
    [
        (True, "xterm", True, show.Mode.SCREEN),
        (True, "dumb", True, show.Mode.WATCH),
        (True, "", True, show.Mode.WATCH),
        (False, "xterm", True, show.Mode.WATCH),
        (False, "xterm", False, show.Mode.ONCE),
        (True, "xterm", False, show.Mode.SCREEN),
    ],
)
def test_what_happens_by_itself(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, term: str, live: bool, mode: show.Mode
) -> None:
    monkeypatch.setattr(show, "has_terminal", lambda: terminal)
    monkeypatch.setenv("TERM", term)
    options = argparse.Namespace(watch=False, once=False, json=False)
    assert show.choose_mode(options, live=live) is mode


def test_interrupted(monkeypatch: pytest.MonkeyPatch, live_run, frame: Frame) -> None:
    live_run("train", "aa11")

    class Interrupted(FakeSource):
        def latest(self) -> Frame | None:
            raise KeyboardInterrupt

    source = Interrupted()
    monkeypatch.setattr("ddptop.sources.live.LiveSource", lambda run: source)
    assert main(["--watch"]) == 130
    assert source.closed


def show_settings() -> show.Settings:
    from ddptop.cli.settings import Settings

    return Settings()


Maker = Callable[..., RunFile]


def test_a_thread_that_an_internal_error_ends_is_told_on_the_screen() -> None:
    class App:
        def __init__(self) -> None:
            self.failures: list[str] = []

        def later(self, do: Callable[[], object]) -> None:
            do()

        def thread_failed(self, line: str) -> None:
            self.failures.append(line)

    app, before = App(), threading.excepthook
    with show.failures_shown(app):  # type: ignore[arg-type]
        thread = threading.Thread(target=lambda: 1 // 0)
        thread.start()
        thread.join()
    [line] = app.failures
    assert line.startswith("internal error: ZeroDivisionError: integer division or modulo by zero at ")
    assert threading.excepthook is before
