"""The cause of a straggler: the place in the step that has its excess, or what lies below the phases.

Which places are searched is here, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.steps.own_times import PLACES
from ddptop.analysis.straggler import own_time_rules
from ddptop.frames.statistics import median, quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.causes import Cause
    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import OwnPlace, StepPhase

PHASE_OF: dict[OwnPlace, StepPhase] = {
    "data": "data",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    **dict.fromkeys(PLACES[4:], "other"),
}

STEADY = tuple(place for place in PLACES if place != "backward")
"""Places that are searched by themselves. Own backward is not: where ranks share cores it scatters as much as
the whole. In a healthy run of 45,000 steps at a load of 8 to 20 it raised three of six flags."""

_CAUSES: dict[OwnPlace, Cause] = {"cpu": "cpu", "gc": "gc", "uneven_work": "uneven_work"}
"""Causes of their own, in whatever phase."""


def of_place(place: OwnPlace) -> Cause:
    """The cause that an excess in this place has."""
    return _CAUSES.get(place) or PHASE_OF[place]


def late_place(over: Mapping[OwnPlace, Column]) -> OwnPlace | None:
    """The place with at least CAUSE_SHARE of what the late ranks take longer; None: no place has it.

    Searched first are those whose excess hardly varies, where one of them has half of the largest of all."""
    positive = {name: ms for name, values in over.items() if (ms := float(median(values))) > 0}
    # Ranks on shared cores win or lose in backward what another does at that moment: that is no cause.
    steady = {n: ms for n, ms in positive.items() if quantile(over[n], own_time_rules.LOW) > ms / 2}
    least = own_time_rules.HALF * max(positive.values(), default=0.0)
    for excess_of in (steady, positive):
        place = max(excess_of, key=lambda name: excess_of[name], default=None)
        if place is not None and excess_of[place] >= max(
            least, own_time_rules.CAUSE_SHARE * sum(excess_of.values())
        ):
            return place
    return None


def carried(pauses: Column, lateness: Column) -> bool:
    """Whether an excess (n,) is nothing but pauses, less the others' in the same steps: at least CAUSE_SHARE
    of it, and not by a few steps."""
    pause_ms = float(median(pauses))
    carried = pause_ms > 0 and pause_ms >= own_time_rules.CAUSE_SHARE * float(median(lateness))
    return carried and bool(quantile(pauses, own_time_rules.LOW) > pause_ms / 2)
