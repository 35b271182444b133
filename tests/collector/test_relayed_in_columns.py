"""What agents relay, decoded in columns and one by one: the same recording, figures, refusals and acks."""

from types import SimpleNamespace

import pytest

from ddptop.agent.local_ranks import LocalRanks
from ddptop.analysis.reducer import Reducer
from ddptop.collector.intake import Intake
from ddptop.collector.record import Record
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Bye
from ddptop.recording.reader import Recording
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.bundled_messages import entries_of
from ddptop.transport.bundles import BundleEntry, pack_bundle, unpack_reply
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context
from tests.benchmarks.bench_intake import Agents, Wire
from tests.made_up_run import run_message
from tests.transport.test_bundle_link import single

WORLD = 24


class KeptReplies(Wire):
    def __init__(self):
        super().__init__()
        self.acks = []

    def note(self, frames):
        self.acks.append((frames[0], sorted(unpack_reply(frames[1]).acks)))


def spoiled(bundle):
    """Its first STEPS message is cut short."""
    entries = single(entries_of([bundle]))
    at = next(i for i, one in enumerate(entries) if one.seq > 1)
    entries[at] = entries[at]._replace(body=entries[at].body[:-1])
    return pack_bundle(1, entries)


def received(path, world=WORLD, after_each=lambda *_: None):
    context = new_context()
    receiver = BundleReceiver(context, "tcp://127.0.0.1:*", KeyPair.new(), epoch=1)
    receiver.socket.close()
    context.term()
    wire = receiver.socket = KeptReplies()
    record, reducer = Record(path, limit_bytes=1 << 30, resume=False), Reducer()
    hosts = SimpleNamespace(
        receive_relayed=receiver.drain_bundles,
        receiver=receiver,
        emptied=True,
        refused=0,
        refused_why="",
        note_end=print,
    )
    none = SimpleNamespace(
        drain_messages=lambda now_ns: [], acknowledge=lambda safe: None,
        forget_session=lambda session: None,
        note_recorded=lambda *_: None, refused=0, refused_why="", sessions=(),
    )  # fmt: skip
    intake = Intake(LocalRanks(none, none, none), record, reducer, none, none, hosts)
    intake.report_message(run_message(monotonic_ns=0), 0)
    agents = Agents(world, 1)
    for at in range(1, 13):
        now_ns = at * NS // 4
        bundles = agents.until(now_ns)
        if at == 6:
            bundles[1][1] = spoiled(bundles[1][1])
        wire.arrive(bundles)
        intake.take_arrived(NS + now_ns)
        record.write_all()
        intake.acknowledge_written(NS + now_ns)
        after_each(at, NS + now_ns, intake, record, reducer)
    record.close()
    with Recording.open(path) as recording:
        kept = sorted((encode(one.message), *one[:4]) for one in recording.records())
    return kept, reducer.frame(NS + now_ns), receiver.refused, wire.acks


def test_in_columns_as_one_by_one(tmp_path, monkeypatch):
    found = [received(tmp_path / "columns.ddptop")]
    with monkeypatch.context() as patch:
        none = SimpleNamespace(decoded=lambda *_: None)
        for name in ("StepMessages", "Readings"):
            patch.setattr(f"ddptop.transport.bundled_messages.{name}", none)
        found.append(received(tmp_path / "one_by_one.ddptop"))
    (kept, frame, refused, acks), *others = found
    for other in others:
        assert kept == other[0]
        assert repr(frame) == repr(other[1])
        assert (refused, sorted(acks)) == (other[2], sorted(other[3]))
    assert refused == 1
    assert frame.lost_records > 0  # the steps of the message that was refused
    assert frame.group.step > 20


def test_many_hosts_get_their_acks_together_but_a_rank_that_ends_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("ddptop.transport.bundle_receiver.MANY_AGENTS", 0)
    monkeypatch.setattr("ddptop.transport.bundle_receiver.HELD_NS", 3600 * NS)
    bundle, session = Agents.bundle, 1_000_000

    def ending(self, agent, now_ns):
        data = bundle(self, agent, now_ns)
        if agent or self.sent[0] < 12:
            return data
        bye = BundleEntry(session, 0, 14, 1, encode(Bye(1, "finished")))
        return pack_bundle(1, [*single(entries_of([data])), bye])

    monkeypatch.setattr(Agents, "bundle", ending)
    *_, acks = received(tmp_path / "run.ddptop")
    assert [seq for _, pairs in acks for name, seq in pairs if name == session] == [2, 14]


def test_what_fills_several_blocks_is_written_and_acked_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Record, "write_all", lambda self: None)
    monkeypatch.setattr("ddptop.transport.bundle_receiver.MANY_AGENTS", 64)
    world = 512
    *_, acks = received(tmp_path / "run.ddptop", world)
    numbers = [seq for _, pairs in acks for name, seq in pairs if name == 1_000_000]
    assert numbers[-8:] == [*range(6, 14)]


@pytest.mark.parametrize("hosts", [16, 17])
def test_what_more_than_sixteen_hosts_send_is_taken_together(tmp_path, hosts):
    held_ns = []
    received(
        tmp_path / "run.ddptop",
        8 * hosts,
        after_each=lambda at, now_ns, intake, *_: held_ns.append(intake.held_until_ns),
    )
    assert (max(held_ns) > 0) is (hosts > 16)
