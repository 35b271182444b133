"""Where in a recording a moment or a step is, by the summaries of its blocks alone."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from ddptop.recording.format import NO_STEP, Entry


def block_at(entries: Sequence[Entry], t_ns: int) -> int:
    """The first block that reaches up to `t_ns`; the number of blocks where none does."""
    return bisect_left(entries, t_ns, key=lambda entry: entry.summary.last_ns)


def steps_back(entries: Sequence[Entry], stop: int, steps: int) -> int:
    """The block at which about the last `steps` steps before block `stop` begin.

    A restarted run counts its steps from 0 again, so it is progress that is added up, not step numbers.
    """
    back, lowest = 0, None
    for index in range(stop - 1, -1, -1):
        first, last = entries[index].summary.first_step, entries[index].summary.last_step
        if first == NO_STEP:
            continue
        back += last - first + 1 if lowest is None or first > lowest else lowest - first
        lowest = first
        if back >= steps:
            return index
    return 0


def block_of_step(entries: Sequence[Entry], step: int) -> int | None:
    """The last block that holds this step: there the slowest rank reports it, after the last restart.

    Where none holds it (lost, or thinned out): the last block before it. None: all steps come later.
    """
    below = None
    for index in range(len(entries) - 1, -1, -1):
        summary = entries[index].summary
        if summary.first_step == NO_STEP:
            continue
        if summary.first_step <= step <= summary.last_step:
            return index
        if below is None and summary.last_step < step:
            below = index
    return below
