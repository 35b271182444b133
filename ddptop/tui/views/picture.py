"""The whole screen: header, the open view, the bar of a recording, the keys."""

from __future__ import annotations

from collections.abc import Callable

from ddptop.tui.paint.line import Line
from ddptop.tui.scene import Scene, ViewName
from ddptop.tui.views.buckets import buckets
from ddptop.tui.views.events import events
from ddptop.tui.views.footer import footer
from ddptop.tui.views.header import header
from ddptop.tui.views.help import help_page
from ddptop.tui.views.overview import overview
from ddptop.tui.views.rank_page import rank_page
from ddptop.tui.views.replay_bar import banner
from ddptop.tui.views.stall import stall_page

BODIES: dict[ViewName, Callable[[Scene, int, int], list[Line]]] = {
    "overview": overview,
    "buckets": buckets,
    "events": events,
    "stall": stall_page,
    "rank": rank_page,
    "help": help_page,
}

LEAST_FOR_KEYS = 5
"""Lines from which the key line is worth one of them."""


def picture(scene: Scene, width: int, height: int) -> list[Line]:
    """Exactly `height` lines of at most `width` cells, whatever the size."""
    bar = banner(scene, width)
    foot = [bar] if bar is not None else []
    if height - len(foot) >= LEAST_FOR_KEYS or scene.place.prompt is not None:
        foot.append(footer(scene, width))
    room = max(0, height - 1 - len(foot))
    body = BODIES[scene.place.view](scene, width, room)[:room] if room else []
    lines = [header(scene, width), *body, *(Line() for _ in range(room - len(body))), *foot]
    return [line.cut(width) for line in lines[:height]]
