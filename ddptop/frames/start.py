"""How far the ranks have come on the way to their first step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

StartMilestone: TypeAlias = Literal[
    "", "torch", "init", "store", "group", "recorded", "ddp", "model", "batch", "forward", "backward", "step"
]
"""How far a rank has come; empty: it has not reported."""

NAMES = frozenset(("StartMilestone",))
"""The closed set of this module, as annotations of dataclasses have it."""

MILESTONES: Mapping[StartMilestone, tuple[str, str]] = MappingProxyType(
    {
        "": ("has not reported", "have not reported"),
        "torch": ("has imported torch", "have imported torch"),
        "init": ("is in init_process_group", "are in init_process_group"),
        "store": ("is in init_process_group", "are in init_process_group"),
        "group": ("has its process group", "have their process group"),
        "recorded": ("has begun its first step", "have begun their first step"),
        "ddp": ("is in DistributedDataParallel()", "are in DistributedDataParallel()"),
        "model": ("has its DDP model, but no batch yet", "have their DDP model, but no batch yet"),
        "batch": ("has its first batch", "have their first batch"),
        "forward": ("is in its first forward", "are in their first forward"),
        "backward": ("is in its first backward", "are in their first backward"),
        "step": ("has finished its first step", "have finished their first step"),
    }
)
"""The milestones of a rank in their order, and what is said of one rank and of several whose newest it is."""


TIMES: Mapping[str, str] = MappingProxyType(
    {
        "process_s": "process started",
        "torch_s": "torch imported",
        "init_s": "init_process_group",
        "group_s": "process group",
        "ddp_s": "DDP()",
        "model_s": "DDP model",
        "batch_s": "first batch",
        "forward_s": "forward",
        "backward_s": "backward",
        "step_s": "first step",
    }
)
"""The fields of `RankStart` with the time of a milestone, in their order, and the title of each on the page
of the start."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """One rank on its way."""

    rank: int
    milestone: StartMilestone
    """The newest."""
    since_s: float | None
    """Unix seconds at which it was seen to come there; None: it has not reported."""
    at: str
    """Where its code is: `train.py:6 preprocess_dataset`; empty: it has not been asked."""
    process_s: float | None = None
    """Seconds after the start of the run at which its process was started. None, here and below: it has not
    come there, or has passed it between two heartbeats."""
    torch_s: float | None = None
    init_s: float | None = None
    """At which it called `init_process_group`."""
    group_s: float | None = None
    ddp_s: float | None = None
    """At which it called `DistributedDataParallel()`: its model is built and moved."""
    model_s: float | None = None
    """At which `DistributedDataParallel()` returned."""
    batch_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None
    step_s: float | None = None
    """At which it had finished its first step."""


MOST_EARLY_S = 15.0
"""An earlier start of a process is taken for an error of its host's clock."""


@dataclass(frozen=True, slots=True)
class StartStatus:
    """All ranks, until each has finished its first step."""

    milestone: StartMilestone
    """The newest that every rank has come to."""
    behind: tuple[int, ...]
    """The ranks that the others wait for; empty: none wait, as far as is known."""
    since_s: float
    """Unix seconds since which no rank has got any further."""
    ranks: tuple[RankStart, ...]
    """In order of rank."""

    @property
    def launch_s(self) -> float:
        """When the first process of a rank was started, in seconds after the start of the run: ranks may be
        started a little before what records them is there."""
        times_s = [rank_start.process_s for rank_start in self.ranks if rank_start.process_s is not None]
        return max(-MOST_EARLY_S, min(0.0, *times_s)) if times_s else 0.0


@dataclass(frozen=True, slots=True)
class AlikeRanks:
    """Ranks that have come equally far and are at the same place."""

    members: tuple[RankStart, ...]
    is_behind: bool
    """The others wait for them."""

    @property
    def ranks(self) -> list[int]:
        """Their numbers, ascending."""
        return [member.rank for member in self.members]

    @property
    def milestone(self) -> StartMilestone:
        """The newest milestone of each."""
        return self.members[0].milestone

    @property
    def at(self) -> str:
        """Where their code is; empty: not known."""
        return self.members[0].at

    @property
    def since_s(self) -> float | None:
        """Since when the first of them has got no further (Unix seconds)."""
        return min((member.since_s for member in self.members if member.since_s is not None), default=None)

    def time_range(self, name: str) -> tuple[float, float] | None:
        """When the first and the last of these ranks came to a milestone, by its field of `RankStart`; None:
        known of no rank."""
        times_s = [time_s for member in self.members if (time_s := getattr(member, name)) is not None]
        return (min(times_s), max(times_s)) if times_s else None


def alike_ranks(start: StartStatus) -> list[AlikeRanks]:
    """All ranks: those that the others wait for first, then those that have come least far."""
    order = {name: number for number, name in enumerate(MILESTONES)}

    def progress_key(rank: RankStart) -> tuple[bool, int, str]:
        return rank.rank not in start.behind, order[rank.milestone], rank.at

    ordered = sorted(start.ranks, key=lambda rank: (progress_key(rank), rank.rank))
    grouped = groupby(ordered, key=progress_key)
    return [AlikeRanks(tuple(members), not in_front) for (in_front, _, _), members in grouped]
