"""The page of the start: how far each rank has come on the way to its first step, and what the ranks do that
are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.detail import PositionRequest
from ddptop.frames.numbers import UNKNOWN, duration, fixed
from ddptop.frames.start import MILESTONES, TIMES, alike_ranks
from ddptop.frames.start_words import first_steps_phrase
from ddptop.render import table
from ddptop.render.evidence import draw_position
from ddptop.render.line import Line, Piece, draw_rule
from ddptop.render.text import wrap_lines
from ddptop.tui.keys import Do, PaletteEntry, ScreenKey, view_key
from ddptop.tui.scene import Page, PageLayout, Place, Scene
from ddptop.tui.view import View
from ddptop.tui.views.overview import draw_verdict, verdict_height

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddptop.frames.frame import Frame
    from ddptop.frames.stall import RankPosition
    from ddptop.frames.start import AlikeRanks
    from ddptop.tui.screen import Screen

SEVERAL_S = 5.0
"""A start without trouble that takes no longer than this is not worth a page of its own."""

ROOM_FOR_RULE, ROOM_FOR_DETAIL = 8, 11
"""Lines from which the table has a title, and from which the ranks under the cursor have a part below it."""

TIMES_FROM = 150
"""Cells from which the times of all milestones are columns of the table."""

LIKELY_DETAIL = 8
"""Lines of the part below the table that are kept for it, where the table has more rows than fit."""

LEAST_STACK = 5
"""Lines from which the stack of another row is worth to be begun."""

MOST_RANKS_CELLS = 22

LEAST_WHERE = 12
"""Cells from which the begin of a place says something."""


def start_page_is_due(frame: Frame) -> bool:
    """Whether the page is to be shown without a key: no step is finished, and there is trouble or several
    seconds have passed."""
    start = frame.start
    if start is None or frame.deaths:
        return False
    trouble = frame.stall is not None or any(alert.severity != "info" for alert in frame.alerts)
    times_s = (getattr(one, name) for one in start.ranks for name in TIMES)
    begun_s = min((time_s for time_s in times_s if time_s is not None), default=0.0)
    return trouble or frame.unix_s - frame.run.started_at - begun_s >= SEVERAL_S


class StartView(View):
    """The ranks by milestone, and the stack of those under the cursor."""

    name = "start"
    answers = "how far each rank has come on the way to its first step"

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """Any rank can be asked for its stack."""
        return (view_key("t", "t", self.open_chosen, "stack", "ask the rank for its stack, as Enter does"),)

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """It has no number."""
        return (PaletteEntry(self.name, self.answers, "S", Do.VIEW(self.name)),)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """The verdict, the table, and below it the ranks under the cursor."""
        lines = draw_verdict(scene, width, verdict_height(width, height))
        start = scene.frame.start
        if start is None:
            words = wrap_lines(_explain_nothing(scene.frame), width - 2)
            return Page([*lines, Line(), *(Line("  ").add(text, "dim") for text in words)])
        rows = alike_ranks(start)
        has_rule, has_detail = height >= ROOM_FOR_RULE, height >= ROOM_FOR_DETAIL
        if has_rule:
            lines.append(
                draw_rule(
                    width, first_steps_phrase(start), "seconds after the launch" * (width >= TIMES_FROM)
                )
            )
        columns = _columns(scene, rows, width)
        room = height - len(lines) - 1
        room = max(min(room, 3), room - LIKELY_DETAIL) if has_detail else room
        scroll, shown = scene.place.scroll.fitted(len(rows), room)
        lines.append(Line("  ").extend(table.draw_head(columns, 2)).cut(width))
        for index in shown:
            chosen = index == scroll.cursor
            line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
            line.extend(table.draw_row(columns, index, 2))
            line.target = index
            lines.append(line.cut(width))
        if has_detail and rows:
            first = scroll.cursor
            lines += _draw_stacks(scene, [*rows[first:], *rows[:first]], width, height - len(lines))
        return Page(lines, PageLayout(scroll))

    def exists(self, scene: Scene | None) -> bool:
        """Until every rank has finished its first step."""
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
    return (
        "No rank has said how far it has come. Under ddptop-run, ranks report from the import of torch on; "
        "without it, from their first DDP model on."
    )


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
    if width >= TIMES_FROM:
        times = {title: [_latest(row, name) for row in rows] for name, title in TIMES.items()}
        columns += [table.measured_column(title, texts, 50) for title, texts in times.items()]
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


def _latest(row: AlikeRanks, name: str) -> str:
    """When the last of them came to a milestone."""
    times_s = row.time_range(name)
    return UNKNOWN if times_s is None else fixed(times_s[1])


def _draw_stacks(scene: Scene, rows: Sequence[AlikeRanks], width: int, height: int) -> list[Line]:
    """Of each row, as far as there is room, the times and the stack of one of its ranks; of rows but the
    first one only where the stack is known."""
    lines: list[Line] = []
    for index, row in enumerate(rows):
        position = _known_position(scene, row)
        if index and (position is None or len(lines) + LEAST_STACK > height):
            continue
        lines.append(draw_rule(width, f"rank{'s' * (len(row.ranks) > 1)} {_numbers(row.ranks)}"))
        times = list(_describe_times(row)) if width < TIMES_FROM else []
        lines += [Line("  ").add(text, "dim") for text in wrap_lines(" · ".join(times), width - 2)]
        if position is None:
            hint = wrap_lines(_no_position(scene, row), width - 2)
            lines += [Line("  ").add(text, "dim") for text in hint]
        else:
            due_to_it = row.is_behind and scene.frame.stall is not None
            lines += draw_position(scene, position, width, responsible=due_to_it)
    return lines[:height]


def _no_position(scene: Scene, row: AlikeRanks) -> str:
    who = f"rank {row.ranks[0]}"
    if not row.milestone:
        return f"{who} has not reported, so it cannot be asked for its stack"
    if scene.place.asked_rank in row.ranks:
        return f"{who} is asked for its stack"
    return f"Enter asks {who} for its stack"


def _describe_times(row: AlikeRanks) -> Iterator[str]:
    """`torch 2.1 s`, `moved 3.0 to 3.4 s`."""
    for name, title in TIMES.items():
        if (times_s := row.time_range(name)) is not None:
            first, last = map(fixed, times_s)
            yield f"{title} {last} s" if first == last else f"{title} {first} to {last} s"


def _known_position(scene: Scene, row: AlikeRanks) -> RankPosition | None:
    """Of the rank that was asked, if it is one of these; else of one that was asked in a stall."""
    frame, stall = scene.frame, scene.frame.stall
    of_stall = () if stall is None else stall.positions
    positions = [*([frame.position] if frame.position is not None else []), *of_stall]
    of_row = [position for position in positions if position.rank in row.ranks]
    return max(of_row, key=lambda position: bool(position.traces), default=None)
