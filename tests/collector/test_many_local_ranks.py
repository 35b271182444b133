"""What many ranks of one host send, taken together and one by one: the same recording, figures and acks."""

import msgpack
import pytest
import zmq

from ddptop.agent.local_ranks import LocalRanks
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.pairing import stable_order
from ddptop.collector.intake import Intake
from ddptop.collector.record import Record
from ddptop.collector.simulated_hosts import MESSAGES
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.message_run import EncodedRun
from ddptop.protocol.messages import Bucket, Bye, Hello, Layout, Phase, Progress, Steps
from ddptop.protocol.step_columns import decode_steps
from ddptop.recording.reader import Recording
from ddptop.recording.records import BlockBuilder
from ddptop.recording.writer import Writer
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context
from tests.benchmarks.bench_hosts import BUCKETS, STEPS_BEGIN, pattern
from tests.made_up_run import run_message

WORLD, ROUNDS, ROWS = 12, 6, 3
BYTES = 500
"""About as many has a message of STEPS."""


class Connection:
    """In place of the socket: gives what ranks have sent, notes the acks."""

    def __init__(self):
        self.sent, self.acks, self.offered, self.in_file = [], [], set(), set()
        self.too_early = []
        """Acks of numbers that are not in the recording's file yet."""

    def offer(self, rank, number, body, *, life=0, spoiled=False):
        session = session_of(rank, life)
        head = msgpack.packb((session, rank, number, max(1, number)))
        self.sent.append([*map(zmq.Frame, (b"route%d" % session, head, body[:-1] if spoiled else body))])
        if number and rank and not spoiled:  # what comes on the link of rank 0 is of an agent too
            self.offered.add((session, number))

    def receive(self):
        if not self.sent:
            raise zmq.Again
        return self.sent.pop(0)

    def send_multipart(self, frames, *_):
        self.acks.append(frames)
        route, body = frames
        session, acked = int(route[len(b"route") :]), decode(body).seq
        expected = {one for one in self.offered if one[0] == session and one[1] <= acked}
        self.too_early += expected - self.in_file

    def close(self, **_):
        return


def session_of(rank, life=0):
    return 1_000_000 + 1000 * life + rank


def greet(link, rank, life=0):
    head = (1, "run", session_of(rank, life), rank, WORLD, rank, 0, "node", 1000 + rank)
    link.offer(rank, 0, encode(Hello(*head, f"cuda:{rank}", "nccl", "reducer", life, 10**18, 1.0)), life=life)


def introduce(link, rank):
    greet(link, rank)
    link.offer(rank, 1, encode(Layout(1, (Bucket(0, 0, 25 << 20, 25 << 20, 12, "float32", ""),) * BUCKETS)))
    if not rank:
        link.offer(0, 2, encode(Host(1, "run", 77, "node", 1, 1, 1, 64, 1 << 40, "boot")))


