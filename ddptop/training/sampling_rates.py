"""How often the recorder takes what costs time."""

from __future__ import annotations

from typing import NamedTuple


class SamplingRates(NamedTuple):
    """Each is taken in one of so many steps, a power of two. The budget chooses them (`budget.py`)."""

    detail_every: int = 1
    """Bucket detail (`is_turn`)."""
    record_every: int = 1
    """A recorded step; they come in blocks (`shadow.py`)."""
    loss_every: int = 1
    """The loss."""
    marks_every: int = 1
    """On a device: all marks of a step (`is_turn`). Steps with bucket detail have them in any case."""


NEVER_SAMPLED = SamplingRates(*[1 << 40] * len(SamplingRates._fields))
