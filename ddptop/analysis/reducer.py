"""The reducer: takes messages into the state of the run, live in the collector and in replay over a file."""

from __future__ import annotations

from math import isfinite, isnan
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.events import begin_session, count_lost, on_event
from ddptop.analysis.health.exits import describe_exit
from ddptop.analysis.health.hosts import HostLog, find_own_host
from ddptop.analysis.hosts import unwrap
from ddptop.analysis.ranks import ABSENT, PassedLoss
from ddptop.analysis.stall.current import StallLog, stalled_since
from ddptop.analysis.state import RunState
from ddptop.analysis.steps.complete_steps import Batch
from ddptop.analysis.steps.evaluate import StepEvaluation
from ddptop.analysis.to_frame.frame import build, with_requested
from ddptop.frames.calls import compiling
from ddptop.frames.history import KEPT_POINTS
from ddptop.frames.phrases import exit_phrase
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import (
    WELL,
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
from ddptop.protocol.step_columns import StepRows

if TYPE_CHECKING:
    from ddptop.analysis.ranks import RankState, Session
    from ddptop.analysis.steps.complete_steps import CompleteStep
    from ddptop.frames.frame import Frame
    from ddptop.protocol.messages import Message, Received
    from ddptop.protocol.vocabulary import FrameSource, Severity


_JOINED = int(Flag.JOINED)  # `&` with a member of an enum costs a microsecond


class Reducer:
    """Takes the messages of each session in their order into a `RunState`, and makes frames from it.

    Every figure but ages, states and counts depends on the rows up to `complete_step` alone, so that two
    reducers fed the same messages agree, however often a frame was made by each. Not thread-safe.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        history_points: int = KEPT_POINTS,
        stall_s: float = 15.0,
        tail: bool = False,
    ) -> None:
        """The options of `RunState`."""
        self.state = RunState(window=window, history_points=history_points, stall_s=stall_s, tail=tail)
        self._evaluation = StepEvaluation(self.state)
        self.state.settle = self._evaluation.settle
        self._stall_log = StallLog()
        self._host_log = HostLog()

    def stalled_since(self, now_ns: int) -> int | None:
        """When the stalled step began, on the collector's clock; None while there is no stall."""
        return stalled_since(self.state, now_ns)

    def frame(
        self,
        now_ns: int,
        *,
        cursor: int = 0,
        focus: int | None = None,
        source: FrameSource = "live",
        recording: str | None = None,
        want: str = "",
    ) -> Frame:
        """The group at `now_ns` (collector's clock), with the history from point `cursor` on.

        `focus`: the rank whose single steps it holds. `want`: the text of a request for a timeline or a
        heat map (`ddptop.frames.detail`); empty: none.
        """
        state = self.state
        state.settle()
        with np.errstate(over="ignore", invalid="ignore"):  # losses may be 1e300, infinite or NaN
            frame = build(state, now_ns, cursor=cursor, focus=focus, source=source, recording=recording)
            return with_requested(state, frame, want)

    def end_recall(self) -> None:
        """What was fed so far came from a recording; from here on messages come as ranks send them."""
        self.state.tail = False
        self.state.kept_every, self.state.interruptions.unkept_ns = 1, 0

    def feed(self, received: Received) -> None:
        """Take one message in the order of its session. What does not fit is ignored, never raised."""
        state, t_ns = self.state, received.t_ns
        if type(received.message) is not Steps or not self._take_usual_steps(received, received.message):
            self._take(received)
        state.taken += 1
        if t_ns > state.newest_ns:
            state.newest_ns = t_ns
        # The time between two messages of a tail is no stall: messages are skipped.
        if t_ns >= self._stall_log.next_ns and not state.tail:
            self._stall_log.check(state, t_ns)
            self._host_log.check(state, t_ns)

    def _take_usual_steps(self, received: Received, steps: Steps) -> bool:
        """Take the next steps of a rank's present process. Returns whether that is what they are.

        Nearly all messages are: `_on_steps`, which takes any, has the same order."""
        state, rows, first = self.state, steps.rows, steps.first_step
        session = state.sessions.get(received.session)
        if session is None or session.rank >= len(state.ranks) or type(rows) is not StepRows:
            return False
        rank, count, columns = session.rank, rows.size, rows.columns
        rank_state = state.ranks[rank]
        usual = first == session.next_step and rank_state.session == received.session and count
        if not usual or columns.has_bad_loss or rank_state.bad_loss_step is not None:
            return False
        t_ns, last = received.t_ns, rows.first + count - 1
        ends, flags, micro_steps = columns.ends
        if flags[last] & _JOINED or rank_state.joined or rank_state.bye is not None:
            return False
        if t_ns > rank_state.heard_ns:
            rank_state.heard_ns = t_ns
        session.begun = True
        session.next_step = first + count
        rank_state.records += count
        ended_ns = steps.base_ns + 1000 * ends[last]
        rank_state.read_clock(ended_ns, t_ns, state.interruptions)
        rank_state.moved_to(first + count, ended_ns)
        rank_state.micro_steps = micro_steps[last]
        batch = Batch(steps.base_ns, session.layouts.get(steps.generation, -1))
        for done in state.pairing.add_rows(columns, rows.first, count, rank, first, batch):
            self._on_complete(done, t_ns)
        return True

    def _take(self, received: Received) -> None:
        message, t_ns, state = received.message, received.t_ns, self.state
        session = state.sessions.get(received.session)
        if session is not None and session.rank < len(state.ranks):
            self._on_session(message, session, received.session, t_ns)
        elif isinstance(message, Hello):
            begin_session(state, message, t_ns)
            state.clocks.set_own_host(find_own_host(state))
        elif isinstance(message, Run):
            self._on_run(message, t_ns)
        elif isinstance(message, Event):
            on_event(state, message, t_ns)
        elif isinstance(message, Clock):
            state.clocks.take(message, t_ns)
            state.hosts.hear(received.session, t_ns)
        elif isinstance(message, (Host, HostUsage, About)):
            self._on_host(message, received.session, t_ns)
        elif isinstance(message, Usage) and 0 <= received.rank < len(state.ranks):
            rank_state = state.ranks[received.rank]
            if rank_state is not ABSENT:
                _on_usage(message, rank_state, t_ns)

    def _on_host(self, message: Host | HostUsage | About, session: int, t_ns: int) -> None:
        """A message of a host's agent; session 0: of the collector about its own host."""
        state = self.state
        if isinstance(message, Host):
            state.hosts.take(message, session, t_ns)
            state.clocks.set_own_host(find_own_host(state))
            return
        known = state.hosts.hear(session, t_ns)
        if known is None:
            return
        if isinstance(message, HostUsage):
            known.usage = message
            return
        about = unwrap(message, t_ns, state.clocks, known.agent.name)
        if about is not None:
            self._take(about)

    def _on_run(self, run: Run, t_ns: int) -> None:
        state = self.state
        first, state.run = state.run is None, run
        if first:
            state.clock = (run.unix_ns, run.monotonic_ns)
        if run.state != "live" and state.ended_ns is None:
            state.ended_ns = t_ns
            code = "" if run.exit_code is None else f", exit code {run.exit_code}"
            severity: Severity = "info" if run.state == "finished" else "critical"
            state.log.add(state.unix_s(t_ns), run.state, f"run {run.state}{code}", severity=severity)

    def _on_session(self, message: Message, session: Session, number: int, t_ns: int) -> None:
        """A message of a process that has sent HELLO."""
        state = self.state
        rank_state = state.ranks[session.rank]
        current = rank_state.session == number
        if isinstance(message, Steps):
            if current and t_ns > rank_state.heard_ns:
                rank_state.heard_ns = t_ns
            self._on_steps(message, session, rank_state, current, t_ns)
            return
        if isinstance(message, Usage):  # from the agent, about the process: no sign of the rank itself
            if current:
                _on_usage(message, rank_state, t_ns)
            return
        if isinstance(message, Gpu):  # likewise
            rank_state.gpu = message if current else rank_state.gpu
            return
        if current and t_ns > rank_state.heard_ns:
            rank_state.heard_ns = t_ns
        if isinstance(message, Layout):
            self._on_layout(message, session, t_ns)
        elif isinstance(message, Event):
            on_event(state, message, t_ns)
        elif current and isinstance(message, Membership):
            state.groups.take(session.rank, message)
        elif current and isinstance(message, Memory):
            rank_state.memory = message
        elif current and isinstance(message, Logged):
            rank_state.take_logged(message.values)
        elif current:
            self._on_state(message, session.rank, rank_state, t_ns)
        elif isinstance(message, Bye) and message.reason not in WELL:
            # Its successor's HELLO has overtaken it: the rank is live, but the failure is still to be known.
            text, world = exit_phrase(None, None, message.reason), len(state.ranks)
            state.log.add_rank(
                state.unix_s(t_ns), "failed_rank", text, session.rank, world, severity="critical"
            )

    def _on_steps(
        self, steps: Steps, session: Session, rank_state: RankState, current: bool, t_ns: int
    ) -> None:
        state = self.state
        first, count = steps.first_step, len(steps.rows)
        missing = first - session.next_step
        known = min(-missing, count) if missing < 0 else 0
        if missing > 0 and state.tail and not session.begun:
            rank_state.records += missing
        elif missing > 0:
            count_lost(state, rank_state, session, first, t_ns)
        session.begun = True
        if first + count > session.next_step:
            session.next_step = first + count
        rank_state.records += count - known
        if not current or not count:
            return
        if rank_state.bye is not None:  # it had left its group, and trains in another now
            rank_state.bye = rank_state.ended_ns = None
            state.presence_changed()
        rows = steps.rows
        if isinstance(rows, StepRows):
            at, columns = rows.first, rows.columns
            ends, flags, micro = columns.ends
            end_us, last_flags, micro_steps = (
                ends[at + count - 1],
                flags[at + count - 1],
                micro[at + count - 1],
            )
        else:
            last = rows[-1]
            end_us, last_flags, micro_steps = last.begin_us + last.wall_us, last.flags, last.micro_steps
        ended_ns = steps.base_ns + 1000 * end_us
        rank_state.read_clock(ended_ns, t_ns, state.interruptions)
        rank_state.moved_to(first + count, ended_ns)
        joined = bool(last_flags & _JOINED)
        if joined != rank_state.joined:
            rank_state.joined = joined
            state.presence_changed()
        rank_state.micro_steps = rank_state.micro_steps if joined else micro_steps
        batch, rank = Batch(steps.base_ns, session.layouts.get(steps.generation, -1)), session.rank
        if isinstance(rows, StepRows):
            add_rows = state.pairing.add_rows
            losses = columns.has_bad_loss or rank_state.bad_loss_step is not None
            for i in range(known, count):
                for complete in add_rows(columns, at + i, 1, rank, first + i, batch):
                    self._on_complete(complete, t_ns)
                if losses and columns.is_known_at(at + i):
                    self._check_loss(float(columns.loss[at + i]), rank, rank_state, first + i, t_ns)
            return
        add = state.pairing.add
        for step, row in enumerate(rows[known:] if known else rows, first + known):
            done = add(rank, step, row, batch)
            if done is not None:
                self._on_complete(done, t_ns)
            loss = row.loss
            if loss is not None and (not isfinite(loss) or rank_state.bad_loss_step is not None):
                self._check_loss(loss, rank, rank_state, step, t_ns)

    def _on_complete(self, done: CompleteStep, t_ns: int) -> None:
        self.state.complete_step = done.step
        self._evaluation.take(done)
        self.state.loss_spread.take(done, self.state.unix_s(t_ns))

    def _check_loss(self, loss: float, rank: int, rank_state: RankState, step: int, t_ns: int) -> None:
        """Note the begin or the end of steps with losses that are no finite numbers."""
        if isfinite(loss):
            if rank_state.bad_loss_step is not None:
                since = (rank_state.bad_loss_step, rank_state.bad_loss_ns)
                rank_state.bad_loss_before = PassedLoss(*since, step, t_ns)
            rank_state.bad_loss_step = None
        elif rank_state.bad_loss_step is None:
            rank_state.bad_loss_step, rank_state.bad_loss_ns = step, t_ns
            what = "NaN" if isnan(loss) else "infinite"
            text, world = f"with a loss that is {what} since step {step:,}", len(self.state.ranks)
            at_s = self.state.unix_s(t_ns)
            self.state.log.add_rank(at_s, "nan", text, rank, world, severity="critical", step=step)

    def _on_layout(self, layout: Layout, session: Session, t_ns: int) -> None:
        state = self.state
        before = session.layouts.get(session.generation)
        number = session.layouts[layout.generation] = state.layouts.number(layout.buckets)
        while len(session.layouts) > state.layouts.KEPT:
            del session.layouts[next(iter(session.layouts))]
        session.generation = layout.generation
        if before is not None and before != number:
            text = f"rebuilt gradient buckets, generation {layout.generation}"
            state.log.add_rank(state.unix_s(t_ns), "rebuild", text, session.rank, len(state.ranks))

    def _on_state(self, message: object, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self.state
        if isinstance(message, Progress):
            before = rank_state.progress.detail_every if rank_state.progress else 0
            if message.detail_every != before:
                state.sampling_changed()
            rank_state.progress = message
            if state.hosts.is_remote(rank_state.host):
                here_ns = state.clocks.to_collector(rank_state.host, message.t_ns)
                rank_state.delay_ns = rank_state.delay_ns if here_ns is None else here_ns - message.t_ns
            rank_state.read_clock(message.t_ns, t_ns, state.interruptions)
            rank_state.moved_to(message.step, message.t_ns)
            if rank_state.declared or message.phase == Phase.EVALUATE:
                state.excused_ns = t_ns
        elif isinstance(message, Card):
            state.cards[rank] = message.entries
        elif isinstance(message, Replica):
            group = state.groups.of(rank, message.model)
            ranks = group.ranks if group else ()
            state.replicas.take(rank, message, ranks, state.present, state.unix_s(t_ns))
        elif isinstance(message, Evidence):
            self._on_evidence(message, rank_state, t_ns)
        elif isinstance(message, Bye):
            self._on_bye(message, rank, rank_state, t_ns)

    def _on_bye(self, bye: Bye, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self.state
        known = rank_state.finished  # it has left its group before
        rank_state.bye, rank_state.ended_ns = bye, t_ns
        state.presence_changed()
        failed = not rank_state.finished
        if known and not failed:
            return
        at_s, world = state.unix_s(t_ns), len(state.ranks)
        if failed:
            text = describe_exit(rank_state)
            state.log.add_rank(at_s, "failed_rank", text, rank, world, severity="critical")
        else:
            state.log.add_rank(at_s, "finished", "finished", rank, world)

    def _on_evidence(self, evidence: Evidence, rank_state: RankState, t_ns: int) -> None:
        if evidence.number == 0:
            rank_state.exit_evidence = evidence
            return
        rank_state.evidence, rank_state.evidence_ns = evidence, t_ns
        rank_state.read_clock(evidence.t_ns, t_ns, self.state.interruptions)
        if compiling(evidence.stacks):
            self.state.compiling_ns = t_ns
        if evidence.phase == Phase.EVALUATE:
            self.state.excused_ns = t_ns


def _on_usage(usage: Usage, rank_state: RankState, t_ns: int) -> None:
    rank_state.rss_bytes, rank_state.cpu_pct, rank_state.seen_ns = usage.rss_bytes, usage.cpu_pct, t_ns
