"""Two ranks side by side, figure by figure, with the sign and size of the difference.

Two recordings side by side, at the same step: figures, differences, buckets, and both their curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.chance import LEAST_STEPS, SAME, difference
from ddptop.frames.differences import differences
from ddptop.frames.figures import GROUP_FIGURES, figures_shown
from ddptop.frames.frame import BucketFigures, Frame, rate_without_stalls
from ddptop.frames.hosts import short_names
from ddptop.frames.numbers import (
    RATIO,
    UNKNOWN,
    clock,
    count,
    counted,
    fixed,
    known,
    percent,
    signed,
)
from ddptop.frames.phrases import blamed, missing_records_phrase, window_phrase
from ddptop.render.line import Line, Role, draw_rule, join_parts, side_by_side
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.phases import draw_legend
from ddptop.render.rank_table import state_piece, table_values
from ddptop.render.sampled_stack import tree_lines
from ddptop.render.text import fit_tail, fit_text, text_width, wrap_lines
from ddptop.tui.scene import Page, PageLayout, Scene
from ddptop.tui.view import View
from ddptop.tui.views.charts import is_logarithmic
from ddptop.tui.views.curve import Curve, draw_chart
from ddptop.tui.views.events import draw_event
from ddptop.tui.views.overview import EDGE, INDENT
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, find_borders, has_panels
from ddptop.tui.views.rank_page import OneRankView, draw_extras
from ddptop.tui.views.rank_table import draw_rank_bar
from ddptop.tui.views.text_page import count_below, draw_text

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.figures import Compared, Figure
    from ddptop.frames.history import History
    from ddptop.tui.screen import Screen

MAX_NAME, MAX_FIGURE = 22, 18

SIGNED = 2
"""Cells that a difference may be wider than a figure."""

BARS_BESIDE = 60
"""Cells from which a quarter of the room is left to bars."""

BARS_FROM = 6
"""Cells of a bar below which a difference is not worth drawing."""


FIGURES_OF_RANKS = figures_shown(lambda figure: figure.compared)


LONG_HOST = 24
"""Cells below which hosts have their short names."""


def _draw_words(scene: Scene, wide: int, left_rank: int, right_rank: int, cell: int) -> list[Line]:
    ranks = scene.frame.ranks
    lines = []
    hosts = short_names(ranks.host) if cell < LONG_HOST else ranks.host
    for name, texts in (("host", hosts), ("device", ranks.device), ("phase", ranks.phase)):
        if not texts[left_rank] and not texts[right_rank]:
            continue
        line = Line("  ").add(fit_text(name, wide - 2), "dim")
        for rank in (left_rank, right_rank):
            line.add(" ").add(_fit_end(scene.clean(texts[rank]) or UNKNOWN, cell - 1))
        lines.append(line)
    state = Line("  ").add(fit_text("state", wide - 2), "dim")
    for rank in (left_rank, right_rank):
        text, role = state_piece(scene, rank, cell - 1)
        text = text if text_width(text) < cell else text.partition(" ")[0]
        state.add(" ").add(fit_text(text, cell - 1, True), role)
    return [state, *lines]


def _fit_end(text: str, width: int) -> str:
    """Set to the right, cut at the front."""
    return fit_text(fit_tail(text, width).strip(), width, True)


TELLING = ("excess_ms", "own_ms", "data_ms", "forward_ms")
"""The figures that tell two ranks apart, which come first where few rows are seen."""


def _telling_place(shown: tuple[Figure, Compared]) -> int:
    name = shown[0].name
    return TELLING.index(name) if name in TELLING else len(TELLING)


def _draw_figures(
    scene: Scene, wide: int, ranks: tuple[int, int], cell: int, width: int, *, telling_first: bool
) -> list[Line]:
    """A row for each figure; of two ranks of which none is known, one line that says so."""
    room = width - wide - 3 * cell - SIGNED - 3
    lines, (left_rank, right_rank) = [], ranks
    figures = sorted(FIGURES_OF_RANKS, key=_telling_place) if telling_first else FIGURES_OF_RANKS
    is_any_known = False
    for figure, how in figures:
        values, text = _values_of_ranks(scene, figure), how.text or figure.text
        if how.shown is not None and not how.shown(values):
            continue
        left_value, right_value = float(values[left_rank]), float(values[right_rank])
        is_any_known = is_any_known or known(left_value) or known(right_value)
        apart = right_value - left_value
        name = figure_name(figure, how)
        if text_width(name) > wide - 2:
            name = name.removesuffix(f" {figure.unit}")
        line = Line("  ").add(fit_text(name, wide - 2), "dim")
        line.add(fit_text(text(left_value), cell, True)).add(fit_text(text(right_value), cell, True))
        difference = _describe_difference(text, apart, left_value)
        line.add(
            fit_text(difference, cell + SIGNED, True), "faint" if difference in ("0", UNKNOWN) else "strong"
        )
        # All times have one scale.
        scale = _find_largest(scene.frame.ranks.step_ms if figure.unit == "ms" else values)
        if room >= BARS_FROM and how.worse and difference not in ("0", UNKNOWN) and scale > 0:
            cells = min(room, round(abs(apart) / scale * room))
            worse = apart * how.worse > 0
            # A sign as well: which of the two is worse must be visible without colour.
            line.add(f" {'▲' if worse else '▾'}" if cells else "  ", "warn" if worse else "good")
            line.add("█" * cells, "warn" if worse else "good")
        lines.append(line)
    return lines if is_any_known else [Line("  no figure is known yet", "dim")]


def figure_name(figure: Figure, how: Compared) -> str:
    """`own time ms`, `memory`."""
    return how.name or f"{figure.called} {figure.unit}".rstrip()


def _values_of_ranks(scene: Scene, figure: Figure) -> Column:
    """(ranks,) its values as tables have them; no part of the step is known where the whole step is not."""
    values = table_values(scene, figure)
    return np.where(scene.breakdown.known, values, np.nan) if figure.part else values


def _find_largest(values: Column) -> float:
    return float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0


def _describe_difference(write: Callable[[float | None], str], apart: float, beside: float) -> str:
    if not known(apart):
        return UNKNOWN
    text = write(abs(apart))
    decimals = write(beside).partition(".")[2]
    if "e" in text and decimals.isdecimal():  # as many decimals as the figures beside it
        text = fixed(abs(apart), len(decimals))
    if not any(letter in "123456789" for letter in text):
        return "0"
    return f"{'+' if apart > 0 else '-'}{text}"


def _name_late_buckets(scene: Scene, left_rank: int, right_rank: int) -> list[Line]:
    """Name the buckets in which either rank is most often the last. Frames have nothing else of buckets by
    rank."""
    lines = [line for rank in (left_rank, right_rank) for line in _draw_last_in(scene, rank, f"rank {rank} ")]
    return lines or (
        [Line("  neither is most often the last in any bucket", "dim")] if _is_last_known(scene) else []
    )


def _is_last_known(scene: Scene) -> bool:
    """Whether it is known which ranks come last in the buckets."""
    is_told = any(bucket.last_arriver is not None for bucket in scene.frame.buckets)
    return is_told and not scene.frame.group.clock_free


def _draw_last_in(scene: Scene, rank: int, name: str = "") -> list[Line]:
    last_in = [bucket for bucket in scene.frame.buckets if bucket.last_arriver == rank]
    if not last_in or not _is_last_known(scene):
        return []
    names = ", ".join(f"{b.index} ({percent(b.last_arriver_pct)})" for b in last_in)
    return [Line(f"  {name}", "strong").add(f"is most often last in bucket {names}", "dim")]


WIDE, NARROW = (18, 11, 9), (15, 9, 8)
"""Cells of a figure's name, of a value, and of a percentage."""

