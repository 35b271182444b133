"""The publisher thread beside a training that forks, and that destroys its groups again and again."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ddptop.host import step_counters
from ddptop.host.exits import RankProcess
from ddptop.host.step_counters import (
    StepCount,
    leave_step_count,
    note_step_count,
    open_step_counter,
    read_step_count,
    unread_counts,
)
from ddptop.protocol.decoding import decode
from ddptop.protocol.messages import FINISHED, Ack, Bye, Replica
from ddptop.training.budget import (
    EACH_FOURTH_PERIOD,
    EACH_PERIOD,
    EACH_SECOND_PERIOD,
    EACH_SIXTEENTH_PERIOD,
    Budget,
)
from ddptop.training.exit import ExitReason
from ddptop.training.publisher import LoggedScalars, Publisher, Turns
from ddptop.training.recorder import Recorder
from ddptop.training.session import shared_counter
from ddptop.training.torch_compat.process_groups import read_again
from tests import made_up_run
from tests.processes import DEADLINE_S, until
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
    ("turns_before", "every", "n_periods", "steps", "beats"),
    [
        (0, EACH_PERIOD, 1, "1111 1111", "1010 1010"),
        (0, EACH_SECOND_PERIOD, 2, "1111 1111", "1111 1111"),
        (1, EACH_SECOND_PERIOD, 2, "1111 1111", "1111 1111"),
        (0, EACH_FOURTH_PERIOD, 2, "1010 1010", "1111 1111"),
        (0, EACH_FOURTH_PERIOD, 4, "1111 1111", "1111 1111"),
        (0, EACH_SIXTEENTH_PERIOD, 2, "1000 0000", "1111 1111"),
        (3, EACH_SIXTEENTH_PERIOD, 4, "0001 0001", "1111 1111"),
        (0, EACH_SIXTEENTH_PERIOD, 4, "1000 1000", "1111 1111"),
    ],
)
def test_between_two_reads_of_the_steps_there_are_heartbeats(
    turns_before: int, every: int, n_periods: int, steps: str, beats: str
) -> None:
    turns = Turns()
    for _ in range(turns_before):
        turns.take_turn(EACH_PERIOD, 1)
    taken = [turns.take_turn(every, n_periods) for _ in range(8)]
    expected = zip(steps.replace(" ", ""), beats.replace(" ", ""), strict=True)
    assert taken == [(step == "1", beat == "1") for step, beat in expected]


class FakeSender:
    """The connection of a rank to a collector that acks nothing unless it is told to."""

    asked = asked_samples = 0

    def __init__(self) -> None:
        self.pending = 1
        self.acks: list[Ack] = []
        self.drained_s: list[float] = []
        """How long it was to go on, each time that all was to be sent."""

    def exchange_messages(self) -> Ack | None:
        return self.acks.pop() if self.acks else None

    def drain_unacked(self, patience_s: float) -> None:
        self.drained_s.append(patience_s)

    def close(self, drain_s: float) -> int:
        return self.pending

    def has_arrived(self) -> bool:
        return False

    def _take(self, taken: object) -> None:
        """What is sent is not looked at."""

    def send_heartbeat(self) -> None:
        """It is not looked at either."""

    offer_message = set_heartbeat = greet_with = _take


HELLO = made_up_run.hello(0, 2, session=77, run_id="run")


@pytest.fixture
def sender() -> FakeSender:
    return FakeSender()


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, sender: FakeSender) -> Iterator[Publisher]:
    """That of a rank that has finished 41 steps; not started."""
    monkeypatch.setenv("DDPTOP_RUN_DIR", str(tmp_path))
    recorder = Recorder()
    recorder.step = 41
    session: Any = SimpleNamespace(
        recorder=recorder,
        device=None,
        card={},
        parameters={},
        memberships={},
        replicas=SimpleNamespace(step_ns=0.0),
        scalars=LoggedScalars(),
        timing_path="hook",
        device_bounds_ns=lambda: None,
    )
    connection: Any = sender
    monkeypatch.setattr("ddptop.training.publisher.renew_hello", lambda hello, _path: hello)
    yield Publisher(session, HELLO, Budget(1.0), sequence=lambda: 0, sender=connection)
    read_again()  # `close` has ended the reading of torch's counters in this process


def end(publisher: Publisher) -> None:
    publisher.close(0.0, ExitReason(FINISHED, None))
    publisher.join(DEADLINE_S)
    assert not publisher.is_alive()


def test_the_budget_is_kept_with_the_steps_and_counts_the_heartbeats_between(
    publisher: Publisher, sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts: list[tuple[int, int, int]] = []
    beats: list[bytes] = []

    def account_for(records: object, spent_ns: int, checks_ns: float) -> None:
        accounts.append((len(beats), spent_ns, time.thread_time_ns()))

    monkeypatch.setattr("ddptop.training.publisher.REPORT_S", 0.01)
    monkeypatch.setattr(publisher.budget, "account_for", account_for)
    monkeypatch.setattr(sender, "set_heartbeat", beats.append)
    publisher.budget.report_every = EACH_SIXTEENTH_PERIOD
    publisher.start()
    until(lambda: len(accounts) > 3, "steps are taken")
    end(publisher)
    n_beats, spent_ns, thread_ns = zip(*accounts, strict=True)
    assert [later - earlier for earlier, later in pairwise(n_beats)] == [8] * (len(accounts) - 1)
    assert sum(spent_ns[1:]) == pytest.approx(thread_ns[-1] - thread_ns[0], rel=0.05)


def test_a_rank_that_finishes_steps_reads_and_tells_little_until_it_stands(
    publisher: Publisher, sender: FakeSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With next to no budget: then heartbeats are rarer, and most of them tell the step alone."""
    recorder = publisher._session.recorder
    moves = True
    told: list[int] = []
    reads: list[int] = []

    def note_heartbeat(body: bytes) -> None:
        told.append(decode(body).step)
        recorder.step += moves

    monkeypatch.setattr("ddptop.training.publisher.REPORT_S", 0.01)
    monkeypatch.setattr(sender, "set_heartbeat", note_heartbeat)
    monkeypatch.setattr(sender, "exchange_messages", lambda: reads.append(len(told)))
    publisher.budget.report_every = EACH_SIXTEENTH_PERIOD
    publisher.start()
    until(lambda: len(told) > 20, "heartbeats")
    moves = False
    # The wait of then has still begun after a step.
    standing = len(told) + 2
    until(lambda: len(told) > standing + 20, "heartbeats of a step that lasts")
    end(publisher)
    assert told[:20] == list(range(41, 61))
    moving_reads = [n for n in reads if 1 < n <= 20]
    assert moving_reads and all(later - earlier == 4 for earlier, later in pairwise(moving_reads))
    assert set(range(standing, standing + 20)) <= set(reads), "it reads whenever it wakes up"


