"""The reducer: takes messages into the state of the run, live in the collector and in replay over a file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.checks import Checks
from ddptop.analysis.events import begin_session, count_lost, note_compiling, note_left_early, on_event
from ddptop.analysis.health.alerts import check_loss
from ddptop.analysis.health.exits import describe_exit
from ddptop.analysis.health.hosts import find_own_host
from ddptop.analysis.hosts import unwrap
from ddptop.analysis.ranks import ABSENT
from ddptop.analysis.stall.at_exit import keep_stall, stall_at_end
from ddptop.analysis.state import RunState
from ddptop.analysis.steps.evaluate import StepEvaluation
from ddptop.analysis.to_frame.frame import active_alerts, build, with_requested
from ddptop.analysis.usual_messages import FEED_FAILURES, UsualMessages
from ddptop.frames.calls import compiling
from ddptop.frames.history import KEPT_POINTS
from ddptop.frames.phrases import exit_phrase
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import MAX_NS, MAX_STEP
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import StepMessages
from ddptop.protocol.messages import (
    FINISHED,
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
    from collections.abc import Callable

    from ddptop.analysis.ranks import RankState, Session
    from ddptop.analysis.steps.complete_steps import CompleteStep
    from ddptop.frames.frame import Alert, Frame
    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Message, Received
    from ddptop.protocol.vocabulary import FrameSource, Severity

ALONE = 64
"""Messages that `feed_run` takes one by one after an unusual one."""

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
        self._state = RunState(window=window, history_points=history_points, stall_s=stall_s, tail=tail)
        self.evaluation = StepEvaluation(self._state)
        self._state.settle = self.evaluation.settle
        self._state.find_stall_at_end = partial(stall_at_end, self._state)
        self._usual = UsualMessages(self._state, self._take, self._on_complete)
        self._checks = Checks(self._state, self._usual)

    @property
    def state(self) -> RunState:
        """The run as of the messages that were taken so far."""
        self._usual.write_columns()
        return self._state

    @property
    def as_last_read(self) -> RunState:
        """As `state`, at less cost: HELLOs, sampling intervals and what has happened are up to date, the rest
        may not be."""
        return self._state

    @property
    def complete_step(self) -> int | None:
        """As in `state`, at less cost while messages are taken."""
        return self._state.complete_step

    def stalled_since(self, now_ns: int) -> int | None:
        """When the stalled step began, on the collector's clock; None while there is no stall."""
        return self._checks.stalled_since(now_ns)

    @property
    def stall_is_logged(self) -> bool:
        """Whether the present stall, or the one in which the run has ended, is in the log."""
        return self._checks.stall_is_logged

    def progress_until_ns(self) -> int:
        """Before this moment `stalled_since` gives None, whatever is taken in columns; 0: not known."""
        return self._usual.progress_until_ns()

    def frame(
        self,
        now_ns: int,
        *,
        cursor: int = 0,
        focus: int | None = None,
        source: FrameSource = "live",
        recording: str | None = None,
        want: str = "",
        gpus: bool = True,
        hosts: bool = True,
    ) -> Frame:
        """The group at `now_ns` (collector's clock), with the history from point `cursor` on.

        `focus`: the rank whose single steps it holds. `want`: the text of a request for a timeline or a
        heat map (`ddptop.frames.detail`); empty: none. `gpus`: with the GPU and memory of every rank;
        `hosts`: with the figures of every host.
        """
        state = self.state
        state.settle()
        with np.errstate(over="ignore", invalid="ignore"):  # losses may be 1e300, infinite or NaN
            made = partial(build, state, now_ns, cursor=cursor, focus=focus, source=source)
            return with_requested(state, made(recording=recording, gpus=gpus, hosts=hosts), want)

    def alerts(self, now_ns: int) -> tuple[Alert, ...]:
        """The alerts of the frame at `now_ns`, without the rest of it."""
        self.state.settle()
        with np.errstate(over="ignore", invalid="ignore"):
            return active_alerts(self._state, now_ns)

    def end_recall(self) -> None:
        """What was fed so far came from a recording; from here on messages come as ranks send them."""
        self._state.tail, self._state.kept_every, self._state.interruptions.unkept_ns = False, 1, 0

    def feed(self, received: Received) -> None:
        """Take one message in the order of its session. What does not fit is ignored, never raised."""
        state, t_ns = self._state, received.t_ns
        of_a_rank = self._usual.prepare(received.message)
        self._take(received)
        if of_a_rank:
            state.taken_alone()
        state.taken += 1
        state.newest_ns = max(state.newest_ns, t_ns)
        self._checks.after(t_ns)

    def feed_run(
        self,
        run: MessageRun,
        begin: int,
        on_failure: Callable[[], None],
        *,
        stop: int | None = None,
        stop_ns: int = MAX_NS,
        stop_step: int = MAX_STEP,
        more: bool = False,
    ) -> int:
        """`feed` the messages of a run from place `begin` on, to before `stop`, or up to the first that
        arrived at `stop_ns` or later, or that makes step `stop_step` or a later one complete.

        Returns the place after the last one taken. `on_failure` is called while an exception is handled that
        `feed` would have raised: one of FEED_FAILURES, which costs one message. `more`: what was read from
        `state` before need not be up to date afterwards.
        """
        state, t_ns = self._state, run.heads[0]
        alone, stop = 0, len(run) if stop is None else stop
        while begin < stop:
            taken = begin
            if not alone:
                late = t_ns[begin:stop] >= stop_ns
                end = begin + int(late.argmax()) + 1 if late.any() else stop
                end = self._checks.next_within(run, begin, end)
                taken = self._usual.take(run, begin, end, stop_step, on_failure)
            if taken == begin:
                alone = (alone or ALONE) - 1
                taken = begin + 1
                try:
                    self.feed(run.received(begin))
                except FEED_FAILURES:
                    on_failure()
            else:
                newest = t_ns[begin:taken]
                state.taken += taken - begin
                state.newest_ns = max(state.newest_ns, int(newest.max()))
                self._checks.after_taken(taken, int(newest[-1]))
            begin = taken
            complete = state.complete_step
            if t_ns[begin - 1] >= stop_ns or (complete is not None and complete >= stop_step):
                break
        if not more:
            self._usual.write_columns()
        return begin

    def _take(self, received: Received) -> None:
        message, t_ns, state = received.message, received.t_ns, self._state
        session = state.processes.get(received.session)  # written, where the message is of a rank
        if session is not None and session.rank < state.world:
            self._on_session(message, session, received.session, t_ns)
        elif isinstance(message, Hello):
            before = state.hosts_of_ranks()
            hosts = len(before)
            begin_session(state, message, t_ns)
            if (now := state.hosts_of_ranks()) is not before or len(now) != hosts:
                state.clocks.set_own_host(find_own_host(state))
        elif isinstance(message, Run):
            self._on_run(message, t_ns)
        elif isinstance(message, Event):
            on_event(state, message, t_ns)
        elif isinstance(message, Clock):
            state.clocks.take(message, t_ns)
            state.hosts.note_message(received.session, t_ns)
        elif isinstance(message, (Host, HostUsage, About)):
            self._on_host(message, received.session, t_ns)
        elif isinstance(message, Usage) and 0 <= received.rank < state.world:
            rank_state = state.ranks[received.rank]
            if rank_state is not ABSENT:
                rank_state.note_usage(message, t_ns)

    def _on_host(self, message: Host | HostUsage | About, session: int, t_ns: int) -> None:
        """A message of a host's agent; session 0: of the collector about its own host."""
        state = self._state
        if isinstance(message, Host):
            state.hosts.take(message, session, t_ns)
            state.clocks.set_own_host(find_own_host(state))
            return
        known = state.hosts.note_message(session, t_ns)
        if known is None:
            return
        if isinstance(message, HostUsage):
            known.take(message, message.t_ns, message.thinned, message.links)
            return
        if (about := unwrap(message, t_ns, state.clocks, known.agent.name)) is not None:
            self._take(about)

    def _on_run(self, run: Run, t_ns: int) -> None:
        state = self._state
        if run.state == "failed":
            keep_stall(state, t_ns)
        first, state.run = state.run is None, run
        if first:
            state.clock = (run.unix_ns, run.monotonic_ns)
        if run.state != "live" and state.ended_ns is None:
            state.ended_ns = t_ns
            code = "" if run.exit_code is None else f", exit code {run.exit_code}"
            severity: Severity = "info" if run.state == "finished" else "critical"
            state.log.add(state.unix_s(t_ns), run.state, f"run {run.state}{code}", severity=severity)
            self._checks.due_at_end()

    def _on_session(self, message: Message, session: Session, number: int, t_ns: int) -> None:
        """A message of a process that has sent HELLO."""
        state = self._state
        rank_state = state.ranks[session.rank]
        current = rank_state.session == number
        if isinstance(message, Steps):
            if current and t_ns > rank_state.heard_ns:
                rank_state.heard_ns = t_ns
            self._on_steps(message, session, rank_state, current, t_ns)
            return
        if isinstance(message, Usage):  # from the agent, about the process: no sign of the rank itself
            if current:
                rank_state.note_usage(message, t_ns)
                now_s = state.unix_s(t_ns) - state.started_s
                state.figures.flags.note_throttled(session.rank, message.throttled_pct, now_s)
            return
        if isinstance(message, Gpu):  # likewise
            if current:
                rank_state.readings[Gpu] = message
            return
        if current and t_ns > rank_state.heard_ns:
            rank_state.heard_ns = t_ns
        if isinstance(message, Layout):
            state.take_layout(message, session, t_ns)
        elif isinstance(message, Event):
            on_event(state, message, t_ns)
        elif current and isinstance(message, Membership):
            state.groups.take(session.rank, message)
        elif current and isinstance(message, Memory):
            rank_state.readings[Memory] = message
        elif current and isinstance(message, Logged):
            rank_state.take_logged(message.values)
        elif current:
            self._on_state(message, session.rank, rank_state, t_ns)
        elif isinstance(message, Bye) and message.reason not in WELL:
            # Its successor's HELLO has overtaken it: the rank is live, but the failure is still to be known.
            text, at_s, world = exit_phrase(None, None, message.reason), state.unix_s(t_ns), state.world
            state.log.add_rank(at_s, "failed_rank", text, session.rank, world, severity="critical")

    def _on_steps(
        self, steps: Steps, session: Session, rank_state: RankState, current: bool, t_ns: int
    ) -> None:
        state = self._state
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
            end_us, last_flags, micro_steps = (column[at + count - 1] for column in columns.ends)
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
        rank_state.micro_steps = rank_state.micro_steps if joined or not micro_steps else micro_steps
        layout, rank = session.layouts.get(steps.generation, -1), session.rank
        message = StepMessages.of([steps])
        losses = message.columns.has_bad_loss or rank_state.bad_loss_step is not None
        each = 1 if losses else count - known
        for i in range(known, count, each or 1):
            at = int(message.begin[0]) + i
            part = message._replace(
                first_step=np.array([first + i]), begin=np.array([at]), counts=np.array([each])
            )
            for _, complete in state.pairing.add(part, np.array([rank]), np.array([layout]))[1]:
                self._on_complete(complete, t_ns)
            if losses and message.columns.is_known_at(at):
                check_loss(state, float(message.columns.loss[at]), rank, first + i, t_ns)

    def _on_complete(self, done: CompleteStep, t_ns: int) -> None:
        state = self._state
        state.complete_step = done.step
        self.evaluation.take(done, state.unix_s(t_ns))
        if state.synchronisation.waits:
            state.synchronisation.complete(done.step, state.present)

    def _on_state(self, message: object, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self._state
        if isinstance(message, Progress):
            delay_ns = self._usual.beat(rank_state, message, t_ns)
            rank_state.delay_ns = rank_state.delay_ns if delay_ns is None else delay_ns
            rank_state.read_clock(message.t_ns, t_ns, state.interruptions)
            rank_state.moved_to(message.step, message.t_ns)
        elif isinstance(message, Card):
            state.cards[rank] = message.entries
        elif isinstance(message, Replica):
            state.take_replica(rank, message, t_ns)
        elif isinstance(message, Evidence):
            self._on_evidence(message, rank, rank_state, t_ns)
        elif isinstance(message, Bye):
            self._on_bye(message, rank, rank_state, t_ns)

    def _on_bye(self, bye: Bye, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self._state
        known = rank_state.finished  # it has left its group before
        if bye.reason not in WELL:
            keep_stall(state, t_ns)
        elif bye.reason == FINISHED and not state.finished:  # once: it asks all ranks
            keep_stall(state, t_ns, finished=rank)
        rank_state.bye, rank_state.ended_ns = bye, t_ns
        if bye.sequence >= 0:
            rank_state.last_sequence = bye.sequence
        state.presence_changed()
        if bye.reason == FINISHED:
            state.finished.add(rank)
        failed = not rank_state.finished
        if known and not failed:
            return
        at_s, world = state.unix_s(t_ns), state.world
        if failed:
            text = describe_exit(rank_state)
            state.log.add_rank(at_s, "failed_rank", text, rank, world, severity="critical")
        else:
            state.log.add_rank(at_s, "finished", "finished", rank, world)
        note_left_early(state, t_ns)

    def _on_evidence(self, evidence: Evidence, rank: int, rank_state: RankState, t_ns: int) -> None:
        self._state.has_evidence = True
        if evidence.number == 0:
            rank_state.exit_evidence = evidence
            return
        before = rank_state.evidence
        rank_state.evidence, rank_state.evidence_ns = evidence, t_ns
        rank_state.read_clock(evidence.t_ns, t_ns, self._state.interruptions)
        if compiling(evidence.stacks):
            self._state.compiling_ns = t_ns
            if before is None or before.step != evidence.step or not compiling(before.stacks):
                note_compiling(self._state, rank, evidence, t_ns)
        if evidence.phase == Phase.EVALUATE:
            self._state.excused_ns = t_ns
        note_left_early(self._state, t_ns)
