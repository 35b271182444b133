"""What holds now, and what happened, newest first."""

from __future__ import annotations

from ddptop.analysis.frames import Alert, Frame, Happening
from ddptop.tui import match
from ddptop.tui.paint.highlight import highlight
from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import age, clock, count, counted
from ddptop.tui.paint.text import fit, wrap
from ddptop.tui.paint.trouble import kind_words
from ddptop.tui.scene import Scene
from ddptop.tui.views.event_lines import alert, happening, texts_of

IN_FULL = 3
"""Lines for the whole text of what is under the cursor."""

ROOM_FOR_IT = 12
"""Lines from which these are worth taking from the list."""

NARROW = 70
"""Cells below which alerts are told shortly."""


def events(scene: Scene, width: int, height: int) -> list[Line]:
    """Alerts above, happenings below, one cursor for both; what is under it in full at the foot."""
    scroll = scene.place.scroll
    alerts, happened = _passing(scene.frame, scene.place.event_filter)
    total = len(alerts) + len(happened)
    scroll.cursor = min(max(scroll.cursor, 0), max(0, total - 1))
    pattern = match.shown(scene.place.searched)
    held = alerts[: max(1, (height - 2) // 3)]
    lines = [rule(width, f"{counted(len(alerts), 'alert')} now", _filtered(scene, width))]
    for at, one in enumerate(held):
        line = highlight(alert(scene, one, width < NARROW), pattern)
        lines.append(_chosen(at == scroll.cursor, line, at, width))
    if not held:
        none = "no alert matches" if scene.frame.alerts else "nothing is wrong now"
        lines.append(Line("  " if scene.frame.alerts else "✓ ", "good").add(none, "dim"))
    hidden = len(alerts) - len(held)
    lines += [Line(f"  and {hidden:,} more", "dim")] if hidden else []
    lines.append(rule(width, f"{counted(len(happened), 'event')}, newest first"))
    if not happened:
        none = "no event matches" if scene.frame.happenings else "nothing has happened yet"
        lines.append(Line(f"  {none}", "dim"))
    full = IN_FULL + 1 if height >= ROOM_FOR_IT and total else 0
    before = len(alerts)
    for at in _window(scene, before, len(happened), height - len(lines) - full):
        line = highlight(happening(scene, happened[at]), pattern)
        lines.append(_chosen(before + at == scroll.cursor, line, before + at, width))
    if full:
        lines += [Line()] * (height - full - len(lines))
        lines += [
            rule(width),
            *_in_full(scene, listed(scene.frame, scene.place.event_filter)[scroll.cursor], width),
        ]
    return lines


def listed(frame: Frame, typed: str = "") -> list[Alert | Happening]:
    """All that the cursor goes through: alerts, then happenings, newest first, that the filter lets pass."""
    alerts, happened = _passing(frame, typed)
    return [*alerts, *happened]


def _passing(frame: Frame, typed: str) -> tuple[list[Alert], list[Happening]]:
    alerts, happened = list(frame.alerts), list(reversed(frame.happenings))
    if not match.words(typed):
        return alerts, happened
    return (
        [alerts[at] for at in match.chosen(typed, texts_of(alerts))],
        [happened[at] for at in match.chosen(typed, texts_of(happened))],
    )


def _filtered(scene: Scene, width: int) -> str:
    typed = scene.place.event_filter
    return fit(f"filter {scene.clean(typed)!r}", width // 2).rstrip() if typed else ""


def _chosen(chosen: bool, line: Line, at: int, width: int) -> Line:
    whole = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "").extend(line)
    whole.target = at
    return whole.cut(width)


def _window(scene: Scene, before: int, total: int, height: int) -> range:
    """The happenings to show: the list stays where it is while the cursor is among the alerts."""
    scroll = scene.place.scroll
    cursor = scroll.cursor
    scroll.cursor = max(0, cursor - before)
    shown = scroll.window(total, height)
    scroll.cursor = cursor
    return shown


def _in_full(scene: Scene, chosen: Alert | Happening, width: int) -> list[Line]:
    when = chosen.unix_s if isinstance(chosen, Happening) else chosen.since_s
    words = [kind_words(scene.clean(chosen.kind)), f"{clock(when)}, {age(scene.frame.unix_s - when)} ago"]
    words += [f"rank {chosen.rank}"] if chosen.rank is not None else []
    words += [f"step {count(chosen.step)}"] if chosen.step is not None else []
    text = " · ".join([*words, scene.clean(chosen.message)])
    return [Line(part) for part in wrap(text, width)][:IN_FULL]
