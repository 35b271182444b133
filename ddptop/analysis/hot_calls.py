"""Samples of stacks that ranks have sent: which line takes the time of a slow rank, or of a long step."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddptop.protocol.evidence import SAMPLED_PLACES

if TYPE_CHECKING:
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.evidence import StackSamples

MOST_SAMPLES = 64
"""Series of samples that are kept, some 5 kB each."""


class ReceivedSamples(NamedTuple):
    """A series of samples."""

    rank: int
    t_ns: int
    """When it arrived, by the collector's clock."""
    samples: StackSamples


def place_to_sample(straggler: Straggler) -> str | None:
    """The place of the step in which the stack of a slow rank shows why it is slow, one of SAMPLED_PLACES;
    None: no stack shows it, for it waits for a CPU, or collects garbage."""
    if straggler.cause in ("cpu", "gc", "uneven_work"):
        return None
    place = straggler.place if straggler.cause == "other" else straggler.cause
    return place if place in SAMPLED_PLACES else ""
