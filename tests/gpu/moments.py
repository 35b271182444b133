"""Moments of buckets out of a recording, to be held against those of another witness."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from ddptop.protocol.messages import Steps
from ddptop.recording.reader import Recording


def bucket_ends(recording: Path, rank: int) -> list[int]:
    """When the all-reduces of a rank ended, in ns on its host's CLOCK_MONOTONIC, in order."""
    ends = []
    with Recording.open(recording) as opened:
        for received in opened.records():
            steps = received.message
            if received.rank != rank or not isinstance(steps, Steps):
                continue
            for row in steps.rows:
                begin_ns = steps.base_ns + row.begin_us * 1000
                for ready_us, took_us in zip(row.cells[1::3], row.cells[2::3], strict=True):
                    if took_us >= 0:
                        ends.append(begin_ns + (ready_us + took_us) * 1000)
    return sorted(ends)


def apart_ns(moments: Sequence[int], others: Sequence[int]) -> list[int]:
    """How far each of `moments` is from the nearest of `others`, which are in order; least first."""
    found = []
    for moment in moments:
        place = bisect_left(others, moment)
        found.append(min(abs(moment - other) for other in others[max(0, place - 1) : place + 1]))
    return sorted(found)
