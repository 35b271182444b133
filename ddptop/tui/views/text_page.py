"""Pages of text: scrolled and searched."""

from __future__ import annotations

from ddptop.render.line import Line, highlight_matches
from ddptop.tui import match
from ddptop.tui.scene import Scene, Scroll


def draw_text(scene: Scene, body: list[Line], height: int) -> tuple[list[Line], Scroll]:
    """At most `height` lines of a text, from where it was scrolled or searched to, with matches marked."""
    place, pattern = scene.place, match.highlight_pattern(scene.place.searched)
    cursor, hit = place.scroll.cursor, place.scroll.hit
    if place.seek and pattern is not None:
        hits = [index for index, line in enumerate(body) if pattern.search(str(line))]
        # A first search begins at the top of what is seen, and that line counts.
        hit = _find_next(hits, hit if hit is not None else place.scroll.top - 1, place.seek)
        cursor = hit if hit is not None else cursor
    top = max(0, min(cursor, len(body) - height))
    shown = body[top : top + height]
    if pattern is None:
        return shown, Scroll(cursor=top, top=top, page=max(1, height))
    lines = [highlight_matches(line, pattern) for line in shown]
    if hit is not None and 0 <= hit - top < len(lines):
        lines[hit - top] = _mark_current(lines[hit - top])
    return lines, Scroll(cursor=top, top=top, page=max(1, height), hit=hit)


def _find_next(hits: list[int], current: int, by: int) -> int | None:
    """The next of some places in a direction, round the end; None where there is none."""
    ahead = [index for index in hits if (index - current) * by > 0]
    if ahead:
        return min(ahead) if by > 0 else max(ahead)
    return hits[0 if by > 0 else -1] if hits else None


def _mark_current(line: Line) -> Line:
    """The line, marked as the current match."""
    chosen = Line(ground="cursor").extend(line)
    chosen.target = line.target
    return chosen


def count_below(scroll: Scroll, body: list[Line], height: int) -> int:
    """How many lines are hidden below."""
    return max(0, len(body) - height - scroll.top)
