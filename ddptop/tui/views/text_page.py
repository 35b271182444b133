"""A page of text: scrolled, searched, and as high as it is given."""

from __future__ import annotations

from ddptop.render.highlight import highlight
from ddptop.render.line import Line
from ddptop.tui import match
from ddptop.tui.scene import Scene


def text_page(scene: Scene, body: list[Line], height: int) -> list[Line]:
    """At most `height` lines of the body, from where it was scrolled or searched to, with matches marked."""
    place, scroll = scene.place, scene.place.scroll
    pattern = match.shown(place.searched)
    if place.seek and pattern is not None:
        hits = [at for at, line in enumerate(body) if pattern.search(str(line))]
        scroll.hit = _next(hits, scroll.hit if scroll.hit is not None else scroll.top - 1, place.seek)
        scroll.cursor = scroll.hit if scroll.hit is not None else scroll.cursor
    place.seek = 0
    scroll.top = max(0, min(scroll.cursor, len(body) - height))
    scroll.cursor, scroll.page = scroll.top, max(1, height)
    shown = body[scroll.top : scroll.top + height]
    if pattern is None:
        scroll.hit = None
        return shown
    lines = [highlight(line, pattern) for line in shown]
    if scroll.hit is not None and 0 <= scroll.hit - scroll.top < len(lines):
        lines[scroll.hit - scroll.top] = _here(lines[scroll.hit - scroll.top])
    return lines


def _next(hits: list[int], here: int, by: int) -> int | None:
    """The next of some places in a direction, round the end; None where there is none."""
    ahead = [at for at in hits if (at - here) * by > 0]
    if ahead:
        return min(ahead) if by > 0 else max(ahead)
    return hits[0 if by > 0 else -1] if hits else None


def _here(line: Line) -> Line:
    """The same line, of which it is seen that the search stands on it."""
    chosen = Line(ground="cursor").extend(line)
    chosen.target = line.target
    return chosen


def below(scene: Scene, body: list[Line], height: int) -> int:
    """How many lines are hidden below."""
    return max(0, len(body) - height - scene.place.scroll.top)
