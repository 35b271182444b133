"""The page of the start: how far each rank has come on the way to its first step, and what the ranks do that
are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.conditions import tone_of
from ddptop.frames.detail import PositionRequest
from ddptop.frames.numbers import UNKNOWN, duration, fixed
from ddptop.frames.start import MILESTONES, TIMES, alike_ranks
from ddptop.frames.start_words import first_steps_phrase
from ddptop.render import table
from ddptop.render.evidence import draw_position
from ddptop.render.line import Line, Piece, draw_rule
from ddptop.render.milestones import TALLEST_START_BAR, draw_milestones
from ddptop.render.text import clean_text, wrap_clauses, wrap_lines
from ddptop.tui.keys import Do, PaletteEntry, ScreenKey, view_key
from ddptop.tui.scene import Page, PageLayout, Place, Scene, Scroll
from ddptop.tui.view import View
from ddptop.tui.views.charts import TWO_ABREAST, ChartName, draw_some_charts
from ddptop.tui.views.events import draw_events
from ddptop.tui.views.overview import EDGE, INDENT, draw_verdict, verdict_height
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, has_panels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddptop.frames.frame import Frame
    from ddptop.frames.stall import RankPosition
    from ddptop.frames.start import AlikeRanks
    from ddptop.tui.screen import Screen

ROOM_FOR_RULE, ROOM_FOR_DETAIL = 8, 11
"""Lines from which the table has a title, and from which the ranks under the cursor have a part below it."""

LIKELY_DETAIL = 8
"""Lines of the part below the table that are kept for it, where the table has more rows than fit."""

LEAST_STACK = 5
"""Lines from which the stack of another row is worth to be begun."""

MOST_RANKS_CELLS = 22

NO_RANK = "start: no rank has reported"
"""The title of the table before it has a row."""

EACH_RANK = (
    "Each rank has a row once it reports: under ddptop-run from the import of torch on, without it from its "
    "first DDP model on."
)

LEAST_WHERE = 12
"""Cells from which the begin of a place says something."""


def start_page_is_due(frame: Frame) -> bool:
    """Whether the page is to be shown without a key: no step is finished, or no rank of a live run has
    reported yet. From the first picture to the first step it is the same page, which fills in."""
    is_empty = not len(frame.ranks.state) and frame.playback is None and frame.run.state == "waiting"
    return (is_empty or frame.start is not None) and not frame.deaths


def draw_before_first_frame(status: str | None, ascii_only: bool, width: int, height: int) -> Page:
    """Draw the page before there is a frame: what is waited for stands where the verdict will be."""
    n_lines = verdict_height(width, height)
    words = wrap_lines(clean_text(status or "", ascii_only), max(10, width - INDENT))
    edge = Line(EDGE if n_lines > 1 else "", tone_of("waiting", "busy"))
    block = [
        Line("○ ").add("waiting for the first report of the run", "strong"),
        *(Line("  ").add(text, "dim") for text in words),
    ]
    block += [Line()] * (n_lines - len(block))
    rule = []
    if height >= ROOM_FOR_RULE:
        rule = [
            draw_rule(width, NO_RANK),
            *(Line("  ").add(text, "dim") for text in wrap_lines(EACH_RANK, width - 2)),
        ]
    return Page([*(Line().extend(edge).extend(line).cut(width) for line in block), *rule])


LEAST_CHART = 8
"""Lines from which the page of a run that has started has charts."""


class StartView(View):
    """The ranks by milestone, and the stack of those under the cursor."""

    name = "start"
    answers = "how far each rank has come on the way to its first step"
    follows_start = True
    explains_start = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """Any rank can be asked for its stack."""
        return (view_key("t", "t", self.open_chosen, "stack", "ask the rank for its stack, as Enter does"),)

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """The entry of the view in the palette: it has no number."""
        return (PaletteEntry(self.name, self.answers, "S", Do.VIEW(self.name)),)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The verdict, the table, and below it the ranks under the cursor."""
        lines = draw_verdict(scene, width, verdict_height(width, height))
        start = scene.frame.start
        if start is None:
            words = wrap_lines(_explain_nothing(scene.frame), width - 2)
            has_begun = scene.frame.group.step is not None
            lines.append(Line() if has_begun or height < ROOM_FOR_RULE else draw_rule(width, NO_RANK))
            lines += [*(Line("  ").add(text, "dim") for text in words), Line()]
            names: tuple[ChartName, ...] = ("loss", "step") if width >= TWO_ABREAST else ("step",)
            room = height - len(lines)
            return Page(lines + (draw_some_charts(scene, names, width, room) if room >= LEAST_CHART else []))
        rows = alike_ranks(start)
        if rows and has_panels(width, height):
            below, scroll = _draw_panels(scene, rows, width, height - len(lines))
            return Page([*lines, *below], PageLayout(scroll))
        has_rule, has_detail = height >= ROOM_FOR_RULE, height >= ROOM_FOR_DETAIL
        if has_rule:
            lines.append(draw_rule(width, first_steps_phrase(start)))
        room = height - len(lines) - 1
        table_lines, scroll = _draw_table(
            scene, rows, width, max(min(room, 3), room - LIKELY_DETAIL) if has_detail else room
        )
        lines += table_lines
        if has_detail and rows:
            lines += _draw_stacks(scene, _from_cursor(rows, scroll), width, height - len(lines))
            bars = draw_milestones(scene, width, min(len(start.ranks) + 3, height // 2))
            if bars and len(lines) + len(bars) < height:  # at the foot, so that they stay where they are
                rule = draw_rule(width, "seconds after the launch")
                lines += [*[Line()] * (height - len(lines) - len(bars) - 1), rule, *bars]
        return Page(lines, PageLayout(scroll))

    def exists(self, scene: Scene | None) -> bool:
        """Whether some rank has not finished its first step."""
        return scene is not None and scene.frame.start is not None

    def requested_detail(self, place: Place) -> str:
        """The position of the rank that was asked for."""
        return "" if place.asked_rank is None else str(PositionRequest(place.asked_rank))

    def on_close(self, place: Place) -> None:
        """Ask it no more."""
        place.asked_rank = None

    def step_back(self, place: Place) -> bool:
        """Ask no more, where a rank was asked."""
        asked, place.asked_rank = place.asked_rank, None
        return asked is not None

    def open_chosen(self, screen: Screen) -> None:
        """Ask the first of the ranks under the cursor for its stack."""
        start = None if screen.shown is None else screen.shown.start
        rows = [] if start is None else alike_ranks(start)
        if rows:
            chosen = rows[min(screen.place.scroll.cursor, len(rows) - 1)]
            screen.place.asked_rank = chosen.ranks[0]
            screen.repaint()

    def rank_under_cursor(self, place: Place) -> int:
        """The one that was asked."""
        return place.rank if place.asked_rank is None else place.asked_rank


def _explain_nothing(frame: Frame) -> str:
    if frame.group.step is not None:
        return "Every rank has finished its first step."
    return EACH_RANK


MOST_ROWS = 8
"""Rows of the table on a wide screen, where bars and stacks have the rest."""

STACKS_HEIGHT = 14
"""Lines of the stacks at least."""

BARS_MORE = 4
"""Lines of the panel of bars besides those: its rule, the seconds, the legend, and an empty one."""

EVENTS_HEIGHT = 5


def _draw_panels(
    scene: Scene, rows: Sequence[AlikeRanks], width: int, height: int
) -> tuple[list[Line], Scroll]:
    """The table, a bar for each rank, and the stacks of the ranks under the cursor beside those of others."""
    start = scene.frame.start
    assert start is not None
    n_ranks = len(start.ranks)
    n_rows = min(n_ranks, MOST_ROWS)
    table_lines, scroll = _draw_table(scene, rows, width, n_rows)
    lines = draw_band([PanelColumn(width, [Panel(first_steps_phrase(start), table_lines)])], n_rows + 2)
    room = height - len(lines) - STACKS_HEIGHT
    tall = min(TALLEST_START_BAR, (room - BARS_MORE) // n_ranks)
    high = tall * n_ranks + BARS_MORE if tall else min(room, MOST_ROWS + BARS_MORE)
    bars = Panel("seconds after the launch", draw_milestones(scene, width, high - 1))
    lines += draw_band([PanelColumn(width, [bars])], high)
    left = (width + 1) // 2
    chosen, *others = _from_cursor(rows, scroll)
    aside = next((row for row in others if _known_position(scene, row) is not None), None)
    left_room, right_room, rest = left - 1, width - left - BORDER, height - len(lines)
    events = Panel("events", draw_events(scene, right_room, rest), key="5", opens=Do.VIEW("events"))
    beside = [] if aside is None else [_stack_panel(scene, aside, right_room, rest - EVENTS_HEIGHT)]
    columns = [
        PanelColumn(left, [_stack_panel(scene, chosen, left_room, rest)]),
        PanelColumn(width - left, [*beside, events]),
    ]
    return lines + draw_band(columns, rest), scroll


def _stack_panel(scene: Scene, row: AlikeRanks, width: int, height: int) -> Panel:
    return Panel(_title_of_row(row), _draw_row_stack(scene, row, width), height)


def _from_cursor(rows: Sequence[AlikeRanks], scroll: Scroll) -> list[AlikeRanks]:
    return [*rows[scroll.cursor :], *rows[: scroll.cursor]]


def _draw_table(scene: Scene, rows: Sequence[AlikeRanks], width: int, room: int) -> tuple[list[Line], Scroll]:
    """Titles, and as many rows as there is room for, those around the cursor."""
    columns = _columns(scene, rows, width)
    scroll, shown = scene.place.scroll.fitted(len(rows), room)
    lines = [Line("  ").extend(table.draw_head(columns, 2)).cut(width)]
    for index in shown:
        chosen = index == scroll.cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.extend(table.draw_row(columns, index, 2))
        line.target = index
        lines.append(line.cut(width))
    return lines, scroll


def _columns(scene: Scene, rows: Sequence[AlikeRanks], width: int) -> list[table.TableColumn]:
    """The columns that fit, in their order; row `i` is `rows[i]`."""
    who = [_numbers(row.ranks) for row in rows]
    reached = [MILESTONES[row.milestone][len(row.members) > 1] for row in rows]
    ages = [
        UNKNOWN if row.since_s is None else duration(max(0.0, scene.frame.unix_s - row.since_s))
        for row in rows
    ]
    places = [scene.clean(row.at) or UNKNOWN for row in rows]

    def piece(texts: list[str], row: int) -> Piece:
        return texts[row], "bad" if rows[row].is_behind and scene.frame.stall is not None else "strong"

    ranks = table.measured_column("ranks", who, 100, right=False, most=MOST_RANKS_CELLS)
    columns = [
        table.TableColumn("ranks", ranks.width, lambda row: piece(who, row), 100, right=False),
        table.measured_column("milestone", reached, 90, right=False),
        table.measured_column("for", ages, 95),
    ]
    columns = table.fit_columns(columns, width - 2, 2)
    room = width - 4 - table.total_width(columns, 2)
    if room >= LEAST_WHERE:  # cut rather than left out: it is the answer
        columns.append(table.measured_column("where", places, 60, right=False, most=room))
    return columns


def _numbers(ranks: Sequence[int]) -> str:
    """`0, 2-3`: ascending ranks, those that follow each other as a span."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and spans[-1][-1] == rank - 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ", ".join("-".join(map(str, span)) for span in spans)


def _draw_stacks(scene: Scene, rows: Sequence[AlikeRanks], width: int, height: int) -> list[Line]:
    """The times and the stack of one rank of each row, as far as there is room; of rows but the first one
    only where the stack is known."""
    lines: list[Line] = []
    for index, row in enumerate(rows):
        if index and (_known_position(scene, row) is None or len(lines) + LEAST_STACK > height):
            continue
        lines += [draw_rule(width, _title_of_row(row)), *_draw_row_stack(scene, row, width)]
    return lines[:height]


def _title_of_row(row: AlikeRanks) -> str:
    return f"rank{'s' * (len(row.ranks) > 1)} {_numbers(row.ranks)}"


def _draw_row_stack(scene: Scene, row: AlikeRanks, width: int) -> list[Line]:
    """The times of some ranks, and the stack of one of them."""
    position = _known_position(scene, row)
    texts = wrap_clauses(" · ".join(_describe_times(scene, row)), width - 2)
    lines = [Line("  ").add(text, "dim") for text in texts]
    if position is None:
        return lines + [
            Line("  ").add(text, "dim") for text in wrap_lines(_no_position(scene, row), width - 2)
        ]
    due_to_it = row.is_behind and scene.frame.stall is not None
    return lines + draw_position(scene, position, width, responsible=due_to_it)


def _no_position(scene: Scene, row: AlikeRanks) -> str:
    who = f"rank {row.ranks[0]}"
    if scene.frame.playback is not None:  # there is nobody to ask
        if scene.place.asked_rank in row.ranks:
            return f"the recording has no stack of {who} here"
        return f"Enter shows the stack of {who}, if it was recorded"
    if not row.milestone:
        return f"{who} has not reported, so it cannot be asked for its stack"
    if scene.place.asked_rank in row.ranks:
        return f"{who} is asked for its stack"
    return f"Enter asks {who} for its stack"


def _describe_times(scene: Scene, row: AlikeRanks) -> Iterator[str]:
    """`torch imported 2.1 s`, `DDP() 3.0 to 3.4 s`."""
    launch_s = 0.0 if scene.frame.start is None else scene.frame.start.launch_s
    for name, title in TIMES.items():
        if (times_s := row.time_range(name)) is not None:
            first, last = (fixed(time_s - launch_s) for time_s in times_s)
            yield f"{title} {last} s" if first == last else f"{title} {first} to {last} s"


def _known_position(scene: Scene, row: AlikeRanks) -> RankPosition | None:
    """The position of the rank that was asked, if it is in this row; else of one that was asked in a
    stall."""
    frame, stall = scene.frame, scene.frame.stall
    of_stall = () if stall is None else stall.positions
    positions = [*([frame.position] if frame.position is not None else []), *of_stall]
    of_row = [position for position in positions if position.rank in row.ranks]
    return max(of_row, key=lambda position: bool(position.traces), default=None)
