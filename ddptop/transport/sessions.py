"""The rule of the acked link, which both its receivers keep: `AckedReceiver` and `BundleReceiver`.

Of each session only the message whose predecessor was seen is accepted; a later one is discarded and nacked,
so that nothing past a hole is ever acked. The sender says which message was the one before: what it dropped
in between never comes, and the reducer sees that loss as a gap in step numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

SESSIONS_OF_A_RANK = 2
"""Known at a time: a rank's process, and the one before it, whose last messages may still be on their way.
A HELLO beyond that makes the oldest unknown, so that HELLOs without end take no memory."""

FORGOTTEN = 65_536
"""Sessions whose last number is kept after they became unknown: if one of them comes back, nothing of it is
recorded twice."""


@dataclass(slots=True, eq=False)
class ReceivedSession:
    """What was received of one session."""

    number: int
    rank: int
    owner: Hashable
    """Whose session it is; an owner has few sessions at a time."""
    seen: int
    """Highest number accepted or given up for lost."""
    safe: int
    """Highest number that is kept for good."""
    route: bytes
    """ZeroMQ's name of the connection that its last message came over."""
    nack: bool = False
    """Something before its last message is missing."""
    advanced: bool = False
    """`safe` has changed since its sender was last answered."""


class ReceivedSessions:
    """The sessions that a receiver knows, and those that are to be answered.

    `recorded` maps sessions to the highest number that is recorded already; of an owner `of_an_owner`
    sessions are known at a time.
    """

    def __init__(
        self, recorded: Mapping[int, int] | None = None, *, of_an_owner: int = SESSIONS_OF_A_RANK
    ) -> None:
        self._before = dict(recorded or {})
        self._of_an_owner = of_an_owner
        self.by_number: dict[int, ReceivedSession] = {}
        self._of: dict[Hashable, list[int]] = {}
        """By owner, oldest first."""
        self._to_answer: set[ReceivedSession] = set()
        self._waiting: set[ReceivedSession] = set()
        """Sessions with messages that are not safe yet."""

    def note_recorded(self, number: int, seq: int) -> None:
        """Note that a session is recorded up to `seq`; before its HELLO comes."""
        self._before[number] = max(seq, self._before.get(number, 0))

    def begin_session(self, number: int, rank: int, route: bytes, *, owner: Hashable) -> ReceivedSession:
        """Make a session known, whose sender is to be answered; forget the owner's oldest one where that is
        one too many."""
        of_owner = self._of.setdefault(owner, [])
        of_owner.append(number)
        if len(of_owner) > self._of_an_owner:
            self._forget_session(self.by_number[of_owner.pop(0)])
        seen = self._before.pop(number, 0)
        session = self.by_number[number] = ReceivedSession(number, rank, owner, seen, seen, route)
        self._to_answer.add(session)
        return session

    def note_route(self, session: ReceivedSession, route: bytes) -> None:
        """Note that a message of a session came over this connection: its sender is to be answered."""
        session.route = route
        self._to_answer.add(session)

    def give_up(self, session: ReceivedSession, base: int) -> None:
        """Note that what lies before `base` and has not arrived never will."""
        if session.seen < base - 1:
            session.seen = base - 1
            self._waiting.add(session)

    def accept_next(self, session: ReceivedSession, seq: int, after: int, route: bytes) -> bool:
        """Whether the message `seq` is the next one, where its sender has none between `after` and it.

        It counts as seen from now on, and its sender is to be answered.
        """
        session.route = route
        self._to_answer.add(session)
        if after <= session.seen < seq:
            session.seen = seq
            self._waiting.add(session)
            return True
        # A message that comes twice is no hole: only one that lies ahead is answered by a nack.
        session.nack |= seq > session.seen
        return False

    def mark_safe(self, number: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`: its sender is to be answered."""
        session = self.by_number.get(number)
        # Never beyond what was seen: an agent's own file may hold more than has arrived here.
        if session is not None and session.safe < min(seq, session.seen):
            session.safe = min(seq, session.seen)
            session.advanced = True
            self._to_answer.add(session)
            if session.safe == session.seen:
                self._waiting.discard(session)

    def take_answers(self, *, safe: bool) -> Iterator[ReceivedSession]:
        """The sessions to answer now; with `safe`, all that was accepted so far is kept for good.

        Without, sessions with messages that are not yet safe wait, unless part of them has become safe, or
        something is missing: the sender can fill the hole meanwhile.
        """
        answered, self._to_answer = self._to_answer, set()
        waiting = self._waiting
        if safe:
            answered |= waiting
            self._waiting = set()
            for session in waiting:
                session.safe = session.seen
        for session in answered:
            if safe or session not in waiting or session.nack or session.advanced:
                yield session
                session.nack = session.advanced = False

    def _forget_session(self, session: ReceivedSession) -> None:
        del self.by_number[session.number]
        self._to_answer.discard(session)
        self._waiting.discard(session)
        if session.seen:
            # If it comes back, none of its messages counts twice.
            self._before[session.number] = session.seen
        # Dictionaries keep their order: the first one has been unknown for longest.
        if len(self._before) > FORGOTTEN:
            del self._before[next(iter(self._before))]
