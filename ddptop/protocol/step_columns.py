"""Rows of many STEPS messages as columns: what is decoded together is checked and kept together.

A row as a tuple costs a microsecond wherever it is read, too much with 4,096 ranks. `StepRows` are the rows
of one message in such columns, and give single ones as `StepRow`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, chain, compress
from operator import not_
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import msgspec
import numpy as np

from ddptop.protocol import limits
from ddptop.protocol.decoding import StepsStruct, decode_structs
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import MEASURED_TOGETHER, OwnTime, StepRow, Steps
from ddptop.protocol.step_words import (
    CELL,
    COUNT_AT,
    HEAD,
    LOSS,
    OWN,
    OWN_AT,
    UNKNOWN_LOSS,
    WIDTH,
    WORD,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Numbers = NDArray[np.signedinteger[Any]]
    """32-bit integers where they came in columns: sums are to be made in 64."""
    Floats = NDArray[np.float64]
    Mask = NDArray[np.bool_]

BEGIN, WALL, MICRO_STEPS, FLAGS = (
    StepRow._fields.index(name) for name in ("begin_us", "wall_us", "micro_steps", "flags")
)
WAITED = slice(OwnTime._fields.index("waited_data"), OwnTime._fields.index("waited_other") + 1)
"""In `StepColumns.own`."""
_MAY_BE_UNKNOWN = slice(StepRow._fields.index("forward_at_us"), StepRow._fields.index("optimizer_at_us") + 1)
"""-1 stands for "did not happen" in these, and for "not known" in the end of a cell."""


class StepColumns:
    """n rows as columns. Never changed once made."""

    def __init__(
        self, integers: Numbers, loss: Floats, own: Numbers, cells: Numbers, cells_at: Integers
    ) -> None:
        self.integers = integers
        """(LOSS, n): the fields of `StepRow` before the loss."""
        self.loss = loss
        """(n,), NaN where unknown."""
        self.own = own
        """(OWN, n): the fields of `OwnTime`."""
        self.cells = cells
        """The cells of all rows, one row after the other."""
        self.cells_at = cells_at
        """(n + 1,) where in `cells` those of each row begin, and the last ones end."""
        self.known: Mask | None = None
        """(n,) whether a loss was reported, which may be NaN; None: all that are not NaN."""

    def __len__(self) -> int:
        return len(self.loss)

    @classmethod
    def of(cls, rows: Sequence[StepRow]) -> StepColumns:
        """From single rows."""
        count = len(rows)
        flat = chain.from_iterable([row[:LOSS] for row in rows])
        integers = np.fromiter(flat, np.int64, LOSS * count).reshape(count, LOSS).T
        losses = [row.loss for row in rows]
        times = chain.from_iterable([row.own for row in rows])
        own = np.fromiter(times, np.int64, OWN * count).reshape(count, OWN).T
        cells_at = np.zeros(count + 1, np.int64)
        np.cumsum([len(row.cells) for row in rows], out=cells_at[1:])
        cells = np.fromiter(chain.from_iterable([row.cells for row in rows]), np.int64, int(cells_at[-1]))
        return cls(integers, np.array(losses, np.float64), own, cells, cells_at)._with_known(losses)

    def _with_known(self, losses: Sequence[float | None]) -> StepColumns:
        unknown = np.isnan(self.loss)
        # A second array is kept only if a script reported NaN: None and NaN are both NaN in `loss`.
        if unknown.any():
            is_reported = np.array([loss is not None for loss in losses], bool)
            if (is_reported & unknown).any():
                self.known = is_reported
        return self

    @property
    def is_known(self) -> Mask:
        """(n,) whether a loss was reported."""
        return ~np.isnan(self.loss) if self.known is None else self.known

    @cached_property
    def has_bad_loss(self) -> bool:
        """Whether any loss is NaN or infinite."""
        return self.known is not None or bool(np.isinf(self.loss).any())

    @cached_property
    def last_known(self) -> Integers:
        """(n,) the last row up to this one with a reported loss; -1: there is none."""
        rows: Integers = np.maximum.accumulate(np.where(self.is_known, np.arange(len(self)), -1))
        return rows

    @cached_property
    def ends(self) -> tuple[list[int], list[int], list[int]]:
        """For each row: microseconds from the message's base to the end of the step, flags, micro-steps."""
        ended = self.integers[BEGIN].astype(np.int64) + self.integers[WALL]
        return ended.tolist(), self.integers[FLAGS].tolist(), self.integers[MICRO_STEPS].tolist()

    def row(self, index: int) -> StepRow:
        """One row as it was encoded."""
        cells = self.cells[self.cells_at[index] : self.cells_at[index + 1]].tolist()
        loss = float(self.loss[index]) if self.is_known_at(index) else None
        own = OwnTime._make(self.own[:, index].tolist())
        return StepRow._make((*self.integers[:, index].tolist(), loss, tuple(cells), own))

    def is_known_at(self, index: int) -> bool:
        """Whether the loss of a row was reported."""
        return bool(self.known[index] if self.known is not None else self.loss[index] == self.loss[index])


