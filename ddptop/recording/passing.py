"""Divides many messages into blocks and summarises each. All summaries are computed before the first block is
compressed, because compressing evicts the messages from the processor's cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.protocol.messages import Clock
from ddptop.recording.format import CLOCKS, NO_STEP, BlockSummary

if TYPE_CHECKING:
    from ddptop.protocol.message_run import EncodedRun, Integers


def divide_into_blocks(
    run: EncodedRun, places: Integers, ends: Integers, room: int, most: int
) -> list[tuple[BlockSummary, int]]:
    """The messages at these places, PASSING and CLOCK, divided into blocks: the summary of each, and how many
    step rows are in it.

    `ends`: (n,) where the record of each ends; `room`: bytes that are left in the present block, of `most`.
    Each has one message at least.
    """
    bounds = [0]
    while bounds[-1] < len(places):
        written = int(ends[bounds[-1] - 1]) if bounds[-1] else 0
        bounds.append(max(bounds[-1] + 1, int(ends.searchsorted(written + room, "right"))))
        room = most
    begins, t_ns = np.array(bounds[:-1]), run.heads[0].take(places)
    edges = np.append(places[begins], places[-1] + 1)
    clocks = np.zeros(len(begins), np.int64)
    for readings in run.readings:
        if readings.kind is Clock:
            clocks += np.diff(readings.places.searchsorted(edges))
    of_steps, first, count = run.step_ranges(int(edges[0]), int(edges[-1]))
    steps = of_steps.searchsorted(edges)
    least, last = np.full((2, len(begins)), NO_STEP)
    with_steps = np.flatnonzero(np.diff(steps))
    # Blocks without steps keep NO_STEP: `reduceat` has no result for an empty part.
    if len(with_steps):
        least[with_steps] = np.minimum.reduceat(first, steps[with_steps])
        last[with_steps] = np.maximum.reduceat(first + count, steps[with_steps]) - 1
    rows = np.diff(np.append(0, np.cumsum(count))[steps])
    last_ns = np.maximum.reduceat(t_ns, begins)
    columns = (t_ns[begins], last_ns, least, last, np.diff(bounds), CLOCKS * clocks)
    parts = map(BlockSummary, *(column.tolist() for column in columns))
    return [*zip(parts, rows.tolist(), strict=True)]
