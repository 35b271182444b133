"""The whole screen: header, the open view, the bar of a recording, the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddptop.tui.paint.line import Line
from ddptop.tui.paint.text import clean
from ddptop.tui.palette import Entry
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Place, Scene, ViewName
from ddptop.tui.views.buckets import buckets
from ddptop.tui.views.compare import compare
from ddptop.tui.views.compare_runs import compare_runs_page
from ddptop.tui.views.empty import empty
from ddptop.tui.views.events import events
from ddptop.tui.views.footer import footer, key_line
from ddptop.tui.views.header import header
from ddptop.tui.views.heat import heat_page
from ddptop.tui.views.help import help_page
from ddptop.tui.views.overview import overview
from ddptop.tui.views.palette_list import palette_list
from ddptop.tui.views.picker import picker
from ddptop.tui.views.rank_page import rank_page
from ddptop.tui.views.replay_bar import banner
from ddptop.tui.views.run_page import run_page
from ddptop.tui.views.stall import stall_page
from ddptop.tui.views.timeline import timeline_page

View = Callable[[Scene, int, int], "list[Line]"]


def _picker(scene: Scene, width: int, height: int) -> list[Line]:
    return picker(scene.place, width, height, scene.ascii_only)


BODIES: dict[ViewName, View] = {
    "overview": overview,
    "timeline": timeline_page,
    "buckets": buckets,
    "heat": heat_page,
    "events": events,
    "run": run_page,
    "stall": stall_page,
    "rank": rank_page,
    "compare": compare,
    "picker": _picker,
    "runs": compare_runs_page,
    "help": help_page,
}

LEAST_FOR_KEYS = 5
"""Lines from which the key line is worth one of them."""


def picture(scene: Scene, width: int, height: int, offered: Sequence[Entry] = ()) -> list[Line]:
    """Exactly `height` lines of at most `width` cells, whatever the size; `offered`: what the palette has."""
    place = scene.place
    bar = banner(scene, width)
    foot = [bar] if bar is not None else []
    if height - len(foot) >= LEAST_FOR_KEYS or place.prompt is not None or place.note:
        foot.extend(footer(scene, width, max(1, height // 2)))
    room = max(0, height - 1 - len(foot))
    body = BODIES[place.view](scene, width, room)[:room] if room else []
    lines = [header(scene, width), *body, *(Line() for _ in range(room - len(body))), *foot]
    if place.prompt is not None and place.prompt.purpose == "palette":
        over = palette_list(place.prompt, offered, width, room, scene.ascii_only)
        lines[1 + room - len(over) : 1 + room] = over
    return [line.cut(width) for line in lines[:height]]


def without_frame(place: Place, status: str | None, width: int, height: int, ascii_only: bool) -> list[Line]:
    """Before the first frame: the runs to choose from where they were asked for, else what is waited for."""
    room = max(0, height - 1)
    if place.view == "picker":
        lines = picker(place, width, room, ascii_only)[:room]
    else:
        lines = empty(status, width, room, ascii_only)
    foot = key_line(None, width)
    if place.prompt is not None:
        foot = prompt_line(place.prompt, width, ascii_only)
    elif place.note:
        foot = Line(f" {clean(place.note, ascii_only)}", "strong", ground="cursor")
    return [line.cut(width) for line in [*lines, *(Line() for _ in range(room - len(lines))), foot]]
