"""The ranks' columns of a frame, and the single steps of one of them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.window import PHASES
from ddptop.frames.frame import GpuFacts, Ranks, RankSteps
from ddptop.protocol.machine import GpuReading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.medians import DetailMedians
    from ddptop.analysis.straggler.present import Present
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.vocabulary import RankStatus


def rank_columns(state: RunState, states: Sequence[RankStatus], made_of: Present, now_ns: int) -> Ranks:
    """All ranks. Of a rank in several process groups collective, wait, transfer and exposed communication are
    the unions over all of them, lateness and its bound those of the group in which it is largest."""
    members = state.ranks
    steps, slots, detail = state.figures.steps, made_of.steps, made_of.detail
    walls = steps.ranks.medians(("step", *PHASES), slots) if len(slots) else {}
    unknown = detail.unknown
    own = detail.ranks("self")
    window = state.figures.detail

    def each(value: Callable[[RankState], float | None]) -> Column:
        """Exact: counts and ids."""
        return np.array([value(member) for member in members], np.float64)

    def narrow(column: Column) -> Column:
        """float32, as it also travels: a frame is the same before and after the credit link."""
        return column.astype(np.float32)

    best = unknown if window is None else np.fmin(window.best_self, own)
    individual = np.divide(best, own, out=np.full_like(own, np.nan), where=own > 0)
    if window is None or np.isnan(window.best_self).all():
        individual = unknown
    return Ranks(
        host=tuple(m.hello.host if m.hello else "" for m in members),
        device=tuple(m.hello.device if m.hello else "" for m in members),
        state=tuple(states),
        phase=tuple(m.phase for m in members),
        local_rank=each(lambda m: m.hello.local_rank if m.hello else None),
        pid=each(lambda m: m.hello.pid if m.hello else None),
        incarnation=each(lambda m: m.hello.incarnation if m.hello else None),
        age_ms=each(lambda m: max(0, now_ns - m.heard_ns) / 1e6 if m.hello else None),
        step=each(lambda m: m.step if m.hello else None),
        bucket=each(lambda m: m.bucket),
        sequence=each(lambda m: m.sequence),
        loss=narrow(state.figures.loss),
        **{f"{name}_ms": narrow(walls.get(name, unknown)) for name in ("step", *PHASES)},
        **{f"{name}_ms": narrow(detail.ranks(name)) for name in ("collective", "wait", "transfer")},
        exposed_comm_ms=narrow(detail.ranks("exposed")),
        exposed_wait_ms=narrow(detail.ranks("exposed_wait")),
        lateness_ms=narrow(detail.lateness()),
        bound_ms=narrow(detail.bound),
        transfer_bound_ms=narrow(detail.transfer_bound),
        last_pct=narrow(detail.last_pct()),
        relative_score=narrow(formulas.relative_scores(own)),
        individual_score=narrow(individual),
        records=each(lambda m: m.records),
        lost_records=each(lambda m: m.lost_records),
        rss_bytes=each(lambda m: m.rss_bytes),
        cpu_pct=narrow(each(lambda m: m.cpu_pct)),
        joined=narrow(each(lambda m: m.joined if m.hello else None)),
        micro_steps=narrow(each(lambda m: m.micro_steps)),
    )


def rank_steps(state: RunState, detail: DetailMedians, rank: int) -> RankSteps:
    """The steps in the window of one rank; wait and transfer are what of them was not hidden."""
    steps = state.figures.steps
    slots = steps.slots()
    points: Indices = state.history.end - len(slots) + np.arange(len(slots))
    waits: dict[str, Column] = {
        name: np.full(len(slots), np.nan, np.float32) for name in ("wait", "transfer", "lateness")
    }
    window = state.figures.detail
    if window is not None:
        theirs = window.group.recent(len(slots))
        at = window.group.of("point", theirs)
        _, here, there = np.intersect1d(points, at, return_indices=True)
        waited = window.ranks.of(detail.name("exposed_wait"), theirs[there])[rank]
        waits["wait"][here] = waited
        waits["transfer"][here] = window.ranks.of("exposed", theirs[there])[rank] - waited
        waits["lateness"][here] = detail.lateness_of(rank, theirs[there])
    return RankSteps(
        rank=rank,
        step=steps.group.of("number", slots),
        loss=steps.ranks.of("loss", slots)[rank],
        **{f"{name}_ms": steps.ranks.of(name, slots)[rank] for name in ("step", *PHASES)},
        **{f"{name}_ms": column for name, column in waits.items()},
    )


GPU = tuple(field.name for field in fields(GpuReading))


MEMORY = ("allocated_bytes", "reserved_bytes", "peak_bytes", "retries")


def gpu_facts(members: Sequence[RankState]) -> tuple[GpuFacts, ...]:
    """Of every rank that has told something of a GPU."""
    return tuple(
        GpuFacts(
            rank=rank,
            **{name: getattr(member.gpu, name, None) for name in GPU},
            **{name: getattr(member.memory, name, None) for name in MEMORY},
        )
        for rank, member in enumerate(members)
        if member.gpu is not None or member.memory is not None
    )


def with_throttle(straggler: Straggler | None, members: Sequence[RankState]) -> Straggler | None:
    """The straggler with why its GPU is slow, where that is known."""
    if straggler is None or straggler.rank >= len(members):
        return straggler
    gpu = members[straggler.rank].gpu
    return replace(straggler, throttle=gpu.throttle) if gpu is not None and gpu.throttle else straggler
