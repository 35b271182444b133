"""The gradient buckets: what is sent, how long it takes, at which bandwidth, and who comes last."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ddptop.frames.buckets import launches_of, sent_phrase
from ddptop.frames.figures import Figure
from ddptop.frames.numbers import counted, known
from ddptop.frames.phrases import timed_phrase
from ddptop.render import table
from ddptop.render.bucket_table import bucket_columns, shares_of_best, with_sign
from ddptop.render.line import Line, draw_rule
from ddptop.render.metrics import BUCKET_FIELDS, PROCESS_GROUP_FIELDS
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.phases import draw_legend
from ddptop.render.process_group_table import LAUNCHES, ON_HOST, process_group_columns
from ddptop.render.text import wrap_lines
from ddptop.tui.page_figures import PageFigures
from ddptop.tui.scene import Page, PageLayout, Place, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import View
from ddptop.tui.views.charts import TWO_ABREAST, ChartName, draw_some_charts

MIN_BAR, MAX_BAR = 16, 40
"""Least cells beside the table for a bar to be drawn, and most cells of a bar."""

LEAST_CHART = 5
"""Lines below the table from which there are charts in them."""

_COLLECTIVE = "coll = wait for the slowest rank + transfer, median ms, hidden by compute or not"

_LEGEND = {
    "busbw": "busbw: GB/s (transfer only)",
    "best%": "best%: of best seen",
    "eff": "eff: incl. wait",
    "last": "last rank",
    "a step": "a step: all-reduces of it",
}
"""By title of a column, what it holds."""

_CLOCK_FREE = "~ clock-free: the shortest collective of all ranks is transfer, the rest wait"


def _count_buckets(scene: Scene) -> str:
    figures = scene.frame.buckets
    words = [counted(len(figures), "bucket")]
    if sent := sent_phrase(figures):
        words.append(f"{sent} per step on the wire")
    if figures:
        words.append(f"layout {figures[0].generation}")
    every = scene.frame.overhead.detail_distance
    if every is not None and every > 1:
        words.append(f"timed every {every:,} steps")
    return " · ".join(words)


def _describe_sum(scene: Scene) -> str:
    """Total wait and transfer of the buckets, marked as no part of the step: all-reduces overlap."""
    figures, sign = scene.frame.buckets, "~" if scene.frame.group.clock_free else ""
    wait, transfer = (
        sum(math.nan if ms is None else ms * launches_of(bucket) for ms, bucket in column)
        for column in ([(b.wait_ms, b) for b in figures], [(b.transfer_ms, b) for b in figures])
    )
    parts = f"wait {with_sign(sign, wait)} + transfer {with_sign(sign, transfer)} ms"
    what = "all-reduces" if max(map(launches_of, figures)) > 1 else "buckets"
    return f"sum ({what} overlap), {timed_phrase(scene.frame.group)}: {parts}"


NO_BUCKETS = "No rank has reported a bucket layout: there are no all-reduce times of this run."


def _draw_process_groups(scene: Scene, width: int, height: int) -> Page:
    """A row per process group whose collectives no hook times; a legend where there is room."""
    groups = scene.frame.process_groups
    lines = [draw_rule(width, f"{counted(len(groups), 'process group')} · no bucket is timed")]
    columns = table.fit_columns(process_group_columns(scene), width - 1)
    lines.append(Line(" ").extend(table.draw_head(columns)))
    texts = (LAUNCHES, *([ON_HOST] if any(group.on_host for group in groups) else []))
    legend = [Line(part, "faint") for text in texts for part in wrap_lines(text, width)] if height > 9 else []
    scroll, shown = scene.place.scroll.fitted(len(groups), height - len(lines) - len(legend))
    for index in shown:
        chosen = index == scroll.cursor
        line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
        line.extend(table.draw_row(columns, index))
        line.target = index
        lines.append(line)
    room = height - len(lines) - len(legend)
    lines += _draw_charts(scene, ("step", "parts"), width, room)
    return Page(lines + legend, PageLayout(scroll))


def _draw_charts(scene: Scene, names: Sequence[ChartName], width: int, room: int) -> list[Line]:
    """`room` lines: a blank one, then charts and the looks of the parts where there is room; on a narrow
    screen the first chart alone."""
    names = names if width >= TWO_ABREAST else names[:1]
    charts = draw_some_charts(scene, names, width, room - 2) if room - 2 >= LEAST_CHART else []
    if not charts:
        return [Line()] * room
    lines = [Line(), *charts, *[Line()] * (room - 2 - len(charts))]
    # A chart's own title has no room for every part.
    return [*lines, draw_legend(scene.ascii_only, (), width, absent=scene.absent_parts)]


class BucketColumns(PageFigures):
    """The columns of the table of buckets, which cannot be chosen."""

    fields: Mapping[str, Figure] = {**PROCESS_GROUP_FIELDS, **BUCKET_FIELDS}
    hint = ""
    chooses_columns = False

    def titles(self, scene: Scene) -> tuple[str, ...]:
        """All columns that there can be."""
        has_groups_only = scene.frame.process_groups and not scene.frame.buckets
        return tuple(PROCESS_GROUP_FIELDS if has_groups_only else BUCKET_FIELDS)

    def is_on_screen(self, place: Place, title: str) -> bool:
        """Always: no title stands out, because no column can be chosen."""
        return True

    def choose(self, screen: Screen, title: str) -> None:
        """Nothing to choose."""


class BucketsView(View):
    """The gradient buckets."""

    name = "buckets"
    answers = "size, time and bandwidth of each bucket, who comes last"
    number = "3"
    always_named = True
    figures = BucketColumns()

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """A row per bucket; a legend where there is room."""
        figures = scene.frame.buckets
        if scene.frame.process_groups and not figures:
            return _draw_process_groups(scene, width, height)
        lines = [draw_rule(width, _count_buckets(scene))]
        if not figures and scene.frame.group.step is None:
            return Page([*lines, *draw_before_first_step(scene, width, height - 1)])
        if not figures:
            words = wrap_lines(NO_BUCKETS, width - 4)
            return Page([*lines, Line(), *(Line("  ").add(text, "dim") for text in words)])
        columns = table.fit_columns(bucket_columns(scene), width - 1)
        gap = 2 if table.total_width(columns, 2) < width else 1
        titles = {column.title for column in columns}
        first = _CLOCK_FREE if scene.frame.group.clock_free else _COLLECTIVE if "coll" in titles else ""
        meanings = " · ".join(text for title, text in _LEGEND.items() if title in titles)
        texts = (_describe_sum(scene), first, meanings)
        legend = (
            [Line(part, "faint") for text in texts for part in wrap_lines(text, width)] if height > 9 else []
        )
        head = Line(" ").extend(table.draw_head(columns, gap))
        bar = min(MAX_BAR, width - head.width - 3)
        bar = bar if bar >= MIN_BAR - 3 else 0
        lines.append(head.add("  ┃", "rule").add("busbw, of best seen"[:bar], "dim") if bar else head)
        room = height - len(lines) - len(legend)
        shares = shares_of_best(scene)
        scroll, shown = scene.place.scroll.fitted(len(figures), room)
        for index in shown:
            chosen = index == scroll.cursor
            line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
            line.extend(table.draw_row(columns, index, gap))
            if bar and known(shares[index]):
                line.add("  ┃", "rule").add("█" * round(shares[index] / 100 * bar), "transfer")
            line.target = index
            lines.append(line)
        lines += _draw_charts(scene, ("busbw", "parts"), width, height - len(lines) - len(legend))
        return Page(lines + legend, PageLayout(scroll))
