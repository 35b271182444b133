"""Complete steps, and the rows of all their ranks as columns.

Until steps are evaluated they only refer to their rows as they were decoded (`CompleteSteps`). `columns_of`
puts the rows of many steps into columns together, because numpy's cost is by call.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddptop.frames.statistics import reduce_rows
from ddptop.protocol.messages import Flag, OwnTime
from ddptop.protocol.step_columns import BEGIN, FLAGS, WALL
from ddptop.protocol.step_words import CELL, LOSS, OWN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.protocol.step_columns import Numbers, StepColumns

    Integers = NDArray[np.int64]


class PairedRows(NamedTuple):
    """Rows of many steps that were decoded together, step by step, (rows,)."""

    columns: StepColumns
    ranks: Integers
    places: Integers
    """Where each row is in `columns`."""
    base_ns: Integers
    """`Steps.base_ns` of the message of each row."""
    layout: Integers
    """Number of the layout's content, the same for all ranks that have it; -1: not reported."""


class Piece(NamedTuple):
    """Rows of `n_steps` steps among `rows`, from `begin` to before `end`: step by step, the same number of
    each, in the order in which they came."""

    rows: PairedRows
    begin: int
    end: int
    n_steps: int

    def part(self, begin: int, stop: int) -> Piece:
        """The rows of some of its steps."""
        size = (self.end - self.begin) // self.n_steps
        return Piece(self.rows, self.begin + size * begin, self.begin + size * stop, stop - begin)


class CompleteSteps(NamedTuple):
    """n steps that became complete one after the other, with the rows of all their ranks; (n,) each."""

    n_ranks: int
    numbers: Integers
    pieces: Sequence[Piece]
    """Each has rows of all n steps; together they have one of each rank in each step."""
    largest_layout: Integers
    """The largest layout number of a step's rows."""
    cells_of_first: Integers
    """How many integers the cells of rank 0 are."""

    @property
    def n_steps(self) -> int:
        """How many they are."""
        return len(self.numbers)

    def part(self, begin: int, stop: int) -> CompleteSteps:
        """Some of them."""
        if stop - begin == self.n_steps:
            return self
        some = slice(begin, stop)
        pieces = [piece.part(begin, stop) for piece in self.pieces]
        layout, cells = self.largest_layout[some], self.cells_of_first[some]
        return CompleteSteps(self.n_ranks, self.numbers[some], pieces, layout, cells)


class StepBlock(NamedTuple):
    """The rows of n steps of all ranks, (fields, n, ranks)."""

    integers: Numbers
    """The fields of a `StepRow` before its loss."""
    loss: Column
    """(n, ranks), NaN where unknown."""
    known: Mask
    """(n, ranks) whether a loss was reported."""
    own: Numbers
    """The fields of `OwnTime`."""
    base_ns: Integers
    """(n, ranks) of the message of each row; likewise `layout`."""
    layout: Integers
    cells: Numbers
    """The cells of all rows, step by step, rank by rank."""
    cells_at: Integers
    """(n x ranks + 1,) where in `cells` those of each row begin."""
    detailed: list[bool]
    """For each step, whether any row is flagged to have bucket detail."""

    @property
    def own_fields(self) -> dict[str, Numbers]:
        """(n, ranks) by the fields of `OwnTime`."""
        return dict(zip(OwnTime._fields, self.own, strict=True))

    @property
    def shadow(self) -> Mask:
        """(n, ranks) whether the recorder stood aside (`Flag.SHADOW`)."""
        return np.asarray(self.integers[FLAGS] & int(Flag.SHADOW) != 0)

    @property
    def cells_begin(self) -> Integers:
        """(n, ranks) where in `cells` those of each row begin."""
        return self.cells_at[:-1].reshape(self.loss.shape)

    def joined(self, steps: int | Integers) -> Mask:
        """(k, ranks) of k steps, or (ranks,) of one: whether a rank had run out of inputs, and only answered
        the others' collectives."""
        return np.asarray(self.integers[FLAGS, steps] & int(Flag.JOINED) != 0)

    def begin_ns(self, steps: int | slice | Integers) -> Integers:
        """(k, ranks) of k steps, or (ranks,) of one: when it began, on the clock of each rank's host."""
        return np.asarray(self.base_ns[steps] + 1000 * self.integers[BEGIN, steps].astype(np.int64))

    def spans_ns(self) -> tuple[Integers, Integers]:
        """(n, ranks) when each step began, and when it ended, on the clock of each rank's host."""
        begin_ns = self.begin_ns(slice(None))
        return begin_ns, begin_ns + 1000 * self.integers[WALL].astype(np.int64)

    def launches(self, steps: Integers, numbers: int) -> Numbers:
        """(k, ranks, numbers, CELL) of k steps the cells of ranks that launched so many all-reduces; 0 of
        joined ranks."""
        n_ranks = self.loss.shape[1]
        joined = self.joined(steps)
        if joined.any():
            first = np.where(joined, 0, self.cells_begin[steps])[..., None] + np.arange(CELL * numbers)
            cells = np.where(joined[..., None], 0, self.cells[np.minimum(first, len(self.cells) - 1)])
        else:
            begins = self.cells_at[steps * n_ranks].tolist()
            size = n_ranks * CELL * numbers
            cells = np.concatenate([self.cells[begin : begin + size] for begin in begins])
        return np.asarray(cells.reshape(len(steps), n_ranks, numbers, CELL))


