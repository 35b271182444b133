"""Before the first frame: what the screen waits for, and what stands in the way."""

from __future__ import annotations

from ddptop.tui.paint.line import Line
from ddptop.tui.paint.text import clean, wrap


def empty(status: str | None, width: int, height: int, ascii_only: bool) -> list[Line]:
    """A few quiet lines in the middle of the screen."""
    words = [Line("ddptop", "strong"), Line(), Line("○ waiting for the first picture of the run", "dim")]
    if status:
        said = wrap(clean(status, ascii_only), max(10, width - 4))
        words += [Line(), *(Line(text, "text") for text in said)]
    words = words if height >= len(words) else [line for line in words if line.width]
    above = max(0, (height - len(words)) // 2)
    lines = [Line() for _ in range(above)]
    for line in words:
        lines.append(Line(" " * max(0, (width - line.width) // 2)).extend(line.cut(width)))
    return lines[:height]
