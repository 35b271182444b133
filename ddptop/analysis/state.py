"""The state of a run: everything that is known of it from the messages so far.

`Reducer` changes it with every message; alerts, stall diagnosis, exits and frames read it.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.batch_pace import BatchPace
from ddptop.analysis.event_log import EventLog
from ddptop.analysis.figures import Figures
from ddptop.analysis.health.exits import ended_badly
from ddptop.analysis.health.loss_spread import LossSpread
from ddptop.analysis.health.preflight import Preflight
from ddptop.analysis.health.replicas import Replicas
from ddptop.analysis.health.synchronisation import Synchronisation
from ddptop.analysis.hosts import Hosts
from ddptop.analysis.hot_calls import MOST_SAMPLES, ReceivedSamples
from ddptop.analysis.ledger.sums import RunLedger
from ddptop.analysis.past_activities import PastActivities
from ddptop.analysis.rank_columns import hello_columns
from ddptop.analysis.rank_table import RankTable, SessionTable
from ddptop.analysis.ranks import ABSENT, RankSession
from ddptop.analysis.stall.start_watch import StartWatch
from ddptop.analysis.steps.clocks import HostClocks, Interruptions, TimerBounds
from ddptop.analysis.steps.group_arrivals import GroupArrivals
from ddptop.analysis.steps.groups import Groups, Layouts
from ddptop.analysis.steps.pairing import Pairing
from ddptop.frames.history import KEPT_POINTS, HistoryStore
from ddptop.protocol.limits import DEFAULT_STALL_S, MAX_NS, NS
from ddptop.protocol.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    from ddptop.analysis.health.exits import OutsideEnd
    from ddptop.analysis.rank_columns import HelloColumns
    from ddptop.analysis.ranks import Meeting, NotInitialized, RankState
    from ddptop.analysis.stall.diagnosis import KeptStall
    from ddptop.frames.columns import Mask
    from ddptop.frames.phrases import Failure
    from ddptop.protocol.messages import Event, Hello, Layout, Replica, Run, Scalar

    Integers = NDArray[np.int64]


class RunState:
    """What is known of one run. Not thread-safe."""

    def __init__(
        self,
        *,
        window: int = 100,
        history_points: int = KEPT_POINTS,
        stall_s: float = DEFAULT_STALL_S,
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

        self.table = RankTable()
        """The numbers of all ranks."""
        self.ranks: list[RankState] = []
        """By rank. Those without HELLO share `ABSENT`: they take no memory."""
        self.cards: dict[int, dict[str, Scalar]] = {}
        self.session_table = SessionTable()
        """The numbers of all sessions."""
        self.sessions: dict[int, RankSession] = {}
        """By number of the session."""
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
        self.ledger = RunLedger(self, is_known=not tail)
        self.past_activities = PastActivities()
        self.batch_pace = BatchPace()
        self.settle: Callable[[], None] = lambda: None
        """Evaluates the complete steps that wait. To be called before `figures` or `history` are read. Set by
        the reducer."""
        self.synchronisation = Synchronisation(self.log)
        self.replicas = Replicas(self.log, self.synchronisation, self._comm_hook)
        self.loss_spread = LossSpread(self.log)
        self.preflight = Preflight()
        self.group_arrivals = GroupArrivals()

        self.start = StartWatch()
        self.has_milestones = False
        """Whether any rank has reported one: ranks of earlier versions report none."""
        self.usual_pauses: dict[str, int] = {}
        """By function: the longest time (ns) that a rank was in it, before the run continued."""
        self.not_initialized: dict[int, NotInitialized] = {}
        """Ranks that others wait for in `init_process_group`."""
        self.first_end_ns: int | None = None
        """When the first rank ended badly, or the run."""
        self.kept_stall: KeptStall | None = None
        """The stall that the run was in then; `stall_at_end` is to be read."""
        self.find_stall_at_end: Callable[[], KeptStall | None] = lambda: None
        """`stall.at_exit.stall_at_end`. Set by the reducer."""
        self._stall_at_end: tuple[int, KeptStall | None] = -1, None
        """For how many messages it was looked for, and the stall that was found."""
        self.meeting: Meeting | None = None
        """The ranks that were last reported to be in `init_process_group` after a restart."""
        self.failures: list[Failure] = []
        """How each attempt before this one has failed, as far as known."""
        self.launcher_signal: OutsideEnd | None = None
        """A signal that a launcher of the run has received, which ends it."""
        self.without_launcher = False
        """No launcher of ours would report such a signal."""
        self.has_evidence = False
        """Whether any rank has sent evidence: without it no exit can have been too early."""
        self.ran_out: set[int] = set()
        """Ranks that once had no batches left before the others, under `join()`."""
        self.stack_samples: deque[ReceivedSamples] = deque(maxlen=MOST_SAMPLES)
        """The newest, of all ranks."""
        self.finished: set[int] = set()
        """Ranks whose process has exited in good order."""
        self.restarted_ns = -MAX_NS
        """When the newest collector began in place of one that had ended."""
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
        self._presence_changes = 0
        self._hosts_of_ranks: set[str] | None = None
        self._running: Mask | None = None
        self._said_bye: Mask = np.zeros(0, bool)
        self._ended: tuple[int, ...] = ()

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def resize(self, world: int) -> None:
        """There are so many ranks from here on."""
        del self.ranks[world:]
        self.ranks += [ABSENT] * (world - len(self.ranks))
        self.table.resize(world)

    def add_session(self, hello: Hello) -> None:
        """A process of a rank may send messages."""
        row = self.session_table.add(hello.rank, hello.session)
        self.sessions[hello.session] = RankSession(self.session_table, row, hello)

    def forget_session(self, number: int) -> None:
        """No message of this process counts any more."""
        session = self.sessions.pop(number, None)
        if session is not None:
            self.session_table.clear(session.row)

    def rows_of(self, numbers: list[int]) -> Integers:
        """(n,) the row of each of these sessions in `session_table`; -1: it is not known."""
        sessions = map(self.sessions.get, numbers)
        return np.array([-1 if session is None else session.row for session in sessions], np.int64)

    def hello(self, rank: int) -> Hello | None:
        """What a rank said when it began; None: it has not yet."""
        return self.ranks[rank].hello

    def ended_badly(self) -> list[int]:
        """The ranks that failed or died, as `exits.ended_badly` has them."""
        ended = self.ended
        self.stall_at_end()  # marks those that gave up waiting
        return ended_badly(self.ranks, ended) if ended else []

    def stall_at_end(self) -> KeptStall | None:
        """The stall in which the run has ended, or some of its ranks, for no other reason; None: in none."""
        if self.first_end_ns is None:
            return None
        if self._stall_at_end[0] != self.taken:
            self._stall_at_end = self.taken, self.find_stall_at_end()
        return self._stall_at_end[1]

    def forget_end(self) -> None:
        """A new group begins, or a new process of a rank: it is not in the stall of the one before."""
        self.first_end_ns = self.kept_stall = None

    @property
    def is_nccl(self) -> bool:
        """Whether a rank reports that its process group is NCCL's."""
        return any(hello is not None and "nccl" in hello.backend for hello in self.hellos.hellos)

    def process(self, rank: int) -> RankSession | None:
        """The present process of a rank, for its layouts: its steps may be behind."""
        return self.sessions.get(self.ranks[rank].session)

    @property
    def detail_every(self) -> int:
        """The largest sampling interval among the ranks; 1 before any has said one."""
        every = self.table.newest_values(Progress, "detail_every")
        return int(np.fmax.reduce(every, initial=1.0))

    @property
    def hellos(self) -> HelloColumns:
        """The HELLOs of all ranks."""
        if self._hellos is None or not self._hellos_known:
            self._hellos, self._hellos_known = hello_columns(self.ranks, self._hellos), True
        return self._hellos

    def hosts_of_ranks(self) -> Collection[str]:
        """The hosts that HELLOs name. As cheap while many ranks join, one after the other."""
        if self._hosts_of_ranks is None:
            self._hosts_of_ranks = {
                rank_state.host for rank_state in self.ranks if rank_state.hello is not None
            }
        return self._hosts_of_ranks

    @property
    def running(self) -> Mask:
        """(ranks,) `RankState.running`. Not to be changed."""
        if self._running is None:
            self._running = np.array([rank.running for rank in self.ranks], bool)
            self._said_bye = np.array([rank.bye is not None for rank in self.ranks], bool)
            has_ended = self._said_bye | np.array([rank.gone_ns is not None for rank in self.ranks], bool)
            self._ended = tuple(np.flatnonzero(has_ended).tolist())
        return self._running

    @property
    def said_bye(self) -> Mask:
        """(ranks,) whether its process has sent BYE. Not to be changed."""
        assert self.running is not None
        return self._said_bye

    @property
    def ended(self) -> tuple[int, ...]:
        """Ranks that have sent BYE or whose process was seen to have exited."""
        assert self.running is not None
        return self._ended

    @property
    def present(self) -> frozenset[int]:
        """Ranks whose processes train: not ended, not out of inputs."""
        if self._present is None:
            present_ranks = (i for i, r in enumerate(self.ranks) if not (r.bye or r.gone_ns or r.joined))
            self._present = frozenset(present_ranks)
        return self._present

    def trained_in(self, step: int) -> frozenset[int]:
        """Ranks that can report about this step: those that train, and those that have ended after it."""
        return self.present | {i for i, r in enumerate(self.ranks) if r.step > step and not r.joined}

    def _comm_hook(self, model: int) -> str:
        """Name of the communication hook of a DDP model; empty: none, or it is not known yet."""
        for session in self.sessions.values():
            buckets = self.layouts.buckets(session.layouts.get(session.generation, -1)) or ()
            for bucket in buckets:
                if bucket.model == model and bucket.hook:
                    return bucket.hook
        return ""

    def take_replica(self, rank: int, replica: Replica, t_ns: int) -> None:
        """A rank reports checksums of its parameters."""
        group = self.groups.of(rank, replica.model)
        is_replicated = self.cards.get(rank, {}).get("training") is None  # DDP's are
        ranks = group.ranks if group else ()
        self.replicas.take(rank, replica, ranks, self.present, self.unix_s(t_ns), is_replicated=is_replicated)

    def take_layout(self, layout: Layout, session: RankSession, t_ns: int) -> None:
        """A process reports its gradient buckets."""
        before = session.layouts.get(session.generation)
        number = session.layouts[layout.generation] = self.layouts.number(layout.buckets)
        while len(session.layouts) > self.layouts.KEPT:
            del session.layouts[next(iter(session.layouts))]
        session.generation, session.layout = layout.generation, number
        if before is not None and before != number:
            text = f"rebuilt gradient buckets, generation {layout.generation}"
            self.log.add_rank(self.unix_s(t_ns), "rebuild", text, session.rank, self.world)

    def presence_changed(self, joined: str | None = None) -> None:
        """A rank has joined, exited, or run out of inputs: `present`, `hellos`, `running` and `ended` change.

        `joined`: the host of a rank that has sent its first HELLO; None: the change is another one.
        """
        if joined is None:
            self._hosts_of_ranks = None
        elif self._hosts_of_ranks is not None:
            self._hosts_of_ranks.add(joined)
        self._present = None
        self._hellos_known, self._running = False, None
        self._presence_changes += 1

    @property
    def happened(self) -> tuple[int, int]:
        """Differs from an earlier one where an event was logged since, or a rank has come or gone."""
        return self.log.changes, self._presence_changes

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

    def session_of(self, rank_state: RankState) -> RankSession | None:
        """The present process of a rank."""
        return self.sessions.get(rank_state.session)

    @property
    def host_names(self) -> tuple[str, ...]:
        """By rank, the name of its host; empty before its HELLO."""
        return self.hellos.host

    def steps_of(self, session: int) -> tuple[int, int]:
        """For the process of a session: steps whose rows have arrived or are known to be lost, and steps that
        it has finished at least, by its heartbeats."""
        rank_session = self.sessions.get(session)
        if rank_session is None or rank_session.rank >= self.world:
            return 0, 0
        rank_state = self.ranks[rank_session.rank]
        return rank_session.next_step, max(
            rank_session.next_step, rank_state.step if rank_state.session == session else 0
        )
