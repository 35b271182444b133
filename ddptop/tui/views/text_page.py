"""Pages of text: scrolled and searched. The help page, made from the key table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from ddptop.frames.numbers import counted
from ddptop.protocol.vocabulary import RankStatus
from ddptop.render.line import Line, gather, highlight, of_state, rule
from ddptop.render.text import fit
from ddptop.tui import match
from ddptop.tui.keys import ANSWERS, KEYS, Key
from ddptop.tui.scene import Layout, Page, Scene, Scroll


def text_page(scene: Scene, body: list[Line], height: int) -> tuple[list[Line], Scroll]:
    """At most `height` lines of the body, from where it was scrolled or searched to, with matches marked."""
    place, pattern = scene.place, match.highlight_pattern(scene.place.searched)
    cursor, hit = place.scroll.cursor, place.scroll.hit
    if place.seek and pattern is not None:
        hits = [at for at, line in enumerate(body) if pattern.search(str(line))]
        hit = _next(hits, hit if hit is not None else place.scroll.top - 1, place.seek)
        cursor = hit if hit is not None else cursor
    top = max(0, min(cursor, len(body) - height))
    shown = body[top : top + height]
    if pattern is None:
        return shown, Scroll(cursor=top, top=top, page=max(1, height))
    lines = [highlight(line, pattern) for line in shown]
    if hit is not None and 0 <= hit - top < len(lines):
        lines[hit - top] = _here(lines[hit - top])
    return lines, Scroll(cursor=top, top=top, page=max(1, height), hit=hit)


def _next(hits: list[int], here: int, by: int) -> int | None:
    """The next of some places in a direction, round the end; None where there is none."""
    ahead = [at for at in hits if (at - here) * by > 0]
    if ahead:
        return min(ahead) if by > 0 else max(ahead)
    return hits[0 if by > 0 else -1] if hits else None


def _here(line: Line) -> Line:
    """The same line, marked as the current match."""
    chosen = Line(ground="cursor").extend(line)
    chosen.target = line.target
    return chosen


def below(scroll: Scroll, body: list[Line], height: int) -> int:
    """How many lines are hidden below."""
    return max(0, len(body) - height - scroll.top)


KEY_WIDTH = 8

WORDS = {
    "excess": "own time of a rank minus that of the others",
    "skew": "the ranks' own times differ, so all wait for the slowest one",
    "wait, transfer": "the part of an all-reduce before its last rank joins, and after it",
    "overlapped": "communication while backward computes: it costs no time",
    "without waiting": "the step if no rank had to wait for a slower one",
    "communication hidden": "the step if all communication were overlapped",
    "overhead": "share of the step that ddptop itself takes",
    "records lost": "steps of a rank that never arrived, or had no room on the recording's disk",
    "thinned": "bucket detail, or steps of a recording, left out to save room",
    "ended": "a rank whose process ended because another rank had died",
}
"""Words of the pages that PyTorch's documentation does not explain."""


def help_page(scene: Scene, width: int, height: int) -> Page:
    """A line per key: those of the page that the help was asked on, then all others, a recording's apart."""
    room = height - 1
    body = [line.cut(width) for line in _lines(scene)]
    lines, scroll = text_page(scene, body, room)
    hidden = below(scroll, body, room)
    more = f"{counted(hidden, 'line')} below" if hidden > 0 else ""
    return Page([rule(width, "keys", more), *lines], Layout(scroll))


def _lines(scene: Scene) -> Iterable[Line]:
    before = scene.place.before
    here = [key for key in KEYS if before in key.views]
    if here:
        yield Line(f"on the page before this: {before}, {ANSWERS[before]}", "dim")
        yield from map(_entry, here)
        yield Line("everywhere", "dim")
    yield from (_entry(key) for key in KEYS if not key.replay and not key.views)
    yield Line("in a recording", "dim")
    yield from map(_entry, (key for key in KEYS if key.replay))
    others = [key for key in KEYS if key.views and key not in here]
    if others:
        yield Line("on other pages", "dim")
        yield from (_entry(key, f" ({', '.join(key.views)})") for key in others)
    yield Line("words", "dim")
    yield from (Line(f"  {word}", "strong").add(f": {meaning}") for word, meaning in WORDS.items())
    yield Line("signs of ranks and hosts: ", "dim").extend(gather(list(_signs()), 200))
    yield Line("nothing arrives from a host that is unreachable; after 10 s it is lost", "dim")
    yield Line("the mouse chooses rows, titles to sort by, keys and the place in a recording", "dim")


def _signs() -> Iterable[Line]:
    for state in (*get_args(RankStatus), "ended"):
        sign, role = of_state(state)
        yield Line(sign, role).add(f" {state}")


def _entry(key: Key, where: str = "") -> Line:
    return Line(f"  {fit(key.shown, KEY_WIDTH)}", "accent").add(key.help + where)
