"""What an agent keeps until the collector has it: in memory, in a file once memory is full, and in order."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator

import pytest

from ddptop.agent.host_usage import describe_host
from ddptop.agent.outbox import Outbox
from ddptop.host.exits import RankExit, RankProcess
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About
from ddptop.protocol.messages import Layout, Received, Steps
from ddptop.recording import writer
from ddptop.recording.disk import AppendFile
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context
from tests.agent.fake_collector import FakeCollector
from tests.made_up_run import hello, layout, run_message, steps
from tests.run_processes import wait_for

BOUND = 20_000
"""Bytes in memory before messages go to the file alone."""


class Box:
    """An outbox with small bounds, and the made-up ranks 0 and 1 that fill it."""

    def __init__(self, context, path, session=7, limit_bytes=1 << 30):
        host = describe_host("here", "run", session, lambda: (time.monotonic_ns(), time.time_ns()))
        self.sender = BundleSender(
            context,
            host,
            memory_bytes=4 * BOUND,
            leave=lambda messages: self.outbox.note_dropped(messages),
            interval_ns=10**7,  # so little fits into memory that it goes often
        )
        self.notices: list[str] = []
        self.outbox = Outbox(
            self.sender,
            session,
            run_message(),
            path,
            lambda kind, text: self.notices.append(kind),
            outage_ns=10**18,
            overflow_bytes=BOUND,
            refill_bytes=BOUND // 2,
            limit_bytes=limit_bytes,
        )
        self.seq = 0

    def greet(self) -> None:
        """Both ranks send HELLO."""
        for rank in (0, 1):
            message = hello(rank, 2)
            self.outbox.take_message(
                Received(time.monotonic_ns(), rank, message.session, 0, message), encode(message)
            )

    def fill(self, batches: int) -> None:
        """Ten steps of each rank in every batch."""
        for _ in range(batches):
            self.seq += 1
            for rank in (0, 1):
                message = steps((self.seq - 1) * 10, 10, rank)
                received = Received(time.monotonic_ns(), rank, 1000 + rank, self.seq, message)
                self.outbox.take_message(received, encode(message))
            self.work()

    def lose(self, rank: int) -> None:
        """Report the exit of a rank's process."""
        event = RankExit(RankProcess(1000 + rank, rank, 4), 1, -9).to_event("lost_rank")
        self.outbox.report_message(About(rank, 1000 + rank, encode(event)), time.monotonic_ns(), urgent=True)

    def work(self) -> None:
        now_ns = time.monotonic_ns()
        self.outbox.update_recording(now_ns, self.sender.exchange_messages(now_ns))

    def deliver(self, collector: FakeCollector) -> None:
        """Connect, and go on until the collector has everything."""
        keys = collector.agent_keys
        self.sender.connect_to(f"tcp://127.0.0.1:{collector.port}", collector.keys.public, keys)

        def delivered() -> bool:
            self.work()
            return not self.outbox.n_kept and self.outbox.local_recording is None

        wait_for(delivered)


@pytest.fixture
def boxes(tmp_path) -> Iterator[type[Box]]:
    context = new_context()
    made: list[Box] = []

    def make(session: int = 7, **more: int) -> Box:
        made.append(Box(context, tmp_path / "run@here.ddptop", session, **more))
        return made[-1]

    yield make
    for box in made:
        box.outbox.close_recording(None)
        box.sender.close()
    context.term()


@pytest.fixture
def collector() -> Iterator[FakeCollector]:
    fake = FakeCollector()
    fake.start()
    yield fake
    fake.stop()


def test_what_has_left_memory_is_read_back_in_order_and_the_file_deleted(boxes, collector, tmp_path):
    box = boxes()
    box.greet()
    box.fill(100)
    box.lose(1)
    assert box.sender.memory_bytes < 2 * BOUND
    assert box.outbox.n_kept == 201 and box.outbox.in_file > 100
    assert box.notices == ["local"]
    box.deliver(collector)
    assert collector.steps() == {0: [*range(1000)], 1: [*range(1000)]}
    assert isinstance(collector.received[-1].message, About)  # after the last steps: nothing is missing then
    assert (box.outbox.lost_rows, box.sender.dropped) == (0, 0)
    assert list(tmp_path.glob("*.ddptop")) == []
    box.fill(1)
    box.deliver(collector)
    assert collector.steps()[0][-1] == 1009


def test_the_next_agent_sends_what_the_one_before_has_recorded(boxes, collector, tmp_path):
    first = boxes()
    first.greet()
    first.fill(100)
    first.lose(1)
    (path,) = tmp_path.glob("*.ddptop")
    first.outbox.close_recording(None)
    second = boxes(session=8)
    second.outbox.resume_recording(path)
    second.seq = 99  # the ranks had no ack of their last messages, which are in the file then twice
    second.fill(6)
    second.lose(0)
    second.deliver(collector)
    assert second.outbox.lost_rows == 0
    assert collector.steps() == {0: [*range(1050)], 1: [*range(1050)]}
    assert [event.rank for event in collector.events("lost_rank")] == [1, 0]
    assert list(tmp_path.glob("*.ddptop")) == []


