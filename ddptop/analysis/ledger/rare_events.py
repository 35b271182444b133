"""Events of a rank that is slow in few steps by very much: when it is flagged, and when that is long ago.

The rule is that of `rare.py`, applied to each dear step in turn. So the log depends neither on how many steps
are evaluated at once, nor on when somebody looks.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ledger.rare import (
    NOT_FLAGGED,
    cause_of,
    cost_of_others_pct,
    is_dear_enough,
    stands_out,
)
from ddptop.analysis.ledger.step_times import WAIT_PLACES
from ddptop.analysis.ledger.sums import RECENT_BIN_S, RECENT_BINS, KindWaits, WaitSum, add_dear
from ddptop.frames.phrases import rare_size_phrase, which_hosts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ddptop.analysis.ledger.sums import DearSum, DearWait
    from ddptop.analysis.state import RunState
    from ddptop.frames.columns import Column

RECENT_S = RECENT_BIN_S * RECENT_BINS
"""The last minutes: a flag ends after as long without a dear step."""

MOST_RECENT = 64
"""Newest dear steps of a rank and place that are looked at: with more of them it was flagged before."""

MOST_PLACES = 1000
"""Ranks and places whose dear steps are kept."""


@dataclass(slots=True)
class _DearPlace:
    """The dear steps of a rank in one place."""

    recent: deque[DearWait] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    of_run: WaitSum = field(default_factory=WaitSum)
    is_flagged: bool = False

    def add(self, wait: DearWait) -> None:
        self.recent.append(wait)
        _add_wait(self.of_run, wait)

    def recent_sum(self) -> WaitSum:
        """The sum of the waits of the last minutes."""
        sums, newest_s = WaitSum(), self.recent[-1].end_s
        for wait in self.recent:
            if wait.end_s >= newest_s - RECENT_S:
                _add_wait(sums, wait)
        return sums


def _add_wait(sums: WaitSum, wait: DearWait) -> None:
    waits = KindWaits(1, wait.rank_ms)
    add_dear(sums.dear, wait.step, wait.end_s, wait.longest_ms, waits, wait.kind)


class RareEvents:
    """Logs when a rank is flagged for rare and dear steps, and when it has had none for minutes."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._places: dict[tuple[int, str], _DearPlace] = {}
        self._dear_ms: defaultdict[int, float] = defaultdict(float)
        """Waited in all recorded dear steps, for whomever, by the power of two of the longest wait."""
        self._recent: deque[DearWait] = deque()
        """The dear steps of the last minutes, whoever was waited for."""
        self._recent_ms: defaultdict[int, float] = defaultdict(float)
        """What was waited in them."""
        self._longest: dict[tuple[int, str], DearWait] = {}
        """The one with the longest wait of one rank, by rank and place."""
        self._first_s: float | None = None
        """When the first step ended."""

    def take(self, waits: Sequence[DearWait], numbers: Column, end_s: Column) -> None:
        """Take the dear steps among n steps, whose numbers and ends are (n,)."""
        if self._first_s is None:
            self._first_s = float(end_s[0])
        for wait in waits:
            self._dear_ms[wait.power] += wait.rank_ms
            self._recent_ms[wait.power] += wait.rank_ms
            # Of many ranks, the sums from which the scales follow take much memory.
            kept_wait = wait._replace(dear=None)
            self._recent.append(kept_wait)
            key = wait.rank, wait.place
            longest = self._longest.get(key)
            if wait.longest_ms > longest.longest_ms if longest else len(self._longest) < MOST_PLACES:
                self._longest[key] = kept_wait
            if wait.place in NOT_FLAGGED:
                continue
            place = self._place_of(wait)
            if place.is_flagged and place.recent:
                self._end_before(place, numbers, end_s, wait.end_s)
            place.add(kept_wait)
            if not place.is_flagged and self._is_dear_enough(place, wait):
                place.is_flagged = True
                self._log_begin(place, wait)
        for place in self._places.values():
            if place.is_flagged:
                self._end_before(place, numbers, end_s, float(end_s[-1]))

    def _place_of(self, wait: DearWait) -> _DearPlace:
        if len(self._places) > MOST_PLACES:
            self._places = {key: place for key, place in self._places.items() if place.is_flagged}
        key = wait.rank, wait.place
        if key not in self._places:
            self._places[key] = _DearPlace(is_flagged=self._was_flagged(wait))
        return self._places[key]

    def _was_flagged(self, wait: DearWait) -> bool:
        """Whether it was flagged by the dear steps in the sums with which the ledger began: the recorded log
        has that event."""
        ledger = self._state.ledger
        if ledger.resumed is None:
            return False
        sums = ledger.waits.get(wait.rank * len(WAIT_PLACES) + WAIT_PLACES.index(wait.place))
        before = WaitSum() if sums is None else sums
        rare_waits, scales = ledger.rare_waits, wait.scales()
        dear, least_power = before.dearest(scales, rare_waits), before.alike_power(scales, rare_waits)
        for_others_ms = rare_waits.sum_compared(self._dear_ms, least_power)
        if wait.power >= least_power or not rare_waits.of_same_length:
            dear.add_waits(wait.kind, KindWaits(-1, -wait.rank_ms))
            dear.longest_ms -= wait.longest_ms
        if not rare_waits.of_same_length:
            for_others_ms -= dear.rank_ms({})
        elif wait.power >= least_power:
            for_others_ms -= wait.rank_ms
        # Nothing is known of the others' steps before: what is short stands out by five of its steps.
        return dear.n_steps > 0 and self._are_dear_enough(dear, wait, wait.end_s, for_others_ms, ())

    def _is_dear_enough(self, place: _DearPlace, wait: DearWait) -> bool:
        recent_s = min(RECENT_S, wait.end_s - (self._first_s or 0.0))
        while self._recent[0].end_s < wait.end_s - RECENT_S:
            old_wait = self._recent.popleft()
            self._recent_ms[old_wait.power] -= old_wait.rank_ms
        times = (
            (place.recent_sum(), recent_s, self._recent_ms, self._recent),
            (place.of_run, wait.end_s, self._dear_ms, self._longest.values()),
        )
        rare_waits = self._state.ledger.rare_waits
        for sums, over_s, dear_ms, waits in times:
            dear = sums.dearest({}, rare_waits)
            all_ms = rare_waits.sum_compared(dear_ms, sums.alike_power({}, rare_waits))
            for_others_ms = all_ms - dear.rank_ms({})
            if self._are_dear_enough(dear, wait, over_s, for_others_ms, waits):
                return True
        return False

    def _are_dear_enough(
        self,
        dear: DearSum,
        wait: DearWait,
        over_s: float,
        for_others_ms: float,
        waits: Collection[DearWait],
    ) -> bool:
        """Whether the dear steps of the rank and place of a wait are. `for_others_ms`: waited for others in
        recorded dear steps of that time, where it was as long; `waits`: the longest of them at least, empty:
        they are not known."""
        dear_s = dear.longest_ms / 1000.0 / max(1, dear.n_steps)

        def is_outside() -> bool:
            own_longest_ms, others_longest_ms = wait.longest_ms, 0.0
            for other_wait in waits:
                if (other_wait.rank, other_wait.place) == (wait.rank, wait.place):
                    own_longest_ms = max(own_longest_ms, other_wait.longest_ms)
                elif other_wait.place != "start":
                    others_longest_ms = max(others_longest_ms, other_wait.longest_ms)
            return bool(waits) and stands_out(dear_s, own_longest_ms / 1000.0, others_longest_ms / 1000.0)

        return is_dear_enough(
            dear.n_steps,
            dear.steps,
            dear_s,
            over_s,
            cost_pct=lambda: cost_of_others_pct(
                dear.rank_ms(wait.scales()) / 1000.0, over_s, self._state.world
            ),
            is_main=lambda: self._state.ledger.rare_waits.are_main(dear.rank_ms({}), for_others_ms),
            is_outside=is_outside,
        )

    def _log_begin(self, place: _DearPlace, wait: DearWait) -> None:
        cause, within = cause_of(wait.place)
        dear = place.of_run.dearest({}, self._state.ledger.rare_waits)
        size = rare_size_phrase(dear.longest_ms / max(1, dear.n_steps), cause, within)
        text = f"{self._name(wait)} became slow in few steps: {size} (step {wait.step:,})"
        now_s = self._state.started_s + wait.end_s
        self._state.log.add(now_s, "straggler", text, rank=wait.rank, step=wait.step)

    def _end_before(self, place: _DearPlace, numbers: Column, ends_s: Column, until_s: float) -> None:
        """End the flag if the last minutes before `until_s` have no dear step."""
        last = place.recent[-1]
        end_s = last.end_s + RECENT_S
        if until_s <= end_s:
            return
        place.is_flagged = False
        step = int(numbers[int(np.argmax(ends_s > end_s))])
        text = f"{self._name(last)} is no longer slow in few steps: the last was step {last.step:,}"
        self._state.log.add(self._state.started_s + end_s, "straggler_end", text, rank=last.rank, step=step)

    def _name(self, wait: DearWait) -> str:
        return f"rank {wait.rank}{which_hosts(self._state.presence.host_names, (wait.rank,))}"
