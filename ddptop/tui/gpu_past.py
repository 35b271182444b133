"""The past of the ranks' GPUs: a frame has the newest reading alone, so the screen keeps what it has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame, GpuFacts

KEPT_S = 300
"""Seconds of the run that are kept, at most a reading for each: the agents read the GPUs about once a
second."""

MOST_RANKS = 64
"""Ranks up to which all are kept; of more only the one whose page may be open: readings of thousands would
take 20 MB and more."""


class GpuSeries(NamedTuple):
    """Readings of one GPU, oldest first. NaN: not reported."""

    time_s: Column
    """In seconds since the run began."""
    util_pct: Column
    mem_pct: Column
    """Used memory, of all that the GPU has."""
    power_w: Column
    temp_c: Column


class GpuPast:
    """What this screen has seen of the GPUs of one run."""

    def __init__(self) -> None:
        self._run: tuple[str, float] = ("", 0.0)
        self._readings: list[tuple[float, dict[int, tuple[float, ...]]]] = []

    def notice(self, frame: Frame | None, rank: int, frozen: Frame | None = None) -> None:
        """Keep the readings of a frame, of the ranks or of this one, and of the KEPT_S before it. Of another
        run, or before what is kept, they are a new beginning. `frozen`: the frame that is still shown, for
        which likewise those before it are kept."""
        if frame is None or not frame.gpus:
            return
        run = (frame.run.name, frame.run.started_at)
        now_s = _time_in_run(frame)
        if run != self._run:
            self._run = run
            self._readings.clear()
        while self._readings and self._readings[-1][0] > now_s:
            self._readings.pop()
        if self._readings and now_s - self._readings[-1][0] < 1.0:
            return
        facts = frame.gpus
        if len(facts) > MOST_RANKS:
            facts = tuple(gpu for gpu in facts if gpu.rank == rank)
        ends_s = [now_s] if frozen is None else [_time_in_run(frozen), now_s]
        self._readings = [
            reading for reading in self._readings if any(_lies_before(reading[0], end_s) for end_s in ends_s)
        ]
        self._readings.append((now_s, {gpu.rank: _read(gpu) for gpu in facts}))

    def series_of(self, rank: int, frame: Frame) -> GpuSeries | None:
        """A rank's GPU in the KEPT_S before a frame; None: fewer than two readings of that run are kept."""
        if (frame.run.name, frame.run.started_at) != self._run:
            return None
        end_s = _time_in_run(frame)
        of_rank = [
            (time_s, *readings[rank])
            for time_s, readings in self._readings
            if rank in readings and _lies_before(time_s, end_s)
        ]
        return GpuSeries(*np.array(of_rank, float).T) if len(of_rank) > 1 else None


def _time_in_run(frame: Frame) -> float:
    return frame.unix_s - frame.run.started_at


def _lies_before(time_s: float, end_s: float) -> bool:
    return end_s - KEPT_S < time_s <= end_s


def _read(gpu: GpuFacts) -> tuple[float, ...]:
    mem_pct = None
    if gpu.mem_bytes is not None and gpu.mem_total_bytes:
        mem_pct = 100 * gpu.mem_bytes / gpu.mem_total_bytes
    values = (gpu.util_pct, mem_pct, gpu.power_w, gpu.temp_c)
    return tuple(float("nan") if value is None else float(value) for value in values)
