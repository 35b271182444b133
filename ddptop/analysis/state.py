"""The state of a run: everything that is known of it from the messages so far.

`Reducer` changes it with every message; alerts, stall diagnosis, exits and frames read it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.event_log import EventLog
from ddptop.analysis.health.loss_spread import LossSpread
from ddptop.analysis.health.overhead import ShadowCost
from ddptop.analysis.health.replicas import Replicas
from ddptop.analysis.hosts import Hosts
from ddptop.analysis.rank_columns import ReportColumns, hello_columns, newest
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.clocks import HostClocks, Interruptions, TimerBounds
from ddptop.analysis.steps.groups import Groups, Layouts
from ddptop.analysis.steps.kept import KeptSteps
from ddptop.analysis.steps.pairing import Pairing
from ddptop.analysis.steps.windows import MOVES, StepWindow
from ddptop.frames.history import KEPT_POINTS, HistoryStore
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ddptop.analysis.rank_columns import HelloColumns
    from ddptop.analysis.ranks import NotInitialized, RankState, Session
    from ddptop.analysis.steps.windows import DetailWindow
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.messages import Event, Layout, Run, Scalar
    from ddptop.protocol.vocabulary import OwnPlace, Pattern


def place_excess(steps: StepWindow, place: OwnPlace, slots: Indices, members: Indices) -> Column:
    """(members, n) own time in one place less the median over the other members."""
    return np.asarray(formulas.lateness(steps.place(place, slots)[members].T).T, np.float64)


class StepFlag(NamedTuple):
    """The ranks flagged from every step, and since when. Slots are those of the `StepWindow`."""

    ranks: tuple[int, ...]
    """The main straggler first."""
    pattern: Pattern
    since: int
    """Slot of the first late step."""
    level_ms: float
    """Median excess with which it was flagged."""
    members: Indices
    """Ranks of its process group, those compared with each other."""
    place: OwnPlace | None = None
    """Where the rule found it; None: in own time as a whole, without what was waited for a CPU."""

    @property
    def rank(self) -> int:
        """The main straggler."""
        return self.ranks[0]

    def led_by(self, rank: int) -> StepFlag:
        """The same with this rank first: of two equally late ones the main straggler stays the same."""
        order = sorted(self.ranks, key=lambda one: one != rank)
        return self._replace(ranks=tuple(order) if rank in order else self.ranks)

    def excess(self, steps: StepWindow, slots: Indices) -> Column:
        """(n,) excess of the main straggler in the flag's place."""
        if self.place is None:
            return np.asarray(steps.work_excess(slots, np.array(self.ranks[:1]))[0], np.float64)
        main = int(np.flatnonzero(self.members == self.rank)[0])
        return np.asarray(place_excess(steps, self.place, slots, self.members)[main], np.float64)


class StepVerdict(NamedTuple):
    """What every step's own times say from one change to the next."""

    since: int
    """Slot of the evaluation that changed it."""
    flag: StepFlag | None
    """As it was then."""
    blind: bool
    """`StepFlags.blind`."""


CHANGES = 64
"""Changes of the flag that are kept: more than the steps of a batch have."""

MOVES_WITHIN = 512
"""The straggler is rotating when the flag changed MOVES times within this many steps."""


USED_UP_PCT = 20.0
"""Least share of the periods of a CPU quota, in a second, in which it must be used up: two of ten.
With one of ten a busy machine's other processes delayed the rank far more than its quota did."""


