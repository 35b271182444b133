"""What holds now, and what happened, newest first."""

from __future__ import annotations

from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import counted
from ddptop.tui.scene import Scene
from ddptop.tui.views.event_lines import alert, happening


def events(scene: Scene, width: int, height: int) -> list[Line]:
    """Alerts above, happenings below; one list with one cursor over the happenings."""
    held = [alert(scene, one).cut(width) for one in scene.frame.alerts]
    most = max(1, (height - 2) // 2)
    lines = [rule(width, f"{counted(len(held), 'alert')} now")]
    lines += held[:most] or [Line("✓ ", "good").add("nothing is wrong now", "dim")]
    if len(held) > most:
        lines.append(Line(f"  and {len(held) - most:,} more", "dim"))
    happened = list(reversed(scene.frame.happenings))
    lines.append(rule(width, f"{counted(len(happened), 'event')}, newest first"))
    scroll = scene.place.scroll
    for at in scroll.window(len(happened), height - len(lines)):
        chosen = at == scroll.cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.extend(happening(scene, happened[at])).target = at
        lines.append(line.cut(width))
    if not happened:
        lines.append(Line("  nothing has happened yet", "dim"))
    return lines[:height]
