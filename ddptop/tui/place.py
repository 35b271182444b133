"""Where a person is on the screen: view, cursors, filters. Moved by keys alone, never by a frame."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddptop.tui import match
from ddptop.tui.keys import ViewName
from ddptop.tui.prompt import Prompt
from ddptop.tui.views.chart_state import ChartState
from ddptop.tui.views.heat_state import HeatState
from ddptop.tui.views.timeline_state import TimelineState

if TYPE_CHECKING:
    from ddptop.tui.runs import RunChoice


@dataclass
class Scroll:
    """A cursor in a list, and the first line of it that is on the screen."""

    cursor: int = 0
    top: int = 0
    page: int = 1
    """Lines that were on the screen when it was last painted."""
    hit: int | None = None
    """The line of a page of text on which a search stands."""

    def window(self, total: int, height: int) -> range:
        """The lines to show: as before where possible, and the cursor always among them."""
        self.page = max(1, height)
        self.cursor = min(max(self.cursor, 0), max(0, total - 1))
        self.top = min(max(self.top, self.cursor - self.page + 1), self.cursor)
        self.top = max(0, min(self.top, total - self.page))
        return range(self.top, min(total, self.top + height))


@dataclass
class Place:
    """Where the person is."""

    view: ViewName = "overview"
    before: ViewName = "overview"
    """The view to go back to."""
    rank: int = 0
    """The rank under the cursor: the cursor stays on it when the order changes."""
    prompt: Prompt | None = None
    """Open, it takes the keys."""
    sort: str = "rank"
    inverted: bool = False
    """The order is turned round."""
    follow: bool = False
    """The rank is kept in view whatever the filter says."""
    marked: int | None = None
    """The rank that another one is to be compared with."""
    filter: str = ""
    """Of ranks."""
    event_filter: str = ""
    run_filter: str = ""
    """Of the picker."""
    searched: str = ""
    """What was looked for last: marked on the screen, and what the keys for matches go through."""
    seek: int = 0
    """On a page of text: go to the next (1) or the last (-1) line that matches, when it is painted."""
    scrolls: dict[ViewName, Scroll] = field(default_factory=dict)
    sortable: tuple[str, ...] = ()
    """Columns of the rank table that were on the screen when it was last painted."""
    order: tuple[int, ...] = ()
    """Ranks in the order in which they were last painted."""
    every: bool = False
    """The stall page shows all threads and every call."""
    note: str = ""
    """What the last key came to, where that is not to be seen; until the next key."""
    charts: ChartState = field(default_factory=ChartState)
    timeline: TimelineState = field(default_factory=TimelineState)
    heat: HeatState = field(default_factory=HeatState)
    choices: tuple[RunChoice, ...] | None = None
    """Runs to choose from; None: they are being looked up."""

    @property
    def listed(self) -> tuple[RunChoice, ...]:
        """The runs that the picker's filter lets through, as it lists them."""
        choices = self.choices or ()
        texts = [f"{one.name} {one.state} {one.script} {one.path or ''}".lower() for one in choices]
        return tuple(choices[at] for at in match.chosen(self.run_filter, texts))

    @property
    def scroll(self) -> Scroll:
        """Of the view that is open."""
        return self.scrolls.setdefault(self.view, Scroll())