MIN_CHART = 5

WITHOUT_STALL = "  without stall"
"""The row after `steps/s`, of `rate_without_stalls`, where there was a stall."""

FIGURES_OF_RUNS = figures_shown(lambda figure: figure.compared, GROUP_FIGURES)

BEYOND = 10.0
"""A multiple above this means nothing: the divisor is almost zero."""


def draw_two_runs(scene: Scene, width: int, height: int) -> Page:
    """Complete in any size: figures first, then the curves, then the buckets as far as there is room."""
    first, second = scene.frame, scene.other
    if second is None:
        return Page([Line("waiting for the second recording (ddptop replay A --compare B)", "dim")])
    room = width - INDENT
    words, differ = _draw_chance(first, second, width - 1)
    role: Role = words[0].pieces[0][1] if words and words[0].pieces else "dim"
    runs = [_draw_run(scene, letter, frame, room) for letter, frame in (("A", first), ("B", second))]
    block = [*words, *(Line("  ").extend(line) for line in runs)]
    lines = [Line(EDGE, role).extend(line) for line in block]
    lines += _draw_stalls(scene, first, second, width)[: max(0, height - len(lines))]
    table = _draw_figures_of_runs(first, second, width, differ)
    buckets = _draw_buckets_of_runs(first, second, width)
    if has_panels(width, height) and width >= FIGURES_CELLS + BUCKETS_CELLS:
        lines += _draw_panels_of_runs(scene, (first, second), buckets, differ, (width, height - len(lines)))
        return Page(lines[:height])
    lines.append(draw_rule(width))
    room = height - len(lines)
    lines += table[:room]
    room -= min(room, len(table))
    charted = max(0, min(16, room - min(len(buckets), max(0, room - MIN_CHART - 1)) - 1))
    if charted >= MIN_CHART:
        lines += [draw_rule(width), *_draw_charts(scene, first.history, second.history, width, charted)]
        room -= charted + 1
    if room > 2 and len(buckets) > 1:
        lines += buckets[:room]
    return Page(lines[:height])


