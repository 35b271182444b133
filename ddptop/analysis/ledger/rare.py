"""The rank that is slow in few steps by very much: what is waited for it is a large part of the time.

The other rules compare the steps of a window, in which a checkpoint every 200 steps is one step that does not
fit. Here the sums decide: a rank and place are flagged from the second dear step on, or from the first if the
others waited FIRST_S in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ddptop.frames.frame import Straggler
from ddptop.frames.ledger import RareSlowness

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.frames.causes import Cause
    from ddptop.frames.ledger import Ledger, SkewCost, WaitedFor
    from ddptop.protocol.vocabulary import OwnPlace

FIRST_S = 10.0
"""A single step in which the others waited so long is flagged at once."""

LONG_S, LEAST_PCT = 1.0, 2.0
"""Waits so long are flagged from two of them on, if they cost so much of the time."""

N_SHORT, SHORT_PCT = 5, 5.0
"""Shorter ones are flagged if there are so many, they cost so much, and most of what was waited in dear
steps was for this rank (`RareWaits`)."""

FEW_SHORT, FEW_S, NOISE_TIMES, ALIKE = 2, 0.1, 5.0, 1.2
"""Or from two of so many seconds on, if they are far outside the noise of the run: so many times as long as
any other dear step, and the longest no more than so many times as long as their mean, as what a script does
again and again."""

TINY_OVER_S = 10.0
"""Waits shorter than FEW_S are judged over so much time at least: in the first seconds of a run with steps of
a few ms, five stops by the kernel may cost a twentieth."""

APART, SHORT_APART = 3, 8
"""Least steps from one slow step to the next, on average: what comes more often, or in every step from now
on, is found by the rules for a window of steps."""

_PHASES = frozenset({"data", "forward", "backward", "optimizer", "gc"})
NOT_FLAGGED = frozenset({"start", "unknown"})
"""Places for which no rank is flagged."""


def rare_straggler(ledger: Ledger, *, whole_run: bool = False) -> Straggler | None:
    """The rank that costs the most by few slow steps in the last minutes, or in the whole run; None: none
    costs enough.

    What is slow once in many minutes is flagged by the sums of the run, while the last minutes have it."""
    recent = None if whole_run else _dearest(ledger, ledger.recent)
    if recent is not None:
        return recent
    of_run = _dearest(ledger, ledger.run)
    if of_run is None or whole_run:
        return of_run
    is_recent = any(
        waited.n_dear and (waited.rank, waited.place) == (of_run.rank, of_run.place or of_run.cause)
        for waited in ledger.recent.waited_for
    )
    return of_run if is_recent else None


def _dearest(ledger: Ledger, cost: SkewCost) -> Straggler | None:
    """The flagged rank that costs most by one of the ledger's two costs (run, last minutes); None: none is
    flagged."""
    n_ranks = len(ledger.ranks.elapsed_s)
    flagged = [
        _straggler(waited, ledger, cost, n_ranks)
        for waited in cost.waited_for
        if waited.n_dear and waited.place not in NOT_FLAGGED and _is_flagged(waited, cost, n_ranks)
    ]
    return max(flagged, key=lambda straggler: straggler.cost_pct, default=None)


def _is_flagged(waited: WaitedFor, cost: SkewCost, n_ranks: int) -> bool:
    def is_outside() -> bool:
        others_s = (
            row.longest_s
            for row in cost.waited_for
            if row is not waited and row.n_dear and row.place != "start"
        )
        return stands_out(waited.dear_s, waited.longest_s, max(others_s, default=0.0))

    return is_dear_enough(
        waited.n_dear,
        waited.dear_steps,
        waited.dear_s,
        cost.over_s,
        cost_pct=lambda: _cost_pct(waited, cost, n_ranks),
        is_main=lambda: waited.is_main,
        is_outside=is_outside,
    )


def stands_out(dear_s: float, longest_s: float, others_s: float) -> bool:
    """Whether the dear steps of a rank and place are far outside the noise. `dear_s`, `longest_s`: their mean
    wait and the longest; `others_s`: the longest in a dear step for another rank or place."""
    return dear_s >= max(FEW_S, NOISE_TIMES * others_s, longest_s / ALIKE)


def is_dear_enough(
    n_dear: int,
    newest_steps: Sequence[int],
    dear_s: float,
    over_s: float,
    *,
    cost_pct: Callable[[], float],
    is_main: Callable[[], bool],
    is_outside: Callable[[], bool],
) -> bool:
    """Whether a rank and place are flagged for so many seen dear steps within `over_s`, in each of which
    a rank has waited `dear_s` (a mean). What takes long to find is asked last: `is_main`, whether most of
    what was waited in all dear steps was for this rank there; `cost_pct`, with steps that were left out;
    `is_outside`: `stands_out` of them."""
    apart = (newest_steps[-1] - newest_steps[0]) / (len(newest_steps) - 1) if len(newest_steps) > 1 else APART
    if apart < APART:
        return False
    if dear_s >= FIRST_S:
        return cost_pct() >= LEAST_PCT
    if dear_s >= LONG_S:
        return n_dear > 1 and cost_pct() >= LEAST_PCT
    if dear_s < FEW_S and over_s < TINY_OVER_S:
        return False
    if n_dear < FEW_SHORT or apart < SHORT_APART or not is_main() or cost_pct() < SHORT_PCT:
        return False
    return n_dear >= N_SHORT or is_outside()


def _cost_pct(waited: WaitedFor, cost: SkewCost, n_ranks: int) -> float:
    return cost_of_others_pct(waited.dear_rank_seconds, cost.over_s, n_ranks)


def cost_of_others_pct(rank_seconds: float, over_s: float, n_ranks: int) -> float:
    """By what share of the time the run would be shorter: the mean over the others of what they waited."""
    return min(100.0, 100 * rank_seconds / max(1, n_ranks - 1) / over_s) if over_s > 0 else 0.0


def cause_of(place: OwnPlace) -> tuple[Cause, OwnPlace | None]:
    """A place of the ledger as cause and place of a straggler."""
    return (cast("Cause", place), None) if place in _PHASES else ("other", place)


def _straggler(waited: WaitedFor, ledger: Ledger, cost: SkewCost, n_ranks: int) -> Straggler:
    cause, place = cause_of(waited.place)
    late_ms = 1000 * waited.dear_s
    n_slow, n_steps = waited.dear_of(cost)
    return Straggler(
        rank=waited.rank,
        pattern="rare",
        lateness_ms=late_ms,
        bound_ms=0.0,
        recoverable_ms=late_ms,
        cost_pct=_cost_pct(waited, cost, n_ranks),
        last_pct=100 * n_slow / max(1, n_steps),
        cause=cause,
        parts_ms={},
        place=place,
        basis="every_step",
        rare=RareSlowness(
            n_slow=waited.n_dear,
            n_slow_in_all=waited.n_dear_in_all,
            n_steps=n_steps,
            steps=waited.dear_steps,
            over_s=cost.over_s,
            is_whole_run=cost.steps >= ledger.run.steps,
            since_launch=cost is ledger.run,
            since_s=waited.dear_since_s,
            of_all_steps=waited.n_witnessed > 0,
        ),
    )
