"""STEPS in columns: little-endian int32, read from many messages at once, without Python for each row.

A message is `[Type.STEPS, generation, first step, base_ns, words, rows, width]`. The words are `width`
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
from ddptop.protocol.messages import OwnTime, StepRow, Steps, Type

WORD = 4
"""Bytes of a number."""
LOSS = StepRow._fields.index("loss")
"""Integers of a row before its loss."""
HEAD = LOSS + 1
"""Numbers of a row before its cells."""
OWN = len(OwnTime._fields)
"""Numbers of a row's own times in this version."""
COUNT_AT = LOSS + 2
"""Column with the number of all-reduces."""
OWN_AT = COUNT_AT + 1
"""First column of `OwnTime`."""
WIDTH = OWN_AT + OWN
"""Columns of this version."""
LEAST_WIDTH = 25
"""Columns of the first version."""
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
    *columns, losses, cells, own = zip(*rows, strict=True) if n else ((), (), ())
    counts = [len(of_row) for of_row in cells]
    if not n or None in own or any(count % CELL for count in counts):
        return None
    flat = [*chain.from_iterable(cells)]
    if WORD * (WIDTH * n + len(flat)) > limits.MAX_RANK_MESSAGE_BYTES - HEAD_BYTES:
        return None
    first = [*chain.from_iterable(columns)]
    known = [_NO_LOSS if loss is None else loss for loss in losses]
    rest = [count // CELL for count in counts]
    rest += chain.from_iterable(zip(*own, strict=True))
    for at in range(CELL):
        rest += flat[at::CELL]
    try:
        words = struct.pack(f"<{len(first)}i{n}d{len(rest)}i", *first, *known, *rest)
    except struct.error:
        return None
    planes = b"".join([words[at::WORD] for at in range(WORD)])
    return int(Type.STEPS), steps.generation, steps.first_step, steps.base_ns, planes, n, WIDTH


def check_size(size: int, rows: int, width: int) -> None:
    """Raise ProtocolError where so many bytes are not the words of so many rows and columns."""
    if not 0 < rows <= limits.MAX_ROWS:
        raise ProtocolError(f"STEPS has not 1 to {limits.MAX_ROWS} rows")
    if width < LEAST_WIDTH or size % WORD or size < WORD * width * rows:
        raise ProtocolError("the words of STEPS are not as many columns")


def rows_of(planes: bytes, n: int, width: int) -> tuple[tuple[tuple[Any, ...], ...], tuple[int, ...]]:
    """`n` rows in words as those of a message in rows, and their own times; they are still to be checked."""
    each = len(planes) // WORD
    data = bytearray(len(planes))
    for at in range(WORD):
        data[at::WORD] = planes[at * each : (at + 1) * each]
    words = struct.unpack(f"<{each}i", data)
    columns = [words[at * n : (at + 1) * n] for at in range(min(width, WIDTH))]
    counts, own = columns[COUNT_AT], columns[OWN_AT:]
    cells = words[width * n :]
    if min(counts) < 0 or max(counts) * CELL > limits.MAX_CELLS or sum(counts) * CELL != len(cells):
        raise ProtocolError("the cells of STEPS are not as many as its rows have")
    bits = struct.unpack_from(f"<{n}q", data, WORD * LOSS * n)
    values = struct.unpack_from(f"<{n}d", data, WORD * LOSS * n)
    losses = [None if bit == UNKNOWN_LOSS else value for bit, value in zip(bits, values, strict=True)]
    heads = zip(*columns[:LOSS], losses, strict=True)
    k = len(cells) // CELL
    flat = [*chain.from_iterable(zip(cells[:k], cells[k : 2 * k], cells[2 * k :], strict=True))]
    ends = accumulate(counts)
    rows = tuple(
        (*head, *flat[CELL * (end - count) : CELL * end])
        for head, count, end in zip(heads, counts, ends, strict=True)
    )
    return rows, (*chain.from_iterable(zip(*own, strict=True)),)
