"""The last line: the keys that matter here, made from the one key table."""

from __future__ import annotations

from ddptop.tui.keys import KEYS, PAIRS
from ddptop.tui.paint.line import Line, gather
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Scene

_ALWAYS = ("q", "?")
"""Kept, however narrow the terminal is; they stand at the end."""

_GIVING_WAY = ("1", "2", "3", "4", "/")


def footer(scene: Scene | None, width: int) -> Line:
    """The prompt while it is open, else as many keys as fit."""
    if scene is not None and scene.place.prompt is not None:
        return prompt_line(scene.place.prompt, width, scene.ascii_only)
    played = scene is not None and scene.frame.playback is not None
    chosen = [key for key in KEYS if key.short and (played or not key.replay)]
    parts = {key.shown: _part(PAIRS.get(key.shown, key.shown), key.short) for key in chosen}
    if scene is not None and scene.place.view in ("rank", "help"):
        parts = {"Esc": _part("Esc", "back"), **parts}
    tail = gather([parts[shown] for shown in reversed(_ALWAYS)], width)
    if played:  # a recording has many keys of its own: the views share one entry
        parts = {"1-4": _part("1-4", "views")} | {
            shown: part for shown, part in parts.items() if shown not in _GIVING_WAY
        }
    lead = [part for shown, part in parts.items() if shown not in _ALWAYS]
    line = gather(lead, width - tail.width - 2)
    return gather([line, tail], width)


def _part(shown: str, short: str) -> Line:
    return Line(shown, "accent").add(f" {short}", "dim")
