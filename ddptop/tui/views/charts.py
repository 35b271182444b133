"""Charts of the group's history: the loss of the whole run, all else over the same last minutes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from ddptop.frames.activity_words import SHORT_WORDS
from ddptop.frames.detail import MOST_COLUMNS
from ddptop.frames.numbers import RATIO, clock, count, fixed, known, loss, percent
from ddptop.frames.phrases import loss_note, mean_loss_phrase
from ddptop.frames.start_words import first_steps_phrase
from ddptop.frames.statistics import median
from ddptop.frames.training_kind import no_bucket_phrase, times_waiting, untimed_parts
from ddptop.render.chart import no_number, time_ticks
from ddptop.render.line import Line, combine_roles, join_parts, of_severity, side_by_side
from ddptop.render.milestones import draw_milestones
from ddptop.render.phases import EVALUATION, PARTS, SAVING, SHORT
from ddptop.render.rank_table import rank_mark
from ddptop.render.trouble import as_of
from ddptop.tui.scene import DrawnCharts, Plot, Scene
from ddptop.tui.views.curve import (
    DASH,
    GUTTER,
    STACK,
    Chart,
    Cross,
    Curve,
    Happened,
    choose_looks,
    draw_chart,
    draw_look,
    without_dash,
)
from ddptop.tui.views.heat_figures import least_range
from ddptop.tui.views.heat_shades import Shades, digits
from ddptop.tui.views.panels import PANELS_FROM, RULE_LEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ddptop.frames.activity import ActivityKind
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.frames.history import History
    from ddptop.render.chart import Scale
    from ddptop.render.line import Role
    from ddptop.render.phases import StepPart

RECENT_S = 1_800.0
"""What all charts but that of the loss show. A run that is no longer has the same time axis in all."""

TWO_ABREAST = 44
"""Cells from which two charts fit beside each other."""

MIN_ROWS = 8
"""Rows per chart from which a second row of charts is worth having."""

SHARE_REACH = 10.0
"""Per cent: a healthy run's fraction of one is a thin line at the foot of its chart."""

EPISODE = "═ slow rank"
"""What the axis means where a rank was flagged; once, in the first title."""

ACTIVITIES: Mapping[ActivityKind, StepPart] = {"evaluate": EVALUATION, "save": SAVING}
"""How the axis is marked where some rank evaluated or saved; named in the first title."""

DRAWN_EVERY_S, DRAWN_PARTS = 2.0, 8
"""Curves are drawn again after so many seconds, of a younger run after an eighth of its length at most. To
draw them takes a third of a picture's time."""

LEAST_PAUSE_S = 0.01
"""In seconds: frames come less often than that, so a shorter pause between two drawings would be none."""

NEWEST = 100
"""Points of the median in a title, as of the figures elsewhere."""


ChartName: TypeAlias = Literal["loss", "step", "parts", "busbw"]

CHARTS: tuple[ChartName, ...] = get_args(ChartName)
"""In the order of `_make_curves`."""


def draw_charts(scene: Scene, width: int, height: int, top: int = 0) -> DrawnCharts:
    """Draw as many charts as are legible in the room, the most important first.

    `top`: line of the screen on which they begin. While a run goes on the curves are drawn every two seconds,
    in which one over minutes moves by a dot at most. The figures in their titles are those of the frame, as
    everywhere on the screen.
    """
    drawn_for = _drawn_for(scene, CHARTS, width, height, top)

    def draw() -> DrawnCharts:
        return DrawnCharts(drawn_for, *_draw_all(scene, width, height, top))

    return _renew_figures(scene, CHARTS, _find_or_draw(scene, drawn_for, draw))


def _find_or_draw(
    scene: Scene, drawn_for: tuple[object, ...], draw: Callable[[], DrawnCharts]
) -> DrawnCharts:
    """A kept drawing if its scales hold the newest figures, which stand in its titles; else a new one."""
    newest = _find_newest_values(scene)

    def holds_newest(drawn: DrawnCharts) -> bool:
        return all(scale.holds(newest[name]) for name, (scale, _) in drawn.scales.items() if name in newest)

    return scene.place.charts.find_or_draw(drawn_for, draw, holds_newest)


