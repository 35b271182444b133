"""The whole screen: header, the open view, the bar of a recording, the keys.

Also the screen before the first frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ddptop.render.line import Line
from ddptop.render.text import clean_text
from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import PaletteEntry
from ddptop.tui.palette import draw_palette
from ddptop.tui.prompt import prompt_line
from ddptop.tui.scene import Page, Place, Scene
from ddptop.tui.view import View
from ddptop.tui.views.footer import TWO_LINES_FROM, draw_banner, draw_footer, draw_keys, draw_views
from ddptop.tui.views.header import draw_header
from ddptop.tui.views.panels import INSET, draw_box, has_panels
from ddptop.tui.views.picker import draw_picker
from ddptop.tui.views.start import draw_before_first_frame

MIN_FOR_KEYS = 5
"""Lines from which the key line is worth one of them."""


def picture(scene: Scene, width: int, height: int, offered: Sequence[PaletteEntry] = ()) -> Page:
    """Exactly `height` lines of at most `width` cells, whatever the size; `offered`: what the palette has.

    Changes nothing: the caller passes the layout to the place, for keys and the mouse.
    """
    place = scene.place
    bar = draw_banner(scene, width)
    foot = [bar] if bar is not None else []
    if height - len(foot) >= MIN_FOR_KEYS or place.prompt is not None or place.note:
        foot.extend(draw_footer(scene, width, height))
    room = max(0, height - 1 - len(foot))
    view = VIEWS[place.view]
    page, inset = _draw_body(view, partial(view.body, scene), width, room)
    lines = [draw_header(scene, width), *page.lines, *foot]
    if place.prompt is not None and place.prompt.purpose == "palette":
        over = draw_palette(place.prompt, offered, width, room, scene.ascii_only)
        lines[1 + room - len(over) : 1 + room] = over
    return Page([line.cut(width) for line in lines[:height]], replace(page.layout, inset=inset))


def _draw_body(view: View, draw: Callable[[int, int], Page], width: int, room: int) -> tuple[Page, int]:
    """Exactly `room` lines of a view, in a box where there is room for panels, and the cells at its left."""
    boxed = view.in_box and has_panels(width - 2 * INSET, room - 1)
    inset = INSET if boxed else 0
    page = draw(width - 2 * inset, room - boxed) if room else Page([])
    lines = draw_box(page.lines, width, room) if boxed else page.lines[:room]
    return page._replace(lines=[*lines, *(Line() for _ in range(room - len(lines)))]), inset


def without_frame(place: Place, status: str | None, width: int, height: int, ascii_only: bool) -> Page:
    """The picture before the first frame: the runs to choose from where they were asked for, else what is
    waited for."""
    view = VIEWS[place.view] if VIEWS[place.view].lists_runs else VIEWS["start"]
    views = [draw_views(None, width)] if height >= TWO_LINES_FROM and not view.lists_runs else []
    room = max(0, height - 1 - len(views))
    if view.lists_runs:
        page = draw_picker(place, width, room, ascii_only)
        body = [*page.lines[:room], *(Line() for _ in range(room - len(page.lines)))]
    else:
        page, _ = _draw_body(
            view, partial(draw_before_first_frame, status, ascii_only), width, max(0, room - 1)
        )
        body = [Line("ddptop", "dim"), *page.lines]
    foot = draw_keys(None, width, with_views=not views, view=view)
    if place.prompt is not None:
        foot = prompt_line(place.prompt, width, ascii_only)
    elif place.note:
        foot = Line(f" {clean_text(place.note, ascii_only)}", "strong", ground="cursor")
    return Page([line.cut(width) for line in [*body, *views, foot]], page.layout)
