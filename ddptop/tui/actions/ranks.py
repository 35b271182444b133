"""Order of the ranks, following one of them, comparing two."""

from __future__ import annotations

from ddptop.render.host_table import SORTS
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.views.rank_order import COLUMNS


class RankActions(ActionsBase):
    """Actions on the table of ranks."""

    def action_sort(self, by: int) -> None:
        """Sort the ranks, or the hosts, by the next column on the screen."""
        place = self.place
        if place.view not in ("overview", "hosts") or not place.sortable:
            return
        now = place.hosts.sort if place.view == "hosts" else place.sort
        at = place.sortable.index(now) if now in place.sortable else 0 if place.view == "overview" else -1
        self._sort_by(place.sortable[(at + by) % len(place.sortable)])

    def action_sort_by(self, column: str) -> None:
        """Sort by a column; the second time in reverse order."""
        hosts = self.place.view == "hosts"
        if column == (self.place.hosts.sort if hosts else self.place.sort):
            self.action_invert()
        elif column in (SORTS if hosts else COLUMNS):  # a bound is a title too, but not one to sort by
            self._sort_by(column)

    def _sort_by(self, column: str) -> None:
        place = self.place
        if place.view == "hosts":
            place.hosts.sort, place.hosts.inverted = column, False
        else:
            place.sort, place.inverted = column, False
        self.repaint()

    def action_invert(self) -> None:
        """Reverse the order."""
        place = self.place
        if place.view == "overview":
            place.inverted = not place.inverted
        elif place.view == "hosts":
            place.hosts.inverted = not place.hosts.inverted
        else:
            return
        self.repaint()

    def action_follow(self) -> None:
        """Follow the rank under the cursor, or no longer."""
        place = self.place
        place.rank = self._pointed_at()
        place.follow = not place.follow
        self.show_note(f"following rank {place.rank}: F or another rank ends it" if place.follow else "")

    def action_compare(self) -> None:
        """Mark the rank under the cursor; with another one marked, compare the two."""
        place = self.place
        if place.view == "compare":
            self._change_sides()
            return
        place.rank = self._pointed_at()
        if place.marked is None:
            place.marked = place.rank
            self.show_note(f"rank {place.rank} is marked: c on another rank compares the two")
        elif place.marked == place.rank:
            place.marked = None
            self.show_note(f"rank {place.rank} is no longer marked")
        else:
            self.open_view("compare")

    def _change_sides(self) -> None:
        place = self.place
        if place.marked is not None:
            place.marked, place.rank = place.rank, place.marked
        self.repaint()

    def _pointed_at(self) -> int:
        """The rank under the cursor of the view that is open."""
        place = self.place
        if place.view == "timeline":
            return place.timeline.rank
        under = place.heat.rank() if place.view == "heat" else None
        return place.rank if under is None else under

    def action_compare_with(self, rank: int) -> None:
        """Compare the rank under the cursor with this one."""
        self.place.marked = rank
        self.open_view("compare")