def test_what_holds_for_a_session_stands_for_no_steps_before_it(boxes, collector, tmp_path):
    """A rank says again to every new agent which buckets it has. This came after steps that nobody had acked,
    when a local recording began: read back, it was first, and they were lost."""
    first = boxes()
    first.greet()
    first.fill(2)
    for rank in (0, 1):
        received = Received(time.monotonic_ns(), rank, 1000 + rank, 3, layout())
        first.outbox.take_message(received, encode(layout()))
    first.seq = 3
    first.outbox.begin_local_recording(time.monotonic_ns())
    first.fill(1)
    (path,) = tmp_path.glob("*.ddptop")
    first.outbox.close_recording(None)
    second = boxes(session=8)
    second.outbox.resume_recording(path)
    second.deliver(collector)
    assert collector.steps() == {rank: [*range(20), *range(30, 40)] for rank in (0, 1)}
    assert [one.rank for one in collector.of(Layout)] == [0, 1]


def test_a_full_disk_costs_what_memory_cannot_hold_and_that_is_counted(boxes, collector, monkeypatch):
    box = boxes()
    box.greet()
    whole = AppendFile.write_whole

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    box.fill(10)
    monkeypatch.setattr(AppendFile, "write_whole", full)
    monkeypatch.setattr(writer, "WAITING_BYTES", BOUND)
    box.fill(200)
    assert not box.outbox.is_safe
    monkeypatch.setattr(AppendFile, "write_whole", whole)
    box.deliver(collector)
    arrived = {rank: len(set(found)) for rank, found in collector.steps().items()}
    assert all(len(found) == len(set(found)) for found in collector.steps().values())
    assert sum(arrived.values()) + box.outbox.lost_rows == 4200
    assert box.outbox.lost_rows > 0
    assert all(isinstance(item.message, Steps) for item in collector.of(Steps))


def test_a_disk_that_is_full_at_first_is_tried_again(boxes, tmp_path, monkeypatch):
    box = boxes()
    box.greet()
    whole = AppendFile.write_whole

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(AppendFile, "write_whole", full)
    monkeypatch.setattr("ddptop.agent.outbox.RETRY_NS", 10**7)
    box.fill(15)
    assert set(box.notices) == {"local failed"} and box.outbox.local_recording is None
    monkeypatch.setattr(AppendFile, "write_whole", whole)

    def begun() -> bool:
        box.work()
        return box.outbox.local_recording is not None

    wait_for(begun)
    assert box.notices[-1] == "local"
    assert box.outbox.lost_rows == 0


def test_what_a_local_recording_leaves_out_at_its_limit_is_counted_and_reported(boxes, collector):
    box = boxes(limit_bytes=150_000)
    box.greet()
    box.fill(400)
    box.outbox.check_recording()
    assert any("near its limit" in notice or "at its limit" in notice for notice in box.notices)
    assert box.outbox.lost_rows > 0 and box.outbox.without_detail > 0
    box.deliver(collector)
    found = collector.steps()
    assert all(len(steps) == len(set(steps)) for steps in found.values())
    assert sum(map(len, found.values())) + box.outbox.lost_rows == 8000


def test_without_any_file_the_oldest_are_dropped_and_counted(boxes, collector):
    box = boxes()
    box.outbox.path = None
    box.greet()
    box.fill(300)
    assert box.outbox.lost_rows > 0
    box.deliver(collector)
    assert sum(map(len, collector.steps().values())) + box.outbox.lost_rows == 6000


def test_a_local_recording_that_was_deleted_twice_is_given_up(boxes, collector, tmp_path):
    box = boxes()
    box.greet()
    box.fill(20)
    for _ in range(2):
        (path,) = tmp_path.glob("*.ddptop")
        path.unlink()
        box.outbox.check_recording()
        box.fill(20)
    assert box.outbox.local_recording is None
    box.deliver(collector)
    assert collector.steps()[0][-1] == 599
    assert box.outbox.lost_rows > 0
    assert sum(map(len, collector.steps().values())) + box.outbox.lost_rows == 1200


def test_what_was_in_a_deleted_local_recording_alone_is_counted(boxes, collector, tmp_path):
    box = boxes()
    box.greet()
    box.fill(100)
    (path,) = tmp_path.glob("*.ddptop")
    path.unlink()
    while box.outbox.local_recording is not None:
        box.outbox.check_recording()
        path.unlink(missing_ok=True)
    box.deliver(collector)
    assert sum(map(len, collector.steps().values())) + box.outbox.lost_rows == 2000


def test_an_agent_uses_the_keys_of_its_run(boxes, collector):
    """With others it is refused, keeps everything, and says why."""
    box = boxes()
    box.greet()
    box.fill(1)
    box.sender.connect_to(f"tcp://127.0.0.1:{collector.port}", collector.keys.public, KeyPair.new())

    def refused() -> bool:
        box.work()
        return "admit" in (box.sender.trouble or "")

    wait_for(refused)
    assert box.outbox.n_kept == 2
    box.deliver(collector)
    assert collector.steps() == {0: [*range(10)], 1: [*range(10)]}