FIGURES_CELLS, BUCKETS_CELLS = 78, 82
"""Cells of the figures of two runs with bars, and of their buckets with the border."""


def _draw_panels_of_runs(
    scene: Scene, runs: tuple[Frame, Frame], buckets: list[Line], differ: bool, size: tuple[int, int]
) -> list[Line]:
    """The figures with their differences as bars beside the buckets, and both curves below each other."""
    (width, height), (first, second) = size, runs
    figures = _draw_figures_of_runs(first, second, width - BUCKETS_CELLS, differ, with_bars=True)
    columns = [
        PanelColumn(width - BUCKETS_CELLS, [Panel("figures", figures)]),
        PanelColumn(BUCKETS_CELLS, [Panel("buckets", buckets)]),
    ]
    lines = draw_band(columns, len(figures) + 1)
    upper = (height - len(lines)) // 2
    above = find_borders(columns)
    for curve, rows in zip(
        _curves_of_runs(scene, first.history, second.history),
        (upper, height - len(lines) - upper),
        strict=True,
    ):
        chart = Panel("", draw_chart(curve, width, rows - 1, scene.ascii_only).lines)
        lines += draw_band([PanelColumn(width, [chart])], rows, above)
        above = []
    return lines


def _draw_run(scene: Scene, letter: str, frame: Frame, width: int) -> Line:
    played = frame.playback
    parts = [
        Line(f"{letter} ", "accent").add(scene.clean(frame.run.name) or UNKNOWN, "strong"),
        Line("step ", "dim").add(count(frame.group.step), "strong"),
        Line(f"/ {count(played.last_step)}" if played is not None else "", "dim"),
        Line(_describe_straggler(frame), "warn" if frame.straggler is not None else "dim"),
        Line(clock(frame.unix_s), "dim"),
        Line(f"{count(frame.run.world_size)} ranks", "dim"),
        Line(missing_records_phrase(frame.lost_records) if frame.lost_records else "", "warn"),
        Line(scene.clean(frame.run.script), "dim"),
    ]
    return join_parts(parts, width)


def _describe_straggler(frame: Frame) -> str:
    late = frame.straggler
    if late is None:
        return "even"
    how = "longer" if late.basis == "every_step" else "late"
    who = f"rank {late.rank}" if blamed(late) else "ranks in turn"
    return f"▲ {who} {fixed(late.lateness_ms)} ms {how}"


