"""Nothing lost in silence, nothing doubled, nothing out of order; and never waited for."""

from __future__ import annotations

import os
import random
import threading
import time

import msgpack
import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.limits import MAX_RANK_MESSAGE_BYTES
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import UNKNOWN_OWN_TIME, Hello, OwnTime, Progress, StepRow, Steps
from ddptop.transport import receiver as receiver_module
from ddptop.transport.sessions import SESSIONS_OF_A_RANK
from tests.made_up_run import progress

PROGRESS = encode(progress(1, 5))


def test_messages_arrive_in_order_after_the_hello(link, wire):
    receiver, sender = link.receiver(), link.sender()
    for number in range(100):
        sender.offer_message(wire.numbered(number))
    link.settle(sender, receiver)
    assert isinstance(link.arrived[0].message, Hello)
    assert wire.numbers(link.arrived) == list(range(100))
    assert [item.seq for item in link.arrived] == list(range(101))
    assert {item.session for item in link.arrived} == {wire.session}


def test_what_is_offered_before_the_collector_exists_waits_for_it(link, wire):
    sender = link.sender()
    for number in range(50):
        sender.offer_message(wire.numbered(number))
        sender.exchange_messages()
    link.settle(sender, link.receiver())
    assert wire.numbers(link.arrived) == list(range(50))


def test_a_new_collector_is_greeted_and_gets_what_the_old_one_did_not_ack(link, wire):
    old, sender = link.receiver(hold_acks=True), link.sender()
    for number in range(20):
        sender.offer_message(wire.numbered(number))
    wire.wait_for(
        lambda: sender.exchange_messages() or link.drain(old) or len(wire.numbers(link.arrived)) == 20
    )
    assert sender.pending == 20  # read, but not yet safe
    old.close()
    new = link.receiver(seen={wire.session: 12})  # the old one had recorded twelve
    for number in range(20, 30):
        sender.offer_message(wire.numbered(number))
    link.arrived.clear()
    link.settle(sender, new)
    assert isinstance(link.arrived[0].message, Hello)
    assert wire.numbers(link.arrived) == list(range(12, 30))


def test_a_collector_that_knows_nothing_goes_on_where_the_sender_can(link, wire):
    old, sender = link.receiver(), link.sender()
    for number in range(10):
        sender.offer_message(wire.numbered(number))
    link.settle(sender, old)
    old.close()
    link.arrived.clear()
    sender.offer_message(wire.numbered(10))
    link.settle(sender, link.receiver())
    assert wire.numbers(link.arrived) == [10]


def test_held_messages_are_acked_only_when_they_are_safe(link, wire):
    receiver, sender = link.receiver(hold_acks=True), link.sender()
    sender.offer_message(wire.numbered(1))
    wire.wait_for(lambda: sender.exchange_messages() or link.drain(receiver) or len(link.arrived) == 2)
    receiver.acknowledge(safe=False)
    sender.exchange_messages()
    assert sender.pending == 1
    receiver.acknowledge()
    wire.wait_for(lambda: bool(sender.exchange_messages()) and not sender.pending)


def test_past_the_window_the_oldest_are_dropped_and_the_rest_arrives(link, wire):
    sender = link.sender(window_bytes=10_000)
    for number in range(100):
        sender.offer_message(wire.numbered(number, padding=500))
    assert sender.dropped == 100 - sender.pending > 0
    kept = sender.pending
    link.settle(sender, link.receiver())
    assert wire.numbers(link.arrived) == list(range(100 - kept, 100))


def test_dropping_while_an_outage_lasts_leaves_one_gap_and_no_doubles(link, wire):
    old, sender = link.receiver(), link.sender(window_bytes=10_000)
    for number in range(10):
        sender.offer_message(wire.numbered(number, padding=500))
    link.settle(sender, old)
    old.close()
    for number in range(10, 200):
        sender.offer_message(wire.numbered(number, padding=500))
        sender.exchange_messages()
    kept = sender.pending
    link.settle(sender, link.receiver(seen={wire.session: 10}))
    assert wire.numbers(link.arrived) == [*range(10), *range(200 - kept, 200)]


def test_a_message_too_large_for_the_link_is_given_up_at_once(link, wire):
    receiver, sender = link.receiver(), link.sender()
    sender.offer_message(b"x" * (MAX_RANK_MESSAGE_BYTES + 1))
    sender.offer_message(wire.numbered(1))
    link.settle(sender, receiver)
    assert sender.dropped == 1
    assert wire.numbers(link.arrived) == [1]


