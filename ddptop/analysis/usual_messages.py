"""Takes the usual messages of many ranks at once: the next steps and heartbeats of present processes.

Nearly all messages are. `Reducer.feed` takes each of them, and any other, in the same way; of numbers that
follow each other in one rank (its clock, its step) the messages of each rank are taken in their order.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ranks import STALE_S
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Memory
from ddptop.protocol.messages import Flag, Logged, Phase, Progress
from ddptop.protocol.step_columns import BEGIN, FLAGS, MICRO_STEPS, WALL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.ranks import RankState, Session
    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.complete_steps import CompleteStep
    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.messages import Received

    Integers = NDArray[np.int64]

FEED_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a message that passed every check could still set off in the arithmetic: it costs that message."""

_CLOCK_FIELDS = ("own_ns", "delay_ns", "stood_ns", "step", "moved_ns", "heard_ns")
_CLOCK = attrgetter(*_CLOCK_FIELDS)
_JOINED = int(Flag.JOINED)
_NO_DELAY = -(2**62)


class _Known:
    """All sessions, and what is known of their ranks, as columns; true until a message is taken alone."""

    def __init__(self, state: RunState) -> None:
        self.numbers = np.array(sorted(state.sessions), np.int64)
        """(sessions,) ascending; likewise below."""
        self.sessions = [state.sessions[number] for number in self.numbers.tolist()]
        self.rank = np.array([session.rank for session in self.sessions], np.int64)
        self.next_step = np.array([session.next_step for session in self.sessions], np.int64)
        present = map(partial(_is_present, state.ranks), self.sessions, self.numbers.tolist())
        self.present = np.fromiter(present, bool, len(self.sessions))
        """Whether it is its rank's process, and messages of it may be usual."""
        self.clocks: Integers | None = None
        """(fields of _CLOCK, ranks); None: to be read again."""
        self._layouts: dict[int, Integers] = {}

    def layouts(self, generation: int) -> Integers:
        """(sessions,) number of the layout of a generation; -1: not reported."""
        found = self._layouts.get(generation)
        if found is None:
            each = [session.layouts.get(generation, -1) for session in self.sessions]
            found = self._layouts[generation] = np.array(each, np.int64)
        return found


def _is_present(ranks: Sequence[RankState], session: Session, number: int) -> bool:
    if session.rank >= len(ranks):
        return False
    one = ranks[session.rank]
    return one.session == number and one.bad_loss_step is None and not one.joined and one.bye is None