class StepFlags:
    """What is flagged from every step's own times."""

    def __init__(self) -> None:
        self.flag: StepFlag | None = None
        self.changes: deque[StepVerdict] = deque([StepVerdict(0, None, False)], maxlen=CHANGES)
        """The newest changes of rank, pattern or `blind`."""
        self.blind = False
        """The last gradient is unknown in most of the newest steps, and so own time in backward."""
        self.disagreements = 0
        """Evaluations of the arrivals that contradicted the flag."""
        self.disagrees = False
        """Whether the last one did."""
        self.newest = -1
        """Number of the newest step."""
        self.groups: Sequence[Indices] = ()
        """The ranks that are compared with each other."""
        self.moves: deque[int] = deque(maxlen=MOVES)
        """Slots at which the flag of a persistent straggler went from one rank to another."""
        self.throttled: dict[int, deque[float]] = {}
        """By rank, the newest readings of its process in which its CPU quota was used up: seconds since the
        run started."""

    def note_throttled(self, rank: int, throttled_pct: float | None, time_s: float) -> None:
        """A reading of a rank's process."""
        if throttled_pct is not None and throttled_pct >= USED_UP_PCT:
            self.throttled.setdefault(rank, deque(maxlen=CHANGES)).append(time_s)

    @property
    def members(self) -> Indices:
        """The ranks of the first group."""
        return self.groups[0] if self.groups else np.arange(0)

    def at(self, slot: int) -> StepVerdict:
        """The verdict at a step."""
        return next((one for one in reversed(self.changes) if one.since <= slot), self.changes[0])

    def note(self, slot: int) -> None:
        """Keep the verdict of this step if it differs from the one before."""
        flag, before = self.flag, self.changes[-1]
        now, then = ((one.rank, one.pattern) if one is not None else None for one in (flag, before.flag))
        if now != then or self.blind != before.blind:
            self.changes.append(StepVerdict(slot, flag, self.blind))

    def rotates(self, slot: int) -> bool:
        """Whether the flag of a persistent straggler went from rank to rank lately."""
        return len(self.moves) == MOVES and slot - self.moves[0] <= MOVES_WITHIN


class Unevenness:
    """Figures of single steps that a frame has computed: the next one shows nearly the same steps."""

    def __init__(self) -> None:
        self.members: Indices | None = None
        """The ranks that are compared."""
        self.slots: Indices = np.arange(0)
        """The steps, without a gap."""
        self.values: Column = np.empty((2, 0))

    def of(self, slots: Indices, members: Indices, compute: Callable[[Indices], Column]) -> Column:
        """(2, n) values of these steps; `compute` makes those that are new."""
        first = int(slots[0]) if len(slots) else 0
        at = first - (int(self.slots[0]) if len(self.slots) else 0)
        if self.members is not members or not 0 <= at <= len(self.slots):
            at, self.slots, self.values = 0, slots[:0], self.values[:, :0]
        known = self.values[:, at : at + len(slots)]
        fresh = slots[known.shape[1] :]
        if len(fresh):
            known = np.concatenate([known, compute(fresh)], axis=1)
        self.members, self.slots, self.values = members, slots, known
        return known


class Figures:
    """What is known from complete steps alone. After a restart it begins anew; the history continues."""

    def __init__(self, world: int, size: int) -> None:
        """`size`: steps of the window."""
        self.world = world
        self.size = size
        self.steps = StepWindow(world, size)
        self.detail: DetailWindow | None = None
        """The last detailed steps; None before the first."""
        self.kept = KeptSteps()
        """The last detailed steps as they were reported, for timelines."""
        self.loss: Column = np.full(world, np.nan)
        """Each rank's last known loss among complete steps."""
        self.has_loss: Mask = np.zeros(world, bool)
        """Ranks that have reported a loss, which may be NaN."""
        self.unevenness = Unevenness()
        self.flags = StepFlags()
        """What is flagged from every step's own times."""
        self.straggler: int | None = None
        self.straggler_logged: tuple[str, int | None] = ("", None)
        """As the event log has it: in words, and the rank; None: no rank is to blame."""
        self.straggler_since_s = 0.0
        self.shadow_cost = ShadowCost()
        """What the recorder costs, from the steps in which it stood aside."""
        self.contradicted = False
        """Whether the collectives contradict the hosts' clocks by more than their bound."""


