"""What lines are drawn from: a frame, and how to draw it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.phases import Breakdown
from ddptop.render.text import clean

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame


@dataclass(frozen=True)
class RenderContext:
    """A frame and how to draw it. A new one for every picture."""

    frame: Frame
    ascii_only: bool = field(default=False, kw_only=True)

    @property
    def marked(self) -> int | None:
        """The rank that is marked for a comparison."""
        return None

    @cached_property
    def breakdown(self) -> Breakdown:
        """The parts of every rank's step."""
        late = self.frame.straggler
        return Breakdown(self.frame.ranks, self.stragglers if late and late.pattern == "persistent" else ())

    @cached_property
    def by_steps(self) -> bool:
        """Whether own times of every step are known of any rank."""
        return bool(np.isfinite(self.frame.ranks.excess_ms).any())

    @property
    def clock_free(self) -> bool:
        """Whether the ranks' wait and transfer are the clock-free fallback, and no lateness is known."""
        return self.frame.group.clock_free and not self.by_steps

    @cached_property
    def stragglers(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        late = self.frame.straggler
        return () if late is None else late.ranks or (late.rank,)

    @cached_property
    def responsible(self) -> frozenset[int]:
        """Ranks that a stall is due to, and the one that died first: the others died of it."""
        stall = self.frame.stall
        dead = (death.rank for death in self.frame.deaths[:1])
        return frozenset((*(stall.ranks if stall is not None else ()), *dead))

    @cached_property
    def folder(self) -> str:
        """Where the script lies, with the slash, as the stacks of a stall or a death have it; else empty."""
        script = re.split(r"[/\\]", self.frame.run.script)[-1]
        stall = self.frame.stall
        positions = [*(stall.positions if stall else ()), *(death.position for death in self.frame.deaths)]
        for call in (call for one in positions for trace in one.traces for call in trace.calls):
            parts = re.match(r"(.*[/\\])(.*)", call.file)
            if script and parts is not None and parts[2] == script:
                return parts[1]
        return ""

    def clean(self, text: str) -> str:
        """Foreign text, safe to draw."""
        return clean(text, self.ascii_only)
