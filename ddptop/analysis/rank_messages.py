"""Takes messages into the state of the ranks, many at once: steps, heartbeats and readings in columns.

What depends on the order among other messages is taken in that order: complete steps, what hosts report, and
the few STEPS with which a rank returns, joins or gets a bad loss. Numbers that follow each other in one rank
(its clock, its step) are taken in their order for each rank.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.events import count_lost, note_out_of_batches
from ddptop.analysis.figures import USED_UP_PCT
from ddptop.analysis.health.bad_loss import check_loss
from ddptop.analysis.past_activities import is_evaluating
from ddptop.analysis.rank_table import NO_DELAY, UNKNOWN
from ddptop.analysis.ranks import ABSENT
from ddptop.analysis.steps.clocks import CLOCK_FIELDS
from ddptop.analysis.steps.pairing import stable_order
from ddptop.protocol.limits import MAX_STEP, NS
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import AGENT_READINGS, RANK_READINGS
from ddptop.protocol.messages import TRAITS, Activity, Clock, Flag, Progress
from ddptop.protocol.step_columns import BEGIN, FLAGS, MICRO_STEPS, WALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.complete_steps import CompleteSteps
    from ddptop.frames.columns import Mask
    from ddptop.protocol.message_run import MessageRun, Readings, StepMessages
    from ddptop.protocol.messages import Received

    Integers = NDArray[np.int64]

FEED_FAILURES = (ArithmeticError, LookupError, TypeError, ValueError)
"""What a message that passed every check could still set off in the arithmetic: it costs that message."""

_JOINED = int(Flag.JOINED)
_NO_OVERFLOW = 2.0**62
_NO_READINGS: Integers = np.empty((6, 0), np.int64)
"""None of the ranks' clocks."""


class _Senders(NamedTuple):
    """The senders of n messages; (n,) each."""

    rows: Integers
    """Rows of their sessions in `RunState.sessions.table`; -1: not known."""
    ranks: Integers
    """Ranks of their sessions; -1: not known, or the group does not have it any more."""
    current: Mask
    """Whether the session is the rank's present process."""

    def part(self, messages: slice | Mask | Integers) -> _Senders:
        """Some of them."""
        return _Senders._make(column[messages] for column in self)


class _StepBatch(NamedTuple):
    """n STEPS messages of known sessions, (n,) each."""

    messages: StepMessages
    places: Integers
    t_ns: Integers
    senders: _Senders
    expected: Integers
    """The next step of each one's session."""
    begun: Mask
    """Whether the session has sent steps before."""

    def part(self, messages: slice | Mask) -> _StepBatch:
        """Some of them."""
        columns = self.places[messages], self.t_ns[messages], self.senders.part(messages)
        return _StepBatch(
            self.messages.part(messages), *columns, self.expected[messages], self.begun[messages]
        )