class UsualMessages:
    """Takes parts of a run that hold nothing but usual messages."""

    def __init__(
        self,
        state: RunState,
        take: Callable[[Received], None],
        on_complete: Callable[[CompleteStep, int], None],
    ) -> None:
        """`take`: takes one of READINGS; `on_complete`: takes a step and when it was complete."""
        self._state = state
        self._take = take
        self._on_complete = on_complete
        self._known: _Known | None = None

    def forget(self) -> None:
        """A message was taken alone: anything may have changed."""
        self._known = None

    def take(
        self, run: MessageRun, begin: int, stop: int, stop_step: int, on_failure: Callable[[], None]
    ) -> int:
        """Take messages from place `begin` on, to before `stop`, or up to the one that makes step `stop_step`
        or a later one complete, or to before the first that is not usual.

        Returns the place after the last one taken: `begin` where the first one is not usual. `on_failure` is
        called while one of FEED_FAILURES is handled.
        """
        state = self._state
        stop = next((place for place, _ in run.unusual_within(begin, stop)), stop)
        if stop == begin:
            return begin
        known = self._known = self._known or _Known(state)
        low, high = run.steps_within(begin, stop)
        completed: list[tuple[int, CompleteStep]] = []
        steps = run.steps
        if steps is not None and low < high:
            which, usual = self._usual(run, low, high, known)
            high = low + usual
            if high < low + len(which):
                stop = min(stop, int(run.places[high]))
            part = slice(low, high)
            rank = known.rank[which[:usual]]
            layouts = self._layouts(steps.generation[part], known, which[:usual])
            taken, completed = state.pairing.add_run(steps, low, rank, layouts, stop_step)
            if taken < usual:
                stop, high = int(run.places[low + taken]), low + taken
            if completed and completed[-1][1].step >= stop_step:
                stop = int(run.places[high - 1]) + 1
            which, rank = which[:taken], rank[:taken]
        beats = self._take_in_order(run, begin, stop, low, completed, on_failure)
        if steps is None or low >= high:
            self._read_clocks(beats, np.zeros((6, 0), np.int64), known)
            return stop
        part, columns = slice(low, high), steps.columns
        first, count = steps.first_step[part], steps.counts[part]
        last = steps.begin[part] + count - 1
        ended_ns = steps.base_ns[part] + 1000 * (columns.integers[BEGIN, last] + columns.integers[WALL, last])
        places = run.places[part]
        unset = np.full(len(rank), _NO_DELAY)
        self._read_clocks(
            beats, np.stack([rank, places, run.heads[0, places], ended_ns, first + count, unset]), known
        )
        seen, at = np.unique(which, return_index=True)
        rows = np.bincount(which, count)[seen].astype(np.int64)
        rows += first[at] - known.next_step[seen]  # before the tail
        newest = np.zeros(len(known.sessions), np.int64)
        newest[which] = np.arange(len(which))  # of each the last one stays
        newest = newest[seen]
        known.next_step[seen] = (first + count)[newest]
        micro = columns.integers[MICRO_STEPS, last[newest]]
        ranks = state.ranks
        for n, added, following, micro_steps in zip(
            seen.tolist(), rows.tolist(), known.next_step[seen].tolist(), micro.tolist(), strict=True
        ):
            session = known.sessions[n]
            session.begun, session.next_step = True, following
            one = ranks[session.rank]
            one.records += added
            one.micro_steps = micro_steps or one.micro_steps  # 0: not known
        return stop

    def _usual(self, run: MessageRun, low: int, high: int, known: _Known) -> tuple[Integers, int]:
        """Of the STEPS messages low..high: of which known session each is, and how many are usual before the
        first that is not."""
        steps = run.steps
        assert steps is not None
        if not len(known.numbers):
            return np.zeros(high - low, np.int64), 0
        numbers = run.heads[2, run.places[low:high]]
        which = np.minimum(np.searchsorted(known.numbers, numbers), len(known.numbers) - 1)
        first, count = steps.first_step[low:high], steps.counts[low:high]
        order = np.argsort(which, kind="stable")
        before = np.empty(len(order), np.int64)
        before[1:] = (first + count)[order[:-1]]
        begins = np.flatnonzero(np.diff(which[order], prepend=-1))
        seen = which[order[begins]]
        following = known.next_step[seen]
        if self._state.tail:  # the rows before a session's first one count as received
            fresh = ~np.array([known.sessions[n].begun for n in seen.tolist()], bool)
            following = np.where(fresh, np.maximum(following, first[order[begins]]), following)
        before[begins] = following
        expected = np.empty_like(before)
        expected[order] = before
        flags = steps.columns.integers[FLAGS, steps.begin[low:high] + count - 1]
        usual = (first == expected) & known.present[which] & (flags & _JOINED == 0) & (count > 0)
        usual &= known.numbers[which] == numbers
        if steps.columns.has_bad_loss:
            bad = steps.columns.is_known & ~np.isfinite(steps.columns.loss)
            so_far = np.concatenate([[0], np.cumsum(bad)])
            begin = steps.begin[low:high]
            usual &= so_far[begin + count] == so_far[begin]
        return which, len(usual) if usual.all() else int(usual.argmin())

    @staticmethod
    def _layouts(generation: Integers, known: _Known, which: Integers) -> Integers:
        """Number of the layout of each message; -1: not reported."""
        found = np.full(len(which), -1)
        for number in np.unique(generation).tolist():
            same = generation == number
            found[same] = known.layouts(number)[which[same]]
        return found

    def _take_in_order(
        self,
        run: MessageRun,
        begin: int,
        stop: int,
        low: int,
        completed: list[tuple[int, CompleteStep]],
        on_failure: Callable[[], None],
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Take the messages that are no STEPS, and between them the complete steps, in order.

        Returns the readings of clocks in the heartbeats, as `_read_clocks` takes them."""
        state, t_ns, known = self._state, run.heads[0], self._known
        ends = [(int(run.places[low + at]), step) for at, step in reversed(completed)]
        beats = []

        def complete(before: int) -> None:
            while ends and ends[-1][0] < before:
                at, step = ends.pop()
                try:
                    self._on_complete(step, int(t_ns[at]))
                except FEED_FAILURES:
                    on_failure()

        for place, received in run.others_within(begin, stop):
            if ends:
                complete(place)
            message = received.message
            if type(message) is not Progress:
                if known is not None and type(message) in (Memory, Logged):
                    known.clocks = None  # they are signs of the rank itself
                try:
                    self._take(received)
                except FEED_FAILURES:
                    on_failure()
                continue
            session = state.sessions.get(received.session)
            if session is None or session.rank >= len(state.ranks):
                continue
            one = state.ranks[session.rank]
            if one.session == received.session:
                delay_ns = self.beat(one, message, received.t_ns)
                of_host = _NO_DELAY if delay_ns is None else delay_ns
                beats.append((session.rank, place, received.t_ns, message.t_ns, message.step, of_host))
        complete(stop)
        return beats

    def beat(self, one: RankState, message: Progress, t_ns: int) -> int | None:
        """Take a heartbeat of a rank without its clock.

        Returns the delay that the clock of a remote host gives; None where it is not known."""
        state = self._state
        if message.detail_every != (one.progress.detail_every if one.progress else 0):
            state.sampling_changed()
        one.progress = message
        if one.declared or message.phase == Phase.EVALUATE:
            state.excused_ns = t_ns
        if not state.hosts.is_remote(one.host):
            return None
        here_ns = state.clocks.to_collector(one.host, message.t_ns)
        return None if here_ns is None else here_ns - message.t_ns

    def _read_clocks(
        self, beats: list[tuple[int, int, int, int, int, int]], readings: Integers, known: _Known
    ) -> None:
        """`RankState.read_clock` and `moved_to` of many readings, (6, n): rank, place, when it arrived, the
        rank's own clock, its step, and the delay that its host's clock gives."""
        if beats:
            readings = np.concatenate([readings, np.array(beats, np.int64).T], axis=1)
        if not readings.shape[1]:
            return
        readings = readings[:, np.lexsort((readings[1], readings[0]))]
        numbers, begins = np.unique(readings[0], return_index=True)
        state = self._state
        if known.clocks is None:
            known.clocks = _clocks(state.ranks)
        now = known.clocks[:, numbers]
        own, delay, stood, step, moved, arrived = now
        np.maximum(arrived, np.maximum.reduceat(readings[2], begins), out=arrived)
        counts = np.diff(begins, append=readings.shape[1])
        most, order = int(counts.max()), np.argsort(-counts, kind="stable")
        left = np.searchsorted(-counts[order], -np.arange(most))  # ranks with more than so many readings
        for at in range(most):
            r = order[: left[at]]
            _, _, t_ns, own_ns, in_step, of_host = readings[:, begins[r] + at]
            d = np.minimum(np.where(of_host == _NO_DELAY, delay[r], of_host), t_ns - own_ns)
            passed = own_ns - own[r]
            later = passed > 0
            for i in np.flatnonzero(passed > STALE_S * NS).tolist():
                here_ns, since_ns = int(own_ns[i] + d[i]), int(passed[i])
                passed[i] -= state.interruptions.within(here_ns - since_ns, here_ns)
            moves = in_step > step[r]
            stood[r] = np.where(moves, 0, stood[r] + np.where(later, np.maximum(passed, 0), 0))
            own[r] = np.where(later | moves, own_ns, own[r])
            step[r] = np.where(moves, in_step, step[r])
            moved[r] = np.where(moves, own_ns + d, moved[r])
            delay[r] = d
        known.clocks[:, numbers] = now
        for rank, values in zip(numbers.tolist(), now.T.tolist(), strict=True):
            one = state.ranks[rank]
            one.own_ns, one.delay_ns, one.stood_ns, one.step, one.moved_ns, one.heard_ns = values


def _clocks(ranks: Sequence[RankState]) -> Integers:
    """(fields of _CLOCK, ranks)"""
    return np.asarray(np.array([*map(_CLOCK, ranks)], np.int64).reshape(-1, len(_CLOCK_FIELDS)).T)
