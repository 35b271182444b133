"""Asking ranks for evidence of what they are doing: while the group is stalled, and after a rank has died."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ddptop.protocol.limits import NS

ASK_AGAIN_NS = 5 * NS
"""An ASK may get lost, and the thread that answers may wait for the GIL; dumping stacks takes it a second."""

NEXT_ROUND_NS = 60 * NS
"""A stall may change while it lasts (a rank leaves a slow loader and enters a collective): ranks are asked
again after as long as it has lasted, at most this."""

QUICK_ROUNDS = 4
"""How many times ranks are asked as soon as a heartbeat shows that one of them has moved on. After that they
are asked when the stall has lasted a quarter longer: ranks may be in collectives of their own for hours."""

DEATH_NS = 9 * NS
"""What the others do right after a death explains it. After a death the remaining ranks are asked at most
twice."""


@dataclass(slots=True)
class _Round:
    """One question to all ranks: each is to answer it once."""

    number: int
    began_ns: int
    until_ns: int | None
    """None: as long as the stall lasts."""
    asked_ns: dict[int, int] = field(default_factory=dict)
    """Session -> when it was last asked."""
    answered: set[int] = field(default_factory=set)
    positions: bytes | None = None
    """Where the ranks' heartbeats had them when it began; None: not known."""
    complete: bool = False
    """Whether `take_complete` has returned it."""


class StallWatch:
    """Decides which ranks to ask, and when.

    `ask` sends ASK to a session and may fail silently. `clock` gives Unix nanoseconds: numbers are
    taken from it, so that a collector that was started again uses none a second time.
    """

    def __init__(self, ask: Callable[[int, int], None], clock: Callable[[], int] = time.time_ns) -> None:
        self._ask = ask
        self._clock = clock
        self._round: _Round | None = None
        self._newest = self._quick = 0
        self._stalled_since_ns: int | None = None

    @property
    def is_asking(self) -> bool:
        """Whether ranks are being asked, so that their sessions are needed although nothing is stalled."""
        return self._round is not None

    def ask_ranks_due(
        self, now_ns: int, stalled_since_ns: int | None, sessions: Collection[int], positions: bytes = b""
    ) -> None:
        """Ask the living `sessions` what is due. `stalled_since_ns`: None while there is no stall.
        `positions`: where the ranks' heartbeats have them, which differs once one of them moves on."""
        current = self._round
        if stalled_since_ns != self._stalled_since_ns:
            self._stalled_since_ns, self._quick = stalled_since_ns, 0
        # A round after a death began without positions: those of now are its first.
        if current is not None and current.positions is None:
            current.positions = positions
        moved = current is not None and current.positions != positions
        if stalled_since_ns is not None and not self._covers_stall(current, stalled_since_ns, now_ns, moved):
            self._quick += moved
            current = self._begin_round(now_ns, None)
            current.positions = positions
        elif stalled_since_ns is None and self._is_over(current, now_ns):
            self._round = current = None
        if current is not None:
            self._ask_those_due(current, sessions, now_ns)

    def note_death(self, now_ns: int, sessions: Collection[int]) -> None:
        """Note that a rank has died or failed: ask the others at once, unless that was just done for another
        one."""
        current = self._round
        # Several ranks die within moments: one round explains all of them.
        if current is None or now_ns - current.began_ns >= ASK_AGAIN_NS:
            current = self._begin_round(now_ns, now_ns + DEATH_NS)
            self._ask_those_due(current, sessions, now_ns)

    def note_answer(self, session: int, number: int) -> None:
        """Note that EVIDENCE of this number has arrived."""
        if self._round is not None and number == self._round.number:
            self._round.answered.add(session)

    def take_complete(self, now_ns: int, sessions: Collection[int]) -> tuple[int, int] | None:
        """A round about a stall that is complete, once: when it began (clock of `now_ns`) and its number.

        Complete: all living `sessions` have answered, or some have and the others had time to."""
        current = self._round
        if current is None or current.until_ns is not None or current.complete or not current.answered:
            return None
        current.complete = current.answered.issuperset(sessions) or now_ns - current.began_ns >= ASK_AGAIN_NS
        return (current.began_ns, current.number) if current.complete else None

    def recall_answer(self, session: int, number: int, now_ns: int) -> None:
        """Note that this session has answered an earlier collector, which had asked with this number."""
        age_ns = self._clock() - number
        if number <= 0 or age_ns < 0:
            return
        if number > self._newest:
            self._newest = number
            self._round = _Round(number, now_ns - age_ns, None)
        self.note_answer(session, number)

    def _covers_stall(self, current: _Round | None, since_ns: int, now_ns: int, moved: bool) -> bool:
        if current is None or current.until_ns is not None or current.began_ns < since_ns:
            return False
        lasted_ns = current.began_ns - since_ns
        pause_ns = min(NEXT_ROUND_NS, max(2 * ASK_AGAIN_NS, lasted_ns))
        if moved:
            pause_ns = ASK_AGAIN_NS if self._quick < QUICK_ROUNDS else max(ASK_AGAIN_NS, lasted_ns // 4)
        return now_ns - current.began_ns < pause_ns

    @staticmethod
    def _is_over(current: _Round | None, now_ns: int) -> bool:
        return current is not None and (current.until_ns is None or now_ns >= current.until_ns)

    def _begin_round(self, now_ns: int, until_ns: int | None) -> _Round:
        # Ascending also where the clock was set back, so that no number is used twice.
        self._newest = max(self._clock(), self._newest + 1)
        self._round = _Round(self._newest, now_ns, until_ns)
        return self._round

    def _ask_those_due(self, current: _Round, sessions: Collection[int], now_ns: int) -> None:
        for session in sessions:
            asked_ns = current.asked_ns.get(session)
            if session not in current.answered and (asked_ns is None or now_ns - asked_ns >= ASK_AGAIN_NS):
                current.asked_ns[session] = now_ns
                self._ask(session, current.number)
