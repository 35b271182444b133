"""The timeline of one step, on request: phases of the training threads and all-reduces, on one time axis."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import bucket_times, formulas
from ddptop.analysis.steps.evaluate_buckets import overlap_pct
from ddptop.analysis.steps.kept import HEAD
from ddptop.analysis.steps.medians import number_or_none
from ddptop.frames.detail import Lane, LaneSpan, Reduce, Timeline
from ddptop.frames.statistics import mean, median
from ddptop.protocol.messages import Flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.bucket_times import StepFigures, Timing
    from ddptop.analysis.steps.kept import Packed, PackedPart
    from ddptop.frames.columns import Column
    from ddptop.frames.detail import TimelineRequest
    from ddptop.protocol.vocabulary import SpanName, StepPhase

LEAST_MS = 1e-3
"""A shorter gap between two phases is a rounding error: times are whole microseconds."""


def spans(
    head: Mapping[str, int],
    begin_ms: float,
    ready: Column,
    start: Column,
    arrival: Column,
    end: Column,
    exposed: tuple[float, float] | None = None,
) -> tuple[LaneSpan, ...]:
    """Spans from the begin of a rank's step to its end, without gaps or overlaps.

    `head`: fields of its StepRow; columns: its all-reduces in ms on the same axis as `begin_ms`. With
    gradient accumulation only sums are known: the earlier passes are drawn as one forward and one backward.
    `exposed`: wait and transfer in ms at the end of backward, for a step without bucket detail. None where
    the recorder stood aside.
    """
    if head["flags"] & Flag.SHADOW:
        return ()
    done = begin_ms + head["wall_us"] / 1e3
    lane_spans: list[LaneSpan] = []
    position_ms = begin_ms
    for name, since, until in _phases(head):
        begin, right = (min(max(begin_ms + us / 1e3, position_ms), done) for us in (since, until))
        if begin - position_ms > LEAST_MS:
            lane_spans.append(LaneSpan("other", position_ms, begin))
            position_ms = begin
        if right - position_ms <= 0:
            continue
        if name == "backward" and exposed is not None and since == head["backward_at_us"]:
            lane_spans += _exposed_spans(position_ms, right, *exposed)
        elif name == "backward":
            lane_spans += _backward(position_ms, right, ready, start, arrival, end)
        else:
            lane_spans.append(LaneSpan(name, position_ms, right))
        position_ms = right
    if done - position_ms > LEAST_MS:
        lane_spans.append(LaneSpan("other", position_ms, done))
    return tuple(lane_spans)


def mark_activities(lane_spans: Iterable[LaneSpan], activities: Sequence[LaneSpan]) -> tuple[LaneSpan, ...]:
    """The spans of a lane, with evaluations and saves (in order) in place of other time and of fetching."""
    marked: list[LaneSpan] = []
    for span in lane_spans:
        position_ms = span.begin_ms
        for activity in activities if span.name in ("other", "data") else ():
            begin, end = max(activity.begin_ms, position_ms), min(activity.end_ms, span.end_ms)
            if end - begin <= LEAST_MS:
                continue
            if begin > position_ms:
                marked.append(LaneSpan(span.name, position_ms, begin))
            marked.append(LaneSpan(activity.name, begin, end))
            position_ms = end
        if span.end_ms > position_ms:
            marked.append(LaneSpan(span.name, position_ms, span.end_ms))
    return tuple(marked)


def _phases(head: Mapping[str, int]) -> Iterable[tuple[StepPhase, int, int]]:
    """Name, begin and end of each phase in order of time, in us since the begin of the step."""
    data, forward, backward = head["data_us"], head["forward_us"], head["backward_us"]
    forward_at, backward_at, optimizer_at = (
        head[f"{name}_at_us"] for name in ("forward", "backward", "optimizer")
    )
    yield "data", 0, data
    earlier = 0
    if head["micro_steps"] > 1:
        earlier = min(backward, max(0, backward_at - forward_at - forward))
    yield "forward", forward_at, forward_at + forward
    if earlier:
        yield "backward", forward_at + forward, forward_at + forward + earlier
    if backward_at >= 0:
        yield "backward", backward_at, backward_at + backward - earlier
    if optimizer_at >= 0:
        yield "optimizer", optimizer_at, optimizer_at + head["optimizer_us"]


def _exposed_spans(since: float, until: float, wait: float, transfer: float) -> list[LaneSpan]:
    """Backward that ends with exposed wait and exposed transfer."""
    computed, arrived = max(since, until - wait - transfer), max(since, until - transfer)
    exposed_spans = (
        LaneSpan("backward", since, computed),
        LaneSpan("waiting", computed, arrived),
        LaneSpan("moving", arrived, until),
    )
    return [span for span in exposed_spans if span.end_ms > span.begin_ms]


def _backward(
    since: float, until: float, ready: Column, start: Column, arrival: Column, end: Column
) -> list[LaneSpan]:
    """Backward compute until the last bucket was ready; then exposed wait and exposed transfer."""
    computed = min(max(float(ready.max()), since), until) if len(ready) else until
    lane_spans = [LaneSpan("backward", since, computed)] if computed > since else []
    edges = np.concatenate([start, arrival, end])
    edges = edges[(edges > computed) & (edges < until)]
    for begin, right in itertools.pairwise((computed, *np.unique(edges).tolist(), until)):
        middle = (begin + right) / 2
        if right - begin <= 0:
            continue
        name: SpanName = "backward"
        if ((start <= middle) & (middle < arrival)).any():
            name = "waiting"
        elif ((arrival <= middle) & (middle < end)).any():
            name = "moving"
        if lane_spans and lane_spans[-1].name == name:
            lane_spans[-1] = LaneSpan(name, lane_spans[-1].begin_ms, right)
        else:
            lane_spans.append(LaneSpan(name, begin, right))
    return lane_spans


MOST_LANES = 16
"""Most lanes of one frame: a screen shows no more at once, and a frame stays small."""

MOST_CELLS = 4096
"""Most all-reduces in all lanes of a frame: a step with a thousand of them has few lanes."""

US = 1e3


class _GroupTimes(NamedTuple):
    """The figures of a process group's all-reduces. Microseconds on the ranks' common axis."""

    part: PackedPart
    timing: Timing
    figures: StepFigures
    first: int
    """Index of its first all-reduce among those of all groups."""


def timeline(state: RunState, request: TimelineRequest, straggler: int | None) -> Timeline | None:
    """The requested step, or the newest where that is not kept; None before the first complete step."""
    kept = state.figures.kept
    packed = kept.find(request.step)
    picked = packed is not None and request.step is not None
    if packed is None:
        packed = kept.find(None)
    if packed is None:
        return None
    shift = _shifts(state, packed)
    worked = _evaluate_groups(state, packed, free=shift is None)
    begins = np.zeros(packed.head.shape[1]) if shift is None else shift
    waits = _waits(packed, worked)
    decided = _decided(worked)
    walls = packed.head[HEAD.index("wall_us")] / US
    every = _exposed_parts_ms(packed)
    exposed = number_or_none(float(mean(every.sum(axis=0))))
    if exposed is None and waits is not None:
        exposed = number_or_none(float(mean(waits.exposed[0])))
    overlap = None
    if waits is not None:
        several = packed.head[HEAD.index("micro_steps")] > 1
        bare = np.where(several, every.sum(axis=0), np.nan)[None]
        overlap = number_or_none(float(overlap_pct(waits, bare)[0]))
    last = decided[0] if decided is not None else None
    return Timeline(
        step=packed.step,
        kept=kept.numbers,
        picked=picked,
        detailed=bool(worked),
        clock_free=shift is None,
        micro_steps=int(packed.head[HEAD.index("micro_steps")].max()),
        step_ms=float(median(walls)),
        span_ms=float((begins + walls).max()),
        exposed_ms=exposed,
        overlap_pct=overlap,
        bound_ms=_bound(packed) if shift is not None else None,
        last=last,
        skew_ms=None if decided is None else decided[1],
        kept_every=state.missing.kept_every,
        reduces=tuple(_reduces(worked)),
        lanes=tuple(
            _lanes(
                state, packed, worked, begins, every, _chosen(packed, worked, last, straggler, request.rank)
            )
        ),
    )


def _shifts(state: RunState, packed: Packed) -> Column | None:
    """(ranks,) ms from the first begin of any rank to each rank's; None: the clocks are too inaccurate."""
    window = state.figures.detail
    if window is not None and window.clock_free:
        return None
    hosts = {r.hello.host for r in state.ranks if r.hello is not None}
    if len(hosts) > 1 and not all(how.comparable for _, how in packed.compared):
        return None
    begin_ns = packed.begin_ns.copy()
    shifted: NDArray[np.bool_] = np.zeros(len(begin_ns), bool)
    for scope, how in packed.compared:
        ranks = np.array(scope.ranks)
        fresh = ~shifted[ranks]  # a rank in several groups has one clock, so one offset
        begin_ns[ranks[fresh]] = how.to_collector(packed.begin_ns[ranks])[fresh]
        shifted[ranks] = True
    if len(hosts) > 1 and not shifted.all():
        return None
    return np.asarray((begin_ns - begin_ns.min()) / 1e6)


