"""Which part of coming frames the open view needs beyond what every frame has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.tui.scene import Place


def wanted(place: Place) -> str:
    """A text for `Source.want`; empty: nothing."""
    if place.view == "timeline":
        return place.timeline.want()
    if place.view == "heat":
        return place.heat.want()
    return ""
