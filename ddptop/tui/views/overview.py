"""The overview: the verdict (a sentence, and what it means in milliseconds), the table, the charts."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ddptop.frames.activity_words import epoch_phrase
from ddptop.frames.bill import total_phrase
from ddptop.frames.conditions import GRAVE_STATES, RED_STATES, tone_of
from ddptop.frames.detail import HeatRequest
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import counted
from ddptop.frames.phrases import blamed, on_hosts, straggler_brief, window_phrase
from ddptop.frames.verdict import SIGNS, Verdict, shown_cost_pct, verdict
from ddptop.render.bill import draw_short_bill
from ddptop.render.line import Line, Role
from ddptop.render.phases import draw_legend, draw_share_bar
from ddptop.render.text import clean_text, text_width, wrap_clauses
from ddptop.render.trouble import as_of, in_trouble, shorten_detail, trouble_brief, waits_long, without_state
from ddptop.tui.keys import Action, Do, PaletteEntry, ScreenKey, view_key
from ddptop.tui.scene import TO_STALL, DrawnCharts, Page, PageLayout, Place, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import View
from ddptop.tui.views.bill import bill_of_frame
from ddptop.tui.views.charts import draw_charts, draw_excess_by_step, is_logarithmic, strip_size
from ddptop.tui.views.curve import choose_area
from ddptop.tui.views.events import draw_events
from ddptop.tui.views.panels import (
    BORDER,
    PANELS_FROM,
    Panel,
    PanelColumn,
    draw_band,
    draw_chart_panels,
    find_borders,
)
from ddptop.tui.views.rank_cells import panel_width, rank_panel
from ddptop.tui.views.rank_order import COLUMNS, FEW_RANKS, SORTS, filter_ranks, order_ranks
from ddptop.tui.views.rank_table import RankRows, count_ranks, draw_rank_table, rank_rows
from ddptop.tui.views.why import draw_first_action

EDGE = "▌"
"""The coloured edge of the verdict's block: one look tells how the run is."""

INDENT = 3
"""Cells of the edge and the sign, before the sentences of the block."""

_QUIET = frozenset({"even", "uneven", "recovered"})
"""Verdicts about skew that no rank can be blamed for: their figures are grey."""


def draw_verdict(scene: Scene, width: int, height: int) -> list[Line]:
    """The verdict in a block of always `height` lines behind a coloured edge: the sentence, what it means in
    milliseconds with its cost as a bar, what to try. A click on it opens the page that explains it."""
    shown = verdict(scene.frame)
    waits = waits_long(scene.frame)
    role: Role = "warn" if waits else tone_of(shown.kind, shown.sign)
    calm: Role = "strong"
    if shown.kind == "uneven":  # nobody is to blame, but what is lost is not well either
        role, calm = "text", "dim"
    sentence_role: Role = role if shown.kind in RED_STATES or waits else calm
    room = width - (INDENT if height > 1 else INDENT - 1)  # one line has no edge: it needs the cell
    sentence, left_out = _wrap_sentence(scene, shown, width, height)
    lines = [Line(text, sentence_role) for text in sentence]
    if shown.kind in _QUIET and " · " in sentence[0]:
        state, _, figure = sentence[0].partition(" · ")
        lines[0] = Line(state, sentence_role).add(f" · {figure}", "dim")
    has_action = height > 2 and bool(draw_first_action(scene, room))
    n_details = height - len(lines) - has_action
    if n_details > 0:
        lines += _draw_details(scene, left_out or shown.detail, room, n_details)
    action = draw_first_action(scene, room, max(1, height - len(lines))) if has_action else []
    lines += [Line()] * (height - len(lines) - len(action))
    lines += action
    target = TO_STALL if in_trouble(scene.frame) else None
    block = []
    for row, line in enumerate(lines[:height]):
        sign = f"{SIGNS[shown.sign]} " if row == 0 else "  "
        edged = Line(EDGE if height > 1 else "", role).add(sign, role).extend(line.cut(room))
        edged.target = target
        if shown.kind in ("straggler", "suspect"):
            edged.spot(0, width, Do.WHY())
        block.append(edged)
    return block


