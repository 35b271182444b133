"""The rank that comes late to the collectives of a process group, where no own time and no bucket shows one.

The rules are those for bucket arrivals (`arrival_rules.persistent`). NCCL's collectives are not judged: their
launches are moments of the host, which runs ahead of the GPU, by another time on each rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.figures import place_excess
from ddptop.analysis.straggler import arrival_rules
from ddptop.analysis.straggler.agreement import ON_TIME
from ddptop.analysis.straggler.own_time_rules import KEEP_STEPS
from ddptop.frames.conditions import say
from ddptop.frames.frame import Straggler
from ddptop.frames.phrases import group_phrase, which_hosts
from ddptop.frames.statistics import median
from ddptop.protocol.limits import NS
from ddptop.protocol.vocabulary import SHARDED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.group_arrivals import GroupCollectives
    from ddptop.analysis.straggler.arrival_rules import Measurement

OLD_NS = 600 * NS
"""A verdict lapses when nothing was reported for so long: twice the longest interval of reads."""

SETTLE_NS = 750_000_000
"""A rank that is flagged anew is judged after so long: ranks report all groups at once, and until the last
report has come, a rank may be late in one group for the sake of another that is not compared yet."""

FOLLOWS_SHARE = 0.5
"""A rank is late because it waited itself, where in another group it is early by so much of its lateness."""


class LateInGroup(NamedTuple):
    """A rank that is late in a group."""

    group: GroupCollectives
    measured: Measurement

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.group.scope.ranks[self.measured.ranks[0]]


def launches_are_arrivals(group: GroupCollectives) -> bool:
    """Whether a collective begins when its last rank launches it, and the clocks say when that was."""
    return "nccl" not in group.backend and not group.window.clock_free


def evaluate_group(group: GroupCollectives, t_ns: int) -> None:
    """Flag the rank that is late in a group, or none; steps were added to its window now."""
    measured = None
    if launches_are_arrivals(group):
        window = group.window
        measured = arrival_rules.persistent(window, window.newest(arrival_rules.NEWEST), group.flagged)
    flagged = None if measured is None else measured.ranks[0]
    if flagged != group.flagged:
        group.flagged, group.flagged_ns = flagged, t_ns


def latest_rank(state: RunState, now_ns: int) -> LateInGroup | None:
    """The flagged rank that costs most, is late for no other's sake, and slow by itself; None: there is
    none."""
    flagged = [*_flagged_ranks(state.group_arrivals.groups.values(), now_ns)]
    causes = [late for late in flagged if not any(_follows(late, other) for other in flagged)]
    causes = [late for late in causes if _is_slow_itself(state, late)]
    return max(causes, key=lambda late: late.measured.cost_ms, default=None)


def _flagged_ranks(groups: Iterable[GroupCollectives], now_ns: int) -> Iterator[LateInGroup]:
    for group in groups:
        is_old = now_ns - group.newest_ns > OLD_NS
        if group.flagged is None or is_old or now_ns - group.flagged_ns < SETTLE_NS:
            continue
        steps = group.window.newest(arrival_rules.NEWEST)
        result = arrival_rules.measure_while_late(group.window, steps, group.flagged)
        if result is not None:
            yield LateInGroup(group, result[0])


def _follows(late: LateInGroup, other: LateInGroup) -> bool:
    """Whether a rank has waited for the late rank of another group: in a mesh the replicas of a slow rank's
    neighbours wait for those, in turn."""
    ranks = other.group.scope.ranks
    if other.group is late.group or late.rank not in ranks or late.rank == other.rank:
        return False
    window = other.group.window
    lateness = window.ranks.of("lateness", window.newest(arrival_rules.NEWEST))[ranks.index(late.rank)]
    return float(median(lateness)) <= -FOLLOWS_SHARE * late.measured.lateness_ms


def _is_slow_itself(state: RunState, late: LateInGroup) -> bool:
    """Whether the own times of the newest steps do not contradict that a rank is slow: it has not waited for
    a CPU, and where own times are known it takes longer.

    Those of sharded training are not known: they include waiting in collectives that Python does not wait
    for, which is longer on the other ranks."""
    steps = state.figures.steps
    slots = steps.recent(KEEP_STEPS)
    if not steps.has_own or not len(slots):
        return True
    members, place = np.array(late.group.scope.ranks), late.measured.ranks[0]
    least_ms = ON_TIME * late.measured.lateness_ms
    if float(median(place_excess(steps, "cpu", slots, members)[place])) >= least_ms:
        return False
    if state.cards.get(late.rank, {}).get("training") in SHARDED:
        return True
    return bool(float(median(steps.work_excess(slots, np.array([late.rank]))[0])) >= least_ms)


def note_late_rank(state: RunState, t_ns: int) -> None:
    """Log when the flag goes to another rank, or to none, where own times and buckets flag none."""
    arrivals = state.group_arrivals
    state.settle()
    late = latest_rank(state, t_ns)
    rank = None if late is None else late.rank
    if state.figures.straggler is not None:  # its begin and end are logged
        arrivals.late_rank = None
        return
    if rank == arrivals.late_rank:
        return
    now_s, step = state.unix_s(t_ns), state.complete_step or 0
    if arrivals.late_rank is not None:
        text = say("straggler_end", who=f"rank {arrivals.late_rank}", be="is")
        state.log.add(now_s, "straggler_end", text, rank=arrivals.late_rank, step=step)
    arrivals.late_rank, arrivals.late_since_s = rank, now_s
    if rank is not None:
        who = f"rank {rank}{which_hosts(state.presence.host_names, (rank,))}"
        text = say("straggler", "event", who=who, cause="", step=step)
        state.log.add(now_s, "straggler", text, rank=rank, step=step)


def straggler_in_group(state: RunState, now_ns: int) -> Straggler | None:
    """The figures of `latest_rank`: what is between its collectives is not divided, so it has no cause."""
    late = latest_rank(state, now_ns)
    if late is None:
        return None
    group, measured = late.group, late.measured
    ranks = tuple(group.scope.ranks[place] for place in measured.ranks)
    return Straggler(
        rank=late.rank,
        pattern="persistent",
        lateness_ms=measured.lateness_ms,
        bound_ms=measured.bound_ms,
        recoverable_ms=measured.recoverable_ms,
        cost_pct=measured.cost_pct,
        last_pct=100 * measured.share,
        cause=None,
        parts_ms={},
        ranks=ranks if len(ranks) > 1 else (),
        group=group_phrase(group.scope.group, group.description, group.scope.ranks),
    )
