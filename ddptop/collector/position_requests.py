"""Has a rank on its way to the first step say what it does, while a viewer wants to see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.collector.stall_watch import ASK_AGAIN_NS
from ddptop.frames.detail import PositionRequest, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.reducer import Reducer


class PositionRequests:
    """Decides when the rank of a request is asked again."""

    def __init__(self, reducer: Reducer, ask: Callable[[int, int], None]) -> None:
        """`ask` sends an ASK of a number to a session, and may fail silently."""
        self._reducer = reducer
        self._ask = ask
        self._due_ns: dict[int, int] = {}
        """By session."""

    def ask_wanted(self, want: str, now_ns: int) -> None:
        """Ask the rank that the request of a viewer names, if that is due."""
        request = parse_request(want)
        if not isinstance(request, PositionRequest):
            return
        state = self._reducer.state
        if state.complete_step is not None or request.rank >= len(state.ranks):
            return
        rank = state.ranks[request.rank]
        if not rank.running or now_ns < self._due_ns.get(rank.session, 0):
            return
        self._due_ns = {session: due_ns for session, due_ns in self._due_ns.items() if due_ns > now_ns}
        self._due_ns[rank.session] = now_ns + ASK_AGAIN_NS
        self._ask(rank.session, time.time_ns())
