"""The process groups whose collectives no hook times, and how they are called."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_GROUP = "default_pg"
"""torch's description of the default group."""

OTHER_DESCRIPTION = "undefined"
"""Description of a process group that its maker has not described."""


@dataclass(frozen=True, slots=True)
class ProcessGroupFigures:
    """The collectives of one process group, by the flight recorders of its ranks: of the newest steps of
    which all ranks have reported when they launched them."""

    name: str
    """torch's name; `0` is the default group."""
    description: str
    """What a library calls it: `mesh_dp_shard`."""
    backend: str
    size: int
    ranks: tuple[int, ...]
    """Global ranks, ascending; empty: all."""
    collectives: int
    """Compared so far."""
    seen_pct: float | None
    """Their share of all since the first one."""
    steps: int
    """The newest steps that medians are over."""
    per_step: float | None
    """Collectives in such a step."""
    step_bytes: float | None
    """Bytes that a rank gives to them; None: not known of all."""
    operations: str
    """`9 all_gather, 5 reduce_scatter`: the most frequent of a step."""
    skew_ms: float | None
    """Median of the last launch - the first, at the deciding collective of a step."""
    bound_ms: float | None
    """How far a comparison of two launches may be wrong."""
    last_arriver: int | None
    """The rank that launches it last most often; None: clocks too inaccurate."""
    last_arriver_pct: float | None
    lateness_ms: float | None
    """Its median lateness."""
    rank_lateness_ms: tuple[float, ...]
    """Median lateness of each rank of the group, in its order; empty: the clocks are too inaccurate."""
    on_host: bool
    """Launches are moments of the host, which runs ahead of the GPU: no rank is flagged by them."""
