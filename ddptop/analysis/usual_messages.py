"""Takes the usual messages of many ranks at once: the next steps and heartbeats of present processes.

Nearly all messages are. `Reducer.feed` takes each of them, and any other, in the same way; of numbers that
follow each other in one rank (its clock, its step) the messages of each rank are taken in their order.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.figures import USED_UP_PCT
from ddptop.analysis.known_sessions import NO_DELAY, Beats, KnownSessions, Offsets
from ddptop.analysis.ranks import STALE_S
from ddptop.analysis.steps.clocks import CLOCK_FIELDS
from ddptop.analysis.steps.pairing import stable_order
from ddptop.protocol.hosts import HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.message_run import OF_AGENTS, is_constant
from ddptop.protocol.messages import NAMES, Clock, Flag, Logged, Phase, Progress, Received, Replica
from ddptop.protocol.step_columns import BEGIN, FLAGS, MICRO_STEPS, WALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.complete_steps import CompleteStep
    from ddptop.protocol.message_run import MessageRun, Readings
    from ddptop.protocol.messages import Message

    Integers = NDArray[np.int64]

FEED_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a message that passed every check could still set off in the arithmetic: it costs that message."""

_JOINED = int(Flag.JOINED)
_OWN_NS, _STEP, _PHASE, _DETAIL_EVERY = map(NAMES[Progress].index, ("t_ns", "step", "phase", "detail_every"))
_CLOCK = [*map(NAMES[Clock].index, CLOCK_FIELDS)]
_HOST = NAMES[Clock].index("host")
_OFFSET = attrgetter("t_ns", "offset_ns", "drift_ppb")
_THROTTLED = NAMES[Usage].index("throttled_pct")
SESSIONS_OF_A_MESSAGE = 16
"""To know all sessions as columns takes as long for so many of them as one message that is taken alone."""
NO_SIGN_OF_A_RANK = (Usage, Gpu)
"""Readings that come from agents: of what is known of the ranks they change when each was seen."""
OF_A_RANK = (Memory, Usage, Gpu)
"""Readings besides heartbeats that change a rank."""
SAID = (Logged, Replica)
"""What a rank says, of which nothing but when it was heard is in columns."""


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
        self._known: KnownSessions | None = None

    def prepare(self, message: Message) -> bool:
        """A message is about to be taken alone: most may change anything. Returns whether this may change a
        rank: then all ranks are to be read again."""
        if type(message) is HostUsage:
            return False
        self.write()
        self._state.taken_alone()
        if type(message) not in NO_SIGN_OF_A_RANK:
            self._known = None
        elif self._known is not None:
            self._known.seen_ns = None
        return True

    def write_columns(self) -> None:
        """Put what was taken into the columns of the state, which is about to be read. Its sessions and ranks
        are written when they are read themselves."""
        known = self._known
        if known is not None and known.write_columns(self._state):
            self._state.unwritten = self

    def write(self) -> None:
        """Put what was taken into the sessions and ranks: they are about to be read."""
        self._state.unwritten = None
        if self._known is not None:
            self._known.write(self._state)

    def write_readings(self, rank: int) -> None:
        """Put the readings of one rank into it."""
        if self._known is not None:
            self._known.write_readings(rank)

    def prepare_check(self, now_ns: int, stalled: bool) -> None:
        """The state is about to be checked for stalls and silent hosts. Where all ranks report and make
        progress, as at the last check (not `stalled`), the columns of the ranks are enough."""
        if stalled or now_ns >= min(self.progress_until_ns(), self._until_ns("heard_ns", STALE_S)):
            self.write()

    def progress_until_ns(self) -> int:
        """Before this moment no check can find a stall, whatever is taken in columns; 0: not known."""
        return self._until_ns("moved_ns", self._state.stall_s)

    def _until_ns(self, name: str, seconds: float) -> int:
        """So long after a moment that is in the columns of all ranks; 0: they are to be read."""
        known, state = self._known, self._state
        columns = None if known is None else known.latest(state)
        if columns is None or not state.world or state.not_initialized or not state.reports.running.all():
            return 0
        state.reports.keep(columns)
        return int(columns[name].min() + seconds * NS)

    def take(
        self, run: MessageRun, begin: int, stop: int, stop_step: int, on_failure: Callable[[], None]
    ) -> int:
        """Take messages from place `begin` on, to before `stop`, or up to the one that makes step `stop_step`
        or a later one complete, or to before the first that is not usual.

        Returns the place after the last one taken: `begin` where the first one is not usual, or they are too
        few to be taken in columns. `on_failure` is called while one of FEED_FAILURES is handled.
        """
        state = self._state
        stop = next((place for place, _ in run.unusual_within(begin, stop)), stop)
        if stop == begin:
            return begin
        if not state.processes:
            return begin  # nothing is usual of a process whose HELLO was lost
        if self._known is None and (stop - begin) * SESSIONS_OF_A_MESSAGE < len(state.processes):
            return begin  # as between the HELLOs of many ranks
        known = self._known = self._known or KnownSessions(state)
        low, high = run.steps_within(begin, stop)
        completed: list[tuple[int, CompleteStep]] = []
        steps = run.steps
        if steps is not None and low < high:
            try:
                which, usual = self._usual(run, low, high, known)
                layouts = self._layouts(steps.generation[low : low + usual], known, which[:usual])
            except FEED_FAILURES:  # nothing is taken so far: they are taken one by one
                on_failure()
                return begin
            high = low + usual
            if high < low + len(which):
                stop = min(stop, int(run.places[high]))
            rank = known.rank[which[:usual]]
            taken, completed = state.pairing.add(steps.part(slice(low, high)), rank, layouts, stop_step)
            if taken < usual:
                stop, high = int(run.places[low + taken]), low + taken
            if completed and completed[-1][1].step >= stop_step:
                stop = int(run.places[high - 1]) + 1
            which, rank = which[:taken], rank[:taken]
        beats = self._take_in_order(run, begin, stop, low, completed, known, on_failure)
        if steps is None or low >= high:
            known.read_clocks(beats, state)
            return stop
        part, columns = slice(low, high), steps.columns
        first, count = steps.first_step[part], steps.counts[part]
        last = steps.begin[part] + count - 1
        begin_us, wall_us = columns.integers[[[BEGIN], [WALL]], last].astype(np.int64)
        ended_ns = steps.base_ns[part] + 1000 * (begin_us + wall_us)
        places = run.places[part]
        unset = np.full(len(rank), NO_DELAY)
        beats.append(np.stack([rank, places, run.heads[0, places], ended_ns, first + count, unset]))
        known.read_clocks(beats, state)
        known.take_rows(which, first, count, columns.integers[MICRO_STEPS, last])
        return stop

    def _usual(self, run: MessageRun, low: int, high: int, known: KnownSessions) -> tuple[Integers, int]:
        """Of the STEPS messages low..high: of which known session each is, and how many are usual before the
        first that is not."""
        steps = run.steps
        assert steps is not None
        which, found = known.find(*run.heads[1:3, run.places[low:high]])
        first, count = steps.first_step[low:high], steps.counts[low:high]
        expected = known.next_step[which]
        if self._state.tail:  # the rows before a session's first one count as received
            expected = np.where(known.begun[which], expected, np.maximum(expected, first))
        order = stable_order(which)
        again = np.flatnonzero(np.diff(which[order]) == 0)  # another one of the same session follows
        expected[order[again + 1]] = (first + count)[order[again]]
        flags = steps.columns.integers[FLAGS, steps.begin[low:high] + count - 1]
        usual = found & (first == expected) & known.present[which] & (flags & _JOINED == 0) & (count > 0)
        bad = known.bad_loss[which]
        if steps.columns.has_bad_loss or bad.any():
            finite, begin = np.isfinite(steps.columns.loss), steps.begin[low:high]
            begin_or_end = [steps.columns.is_known & one for one in (~finite, finite)]
            so_far = np.array([np.concatenate([[0], np.cumsum(one)]) for one in begin_or_end])
            begins, ends = so_far[:, begin + count] > so_far[:, begin]
            usual &= ~np.where(bad, ends, begins)
        return which, len(usual) if usual.all() else int(usual.argmin())

    @staticmethod
    def _layouts(generation: Integers, known: KnownSessions, which: Integers) -> Integers:
        """Number of the layout of each message; -1: not reported."""
        numbers = {*(generation if (generation != generation[:1]).any() else generation[:1]).tolist()}
        if len(numbers) == 1:
            return known.layouts(numbers.pop())[which]
        found = np.full(len(which), -1)
        for number in numbers:
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
        known: KnownSessions,
        on_failure: Callable[[], None],
    ) -> list[Integers]:
        """Take the messages that are no STEPS, and between them the complete steps, in order.

        Returns the readings of clocks in the heartbeats, as `_read_clocks` takes them."""
        state, t_ns = self._state, run.heads[0]
        ends = [(int(run.places[low + at]), step) for at, step in reversed(completed)]
        beats: list[tuple[int, int, int, int, int, int]] = []
        clocks: list[Offsets] = []
        others, columns, of_hosts = self._divided(run, begin, stop, known)
        waiting = [readings.places.tolist() for readings in of_hosts]
        taken = begin

        def take_hosts(before: int) -> None:
            nonlocal taken
            for readings, places in zip(of_hosts, waiting, strict=True):
                if bisect_left(places, taken) < bisect_left(places, before):
                    clocks.extend(self._take_of_hosts(run, readings.within(taken, before)))
            taken = before

        def complete(before: int) -> None:
            while ends and ends[-1][0] < before:
                at, step = ends.pop()
                take_hosts(at)
                try:
                    self._on_complete(step, int(t_ns[at]))
                except FEED_FAILURES:
                    on_failure()
            take_hosts(before)

        said: list[tuple[int, int]] = []
        for place, received in others:
            if ends or of_hosts:
                complete(place)
            message = received.message
            if type(message) in SAID:
                try:
                    if (rank := state.take_said(received)) is not None:
                        said.append((rank, received.t_ns))
                except FEED_FAILURES:
                    on_failure()
                continue
            if type(message) is not Progress:
                if type(message) is Clock:
                    clocks.append(([place], [message.host], np.array([_OFFSET(message)], np.int64).T))
                elif type(message) in OF_A_RANK:
                    self.write()
                    known.clocks = known.seen_ns = None  # some are signs of the rank itself
                try:
                    self._take(received)
                except FEED_FAILURES:
                    on_failure()
                state.taken_alone()
                continue
            self.write()
            known.beats = None
            session = state.sessions.get(received.session)
            if session is None or session.rank >= state.world:
                continue
            one = state.ranks[session.rank]
            if one.session == received.session:
                delay_ns = self.beat(one, message, received.t_ns)
                state.taken_alone()
                of_host = NO_DELAY if delay_ns is None else delay_ns
                beats.append((session.rank, place, received.t_ns, message.t_ns, message.step, of_host))
        complete(stop)
        if said:
            known.hear(state, *np.array(said, np.int64).T)
        return [np.array(beats, np.int64).reshape(-1, 6).T, *self._take_columns(run, columns, clocks, known)]

    def _divided(
        self, run: MessageRun, begin: int, stop: int, known: KnownSessions
    ) -> tuple[Sequence[tuple[int, Received]], list[tuple[Readings, Integers]], list[Readings]]:
        """The messages that are taken one by one; readings with the session of each, of which only the newest
        one of each rank counts; and those of hosts."""
        others = run.others_within(begin, stop)
        columns: list[tuple[Readings, Integers]] = []
        of_hosts: list[Readings] = []
        for readings in run.readings:
            part = readings.within(begin, stop)
            if not len(part.places):
                continue
            which, found = known.find(*run.heads[1:3, part.places])
            if part.kind in OF_AGENTS and not found.any():
                of_hosts.append(part)
                continue
            newest = part.kind not in OF_AGENTS and found.all()
            if newest and self._newest_counts(part, which, known):
                columns.append((part, which))
                continue
            heads = run.heads[:, part.places].T.tolist()
            received = [
                Received._make((*head, one)) for head, one in zip(heads, part.messages(), strict=True)
            ]
            more = zip(part.places.tolist(), received, strict=True)
            others = sorted([*others, *more], key=itemgetter(0))
        return others, columns, of_hosts

    def _take_of_hosts(self, run: MessageRun, readings: Readings) -> Iterable[Offsets]:
        """Take readings of hosts; returns what the CLOCKs among them say."""
        places = readings.places
        heads = run.heads[:, places]
        self._state.hosts.take_readings(readings, heads[2].tolist(), heads[0].tolist())
        if readings.kind is not Clock:
            return ()
        hosts = readings.values[_HOST].tolist()
        clocks = np.stack([*(readings.values[column] for column in _CLOCK), heads[0]])
        self._state.clocks.take_columns(hosts, clocks)
        return ((places.tolist(), hosts, clocks[[0, 1, 3]]),)

    def _newest_counts(self, readings: Readings, which: Integers, known: KnownSessions) -> bool:
        """Whether of these readings of known sessions only the newest of each has an effect."""
        if int(known.rank.max()) >= self._state.world:
            return False
        if readings.kind is Usage:
            throttled = readings.values[_THROTTLED]
            some = throttled[:1] if is_constant(throttled) else throttled
            return not any(one is not None and one >= USED_UP_PCT for one in some.tolist())
        if readings.kind is Progress:
            known.beats = known.beats or Beats(self._state, known)
            unusual = (readings.values[_PHASE] == Phase.EVALUATE) | known.beats.declared[which]
            return not (unusual & known.current[which]).any()
        return True

    def _take_columns(
        self,
        run: MessageRun,
        columns: Sequence[tuple[Readings, Integers]],
        clocks: Iterable[Offsets],
        known: KnownSessions,
    ) -> list[Integers]:
        """Take readings and the CLOCKs among them. Returns the readings of clocks in the heartbeats."""
        offsets = known.beats.take(clocks) if known.beats is not None else None
        found = []
        for all_readings, which in columns:
            current, readings = known.current[which], all_readings
            if not current.all():
                readings, which = all_readings.at(np.flatnonzero(current)), which[current]
            places = readings.places
            if not len(places):
                continue
            t_ns = run.heads[0, places]
            known.take_newest(readings, which, t_ns)
            if readings.kind is Progress and known.beats is not None and offsets is not None:
                if known.beats.take_intervals(which, readings.values[_DETAIL_EVERY]):
                    self.write()
                    self._state.sampling_changed()
                own_ns = readings.values[_OWN_NS]
                delays = known.beats.delays(which, places, own_ns, offsets)
                step = readings.values[_STEP]
                found.append(np.stack([known.rank[which], places, t_ns, own_ns, step, delays]))
            elif readings.kind is Memory:  # a sign of the rank itself
                known.hear(self._state, known.rank[which], t_ns)
        return found

    def beat(self, one: RankState, message: Progress, t_ns: int) -> int | None:
        """Take a heartbeat of a rank without its clock.

        Returns the delay that the clock of a remote host gives; None where it is not known."""
        state = self._state
        before = one.progress
        if message.detail_every != (before.detail_every if before else 0):
            state.sampling_changed()
        one.readings[Progress] = message
        if one.declared or message.phase == Phase.EVALUATE:
            state.excused_ns = t_ns
        if not state.hosts.is_remote(one.host):
            return None
        here_ns = state.clocks.to_collector(one.host, message.t_ns)
        return None if here_ns is None else here_ns - message.t_ns