def _find_newest_values(scene: Scene) -> Mapping[str, float | None]:
    """By the name of a chart, the figure of the frame in its title."""
    group = scene.frame.group
    return {"loss": group.loss_mean, "step": group.step_ms_p50, "busbw": group.busbw_gbps}


def _drawn_for(
    scene: Scene, names: Sequence[ChartName], width: int, height: int, top: int = 0
) -> tuple[object, ...]:
    """What a drawing depends on, its run first: pictures that share it have the same curves."""
    state = scene.place.charts
    return (*share_drawing(scene), *names, width, height, top, state.at_s, state.log_loss)


def share_drawing(scene: Scene) -> tuple[object, ...]:
    """What is the same in all frames that share one drawing of a chart: while the run goes on, those of some
    seconds."""
    frame = scene.frame
    every_s = _find_pause(frame.history) if _goes_on(frame) else 0.0
    moment = frame.unix_s // every_s if every_s else frame.unix_s
    return (*_name_run(frame), every_s, moment, len(frame.events), scene.ascii_only)


def _goes_on(frame: Frame) -> bool:
    return frame.run.state == "live" and (frame.playback is None or frame.playback.playing)


def _name_run(frame: Frame) -> tuple[object, ...]:
    return frame.run.id, frame.source, frame.group.incarnation


def find_scale_before(scene: Scene, name: str) -> tuple[Scale | None, int]:
    """Scale of the last drawing of a chart and cells of its labels, while the run goes on: a picture that
    stands depends on no other."""
    if not _goes_on(scene.frame):
        return None, 0
    return scene.place.charts.find_scale(_name_run(scene.frame), name)


def _find_pause(history: History) -> float:
    """The pause between two drawings: a power of two, which seldom changes as the run goes on."""
    lasts_s = float(history.time_s[-1] - history.time_s[0]) if len(history.time_s) else 0.0
    if lasts_s >= DRAWN_EVERY_S * DRAWN_PARTS:
        return DRAWN_EVERY_S
    pause_s = lasts_s / DRAWN_PARTS
    return float(2.0 ** np.floor(np.log2(pause_s))) if pause_s > LEAST_PAUSE_S else 0.0


def _renew_figures(scene: Scene, names: Sequence[ChartName], drawn: DrawnCharts) -> DrawnCharts:
    """The charts, those with these names with the figures of this frame in their titles."""
    # The page goes on writing in these lines.
    figures, lines = _list_title_figures(scene), [Line().extend(line) for line in drawn.lines]
    for (row, first_cell, width, drawn_parts, newest), name in zip(drawn.titles, names, strict=False):
        parts = [*drawn_parts]
        for part_index, figure in zip(newest, figures[CHARTS.index(name)], strict=False):
            # Whether its curve is drawn has not changed since then.
            dashed = str(drawn_parts[part_index]).startswith(DASH)
            parts[part_index] = figure if dashed else without_dash(figure)
        before = lines[row].cut(first_cell).pad(first_cell) if first_cell else Line()
        lines[row] = before.extend(join_parts(parts, width, 1))
    return replace(drawn, lines=lines)


_Titles: TypeAlias = "tuple[tuple[int, int, int, tuple[Line, ...], tuple[int, ...]], ...]"
_Bands: TypeAlias = "tuple[list[Line], tuple[Plot, ...], _Titles, Mapping[str, tuple[Scale, int]]]"
"""What `DrawnCharts` has."""


def _draw_all(scene: Scene, width: int, height: int, top: int) -> _Bands:
    if height < 3:
        return [], (), (), {}
    if not len(scene.frame.history.time_s):
        return _draw_start(scene, width, height), (), (), {}
    columns = 2 if width >= TWO_ABREAST else 1
    bands = 2 if height >= 2 * MIN_ROWS and columns == 2 else 1
    return _draw_bands(scene, CHARTS[: columns * bands], (columns, bands), (width, height), top)


