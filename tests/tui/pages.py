"""Whole pictures as text, without an app: what the lines of a view hold, as a terminal would show them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddptop.render.text import ASCII
from ddptop.tui.all_views import VIEWS
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.picture import picture
from tests.tui.fake_views import with_wanted

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24)}

TINY = {"30x6": (30, 6), "20x5": (20, 5)}


def place_at(view: str, **states: Any) -> Place:
    """A place in a view."""
    return Place(view=view, **states)


def page(
    frame: Frame, place: Place, size: tuple[int, int], *, plain: bool = False, frozen: bool = False
) -> str:
    """The picture once the frame has what the view wants, if it has not. Fails where a line is too wide."""
    width, height = size
    scene = Scene(frame, place, ascii_only=plain, frozen=frozen)
    place.settle(picture(scene, width, height).layout)
    if frame.timeline is None and frame.heat is None:
        frame = with_wanted(frame, VIEWS[place.view].requested_detail(place))
    lines, layout = picture(Scene(frame, place, ascii_only=plain, frozen=frozen), width, height)
    place.settle(layout)
    assert len(lines) == height
    assert max(line.width for line in lines) <= width
    texts = [str(line).translate(ASCII) if plain else str(line) for line in lines]
    return "\n".join(text.rstrip() for text in texts) + "\n"
