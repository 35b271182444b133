"""torch's analyser beside the collector: a process that is started, heard and ended, whatever it does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.collector.flight_analyser import DEADLINE_NS, FlightAnalyser
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event
from tests.run_processes import wait_for

ASKED_NS = 100 * NS
NOW_NS = 105 * NS

SAYS_ITS_WORDS = "import json, sys; print('noise'); print(json.dumps({'lines': sys.argv[1:]}))"
HANGS = "import time; time.sleep(600)"


class Stage:
    """An analyser with a process of the test's own, and what it says."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "flight"
        self.folder.mkdir()
        (self.folder / "ddptop_gloo_rank_0").touch()
        self.recording = home / "run.ddptop"
        self.said: list[Event] = []
        self.made: list[FlightAnalyser] = []

    def analyser(self, code: str, python: str = sys.executable) -> FlightAnalyser:
        made = FlightAnalyser(
            self.folder,
            self.recording,
            lambda event, _now_ns: self.said.append(event),
            command=(python, "-c", code),
        )
        self.made.append(made)
        return made

    def until_ended(self, analyser: FlightAnalyser) -> None:
        def ended() -> bool:
            analyser.work_on_dumps(NOW_NS + NS, None)
            return analyser.process is None

        wait_for(ended)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    for analyser in made.made:
        analyser.close()


def test_what_it_finds_is_said_with_the_time_of_the_question(stage: Stage, capfd) -> None:
    analyser = stage.analyser(SAYS_ITS_WORDS)
    analyser.work_on_dumps(NOW_NS, None)
    assert analyser.process is None, "nobody has been asked"
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    stage.until_ended(analyser)
    (event,) = stage.said
    assert (event.kind, event.rank, event.t_ns) == ("analyser", -1, NOW_NS + NS)
    folder_to_keep = str(event.fields["text2"])
    assert folder_to_keep.isdecimal(), "a descriptor"
    assert event.fields == {
        "asked_ns": ASKED_NS,
        "text0": str(stage.folder),
        "text1": "77",
        "text2": folder_to_keep,
    }
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("code", "note"),
    [
        ("raise AssertionError('sparse_all_reduce is not a supported operation')", "sparse_all_reduce"),
        ("import os; os._exit(3)", "exit code 3"),
        ("print('no JSON')", "exit code 0"),
        ("print('[1]')", "exit code 0"),
    ],
)
def test_however_it_fails_there_is_one_quiet_note(stage: Stage, capfd, code: str, note: str) -> None:
    analyser = stage.analyser(code)
    for _ in range(2):
        analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
        stage.until_ended(analyser)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ddptop collector: torch's flight recorder analyser: ") and note in line
    assert not stage.said


def test_one_that_hangs_is_ended_at_its_deadline_by_a_newer_question_and_with_the_run(stage: Stage) -> None:
    analyser = stage.analyser(HANGS)
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    first = analyser.process
    analyser.work_on_dumps(NOW_NS + DEADLINE_NS - 1, None)
    assert first is not None and first.poll() is None
    analyser.work_on_dumps(NOW_NS + DEADLINE_NS, None)
    assert first.returncode == -9
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 78))
    second = analyser.process
    analyser.work_on_dumps(NOW_NS, (ASKED_NS + NS, 79))
    third = analyser.process
    assert second is not None and third is not None
    assert (second.returncode, third.poll()) == (-9, None)
    analyser.close()
    assert third.returncode == -9
    assert not stage.said


def test_without_dumps_or_a_python_to_start_nothing_is_begun(stage: Stage, capfd) -> None:
    without_python = stage.analyser(SAYS_ITS_WORDS, python="/not/there")
    without_python.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    assert "/not/there" in capfd.readouterr().err
    assert without_python.process is None
    (stage.folder / "ddptop_gloo_rank_0").unlink()
    analyser = stage.analyser(SAYS_ITS_WORDS)
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    stage.folder.rmdir()
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    assert analyser.process is None


KEEPS = """
import os, sys
flags = os.O_WRONLY | os.O_CREAT
with open(os.open("ddptop_gloo_rank_0", flags, 0o600, dir_fd=int(sys.argv[3])), "w") as file:
    file.write(sys.argv[2])
print('{"lines": []}')
"""


def keeps(stage: Stage, *numbers: int) -> None:
    """A new analyser that has been asked so often."""
    analyser = stage.analyser(KEEPS)
    for number in numbers:
        analyser.work_on_dumps(NOW_NS, (ASKED_NS, number))
        stage.until_ended(analyser)
    analyser.close()


def test_dumps_are_kept_in_a_folder_of_their_own_and_no_file_of_the_users_is_touched(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    models = stage.recording.with_name("models")
    models.mkdir()
    theirs = stage.recording.with_name("run.ddptop.flight")
    theirs.symlink_to(models)
    for name in ("model_rank_0", "ckpt_rank_0", "ddptop_gloo_rank_0"):
        (models / name).write_text("weights")
    keeps(stage, 77, 78)
    theirs.unlink()
    models.rename(theirs)
    keeps(stage, 79)
    assert {path.name: path.read_text() for path in theirs.iterdir()} == dict.fromkeys(
        ("model_rank_0", "ckpt_rank_0", "ddptop_gloo_rank_0"), "weights"
    )
    kept = [stage.recording.with_name(f"run.ddptop.flight-{number}") for number in (2, 3)]
    assert [(path / "ddptop_gloo_rank_0").read_text() for path in kept] == ["78", "79"]
    assert [path.stat().st_mode & 0o777 for path in kept] == [0o700, 0o700]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_no_dumps_are_kept_where_another_user_could_put_others_in_their_place(
    stage: Stage, capfd: pytest.CaptureFixture[str], mode: int
) -> None:
    stage.recording.parent.chmod(mode)
    analyser = stage.analyser(SAYS_ITS_WORDS)
    analyser.work_on_dumps(NOW_NS, (ASKED_NS, 77))
    stage.until_ended(analyser)
    sticky = mode == 0o1777
    assert stage.recording.with_name("run.ddptop.flight").exists() == sticky
    assert ("other users can replace" in capfd.readouterr().err) != sticky
    assert len(stage.said) == 1
