"""The last line: the keys that matter here, made from the one key table."""

from __future__ import annotations

from collections.abc import Iterable

from ddptop.tui.keys import KEYS, PAIRS, VIEWS, Key, ViewName
from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.text import cells, fit_tail
from ddptop.tui.paint.trouble import in_trouble
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Scene

_ALWAYS = ("?", "q")
"""Kept, however narrow the terminal is; they stand at the end."""

_FIRST = ("/", "space", ":", "s", "c", "F", "r")
"""Keys without a place of their own, the most useful first."""


def footer(scene: Scene | None, width: int) -> Line:
    """The prompt while it is open, a word on what the last key did, else as many keys as fit."""
    if scene is not None and scene.place.prompt is not None:
        return prompt_line(scene.place.prompt, width, scene.ascii_only)
    if scene is not None and scene.place.note:
        return _note(scene, width)
    view = scene.place.view if scene is not None else "overview"
    played = scene is not None and scene.frame.playback is not None
    tail = gather([_part(key) for key in KEYS if key.shown in _ALWAYS], width)
    room = width - tail.width - 2
    views = [_view(key, view) for key in KEYS[: len(VIEWS)] if _wanted(scene, key)]
    if view not in VIEWS:
        views.insert(0, _part(_key("escape"), "back"))
    special = [_part(key) for key in KEYS if key.short and _special(key, view, played)]
    common = [_part(key) for key in _common(view)]
    if _width(views, 1) + _width(special, 2) + (2 if special else 0) > room:
        first = views[:1] if view not in VIEWS else []
        views = [*first, Line(f"1-{len(VIEWS)}", "accent").add(" views", "dim")]
    wide = _width([*views, *special, *common], 2) <= room
    line = gather([gather(views, room, 2 if wide else 1), *special, *common], room)
    return gather([line, tail], width)


def _common(view: ViewName) -> Iterable[Key]:
    """Keys of no page and every page, in the order of their use."""
    for shown in _FIRST:
        found = [key for key in KEYS if key.shown == shown and (view in key.views or not key.views)]
        yield from found[:1]


def _special(key: Key, view: ViewName, played: bool) -> bool:
    return (view in key.views or (key.replay and played)) and key.shown not in (*_FIRST, *_ALWAYS)


def _wanted(scene: Scene | None, key: Key) -> bool:
    """The stall page is offered while there is something on it."""
    return key.short != "stall" or (
        scene is not None and (in_trouble(scene.frame) or scene.place.view == "stall")
    )


def _view(key: Key, view: ViewName) -> Line:
    line = Line(key.shown, "accent").add(f" {key.short}", "strong" if key.short == view else "dim")
    return line.spot(0, line.width, key.action)


def _part(key: Key, short: str = "") -> Line:
    line = Line(PAIRS.get(key.shown, key.shown), "accent").add(f" {short or key.short}", "dim")
    return line.spot(0, line.width, key.action)


def _key(name: str) -> Key:
    return next(key for key in KEYS if key.keys == name)


def _width(parts: list[Line], gap: int) -> int:
    return sum(part.width + gap for part in parts) - gap if parts else 0


def _note(scene: Scene, width: int) -> Line:
    """A path is cut at its front."""
    text = scene.clean(scene.place.note)
    if cells(text) > width - 1:
        head, found, path = text.partition(" /")
        text = f"{head} {fit_tail(found.strip() + path, max(1, width - 2 - cells(head)))}" if found else text
    return Line(f" {text}", "strong", ground="cursor").cut(width)