def _evaluate_groups(state: RunState, packed: Packed, *, free: bool) -> list[_GroupTimes]:
    worked: list[_GroupTimes] = []
    first = 0
    hello = state.ranks[0].hello
    backend = hello.backend if hello is not None else ""
    for part in packed.parts:
        lanes = formulas.lanes_of(part.backend or backend)
        timing = _timing(packed, part, lanes, aligned=not free)
        worked.append(_GroupTimes(part, timing, bucket_times.figures(timing), first))
        first += len(part.numbers)
    return worked


def _timing(packed: Packed, part: PackedPart, lanes: int, *, aligned: bool) -> Timing:
    """`bucket_times.timing` of one packed step."""
    ready = part.ready[:, None, :].astype(np.float64)
    took = part.took[:, None, :].astype(np.float64)
    shift = np.zeros((1, len(part.scope.ranks)))
    if aligned:
        several = part.compared.several_hosts
        begin_ns = packed.begin_ns[None, list(part.scope.ranks)]
        shift, clock_rate = bucket_times.begins_on_one_clock(begin_ns, [part.compared] if several else [])
        ready, took = ready * clock_rate + shift, took * clock_rate
    ready[..., part.joined] = np.nan
    end = np.where(took >= 0, ready + took, np.nan)
    return bucket_times.Timing(part.numbers, ready, end, lanes, aligned, shift)


