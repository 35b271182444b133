"""Pairs the rows of single ranks to complete steps: a step is complete when all ranks have reported it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.steps.complete_steps import Batch, CompleteStep, OpenPiece, Piece
from ddptop.analysis.steps.groups import Scope
from ddptop.protocol.limits import MAX_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.protocol.message_run import StepMessages
    from ddptop.protocol.messages import StepRow
    from ddptop.protocol.step_columns import StepColumns

    Integers = NDArray[np.int64]

__all__ = ["Batch", "CompleteStep", "Pairing", "Scope"]

MAX_HELD = 16_384
"""Most rows that are kept until the slower ranks report them: some 20 MB. A rank's sender keeps up to 1 MiB,
or 10,000 rows, for a collector that does not answer. Rows of more than ten buckets count several times."""

CELLS_PER_ROW = 32

ALWAYS_KEPT = 8
"""Steps that are always kept, for any number of ranks: all ranks report a step within a heartbeat."""

ALONE = 64
"""Messages of a run that are added one by one where there may be too much to hold."""


def stable_order(numbers: Integers) -> Integers:
    """(n,) the order in which these numbers ascend, none below 0; equal ones stay in theirs.

    numpy sorts numbers of 16 bits by their digits, in a tenth of the time."""
    small = numbers.astype(np.uint16) if len(numbers) and int(numbers.max()) < 2**16 else numbers
    return np.asarray(np.argsort(small, kind="stable"))


class _Pending:
    """A step that some ranks have reported."""

    __slots__ = ("pieces", "ranks", "weight")

    def __init__(self) -> None:
        self.pieces: list[Piece | OpenPiece] = []
        self.ranks = 0
        """How many have reported it."""
        self.weight = 0

    def piece(self, columns: StepColumns | None) -> OpenPiece:
        """The last piece, where rows of these columns can be added to it, or a new one."""
        last = self.pieces[-1] if self.pieces else None
        if type(last) is not OpenPiece or last.columns is not columns:
            last = OpenPiece(columns)
            self.pieces.append(last)
        return last


class Pairing:
    """Holds the rows of a step until every rank has reported it. A step with a lost row is dropped."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.held = 0
        """Rows waiting for the other ranks, large ones counted several times."""
        self._floor = -1
        self._steps: dict[int, _Pending] = {}
        """By step; a rank that reports nothing takes no memory."""
        self._newest = np.full(world, -1)
        """By rank, its newest step: the rows of a rank come in order."""

    def begin_at(self, step: int) -> None:
        """Take no row of an earlier step."""
        self._forget_through(step - 1)

    def add(self, rank: int, step: int, row: StepRow, batch: Batch) -> CompleteStep | None:
        """Take a row; the rows of a rank come in order. Returns the step if this row makes it complete."""
        pending = self._pending(rank, step)
        if pending is None:
            return None
        piece = pending.piece(None)
        piece.add(rank, len(piece.rows), batch)
        piece.rows.append(row)
        return self._added(step, pending, 1 + len(row.cells) // CELLS_PER_ROW)

    def add_rows(
        self, columns: StepColumns, at: int, count: int, rank: int, first: int, batch: Batch
    ) -> list[CompleteStep]:
        """As `add`, of `count` rows of columns from `at` on, which are steps from `first` on.

        Returns the steps that they make complete. Everything is in one loop: it runs for every row."""
        done: list[CompleteStep] = []
        begin = max(first, self._floor + 1, int(self._newest[rank]) + 1)
        stop = first + count
        if begin >= stop:
            return done
        self._newest[rank] = stop - 1
        steps, world, counts = self._steps, self._world, columns.cell_counts
        at -= first
        for step in range(begin, stop):
            pending = steps.get(step)
            if pending is None:
                if step <= self._floor:  # it was forgotten just now
                    continue
                pending = steps[step] = _Pending()
            pending.piece(columns).add(rank, at + step, batch)
            weight = 1 + counts[at + step] // CELLS_PER_ROW
            self.held += weight
            pending.weight += weight
            pending.ranks += 1
            if pending.ranks == world:
                self._forget_through(step)
                done.append(CompleteStep.of_pieces(step, world, pending.pieces))
            elif self.held > MAX_HELD and len(steps) > ALWAYS_KEPT:
                self._forget_oldest()
        return done

    def add_run(
        self, messages: StepMessages, low: int, rank: Integers, layout: Integers, stop_step: int
    ) -> tuple[int, list[tuple[int, CompleteStep]]]:
        """As `add_rows`, of n messages from number `low` on, up to the one that makes `stop_step` or a later
        step complete. The messages of each rank follow each other without a gap.

        `rank`, `layout`: (n,). Returns how many messages were added, and the steps that they made complete,
        each with the number (from 0) of the message that did."""
        taken = 0
        done: list[tuple[int, CompleteStep]] = []
        while True:
            added, more = self._add_together(messages, low + taken, rank[taken:], layout[taken:], stop_step)
            done += [(taken + which, step) for which, step in more]
            taken += added
            # With the next message there may be too much to hold: `add_rows` forgets the oldest steps then.
            for n in range(taken, min(taken + ALONE, len(rank))):
                if done and done[-1][1].step >= stop_step:
                    break
                begin, count, first, base_ns = (
                    int(column[low + n])
                    for column in (messages.begin, messages.counts, messages.first_step, messages.base_ns)
                )
                batch = Batch(base_ns, int(layout[n]))
                complete = self.add_rows(messages.columns, begin, count, int(rank[n]), first, batch)
                done += [(n, one) for one in complete]
                taken = n + 1
            if taken == len(rank) or (done and done[-1][1].step >= stop_step):
                return taken, done

    def _add_together(
        self, messages: StepMessages, low: int, rank: Integers, layout: Integers, stop_step: int
    ) -> tuple[int, list[tuple[int, CompleteStep]]]:
        """As `add_run`, up to before a message with which there may be too much to hold."""
        if not len(rank):
            return 0, []
        part, columns = slice(low, low + len(rank)), messages.columns
        first, count = messages.first_step[part], messages.counts[part]
        before = np.cumsum(count) - count
        message = np.repeat(np.arange(len(count)), count)
        row = np.arange(len(message))
        at, step = row + (messages.begin[part] - before)[message], row + (first - before)[message]
        cells = columns.cells_at[at + 1] - columns.cells_at[at]
        known = np.maximum(self._newest[rank], self._floor)
        if not (first > known).all():
            fresh = step > known[message]
            message, at, step, cells = message[fresh], at[fresh], step[fresh], cells[fresh]
        if not len(step):
            return len(rank), []
        weight = 1 + cells // CELLS_PER_ROW
        order = stable_order(step - step.min())
        begins = np.flatnonzero(np.diff(step[order], prepend=-1))
        numbers = step[order[begins]]
        if len(self._steps) + len(numbers) > ALWAYS_KEPT:  # may be too much to hold: stop before
            full = np.flatnonzero(self.held + np.cumsum(weight) > MAX_HELD)
            if len(full):
                n = int(message[full[0]])
                return self._add_together(messages, low, rank[:n], layout[:n], stop_step)
        message, at = message[order], at[order]
        ends = np.append(begins[1:], len(order))
        last = message[ends - 1].tolist()
        rows = [*zip(numbers.tolist(), begins.tolist(), ends.tolist(), last, strict=True)]
        for number, begin, end, which in rows if numbers[-1] >= stop_step else ():
            full = number >= stop_step and self._reported(number) + end - begin == self._world
            if full and which + 1 < len(rank):
                return self._add_together(messages, low, rank[: which + 1], layout[: which + 1], MAX_STEP)
        done: list[tuple[int, CompleteStep]] = []
        ranks, base_ns, layouts = rank[message], messages.base_ns[part][message], layout[message]
        weights = np.add.reduceat(weight[order], begins).tolist()
        largest = np.maximum.reduceat(layouts, begins).tolist()
        first_cells = np.maximum.reduceat(np.where(ranks == 0, cells[order], -1), begins).tolist()
        for (number, begin, end, which), *facts, added in zip(
            rows, largest, first_cells, weights, strict=True
        ):
            span = slice(begin, end)
            piece = Piece(columns, ranks[span], at[span], base_ns[span], layouts[span], *facts)
            if end - begin == self._world and not self._steps:
                self._floor = number
                done.append((which, CompleteStep.of_pieces(number, self._world, [piece])))
                continue
            pending = self._steps.get(number)
            if pending is None:
                pending = self._steps[number] = _Pending()
            pending.pieces.append(piece)
            self.held += added
            pending.weight += added
            pending.ranks += end - begin
            if pending.ranks == self._world:
                self._forget_through(number)
                done.append((which, CompleteStep.of_pieces(number, self._world, pending.pieces)))
        self._newest[rank] = first + count - 1  # of each the last one stays
        return len(rank), done

    def _reported(self, step: int) -> int:
        """How many ranks have reported a step that is not complete."""
        pending = self._steps.get(step)
        return 0 if pending is None else pending.ranks

    def _pending(self, rank: int, step: int) -> _Pending | None:
        """What is known of a step, to which a row of this rank is added; None: it has one, or is too old."""
        if step <= self._floor or step <= self._newest[rank]:
            return None
        self._newest[rank] = step
        pending = self._steps.get(step)
        if pending is None:
            pending = self._steps[step] = _Pending()
        return pending

    def _added(self, step: int, pending: _Pending, weight: int) -> CompleteStep | None:
        self.held += weight
        pending.weight += weight
        pending.ranks += 1
        if pending.ranks < self._world:
            if self.held > MAX_HELD and len(self._steps) > ALWAYS_KEPT:
                self._forget_oldest()
            return None
        self._forget_through(step)
        return CompleteStep.of_pieces(step, self._world, pending.pieces)

    def _forget_through(self, last: int) -> None:
        """Drop the steps up to `last`: every rank is past it, so rows that they still lack are lost."""
        self._floor = last
        if not self._steps or min(self._steps) >= last:  # usually: steps become complete in order
            if last in self._steps:
                self.held -= self._steps.pop(last).weight
            return
        for step in [step for step in self._steps if step <= last]:
            self.held -= self._steps.pop(step).weight

    def _forget_oldest(self) -> None:
        """Drop the oldest eighth of the steps: a rank that never reports must not fill the memory."""
        steps = sorted(self._steps)
        self._forget_through(steps[len(steps) // 8])
