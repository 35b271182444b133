"""In which figures a rank's process, GPU and host differ from those of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import fixed, known, percent, size
from ddptop.frames.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame, LoggedEvent

APART = 0.2
"""A figure is named where it differs from the others' median by this share of the larger one."""


BEFORE_S, AFTER_S = 60.0, 5.0
"""Events of so long before a rank was flagged, and after it, may have to do with it."""


def events_near(events: Iterable[LoggedEvent], since_s: float) -> list[LoggedEvent]:
    """What happened around the moment at which a rank was flagged, without the flags themselves. Warnings of
    the start are left out: all ranks have them, and no step was slow yet."""
    return [
        event
        for event in events
        if -BEFORE_S <= event.unix_s - since_s <= AFTER_S
        and not event.kind.startswith("straggler")
        and not (event.kind == "warning" and not event.step)
    ]


def differences(frame: Frame, rank: int) -> Iterator[str]:
    """`its process uses 20% of a CPU, the others 95%`, `GPU clock 900 MHz, the others 1,980 MHz`."""
    own, usual = _of_and_others(frame.ranks.cpu_pct, rank)
    if _apart(own, usual):
        yield f"its process uses {percent(own, 0)} of a CPU, the others {percent(usual, 0)}"
    own, usual = _of_and_others(frame.ranks.rss_bytes, rank)
    if _apart(own, usual):
        yield f"memory {size(own)}, the others {size(usual)}"
    gpu = next((gpu for gpu in frame.gpus if gpu.rank == rank), None)
    if gpu is not None:
        for name, title, unit in (("clock_mhz", "GPU clock", " MHz"), ("temp_c", "GPU", " °C")):
            values = {one.rank: getattr(one, name) for one in frame.gpus if getattr(one, name) is not None}
            if rank in values and len(values) > 1:
                usual = float(median(np.array([value for at, value in values.items() if at != rank], float)))
                if _apart(float(values[rank]), usual):
                    yield f"{title} {fixed(values[rank], 0)}{unit}, the others {fixed(usual, 0)}"
        if gpu.throttle:
            yield f"its GPU is throttled: {gpu.throttle}"
    host = next((one for one in frame.hosts if one.name == frame.ranks.host[rank]), None)
    loads = [one.cpu_pct for one in frame.hosts if one is not host and one.cpu_pct is not None]
    if host is not None and host.cpu_pct is not None and loads:
        usual = float(median(np.array(loads, float)))
        if _apart(host.cpu_pct, usual):
            yield f"its host's CPUs are {percent(host.cpu_pct, 0)} busy, the others' {percent(usual, 0)}"


def _of_and_others(values: Column, rank: int) -> tuple[float, float]:
    return float(values[rank]), float(median(np.delete(values, rank)))


def _apart(own: float, usual: float) -> bool:
    return known(own) and known(usual) and abs(own - usual) > APART * max(abs(own), abs(usual))
