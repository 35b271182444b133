"""The events page: alerts, then logged events, newest first. Also the event lines of the overview."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import Alert, Frame, LoggedEvent
from ddptop.frames.numbers import age, clock, count, counted
from ddptop.frames.verdict import verdict
from ddptop.render.line import Line, draw_rule, highlight_matches, of_severity
from ddptop.render.text import fit_text, wrap_lines
from ddptop.tui import match
from ddptop.tui.scene import Page, PageLayout, Place, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import View

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
        line = draw_event(scene, events[0], short=True).cut(width)
        for second_event in events[1:2]:
            second = draw_event(scene, second_event, short=True)
            if line.width + ASIDE + second.width <= width:
                line.pad(width - second.width).extend(second)
        return [line]
    lines += [draw_event(scene, event).cut(width) for event in events[: height - len(lines)]]
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


def draw_event(scene: Scene, event: LoggedEvent, short: bool = False) -> Line:
    """Time, sign, message and, where it adds something, the step."""
    sign, role = of_severity(event.severity, event.kind)
    line = Line(clock(event.unix_s, seconds=not short), "dim").add(f" {sign} ", role)
    line.add(scene.clean(event.message))
    if event.step is not None and "step" not in event.message and not short:
        line.add(f"  step {count(event.step)}", "faint")
    return line


def draw_alert(scene: Scene, alert: Alert, short: bool = False) -> Line:
    """A condition that holds now, and for how long; `short` on a narrow screen."""
    sign, role = of_severity(alert.severity, alert.kind)
    lasts = age(scene.frame.unix_s - alert.since_s)
    when = lasts if short else f"since {clock(alert.since_s)}, {lasts}"
    line = Line(f"{sign} ", role).add(f"{when}  ", "dim")
    line.add(scene.clean(alert.message), "bad" if role == "bad" else "strong")
    if alert.step is not None and "step" not in alert.message and not short:
        line.add(f"  step {count(alert.step)}", "faint")
    return line


IN_FULL = 3
"""Lines for the whole text of what is under the cursor."""

ROOM_FOR_IT = 12
"""Lines from which these are worth taking from the list."""

NARROW = 70
"""Cells below which alerts are shortened."""


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


class EventsView(View):
    """Alerts and logged events."""

    name = "events"
    answers = "what is wrong now, and what happened when"
    number = "5"
    short_name = "evts"
    filters_here = True
    filter_hint = "events to show: rank 3, straggler, !joined, /rank [01]\\b/"

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Alerts above, logged events below, one cursor for both; what is under it in full at the foot."""
        alerts, happened = _filter_events(scene.frame, scene.place.event_filter)
        total = len(alerts) + len(happened)
        cursor = min(max(scene.place.scroll.cursor, 0), max(0, total - 1))
        pattern = match.highlight_pattern(scene.place.searched)
        shown_alerts = alerts[: max(1, (height - 2) // 3)]
        lines = [draw_rule(width, f"{counted(len(alerts), 'alert')} now", _describe_filter(scene, width))]
        for index, shown_alert in enumerate(shown_alerts):
            line = highlight_matches(draw_alert(scene, shown_alert, width < NARROW), pattern)
            lines.append(_draw_chosen(index == cursor, line, index, width))
        if not shown_alerts:
            none = "no alert matches" if scene.frame.alerts else "nothing is wrong now"
            lines.append(Line("  " if scene.frame.alerts else "✓ ", "good").add(none, "dim"))
        hidden = len(alerts) - len(shown_alerts)
        lines += [Line(f"  and {hidden:,} more", "dim")] if hidden else []
        lines.append(draw_rule(width, f"{counted(len(happened), 'event')}, newest first"))
        if not happened:
            none = "no event matches" if scene.frame.events else "nothing has happened yet"
            lines.append(Line(f"  {none}", "dim"))
        full = IN_FULL + 1 if height >= ROOM_FOR_IT and total else 0
        before = len(alerts)
        # The list stays where it is while the cursor is among the alerts.
        scroll = replace(scene.place.scroll, cursor=max(0, cursor - before))
        scroll, shown = scroll.fitted(len(happened), height - len(lines) - full)
        for index in shown:
            line = highlight_matches(draw_event(scene, happened[index]), pattern)
            lines.append(_draw_chosen(before + index == cursor, line, before + index, width))
        if full:
            lines += [Line()] * (height - full - len(lines))
            lines += [
                draw_rule(width),
                *_draw_in_full(scene, list_events(scene.frame, scene.place.event_filter)[cursor], width),
            ]
        return Page(lines, PageLayout(replace(scroll, cursor=cursor)))

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
