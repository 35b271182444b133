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
from ddptop.analysis.ledger.sums import RunLedger
from ddptop.analysis.missing_records import MissingRecords
from ddptop.analysis.past_activities import PastActivities
from ddptop.analysis.presence import Presence
from ddptop.analysis.rank_table import RankTable
from ddptop.analysis.ranks import ABSENT
from ddptop.analysis.received_samples import MOST_SAMPLES, ReceivedSamples
from ddptop.analysis.run_end import RunEnd
from ddptop.analysis.sessions import Sessions
from ddptop.analysis.stall.excuses import StallExcuses
from ddptop.analysis.stall.start_watch import StartWatch
from ddptop.analysis.steps.clocks import HostClocks, Interruptions, TimerBounds
from ddptop.analysis.steps.group_arrivals import GroupArrivals
from ddptop.analysis.steps.groups import Groups, Layouts
from ddptop.analysis.steps.pairing import Pairing
from ddptop.frames.history import KEPT_POINTS, HistoryStore
from ddptop.protocol.limits import DEFAULT_STALL_S, NS
from ddptop.protocol.messages import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddptop.analysis.ranks import RankSession, RankState
    from ddptop.analysis.stall.diagnosis import KeptStall
    from ddptop.protocol.messages import Hello, Layout, Replica, Run, Scalar

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
        # The run and its messages.
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

        # Its ranks, their processes, groups and hosts.
        self.table = RankTable()
        """The numbers of all ranks."""
        self.ranks: list[RankState] = []
        """By rank. Those without HELLO share `ABSENT`: they take no memory."""
        self.presence = Presence(self.ranks)
        self.cards: dict[int, dict[str, Scalar]] = {}
        self.sessions = Sessions()
        self.groups = Groups()
        self.layouts = Layouts()
        self.hosts = Hosts()
        self.clocks = HostClocks()
        self.timers = TimerBounds()
        self.interruptions = Interruptions()

        # Complete steps, and what follows from them.
        self.log = EventLog()
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

        # What ranks do outside their steps: start, stall, end.
        self.start = StartWatch()
        self.end = RunEnd()
        self.excuses = StallExcuses()
        self.missing = MissingRecords()
        self.ran_out: set[int] = set()
        """Ranks that once had no batches left before the others, under `join()`."""
        self.stack_samples: deque[ReceivedSamples] = deque(maxlen=MOST_SAMPLES)
        """The newest, of all ranks."""
        self.analyser_results: dict[str, tuple[int, tuple[str, ...]]] = {}
        """By source (`analyser`: torch's flight recorder analyser, `ras`: NCCL) when the ranks were asked,
        and the lines of the last result."""

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self.ranks)

    def resize(self, world: int) -> None:
        """There are so many ranks from here on."""
        del self.ranks[world:]
        self.ranks += [ABSENT] * (world - len(self.ranks))
        self.table.resize(world)

    def hello(self, rank: int) -> Hello | None:
        """What a rank said when it began; None: it has not yet."""
        return self.ranks[rank].hello

    def ended_badly(self) -> list[int]:
        """The ranks that failed or died, as `exits.ended_badly` has them."""
        ended = self.presence.ended
        self.stall_at_end()  # marks those that gave up waiting
        return ended_badly(self.ranks, ended) if ended else []

    def stall_at_end(self) -> KeptStall | None:
        """The stall in which the run has ended, or some of its ranks, for no other reason; None: in none."""
        return self.end.stall(self.taken)

    @property
    def detail_every(self) -> int:
        """The largest sampling interval among the ranks; 1 before any has said one."""
        every = self.table.newest_values(Progress, "detail_every")
        return int(np.fmax.reduce(every, initial=1.0))

    def _comm_hook(self, model: int) -> str:
        """Name of the communication hook of a DDP model; empty: none, or it is not known yet."""
        for session in self.sessions.by_number.values():
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
        training, unix_s = self.presence.training, self.unix_s(t_ns)
        self.replicas.take(rank, replica, ranks, training, unix_s, is_replicated=is_replicated)

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

    @property
    def happened(self) -> tuple[int, int]:
        """Differs from an earlier one where an event was logged since, or a rank has come or gone."""
        return self.log.changes, self.presence.n_changes

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
        return self.sessions.by_number.get(rank_state.session)

    def steps_of(self, session: int) -> tuple[int, int]:
        """For the process of a session: steps whose rows have arrived or are known to be lost, and steps that
        it has finished at least, by its heartbeats."""
        rank_session = self.sessions.by_number.get(session)
        if rank_session is None or rank_session.rank >= self.world:
            return 0, 0
        rank_state = self.ranks[rank_session.rank]
        return rank_session.next_step, max(
            rank_session.next_step, rank_state.step if rank_state.session == session else 0
        )
