"""When a rank launched its collectives in one process group, as torch's flight recorder has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddptop.protocol import limits
from ddptop.protocol.ranges import Count, Microseconds, MostItems, Nanoseconds, RankNumber, Size, Text


class CollectiveKind(NamedTuple):
    """Collectives that are alike."""

    name: Text
    """`all_reduce`, `_allgather_base`, ..."""
    bytes: Size
    """Bytes that this rank gives to each; 0: not known."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Consecutive collectives of one process group on one rank: a window of its flight recorder."""

    t_ns: Nanoseconds
    """When the recorder was read."""
    group: Text
    """torch's name of it, the same on all of its ranks; `0` is the default group."""
    description: Text
    """What the script or a library calls it: `default_pg`, `mesh_dp_shard`."""
    backend: Text
    ranks: Annotated[tuple[RankNumber, ...], MostItems(limits.MAX_MEMBERS)]
    """Global ranks, ascending; empty: all."""
    bound_ns: Nanoseconds
    """How far the times may be wrong against those of other ranks of the host: what its wall clock was set by
    since the read before."""
    first: Count
    """Number of the first collective in the group, from 1."""
    base_ns: Nanoseconds
    launched_us: Annotated[tuple[Microseconds, ...], MostItems(limits.MAX_ARRIVALS)]
    """When each was launched, counted from `base_ns`."""
    first_step: Count
    steps: Annotated[tuple[Count, ...], MostItems(limits.MAX_ARRIVALS)]
    """The step in which each was launched, counted from `first_step`."""
    kinds: Annotated[tuple[CollectiveKind, ...], MostItems(limits.MAX_COLLECTIVE_KINDS)]
    of_kind: Annotated[tuple[Count, ...], MostItems(limits.MAX_ARRIVALS)]
    """Index in `kinds` of each; a number beyond them: it is of another kind."""