def test_heartbeats_are_newest_only_and_answered_with_an_ack(link, wire):
    receiver, sender = link.receiver(), link.sender()
    for _ in range(5):
        sender.set_heartbeat(PROGRESS)
    acks = []
    wire.wait_for(
        lambda: link.drain(receiver) or acks.append(sender.exchange_messages()) or acks[-1] is not None
    )
    link.drain(receiver)
    beats = [item for item in link.arrived if isinstance(item.message, Progress)]
    assert len(beats) <= 1
    assert sender.pending == 0


def test_the_largest_interval_is_announced(link, wire):
    receiver, sender = link.receiver(), link.sender()
    receiver.detail_every = 16
    sender.offer_message(wire.numbered(1))
    acks = []
    wire.wait_for(
        lambda: link.drain(receiver) or acks.append(sender.exchange_messages()) or acks[-1] is not None
    )
    assert acks[-1].detail_every == 16


def test_close_is_bounded_when_there_was_never_a_collector(link, wire):
    sender = link.sender()
    for number in range(30):
        sender.offer_message(wire.numbered(number))
    began = time.monotonic()
    assert sender.close(0.2) == 30
    assert sender.close(5.0) == 30  # closed already
    assert time.monotonic() - began < 5.0  # as the second one alone would have waited


def test_close_finds_a_collector_that_was_started_again(link, wire):
    old, sender = link.receiver(hold_acks=True), link.sender()
    sender.offer_message(wire.numbered(0))
    wire.wait_for(
        lambda: sender.exchange_messages() or link.drain(old) or len(wire.numbers(link.arrived)) == 1
    )
    old.close()
    new = link.receiver()
    stop = threading.Event()

    def serve() -> None:
        while not stop.wait(0.002):
            link.drain(new)

    thread = threading.Thread(target=serve)
    thread.start()
    left = sender.close(20.0)
    stop.set()
    thread.join()
    assert left == 0
    assert wire.numbers(link.arrived) == [0, 0]  # without a recording the new one knows of nothing


def test_close_in_a_forked_child_leaves_the_parents_socket_alone(link, wire):
    receiver, sender = link.receiver(), link.sender()
    sender.offer_message(wire.numbered(0))
    child = os.fork()
    if child == 0:
        sender.close(5.0)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    link.settle(sender, receiver)
    assert wire.numbers(link.arrived) == [0]


def test_a_refused_message_does_not_hold_up_the_ones_behind_it(link, wire):
    receiver, sender = link.receiver(), link.sender()
    sender.offer_message(wire.numbered(0))
    sender.offer_message(b"\x93\x02garbage")
    sender.offer_message(encode(Usage(1, 1, 1.0)))  # well-formed, but not a rank's to send
    sender.offer_message(msgpack.packb([99, 1]))  # of a later version
    sender.offer_message(wire.numbered(1))
    link.settle(sender, receiver)
    assert wire.numbers(link.arrived) == [0, 1]
    assert (receiver.refused, receiver.unknown) == (2, 1)


@pytest.mark.parametrize(
    ("own", "one_part", "kept"),
    [
        (UNKNOWN_OWN_TIME, False, [(5, 2), (8, 3)]),
        (OwnTime(*[1] * 12), False, [(5, 2), (8, 3)]),
        (OwnTime(*[1] * 12), True, [(8, 3)]),
    ],
)
def test_of_steps_with_a_negative_cost_only_that_step_is_refused(
    link, wire, monkeypatch, own, one_part, kept
):
    receiver, sender = link.receiver(), link.sender()
    receiver.one_part = one_part
    bodies, drain = [], receiver.drain_messages

    def drain_all(now_ns):
        arrived = drain(now_ns)
        bodies.extend(body for _, body in arrived)
        return arrived

    monkeypatch.setattr(receiver, "drain_messages", drain_all)
    right = StepRow(0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 9, None, (0, 1, 2), own)
    rows = (right, right, right._replace(cost_us=-1), right, right, right)
    sender.offer_message(encode(Steps(1, 5, 7, rows)))
    sender.offer_message(encode(Steps(1, 11, 7, rows[2:3])))
    sender.offer_message(encode(Steps(1, 12, 7, rows[:1])))
    link.settle(sender, receiver)
    steps = [one.message for one in link.arrived if isinstance(one.message, Steps)]
    assert [(one.first_step, len(one.rows)) for one in steps] == [*kept, (12, 1)]
    assert {row for one in steps for row in one.rows} == {right}
    assert {decode(body) for body in bodies} >= {*steps}
    assert (receiver.refused, receiver.refused_why) == (2, "a row's number is negative")


def test_a_refused_step_is_named(link, wire):
    receiver, sender = link.receiver(), link.sender()
    right = StepRow(0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 9, None, ())
    sender.offer_message(encode(Steps(1, 5, 7, (right, right._replace(cost_us=-1)))))
    link.settle(sender, receiver)
    assert (receiver.refused, receiver.refused_why) == (1, "step 6 of rank 0: a row's number is negative")


