"""Why a rank is slow, from readings of its process and processor; each is said only where these carry it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.numbers import fixed, percent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.protocol.machine import Usage

THROTTLED_PCT = 5.0
"""Least share of periods in which a CPU quota must have been used up to be what a rank waits for."""


def cpu_reason(usage: Usage | None) -> str:
    """`CPU quota: throttled in 40% of periods`, `5 runnable threads, it may use 2 cores`."""
    if usage is None:
        return ""
    if usage.throttled_pct is not None and usage.throttled_pct >= THROTTLED_PCT:
        return f"CPU quota: throttled in {percent(usage.throttled_pct)} of periods"
    if usage.runnable is None or not usage.cores:
        return ""
    return f"{usage.runnable} runnable threads, it may use {usage.cores} core{'s' * (usage.cores > 1)}"


MAJOR_FAULTS_S = 50.0
"""Least major faults a second that slow a rank: some 5 ms of reading in each second from an SSD."""


def disk_reason(faults_s: float, most_s: float, usage: Usage | None) -> str:
    """`reads pages back from disk: 300 major faults/s`, where it has four times those of any other rank,
    which are at most `most_s`. NaN: not known. From swap where some of the process is in it, and the host
    reads at least half as many pages back."""
    if not faults_s >= MAJOR_FAULTS_S or faults_s < 4 * most_s:
        return ""
    faults = f"{fixed(faults_s, 0)} major faults/s"
    if usage is not None and usage.swapped_bytes and (usage.swap_ins_s or 0.0) >= faults_s / 2:
        swapped = f"{fixed(usage.swapped_bytes / 2**20, 0)} MiB of it are swapped out"
        return f"reads pages back from swap: {faults}, {swapped}"
    return f"reads pages back from disk: {faults}"


BLOCKED_PCT = 30.0
"""Least share of readings in state D that slow a rank: three of ten."""


def blocked_reason(pct: float, most_pct: float) -> str:
    """`blocked in 40% of readings (state D: a disk, a network file system or a device)`, where it has twice
    the share of any other rank, at most `most_pct`. NaN: not known."""
    if not pct >= BLOCKED_PCT or pct < 2 * most_pct:
        return ""
    return f"blocked in {percent(pct)} of readings (state D: a disk, a network file system or a device)"


HEAT_PCT = 10.0
"""Least share of the time, throttled for heat, that slows a rank."""

LOW_CLOCK = 0.75
"""The clock of a slow rank's processor is at most this share of any other rank's."""


def heat_reason(pct: float, most_pct: float) -> str:
    """`its processor is throttled for heat in 40% of the time`, where it has twice the share of any other
    rank's, at most `most_pct`. NaN: not known."""
    if not pct >= HEAT_PCT or pct < 2 * most_pct:
        return ""
    return f"its processor is throttled for heat in {percent(pct)} of the time"


def clock_reason(pct: float, least_pct: float) -> str:
    """`its processor runs at 40% of its highest clock, those of other ranks at 90% or more`: at `least_pct`.
    NaN: not known."""
    if not pct <= LOW_CLOCK * least_pct:
        return ""
    beside = f"those of other ranks at {percent(least_pct)} or more"
    return f"its processor runs at {percent(pct)} of its highest clock, {beside}"


class Beside(NamedTuple):
    """A number of a rank beside the others'."""

    own: float
    """NaN: none has come."""
    most: float
    """0 where none has come."""
    least: float
    """NaN where none has come."""


def process_reason(usage: Usage | None, beside: Callable[[str], Beside]) -> str:
    """Why a rank is slow, from the readings of its process and processor; empty: they do not tell.
    `beside`: a number of `usage` beside those of ranks that are not slow."""
    names = ("major_faults_s", "blocked_pct", "heat_pct", "clock_pct")
    faults, blocked, heat, clock = map(beside, names)
    return (
        disk_reason(faults.own, faults.most, usage)
        or blocked_reason(blocked.own, blocked.most)
        or heat_reason(heat.own, heat.most)
        or clock_reason(clock.own, clock.least)
    )