COMPARED_STEPS = 500
"""Newest steps that both runs have, from which it is decided whether one is faster."""


def _draw_chance(first: Frame, second: Frame, width: int) -> tuple[list[Line], bool]:
    """Whether the runs' step times differ by more than chance, over the newest steps that both have, in
    words with the sign of `ddptop check`: what A has more than B. And False where they do not."""
    (a, steps_a), (b, steps_b) = (_last_life(frame.history) for frame in (first, second))
    common = np.intersect1d(a.step[steps_a], b.step[steps_b])[-COMPARED_STEPS:]
    if len(common) < LEAST_STEPS:
        return [Line("○ no step that both runs have, to compare them by", "dim").cut(width)], True
    times = [
        kept.step_ms[part][np.isin(kept.step[part], common)] for kept, part in ((a, steps_a), (b, steps_b))
    ]
    slowdown = difference(*reversed(times))  # B is the base, as that of `ddptop check`
    if slowdown is None:
        return [], True
    sign: Line
    if slowdown.beyond_chance and slowdown.more > 0:
        sign, words = Line("▲ ", "warn"), "A is slower than B"
    elif slowdown.beyond_chance:
        sign, words = Line("● ", "good"), "A is faster than B"
    elif slowdown.may_differ:
        sign, words = Line("○ ", "dim"), "cannot tell which is faster"
    else:
        sign, words = Line("● ", "good"), "no difference beyond chance"
    less = slowdown.more < 0
    ends = (-slowdown.high, -slowdown.low) if less else (slowdown.low, slowdown.high)
    apart = f"{fixed(abs(slowdown.more))} ms ({percent(100 * abs(slowdown.more) / slowdown.first)})"
    parts = (
        f" · {apart} {'less' if less else 'more'} a step",
        f" ({fixed(ends[0])} to {fixed(ends[1])})",
        f" · steps {count(common[0])} to {count(common[-1])}",
    )
    line = join_parts([sign.add(words, "strong"), *(Line(part, "dim") for part in parts)], width, 0)
    return [line], slowdown.beyond_chance


def _draw_stalls(scene: Scene, first: Frame, second: Frame, width: int) -> list[Line]:
    """The stalls of either run until here, a line for each run that has any."""
    lines = []
    for letter, frame in (("A", first), ("B", second)):
        stalls = [event for event in frame.events if event.kind == "stall"]
        if stalls:
            line = Line("■ ", "bad").add(f"{letter} stalled", "strong")
            often = "once" if len(stalls) == 1 else f"{len(stalls)} times, last"
            line.add(f" {often} at {clock(stalls[-1].unix_s)}: ", "dim")
            lines.append(line.add(scene.clean(stalls[-1].message.removeprefix("stall: "))).cut(width))
    return lines


STEP_TIME_ROWS = frozenset({"step ms", "  p95", "steps/s", WITHOUT_STALL})
"""Rows that have no colour where step times do not differ beyond chance."""


