"""What is known of each rank as a process: sessions, heartbeats, counts, and the state that follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from ddptop.protocol.limits import NS
from ddptop.protocol.messages import FINISHED, LEFT, WELL, Phase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.analysis.steps.clocks import Interruptions
    from ddptop.protocol.evidence import Evidence
    from ddptop.protocol.machine import Gpu, Memory
    from ddptop.protocol.messages import Bye, Hello, Progress, Scalar
    from ddptop.protocol.vocabulary import DeviceState, RankPhase, RankStatus, RunOutcome

MAX_LOGGED = 64
"""Names of logged values: a script that makes a new one in every step must not fill the memory."""

HEARTBEAT_S = 0.5
"""Period of PROGRESS. A loaded machine may be late with one or two; three in a row are shown."""
STALE_S = 3 * HEARTBEAT_S
SILENT_S = 10.0
"""After this the host counts as lost."""
PHASE_NAMES: Mapping[int, RankPhase] = {phase.value: cast("RankPhase", phase.name.lower()) for phase in Phase}


@dataclass(slots=True)
class Session:
    """One process of one rank, as far as its numbered messages have come."""

    rank: int
    hello: Hello
    next_step: int = 0
    begun: bool = False
    layouts: dict[int, int] = field(default_factory=dict)
    """Layout generation of this process -> number of the layout's content."""
    generation: int = -1


class PassedLoss(NamedTuple):
    """A row of NaN or Inf losses that a finite one has ended."""

    step: int
    """Its first."""
    since_ns: int
    finite_step: int
    """The step whose loss was finite again."""
    finite_ns: int


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """The state of a rank's GPU by its events, from its answer to the collector."""

    t_ns: int
    """When it came."""
    state: DeviceState
    step: int
    phase: RankPhase
    """`forward`, `backward`, `optimizer`; empty: between them."""
    bucket: int
    """The all-reduce that it is in or has not reached; -1: none is known."""
    error: str
    """What CUDA reports instead."""


