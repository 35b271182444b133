"""What a view paints from: a frame, and where the person is in it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from ddptop.tui.paint.phases import Breakdown
from ddptop.tui.paint.text import clean
from ddptop.tui.prompt import Prompt

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame

ViewName: TypeAlias = Literal["overview", "buckets", "events", "rank", "help"]

VIEWS: tuple[ViewName, ...] = ("overview", "buckets", "events")
"""Those with a number key."""


@dataclass
class Scroll:
    """A cursor in a list, and the first line of it that is on the screen."""

    cursor: int = 0
    top: int = 0
    page: int = 1
    """Lines that were on the screen when it was last painted."""

    def window(self, total: int, height: int) -> range:
        """The lines to show: as before where possible, and the cursor always among them."""
        self.page = max(1, height)
        self.cursor = min(max(self.cursor, 0), max(0, total - 1))
        self.top = min(max(self.top, self.cursor - self.page + 1), self.cursor)
        self.top = max(0, min(self.top, total - self.page))
        return range(self.top, min(total, self.top + height))


@dataclass
class Place:
    """Where the person is. Changed by keys alone, never by a frame."""

    view: ViewName = "overview"
    before: ViewName = "overview"
    """The view to go back to."""
    rank: int = 0
    """The rank under the cursor: the cursor stays on it when the order changes."""
    prompt: Prompt | None = None
    """Open, it takes the keys."""
    sort: str = "rank"
    filter: str = ""
    scrolls: dict[ViewName, Scroll] = field(default_factory=dict)
    sortable: tuple[str, ...] = ()
    """Columns of the rank table that were on the screen when it was last painted."""
    order: tuple[int, ...] = ()
    """Ranks in the order in which they were last painted."""

    @property
    def scroll(self) -> Scroll:
        """Of the view that is open."""
        return self.scrolls.setdefault(self.view, Scroll())


@dataclass(frozen=True)
class Scene:
    """A frame, a place in it and how to draw. Made anew for every picture."""

    frame: Frame
    place: Place
    ascii_only: bool = False
    frozen: bool = False
    """The picture is held while newer frames come."""
    newest: Frame | None = None
    """The newest frame, while the picture is held."""
    status: str | None = None
    """What the source has to say of itself."""

    @cached_property
    def breakdown(self) -> Breakdown:
        """The parts of every rank's step."""
        return Breakdown(self.frame.ranks)

    @cached_property
    def culprit(self) -> int | None:
        """The rank that the others wait for."""
        return self.frame.straggler.rank if self.frame.straggler is not None else None

    def clean(self, text: str) -> str:
        """Foreign text, safe to draw."""
        return clean(text, self.ascii_only)

    def at(self, place: Place) -> Scene:
        """The same moment, seen from another place."""
        return replace(self, place=place)
