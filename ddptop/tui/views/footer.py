"""The last line: the keys that matter here, made from the one key table."""

from __future__ import annotations

from collections.abc import Iterable

from ddptop.tui.keys import KEYS, PAIRS, VIEWS, Key, ViewName
from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.text import cells, wrap
from ddptop.tui.paint.trouble import in_trouble
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Scene

_ALWAYS = ("?", "q")
"""Kept, however narrow the terminal is; they stand at the end."""

_FIRST = ("/", "space", ":", "s", "c", "F", "r")
"""Keys without a place of their own, the most useful first."""


def footer(scene: Scene, width: int, most: int) -> list[Line]:
    """The prompt while it is open, what the last key did in up to `most` lines, else as many keys as fit."""
    if scene.place.prompt is not None:
        return [prompt_line(scene.place.prompt, width, scene.ascii_only)]
    if scene.place.note:
        return _note(scene.clean(scene.place.note), width)[-most:]
    return [key_line(scene, width)]


def key_line(scene: Scene | None, width: int) -> Line:
    """As many keys as fit."""
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


def _note(text: str, width: int) -> list[Line]:
    """A word longer than a line, such as a path, goes on in the next."""
    room = max(1, width - 2)
    lines: list[str] = []
    for part in wrap(text, room):
        while cells(part) > room:
            end = next(at for at in range(room, 0, -1) if cells(part[:at]) <= room or at == 1)
            lines.append(part[:end])
            part = part[end:]
        lines.append(part)
    return [Line(f" {line}", "strong", ground="cursor") for line in lines]
