"""The table of gradient buckets: its texts, and the columns of them on the screen and in `--once`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.buckets import launches_of, times_a_step
from ddptop.frames.numbers import RATIO, UNKNOWN, count, fixed, known, percent, size
from ddptop.render import table

if TYPE_CHECKING:
    from ddptop.frames.frame import BucketFigures
    from ddptop.render.context import RenderContext

BOUND = "±"
"""Title of a column that bounds the error of the one before it."""


@dataclass(frozen=True, slots=True)
class _Spec:
    """A column: which text of a bucket, under which title."""

    text: str
    """A key of `bucket_texts`."""
    title: str
    keep: int
    """Where the width does not suffice, columns of the smallest number are left out first."""
    right: bool = True
    most: int | None = None
    """Cells that it takes at most."""
    empty: str = UNKNOWN


SCREEN = (
    _Spec("model", "model", 97),
    _Spec("group", "group", 96, right=False, most=40),
    _Spec("index", "bkt", 99),
    _Spec("size", "size", 98),
    _Spec("launches", "a step", 93),
    _Spec("params", "params", 70),
    _Spec("dtype", "dtype", 65, right=False, most=9),
    _Spec("hook", "hook", 60, right=False, most=14, empty="none"),
    _Spec("collective", "coll", 49),
    _Spec("wait", "wait", 95),
    _Spec("transfer", "transfer", 94),
    _Spec("transfer_bound", BOUND, 45),
    _Spec("busbw", "busbw", 90),
    _Spec("best", "best%", 72),
    _Spec("effective", "eff", 80),
    _Spec("skew", "skew", 50),
    _Spec("bound", BOUND, 46),
    _Spec("last", "last", 75, right=False),
)

PLAIN = (
    _Spec("model", "model", 98),
    _Spec("group", "group", 96, right=False),
    _Spec("index", "bucket", 99),
    _Spec("size", "size", 97),
    _Spec("launches", "a step", 88),
    _Spec("dtype", "dtype", 20, right=False),
    _Spec("hook", "hook", 10, right=False),
    _Spec("collective", "collective ms", 50),
    _Spec("wait", "wait ms", 90),
    _Spec("transfer", "transfer ms", 89),
    _Spec("transfer_bound", BOUND, 36),
    _Spec("busbw", "busbw GB/s", 80),
    _Spec("skew", "skew ms", 40),
    _Spec("bound", BOUND, 38),
    _Spec("last_in_words", "comes last", 70, right=False),
)


def bucket_columns(
    context: RenderContext, *, plain: bool = False, most: int | None = None
) -> list[table.TableColumn]:
    """The columns on the screen, or with `plain` those of `--once`, of the first `most` buckets (None: all).

    Model and group are left out where all buckets have the same one, bounds where none is known, and how
    often a bucket is reduced in a step where that is once.
    """
    buckets, texts = context.frame.buckets, bucket_texts(context)
    once = set() if max(map(launches_of, buckets), default=1.0) > 1 else {"launches"}
    alike = once | {name for name in ("model", "group") if len({getattr(b, name) for b in buckets}) == 1}
    rows = buckets[:most]
    columns = {
        spec: [texts[spec.text](bucket) or spec.empty for bucket in rows]
        for spec in (PLAIN if plain else SCREEN)
        if spec.text not in alike
    }
    bounds = {spec: any(text != UNKNOWN for text in columns[spec]) for spec in columns if spec.title == BOUND}
    if not plain and any(bounds.values()):
        bounds = dict.fromkeys(bounds, True)
    return [
        table.measured(spec.title, column, spec.keep, right=spec.right, most=spec.most)
        for spec, column in columns.items()
        if bounds.get(spec, True)
    ]


def bucket_texts(context: RenderContext) -> dict[str, Callable[[BucketFigures], str]]:
    """The texts of the cells; empty or a dash where not known. `~`: of the clock-free fallback."""
    free = context.frame.group.clock_free
    sign = "~" if free else ""
    shares = dict(zip(map(id, context.frame.buckets), shares_of_best(context), strict=True))
    return {
        "model": lambda b: str(b.model),
        "group": lambda b: context.clean(b.group),
        "index": lambda b: str(b.index),
        "size": lambda b: size(b.bytes),
        "launches": lambda b: times_a_step(b.launches),
        "params": lambda b: count(b.parameters),
        "dtype": lambda b: context.clean(b.dtype),
        "hook": lambda b: context.clean(b.hook),
        "collective": lambda b: fixed(b.collective_ms, RATIO),
        "wait": lambda b: with_sign(sign, b.wait_ms),
        "transfer": lambda b: with_sign(sign, b.transfer_ms),
        "transfer_bound": lambda b: with_sign("±", b.transfer_bound_ms),
        "busbw": lambda b: fixed(b.busbw_gbps, RATIO),
        "best": lambda b: fixed(shares[id(b)], 0),
        "effective": lambda b: fixed(b.effective_busbw_gbps, RATIO),
        "skew": lambda b: fixed(None if free else b.skew_ms, RATIO),
        "bound": lambda b: with_sign("±", b.bound_ms),
        "last": lambda b: UNKNOWN if free else _last(b, "r", " "),
        "last_in_words": lambda b: UNKNOWN if free else _last(b, "rank ", " in "),
    }


def shares_of_best(context: RenderContext) -> list[float]:
    """Every bucket's busbw in % of the highest of any bucket now and of any step kept; NaN: not known."""
    frame = context.frame
    speeds = np.array([np.nan if b.busbw_gbps is None else b.busbw_gbps for b in frame.buckets])
    measured = np.concatenate([speeds, frame.history.busbw_gbps])
    measured = measured[np.isfinite(measured) & (measured > 0)]
    return [float(share) for share in speeds / (measured.max() if len(measured) else np.nan) * 100]


def with_sign(sign: str, value: float | None) -> str:
    """Milliseconds with a sign in front where they are known."""
    return f"{sign}{fixed(value, RATIO)}" if known(value) else UNKNOWN


def _last(bucket: BucketFigures, before: str, between: str) -> str:
    """The rank that arrives last most often, and in how many of the steps."""
    if bucket.last_arriver is None:
        return UNKNOWN
    share = f"{between}{percent(bucket.last_arriver_pct)}" if known(bucket.last_arriver_pct) else ""
    return f"{before}{bucket.last_arriver}{share}"
