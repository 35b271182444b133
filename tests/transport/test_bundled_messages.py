"""Messages of bundles that are decoded together are those that are decoded one by one."""

import numpy as np
import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About, HostLink, HostUsage
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import Card, Clock, Event, Steps
from ddptop.transport import bundled_messages, bundles
from tests.made_up_run import a_run, progress

LINK = HostLink("10.0.0.1", "10.0.0.2", 4, 900, 100, 1000, 3, 10**9)


def taken():
    """Of each kind some, and of each sender some that it does not send."""
    steps = [one.message for one in a_run(400) if type(one.message) is Steps and one.rank == 0]
    for seq, message in enumerate(steps, 1):
        yield 0, 100, seq, encode(message)
        yield 0, 100, 0, encode(progress(seq, seq, detail_every=8))
        yield 0, 100, 1000 + seq, encode(Memory(seq, seq, 1, 2, 0))
        yield -1, 7, 0, encode(HostUsage(seq, 1.0, 2, 0.0, None, 9, 0, None, 0, (LINK,) * (seq % 3)))
        yield -1, 7, 3 * seq, encode(Clock(seq, f"b{seq % 2}", seq, 5, -seq, 9))
        yield -1, 7, 3 * seq + 1, encode(About(0, 100, encode(Usage(seq, 2, 3.0 + seq))))
        gpu = Gpu(50.0, 1, 2, 3.0, 4.0, None, 9, "hot", 1, None, 2, 3, t_ns=seq)
        yield -1, 7, 3 * seq + 2, encode(About(0, 100, encode(gpu)))
        yield -1, 7, 5000 + seq, encode(About(0, 100, encode(Event("exit", seq, 0, 3, {}))))
    wrong = [
        (100, 0, 0, HostUsage(1, 1.0, None, None, None, None, 0, None, 0)),
        (100, 0, 0, Memory(1, 2, 3, 4, 5)),
        (100, 0, 9000, progress(1, 2)),
        (7, -1, 9000, HostUsage(1, 1.0, None, None, None, None, 0, None, 0)),
        (7, -1, 9001, progress(1, 2)),
        (7, -1, 9002, About(0, 100, encode(Card({})))),
    ]
    for session, rank, seq, message in wrong:
        yield rank, session, seq, encode(message)
    yield 0, 100, 9003, b""


def decoded(messages):
    refused = []
    heads = np.array([one[:3] for one in messages], np.int64).reshape(-1, 3).T
    accepted = bundled_messages.AcceptedEntries(heads, [one[3] for one in messages], {})
    run = bundled_messages.decode_accepted(accepted, 5, lambda error: refused.append(str(error)))
    return run, [run.received(place) for place in range(len(run))], refused


CUT = {  # the last byte of one message of a kind is lost
    "nothing": None, "progress": 1, "memory": 2, "host usage": 3, "clock": 4, "usage": 5, "gpu": 6,
}  # fmt: skip


@pytest.mark.parametrize("kind", CUT)
def test_as_one_by_one(kind):
    messages = [*taken()]
    if CUT[kind] is not None:
        *head, body = messages[16 + CUT[kind]]
        messages[16 + CUT[kind]] = *head, body[:-1]
    run, together, refused = decoded(messages)
    alone = [decoded([one]) for one in messages]
    one_by_one = [(received, run.body(0)) for run, (received,), _ in [one for one in alone if one[1]]]
    assert repr([*run]) == repr(one_by_one)
    assert [received for received, _ in run] == together
    assert refused == [text for one in alone for text in one[2]]
    assert len(refused) == 7 + (CUT[kind] is not None)
    assert len(run.readings) == 6 - (kind in ("host usage", "clock"))


def test_what_an_agent_reports_last():
    messages = [*taken()]
    run, _, _ = decoded(messages)
    moved = run.sorted_by(np.where(run.heads[1] < 0, 1, 0))
    ordered = sorted(run, key=lambda one: one[0].rank < 0)
    assert repr([*moved]) == repr(ordered)


def test_readings_taken_apart():
    run, together, _ = decoded([*taken()])
    run.take_apart(Clock)
    assert repr([run.received(place) for place in range(len(run))]) == repr(together)
    assert Clock not in {one.kind for one in run.readings}
    assert sum(type(received.message) is Clock for _, received in run.others) > 10


@pytest.mark.parametrize("damaged", [(), (0,), (700,), (5, 6, 999), range(0, 1000, 2)])
def test_of_many_bundles_few_are_read_again_for_one_that_is_damaged(monkeypatch, damaged):
    good = bundles.pack_bundle(5, [bundles.BundleEntry(9, 3, 2, 1, encode(Memory(1, 2, 3, 4, 5)))])
    arrived = [(b"a%d" % at, at, good[:-1] if at in damaged else good) for at in range(1000)]
    read, refused = [], []
    entries_of = bundled_messages.entries_of
    monkeypatch.setattr(
        bundled_messages, "entries_of", lambda some: read.append(len(some)) or entries_of(some)
    )
    valid, entries = bundled_messages.valid_entries(arrived, refused.append)
    assert valid == [one for one in arrived if one[1] not in damaged]
    assert len(entries) == len(valid)
    assert len(refused) == len(damaged)
    assert sum(read) <= 1000 * (2 + 2 * 10 * bool(damaged))
    assert len(read) <= 3 + 2 * 10 * len(damaged)
