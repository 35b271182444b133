"""What a frame says of each host of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.vocabulary import HostState


@dataclass(frozen=True, slots=True)
class HostFigures:
    """One host of the run, for the hosts view. None: not known."""

    name: str
    state: HostState
    ranks: int
    """Ranks whose present process runs, or ran, on it."""
    running: int
    """Of these, how many run."""
    age_ms: float
    """Time since the newest message from it."""
    worst_rank: int | None
    """Of its ranks the flagged one, or the one with the largest excess."""
    excess_ms: float | None
    """Of that rank."""
    step_ms: float | None
    """Median over its ranks of their step time."""
    clock_offset_ms: float | None
    """To be added to its clock to get the collector's; None: not measured, or the collector's own host."""
    clock_bound_ms: float | None
    clock_drift_ppm: float | None
    clock_age_s: float | None
    """Since the clock was compared."""
    round_trip_ms: float | None
    cpu_pct: float | None
    """Of all its processors."""
    cores: int | None
    memory_used_bytes: int | None
    memory_bytes: int | None
    received_bytes_s: float | None
    sent_bytes_s: float | None
    gpus: int
    """GPUs that its ranks use."""
    gpu_util_pct: float | None
    """Mean over these."""
    kept: int
    """Messages that its agent keeps because the collector has not acked them."""
    local_recording: str | None
    thinned: int
    """Step rows without bucket detail because the collector asked for it."""
    collector: bool
    """Whether the collector runs on it."""
