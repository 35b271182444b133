"""What is acked of a session: no number past a hole, none that is not safe, and each sender is answered."""

import random

import pytest

from ddptop.transport.sessions import ReceivedSessions


@pytest.mark.parametrize("seed", range(5))
def test_nothing_past_a_hole_is_acked_and_every_sender_is_answered(seed):
    noise = random.Random(seed)
    sessions = ReceivedSessions({1: 3}, of_an_owner=2)
    arrived = {}
    for number in (1, 2, 3):
        session = sessions.begin_session(number, number, b"first", owner=number)
        arrived[number] = set(range(1, session.seen + 1))
    acked, due = dict.fromkeys(arrived, 0), dict.fromkeys(arrived, b"first")
    for _ in range(400):
        session, route = sessions.by_number[noise.choice([*arrived])], noise.choice([b"a", b"b"])
        seq = max(1, session.seen + noise.choice([-1, 0, 1, 1, 1, 2]))
        is_next = seq == session.seen + 1
        assert sessions.accept_next(session, seq, seq - 1, route) == is_next
        due[session.number] = route
        if is_next:
            arrived[session.number].add(seq)
        if noise.random() < 0.3:
            sessions.mark_safe(session.number, seq)
        is_safe = noise.random() < 0.3
        for answered in sessions.take_answers(safe=is_safe):
            assert answered.route == due.pop(answered.number, answered.route)
            assert answered.safe >= acked[answered.number]
            acked[answered.number] = answered.safe
            assert arrived[answered.number] >= set(range(1, answered.safe + 1)), "past a hole"
        if is_safe:
            assert not due, "nobody waits once all is safe"
            assert acked == {number: session.seen for number, session in sessions.by_number.items()}
            assert not [*sessions.take_answers(safe=True)]


def test_acks_wait_until_messages_are_safe_but_a_hole_and_a_heartbeat_are_answered():
    sessions = ReceivedSessions(of_an_owner=2)
    session = sessions.begin_session(7, 0, b"a", owner=0)
    assert [answered.safe for answered in sessions.take_answers(safe=False)] == [0], "its HELLO"
    assert sessions.accept_next(session, 1, 0, b"a")
    assert not [*sessions.take_answers(safe=False)], "not safe yet"
    assert not sessions.accept_next(session, 3, 2, b"a")
    assert [(answered.safe, answered.nack) for answered in sessions.take_answers(safe=False)] == [(0, True)]
    sessions.mark_safe(7, 9)
    assert [(answered.safe, answered.nack) for answered in sessions.take_answers(safe=False)] == [(1, False)]
    sessions.note_route(session, b"b")
    assert [answered.route for answered in sessions.take_answers(safe=False)] == [b"b"], "a heartbeat"
    assert not [*sessions.take_answers(safe=True)]


def test_what_a_sender_gives_up_counts_as_seen():
    sessions = ReceivedSessions()
    session = sessions.begin_session(7, 0, b"a", owner=0)
    sessions.give_up(session, 5)
    assert sessions.accept_next(session, 5, 4, b"a")
    assert [answered.safe for answered in sessions.take_answers(safe=True)] == [5]


def test_of_an_owner_the_oldest_session_is_forgotten_and_its_number_is_kept():
    sessions = ReceivedSessions(of_an_owner=2)
    first = sessions.begin_session(1, 0, b"a", owner=0)
    assert sessions.accept_next(first, 1, 0, b"a")
    for number in (2, 3):
        sessions.begin_session(number, 0, b"a", owner=0)
    assert sessions.by_number.keys() == {2, 3}
    assert {answered.number for answered in sessions.take_answers(safe=True)} == {2, 3}
    assert sessions.begin_session(1, 0, b"b", owner=0).seen == 1
