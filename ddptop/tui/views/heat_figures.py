"""The figures of the heat map: their units, and where a frame holds them now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.frames import Column, Frame


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a rank."""

    now: Callable[[Frame], Column]
    unit: str = "ms"
    title: str = ""
    down: bool = False
    """Small values are the bad ones."""
    free: bool = False
    """Where the clocks cannot tell it is the clock-free fallback."""


def _gpu(name: str, scale: float = 1.0) -> Callable[[Frame], Column]:
    """A figure of the ranks' GPUs."""

    def now(frame: Frame) -> Column:
        found = np.full(len(frame.ranks.state), np.nan)
        for gpu in frame.gpus:
            value = getattr(gpu, name)
            if value is not None and gpu.rank < len(found):
                found[gpu.rank] = value / scale
        return found

    return now


def _exposed_transfer(frame: Frame) -> Column:
    return frame.ranks.exposed_comm_ms - frame.ranks.exposed_wait_ms


FIGURES: dict[str, Figure] = {
    "step": Figure(lambda f: f.ranks.step_ms, title="step time"),
    "data": Figure(lambda f: f.ranks.data_ms),
    "forward": Figure(lambda f: f.ranks.forward_ms),
    "backward": Figure(lambda f: f.ranks.backward_ms),
    "optimizer": Figure(lambda f: f.ranks.optimizer_ms),
    "other": Figure(lambda f: f.ranks.other_ms),
    "wait": Figure(lambda f: f.ranks.exposed_wait_ms, title="exposed wait", free=True),
    "transfer": Figure(_exposed_transfer, title="exposed transfer", free=True),
    "collective": Figure(lambda f: f.ranks.collective_ms, title="in collectives"),
    "exposed": Figure(lambda f: f.ranks.exposed_comm_ms, title="exposed communication"),
    "lateness": Figure(lambda f: f.ranks.lateness_ms),
    "loss": Figure(lambda f: f.ranks.loss, unit=""),
    "last": Figure(lambda f: f.ranks.last_pct, unit="%", title="comes last"),
    "score": Figure(lambda f: f.ranks.relative_score, unit="", title="relative score", down=True),
    "cpu": Figure(lambda f: f.ranks.cpu_pct, unit="%"),
    "memory": Figure(lambda f: f.ranks.rss_bytes / 1e9, unit="GB"),
    "gpu": Figure(_gpu("util_pct"), unit="%", title="GPU busy"),
    "gpu_memory": Figure(_gpu("mem_bytes", 1e9), unit="GB", title="GPU memory"),
    "gpu_temp": Figure(_gpu("temp_c"), unit="C", title="GPU temperature"),
    "age": Figure(lambda f: f.ranks.age_ms / 1e3, unit="s", title="last heard"),
    "lost": Figure(lambda f: f.ranks.lost_records, unit="records", title="lost records"),
}

TIMED = ("wait", "transfer", "collective", "exposed", "lateness")
"""Known in steps whose buckets were timed."""

OF_STEP = 0.02
"""Differences below this share of a step are no news."""

OF_USUAL = 0.1
"""And those below this share of what is usual."""


def least_range(figure: str, usual: float | None, frame: Frame) -> float:
    """The range of values that is not worth a colour."""
    share = OF_USUAL * abs(usual or 0.0)
    if FIGURES[figure].unit == "ms":
        return max(share, OF_STEP * (frame.group.step_ms_p50 or 0.0), 1e-3)
    return max(share, {"%": 10.0, "s": 2.0, "records": 1.0, "C": 5.0}.get(FIGURES[figure].unit, 1e-4))


def title(figure: str, frame: Frame) -> str:
    """`data ms`, `~waiting ms`."""
    told = FIGURES[figure]
    sign = "~" if told.free and frame.group.clock_free else ""
    return f"{sign}{told.title or figure} {told.unit}".rstrip()


def of_ranks(figure: str, frame: Frame) -> Column:
    """(ranks,) as they are now."""
    return np.asarray(FIGURES[figure].now(frame), np.float64)
