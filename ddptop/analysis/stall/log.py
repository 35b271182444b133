"""Stalls in the log: when the verdict was known, and how long it lasted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.ranks import NS
from ddptop.analysis.stall import sentences
from ddptop.analysis.stall.diagnosis import standstill
from ddptop.analysis.stall.rule import rank_states, stalled_since
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from ddptop.analysis.stall.positions import Standstill
    from ddptop.analysis.state import RunState

EVERY_NS = NS // 2
"""Between two looks, in the time of the messages: a look costs a pass over all ranks."""


class StallLog:
    """Looks at the group as messages arrive, so that the log never depends on who asks for frames."""

    def __init__(self) -> None:
        self._next_ns = 0
        self._seen_ns: int | None = None
        """Since when the step stood at the last look. One look alone may be that of a collector which was
        itself held up and has not read all that waits for it."""
        self._told: Standstill | None = None

    def look(self, state: RunState, now_ns: int) -> None:
        """`now_ns`: when the newest message arrived."""
        if now_ns < self._next_ns or not state.ranks:
            return
        self._next_ns = now_ns + EVERY_NS
        found = None
        if stalled_since(state, now_ns) is not None:
            found = standstill(state, rank_states(state, now_ns), now_ns)
        before = self._told
        if before is not None and (found is None or found.since_ns != before.since_ns):
            self._told = None
            self._tell_end(state, before, now_ns)
        seen_ns, self._seen_ns = self._seen_ns, found.since_ns if found is not None else None
        if found is None or found.since_ns != seen_ns:
            return
        if found.found.kind == "dead" or (found.found.kind == "asking" and found.patient):
            return  # a death has its own line; answers may still come
        if self._told is None or self._told.key() != found.key():
            self._told = found
            self._tell(state, found, now_ns)

    @staticmethod
    def _tell(state: RunState, found: Standstill, now_ns: int) -> None:
        blamed = found.found.blamed
        state.log.add(
            state.unix_s(now_ns),
            "stall",
            f"stall: {sentences.short(state, found)}",
            severity="critical",
            rank=blamed[0] if len(blamed) == 1 else None,
            step=found.step,
        )

    @staticmethod
    def _tell_end(state: RunState, before: Standstill, now_ns: int) -> None:
        """Only where the step moves again: a run that ended, or a rank that restarted, has its own line."""
        running = [member for member in state.ranks if member.running]
        moved_ns = min((member.moved_ns for member in running), default=before.since_ns)
        ended = state.run is not None and state.run.state != "live"
        if ended or len(running) < len(state.ranks) or moved_ns <= before.since_ns:
            return
        blamed = before.found.blamed
        whose = (
            f", {ranks_phrase([*blamed], len(state.ranks))} had been {_had_been(before)}" if blamed else ""
        )
        lasted = (moved_ns - before.since_ns) / NS
        text = f"the step moves again after {lasted:.0f} s{whose}"
        one = blamed[0] if len(blamed) == 1 else None
        state.log.add(state.unix_s(now_ns), "stall_end", text, rank=one, step=before.step)


def _had_been(before: Standstill) -> str:
    words = {"missing": "missing", "mismatch": "in another collective", "device": "held up by its GPU"}
    return words.get(before.found.kind, "gone")
