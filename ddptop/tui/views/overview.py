"""The overview: verdict before table, table before chart."""

from __future__ import annotations

from dataclasses import dataclass

from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import counted
from ddptop.tui.paint.phases import legend
from ddptop.tui.paint.text import cells
from ddptop.tui.paint.trouble import in_trouble
from ddptop.tui.scene import Scene
from ddptop.tui.views.charts import charts
from ddptop.tui.views.event_lines import event_lines
from ddptop.tui.views.rank_table import rank_table, tally
from ddptop.tui.views.verdict_lines import verdict_lines

CHARTS_MOST = 26
"""Lines of charts above which taller curves tell no more, and events do."""

ONE_LINE_VERDICT = 8
"""Lines below which the rows need the room more than the verdict's second line."""


@dataclass(frozen=True, slots=True)
class Heights:
    """How many lines every part gets."""

    verdict: int
    rules: int
    table: int
    legend: int
    chart: int
    events: int


def heights(height: int, ranks: int, verdict: int, happened: int) -> Heights:
    """Share out the lines: the verdict first, then four rows, the legend, events, charts, more rows.

    What taller charts would not need goes to events as far as so many have `happened`.
    """
    verdict = min(verdict, max(1, height - 2))
    if height < 10:
        table = height - verdict
        return Heights(verdict, 0, table, 0, 0, 0)
    free = height - verdict - 1
    rows = max(1, ranks)
    if free < 14:
        table = min(rows + 1, free - 2)
        return Heights(verdict, 1, table, 1, 0, free - table - 1)
    chart_least = 5 if free < 24 else 8
    events = 1 if free < 24 else min(4, free // 8)
    table = min(rows + 1, free - 2 - chart_least - events)
    chart = min(free - 2 - table - events, CHARTS_MOST)
    spare = free - 2 - table - events - chart
    more = min(spare, max(0, happened - events))
    return Heights(verdict, 2, table, 1, chart + spare - more, events + more)


def overview(scene: Scene, width: int, height: int) -> list[Line]:
    """All of the group on one screen."""
    grave = in_trouble(scene.frame)
    most = 1 if height < ONE_LINE_VERDICT else 4 if width < 70 or grave else 3
    said = verdict_lines(scene, width, most)
    room = heights(height, len(scene.frame.ranks.state), len(said), len(scene.frame.happenings))
    lines = said[: room.verdict]
    table = rank_table(scene, width, room.table)
    if room.rules:
        lines.append(rule(width, tally(scene), _alerts(scene, width)))
    lines += table
    lines += [Line()] * (room.table - len(table))
    if room.legend:
        lines.append(legend(scene.ascii_only, scene.culprits, width))
    if room.rules > 1:
        lines.append(rule(width))
    scene.place.charts.top = 1 + len(lines)  # the header of the picture is above
    lines += charts(scene, width, room.chart)
    lines += [Line()] * (height - room.events - len(lines))
    return lines + event_lines(scene, width, room.events) if room.events else lines


def _alerts(scene: Scene, width: int) -> str:
    """That more is wrong than the verdict can say; nothing where the rule has no room for it."""
    held = len(scene.frame.alerts)
    words = f"{counted(held, 'alert')}: key 5"
    return words if held > 1 and cells(tally(scene)) + cells(words) + 12 <= width else ""