def _waits(packed: Packed, worked: list[_GroupTimes]) -> bucket_times.Waits | None:
    if not worked:
        return None
    if len(worked) == 1 and len(worked[0].part.scope.ranks) == packed.head.shape[1]:
        return worked[0].figures.waits
    pieces = [(group.part.scope.ranks, group.timing, group.figures.arrivals) for group in worked]
    return bucket_times.waits_of_groups(packed.head.shape[1], pieces)


def _decided(worked: list[_GroupTimes]) -> tuple[int, float] | None:
    """The rank that came last at the all-reduce with the largest skew, and that skew in ms."""
    best: tuple[int, float] | None = None
    for group in worked:
        last, skew = int(group.figures.last[0]), float(group.figures.skew[0])
        if last >= 0 and np.isfinite(skew) and (best is None or skew > best[1]):
            best = (group.part.scope.ranks[last], skew)
    return best


def _bound(packed: Packed) -> float | None:
    bounds = [how.bound_ms(packed.begin_ns[list(scope.ranks)]).max() for scope, how in packed.compared]
    return number_or_none(max(bounds)) if bounds else None


def _reduces(worked: list[_GroupTimes]) -> list[Reduce]:
    reduces = []
    for group in worked:
        for number in group.part.numbers:
            bucket = group.part.buckets[number]
            reduces.append(Reduce(bucket.model, bucket.index, bucket.wire_bytes, group.part.scope.group))
    return reduces


