"""What is known of each rank as a process: sessions, heartbeats, counts, and the state that follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from ddptop.analysis.rank_table import NO_DELAY, STALE_S, UNKNOWN, Cell, CellOrNone, RankTable
from ddptop.frames.conditions import SILENT_STATES
from ddptop.frames.phrases import ended_by_signal
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import FINISHED, LEFT, ORDERLY_REASONS, Phase, Progress
from ddptop.protocol.vocabulary import ENDED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.rank_table import SessionTable
    from ddptop.analysis.steps.clocks import Interruptions
    from ddptop.protocol.evidence import Evidence
    from ddptop.protocol.messages import Bye, Hello, Scalar
    from ddptop.protocol.vocabulary import DeviceState, HostState, RankPhase, RankStatus, RunOutcome

MAX_LOGGED = 64
"""Most names of logged values: a script that makes a new name in every step must not fill the memory."""

SILENT_S = 10.0
"""After this the host counts as lost."""
PHASE_NAMES: Mapping[int, RankPhase] = {phase.value: cast("RankPhase", phase.name.lower()) for phase in Phase}


@dataclass(slots=True)
class RankSession:
    """One process of one rank. Its numbers stand in the table."""

    table: SessionTable = field(compare=False, repr=False)
    row: int = field(compare=False)
    hello: Hello
    layouts: dict[int, int] = field(default_factory=dict)
    """Layout generation of this process -> number of the layout's content."""

    rank = Cell()
    next_step = Cell()
    begun = Cell()
    generation = Cell()
    layout = Cell()


class PassedLoss(NamedTuple):
    """Consecutive NaN or infinite losses of a rank, after which a loss was finite again."""

    step: int
    """The first step with such a loss."""
    since_ns: int
    finite_step: int
    """The step whose loss was finite again."""
    finite_ns: int
    last_finite_step: int
    """The last step before `step` whose loss was read; UNKNOWN: there is none."""


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The state of a rank's GPU by its events, from its answer to the collector."""

    t_ns: int
    """When the answer arrived, on the collector's clock."""
    state: DeviceState
    step: int
    phase: RankPhase
    """`forward`, `backward`, `optimizer`; empty: none of them."""
    bucket: int
    """The all-reduce that the GPU is in or has not reached; -1: unknown."""
    error: str
    """The error that CUDA reports; empty: none."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """What the kernel shows of a rank's process, or of one that it has started."""

    t_ns: int
    """When the report arrived, on the collector's clock."""
    pid: int
    state: str
    """One letter: `R` runs, `S` sleeps, `D` waits for a device or a disk."""
    waits_in: str
    """Function of the kernel in which its main thread sleeps; empty: unknown, or none."""
    cpu_s: float
    age_s: float
    workers: tuple[KernelReport, ...] = ()

    def words(self) -> str:
        """`sleeps in hrtimer_nanosleep`, `runs`."""
        does = {"R": "runs", "D": "is blocked (D)"}.get(self.state, "sleeps")
        return f"{does} in {self.waits_in}" if self.waits_in else does


@dataclass(frozen=True, slots=True)
class NotInitialized:
    """A rank that others wait for in `init_process_group`."""

    t_ns: int
    """When this was reported, on the collector's clock."""
    since_ns: int
    """Since when they wait."""
    waiting: tuple[int, ...]
    torch: bool
    """It has loaded torch."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Ranks that wait for each other in `init_process_group` after an elastic restart."""

    restart: int
    t_ns: int
    """When this was last reported, on the collector's clock."""
    since_ns: int
    ranks: frozenset[int]


class ReachedMilestone(NamedTuple):
    """A place on the way to the first step that a rank has come to."""

    t_ns: int
    """When, on the collector's clock."""
    fields: Mapping[str, Scalar]


