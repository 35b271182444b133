"""Order of what a view lists, following a rank, comparing two."""

from __future__ import annotations

from ddptop.tui.actions.base import ActionsBase


class RankActions(ActionsBase):
    """Actions on the tables of ranks and hosts."""

    def action_sort(self, by: int) -> None:
        """Sort by the next column on the screen, or the one before."""
        columns, order = self.place.sortable, self.view.sorted_by(self.place)
        if order is None or not columns:
            return
        unsorted = -1 if order[0] == "" else 0
        index = columns.index(order[0]) if order[0] in columns else unsorted
        self._sort_by(columns[(index + by) % len(columns)])

    def action_sort_by(self, column: str) -> None:
        """Sort by a column; the second time in reverse order."""
        order = self.view.sorted_by(self.place)
        if order is not None and column == order[0]:
            self.action_invert()
        elif self.view.can_sort_by(column):
            self._sort_by(column)

    def _sort_by(self, column: str) -> None:
        self.view.sort_by(self.place, column)
        self.repaint()

    def action_invert(self) -> None:
        """Reverse the order."""
        order = self.view.sorted_by(self.place)
        if order is not None:
            self.view.sort_by(self.place, order[0], inverted=not order[1])
            self.repaint()

    def action_follow(self) -> None:
        """Follow the rank under the cursor, or no longer."""
        place = self.place
        place.rank = self.view.rank_under_cursor(place)
        place.follow = not place.follow
        self.show_note(f"following rank {place.rank}: F or another rank ends it" if place.follow else "")

    def action_compare(self) -> None:
        """Mark the rank under the cursor; with another one marked, compare the two."""
        self.view.compare_rank(self)

    def action_compare_with(self, rank: int) -> None:
        """Compare the rank under the cursor with this one."""
        self.place.marked = rank
        self.open_view("compare")