class RankMessages:
    """Takes parts of a run of messages."""

    def __init__(
        self,
        state: RunState,
        take: Callable[[Received], None],
        on_complete: Callable[[CompleteSteps, Integers], None],
    ) -> None:
        """`take`: takes a message that no run has as columns; `on_complete`: takes n steps and when they were
        complete, (n,)."""
        self._state = state
        self._take = take
        self._on_complete = on_complete

    def take(
        self, run: MessageRun, begin: int, stop: int, stop_step: int, on_failure: Callable[[], None]
    ) -> int:
        """Take messages from place `begin` on, to before `stop` at most, or up to the one that makes
        `stop_step` or a later step complete.

        Returns the place after the last one taken. `on_failure` is called while one of FEED_FAILURES is
        handled, which costs one message.
        """
        place = run.next_unusual(begin, stop)
        if place == begin:  # it may change who is a rank's present process
            self._guard(on_failure, self._take, run.received(begin))
            return begin + 1
        stop = place
        low, high = run.steps_within(begin, stop)
        completed: list[tuple[Integers, CompleteSteps]] = []
        clocks = [_NO_READINGS]
        if low < high:
            try:
                batch = self._step_batch(run, low, high)
                special = self._find_special(batch)
            except FEED_FAILURES:
                on_failure()
                if stop == begin + 1:
                    return stop
                return self.take(run, begin, begin + 1, stop_step, on_failure)  # it costs only this one
            if special.any():
                number = int(special.argmax())
                if batch.places[number] == begin:
                    self._guard(on_failure, self._take_special, batch.part(slice(number, number + 1)))
                    return begin + 1
                stop, batch = int(batch.places[number]), batch.part(slice(0, number))
            batch, completed = self._take_steps(batch, stop_step)
            self._note_finite_losses(batch)
            if completed and completed[-1][1].numbers[-1] >= stop_step:
                stop = int(batch.places[-1]) + 1
            clocks.append(self._clocks_of_steps(batch))
        clocks += self._take_others(run, begin, stop, completed, on_failure)
        self._state.table.read_clocks(np.concatenate(clocks, axis=1), self._state.interruptions)
        return stop

    @staticmethod
    def _guard(on_failure: Callable[[], None], call: Callable[..., None], *arguments: object) -> None:
        try:
            call(*arguments)
        except FEED_FAILURES:
            on_failure()

    # -- STEPS --------------------------------------------------------------------------------------

    def _step_batch(self, run: MessageRun, low: int, high: int) -> _StepBatch:
        """The STEPS messages of these numbers, without those of unknown sessions."""
        assert run.steps is not None
        messages, places = run.steps.part(slice(low, high)), run.places[low:high]
        table = self._state.sessions.table
        senders = self._find_senders(run, places)
        is_known = (senders.ranks >= 0) & (messages.counts > 0)
        if not is_known.all():
            messages, places, senders = messages.part(is_known), places[is_known], senders.part(is_known)
        expected, begun = table.next_step[senders.rows], table.begun[senders.rows] > 0
        order = stable_order(senders.rows)
        in_order = senders.rows[order]
        again = np.flatnonzero(in_order[1:] == in_order[:-1])  # another one of the same session follows
        if len(again):
            ends = (messages.first_step + messages.counts)[order[again]]
            expected[order[again + 1]] = np.maximum(expected[order[again + 1]], ends)
            begun[order[again + 1]] = True
        return _StepBatch(messages, places, run.heads[0, places], senders, expected, begun)

    def _find_special(self, batch: _StepBatch) -> Mask:
        """(n,) whether each message is to be taken alone, row by row.

        It is if it changes which ranks are present, if a bad loss begins or ends in it, or if it comes after
        a later message of the same session."""
        messages, (rows, ranks, current) = batch.messages, batch.senders
        if not len(ranks):
            return np.zeros(0, bool)
        table, columns = self._state.table, messages.columns
        joined = columns.integers[FLAGS, messages.begin + messages.counts - 1] & _JOINED != 0
        special: Mask = joined != (table.joined[ranks] > 0)
        special |= self._state.presence.said_bye[ranks]  # it had left its group, and trains in another now
        bad = table.bad_loss_step[ranks] != UNKNOWN
        if columns.has_bad_loss or bad.any():
            finite = np.isfinite(columns.loss)
            ends_or_begins = [columns.is_known & loss for loss in (finite, ~finite)]
            n_before = np.array([np.concatenate([[0], np.cumsum(loss)]) for loss in ends_or_begins])
            ends, begins = n_before[:, messages.begin + messages.counts] > n_before[:, messages.begin]
            # A loss may say what only the weights had told.
            for place in np.flatnonzero(bad & begins).tolist():
                ends[place] |= self._state.ranks[int(ranks[place])].bad_by_weights
            special |= np.where(bad, ends, begins)
        special &= current
        if len(rows) == 1:
            return special
        order = stable_order(rows)
        ends_at = (messages.first_step + messages.counts)[order]
        special[order[1:][(np.diff(rows[order]) == 0) & (np.diff(ends_at) < 0)]] = True
        return special

    def _take_special(self, batch: _StepBatch) -> None:
        """One message, row by row."""
        state, t_ns = self._state, int(batch.t_ns[0])
        rank_state, messages = state.ranks[int(batch.senders.ranks[0])], batch.messages
        columns, begin, count = messages.columns, int(messages.begin[0]), int(messages.counts[0])
        if batch.senders.current[0]:
            joined = int(columns.integers[FLAGS, begin + count - 1] & _JOINED != 0)
            if rank_state.bye is not None or joined != rank_state.joined:
                rank_state.bye = rank_state.ended_ns = None
                rank_state.joined = joined
                state.presence.note_change()
            if joined:
                flags = columns.integers[FLAGS, begin : begin + count] & _JOINED
                note_out_of_batches(state, rank_state.row, int(messages.first_step[0] + flags.argmax()), t_ns)
        for row in range(count):
            number = int(messages.first_step[0]) + row
            single = messages._replace(
                first_step=np.array([number]), begin=np.array([begin + row]), counts=np.array([1])
            )
            next_step = state.sessions.table.next_step[batch.senders.rows]
            begun = state.sessions.table.begun[batch.senders.rows] > 0
            part = batch._replace(messages=single, expected=next_step, begun=begun)
            _, completed = self._take_steps(part, MAX_STEP)
            state.table.read_clocks(self._clocks_of_steps(part), state.interruptions)
            for _, steps in completed:
                self._on_complete(steps, np.full(steps.n_steps, t_ns))
            is_new = batch.senders.current[0] and number >= next_step[0]
            if is_new and columns.is_known_at(begin + row):
                check_loss(state, float(columns.loss[begin + row]), rank_state.row, number, t_ns)

    def _take_steps(
        self, batch: _StepBatch, stop_step: int
    ) -> tuple[_StepBatch, list[tuple[Integers, CompleteSteps]]]:
        """Take messages up to the one that makes `stop_step` or a later step complete.

        Returns those that were taken; and the steps that they made complete, with (n,) the places of the
        messages that did."""
        state, sessions = self._state, self._state.sessions.table
        messages = batch.messages
        # Rows that have come before, as after a restart of the collector, are not taken again.
        n_old = np.minimum(np.maximum(batch.expected - messages.first_step, 0), messages.counts)
        fresh = messages
        if n_old.any():
            fresh = messages._replace(
                first_step=messages.first_step + n_old,
                begin=messages.begin + n_old,
                counts=messages.counts - n_old,
            )
        rows, ranks, current = batch.senders
        layouts = self._layout_numbers(messages.generation, rows)
        paired = np.flatnonzero(current)
        if len(paired) < len(current):
            fresh = fresh.part(paired)
        n_taken, completed = state.pairing.add(fresh, ranks[paired], layouts[paired], stop_step)
        completed_at = [(batch.places[paired[numbers]], steps) for numbers, steps in completed]
        if completed and completed[-1][1].numbers[-1] >= stop_step:
            taken = slice(0, int(paired[n_taken - 1]) + 1)
            batch, n_old = batch.part(taken), n_old[taken]
        messages, (rows, ranks, _) = batch.messages, batch.senders
        missing = messages.first_step - batch.expected
        if (missing > 0).any():
            before_tail = (missing > 0) & ~batch.begun if state.tail else np.zeros(len(ranks), bool)
            np.add.at(state.table.records, ranks[before_tail], missing[before_tail])
            lost = (missing > 0) & ~before_tail
            gaps = ranks[lost], batch.expected[lost], messages.first_step[lost], batch.t_ns[lost]
            count_lost(state, *gaps)
        np.add.at(state.table.records, ranks, messages.counts - n_old)
        np.maximum.at(sessions.next_step, rows, messages.first_step + messages.counts)
        sessions.begun[rows] = 1
        return batch, completed_at

    def _note_finite_losses(self, batch: _StepBatch) -> None:
        """Note the last step with a known loss of ranks whose losses are finite: a message in which bad ones
        begin or end is taken alone."""
        messages, table = batch.messages, self._state.table
        is_finite = batch.senders.current.copy()
        is_finite[is_finite] = table.bad_loss_step[batch.senders.ranks[is_finite]] == UNKNOWN
        last_rows = messages.columns.last_known[messages.begin + messages.counts - 1]
        is_finite &= last_rows >= messages.begin
        steps = messages.first_step + last_rows - messages.begin
        np.maximum.at(table.finite_loss_step, batch.senders.ranks[is_finite], steps[is_finite])

    def _layout_numbers(self, generation: Integers, rows: Integers) -> Integers:
        """(n,) number of the layout of each message's generation; -1: not reported."""
        table = self._state.sessions.table
        is_newest = generation == table.generation[rows]
        layouts = np.where(is_newest, table.layout[rows], UNKNOWN)
        for number in np.flatnonzero(~is_newest).tolist():
            session = self._state.sessions.by_number[int(table.number[rows[number]])]
            layouts[number] = session.layouts.get(int(generation[number]), UNKNOWN)
        return layouts

    def _clocks_of_steps(self, batch: _StepBatch) -> Integers:
        """What the last row of each message says of its rank's clock, as `RankTable.read_clocks` takes it."""
        current = batch.senders.current
        batch = batch if current.all() else batch.part(current)
        table, messages, ranks = self._state.table, batch.messages, batch.senders.ranks
        columns, last = messages.columns, messages.begin + messages.counts - 1
        begin_us, wall_us = columns.integers[[[BEGIN], [WALL]], last].astype(np.int64)
        ended_ns = messages.base_ns + 1000 * (begin_us + wall_us)
        np.maximum.at(table.heard_ns, ranks, batch.t_ns)
        micro_steps = columns.integers[MICRO_STEPS, last]
        own_inputs = (micro_steps > 0) & (columns.integers[FLAGS, last] & _JOINED == 0)
        table.micro_steps[ranks[own_inputs]] = micro_steps[own_inputs]
        next_step = messages.first_step + messages.counts
        return _readings_of_clocks(ranks, batch.places, batch.t_ns, ended_ns, next_step, NO_DELAY)

    # -- readings, and what is taken in order -------------------------------------------------------

    def _find_senders(self, run: MessageRun, places: Integers) -> _Senders:
        """Who sent the messages at these places."""
        state, sessions = self._state, run.heads[2, places]
        rows = state.sessions.rows_of(sessions.tolist())
        if not state.world or not state.sessions.table.size:
            return _Senders(rows, np.full(len(rows), UNKNOWN), np.zeros(len(rows), bool))
        ranks = np.where(rows >= 0, state.sessions.table.rank[rows], UNKNOWN)
        ranks[ranks >= state.world] = UNKNOWN
        return _Senders(rows, ranks, (ranks >= 0) & (state.table.session[ranks] == sessions))

    def _take_others(
        self,
        run: MessageRun,
        begin: int,
        stop: int,
        completed: Sequence[tuple[Integers, CompleteSteps]],
        on_failure: Callable[[], None],
    ) -> list[Integers]:
        """Take the readings and all messages that are in no columns, and among them the complete steps, which
        have the places of their last messages.

        Returns readings of the ranks' clocks, as `RankTable.read_clocks` takes them."""
        t_ns = run.heads[0]
        readings = [
            part for all_readings in run.readings if len((part := all_readings.within(begin, stop)).places)
        ]
        of_ranks = [
            (part, self._find_senders(run, part.places)) for part in readings if part.kind in RANK_READINGS
        ]
        of_hosts = [part for part in readings if part.kind in AGENT_READINGS]
        beats = any(part.kind is Progress for part, _ in of_ranks)
        remote = beats and any(map(self._state.hosts.is_remote, self._state.presence.hellos.of_hosts))
        offsets = BatchOffsets(self._state) if remote else None
        in_order: list[tuple[int, Callable[[], None]]] = [
            (place, partial(self._take_other, place, received, offsets))
            for place, received in run.others_within(begin, stop)
        ]
        for part, senders in of_ranks:
            if part.kind is Usage:
                in_order += self._notes_of_throttling(run, part, senders)
        between = [place for place, _ in in_order]
        between += [place for part in of_hosts for place in part.places.tolist()]
        for places, steps in completed:
            edges = sorted({0, steps.n_steps, *np.searchsorted(places, between).tolist()})
            for first, end in pairwise(edges):
                some_places = places[first:end]
                take_steps = partial(self._on_complete, steps.part(first, end), t_ns[some_places])
                in_order.append((int(some_places[0]), take_steps))
        taken = begin
        for place, take in sorted(in_order, key=itemgetter(0)):
            self._take_host_readings(run, of_hosts, taken, place, offsets)
            taken = place
            self._guard(on_failure, take)
        self._take_host_readings(run, of_hosts, taken, stop, offsets)
        return [
            clocks
            for part, senders in of_ranks
            for clocks in self._take_readings(run, part, senders, offsets)
        ]

    def _take_other(self, place: int, received: Received, offsets: BatchOffsets | None) -> None:
        """A message that is in no columns."""
        message = received.message
        if isinstance(message, Clock) and offsets is not None:
            offsets.add([place], [message.host], np.array([_OFFSET(message)], np.int64).T)
        self._take(received)

    def _notes_of_throttling(
        self, run: MessageRun, usage: Readings, senders: _Senders
    ) -> Iterator[tuple[int, Callable[[], None]]]:
        """To note those readings of processes in which a CPU quota was used up, with the place of each."""
        state, throttled_pct = self._state, usage.field("throttled_pct")
        for number in np.flatnonzero(senders.current & (throttled_pct >= USED_UP_PCT)).tolist():
            place = int(usage.places[number])
            time_s = state.unix_s(int(run.heads[0, place])) - state.started_s
            values = int(senders.ranks[number]), float(throttled_pct[number]), time_s
            yield place, partial(state.figures.flags.note_throttled, *values)

    def _take_host_readings(
        self, run: MessageRun, of_hosts: list[Readings], begin: int, stop: int, offsets: BatchOffsets | None
    ) -> None:
        """Take readings of hosts from place `begin` to before `stop`."""
        for readings in of_hosts:
            part = readings.within(begin, stop)
            if not len(part.places):
                continue
            t_ns, _, sessions, _ = run.heads[:, part.places]
            self._state.hosts.take_readings(part, sessions.tolist(), t_ns.tolist())
            if part.kind is Clock:
                hosts = part.field("host").tolist()
                clocks = np.stack([*map(part.field, CLOCK_FIELDS), t_ns])
                self._state.clocks.take_columns(hosts, clocks)
                if offsets is not None:
                    offsets.add(part.places.tolist(), hosts, np.stack([*map(part.field, OFFSET_FIELDS)]))

    def _take_readings(
        self, run: MessageRun, readings: Readings, senders: _Senders, offsets: BatchOffsets | None
    ) -> Iterator[Integers]:
        """Take readings of ranks; gives what heartbeats say of the ranks' clocks."""
        state, table = self._state, self._state.table
        ranks, current, t_ns = senders.ranks, senders.current, run.heads[0, readings.places]
        if readings.kind is Usage:  # what the collector has read itself may have no session
            named = run.heads[1, readings.places]
            for number in np.flatnonzero((ranks < 0) & (named >= 0) & (named < state.world)).tolist():
                if state.ranks[named[number]] is not ABSENT:
                    ranks[number], current[number] = named[number], True
        if not current.all():
            readings, ranks, t_ns = readings.at(np.flatnonzero(current)), ranks[current], t_ns[current]
        if not len(ranks):
            return
        if readings.kind is Progress:
            table.note_launches(ranks, readings.field("sequence"), t_ns)
        table.newest[readings.kind].take(readings, ranks)
        if readings.kind is Usage:
            table.seen_ns[ranks] = t_ns  # of each the last one stays
        elif "rank" in TRAITS[readings.kind].senders:  # a sign of the rank itself
            np.maximum.at(table.heard_ns, ranks, t_ns)
        if readings.kind is Progress:
            evaluates = is_evaluating(readings)
            if evaluates.any():
                own_ns = readings.field("t_ns")[evaluates]
                steps = readings.field("step")[evaluates]
                state.ledger.note_evaluating(ranks[evaluates], steps, own_ns, t_ns[evaluates])
            state.ledger.note_heartbeats(ranks, readings, t_ns)
            state.past_activities.take(ranks, readings, t_ns)
            state.batch_pace.take(ranks, readings)
            excused = evaluates | self._are_saving(readings) | (table.declared[ranks] > 0)
            if excused.any():
                state.excuses.declared_ns = int(t_ns[excused][-1])
            own_ns, step = readings.field("t_ns"), readings.field("step")
            delays = NO_DELAY if offsets is None else offsets.delays(ranks, readings.places, own_ns)
            yield _readings_of_clocks(ranks, readings.places, t_ns, own_ns, step, delays)

    def _are_saving(self, beats: Readings) -> Mask:
        """(n,) whether a rank saves a checkpoint, for less than SAVE_LIMITS times the stall time."""
        saves_ns = beats.field("t_ns") - beats.field("since_ns")
        lasts_usual = saves_ns < SAVE_LIMITS * self._state.stall_s * NS
        return np.asarray((beats.field("activity") == int(Activity.SAVE)) & lasts_usual)


