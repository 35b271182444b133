"""One rank: its facts, its phases against the others', and its recent single steps; of a slow rank first why.

Also its GPU, and the values that the script logs, where the rank has them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.figures import FIGURES, figures_shown
from ddptop.frames.numbers import (
    RATIO,
    UNKNOWN,
    age,
    bounded,
    count,
    counted,
    fixed,
    known,
    loss,
    percent,
    significant,
    size,
)
from ddptop.frames.phrases import death_phrase, group_phrase, loss_note, rank_loss_phrase
from ddptop.frames.sampled_stack import stack_of_straggler
from ddptop.render import table
from ddptop.render.evidence import draw_position
from ddptop.render.line import Line, draw_rule, join_in_lines, join_parts, side_by_side
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.rank_table import last_update, state_piece
from ddptop.render.sampled_stack import tree_lines
from ddptop.render.text import text_width, wrap_lines
from ddptop.tui.gpu_past import KEPT_S
from ddptop.tui.scene import Page, Scene
from ddptop.tui.view import View
from ddptop.tui.views.charts import RECENT_S, TWO_ABREAST, find_happened
from ddptop.tui.views.curve import DASH, Curve, Happened, draw_chart, draw_look
from ddptop.tui.views.why import (
    describe_suspicion,
    draw_action,
    draw_changes,
    draw_differences,
    draw_own_time,
    draw_reason,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.frames.columns import Column
    from ddptop.frames.figures import Figure
    from ddptop.frames.frame import GpuFacts, LoggedScalar
    from ddptop.frames.history import RankSteps
    from ddptop.tui.gpu_past import GpuSeries
    from ddptop.tui.screen import Screen

MAX_GROUPS = 3
"""Process groups on a rank's page."""

MAX_LOGGED = 4
"""Names on a rank's page: what was measured comes first there."""


def draw_extras(scene: Scene, rank: int, width: int) -> list[Line]:
    """A line or two of the GPU, one of the logged values; nothing where nothing was reported."""
    gpus = [facts for facts in scene.frame.gpus if facts.rank == rank]
    lines = [join_parts(parts, width) for facts in gpus for parts in _draw_gpu(scene, facts)]
    if lines and width < GPU_CHARTS_FROM:
        lines[-1] = _add_gpu_use(scene, rank, lines[-1], width)
    for parts in _draw_groups(scene, rank):
        lines += join_in_lines(parts, width)
    lines += [_draw_all_logged(scene, rank, width)] if scene.frame.logged else []
    return [line for line in lines if line.width]


GPU_CHARTS_FROM = 120
"""Cells of a page from which the past of the GPU has charts; on a narrower one its use is a row of bars."""

USE_CELLS = 16

USE_LEVELS, USE_LEVELS_ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"


def _add_gpu_use(scene: Scene, rank: int, line: Line, width: int) -> Line:
    """The line with the mean use of the GPU in each bit of the last minutes, where there is room for it."""
    past = None if scene.gpu_past is None else scene.gpu_past.series_of(rank, scene.frame)
    begin = width - USE_CELLS - len("use ")
    if past is None or line.width >= begin:
        return line
    # A bit is a fixed span of the run: what is past stays as it is, and moves on by a cell at a time.
    bits = (past.time_s / (KEPT_S / USE_CELLS)).astype(int)
    levels, signs = USE_LEVELS_ASCII if scene.ascii_only else USE_LEVELS, ""
    for bit in range(bits[-1] - USE_CELLS + 1, bits[-1] + 1):
        of_bit = past.util_pct[(bits == bit) & np.isfinite(past.util_pct)]
        level = int(of_bit.mean() / 100 * len(levels)) if len(of_bit) else None
        signs += " " if level is None else levels[min(max(level, 0), len(levels) - 1)]
    return line.pad(begin).add("use ", "faint").add(signs, "edge")


def _draw_groups(scene: Scene, rank: int) -> Iterator[list[Line]]:
    """How late it is at the collectives of its process groups, of those in which it is the latest."""
    of_rank = []
    for group in scene.frame.process_groups:
        members = group.ranks or range(group.size)
        if rank in members and group.rank_lateness_ms:
            of_rank.append((group.rank_lateness_ms[members.index(rank)], group))
    for late_ms, group in sorted(of_rank, key=lambda of_group: -of_group[0])[:MAX_GROUPS]:
        name = scene.clean(group_phrase(group.name, group.description, group.ranks))
        often = group.last_arriver_pct if group.last_arriver == rank else None
        per_step = fixed(group.per_step, 0)
        what = "collective" if per_step == "1" else "collectives"
        yield [
            Line("late ", "dim").add(scene.clean(bounded(late_ms, group.bound_ms)) + " ms"),
            Line(f"at {per_step} {what} a step of {name}"),
            Line("comes last ", "dim").add(percent(often)) if often is not None else Line(),
            Line("launches are the host's", "faint") if group.on_host else Line(),
        ]


