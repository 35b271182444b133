"""The steps around a moment: times and losses in a chart, and the parts of a step before and after it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ddptop.frames.numbers import age, fixed, known
from ddptop.frames.training_kind import times_waiting
from ddptop.render.line import Line
from ddptop.render.phases import PAIR_NAME, PAIR_NUMBER, PARTS, draw_pairs
from ddptop.tui.scene import DrawnCharts
from ddptop.tui.views.charts import find_happened, find_scale_before, share_drawing
from ddptop.tui.views.curve import GUTTER, STACK, Curve, draw_chart, draw_look

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.frames.history import History
    from ddptop.render.line import Piece
    from ddptop.tui.scene import Scene

Series: TypeAlias = Literal["steps", "parts", "losses"]
"""What a chart shows."""

PARTS_OF_STEPS, LOSS_OF_STEPS = "parts of the steps", "loss of the steps"
"""Titles of charts."""

SPANS_S = (10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 10_800.0)
"""How far a chart may reach on either side: a few lengths, so that it seldom changes."""

PARTS_OF_REACH = 2
"""The axis of a calm chart moves by this part of its reach: with each step, whole curves would change."""

NO_PARTS = np.full(len(STACK) + 1, np.nan)

STEPS_AROUND = 100
"""Steps on either side that a chart has at least."""


def reach_s(frame: Frame, at_s: float) -> float:
    """How far a chart around a moment reaches on either side, in seconds: to some steps, if there are any."""
    needed_s, time_s = STEPS_AROUND * (frame.group.step_ms_p50 or 0.0) / 1e3, frame.history.time_s
    nearest_s = float(np.abs(time_s - at_s).min()) if len(time_s) else 0.0
    needed_s = max(needed_s, 2 * nearest_s)
    return next((span_s for span_s in SPANS_S if span_s >= needed_s), SPANS_S[-1])


def second_series(frame: Frame) -> tuple[Series, str]:
    """What a second chart beside the step times shows, and its title: the parts of the steps, where they are
    known."""
    is_known = np.isfinite(frame.history.own_backward_ms[-STEPS_AROUND:]).any()
    return ("parts", PARTS_OF_STEPS) if is_known else ("losses", LOSS_OF_STEPS)


def draw_moment(
    scene: Scene,
    at_s: float | None,
    sign: Piece | None,
    size: tuple[int, int],
    what: Series,
    *,
    is_calm: bool = False,
) -> list[Line]:
    """A chart around a moment, in seconds since the run began, or with None up to the newest step. It is
    drawn again as the charts of the overview are.

    `sign`: marks it; `size`: cells and lines; `is_calm`: few cells change while the run goes on. Its scale
    is kept, its axis moves seldom, and step times have no 95th percentile, which is mostly noise.
    """
    drawn_for = (*share_drawing(scene), at_s, sign, size, what, is_calm)

    def draw() -> DrawnCharts:
        time_s = scene.frame.history.time_s
        newest_s = float(time_s[-1]) if len(time_s) else 0.0
        name = f"{what} around a moment"
        part_s = reach_s(scene.frame, newest_s) / PARTS_OF_REACH if is_calm else 0.0
        curve = _make_curve(scene, newest_s if at_s is None else at_s, sign, what, part_s)
        if is_calm:
            scale, gutter = find_scale_before(scene, name)
            curve = replace(curve, scale_before=scale, gutter=max(GUTTER, gutter), band=False)
        if is_calm and what == "steps":
            curve = replace(curve, title=[Line("step ms mean", "dim"), *curve.title[1:2]])
        chart = draw_chart(curve, *size, scene.ascii_only)
        scales = {} if chart.scale is None else {name: (chart.scale, chart.left - 1)}
        return DrawnCharts(drawn_for, chart.lines, (), scales=scales)

    return scene.place.charts.find_or_draw(drawn_for, draw).lines


def draw_newest(scene: Scene, size: tuple[int, int], what: Series) -> list[Line]:
    """A chart up to the newest step."""
    return draw_moment(scene, None, None, size, what)


def _make_curve(scene: Scene, at_s: float, sign: Piece | None, what: Series, part_s: float) -> Curve:
    """The step times around a moment, in seconds since the run began, or the losses, or the parts of the
    step. `sign`: marks the moment; `part_s`: the axis ends at a multiple of it; 0: where it reaches to."""
    history, reach = scene.frame.history, reach_s(scene.frame, at_s)
    ends = (float(history.time_s[0]), float(history.time_s[-1])) if len(history.time_s) else (at_s, at_s)
    end_s = max(at_s, min(at_s + reach, ends[1]))
    end_s = part_s * np.ceil(end_s / part_s) if part_s else end_s
    begin_s = max(min(at_s, ends[0]), end_s - 2 * reach)
    first, stop = np.searchsorted(history.time_s, (begin_s, end_s)).tolist()

    def part(values: Column) -> Column:
        # The axis has this length whatever steps are there.
        return np.concatenate([[np.nan], values[first:stop], [np.nan]])

    x = np.concatenate([[begin_s], history.time_s[first:stop], [end_s]])
    happened = find_happened(scene)
    if sign is not None:
        happened = replace(happened, events=(*happened.events, (at_s, *sign)))
    is_timed = times_waiting(scene.frame.run.training)
    waiting = draw_look("wait", scene.ascii_only, " waiting") if is_timed else Line()
    if what == "parts":
        stack = np.stack([part(getattr(history, name)) for name in STACK.values()])
        curve = Curve(
            [Line("mean ms", "dim"), waiting], x, stack.sum(axis=0),
            "text", zero=True, stack=stack, happened=happened,
        )  # fmt: skip
    elif what == "losses":
        curve = Curve(
            [Line("loss mean", "dim"), Line("┄ worst", "faint")], x, part(history.loss_mean), "area",
            behind=part(history.loss_max), happened=happened,
        )  # fmt: skip
    else:
        curve = Curve(
            [Line("step ms p50", "dim"), waiting, Line("┄ p95", "faint")], x, part(history.step_ms), "area",
            waste=part(history.wait_ms), zero=True, band=True, happened=happened,
            early=max(0, history.early - first) + 1, p95=part(history.step_p95_ms),
        )  # fmt: skip
    return curve


def draw_before_and_after(scene: Scene, at_s: float, width: int) -> list[Line]:
    """Each part of the step, mean over ranks and over the steps before a moment, and over those after it."""
    history, reach = scene.frame.history, reach_s(scene.frame, at_s)
    bounds = np.searchsorted(history.time_s, (at_s - reach, at_s, at_s + reach), side="right").tolist()
    before, after = (_mean_parts(history, *ends) for ends in pairwise(bounds))
    if before is None and after is None:
        return [Line(f"no step is known within {age(reach)} of it", "faint")]
    before, after = (NO_PARTS if parts is None else parts for parts in (before, after))
    places = {name: place for place, name in enumerate(STACK)}
    pairs = [
        (part, float(after[places[part.name]]), float(before[places[part.name]]))
        for part in PARTS
        if part.name in places
    ]
    lines = draw_pairs(pairs, ("after", "before", "ms, mean over ranks"), width, scene.ascii_only)
    line = Line(f"  {'step':<{PAIR_NAME}}").add(f"{fixed(_whole_step(after)):>{PAIR_NUMBER}}", "strong")
    return [*lines, line.add(f"{fixed(_whole_step(before)):>{PAIR_NUMBER}}", "dim")]


def _whole_step(parts: Column) -> float:
    """What the parts add up to; where one is not known, the median over ranks."""
    whole = float(parts[:-1].sum())
    return whole if known(whole) else float(parts[-1])


def _mean_parts(history: History, first: int, stop: int) -> Column | None:
    """(parts of STACK and the step) mean ms over some points, each of them for as many steps as it has; None:
    there is no point."""
    if first >= stop:
        return None
    steps = np.ones(len(history.step))
    steps[: history.early] = np.maximum(1.0, np.diff(history.step[: history.early], prepend=0.0))
    columns = np.stack([getattr(history, name)[first:stop] for name in (*STACK.values(), "step_ms")])
    is_known = np.isfinite(columns)
    weight = (is_known * steps[first:stop]).sum(axis=1)
    total = (np.where(is_known, columns, 0.0) * steps[first:stop]).sum(axis=1)
    return np.asarray(np.divide(total, weight, out=np.full(len(columns), np.nan), where=weight > 0))
