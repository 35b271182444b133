"""Frames: the data that a screen, the JSON snapshot, `--once`, `--watch` and the report read.

A frame is frozen and complete. Numbers that are not known are NaN in columns and None in scalars;
both become `null` in JSON and a dash on the screen. Columns are numpy arrays, one element per rank
(index = rank) or per history point. Milliseconds unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.conditions import condition_of
from ddptop.protocol.machine import GpuReading
from ddptop.protocol.messages import Scalar

if TYPE_CHECKING:
    from ddptop.frames.activity import ActivitySpan, EpochProgress, LongActivity
    from ddptop.frames.causes import Cause
    from ddptop.frames.columns import Column
    from ddptop.frames.conditions import AlertKind
    from ddptop.frames.detail import Heat, Timeline
    from ddptop.frames.figures import Figure, Ranks
    from ddptop.frames.history import History, RankSteps
    from ddptop.frames.hosts import HostFigures
    from ddptop.frames.ledger import Ledger, RareSlowness
    from ddptop.frames.overhead import Overhead
    from ddptop.frames.process_groups import ProcessGroupFigures
    from ddptop.frames.sampled_stack import SampledStack
    from ddptop.frames.stall import Death, RankPosition, Stall
    from ddptop.frames.start import StartStatus
    from ddptop.protocol.vocabulary import (
        Basis,
        FrameSource,
        OwnPlace,
        Pattern,
        RankStatus,
        Severity,
        StepPhase,
        TrainingKind,
    )


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The run as a whole."""

    name: str
    id: str
    state: RankStatus
    started_at: float
    """Unix seconds."""
    elapsed_s: float
    world_size: int
    backend: str | None
    nodes: int
    script: str
    argv: tuple[str, ...]
    torch: str | None
    exit_code: int | None
    recording: str | None
    """Path of the recording; None when it is off."""
    card: Mapping[str, Scalar]
    """The other facts that rank 0 reported; DDP's options under `ddp.*`."""
    training: TrainingKind | None = None
    """None: not known yet."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Figures of the whole group: medians over the last 100 complete steps, or fewer (`window_steps`)."""

    step: int | None
    """The newest complete step: one that every rank has reported."""
    steps_per_s: float | None
    step_ms_p50: float | None
    step_ms_p95: float | None
    loss_mean: float | None
    loss_min: float | None
    loss_max: float | None
    loss_min_rank: int | None
    loss_max_rank: int | None
    collective_ms: float | None
    wait_ms: float | None
    transfer_ms: float | None
    exposed_comm_ms: float | None
    overlap_pct: float | None
    busbw_gbps: float | None
    no_straggler_ms: float | None
    no_exposed_comm_ms: float | None
    both_ms: float | None
    bound_ms: float | None = None
    """How far a comparison of two ranks' arrivals may be wrong, and so wait, lateness, skew and what-if."""
    transfer_bound_ms: float | None = None
    """How far a transfer may be wrong: completion callbacks run late by a time that cannot be measured."""
    clock_free: bool = False
    """The clocks are too inaccurate: wait and transfer of buckets are the clock-free fallback, and arrivals
    are not compared."""
    clock_reason: str | None = None
    """Why: `the clocks' bound of ±30.1 ms is wider than the skew of 20.0 ms`; None: it is not known yet."""
    clocks_contradict: bool = False
    """This is why: ranks arrive before a collective that they are in could have begun."""
    incarnation: int = 0
    """Elastic restarts before `step`: each counts its steps from 0 again."""
    window_steps: int = 100
    """Number of steps for the medians: fewer than 100 at the start and when a rank has just become slow."""
    exposed_wait_ms: float | None = None
    """Mean over ranks; with `exposed_transfer_ms` it is the exposed communication."""
    exposed_transfer_ms: float | None = None
    """Transfer of the step: the last arriver's exposed communication."""
    exposed_comm_pct: float | None = None
    """Exposed communication as a share of the step."""
    no_straggler_low_ms: float | None = None
    """Interval of 95 % of the three what-if figures, by block bootstrap; None: recordings of 0.1.0."""
    no_straggler_high_ms: float | None = None
    no_exposed_comm_low_ms: float | None = None
    no_exposed_comm_high_ms: float | None = None
    both_low_ms: float | None = None
    both_high_ms: float | None = None
    all_reduces: float | None = None
    """All-reduces of buckets in a step, over all backward passes; None: no step with bucket detail."""
    wire_bytes: float | None = None
    """Bytes that a rank gives to them, after compression; None also where a hook hides it."""
    cpu_wait_pct: float | None = None
    """Share of the time that every rank waits for a CPU outside exposed communication: the least of all."""
    cpu_shortage: str = ""
    """`3 ranks may use core 0 only`; empty: ranks have as many CPUs as they need, as far as is known."""
    late_no_sync: bool = False
    """`no_sync()` encloses backward and not its forward in the newest steps, so that backward all-reduces."""
    loss_as_given: int = 0
    """Backward passes whose mean the loss is, as `backward()` was given it: the script may divide it by their
    number, or not. 0: it is of one pass, or known as the script logs it."""
    optimizers_in_turn: int = 0
    """How many optimizers step in turn, as in a GAN; 0: one. The losses are of the first one's steps."""
    loss_of_other: float | None = None
    """Newest loss of a step of another of these optimizers, mean over ranks."""


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """One bucket of the newest layout: medians over its recent detailed steps, over all ranks."""

    index: int
    generation: int
    model: int
    bytes: int | None
    """Bytes on the wire; None where a hook hides it."""
    parameters: int | None
    dtype: str
    hook: str
    collective_ms: float | None
    wait_ms: float | None
    transfer_ms: float | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    effective_busbw_gbps: float | None
    """busbw computed on the collective time, waiting included."""
    skew_ms: float | None
    last_arriver: int | None
    last_arriver_pct: float | None
    group: str = ""
    """Process group that reduces it; `0` is the default group, empty: not reported."""
    bound_ms: float | None = None
    """How far skew and wait may be wrong."""
    transfer_bound_ms: float | None = None
    launches: float | None = None
    """All-reduces of it in a step, in all backward passes: a mean over steps. The times above are of one."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """The rank that the others wait for."""

    rank: int
    pattern: Pattern | None
    lateness_ms: float
    bound_ms: float
    recoverable_ms: float
    cost_pct: float
    last_pct: float
    """Share of the evaluated steps in which it, or one of `ranks`, came last."""
    cause: Cause | None
    parts_ms: Mapping[StepPhase, float]
    ranks: tuple[int, ...] = ()
    """All ranks that the others wait for, `rank` first; empty: `rank` alone."""
    throttle: str = ""
    """Why its GPU is throttled; empty: it is not, or this is unknown."""
    place: OwnPlace | None = None
    """Where the excess lies, as `cause`, with `other` divided by its place; None: mixed or unknown."""
    basis: Basis = "arrivals"
    """`every_step`: lateness is the median excess of its own time, `bound_ms` the error of it, `last_pct` the
    share of steps in which it had the largest own time. A NaN in `parts_ms`: not known (backward where the
    last gradient is unknown)."""
    disagrees: bool = False
    """Bucket arrivals in detailed steps contradict a verdict from every step."""
    waits_for: str = ""
    """Why it waits: for a CPU (`cause`), for pages from disk, a hot processor, `frames/reasons.py`; empty:
    not known."""
    elements_ratio: float | None = None
    """With cause `uneven_work`: elements of the late ranks' inputs over those of the others."""
    rare: RareSlowness | None = None
    """With pattern `rare`: its slow steps. `lateness_ms` is what the others waited in such a step, and
    `cost_pct` a share of the time in which these steps are."""
    group: str = ""
    """In whose collectives it is late, where only these tell (`frames/process_groups.py`): `the default
    group`, `group mesh_dp_shard (ranks 0 and 1)`. Empty: its own time or its buckets tell."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The rank that is clearly the last to arrive in the newest steps, in too few of them to flag it."""

    rank: int
    lateness_ms: float
    bound_ms: float
    last: int
    """Steps in which it came last."""
    steps: int
    """Newest steps; of basis `arrivals` those with bucket detail."""
    basis: Basis = "arrivals"
    cause: Cause | None = None
    """`cpu`: it waits for a CPU; None: not known."""
    so_far_s: float | None = None
    """How long it has waited for a CPU, and how long it must to be flagged; None: another cause."""
    needed_s: float | None = None


