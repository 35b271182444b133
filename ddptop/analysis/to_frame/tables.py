"""The tables of a frame: ranks, the single steps of one rank, buckets, GPUs, logged values, heat maps."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.analysis.rank_columns import phase_names, reported_columns, usage_beside
from ddptop.analysis.ranks import MAX_LOGGED
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import DetailMedians, number_or_none
from ddptop.analysis.steps.own_times import FIGURE_OF_PART, PHASES
from ddptop.analysis.steps.windows import STEP_COLUMNS
from ddptop.frames.columns import fold, folds
from ddptop.frames.detail import Heat
from ddptop.frames.figures import Ranks, figures_shown
from ddptop.frames.frame import BucketFigures, GpuFacts, LoggedScalar
from ddptop.frames.history import RankSteps
from ddptop.frames.hosts import presumed_hosts
from ddptop.frames.phrases import blamed
from ddptop.frames.reasons import cpu_reason, process_reason
from ddptop.protocol.machine import Gpu, GpuReading, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.windows import ScopeWindow, StepWindow
    from ddptop.analysis.straggler.cost import FrameSteps
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.detail import HeatRequest
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.messages import Bucket
    from ddptop.protocol.vocabulary import RankStatus


OWN_FIGURES = {part: figure for part, figure in FIGURE_OF_PART.items() if figure in Ranks.__slots__}
"""By the name of own times and their parts, the field of `Ranks`."""


def make_ranks(state: RunState, states: Sequence[RankStatus], shown: FrameSteps, now_ns: int) -> Ranks:
    """The columns of all ranks.

    A rank may be in several process groups. Collective, wait, transfer and exposed communication are then
    unions over all of them; lateness and its bound are the largest of any group.
    """
    hellos = state.presence.hellos
    steps, slots, detail = state.figures.steps, shown.steps, shown.detail
    walls = steps.ranks.medians(("step", *PHASES), slots) if len(slots) else {}
    window, unknown, self_ms = state.figures.detail, detail.unknown, detail.ranks("self")
    every = steps.own_medians(slots, walls) if steps.has_own and len(slots) else {}
    exposed, exposed_wait = _exposed_of_ranks(every, detail)

    def narrow(column: Column) -> Column:
        """float32, as it is sent, so that a frame is the same before and after the credit link."""
        return column.astype(np.float32)

    best = unknown if window is None else np.fmin(window.best_self, self_ms)
    individual = np.divide(best, self_ms, out=np.full_like(self_ms, np.nan), where=self_ms > 0)
    if window is None or np.isnan(window.best_self).all():
        individual = unknown
    return Ranks(
        host=presumed_hosts(hellos.host, hellos.local_rank),
        device=hellos.device,
        state=tuple(states),
        phase=phase_names(state.table),
        local_rank=hellos.local_rank,
        pid=hellos.pid,
        incarnation=hellos.incarnation,
        **reported_columns(state.table, hellos, now_ns),
        loss=narrow(state.figures.loss),
        **{f"{name}_ms": narrow(walls.get(name, unknown)) for name in ("step", *PHASES)},
        **{f"{name}_ms": narrow(detail.ranks(name)) for name in ("collective", "wait", "transfer")},
        exposed_comm_ms=narrow(exposed),
        exposed_wait_ms=narrow(exposed_wait),
        lateness_ms=narrow(detail.lateness()),
        bound_ms=narrow(detail.bound),
        transfer_bound_ms=narrow(detail.transfer_bound),
        last_pct=narrow(detail.last_pct()),
        relative_score=narrow(formulas.relative_scores(self_ms)),
        individual_score=narrow(individual),
        **{figure: narrow(every.get(part, unknown)) for part, figure in OWN_FIGURES.items()},
    )


def _exposed_of_ranks(every: dict[str, Column], detail: DetailMedians) -> tuple[Column, Column]:
    """(ranks,) exposed communication and exposed wait: of every step, or where its last gradients are not
    known, of the steps with bucket detail. `every`: from `StepWindow.own_medians`."""
    known_wait = ~np.isnan(every["exposed_wait"]) if every else np.zeros(1, bool)
    if known_wait.all():
        return every["exposed"], every["exposed_wait"]
    sampled = detail.ranks("exposed"), detail.ranks("exposed_wait")
    if not every:
        return sampled
    exposed = np.where(known_wait | np.isnan(sampled[0]), every["exposed"], sampled[0])
    return exposed, np.where(known_wait, every["exposed_wait"], sampled[1])


def rank_steps(state: RunState, detail: DetailMedians, rank: int) -> RankSteps:
    """The steps of one rank in the window; wait and transfer are the exposed ones, from bucket detail where
    the last gradients are not known."""
    steps, window = state.figures.steps, state.figures.detail
    slots = steps.slots()
    points = steps.group.of("point", slots)
    waits: dict[str, Column] = {
        name: np.full(len(slots), np.nan, np.float32) for name in ("wait", "transfer", "lateness")
    }
    if window is not None:
        detail_slots = window.ranks.recent(len(slots))
        detail_points = window.group.of("point", detail_slots)
        _, places, places_of_detail = np.intersect1d(points, detail_points, return_indices=True)
        waited = window.ranks.of(detail.name("exposed_wait"), detail_slots[places_of_detail])[rank]
        waits["wait"][places] = waited
        waits["transfer"][places] = window.ranks.of("exposed", detail_slots[places_of_detail])[rank] - waited
        waits["lateness"][places] = detail.lateness_of(np.array([rank]), detail_slots[places_of_detail])[0]
    exposed, waited = steps.exposed(slots)[rank], steps.exposed_wait(slots)[rank]
    for name, every in (("wait", waited), ("transfer", exposed - waited)):
        waits[name] = np.where(np.isnan(every), waits[name], every)
    waits |= {"own": steps.own(slots)[rank], "excess": steps.excess(slots)[rank]}
    waits = {name: np.asarray(column, np.float32) for name, column in waits.items()}
    return RankSteps(
        rank=rank,
        step=steps.group.of("number", slots),
        loss=steps.ranks.of("loss", slots)[rank],
        **{f"{name}_ms": steps.ranks.of(name, slots)[rank] for name in ("step", *PHASES)},
        **{f"{name}_ms": column for name, column in waits.items()},
        minutes=state.figures.minutes.of(rank),
    )


GPU = tuple(field.name for field in fields(GpuReading))
MEMORY = tuple(field.name for field in fields(Memory) if field.name != "t_ns")


def gpu_facts(state: RunState) -> tuple[GpuFacts, ...]:
    """One for each rank whose GPU or CUDA memory is known."""
    newest = state.table.newest
    ranks = np.flatnonzero(newest[Gpu].is_known | newest[Memory].is_known)
    if not len(ranks):
        return ()
    of_gpu, of_memory = newest[Gpu].sent(ranks), newest[Memory].sent(ranks)
    columns = [of_gpu[name] for name in GPU], [ranks.tolist()], [of_memory[name] for name in MEMORY]
    return tuple(map(GpuFacts, *chain.from_iterable(columns)))


def with_reasons(straggler: Straggler | None, state: RunState) -> Straggler | None:
    """The straggler with the reasons, as far as known: why its GPU is throttled, why it waits."""
    if straggler is None or straggler.rank >= state.world:
        return straggler
    late = state.ranks[straggler.rank]
    if straggler.cause == "cpu":
        straggler = replace(straggler, waits_for=cpu_reason(late.usage))
    elif ranks := blamed(straggler):
        beside = partial(usage_beside, state.table, straggler.rank, ranks)
        straggler = replace(straggler, waits_for=process_reason(late.usage, beside))
    throttle = "" if late.gpu is None else late.gpu.throttle
    return replace(straggler, throttle=throttle) if throttle else straggler


TIMES, FREE = ("collective", "wait", "transfer", "skew"), ("wait", "transfer")
"""`FREE`: times that also have a clock-free fallback."""
_UNMEASURED = dict.fromkeys(
    (
        *(f"{name}_ms" for name in TIMES),
        "algbw_gbps",
        "busbw_gbps",
        "effective_busbw_gbps",
        "last_arriver",
        "last_arriver_pct",
    )
)


def bucket_figures(state: RunState, detail: DetailMedians) -> tuple[BucketFigures, ...]:
    """The buckets of the layouts that have bucket detail, one process group after the other.

    Before any detail: those of the reported layout, without times.
    """
    window = detail.window
    if window is not None and len(detail.slots):
        return tuple(bucket for scope in window.scopes.values() for bucket in _of_scope(state, detail, scope))
    sessions = ((rank, state.session_of(state.ranks[rank])) for rank in range(state.world))
    rank_and_session = next(((rank, s) for rank, s in sessions if s is not None and s.generation >= 0), None)
    if rank_and_session is None:
        return ()
    rank, session = rank_and_session
    buckets = state.layouts.buckets(session.layouts.get(session.generation, -1)) or ()
    groups = {bucket.model: state.groups.of(rank, bucket.model) for bucket in buckets}
    names = {
        model: membership.group if membership is not None else "" for model, membership in groups.items()
    }
    return tuple(_figures(bucket, session.generation, names[bucket.model]) for bucket in buckets)


def _of_scope(state: RunState, detail: DetailMedians, window: ScopeWindow) -> Iterator[BucketFigures]:
    """The buckets of one process group."""
    slots = window.with_detail(detail.slots)
    if not len(slots):
        return
    free, factor, generation = window.clock_free, window.factor, _generation(state, window)
    names = {name: f"free_{name}" if free and name in FREE else name for name in TIMES}
    medians = window.bucket.medians((*names.values(), "spread"), slots)
    bound = number_or_none(np.fmax.reduce(detail.bound_of(window, slots)))
    sizes = np.array([bucket.wire_bytes for bucket in window.buckets], np.float64)
    algbw, effective = (
        formulas.bandwidth_gbps(sizes, medians[names[name]]) for name in ("transfer", "collective")
    )
    last, unknown = window.bucket.of("last", slots), np.full(len(sizes), np.nan)
    if free:  # the clocks are too inaccurate
        last = last[:, :0]
    columns = {
        **{f"{name}_ms": medians[column] for name, column in names.items() if name != "skew" or not free},
        "algbw_gbps": algbw,
        "busbw_gbps": algbw * factor,
        "effective_busbw_gbps": effective * factor,
        # A mean: steps of optimizers in turn have other all-reduces, some buckets none.
        "launches": np.nan_to_num(window.bucket.of("launches", slots)).mean(axis=-1),
        "transfer_bound_ms": unknown if free or bound is None else bound + medians["spread"].astype(float),
    }
    known_of: dict[str, list[Any]] = {name: known_each(column) for name, column in columns.items()}
    for i, bucket in enumerate(window.buckets):
        arriver, share = _usual(last[i])
        yield _figures(
            *(bucket, generation, window.scope.group),
            bound_ms=bound,
            last_arriver=None if arriver is None else window.scope.ranks[arriver],
            last_arriver_pct=share,
            **{name: column[i] for name, column in known_of.items()},
        )


def known_each(values: Column) -> list[float | None]:
    """`number_or_none` of each."""
    return [number if math.isfinite(number) else None for number in values.tolist()]


def _generation(state: RunState, window: ScopeWindow) -> int:
    """The generation of the layout on the group's first rank; if it had several, the newest."""
    session = state.session_of(state.ranks[window.scope.ranks[0]])
    if session is None:
        return 0
    same = (number for number, layout in session.layouts.items() if layout == window.layout)
    return max(same, default=session.generation)


