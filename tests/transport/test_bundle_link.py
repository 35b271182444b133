"""The link between a host's agent and the collector: one connection, many sessions, over TCP with CURVE."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import msgpack
import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Bye, Card, Hello, Received, StepRow, Steps
from ddptop.transport import bundle_receiver
from ddptop.transport.bundle_receiver import SESSIONS_OF_AN_OWNER
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.bundled_messages import entries_of, valid_entries
from ddptop.transport.bundles import (
    MAX_ENTRIES,
    BundleEntry,
    Reply,
    pack_bundle,
    pack_columns,
    sent_ns,
    unpack_reply,
)
from ddptop.transport.curve import AGENTS, KeyPair, RunKeys, load_keys, save_keys
from ddptop.transport.unacked import KeptMessage, Unacked
from tests.link import Link
from tests.made_up_run import progress
from tests.transport.ends import OWN, Ends, event, fill, hello, host, relay


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.close()


def test_messages_of_two_hundred_ranks_come_in_order_after_their_hello(ends):
    sender = ends.sender()
    fill(sender, 200, range(1, 21))
    ends.until(lambda: sender.kept == 0)
    assert isinstance(ends.arrived[0].message, Host)
    assert [item.rank for item in ends.arrived if isinstance(item.message, Hello)] == [*range(200)]
    assert all(ends.numbers(100 + rank) == [*range(1, 21)] for rank in range(200))
    assert ends.receiver.refused == 0
    assert sorted(ends.answers[sender].acked)[-1] == (299, 20)
    assert ends.receiver.agent_of(150).host.name == "far"


def test_steps_and_heartbeats_are_decoded_as_each_alone_and_a_wrong_one_costs_only_itself(ends):
    sender = ends.sender()
    steps = Steps(1, 5, 7, (StepRow(0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 9, None, (0, 1, 2)),))
    beat = progress(1, 5)
    relay(sender, 0, 0, hello(0))
    for seq, body in enumerate((encode(steps), b"\x95\x02nonsense", encode(steps), b"", b"\x91\x7f"), 1):
        sender.relay_message(Received(0, 0, 100, seq, steps), body)
    relay(sender, 0, 0, beat)
    relay(sender, 0, 6, Bye(1, "finished"))
    ends.until(lambda: sender.kept == 0)
    messages = [item.message for item in ends.arrived if item.session == 100]
    assert [message for message in messages if isinstance(message, Steps)] == [steps, steps]
    assert beat in messages
    assert isinstance(messages[-1], Bye)
    assert (ends.receiver.refused, ends.receiver.unknown) == (2, 1)


def test_what_is_not_safe_is_not_acked(ends):
    sender = ends.sender()
    ends.safe = False
    fill(sender, 3, range(1, 4))
    ends.until(lambda: len(ends.arrived) == 13 and ends.answers[sender].clock)
    assert ends.answers[sender].acked == []  # but the clock exchange goes on
    ends.receiver.mark_safe(101, 2)
    ends.until(lambda: ends.answers[sender].acked == [(101, 2)])
    assert sender.kept == 7
    ends.safe = True
    ends.until(lambda: sender.kept == 0)


def test_many_agents_get_their_acks_now_and_then_or_at_once(ends, monkeypatch):
    monkeypatch.setattr(bundle_receiver, "MANY_AGENTS", 0)
    monkeypatch.setattr(bundle_receiver, "HELD_NS", 3600 * NS)
    sender = ends.sender()
    fill(sender, 1, range(1, 4))
    ends.until(lambda: ends.numbers(100) == [1, 2, 3])
    ends.receiver.ask_rank(100, 7)
    ends.until(lambda: ends.answers[sender].asked == [(100, 7)])
    assert not ends.answers[sender].acked  # what was sent before the question has arrived before it
    ends.receiver.acknowledge(at_once=True)
    ends.until(lambda: sender.kept == 0)


def test_many_agents_get_their_acks_once_a_second(ends, monkeypatch):
    sender = ends.sender()
    fill(sender, 1, range(1, 4))
    ends.until(lambda: sender.kept == 0)
    now_ns = time.monotonic_ns()
    monkeypatch.setattr(bundle_receiver, "MANY_AGENTS", 0)
    monkeypatch.setattr(bundle_receiver, "time", SimpleNamespace(monotonic_ns=lambda: now_ns))
    ends.receiver.acknowledge()
    now_ns += NS * 9 // 10
    relay(sender, 0, 4, event(4))
    ends.until(lambda: ends.numbers(100) == [1, 2, 3, 4])
    ends.receiver.ask_rank(100, 7)
    ends.until(lambda: ends.answers[sender].asked == [(100, 7)])
    assert sender.kept == 1
    now_ns += NS // 10
    ends.until(lambda: sender.kept == 0)


def test_a_restarted_collector_gets_what_the_one_before_has_not_recorded(ends):
    sender = ends.sender()
    ends.safe = False
    fill(sender, 5, range(1, 11))
    ends.until(lambda: ends.numbers(104) == [*range(1, 11)])
    ends.arrived.clear()
    ends.new_receiver(seen={100 + rank: 4 + rank for rank in range(5)})
    ends.safe = True
    fill(sender, 5, range(11, 13))
    ends.until(lambda: sender.kept == 0)
    assert isinstance(ends.arrived[0].message, Host)
    assert sum(isinstance(item.message, Hello) for item in ends.arrived) == 5
    assert all(ends.numbers(100 + rank) == [*range(5 + rank, 13)] for rank in range(5))


def test_a_collector_that_forgot_a_session_gets_its_hello_again(ends):
    sender = ends.sender()
    fill(sender, 1, range(1, 3))
    ends.until(lambda: sender.kept == 0)
    other = ends.sender(host(10, "other"))
    for session in range(1, SESSIONS_OF_AN_OWNER + 1):
        relay(other, 0, 0, hello(0, 1000 + session), 1000 + session)
    ends.until(lambda: ends.receiver.agent_of(1000 + SESSIONS_OF_AN_OWNER))
    assert ends.receiver.agent_of(100) is None
    fill(sender, 1, range(3, 6))
    ends.until(lambda: sender.kept == 0)
    assert ends.numbers(100) == [1, 2, 3, 4, 5]  # none twice


def test_what_a_rank_itself_dropped_leaves_a_hole_that_nothing_waits_for(ends):
    sender = ends.sender()
    relay(sender, 0, 0, hello(0))
    for seq in (1, 2, 7, 8, 20):
        relay(sender, 0, seq, event(seq))
    ends.until(lambda: sender.kept == 0)
    assert ends.numbers(100) == [1, 2, 7, 8, 20]


def test_past_its_memory_an_agent_gives_up_the_oldest_and_counts_them(ends):
    left: list[KeptMessage] = []
    sender = ends.sender(port=1, memory_bytes=50_000, leave=left.extend)
    fill(sender, 4, range(1, 51), padding=400)
    assert len(left) == sender.dropped == 200 - sender.kept > 0
    assert sender.memory_bytes <= 50_000
    sender.connect_to(f"tcp://127.0.0.1:{ends.port}", ends.keys.public, ends.agent_keys)
    ends.until(lambda: sender.kept == 0)
    given_up = {(one.session, one.seq) for one in left}
    for session in range(100, 104):
        assert ends.numbers(session) == [n for n in range(1, 51) if (session, n) not in given_up]
    assert sender.memory_bytes == 0


def test_a_session_that_the_collector_refuses_is_not_in_the_way_of_the_others(ends, monkeypatch):
    monkeypatch.setattr("ddptop.transport.bundle_receiver.WINDOW_BYTES", (20_000, 20_000))
    monkeypatch.setattr("ddptop.transport.bundle_sender.WINDOW_BYTES", (20_000, 20_000))
    monkeypatch.setattr("ddptop.transport.bundle_sender.REWIND_NS", 10_000_000)
    refuses = True

    def admit(message: Hello | Host, _: Host | None) -> None:
        if refuses and isinstance(message, Hello) and message.rank == 0:
            raise ProtocolError("another process has this rank")

    ends.new_receiver(admit=admit)
    sender = ends.sender()
    relay(sender, 0, 0, hello(0))
    for seq in range(1, 101):
        relay(sender, 0, seq, event(seq, padding=400))
    ends.until(lambda: ends.receiver.refused)
    fill(sender, 3, range(1, 11), padding=400)
    ends.until(lambda: sender.kept == 100)
    assert ends.numbers(101) == ends.numbers(102) == [*range(1, 11)]
    assert ends.numbers(100) == []
    refuses = False
    ends.until(lambda: sender.kept == 0)
    assert ends.numbers(100) == [*range(1, 101)]


def test_after_an_outage_the_ranks_messages_come_as_they_came_in(ends):
    """The steps of a rank alone can only wait for those of the others."""
    sender = ends.sender(port=1)
    fill(sender, 10, range(1, 101))
    sender.connect_to(f"tcp://127.0.0.1:{ends.port}", ends.keys.public, ends.agent_keys)
    ends.until(lambda: sender.kept == 0)
    numbered = [item.seq for item in ends.arrived if item.seq]
    assert numbered == sorted(numbered)


def test_a_link_that_is_cut_or_killed_loses_nothing_and_doubles_nothing(ends):
    with Link(("127.0.0.1", ends.port), delay_s=0.005, back_delay_s=0.01) as link:
        sender = ends.sender(port=link.port)
        fill(sender, 20, range(1, 11))
        ends.until(lambda: sender.kept == 0)
        link.cut()
        fill(sender, 20, range(11, 21))
        for _ in range(50):
            ends.turn()
        link.restore()
        fill(sender, 20, range(21, 31))
        ends.until(lambda: ends.numbers(119)[-1] > 20)
        link.kill()
        fill(sender, 20, range(31, 41))
        ends.until(lambda: sender.kept == 0)
    assert all(ends.numbers(100 + rank) == [*range(1, 41)] for rank in range(20))


def test_an_agents_own_messages(ends):
    sender = ends.sender()
    about = About(0, 100, encode(Usage(1, 2, 3.0)))
    usage = HostUsage(1, 1.0, None, None, None, None, 0, None, 0)
    sender.report_message(about)
    sender.set_usage(usage)
    sender.report_message(About(0, 100, encode(Card({}))))  # a card is for the rank itself to send
    ends.until(lambda: sender.kept == 0)
    own = [item for item in ends.arrived if item.rank == -1]
    assert [item.message for item in own] == [host(), usage]
    reading = next(item for item in ends.arrived if type(item.message) is Usage)
    assert (reading.rank, reading.session, reading.message) == (0, 100, Usage(1, 2, 3.0))
    assert {item.session for item in own} == {OWN}
    assert ends.receiver.refused == 1


def test_a_restarted_agent_goes_on_where_the_ranks_can(ends):
    first = ends.sender()
    fill(first, 2, range(1, 6))
    ends.until(lambda: first.kept == 0)
    first.close()
    second = ends.sender(host(11))
    for rank in range(2):
        relay(second, rank, 0, hello(rank))
        for seq in range(4, 9):  # 4 and 5 were recorded; the rank had not received the ack
            relay(second, rank, seq, event(seq))
    ends.until(lambda: second.kept == 0)
    assert ends.numbers(100) == ends.numbers(101) == [*range(1, 9)]
    assert [agent.host.session for agent in ends.receiver.connected_agents()] == [OWN, 11]


def test_questions_and_settings_reach_the_agent_of_the_rank(ends):
    near, far = ends.sender(host(9, "a")), ends.sender(host(10, "b"))
    relay(near, 0, 0, hello(0))
    relay(far, 1, 0, hello(1))
    ends.until(lambda: ends.receiver.agent_of(100) and ends.receiver.agent_of(101))
    ends.receiver.detail_every, ends.receiver.thin = 8, 2
    ends.receiver.ask_rank(101, 5)
    ends.receiver.ask_rank(999, 6)  # nobody
    ends.until(lambda: ends.answers[far].asked == [(101, 5)])
    assert ends.answers[near].asked == []
    ends.until(lambda: (near.detail_every, near.thin, far.thin) == (8, 2, 2))


def test_every_reply_is_a_clock_sample_in_order(ends):
    with Link(("127.0.0.1", ends.port), delay_s=0.02) as link:
        sender = ends.sender(port=link.port)
        relay(sender, 0, 0, hello(0))
        ends.until(lambda: len(ends.answers[sender].clock) >= 2)
    for sample in ends.answers[sender].clock:  # one clock in this test: the order of the four is known
        assert sample.sent_ns + 20_000_000 <= sample.received_ns <= sample.replied_ns <= sample.back_ns


def test_an_empty_bundle_is_answered_while_nothing_is_recorded(ends, monkeypatch):
    sender = ends.sender()
    relay(sender, 0, 0, hello(0))
    ends.until(lambda: ends.answers[sender].clock)
    monkeypatch.setattr("ddptop.transport.bundle_receiver.ECHO_NS", 10**15)
    ends.safe = False
    relay(sender, 0, 1, event(1))
    ends.until(lambda: ends.numbers(100) == [1])
    ends.answers[sender].clock.clear()
    sender.compare_clocks(0.0)
    ends.until(lambda: ends.answers[sender].clock)
    assert ends.answers[sender].acked == []


def test_what_many_agents_send_is_read_at_once_and_taken_together_or_when_asked(ends, monkeypatch):
    monkeypatch.setattr(bundle_receiver, "TOGETHER_NS", 3600 * NS)
    sender = ends.sender()
    fill(sender, 1, range(1, 4))
    ends.until(lambda: ends.numbers(100) == [1, 2, 3] and ends.answers[sender].clock)
    monkeypatch.setattr(bundle_receiver, "MANY_AGENTS", 0)
    relay(sender, 0, 4, event(4))
    sender.flush()
    ends.answers[sender].clock.clear()
    ends.until(lambda: sender.compare_clocks(0.0) or len(ends.answers[sender].clock) > 2)  # behind event 4
    assert ends.numbers(100) == [1, 2, 3]
    taken = ends.receiver.drain_bundles(time.monotonic_ns(), at_once=True)
    assert [received.seq for received, _ in taken if received.seq] == [4]
    # More than is held is taken early, which shows in when the next is due: viewers are served then.
    monkeypatch.setattr(bundle_receiver, "DRAIN_BYTES", 1)
    due_ns = ends.receiver.held_until_ns
    relay(sender, 0, 5, event(5))
    sender.flush()
    ends.until(lambda: ends.numbers(100) == [1, 2, 3, 5])
    assert time.monotonic_ns() < due_ns < ends.receiver.held_until_ns


def test_what_is_wrong_with_the_connection_is_said_in_one_line(ends):
    stranger = BundleSender(ends.far, host(12))
    assert stranger.trouble == "no address of a collector yet"
    endpoint = f"tcp://127.0.0.1:{ends.port}"
    for server_key, keys, words in (
        (ends.keys.public, KeyPair.new(), "does not admit our key"),
        (KeyPair.new().public, ends.agent_keys, "has not the key of the collector"),
    ):
        stranger.connect_to(endpoint, server_key, keys)
        ends.until(lambda words=words: stranger.exchange_messages() and words in (stranger.trouble or ""))
        assert not stranger.connected
    stranger.connect_to(endpoint, ends.keys.public, ends.agent_keys)
    ends.until(lambda: stranger.exchange_messages() and stranger.connected)
    assert stranger.trouble is None
    stranger.close()


def test_a_key_that_is_admitted_later_gets_in(ends, monkeypatch):
    """libzmq itself does not try again."""
    monkeypatch.setattr("ddptop.transport.bundle_sender.RENEW_NS", 100_000_000)
    ends.gate.admit_keys(AGENTS, [])
    sender = ends.sender()
    socket = sender.socket
    ends.until(lambda: ends.gate.refused)
    ends.gate.admit_keys(AGENTS, [ends.agent_keys.public])
    fill(sender, 1, range(1, 4))
    ends.until(lambda: sender.kept == 0)
    assert sender.socket is socket  # a poller has it


def test_hostile_agents_are_counted_and_disturb_nobody(ends):
    sender, raw = ends.sender(), ends.raw()
    intro = BundleEntry(55, -1, 0, 0, encode(host(55, "hostile")))
    whole = pack_bundle(1, [intro])
    bad = [
        b"",
        b"\xc1" * 100,
        msgpack.packb([64, 1, b"", b"x"]),
        msgpack.packb([64, -1, b"", b""]),
        msgpack.packb([64, 1, b"x" * 27, b""]),
        msgpack.packb([64, 1, [[[]]], {}]),
        msgpack.packb([65, 1, b"", b""]),
        whole[:-1],
        b"\xdd\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        pack_bundle(1, [BundleEntry(-5, 0, 1, 1, b"x")]),
        pack_bundle(1, [BundleEntry(5, 70_000, 1, 1, b"x")]),
        pack_bundle(1, [BundleEntry(5, 0, 2**50, 1, b"x")]),
        pack_bundle(1, [BundleEntry(5, 0, 1, 1, b"x" * 70_000)]),
        # From here on one entry each is refused, not the bundle.
        pack_bundle(1, [intro._replace(session=56)]),
        pack_bundle(1, [intro, BundleEntry(57, 0, 0, 0, encode(hello(1, 57)))]),
        pack_bundle(1, [intro, BundleEntry(58, 9, 0, 0, encode(hello(9, 58, world=5)))]),
        pack_bundle(1, [intro, BundleEntry(55, 7, 0, 0, encode(hello(7, 55)))]),
        pack_bundle(1, [intro, BundleEntry(55, 3, 1, 0, encode(event(1)))]),
        pack_bundle(1, [intro, BundleEntry(55, -1, 0, 0, encode(Card({})))]),
        pack_bundle(1, [intro, BundleEntry(55, -1, 1, 0, encode(Bye(1, "finished")))]),
        pack_bundle(1, [intro, BundleEntry(55, -1, 2, 1, encode(About(0, 1, b"garbage")))]),
    ]
    for frame in bad:
        raw.send(frame)
    raw.send_multipart([whole, whole])
    # Never introduced: nacked, not taken.
    ends.raw().send(pack_bundle(1, [BundleEntry(66, 0, 1, 0, encode(event(1)))]))
    fill(sender, 2, range(1, 11))
    ends.until(lambda: sender.kept == 0 and ends.receiver.refused == len(bad) + 1)
    assert ends.numbers(100) == ends.numbers(101) == [*range(1, 11)]
    assert {item.session for item in ends.arrived} == {OWN, 55, 100, 101}


def test_sessions_and_hosts_without_end_take_no_memory(ends):
    raw = ends.raw()
    for number in range(1000, 2000):
        entries = [
            BundleEntry(number, -1, 0, 0, encode(host(number, "h"))),
            BundleEntry(5000 + number, 0, 0, 0, encode(hello(0, 5000 + number))),
        ]
        raw.send(pack_bundle(1, entries))
    ends.until(lambda: len(ends.arrived) == 2000)
    for number in range(1000, 2000):
        raw.send(pack_bundle(1, [BundleEntry(5000 + number, 0, 1, 1, encode(event(1)))]))
    ends.until(lambda: len(ends.arrived) == 2000 + SESSIONS_OF_AN_OWNER)
    still_known = [item.session for item in ends.arrived[2000:]]
    assert still_known == [*range(7000 - SESSIONS_OF_AN_OWNER, 7000)]
    assert len(ends.receiver.connected_agents()) == 1


def single(entries):
    """The entries as they were packed."""
    columns = (entries.sessions, entries.ranks, entries.seqs, entries.backs)
    rows = zip(*(column.tolist() for column in columns), entries.bodies, strict=True)
    return [BundleEntry(*row) for row in rows]


def pack_reply(reply):
    """The frame of a reply."""
    numbers = [[*chain(*pairs)] for pairs in (reply.acks, (reply.nacks,), reply.asks)]
    return pack_columns(reply[:7], *(struct.pack(f"<{len(column)}q", *column) for column in numbers))


def test_frames_are_read_as_they_were_written():
    entries = [BundleEntry(2**62, -1, 0, 0, b""), BundleEntry(1, 65_535, 2**48 - 1, 2**32 - 1, b"body")]
    bundle = pack_bundle(7, entries)
    assert entries_of([bundle]).t0_ns == [7]
    assert single(entries_of([bundle])) == entries
    empty = pack_bundle(8, [])
    assert sent_ns(empty) == 8
    together = entries_of([empty, bundle, empty, bundle])
    assert single(together) == entries * 2
    assert together.counts.tolist() == [0, 2, 0, 2]
    reply = Reply(1, 2, 3, 10**6, 4, 5, 6, ((7, 8), (9, 10)), (0, 11), ((12, 13),))
    assert unpack_reply(pack_reply(reply)) == reply
    for data in (b"", b"\x91\x41", pack_reply(reply)[:-1], pack_reply(reply._replace(thin=99))):
        with pytest.raises(ProtocolError):
            unpack_reply(data)


def damaged(frame: bytes) -> dict[str, bytes]:
    """Frames of two entries, of 8 bytes each, whose bundle is not valid."""
    _, t0_ns, heads, bodies = msgpack.unpackb(frame)
    pack = msgpack.packb
    longer = heads[:48] + (9).to_bytes(4, "little") + heads[52:]
    many = pack_bundle(7, [BundleEntry(1, 1, 0, 0, b"")] * (MAX_ENTRIES + 1))
    return {
        "empty": b"", "one byte": frame[:1], "cut": frame[:-1], "of its beginning": frame[1:],
        "more": frame + b"x", "a reply": pack((65, t0_ns, heads, bodies)),
        "five": pack((64, t0_ns, heads, bodies, 0)),
        "no time": pack((64, None, heads, bodies)), "negative time": pack((64, -1, heads, bodies)),
        "late": pack((64, 2**63, heads, bodies)), "half an entry": pack((64, t0_ns, heads[:-1], bodies)),
        "texts": pack((64, t0_ns, "x" * 56, bodies)),
        "longer bodies": pack((64, t0_ns, heads, bodies + b"x")),
        "a longer length": pack((64, t0_ns, longer, bodies)), "many": many,
        "far": frame[:3] + b"\xc6\xff\xff\xff\xff" + frame[5:],
    }  # fmt: skip


@pytest.mark.parametrize("why", [*damaged(pack_bundle(7, [BundleEntry(1, 1, 0, 0, b"8 bytes.")] * 2))])
def test_a_damaged_bundle_between_others_is_refused_alone(why):
    right = pack_bundle(7, [BundleEntry(1, 1, 0, 0, b"8 bytes.")] * 2)
    frames = [right, damaged(right)[why], right]
    with pytest.raises(ProtocolError):
        entries_of(frames)
    with pytest.raises(ProtocolError):
        entries_of(frames[1:2])
    refused: list[Exception] = []
    valid, entries = valid_entries(
        [(b"%d" % at, at, frame) for at, frame in enumerate(frames)], refused.append
    )
    assert [one[1] for one in valid] == [0, 2]
    assert len(entries) == 4
    assert len(refused) == 1
    with pytest.raises(ProtocolError):
        sent_ns(frames[1])


def test_a_hole_too_wide_to_say_is_skipped():
    unacked = Unacked(1 << 20)
    unacked.begin_session(1, 0, b"hello")
    for seq in (1, 2**40):
        unacked.keep_message(1, seq, b"x")
    assert [(entry.seq, entry.back) for entry in unacked.take_unsent()] == [(1, 0), (2**40, 0)]


def test_a_restarted_collector_has_the_same_keys_and_nobody_else_reads_them(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir(0o700)
    made = load_keys(folder)
    assert made.port == 0
    save_keys(folder, made._replace(port=4711))
    assert load_keys(folder) == RunKeys(made.collector, made.agents, 4711)
    assert (folder / "keys.json").stat().st_mode & 0o777 == 0o600
    (folder / "keys.json").write_text("[]")
    assert load_keys(folder).collector != made.collector


def test_a_backlog_comes_in_windows_that_the_collector_shares_out(ends, monkeypatch):
    monkeypatch.setattr("ddptop.transport.bundle_receiver.ALL_WINDOWS_BYTES", 600_000)
    senders = [ends.sender(host(9, "a")), ends.sender(host(10, "b"))]
    ends.until(lambda: all(sender.window_bytes == 300_000 for sender in senders))
    for rank, sender in enumerate(senders):
        relay(sender, rank, 0, hello(rank))
        for seq in range(1, 2001):
            relay(sender, rank, seq, event(seq, padding=400))
    most = 0

    def all_acked() -> bool:
        nonlocal most
        most = max(most, *(sender.in_flight_bytes for sender in senders))
        return not any(sender.kept for sender in senders)

    ends.until(all_acked)
    assert ends.numbers(100) == ends.numbers(101) == [*range(1, 2001)]
    assert 200_000 < most < 302_000  # half of it each
