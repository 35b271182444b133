"""Pairs the rows of single ranks to complete steps: a step is complete when all ranks have reported it.

The buckets in these rows are compared later, in `bucket_times.py`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps.complete_steps import CompleteSteps, PairedRows, Piece
from ddptop.protocol.limits import MAX_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.frames.columns import Mask
    from ddptop.protocol.message_run import StepMessages

    Integers = NDArray[np.int64]

MAX_HELD = 16_384
"""Most rows that are kept until the slower ranks report them: some 20 MB. A rank's sender keeps up to 1 MiB,
or 10,000 rows, for a collector that does not answer. Rows of more than ten buckets count several times."""

CELLS_PER_ROW = 32

ALWAYS_KEPT = 8
"""Steps that are always kept, for any number of ranks: all ranks report a step within a heartbeat."""


def begins_of_runs(values: Integers | Mask) -> Integers:
    """(k,) where each run of equal values begins, of (n,) values, n > 0.

    `numpy.diff` takes five times as long for the few values of a single message."""
    if len(values) == 1:
        return np.zeros(1, np.int64)
    return np.concatenate([[0], np.flatnonzero(values[1:] != values[:-1]) + 1])


def stable_order(numbers: Integers) -> Integers:
    """(n,) the order in which these numbers ascend, none below 0; equal ones stay in theirs.

    numpy sorts numbers of 16 bits by their digits, in a tenth of the time."""
    if len(numbers) < 2:  # as of a single message
        return np.arange(len(numbers))
    small = numbers.astype(np.uint16) if int(numbers.max()) < 2**16 else numbers
    return np.asarray(np.argsort(small, kind="stable"))


class _Pending:
    """Steps that some ranks have reported, all by as many; (n,) each."""

    __slots__ = ("cells_of_first", "largest_layout", "n_ranks", "numbers", "pieces", "weights")

    def __init__(
        self,
        numbers: Integers,
        pieces: list[Piece],
        n_ranks: int,
        weights: Integers,
        largest_layout: Integers,
        cells_of_first: Integers,
    ) -> None:
        self.numbers = numbers
        self.pieces = pieces
        self.n_ranks = n_ranks
        """How many have reported them."""
        self.weights = weights
        self.largest_layout, self.cells_of_first = largest_layout, cells_of_first
        """As in `CompleteSteps`."""

    def add(self, more: _Pending) -> None:
        """Add rows of other ranks in the same steps."""
        self.pieces += more.pieces
        self.n_ranks += more.n_ranks
        self.weights = self.weights + more.weights
        self.largest_layout = np.maximum(self.largest_layout, more.largest_layout)
        self.cells_of_first = np.maximum(self.cells_of_first, more.cells_of_first)

    def part(self, begin: int, stop: int) -> _Pending:
        """Some of the steps."""
        if stop - begin == len(self.numbers):
            return self
        some = slice(begin, stop)
        pieces = [piece.part(begin, stop) for piece in self.pieces]
        facts = self.weights[some], self.largest_layout[some], self.cells_of_first[some]
        return _Pending(self.numbers[some], pieces, self.n_ranks, *facts)


class _Rows(NamedTuple):
    """Rows of STEPS messages, (n,) each, message by message."""

    message: Integers
    """The number of the row's message, ascending."""
    place: Integers
    """Where the row is in the columns of the messages."""
    step: Integers
    weight: Integers
    """What the row counts for in `Pairing.held`."""
    n_cells: Integers

    def part(self, rows: slice | Integers) -> _Rows:
        return _Rows._make(column[rows] for column in self)


class _Spans(NamedTuple):
    """The n steps of rows that are in the order of their steps, (n,) each."""

    step: Integers
    begin: Integers
    """Where its rows begin, and end."""
    end: Integers
    last_message: Integers
    """The number of the last message that has one."""

    @classmethod
    def of(cls, rows: _Rows) -> _Spans:
        begins = begins_of_runs(rows.step)
        ends = np.concatenate([begins[1:], [len(rows.step)]])
        return cls(rows.step[begins], begins, ends, rows.message[ends - 1])


