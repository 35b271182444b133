"""STEPS in columns: little-endian int32, read from many messages at once, without Python for each row.

A message is `[2, generation, first step, base_ns, words, rows, width]`. The words are `width`
columns of one word for each row: the fields of `StepRow` before the loss; the loss, a float64 and so two
words of each row together (UNKNOWN_LOSS for None); the number of all-reduces; the fields of `OwnTime`; and
what a later version adds, which is skipped. After them come the cells of all rows, also as columns: numbers,
ready, took.

Of all words the first bytes come first, then the second ones, and so on: the last ones are nearly all 0, and
zlib has half the work with them in a recording. No numpy here: ranks and agents need none.
"""

from __future__ import annotations

import struct
from itertools import accumulate, chain
from typing import Any

from ddptop.protocol import limits
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import CODES, AlikeRows, OwnTime, StepRow, Steps

WORD = 4
"""Bytes of a number."""
LOSS = StepRow._fields.index("loss")
"""Integers of a row before its loss."""
HEAD = LOSS + 1
"""Numbers of a row before its cells."""
OWN = len(OwnTime._fields)
"""Numbers of a row's own times."""
COUNT_AT = LOSS + 2
"""Column with the number of all-reduces."""
OWN_AT = COUNT_AT + 1
"""First column of `OwnTime`."""
WIDTH = OWN_AT + OWN
"""Columns; a later version may send more."""
CELL = 3
"""Integers for each bucket all-reduce."""
UNKNOWN_LOSS = 0x7FF8_646F_6E65_0000
"""The bits of the NaN that stands for None."""
_NO_LOSS: float = struct.unpack("<d", struct.pack("<q", UNKNOWN_LOSS))[0]

HEAD_BYTES = 64
"""More than a message takes besides its words."""


def in_columns(steps: Steps) -> tuple[object, ...] | None:
    """The fields of STEPS in columns; None where that form cannot hold them."""
    rows = steps.rows
    n = len(rows)
    if isinstance(rows, AlikeRows) and n:
        return _alike_in_columns(steps, rows)
    *columns, losses, cells, own_times = zip(*rows, strict=True) if n else ((), (), ())
    counts = [len(row_cells) for row_cells in cells]
    if not n or any(count % CELL for count in counts):
        return None
    flat = [*chain.from_iterable(cells)]
    if WORD * (WIDTH * n + len(flat)) > limits.MAX_RANK_MESSAGE_BYTES - HEAD_BYTES:
        return None
    before_loss = [*chain.from_iterable(columns)]
    loss_numbers = [_NO_LOSS if loss is None else loss for loss in losses]
    after_loss = [count // CELL for count in counts]
    after_loss += chain.from_iterable(zip(*own_times, strict=True))
    for cell_field in range(CELL):
        after_loss += flat[cell_field::CELL]
    try:
        words = struct.pack(
            f"<{len(before_loss)}i{n}d{len(after_loss)}i", *before_loss, *loss_numbers, *after_loss
        )
    # A number of more than 32 bits, as in a step of over 35 minutes. A message in rows can hold it.
    except struct.error:
        return None
    return _message_fields(steps, words)


def _alike_in_columns(steps: Steps, rows: AlikeRows) -> tuple[object, ...] | None:
    """The fields of a message whose rows differ in begin and length alone, made without Python code for each
    row; None: they do not fit."""
    n, row = len(rows), rows.row
    try:
        words = struct.pack(f"<{2 * n}i", *rows.begins_us, *rows.walls_us)
    except struct.error:
        return None
    words += b"".join([struct.pack("<i", number) * n for number in row[2:LOSS]])
    words += struct.pack("<d", _NO_LOSS if row.loss is None else row.loss) * n
    words += b"".join([struct.pack("<i", number) * n for number in (0, *row.own)])
    return _message_fields(steps, words)


def _message_fields(steps: Steps, words: bytes) -> tuple[object, ...]:
    planes = b"".join([words[byte_index::WORD] for byte_index in range(WORD)])
    n_rows = len(steps.rows)
    return CODES[Steps], steps.generation, steps.first_step, steps.base_ns, planes, n_rows, WIDTH


# `width` may be larger: a later version adds columns at the end, which this one skips.
def check_size(size: int, rows: int, width: int) -> None:
    """Raise ProtocolError where so many bytes are not the words of so many rows and columns."""
    if not 0 < rows <= limits.MAX_ROWS:
        raise ProtocolError(f"STEPS has not 1 to {limits.MAX_ROWS} rows")
    if width < WIDTH or size % WORD or size < WORD * width * rows:
        raise ProtocolError("the words of STEPS are not as many columns")


def rows_of(planes: bytes, n: int, width: int) -> tuple[tuple[tuple[Any, ...], ...], tuple[int, ...]]:
    """`n` rows in words as those of a message in rows, and their own times; they are still to be checked."""
    n_words = len(planes) // WORD
    data = bytearray(len(planes))
    for byte_index in range(WORD):
        data[byte_index::WORD] = planes[byte_index * n_words : (byte_index + 1) * n_words]
    words = struct.unpack(f"<{n_words}i", data)
    columns = [words[column * n : (column + 1) * n] for column in range(WIDTH)]
    counts, own_columns = columns[COUNT_AT], columns[OWN_AT:]
    cells = words[width * n :]
    # Before anything is built of them: the counts come from outside.
    if min(counts) < 0 or max(counts) * CELL > limits.MAX_CELLS or sum(counts) * CELL != len(cells):
        raise ProtocolError("the cells of STEPS are not as many as its rows have")
    # Read a second time as integers, since a float cannot be compared by its bits.
    bits = struct.unpack_from(f"<{n}q", data, WORD * LOSS * n)
    values = struct.unpack_from(f"<{n}d", data, WORD * LOSS * n)
    # The bits are compared, not the values: the loss of a diverged model is NaN as well.
    losses = [None if bit == UNKNOWN_LOSS else value for bit, value in zip(bits, values, strict=True)]
    heads = zip(*columns[:LOSS], losses, strict=True)
    n_cells = len(cells) // CELL
    flat = [
        *chain.from_iterable(
            zip(cells[:n_cells], cells[n_cells : 2 * n_cells], cells[2 * n_cells :], strict=True)
        )
    ]
    ends = accumulate(counts)
    rows = tuple(
        (*head, *flat[CELL * (end - count) : CELL * end])
        for head, count, end in zip(heads, counts, ends, strict=True)
    )
    return rows, (*chain.from_iterable(zip(*own_columns, strict=True)),)
