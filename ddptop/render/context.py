"""What lines are drawn from: a frame, and how to draw it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.activity_words import SHORT_WORDS
from ddptop.frames.columns import distinct_texts
from ddptop.frames.conditions import STATES
from ddptop.frames.phrases import blamed
from ddptop.frames.stall import responsible_ranks
from ddptop.frames.training_kind import untimed_parts
from ddptop.frames.verdict import run_state
from ddptop.protocol.vocabulary import FAILED_STATES
from ddptop.render.line import worst_sign, worst_state
from ddptop.render.phases import Breakdown
from ddptop.render.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.frames.frame import Frame
    from ddptop.render.line import Piece


LEAST_SHARE_OF_STEP, MOST_UNITS = 0.02, 1e9
"""A difference below this share of the step does not matter, nor change the order of ranks and hosts."""

CALM = 6
"""The place of a rank that needs no attention."""

_PLACES = {state: words.attention for state, words in STATES.items() if words.attention is not None}
"""Places of the states that need attention."""

_MISSING = {"waiting": 4}
"""Places of the states that need attention only while ranks are missing."""


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

    @property
    def absent_parts(self) -> tuple[str, ...]:
        """Names of the parts of a step that no bar of this run has."""
        untimed = untimed_parts(self.frame.run.training)
        return untimed if self.breakdown.has_sync else (*untimed, "sync")

    @cached_property
    def by_steps(self) -> bool:
        """Whether own times of every step are known of any rank."""
        return bool(self.frame.ranks.compared.any())

    @property
    def clock_free(self) -> bool:
        """Whether the ranks' wait and transfer are the clock-free fallback, and no lateness is known."""
        return self.frame.group.clock_free and not self.by_steps

    @cached_property
    def stragglers(self) -> tuple[int, ...]:
        """The ranks that the others wait for."""
        return blamed(self.frame.straggler)

    @cached_property
    def responsible(self) -> frozenset[int]:
        """Ranks that a stall is due to, and those whose deaths were not the consequence of another."""
        return responsible_ranks(self.frame.stall, self.frame.deaths)

    @cached_property
    def is_gathering(self) -> bool:
        """Whether some ranks have not reported yet, so that the others wait for them."""
        return run_state(self.frame) == "waiting"

    @cached_property
    def activity_words(self) -> Mapping[int, str]:
        """What each rank does in a step that lasts far longer than usual, in a word; by rank."""
        return {
            rank: SHORT_WORDS.get(activity.kind, "busy")
            for activity in self.frame.activities
            for rank in activity.ranks
        }

    @cached_property
    def stopped(self) -> frozenset[int]:
        """The ranks whose process a signal has stopped (SIGSTOP)."""
        positions = self.frame.stall.positions if self.frame.stall is not None else ()
        ranks = {position.rank for position in positions if position.process == "stopped"}
        return frozenset(
            ranks.union(*(activity.ranks for activity in self.frame.activities if activity.kind == "stopped"))
        )

    def state_word(self, rank: int) -> str:
        """The state of a rank in a word. One that has not reported is `missing`. Those that only wait in a
        stall are `waiting`, those that have ended because another rank died `ended`: the rank that it is due
        to stands out."""
        state = self.frame.ranks.state[rank]
        if state == "waiting":
            return "missing"
        if self.is_gathering and state == "stale":
            return "here"
        if not self.responsible or rank in self.responsible:
            return state
        if state == "stalled":
            return "waiting"
        return "ended" if state in FAILED_STATES and rank in self.dead else state

    def sign(self, first: int, stop: int) -> Piece:
        """Sign and role of the worst state among the ranks from `first` up to `stop`; blank where all are
        well, or only wait for another."""
        return worst_sign(self._state_words(range(first, stop)))

    def gravest(self, ranks: Sequence[int]) -> int | None:
        """The rank with the worst state among some; None where all are well, or only wait for another."""
        words = self._state_words(ranks)
        worst = worst_state(words)
        return None if worst is None else ranks[words.index(worst)]

    def _state_words(self, ranks: Sequence[int]) -> Sequence[str]:
        states = self.frame.ranks.state
        chosen = [rank for rank in ranks if 0 <= rank < len(states)]
        return [self.state_word(rank) if self.responsible else states[rank] for rank in chosen]

    @cached_property
    def dead(self) -> frozenset[int]:
        """The ranks that have died."""
        return frozenset(death.rank for death in self.frame.deaths)

    @cached_property
    def attention(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(ranks,) how soon each rank needs attention, 0 first, and within a place its size, largest first.

        0: a stall is due to it. 1: failed, lost or stalled. 2: its host is silent. 3: a straggler. 4: stale
        or missing. 5: its excess is more than LEAST_SHARE_OF_STEP of the step. 6: none (CALM). The size is
        the excess in units of LEAST_SHARE_OF_STEP of the step, so that ranks which differ by less keep their
        order."""
        frame = self.frame
        states, total = frame.ranks.state, len(frame.ranks.state)
        unit = LEAST_SHARE_OF_STEP * (frame.group.step_ms_p50 or 0.0)
        size = np.zeros(total, np.int64)
        if unit > 0:
            # As many units as an integer can count: a far end may lie.
            slower_ms = np.minimum(np.asarray(frame.ranks.slower_ms, np.float64), unit * MOST_UNITS)
            size = np.floor(slower_ms / unit).astype(np.int64)
        place = np.where(size > 0, CALM - 1, CALM)
        places = _MISSING if self.is_gathering else _PLACES
        for rank, state in enumerate(states) if places.keys() & distinct_texts(states) else ():
            if state in places:
                place[rank] = min(int(place[rank]), places[state])
        for ranks, level in ((self.stragglers, 3), (self.responsible, 0)):
            for rank in ranks:
                if rank < total:
                    place[rank] = min(int(place[rank]), level)
        return place, size

    @cached_property
    def folder(self) -> str:
        """Where the script lies, with the slash, as the stacks of a stall or a death have it; else empty."""
        script = re.split(r"[/\\]", self.frame.run.script)[-1]
        stall = self.frame.stall
        positions = [*(stall.positions if stall else ()), *(death.position for death in self.frame.deaths)]
        for call in (call for position in positions for trace in position.traces for call in trace.calls):
            parts = re.match(r"(.*[/\\])(.*)", call.file)
            if script and parts is not None and parts[2] == script:
                return parts[1]
        return ""

    def clean(self, text: str) -> str:
        """Foreign text, safe to draw."""
        return clean_text(text, self.ascii_only)
