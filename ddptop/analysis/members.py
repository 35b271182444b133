"""What is known of each rank as a process: sessions, heartbeats, counts, and the state that follows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ddptop.protocol.messages import Phase

if TYPE_CHECKING:
    from ddptop.protocol.messages import Bye, Hello, Progress

HEARTBEAT_S = 0.5
"""Period of PROGRESS. A loaded machine may be late with one or two; three in a row are worth saying."""
STALE_S = 3 * HEARTBEAT_S
SILENT_S = 10.0
"""After this the host is taken for gone."""
STALL_STEPS = 10
"""A step may take this many median steps before it counts as a stall, however long they are."""

PHASE_NAMES = {phase.value: phase.name.lower() for phase in Phase}
NS = 1_000_000_000


@dataclass(slots=True)
class Session:
    """One process of one rank, as far as its numbered messages have come."""

    rank: int
    next_step: int = 0
    begun: bool = False
    layouts: dict[int, int] = field(default_factory=dict)
    """Layout generation of this process -> number of the layout's content."""
    generation: int = -1


@dataclass(slots=True)
class Member:
    """One rank. What belongs to its process starts again with each session, the counts do not."""

    records: int = 0
    lost_records: int = 0
    hello: Hello | None = None
    session: int = 0
    heard_ns: int = 0
    moved_ns: int = 0
    """When its step last changed."""
    step: int = 0
    stepped: bool = False
    """It has finished a step: before that, compilation and first batches may take any time."""
    progress: Progress | None = None
    rss_bytes: int | None = None
    cpu_pct: float | None = None
    declared: int = 0
    """Phases of the user's own that it is in (`ddptop.phase`): there, a step may stand still."""
    bye: Bye | None = None
    gone_ns: int | None = None
    """When its process was seen to be gone."""
    ended_ns: int | None = None
    bad_loss_step: int | None = None
    bad_loss_ns: int = 0
    """First step of an unbroken row of NaN or Inf losses, and when it arrived."""

    def begin(self, hello: Hello, session: int, t_ns: int) -> None:
        """A new process takes the rank over."""
        self.__init__(records=self.records, lost_records=self.lost_records)  # type: ignore[misc]
        self.hello, self.session, self.heard_ns, self.moved_ns = hello, session, t_ns, t_ns

    def forget_process(self) -> None:
        """The others restarted: nothing of this rank's old process says anything of its next one."""
        self.__init__(records=self.records, lost_records=self.lost_records)  # type: ignore[misc]

    def moved_to(self, step: int, t_ns: int) -> None:
        """Its training thread is in `step` now."""
        if step > self.step:
            self.step, self.moved_ns = step, t_ns

    def declare(self, begins: bool, t_ns: int) -> None:
        """A declared phase begins or ends; from its end the step has its time again."""
        self.declared = max(0, self.declared + (1 if begins else -1))
        self.moved_ns = max(self.moved_ns, t_ns)

    @property
    def phase(self) -> str:
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

    def state(self, now_ns: int, stall_ns: int, run_state: str) -> str:
        """waiting, live, stale, stalled, lost, finished or failed, by the rules of METRICS (Health)."""
        if self.bye is not None:
            return "finished" if self.bye.reason == "finished" else "failed"
        if self.hello is None:
            return "waiting"
        if run_state == "finished":
            return "finished"  # the launcher reports success only when every rank succeeded
        if self.gone_ns is not None or run_state == "failed":
            return "lost"
        age = now_ns - self.heard_ns
        if age >= SILENT_S * NS:
            return "lost"
        if age > STALE_S * NS:
            return "stale"
        may_stall = self.stepped and not self.declared
        return "stalled" if may_stall and now_ns - self.moved_ns >= stall_ns else "live"


def group_state(states: list[str], run_state: str) -> str:
    """The worst that matters. A late heartbeat shows on its rank; the run is stale when nobody is heard."""
    if run_state in ("finished", "failed"):
        return run_state
    present = set(states)
    for worst in ("failed", "lost", "stalled"):
        if worst in present:
            return worst
    if not present or "waiting" in present:
        return "waiting"
    if present == {"finished"}:
        return "finished"
    return "stale" if present <= {"stale", "finished"} else "live"