def _chosen(
    packed: Packed, worked: list[_GroupTimes], last: int | None, straggler: int | None, focus: int
) -> list[int]:
    """Ranks that have a lane: all if they are few, else last arriver, straggler and those near the focus."""
    world = packed.head.shape[1]
    launches = max(1, sum(len(group.part.numbers) for group in worked))
    most = min(world, MOST_LANES, max(2, MOST_CELLS // launches))
    if most == world:
        return list(range(world))
    focus = min(focus, world - 1)
    lead = [rank for rank in dict.fromkeys((last, straggler)) if rank is not None and rank < world]
    near = sorted(range(world), key=lambda rank: (abs(rank - focus), rank))
    about: list[int] = []
    for rank in near:
        if len(about) + sum(group not in about for group in lead) >= most:
            break
        about.append(rank)
    return [*(rank for rank in lead if rank not in about), *sorted(about)]


def _exposed_parts_ms(packed: Packed) -> Column:
    """(2, ranks) exposed wait and exposed transfer in ms, from the last gradients; NaN where one of a rank's
    process group is not known."""
    exposed = np.where(packed.exposed_us < 0, np.nan, packed.exposed_us / US)
    counts = packed.head[HEAD.index("flags")] & Flag.JOINED == 0
    exposed[~counts] = np.nan
    transfer = np.full(len(exposed), np.nan)
    for scope, _ in reversed(packed.compared):  # the largest group of a rank, which is first, counts
        members = list(scope.ranks)
        transfer[members] = formulas.transfer_of_step(exposed[members], counts[members])
    return np.stack([exposed - transfer, transfer + 0 * exposed])


def _lanes(
    state: RunState,
    packed: Packed,
    worked: list[_GroupTimes],
    begins: Column,
    exposed: Column,
    ranks: list[int],
) -> list[Lane]:
    lanes = []
    for rank in ranks:
        begin = float(begins[rank])
        rows = [_row(group, rank, begin, packed) for group in worked if rank in group.part.scope.ranks]
        columns = np.concatenate([np.zeros((6, 0)), *(np.stack(row) for row in rows)], axis=1)
        columns = columns[:, np.argsort(columns[1], kind="stable")]
        head = dict(zip(HEAD, packed.head[:, rank].tolist(), strict=True))
        wait, transfer = exposed[:, rank].tolist()
        alone = (wait, transfer) if not rows and np.isfinite(wait) else None
        ready, start, arrival, end = columns[1:5]
        lane_spans = spans(head, begin, ready, start, arrival, end, alone)
        lane_spans = mark_activities(lane_spans, _activities(state, packed, rank, begin, head["wall_us"]))
        lanes.append(Lane(rank, lane_spans, *columns.astype(np.float32)))
    return lanes


_SPANS_OF_ACTIVITIES: Mapping[str, SpanName] = {"evaluate": "evaluation", "save": "saving"}


def _activities(state: RunState, packed: Packed, rank: int, begin_ms: float, wall_us: int) -> list[LaneSpan]:
    """Evaluations and saves of a rank in the step, in ms on the axis on which it begins at `begin_ms`."""
    begin_ns = int(packed.begin_ns[rank])
    return [
        LaneSpan(
            _SPANS_OF_ACTIVITIES[span.kind],
            begin_ms + (span.begin_ns - begin_ns) / 1e6,
            begin_ms + (span.end_ns - begin_ns) / 1e6,
        )
        for span in state.past_activities.of_rank(rank, begin_ns, begin_ns + 1000 * wall_us)
    ]


def _row(group: _GroupTimes, rank: int, begin: float, packed: Packed) -> tuple[Column, ...]:
    """A rank's launches in one group, in ms on the common axis: place, ready, start, arrival, end, last."""
    row_number = group.part.scope.ranks.index(rank)
    # The group counts from the first begin of its own ranks.
    move = begin - float(group.timing.shift[0, row_number]) / US
    arrivals = group.figures.arrivals
    times = group.timing.ready, arrivals.start, arrivals.arrival, group.timing.end
    ready, start, arrival, end = (column[:, 0, row_number] / US + move for column in times)
    is_known = ~np.isnan(ready)
    who = group.figures.bucket_last[0]
    # No rank is marked as last where the skew is within the bound of the clocks.
    bound = group.part.compared.bound_ms(packed.begin_ns[list(group.part.scope.ranks)]).max()
    clear = (who >= 0) & (group.figures.bucket_skew[0] > bound)
    last = np.where(clear, (who == row_number).astype(float), np.nan)
    places: Column = group.first + np.arange(len(ready), dtype=np.float64)
    return tuple(column[is_known] for column in (places, ready, start, arrival, end, last))