def _wrap_sentence(scene: Scene, shown: Verdict, width: int, height: int) -> tuple[list[str], str]:
    """The lines of the sentence, of all its words or of fewer, and what they leave out of it."""
    room = width - (INDENT if height > 1 else INDENT - 1)
    most = max(1, height - 2) if width < WIDE else 1
    late, whole = scene.frame.straggler, scene.clean(without_state(shown))
    texts = [whole, shown.short or shown.sentence]
    if late is not None and shown.kind == "straggler":
        texts.append(straggler_brief(late, most * room, on_hosts(scene.frame, blamed(late))))
    # Where a rank is has its own line, if there are several.
    brief = replace(shown, detail="") if height > 1 else shown
    one_line = _in_one_line(scene, brief, room)
    if shown.kind in GRAVE_STATES and text_width(one_line) > room:
        texts.append(trouble_brief(brief, most * room))
    for text in texts:
        if len(lines := _wrap_clauses(scene, text, width)) <= most:
            return lines, ""
    # What has no room in the first line is the begin of the second.
    return [one_line], _find_left_out(shown, whole, one_line)


def _find_left_out(shown: Verdict, whole: str, first: str) -> str:
    """The clauses after the first line. Of a stall or an end only where they are a sentence of their own."""
    rest = whole.removeprefix(first)
    if rest == whole or (shown.kind in GRAVE_STATES and not rest.startswith("; ")):
        return ""
    return rest.strip(" ·;:")


def _draw_details(scene: Scene, detail: str, room: int, most: int) -> list[Line]:
    """What the sentence means, in `most` lines; at the right end what it costs, as a bar."""
    bar = _draw_cost(scene) if room >= WIDE - INDENT else None
    if bar is not None and room >= PANELS_FROM - INDENT:  # elsewhere it stands below the figure
        bar = Line("work ", "dim").extend(bar).add(" lost", "dim")
    way = Line("7", "accent").add(" shows the stacks", "dim") if in_trouble(scene.frame) else None
    aside = bar or way
    first = room if aside is None else room - aside.width - 1
    if aside is way and most == 1 and room < WIDE - INDENT and first < text_width(detail) <= room:
        aside, first = None, room  # where the rank is comes before the key that shows more
    texts = _cut_detail(scene, detail, first + INDENT if most == 1 else room + INDENT, most)
    lines = [Line(text, "dim") for text in texts[:most]] or [Line()]
    if aside is not None and lines[-1].width <= first:
        lines[-1] = lines[-1].pad(first + 1).extend(aside)
    return lines


COST_CELLS = 12
"""Cells of the bar that shows which part of the time is lost."""


def _draw_cost(scene: Scene) -> Line | None:
    """The share of the time that the verdict names, as a bar: what is left without it, and the rest; None
    where that is not known, or no longer true."""
    lost_pct = shown_cost_pct(scene.frame)
    is_old = bool(as_of(scene.frame) or scene.frame.activities)  # what is lost in an evaluation is not in it
    if lost_pct is None or is_old or scene.frame.run.world_size < 2:
        return None
    if verdict(scene.frame).kind == "data_bound":
        return None  # the sentence beside it names another loss
    waste = max(0.0, min(100.0, lost_pct))
    work, wait = choose_area("work", scene.ascii_only), choose_area("wait", scene.ascii_only)
    return draw_share_bar(100.0 - waste, (work, wait), COST_CELLS, scene.ascii_only)


def _in_one_line(scene: Scene, shown: Verdict, room: int) -> str:
    """The sentence; where it is too long, of a straggler and of a stall or an end in fewer words, else the
    clauses of it that fit: no figure without what it is of."""
    late = scene.frame.straggler
    if text_width(shown.sentence) <= room:
        return scene.clean(shown.sentence)
    if late is not None and shown.kind == "straggler":
        return straggler_brief(late, room, on_hosts(scene.frame, blamed(late)))
    if shown.kind in GRAVE_STATES:
        return scene.clean(trouble_brief(shown, room))
    short = scene.clean(shown.short or shown.sentence)
    if shown.kind == "uneven" and text_width(short) > room:
        short = short.rpartition(" · ")[2]  # what is lost comes before that no rank is to blame
        short = short if text_width(short) <= room else short.partition(" of ")[0]
    ends = [
        end.start()
        for end in re.finditer(r" · | \| |; |: | or |$", short)
        if text_width(short[: end.start()]) <= room
    ]
    return short[: ends[-1]] if ends else short