def _draw_bands(
    scene: Scene,
    names: Sequence[ChartName],
    shape: tuple[int, int],
    size: tuple[int, int],
    top: int,
) -> _Bands:
    """`shape`: charts beside and below each other."""
    (columns, bands), (width, height) = shape, size
    happened = find_happened(scene)
    curve_of_chart = _make_curves(scene, happened)
    curves = [replace(curve_of_chart[CHARTS.index(name)], happened=happened) for name in names]
    figures = _find_newest_values(scene)
    curves = [
        replace(curve, figure=figures[name]) if name in figures else curve
        for name, curve in zip(names, curves, strict=True)
    ]
    if _goes_on(scene.frame):  # a picture that stands depends on no other
        run, state = _name_run(scene.frame), scene.place.charts
        scales = [state.find_scale(run, name) for name in names]
        curves = [
            replace(curve, grows=True, scale_before=scale, gutter=max(GUTTER, gutter))
            for curve, (scale, gutter) in zip(curves, scales, strict=True)
        ]
    at_s = scene.place.charts.at_s
    cross = None if at_s is None else Cross(at_s, _describe_moment(scene))
    rows, right = height // bands, (width + 1) // 2
    room = right - 1 if columns == 2 else width
    lead = RULE_LEAD if width >= PANELS_FROM else 0
    aparts = [lead + (columns == 2 and index % columns == 0) for index in range(len(curves))]

    def draw(index: int, gutter: int = GUTTER) -> Chart:
        curve = replace(curves[index], gutter=max(gutter, curves[index].gutter))
        return draw_chart(curve, room, rows, scene.ascii_only, cross, aparts[index])

    charts = [draw(index) for index in range(len(curves))]
    for index, chart in enumerate(charts):  # those below each other begin in the same cell
        widest = max((other.left for other in charts[index % columns :: columns]), default=0)
        if 0 < chart.left < widest:
            charts[index] = draw(index, widest - 1)
    lines: list[Line] = []
    plots: list[Plot] = []
    titles: list[tuple[int, int, int, tuple[Line, ...], tuple[int, ...]]] = []
    for band in range(bands):
        first = band * columns
        blocks = [chart.lines for chart in charts[first : first + columns]]
        for column, (_, plot, title, newest, _) in enumerate(charts[first : first + columns]):
            titles.append((band * rows, column * right, room - aparts[column], tuple(title), newest))
            if plot is not None:
                plots.append(replace(plot, top=plot.top + top + band * rows, left=plot.left + column * right))
        joined_lines = side_by_side(blocks[0], blocks[1], right) if len(blocks) == 2 else blocks[0]
        lines += joined_lines + [Line()] * (rows - len(joined_lines) if band < bands - 1 else 0)
    drawn_scales: dict[str, tuple[Scale, int]] = {
        name: (chart.scale, chart.left - 1)
        for name, chart in zip(names, charts, strict=True)
        if chart.scale is not None
    }
    return lines, tuple(plots), tuple(titles), drawn_scales


def _draw_start(scene: Scene, width: int, height: int) -> list[Line]:
    """How far the ranks have come on the way to their first step, before there is anything to chart."""
    start = scene.frame.start
    if start is None:
        return [Line("  charts begin with the first step", "faint").cut(width)]
    title = [
        Line("S ", "accent").add(first_steps_phrase(start), "dim"),
        Line("seconds after the launch", "faint"),
    ]
    return [join_parts(title, width), *draw_milestones(scene, width, height - 1)]


def draw_some_charts(scene: Scene, names: Sequence[ChartName], width: int, height: int) -> list[Line]:
    """Draw one or two charts beside each other; nothing before the first step. Drawn again as `draw_charts`
    draws its own."""
    if not len(scene.frame.history.time_s):
        return []
    drawn_for = _drawn_for(scene, names, width, height)

    def draw() -> DrawnCharts:
        return DrawnCharts(drawn_for, *_draw_bands(scene, names, (len(names), 1), (width, height), 0))

    return _renew_figures(scene, names, _find_or_draw(scene, drawn_for, draw)).lines


STRIP_RANKS = 8
"""Ranks up to which each has a row of the excess strip."""

STRIP_LABEL = 9
"""Cells left of a row of it."""


def strip_size(scene: Scene, width: int, height: int) -> tuple[int, int]:
    """Ranks and columns of the excess strip; zeros where own times are not known or the charts need the
    room."""
    ranks = len(scene.frame.ranks.state)
    fits = 1 < ranks <= STRIP_RANKS and height - ranks - 1 >= 2 * MIN_ROWS and width >= 2 * TWO_ABREAST
    return (ranks, min(MOST_COLUMNS, width - STRIP_LABEL)) if fits and scene.by_steps else (0, 0)


