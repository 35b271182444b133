"""Who may report as which rank; and that no message ends the collector, or is refused without a word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from ddptop.agent.admission import Admission
from ddptop.analysis.missing_records import MissingRecords
from ddptop.analysis.reducer import Reducer
from ddptop.frames.snapshot import snapshot
from ddptop.host import processes
from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_SHOWN_WORLD
from ddptop.protocol.messages import Event, Hello, Received, StepRow, Steps
from ddptop.recording.reader import Recording
from ddptop.render.plain import watch_line
from ddptop.report.build import read_report as report_of
from ddptop.report.text import text_page as report_page
from tests import made_up_run
from tests.collector.hostile import HOSTILE
from tests.tui.pages import page as run_page
from tests.tui.pages import place_at


def test_hostile_messages_are_refused_counted_and_shown_and_the_rank_keeps_its_place(stage):
    collector = stage.collector("--most-ranks", "2")
    source = stage.source()
    ranks = [stage.rank(rank, steps=100, end="hang") for rank in (0, 1)]
    stage.until(source, lambda frame: frame.group.step == 99)
    hostile = subprocess.Popen(
        [sys.executable, "-c", HOSTILE, str(stage.directory), "run"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"RANK_PID": str(ranks[0].pid)},
    )
    stage.processes.append(hostile)

    def refused(frame):
        return [alert for alert in snapshot(frame)["alerts"] if alert["kind"] == "refused_messages"]

    # All six: they may be reported in two parts.
    frame = stage.until(source, lambda frame: [a["evidence"]["refused"] for a in refused(frame)] == [6])
    (alert,) = refused(frame)
    assert alert["evidence"]["failed"] == 0
    assert frame.run.world_size == 2
    stage.finish(collector)
    reducer = Reducer()
    with Recording.open(stage.recording) as recording:
        for received in recording.records():
            reducer.feed(received)
        told = report_page(report_of(recording), 200)
    last = reducer.frame(reducer.state.ended_ns or 0)
    for shown in (told, watch_line(last), run_page(last, place_at("run"), (150, 60))):
        assert "messages to the collector: 6 refused" in shown
    assert [member.hello.pid for member in reducer.state.ranks] == [rank.pid for rank in ranks]
    counted = reducer.state.missing.refused
    assert counted is not None and counted[1].fields["refused"] == 6


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "input()"],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@pytest.fixture
def others() -> Iterator[Callable[[], int]]:
    """Pids of processes that have nothing to do with each other."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        started.append(sleeper())
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def hello(pid: int, session: int, *, rank: int = 0, world: int = 2, **changes: int) -> Hello:
    return made_up_run.hello(rank, world, pid=pid, session=session, **changes)


def end(pid: int) -> None:
    os.kill(pid, 9)
    os.waitpid(pid, 0)


def test_a_rank_is_its_process_as_long_as_that_lives(others):
    admission = Admission(launcher=0)
    first, second = others(), others()
    admission(hello(first, 1), first)
    for claim, peer in (
        (hello(second, 2), second),
        (hello(first, 2), second),
        (hello(second, 2, incarnation=9), second),
    ):
        with pytest.raises(ProtocolError, match="HELLO of process"):
            admission(claim, peer)
    admission(hello(first, 3), first)  # it made another process group
    end(first)
    admission(hello(second, 2, incarnation=1), second)  # the launcher restarted it


def test_a_rank_takes_its_place_back_once_it_is_free(others):
    true, other = others(), others()
    admission = Admission(launcher=0)
    admission(hello(true, 1), true)
    admission(hello(other, 2), None)  # the kernel did not say who: the newest has the place
    assert admission.find_returning(0, 1) is None  # as far as known
    admission = Admission(launcher=0)
    admission(hello(true, 1), true)
    admission.note_bye(0, 1)
    admission(hello(other, 2), other)
    admission.note_bye(0, 1, sent=False)
    admission(hello(true, 1), true)  # reconnects, while the other lives
    assert admission.find_returning(0, 1) is None
    end(other)
    assert admission.find_returning(0, 2) is None
    assert admission.find_returning(0, 1) == hello(true, 1)
    assert admission.find_returning(0, 1) is None


