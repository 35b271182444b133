"""The whole screen: header, the open view, the bar of a recording, the keys.

Also the screen before the first frame, and what the open view needs beyond what every frame has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddptop.frames.detail import HeatRequest
from ddptop.render.line import Line
from ddptop.render.text import clean, wrap
from ddptop.tui.palette import Entry
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Page, Place, Scene, ViewName
from ddptop.tui.views.buckets import buckets
from ddptop.tui.views.columns import columns_page
from ddptop.tui.views.compare import compare, compare_runs_page
from ddptop.tui.views.events import events
from ddptop.tui.views.footer import banner, footer, key_line
from ddptop.tui.views.header import header
from ddptop.tui.views.heat import heat_page
from ddptop.tui.views.hosts import hosts_page
from ddptop.tui.views.overview import overview
from ddptop.tui.views.picker import palette_list, picker
from ddptop.tui.views.rank_page import rank_page
from ddptop.tui.views.run_page import run_page
from ddptop.tui.views.stall import stall_page
from ddptop.tui.views.text_page import help_page
from ddptop.tui.views.timeline import timeline_page


def empty(status: str | None, width: int, height: int, ascii_only: bool) -> list[Line]:
    """A few quiet lines in the middle of the screen."""
    words = [Line("ddptop", "strong"), Line(), Line("○ waiting for the first frame of the run", "dim")]
    if status:
        said = wrap(clean(status, ascii_only), max(10, width - 4))
        words += [Line(), *(Line(text, "text") for text in said)]
    words = words if height >= len(words) else [line for line in words if line.width]
    above = max(0, (height - len(words)) // 2)
    lines = [Line() for _ in range(above)]
    for line in words:
        lines.append(Line(" " * max(0, (width - line.width) // 2)).extend(line.cut(width)))
    return lines[:height]


View = Callable[[Scene, int, int], Page]


def _picker(scene: Scene, width: int, height: int) -> Page:
    return picker(scene.place, width, height, scene.ascii_only)


BODIES: dict[ViewName, View] = {
    "overview": overview,
    "timeline": timeline_page,
    "buckets": buckets,
    "heat": heat_page,
    "events": events,
    "run": run_page,
    "stall": stall_page,
    "hosts": hosts_page,
    "rank": rank_page,
    "compare": compare,
    "picker": _picker,
    "runs": compare_runs_page,
    "help": help_page,
    "columns": columns_page,
}

MIN_FOR_KEYS = 5
"""Lines from which the key line is worth one of them."""


def picture(scene: Scene, width: int, height: int, offered: Sequence[Entry] = ()) -> Page:
    """Exactly `height` lines of at most `width` cells, whatever the size; `offered`: what the palette has.

    Changes nothing: the caller passes the layout to the place, for keys and the mouse.
    """
    place = scene.place
    bar = banner(scene, width)
    foot = [bar] if bar is not None else []
    if height - len(foot) >= MIN_FOR_KEYS or place.prompt is not None or place.note:
        foot.extend(footer(scene, width, max(1, height // 2)))
    room = max(0, height - 1 - len(foot))
    page = BODIES[place.view](scene, width, room) if room else Page([])
    body = page.lines[:room]
    lines = [header(scene, width), *body, *(Line() for _ in range(room - len(body))), *foot]
    if place.prompt is not None and place.prompt.purpose == "palette":
        over = palette_list(place.prompt, offered, width, room, scene.ascii_only)
        lines[1 + room - len(over) : 1 + room] = over
    return Page([line.cut(width) for line in lines[:height]], page.layout)


def without_frame(place: Place, status: str | None, width: int, height: int, ascii_only: bool) -> Page:
    """Before the first frame: the runs to choose from where they were asked for, else what is waited for."""
    room = max(0, height - 1)
    if place.view == "picker":
        page = picker(place, width, room, ascii_only)
    else:
        page = Page(empty(status, width, room, ascii_only))
    lines = page.lines[:room]
    foot = key_line(None, width)
    if place.prompt is not None:
        foot = prompt_line(place.prompt, width, ascii_only)
    elif place.note:
        foot = Line(f" {clean(place.note, ascii_only)}", "strong", ground="cursor")
    lines = [*lines, *(Line() for _ in range(room - len(lines))), foot]
    return Page([line.cut(width) for line in lines], page.layout)


def requested_detail(place: Place) -> str:
    """A text for `Source.request`; empty: nothing."""
    if place.view == "timeline":
        return place.timeline.request()
    if place.view == "heat":
        return place.heat.request()
    if place.view == "overview" and all(place.charts.strip):
        return str(HeatRequest("excess", *place.charts.strip))
    return ""