@pytest.mark.parametrize("run_id", ["run", None])
def test_a_rank_of_another_run_is_refused(link, wire, run_id):
    receiver = link.receiver(run_id="other" if run_id else None)
    socket = link.raw()
    socket.send_multipart([msgpack.packb([wire.session, 0, 0, 1]), wire.hello()])
    expected = 1 if run_id else 0
    wire.wait_for(lambda: link.drain(receiver) or receiver.refused + len(link.arrived) == 1)
    assert receiver.refused == expected


def test_hostile_peers_are_counted_and_disturb_nobody(link, wire):
    receiver, sender = link.receiver(), link.sender()
    hostile = link.raw()
    random.seed(5)
    head = msgpack.packb([wire.session + 1, 1, 1, 1])
    bad = [
        [random.randbytes(40)],
        [random.randbytes(20), random.randbytes(300)],
        [b""] * 10,
        [msgpack.packb([1, 2, 3])] * 2,
        [msgpack.packb([True, 0, 0, 1]), PROGRESS],
        [msgpack.packb([1, 0, 2**63, 1]), PROGRESS],
        [msgpack.packb([0, 0, 0, 1]), PROGRESS],
        [msgpack.packb({}), PROGRESS],
        [b"\xdf\xff\xff\xff\xff", PROGRESS],
        [msgpack.packb([wire.session + 1, 1, 0, 1]), wire.hello(rank=0)],  # head and HELLO differ
        [
            msgpack.packb([wire.session + 1, 9, 0, 1]),
            wire.hello(rank=9, session=wire.session + 1),
        ],  # of 2 ranks
    ]
    for frames in bad:
        hostile.send_multipart(frames)
    hostile.send_multipart([head, wire.numbered(5)])  # never said HELLO: not refused, but not taken either
    for number in range(20):
        sender.offer_message(wire.numbered(number))
    link.settle(sender, receiver)
    wire.wait_for(lambda: link.drain(receiver) or receiver.refused >= len(bad))
    assert receiver.refused == len(bad)
    assert wire.numbers(link.arrived) == list(range(20))


def test_an_oversize_frame_ends_that_connection_only(link, wire):
    receiver, sender, hostile = link.receiver(), link.sender(), link.raw()
    hostile.send_multipart([b"x", b"y" * (MAX_RANK_MESSAGE_BYTES + 1)])
    sender.offer_message(wire.numbered(0))
    link.settle(sender, receiver)
    assert wire.numbers(link.arrived) == [0]


def test_another_session_cannot_speak_for_a_rank_it_is_not(link, wire):
    receiver, sender, hostile = link.receiver(), link.sender(), link.raw()
    sender.offer_message(wire.numbered(0))
    link.settle(sender, receiver)
    hostile.send_multipart([msgpack.packb([wire.session, 1, 2, 1]), wire.numbered(666)])
    wire.wait_for(lambda: link.drain(receiver) or receiver.refused == 1)
    sender.offer_message(wire.numbered(1))
    link.settle(sender, receiver)
    assert wire.numbers(link.arrived) == [0, 1]


def test_sessions_without_end_take_no_memory(link, wire):
    receiver, hostile = link.receiver(), link.raw()
    for session in range(1, 500):
        head = msgpack.packb([session, 0, 0, 1])
        hostile.send_multipart([head, wire.hello(session=session)])
    wire.wait_for(lambda: link.drain(receiver) or len(link.arrived) == 499)
    known = range(500 - SESSIONS_OF_A_RANK, 500)
    for session in range(1, 500):
        hostile.send_multipart([msgpack.packb([session, 0, 1, 1]), wire.numbered(session)])
    wire.wait_for(lambda: link.drain(receiver) or len(link.arrived) == 499 + len(known))
    assert wire.numbers(link.arrived[499:]) == [*known]


def test_a_message_that_sets_off_an_error_of_ours_costs_that_message(link, wire, monkeypatch):
    receiver, sender = link.receiver(), link.sender()
    whole = receiver_module.decode

    def fails(body: bytes) -> object:
        message = whole(body)
        if getattr(message, "step", None) == 1:
            raise OverflowError("signed integer is greater than maximum")
        return message

    monkeypatch.setattr(receiver_module, "decode", fails)
    for number in range(3):
        sender.offer_message(wire.numbered(number))
    link.settle(sender, receiver)
    assert wire.numbers(link.arrived) == [0, 2]
    assert (receiver.refused, receiver.refused_why[:13]) == (1, "OverflowError")