@dataclass(slots=True, unsafe_hash=True)
class Clocks:
    """Offset of one host's clock from the collector's, and its bound. Not to be changed, as `HostFigures`."""

    host: str
    offset_ms: float | None
    """Now."""
    bound_ms: float | None
    drift_ppm: float | None = None
    """How much faster the collector's clock runs; None: the clock was not compared."""
    age_s: float | None = None
    """Since the clock was compared; None: never, or it is the collector's own."""


@dataclass(frozen=True, slots=True)
class GpuFacts(GpuReading):
    """The GPU of one rank, reported by the agent of its host and by torch's allocator. None: not reported."""

    rank: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    peak_bytes: int | None
    retries: int | None


@dataclass(frozen=True, slots=True)
class LoggedScalar:
    """One name given to `ddptop.log`: the newest values of all ranks that logged it. None: not finite."""

    name: str
    ranks: int
    """How many ranks logged it."""
    mean: float | None
    min: float | None
    max: float | None
    min_rank: int | None
    max_rank: int | None
    focus: float | None
    """The value of the rank in focus."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A condition that is present now."""

    kind: AlertKind
    severity: Severity
    rank: int | None
    step: int | None
    since_s: float
    """Unix seconds at which it began."""
    message: str
    evidence: Mapping[str, Scalar] = field(default_factory=dict)
    incarnation: int = 0
    """In a report: elastic restarts before it."""

    @classmethod
    def declared(
        cls,
        kind: AlertKind,
        rank: int | None,
        step: int | None,
        since_s: float,
        message: str,
        evidence: Mapping[str, Scalar] | None = None,
    ) -> Alert:
        """An alert of the severity that is declared for its kind."""
        return cls(kind, condition_of(kind).severity, rank, step, since_s, message, evidence or {})


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """Something that happened, for the event line and the events view."""

    unix_s: float
    kind: str
    severity: Severity
    rank: int | None
    step: int | None
    message: str
    incarnation: int = 0
    """Elastic restarts before it; only steps of one incarnation can be compared."""
    host: str | None = None
    """The host that it is about; None: it is about none, or is told by an earlier collector."""