def test_the_launchers_own_process_takes_the_place_of_one_that_is_not(others):
    launcher = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert launcher.stdout is not None
    rank, stranger = int(launcher.stdout.readline()), others()
    admission = Admission(launcher=launcher.pid)
    admission(hello(stranger, 1), stranger)
    admission(hello(rank, 2), rank)
    with pytest.raises(ProtocolError):
        admission(hello(stranger, 3), stranger)
    launcher.communicate()


def test_of_trainings_side_by_side_the_first_has_the_place():
    """`ddptop-run --ddptop-exec` of a shell that starts several: all of them are of its process group."""
    shell = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; sleep 60 & echo $!; wait"],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert shell.stdout is not None
    try:
        first, second = int(shell.stdout.readline()), int(shell.stdout.readline())
        admission = Admission(launcher=shell.pid)
        admission(hello(first, 1), first)
        with pytest.raises(ProtocolError, match="as rank 0"):
            admission(hello(second, 2), second)
        admission(hello(shell.pid, 3), shell.pid)  # their parent may have the place of its own child
    finally:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.communicate()


CHILD = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
print(child.pid, flush=True)
input()
"""


def test_worlds_that_the_launcher_does_not_start_or_that_cannot_be_shown_are_refused():
    four, free = Admission(launcher=0, most_ranks=4), Admission(launcher=0)
    four(hello(1, 1, world=4), None)
    four(hello(1, 1, world=3), None)  # one of the four may be a helper that trains nothing
    free(hello(1, 1, world=MAX_SHOWN_WORLD), None)
    for admission, world in ((four, 5), (free, MAX_SHOWN_WORLD + 1)):
        with pytest.raises(ProtocolError, match="a world of"):
            admission(hello(1, 1, world=world), None)


def test_ranks_that_a_rank_has_spawned_are_refused_with_the_option_that_records_them(others):
    """A script that calls mp.spawn was started with torchrun's form of ddptop-run."""
    admission, me, spawned = Admission(launcher=0), os.getpid(), others()
    admission(hello(me, 1, world=1), me)
    with pytest.raises(ProtocolError) as refusal:
        admission(hello(spawned, 2, rank=1, world=2), spawned)
    assert str(refusal.value).startswith("a world of 2 ranks that rank 0 has started for itself: ")
    assert str(refusal.value).endswith("ddptop-run --ddptop-exec records it")
    missing = MissingRecords()
    assert missing.refused_reason == ""
    missing.note_refused(Event("refused_messages", 9, -1, -1, {"reason": str(refusal.value)}), 9)
    assert missing.refused_reason == str(refusal.value), "the launcher's last line has it"


def test_a_process_in_a_container_is_known_by_its_pid_there(others, monkeypatch):
    pid = others()
    monkeypatch.setattr("ddptop.agent.admission.innermost_pid", lambda of: 7 if of == pid else of)
    Admission(launcher=0)(hello(7, 1), pid)
    with pytest.raises(ProtocolError):
        Admission(launcher=0)(hello(8, 1), pid)


def test_a_process_belongs_to_itself_its_group_and_its_ancestors(others):
    me, other = os.getpid(), others()
    assert processes.belongs_to(me, me)
    assert processes.belongs_to(other, me)  # its parent
    assert not processes.belongs_to(me, other)
    assert processes.innermost_pid(me) == me
    assert processes.is_own_process(me)
    assert not processes.is_own_process(2**22 + 1)


def test_the_figures_go_on_with_the_process_that_has_its_rank_back():
    def steps(first: int) -> Steps:
        return Steps(1, first, 0, (StepRow(0, 10, 1, 1, 1, 1, 1, 2, 3, 1, 0, 1, None, ()),))

    reducer = Reducer()
    arriving = [
        (1, hello(5, 1, world=1)),
        (1, steps(0)),
        (2, hello(6, 2, world=1)),
        (1, steps(1)),
        (0, Event("rank_returned", 3, 0, -1, {"session": 1})),
        (1, steps(2)),
    ]
    for at, (session, message) in enumerate(arriving):
        assert encode(message)
        reducer.feed(Received(at, 0 if session else -1, session, 0, message))
    assert (reducer.state.ranks[0].session, reducer.state.complete_step) == (1, 2)
    assert reducer.state.ranks[0].lost_records == 0
    reducer.feed(Received(9, -1, 0, 0, Event("rank_returned", 9, 0, -1, {"session": 77})))
    assert replace(reducer.state.ranks[0]).session == 1
