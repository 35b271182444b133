"""When ranks evaluated and saved, as their heartbeats told: for the timeline of a step and for the charts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from ddptop.protocol.messages import Activity, Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from ddptop.analysis.rank_table import NewestReadings
    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.frames.columns import Mask
    from ddptop.protocol.message_run import Readings

    Integers = NDArray[np.int64]

PastKind = Literal["evaluate", "save"]

SAVES, EVALUATES, IN_EVALUATION = int(Activity.SAVE), int(Activity.EVALUATE), int(Phase.EVALUATE)
"""As plain numbers: numpy compares with members of an enumeration far more slowly."""

SPANS_OF_RANKS = 8192
"""Newest spans of single ranks: one evaluation of all of them has one for each."""

SPANS_OF_RUN = 128
"""Newest spans of the run, for the charts."""


@dataclass(slots=True)
class RankSpan:
    """What one rank did from one moment to another; of the run, what any rank did."""

    rank: int
    """-1: of the run."""
    kind: PastKind
    step: int
    begin_ns: int
    """By the rank's own clock; of the run by the collector's."""
    end_ns: int
    """Time of the last heartbeat that told of it: it ended before the next one. Of an evaluation that is over
    when its last batch was done, where the rank has measured it."""
    ahead_ns: int = 0
    """By how much the collector's clock is ahead of the rank's, with the delay of its newest heartbeat."""


def is_evaluating(beats: Readings | NewestReadings) -> Mask:
    """(n,) whether a rank evaluates at its heartbeat, by its passes over batches or by its model's mode."""
    return np.asarray((beats.field("activity") == EVALUATES) | (beats.field("phase") == IN_EVALUATION))


class PastActivities:
    """The newest evaluations and saves of the ranks."""

    def __init__(self) -> None:
        self.of_run: deque[RankSpan] = deque(maxlen=SPANS_OF_RUN)
        self._spans: deque[RankSpan] = deque(maxlen=SPANS_OF_RANKS)
        self._newest: dict[int, RankSpan] = {}
        """By rank."""
        self._evaluations: dict[int, RankSpan] = {}
        """The newest evaluation of each rank."""
        self._evaluation: RankSpan | None = None
        """The newest one of the run; of those below."""
        self._unmeasured: set[int] = set()
        """Ranks that have told of it, and not yet when theirs had ended."""
        self._measured_ns = 0
        """When the last one of the others had ended, by the collector's clock."""
        self._pending: list[RankSpan] = []
        """Spans whose step is not complete."""

    def take(self, ranks: Integers, beats: Readings, t_ns: Integers) -> None:
        """Take heartbeats in order; `ranks`, `t_ns`: (n,) whose they are and when they arrived."""
        activity = beats.field("activity")
        saves = activity == SAVES
        evaluates = ~saves & is_evaluating(beats)
        active = np.flatnonzero(saves | evaluates)
        if not len(active):
            return
        own_ns, since_ns = beats.field("t_ns"), beats.field("since_ns")
        # A wait within an evaluation has a begin of its own, and earlier versions tell none.
        has_begin = (since_ns > 0) & (since_ns <= own_ns) & (saves | (activity == EVALUATES))
        begin_ns = np.where(has_begin, since_ns, own_ns)
        columns = (ranks, saves, beats.field("step"), begin_ns, own_ns, t_ns)
        for rank, is_save, step, begin, own, arrived in zip(
            *(c[active].tolist() for c in columns), strict=True
        ):
            kind: PastKind = "save" if is_save else "evaluate"
            span = self._take_of_rank(rank, kind, step, begin, own)
            span.ahead_ns = arrived - own
            of_run = self._take_of_run(kind, step, span.begin_ns + span.ahead_ns, arrived)
            if not is_save:
                if of_run is not self._evaluation:
                    self._evaluation, self._measured_ns = of_run, 0
                    self._unmeasured.clear()
                self._unmeasured.add(rank)
                self._evaluations[rank] = span

    def end_evaluation(self, rank: int, ended_ns: int) -> None:
        """Let an evaluation that a rank has told of end when the rank says, by its own clock: heartbeats tell
        of it until the rank trains again. That of the run ends with the last of its ranks'."""
        span = self._evaluations.get(rank)
        if span is None or not span.begin_ns <= ended_ns <= span.end_ns:
            return
        span.end_ns = ended_ns
        if rank not in self._unmeasured or self._evaluation is None:
            return
        self._unmeasured.discard(rank)
        self._measured_ns = max(self._measured_ns, ended_ns + span.ahead_ns)
        if not self._unmeasured and self._evaluation.begin_ns <= self._measured_ns:
            self._evaluation.end_ns = self._measured_ns

    def begin_group(self) -> None:
        """Ranks restart: their clocks may be others now."""
        self._newest.clear()
        self._evaluations.clear()
        self._evaluation = None
        self._spans.clear()
        self._pending.clear()
        for span in self.of_run:
            span.step = -1  # the same numbers come again

    def take_steps(self, block: StepBlock) -> list[int]:
        """In which of the next complete steps ranks evaluated or saved: their indices, ascending."""
        if not self._pending:
            return []
        begin_ns, end_ns = block.spans_ns()
        n_steps, n_ranks = end_ns.shape
        steps: set[int] = set()
        pending, self._pending = self._pending, []
        for span in pending:
            if span.rank >= n_ranks:
                continue
            step = int(np.searchsorted(end_ns[:, span.rank], span.begin_ns, side="right"))
            if step == n_steps:
                self._pending.append(span)
            elif begin_ns[step, span.rank] < span.end_ns:
                steps.add(step)
        return sorted(steps)

    def of_rank(self, rank: int, since_ns: int, until_ns: int) -> Iterator[RankSpan]:
        """What a rank did between two moments of its own clock, in order."""
        for span in self._spans:
            if span.rank == rank and span.begin_ns < until_ns and span.end_ns > since_ns:
                yield span

    def _take_of_rank(self, rank: int, kind: PastKind, step: int, begin_ns: int, own_ns: int) -> RankSpan:
        """Returns this span of the rank."""
        newest = self._newest.get(rank)
        if newest is not None and newest.kind == kind and newest.step == step:
            newest.end_ns = max(newest.end_ns, own_ns)
            return newest
        if newest is not None:  # an evaluation goes on after a save within it
            begin_ns = min(max(begin_ns, newest.end_ns), own_ns)
        self._newest[rank] = span = RankSpan(rank, kind, step, begin_ns, own_ns)
        self._spans.append(span)
        if len(self._pending) < SPANS_OF_RANKS:
            self._pending.append(span)
        return span

    def _take_of_run(self, kind: PastKind, step: int, begin_ns: int, t_ns: int) -> RankSpan:
        """Returns this span of the run."""
        for span in reversed(self.of_run):
            if span.kind == kind:
                if span.step == step or begin_ns <= span.end_ns:
                    span.begin_ns, span.end_ns = min(span.begin_ns, begin_ns), max(span.end_ns, t_ns)
                    span.step = step
                    return span
                break
        span = RankSpan(-1, kind, step, begin_ns, t_ns)
        self.of_run.append(span)
        return span
