"""Encoded STEPS messages in columns (`step_words.py`), many read together, without Python for each; readings.

Messages of one length nearly always have the same fields in the same places: numpy takes a field of all of
them at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddptop.protocol import limits
from ddptop.protocol.checks import Check, ProtocolError
from ddptop.protocol.codec import checked_values, columns_alike, decode_steps
from ddptop.protocol.message_run import Readings, StepMessages
from ddptop.protocol.messages import Type
from ddptop.protocol.step_columns import columns_of_words
from ddptop.protocol.step_words import FIELDS, LEAST_WIDTH, WORD

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Message

    Integers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_BEGINS = (0x90 + FIELDS, int(Type.STEPS))
_FIXED = 0x7F
"""A msgpack integer up to this is one byte."""
_SIZES = {_FIXED: 0, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
"""Bytes of an unsigned integer behind its first byte."""
_BYTES = {0xC4: 1, 0xC5: 2}
"""Likewise of the length of a byte string."""


class _Alike(NamedTuple):
    """n messages of one length whose first integers take as many bytes in each."""

    places: Integers
    """(n,) which messages."""
    table: Bytes
    """(n, length)"""
    values: tuple[Integers, ...]
    """(n,) each."""
    end: int
    """Where the byte after these integers is."""


def decode_step_messages(bodies: Sequence[bytes]) -> StepMessages:
    """STEPS messages in columns, checked as `codec.decode` checks each.

    Raises ProtocolError where one of them is in rows, or is invalid: `codec.decode` shows which one.
    """
    sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
    if not len(sizes) or sizes.max() > limits.MAX_RANK_MESSAGE_BYTES:
        raise ProtocolError("not messages of an allowed size")
    order = np.argsort(sizes, kind="stable")
    lengths, begins = np.unique(sizes[order], return_index=True)
    heads, words = [], []
    try:
        for length, places in zip(lengths.tolist(), np.split(order, begins[1:]), strict=True):
            joined = b"".join([bodies[at] for at in places.tolist()])
            table = np.frombuffer(joined, np.uint8).reshape(-1, length)
            if (table[:, :2] != _BEGINS).any():
                raise ProtocolError("no STEPS in columns")
            for alike in _integers(_Alike(places, table, (), 2), 3):
                for its_places, values, data, rows, width in _words(alike):
                    heads.append((its_places, *values, np.full(len(its_places), rows)))
                    words.append((data, rows, width))
    except (IndexError, KeyError, ValueError) as error:
        raise ProtocolError(f"no STEPS in columns: {error}") from error
    columns = columns_of_words(words)
    which, generation, first, base_ns, counts = map(np.concatenate, zip(*heads, strict=True))
    for column, most in ((generation, limits.MAX_STEP), (first, limits.MAX_STEP), (base_ns, limits.MAX_NS)):
        if column.min() < 0 or column.max() > most:
            raise ProtocolError("a number of STEPS is out of range")
    found = np.empty((5, len(bodies)), np.int64)
    found[:, which] = generation, first, base_ns, np.cumsum(counts) - counts, counts
    generation, first, base_ns, begin, counts = found
    return StepMessages(generation, first, base_ns, begin, counts, columns)


def step_messages(bodies: Sequence[bytes]) -> StepMessages | None:
    """STEPS messages of any version; None where there is none, or one of them is invalid: each is to be
    decoded alone then."""
    if not bodies:
        return None
    with suppress(ProtocolError):
        return decode_step_messages(bodies)
    with suppress(ProtocolError):  # earlier versions sent them in rows
        return StepMessages.of(decode_steps(bodies))
    return None


def readings_of(kind: type[Message], places: Integers, bodies: Sequence[bytes]) -> Readings | None:
    """Messages of one of COLUMNS; None where one of them is invalid, as `step_messages`."""
    with suppress(ProtocolError, OverflowError):
        return Readings(kind, places, tuple(columns_alike(kind, bodies, _column)))
    return None


def _column(values: Sequence[Any], check: Check) -> NDArray[Any]:
    """As `checked_values`, in less time where all are numbers."""
    types = set(map(type, values))
    if types == {int} or types == {float}:
        column: NDArray[Any] = np.fromiter(values, types.pop(), len(values))
        least, _ = check(column.min().item()), check(column.max().item())  # what is between them is right
        return column.astype(type(least), copy=False)
    values = checked_values(values, check)
    types = set(map(type, values))
    plain = {int: np.int64, float: np.float64}.get(types.pop()) if len(types) == 1 else None
    return np.array(values, plain) if plain else np.fromiter(values, object, len(values))


def _integers(alike: _Alike, count: int) -> Iterator[_Alike]:
    """The messages with `count` more integers read, divided by how many bytes these take."""
    if not count:
        yield alike
        return
    table, at = alike.table, alike.end
    tags = np.maximum(table[:, at], _FIXED)
    for tag in [int(tags[0])] if (tags == tags[0]).all() else np.unique(tags).tolist():
        same, end = tags == tag, at + 1 + _SIZES[tag]
        its_table = table if same.all() else table[same]
        raw = its_table[:, at + 1 : end] if end > at + 1 else its_table[:, at:end]
        values = np.ascontiguousarray(raw).view(f">u{raw.shape[1]}")[:, 0].astype(np.int64)
        before = [one[same] for one in alike.values]
        yield from _integers(_Alike(alike.places[same], its_table, (*before, values), end), count - 1)


def _words(alike: _Alike) -> Iterator[tuple[Integers, list[Integers], Bytes, int, int]]:
    """Of messages with the same rows and width: which, the integers before the words, words, rows, width."""
    table, at = alike.table, alike.end
    begin = at + 1 + _BYTES[int(table[0, at])]
    size = int.from_bytes(table[0, at + 1 : begin].tobytes(), "big")
    if (table[:, at:begin] != table[0, at:begin]).any():
        raise ProtocolError("words of several sizes")
    for read in _integers(alike._replace(end=begin + size), 2):
        *before, rows, width = read.values
        if read.end != table.shape[1] or rows.min() < 1 or rows.max() > limits.MAX_ROWS:
            raise ProtocolError("STEPS has not its rows and a width")
        for number, columns in {*zip(rows.tolist(), width.tolist(), strict=True)}:
            if columns < LEAST_WIDTH or size % WORD or size < WORD * columns * number:
                raise ProtocolError("the words of STEPS are not as many columns")
            same = (rows == number) & (width == columns)
            data = read.table[same, begin : begin + size]
            yield read.places[same], [one[same] for one in before], data, number, columns
