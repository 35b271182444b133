"""The help page, made from the one key table."""

from __future__ import annotations

from ddptop.tui.keys import KEYS
from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import counted
from ddptop.tui.scene import Scene

KEY_WIDTH = 7


def help_page(scene: Scene, width: int, height: int) -> list[Line]:
    """A line per key; those of a recording apart. Scrolls where it is taller than the terminal."""
    entries = [_entry(key.shown, key.help) for key in KEYS if not key.replay]
    entries += [Line("in a recording", "dim")]
    entries += [_entry(key.shown, key.help) for key in KEYS if key.replay]
    scroll = scene.place.scroll
    room = height - 1
    scroll.top = max(0, min(scroll.cursor, len(entries) - room))
    scroll.cursor, scroll.page = scroll.top, max(1, room)
    hidden = len(entries) - room - scroll.top
    more = f"{counted(hidden, 'line')} below" if hidden > 0 else ""
    return [rule(width, "keys", more), *(line.cut(width) for line in entries[scroll.top : scroll.top + room])]


def _entry(shown: str, words: str) -> Line:
    return Line(f"  {shown:<{KEY_WIDTH}}", "accent").add(words)
