"""Parts of a frame on request: the timeline of one step and heat maps; how a viewer requests them.

    timeline [STEP [RANK]]                        STEP -1 or left out: the newest one with bucket detail
    heat FIGURE ROWS COLUMNS [FIRST [COUNT]]      COUNT 0 or left out: all ranks from FIRST on

A request that cannot be read is ignored: viewer and collector may be of different versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import SpanName


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a rank's step, in ms since the first of all ranks began it."""

    name: SpanName
    begin_ms: float
    end_ms: float


@dataclass(frozen=True, slots=True)
class Lane:
    """One rank's step on the timeline. A column holds one element per all-reduce, in order of launch."""

    rank: int
    spans: tuple[Span, ...]
    """What the training thread did, in order and without holes, from the rank's own begin to its end."""
    reduces: Column
    """Place of each all-reduce in `Timeline.reduces`; a rank has those of its own process groups."""
    ready_ms: Column
    start_ms: Column
    arrival_ms: Column
    """Until here some rank was missing: the wait ends, the transfer begins."""
    end_ms: Column
    """NaN: the end was not seen."""
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
    """Steps that can be asked for, ascending; others are no longer, or not, kept."""
    picked: bool
    """Whether this very step was asked for; otherwise it is the newest with bucket detail."""
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
    """How far two ranks' arrivals may be wrong against each other."""
    last: int | None
    """The rank that came last at the deciding all-reduce, the one of the largest skew."""
    skew_ms: float | None
    """That skew."""
    kept_every: int
    """Of a thinned recording only steps divisible by this are kept; 1: all."""
    reduces: tuple[Reduce, ...]
    lanes: tuple[Lane, ...]
    """At most `timeline.MOST_LANES`: the last arriver and the straggler first, then those about the focus."""


@dataclass(frozen=True, slots=True)
class Heat:
    """Ranks x recent steps by one figure, folded to a size. Only in frames on request.

    Row-major, `len(rows) - 1` rows of `len(steps)` cells. A cell is the worst of its ranks.
    """

    figure: str
    first: int
    """First rank that was asked for."""
    count: int
    """Ranks that were asked for."""
    rows: tuple[int, ...]
    """Row i holds the ranks from rows[i] to before rows[i + 1]."""
    steps: tuple[int, ...]
    """One per column, oldest first."""
    low: float | None
    """Least, middle and largest of all cells of all ranks in these steps, before folding."""
    middle: float | None
    high: float | None
    value: Column
    """NaN: unknown for all ranks of the fold."""
    rank: Column
    """Whose value it is; NaN: unknown."""


HEAT_FIGURES = (
    *("step", "data", "forward", "backward", "optimizer", "other"),
    *("wait", "transfer", "collective", "exposed", "lateness", "loss"),
)
"""Figures that are kept for every rank and step."""

MOST_ROWS, MOST_COLUMNS = 128, 256
"""A larger terminal gets larger folds: at 8 bytes a cell a map takes a quarter of a frame at most."""


@dataclass(frozen=True, slots=True)
class TimelineRequest:
    """One step, rank by rank."""

    step: int | None = None
    """None: the newest one with bucket detail."""
    rank: int = 0
    """Among the lanes at any rate."""

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
    """Ranks; 0: all from `first` on."""

    def __str__(self) -> str:
        return f"heat {self.figure} {self.rows} {self.columns} {self.first} {self.count}"


Request: TypeAlias = "TimelineRequest | HeatRequest"


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
    except ValueError:
        pass
    return None