def _cut_detail(scene: Scene, detail: str, width: int, most: int) -> list[str]:
    """The second line; without its last parts where these would end in the middle of a sentence."""
    short = shorten_detail(detail, width - INDENT)
    first_end, *ends = [end.start() for end in re.finditer(" · |; |$", short)]
    fits = [end for end in ends if len(_wrap_clauses(scene, short[:end], width)) <= most]
    return _wrap_clauses(scene, short[: max(fits, default=first_end)], width)


def _wrap_clauses(scene: Scene, text: str, width: int) -> list[str]:
    """The lines of a sentence of the verdict."""
    return wrap_clauses(scene.clean(text), width - INDENT)


WIDE = 70
"""Cells from which a sentence has one line, and the cost is drawn as a bar."""

LEAST_CHART = 5
"""Lines of a chart, its rule and an event, from which a chart is worth more than empty lines."""

LOW = 17
"""Lines for all but the verdict, below which all ranks are worth more than a chart."""

VERDICT_LINES, FEW_LINES = 3, 14
"""Lines of the verdict's block; and those of a page below which it has one less."""

ONE_LINE_VERDICT = 8
"""Lines of a page below which the rows need the room more than the verdict's second line."""


def verdict_height(width: int, height: int) -> int:
    """Lines of the verdict's block: the same for every state of a run, so that nothing below it moves."""
    if height < ONE_LINE_VERDICT:
        return 1
    return VERDICT_LINES - (height < FEW_LINES) + (width < WIDE and height >= FEW_LINES)


@dataclass(frozen=True, slots=True)
class Heights:
    """How many lines every part gets."""

    verdict: int
    rules: int
    table: int
    legend: int
    chart: int
    events: int
    tall: int = 1
    """Lines of a row of the table."""


TALL_FROM = 36
"""Lines of a page from which the rows of few ranks have two."""

TWO_RANKS, TWO_RANKS_TALL_FROM = 2, 21
"""Ranks whose rows have two lines already from so many lines of a page on: at 80 x 24."""