def _draw_figures_of_runs(
    first: Frame, second: Frame, width: int, differ: bool, *, with_bars: bool = False
) -> list[Line]:
    room = WIDE if width >= WIDE[0] + 3 * WIDE[1] + WIDE[2] else NARROW
    name_width, value_width, percent_width = room
    head = Line(fit_text(f"at step {count(first.group.step)}", name_width), "faint")
    for letter in "AB":
        head.add(fit_text(letter, value_width, right=True), "accent")
    lines = [
        head.add(fit_text("A - B", value_width, right=True), "dim")
        .add(fit_text("%", percent_width, right=True), "dim")
        .cut(width)
    ]
    rows: list[tuple[Compared, float | None, float | None]] = [
        (how, getattr(first.group, figure.name), getattr(second.group, figure.name))
        for figure, how in FIGURES_OF_RUNS
    ]
    rates = rate_without_stalls(first), rate_without_stalls(second)
    if stalled := rates != (first.group.steps_per_s, second.group.steps_per_s):
        rate_row = next(row for row, (how, *_) in enumerate(rows) if how.name == "steps/s")
        rows.insert(rate_row + 1, (replace(rows[rate_row][0], name=WITHOUT_STALL), *rates))
    for how, a, b in rows:
        name, texts = how.name, [(how.text or fixed)(value) for value in (a, b)]
        line = Line(fit_text(name, name_width), "dim").add(fit_text(texts[0], value_width, right=True))
        line.add(fit_text(texts[1], value_width, right=True), "strong")
        difference, share, role = _compare_values(a, b, how)
        unclear = stalled and name == "steps/s"
        if role != "dim" and name in STEP_TIME_ROWS and not differ:
            share = "chance"
        role = "dim" if unclear or share == "chance" else role
        line.add(fit_text(difference, value_width, right=True), role).add(
            fit_text(share, percent_width, right=True), role
        )
        if with_bars and role in ("warn", "good") and a is not None and b:
            _add_bar(line, abs(a - b) / abs(b) if np.isfinite(a) and np.isfinite(b) else 1.0, role, width)
        lines.append(line.cut(width))
    return lines


def _add_bar(line: Line, share: float, role: Role, width: int) -> None:
    """A difference as a bar up to the end of the line, which 100 % fill."""
    room = width - line.width - 3
    if room >= BARS_FROM:
        line.add(f" {'▲' if role == 'warn' else '▾'}", role).add("█" * min(room, round(share * room)), role)


def _compare_values(a: float | None, b: float | None, how: Compared) -> tuple[str, str, Role]:
    """A minus B, the same in %, and a role: amber where A is worse, green where it is better."""
    if a is None or b is None or not known(a) or not known(b):
        return UNKNOWN, UNKNOWN, "dim"
    # Of two infinite losses 0; beside 0 anything is infinitely more.
    share = 0.0 if a == b else (a - b) / abs(b) if b else math.inf
    role: Role = "dim" if abs(share) < SAME else "good" if (a > b) == (how.worse < 0) else "warn"
    percent = signed(100 * share) if abs(share) < BEYOND else UNKNOWN
    return signed(a - b, how.decimals), percent, role


def _draw_buckets_of_runs(first: Frame, second: Frame, width: int) -> list[Line]:
    """Both layouts by index; a bucket that only one of them has gets dashes."""
    a, b = (
        {bucket.index: bucket for bucket in frame.buckets if bucket.model == 0} for frame in (first, second)
    )
    head = Line(fit_text("bucket", 8), "dim")
    for name, cell, _ in BUCKET_COLUMNS:
        for letter in "AB":
            head.add(fit_text(f"{name} {letter}", cell, right=True), "dim")
    lines = [head.cut(width)]
    for index in sorted({*a, *b}):
        pair = (a.get(index), b.get(index))
        line = Line(fit_text(str(index), 8), "strong")
        for _, cell, text in BUCKET_COLUMNS:
            for bucket in pair:
                line.add(fit_text(UNKNOWN if bucket is None else text(bucket), cell, right=True))
        lines.append(line.cut(width))
    return lines


BUCKET_COLUMNS: tuple[tuple[str, int, Callable[[BucketFigures], str]], ...] = (
    ("MB", 8, lambda bucket: fixed(None if bucket.bytes is None else bucket.bytes / 1e6)),
    ("wait", 8, lambda bucket: fixed(bucket.wait_ms, RATIO)),
    ("transfer", 11, lambda bucket: fixed(bucket.transfer_ms, RATIO)),
    ("busbw", 9, lambda bucket: fixed(bucket.busbw_gbps, RATIO)),
)
"""Figures of a bucket: title, cells of a column, and how one is written."""


def _draw_charts(scene: Scene, a: History, b: History, width: int, height: int) -> list[Line]:
    """Both runs over the same steps: A drawn, B faintly behind it."""
    half = (width + 1) // 2
    left_lines, right_lines = (
        draw_chart(curve, half - 1, height, scene.ascii_only).lines for curve in _curves_of_runs(scene, a, b)
    )
    return side_by_side(left_lines, right_lines, half)