def _draw_all_logged(scene: Scene, rank: int, width: int) -> Line:
    """As many logged names as fit, and how many more there are."""
    logged = scene.frame.logged
    line = Line()
    for shown in range(min(MAX_LOGGED, len(logged)), 0, -1):
        hidden = Line(f"and {len(logged) - shown} more" if len(logged) > shown else "", "faint")
        parts = [
            Line("logged", "dim"),
            *(_draw_logged(scene, scalar, rank) for scalar in logged[:shown]),
            hidden,
        ]
        line = join_parts(parts, width)
        if line.width == join_parts(parts, 10 * width).width:
            break
    return line


def _draw_gpu(scene: Scene, facts: GpuFacts) -> list[list[Line]]:
    clock = f"{count(facts.clock_mhz)} of {count(facts.max_clock_mhz)} MHz"
    throttle = scene.clean(facts.throttle or "")
    first = [
        Line("gpu ", "dim").add(percent(facts.util_pct, 0)),
        Line("memory ", "dim").add(f"{size(facts.mem_bytes)} of {size(facts.mem_total_bytes)}"),
        Line(fixed(facts.temp_c, 0, " °C")) if known(facts.temp_c) else Line(),
        Line(fixed(facts.power_w, 0, " W")) if known(facts.power_w) else Line(),
        Line(clock) if facts.clock_mhz is not None else Line(),
        Line("▲ ", "warn").add(f"throttled: {throttle}") if throttle else Line(),
    ]
    second = [
        Line("torch allocated ", "dim")
        .add(size(facts.allocated_bytes))
        .add(f" of {size(facts.reserved_bytes)} reserved"),
        Line("peak ", "dim").add(size(facts.peak_bytes)),
        Line("▲ ", "warn").add(f"{count(facts.retries)} allocations had to be retried")
        if facts.retries
        else Line(),
    ]
    has_load = facts.util_pct is not None or facts.mem_bytes is not None
    return [first if has_load else [], second if facts.allocated_bytes is not None else []]


def _draw_logged(scene: Scene, scalar: LoggedScalar, rank: int) -> Line:
    """This rank's value, and the mean of those that logged it."""
    focus = scene.frame.focus
    rank_value = scalar.focus if focus is not None and focus.rank == rank else None
    line = Line(f"{scene.clean(scalar.name)} ", "dim").add(significant(rank_value), "strong")
    return line.add(f" (mean {significant(scalar.mean)})", "faint")


LONG = 60
"""Cells that are enough for a state in full."""

SEEN_SHARE = 0.1
"""Part of the step that the scale of the excess holds at least: jitter must not look like a change."""

WHY_CHARTS = 12
"""Lines for charts and single steps that come before the other facts of a slow rank."""

LEAST_PARTS = 4
"""Lines of the table of parts, with its head and the number of those that are left out."""

LEAST_TREE, MOST_TREE = 3, 10
"""Lines of the tree of samples: a page with less room has none."""

PLACES_FROM = 36
"""Lines of the page from which four of them are for the places of other."""


def _describe_host(scene: Scene, rank: int) -> str:
    host, device = scene.clean(scene.frame.ranks.host[rank]), scene.clean(scene.frame.ranks.device[rank])
    return f"{host or UNKNOWN} · {device or UNKNOWN}"


