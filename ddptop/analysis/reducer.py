"""The reducer: takes messages into the state of the run, live in the collector and in replay over a file."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.checks import Checks
from ddptop.analysis.events import begin_session, note_compiling, note_left_early, on_event
from ddptop.analysis.health.exits import describe_exit
from ddptop.analysis.health.hosts import find_own_host
from ddptop.analysis.hosts import unwrap
from ddptop.analysis.rank_messages import RankMessages
from ddptop.analysis.received_samples import ReceivedSamples
from ddptop.analysis.stall.at_exit import keep_stall, stall_at_end
from ddptop.analysis.state import RunState
from ddptop.analysis.steps.evaluate import StepEvaluation
from ddptop.analysis.straggler.late_in_group import evaluate_group, note_late_rank
from ddptop.analysis.to_frame.frame import active_alerts, build, present_straggler, with_requested
from ddptop.frames.calls import compiling
from ddptop.frames.history import KEPT_POINTS
from ddptop.frames.phrases import exit_phrase
from ddptop.protocol.arrivals import Arrivals
from ddptop.protocol.evidence import Evidence, StackSamples
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import DEFAULT_STALL_S, MAX_NS, MAX_STEP
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import (
    FINISHED,
    ORDERLY_REASONS,
    Bye,
    Card,
    Clock,
    Event,
    Hello,
    Layout,
    Logged,
    Membership,
    Phase,
    Replica,
    Run,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ddptop.analysis.ranks import RankSession, RankState
    from ddptop.analysis.steps.complete_steps import CompleteSteps
    from ddptop.frames.frame import Alert, Frame, Straggler
    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Message, Received
    from ddptop.protocol.vocabulary import FrameSource


def raise_again() -> None:
    """Raise the exception that is handled."""
    error = sys.exc_info()[1]
    assert error is not None
    raise error


class Reducer:
    """Takes the messages of each session in their order into a `RunState`, and makes frames from it.

    Two reducers that were fed the same messages agree, however often a frame was made by each: figures other
    than ages, states and counts depend on the rows up to `complete_step` alone. Not thread-safe.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        history_points: int = KEPT_POINTS,
        stall_s: float = DEFAULT_STALL_S,
        tail: bool = False,
    ) -> None:
        """The options of `RunState`."""
        self._state = RunState(window=window, history_points=history_points, stall_s=stall_s, tail=tail)
        self.evaluation = StepEvaluation(self._state)
        self._state.settle = self.evaluation.settle
        self._state.end.find_stall = partial(stall_at_end, self._state)
        self._messages = RankMessages(self._state, self._take, self._on_complete)
        self._checks = Checks(self._state)

    @property
    def state(self) -> RunState:
        """The run as of the messages that were taken so far."""
        return self._state

    @property
    def complete_step(self) -> int | None:
        """The newest complete step; None: there is none."""
        return self._state.complete_step

    def stalled_since(self, now_ns: int) -> int | None:
        """When the stalled step began, on the collector's clock; None while there is no stall."""
        return self._checks.stalled_since(now_ns)

    @property
    def stall_is_logged(self) -> bool:
        """Whether the present stall, or the one in which the run has ended, is in the log."""
        return self._checks.stall_is_logged

    def progress_until_ns(self) -> int:
        """Before this moment `stalled_since` gives None, whatever steps and readings come; 0: not known."""
        return self._checks.progress_until_ns()

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
            build_frame = partial(build, state, now_ns, cursor=cursor, focus=focus, source=source)
            return with_requested(
                state, build_frame(recording=recording, gpus=gpus, hosts=hosts), want, now_ns
            )

    def alerts(self, now_ns: int) -> tuple[Alert, ...]:
        """The alerts of the frame at `now_ns`, without the rest of it."""
        self.state.settle()
        with np.errstate(over="ignore", invalid="ignore"):
            return active_alerts(self._state, now_ns)

    def straggler(self) -> Straggler | None:
        """The straggler of a frame made now, without the rest of it."""
        self.state.settle()
        with np.errstate(over="ignore", invalid="ignore"):
            return present_straggler(self._state)

    def end_recall(self) -> None:
        """What was fed so far came from a recording; from here on messages come as ranks send them."""
        self._state.tail, self._state.missing.kept_every, self._state.interruptions.unkept_ns = False, 1, 0

    def feed(self, received: Received) -> None:
        """`feed_run` of one message. Raises one of FEED_FAILURES for a message that is right and cannot be
        taken; what does not fit is ignored."""
        self.feed_run(MessageRun.of([received]), 0, raise_again)

    def feed_run(
        self,
        run: MessageRun,
        begin: int,
        on_failure: Callable[[], None],
        *,
        stop: int | None = None,
        stop_ns: int = MAX_NS,
        stop_step: int = MAX_STEP,
    ) -> int:
        """Take the messages of a run from place `begin` on, to before `stop`.

        The last one taken is the first that arrived at `stop_ns` or later, or the one that makes `stop_step`
        or a later step complete, if there is one. Returns the place after it. `on_failure` is called while
        one of FEED_FAILURES is handled, which costs one message.
        """
        state, t_ns = self._state, run.heads[0]
        stop = len(run) if stop is None else stop
        if (late := t_ns[begin:stop] >= stop_ns).any():
            stop = begin + int(late.argmax()) + 1
        while begin < stop:
            # An unusual message is taken alone: checks look no further, for many ranks begin together.
            end = max(begin + 1, run.next_unusual(begin, stop))
            end = self._checks.next_within(run, begin, end)
            taken = self._messages.take(run, begin, end, stop_step, on_failure)
            newest = t_ns[begin:taken]
            state.taken += taken - begin
            state.newest_ns = max(state.newest_ns, int(newest.max()))
            self._checks.after_taken(taken, int(newest[-1]))
            begin = taken
            complete = state.complete_step
            if newest[-1] >= stop_ns or (complete is not None and complete >= stop_step):
                break
        return begin

    def _take(self, received: Received) -> None:
        message, t_ns, state = received.message, received.t_ns, self._state
        session = state.sessions.by_number.get(received.session)
        if session is not None and session.rank < state.world:
            self._on_session(message, session, received.session, t_ns)
        elif isinstance(message, Hello):
            before = state.presence.hosts_of_ranks()
            hosts = len(before)
            begin_session(state, message, t_ns)
            if (now := state.presence.hosts_of_ranks()) is not before or len(now) != hosts:
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

    def _on_host(self, message: Host | HostUsage | About, session: int, t_ns: int) -> None:
        """A message of a host's agent; session 0: of the collector about its own host."""
        state = self._state
        if isinstance(message, Host):
            state.hosts.take(message, session, t_ns)
            state.clocks.set_own_host(find_own_host(state))
            return
        known_host = state.hosts.note_message(session, t_ns)
        if known_host is None:
            return
        if isinstance(message, HostUsage):
            known_host.take(message)
            return
        if (about := unwrap(message, t_ns, state.clocks, known_host.agent.name)) is not None:
            self._messages.take(MessageRun.of([about]), 0, 1, MAX_STEP, raise_again)

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
            state.log.add(state.unix_s(t_ns), run.state, f"run {run.state}{code}")
            self._checks.due_at_end()

    def _on_session(self, message: Message, session: RankSession, number: int, t_ns: int) -> None:
        """A message of a process that has sent HELLO."""
        state = self._state
        rank_state = state.ranks[session.rank]
        current = rank_state.session == number
        if current and t_ns > rank_state.heard_ns:
            rank_state.heard_ns = t_ns
        if isinstance(message, Layout):
            state.take_layout(message, session, t_ns)
        elif isinstance(message, Event):
            on_event(state, message, t_ns)
        elif current and isinstance(message, Membership):
            state.groups.take(session.rank, message)
        elif current and isinstance(message, Logged):
            rank_state.take_logged(message.values)
        elif current:
            self._on_state(message, session.rank, rank_state, t_ns)
        elif isinstance(message, Bye) and message.reason not in ORDERLY_REASONS:
            # Its successor's HELLO has overtaken it: the rank is live, but the failure is still to be known.
            text, at_s, world = exit_phrase(None, None, message.reason), state.unix_s(t_ns), state.world
            state.log.add_rank(at_s, "failed_rank", text, session.rank, world)

    def _on_complete(self, steps: CompleteSteps, t_ns: NDArray[np.int64]) -> None:
        state = self._state
        state.complete_step = int(steps.numbers[-1])
        self.evaluation.take(steps, t_ns)
        if state.synchronisation.waits:
            for step in steps.numbers.tolist():
                state.synchronisation.complete(step, state.presence.trained_in(step))

    def _on_state(self, message: object, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self._state
        if isinstance(message, Card):
            state.cards[rank] = message.entries
            state.preflight.note_card(state.unix_s(t_ns))
        elif isinstance(message, Replica):
            state.take_replica(rank, message, t_ns)
        elif isinstance(message, Evidence):
            self._on_evidence(message, rank, rank_state, t_ns)
        elif isinstance(message, Arrivals):
            self._on_arrivals(message, rank, t_ns)
        elif isinstance(message, StackSamples):
            state.stack_samples.append(ReceivedSamples(rank, t_ns, message))
        elif isinstance(message, Bye):
            self._on_bye(message, rank, rank_state, t_ns)

    def _on_arrivals(self, arrivals: Arrivals, rank: int, t_ns: int) -> None:
        state = self._state
        compare = self.evaluation.compare_ranks
        group = state.group_arrivals.take(rank, arrivals, state.world, t_ns, compare)
        if group is not None:
            evaluate_group(group, t_ns)
            note_late_rank(state, t_ns)

    def _on_bye(self, bye: Bye, rank: int, rank_state: RankState, t_ns: int) -> None:
        state = self._state
        had_finished = rank_state.finished  # it has left its group before
        if bye.reason not in ORDERLY_REASONS:
            keep_stall(state, t_ns)
        elif bye.reason == FINISHED and not state.end.finished:  # once: it asks all ranks
            keep_stall(state, t_ns, finished=rank)
        rank_state.bye, rank_state.ended_ns = bye, t_ns
        if bye.sequence >= 0:
            rank_state.last_sequence = bye.sequence
        state.presence.note_change()
        if bye.reason == FINISHED:
            state.end.finished.add(rank)
        failed = not rank_state.finished
        if had_finished and not failed:
            return
        at_s, world = state.unix_s(t_ns), state.world
        if failed:
            text = describe_exit(rank_state)
            state.log.add_rank(at_s, "failed_rank", text, rank, world)
        else:
            state.log.add_rank(at_s, "finished", "finished", rank, world)
        note_left_early(state, t_ns)

    def _on_evidence(self, evidence: Evidence, rank: int, rank_state: RankState, t_ns: int) -> None:
        self._state.end.has_evidence = True
        if evidence.number == 0:
            rank_state.exit_evidence = evidence
            return
        before = rank_state.evidence
        rank_state.evidence, rank_state.evidence_ns = evidence, t_ns
        rank_state.read_clock(evidence.t_ns, t_ns, self._state.interruptions)
        if compiling(evidence.stacks):
            self._state.excuses.compiling_ns = t_ns
            if before is None or before.step != evidence.step or not compiling(before.stacks):
                note_compiling(self._state, rank, evidence, t_ns)
        if evidence.phase == Phase.EVALUATE:
            self._state.excuses.declared_ns = t_ns
        note_left_early(self._state, t_ns)
