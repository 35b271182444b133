"""What a view paints from: a frame, and where the person is in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ddptop.render.phases import Breakdown
from ddptop.render.text import clean
from ddptop.tui.keys import VIEWS, ViewName
from ddptop.tui.place import Place, Scroll

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

__all__ = ["TO_STALL", "VIEWS", "Place", "Scene", "Scroll", "ViewName"]

TO_STALL = -1
"""Target of a line that opens the stall page: no rank and no place in a list."""


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
    failure: str | None = None
    """The internal error that stopped the source's thread."""
    other: Frame | None = None
    """The same moment of a second recording, where two are looked at."""

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