def concatenate_columns(parts: Sequence[StepColumns]) -> StepColumns:
    """The rows of several columns, one after the other."""
    ends = accumulate((len(part.cells) for part in parts), initial=0)
    # Only where some part has it: `None` is the usual case, and stays without memory.
    begins = [part.cells_at[:-1] + end for part, end in zip(parts, ends, strict=False)]
    cells = np.concatenate([part.cells for part in parts])
    joined = StepColumns(
        np.concatenate([part.integers for part in parts], 1),
        np.concatenate([part.loss for part in parts]),
        np.concatenate([part.own for part in parts], 1),
        cells,
        np.append(np.concatenate(begins), len(cells)),
    )
    if any(part.known is not None for part in parts):
        joined.known = np.concatenate([part.is_known for part in parts])
    return joined


class StepRows(Sequence[StepRow]):
    """Some consecutive rows of `columns`: those of one message. Equal to a tuple of the same rows."""

    __slots__ = ("columns", "first", "size")

    def __init__(self, columns: StepColumns, first: int, size: int) -> None:
        self.columns = columns
        self.first = first
        self.size = size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> StepRow: ...
    @overload
    def __getitem__(self, index: slice) -> StepRows: ...
    def __getitem__(self, index: int | slice) -> StepRow | StepRows:
        if isinstance(index, slice):
            begin, stop, step = index.indices(self.size)
            if step != 1:
                # Columns are shared with the message, and a span of them has no step.
                raise ValueError("rows are taken without gaps")
            return StepRows(self.columns, self.first + begin, max(0, stop - begin))
        if not -self.size <= index < self.size:
            raise IndexError(index)
        return self.columns.row(self.first + index % self.size)

    def __iter__(self) -> Iterator[StepRow]:
        return map(self.columns.row, range(self.first, self.first + self.size))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (tuple, StepRows)):
            return len(other) == self.size and tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


def columns_of_rows(rows: Sequence[Sequence[StepRow]]) -> tuple[StepColumns, list[int]]:
    """Columns with the rows of n messages; and where those of each begin."""
    # By identity: messages that were decoded together share their columns, which are then taken once.
    in_columns = {
        id(message_rows.columns): message_rows.columns
        for message_rows in rows
        if isinstance(message_rows, StepRows)
    }
    single = [row for message_rows in rows if not isinstance(message_rows, StepRows) for row in message_rows]
    parts = [*in_columns.values(), *([StepColumns.of(single)] if single or not in_columns else [])]
    ends = [*accumulate(map(len, parts), initial=0)]
    begin_of = dict(zip(in_columns, ends, strict=False))
    begins, next_single = [], ends[len(in_columns)]
    for message_rows in rows:
        if isinstance(message_rows, StepRows):
            begins.append(begin_of[id(message_rows.columns)] + message_rows.first)
        else:
            begins.append(next_single)
            next_single += len(message_rows)
    return parts[0] if len(parts) == 1 else concatenate_columns(parts), begins


class Words(NamedTuple):
    """The numbers of n STEPS messages, not yet decoded."""

    planes: Sequence[bytes]
    """The words of each, as they were sent."""
    rows: Integers
    """(n,) how many rows each has."""
    width: Integers
    """(n,) how many columns."""


def zip_fields(messages: Sequence[StepsStruct]) -> tuple[Integers, Words | None]:
    """(3, n) generation, first step and base of STEPS messages, at least one; and their words, None where one
    of them is in rows.

    Raises ProtocolError where the words of a message are not as many as it says."""
    *heads, planes, rows, width = zip(*map(msgspec.structs.astuple, messages), strict=True)
    columns = np.array(heads, np.int64)
    if not (_is_one_type(planes, bytes) and _is_one_type(rows, int) and _is_one_type(width, int)):
        return columns, None
    words = Words(planes, np.array(rows, np.int64), np.array(width, np.int64))
    sizes = np.array([*map(len, planes)], np.int64)
    # Checked for all messages at once: `StepsStruct.words` checks the same for a single one.
    if (sizes % WORD).any() or (sizes < WORD * words.rows * words.width).any():
        raise ProtocolError("the words of STEPS are not as many columns")
    return columns, words


def decode_steps(bodies: Sequence[bytes]) -> list[Steps]:
    """All of these STEPS messages, checked together as `decoding.decode` checks each, which costs less.

    Raises ProtocolError where not all of them are right; `decode` shows which one is wrong.
    """
    return steps_of(decode_structs(Steps, bodies))