class CompleteStep:
    """A step with the rows of all its ranks; index = rank, or place in the process group."""

    __slots__ = ("at", "block", "step")

    def __init__(self, step: int, block: StepBlock, at: int = 0) -> None:
        """`at`: the number of the step in the block."""
        self.step = step
        self.block = block
        """The columns of this and the steps evaluated with it."""
        self.at = at

    @property
    def ranks(self) -> int:
        """How many there are."""
        return int(self.block.loss.shape[1])

    @property
    def cells_of_first(self) -> int:
        """How many integers the cells of the first rank are."""
        first_row = self.at * self.ranks
        return int(self.block.cells_at[first_row + 1] - self.block.cells_at[first_row])

    @property
    def detailed(self) -> bool:
        """Whether any row is flagged to have bucket detail."""
        return self.block.detailed[self.at]

    @property
    def integers(self) -> Numbers:
        """(fields, ranks) of a `StepRow` before the loss."""
        return self.block.integers[:, self.at]

    @property
    def begin_ns(self) -> Integers:
        """(ranks,) on the clock of each rank's host."""
        return self.block.begin_ns(self.at)

    @property
    def layout(self) -> Integers:
        """(ranks,) number of the layout's content."""
        return np.asarray(self.block.layout[self.at])

    @property
    def joined(self) -> Mask:
        """(ranks,) whether it had run out of inputs and only answered the others' collectives."""
        return self.block.joined(self.at)

    @property
    def exposed(self) -> Integers:
        """(ranks,) `OwnTime.exposed`; -1: not known."""
        return np.asarray(self.block.own[0, self.at], np.int64)

    @property
    def cells_at(self) -> Integers:
        """(ranks + 1,) where in `block.cells` those of each rank begin, and the last ones end."""
        first_row = self.at * self.ranks
        return self.block.cells_at[first_row : first_row + self.ranks + 1]

    def launches(self, numbers: int) -> Numbers:
        """(ranks, numbers, CELL) as of `StepBlock`."""
        return np.asarray(self.block.launches(np.array([self.at]), numbers)[0])

    def part(self, ranks: Indices, layout: Integers, places: Sequence[Mapping[int, int]]) -> CompleteStep:
        """Some of its ranks, with layouts and cells of a process group's own.

        `places`: for each of these ranks, from the bucket number in its layout to that in the group's.
        """
        whole = self.own_block()
        at = whole.cells_at
        cells = [
            _pick_cells(whole.cells[at[rank] : at[rank + 1]], place)
            for rank, place in zip(ranks.tolist(), places, strict=True)
        ]
        cells_at = np.zeros(len(ranks) + 1, np.int64)
        np.cumsum([len(cells_of_rank) for cells_of_rank in cells], out=cells_at[1:])
        block = StepBlock(
            whole.integers[:, :, ranks],
            whole.loss[:, ranks],
            whole.known[:, ranks],
            whole.own[:, :, ranks],
            whole.base_ns[:, ranks],
            layout[None],
            np.fromiter(chain.from_iterable(cells), np.int64, int(cells_at[-1])),
            cells_at,
            [],
        )
        block.detailed.extend(_find_detailed(block))
        return CompleteStep(self.step, block)

    def own_block(self) -> StepBlock:
        """A block of only this step."""
        block, begins = self.block, self.cells_at
        own_place = slice(self.at, self.at + 1)
        return StepBlock(
            block.integers[:, own_place],
            block.loss[own_place],
            block.known[own_place],
            block.own[:, own_place],
            block.base_ns[own_place],
            block.layout[own_place],
            block.cells[begins[0] : begins[-1]],
            begins - begins[0],
            [block.detailed[self.at]],
        )