def draw_facts(scene: Scene, rank: int, width: int) -> list[Line]:
    """Where the rank is, how far it has come, and its figures that no chart and no table of this page has."""
    ranks = scene.frame.ranks
    text, role = state_piece(scene, rank, LONG)
    starts = ranks.incarnation[rank]
    first = [
        Line(text, role),
        Line(_describe_host(scene, rank)),
        Line("pid ", "dim").add(str(int(ranks.pid[rank])) if known(ranks.pid[rank]) else UNKNOWN),
        Line("last update " if width >= 60 else "update ", "dim").add(last_update(float(ranks.age_ms[rank]))),
        Line("restarts ", "dim").add(count(starts)) if known(starts) and starts > 0 else Line(),
    ]
    has_finished = ranks.state[rank] == "finished"  # its last heartbeat was in some phase
    where = "" if has_finished else scene.clean(ranks.phase[rank])
    bucket = ranks.bucket[rank]
    last = float("nan") if scene.frame.group.clock_free else float(ranks.last_pct[rank])
    late = Line("late ", "dim").add(_describe_lateness(scene, rank))
    often = Line("comes last ", "dim").add(percent(last))
    scores = [
        Line("relative ", "dim")
        .add(fixed(ranks.relative_score[rank], RATIO))
        .add(" (1 = fastest rank)", "faint"),
        Line("vs own best ", "dim").add(fixed(ranks.individual_score[rank], RATIO)),
    ]
    second = [
        Line("step ", "dim").add(count(ranks.step[rank])).add(f" in {where}" if where else ""),
        Line("micro-steps ", "dim").add(count(ranks.micro_steps[rank]))
        if ranks.micro_steps[rank] > 1
        else Line(),
        Line("loss ", "dim").add(rank_loss_phrase(scene.frame, rank)),
        Line("buckets sent ", "dim").add(count(bucket)) if known(bucket) and bucket >= 0 else Line(),
    ]
    third = [
        Line(f"{figure.called} ", "dim").add(_write_count(figure, float(getattr(ranks, figure.name)[rank])))
        for figure in COUNTS
    ]
    own_time_parts, split = (
        _draw_own_time(scene, rank),
        [Line("collectives ", "dim").add(_describe_collectives(scene, rank))],
    )
    if width >= LONG:
        rows = [
            first,
            [*second, late],
            [*third, often],
            [*own_time_parts, *scores, *split] if own_time_parts else split + scores,
        ]
    else:
        rows = [first, second, [late, often], third, own_time_parts + split]
    return [join_parts(parts, width) for parts in rows]


def _draw_own_time(scene: Scene, rank: int) -> list[Line]:
    """`own time 43.7 ms, excess 20.2`; nothing where it is not known."""
    ranks = scene.frame.ranks
    if not ranks.compared[rank]:
        return []
    own_time, excess = fixed(float(ranks.own_ms[rank]), 1, " ms"), fixed(float(ranks.slower_ms[rank]))
    return [Line("own time ", "dim").add(own_time).add(", excess ", "dim").add(excess)]


def _write_count(figure: Figure, value: float) -> str:
    return f"{figure.text(value)}{'%' if figure.unit == '%' and known(value) else ''}"


def _describe_lateness(scene: Scene, rank: int) -> str:
    """The lateness of a rank with its bound; a dash where the clocks are too inexact."""
    ranks = scene.frame.ranks
    late, bound = float(ranks.lateness_ms[rank]), float(ranks.bound_ms[rank])
    if scene.frame.group.clock_free or not known(late):
        return UNKNOWN
    return scene.clean(f"{fixed(late)} ±{fixed(bound)} ms") if known(bound) else fixed(late, 1, " ms")


def _describe_collectives(scene: Scene, rank: int) -> str:
    """How long some all-reduce was under way on this rank, beside its compute too."""
    ranks = scene.frame.ranks
    busy, exposed = float(ranks.collective_ms[rank]), float(ranks.exposed_comm_ms[rank])
    if not known(busy):
        return UNKNOWN
    hidden = f", {fixed(max(0.0, busy - exposed))} of it hidden" if known(exposed) else ""
    return f"{fixed(busy, 1, ' ms')}{hidden}"


def _draw_position(scene: Scene, rank: int, width: int, most: int) -> list[Line]:
    """Its position in a stall, or before it exited; with the key that shows more."""
    frame = scene.frame
    positions = [death.position for death in frame.deaths if death.rank == rank]
    positions += [
        position for position in (frame.stall.positions if frame.stall else ()) if position.rank == rank
    ]
    if not positions or most < 3:
        return []
    title = "" if _describe_exit(scene, rank) else "no progress" if frame.stall else ""
    lines = [draw_rule(width, title, "7 shows all")]
    best = next((position for position in positions if position.traces), positions[0])
    lines += draw_position(scene, best, width, responsible=rank in scene.responsible)
    return lines[:most]