SAVE_LIMITS = 10
"""A save to a disk that does not answer is a stall, too: after 150 s, where 15 s without a step are one."""


def _readings_of_clocks(ranks: Integers, *columns: Integers | int) -> Integers:
    """(6, n) of ranks' clocks, as `RankTable.read_clocks` takes them."""
    readings = np.empty((6, len(ranks)), np.int64)
    for row, column in zip(readings, (ranks, *columns), strict=True):
        row[:] = column
    return readings


OFFSET_FIELDS = ("t_ns", "offset_ns", "drift_ppb")
_OFFSET = attrgetter(*OFFSET_FIELDS)


class BatchOffsets:
    """What CLOCKs say of the hosts' clocks, before a batch of messages and at each place in it."""

    def __init__(self, state: RunState) -> None:
        """Read the hosts' clocks as they are; to be made before the CLOCKs of the batch are taken."""
        hosts = [*state.presence.hellos.of_hosts]
        self._host_of = state.presence.hellos.host_at
        """(ranks,) which of the hosts each rank is on; -1: not known."""
        self._is_remote = np.array([*map(state.hosts.is_remote, hosts)], bool)
        self._compared = {host: number for number, host in enumerate(hosts) if host != state.clocks.own_host}
        is_known, newest = state.clocks.newest(hosts)
        compared = np.flatnonzero(is_known)
        fields = [newest[CLOCK_FIELDS.index(name), compared] for name in OFFSET_FIELDS]
        self._clocks = [np.stack([compared, np.full(len(compared), -1), *fields])]
        """(5, n) each: host, place, and OFFSET_FIELDS of CLOCKs."""

    def add(self, places: Sequence[int], hosts: Sequence[str], offsets: Integers) -> None:
        """CLOCKs of the batch; `offsets`: (3, n) their OFFSET_FIELDS."""
        numbers = [self._compared.get(host, -1) for host in hosts]
        clocks = np.concatenate([np.array([numbers, places], np.int64), offsets])
        self._clocks.append(clocks[:, clocks[0] >= 0])

    def delays(self, ranks: Integers, places: Integers, own_ns: Integers) -> Integers:
        """(n,) how far the clocks of these ranks, which read `own_ns`, are behind the collector's, by what
        their hosts' clocks said before these places; NO_DELAY: not known, or it is the collector's host."""
        host = self._host_of[ranks]
        remote = (host >= 0) & self._is_remote[host] if len(self._is_remote) else host > 0
        clocks = np.concatenate(self._clocks, axis=1)
        if not remote.any() or not clocks.shape[1]:
            return np.full(len(ranks), NO_DELAY)
        clocks = clocks[:, np.lexsort((clocks[1], clocks[0]))]
        length = int(max(places.max(), clocks[1].max())) + 2
        keys = clocks[0] * length + clocks[1] + 1
        newest = np.searchsorted(keys, host * length + places + 1, side="right") - 1
        of_host, _, t_ns, offset_ns, drift_ppb = clocks[:, newest]
        passed = own_ns - t_ns
        if float(np.abs(passed).max()) * float(np.abs(drift_ppb).max()) < _NO_OVERFLOW:
            drifted = (drift_ppb * passed).astype(np.float64)
        else:
            drifted = np.array(
                [a * b for a, b in zip(drift_ppb.tolist(), passed.tolist(), strict=True)], float
            )
        delay = offset_ns + np.rint(drifted / 1e9).astype(np.int64)
        return np.where(remote & (newest >= 0) & (of_host == host), delay, NO_DELAY)
