"""The figures of the heat map: their units, and where a frame holds them now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.analysis.frames import Column, Frame, Ranks


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a rank."""

    now: Callable[[Ranks], Column]
    unit: str = "ms"
    title: str = ""
    down: bool = False
    """Small values are the bad ones."""
    free: bool = False
    """Where the clocks cannot tell it is the clock-free fallback."""


FIGURES: dict[str, Figure] = {
    "step": Figure(lambda r: r.step_ms, title="step time"),
    "data": Figure(lambda r: r.data_ms),
    "forward": Figure(lambda r: r.forward_ms),
    "backward": Figure(lambda r: r.backward_ms),
    "optimizer": Figure(lambda r: r.optimizer_ms),
    "other": Figure(lambda r: r.other_ms),
    "wait": Figure(lambda r: r.wait_ms, title="waiting", free=True),
    "transfer": Figure(lambda r: r.transfer_ms, title="moving bytes", free=True),
    "collective": Figure(lambda r: r.collective_ms, title="in collectives"),
    "exposed": Figure(lambda r: r.exposed_comm_ms, title="exposed communication"),
    "lateness": Figure(lambda r: r.lateness_ms),
    "loss": Figure(lambda r: r.loss, unit=""),
    "last": Figure(lambda r: r.last_pct, unit="%", title="comes last"),
    "score": Figure(lambda r: r.relative_score, unit="", title="relative score", down=True),
    "cpu": Figure(lambda r: r.cpu_pct, unit="%"),
    "memory": Figure(lambda r: r.rss_bytes / 1e9, unit="GB"),
    "age": Figure(lambda r: r.age_ms / 1e3, unit="s", title="last heard"),
    "lost": Figure(lambda r: r.lost_records, unit="records", title="lost records"),
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
    return max(share, {"%": 10.0, "s": 2.0, "records": 1.0}.get(FIGURES[figure].unit, 1e-4))


def title(figure: str, frame: Frame) -> str:
    """`data ms`, `~waiting ms`."""
    told = FIGURES[figure]
    sign = "~" if told.free and frame.group.clock_free else ""
    return f"{sign}{told.title or figure} {told.unit}".rstrip()


def of_ranks(figure: str, frame: Frame) -> Column:
    """(ranks,) as they are now."""
    return np.asarray(FIGURES[figure].now(frame.ranks), np.float64)
