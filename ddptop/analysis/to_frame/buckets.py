"""A frame's buckets: medians over their recent detailed steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.medians import known
from ddptop.frames.frame import BucketFigures

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.detail_window import ScopeWindow
    from ddptop.analysis.steps.medians import DetailMedians
    from ddptop.frames.columns import Column
    from ddptop.protocol.messages import Bucket

TIMES = ("collective", "wait", "transfer", "skew")
FREE = ("wait", "transfer")
"""Of these the clock-free fallback is kept too."""


def bucket_figures(state: RunState, detail: DetailMedians) -> tuple[BucketFigures, ...]:
    """Of the layouts that have detail, one process group after the other; before any has, the sizes of the
    layout told, without figures."""
    window = detail.window
    if window is not None and len(detail.slots):
        return tuple(bucket for scope in window.scopes.values() for bucket in _of_scope(state, detail, scope))
    sessions = ((rank, state.session_of(member)) for rank, member in enumerate(state.ranks))
    found = next(((rank, s) for rank, s in sessions if s is not None and s.generation >= 0), None)
    if found is None:
        return ()
    rank, session = found
    buckets = state.layouts.buckets(session.layouts.get(session.generation, -1)) or ()
    groups = {bucket.model: state.groups.of(rank, bucket.model) for bucket in buckets}
    names = {model: told.group if told is not None else "" for model, told in groups.items()}
    return tuple(_unmeasured(bucket, session.generation, names[bucket.model]) for bucket in buckets)


def _of_scope(state: RunState, detail: DetailMedians, window: ScopeWindow) -> Iterator[BucketFigures]:
    """The buckets of one process group."""
    slots = window.told(detail.slots)
    if not len(slots):
        return
    names = {name: f"free_{name}" if window.clock_free and name in FREE else name for name in TIMES}
    medians = window.bucket.medians((*names.values(), "spread"), slots)
    bound = known(np.fmax.reduce(window.bound_ms(slots)))
    last = window.bucket.of("last", slots)
    for i, bucket in enumerate(window.buckets):
        times = {name: known(medians[column][i]) for name, column in names.items()}
        found = _measured(bucket, _generation(state, window), times, window, last[i])
        spread = known(medians["spread"][i])
        of_transfer = None
        if bound is not None and spread is not None and not window.clock_free:
            of_transfer = bound + spread
        yield replace(found, bound_ms=bound, transfer_bound_ms=of_transfer)


def _generation(state: RunState, window: ScopeWindow) -> int:
    """The number that the group's first rank gave the layout; where it tells several apart, its newest."""
    session = state.session_of(state.ranks[window.scope.ranks[0]])
    if session is None:
        return 0
    same = (number for number, layout in session.layouts.items() if layout == window.layout)
    return max(same, default=session.generation)


def _unmeasured(bucket: Bucket, generation: int, group: str) -> BucketFigures:
    return BucketFigures(
        index=bucket.index,
        generation=generation,
        model=bucket.model,
        bytes=bucket.wire_bytes,
        parameters=bucket.parameters,
        dtype=bucket.dtype,
        hook=bucket.hook,
        collective_ms=None,
        wait_ms=None,
        transfer_ms=None,
        algbw_gbps=None,
        busbw_gbps=None,
        effective_busbw_gbps=None,
        skew_ms=None,
        last_arriver=None,
        last_arriver_pct=None,
        group=group,
    )


def _measured(
    bucket: Bucket, generation: int, times: dict[str, float | None], window: ScopeWindow, last: Column
) -> BucketFigures:
    """With the medians of its times and, step by step, who came last."""
    if window.clock_free:  # the clocks cannot tell
        times, last = {**times, "skew": None}, last[:0]
    factor = window.factor
    algbw = _bandwidth(bucket.wire_bytes, times["transfer"])
    effective = _bandwidth(bucket.wire_bytes, times["collective"])
    arriver, share = _usual(last)
    if arriver is not None:
        arriver = window.scope.ranks[arriver]
    return replace(
        _unmeasured(bucket, generation, window.scope.group),
        collective_ms=times["collective"],
        wait_ms=times["wait"],
        transfer_ms=times["transfer"],
        skew_ms=times["skew"],
        algbw_gbps=algbw,
        busbw_gbps=None if algbw is None else algbw * factor,
        effective_busbw_gbps=None if effective is None else effective * factor,
        last_arriver=arriver,
        last_arriver_pct=share,
    )


def _bandwidth(size: int | None, time_ms: float | None) -> float | None:
    if size is None or time_ms is None:
        return None
    return known(formulas.bandwidth_gbps(float(size), np.float64(time_ms)))


def _usual(last: Column) -> tuple[int | None, float | None]:
    """The rank that comes last most often, and in how many percent of the steps."""
    last = last[~np.isnan(last)]
    told = last[last >= 0].astype(np.int64)
    if not len(told):
        return None, None
    counts = np.bincount(told)
    return int(counts.argmax()), 100.0 * float(counts.max()) / len(last)