@dataclass(frozen=True, slots=True)
class Playback:
    """The position in a recording. None in a live frame."""

    position_s: float
    duration_s: float
    step: int | None
    first_step: int | None
    last_step: int | None
    playing: bool
    speed: float
    growing: bool
    """The recording is still being written."""
    damage: str | None
    """Which part of the file could not be read, in words."""
    marks: tuple[tuple[float, str], ...]
    """(share of the duration, kind of event) for the replay bar."""
    behind: bool = False
    """It plays more slowly than `speed`, because reading takes longer."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The group at one moment."""

    source: FrameSource
    unix_s: float
    """The moment the frame shows."""
    run: RunInfo
    group: GroupFigures
    ranks: Ranks
    buckets: tuple[BucketFigures, ...]
    straggler: Straggler | None
    alerts: tuple[Alert, ...]
    events: tuple[LoggedEvent, ...]
    """The last hundred, oldest first."""
    overhead: Overhead
    history: History
    focus: RankSteps | None
    records: int
    lost_records: int
    playback: Playback | None = None
    stall: Stall | None = None
    deaths: tuple[Death, ...] = ()
    """Causes first, then the deaths that they caused, each in order of time; at most MAX_POSITIONS."""
    clocks: tuple[Clocks, ...] = ()
    logged: tuple[LoggedScalar, ...] = ()
    """In order of name."""
    gpus: tuple[GpuFacts, ...] = ()
    """One for each rank with a GPU, in order of rank."""
    timeline: Timeline | None = None
    heat: Heat | None = None
    position: RankPosition | None = None
    """Position of a rank on its way to the first step. Only in frames on request."""
    suspect: Suspect | None = None
    """None while a rank is flagged (`straggler`)."""
    hosts: tuple[HostFigures, ...] = ()
    """In order of their lowest rank; empty: no host has been named yet."""
    ledger: Ledger | None = None
    """None: no rank has reported yet, or not all steps since the launch were read, without recorded sums."""
    activities: tuple[LongActivity, ...] = ()
    """While a step lasts far longer than usual: what the ranks do in it, those first that the others wait
    for."""
    past_activities: tuple[ActivitySpan, ...] = ()
    """Since when and until when any rank evaluated or saved, in order of begin."""
    progress: EpochProgress | None = None
    """None: no rank trains on a DataLoader, as far as is known."""
    sampled: tuple[SampledStack, ...] = ()
    """Which line takes the time: of flagged ranks in their place first, then of long steps."""
    process_groups: tuple[ProcessGroupFigures, ...] = ()
    """Whose collectives no hook times, and all ranks report; in order of their lowest rank."""
    start: StartStatus | None = None
    """None: every rank has finished its first step, or no rank has reported how far it has come."""


def rate_without_stalls(frame: Frame) -> float | None:
    """`steps_per_s` without the steps in which a stall was logged."""
    group = frame.group
    step, end_s = (getattr(frame.history, name)[-max(1, group.window_steps) :] for name in ("step", "time_s"))
    at_s = [event.unix_s - frame.run.started_at for event in frame.events if event.kind == "stall"]
    stalled = np.isin(np.arange(1, len(end_s)), np.searchsorted(end_s, at_s))
    steps, lasted_s = np.diff(step)[~stalled].sum(), np.diff(end_s)[~stalled].sum()
    return float(steps / lasted_s) if stalled.any() and lasted_s > 0 else group.steps_per_s


def values_of_ranks(figure: Figure, frame: Frame) -> Column:
    """(ranks,) values of a figure; NaN: not known."""
    if figure.computed is not None:
        return np.asarray(figure.computed(frame.ranks))
    if figure.scope == "rank":
        return np.asarray(getattr(frame.ranks, figure.name))
    values = np.full(len(frame.ranks.state), np.nan)
    for facts in frame.gpus:
        value = getattr(facts, figure.name)
        if value is not None and facts.rank < len(values):
            values[facts.rank] = value
    return values
