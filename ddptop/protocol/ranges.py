"""Types of the fields of messages: what each may hold, declared beside the field.

`decoding.py` makes msgspec's constraints of them. A training process only encodes, and loads none of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from ddptop.protocol import limits

# Compared by identity: the typing of Python 3.10 takes equal annotations for the same, also those of a module
# that was imported once more.


@dataclass(frozen=True, eq=False)
class Range:
    """Numbers from `low` to `high`, both included; NaN is none of them."""

    low: float
    high: float


@dataclass(frozen=True, eq=False)
class MostItems:
    """The largest number of characters of a text, or of items of a list or map."""

    most: int


Count: TypeAlias = Annotated[int, Range(0, limits.MAX_STEP)]
"""Number of steps, records, failures: anything that counts from 0."""
CountOrNone: TypeAlias = Annotated[int, Range(-1, limits.MAX_STEP)]
"""-1: there is none, or it is not known."""
Interval: TypeAlias = Annotated[int, Range(1, limits.MAX_STEP)]
"""One step in so many."""
Nanoseconds: TypeAlias = Annotated[int, Range(0, limits.MAX_NS)]
"""A clock reading, or a duration."""
Microseconds: TypeAlias = Annotated[int, Range(0, limits.MAX_US)]
Offset: TypeAlias = Annotated[int, Range(-limits.MAX_NS, limits.MAX_NS)]
"""Nanoseconds between two clocks."""
Drift: TypeAlias = Annotated[int, Range(-(10**9), 10**9)]
"""Parts per billion."""
Size: TypeAlias = Annotated[int, Range(0, limits.MAX_BYTES)]
"""Bytes, or anything that there is less of."""
Quantity: TypeAlias = Annotated[float, Range(0.0, 1e12)]
"""Costs and loads have no natural ceiling; beyond this they are nonsense."""
RankNumber: TypeAlias = Annotated[int, Range(0, limits.MAX_WORLD - 1)]
RankOrGroup: TypeAlias = Annotated[int, Range(-1, limits.MAX_WORLD - 1)]
"""-1: the group as a whole."""
WorldSize: TypeAlias = Annotated[int, Range(1, limits.MAX_WORLD)]
BucketNumber: TypeAlias = Annotated[int, Range(0, limits.MAX_BUCKETS - 1)]
PhaseNumber: TypeAlias = Annotated[int, Range(0, 5)]
"""A `messages.Phase`."""
ActivityNumber: TypeAlias = Annotated[int, Range(0, 255)]
"""A `messages.Activity`."""
Identifier: TypeAlias = Annotated[int, Range(0, 2**63 - 1)]
Version: TypeAlias = Annotated[int, Range(0, 65_535)]
ProcessId: TypeAlias = Annotated[int, Range(0, 2**31 - 1)]
"""What the kernel takes for one."""
ExitCode: TypeAlias = Annotated[int, Range(-(2**31), 2**32)]
Int64: TypeAlias = Annotated[int, Range(-(2**63), 2**63 - 1)]
Text: TypeAlias = Annotated[str, MostItems(limits.MAX_TEXT)]
Texts: TypeAlias = Annotated[tuple[Text, ...], MostItems(limits.MAX_CARD)]
Finite: TypeAlias = Annotated[float, Range(-sys.float_info.max, sys.float_info.max)]
Scalar: TypeAlias = Int64 | Finite | Text | bool | None
Scalars: TypeAlias = Annotated[dict[Text, Scalar], MostItems(limits.MAX_CARD)]