class RunState:
    """What is known of one run. Not thread-safe."""

    def __init__(
        self,
        *,
        window: int = 100,
        history_points: int = KEPT_POINTS,
        stall_s: float = 15.0,
        tail: bool = False,
    ) -> None:
        """`window`: complete steps that medians are taken over. `stall_s`: least time without a step before a
        stall; the run's own setting replaces it."""
        self.stall_s = stall_s
        self.tail = tail
        """True while only the end of a recording is fed: the rows before a session's first one count as
        received then, not as lost. Set it to False when the messages go on without a gap."""
        self.run: Run | None = None
        self.ended_ns: int | None = None
        self.clock: tuple[int, int] | None = None
        """Unix nanoseconds of the run's first message, and the same moment on the collector's clock."""
        self.newest_ns = 0
        """When the newest message arrived."""
        self.taken = 0
        """Messages so far."""
        self.incarnation = 0
        """Elastic restarts so far."""

        self.ranks: list[RankState] = []
        """By rank. Ranks that have not sent HELLO share `ABSENT`: they take no memory."""
        self.cards: dict[int, dict[str, Scalar]] = {}
        self.sessions: dict[int, Session] = {}
        self.sessions_of: dict[int, list[int]] = {}
        """The last two sessions of each rank, the present one last."""
        self.groups = Groups()
        self.layouts = Layouts()
        self.hosts = Hosts()
        self.clocks = HostClocks()
        self.timers = TimerBounds()
        self.interruptions = Interruptions()

        self.log = EventLog()
        self.recording_trouble: tuple[int, str] | None = None
        self.refused_messages: tuple[int, Event] | None = None
        """When the collector first refused a message, and its newest count of them."""
        self.lost_since_ns: int | None = None
        self.kept_every = 1
        """A thinned recording holds only the steps divisible by this number; 1: all."""

        self.complete_step: int | None = None
        """The newest step that every rank has reported, in the ranks' present incarnation."""
        self.pairing = Pairing(0)
        self.history = HistoryStore(history_points)
        self.figures = Figures(0, window)
        self.settle: Callable[[], None] = lambda: None
        """Evaluates the complete steps that wait. To be called before `figures` or `history` are read. Set by
        the reducer."""
        self.replicas = Replicas(self.log)
        self.loss_spread = LossSpread(self.log)

        self.usual_pauses: dict[str, int] = {}
        """By function: the longest time (ns) that a rank was in it, before the run continued."""
        self.not_initialized: dict[int, NotInitialized] = {}
        """Ranks that others wait for in `init_process_group`."""
        self.has_evidence = False
        """Whether any rank has sent evidence: without it no exit can have been too early."""
        self.finished: set[int] = set()
        """Ranks whose process has exited in good order."""
        self.excused_ns = 0
        """When a rank was last in a declared phase or evaluating: during these, steps need not advance."""
        self.compiling_ns = 0
        """When a rank last gave evidence of compiling."""
        self.analyser_results: dict[str, tuple[int, tuple[str, ...]]] = {}
        """By source (`analyser`: torch's flight recorder analyser, `ras`: NCCL) when the ranks were asked,
        and the lines of the last result."""
        self._present: frozenset[int] | None = None
        self._hellos: HelloColumns | None = None
        self._hellos_known = False
        self._hosts_of_ranks: set[str] | None = None
        self._reports: ReportColumns | None = None
        self._reports_know_presence = False
        self._detail_every: int | None = 1

    @property
    def detail_every(self) -> int:
        """The largest sampling interval among the ranks."""
        if self._detail_every is None:
            every = self.intervals()
            self._detail_every = 1 if np.isnan(every).all() else int(np.nanmax(every))
        return self._detail_every

    def intervals(self) -> Column:
        """(ranks,) sampling interval of each; NaN: it has sent no heartbeat."""
        return newest(self.ranks, Progress, "detail_every")

    def sampling_changed(self) -> None:
        """A rank may sample at another interval than before."""
        self._detail_every = None

    @property
    def hellos(self) -> HelloColumns:
        """The HELLOs of all ranks."""
        if self._hellos is None or not self._hellos_known:
            self._hellos, self._hellos_known = hello_columns(self.ranks, self._hellos), True
        return self._hellos

    def hosts_of_ranks(self) -> Iterable[str]:
        """The hosts that HELLOs name. As cheap while many ranks join, one after the other."""
        if self._hosts_of_ranks is None:
            self._hosts_of_ranks = {one.host for one in self.ranks if one.hello is not None}
        return self._hosts_of_ranks

    @property
    def reports(self) -> ReportColumns:
        """What all ranks have reported by now."""
        if self._reports is None or self._reports.world != len(self.ranks):
            self._reports, self._reports_know_presence = ReportColumns(self.ranks), False
        if not self._reports_know_presence:
            self._reports.read_presence()
            self._reports_know_presence = True
        return self._reports

    def taken_alone(self) -> None:
        """A message was taken alone: it may have changed any rank."""
        if self._reports is not None:
            self._reports.forget()

    @property
    def present(self) -> frozenset[int]:
        """Ranks whose processes train: not ended, not out of inputs."""
        if self._present is None:
            there = (i for i, r in enumerate(self.ranks) if not (r.bye or r.gone_ns or r.joined))
            self._present = frozenset(there)
        return self._present

    def take_layout(self, layout: Layout, session: Session, t_ns: int) -> None:
        """A process reports its gradient buckets."""
        before = session.layouts.get(session.generation)
        number = session.layouts[layout.generation] = self.layouts.number(layout.buckets)
        while len(session.layouts) > self.layouts.KEPT:
            del session.layouts[next(iter(session.layouts))]
        session.generation = layout.generation
        if before is not None and before != number:
            text = f"rebuilt gradient buckets, generation {layout.generation}"
            self.log.add_rank(self.unix_s(t_ns), "rebuild", text, session.rank, len(self.ranks))

    def presence_changed(self, joined: str | None = None) -> None:
        """A rank has joined, exited, or run out of inputs: `present`, `hellos` and `reports` change.

        `joined`: the host of a rank that has sent its first HELLO; None: the change is another one.
        """
        if joined is None:
            self._hosts_of_ranks = None
        elif self._hosts_of_ranks is not None:
            self._hosts_of_ranks.add(joined)
        self._present = None
        self._hellos_known = self._reports_know_presence = False

    @property
    def history_end(self) -> int:
        """Number of the next history point."""
        self.settle()
        return self.history.end

    def unix_s(self, t_ns: int) -> float:
        """A moment on the collector's clock as Unix seconds. Before RUN or HELLO the clock is unknown: 0."""
        unix_ns, at_ns = self.clock or (0, t_ns)
        return (unix_ns + t_ns - at_ns) / NS

    @property
    def started_s(self) -> float:
        """Unix seconds of the run's first message."""
        return self.started_ns / NS

    @property
    def started_ns(self) -> int:
        """Unix nanoseconds of the run's first message; 0 before it."""
        return self.clock[0] if self.clock else 0

    def session_of(self, rank_state: RankState) -> Session | None:
        """The present process of a rank."""
        return self.sessions.get(rank_state.session)

    @property
    def host_names(self) -> tuple[str, ...]:
        """By rank, the name of its host; empty before its HELLO."""
        return self.hellos.host

    def steps_of(self, session: int) -> tuple[int, int]:
        """For a process: (steps whose rows have arrived or are known to be lost, steps that it has finished
        at least, by its heartbeats)."""
        known = self.sessions.get(session)
        if known is None or known.rank >= len(self.ranks):
            return 0, 0
        rank_state = self.ranks[known.rank]
        return known.next_step, max(known.next_step, rank_state.step if rank_state.session == session else 0)
