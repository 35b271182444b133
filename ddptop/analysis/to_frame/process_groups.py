"""The process groups of a frame: what is known of their collectives from the ranks' flight recorders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.group_arrivals import KEPT_STEPS
from ddptop.analysis.steps.medians import number_or_none
from ddptop.frames.process_groups import ProcessGroupFigures
from ddptop.frames.statistics import median

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.group_arrivals import GroupCollectives

MOST_SHOWN = 256
"""Groups in a frame, those with the largest lateness: of a mesh of 1,024 ranks there are hundreds."""

MOST_OPERATIONS = 4


def process_groups(state: RunState) -> tuple[ProcessGroupFigures, ...]:
    """The figures of the process groups whose collectives were compared, in order of their ranks."""
    groups = [group for group in state.group_arrivals.groups.values() if group.first is not None]
    shown = [_group_figures(group, state.world) for group in groups]
    if len(shown) > MOST_SHOWN:
        shown = sorted(shown, key=lambda figures: -(figures.lateness_ms or 0.0))[:MOST_SHOWN]
    return tuple(sorted(shown, key=lambda figures: (figures.ranks, figures.name)))


def _group_figures(group: GroupCollectives, world: int) -> ProcessGroupFigures:
    window, scope = group.window, group.scope
    slots = window.newest(KEPT_STEPS)
    skew_ms = number_or_none(median(window.group.of("skew", slots)))
    bound_ms = number_or_none(np.fmax.reduce(window.bound_ms(slots)))
    last: int | None = None
    last_pct: float | None = None
    lateness_ms: float | None = None
    of_ranks: tuple[float, ...] = ()
    if not window.clock_free:
        lateness = np.asarray(median(window.ranks.of("lateness", slots)), np.float64)
        of_ranks = tuple(np.nan_to_num(lateness).tolist())
        lasts = window.group.of("last", slots)
        counts = np.bincount(lasts[lasts >= 0].astype(np.int64), minlength=len(scope.ranks))
        if counts.any():
            place = int(counts.argmax())
            last, last_pct = scope.ranks[place], 100 * float(counts[place]) / len(slots)
            lateness_ms = of_ranks[place]
    per_step = sum(group.kinds.values()) / group.n_paired_steps
    sizes = [kind.bytes * count for kind, count in group.kinds.items()]
    return ProcessGroupFigures(
        name=scope.group,
        description=group.description,
        backend=group.backend,
        size=len(scope.ranks),
        ranks=() if len(scope.ranks) == world else scope.ranks,
        collectives=group.seen,
        seen_pct=group.seen_pct,
        steps=len(slots),
        per_step=per_step,
        step_bytes=sum(sizes) / group.n_paired_steps if sizes and all(sizes) else None,
        operations=_describe_operations(group),
        skew_ms=skew_ms,
        bound_ms=bound_ms,
        last_arriver=last,
        last_arriver_pct=last_pct,
        lateness_ms=lateness_ms,
        rank_lateness_ms=of_ranks,
        on_host="nccl" in group.backend,
    )


def _describe_operations(group: GroupCollectives) -> str:
    """`9 all_gather, 4.5 reduce_scatter`: of a step."""
    by_name: dict[str, int] = {}
    for kind, count in group.kinds.items():
        name = kind.name.strip("_")
        by_name[name] = by_name.get(name, 0) + count
    frequent = sorted(by_name.items(), key=lambda named: -named[1])[:MOST_OPERATIONS]
    return ", ".join(f"{round(count / group.n_paired_steps, 1):g} {name}" for name, count in frequent)
