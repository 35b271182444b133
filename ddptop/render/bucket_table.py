"""The table of gradient buckets: the columns of them on the screen and in `--once`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.buckets import launches_of
from ddptop.frames.figures import BUCKET_FIGURES, figures_shown
from ddptop.frames.numbers import RATIO, UNKNOWN, fixed, known, percent
from ddptop.render import table

if TYPE_CHECKING:
    from ddptop.frames.figures import Figure, FigureColumn
    from ddptop.render.context import RenderContext

SCREEN_COLUMNS = figures_shown(lambda figure: figure.screen, BUCKET_FIGURES)
PLAIN_COLUMNS = figures_shown(lambda figure: figure.plain, BUCKET_FIGURES)

BY_NAME = {figure.name: figure for figure in BUCKET_FIGURES}
BEST, LAST = BY_NAME["best%"], BY_NAME["last_arriver"]
"""Figures that depend on more than the field of a bucket."""

BOUNDS = frozenset(name for name, figure in BY_NAME.items() if figure.title == "±")
"""Figures that bound the error of another."""


def bucket_columns(
    context: RenderContext, *, plain: bool = False, most: int | None = None
) -> list[table.TableColumn]:
    """The columns on the screen, or with `plain` those of `--once`, of the first `most` buckets (None: all).

    Model and group are left out where all buckets have the same one, bounds where none is known, and how
    often a bucket is reduced in a step where that is once.
    """
    buckets = context.frame.buckets
    once = set() if max(map(launches_of, buckets), default=1.0) > 1 else {"launches"}
    alike = once | {name for name in ("model", "group") if len({getattr(b, name) for b in buckets}) == 1}
    shown = {
        figure.name: (figure, column, _column_texts(context, figure, column)[:most])
        for figure, column in (PLAIN_COLUMNS if plain else SCREEN_COLUMNS)
        if figure.name not in alike
    }
    known_bounds = {name for name in BOUNDS if any(text != UNKNOWN for text in shown[name][2])}
    if known_bounds and not plain:
        known_bounds = set(BOUNDS)
    return [
        table.measured_column(
            column.title or figure.title, texts, column.keep, right=not figure.is_text, most=column.most
        )
        for figure, column, texts in shown.values()
        if figure.name not in BOUNDS - known_bounds
    ]


def _column_texts(context: RenderContext, figure: Figure, column: FigureColumn) -> list[str]:
    """The texts of a column; a dash where not known. `~`: of the clock-free fallback."""
    buckets, is_clock_free = context.frame.buckets, context.frame.group.clock_free
    if figure.compares_clocks and is_clock_free:
        return [UNKNOWN] * len(buckets)
    if figure is BEST:
        return [figure.text(share) for share in shares_of_best(context)]
    if figure is LAST:
        plain = column is not figure.screen
        return [
            describe_last(bucket.last_arriver, bucket.last_arriver_pct, plain=plain) for bucket in buckets
        ]
    values = [getattr(bucket, figure.name) for bucket in buckets]
    if figure.is_text:
        return [context.clean(text) or column.empty for text in values]
    sign = "~" if figure.has_fallback and is_clock_free else ""
    return [f"{sign if known(value) else ''}{figure.text(value)}" for value in values]


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


def describe_last(rank: int | None, share_pct: float | None, *, plain: bool) -> str:
    """`r1 93%`, in `--once` `rank 1 in 93%`: the rank that arrives last most often, and in how many steps."""
    if rank is None:
        return UNKNOWN
    before, between = ("rank ", " in ") if plain else ("r", " ")
    return f"{before}{rank}{between}{percent(share_pct)}" if known(share_pct) else f"{before}{rank}"