def _curves_of_runs(scene: Scene, a: History, b: History) -> list[Curve]:
    return [
        _make_curve("loss", _last_life(a), _last_life(b), "loss_mean", log=is_logarithmic(scene)),
        _make_curve("step ms", _last_life(a), _last_life(b), "step_ms", zero=True),
    ]


def _make_curve(
    name: str,
    a: tuple[History, slice],
    b: tuple[History, slice],
    field: str,
    *,
    zero: bool = False,
    log: bool = False,
) -> Curve:
    (first, steps_a), (second, steps_b) = a, b
    title = [Line(f"{name} by step", "dim"), Line("━ A", "accent"), Line("┄ B", "faint")]
    title += [Line("log", "dim")] if log else []
    return Curve(
        title, first.step[steps_a], getattr(first, field)[steps_a], "accent", zero=zero, log=log,
        behind=getattr(second, field)[steps_b], behind_x=second.step[steps_b],
    )  # fmt: skip


def _last_life(history: History) -> tuple[History, slice]:
    """From the last restart on: there the step number rises."""
    falls: Indices = np.flatnonzero(np.diff(history.step) < 0)
    return history, slice(int(falls[-1]) + 1 if len(falls) else 0, len(history.step))


RULE_CELLS = 8
"""Cells of a rule besides its words."""

FEW_ROWS = 10
"""Rows of a page below which the figures that tell two ranks apart come first, and what they are last."""


