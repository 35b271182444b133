"""Sessions in columns are answered as those of `Sessions`, which take one message after the other."""

import random
import tracemalloc

import numpy as np
import pytest

from ddptop.transport import session_columns
from ddptop.transport.session_columns import SessionColumns
from ddptop.transport.sessions import ReceivedSessions


class Both:
    """The same done to both."""

    def __init__(self, seen=None):
        self.plain, self.columns = ReceivedSessions(seen, of_an_owner=2), SessionColumns(seen, of_an_owner=2)

    def begin(self, name, rank, route):
        for sessions in (self.plain, self.columns):
            sessions.begin_session(name, rank, route, owner=rank)
            sessions.note_route(name, route)

    def accept(self, messages):
        """(session, number, after, route) each; whether all were taken together."""
        names, seqs, after, routes = (np.array(column) for column in zip(*messages, strict=True))
        present = [*dict.fromkeys(routes.tolist())]
        which = np.array([present.index(route) for route in routes.tolist()])
        together = self.columns.accept_all(self.columns.find_slots(names), seqs, after, present, which)
        accepted = []
        for name, seq, before, route in messages:
            self.plain.note_route(name, route)
            accepted.append(self.plain.by_id[name].accept_next(seq, before))
            if not together:
                self.columns.note_route(name, route)
                assert self.columns.accept_next(name, seq, before) == accepted[-1]
        assert together == all(accepted)
        return together

    def answers(self, *, safe):
        """By session: route, safe number, nack."""
        plain = {name: (one.route, one.safe, one.nack) for name, one in self.plain.take_answers(safe=safe)}
        found = {}
        for route, pairs, missing in self.columns.take_answers(safe=safe):
            for name, seq in pairs.tolist():
                assert name not in found
                found[name] = route, seq, name in missing
        assert found.keys() == plain.keys()
        return plain, found

    def known(self):
        plain = {name: (one.rank, one.route) for name, one in self.plain.by_id.items()}
        columns = {
            name: (self.columns.rank_of(name), self.columns.route_of(name))
            for name in self.columns.slot_by_id
        }
        return plain, columns


@pytest.mark.parametrize("seed", range(5))
def test_as_one_message_after_the_other(seed, monkeypatch):
    monkeypatch.setattr(session_columns, "LEAST_ROUTES", 8)
    noise = random.Random(seed)
    both = Both({5: 3})
    sent = {}
    routes = [b"route%d" % number for number in range(40)]
    took_together = 0
    for turn in range(300):
        if turn % 10 == 0:
            name, rank = noise.choice([n for n in range(1, 200) if n not in both.plain.by_id]), turn % 60
            both.begin(name, rank, noise.choice(routes))
            sent[name] = both.plain.by_id[name].seen
        messages = []
        for name in noise.choices([*both.plain.by_id], k=noise.randrange(1, 20)):
            before = sent[name]
            lost = noise.random() < 0.01
            again = noise.random() < 0.01
            seq = before if again else before + noise.randrange(1, 3)
            sent[name] = max(seq, before)
            messages.append(
                (name, seq, max(0, seq - 1) if lost else before * (not again), noise.choice(routes))
            )
        took_together += both.accept(messages)
        if noise.random() < 0.3:
            name = noise.choice([*both.plain.by_id])
            number = sent[name] - noise.randrange(2)
            for sessions in (both.plain, both.columns):
                sessions.mark_safe(name, number)
        if noise.random() < 0.5:
            plain, found = both.answers(safe=noise.random() < 0.5)
            assert found == plain
        plain, columns = both.known()
        assert columns == plain
    assert took_together > 100
    assert both.columns.find_slots(np.array([10**6])) is None
    assert both.columns.rank_of(10**6) is both.columns.route_of(10**6) is None


def test_clients_that_connect_again_and_again_take_no_memory(monkeypatch):
    monkeypatch.setattr(session_columns, "LEAST_ROUTES", 8)
    sessions = SessionColumns(of_an_owner=2)
    tracemalloc.start()
    for number in range(5000):
        sessions.begin_session(number + 1, 0, b"%d" % number, owner=0)
        sessions.note_route(number + 1, b"%d" % number)
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [sessions.route_of(name) for name in sessions.slot_by_id] == [b"4998", b"4999"]
    assert kept_bytes < 20 * 5000, "not 20 bytes of each are left"


def test_none_of_them_counts_where_one_is_out_of_order():
    sessions = SessionColumns(of_an_owner=2)
    for name in (1, 2):
        sessions.begin_session(name, name, b"a", owner=name)
    slots = sessions.find_slots(np.array([1, 2, 2]))
    which = np.zeros(3, np.int64)
    assert not sessions.accept_all(slots, np.array([1, 1, 3]), np.array([0, 0, 2]), [b"b"], which)
    assert sessions.take_answers(safe=True) == []
    assert sessions.accept_all(slots, np.array([1, 1, 2]), np.array([0, 0, 1]), [b"b"], which)
    ((route, pairs, missing),) = sessions.take_answers(safe=True)
    assert (route, pairs.tolist(), missing.tolist()) == (b"b", [[1, 1], [2, 2]], [])
