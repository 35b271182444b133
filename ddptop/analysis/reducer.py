"""The one reducer: messages in, frames out. Live it runs in the collector, in replay over the file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import logged
from ddptop.analysis.events import on_event
from ddptop.analysis.health.exits import ending
from ddptop.analysis.health.happenings import Log
from ddptop.analysis.health.loss_spread import LossSpread
from ddptop.analysis.health.replicas import Replicas
from ddptop.analysis.ranks import ABSENT, NS, Member, PassedLoss, Session
from ddptop.analysis.stall.log import StallLog
from ddptop.analysis.stall.rule import stalled_since
from ddptop.analysis.steps.bounds import HostClocks, Interruptions
from ddptop.analysis.steps.figures import Figures
from ddptop.analysis.steps.groups import Groups
from ddptop.analysis.steps.pairing import Batch, Layouts, Pairing
from ddptop.analysis.to_frame.frame import build, with_wanted
from ddptop.frames.calls import compiling
from ddptop.frames.history import KEPT_POINTS, HistoryStore
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import (
    Bye,
    Card,
    Clock,
    Event,
    Flag,
    Hello,
    Layout,
    Logged,
    Membership,
    Phase,
    Progress,
    Replica,
    Run,
    Steps,
)

if TYPE_CHECKING:
    from ddptop.analysis.stall.diagnosis import Standstill
    from ddptop.frames.frame import Frame
    from ddptop.protocol.messages import Message, Received, Scalar, StepRow


class Reducer:
    """Group state from messages.

    Every figure but ages, states and counts depends on the rows up to `complete_step` alone, so that two
    reducers fed the same messages agree, however often each was asked for a frame. Not thread-safe.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        history_points: int = KEPT_POINTS,
        stall_s: float = 15.0,
        tail: bool = False,
    ) -> None:
        """`window`: complete steps that medians are taken over. `stall_s`: least time without a step,
        until the run's own word for it comes."""
        self.stall_s = stall_s
        self.tail = tail
        """True while only the end of a recording is fed: rows before a session's first one then count as
        received, not as lost. Set it to False when the messages go on without a hole."""
        self.run: Run | None = None
        self.ended_ns: int | None = None
        self.members: list[Member] = []
        """By rank. Ranks that have not said HELLO share `ABSENT`: they take no memory."""
        self.cards: dict[int, dict[str, Scalar]] = {}
        self.log = Log()
        self.recording_trouble: tuple[int, str] | None = None
        self.refused_messages: tuple[int, Event] | None = None
        """When the collector first refused a message, and its newest count of them."""
        self.lost_since_ns: int | None = None
        self.kept_every = 1
        """A thinned recording holds only the steps divisible by this."""
        self.complete_step: int | None = None
        """The newest step that every rank has reported, in the ranks' present incarnation."""
        self.excused_ns = 0
        """When a rank was last heard in a declared phase or evaluating: there, steps may stand still."""
        self.compiling_ns = 0
        """When a rank last gave evidence of compiling."""
        self.layouts = Layouts()
        self.clocks = HostClocks()
        self.interruptions = Interruptions()
        self.newest_ns = 0
        """When the newest message arrived."""
        self.groups = Groups()
        self.history = HistoryStore(history_points)
        self.figures = Figures(
            self.members, self.layouts, self.history, self.log, window, clocks=self.clocks, groups=self.groups
        )
        self.taken = 0
        """Messages so far."""
        self.stood: tuple[int, int, Standstill | None] | None = None
        """What the last look at a stall found, after how many messages and when."""
        self.opinions: dict[str, tuple[int, tuple[str, ...]]] = {}
        """What torch's flight recorder analyser (`analyser`) and NCCL itself (`ras`) said last of a stall,
        and when the ranks had been asked for it."""
        self.replicas = Replicas(self.log)
        self.loss_spread = LossSpread(self.log)
        self._stall_log = StallLog()
        self._pairing = Pairing(0)
        self._sessions: dict[int, Session] = {}
        self._sessions_of: dict[int, list[int]] = {}
        self.incarnation = 0
        """Elastic restarts so far."""
        self._present: frozenset[int] | None = None
        self._detail_every: int | None = 1
        self._clock: tuple[int, int] | None = None

    # ------------------------------------------------------------------ what others ask

    @property
    def detail_every(self) -> int:
        """The largest sampling interval among the ranks."""
        if self._detail_every is None:
            self._detail_every = max((m.progress.detail_every for m in self.members if m.progress), default=1)
        return self._detail_every

    @property
    def history_end(self) -> int:
        """Number of the next history point."""
        self.figures.settle()
        return self.history.end

    def unix_s(self, t_ns: int) -> float:
        """A moment on the collector's clock as Unix seconds; 0 at the very first message if no RUN came."""
        unix_ns, at_ns = self._clock or (0, t_ns)
        return (unix_ns + t_ns - at_ns) / NS

    @property
    def started_s(self) -> float:
        """Unix seconds of the run's first message."""
        return self._clock[0] / NS if self._clock else 0.0

    def session_of(self, member: Member) -> Session | None:
        """The present process of a rank."""
        return self._sessions.get(member.session)

    def stalled_since(self, now_ns: int) -> int | None:
        """When the step last moved (collector's clock); None while there is no stall."""
        return stalled_since(self, now_ns)

    def presence_changed(self) -> None:
        """A rank has come, gone, or run out of inputs."""
        self._present = None

    def frame(
        self,
        now_ns: int,
        *,
        cursor: int = 0,
        focus: int | None = None,
        source: str = "live",
        recording: str | None = None,
        want: str = "",
    ) -> Frame:
        """The group at `now_ns` (collector's clock), with the history from point `cursor` on.

        `want`: one more part of it (`ddptop.frames.requests`).
        """
        self.figures.settle()
        with np.errstate(over="ignore", invalid="ignore"):  # losses may be 1e300, infinite or NaN
            frame = build(self, now_ns, cursor=cursor, focus=focus, source=source, recording=recording)
            return with_wanted(self, frame, want)

    # ------------------------------------------------------------------ what arrives

    def feed(self, received: Received) -> None:
        """Take one message in the order of its session. What does not fit is ignored, never raised."""
        self._take(received)
        self.taken += 1
        self.newest_ns = max(self.newest_ns, received.t_ns)
        if not self.tail:  # in a tail, much lies between two messages that says nothing of a stall
            self._stall_log.look(self, received.t_ns)

    def end_recall(self) -> None:
        """What was fed so far came from a recording; from here on messages come as ranks send them."""
        self.tail = False
        self.kept_every, self.interruptions.unkept_ns = 1, 0

    def _take(self, received: Received) -> None:
        message, t_ns = received.message, received.t_ns
        session = self._sessions.get(received.session)
        if session is not None and session.rank < len(self.members):
            self._on_session(message, session, received.session, t_ns)
        elif isinstance(message, Hello):
            self._on_hello(message, t_ns)
        elif isinstance(message, Run):
            self._on_run(message, t_ns)
        elif isinstance(message, Event):
            on_event(self, message, t_ns)
        elif isinstance(message, Clock):
            self.clocks.take(message)
        elif isinstance(message, Usage) and 0 <= received.rank < len(self.members):
            member = self.members[received.rank]
            if member is not ABSENT:
                self._on_usage(message, member, t_ns)

    @staticmethod
    def _on_usage(usage: Usage, member: Member, t_ns: int) -> None:
        member.rss_bytes, member.cpu_pct, member.seen_ns = usage.rss_bytes, usage.cpu_pct, t_ns

    def _on_session(self, message: Message, session: Session, number: int, t_ns: int) -> None:
        """A message of a process that has introduced itself."""
        member = self.members[session.rank]
        current = member.session == number
        if isinstance(message, Usage):  # the agent's, about the process: no word of the rank itself
            if current:
                self._on_usage(message, member, t_ns)
            return
        if isinstance(message, Gpu):  # likewise
            member.gpu = message if current else member.gpu
            return
        if current and t_ns > member.heard_ns:
            member.heard_ns = t_ns
        if isinstance(message, Steps):
            self._on_steps(message, session, member, current, t_ns)
        elif isinstance(message, Layout):
            self._on_layout(message, session, t_ns)
        elif isinstance(message, Event):
            on_event(self, message, t_ns)
        elif current and isinstance(message, Membership):
            self.groups.take(session.rank, message)
        elif current and isinstance(message, Memory):
            member.memory = message
        elif current and isinstance(message, Logged):
            logged.take(member, message)
        elif current:
            self._on_state(message, session.rank, member, t_ns)

    def _on_run(self, run: Run, t_ns: int) -> None:
        first, self.run = self.run is None, run
        if first:
            self._set_clock(run.unix_ns, run.monotonic_ns)
        if run.state != "live" and self.ended_ns is None:
            self.ended_ns = t_ns
            code = "" if run.exit_code is None else f", exit code {run.exit_code}"
            severity = "info" if run.state == "finished" else "critical"
            self.log.add(self.unix_s(t_ns), run.state, f"run {run.state}{code}", severity=severity)

    def _set_clock(self, unix_ns: int, at_ns: int) -> None:
        self._clock = (unix_ns, at_ns)
        self.figures.start_ns = unix_ns

    def _on_hello(self, hello: Hello, t_ns: int) -> None:
        if hello.session in self._sessions or not 0 <= hello.rank < hello.world_size:
            return
        if self._clock is None:
            self._set_clock(hello.unix_ns, t_ns)
        if hello.incarnation < self.incarnation and self.members:
            return
        self._regroup(hello)
        if self.members[hello.rank] is ABSENT:
            self.members[hello.rank] = Member()
        member = self.members[hello.rank]
        restarted = member.hello is not None or hello.incarnation > 0
        self._remember(hello)
        member.begin(hello, hello.session, t_ns)
        self.presence_changed()
        self._detail_every = None
        text = (
            "joined"
            if not restarted
            else f"elastic restart {hello.incarnation}"
            if hello.incarnation
            else "restarted"
        )
        kind = "restart" if restarted else "joined"
        self.log.add_rank(self.unix_s(t_ns), kind, text, hello.rank, len(self.members))

    def _remember(self, hello: Hello) -> None:
        """Rows of a rank's last process may still come after the HELLO of its next one; older ones do not."""
        self._sessions[hello.session] = Session(hello.rank, hello)
        known = self._sessions_of.setdefault(hello.rank, [])
        known.append(hello.session)
        if len(known) > 2:
            self._sessions.pop(known.pop(0), None)

    def take_back(self, number: int, t_ns: int) -> None:
        """The session before a rank's present one has outlived it: the rank is its process's again."""
        session = self._sessions.get(number)
        if session is None or session.rank >= len(self.members):
            return
        member = self.members[session.rank]
        if member.session == number or session.hello.incarnation < self.incarnation:
            return
        self._regroup(session.hello)
        member.begin(session.hello, number, t_ns)
        self._sessions_of[session.rank].sort(key=number.__eq__)
        self.presence_changed()
        self._detail_every = None

    def _regroup(self, hello: Hello) -> None:
        """A new incarnation or process: what was pending can never be complete, steps count from 0 again."""
        newer = hello.incarnation > self.incarnation
        replaced = hello.rank < len(self.members) and self.members[hello.rank].hello is not None
        resized = hello.world_size != len(self.members) and (newer or hello.world_size > len(self.members))
        if not (newer or replaced or resized):
            return
        self.figures.settle()
        if resized:
            del self.members[hello.world_size :]
            self.members += [ABSENT] * (hello.world_size - len(self.members))
        if newer:
            self.incarnation = self.log.incarnation = hello.incarnation
            self.groups.restart()
            for member in self.members:
                if member is not ABSENT:
                    member.forget_process()
        self._pairing = Pairing(len(self.members))
        self.figures.restart(len(self.members))
        self.replicas.restart(len(self.members))
        self.loss_spread.restart(len(self.members))
        self.complete_step = None

    def _on_steps(self, steps: Steps, session: Session, member: Member, current: bool, t_ns: int) -> None:
        first, count = steps.first_step, len(steps.rows)
        missing = first - session.next_step
        known = max(0, min(-missing, count))
        if missing > 0 and self.tail and not session.begun:
            member.records += missing
        elif missing > 0:
            self._count_lost(member, session, first, t_ns)
        session.begun = True
        session.next_step = max(session.next_step, first + count)
        member.records += count - known
        if not current or not count:
            return
        if member.bye is not None:  # it had left its group, and trains in another now
            member.bye = member.ended_ns = None
            self.presence_changed()
        last = steps.rows[-1]
        ended_ns = steps.base_ns + 1000 * (last.begin_us + last.wall_us)
        member.read_clock(ended_ns, t_ns, self.interruptions)
        member.moved_to(first + count, ended_ns)
        joined = bool(steps.rows[-1].flags & Flag.JOINED)
        if joined != member.joined:
            member.joined = joined
            self.presence_changed()
        member.micro_steps = member.micro_steps if joined else steps.rows[-1].micro_steps
        batch = Batch(steps.base_ns, session.layouts.get(steps.generation, -1))
        add, rank = self._pairing.add, session.rank
        for step, row in enumerate(steps.rows[known:], first + known):
            done = add(rank, step, row, batch)
            if done is not None:
                self.complete_step = step
                self.figures.take(done)
                self.loss_spread.take(done, self.unix_s(t_ns))
            if row.loss is not None:
                self._check_loss(row, rank, member, step, t_ns)

    def _count_lost(self, member: Member, session: Session, stop: int, t_ns: int) -> int:
        """Rows of the session from its next one to before `stop` will not come; returns how many."""
        lost = max(0, _multiples(session.next_step, stop, self.kept_every))
        member.lost_records += lost
        if lost and self.lost_since_ns is None:
            self.lost_since_ns = t_ns
        return lost

    def steps_of(self, session: int) -> tuple[int, int]:
        """Steps of a process whose rows have arrived or are known to be lost, and how many steps it has
        finished at least, by its heartbeats."""
        known = self._sessions.get(session)
        if known is None or known.rank >= len(self.members):
            return 0, 0
        member = self.members[known.rank]
        return known.next_step, max(known.next_step, member.step if member.session == session else 0)

    def miss_unsent(self, member: Member, steps: int, t_ns: int) -> int:
        """The process of this rank is gone and had finished so many steps; returns how many rows it kept."""
        session = self._sessions.get(member.session)
        if session is None or steps <= session.next_step:
            return 0
        lost = self._count_lost(member, session, steps, t_ns)
        session.next_step = steps
        return lost

    def _check_loss(self, row: StepRow, rank: int, member: Member, step: int, t_ns: int) -> None:
        assert row.loss is not None
        if math.isfinite(row.loss):
            if member.bad_loss_step is not None:
                member.bad_loss_before = PassedLoss(member.bad_loss_step, member.bad_loss_ns, step, t_ns)
            member.bad_loss_step = None
        elif member.bad_loss_step is None:
            member.bad_loss_step, member.bad_loss_ns = step, t_ns
            what = "NaN" if math.isnan(row.loss) else "infinite"
            text, world = f"with a loss that is {what} since step {step:,}", len(self.members)
            self.log.add_rank(self.unix_s(t_ns), "nan", text, rank, world, severity="critical", step=step)

    def _on_layout(self, layout: Layout, session: Session, t_ns: int) -> None:
        before = session.layouts.get(session.generation)
        number = session.layouts[layout.generation] = self.layouts.number(layout.buckets)
        while len(session.layouts) > self.layouts.KEPT:
            del session.layouts[next(iter(session.layouts))]
        session.generation = layout.generation
        if before is not None and before != number:
            text = f"rebuilt gradient buckets, generation {layout.generation}"
            self.log.add_rank(self.unix_s(t_ns), "rebuild", text, session.rank, len(self.members))

    def _on_state(self, message: object, rank: int, member: Member, t_ns: int) -> None:
        if isinstance(message, Progress):
            before = member.progress.detail_every if member.progress else 0
            if message.detail_every != before:
                self._detail_every = None
            member.progress = message
            member.read_clock(message.t_ns, t_ns, self.interruptions)
            member.moved_to(message.step, message.t_ns)
            if member.declared or message.phase == Phase.EVALUATE:
                self.excused_ns = t_ns
        elif isinstance(message, Card):
            self.cards[rank] = message.entries
        elif isinstance(message, Replica):
            self._on_replica(message, rank, t_ns)
        elif isinstance(message, Evidence):
            self._on_evidence(message, member, t_ns)
        elif isinstance(message, Bye):
            known = member.finished  # it has left its group before
            member.bye, member.ended_ns = message, t_ns
            self.presence_changed()
            failed = not member.finished
            if known and not failed:
                return
            text, severity, kind = "finished", "info", "finished"
            if failed:
                text, severity, kind = ending(member), "critical", "failed_rank"
            self.log.add_rank(self.unix_s(t_ns), kind, text, rank, len(self.members), severity=severity)

    def _on_replica(self, replica: Replica, rank: int, t_ns: int) -> None:
        told = self.groups.of(rank, replica.model)
        if self._present is None:
            there = (i for i, m in enumerate(self.members) if not (m.bye or m.gone_ns or m.joined))
            self._present = frozenset(there)
        self.replicas.take(rank, replica, told.ranks if told else (), self._present, self.unix_s(t_ns))

    def _on_evidence(self, evidence: Evidence, member: Member, t_ns: int) -> None:
        if evidence.number == 0:
            member.last_words = evidence
            return
        member.evidence, member.evidence_ns = evidence, t_ns
        member.read_clock(evidence.t_ns, t_ns, self.interruptions)
        if compiling(evidence.stacks):
            self.compiling_ns = t_ns
        if evidence.phase == Phase.EVALUATE:
            self.excused_ns = t_ns


def _multiples(first: int, stop: int, every: int) -> int:
    """How many steps from `first` to before `stop` are divisible by `every`."""
    return (stop - 1) // every - (first - 1) // every
