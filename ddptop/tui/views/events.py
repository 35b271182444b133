"""What holds now, and what happened, newest first."""

from __future__ import annotations

from ddptop.analysis.frames import Happening
from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import count, counted
from ddptop.tui.paint.text import wrap
from ddptop.tui.scene import Scene
from ddptop.tui.views.event_lines import alert, happening

IN_FULL = 3
"""Lines for the whole text of the event under the cursor."""

ROOM_FOR_IT = 12
"""Lines from which these are worth taking from the list."""


def events(scene: Scene, width: int, height: int) -> list[Line]:
    """Alerts above, happenings below with a cursor; the event under it in full at the foot."""
    held = [alert(scene, one).cut(width) for one in scene.frame.alerts]
    happened = list(reversed(scene.frame.happenings))
    most = max(1, (height - 2) // 3)
    lines = [rule(width, f"{counted(len(held), 'alert')} now")]
    lines += held[:most] or [Line("✓ ", "good").add("nothing is wrong now", "dim")]
    if len(held) > most:
        lines.append(Line(f"  and {len(held) - most:,} more", "dim"))
    lines.append(rule(width, f"{counted(len(happened), 'event')}, newest first"))
    if not happened:
        return [*lines, Line("  nothing has happened yet", "dim")]
    full = IN_FULL + 1 if height >= ROOM_FOR_IT else 0
    scroll = scene.place.scroll
    for at in scroll.window(len(happened), height - len(lines) - full):
        chosen = at == scroll.cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.extend(happening(scene, happened[at])).target = at
        lines.append(line.cut(width))
    if full:
        lines += [Line()] * (height - full - len(lines))
        lines += [rule(width), *_in_full(scene, happened[scroll.cursor], width)]
    return lines


def _in_full(scene: Scene, event: Happening, width: int) -> list[Line]:
    where = [f"rank {event.rank}"] if event.rank is not None else []
    where += [f"step {count(event.step)}"] if event.step is not None else []
    text = " · ".join([scene.clean(event.kind), *where, scene.clean(event.message)])
    return [Line(part) for part in wrap(text, width)][:IN_FULL]
