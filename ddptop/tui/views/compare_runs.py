"""Two recordings side by side, at the same step: figures, differences, buckets, and both their curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.line import Line, Role, beside, gather, rule
from ddptop.tui.paint.numbers import UNKNOWN, clock, count, fixed, known, loss, signed
from ddptop.tui.paint.text import fit
from ddptop.tui.scene import Scene
from ddptop.tui.views.plot import Curve, chart

if TYPE_CHECKING:
    from ddptop.analysis.frames import BucketFigures, Column, Frame, History

WIDE, NARROW = (18, 11, 9), (15, 9, 8)
"""Cells of a figure's name, of a value, and of a percentage."""

LEAST_CHART = 5

FIGURES = (
    ("step ms", "step_ms_p50", 1, False), ("  p95", "step_ms_p95", 1, False),
    ("steps/s", "steps_per_s", 2, True), ("loss", "loss_mean", 4, False),
    ("collectives ms", "collective_ms", 1, False),
    ("exposed ms", "exposed_comm_ms", 1, False), ("overlap %", "overlap_pct", 1, True),
    ("busbw GB/s", "busbw_gbps", 2, True), ("no straggler ms", "no_straggler_ms", 1, False),
)  # fmt: skip
"""Name, field of `Group`, decimals, whether more is better."""

BEYOND = 10.0
"""A multiple that tells nothing: what is divided by is almost nothing."""

SAME = 0.01
"""A difference below this share is none worth a colour."""


def compare_runs_page(scene: Scene, width: int, height: int) -> list[Line]:
    """Complete in any size: figures first, then the curves, then the buckets as far as there is room."""
    first, second = scene.frame, scene.other
    if second is None:
        return [Line("waiting for the second recording (ddptop replay A --compare B)", "dim")]
    lines = [_head(scene, "A", first, width), _head(scene, "B", second, width), rule(width)]
    table = _figures(first, second, width)
    room = height - len(lines)
    lines += table[:room]
    room -= min(room, len(table))
    buckets = _buckets(first, second, width)
    charted = max(0, min(16, room - min(len(buckets), max(0, room - LEAST_CHART - 1)) - 1))
    if charted >= LEAST_CHART:
        lines += [rule(width), *_charts(scene, first.history, second.history, width, charted)]
        room -= charted + 1
    if room > 2 and len(buckets) > 1:
        lines += buckets[:room]
    return lines[:height]


def _head(scene: Scene, letter: str, frame: Frame, width: int) -> Line:
    played = frame.playback
    parts = [
        Line(f"{letter} ", "accent").add(scene.clean(frame.run.name) or UNKNOWN, "strong"),
        Line("step ", "dim").add(count(frame.group.step), "strong"),
        Line(f"/ {count(played.last_step)}" if played is not None else "", "dim"),
        Line(clock(frame.unix_s), "dim"),
        Line(f"{count(frame.run.world_size)} ranks", "dim"),
        Line(_straggler(frame), "warn" if frame.straggler is not None else "dim"),
        Line(f"{count(frame.lost_records)} lost" if frame.lost_records else "", "warn"),
        Line(scene.clean(frame.run.script), "dim"),
    ]
    return gather(parts, width)


def _straggler(frame: Frame) -> str:
    late = frame.straggler
    return "even" if late is None else f"▲ rank {late.rank} {fixed(late.lateness_ms)} ms late"


def _figures(first: Frame, second: Frame, width: int) -> list[Line]:
    room = WIDE if width >= WIDE[0] + 3 * WIDE[1] + WIDE[2] else NARROW
    named, value, percent = room
    head = Line(" " * named)
    for letter in "AB":
        head.add(fit(letter, value, right=True), "accent")
    lines = [
        head.add(fit("B - A", value, right=True), "dim").add(fit("%", percent, right=True), "dim").cut(width)
    ]
    for name, field, digits, more in FIGURES:
        a, b = getattr(first.group, field), getattr(second.group, field)
        texts = [loss(one) if field == "loss_mean" else fixed(one, digits) for one in (a, b)]
        line = Line(fit(name, named), "dim").add(fit(texts[0], value, right=True))
        line.add(fit(texts[1], value, right=True), "strong")
        difference, share, role = _difference(a, b, digits, more)
        line.add(fit(difference, value, right=True), role).add(fit(share, percent, right=True), role)
        lines.append(line.cut(width))
    return lines


def _difference(a: float | None, b: float | None, digits: int, more: bool) -> tuple[str, str, Role]:
    """What B has more than A, the same in %; worse is amber, better green, nearly the same has no colour."""
    if a is None or b is None or not known(a) or not known(b):
        return UNKNOWN, UNKNOWN, "dim"
    share = (b - a) / abs(a) if a else 0.0
    role: Role = "dim" if abs(share) < SAME else "good" if (share > 0) == more else "warn"
    percent = signed(100 * share) if abs(share) < BEYOND else UNKNOWN
    return signed(b - a, digits), percent, role


def _buckets(first: Frame, second: Frame, width: int) -> list[Line]:
    """Both layouts by index; a bucket that only one of them has stands with dashes."""
    a, b = ({one.index: one for one in frame.buckets if one.model == 0} for frame in (first, second))
    columns = ("wait A", "wait B", "move A", "move B", "busbw A", "busbw B")
    head = (
        Line(fit("bucket", 8), "dim")
        .add(fit("MB A", 9, right=True), "dim")
        .add(fit("MB B", 9, right=True), "dim")
    )
    for column in columns:
        head.add(fit(column, 9, right=True), "dim")
    lines = [head.cut(width)]
    for index in sorted({*a, *b}):
        pair = (a.get(index), b.get(index))
        line = Line(fit(str(index), 8), "strong")
        for texts in (_megabytes, _wait, _move, _busbw):
            for one in pair:
                line.add(fit(UNKNOWN if one is None else texts(one), 9, right=True))
        lines.append(line.cut(width))
    return lines


def _megabytes(bucket: BucketFigures) -> str:
    return fixed(None if bucket.bytes is None else bucket.bytes / 1e6)


def _wait(bucket: BucketFigures) -> str:
    return fixed(bucket.wait_ms, 2)


def _move(bucket: BucketFigures) -> str:
    return fixed(bucket.transfer_ms, 2)


def _busbw(bucket: BucketFigures) -> str:
    return fixed(bucket.busbw_gbps, 2)


def _charts(scene: Scene, a: History, b: History, width: int, height: int) -> list[Line]:
    """Both runs over the same steps: A drawn, B faintly behind it."""
    both = [
        _curve("loss", _last_life(a), _last_life(b), "loss_mean", zero=False),
        _curve("step ms", _last_life(a), _last_life(b), "step_ms", zero=True),
    ]
    half = (width + 1) // 2
    left, right = (chart(curve, half - 1, height, scene.ascii_only) for curve in both)
    return beside(left, right, half)


def _curve(name: str, a: tuple[History, slice], b: tuple[History, slice], field: str, *, zero: bool) -> Curve:
    (first, mine), (second, theirs) = a, b
    title = [Line(f"{name} by step", "dim"), Line("━ A", "accent"), Line("┄ B", "faint")]
    return Curve(
        title, first.step[mine], getattr(first, field)[mine], "accent", zero=zero,
        behind=getattr(second, field)[theirs], behind_x=second.step[theirs],
    )  # fmt: skip


def _last_life(history: History) -> tuple[History, slice]:
    """From the last restart on: there the step number rises."""
    falls: Column = np.flatnonzero(np.diff(history.step) < 0)
    return history, slice(int(falls[-1]) + 1 if len(falls) else 0, len(history.step))
