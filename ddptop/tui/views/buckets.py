"""The gradient buckets: what is sent, how long it takes, at which bandwidth, and who comes last."""

from __future__ import annotations

import math

import numpy as np

from ddptop.frames.frame import BucketFigures
from ddptop.render import table
from ddptop.render.line import Line, rule
from ddptop.render.numbers import UNKNOWN, count, counted, fixed, known, size
from ddptop.render.text import cells, wrap
from ddptop.tui.scene import Scene

BOUND = "±"
"""Title of a column that says how far the one before it may be wrong."""

LEAST_BAR, MOST_BAR = 16, 40
"""Cells beside the table from which a bar is worth drawing, and more than which none needs."""

_LEGEND = (
    "coll = wait for the slowest rank + transfer, median ms, hidden by compute or not",
    "busbw: GB/s (transfer only) · best%: of best seen · eff: incl. wait · last rank",
)

_CLOCK_FREE = "~ clock-free: the shortest collective of all ranks is transfer, the rest wait"


def buckets(scene: Scene, width: int, height: int) -> list[Line]:
    """A row per bucket; a legend where there is room."""
    figures = scene.frame.buckets
    lines = [rule(width, _tally(scene, width))]
    if not figures:
        return [*lines, Line(), *(Line("  ").add(text, "dim") for text in wrap(_nothing(scene), width - 4))]
    columns = table.fitting(_columns(scene), width - 1)
    gap = 2 if table.total(columns, 2) < width else 1
    first = _CLOCK_FREE if scene.frame.group.clock_free else _LEGEND[0]
    texts = (_sum_over_buckets(scene), first, _LEGEND[1])
    legend = [Line(part, "faint") for text in texts for part in wrap(text, width)] if height > 9 else []
    lines.append(Line(" ").extend(table.head(columns, gap)))
    room = height - len(lines) - len(legend)
    scroll, shares = scene.place.scroll, _shares_of_best(scene)
    for at in scroll.window(len(figures), room):
        chosen = at == scroll.cursor
        line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
        line.extend(table.body(columns, at, gap))
        if width - line.width >= LEAST_BAR and known(shares[at]):
            bar = min(MOST_BAR, width - line.width - 3)
            line.add("  ┃", "rule").add("█" * round(shares[at] / 100 * bar), "moving")
        line.target = at
        lines.append(line)
    lines += [Line()] * (height - len(lines) - len(legend))
    return lines + legend


def _tally(scene: Scene, width: int) -> str:
    figures = scene.frame.buckets
    words = [counted(len(figures), "bucket")]
    told = [bucket.bytes for bucket in figures if bucket.bytes is not None]
    if told and len(told) == len(figures):
        words.append(f"{size(sum(told))} per step on the wire")
    if figures:
        words.append(f"layout {figures[0].generation}")
    every = scene.frame.overhead.detail_every
    if every is not None and every > 1:
        words.append(f"timed every {every:,} steps")
    while len(words) > 1 and cells(" · ".join(words)) + 5 > width:
        words.pop()
    return " · ".join(words)


def _sum_over_buckets(scene: Scene) -> str:
    """All-reduces overlap each other and compute: their sum is no part of the step."""
    figures, sign = scene.frame.buckets, "~" if scene.frame.group.clock_free else ""
    wait, transfer = (
        float(sum(math.nan if ms is None else ms for ms in column))
        for column in ([b.wait_ms for b in figures], [b.transfer_ms for b in figures])
    )
    return (
        f"sum over buckets: wait {_signed(sign, wait)} + transfer {_signed(sign, transfer)} ms (they overlap)"
    )


def _nothing(scene: Scene) -> str:
    if scene.frame.group.step is None:
        return "No step is complete yet: the times of the buckets come with the first steps."
    return "No rank has reported a bucket layout so far: nothing of this run's all-reduces can be told."


def _columns(scene: Scene) -> list[table.Column]:
    figures = scene.frame.buckets
    several, grouped = (len({getattr(b, name) for b in figures}) > 1 for name in ("model", "group"))
    free = scene.frame.group.clock_free
    sign = "~" if free else ""

    def texts(cell: object) -> list[str]:
        return [cell(bucket) for bucket in figures]  # type: ignore[operator]  # a function of one bucket

    named = [table.measured("model", texts(lambda b: str(b.model)), 97)] if several else []
    if grouped:
        named.append(
            table.measured("group", texts(lambda b: scene.clean(b.group) or UNKNOWN), 96, right=False)
        )
    shares = _shares_of_best(scene)
    columns = [
        *named,
        table.measured("bkt", texts(lambda b: str(b.index)), 99),
        table.measured("bytes", texts(lambda b: size(b.bytes)), 98),
        table.measured("params", texts(lambda b: count(b.parameters)), 70),
        table.measured("dtype", texts(lambda b: scene.clean(b.dtype) or UNKNOWN), 65, right=False, most=9),
        table.measured("hook", texts(lambda b: scene.clean(b.hook) or "none"), 60, right=False, most=14),
        table.measured("coll", texts(lambda b: fixed(b.collective_ms, 2)), 49),
        table.measured("wait", texts(lambda b: _signed(sign, b.wait_ms)), 95),
        table.measured("transfer", texts(lambda b: _signed(sign, b.transfer_ms)), 94),
        table.measured(BOUND, texts(lambda b: _bound(b.transfer_bound_ms)), 45),
        table.measured("busbw", texts(lambda b: fixed(b.busbw_gbps, 2)), 90),
        table.measured("best%", [fixed(share, 0) for share in shares], 72),
        table.measured("eff", texts(lambda b: fixed(b.effective_busbw_gbps, 2)), 80),
        table.measured("skew", texts(lambda b: fixed(None if free else b.skew_ms, 2)), 50),
        table.measured(BOUND, texts(lambda b: _bound(b.bound_ms)), 46),
        table.measured("last", texts(lambda b: UNKNOWN if free else _last(b)), 75, right=False),
    ]
    told = any(known(b.bound_ms) or known(b.transfer_bound_ms) for b in figures)
    return [column for column in columns if told or column.title != BOUND]


def _shares_of_best(scene: Scene) -> list[float]:
    """Every bucket's busbw in % of the best of any bucket now and of any step kept; NaN: not known."""
    speeds = np.array([np.nan if b.busbw_gbps is None else b.busbw_gbps for b in scene.frame.buckets])
    seen = np.concatenate([speeds, scene.frame.history.busbw_gbps])
    seen = seen[np.isfinite(seen) & (seen > 0)]
    return [float(share) for share in speeds / (seen.max() if len(seen) else np.nan) * 100]


def _signed(sign: str, value: float | None) -> str:
    return f"{sign}{fixed(value, 2)}" if known(value) else UNKNOWN


def _bound(value: float | None) -> str:
    return f"±{fixed(value, 2)}" if known(value) else UNKNOWN


def _last(bucket: BucketFigures) -> str:
    if bucket.last_arriver is None:
        return UNKNOWN
    share = f" {bucket.last_arriver_pct:.0f}%" if known(bucket.last_arriver_pct) else ""
    return f"r{bucket.last_arriver}{share}"
