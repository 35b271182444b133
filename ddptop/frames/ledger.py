"""The ledger: in which class every second of every rank lies, and which rank the others have waited for.

All figures are sums over the whole run, or over the last minutes, never medians times a number of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import numpy as np

from ddptop.protocol.vocabulary import LedgerClass

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import OwnPlace


@dataclass(frozen=True, slots=True)
class LedgerRanks:
    """Seconds of each rank by class, (ranks,) each. The classes of a rank add up to `elapsed_s`."""

    elapsed_s: Column
    """From the launch of the run to its end, or to now: the same for all ranks that were there at its end."""
    start_s: Column
    """From the launch to the begin of its first step: process, imports, process group, model."""
    data_s: Column
    """Blocked on the next batch."""
    first_batch_s: Column
    """`data` of steps in which a DataLoader began anew."""
    forward_s: Column
    own_backward_s: Column
    """Backward up to the last gradient."""
    optimizer_s: Column
    between_s: Column
    """Outside the phases of a step."""
    gc_s: Column
    """Pauses for Python's garbage collection, in whatever place."""
    transfer_s: Column
    """Exposed communication that nobody's lateness explains: that of the last arriver."""
    waiting_s: Column
    """Waited for a later rank, in all-reduces and in the script's own collectives."""
    evaluation_s: Column
    """Forwards without gradients, between steps."""
    compiling_s: Column
    """In torch.compile, after the first step."""
    saving_s: Column
    """In `torch.save`, and in saves of `torch.distributed.checkpoint`."""
    phase_s: Column
    """In phases that the script has declared (`ddptop.phase`)."""
    stalled_s: Column
    """From the begin of a stall to its end, in a step that never became complete or that is running."""
    restart_s: Column
    """From the last complete step before a restart to the first step after it."""
    end_s: Column
    """Time after the last step, until the run ended."""
    unknown_s: Column
    """The running step, missing records, and what steps without phases take longer than usual and than
    recorded steps like them."""


LEDGER_CLASSES: tuple[LedgerClass, ...] = get_args(LedgerClass)
"""Each is a column of `LedgerRanks`."""


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """What the other ranks have waited for one rank in one place."""

    rank: int
    place: OwnPlace
    """Where it took longer than the others."""
    rank_seconds: float
    """Summed over the ranks that waited: of steps that were left out, an estimate."""
    share_pct: float
    """In % of the rank-seconds of all ranks in the same time."""
    steps: int
    """Steps in which it was so: recorded ones, and those that heartbeats told of."""
    longest_s: float
    """The longest that any rank has waited for it in one step."""
    longest_step: int
    dear_steps: tuple[int, ...]
    """The newest of the slow steps that hold most of the waiting, oldest first."""
    dear_s: float
    """What a rank has waited in such a step: a mean over them."""
    n_dear: int
    """How many of them are recorded, or told of by heartbeats, those that are not listed among them."""
    n_dear_in_all: int
    """About how many there are: with steps that were left out, by their length. `n_dear` if none was."""
    dear_rank_seconds: float
    """What all ranks have waited in all of them: of those that were left out, an estimate."""
    is_main: bool
    """Whether most of what was waited in slow steps is in these."""
    dear_since_s: float
    """When the first of them ended, in seconds since the launch; 0: there is none."""
    n_witnessed: int = 0
    """How many of `n_dear` were left out, and are known by heartbeats all the same."""

    def dear_of(self, cost: SkewCost) -> tuple[int, int]:
        """How many are dear of how many steps, `cost` being that of the same time: of the recorded ones; but
        of all, about, where heartbeats told of some that were left out."""
        if self.n_witnessed:
            return self.n_dear_in_all, cost.steps
        return self.n_dear, cost.recorded_steps


@dataclass(frozen=True, slots=True)
class SkewCost:
    """What ranks lost by waiting for each other, over some time."""

    over_s: float
    """Length of that time."""
    rank_seconds: float
    """Rank-seconds that all ranks have waited."""
    lost_pct: float | None
    """In % of the rank-seconds of all ranks; None: no step is known."""
    low_pct: float | None
    """Interval of 95 % by block bootstrap; None: too short a time to tell."""
    high_pct: float | None
    steps: int
    """Complete steps in this time."""
    recorded_steps: int
    """Steps of which it is known who was waited for: fewer where steps are left out for the budget."""
    waited_for: tuple[WaitedFor, ...]
    """Largest first; their sum is `rank_seconds` where all are here (`MAX_WAITED_FOR`)."""

    @property
    def error_pct(self) -> float | None:
        """How far `lost_pct` may be wrong: to the farther end of its interval; None: unknown."""
        if self.lost_pct is None or self.low_pct is None or self.high_pct is None:
            return None
        return max(self.high_pct - self.lost_pct, self.lost_pct - self.low_pct)