def share_out_lines(height: int, ranks: int, verdict: int) -> Heights:
    """Share out the lines: the verdict first, then four rows, the legend, events, charts, more rows.

    On a high page half of the lines are kept for charts: alike ranks are folded. Only the size and the number
    of ranks decide, so that nothing moves when something happens.
    """
    verdict = min(verdict, max(1, height - 2))
    if height < 10:
        table = height - verdict
        return Heights(verdict, 0, table, 0, 0, 0)
    free = height - verdict - 1
    rows = max(1, ranks)
    hides_ranks = rows + 3 <= free < rows + 4 + LEAST_CHART  # as a chart would on a low page
    if free < 14 or (free < LOW and hides_ranks):
        table = min(rows + 1, free - 2)
        free_lines = free - table - 1
        if free_lines >= LEAST_CHART:
            return Heights(verdict, 2, table, 1, free_lines - 2, 1)
        return Heights(verdict, 1, table, 1, 0, free_lines)
    chart_least = 5 if free < 24 else max(8, free // 2)
    events = 1 if free < 24 else min(4, free // 8)
    most = free - 2 - chart_least - events
    is_high = height >= (TALL_FROM if rows > TWO_RANKS else TWO_RANKS_TALL_FROM)
    tall = 2 if is_high and rows <= FEW_RANKS and 2 * rows < most else 1
    table = min(rows * tall + 1, most)
    return Heights(verdict, 2, table, 1, free - 2 - table - events, events, tall)


def _count_alerts(scene: Scene, rows: RankRows, width: int) -> str:
    """The number of alerts where there are several; empty where the rule has no room for it."""
    n_alerts = len(scene.frame.alerts)
    words = f"{counted(n_alerts, 'alert')}: key 5"
    return (
        words
        if n_alerts > 1 and text_width(count_ranks(scene, rows)) + text_width(words) + 12 <= width
        else ""
    )


def _add_unit(scene: Scene, title: str, width: int) -> str:
    """The title with the unit and the steps of the times below it, where there are any and as far as it fits:
    titles of columns have no room for them."""
    if scene.frame.group.step is None:
        return title
    titles = f"{title} · ms, {window_phrase(scene.frame.group)}", f"{title} · ms"
    return next((longer for longer in titles if text_width(longer) <= width), title)


EVENTS_PANEL = 3
"""Lines of the events from which they are a panel on a wide screen, and the charts too."""


def _draw_charts_and_events(
    scene: Scene, drawn: DrawnCharts, size: tuple[int, int], n_events: int
) -> list[Line]:
    """The charts, and the events at the foot; as panels where there is room for them."""
    width, height = size
    blanks = height - n_events - len(drawn.lines)
    titles = {title[0] for title in drawn.titles}
    if width < PANELS_FROM or n_events < EVENTS_PANEL or not titles:
        says_nothing = scene.frame.group.step is None and not scene.frame.events and not scene.status
        # Before the first step, what is waited for is said above.
        events = [] if says_nothing or not n_events else draw_events(scene, width, n_events)
        return [*drawn.lines, *[Line()] * blanks, *events]
    border = (width + 1) // 2 - 1
    charts = [*drawn.lines, *(Line() for _ in range(blanks))]
    foot = _draw_events_and_bill(scene, width, n_events, border)
    return [*draw_chart_panels(charts, titles, border, width), *draw_band(foot, n_events, [border])]


def _draw_events_and_bill(scene: Scene, width: int, height: int, border: int) -> list[PanelColumn]:
    """The newest events, and beside them the bill of the whole run in short, where there is one."""
    bill = bill_of_frame(scene.frame)
    left = width if bill is None or not bill.rows else border
    events = draw_events(scene, left - 1, height - 1)
    columns = [PanelColumn(left, [Panel("events", events, key="5", opens=Do.VIEW("events"))])]
    if bill is not None and left < width:
        right = width - left
        short_bill = draw_short_bill(bill, right - BORDER, height - 1, scene.ascii_only)
        panel = Panel(f"bill · {total_phrase(bill)}", short_bill, key="9", opens=Do.VIEW("bill"))
        columns.append(PanelColumn(right, [panel]))
    return columns


class OverviewView(View):
    """The whole group: verdict, ranks, charts, events."""

    name = "overview"
    answers = "is the run healthy, how fast, who is slow and why"
    number = "1"
    always_named = True
    follows_start = True
    filters_here = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The charts, and the grouping by host."""
        return (*self._chart_keys(), *self._fold_keys())

    def _chart_keys(self) -> tuple[ScreenKey, ...]:
        return (
            view_key("x", "x", self.toggle_crosshair, "crosshair", "crosshair on the charts: arrows move it"),
            view_key("l", "l", self.change_axis, "log axis", "loss axis: log, linear, automatic"),
            view_key(
                "shift+left", "S-Left", self.move_crosshair, "", "crosshair ten columns to the left", -10
            ),
            view_key(
                "shift+right", "S-Right", self.move_crosshair, "", "crosshair ten columns to the right", 10
            ),
        )

    def _fold_keys(self) -> tuple[ScreenKey, ...]:
        return (
            view_key("z", "z", self.fold, "", "fold or unfold the host: its worst rank, or all its ranks"),
            view_key("Z", "Z", self.fold_all, "fold", "fold or unfold all hosts"),
            view_key("v", "v", self.group, "", "group the ranks by host, or do not"),
        )

    def keys_of_use(self, scene: Scene | None) -> tuple[ScreenKey, ...]:
        """Hosts are folded where ranks are grouped by them."""
        grouped = scene is not None and scene.place.table.grouped
        return self.keys if grouped else self._chart_keys()

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The overview of the whole group."""
        lines = draw_verdict(scene, width, verdict_height(width, height))
        room = share_out_lines(height, len(scene.frame.ranks.state), len(lines))
        side = panel_width(scene, width, room.table + room.legend + (room.rules > 0))
        left = width - side
        rows = rank_rows(scene, left, room.table, room.tall)
        if rows.table.grouped:  # fewer rows than ranks: charts and events get the lines that are left
            room = share_out_lines(height, len(rows.table.rows), len(lines))
        block = draw_rank_table(scene, rows, left)
        block += [Line() for _ in range(room.table - len(block))]
        if room.legend:
            legend = draw_legend(scene.ascii_only, scene.stragglers, left, absent=scene.absent_parts)
            block.append(legend if scene.frame.group.step is not None else Line())  # no step, no bar
        title, alerts = None, _count_alerts(scene, rows, left)
        if room.rules:
            title = _add_unit(
                scene, count_ranks(scene, rows), left - text_width(alerts) - (8 if alerts else 4)
            )
        columns = [PanelColumn(left, [Panel(title, block, figure=alerts)])]
        high = len(block) + (room.rules > 0)
        if side:
            chosen = scene.place.rank if rows.cursor is None else rows.table.rank(rows.cursor)
            columns.append(PanelColumn(side, [rank_panel(scene, side, high, chosen)]))
        lines += draw_band(columns, high)
        if room.rules > 1:
            progress = scene.frame.progress
            below = Panel("" if progress is None else epoch_phrase(progress), ())
            lines += draw_band([PanelColumn(width, [below])], 1, find_borders(columns))
        strip = strip_size(scene, width, room.chart)
        lines += draw_excess_by_step(scene, strip, width) if all(strip) else []
        chart_room = room.chart - (strip[0] + 1 if all(strip) else 0)
        drawn = draw_charts(scene, width, chart_room, top=1 + len(lines))  # the header is above
        lines += _draw_charts_and_events(scene, drawn, (width, height - len(lines)), room.events)
        row = rows.cursor if rows.moved else None
        return Page(lines, PageLayout(rows.scroll, rows.table, row, rows.sortable, drawn.plots, strip))

    def requested_detail(self, place: Place) -> str:
        """The excess strip, where there is room for it."""
        return str(HeatRequest("excess", *place.charts.strip)) if all(place.charts.strip) else ""

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """Every order of the ranks, and the setting of every column."""
        orders = tuple(
            PaletteEntry(f"sort by {title}", "the order of the ranks", "", Action(self.show_sorted, (title,)))
            for title in COLUMNS
        )
        return orders + tuple(
            PaletteEntry(
                f"column {title}",
                "always, never, or where it fits",
                "F2",
                Action(self.choose_column, (title,)),
            )
            for title in SORTS
        )

    def show_sorted(self, screen: Screen, title: str) -> None:
        """Open the table, sorted by a column."""
        screen.place.sort, screen.place.inverted = title, False
        screen.open_view(self.name)

    def choose_column(self, screen: Screen, title: str) -> None:
        """Open the table with a column always shown, never, or where it fits: each time the next of these."""
        screen.open_view(self.name)
        self.figures.choose(screen, title)

    def step_back(self, place: Place) -> bool:
        """Leave the crosshair; else clear the filter (its matches stay marked), the search, the mark."""
        if place.charts.off():
            return True
        if place.filter:
            place.filter = ""
        elif place.searched:
            place.searched = ""
        else:
            place.marked = None
        return True

    def move(self, screen: Screen, lines: int) -> None:
        """Move the cursor in the table of ranks."""
        rows = screen.place.table.rows
        if rows:
            row = screen.place.scroll.cursor + lines
            screen.place.point_at(rows[min(max(row, 0), len(rows) - 1)])
            screen.repaint()

    def move_sideways(self, screen: Screen, by: int) -> None:
        """Move the crosshair, where there is one."""
        if screen.place.charts.move(by):
            screen.repaint()
        else:
            super().move_sideways(screen, by)

    def point_at(self, place: Place, target: int) -> None:
        """A click on a row of the table."""
        place.point_at(target)

    def open_chosen(self, screen: Screen) -> None:
        """Open the rank under the cursor, or fold or unfold the host."""
        place, host = screen.place, _host_of_cursor(screen)
        if place.table.grouped and (place.on_host or host in place.table.folded):
            self.fold(screen)
        elif place.rank in place.order:
            screen.open_view("rank")

    def hover(self, place: Place, x: int, y: int) -> bool:
        """The crosshair follows the mouse on a chart."""
        return place.charts.hover(x, y)

    def go_to_match(self, screen: Screen, by: int) -> None:
        """Go to the next rank that matches."""
        place = screen.place
        rank = find_next_rank(screen.scene(), by) if screen.shown is not None else None
        if rank is not None:
            index = host_index(screen.scene().frame.ranks.host)
            place.reveal(rank, index.names[index.of_rank[rank]])
        screen.show_note("" if rank is not None else f"no rank matches {clean_text(place.searched)!r}")

    def sorted_by(self, place: Place) -> tuple[str, bool]:
        """The order of the ranks."""
        return place.sort, place.inverted

    def sort_by(self, place: Place, column: str, *, inverted: bool = False) -> None:
        """Sort the ranks."""
        place.sort, place.inverted = column, inverted

    def can_sort_by(self, column: str) -> bool:
        """A bound is a title too, but not one to sort by."""
        return column in COLUMNS

    def change_axis(self, screen: Screen) -> None:
        """The axis of the loss: first the one that is not shown, then the other one, then automatic again."""
        if screen.shown is None:
            return
        state = screen.place.charts
        before, state.log_loss = state.log_loss, None
        by_itself = is_logarithmic(screen.scene())
        if before is None:
            state.log_loss = not by_itself
        elif before is not by_itself:
            state.log_loss = by_itself
        shown = "logarithmic" if is_logarithmic(screen.scene()) else "linear"
        how = f"automatic, now {shown}" if state.log_loss is None else f"{shown} until you leave"
        screen.show_note(f"axis of the loss: {how}")

    def toggle_crosshair(self, screen: Screen) -> None:
        """Crosshair on the charts, or none."""
        screen.place.charts.toggle()
        if screen.place.charts.at_s is not None:
            screen.show_note("crosshair: Left and Right move it, x removes it")
        screen.repaint()

    def move_crosshair(self, screen: Screen, cells: int) -> None:
        """Move the crosshair."""
        if screen.place.charts.move(cells):
            screen.repaint()

    def fold(self, screen: Screen) -> None:
        """Fold or unfold the host under the cursor, or of the rank under it."""
        place, host = screen.place, _host_of_cursor(screen)
        if host is not None and host in place.table.hosts:
            place.folds.fold(place.table.hosts[host], host not in place.table.folded)
            place.on_host, place.pointed = True, True
        screen.repaint()

    def fold_all(self, screen: Screen) -> None:
        """Fold all hosts; where all are folded, unfold all."""
        place = screen.place
        if place.table.grouped:
            place.folds.fold_all(len(place.table.folded) < len(place.table.hosts))
            place.on_host = True
        screen.repaint()

    def group(self, screen: Screen) -> None:
        """Group the ranks by host, or not."""
        place = screen.place
        if screen.shown is not None and len(host_index(screen.shown.ranks.host).names) < 2:
            screen.show_note("all ranks are on one host")
            return
        place.folds.grouped = not place.table.grouped
        screen.repaint()


def _host_of_cursor(screen: Screen) -> int | None:
    """The place in the index of hosts of the host of the rank under the cursor."""
    of_rank = host_index(screen.shown.ranks.host).of_rank if screen.shown is not None else ()
    return int(of_rank[screen.place.rank]) if screen.place.rank < len(of_rank) else None


def find_next_rank(scene: Scene, by: int) -> int | None:
    """The rank that matches next, from the one under the cursor, in the table's order; None: none.

    Ranks that the filter hides do not count.
    """
    hits = set(filter_ranks(scene.frame.ranks, scene.place.searched, scene.frame.source))
    order = [
        rank
        for rank in order_ranks(scene, scene.place.scroll.page)
        if rank in hits or rank == scene.place.rank
    ]
    if not hits.intersection(order):
        return None
    cursor = order.index(scene.place.rank) if scene.place.rank in order else -1
    for distance in range(1, len(order) + 1):
        rank = order[(cursor + by * distance) % len(order)]
        if rank in hits:
            return rank
    return None
