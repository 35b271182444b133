"""The events page: alerts, then logged events, newest first. Also the event lines of the overview."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import Alert, Frame, LoggedEvent
from ddptop.frames.numbers import age, clock, count, counted
from ddptop.frames.verdict import verdict
from ddptop.render.line import Line, draw_rule, highlight_matches, of_severity
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.text import cut_at_word, fit_text, text_width, wrap_lines
from ddptop.tui import match
from ddptop.tui.keys import Do
from ddptop.tui.scene import Page, PageLayout, Place, Scene, Scroll
from ddptop.tui.screen import Screen
from ddptop.tui.view import View
from ddptop.tui.views.event_detail import begin_of, describe_subject, draw_event_detail
from ddptop.tui.views.host_detail import draw_start
from ddptop.tui.views.moment import Series, draw_before_and_after, draw_moment, reach_s
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, has_panels
from ddptop.tui.views.rank_cells import rank_panel
from ddptop.tui.views.rank_table import draw_ranks_now

if TYPE_CHECKING:
    from ddptop.render.line import Role

ASIDE = 4
"""Cells between two events on one line."""


def draw_events(scene: Scene, width: int, height: int) -> list[Line]:
    """The source's status where the header does not show it, then since when a rank is flagged, then the
    logged events, newest first, without what else the verdict says.

    A single line holds two events where they fit.
    """
    status = scene.status if scene.status != f"the run has {scene.frame.run.state}" else None
    lines = [Line("! ", "warn").add(scene.clean(status), "text").cut(width)] if status else []
    newest_first = [*reversed(scene.frame.events)]
    begin = next((event for event in newest_first if _flags_straggler(scene.frame, event)), None)
    events = [event for event in newest_first if not _in_verdict(scene.frame, event)]
    events = events if begin is None else [begin, *(event for event in events if event is not begin)]
    if height == 1 and not lines and events:
        line = draw_event(scene, events[0], width, short=True)
        for second_event in events[1:2]:
            second = draw_event(scene, second_event, width, short=True)
            if line.width + ASIDE + second.width <= width:
                line.pad(width - second.width).extend(second)
        return [line]
    lines += [draw_event(scene, event, width) for event in events[: height - len(lines)]]
    return lines[:height] or [Line("nothing has happened yet", "faint")]


def _flags_straggler(frame: Frame, event: LoggedEvent) -> bool:
    """Whether the event says when the rank of the verdict was flagged: it has the time and the step."""
    late = frame.straggler
    concerns_it = late is not None and event.rank in (None, late.rank, *late.ranks)
    return event.kind == "straggler" and concerns_it and verdict(frame).kind == "straggler"


def _in_verdict(frame: Frame, event: LoggedEvent) -> bool:
    """Whether the event is the beginning of what the verdict says: it need not be shown twice."""
    begun_alert = next(
        (alert for alert in frame.alerts if (alert.kind, alert.rank) == (event.kind, event.rank)), None
    )
    if begun_alert is None or event.unix_s < begun_alert.since_s:
        return False
    shown = verdict(frame)
    return (
        shown.kind.startswith(event.kind) or event.message in shown.sentence
    )  # `stalled` has the event `stall`


def searched_texts(events: Sequence[Alert | LoggedEvent]) -> list[str]:
    """The texts that a filter searches, in lower case."""
    return [
        f"{event.kind} {condition_of(event.kind).title} {event.severity} {event.message} "
        f"{f'rank {event.rank}' if event.rank is not None else ''} "
        f"{f'step {event.step}' if event.step is not None else ''}".lower()
        for event in events
    ]


def draw_event(scene: Scene, event: LoggedEvent, width: int, short: bool = False) -> Line:
    """Time, sign, message and, where it adds something and there is room, the step."""
    sign, role = of_severity(event.severity, event.kind)
    line = Line(clock(event.unix_s, seconds=not short), "dim").add(f" {sign} ", role)
    return _add_message(scene, line, event, width, "text", has_step=not short)


def _add_message(
    scene: Scene, line: Line, event: Alert | LoggedEvent, width: int, role: Role, *, has_step: bool
) -> Line:
    """The message, without the step in which it began where that does not fit, or cut between two words."""
    message, room = scene.clean(event.message), width - line.width
    if text_width(message) > room:
        message = cut_at_word(re.sub(r" \(step [\d,]+\)$", "", message), room)
    line.add(message, role)
    step = f"  step {count(event.step)}"
    if has_step and event.step is not None and "step" not in event.message:
        line.add(step if line.width + len(step) <= width else "", "faint")
    return line


def draw_alert(scene: Scene, alert: Alert, width: int, short: bool = False) -> Line:
    """A condition that holds now, and for how long; `short` on a narrow screen."""
    sign, role = of_severity(alert.severity, alert.kind)
    lasts = age(scene.frame.unix_s - alert.since_s)
    when = lasts if short else f"since {clock(alert.since_s)}, {lasts}"
    line = Line(f"{sign} ", role).add(f"{when}  ", "dim")
    return _add_message(scene, line, alert, width, "bad" if role == "bad" else "strong", has_step=not short)


IN_FULL = 3
"""Lines for the whole text of what is under the cursor."""

ROOM_FOR_IT = 12
"""Lines from which these are worth taking from the list."""

LEAST_DETAIL = 8
"""Lines from which more is told of it than its text: a short list leaves two thirds or half of the page."""

NARROW = 70
"""Cells below which alerts are shortened."""

SERIES: tuple[Series, Series] = ("steps", "losses")
"""What is drawn around an event."""

MAP_FROM = 44
"""Lines of a page with panels from which one of them is the map of ranks."""

PANEL_PART, FEW_EVENTS = 4, 10
"""On a page with panels, those below each other have one of so many parts of the lines; charts below a list
of few events have more."""

LISTS_SHARE = 0.4
"""Share of the lines of a page with panels for the lists, before the first step."""


def list_events(frame: Frame, typed: str = "") -> list[Alert | LoggedEvent]:
    """The alerts, then the events (newest first) that pass the filter: the cursor goes through them."""
    alerts, happened = _filter_events(frame, typed)
    return [*alerts, *happened]


def _filter_events(frame: Frame, typed: str) -> tuple[list[Alert], list[LoggedEvent]]:
    alerts, happened = list(frame.alerts), list(reversed(frame.events))
    if not match.parse_conditions(typed):
        return alerts, happened
    return (
        [alerts[index] for index in match.find_matches(typed, searched_texts(alerts))],
        [happened[index] for index in match.find_matches(typed, searched_texts(happened))],
    )


def _describe_filter(scene: Scene, width: int) -> str:
    typed = scene.place.event_filter
    return fit_text(f"filter {scene.clean(typed)!r}", width // 2).rstrip() if typed else ""


def _draw_chosen(chosen: bool, line: Line, target: int, width: int) -> Line:
    whole = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "").extend(line)
    whole.target = target
    return whole.cut(width)


def _draw_in_full(scene: Scene, chosen: Alert | LoggedEvent, width: int) -> list[Line]:
    when = chosen.unix_s if isinstance(chosen, LoggedEvent) else chosen.since_s
    message = scene.clean(chosen.message)
    words = [
        f"{clock(when)}, {age(scene.frame.unix_s - when)} ago",
        condition_of(scene.clean(chosen.kind)).title,
    ]
    words += [f"rank {chosen.rank}"] if chosen.rank is not None else []
    words += [f"step {count(chosen.step)}"] if chosen.step is not None else []
    text = " · ".join([*(word for word in words if word not in message), message])
    return [Line(part) for part in wrap_lines(text, width, IN_FULL)]


def _draw_detail(
    scene: Scene, chosen: Alert | LoggedEvent, width: int, height: int, is_cut: bool
) -> list[Line]:
    """`height` lines below a short list: what is known of the one under the cursor."""
    title = draw_rule(width, condition_of(scene.clean(chosen.kind)).title, describe_subject(scene, chosen))
    detail = draw_event_detail(scene, chosen, width, height - 1, is_cut=is_cut)
    return [title, *detail, *[Line()] * (height - 1 - len(detail))]


def _draw_alerts(scene: Scene, alerts: list[Alert], cursor: int, width: int, most: int) -> list[Line]:
    """The first alerts, and how many more there are."""
    pattern = match.highlight_pattern(scene.place.searched)
    lines = [
        _draw_chosen(
            index == cursor,
            highlight_matches(draw_alert(scene, alert, width - 2, width < NARROW), pattern),
            index,
            width,
        )
        for index, alert in enumerate(alerts[:most])
    ]
    if not alerts:
        none = "no alert matches" if scene.frame.alerts else "no alert"
        lines.append(Line("  " if scene.frame.alerts else "✓ ", "good").add(none, "dim"))
    hidden = len(alerts) - most
    return [*lines, Line(f"  and {hidden:,} more", "dim")] if hidden > 0 else lines


class EventLists(NamedTuple):
    """The panels of alerts and of events, and the place of the cursor in both."""

    panels: tuple[Panel, Panel]
    scroll: Scroll
    is_cut: bool
    """Whether the line under the cursor has no room for its message."""


def _list_events(scene: Scene, width: int, height: int) -> EventLists:
    """Alerts above, logged events below, in `height` lines."""
    alerts, happened = _filter_events(scene.frame, scene.place.event_filter)
    n_alerts, typed = len(alerts), _describe_filter(scene, width)
    cursor = min(max(scene.place.scroll.cursor, 0), max(0, n_alerts + len(happened) - 1))
    above = _draw_alerts(scene, alerts, cursor, width, max(1, (height - 2) // 3))
    # The list stays where it is while the cursor is among the alerts.
    scroll = replace(scene.place.scroll, cursor=max(0, cursor - n_alerts))
    scroll, shown = scroll.fitted(len(happened), height - len(above) - 2 - (not happened))
    pattern = match.highlight_pattern(scene.place.searched)
    below = []
    for index in shown:
        line = highlight_matches(draw_event(scene, happened[index], width - 2), pattern)
        below.append(_draw_chosen(n_alerts + index == cursor, line, n_alerts + index, width))
    if not happened:
        none = "no event matches" if scene.frame.events else "nothing has happened yet"
        below.append(Line(f"  {none}", "dim"))
    panels = (
        Panel(f"{counted(n_alerts, 'alert')} now", above, len(above) + 1, figure=typed),
        Panel(f"{counted(len(happened), 'event')}, newest first", below, height - len(above) - 1),
    )
    lines = [str(line) for line in (*above, *below) if line.target == cursor]
    chosen = list_events(scene.frame, scene.place.event_filter)[cursor : cursor + 1]
    is_cut = any(scene.clean(event.message) not in "".join(lines) for event in chosen)
    return EventLists(panels, replace(scroll, cursor=cursor), is_cut)


def _draw_wide(scene: Scene, width: int, height: int) -> Page:
    """The lists, and below them the steps around the chosen one; beside them what is known of it."""
    left, events = width // 2, list_events(scene.frame, scene.place.event_filter)
    right, n_panel, inner = width - left, height // PANEL_PART, width - left - BORDER
    if scene.frame.group.step is None:
        return _draw_before_first_step(scene, width, height)
    few = len(scene.frame.alerts) + len(scene.frame.events) <= FEW_EVENTS
    chart_height = height // (PANEL_PART - 1) if few else n_panel
    lists = _list_events(scene, left, height - 2 * chart_height)
    if not events:
        columns = [PanelColumn(left, lists.panels), PanelColumn(right, [_ranks_panel(scene, inner, height)])]
        return Page(draw_band(columns, height), PageLayout(lists.scroll))
    chosen = events[lists.scroll.cursor]
    at_s, sign = begin_of(chosen) - scene.frame.run.started_at, of_severity(chosen.severity, chosen.kind)
    size = left - 1, chart_height - 1
    steps, losses = (draw_moment(scene, at_s, sign, size, what) for what in SERIES)
    world = len(scene.frame.ranks.state)
    n_map = n_panel if world > 1 and height >= MAP_FROM else 0
    n_detail = height - n_panel - n_map
    detail = _detail_panel(scene, chosen, inner, n_detail, is_cut=lists.is_cut)
    around = f"the step in the {age(reach_s(scene.frame, at_s))} before and after it"
    beside = [detail, Panel(around, draw_before_and_after(scene, at_s, inner))]
    if n_map:
        at_rank = world if chosen.rank is None else chosen.rank
        beside.insert(1, replace(rank_panel(scene, right, n_map, at_rank), height=n_map))
    charts = [
        Panel(f"{what} around it", lines, chart_height)
        for what, lines in (("step time", steps), ("loss", losses))
    ]
    columns = [PanelColumn(left, [*lists.panels, *charts]), PanelColumn(right, beside)]
    return Page(draw_band(columns, height), PageLayout(lists.scroll))


def _draw_before_first_step(scene: Scene, width: int, height: int) -> Page:
    """The lists and what is known of the chosen one, or the ranks; below them how far the ranks have come."""
    left, events = width // 2, list_events(scene.frame, scene.place.event_filter)
    right, n_lists = width - left, int(height * LISTS_SHARE)
    lists = _list_events(scene, left, n_lists)
    if events:
        chosen = events[lists.scroll.cursor]
        beside = _detail_panel(scene, chosen, right - BORDER, n_lists, is_cut=lists.is_cut)
    else:
        beside = _ranks_panel(scene, right - BORDER, n_lists)
    columns = [PanelColumn(left, lists.panels), PanelColumn(right, [beside])]
    start = draw_start(scene, (width, height - n_lists), columns, says_why=not events)
    return Page([*draw_band(columns, n_lists), *start], PageLayout(lists.scroll))


def _detail_panel(
    scene: Scene, chosen: Alert | LoggedEvent, width: int, height: int, *, is_cut: bool
) -> Panel:
    """What is known of the alert or event under the cursor."""
    return Panel(
        condition_of(scene.clean(chosen.kind)).title,
        draw_event_detail(scene, chosen, width, height - 1, is_cut=is_cut),
        height,
        figure=describe_subject(scene, chosen),
    )


def _ranks_panel(scene: Scene, width: int, height: int) -> Panel:
    """All ranks, where there is nothing to choose."""
    return Panel("ranks now", draw_ranks_now(scene, width, height - 1), key="1", opens=Do.VIEW("overview"))


class EventsView(View):
    """Alerts and logged events."""

    name = "events"
    answers = "what is wrong now, and what happened when"
    number = "5"
    always_named = True
    filters_here = True
    filter_hint = "events to show: rank 3, straggler, !joined, /rank [01]\\b/"

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Alerts above, logged events below, one cursor for both; more of what is under it beside them, or at
        the foot in full."""
        if has_panels(width, height):
            return _draw_wide(scene, width, height)
        events = list_events(scene.frame, scene.place.event_filter)
        full = IN_FULL + 1 if height >= ROOM_FOR_IT and events else 0
        n_list = next((room for room in (height // 3, height // 2) if len(events) + 4 <= room), height)
        has_detail = bool(events) and height - n_list >= LEAST_DETAIL
        full = height - n_list if has_detail else full
        lists = _list_events(scene, width, height - full)
        lines = draw_band([PanelColumn(width, lists.panels)], height - full)
        if has_detail:
            lines += _draw_detail(scene, events[lists.scroll.cursor], width, full, lists.is_cut)
        elif not scene.frame.alerts and not scene.frame.events and scene.frame.group.step is None:
            lines = [line for line in lines if line.width]
            lines += draw_before_first_step(scene, width, height - len(lines))
        elif full:
            lines += [draw_rule(width), *_draw_in_full(scene, events[lists.scroll.cursor], width)]
        return Page(lines, PageLayout(lists.scroll))

    def filter_text(self, place: Place) -> str:
        """The filter of events."""
        return place.event_filter

    def set_filter(self, place: Place, text: str) -> None:
        """Filter the events."""
        place.event_filter = text

    def go_to_match(self, screen: Screen, by: int) -> None:
        """Go to the next line that matches."""
        line = find_next_line(screen.scene(), by) if screen.shown is not None else None
        if line is not None:
            screen.place.scroll.cursor = line
        screen.repaint()

    def open_chosen(self, screen: Screen) -> None:
        """Go to the time of the event in a recording, and open the page with its details."""
        if screen.shown is None:
            return
        events = list_events(screen.shown, screen.place.event_filter)
        if not events:
            return
        event = events[min(screen.place.scroll.cursor, len(events) - 1)]
        played = screen.playback
        if played is not None and played.duration_s > 0 and isinstance(event, LoggedEvent):
            begin_s = screen.shown.unix_s - played.position_s
            screen.source.seek(share=min(1.0, max(0.0, (event.unix_s - begin_s) / played.duration_s)))
        if page := condition_of(event.kind).page:
            screen.open_view(page)
        elif event.rank is not None and played is None:
            screen.open_rank(event.rank)


def find_next_line(scene: Scene, by: int) -> int | None:
    """The next line that matches after (or before) the cursor, wrapping around; None where none matches."""
    events = list_events(scene.frame, scene.place.event_filter)
    hits = match.find_matches(scene.place.searched, searched_texts(events))
    cursor = scene.place.scroll.cursor
    ahead = [line for line in hits if (line - cursor) * by > 0]
    if ahead:
        return min(ahead) if by > 0 else max(ahead)
    return hits[0 if by > 0 else -1] if hits else None
