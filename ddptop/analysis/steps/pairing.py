"""Pairs the rows of single ranks to complete steps: a step is complete when all ranks have reported it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.steps.complete_steps import Batch, CompleteStep, Piece
from ddptop.analysis.steps.groups import Scope

if TYPE_CHECKING:
    from ddptop.protocol.messages import StepRow
    from ddptop.protocol.step_columns import StepColumns

__all__ = ["Batch", "CompleteStep", "Pairing", "Scope"]

MAX_HELD = 16_384
"""Most rows that are kept until the slower ranks report them: some 20 MB. A rank's sender keeps up to 1 MiB,
or 10,000 rows, for a collector that does not answer. Rows of more than ten buckets count several times."""

CELLS_PER_ROW = 32

ALWAYS_KEPT = 8
"""Steps that are always kept, for any number of ranks: all ranks report a step within a heartbeat."""


class _Pending:
    """A step that some ranks have reported."""

    __slots__ = ("pieces", "ranks", "weight")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ranks = 0
        """How many have reported it."""
        self.weight = 0


class Pairing:
    """Holds the rows of a step until every rank has reported it. A step with a lost row is dropped."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.held = 0
        """Rows waiting for the other ranks, large ones counted several times."""
        self._floor = -1
        self._steps: dict[int, _Pending] = {}
        """By step; a rank that reports nothing takes no memory."""
        self._newest = [-1] * world
        """By rank, its newest step: the rows of a rank come in order."""

    def add(self, rank: int, step: int, row: StepRow, batch: Batch) -> CompleteStep | None:
        """Take a row; the rows of a rank come in order. Returns the step if this row makes it complete."""
        pending = self._pending(rank, step)
        if pending is None:
            return None
        if not pending.pieces or pending.pieces[-1].columns is not None:
            pending.pieces.append(Piece(None))
        piece = pending.pieces[-1]
        piece.ranks.append(rank)
        piece.rows.append(row)
        piece.batches.append(batch)
        return self._added(step, pending, 1 + len(row.cells) // CELLS_PER_ROW)

    def add_rows(
        self, columns: StepColumns, at: int, count: int, rank: int, first: int, batch: Batch
    ) -> list[CompleteStep]:
        """As `add`, of `count` rows of columns from `at` on, which are steps from `first` on.

        Returns the steps that they make complete. Everything is in one loop: it runs for every row."""
        done: list[CompleteStep] = []
        begin = max(first, self._floor + 1, self._newest[rank] + 1)
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
            pieces = pending.pieces
            if not pieces or pieces[-1].columns is not columns:
                pieces.append(Piece(columns))
            piece = pieces[-1]
            piece.ranks.append(rank)
            piece.at.append(at + step)
            piece.batches.append(batch)
            weight = 1 + counts[at + step] // CELLS_PER_ROW
            self.held += weight
            pending.weight += weight
            pending.ranks += 1
            if pending.ranks == world:
                self._forget_through(step)
                done.append(CompleteStep.of_pieces(step, world, pieces))
            elif self.held > MAX_HELD and len(steps) > ALWAYS_KEPT:
                self._forget_oldest()
        return done

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
        if len(self._steps) == 1 and last in self._steps:
            self.held = 0
            self._steps.clear()
            return
        for step in [step for step in self._steps if step <= last]:
            self.held -= self._steps.pop(step).weight

    def _forget_oldest(self) -> None:
        """Drop the oldest eighth of the steps: a rank that never reports must not fill the memory."""
        steps = sorted(self._steps)
        self._forget_through(steps[len(steps) // 8])
