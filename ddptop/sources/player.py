"""A position in a recording, and the reducer with the state of the run there.

Ranks report steps in batches; at a step in the middle of a batch the rest of it is held back.
"""

from __future__ import annotations

import gc
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ledger.recorded import STEPS_APART, resume_ledger
from ddptop.analysis.rank_messages import FEED_FAILURES
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.since_start import recall_since_start
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Hello, Layout, Membership, Received, Steps
from ddptop.protocol.vocabulary import NOT_ENDED

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.protocol.message_run import MessageRun
    from ddptop.protocol.since_start import SinceStart
    from ddptop.recording.reader import Recording


class HeldSteps:
    """STEPS messages, or their ends, that belong to later steps than the current one."""

    def __init__(self) -> None:
        self._waiting: deque[Received] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def n_sessions(self) -> int:
        """How many processes have rows held back."""
        return len({received.session for received in self._waiting})

    @property
    def common_step(self) -> int | None:
        """The lowest step that all processes with rows held back could have in them."""
        first: dict[int, int] = {}
        for received in self._waiting:
            if isinstance(received.message, Steps):
                first.setdefault(received.session, received.message.first_step)
        return max(first.values(), default=None)

    def pass_up_to(self, step: int | None, received: Received) -> Received | None:
        """What of this message may be seen at `step` (None: everything); the rest is held back."""
        message = received.message
        if step is None or not isinstance(message, Steps):
            return received
        # May be negative where the whole message is later.
        seen = max(0, step + 1 - message.first_step)
        if seen >= len(message.rows):
            return received
        remainder = replace(message, first_step=message.first_step + seen, rows=message.rows[seen:])
        self._waiting.append(received._replace(message=remainder))
        return received._replace(message=replace(message, rows=message.rows[:seen])) if seen else None

    def release_until(self, step: int | None) -> Iterator[Received]:
        """What may be seen at `step` now, in order."""
        # What stays held back is put into the new queue by `pass_up_to`, in the same order.
        waiting, self._waiting = self._waiting, deque()
        for received in waiting:
            passed = self.pass_up_to(step, received)
            if passed is not None:
                yield passed


WHOLE_ROWS = 10_000
"""A recording of at most this many step rows is read from its start for every move: half a second of work. Of
a longer one only the last steps are read, and what follows from the steps before is recalled."""
TAIL_ROWS = 1_600
"""Step rows before a moment that are read of a larger recording: some hundredths of a second of work."""
LEAST_TAIL_STEPS, LEAST_TAIL_ROWS = OWN_STEPS + 64, 2**17
"""The tail has all steps whose own times are kept and some more, but no more steps than make LEAST_TAIL_ROWS,
a second of work. With more than 1,000 ranks, figures right after a jump are therefore over fewer steps than
live, and say so (`GroupFigures.window_steps`)."""
FEWEST_TAIL_STEPS = 20
"""Fewest steps of the tail, however many ranks there are."""
DETAILED_STEPS = 40
"""If few steps have bucket detail, the tail reaches back over this many of those, within MOST_TAIL_ROWS:
waits and straggler are judged by the last 32."""
MOST_TAIL_ROWS = 20_000

RECALLED_NS = 2_400 * NS
"""A piece of the recorded history that ends at most this long before a moment may hold a part of the half
hour before it."""
RECALLED_ROWS = 20_000
"""The tail begins where the last piece of the history ends, so that nothing between is unknown, unless that
is more than this many rows back."""

READ_ON_NS = 20 * NS
"""A moment less than this ahead is reached by reading on, not by starting over."""
FEW_STEPS = 100
"""Moves of at most this many steps ahead are always made by reading on."""

MESSAGES_PER_CLOCK = 8
"""Messages between two readings of the clock: a few milliseconds."""


