"""The rank that is clearly late now, in too few steps to flag it, or by too uneven a time.

By arrivals it is searched in the newest steps with bucket detail, by own times in the newest steps of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.figures import place_excess
from ddptop.analysis.steps import formulas
from ddptop.analysis.straggler import arrival_rules, cpu_waits, own_time_rules
from ddptop.analysis.straggler.shared_rules import is_clearly_last, latest_ranks
from ddptop.frames.frame import Suspect
from ddptop.frames.statistics import median, quantile

if TYPE_CHECKING:
    from ddptop.analysis.figures import CpuSuspect, Figures
    from ddptop.analysis.steps.windows import DetailWindow, ScopeWindow, StepWindow
    from ddptop.frames.columns import Column, Indices

RECENT = (4, 8, 12, 16)
"""Numbers of newest detailed steps in which a suspect is searched: for many ranks four steps are enough, for
two ranks twelve (`shared_rules.CHANCE`)."""

ERRORS = 2.0
"""Standard errors in the bound of a median excess: 95 % of errors are smaller."""


def by_arrivals(window: DetailWindow, slots: Indices) -> Suspect | None:
    """The rank that clearly comes last in the newest detailed steps, which are too few to flag it."""
    suspects = [_by_arrivals_in(scope, slots) for scope in window.scopes.values() if not scope.clock_free]
    return max(
        (suspect for suspect in suspects if suspect is not None),
        key=lambda suspect: suspect.lateness_ms,
        default=None,
    )


def _by_arrivals_in(window: ScopeWindow, slots: Indices) -> Suspect | None:
    detailed = window.with_detail(slots)
    for steps in RECENT:
        newest = detailed[-steps:]
        last = window.group.of("last", newest)
        if len(newest) < steps or not (last >= 0).any():
            return None
        counts = np.bincount(last[last >= 0].astype(np.int64), minlength=len(window.members))
        rank, count = int(counts.argmax()), int(counts.max())
        if not is_clearly_last(count, steps, len(window.members)):
            continue
        lateness = window.ranks.of("lateness", newest)[rank]
        late_ms, low_ms = float(median(lateness)), float(quantile(lateness, 0.25))
        bound_ms = float(window.bound_ms(newest)[rank])
        gain = np.where(last == rank, window.group.of("recoverable", newest), 0.0)
        gain_ms = float(median(gain))
        cost_pct = 100 * float(median(formulas.share(gain, window.group.of("step", newest))))
        worth = gain_ms >= arrival_rules.FLAG_MS and cost_pct >= arrival_rules.FLAG_PCT
        if worth and low_ms > max(bound_ms, arrival_rules.SPREAD_SHARE * late_ms):
            return Suspect(window.scope.ranks[rank], late_ms, bound_ms, count, steps)
    return None


def by_own_time(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank is clearly late by its own times, and the suspect."""
    steps = figures.steps
    newest = steps.recent(own_time_rules.NEWEST)
    for members in figures.flags.groups:
        excess = steps.work_excess(newest, members)
        if (result := own_time_rules.suspect(excess, steps.wall(newest))) is not None:
            late, last = result
            over = excess[late.ranks[0], late.first :]
            return int(newest[late.first]), _of_excess(members[late.ranks[0]], over, last)
    return _waits_for_cpu(figures) or _last_in_most(figures)


def _of_excess(rank: int, over: Column, last: int) -> Suspect:
    """A suspect by its excess in some steps, (n,), in `last` of which it comes last."""
    bound_ms = ERRORS * own_time_rules.error_of_median(over)
    return Suspect(int(rank), float(median(over)), bound_ms, last, len(over), basis="every_step")


LAST_SHARE = 0.9
"""Least share of the newest steps in which a suspect comes last whose excess varies too much to flag it."""


def _last_in_most(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank comes last in nearly all steps, and the suspect: its excess may vary."""
    steps = figures.steps
    slots = steps.recent(own_time_rules.LAST_STEPS)
    if len(slots) < own_time_rules.LAST_STEPS:
        return None
    for members in figures.flags.groups:
        excess = steps.excess(slots, members)
        latest = latest_ranks(excess)[np.isfinite(excess).any(axis=0)]
        last = np.bincount(latest, minlength=len(members))
        row = int(last.argmax())
        over = excess[row]
        least_ms = max(own_time_rules.FLAG_MS, own_time_rules.WHOLE_SHARE * float(median(steps.wall(slots))))
        if len(members) > 1 and last[row] >= LAST_SHARE * len(slots) and float(median(over)) >= least_ms:
            return int(slots[0]), _of_excess(members[row], over, int(last[row]))
    return None


CPU_LAST_SHARE, EARLY_CPU_LAST_SHARE = 0.75, 0.9
"""Least share of the newest steps in which a suspect that waits for a CPU comes last; in fewer steps than
`cpu_waits` takes, the larger one."""


def _waits_for_cpu(figures: Figures) -> tuple[int, Suspect] | None:
    """The slot since which a rank waits for a CPU, and the suspect, for less time than flagging takes."""
    sure = figures.flags.cpu_suspect
    suspects = [_waits_for_cpu_in(figures.steps, members, sure) for members in figures.flags.groups]
    return max(
        (suspect for suspect in suspects if suspect is not None),
        key=lambda suspect: suspect[1].lateness_ms,
        default=None,
    )


def _waits_for_cpu_in(
    steps: StepWindow, members: Indices, sure: CpuSuspect | None
) -> tuple[int, Suspect] | None:
    """`_waits_for_cpu` in one process group. `sure`: as the blocks of `cpu_waits` tell, None while there are
    too few of them: then the newest steps alone tell, by a larger share."""
    newest = steps.slots()
    waits = place_excess(steps, "cpu", newest, members)
    if sure is not None and sure.rank not in members:
        return None
    newest_waits = np.nan_to_num(waits[:, -own_time_rules.NEWEST :]).mean(axis=1)
    row = int(newest_waits.argmax() if sure is None else np.flatnonzero(members == sure.rank)[0])
    first = own_time_rules.onset(waits[row])
    slots = newest[first:]
    if len(slots) < own_time_rules.NEWEST:
        return None
    wall_ms = float(steps.wall(slots).sum())
    if sure is None and np.nan_to_num(waits[row, first:]).sum() < cpu_waits.SHARE * wall_ms:
        return None
    excess = steps.excess(slots, members)
    last = int((latest_ranks(excess) == row).sum())
    if last < (EARLY_CPU_LAST_SHARE if sure is None else CPU_LAST_SHARE) * len(slots):
        return None
    so_far_s = wall_ms / 1e3 if sure is None else sure.so_far_s
    needed_s = cpu_waits.needed_s(wall_ms / len(slots))
    suspect = _of_excess(members[row], excess[row], last)
    return int(slots[0]), replace(suspect, cause="cpu", so_far_s=so_far_s, needed_s=needed_s)
