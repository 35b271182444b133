"""A frame's buckets: medians over their recent detailed steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import metrics
from ddptop.analysis.frames import BucketFigures
from ddptop.analysis.medians import known

if TYPE_CHECKING:
    from ddptop.analysis.frames import Column
    from ddptop.analysis.medians import DetailMedians
    from ddptop.analysis.reducer import Reducer
    from ddptop.protocol.messages import Bucket


TIMES = ("collective", "wait", "transfer", "skew")


def bucket_figures(reducer: Reducer, detail: DetailMedians) -> tuple[BucketFigures, ...]:
    """Of the layout that has detail; before any has, the sizes of the layout told, without figures."""
    window = detail.window
    sessions = (reducer.session_of(member) for member in reducer.members)
    told = next((s for s in sessions if s is not None and s.generation >= 0), None)
    if window is None or not len(detail.slots):
        if told is None:
            return ()
        buckets = reducer.layouts.buckets(told.layouts.get(told.generation, -1)) or ()
        return tuple(_unmeasured(bucket, told.generation) for bucket in buckets)
    generation = 0
    if told is not None:
        same = (number for number, layout in told.layouts.items() if layout == window.layout)
        generation = max(same, default=told.generation)
    medians = window.bucket.medians(TIMES, detail.slots)
    last = window.bucket.of("last", detail.slots)
    return tuple(
        _measured(bucket, generation, {name: known(medians[name][i]) for name in TIMES}, last[i], reducer)
        for i, bucket in enumerate(reducer.layouts.buckets(window.layout) or window.buckets)
    )


def _unmeasured(bucket: Bucket, generation: int) -> BucketFigures:
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
    )


def _measured(
    bucket: Bucket, generation: int, times: dict[str, float | None], last: Column, reducer: Reducer
) -> BucketFigures:
    factor = metrics.bus_factor(reducer.figures.world)
    algbw = _bandwidth(bucket.wire_bytes, times["transfer"])
    effective = _bandwidth(bucket.wire_bytes, times["collective"])
    arriver, share = _usual(last)
    return replace(
        _unmeasured(bucket, generation),
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
    return known(metrics.bandwidth_gbps(float(size), np.float64(time_ms)))


def _usual(last: Column) -> tuple[int | None, float | None]:
    """The rank that comes last most often, and in how many percent of the steps."""
    last = last[~np.isnan(last)]
    told = last[last >= 0].astype(np.int64)
    if not len(told):
        return None, None
    counts = np.bincount(told)
    return int(counts.argmax()), 100.0 * float(counts.max()) / len(last)