def draw_excess_by_step(scene: Scene, size: tuple[int, int], width: int) -> list[Line]:
    """Draw the excess of own time of each rank in each of the last steps, below a title with the shades."""
    heat, (ranks, columns) = scene.frame.heat, size
    title = [Line("excess ms", "dim").add(" of each rank in each step", "faint")]
    if heat is None or heat.figure != "excess" or heat.count != ranks or len(heat.rows) != ranks + 1:
        return [join_parts(title, width), *(Line() for _ in range(ranks))]
    shades = Shades.of(heat.value, heat.middle, least_range("excess", heat.middle, scene.frame))
    title.append(Line(f"last {len(heat.steps)} steps", "faint"))
    lines = [
        join_parts(
            [*title, *shades.legend(lambda edge: fixed(edge, digits(shades)), "", scene.ascii_only)], width
        )
    ]
    for rank, levels in enumerate(shades.levels(heat.value.reshape(ranks, -1)[:, -columns:]).tolist()):
        line = Line(f"rank {rank}", "dim").pad(STRIP_LABEL - 2).add(*rank_mark(scene, rank)).add("│", "rule")
        for level, run in itertools.groupby(levels):
            glyph, role = shades.sign(level, scene.ascii_only)
            line.signs([(glyph * len(list(run)), role)])
        lines.append(line)
    _add_medians(lines, heat.value.reshape(ranks, -1), width)
    return lines


STRIP_FIGURES = 24
"""Cells for the median and the largest excess of a rank, right of the strip."""


def _add_medians(lines: list[Line], values: Column, width: int) -> None:
    """Right of the rows, where there is room: the median and the largest value of each rank."""
    begin = max(line.width for line in lines)  # the title too: no figure without its name
    if width - begin < STRIP_FIGURES:
        return
    for line, of_rank in zip(lines[1:], values, strict=True):
        if np.isfinite(of_rank).any():
            usual, largest = fixed(float(np.nanmedian(of_rank))), fixed(float(np.nanmax(of_rank)))
            line.pad(begin).add(f"{usual:>10}", "strong").add(f"{largest:>10}", "dim")
    lines[0].pad(begin).add(f"{'median':>10}{'most':>10}", "dim")


def find_happened(scene: Scene) -> Happened:
    """Warnings and errors of the run, and the episodes of stragglers."""
    frame = scene.frame
    began, since = frame.run.started_at, None
    episodes: list[tuple[float, float]] = []
    for event in frame.events:
        if event.kind == "straggler":
            since = event.unix_s if since is None else since
        elif event.kind == "straggler_end":
            if since is None and episodes:  # flagged by two rules, it was slow until now
                since = began + episodes.pop()[0]
            episodes.append((0.0 if since is None else since - began, event.unix_s - began))
            since = None
    if frame.straggler is not None:
        alerts = [alert.since_s for alert in frame.alerts if alert.kind == "straggler"]
        # The event of its beginning may have left the log already; the alert still knows the time.
        since = since or min(alerts, default=frame.unix_s)
        episodes.append((since - began, frame.unix_s - began))
    time_s = frame.history.time_s
    newest_s = float(time_s[-1]) if len(time_s) else 0.0
    marks = tuple(  # a stall begins after the newest step, where the axis ends
        (min(event.unix_s - began, newest_s), *of_severity(event.severity, event.kind))
        for event in frame.events
        if event.severity != "info"
    )
    activities: tuple[tuple[float, float, str, Role], ...] = tuple(
        (span.since_s - began, span.until_s - began, _sign_of(ACTIVITIES[span.kind], scene), "accent")
        for span in frame.past_activities
        if span.kind in ACTIVITIES
    )
    return Happened(began, time_ticks, marks, tuple(episodes), activities)


def _sign_of(part: StepPart, scene: Scene) -> str:
    return part.plain if scene.ascii_only else part.glyph