class Pairing:
    """Holds the rows of a step until every rank has reported it. A step with a lost row is dropped."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.held = 0
        """Rows waiting for the other ranks, large ones counted several times."""
        self._floor = -1
        """No row of this step or an earlier one is taken any more."""
        self._steps: dict[int, _Pending] = {}
        """By step; a rank that reports nothing takes no memory."""
        self._newest = np.full(world, -1)
        """(ranks,) the newest step that each has reported: its rows come in order."""

    def add(
        self, messages: StepMessages, ranks: Integers, layouts: Integers, stop_step: int = MAX_STEP
    ) -> tuple[int, list[tuple[Integers, CompleteSteps]]]:
        """Take n messages, up to the one that makes `stop_step` or a later step complete.

        `ranks`, `layouts`: (n,) of each. The messages of a rank are in order, and no two have the same step.
        Returns how many messages were taken, and the steps that they made complete, with (n,) the number of
        the message that did, of each; these ascend."""
        rows = self._fresh_rows(messages, ranks)
        done: list[tuple[Integers, CompleteSteps]] = []
        n_messages, begin, stop = len(ranks), 0, len(rows.step)
        while begin < stop:
            chunk = rows.part(slice(begin, self._fitting_end(rows, begin, stop)))
            chunk_end = begin + len(chunk.step)
            if not (chunk.step[1:] >= chunk.step[:-1]).all():  # of several messages
                chunk = chunk.part(stable_order(chunk.step - chunk.step.min()))
            spans = _Spans.of(chunk)
            last = self._stopping_message(spans, stop_step)
            if last is not None and last + 1 < n_messages:
                n_messages, stop = last + 1, int(np.searchsorted(rows.message, last, side="right"))
                if stop < chunk_end:  # once more, without the rows of the messages behind it
                    continue
            done += self._add_chunk(chunk, spans, messages, ranks, layouts)
            begin = chunk_end
            if self.held > MAX_HELD and len(self._steps) > ALWAYS_KEPT:
                self._forget_oldest()
        last_steps = messages.first_step[:n_messages] + messages.counts[:n_messages] - 1
        np.maximum.at(self._newest, ranks[:n_messages], last_steps)
        return n_messages, done

    def _fresh_rows(self, messages: StepMessages, ranks: Integers) -> _Rows:
        """The rows of these messages without those that their ranks have reported before."""
        counts = messages.counts
        before = counts.cumsum() - counts
        message = np.arange(len(counts)).repeat(counts)
        row = np.arange(len(message))
        place, step = row + (messages.begin - before)[message], row + (messages.first_step - before)[message]
        cells_at = messages.columns.cells_at
        n_cells = cells_at[place + 1] - cells_at[place]
        rows = _Rows(message, place, step, 1 + n_cells // CELLS_PER_ROW, n_cells)
        reported = np.maximum(self._newest[ranks], self._floor)
        if (messages.first_step > reported).all():  # usually
            return rows
        return rows.part(np.flatnonzero(step > reported[message]))

    def _fitting_end(self, rows: _Rows, begin: int, stop: int) -> int:
        """How far rows from `begin` on can be added before there may be too many to hold."""
        if len(self._steps) + stop - begin <= ALWAYS_KEPT:
            return stop
        too_many = self.held + np.cumsum(rows.weight[begin:stop]) > MAX_HELD
        return begin + int(too_many.argmax()) + 1 if too_many[-1] else stop

    def _stopping_message(self, spans: _Spans, stop_step: int) -> int | None:
        """The first message that makes `stop_step` or a later step complete; None: there is none."""
        if spans.step[-1] < stop_step:
            return None
        stopping = (
            last
            for step, begin, end, last in zip(*(column.tolist() for column in spans), strict=True)
            if step >= stop_step and self._n_reported(step) + end - begin == self._world
        )
        return min(stopping, default=None)

    def _add_chunk(
        self, rows: _Rows, spans: _Spans, messages: StepMessages, ranks: Integers, layouts: Integers
    ) -> list[tuple[Integers, CompleteSteps]]:
        """Add rows, which are in the order of their steps; returns what `add` does."""
        steps, begins, ends, last = spans
        of_rank, layout, base_ns = (column[rows.message] for column in (ranks, layouts, messages.base_ns))
        paired = PairedRows(messages.columns, of_rank, rows.place, base_ns, layout)
        largest_layout = np.maximum.reduceat(layout, begins)
        cells_of_first = np.maximum.reduceat(np.where(of_rank == 0, rows.n_cells, -1), begins)
        # Usually all ranks report most steps here. What is missing of others comes later, or came before.
        is_whole: Mask = (ends - begins == self._world) & (steps > self._floor)
        if self._steps and is_whole.any():
            is_whole &= ~np.fromiter(map(self._steps.__contains__, steps.tolist()), bool, len(steps))
        done: list[tuple[Integers, CompleteSteps]] = []
        edges = [*begins_of_runs(is_whole).tolist(), len(steps)]
        for first, stop in pairwise(edges):
            chunk = slice(first, stop)
            if is_whole[first]:
                piece = Piece(paired, int(begins[first]), int(ends[stop - 1]), stop - first)
                facts = steps[chunk], [piece], largest_layout[chunk], cells_of_first[chunk]
                done.append((last[chunk], CompleteSteps(self._world, *facts)))
                self._forget_through(int(steps[stop - 1]))
                continue
            weights = np.add.reduceat(rows.weight[: ends[stop - 1]], begins[chunk])
            n_ranks = ends[chunk] - begins[chunk]
            for low, high in pairwise([*begins_of_runs(n_ranks).tolist(), stop - first]):
                some = slice(first + low, first + high)
                pending = _Pending(
                    steps[some],
                    [Piece(paired, int(begins[some][0]), int(ends[some][-1]), high - low)],
                    int(n_ranks[low]),
                    weights[low:high],
                    largest_layout[some],
                    cells_of_first[some],
                )
                done += self._add_pending(pending, last[some])
        return done

    def _add_pending(self, added: _Pending, last: Integers) -> list[tuple[Integers, CompleteSteps]]:
        """Add rows of steps, of which others may have come before; returns what `add` does.

        `last`: (n,) the number of the last message that has a row of each."""
        done: list[tuple[Integers, CompleteSteps]] = []
        numbers, stop = added.numbers.tolist(), len(last)
        # Steps up to the floor were passed over, or forgotten just now.
        begin = int(np.searchsorted(added.numbers, self._floor, side="right"))
        while begin < stop:
            before, end = self._steps.get(numbers[begin]), begin + 1
            while end < stop and self._steps.get(numbers[end]) is before:
                end += 1
            if before is None:
                pending = added.part(begin, end)
                self._steps.update(dict.fromkeys(numbers[begin:end], pending))
                self.held += int(pending.weights.sum())
            else:
                pending = self._cut_out(before, added.numbers[begin:end])
                end = begin + len(pending.numbers)
                more = added.part(begin, end)
                pending.add(more)
                self.held += int(more.weights.sum())
            if pending.n_ranks == self._world:
                self._forget_through(numbers[end - 1])
                facts = pending.largest_layout, pending.cells_of_first
                complete = CompleteSteps(self._world, pending.numbers, pending.pieces, *facts)
                done.append((last[begin:end], complete))
            begin = end
        return done

    def _cut_out(self, pending: _Pending, numbers: Integers) -> _Pending:
        """Divide pending steps so that the first of these, or all, are by themselves; returns them.

        Ranks send their steps in messages of different lengths."""
        if len(numbers) == len(pending.numbers):  # all of these are among them
            return pending
        first = int(np.searchsorted(pending.numbers, numbers[0]))
        stop = first + len(numbers)
        if not np.array_equal(pending.numbers[first:stop], numbers):
            stop = first + 1
        for begin, end in ((0, first), (stop, len(pending.numbers))):
            if begin < end:
                part = pending.part(begin, end)
                self._steps.update(dict.fromkeys(part.numbers.tolist(), part))
        picked = pending.part(first, stop)
        self._steps.update(dict.fromkeys(picked.numbers.tolist(), picked))
        return picked

    def _n_reported(self, step: int) -> int:
        """How many ranks have reported a step that is not complete."""
        pending = self._steps.get(step)
        return 0 if pending is None else pending.n_ranks

    def _forget_through(self, last: int) -> None:
        """Drop the steps up to `last`: every rank is past it, so rows that they still lack are missing."""
        self._floor = last
        old = {step: pending for step, pending in self._steps.items() if step <= last}
        for pending in {id(pending): pending for pending in old.values()}.values():
            n_old = int(np.searchsorted(pending.numbers, last, side="right"))
            self.held -= int(pending.weights[:n_old].sum())
            if n_old < len(pending.numbers):
                newer = pending.part(n_old, len(pending.numbers))
                self._steps.update(dict.fromkeys(newer.numbers.tolist(), newer))
        for step in old:
            del self._steps[step]

    def _forget_oldest(self) -> None:
        """Drop the oldest eighth of the steps: a rank that never reports must not fill the memory."""
        steps = sorted(self._steps)
        self._forget_through(steps[len(steps) // 8])
