"""Where the next match is."""

from __future__ import annotations

from ddptop.tui import match
from ddptop.tui.scene import Scene
from ddptop.tui.views.event_lines import texts_of
from ddptop.tui.views.events import listed
from ddptop.tui.views.rank_order import ordered, passing


def next_rank(scene: Scene, by: int) -> int | None:
    """The rank that matches next, from the one under the cursor, in the table's order; None: none.

    Ranks that the filter hides do not count.
    """
    hits = set(passing(scene.frame.ranks, scene.place.searched))
    order = [
        rank for rank in ordered(scene, scene.place.scroll.page) if rank in hits or rank == scene.place.rank
    ]
    if not hits.intersection(order):
        return None
    at = order.index(scene.place.rank) if scene.place.rank in order else -1
    for further in range(1, len(order) + 1):
        rank = order[(at + by * further) % len(order)]
        if rank in hits:
            return rank
    return None


def next_line(scene: Scene, by: int) -> int | None:
    """The line of the events after (or before) the cursor that matches; None: none."""
    found = listed(scene.frame, scene.place.event_filter)
    hits = match.chosen(scene.place.searched, texts_of(found))
    cursor = scene.place.scroll.cursor
    ahead = [at for at in hits if (at - cursor) * by > 0]
    return (min(ahead) if by > 0 else max(ahead)) if ahead else (hits[0 if by > 0 else -1] if hits else None)
