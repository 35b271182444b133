"""Where the device stands while a step does not move: in a kernel, in an all-reduce, or with nothing to do.

The host of an NCCL rank runs ahead: its stack and its flight recorder tell what was launched, not what runs.
Of a collective under way the flight recorder says `scheduled` until it has completed (a start is recorded
under TORCH_NCCL_ENABLE_TIMING only), whether the device waits in it or has not reached it. The events of the
bucket timer tell the two apart: `ready` happens when the compute stream has reached the all-reduce.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ddptop.training.device.events import Event
from ddptop.training.device.marks import Mark
from ddptop.training.recorder import BucketCall

IDLE, COMPUTE, COLLECTIVE, EITHER = "idle", "compute", "collective", "either"
"""It has done all that it was given; a kernel does not end; an all-reduce does not end; one of the two, in a
step whose buckets are not timed."""

_NAMES = {Mark.FORWARD: "forward", Mark.BACKWARD: "backward", Mark.OPTIMIZER: "optimizer"}


class Standing(NamedTuple):
    """What the device is at."""

    state: str
    """IDLE, COMPUTE, COLLECTIVE or EITHER."""
    phase: str = ""
    """`forward`, `backward`, `optimizer`; empty: between them, or not known."""
    bucket: int = -1
    """The all-reduce of the step that it is in, or has not reached; -1: none."""


def standing(marks: Sequence[tuple[int, Event]], calls: Sequence[BucketCall]) -> Standing:
    """Of one step, finished by the host or not: the first thing that has not happened.

    Raises RuntimeError, in CUDA's words, after an error of the device's.
    """
    number = next((i for i, (_, event) in enumerate(marks) if not event.query()), len(marks))
    pending = marks[number][0] if number < len(marks) else None
    phase = _phase(marks[number - 1][0] if number else None, pending)
    if pending is not None and pending != Mark.BACKWARD_END:
        return Standing(COMPUTE, phase)
    for bucket, (_key, ready, end) in enumerate(calls):
        if not _happened(ready):
            return Standing(COMPUTE, "backward", bucket)
        if not _happened(end):
            return Standing(COLLECTIVE, "backward", bucket)
    if pending is None:
        return Standing(IDLE)
    return Standing(COMPUTE if calls else EITHER, phase)


def _phase(before: int | None, pending: int | None) -> str:
    """Between these two marks."""
    if pending is not None and pending % 2:
        return _NAMES[Mark(pending - 1)]
    return _NAMES[Mark(before)] if before is not None and before % 2 == 0 else ""


def _happened(stamp: Any) -> bool:
    """A host's stamp is 0 until it is filled in."""
    if isinstance(stamp, int):
        return stamp != 0
    return bool(stamp.query())