class Player:
    """A position in a recording, and the group there. Not thread-safe."""

    def __init__(
        self,
        recording: Recording,
        *,
        whole_rows: int = WHOLE_ROWS,
        tail_rows: int = TAIL_ROWS,
        next_ns: int = 0,
    ) -> None:
        """Begin at the first message. See WHOLE_ROWS and TAIL_ROWS for the two limits.

        `next_ns`: the caller goes there next; where that would start over, it begins there.
        """
        self.recording = recording
        self.position_ns = recording.start_ns
        self.refused = 0
        """Messages that the reducer could not take."""
        self._whole_rows = whole_rows
        world = recording.world_size or 1
        # The limits are in rows, and a step has one row per rank.
        least = min(LEAST_TAIL_STEPS, max(FEWEST_TAIL_STEPS, LEAST_TAIL_ROWS // world))
        self._tail_steps = max(least, tail_rows // world)
        self._most_tail_steps = max(self._tail_steps, MOST_TAIL_ROWS // world)
        starts_over = not self._is_small() and next_ns > recording.start_ns + READ_ON_NS
        self.start_over(min(next_ns, recording.end_ns) if starts_over else recording.start_ns)

    @property
    def at_end(self) -> bool:
        """Whether all that is written has been read."""
        return not self._held and self._cursor.peek_message() is None

    @property
    def step(self) -> int | None:
        """The newest complete step."""
        return self.reducer.state.complete_step

    # -- seeking -------------------------------------------------------------------

    def go_to(self, t_ns: int) -> None:
        """Go to this moment, or to the nearest one that the recording covers."""
        t_ns = max(self.recording.start_ns, min(t_ns, self.recording.end_ns))
        # Where all is read from the start, reading on gives what starting over would give.
        whole = self.from_start and self._is_small()
        if t_ns < self.position_ns or not (whole or t_ns <= self.position_ns + READ_ON_NS):
            self.start_over(t_ns)
        self.read_on(t_ns)

    def read_on(self, t_ns: int, *, until: float | None = None) -> None:
        """Go on to a moment ahead, or as far as one comes before `until` (time.monotonic)."""
        # Whatever was held back for a step is due: a moment has no such border.
        self._see_held(None)
        feed = self.reducer.feed
        # Whole runs of messages cost less, but the clock cannot be read between their messages.
        for run in self._cursor.take_runs(t_ns) if until is None else ():
            self._feed_run(run)
            self.position_ns = max(self.position_ns, int(run.heads[0].max()))
        for count, received in enumerate(self._cursor.take_until(t_ns), 1):
            if received.t_ns > self.position_ns:
                self.position_ns = received.t_ns
            try:
                feed(received)
            except FEED_FAILURES:
                self.refused += 1
            if until is not None and count % MESSAGES_PER_CLOCK == 0 and time.monotonic() > until:
                return
        self.position_ns = max(self.position_ns, min(t_ns, self.recording.end_ns))

    def go_to_step(self, step: int) -> None:
        """Go to the last moment at which no rank's steps after `step` had been read.

        A step before the first one means the beginning, the last step or a later one the end.
        """
        self._go_to_span(step, self.recording.span_of_step(step))

    def go_by(self, steps: int) -> None:
        """Go some complete steps on or back."""
        before = self.step
        if before is None:
            # Nothing is complete yet: steps are counted from the first one.
            self.go_to_step((self.recording.first_step or 0) + max(0, steps - 1))
            return
        if steps < 0:
            # Before the position: the same step may come again after a restart.
            back = self.recording.span_of_step(before + steps, before_ns=self.position_ns)
            self._go_to_span(before + steps, back)
            return
        if steps <= FEW_STEPS:
            self._read_to_step(before + steps, self.recording.end_ns)
        else:
            self.go_to_step(before + steps)
        following = self._held.common_step
        if self.step == before and following is not None:
            self._read_to_step(following, self.recording.end_ns)  # those between were lost, or thinned out

    def jump_to(self, t_ns: int) -> None:
        """Go to this moment and read no more than needed, however near it is and small the file."""
        self.start_over(max(self.recording.start_ns, min(t_ns, self.recording.end_ns)), whole=False)

    def skip_saves_reading(self, t_ns: int) -> bool:
        """Whether `jump_to` this later moment reads less than reading on to it."""
        return (
            self.recording.tail_from_ns(before_ns=t_ns + 1, steps=self._steps_before(t_ns)) > self.position_ns
        )

    # -- what is there ---------------------------------------------------------------

    def make_frame(self, *, focus: int | None = None, want: str = "") -> Frame:
        """The group at this position; a recording without an end ends as lost."""
        frame = self.reducer.frame(
            self.position_ns, focus=focus, source="replay", recording=str(self.recording.path), want=want
        )
        if self.at_end and not self.recording.growing and frame.run.state in NOT_ENDED:
            return replace(frame, run=replace(frame.run, state="lost"))
        return frame

    def frame_at_end(self) -> Frame:
        """The frame at the end, with the ledger of the whole run where it is known."""
        self.go_to(self.recording.end_ns)
        return self.make_frame()

    # -- inside ------------------------------------------------------------------------

    def start_over(self, t_ns: int, *, whole: bool = True) -> None:
        """Begin with a new reducer that has seen what is needed at `t_ns`, or the start of a small
        recording."""
        self._held = HeldSteps()
        self.from_start = (whole and self._is_small()) or t_ns <= self.recording.start_ns
        """Whether the reducer has seen everything from the start of the run."""
        self.recalls = False
        """Whether the recording has what followed from the steps before those that were read."""
        self.reducer = Reducer(tail=not self.from_start)
        self.position_ns = self.recording.start_ns
        if self.from_start:
            self._cursor = self.recording.open_cursor()
            self.read_on(t_ns)
            return
        since_start = self.recorded_since_start(t_ns)
        self.recalls = since_start is not None
        from_ns = self._resume_ledger(t_ns)
        if since_start is not None:
            from_ns = min(from_ns, since_start.at_ns)
        steps = self._steps_before(t_ns)
        for run in self.recording.tail_runs(before_ns=t_ns + 1, steps=steps, from_ns=from_ns):
            self._feed_run(run)
        if since_start is not None:
            recall_since_start(self.reducer.state, since_start)
        self._recall_best(t_ns)
        self._recall_excess(t_ns)
        # From here on the reducer sees every message, as it does live.
        self.reducer.state.tail = False
        self._cursor = self.recording.open_cursor(from_ns=t_ns + 1)
        self.position_ns = max(self.position_ns, t_ns)

    def _steps_before(self, t_ns: int) -> int:
        """How many steps before a moment have to be read to go there."""
        every = self.recording.detail_every(before_ns=t_ns + 1)
        return max(self._tail_steps, min(DETAILED_STEPS * every, self._most_tail_steps))

    def _is_small(self) -> bool:
        """Whether it is read from its start: few rows, or no more steps than the tail has."""
        world = self.recording.world_size or 1
        # Without a limit of rows (`whole_rows` 0) nothing is small.
        most = max(self._whole_rows // world, self._tail_steps if self._whole_rows else -1)
        return self.recording.count_steps() <= most

    def recorded_since_start(self, t_ns: int) -> SinceStart | None:
        """What the analysis knew when that was last recorded before `t_ns`; None: it was not recorded."""
        pieces = (piece.since_start for _, piece in reversed(self.recording.history_pieces()))
        since_start = next(
            (piece for piece in pieces if piece is not None and piece.at_ns <= t_ns),
            None,
        )
        if since_start is None:
            return None
        rows = self.recording.count_steps(since_start.at_ns, t_ns) * (self.recording.world_size or 1)
        # Further back, steps in between that are not read may have changed it.
        return since_start if rows <= max(RECALLED_ROWS, LEAST_TAIL_ROWS) else None

    def _resume_ledger(self, t_ns: int) -> int:
        """Have the ledger begin with the sums that were recorded last; where they are too far back, it is not
        known at this moment. Returns from when on messages have to be read for it."""
        # Of very many ranks, sums are further apart than so many rows.
        of_all_ranks = 2 * STEPS_APART * (self.recording.world_size or 1)
        most_rows = max(RECALLED_ROWS, LEAST_TAIL_ROWS, of_all_ranks)
        recorded = self.recording.ledgers_until(t_ns, most_rows=most_rows)
        if recorded is None or not resume_ledger(self.reducer.state.ledger, recorded.sums):
            return t_ns
        return recorded.from_ns

    def _recall_best(self, t_ns: int) -> None:
        """Take the ranks' best times from before the tail, as the writer recorded them last.

        They are not known for the time between that and the tail: a minute in recordings of earlier versions.
        """
        recorded = [(end_ns, past) for end_ns, past in self.recording.history_pieces() if end_ns <= t_ns]
        # Steps that wait for their evaluation may still change the window.
        self.reducer.state.settle()
        window = self.reducer.state.figures.detail
        if window is None:
            return
        # Only for as many ranks: after a restart with another world size they are other ranks.
        if recorded and len(recorded[-1][1].best_ms) == len(window.best_self):
            end_ns, past = recorded[-1]
            later = (r.message for r in self.recording.lasting_messages(from_ns=end_ns) if r.t_ns <= t_ns)
            # New processes or buckets since: the best times of the earlier ones do not hold for them.
            if not any(isinstance(message, (Hello, Layout, Membership)) for message in later):
                window.best_self = np.fmin(window.best_self, past.best_ms)
                return
        if not self.recalls:
            window.best_self[:] = np.nan

    def _recall_excess(self, t_ns: int) -> None:
        """Take the ranks' excess in the minutes before the tail, as recorded since the last restart."""
        state, began_ns = self.reducer.state, 0
        # After a restart the minutes before it are those of other processes.
        if state.incarnation:
            messages = ((r.t_ns, r.message) for r in self.recording.lasting_messages() if r.t_ns <= t_ns)
            hellos = (
                (received_ns, message) for received_ns, message in messages if isinstance(message, Hello)
            )
            starts = (hello_ns for hello_ns, hello in hellos if hello.incarnation == state.incarnation)
            began_ns = min(starts, default=0)
        pieces = self.recording.history_pieces()
        stop = bisect_right(pieces, t_ns, key=lambda piece: piece[0]) + 1  # the next one may begin before
        recorded = [
            past.excess
            for end_ns, past in pieces[:stop]
            if max(began_ns, t_ns - RECALLED_NS) < end_ns
            and past.excess is not None
            and past.excess[1].shape[2] == state.figures.world
        ]
        if recorded:
            times, figures = zip(*recorded, strict=True)
            state.figures.minutes.recall(np.concatenate(times), np.concatenate(figures, axis=1))

    def _go_to_span(self, step: int, span: tuple[int, int] | None) -> None:
        if span is None:
            self.go_to(self.recording.start_ns)
            return
        begin_ns, end_ns = span
        incarnation = self._incarnation_of(step, end_ns)
        position = (self.reducer.state.incarnation, -1 if self.step is None else self.step)
        # By incarnation and step: a restarted run counts its steps from 0 again.
        ahead = position < (incarnation, step) and self.position_ns <= end_ns
        if not ahead or self.step is None or begin_ns > self.position_ns + READ_ON_NS:
            self.start_over(begin_ns - 1)
        elif self.position_ns < begin_ns:
            self.read_on(begin_ns - 1)
        if self.reducer.state.incarnation < incarnation:
            self._see_held(None)
        # Up to the restart whole messages are taken: its steps are what matters.
        while self.reducer.state.incarnation < incarnation and self._cursor.peek_message() is not None:
            self._see_next(None)
        self._read_to_step(step, end_ns)

    def _incarnation_of(self, step: int, end_ns: int) -> int:
        """Elastic restarts before the processes that report this step in the block that ends at a moment.

        A step number means nothing without it: each incarnation counts from 0 again.
        """
        hellos = (r.message for r in self.recording.lasting_messages() if r.t_ns <= end_ns)
        incarnation_of = {hello.session: hello.incarnation for hello in hellos if isinstance(hello, Hello)}
        block = self.recording.read_block(self.recording.block_at(end_ns)) or []
        steps = [(incarnation_of.get(r.session, 0), r.message) for r in block if isinstance(r.message, Steps)]
        # Whoever holds the step counts; else who has come nearest to it.
        holding = [number for number, m in steps if 0 <= step - m.first_step < len(m.rows)]
        return max(holding or [number for number, m in steps if m.first_step <= step], default=0)

    def _read_to_step(self, step: int, end_ns: int) -> None:
        self._see_held(step)
        incarnation = self.reducer.state.incarnation
        while (received := self._cursor.peek_message()) is not None:
            # It restarted first: stop at the first step after that.
            if self.reducer.state.incarnation > incarnation:
                step, incarnation = 0, self.reducer.state.incarnation
            complete = self.step is not None and self.step >= step
            # A step that some rank lost is never complete: enough when every rank is past it.
            passed = self._held.n_sessions >= max(1, len(self.reducer.state.ranks))
            if passed or (complete and (self._held or _goes_past(received, step))):
                return
            # Nobody can complete the step any more: the block of the slowest rank has passed.
            if received.t_ns > end_ns and not complete and _goes_past(received, step):
                return
            self._see_next(step)
        if not self._held:
            self.position_ns = self.recording.end_ns

    def _see_next(self, step: int | None) -> None:
        received = self._cursor.take_message()
        assert received is not None
        self.position_ns = max(self.position_ns, received.t_ns)
        passed = self._held.pass_up_to(step, received)
        if passed is not None:
            self._feed_reducer(passed)

    def _see_held(self, step: int | None) -> None:
        for received in self._held.release_until(step):
            self._feed_reducer(received)

    def _feed_run(self, run: MessageRun) -> None:
        self.reducer.feed_run(run, 0, self._count_refused)

    def _count_refused(self) -> None:
        self.refused += 1

    def _feed_reducer(self, received: Received) -> None:
        try:
            self.reducer.feed(received)
        except FEED_FAILURES:
            self.refused += 1


@contextmanager
def gc_paused() -> Iterator[None]:
    """Run the block without garbage collections, for reading a whole recording. Messages hold no cycles, and
    looking for some would cost a fifth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _goes_past(received: Received, step: int) -> bool:
    message = received.message
    return isinstance(message, Steps) and message.first_step + len(message.rows) - 1 > step
