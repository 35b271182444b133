"""The rule of the acked link, which both its receivers keep: `AckedReceiver`, and `BundleReceiver`, where
`session_columns.py` keeps it for many sessions at once.

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


@dataclass(slots=True)
class ReceivedSession:
    """What was received of one session."""

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

    def give_up(self, base: int) -> None:
        """What lies before `base` and has not arrived never will."""
        self.seen = max(self.seen, base - 1)

    def accept_next(self, seq: int, after: int) -> bool:
        """Whether the message `seq` is the next one, where its sender has none between `after` and it.

        It counts as seen from now on.
        """
        if after <= self.seen < seq:
            self.seen = seq
            return True
        # A message that comes twice is no hole: only one that lies ahead is answered by a nack.
        self.nack |= seq > self.seen
        return False


class ReceivedSessions:
    """The sessions that a receiver knows, and those that are to be answered.

    `seen` maps sessions to the highest number that is recorded already.
    """

    def __init__(
        self, seen: Mapping[int, int] | None = None, *, of_an_owner: int = SESSIONS_OF_A_RANK
    ) -> None:
        self._before = dict(seen or {})
        self._of_an_owner = of_an_owner
        self.by_id: dict[int, ReceivedSession] = {}
        self._of: dict[Hashable, list[int]] = {}
        """By owner, oldest first."""
        self._to_answer: set[int] = set()
        self._waiting: set[int] = set()
        """Sessions whose messages are not safe yet."""

    def note_recorded(self, name: int, seq: int) -> None:
        """Note that a session is recorded up to `seq`; before its HELLO comes."""
        self._before[name] = max(seq, self._before.get(name, 0))

    def begin_session(self, name: int, rank: int, route: bytes, *, owner: Hashable) -> ReceivedSession:
        """Make a session known, and forget the owner's oldest one where that is one too many."""
        of_owner = self._of.setdefault(owner, [])
        of_owner.append(name)
        if len(of_owner) > self._of_an_owner:
            self._forget_session(of_owner.pop(0))
        seen = self._before.pop(name, 0)
        session = self.by_id[name] = ReceivedSession(rank, owner, seen, seen, route)
        return session

    def note_route(self, name: int, route: bytes) -> None:
        """Note that a message of a known session came over this connection: its sender is to be answered."""
        self.by_id[name].route = route
        self._to_answer.add(name)

    def mark_safe(self, name: int, seq: int) -> None:
        """Note that this session is kept for good up to `seq`: its sender is to be answered."""
        session = self.by_id.get(name)
        if session is not None and session.safe < min(seq, session.seen):
            session.safe = min(seq, session.seen)
            session.advanced = True
            self._to_answer.add(name)

    def take_answers(self, *, safe: bool) -> Iterator[tuple[int, ReceivedSession]]:
        """The sessions to answer now; with `safe`, all that was accepted so far is kept for good.

        Without, sessions with messages that are not yet safe wait, unless part of them has become safe.
        """
        names, self._to_answer = self._to_answer, set()
        if safe:
            names |= self._waiting
            self._waiting = set()
        for name in names:
            session = self.by_id[name]
            if safe:
                session.safe = session.seen
            elif session.safe < session.seen:
                self._waiting.add(name)
                if not (session.nack or session.advanced):
                    continue
            yield name, session
            session.nack = session.advanced = False

    def _forget_session(self, name: int) -> None:
        session = self.by_id.pop(name)
        self._to_answer.discard(name)
        self._waiting.discard(name)
        if session.seen:
            self._before[name] = session.seen
        # Dictionaries keep their order: the first one has been unknown for longest.
        if len(self._before) > FORGOTTEN:
            del self._before[next(iter(self._before))]
