"""The faults, one line each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """What `script.py` does in every second window."""

    name: str
    kind: str = "sleep"
    """`sleep` at the place; `gc`: collect garbage there; `uneven`: every rank draws the size of its batch;
    `larger`: the late ranks have LARGER times as many samples; `quota`: less CPU time for the rank;
    `hog`: a busy loop on its core; `no_sync`: no communication in the window; `none`."""
    place: str = ""
    ms: float = 0.0
    one_in: int = 1
    """One step in so many has the fault."""
    late: int = 1
    """Ranks that have it."""
    rotating: bool = False
    """The rank is drawn for every step, not for the window."""
    world: int = 2
    micro: int = 1
    """Micro-steps of a step; the fault is in the middle one."""
    bucket_mb: float = 0.39
    asleep_ms: float = 0.0
    """The ranks' work is sleep of this mean instead of a model's compute: what a step takes without the fault
    is then the same in all windows, and known."""
    metric: bool = False
    """All-reduce a metric between forward and backward."""
    cause: str | None = None
    """Expected cause; None: any."""

    def spec(self, **more: Any) -> dict[str, Any]:
        """What the script takes."""
        return asdict(self) | more

    @property
    def mean_ms(self) -> float:
        """The delay as a mean over all steps."""
        return self.ms / self.one_in

    @property
    def pattern(self) -> str:
        """Expected pattern."""
        return "rotating" if self.rotating else "intermittent" if self.one_in > 1 else "persistent"


PHASES = ("data", "forward", "backward", "optimizer")
OTHER = ("before_forward", "before_backward", "before_optimizer", "after_optimizer")


def cause_of(place: str) -> str:
    """The phase of a place."""
    return place if place in PHASES else "other"


PLACES = tuple(
    Row(f"{place}-{ms}", place=place, ms=ms, cause=cause_of(place))
    for ms in (20, 3, 1)
    for place in PHASES + OTHER
)

ROWS: tuple[Row, ...] = (
    *PLACES,
    Row("intermittent", place="data", ms=100, one_in=20, cause="data"),
    Row("rotating", place="data", ms=20, rotating=True, cause="data"),
    Row("rotating-3-ranks", place="data", ms=20, rotating=True, cause="data", world=3),
    Row("quota", kind="quota", place="cpu", cause="cpu"),
    Row("hog", kind="hog", place="cpu", cause="cpu"),
    Row("garbage", kind="gc", place="before_forward", one_in=5, cause="gc"),
    Row("garbage-each-step", kind="gc", place="forward", cause="gc"),
    Row("garbage-in-turn", kind="gc", place="data", rotating=True, cause="gc"),
    Row("uneven-work", kind="uneven", rotating=True, cause="uneven_work"),
    Row("larger-batches", kind="larger", cause="uneven_work"),
    Row("small-buckets-20", place="backward", ms=20, bucket_mb=0.1, cause="backward"),
    Row("small-buckets-3", place="backward", ms=3, bucket_mb=0.1, cause="backward"),
    Row("two-of-four", place="data", ms=20, late=2, world=4, cause="data"),
    Row("one-of-four", place="backward", ms=20, world=4, cause="backward"),
    Row("micro-step", place="forward", ms=20, micro=4, cause="forward"),
    Row("metric", place="before_backward", ms=20, metric=True, cause="other"),
    Row("overlapped", kind="no_sync"),
    Row("asleep-20", place="data", ms=20, asleep_ms=8, cause="data"),
    Row("asleep-3", place="before_optimizer", ms=3, asleep_ms=8, cause="other"),
    Row("asleep-overlapped", kind="no_sync", asleep_ms=8),
    Row("short-data", place="data", ms=2, asleep_ms=1, cause="data"),
    Row("short-optimizer", place="before_optimizer", ms=2, asleep_ms=1, cause="other"),
    Row("healthy", kind="none"),
    Row("healthy-4-ranks", kind="none", world=4),
)

SHORT = [
    *(f"{place}-20" for place in PHASES + OTHER),
    *("data-3", "backward-3", "data-1", "intermittent", "rotating", "quota", "garbage"),
    *("small-buckets-20", "two-of-four", "micro-step", "metric", "overlapped", "healthy"),
]
"""Rows that the driver runs without `--rows`."""

BY_NAME = {row.name: row for row in ROWS}