TOGETHER = 2**16
"""Most integers of a block of steps that are kept together: as many as are kept as they arrived."""


def keep_apart(steps: Sequence[CompleteStep]) -> None:
    """Let go of the other steps of their blocks: these are kept for longer than they are."""
    block = steps[0].block
    if all(step.block is block for step in steps):  # usually
        whole = _pick_steps(block, np.array([step.at for step in steps]))
        if whole.integers.size + len(whole.cells) <= TOGETHER:
            for number, step in enumerate(steps):
                step.block, step.at = whole, number
            return
    own_blocks = [step.own_block() for step in steps]
    n_integers = sum(block.integers.size + len(block.cells) for block in own_blocks)
    if n_integers <= TOGETHER:  # of few ranks: one copy
        whole = _concatenate_blocks(own_blocks)
        for number, step in enumerate(steps):
            step.block, step.at = whole, number
        return
    for step, block in zip(steps, own_blocks, strict=True):
        step.block, step.at = StepBlock._make(column.copy() for column in block), 0


def _pick_steps(block: StepBlock, numbers: Indices) -> StepBlock:
    """A block of some steps of a block."""
    ranks = block.loss.shape[1]
    rows = (numbers[:, None] * ranks + np.arange(ranks)).ravel()
    begins, counts = block.cells_at[rows], block.cells_at[rows + 1] - block.cells_at[rows]
    cells_at = np.concatenate([[0], counts.cumsum()])
    places = np.repeat(begins - cells_at[:-1], counts) + np.arange(cells_at[-1])
    return StepBlock(
        block.integers[:, numbers],
        block.loss[numbers],
        block.known[numbers],
        block.own[:, numbers],
        block.base_ns[numbers],
        block.layout[numbers],
        block.cells[places],
        cells_at,
        [block.detailed[number] for number in numbers.tolist()],
    )


def columns_of(steps: Sequence[CompleteSteps | CompleteStep]) -> StepBlock:
    """The rows of all these steps, of the same ranks, as columns."""
    of_rows = [piece for piece in steps if isinstance(piece, CompleteSteps)]
    if len(of_rows) == len(steps):
        return _columns_of_rows(of_rows)
    # They were divided by process group, which takes columns.
    return _concatenate_blocks(
        [
            _columns_of_rows([piece]) if isinstance(piece, CompleteSteps) else piece.own_block()
            for piece in steps
        ]
    )


def _concatenate_blocks(blocks: Sequence[StepBlock]) -> StepBlock:
    """One block of the steps of all."""
    ends = np.cumsum([len(block.cells) for block in blocks])
    cells_at = [block.cells_at[:-1] + end - len(block.cells) for block, end in zip(blocks, ends, strict=True)]
    return StepBlock(
        np.concatenate([block.integers for block in blocks], axis=1),
        np.concatenate([block.loss for block in blocks]),
        np.concatenate([block.known for block in blocks]),
        np.concatenate([block.own for block in blocks], axis=1),
        np.concatenate([block.base_ns for block in blocks]),
        np.concatenate([block.layout for block in blocks]),
        np.concatenate([block.cells for block in blocks]),
        np.concatenate([*cells_at, ends[-1:]]),
        [detailed for block in blocks for detailed in block.detailed],
    )


def block_of(steps: Sequence[CompleteStep]) -> tuple[StepBlock, Integers]:
    """A block that has all these steps, and their numbers in it."""
    if all(step.block is steps[0].block for step in steps):  # usually
        return steps[0].block, np.array([step.at for step in steps])
    return columns_of(steps), np.arange(len(steps))


class _Run(NamedTuple):
    """Pieces that follow each other without a gap in the same rows."""

    rows: PairedRows
    begin: int
    steps: list[int]
    """Indices of the steps of these rows, and in `sizes` how many rows each has."""
    sizes: list[int]

    def part(self, column: Integers) -> Integers:
        """The elements of a column of `rows` that belong to the pieces."""
        return column[self.begin : self.begin + sum(self.sizes)]

    def cells(self, ranks: int) -> Integers:
        """(n,) where each row belongs: step x ranks + rank."""
        return np.repeat(self.steps, self.sizes) * ranks + self.part(self.rows.ranks)