def _list_title_figures(scene: Scene) -> tuple[tuple[Line, ...], ...]:
    """Which parts of each chart's title have figures of the newest step; in the order of the charts."""
    group = scene.frame.group
    worst, rank = Line(), Line()
    if known(group.loss_max):
        worst = Line(f"{DASH}worst {loss(group.loss_max)}", "faint")
        rank = Line(f"rank {group.loss_max_rank}" if group.loss_max_rank is not None else "", "faint")
    # A word, not the look of the area's edge: below waiting, the edge is less than p50.
    words = " p50" if known(group.step_ms_p50) else ""
    when = (as_of(scene.frame) or "now") if known(group.busbw_gbps) else ""
    step_ms = _draw_title("step ms", fixed(group.step_ms_p50)).add(words, "dim")
    mean = _draw_title("loss", mean_loss_phrase(scene.frame), key=True).add(" mean", "dim")
    return (
        (mean, worst, rank),
        (step_ms, Line(f"{DASH}p95 {fixed(group.step_ms_p95)}", "faint")),
        (),
        (_draw_title("busbw GB/s", fixed(group.busbw_gbps, RATIO)), Line(when, "dim")),
    )


def _make_curves(scene: Scene, happened: Happened) -> list[Curve]:
    history, x = scene.frame.history, scene.frame.history.time_s
    young = len(x) and x[-1] - x[0] <= RECENT_S
    shown = Line(f"· axis: {'whole run' if young else f'last {RECENT_S / 60:g} min'}", "faint")
    loss_now, step_now, _, speed_now = _list_title_figures(scene)
    dot = '"' if scene.ascii_only else "⠂"
    steps = [
        step_now[0],
        Line(as_of(scene.frame), "dim"),
        draw_look("wait", scene.ascii_only, " waiting")
        if times_waiting(scene.frame.run.training)
        else Line(),
        step_now[1],
        Line(f"{dot} min, max {fixed(_find_peak(x, history.step_max_ms))}", "faint"),
        shown,
    ]
    speed = [*speed_now, shown]

    return [
        _make_loss_curve(scene, loss_now, happened),
        Curve(
            steps, x, history.step_ms, "area", waste=history.wait_ms, span_s=RECENT_S, zero=True,
            step=history.step, band=True,
            early=history.early, p95=history.step_p95_ms, read=_step_reading(history), newest=(0, 3),
            extremes=(history.step_min_ms, history.step_max_ms), n_names=4,
        ),
        _make_parts_curve(scene, shown),
        Curve(
            speed, x, history.busbw_gbps, "area", span_s=RECENT_S, zero=True, step=history.step,
            read=lambda index: fixed(history.busbw_gbps[index], RATIO, " GB/s"), newest=(0, 1),
            empty=no_bucket_phrase(scene.frame.run),
        ),
    ]  # fmt: skip


def _make_parts_curve(scene: Scene, shown: Line) -> Curve:
    """The parts of the step over time; the share of waiting where parts are not known for every step."""
    history, x = scene.frame.history, scene.frame.history.time_s
    stack = np.stack([getattr(history, name) for name in STACK.values()])
    whole = stack.sum(axis=0)
    share = _waiting_pct(history)
    if not np.isfinite(whole[-NEWEST:]).any():
        newest, when = _newest_median(share), "" if as_of(scene.frame) else "now, "
        waits = [_draw_title("waiting", percent(newest)).add(" of step", "dim")]
        waits += [Line(f"({when}mean over ranks)", "faint"), shown]
        return Curve(
            waits, x, share, "wait", span_s=RECENT_S, zero=True, step=history.step,
            reach=SHARE_REACH, figure=newest, read=lambda index: percent(share[index]),
        )  # fmt: skip
    title, signs = (
        [Line("ms" if as_of(scene.frame) else "ms now", "dim")],
        dict(zip(STACK, choose_looks(scene.ascii_only), strict=True)),
    )
    untimed = untimed_parts(scene.frame.run.training)
    # Waiting is on top, and comes first: the others are left out where there is no room.
    for name in ("wait", *(part.name for part in PARTS if part.name in STACK and part.name != "wait")):
        if name in untimed:
            continue
        usual = fixed(_newest_median(getattr(history, STACK[name])))
        sign, role = signs[name]
        title.append(
            Line(sign, combine_roles(role, role))
            .add(f" {SHORT.get(name, name)} ", "dim")
            .add(usual, "strong")
        )
    return Curve(
        [*title, shown], x, whole, "text", span_s=RECENT_S, zero=True, step=history.step, stack=stack,
        read=lambda index: f"{fixed(whole[index], 1, ' ms')}, waiting {percent(share[index])}", n_names=2,
    )  # fmt: skip


