"""Samples of stacks that ranks have sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ddptop.protocol.evidence import StackSamples

MOST_SAMPLES = 64
"""Series of samples that are kept, some 5 kB each."""


class ReceivedSamples(NamedTuple):
    """A series of samples."""

    rank: int
    t_ns: int
    """When it arrived, by the collector's clock."""
    samples: StackSamples
