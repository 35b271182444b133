"""In which figures a rank's process, GPU and host differ from those of the others."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.figures import HOST_FIGURES, figures_shown
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.numbers import known
from ddptop.frames.statistics import median

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ddptop.frames.columns import Column
    from ddptop.frames.figures import Figure, NamedDifference
    from ddptop.frames.frame import Frame, LoggedEvent

DIFFERENCES = figures_shown(lambda figure: figure.difference)
HOST_DIFFERENCES = figures_shown(lambda figure: figure.difference, HOST_FIGURES)

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
    for figure, how in DIFFERENCES:
        values = values_of_ranks(figure, frame)
        yield from _name_difference(figure, how, float(values[rank]), np.delete(values, rank))
    gpu = next((gpu for gpu in frame.gpus if gpu.rank == rank), None)
    if gpu is not None and gpu.throttle:
        yield f"its GPU is throttled: {gpu.throttle}"
    # A host is compared as a whole: what loads it may be no rank of this run.
    name = frame.ranks.host[rank]
    for figure, how in HOST_DIFFERENCES:
        loads = {host.name: getattr(host, figure.name) for host in frame.hosts}
        value = loads.pop(name, None)
        if value is not None:
            yield from _name_difference(figure, how, value, np.array([*loads.values()], np.float64))


def _name_difference(figure: Figure, how: NamedDifference, own: float, others: Column) -> Iterator[str]:
    usual = float(median(others)) if len(others) else math.nan
    if _are_apart(own, usual):
        text = how.text or figure.text
        yield how.sentence.format(own=text(own), usual=text(usual))


def _are_apart(own: float, usual: float) -> bool:
    return known(own) and known(usual) and abs(own - usual) > APART * max(abs(own), abs(usual))
