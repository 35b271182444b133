"""The sessions that a receiver of many hosts knows, as columns: the rule of `sessions.py` for many messages
at once, without Python for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.transport.sessions import FORGOTTEN

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

LEAST_ROUTES = 1024
"""Connections that are numbered before those without a session are forgotten."""


class SessionColumns:
    """The sessions that are known, and those that are to be answered. A *slot* is the place of a session in
    the columns.

    `seen` maps sessions to the highest number that is recorded already; of an owner `of_an_owner` sessions
    are known at a time.
    """

    def __init__(self, seen: Mapping[int, int] | None = None, *, of_an_owner: int) -> None:
        # What was recorded before this collector began; it moves into the columns when the session says
        # HELLO.
        self._before = dict(seen or {})
        self._of_an_owner = of_an_owner
        self.slot_by_id: dict[int, int] = {}
        """Slot of each session."""
        self._of: dict[Hashable, list[int]] = {}
        """Sessions of each owner, oldest first."""
        self._free: list[int] = []
        """Slots without a session."""
        self._sorted: tuple[Integers, Integers] | None = None
        """The sessions in ascending order, and their slots."""
        self._routes: list[bytes] = []
        self._route_numbers: dict[bytes, int] = {}
        """Connections, and the place of each in `_routes`."""
        self._most_routes = LEAST_ROUTES
        # One array for the numbers and one for the flags, so that growing and clearing is one call each.
        self._numbers: Integers = np.zeros((5, 0), np.int64)
        """(5, slots) session, rank, highest number accepted or given up, highest number that is kept for
        good, number of the connection that the last message came over."""
        self._flags: Mask = np.zeros((4, 0), bool)
        """(4, slots) something before the last message is missing; `safe` has changed since the last answer;
        to be answered; messages are not safe yet."""
        self._name_columns()

    # Views into the arrays: made again whenever these grow.
    def _name_columns(self) -> None:
        self._name, self.rank, self._seen, self._safe, self._route = self._numbers
        self._nack, self._advanced, self._to_answer, self._waiting = self._flags

    def note_recorded(self, name: int, seq: int) -> None:
        """Note that a session is recorded up to `seq`; before its HELLO comes."""
        self._before[name] = max(seq, self._before.get(name, 0))

    def begin_session(self, name: int, rank: int, route: bytes, *, owner: Hashable) -> None:
        """Make a session known, and forget the owner's oldest one where that is one too many."""
        of_owner = self._of.setdefault(owner, [])
        of_owner.append(name)
        if len(of_owner) > self._of_an_owner:
            self._forget_session(of_owner.pop(0))
        if not self._free:
            self._add_slots()
        (number,), seen = self._number_routes([route]), self._before.pop(name, 0)
        slot = self.slot_by_id[name] = self._free.pop()
        # What an earlier collector has recorded counts as seen and as safe.
        self._numbers[:, slot] = name, rank, seen, seen, number
        self._flags[:, slot] = False
        self._sorted = None

    def rank_of(self, name: int) -> int | None:
        """The rank of a session; None: it is not known."""
        slot = self.slot_by_id.get(name)
        return None if slot is None else int(self.rank[slot])

    def route_of(self, name: int) -> bytes | None:
        """The connection that its last message came over; None: it is not known."""
        slot = self.slot_by_id.get(name)
        return None if slot is None else self._routes[int(self._route[slot])]

    def note_route(self, name: int, route: bytes) -> None:
        """Note that a message of a known session came over this connection: its sender is to be answered."""
        slot = self.slot_by_id[name]
        (self._route[slot],) = self._number_routes([route])
        self._to_answer[slot] = True

    def mark_safe(self, name: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`: its sender is to be answered."""
        slot = self.slot_by_id.get(name)
        # Never beyond what was seen: an agent's own file may hold more than has arrived here.
        if slot is not None and self._safe[slot] < min(seq, self._seen[slot]):
            self._safe[slot] = min(seq, self._seen[slot])
            self._advanced[slot] = self._to_answer[slot] = True

    def accept_next(self, name: int, seq: int, after: int) -> bool:
        """Whether the message `seq` of a known session is the next one, where its sender has none between
        `after` and it. It counts as seen from now on."""
        slot = self.slot_by_id[name]
        seen = int(self._seen[slot])
        if after <= seen < seq:
            self._seen[slot] = seq
            return True
        # As in `ReceivedSession.accept_next`: only a message that lies ahead shows a hole.
        self._nack[slot] |= seq > seen
        return False

    def find_slots(self, names: Integers) -> Integers | None:
        """(n,) the slots of these sessions; None where one of them is not known."""
        # Sorted once, and used until a session comes or goes, which is rare beside messages.
        if self._sorted is None:
            slots = np.fromiter(self.slot_by_id.values(), np.int64, len(self.slot_by_id))
            order = slots[np.argsort(self._name[slots])]
            self._sorted = self._name[order], order
        ascending, slots = self._sorted
        if not len(ascending):
            return None
        # A session that is not known finds a neighbour, which the comparison then shows.
        nearest = slots[np.minimum(np.searchsorted(ascending, names), len(slots) - 1)]
        return nearest if (self._name[nearest] == names).all() else None

    def accept_all(
        self, slots: Integers, seqs: Integers, after: Integers, routes: Sequence[bytes], which: Integers
    ) -> bool:
        """Accept n messages, and note their routes, as `accept_next` and `note_route` do for each. Returns
        False, and changes nothing, where not each of them is the next one of its session. `which`: (n,) over
        which of `routes` each came."""
        if not len(slots):
            return True
        # Stable: messages of one session stay in their order, which the rule is about.
        order = np.argsort(slots, kind="stable")
        # The rule compares each message with the one before it of its session: those are now neighbours.
        slot, seq = slots[order], seqs[order]
        first = np.flatnonzero(np.diff(slot, prepend=-1))
        seen = np.empty_like(seq)
        # The message before each, within its session; the first of each session is compared with what is
        # kept.
        seen[1:] = seq[:-1]
        seen[first] = self._seen[slot[first]]
        if not ((after[order] <= seen) & (seen < seq)).all():
            return False
        # Only the last message of a session has a say: those before it are in order.
        last = np.append(first[1:], len(slot)) - 1
        self._seen[slot[last]] = seq[last]
        self._route[slot[last]] = np.array(self._number_routes(routes))[which[order[last]]]
        self._to_answer[slot[last]] = True
        return True

    def take_answers(self, *, safe: bool) -> list[tuple[bytes, Integers, Integers]]:
        """The sessions to answer now, by connection: (n, 2) each with the number up to which it is safe, and
        those of which something is missing. With `safe`, all that was accepted so far is kept for good.

        Without, sessions with messages that are not yet safe wait, unless part of them has become safe.
        """
        slots = np.flatnonzero(self._to_answer | self._waiting if safe else self._to_answer)
        # Cleared for all, also those that go on waiting: `_waiting` remembers these.
        self._to_answer[slots] = False
        if safe:
            self._waiting[slots] = False
            self._safe[slots] = self._seen[slots]
        else:
            wait = self._safe[slots] < self._seen[slots]
            self._waiting[slots[wait]] = True
            # A nack does not wait: the sender can fill the hole meanwhile.
            slots = slots[~wait | self._nack[slots] | self._advanced[slots]]
        if not len(slots):  # most of the times, where acks are held back
            return []
        # By connection, because one reply answers all sessions of an agent.
        slots = slots[np.argsort(self._route[slots], kind="stable")]
        route, missing = self._route[slots], self._nack[slots]
        pairs = np.stack([self._name[slots], self._safe[slots]], axis=1)
        self._nack[slots] = self._advanced[slots] = False
        begins = np.flatnonzero(np.diff(route, prepend=-1))
        stops = np.append(begins[1:], len(slots))
        lost, nothing = missing.any(), pairs[:0, 0]
        spans = zip(route[begins].tolist(), begins.tolist(), stops.tolist(), strict=False)
        return [
            (
                self._routes[number],
                pairs[begin:stop],
                pairs[begin:stop, 0][missing[begin:stop]] if lost else nothing,
            )
            for number, begin, stop in spans
        ]

    def _number_routes(self, routes: Sequence[bytes]) -> list[int]:
        """The numbers of these connections."""
        if len(self._routes) >= self._most_routes:
            self._leave_out_routes()
        numbers = self._route_numbers
        try:
            # Nearly always all of them are known: one map in C, and no test of each.
            return [*map(numbers.__getitem__, routes)]
        except KeyError:
            return [numbers[route] if route in numbers else self._new_route(route) for route in routes]

    def _new_route(self, route: bytes) -> int:
        self._routes.append(route)
        number = self._route_numbers[route] = len(self._routes) - 1
        return number

    def _leave_out_routes(self) -> None:
        """Number only the connections that known sessions have: clients that connect again and again take no
        memory."""
        slots = [*self.slot_by_id.values()]
        present, numbers = np.unique(self._route[slots], return_inverse=True)
        self._routes = [self._routes[old] for old in present.tolist()]
        self._route_numbers = {route: number for number, route in enumerate(self._routes)}
        self._route[slots] = numbers
        self._most_routes = max(LEAST_ROUTES, 2 * len(self._routes))

    def _add_slots(self) -> None:
        """Twice as many slots."""
        before = self._numbers.shape[1]
        n_added = max(64, before)
        self._numbers = np.pad(self._numbers, ((0, 0), (0, n_added)))
        self._flags = np.pad(self._flags, ((0, 0), (0, n_added)))
        # Descending, as `pop` takes the last: slots are then given in ascending order.
        self._free = [*range(before + n_added - 1, before - 1, -1)]
        self._name_columns()

    def _forget_session(self, name: int) -> None:
        slot = self.slot_by_id.pop(name)
        self._sorted = None
        self._flags[:, slot] = False
        self._free.append(slot)
        if self._seen[slot]:
            # What is remembered of a session is its last number: if it comes back, none of its messages
            # counts twice.
            self._before[name] = int(self._seen[slot])
        # The first key is the one that was put in first.
        if len(self._before) > FORGOTTEN:
            del self._before[next(iter(self._before))]