def _draw_table(
    scene: Scene, left_rank: int, right_rank: int, width: int, *, telling_first: bool = False
) -> tuple[Line, list[Line]]:
    """The titles, and a row for each figure."""
    name = min(MAX_NAME, width // 3)
    cell = min(MAX_FIGURE, (width - name - SIGNED) // (4 if width >= BARS_BESIDE else 3))
    titles = [
        f"rank {rank}" if len(f"rank {rank}") < cell else f"r{rank}" for rank in (left_rank, right_rank)
    ]
    times = f"ms, {window_phrase(scene.frame.group)}"
    is_said = scene.frame.group.step is not None and len(times) < name + cell - len(titles[0])
    head = Line(times if is_said else "", "dim")
    head.add(titles[0].rjust(name + cell - head.width), "accent").add(titles[1].rjust(cell), "accent")
    room, apart = cell + SIGNED, f"r{right_rank} - r{left_rank}"
    head.add(fit_text(apart if text_width(apart) < room else "apart", room, True), "dim")
    words = _draw_words(scene, name, left_rank, right_rank, cell)
    ranks = (left_rank, right_rank)
    figures = _draw_figures(scene, name, ranks, cell, width, telling_first=telling_first)
    return head, [*figures, *words] if telling_first else [*words, *figures]


OWN_HEIGHT, TALLEST_PAIR_BAR = 8, 3
"""Lines of what is known of each rank alone, for which bars give way; and those of a bar at most."""

LINES_OF_STACK = 6


def _draw_panels(
    scene: Scene, ranks: tuple[int, int], title: tuple[str, str], width: int, height: int
) -> list[Line]:
    """The step of both as bars, the figures, and of each in what it differs from all other ranks."""
    head, rows = _draw_table(scene, *ranks, width)
    if scene.frame.group.step is None:
        table = draw_band(
            [PanelColumn(width, [Panel(title[0], [head, *rows], figure=title[1])])], len(rows) + 2
        )
        start = draw_before_first_step(scene, width, height - len(table) - 1)
        return table + draw_band([PanelColumn(width, [Panel("the start", start)])], height - len(table))
    room = height - len(rows) - OWN_HEIGHT - 4  # two rules, the titles, the legend
    tall = max(1, min(TALLEST_PAIR_BAR, room // 2))
    bars = []
    for rank in ranks:
        for line_of_bar in range(tall):
            name = f"rank {rank}" if line_of_bar == (tall - 1) // 2 else ""
            bar = draw_rank_bar(scene, rank, width - RANK_CELLS - 1, len(ranks) if name else 0)
            bars.append(Line(fit_text(name, RANK_CELLS), "dim").add("│", "rule").extend(bar))
    legend = draw_legend(scene.ascii_only, scene.stragglers, width, absent=scene.absent_parts)
    steps = Panel(title[0], [*bars, legend], figure=title[1])
    lines = draw_band([PanelColumn(width, [steps])], len(bars) + 2)
    lines += draw_band([PanelColumn(width, [Panel("figures", [head, *rows])])], len(rows) + 2)
    left = (width + 1) // 2
    columns = [
        PanelColumn(cells, [Panel(f"rank {rank}", _draw_own(scene, rank, room))])
        for rank, cells, room in zip(
            ranks, (left, width - left), (left - 1, width - left - BORDER), strict=True
        )
    ]
    high = max(len(column.panels[0].lines) + 1 for column in columns)
    return lines + draw_band(columns, max(high, height - len(lines)))


RANK_CELLS = 10
"""Cells of the name of a rank before its bar."""


def _draw_own(scene: Scene, rank: int, width: int) -> list[Line]:
    """In which buckets it comes last, its GPU and groups, in what it differs from all other ranks, which line
    takes its time, and what has happened to it."""
    frame = scene.frame
    none = [Line("  is most often last in no bucket", "dim")]
    lines = _draw_last_in(scene, rank) or (none if _is_last_known(scene) else [])
    lines += [Line("  ").extend(line) for line in draw_extras(scene, rank, width - 2)]
    for text in differences(frame, rank):
        lines += [Line("  ").add(part) for part in wrap_lines(scene.clean(text), width - 2)]
    for stack in frame.sampled:
        if stack.rank == rank:
            lines += tree_lines(scene, stack, width, LINES_OF_STACK)
    events = [event for event in reversed(frame.events) if event.rank == rank]
    return lines + [Line("  ").extend(draw_event(scene, event, width - 2)) for event in events]


class CompareView(OneRankView):
    """Two ranks side by side."""

    name = "compare"
    answers = "two ranks side by side, with their differences"

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The marked rank on the left, the one under the cursor on the right, and right minus left."""
        place, total = scene.place, len(scene.frame.ranks.state)
        if place.marked is None or place.marked >= total or place.rank >= total:
            hint = Line("  c on the overview marks a rank; then c on another one", "dim")
            return Page([draw_rule(width, "compare"), hint])
        left_rank, right_rank = place.marked, place.rank
        title = place.name_way(f"rank {left_rank} and rank {right_rank}", width)
        sides = "c changes sides" if width >= 60 else ""
        if has_panels(width, height):
            body = _draw_panels(scene, (left_rank, right_rank), (title, sides), width, height)
            shown, scroll = draw_text(scene, body, height)
            return Page(shown, PageLayout(scroll))
        room = height - 2
        head, body = _draw_table(scene, left_rank, right_rank, width, telling_first=room < FEW_ROWS)
        late = _name_late_buckets(scene, left_rank, right_rank)
        body += [Line(), *late] if late else []
        if scene.frame.group.step is None:
            body += draw_before_first_step(scene, width, room - len(body))
        shown, scroll = draw_text(scene, body, room)
        below = count_below(scroll, body, room)
        hidden = f"{counted(below, 'line')} below" if below else ""
        right = " · ".join(words for words in (sides, hidden) if words)
        title = title if text_width(f"{title}{right}") + RULE_CELLS <= width else "compare"
        return Page([draw_rule(width, title, right), head, *shown], PageLayout(scroll))

    def compare_rank(self, screen: Screen) -> None:
        """Change sides."""
        place = screen.place
        if place.marked is not None:
            place.marked, place.rank = place.rank, place.marked
        screen.repaint()


class CompareRunsView(View):
    """Two recordings side by side."""

    name = "runs"
    answers = "two recordings side by side"

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Draw figures, curves and buckets as far as there is room."""
        return draw_two_runs(scene, width, height)
