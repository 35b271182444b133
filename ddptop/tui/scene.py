"""What a view paints from: a frame, and where the person is in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddptop.render.context import RenderContext
from ddptop.tui.keys import VIEWS, ViewName
from ddptop.tui.place import Place, Scroll

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

__all__ = ["TO_STALL", "VIEWS", "Place", "Scene", "Scroll", "ViewName"]

TO_STALL = -1
"""Target of a line that opens the stall page: no rank and no place in a list."""


@dataclass(frozen=True)
class Scene(RenderContext):
    """A frame, a place in it and how to draw. Made anew for every picture."""

    place: Place
    frozen: bool = field(default=False, kw_only=True)
    """The picture is held while newer frames come."""
    newest: Frame | None = field(default=None, kw_only=True)
    """The newest frame, while the picture is held."""
    status: str | None = field(default=None, kw_only=True)
    """What the source has to say of itself."""
    failure: str | None = field(default=None, kw_only=True)
    """The internal error that stopped the source's thread."""
    other: Frame | None = field(default=None, kw_only=True)
    """The same moment of a second recording, where two are looked at."""

    @property
    def marked(self) -> int | None:
        """The rank that is marked for a comparison."""
        return self.place.marked

    def at(self, place: Place) -> Scene:
        """The same moment, seen from another place."""
        return replace(self, place=place)