@dataclass(frozen=True, slots=True)
class RareSlowness:
    """In how few steps a rank is slow, and by how much."""

    n_slow: int
    """Slow steps that are recorded, or that heartbeats told of."""
    n_slow_in_all: int
    """About how many there are: with steps that were left out, by their length. `n_slow` if none was."""
    n_steps: int
    """Recorded steps; but all steps where heartbeats told of slow ones that were left out."""
    steps: tuple[int, ...]
    """The newest slow ones, oldest first."""
    over_s: float
    """The time in which these are: the whole run, or its last minutes."""
    is_whole_run: bool
    since_launch: bool
    """Whether `over_s` counts from the launch of the run, not from its first step."""
    since_s: float
    """When the first of them ended, in seconds since the launch."""
    of_all_steps: bool = False
    """Whether `n_steps` are all steps: about `n_slow_in_all` of them are slow, else `n_slow`."""

    @property
    def often(self) -> str:
        """`1 of 200 steps`."""
        n_slow = self.n_slow_in_all if self.of_all_steps else self.n_slow
        if n_slow < 2:
            return f"{n_slow} of {self.n_steps:,} steps"
        return f"1 of {max(2, round(self.n_steps / n_slow)):,} steps"

    @property
    def in_all(self) -> str:
        """`5 recorded, some 47 in all`, `5 seen, ...` with what heartbeats told of; empty where no other slow
        step was left out."""
        how = "seen" if self.of_all_steps else "recorded"
        if self.n_slow_in_all <= self.n_slow:
            return ""
        return f"{self.n_slow:,} {how}, some {self.n_slow_in_all:,} in all"

    @property
    def over(self) -> str:
        """`the run`, `step time`, `the last 5 minutes`: what its cost is a share of."""
        return "the run" if self.since_launch else span_words(self.over_s, has_all_steps=self.is_whole_run)


def span_words(over_s: float, *, has_all_steps: bool) -> str:
    """`step time`, without start-up and end, or `the last 5 minutes`: the time that a share is of."""
    if has_all_steps:
        return "step time"
    minutes = round(over_s / 60)
    return f"the last {minutes} minutes" if minutes > 1 else "the last minute"


OUTSIDE_STEPS: tuple[LedgerClass, ...] = (
    "start",
    "evaluation",
    "compiling",
    "saving",
    "phase",
    "stalled",
    "restart",
    "end",
)
"""Classes that are no step time in the shares below: a long evaluation changes nothing in how much of a step
loads data. What is `unknown` counts as step time: most of it is."""

DATA_PCT = 10.0
"""Least share of step time, in percent, that every rank loads data for, from which on more workers help."""

COMPUTE_PCT, TRANSFER_PCT = 50.0, 25.0
"""Least shares of step time, in percent, from which on it is said that every rank computes, or that every
rank transfers gradients, for so long."""

MOST_UNKNOWN_PCT = 5.0
"""Share of a rank's step time, in percent, up to which such a share is certain."""

MAX_WAITED_FOR = 32
"""Most (rank, place) in a frame."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the seconds of all ranks went."""

    elapsed_s: float
    """Length of the run."""
    ranks: LedgerRanks
    run: SkewCost
    """Over the whole run."""
    recent: SkewCost
    """Over the last minutes."""
    scaled_s: float
    """Rank-seconds of steps without phases that are in the classes by the shares of recorded steps."""

    @property
    def recent_span(self) -> str:
        """`the last 5 minutes`, or `step time` where no step is older: what `recent` is about."""
        return span_words(self.recent.over_s, has_all_steps=self.recent.steps >= self.run.steps)

    def seconds_of(self, name: LedgerClass) -> Column:
        """(ranks,) seconds of one of LEDGER_CLASSES."""
        return np.asarray(getattr(self.ranks, f"{name}_s"))

    def least_seconds_of(self, name: LedgerClass) -> float:
        """Seconds that every rank has of one of LEDGER_CLASSES, at least; NaN: not known of any rank."""
        # Unlike `np.nanmin`, `fmin` does not warn where all are NaN.
        return float(np.fmin.reduce(self.seconds_of(name), initial=np.nan))

    @property
    def data_pct_of_all(self) -> float | None:
        """The least share of step time, in percent, that a rank loads data for; None: below DATA_PCT.

        Both are sums over the run, so that loading in bursts counts as much as loading in each step.
        """
        least_pct = self._find_least_pct(("data",))
        return least_pct if least_pct is not None and least_pct >= DATA_PCT else None

    @property
    def compute_pct_of_all(self) -> float | None:
        """The least share of step time, in percent, that a rank computes for; None: below COMPUTE_PCT, or too
        much of the time is not known."""
        return self._pct_from(("forward", "own_backward", "optimizer"), COMPUTE_PCT)

    @property
    def transfer_pct_of_all(self) -> float | None:
        """The least share of step time, in percent, that a rank transfers gradients for while it computes
        nothing; None: below TRANSFER_PCT, or too much of the time is not known."""
        return self._pct_from(("transfer",), TRANSFER_PCT)

    def _pct_from(self, names: tuple[LedgerClass, ...], least_pct: float) -> float | None:
        unknown_pct, pct = self._find_most_pct("unknown"), self._find_least_pct(names)
        is_certain = unknown_pct is not None and unknown_pct <= MOST_UNKNOWN_PCT
        return pct if is_certain and pct is not None and pct >= least_pct else None

    def _find_step_seconds(self) -> Column | None:
        """(ranks,) seconds of step time; None: some rank has none."""
        outside_s = np.sum([self.seconds_of(name) for name in OUTSIDE_STEPS], axis=0)
        step_s = np.asarray(self.ranks.elapsed_s - outside_s)
        return step_s if len(step_s) and (step_s > 0).all() else None

    def _find_least_pct(self, names: tuple[LedgerClass, ...]) -> float | None:
        step_s = self._find_step_seconds()
        if step_s is None:
            return None
        return 100 * float((np.sum([self.seconds_of(name) for name in names], axis=0) / step_s).min())

    def _find_most_pct(self, name: LedgerClass) -> float | None:
        step_s = self._find_step_seconds()
        return None if step_s is None else 100 * float((self.seconds_of(name) / step_s).max())

    @property
    def total_s(self) -> float:
        """Rank-seconds of all ranks: what the classes of all ranks add up to."""
        return float(np.sum(self.ranks.elapsed_s))