def _figures(bucket: Bucket, generation: int, group: str, **measured: Any) -> BucketFigures:
    """A bucket; what is not `measured` is not known."""
    return BucketFigures(
        index=bucket.index,
        generation=generation,
        model=bucket.model,
        bytes=bucket.wire_bytes,
        parameters=bucket.parameters,
        dtype=bucket.dtype,
        hook=bucket.hook,
        group=group,
        **{**_UNMEASURED, **measured},
    )


def _usual(last: Column) -> tuple[int | None, float | None]:
    """The rank that comes last most often, and in how many percent of the steps."""
    last = last[~np.isnan(last)]
    ranks = last[last >= 0].astype(np.int64)
    if not len(ranks):
        return None, None
    counts = np.bincount(ranks)
    return int(counts.argmax()), 100.0 * float(counts.max()) / len(last)


def logged(state: RunState, focus: int | None) -> tuple[LoggedScalar, ...]:
    """One entry for every name that some rank logged."""
    ranks = [rank for rank, member in enumerate(state.ranks) if member.logged]
    of_ranks = {rank: state.ranks[rank].logged for rank in ranks}
    names = sorted({*chain.from_iterable(of_ranks.values())})[:MAX_LOGGED]
    return tuple(_logged_scalar(name, of_ranks, focus) for name in names)


