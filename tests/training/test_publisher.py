"""The publisher thread beside a training that forks, and that destroys its groups again and again."""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from ddptop.host import step_counters
from ddptop.host.end_notices import EndNotices, give_notice
from ddptop.host.exits import RankProcess
from ddptop.host.step_counters import (
    StepCount,
    leave_step_count,
    note_step_count,
    open_step_counter,
    read_step_count,
    unread_counts,
)
from ddptop.protocol.messages import Bye, Replica
from ddptop.training import publisher as publisher_module
from ddptop.training.budget import OFTEN, RARE, TIGHT, Budget
from ddptop.training.publisher import Publisher, StepHold, Turns
from ddptop.training.recorder import Recorder
from ddptop.training.session import shared_counter
from tests import made_up_run
from tests.processes import DEADLINE_S
from tests.training.conftest import Ear, Ranks

SCRIPT = Path(__file__).parent / "scripts" / "footprint.py"


def test_a_recorded_rank_has_one_thread_and_two_sockets_more(ear: Ear, ranks: Ranks) -> None:
    """Its connection, and one for its launcher's notices; and no library of ZeroMQ's. A forked worker keeps
    nothing open, whatever a thread of ours was doing.

    No thread imports while a loader may fork: a worker would wait for ever for the lock of the module.
    """
    (process,) = ranks.start(SCRIPT, world=1, env=ear.environment(), cold=True)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Exception ignored" not in err
    assert json.loads(out) == {
        "threads": 1,
        "sockets": 2,
        "sockets of a child": 0,
        "zmq": False,
        "imports": [],
    }
    ear.next_said(0, Bye)


@pytest.mark.parametrize(
    ("turns_before", "every", "steps", "beats"),
    [
        (0, OFTEN, "1111 1111", "1010 1010"),
        (0, TIGHT, "1111 1111", "1111 1111"),
        (1, TIGHT, "1111 1111", "1111 1111"),
        (0, RARE, "1000 1000", "1111 1111"),
        (3, RARE, "0010 0010", "1111 1111"),
    ],
)
def test_between_two_reads_of_the_steps_there_are_heartbeats(
    turns_before: int, every: int, steps: str, beats: str
) -> None:
    turns = Turns()
    for _ in range(turns_before):
        turns.take_turn(OFTEN)
    taken = [turns.take_turn(every) for _ in range(8)]
    expected = zip(steps.replace(" ", ""), beats.replace(" ", ""), strict=True)
    assert taken == [(step == "1", beat == "1") for step, beat in expected]


def test_a_message_in_order_with_the_steps_has_them_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where steps are taken every 2 s, an event or an answer does not overtake those before it."""
    monkeypatch.setenv("DDPTOP_RUN_DIR", "/nowhere")
    session: Any = SimpleNamespace(
        recorder=Recorder(), parameters={}, device_bounds_ns=lambda: None, device=None
    )
    identity: Any = SimpleNamespace(rank=0)
    publisher = Publisher(session, identity, Budget(0.1), sequence=lambda: 0)
    assert not publisher.take_sending_due()
    publisher.send(Replica(16, 0, 1, 0, (1,)))
    assert not publisher.take_sending_due(), "checks come every few steps: they wait for the next turn"
    publisher.send(Bye(1, "left", 0))
    assert publisher.take_sending_due()
    assert not publisher.take_sending_due(), "they were taken"


class Waits(threading.Event):
    """Never set; notes the timeouts of its waits."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        return False


def test_after_a_timeout_leaving_a_group_does_not_wait_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPTOP_RUN_DIR", "/nowhere")
    session: Any = SimpleNamespace(recorder=Recorder(), parameters={}, device_bounds_ns=lambda: None)
    identity: Any = SimpleNamespace(rank=0)
    publisher = Publisher(session, identity, Budget(1.0), sequence=lambda: 0)
    publisher._left_sent = waits = Waits()
    for _ in range(3):
        publisher.leave_group(0.5)
    publisher._last_ack_s = time.monotonic()
    publisher.leave_group(0.5)
    assert waits.timeouts == [0.5, 0.0, 0.0, 0.5]


def test_steps_that_were_not_acked_are_left_as_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    session: Any = SimpleNamespace(recorder=Recorder(), parameters={}, device_bounds_ns=lambda: None)
    session.recorder.step = 41
    session.timing_path = "hook"
    hello = made_up_run.hello(0, 2, session=77, run_id="run")
    identity: Any = SimpleNamespace(rank=0, session=77, make_hello=lambda _: hello)
    publisher = Publisher(session, identity, Budget(1.0), sequence=lambda: 0)
    monkeypatch.delenv("DDPTOP_RUN_DIR")  # the script has left its run
    publisher._leave_step_count(1)
    count = StepCount(41, True, True, hello)
    assert read_step_count(tmp_path, 77) == count
    assert unread_counts(tmp_path, "run", ()) == [(hello, count)]
    assert not unread_counts(tmp_path, "run", (77,))
    assert not unread_counts(tmp_path, "another", ())


