"""What many ranks of one host send, taken together and one by one: the same recording, figures and acks."""

from types import SimpleNamespace

import msgpack
import pytest
import zmq

from ddptop.analysis.reducer import Reducer
from ddptop.collector.intake import Intake
from ddptop.collector.record import Record
from ddptop.collector.simulated_hosts import MESSAGES
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Bucket, Bye, Hello, Layout, Phase, Progress, Run, Steps
from ddptop.recording.reader import Recording
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context
from tests.benchmarks.bench_hosts import BUCKETS, STEPS_BEGIN, pattern

WORLD, ROUNDS, ROWS = 12, 6, 3


class Connection:
    """In place of the socket: gives what ranks have sent, notes the acks."""

    def __init__(self):
        self.sent, self.acks = [], []

    def offer(self, rank, number, body):
        head = msgpack.packb((1_000_000 + rank, rank, number, max(1, number)))
        self.sent.append([*map(zmq.Frame, (b"route%d" % rank, head, body))])

    def receive(self):
        if not self.sent:
            raise zmq.Again
        return self.sent.pop(0)

    def send_multipart(self, frames, *_):
        self.acks.append(frames)

    def close(self, **_):
        return


def introduce(link, rank):
    head = (1, "run", 1_000_000 + rank, rank, WORLD, rank, 0, "node", 1000 + rank)
    link.offer(rank, 0, encode(Hello(*head, f"cuda:{rank}", "nccl", "reducer", 0, 10**18, 1.0)))
    link.offer(rank, 1, encode(Layout(1, (Bucket(0, 0, 25 << 20, 25 << 20, 12, "float32", ""),) * BUCKETS)))
    if not rank:
        link.offer(0, 2, encode(Host(1, "run", 77, "node", 1, 1, 1, 64, 1 << 40, "boot")))


def work(link, rank, turn, *, spoiled):
    number = 2 * turn + 3
    body = STEPS_BEGIN + msgpack.packb(turn * ROWS) + msgpack.packb(NS + turn * ROWS * NS // 10)
    body += pattern(rank, ROWS, 0, 2)
    link.offer(rank, number, body[:-1] if spoiled else body)
    if rank:
        link.offer(rank, 0, encode(Progress(NS, (turn + 1) * ROWS, Phase.BACKWARD, 0, 9, 2, 3.0, 0.1, 0)))
    else:
        link.offer(0, number + 1, encode(HostUsage(NS, 50.0, 1 << 38, 1e6, 1e6, 100_000, 0, None, 0)))


def received(tmp_path, fewest, monkeypatch):
    for module in ("transport.receiver", "collector.intake"):
        monkeypatch.setattr(f"ddptop.{module}.FEWEST_TOGETHER", fewest)
    context, link = new_context(), Connection()
    receiver = AckedReceiver(context, f"ipc://{tmp_path}/{fewest}", epoch=1, hold_acks=True, also=MESSAGES)
    receiver.close()
    context.term()
    receiver.socket, receiver._receive = link, link.receive
    path = tmp_path / f"{fewest}.ddptop"
    record, reducer = Record(path, limit_bytes=1 << 30, resume=False), Reducer()
    alone = []
    feed = reducer.feed
    reducer.feed = lambda one: (alone.append(type(one.message)), feed(one))
    none = SimpleNamespace(
        forget=lambda *_: None, note_message=lambda *_, **__: None, note_bye=lambda *_, **__: None,
        returning=lambda *_: None, answered=lambda *_: None,
    )  # fmt: skip
    intake = Intake(receiver, record, reducer, none, none, none, watched=False)
    intake.report(Run(1, "run", "x", "train.py", (), 10**18, 0, "live", None, False), 0)
    for turn in range(ROUNDS):
        for rank in range(WORLD):
            if not turn:
                introduce(link, rank)
            work(link, rank, turn, spoiled=(rank, turn) == (5, 4))
        if turn == ROUNDS - 1:
            link.offer(3, 2 * ROUNDS + 3, encode(Bye(NS, "finished")))
        intake.drain(NS + turn * NS)
        record.flush()
        intake.acknowledge(NS + turn * NS)
    record.close()
    with Recording.open(path) as recording:
        kept = sorted((encode(one.message), *one[:4]) for one in recording.records())
    return (kept, repr(reducer.frame(ROUNDS * NS)), receiver.refused, sorted(link.acks)), alone


@pytest.mark.parametrize("fewest", [1, WORLD, 20])
def test_together_as_one_by_one(tmp_path, monkeypatch, fewest):
    expected, each = received(tmp_path, 10**9, monkeypatch)
    found, alone = received(tmp_path, fewest, monkeypatch)
    assert found == expected
    assert expected[2] == 1
    together = each.count(Steps) - alone.count(Steps)
    assert together == 0 if fewest > WORLD else together > each.count(Steps) / 2