def _draw_exit(scene: Scene, rank: int, width: int) -> list[Line]:
    """How its process exited, in a line; nothing where it has not."""
    text = re.sub(r"^rank [\d,]+ (failed: |lost: )?", "", _describe_exit(scene, rank))
    text = text if text_width(text) <= width - 2 else re.sub(r" \(exit code -?\d+\)$", "", text)
    return [Line("■ ", "bad").add(part, "strong") for part in wrap_lines(text, width - 2, 1)]


def _describe_exit(scene: Scene, rank: int) -> str:
    """How a rank has died or was lost; empty: neither."""
    texts = [death_phrase(death) for death in scene.frame.deaths if death.rank == rank]
    texts += [
        alert.message for alert in scene.frame.alerts if alert.rank == rank and alert.kind == "lost_rank"
    ]
    return scene.clean(texts[0]) if texts else ""


def _make_curves(scene: Scene, focus: RankSteps) -> list[Curve]:
    """Excess, step time and loss of the rank; without the excess where it is not known."""
    x = _steps_as_axis(focus)
    span = Line(f"last {counted(len(focus.step), 'step')}", "faint")
    steps = [Line("step ms", "dim"), span, Line(f"{DASH}peak", "faint")]
    loss_title = [Line("loss", "dim"), span]
    loss_title += [Line(note, "faint")] if (note := loss_note(scene.frame.group)) else []
    happened = Happened(float(focus.step[0]) if len(focus.step) else 0.0)
    curves = [
        Curve(steps, x, focus.step_ms, "area", behind=focus.step_ms, zero=True, happened=happened),
        Curve(loss_title, x, focus.loss, "area", happened=happened),
    ]
    if (excess_curve := _make_excess_curve(scene, focus, span, happened)) is not None:
        curves.insert(0, excess_curve)
    return curves


def _draw_charts(scene: Scene, focus: RankSteps, width: int, height: int) -> list[Line]:
    curves = _make_curves(scene, focus)
    chart_width = (width + 1) // 2 if width >= TWO_ABREAST else width
    if chart_width == width:
        return draw_chart(curves[0], width, height, scene.ascii_only).lines
    left_lines, right_lines = (
        draw_chart(curve, chart_width - 1, height, scene.ascii_only).lines for curve in curves[:2]
    )
    return side_by_side(left_lines, right_lines, chart_width)


def _make_excess_curve(scene: Scene, focus: RankSteps, span: Line, happened: Happened) -> Curve | None:
    """The excess over the last minutes, mean and largest of each bin; where that is not known, of the last
    steps; None: of none."""
    reach = SEEN_SHARE * (scene.frame.group.step_ms_p50 or 0.0)
    title, minutes = [Line("excess ms", "dim"), span], focus.minutes
    meaning = Line("(own time minus median of the others)", "faint")
    if minutes is not None and np.isfinite(minutes.mean_ms).any():
        lasts_s = min(RECENT_S, float(minutes.time_s[-1] - minutes.time_s[0]))
        shown = Line(f"last {age(lasts_s)}", "faint")
        mean = draw_look("wait", scene.ascii_only, " mean")
        title = [title[0], shown, mean, Line(f"{DASH}peak", "faint"), meaning]
        return Curve(
            title, minutes.time_s, minutes.mean_ms, "wait", behind=minutes.largest_ms, span_s=RECENT_S,
            zero=True, reach=reach, happened=find_happened(scene),
        )  # fmt: skip
    if not focus.has_own_times:
        return None
    x = _steps_as_axis(focus)
    return Curve([*title, meaning], x, focus.excess_ms, "wait", zero=True, reach=reach, happened=happened)


def _cut_parts(times: list[Line], most: int) -> list[Line]:
    """The first parts of the step where `most` lines have no room for all, and how many more there are."""
    if len(times) <= most:
        return times
    if most < LEAST_PARTS:
        return []
    return [*times[: most - 1], Line(f"  and {len(times) - most + 1} more parts", "dim")]


def _steps_as_axis(focus: RankSteps) -> Column:
    """Steps a second apart, so that every step of the chart is as wide."""
    return focus.step - focus.step[0] if len(focus.step) else focus.step


STEP_COLUMNS = figures_shown(lambda figure: figure.single_steps)