def _make_loss_curve(scene: Scene, figure_lines: tuple[Line, ...], happened: Happened) -> Curve:
    history, log = scene.frame.history, is_logarithmic(scene)
    parts = [figure_lines[0], *([Line(note, "dim")] if (note := loss_note(scene.frame.group)) else [])]
    parts += [Line(EPISODE, "warn")] if happened.episodes else []
    signs = [sign for _, _, sign, _ in happened.activities]
    for kind, part in ACTIVITIES.items():
        sign = _sign_of(part, scene)
        parts += [Line(f"{sign} {SHORT_WORDS[kind]}", "accent")] if sign in signs else []
    parts += [Line("log", "dim")] if log else []
    newest = (0, len(parts), len(parts) + 1)
    parts += figure_lines[1:]
    whole = not history.start or history.early or not len(history.step)
    parts.append(Line(f"· axis: {'whole run' if whole else f'since step {count(history.step[0])}'}", "faint"))
    began = scene.frame.run.started_at
    nan_at = [event.unix_s - began for event in scene.frame.events if event.kind == "nan"]
    nan_at += history.time_s[no_number(history.loss_mean, history.loss_max)].tolist()
    return Curve(
        parts, history.time_s, history.loss_mean, "area", behind=history.loss_max, step=history.step,
        nan_at=tuple(nan_at), log=log, read=lambda index: loss(history.loss_mean[index]), newest=newest,
    )  # fmt: skip


LOG_FROM = 10.0
"""Largest loss of the run divided by the smallest, from which the axis is logarithmic by itself."""


def is_logarithmic(scene: Scene) -> bool:
    """Whether the axis of the loss is logarithmic: as the user chose, else where the loss spans decades."""
    if scene.place.charts.log_loss is not None:
        return scene.place.charts.log_loss
    losses = scene.frame.history.loss_mean
    losses = losses[np.isfinite(losses)]
    return len(losses) > 0 and 0 < LOG_FROM * float(losses.min()) <= float(losses.max())


def _waiting_pct(history: History) -> Column:
    """Share of every step that was spent waiting for a slower rank, in %, mean over ranks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 100.0 * history.wait_ms / history.step_ms
    return np.where(np.isfinite(share), share, np.nan)


def _newest_median(values: Column) -> float | None:
    """The median of the last points that are known."""
    recent = values[-20 * NEWEST :]
    recent = recent[np.isfinite(recent)][-NEWEST:]
    return float(median(recent)) if len(recent) else None


def _describe_moment(scene: Scene) -> Callable[[int], tuple[str, ...]]:
    """Step and time of day of a point of the history."""
    history, began = scene.frame.history, scene.frame.run.started_at

    def moment(index: int) -> tuple[str, ...]:
        which = f"step {count(history.step[index])}"
        if 0 < index < history.early and history.step[index] > history.step[index - 1] + 1:
            which = f"steps {count(history.step[index - 1] + 1)} to {count(history.step[index])}"
        return which, clock(began + float(history.time_s[index]))

    return moment


def _step_reading(history: History) -> Callable[[int], str]:
    """A function that writes the step time of a point; for a bin of steps, the median and the range."""

    def read(index: int) -> str:
        if index >= history.early:
            return fixed(history.step_ms[index], 1, " ms")
        least, largest = fixed(history.step_min_ms[index]), fixed(history.step_max_ms[index], 1, " ms")
        return f"{fixed(history.step_ms[index])} ms ({least} to {largest})"

    return read


def _find_peak(x: Column, values: Column) -> float | None:
    """The largest of the last minutes: the curve itself may be clipped there."""
    if not len(x):
        return None
    recent = values[np.searchsorted(x, x[-1] - RECENT_S) :]
    finite = recent[np.isfinite(recent)]
    return float(finite.max()) if len(finite) else None


def _draw_title(name: str, value: str, *, key: bool = False) -> Line:
    """`key`: the first letter is the key that changes the chart."""
    line = Line(name[0], "accent" if key else "dim").add(f"{name[1:]} ", "dim")
    return line.add(value, "strong")