def work(link, rank, turn, *, spoiled):
    number = 2 * turn + 3
    body = STEPS_BEGIN + msgpack.packb(turn * ROWS) + msgpack.packb(NS + turn * ROWS * NS // 10)
    body += pattern(rank, ROWS, 0, 2)
    link.offer(rank, number, body, spoiled=spoiled)
    if rank:
        link.offer(rank, 0, encode(Progress(NS, (turn + 1) * ROWS, Phase.BACKWARD, 0, 9, 2, 3.0, 0.1, 0)))
    else:
        link.offer(0, number + 1, encode(HostUsage(NS, 50.0, 1 << 38, 1e6, 1e6, 100_000, 0, None, 0)))


class Noted:
    """In place of what watches processes and admits them: notes the calls."""

    def __init__(self):
        self.calls, self.raises_for = [], 0

    def _note(self, name, session, *details):
        self.calls.append((name, session, *details))
        if session == self.raises_for:
            raise KeyError(session)

    def note_message(self, session, now_ns, *, trains):
        self._note("message", session, now_ns, trains)

    def note_bye(self, *args, **options):
        self._note("bye", args[-1], *args, *options.items())

    def find_returning(self, rank, session):
        self._note("returning", session, rank)

    def forget_session(self, *_):
        return

    note_answer = forget_session


def note_what_is_written(link, monkeypatch):
    """Which numbers are in the recording's file: `link.in_file`."""
    added = set()
    add, add_passing, flush = BlockBuilder.add, BlockBuilder.add_passing, Writer.flush

    def noted(block, one, body):
        add(block, one, body)
        added.add((one.session, one.seq))

    def noted_together(block, part, records):
        add_passing(block, part, records)
        unpacker = msgpack.Unpacker()
        unpacker.feed(records)
        added.update((session, seq) for _, _, session, seq, _ in unpacker)

    def noted_flush(writer):
        flush(writer)
        link.in_file |= added

    monkeypatch.setattr(BlockBuilder, "add", noted)
    monkeypatch.setattr(BlockBuilder, "add_passing", noted_together)
    monkeypatch.setattr(Writer, "flush", noted_flush)


def received(tmp_path, fewest, monkeypatch, spoil=lambda *_: None, wrong=((5, 4),)):
    monkeypatch.setattr("ddptop.collector.intake.FEWEST_TOGETHER", fewest)
    monkeypatch.setattr("ddptop.transport.receiver.FEWEST_BYTES", BYTES * fewest)
    context, link = new_context(), Connection()
    receiver = AckedReceiver(context, f"ipc://{tmp_path}/{fewest}", epoch=1, hold_acks=True, also=MESSAGES)
    receiver.close()
    context.term()
    receiver.socket = link
    monkeypatch.setattr("ddptop.transport.receiver.receive_frames", Connection.receive)
    path = tmp_path / f"{fewest}.ddptop"
    noted = Noted()
    note_what_is_written(link, monkeypatch)
    spoil(noted, monkeypatch)
    record, reducer = Record(path, limit_bytes=1 << 30, resume=False), Reducer()
    alone = []
    feed = reducer.feed
    reducer.feed = lambda one: (alone.append(type(one.message)), feed(one))
    ranks = LocalRanks(receiver, noted, noted, watches_processes=False)
    intake = Intake(ranks, record, reducer, noted, noted)
    intake.report_message(run_message(monotonic_ns=0), 0)
    for turn in range(ROUNDS):
        for rank in range(WORLD):
            if not turn:
                introduce(link, rank)
            if (rank, turn) == (7, ROUNDS - 1):
                greet(link, rank, life=1)  # what follows is of the process before
            work(link, rank, turn, spoiled=(rank, turn) in wrong)
        if turn == ROUNDS - 1:
            link.offer(3, 2 * ROUNDS + 3, encode(Bye(NS, "finished")))
        intake.take_arrived(NS + turn * NS)
        intake.acknowledge_written(NS + turn * NS)  # nothing is written yet
        record.write_all()
        intake.acknowledge_written(NS + turn * NS)
    record.close()
    with Recording.open(path) as recording:
        kept = sorted((encode(one.message), *one[:4]) for one in recording.records())
    assert link.too_early == []
    frame = repr(reducer.frame(ROUNDS * NS))
    return (kept, frame, receiver.refused, sorted(link.acks), noted.calls), alone, ranks.errors.count


@pytest.mark.parametrize("fewest", [1, WORLD, 20])
def test_together_as_one_by_one(tmp_path, monkeypatch, fewest):
    expected, each, failed = received(tmp_path, 10**9, monkeypatch)
    found, alone, failed_together = received(tmp_path, fewest, monkeypatch)
    assert found == expected
    assert (expected[2], failed, failed_together) == (1, 0, 0)
    calls = expected[-1]
    assert {name for name, *_ in calls} == {"message", "bye", "returning"}
    assert ("returning", session_of(7), 7) in calls
    assert alone.count(Steps) < each.count(Steps) / 2


def fail(*_):
    raise KeyError("a failure of our own")


def note_fails(noted, monkeypatch):
    noted.raises_for = session_of(3)


def run_fails(noted, monkeypatch):
    monkeypatch.setattr(EncodedRun, "of_encoded", fail)


def division_fails(noted, monkeypatch):
    monkeypatch.setattr("ddptop.collector.record.PASSING", None)


def bytes_fail(noted, monkeypatch):
    monkeypatch.setattr(EncodedRun, "records", fail)


def every_second_block_fails(noted, monkeypatch):
    monkeypatch.setattr("ddptop.recording.writer.FLUSH_BYTES", 1)  # each message is a block of its own
    calls, add_passing = [], BlockBuilder.add_passing

    def add_or_fail(*parts):
        calls.append(parts)
        return add_passing(*parts) if len(calls) % 2 else fail()

    monkeypatch.setattr(BlockBuilder, "add_passing", add_or_fail)


def columns_fail(noted, monkeypatch):
    name = "ddptop.analysis.rank_messages.stable_order"
    monkeypatch.setattr(name, lambda rows: fail() if len(rows) > 1 else stable_order(rows))


FAILURES = [note_fails, run_fails, division_fails, bytes_fail, every_second_block_fails, columns_fail]


@pytest.mark.parametrize("spoil", FAILURES)
def test_a_failure_of_our_own_loses_no_message(tmp_path, monkeypatch, spoil):
    expected, *_ = received(tmp_path, 10**9, monkeypatch)
    found, _, failed = received(tmp_path, 1, monkeypatch, spoil)
    assert failed
    assert found[:-1] == expected[:-1]


def test_a_failure_to_decode_steps_together_costs_nothing(tmp_path, monkeypatch):
    expected, *_ = received(tmp_path, 10**9, monkeypatch)
    monkeypatch.setattr("ddptop.transport.receiver.decode_steps", fail)
    found, *_ = received(tmp_path, 1, monkeypatch)
    assert found == expected


def test_one_rank_whose_steps_are_wrong_does_not_have_all_decoded_twice(tmp_path, monkeypatch):
    wrong = [(5, turn) for turn in range(ROUNDS)]
    expected, *_ = received(tmp_path, 10**9, monkeypatch, wrong=wrong)
    assert expected[2] == ROUNDS
    tried, done = [], []

    def counted(bodies):
        tried.append(len(bodies))
        steps = decode_steps(bodies)
        done.append(len(steps))
        return steps

    monkeypatch.setattr("ddptop.transport.receiver.decode_steps", counted)
    found, *_ = received(tmp_path, 1, monkeypatch, wrong=wrong)
    assert found == expected
    assert tried == [WORLD, *[WORLD - 1] * (ROUNDS - 1)]
    assert done == tried[1:]