def _draw_steps(focus: RankSteps, width: int, height: int) -> list[Line]:
    if height < 2 or not len(focus.step):
        return []
    newest = range(len(focus.step) - 1, max(-1, len(focus.step) - height), -1)
    columns = [table.measured_column("step", [count(focus.step[index]) for index in newest], 99)]
    columns.append(table.measured_column("loss", [loss(focus.loss[index]) for index in newest], 92))
    for figure, column in STEP_COLUMNS:
        values: Column = getattr(focus, figure.name)
        if column.shown is not None and not column.shown(values):
            continue
        title = f"{column.title or figure.title:>6}"
        texts = [(column.text or figure.text)(values[index]) for index in newest]
        keep = column.keep_beside_own_times if focus.has_own_times else None
        columns.append(table.measured_column(title, texts, keep or column.keep))
    columns = table.fit_columns(columns, width)
    return [table.draw_head(columns), *(table.draw_row(columns, index) for index in range(len(newest)))]


CHART_CELLS, LEAST_CHARTS = 44, 6
"""Cells right of the single steps, and lines, from which charts have a place there."""

GPU_SCALE = 100.0
"""Percent: the scale of use and memory always ends there."""


def _draw_steps_and_gpu(scene: Scene, focus: RankSteps, width: int, height: int) -> list[Line]:
    """The single steps, and right of them, where there is room, the past of the GPU, else the loss."""
    steps = _draw_steps(focus, width, height)
    begin = max((line.width for line in steps), default=0) + 3
    room = width - begin
    past = None if scene.gpu_past is None else scene.gpu_past.series_of(focus.rank, scene.frame)
    if room < CHART_CELLS or height < LEAST_CHARTS:
        return steps
    if past is not None:
        return side_by_side(steps, _draw_gpu_past(scene, past, room, height), begin)
    others = _make_curves(scene, focus)[2:]  # those that have no place above
    lines = draw_chart(others[0], room, height, scene.ascii_only).lines if others else []
    return side_by_side(steps, lines, begin)


def _draw_gpu_past(scene: Scene, past: GpuSeries, width: int, height: int) -> list[Line]:
    """Use, memory, power and temperature since this screen is open: two charts abreast, two below each other
    where they have the lines."""
    happened = find_happened(scene)
    span = Line(f"last {age(float(past.time_s[-1] - past.time_s[0]))}", "faint")
    curves = [
        Curve(
            [Line(f"GPU {name} ", "dim").add(fixed(float(values[-1]), 0), "strong"), span],
            past.time_s, values, "area", zero=True, reach=reach, figure=float(values[-1]),
            happened=happened, span_s=KEPT_S,
        )
        for name, values, reach in (
            ("use %", past.util_pct, GPU_SCALE), ("memory %", past.mem_pct, GPU_SCALE),
            ("power W", past.power_w, None), ("temperature °C", past.temp_c, None),
        )
        if np.isfinite(values).any()
    ]  # fmt: skip
    half = (width + 1) // 2
    n_bands = 2 if len(curves) > 2 and height >= 2 * LEAST_CHARTS else 1
    high, lines = height // n_bands, []
    for pair in (curves[:2], curves[2:])[:n_bands]:
        drawn = [draw_chart(curve, half - 2, high, scene.ascii_only).lines for curve in pair]
        lines += side_by_side(drawn[0], drawn[1], half) if len(drawn) > 1 else drawn[0] if drawn else []
    return lines


COUNTS = sorted(
    (figure for figure in FIGURES if figure.page_place is not None), key=lambda one: one.page_place or 0
)
"""Figures that have no place in a chart or table of this page."""


def draw_samples(scene: Scene, rank: int, width: int, most: int) -> list[Line]:
    """Which line takes its time: while it is slow in that place, else in the last step that lasted long."""
    late, sampled = scene.frame.straggler, scene.frame.sampled
    stack = None if late is None else stack_of_straggler(sampled, late, rank)
    if stack is None or rank not in scene.stragglers:
        stack = next(
            (
                stack_sample
                for stack_sample in sampled
                if stack_sample.is_long_step and stack_sample.rank == rank
            ),
            None,
        )
    return [] if stack is None or most < LEAST_TREE else tree_lines(scene, stack, width, min(most, MOST_TREE))