@dataclass(slots=True)
class RankState:
    """One rank. What belongs to its process starts again with each session, the counts do not."""

    records: int = 0
    lost_records: int = 0
    hello: Hello | None = None
    session: int = 0
    heard_ns: int = 0
    seen_ns: int = 0
    """When its host's agent last read its process: a sign that it is there, not that it works."""
    moved_ns: int = 0
    """When its step last changed, by its own clock where known: not when that arrived."""
    own_ns: int = 0
    """The newest reading of its own clock that it has sent."""
    delay_ns: int = 0
    """Least time from a reading of its own clock to its arrival: what its clock is behind, at most."""
    stood_ns: int = 0
    """For how long its step had not changed at that reading."""
    step: int = 0
    progress: Progress | None = None
    rss_bytes: int | None = None
    cpu_pct: float | None = None
    gpu: Gpu | None = None
    logged: dict[str, float] = field(default_factory=dict)
    """Newest value of everything that the script logged; NaN where it was no finite number."""
    memory: Memory | None = None
    """Of torch's CUDA allocator."""
    declared: int = 0
    """Phases of the user's own that it is in (`ddptop.phase`): there, a step may take any time."""
    bye: Bye | None = None
    gone_ns: int | None = None
    """When its process was seen to have exited."""
    ended_ns: int | None = None
    """When its BYE came."""
    exit_ns: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    """How its process ended, and when that came known; `SIGKILL`."""
    stopped: bool = False
    """Its process is held: SIGSTOP, or a debugger."""
    evidence: Evidence | None = None
    evidence_ns: int = 0
    """Its newest answer, and when it came."""
    device: DeviceReport | None = None
    """The state of its GPU when it last answered."""
    exit_evidence: Evidence | None = None
    """Its evidence at its exit, of its own or from its crash file."""
    joined: bool = False
    """In its newest step it had run out of inputs and only shadowed the others."""
    micro_steps: int | None = None
    """Backward passes in the newest step of its own."""
    bad_loss_step: int | None = None
    bad_loss_ns: int = 0
    """First step of an unbroken row of NaN or Inf losses, and when it arrived."""
    bad_loss_before: PassedLoss | None = None
    """The newest such row that has ended."""

    def take_logged(self, values: Mapping[str, Scalar]) -> None:
        """The newest values of what its script logs."""
        for name, value in values.items():
            if name in self.logged or len(self.logged) < MAX_LOGGED:
                self.logged[name] = float(value) if isinstance(value, (int, float)) else math.nan

    def begin(self, hello: Hello, session: int, t_ns: int) -> None:
        """A new process takes the rank over."""
        self.__init__(records=self.records, lost_records=self.lost_records)  # type: ignore[misc]
        self.hello, self.session, self.heard_ns, self.moved_ns = hello, session, t_ns, t_ns
        self.own_ns, self.delay_ns = hello.monotonic_ns, t_ns - hello.monotonic_ns

    def forget_process(self) -> None:
        """The others restarted: nothing of this rank's old process says anything of its next one."""
        self.__init__(records=self.records, lost_records=self.lost_records)  # type: ignore[misc]

    def read_clock(self, own_ns: int, t_ns: int, interruptions: Interruptions) -> None:
        """A reading of the rank's own clock arrived at `t_ns`.

        Where the collector did not run, readings are missing: time for which there is neither a reading nor
        a running collector does not count as standing, for the whole machine may have been held.
        """
        self.delay_ns = min(self.delay_ns, t_ns - own_ns)
        passed_ns = own_ns - self.own_ns
        if passed_ns <= 0:
            return
        if passed_ns > STALE_S * NS:
            here_ns = own_ns + self.delay_ns
            passed_ns -= interruptions.within(here_ns - passed_ns, here_ns)
        self.own_ns, self.stood_ns = own_ns, self.stood_ns + max(0, passed_ns)

    def moved_to(self, step: int, own_ns: int) -> None:
        """Its training thread is in `step` since this moment of its own clock, which has been read."""
        if step > self.step:
            self.step, self.moved_ns = step, own_ns + self.delay_ns
            # A HELLO to a new collector is younger than the steps that still wait behind it.
            self.own_ns, self.stood_ns = own_ns, 0

    def declare(self, begins: bool, t_ns: int) -> None:
        """A declared phase begins or ends; from its end the step has its time again."""
        self.declared = max(0, self.declared + (1 if begins else -1))
        self.moved_ns = max(self.moved_ns, t_ns)
        self.stood_ns = 0

    @property
    def phase(self) -> RankPhase:
        """Name of the phase at the last heartbeat; empty when unknown."""
        return PHASE_NAMES.get(self.progress.phase, "") if self.progress else ""

    @property
    def bucket(self) -> int | None:
        """All-reduces launched in the step it is in."""
        seen = self.progress
        return seen.bucket if seen and seen.bucket >= 0 and seen.step == self.step else None

    @property
    def sequence(self) -> int | None:
        """Sequence number of its process group."""
        return self.progress.sequence if self.progress and self.progress.sequence >= 0 else None

    @property
    def host(self) -> str:
        """Where its process runs; empty before its HELLO."""
        return self.hello.host if self.hello else ""

    @property
    def finished(self) -> bool:
        """Its BYE says that it finished, or left its group."""
        return self.bye is not None and self.bye.reason in WELL

    @property
    def ended_badly(self) -> bool:
        """Its process exited without BYE, or with an exception, an exit code or a signal.

        What happens to it after it has left its group does not concern the training.
        """
        if self.bye is None:
            return self.gone_ns is not None
        if self.bye.reason == LEFT:
            return False
        return self.bye.reason != FINISHED or bool(self.exit_code) or self.signal is not None

    @property
    def running(self) -> bool:
        """It has sent HELLO and no BYE, and its process has not been seen to exit."""
        return self.hello is not None and self.bye is None and self.gone_ns is None

    def state(self, silent_ns: int, run_state: RunOutcome, *, host_gone: bool) -> RankStatus:
        """waiting, live, stale, lost, finished or failed; whether it stalls is for the group to say.

        `silent_ns`: for how long nothing came of it. `host_gone`: nothing came from its host for SILENT_S,
        be it of another rank or of the agent.
        """
        if self.bye is not None:
            return "finished" if self.finished and not self.ended_badly else "failed"
        if self.hello is None:
            return "waiting"
        if run_state == "finished":
            return "finished"  # the launcher reports success only when every rank succeeded
        if self.gone_ns is not None or run_state == "failed":
            return "lost"
        if host_gone:
            return "lost"
        return "stale" if silent_ns > STALE_S * NS else "live"


ABSENT = RankState()
"""Stands for every rank that has not sent HELLO; never changed."""


def group_state(states: Sequence[RankStatus], run_state: RunOutcome, *, stalled: bool = False) -> RankStatus:
    """The worst state of a rank. A late heartbeat shows on its rank; the run is stale when no rank reports.

    `stalled`: by the rule of the whole group, also where every stalled rank is silent.
    """
    if run_state in ("finished", "failed"):
        return run_state
    present = set(states)
    if "failed" in present:
        return "failed"
    if "lost" in present:
        return "lost"
    if stalled or "stalled" in present:
        return "stalled"
    if not present or "waiting" in present:
        return "waiting"
    if present == {"finished"}:
        return "finished"
    return "stale" if present <= {"stale", "finished"} else "live"
