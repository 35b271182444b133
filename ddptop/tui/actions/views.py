"""Keys that open views, and what every view answers in its own way: cursor, Enter, Esc, order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.conditions import RED_STATES, STATES
from ddptop.frames.phrases import blamed
from ddptop.frames.verdict import most_waited_for, run_state, verdict
from ddptop.render.trouble import in_trouble
from ddptop.tui.actions.base import ActionsBase
from ddptop.tui.all_views import VIEWS
from ddptop.tui.scene import TO_STALL
from ddptop.tui.views.start import start_page_is_due

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.frames.verdict import Verdict


def _find_page(shown: Verdict, frame: Frame) -> str:
    """The page that explains a verdict about no slow rank: the bill of what all ranks lose, the events of an
    alert; empty: there is none."""
    if shown.kind == "data_bound" or (shown.kind == "uneven" and most_waited_for(frame) is not None):
        return "bill"
    is_alert = shown.kind != "straggler" and any(alert.kind == shown.kind for alert in frame.alerts)
    return "events" if is_alert else ""


class ViewActions(ActionsBase):
    """Views, their cursor and order, and the ranks that are followed or compared."""

    def action_view(self, name: str) -> None:
        """Open a view."""
        self.open_view(name)

    def follow_start(self, frame: Frame | None) -> None:
        """Open the page of the start once it is due, and the overview once it no longer is. Who has opened
        another page keeps it."""
        place, was_due = self.place, self.place.start_is_due
        place.start_is_due = frame is not None and start_page_is_due(frame)
        if was_due != place.start_is_due and place.prompt is None and self.view.follows_start:
            self.open_view("start" if place.start_is_due else "overview")

    def action_help(self) -> None:
        """Open the help, or leave it."""
        self.open_view("help")

    def action_figures(self) -> None:
        """Open the figures of the page, or leave them."""
        if self.shown is not None:
            self.open_view("columns")

    def action_open(self) -> None:
        """Open what is under the cursor."""
        self.view.open_chosen(self)

    def action_why(self) -> None:
        """Open the page of what the verdict is about: a stall, missing ranks, silent hosts, a slow rank,
        what all ranks lose, or the alert."""
        if self.shown is None:
            self.show_note("no run is open yet")
            return
        late, state = self.shown.straggler or self.shown.suspect, run_state(self.shown)
        if start_page_is_due(self.shown) and not self.view.explains_start:
            self.open_view("start")
        elif in_trouble(self.shown) or state == "waiting":
            self.open_view("stall")
        elif page := STATES[state].page:
            self.open_view(page)
        elif state in RED_STATES and state in self.shown.ranks.state:
            self.open_rank(self.shown.ranks.state.index(state))
        elif name := _find_page(verdict(self.shown), self.shown):
            self.open_view(name)
        elif self.shown.straggler is not None and not blamed(self.shown.straggler):
            self.show_note("batches differ in size between ranks: no rank is to blame")
        elif late is not None:
            self.open_rank(late.rank)
        else:
            self.show_note("no rank is flagged, and nothing is stalled")

    def action_compare_runs(self) -> None:
        """Show the two recordings side by side."""
        if hasattr(self.source, "other"):
            self.open_view("runs")
        else:
            self.show_note("only one run is open; ddptop replay A --compare B opens two")

    def action_rank(self, rank: int) -> None:
        """Open the page of a rank."""
        self.open_rank(rank)

    def action_leave(self) -> None:
        """Go one step back: what was last chosen in the view, else out of it."""
        if self.view.step_back(self.place):
            self.repaint()
        else:
            self.open_view(self.place.before if self.view.goes_back else "overview")

    def action_move(self, lines: int) -> None:
        """Move the cursor."""
        self.view.move(self, lines)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.view.move_pages(self, pages)

    def action_sideways(self, by: int) -> None:
        """Move to the right or left."""
        self.view.move_sideways(self, by)

    def action_next_view(self, by: int) -> None:
        """Open the neighbouring one of the views with a number; from any other page the overview."""
        self.open_view(VIEWS.next_numbered(self.place.view, by).name)

    def action_to_end(self, end: int) -> None:
        """Go to the start (0) or end (1) of the recording, else of the list."""
        self.view.move_to_end(self, end)

    def choose(self, target: int, enter: bool) -> None:
        """A click on a line of a list."""
        if target == TO_STALL:
            self.open_view("stall")
            return
        self.view.point_at(self.place, target)
        if enter:
            self.action_open()
        self.repaint()

    def action_sort(self, by: int) -> None:
        """Sort by the next column on the screen, or the one before."""
        columns, order = self.place.sortable, self.view.sorted_by(self.place)
        if order is None or not columns:
            return
        # Before the first column, so that the next one is the first.
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
        ends = "F or another rank ends it"
        self.show_note(
            f"following rank {place.rank}: {ends}"
            if place.follow
            else f"rank {place.rank} is no longer followed"
        )

    def action_compare(self) -> None:
        """Mark the rank under the cursor; with another one marked, compare the two."""
        self.view.compare_rank(self)

    def action_compare_with(self, rank: int) -> None:
        """Compare the rank under the cursor with this one."""
        self.place.marked = rank
        self.open_view("compare")
