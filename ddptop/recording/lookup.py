"""Where in a recording a moment or a step is, by the summaries of its blocks alone."""

from __future__ import annotations

import numpy as np

from ddptop.recording.blocks import Blocks
from ddptop.recording.format import NO_STEP

BACK_AT_ONCE = 256
"""Blocks that are looked at in one go on the way back."""


def block_at(blocks: Blocks, t_ns: int) -> int:
    """The first block that reaches up to `t_ns`; the number of blocks where none does."""
    return int(np.searchsorted(blocks.last_ns, t_ns))


def steps_back(blocks: Blocks, stop: int, steps: int) -> int:
    """The block at which about the last `steps` steps before block `stop` begin.

    A restarted run counts its steps from 0 again, so it is progress that is added up, not step numbers.
    """
    back, lowest = 0, None
    while stop > 0:
        begin = max(0, stop - BACK_AT_ONCE)
        firsts, lasts = blocks.first_step[begin:stop].tolist(), blocks.last_step[begin:stop].tolist()
        for index in range(stop - begin - 1, -1, -1):
            first, last = firsts[index], lasts[index]
            if first == NO_STEP:
                continue
            back += last - first + 1 if lowest is None or first > lowest else lowest - first
            lowest = first
            if back >= steps:
                return begin + index
        stop = begin
    return 0


def block_of_step(blocks: Blocks, step: int) -> int | None:
    """The last block that holds this step: there the slowest rank reports it, after the last restart.

    Where none holds it (lost, or thinned out): the last block before it. None: all steps come later.
    """
    there = blocks.first_step != NO_STEP
    holding = np.flatnonzero(there & (blocks.first_step <= step) & (blocks.last_step >= step))
    if len(holding):
        return int(holding[-1])
    below = np.flatnonzero(there & (blocks.last_step < step))
    return int(below[-1]) if len(below) else None