@dataclass(slots=True)
class RankState:
    """One rank. A new session resets everything except `records` and `lost_records`. Its numbers stand in
    the table, whose columns say what they are."""

    table: RankTable = field(default_factory=partial(RankTable, 1), compare=False, repr=False)
    row: int = field(default=0, compare=False)
    """The rank."""
    hello: Hello | None = None
    milestones: dict[str, ReachedMilestone] = field(default_factory=dict)
    """By name, in the order in which it came to them; empty: it reports from its first DDP model on."""
    logged: dict[str, float] = field(default_factory=dict)
    """Newest value of each name that the script logged; NaN where it was no number."""
    bye: Bye | None = None
    gone_ns: int | None = None
    """When its process was seen to have exited."""
    ended_ns: int | None = None
    """When its BYE came."""
    exit_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """How its process ended and when that became known; a signal by its name, `SIGKILL`."""
    out_of_memory: bool | None = None
    """Whether the kernel killed it, or a process of its cgroup, for want of memory, by the cgroup's count;
    None: not known."""
    killed_late: bool = False
    """It was killed so long after the first exit as launchers wait before they kill what SIGTERM does not
    end."""
    by_launcher: bool = False
    """Its launcher, which was interrupted, has ended it by a signal."""
    left_early: bool = False
    """It exited in good order while other ranks still needed it (`health/exits.py`)."""
    last_sequence: int | None = None
    """Sequence number of its process group when it left it or exited."""
    left_alone: str = ""
    """It failed in a collective after the others had exited in good order: `the others had ended in good
    order, one barrier behind` (`health/exits.py`)."""
    gave_up: bool = False
    """It ended because a rank for which it waited in a collective had not come (`stall/at_exit.py`)."""
    stopped: bool = False
    """Its process is stopped, by SIGSTOP or a debugger."""
    evidence: Evidence | None = None
    evidence_ns: int = 0
    """Its newest answer and when that arrived."""
    device: DeviceReport | None = None
    """The state of its GPU when it last answered."""
    kernel: KernelReport | None = None
    """What the kernel showed of its process when it was last asked."""
    worker_calls: dict[int, tuple[int, str]] = field(default_factory=dict)
    """For each of its DataLoader workers, by pid: when its call was received, and where in its code it was:
    `data.py:41 decode`."""
    unread_workers: tuple[int, str] = (0, "")
    """When and why its workers could not be read: `missing` (no py-spy), `denied` (no permission)."""
    native_calls: tuple[int, str] = (0, "")
    """When it was last read, and in which C functions it was: it ran no Python."""
    exit_evidence: Evidence | None = None
    """Evidence at its exit, sent by itself or read from its crash file."""
    bad_loss_ns: int = 0
    """When the row of `bad_loss_step` arrived."""
    bad_by_weights: bool = False
    """Whether only its weights tell that, after its last step: the losses of the last steps were not read."""
    phase_name: str = ""
    """Name of the phase that its script has declared last (`ddptop.phase`)."""
    bad_loss_before: PassedLoss | None = None
    """The newest period with NaN or infinite losses that has ended."""

    records = Cell()
    lost_records = Cell()
    session = Cell()
    heard_ns = Cell()
    seen_ns = Cell()
    moved_ns = Cell()
    own_ns = Cell()
    delay_ns = Cell()
    stood_ns = Cell()
    step = Cell()
    launched_ns = Cell()
    declared = Cell()
    joined = Cell()
    micro_steps = CellOrNone()
    bad_loss_step = CellOrNone()
    finite_loss_step = CellOrNone()

    def take_logged(self, values: Mapping[str, Scalar]) -> None:
        """Take the newest values that its script logged."""
        for name, value in values.items():
            if name in self.logged or len(self.logged) < MAX_LOGGED:
                self.logged[name] = float(value) if isinstance(value, (int, float)) else math.nan

    @property
    def progress(self) -> Progress | None:
        """Its newest heartbeat."""
        return cast("Progress | None", self.table.newest[Progress].message(self.row))

    @property
    def usage(self) -> Usage | None:
        """The newest reading of its process."""
        return cast("Usage | None", self.table.newest[Usage].message(self.row))

    @property
    def gpu(self) -> Gpu | None:
        """The newest reading of its GPU."""
        return cast("Gpu | None", self.table.newest[Gpu].message(self.row))

    @property
    def memory(self) -> Memory | None:
        """Memory of torch's CUDA allocator."""
        return cast("Memory | None", self.table.newest[Memory].message(self.row))

    def begin(self, hello: Hello, session: int, t_ns: int) -> None:
        """A new process takes the rank over."""
        self.forget_process()
        self.hello, self.session, self.heard_ns, self.moved_ns = hello, session, t_ns, t_ns
        self.own_ns, self.delay_ns = hello.monotonic_ns, t_ns - hello.monotonic_ns

    def forget_process(self) -> None:
        """Forget the old process: the ranks restarted, and a new process of this rank will follow."""
        self.table.forget_process(self.row)
        self.__init__(self.table, self.row)  # type: ignore[misc]

    def read_clock(self, own_ns: int, t_ns: int, interruptions: Interruptions) -> None:
        """Take a reading of the rank's own clock that arrived at `t_ns`."""
        reading = np.array([[self.row], [0], [t_ns], [own_ns], [UNKNOWN], [NO_DELAY]], np.int64)
        self.table.read_clocks(reading, interruptions)

    def declare(self, begins: bool, t_ns: int) -> None:
        """A declared phase begins or ends. At its end the time of the step is counted from 0 again."""
        self.declared = max(0, self.declared + (1 if begins else -1))
        self.moved_ns = max(self.moved_ns, t_ns)
        self.stood_ns = 0

    @property
    def phase(self) -> RankPhase:
        """Name of the phase at the last heartbeat; empty when unknown."""
        seen = self.progress
        return PHASE_NAMES.get(seen.phase, "") if seen else ""

    @property
    def bucket(self) -> int | None:
        """All-reduces launched in its present step; None: unknown."""
        seen = self.progress
        return seen.bucket if seen and seen.bucket >= 0 and seen.step == self.step else None

    @property
    def sequence(self) -> int | None:
        """Sequence number of its process group."""
        seen = self.progress
        return seen.sequence if seen and seen.sequence >= 0 else None

    @property
    def host(self) -> str:
        """The host on which its process runs; empty before its HELLO."""
        return self.hello.host if self.hello else ""

    @property
    def finished(self) -> bool:
        """Whether its BYE says that it finished or left its group."""
        return self.bye is not None and self.bye.reason in ORDERLY_REASONS

    @property
    def ended_badly(self) -> bool:
        """Whether its process exited without BYE, or with an exception, an exit code or a signal.

        How a process exits after it has left its group does not concern the training.
        """
        if self.bye is None:
            return self.gone_ns is not None
        if self.bye.reason == LEFT:
            return False
        badly = self.left_early or bool(self.exit_code) or self.signal is not None
        return badly or self.bye.reason != FINISHED

    @property
    def before_recording(self) -> bool:
        """Whether its steps are not recorded yet: it has neither a DDP model nor trained without one."""
        early = self.hello is not None and bool(self.milestones) and not self.hello.timing_path
        return early and not self.records  # what says that they are recorded may be lost

    @property
    def failed_early(self) -> bool:
        """Whether it failed before its steps were recorded (`ddptop/host/early_failures.py`)."""
        early = self.progress is None or self.before_recording
        return early and self.exit_evidence is not None and not self.records

    @property
    def running(self) -> bool:
        """Whether it has sent HELLO and no BYE, and its process has not been seen to exit."""
        return self.hello is not None and self.bye is None and self.gone_ns is None

    def state(self, silent_ns: int, run_state: RunOutcome, *, host: HostState | None) -> RankStatus:
        """Its state by itself. Whether it is stalled depends on the
        whole group.

        `silent_ns`: time since its last message. `host`: state of its host; `lost`: nothing arrived from it
        for SILENT_S, neither from another rank nor from the agent.
        """
        if self.bye is not None:
            return "finished" if self.finished and not self.ended_badly else "failed"
        if self.hello is None:
            return "waiting"
        if run_state == "finished":
            return "finished"  # the launcher reports success only when every rank succeeded
        exit_evidence = self.exit_evidence
        if (
            self.gone_ns is not None
            and exit_evidence is not None
            and not ended_by_signal(self.signal, exit_evidence.reason)
        ):
            return "failed"  # it has said why, though not by a BYE
        if self.gone_ns is not None or run_state == "failed":
            return "lost"
        if host is not None and host in SILENT_STATES:
            return host
        return "stale" if silent_ns > STALE_S * NS else "live"


ABSENT = RankState()
"""Stands for every rank that has not sent HELLO; never changed."""


def group_state(states: Sequence[RankStatus], run_state: RunOutcome, *, stalled: bool = False) -> RankStatus:
    """The state of the run: the worst state of a rank, but stale only when no rank reports.

    It has failed once its launcher has ended: until then ranks that have failed may be started again.

    `stalled`: the run is stalled by the rule for the whole group, even where every stalled rank is silent.
    """
    if run_state in ENDED:
        return run_state
    present = set(states)
    if "failed" in present or "lost" in present:
        return "lost"
    if stalled or "stalled" in present:
        return "stalled"
    for silent in SILENT_STATES:
        if silent in present:
            return silent
    if not present or "waiting" in present:
        return "waiting"
    if present == {"finished"}:
        return "finished"
    return "stale" if present <= {"stale", "finished"} else "live"
