"""What the palette offers, above the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.tui.paint.line import Line, rule
from ddptop.tui.paint.numbers import counted
from ddptop.tui.paint.text import cells, clean
from ddptop.tui.palette import Entry
from ddptop.tui.prompt import Prompt

MOST = 12
"""Lines: the picture below stays to be seen."""


def palette_list(
    prompt: Prompt, offered: Sequence[Entry], width: int, height: int, ascii_only: bool
) -> list[Line]:
    """At most MOST lines with a rule above; the chosen one among them."""
    room = min(MOST, height - 1, max(1, len(offered)))
    if room < 1:
        return []
    prompt.at = min(prompt.at, max(0, len(offered) - 1))
    top = max(0, min(prompt.at - room // 2, len(offered) - room))
    lines = [rule(width, "palette", counted(len(offered), "match").replace("matchs", "matches"))]
    for at, entry in enumerate(offered[top : top + room], top):
        chosen = at == prompt.at
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.add(clean(entry.name, ascii_only), "strong" if chosen else "text")
        if entry.help and line.width + cells(entry.help) + 12 <= width:
            line.add(f"  {clean(entry.help, ascii_only)}", "dim")
        line.pad(width - cells(entry.key) - 1).add(entry.key, "accent")
        line.spot(0, width, f"run_palette({prompt.text!r}, {at})")
        lines.append(line)
    return lines if offered else [*lines, Line("  no match", "dim")]
