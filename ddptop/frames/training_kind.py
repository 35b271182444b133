"""What kind of training a run is, and what cannot be told of one without DistributedDataParallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.protocol.vocabulary import SHARDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.frame import RunInfo
    from ddptop.protocol.vocabulary import TrainingKind

KINDS: Mapping[TrainingKind, str] = {
    "ddp": "DistributedDataParallel",
    "fsdp2": "FSDP2",
    "fsdp": "FSDP",
    "deepspeed": "DeepSpeed",
    "dtensor": "DTensor",
    "collectives": "its own collectives",
    "alone": "one process",
}


def kind_phrase(run: RunInfo) -> str:
    """`no DDP model (FSDP2)`; empty with a DDP model, of one rank, and before it is known."""
    return (
        "" if run.training is None or times_waiting(run.training) else f"no DDP model ({KINDS[run.training]})"
    )


def no_bucket_phrase(run: RunInfo) -> str:
    """Why no bucket is ever timed; empty where one may be."""
    if run.training == "alone" or run.world_size == 1:
        return "a single rank has nothing to reduce"
    kind = kind_phrase(run)
    return f"{kind}: no bucket is timed" if kind else ""


def times_waiting(training: TrainingKind | None) -> bool:
    """Whether the waiting of ranks for each other is timed: in the buckets of a DDP model. One process never
    waits. Before it is known how ranks train, no step is finished."""
    return training in (None, "ddp", "alone")


def untimed_parts(training: TrainingKind | None) -> tuple[str, ...]:
    """Names of the parts of a step (`render/phases.py`) that are unknown because waiting is not timed."""
    return () if times_waiting(training) else ("wait", "transfer")


def hides_waiting(run: RunInfo) -> bool:
    """Whether forward and backward wait in collectives that are not timed. gloo's are: Python waits."""
    return run.training in SHARDED and "nccl" in (run.backend or "")


def limits_phrase(run: RunInfo) -> str:
    """`no DDP model (FSDP2): own time in forward and backward includes waiting in collectives`; empty where
    nothing of it has to be said."""
    kind = kind_phrase(run)
    if run.training not in SHARDED:
        return f"{kind}: no bucket is timed, and no bubble between pipeline stages" if kind else ""
    if hides_waiting(run):
        return f"{kind}: own time in forward and backward includes waiting in collectives"
    return f"{kind}: own time includes waiting in collectives that Python does not wait for"
