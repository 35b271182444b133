"""Parts of a frame on request: a timeline, a heat map, the position of a rank; how a viewer requests them.

    timeline [STEP [RANK]]                        STEP -1 or left out: the newest one with bucket detail
    heat FIGURE ROWS COLUMNS [FIRST [COUNT]]      COUNT 0 or left out: all ranks from FIRST on
    position RANK                                 what it does now: a rank of a live run is asked for it

A request that cannot be read is ignored: viewer and collector may be of different versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ddptop.frames.figures import figures_shown

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import SpanName


@dataclass(frozen=True, slots=True)
class LaneSpan:
    """A part of a rank's step, in ms since the first begin of the step on any rank."""

    name: SpanName
    begin_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's step on the timeline. A column holds one element per all-reduce, in order of launch."""

    rank: int
    spans: tuple[LaneSpan, ...]
    """The phases of the training thread in order and without gaps, from the rank's own begin to its end."""
    reduces: Column
    """Index of each all-reduce in `Timeline.reduces`; a rank has those of its own process groups."""
    ready_ms: Column
    start_ms: Column
    arrival_ms: Column
    """Arrival of the last rank: the wait ends, the transfer begins."""
    end_ms: Column
    """NaN: the end is not known."""
    last: Column
    """1 where this rank came last, 0 where another did, NaN where the clocks are too inaccurate."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """One all-reduce of the step."""

    model: int
    bucket: int
    bytes: int | None
    group: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step, rank by rank. Only in frames on request."""

    step: int
    kept: tuple[int, ...]
    """Steps that can be requested, ascending; others are not kept."""
    picked: bool
    """Whether this step was requested; otherwise it is the newest with bucket detail."""
    detailed: bool
    """Whether the buckets of this step were timed; where not, only phases are known."""
    clock_free: bool
    """The ranks' clocks cannot be compared: every lane counts from its own begin, waits are the fallback."""
    micro_steps: int
    """Backward passes of the step on the rank with the most."""
    step_ms: float
    """Median over ranks."""
    span_ms: float
    """From the first begin to the last end."""
    exposed_ms: float | None
    """Mean over ranks."""
    overlap_pct: float | None
    bound_ms: float | None
    """How far a comparison of two ranks' arrivals may be wrong."""
    last: int | None
    """The rank that came last at the deciding all-reduce, the one with the largest skew."""
    skew_ms: float | None
    """The skew at the deciding all-reduce."""
    kept_every: int
    """A thinned recording has only the steps divisible by this; 1: all."""
    reduces: tuple[Reduce, ...]
    lanes: tuple[Lane, ...]
    """At most MOST_LANES (`analysis/to_frame/timeline.py`): where there are more ranks, the last arriver
    and the straggler first, then those near the focus."""


@dataclass(frozen=True, slots=True)
class Heat:
    """Ranks x recent steps by one figure, folded to a size. Only in frames on request.

    Row-major, `len(rows) - 1` rows of `len(steps)` cells. A cell is the worst of its ranks.
    """

    figure: str
    first: int
    """First rank that was requested."""
    count: int
    """Number of ranks that were requested."""
    rows: tuple[int, ...]
    """Row i holds the ranks from rows[i] up to rows[i + 1], without the latter."""
    steps: tuple[int, ...]
    """One per column, oldest first."""
    low: float | None
    """`low`, `middle`, `high`: least, median, largest value of all ranks in these steps, before folding."""
    middle: float | None
    high: float | None
    value: Column
    """NaN: unknown for all ranks of the fold."""
    rank: Column
    """The rank with that value; NaN: unknown."""


HEAT_FIGURES = tuple(how.key for _, how in figures_shown(lambda figure: figure.heat) if how.by_step)
"""Figures that are kept for every rank and step."""

MOST_ROWS, MOST_COLUMNS = 128, 256
"""A larger terminal gets larger folds: at 8 bytes per cell a map takes at most a quarter of a frame."""

MOST_KEPT_CELLS = 1 << 17
"""Ranks x steps that are kept for heat maps: 3.7 MB."""


def count_map_steps(world: int, window_steps: int) -> int:
    """How many steps are kept for heat maps: fewer for more than 512 ranks, but all those that the medians
    are of."""
    return max(window_steps, min(MOST_COLUMNS, MOST_KEPT_CELLS // max(1, world)))


@dataclass(frozen=True, slots=True)
class TimelineRequest:
    """One step, rank by rank."""

    step: int | None = None
    """None: the newest one with bucket detail."""
    rank: int = 0
    """A rank that always has a lane."""

    def __str__(self) -> str:
        return f"timeline {-1 if self.step is None else self.step} {self.rank}"


@dataclass(frozen=True, slots=True)
class HeatRequest:
    """Ranks x recent steps, folded to a size."""

    figure: str
    rows: int
    columns: int
    first: int = 0
    count: int = 0
    """Number of ranks; 0: all from `first` on."""

    def __str__(self) -> str:
        return f"heat {self.figure} {self.rows} {self.columns} {self.first} {self.count}"


@dataclass(frozen=True, slots=True)
class PositionRequest:
    """What a rank does that has not finished its first step."""

    rank: int

    def __str__(self) -> str:
        return f"position {self.rank}"


Request: TypeAlias = "TimelineRequest | HeatRequest | PositionRequest"


def parse_request(text: str) -> Request | None:
    """The request in this text; None where there is none."""
    words = text.split()
    try:
        if words[:1] == ["timeline"] and len(words) <= 3:
            step, rank = (*map(int, words[1:]), *(-1, 0)[len(words) - 1 :])
            return TimelineRequest(step if step >= 0 else None, rank) if rank >= 0 else None
        if words[:1] == ["heat"] and 4 <= len(words) <= 6 and words[1] in HEAT_FIGURES:
            rows, columns, first, count = (*map(int, words[2:]), *(0, 0)[len(words) - 4 :])
            fits = 0 < rows <= MOST_ROWS and 0 < columns <= MOST_COLUMNS and first >= 0 <= count
            return HeatRequest(words[1], rows, columns, first, count) if fits else None
        if words[:1] == ["position"] and len(words) == 2 and int(words[1]) >= 0:
            return PositionRequest(int(words[1]))
    except ValueError:
        pass
    return None