class OneRankView(View):
    """A page of the rank under the cursor: moving leads to the next rank in the order of the table."""

    goes_back = True

    def move(self, screen: Screen, lines: int) -> None:
        """Show the next rank, or the one before."""
        self.move_sideways(screen, 1 if lines > 0 else -1)

    def move_sideways(self, screen: Screen, by: int) -> None:
        """Show the next rank, or the one before."""
        place = screen.place
        if place.order:
            index = place.order.index(place.rank) if place.rank in place.order else 0
            place.rank = place.order[(index + by) % len(place.order)]
            screen.open_view(self.name)

    def move_pages(self, screen: Screen, pages: int) -> None:
        """Nothing: the page is no list."""

    def move_to_end(self, screen: Screen, end: int) -> None:
        """To the start (0) or end (1) of the recording."""
        if screen.playback is not None:
            super().move_to_end(screen, end)


class RankView(OneRankView):
    """One rank."""

    name = "rank"
    answers = "one rank: its phases against the group's, its single steps"
    shows_single_steps = True

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Facts, phases, charts of single steps, and the steps themselves as far as there is room."""
        rank = scene.place.rank
        ranks = scene.frame.ranks
        if rank >= len(ranks.state) or (ranks.state[rank] == "waiting" and not known(ranks.pid[rank])):
            words = wrap_lines("this rank has not reported yet", width - 2)
            title = scene.place.name_way(f"rank {rank}", width)
            lines = [draw_rule(width, title), *(Line("  ").add(part, "dim") for part in words)]
            if scene.frame.group.step is None:
                lines += draw_before_first_step(scene, width, height - len(lines))
            return Page(lines[:height])
        extras = draw_extras(scene, rank, width)
        facts = [*draw_facts(scene, rank, width), *extras]
        # How a rank ended comes right below its title.
        facts[1:1] = ended = _draw_exit(scene, rank, width)
        # A suspicion, which may come and go with each frame, is in the title: it moves nothing.
        name = scene.place.name_way(f"rank {rank}", width)
        title = " · ".join(filter(None, (name, describe_suspicion(scene, rank))))
        why, states = draw_reason(scene, rank, width), draw_rule(width, title)
        if scene.frame.start is not None and scene.frame.group.step is None:  # no figure is known yet
            lines = [states, facts[0], *ended, *_draw_position(scene, rank, width, height - 2 - len(ended))]
            return Page([*lines, *draw_before_first_step(scene, width, height - len(lines))][:height])
        times = draw_own_time(scene, rank, width, places=height >= PLACES_FROM)
        lines = [states, *facts, *_draw_position(scene, rank, width, height - len(facts) - 1)]
        nothing_worse = not ended and len(lines) == len(facts) + 1
        if why and nothing_worse:  # why it is slow comes before what is well known
            state = Line(*state_piece(scene, rank, LONG)).add(f"  {_describe_host(scene, rank)}", "dim")
            advice = draw_action(scene, rank, width)
            fits = 2 + len(why) + len(times) + len(advice) < height  # with the line of when it began
            # In the line of its state, as a difference comes and goes; below, where it is too long.
            differing = draw_differences(scene, rank, width)
            if fits and len(differing) == 1 and state.width + differing[0].width <= width:
                state.extend(differing.pop())
            lines = [states, *why, *([state] if fits else []), *times]
            advice = draw_action(scene, rank, width, max(1, height - len(lines) - 1)) if not fits else advice
            lines += draw_samples(scene, rank, width, (height - len(lines) - len(advice)) // 2)
            changes = [*draw_changes(scene, rank, width), *differing]
            lines += changes[: max(1, height - len(lines) - len(advice))]
            lines += advice
            lines += [draw_rule(width), *facts[1:]] if height - len(lines) >= len(facts) + WHY_CHARTS else []
        else:
            n_over, most = len(lines) + len(times) - height, len(facts) - 1 - len(ended)
            if 0 < n_over <= most:  # a whole table is worth more than facts
                del lines[1 + len(facts) - n_over : 1 + len(facts)]
            lines += _cut_parts(times, height - len(lines))
            lines += draw_samples(scene, rank, width, (height - len(lines)) // 2)
        room = height - len(lines) - 1
        focus = scene.frame.focus
        if focus is None or focus.rank != rank:
            lines += [Line(), Line("  its single steps come with the next picture", "dim")]
            return Page(lines[:height])
        if room >= (5 if why else 6):
            tall = min(12, max(5, room // 2))
            lines += [*([draw_rule(width)] if room >= 6 else []), *_draw_charts(scene, focus, width, tall)]
            room = height - len(lines) - 1
        return Page([*lines, *_draw_steps_and_gpu(scene, focus, width, room + 1)][:height])
