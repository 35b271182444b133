"""What a view paints from: a frame, and where the person is in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, TypeAlias

from ddptop.tui.paint.phases import Breakdown
from ddptop.tui.paint.text import clean
from ddptop.tui.prompt import Prompt

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame

ViewName: TypeAlias = Literal["overview", "buckets", "events", "stall", "rank", "help"]

VIEWS: tuple[ViewName, ...] = ("overview", "buckets", "events", "stall")
"""Those with a number key."""

TO_STALL = -1
"""Target of a line that opens the stall page: no rank and no place in a list."""


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
    every: bool = False
    """The stall page shows all threads and every call."""
    note: str = ""
    """What the last saving came to."""

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
    def culprits(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        late = self.frame.straggler
        return () if late is None else late.ranks or (late.rank,)

    @cached_property
    def blamed(self) -> frozenset[int]:
        """Ranks that a stall is due to, and the one that died first: the others died of it."""
        stall = self.frame.stall
        dead = (death.rank for death in self.frame.deaths[:1])
        return frozenset((*(stall.ranks if stall is not None else ()), *dead))

    @cached_property
    def folder(self) -> str:
        """Where the script lies, with the slash, as the stacks of a stall or a death have it; else empty."""
        script = re.split(r"[/\\]", self.frame.run.script)[-1]
        stall = self.frame.stall
        told = [*(stall.testimonies if stall else ()), *(death.testimony for death in self.frame.deaths)]
        for call in (call for one in told for trace in one.traces for call in trace.calls):
            parts = re.match(r"(.*[/\\])(.*)", call.file)
            if script and parts is not None and parts[2] == script:
                return parts[1]
        return ""

    def clean(self, text: str) -> str:
        """Foreign text, safe to draw."""
        return clean(text, self.ascii_only)

    def at(self, place: Place) -> Scene:
        """The same moment, seen from another place."""
        return replace(self, place=place)