def steps_of(messages: Sequence[StepsStruct]) -> list[Steps]:
    """STEPS messages, their rows checked together.

    Raises ProtocolError where not all of them are right: `decoding.decode` shows which one is wrong.
    """
    if not messages:
        return []
    _, words = zip_fields(messages)
    rows: Iterable[Sequence[StepRow]]
    if words is not None:
        rows = _rows_of_words(words)
    else:
        # Two forms in one batch are rare; each is decoded by its own way, and put back in its place.
        is_words = [message.words is not None for message in messages]
        of_words = iter(steps_of([*compress(messages, is_words)]))
        of_rows = iter(_rows_of_rows([*compress(messages, map(not_, is_words))]))
        rows = [next(of_words).rows if words_sent else next(of_rows) for words_sent in is_words]
    return [
        Steps(message.generation, message.first_step, message.base_ns, of_message)
        for message, of_message in zip(messages, rows, strict=True)
    ]


def _rows_of_words(words: Words) -> list[StepRows]:
    columns, begins = columns_of_messages(words)
    counts = zip(begins.tolist(), words.rows.tolist(), strict=True)
    return [StepRows(columns, begin, rows) for begin, rows in counts]


def columns_of_messages(words: Words) -> tuple[StepColumns, Integers]:
    """The rows of messages; and where those of each begin.

    Those of the same size are read together: each size has a cost. Raises ProtocolError."""
    # Messages of a group mostly have as many rows, so that there are few sizes.
    sizes = np.array([*map(len, words.planes)], np.int64)
    # As one number of each message, which is sorted in a twentieth of the time of three.
    limit = limits.MAX_RANK_MESSAGE_BYTES + 1
    key = (words.rows * limit + words.width) * limit + sizes
    _, firsts, which = np.unique(key, return_index=True, return_inverse=True)
    alike = np.stack([words.rows, words.width, sizes])[:, firsts]
    parts, begin, begins = [], 0, np.empty(len(sizes), np.int64)
    for number, (rows, width, size) in enumerate(alike.T.tolist()):
        places = np.flatnonzero(which == number)
        planes = b"".join([words.planes[place] for place in places.tolist()])
        parts.append((np.frombuffer(planes, np.uint8).reshape(-1, size), rows, width))
        begins[places] = begin + rows * np.arange(len(places))
        begin += rows * len(places)
    return columns_of_words(parts), begins


