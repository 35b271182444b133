"""Whether the ranks of a host have fewer CPUs than they need, and how long they wait for one."""

from __future__ import annotations

from functools import partial
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import percent
from ddptop.frames.phrases import ranks_phrase
from ddptop.frames.reasons import THROTTLED_PCT
from ddptop.protocol.machine import Usage

if TYPE_CHECKING:
    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.windows import StepWindow
    from ddptop.frames.columns import Column, Indices


def cpu_wait_pct(steps: StepWindow, slots: Indices) -> float | None:
    """Share of the time of these steps that every rank waits for a CPU outside exposed communication: that of
    the rank that waits least, for one that waits longer than the others is a straggler. None: not known."""
    if not steps.has_own or not len(slots):
        return None
    waited = steps.place("cpu", slots)
    is_known = ~np.isnan(waited)
    wall_ms = np.where(is_known, np.broadcast_to(steps.wall(slots), waited.shape), 0.0).sum(axis=1)
    if not (wall_ms > 0).any():
        return None
    shares = np.nansum(waited, axis=1)[wall_ms > 0] / wall_ms[wall_ms > 0]
    return 100 * float(shares.min())


def cpu_shortage(state: RunState) -> str:
    """`3 ranks may use core 0 only`, `the CPU quota of 3 ranks is used up in 60% of its periods`;
    empty where the ranks of every host may use a core each, or all cores of it."""
    usage, hellos = partial(state.table.newest_values, Usage), state.presence.hellos
    cores, first, throttled = (usage(name) for name in ("cores", "first_core", "throttled_pct"))
    if not hellos.of_hosts:
        return ""
    # Most hosts have neither: all are looked at together, and only those that may have are read.
    few = hellos.counts > cores[hellos.members].max(axis=1)
    low = (throttled[hellos.members] >= THROTTLED_PCT).any(axis=1)
    for ranks in compress(hellos.of_hosts.values(), (few | low).tolist()):
        members = np.asarray(ranks, np.int64)
        sentence = _few_cores(members, state.world, cores[members], first[members])
        sentence = sentence or _low_quota(members, state.world, throttled[members])
        if sentence:
            return sentence
    return ""


def _few_cores(ranks: Indices, world: int, cores: Column, first: Column) -> str:
    """Ranks that begin at different cores are taken to have cores of their own. `first` is unknown where a
    rank may use all cores."""
    if not np.isfinite(cores + first).all() or np.ptp(first) > 0:
        return ""
    most = int(cores.max())
    if most >= len(ranks):
        return ""
    which = f"core {int(first[0])} only"
    if most > 1:
        which = f"{most} cores only, from core {int(first[0])} on"
    return f"{ranks_phrase(ranks.tolist(), world)} may use {which}"


def _low_quota(ranks: Indices, world: int, throttled: Column) -> str:
    """A sentence where more than half of the ranks have used up their CPU quota; else empty. The quota of one
    rank alone makes that rank slow, which is said of it."""
    used_up = throttled >= THROTTLED_PCT
    if len(ranks) < 2 or 2 * used_up.sum() <= len(ranks):
        return ""
    who = ranks_phrase(ranks[used_up].tolist(), world)
    return f"the CPU quota of {who} is used up in {percent(float(throttled[used_up].mean()))} of its periods"
