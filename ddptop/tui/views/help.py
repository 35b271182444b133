"""The help page, made from the one key table."""

from __future__ import annotations

from collections.abc import Iterable

from ddptop.render.line import Line, rule
from ddptop.render.numbers import counted
from ddptop.render.text import fit
from ddptop.tui.keys import ANSWERS, KEYS, Key
from ddptop.tui.scene import Scene
from ddptop.tui.views.text_page import below, text_page

KEY_WIDTH = 8


def help_page(scene: Scene, width: int, height: int) -> list[Line]:
    """A line per key: those of the page that the help was asked on, then all others, a recording's apart."""
    room = height - 1
    body = [line.cut(width) for line in _lines(scene)]
    lines = text_page(scene, body, room)
    hidden = below(scene, body, room)
    more = f"{counted(hidden, 'line')} below" if hidden > 0 else ""
    return [rule(width, "keys", more), *lines]


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
    yield Line("the mouse chooses rows, titles to sort by, keys and the place in a recording", "dim")


def _entry(key: Key, where: str = "") -> Line:
    return Line(f"  {fit(key.shown, KEY_WIDTH)}", "accent").add(key.help + where)