def columns_of_words(alike: Sequence[tuple[NDArray[np.uint8], int, int]]) -> StepColumns:
    """The rows of messages in columns, one message after the other.

    `alike`: of messages with as many rows and columns their words (messages, bytes), rows and columns, as
    many as `step_words.check_size` takes. Raises ProtocolError for a number that is out of range."""
    n = sum(rows * len(data) for data, rows, _ in alike)
    integers, own = np.empty((LOSS, n), np.int32), np.empty((OWN, n), np.int32)
    loss, cells_at = np.empty(n), np.zeros(n + 1, np.int64)
    cells = [np.empty(0, np.int32)]
    begin = 0
    for data, rows, width in alike:
        count, size = data.shape
        to = slice(begin, begin + rows * count)
        begin = to.stop
        planes = data.reshape(count, WORD, size // WORD)  # of all words the first bytes came first
        in_order = np.empty((count, size // WORD, WORD), np.uint8)
        for byte_index in range(WORD):
            in_order[..., byte_index] = planes[:, byte_index]
        words = in_order.reshape(count, size).view("<i4")
        # A void type moves the numbers of a message in a column as one value: fewer assignments than single
        # integers.
        table = words[:, : rows * width].view(f"V{WORD * rows}")
        integers[:, to].view(table.dtype)[:] = table[:, :LOSS].T
        losses = words[:, LOSS * rows : COUNT_AT * rows]
        loss[to] = np.ascontiguousarray(losses).view("<f8").reshape(-1)
        counts = words[:, COUNT_AT * rows : (COUNT_AT + 1) * rows]
        last = words[:, rows * width :]
        # Before the counts are added: a sum of hostile ones would be a wrong place, or a very large array.
        if counts.min() < 0 or int(counts.max()) * CELL > limits.MAX_CELLS:
            raise ProtocolError("a row has too many cells")
        ends = cells_at[to.start : to.stop + 1]
        np.cumsum(counts.reshape(-1) * CELL, out=ends[1:])
        ends[1:] += ends[0]
        if (np.diff(ends[::rows]) != last.shape[1]).any():
            raise ProtocolError("the cells of STEPS are not as many as its rows have")
        own[:, to].view(table.dtype)[:] = table[:, OWN_AT:WIDTH].T
        if last.shape[1]:
            cells.append(np.stack(np.split(last, CELL, axis=1), axis=2).reshape(-1))
    columns = StepColumns(integers, loss, own, np.concatenate(cells), cells_at)
    # -1 is allowed here and refused below where a field cannot be unknown: one pass finds nearly everything.
    if integers.min() < -1 or columns.cells.min(initial=0) < -1:
        raise ProtocolError("a row's number is out of range")
    _check_unknowns(integers, columns.cells)
    _check_own(own)
    # The bits, not the value: the loss of a diverged model is a NaN, too.
    is_reported = loss.view(np.int64) != UNKNOWN_LOSS
    if (np.isnan(loss) & is_reported).any():
        columns.known = is_reported
    return columns


def _is_one_type(values: Sequence[Any], kind: type) -> bool:
    return set(map(type, values)) == {kind}


def _rows_of_rows(messages: Sequence[StepsStruct]) -> list[StepRows]:
    """The rows of messages in rows."""
    if not messages:
        return []
    rows: list[Any] = [message.rows for message in messages]
    counts = [*map(len, rows)]
    columns = _columns_of_rows(
        [*chain.from_iterable(rows)], _own_times_of_rows([message.own for message in messages], counts)
    )
    begins = accumulate(counts, initial=0)
    return [StepRows(columns, begin, count) for begin, count in zip(begins, counts, strict=False)]


def _columns_of_rows(rows: Sequence[Any], own: Integers) -> StepColumns:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    if ((lengths - HEAD) % CELL).any():
        raise ProtocolError("a row is no row")
    # A loss is no integer: it is taken out, with 0 in its place, so that the rest is converted in one call.
    losses = [row[LOSS] for row in rows]
    if not set(map(type, losses)) <= {float, type(None)}:
        raise ProtocolError("loss: no float")
    flat = [*chain.from_iterable(rows)]
    begins = np.cumsum(lengths) - lengths
    for loss_index in (begins + LOSS).tolist():
        flat[loss_index] = 0
    values = _as_integers(flat)
    head = begins[:, None] + np.arange(HEAD)
    integers = np.ascontiguousarray(values[head[:, :LOSS]].T)
    cells_at = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(lengths - HEAD, out=cells_at[1:])
    cells = values[:0].copy()
    if cells_at[-1]:
        is_cell = np.ones(len(values), bool)
        is_cell[head] = False
        cells = values[is_cell]
    _check_unknowns(integers, cells)
    return StepColumns(integers, np.array(losses, np.float64), own, cells, cells_at)._with_known(losses)


def _as_integers(values: Sequence[Any]) -> Integers:
    # `bool` is refused by its exact type: numpy would take it for 0 or 1.
    if set(map(type, values)) != {int}:
        raise ProtocolError("a row holds something else than integers")
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError as error:
        raise ProtocolError("a row's number is out of range") from error


def _check_unknowns(integers: Numbers, cells: Numbers) -> None:
    if integers[: _MAY_BE_UNKNOWN.start].min() < 0 or integers[_MAY_BE_UNKNOWN.stop :].min() < 0:
        raise ProtocolError("a row's number is negative")
    if not len(cells):
        return
    numbers, ready = cells[::CELL], cells[1::CELL]
    if numbers.min() < 0 or ready.min() < 0:
        raise ProtocolError("a row's number is negative")
    if numbers.max() >= limits.MAX_BUCKETS:
        raise ProtocolError("a bucket number is out of range")


def _check_own(times: Numbers) -> None:
    if times.max() > limits.MAX_US or times.min() < -1:
        raise ProtocolError("an own time is out of range")
    # `exposed` alone may be unknown in a row whose other own times are known: see `OwnTime`.
    exposed, *measured_with_it = times[:MEASURED_TOGETHER]
    if min(field.min() for field in measured_with_it) < 0:
        unknown = np.min(measured_with_it, axis=0) < 0
        if max(exposed[unknown].max(), np.max(measured_with_it, axis=0)[unknown].max()) >= 0:
            raise ProtocolError("an own time is negative")


def _own_times_of_rows(times_of_messages: Sequence[tuple[int, ...]], counts: Sequence[int]) -> Integers:
    """(OWN, rows) own times of the rows of all messages; of a later version's integers the first ones."""
    # Only whole rows: with a remainder, the numbers of one row would be read as another one's.
    for values, rows in zip(times_of_messages, counts, strict=True):
        if len(values) % rows or len(values) < OWN * rows:
            raise ProtocolError("the rows' own times are not as many integers of each row")
    parts = [
        _as_integers(values).reshape(rows, -1)[:, :OWN]
        for values, rows in zip(times_of_messages, counts, strict=True)
    ]
    times = np.ascontiguousarray(np.concatenate(parts).T)
    _check_own(times)
    return times
