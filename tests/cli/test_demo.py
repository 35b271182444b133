"""`ddptop demo`: a real training run that ends when the person has seen enough."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop.cli import demo, show
from ddptop.cli.demo_source import DemoSource
from ddptop.cli.errors import CliError
from ddptop.frames.frame import Frame
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import LONG_WAIT_S
from tests.processes import DDPTOP, DEADLINE_S, environment, processes_of, started, until
from tests.recording.replays import frame_at
from tests.tui.fake import live, nobody, straggler, waiting

torch = pytest.importorskip("torch")


def test_ranks_that_are_asked_to_end_do_so_after_the_same_step() -> None:
    from ddptop.training.demo import AHEAD, CommonStop

    asked, store = threading.Event(), torch.distributed.HashStore()
    ranks = [CommonStop(asked, store, rank) for rank in range(3)]
    assert not any(rank.is_beyond_last(step) for step in range(5) for rank in ranks)
    asked.set()
    # Rank 1 has begun step 5 before rank 0 looks.
    assert [ranks[rank].is_beyond_last(5) for rank in (1, 0, 2)] == [False] * 3
    ended = [next(step for step in range(6, 20) if rank.is_beyond_last(step)) for rank in reversed(ranks)]
    assert ended == [5 + AHEAD + 1] * 3


@pytest.fixture
def slow() -> Iterator[subprocess.Popen[bytes]]:
    """A training that takes its time."""
    process = subprocess.Popen(["sleep", "60"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_demo_that_is_slow_is_waited_for_with_words(
    slow: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []
    output = tmp_path / "output"
    output.write_bytes(b"Traceback:\ntorch is not there\n")

    def note(line: str) -> None:
        words.append(line)
        if len(words) == 5:
            slow.kill()
            slow.wait()

    monkeypatch.setattr(demo, "SAY_EVERY_S", 0.01)
    monkeypatch.setattr(demo, "note", note)
    monkeypatch.setattr(demo.find, "find_live", list)
    with (
        pytest.raises(CliError, match="the demo did not start: torch is not there"),
        output.open("rb") as read,
    ):
        demo.wait_with_notes(demo.Start("demo-1", slow, read, 2))
    assert len(words) == 5
    assert "importing torch · 0 of 2 ranks have reported" in words[0] and "Ctrl-C" in words[0]


def test_a_demo_that_cannot_be_recorded_ends_with_the_reason(
    slow: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.find, "find_live", list)
    monkeypatch.setattr(demo, "note", lambda line: slow.kill())
    monkeypatch.setattr(demo, "SAY_EVERY_S", 0.1)
    with tempfile.TemporaryFile() as output:
        output.write(b"W: a warning\nddptop: cannot record: no room; running without it\nW: another\n")
        output.flush()
        with pytest.raises(CliError, match="the demo cannot be watched: cannot record: no room"):
            demo.wait_with_notes(demo.Start("demo-1", slow, output, 2))


def test_the_screen_says_what_a_starting_demo_waits_for_and_closes_where_it_fails(
    slow: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.find, "find_live", list)
    closed, output = threading.Event(), tmp_path / "output"
    output.write_bytes(b"Traceback:\nno port is free\n")
    with output.open("rb") as read:
        start = demo.Start("demo-1", slow, read, 2)
        source = DemoSource("demo-1", start.wait_for_run, lambda frame: None, closed.set)
        with show.started_source(source):
            until(lambda: "importing torch · 0 of 2 ranks have reported" in str(source.status()), "the wait")
            assert source.latest() is None and source.problem is None
            slow.kill()
            assert closed.wait(DEADLINE_S), "the screen need not wait for a key"
        assert str(source.problem) == "the demo did not start: no port is free"


def test_what_a_demo_waits_for_is_read_from_its_processes_and_the_marks_of_its_ranks(tmp_path: Path) -> None:
    launcher = ["sh", "-c", "read go; sleep 60 & wait"]
    process = subprocess.Popen(launcher, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    try:
        with tempfile.TemporaryFile() as output:
            start = demo.Start("demo-1", process, output, 2)
            assert start.describe_start().startswith("importing torch · 0 of 2 ranks have reported · ")
            process.stdin.write(b"go\n")
            process.stdin.flush()
            until(
                lambda: start.describe_start().startswith("starting the collector · 0 of 2"),
                "its first process",
            )
            start.run = SimpleNamespace(directory=tmp_path)  # type: ignore[assignment]
            lesson = demo.Lesson(2, start.describe_ranks)
            seen = [lesson.next_line(nobody())]
            for pid in (11, 12):
                (tmp_path / f"ddptop-init-{pid}").touch()
                seen.append(lesson.next_line(nobody()))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert seen == [
        f"demo: {n_met} of 2 ranks have reached init_process_group · 0 of 2 reported" for n_met in range(3)
    ]


def test_a_demo_that_is_left_before_its_run_is_there_is_undone(tmp_path: Path) -> None:
    env = environment(tmp_path)
    folder = tmp_path / "r" / "ddptop"
    with started([*DDPTOP, "demo", "--headless"], env, tmp_path, cold=True) as process:
        until(lambda: list(folder.glob("starting.*")), "a launcher that is about to import torch")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        until(lambda: not processes_of(env), "the end of all processes")
    assert not list(folder.iterdir())


def test_a_demo_whose_launcher_is_slow_to_end_is_waited_for_with_words(
    slow: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    words: list[str] = []

    def note(line: str) -> None:
        words.append(line)
        slow.kill()

    monkeypatch.setattr(demo, "SAY_EVERY_S", 0.01)
    monkeypatch.setattr(demo, "note", note)
    demo.wait_for_end(slow)
    assert "waiting" in words[0]


def test_the_demo_says_what_is_seen_for_a_while_and_where_the_machine_is_too_noisy() -> None:
    frame, lesson = straggler(2), demo.Lesson(2, str)
    even = replace(live(2), events=())

    def at(frame: Frame, step: int) -> str:
        frame = replace(frame, group=replace(frame.group, step=step))
        lesson.note_frame(frame)
        return lesson.next_line(frame)

    assert "slow on purpose" in at(even, 10)
    assert at(even, 200) == ""
    again = f"step {demo.EVERY + demo.SLOW_FROM}"
    assert "too noisy" in at(even, demo.SLOW_UNTIL + 50) and again in at(even, demo.SLOW_UNTIL + 50)
    assert not lesson.over and lesson.is_noisy
    flagged = replace(frame, unix_s=frame.alerts[0].since_s + 1)
    assert "w shows why" in at(flagged, 560)
    assert at(replace(frame, unix_s=frame.alerts[0].since_s + demo.SHOWN_S + 1), 560) == ""
    assert not lesson.over and not lesson.is_noisy
    at(even, demo.LEAST_STEPS + 1)
    assert lesson.over
    other, late = demo.Lesson(2, str), frame.straggler
    assert late is not None
    noise = replace(flagged, straggler=replace(late, rank=0), events=(replace(frame.events[-1], rank=0),))
    other.note_frame(replace(noise, group=replace(noise.group, step=demo.SLOW_UNTIL + 50)))
    assert other.is_noisy and "sleeps" not in other.next_line(noise), (
        "another rank than the slow one was flagged"
    )
    never = demo.Lesson(2, str)
    never.note_frame(replace(even, group=replace(even.group, step=demo.MOST_STEPS)))
    assert never.over and never.is_noisy


def test_until_ranks_report_the_demo_says_how_many_have_and_only_later_what_to_do() -> None:
    lesson = demo.Lesson(4, lambda n_reported: f"{n_reported} of 4")
    for frame, n_reported in ((nobody(), 0), (waiting(4), 2)):
        lesson.note_frame(frame)
        assert lesson.next_line(frame) == f"{n_reported} of 4"
        early = replace(frame, run=replace(frame.run, elapsed_s=LONG_WAIT_S - 1))
        assert next_action(early) == ""
        late = replace(frame, run=replace(frame.run, elapsed_s=LONG_WAIT_S))
        assert "init_process_group" in next_action(late)


def alone() -> str:
    return demo.ALONE.format(option="--ranks")


def test_of_one_rank_the_demo_says_that_none_is_compared_and_ends_after_the_least_steps() -> None:
    frame, lesson = live(1), demo.Lesson(1, str)
    for step in (10, demo.SLOW_UNTIL, demo.LEAST_STEPS):
        assert not lesson.over
        frame = replace(frame, group=replace(frame.group, step=step))
        lesson.note_frame(frame)
        assert lesson.next_line(frame) == f"demo: {alone()}"
    assert lesson.over and not lesson.is_noisy


def test_a_demo_of_one_rank_ends_with_what_more_of_them_show(tmp_path: Path) -> None:
    env = environment(tmp_path)
    command = [*DDPTOP, "demo", "--headless", "--ranks", "1", "--steps", "12"]
    with started(command, env, tmp_path) as process:
        words = process.communicate(timeout=DEADLINE_S)[1]
    assert process.returncode == 0
    assert "on purpose" not in words and f"ddptop: {alone()}" in words


def test_a_demo_that_is_interrupted_has_finished_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with started([*DDPTOP, "demo", "--headless"], env, tmp_path) as process:
        lines = iter(process.stdout or ())
        assert any(re.search(r"step +\d", line) for line in lines), "training goes on"
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        until(lambda: not processes_of(env), "the end of all processes")
    recording = next((tmp_path / "state" / "ddptop").glob("demo-*.ddptop"))
    frame = frame_at(recording, None)
    assert frame.run.state == "finished"
    assert len(set(frame.ranks.step)) == 1


@pytest.mark.parametrize(
    ("words", "sign", "n_processes"),
    [
        ((), signal.SIGKILL, 4),
        pytest.param(("--simulate", "4"), signal.SIGKILL, 2, marks=pytest.mark.slow),
        pytest.param(("--simulate", "4"), signal.SIGHUP, 2, marks=pytest.mark.slow),
        (("--simulate", "4"), signal.SIGTERM, 2),
    ],
)
def test_a_demo_that_is_killed_leaves_no_process_and_no_folder(
    tmp_path: Path, words: tuple[str, ...], sign: signal.Signals, n_processes: int
) -> None:
    env = environment(tmp_path)
    with started([*DDPTOP, "demo", "--headless", *words], env, tmp_path) as process:
        others = lambda: [each for each in processes_of(env) if each.pid != process.pid]  # noqa: E731
        until(lambda: len(others()) == n_processes, "ranks, collector, launcher")
        process.send_signal(sign)
        assert process.wait(DEADLINE_S) == (-sign if sign is signal.SIGKILL else 128 + sign)
        until(lambda: not processes_of(env), "the end of all processes")
    assert list((tmp_path / "r" / "ddptop").glob("*")) == []


def test_at_the_end_it_is_said_how_to_replay_it_or_that_it_was_not_recorded(
    live_run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever `DDPTOP_RECORD` puts the recording."""
    path = tmp_path / "a demo.ddptop"
    path.touch()
    run = live_run("demo-a9", "aa11", recording=str(path))
    demo.print_replay_hint(run)
    assert capsys.readouterr().err.endswith(f" replay '{path}'\n")
    demo.print_replay_hint(replace(run, recording=None))
    assert capsys.readouterr().err == "ddptop: it was not recorded: there is nothing to replay\n"
