"""What a frame says of the ranks' GPUs."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING

from ddptop.frames.frame import GpuFacts
from ddptop.protocol.machine import GpuReading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.ranks import Member
    from ddptop.frames.frame import Straggler

GPU = tuple(field.name for field in fields(GpuReading))
MEMORY = ("allocated_bytes", "reserved_bytes", "peak_bytes", "retries")


def gpu_facts(members: Sequence[Member]) -> tuple[GpuFacts, ...]:
    """Of every rank that has told something of a GPU."""
    return tuple(
        GpuFacts(
            rank=rank,
            **{name: getattr(member.gpu, name, None) for name in GPU},
            **{name: getattr(member.memory, name, None) for name in MEMORY},
        )
        for rank, member in enumerate(members)
        if member.gpu is not None or member.memory is not None
    )


def with_throttle(straggler: Straggler | None, members: Sequence[Member]) -> Straggler | None:
    """The straggler with why its GPU is slow, where that is known."""
    if straggler is None or straggler.rank >= len(members):
        return straggler
    gpu = members[straggler.rank].gpu
    return replace(straggler, throttle=gpu.throttle) if gpu is not None and gpu.throttle else straggler


def as_json(facts: GpuFacts) -> dict[str, object]:
    """The `gpu` of a rank in the snapshot."""
    return {name: value for name, value in asdict(facts).items() if name != "rank"}