def _runs_of(steps: Sequence[CompleteSteps]) -> list[_Run]:
    """The pieces of these steps. Usually there are few runs: each step by itself would cost several calls of
    numpy."""
    runs: list[_Run] = []
    newest: dict[int, tuple[_Run, int]] = {}
    first = 0
    for some_steps in steps:
        for piece in some_steps.pieces:
            run, end = newest.get(id(piece.rows), (None, -1))
            if run is None or piece.begin != end:
                run = _Run(piece.rows, piece.begin, [], [])
                runs.append(run)
            newest[id(piece.rows)] = run, piece.end
            run.steps.extend(range(first, first + piece.n_steps))
            run.sizes.extend([(piece.end - piece.begin) // piece.n_steps] * piece.n_steps)
        first += some_steps.n_steps
    return runs


def _columns_of_rows(steps: Sequence[CompleteSteps]) -> StepBlock:
    """`columns_of` steps that only refer to their rows."""
    ranks, n, runs = steps[0].n_ranks, sum([some_steps.n_steps for some_steps in steps]), _runs_of(steps)
    cells = [run.cells(ranks) for run in runs]
    alike: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        alike.setdefault(id(run.rows.columns), []).append(number)
    sources = [
        (
            runs[numbers[0]].rows.columns,
            np.concatenate([cells[number] for number in numbers]),
            np.concatenate([runs[number].part(runs[number].rows.places) for number in numbers]),
        )
        for numbers in alike.values()
    ]
    block, to = _fill_block(sources, n, ranks), np.concatenate(cells)
    block.base_ns.reshape(-1)[to] = np.concatenate([run.part(run.rows.base_ns) for run in runs])
    block.layout.reshape(-1)[to] = np.concatenate([run.part(run.rows.layout) for run in runs])
    return block


def _fill_block(sources: Sequence[tuple[StepColumns, Indices, Indices]], n: int, ranks: int) -> StepBlock:
    """The block of n steps; of each source the places (step x ranks + rank) and the rows for them."""
    total, order = n * ranks, np.empty(n * ranks, np.int64)
    if len(sources) == 1:  # usually: its rows are read in the order of their places
        ((columns, to, row_numbers),) = sources
        order[to] = row_numbers
        sources = [(columns, np.arange(total), order)]
    else:
        order[np.concatenate([to for _, to, _ in sources])] = np.arange(total)

    def placed(rows: list[NDArray[Any]]) -> NDArray[Any]:
        """The rows of all sources at their places: reading twice is faster than writing to places."""
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=-1).take(order, axis=-1)

    integers = placed([columns.integers.take(row_numbers, axis=1) for columns, _, row_numbers in sources])
    loss = placed([columns.loss[row_numbers] for columns, _, row_numbers in sources])
    is_known = placed([columns.is_known[row_numbers] for columns, _, row_numbers in sources])
    counts = placed(
        [
            columns.cells_at[row_numbers + 1] - columns.cells_at[row_numbers]
            for columns, _, row_numbers in sources
        ]
    )
    own_times = placed([columns.own.take(row_numbers, axis=1) for columns, _, row_numbers in sources])
    cells_at = np.zeros(total + 1, np.int64)
    np.cumsum(counts, out=cells_at[1:])
    cells = np.empty(int(cells_at[-1]), np.result_type(*(columns.cells for columns, _, _ in sources)))
    for columns, to, row_numbers in sources:
        if len(columns.cells) and (counts_of_rows := counts[to]).any():
            inside = np.arange(counts_of_rows.sum()) - np.repeat(
                np.cumsum(counts_of_rows) - counts_of_rows, counts_of_rows
            )
            from_ = np.repeat(columns.cells_at[row_numbers], counts_of_rows) + inside
            cells[np.repeat(cells_at[to], counts_of_rows) + inside] = columns.cells[from_]
    base_ns, layout = np.empty((2, n, ranks), np.int64)
    block = StepBlock(
        integers.reshape(LOSS, n, ranks),
        loss.reshape(n, ranks),
        is_known.reshape(n, ranks),
        own_times.reshape(OWN, n, ranks),
        base_ns,
        layout,
        cells,
        cells_at,
        [],
    )
    block.detailed.extend(_find_detailed(block))
    return block


def _find_detailed(block: StepBlock) -> list[bool]:
    detailed = reduce_rows(np.bitwise_or, block.integers[FLAGS]) & int(Flag.DETAIL)
    flagged: list[bool] = detailed.astype(bool).tolist()
    return flagged


def _pick_cells(cells: Numbers, place: Mapping[int, int]) -> list[int]:
    """The cells of a group's own buckets, with their numbers in its layout."""
    if len(cells) % CELL:
        return []
    return [
        n
        for number, ready, took in cells.reshape(-1, CELL).tolist()
        if number in place
        for n in (place[number], ready, took)
    ]