def _logged_scalar(name: str, of_ranks: Mapping[int, Mapping[str, float]], focus: int | None) -> LoggedScalar:
    values = {rank: logged[name] for rank, logged in of_ranks.items() if name in logged}
    finite = {rank: value for rank, value in values.items() if math.isfinite(value)}
    own_value = finite.get(focus) if focus is not None else None
    if not finite:
        return LoggedScalar(name, len(values), None, None, None, None, None, own_value)
    low, high = min(finite, key=finite.__getitem__), max(finite, key=finite.__getitem__)
    mean = _mean(finite.values())
    return LoggedScalar(name, len(values), mean, finite[low], finite[high], low, high, own_value)


def _mean(values: Collection[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:  # the sum is no float
        import statistics  # takes long to import, and its exact sums take long

        return statistics.mean(values)


def heat(state: RunState, request: HeatRequest) -> Heat | None:
    """The heat map over the newest kept steps, at most `request.columns`; None: no such ranks."""
    world = state.figures.world
    count = min(request.count or world, world - request.first)
    if count <= 0:
        return None
    steps, values = _figure(state, request.figure, request.columns)
    part = values[request.first : request.first + count]
    edges = folds(count, request.rows)
    value, rank = fold(part, edges)
    known_values = part[np.isfinite(part)]
    spread = (
        [float(f(known_values)) for f in (np.min, np.median, np.max)]
        if len(known_values)
        else [None, None, None]
    )
    return Heat(
        figure=request.figure,
        first=request.first,
        count=count,
        rows=tuple((edges + request.first).tolist()),
        steps=tuple(int(step) for step in steps.tolist()),
        low=spread[0],
        middle=spread[1],
        high=spread[2],
        value=value.ravel().astype(np.float32),
        rank=(rank + request.first).ravel().astype(np.float32),
    )


EVERY_STEP: Mapping[str, Callable[[StepWindow, Indices], Column]] = {
    "lost": lambda steps, slots: steps.exposed_wait(slots),
    "transfer": lambda steps, slots: steps.exposed(slots) - steps.exposed_wait(slots),
    "exposed": lambda steps, slots: steps.exposed(slots),
    "own": lambda steps, slots: steps.own(slots),
    "excess": lambda steps, slots: steps.excess(slots),
}
"""By the key of a metric of the heat map, how it follows from own times; unknown in steps whose last gradient
is."""

PART_OF_METRIC = {
    how.key: part
    for figure, how in figures_shown(lambda figure: figure.heat)
    for part, name in FIGURE_OF_PART.items()
    if how.by_step and name == figure.name and how.key not in EVERY_STEP
}
"""By key, the part of own times that a metric of the heat map shows."""


IN_DETAIL = frozenset({"lateness", "lost", "transfer"})
"""Metrics that are computed from the columns of steps with bucket detail; others are one of these columns."""


def _figure(state: RunState, figure: str, columns: int) -> tuple[Column, Column]:
    """(n,) step numbers and (ranks, n) values of the last steps, oldest first."""
    figures = state.figures
    slots = figures.steps.for_maps(columns)
    numbers = figures.steps.group.of("number", slots)
    if figure in STEP_COLUMNS or figure == "loss":
        return numbers, figures.steps.ranks.of(figure, slots)
    if figures.steps.has_own and (figure in EVERY_STEP or figure in PART_OF_METRIC):
        part = PART_OF_METRIC.get(figure)
        every = EVERY_STEP[figure](figures.steps, slots) if part is None else figures.steps.part(part, slots)
        if not np.isnan(every).all():
            return numbers, every
    window = figures.detail
    if window is None or (figure not in IN_DETAIL and figure not in window.ranks.index):
        return numbers, np.full((figures.world, len(slots)), np.nan)
    # Buckets are timed in some steps only: the columns are those steps, of any age.
    slots = window.ranks.recent(columns)
    kept = state.history.since(0)
    points = window.group.of("point", slots).astype(np.int64) - kept.start
    single = points >= kept.early
    slots, numbers = slots[single], kept.step[points[single]]
    detail = DetailMedians(window, slots, figures.world)
    if figure == "lateness":
        return numbers, detail.lateness_of(np.arange(figures.world), slots)
    waited = window.ranks.of(detail.name("exposed_wait"), slots)
    if figure == "lost":
        return numbers, waited
    if figure == "transfer":
        return numbers, window.ranks.of("exposed", slots) - waited
    return numbers, window.ranks.of(figure, slots)