def test_a_message_in_order_with_the_steps_has_them_taken(publisher: Publisher) -> None:
    """Where steps are taken every 2 s, an event or an answer does not overtake those before it."""
    assert not publisher.take_sending_due()
    publisher.send(Replica(16, 0, 1, 0, (1,)))
    assert not publisher.take_sending_due(), "checks come every few steps: they wait for the next turn"
    publisher.send(Bye(1, "left", 0))
    assert publisher.take_sending_due()
    assert not publisher.take_sending_due(), "they were taken"


def test_short_steps_are_taken_before_the_recorder_drops_any(publisher: Publisher) -> None:
    """With a small budget they are taken every 4 s: at 2,500 steps/s that is more than it keeps."""
    records = publisher._session.recorder.records
    assert records.maxlen is not None
    records.extend((step, step) for step in range(records.maxlen // 4))
    assert not publisher.take_sending_due()
    records.append((0, 0))
    assert publisher.take_sending_due()
    records.clear()
    assert not publisher.take_sending_due()


def test_after_a_timeout_leaving_a_group_does_not_wait_again(
    publisher: Publisher, sender: FakeSender
) -> None:
    publisher.start()
    for times in range(1, 4):
        publisher.leave_group(DEADLINE_S)
        until(lambda times=times: len(sender.drained_s) == times, "the group is left")
    for _ in range(2):  # the first is noted where the second is taken
        sender.acks.append(Ack(1, 0, nack=False, detail_every=1))
        until(lambda: not sender.acks, "an ack is taken")
    publisher.leave_group(DEADLINE_S)
    assert sender.drained_s == [DEADLINE_S, 0.0, 0.0, DEADLINE_S]
    end(publisher)


def test_steps_that_were_not_acked_are_left_as_a_number(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, publisher: Publisher
) -> None:
    monkeypatch.delenv("DDPTOP_RUN_DIR")  # the script has left its run
    publisher.start()
    end(publisher)
    count = StepCount(41, True, True, HELLO, finished=True)
    assert read_step_count(tmp_path, 77) == count
    assert unread_counts(tmp_path, "run", ()) == [(HELLO, count)]
    assert not unread_counts(tmp_path, "run", (77,))
    assert not unread_counts(tmp_path, "another", ())


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