def close_step(recorder: Recorder) -> None:
    """As where DDP's forward begins after an optimizer has stepped."""
    recorder.optimizer_begins(1)
    recorder.optimizer_ends(1)
    recorder.forward_begins(True)


def test_until_the_launcher_ends_a_rank_a_step_is_finished_once_it_is_sent() -> None:
    """The training thread waits for it between two steps, for a moment at most; then all is as before."""
    recorder = Recorder()
    counter = recorder.counter = [0]
    close_step(recorder)
    assert counter == [1]
    sending: list[StepHold] = []

    def publish() -> None:
        for hold in sending:
            assert counter[0] == recorder.step - 1  # were it killed now, nothing finished would be lost
            assert hold.renew_hold(False)
            hold.note_sent()

    hold = StepHold(recorder, publish)
    recorder.between_steps.append(lambda: None)  # as where more steps are to be recorded
    assert hold.renew_hold(True)
    hold.note_sent()
    assert counter == [1]
    sending.append(hold)
    for steps in (2, 3):
        close_step(recorder)
        assert counter == [steps]
    sending.clear()  # a publisher that cannot run
    hold.renew_hold(True)
    close_step(recorder)
    assert (recorder.step, counter) == (4, [3])
    hold.end_hold()
    close_step(recorder)
    assert counter == [5] and not recorder.between_steps


class Interrupted(Exception):
    """What a script's signal handler raises."""


def interrupt(function: Callable[[], object], place: int) -> bool:
    """Call the function and raise at the `place`-th line, call or return of it and of what it calls, as a
    signal handler may. Returns whether there are so many."""
    n_places = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal n_places
        n_places += 1
        if n_places == place:
            raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        function()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


def test_a_signal_handler_that_raises_while_a_step_waits_locks_nobody_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The launcher's signal comes just then. Afterwards the publisher sends, and the rank's end wakes it."""
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(publisher_module, "HOLD_S", 0.001)
    recorder = Recorder()
    session: Any = SimpleNamespace(recorder=recorder, parameters={}, device_bounds_ns=lambda: None)
    identity: Any = SimpleNamespace(rank=0)
    publisher = Publisher(session, identity, Budget(1.0), sequence=lambda: 0)
    publisher._notices = EndNotices(tmp_path, 1)

    def publish() -> None:
        give_notice(tmp_path, 0.0)
        assert publisher._take_notices() and publisher._ending is not None
        publisher._ending.note_sent()
        publisher._wake_up()
        publisher._wake.clear()

    for place in itertools.count(1):
        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        publishing.join(DEADLINE_S)
        assert not publishing.is_alive(), f"it waits for a lock: interrupted at place {place - 1}"
        hold = recorder.between_steps.popleft()
        recorder.step += 1  # not sent, so that it is waited for
        assert hold is not None
        if not interrupt(hold, place):
            break
    assert place > 10
    publisher._notices.close()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory without a file is Linux's")
@pytest.mark.parametrize("in_memory", [False, True])
def test_the_counter_of_steps_takes_one_descriptor_and_gives_it_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, in_memory: bool
) -> None:
    monkeypatch.setattr(step_counters, "is_in_memory", lambda _: in_memory)
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    hello = made_up_run.hello(0, 2, session=5)

    def links() -> list[str]:
        found = []
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the one by which the folder is read
                found.append(str(link.readlink()))
        return [link for link in found if link.split(" ")[0].endswith("ddptop-steps-5")]

    counter = shared_counter(hello)
    counter[0] = 41
    note_step_count(tmp_path, 5, 40)
    assert read_step_count(tmp_path, 5) == StepCount(41 if in_memory else 40, in_memory, False, hello)
    found = open_step_counter(RankProcess(5, 0, os.getpid()))
    assert found is not None
    assert os.pread(found, 8, 0) == (41).to_bytes(8, sys.byteorder)
    os.close(found)
    assert len(links()) == 1
    del counter
    gc.collect()
    assert links() == []
    leave_step_count(tmp_path, hello, 42, 1)
    assert read_step_count(tmp_path, 5) == StepCount(42, True, True, hello)
    leave_step_count(tmp_path, hello, 42, 0)
    assert read_step_count(tmp_path, 5) is None
