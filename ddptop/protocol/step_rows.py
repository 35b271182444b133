"""The rows of a STEPS message one by one, without numpy: their checks, and which of them are right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import msgpack

from ddptop.protocol import limits, step_words
from ddptop.protocol.earlier_steps import fill_own_times, widen_words
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import CODES, MEASURED_TOGETHER, OwnTime, StepRow, Steps
from ddptop.protocol.step_words import CELL, HEAD, LOSS, OWN

_FIRST_AT = StepRow._fields.index("forward_at_us")
_AFTER_AT = StepRow._fields.index("optimizer_at_us") + 1


def make_step_rows(rows: Sequence[tuple[Any, ...]], own_integers: Sequence[int]) -> tuple[StepRow, ...]:
    """Rows as they are on the wire, cells spliced in at the end of each, and the integers of their own times,
    one row after the other. Raises ProtocolError where a value is of another type or out of range."""
    _check_rows(rows)
    times = _own_times(own_integers, len(rows))
    # The class's own __new__ is a Python function, and would be called for each row of each rank.
    new = tuple.__new__
    return tuple(
        [new(StepRow, (*row[:HEAD], row[HEAD:], time)) for row, time in zip(rows, times, strict=True)]
    )


def _own_times(values: Sequence[int], n_rows: int) -> list[OwnTime]:
    """One for each row; of a later version's integers the first ones."""
    if len(values) % n_rows or len(values) < OWN * n_rows:
        raise ProtocolError("the rows' own times are not as many integers of each row")
    n_numbers = len(values) // n_rows
    times = [OwnTime._make(values[begin : begin + OWN]) for begin in range(0, len(values), n_numbers)]
    lowest = min(map(min, times))
    if max(map(max, times)) > limits.MAX_US or lowest < -1:
        raise ProtocolError("an own time is out of range")
    # Rare, so that the rows are looked at one by one only where some number is -1.
    if lowest < 0 and any(_is_known_in_part(row[:MEASURED_TOGETHER]) for row in times):
        raise ProtocolError("an own time is negative")
    return times


def _is_known_in_part(measured_together: tuple[int, ...]) -> bool:
    """Whether some own times of a row are known and others not; `exposed`, the first, may be unknown."""
    return min(measured_together[1:]) < 0 <= max(measured_together)


def _check_rows(rows: Sequence[tuple[Any, ...]]) -> None:
    if any(length < HEAD or (length - HEAD) % CELL for length in set(map(len, rows))):
        raise ProtocolError("a row is no row")
    if not set(map(type, map(itemgetter(LOSS), rows))) <= {float, type(None)}:
        raise ProtocolError("loss: no float")
    # One pass in C over all the integers; only -1, which few fields may be, needs a second check.
    integers = list(chain.from_iterable([row[:LOSS] + row[HEAD:] for row in rows]))
    if set(map(type, integers)) != {int}:
        raise ProtocolError("a row holds something else than integers")
    lowest = min(integers)
    if lowest < -1 or max(integers) > limits.MAX_US:
        raise ProtocolError("a row's number is out of range")
    if lowest < 0:
        _check_unknowns(rows)
    numbers = list(chain.from_iterable([row[HEAD::CELL] for row in rows]))
    if numbers and max(numbers) >= limits.MAX_BUCKETS:
        raise ProtocolError("a bucket number is out of range")


def _check_unknowns(rows: Sequence[tuple[int, ...]]) -> None:
    """-1 stands for "did not happen" in the three `*_at_us` and for "not known" in the end of a cell."""
    for row in rows:
        never_negative = row[:_FIRST_AT] + row[_AFTER_AT:LOSS] + row[HEAD::CELL] + row[HEAD + 1 :: CELL]
        if min(never_negative) < 0:
            raise ProtocolError("a row's number is negative")


def valid_parts(data: bytes) -> tuple[list[Steps], list[int]]:
    """What is right in STEPS that `decode` refuses: each run of consecutive valid rows as STEPS of its own,
    and the numbers of the steps whose rows are wrong.

    No parts where something else than a row is wrong. Raises ProtocolError where that is no STEPS.
    """
    generation, first, base_ns, rows, own = _unpack_fields(data)
    heads = ((generation, limits.MAX_STEP), (first, limits.MAX_STEP), (base_ns, limits.MAX_NS))
    # Not a row but the whole message is wrong: nothing of it can be placed.
    if any(type(number) is not int or not 0 <= number <= highest for number, highest in heads):
        return [], []
    if type(rows) is not tuple or not 0 < len(rows) <= limits.MAX_ROWS:
        return [], []
    if type(own) is not tuple:
        return [], []
    own = fill_own_times(own, len(rows))
    n_numbers, remainder = divmod(len(own), len(rows))
    if not n_numbers or remainder:
        return [], []
    parts: list[Steps] = []
    wrong: list[int] = []
    for index, row in enumerate(rows):
        try:
            (right,) = make_step_rows((_as_tuple(row),), own[index * n_numbers : (index + 1) * n_numbers])
        except (ProtocolError, TypeError):
            wrong.append(first + index)
            continue
        # Rows that follow each other stay one message: a link onwards takes each number once.
        before = parts[-1] if parts else None
        if before is not None and before.first_step + len(before.rows) == first + index:
            parts[-1] = Steps(generation, before.first_step, base_ns, (*before.rows, right))
        else:
            parts.append(Steps(generation, first + index, base_ns, (right,)))
    return parts, wrong


def _as_tuple(row: Any) -> tuple[Any, ...]:
    if type(row) is not tuple:
        raise ProtocolError("a row is no row")
    return row


def _unpack_fields(data: bytes) -> tuple[Any, Any, Any, Any, Any]:
    """Generation, first step, base, rows and own times of STEPS, unchecked."""
    try:
        fields = msgpack.unpackb(
            # Tuples, because the checks that follow compare rows with slices of tuples.
            data,
            use_list=False,
            max_str_len=4 * limits.MAX_TEXT,
            max_bin_len=limits.MAX_RANK_MESSAGE_BYTES,
            max_array_len=HEAD + limits.MAX_CELLS,
            max_map_len=limits.MAX_CARD,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"no msgpack message: {error}") from error
    if type(fields) is not tuple or fields[:1] != (CODES[Steps],) or not 5 <= len(fields) <= 7:
        raise ProtocolError("no STEPS")
    _, generation, first, base_ns, *row_fields = fields
    if len(row_fields) == 3:
        words, rows, width = row_fields
        if type(words) is not bytes or type(rows) is not int or type(width) is not int:
            raise ProtocolError("STEPS has not bytes, rows and a width")
        words, width = widen_words(words, rows, width)
        step_words.check_size(len(words), rows, width)
        return generation, first, base_ns, *step_words.rows_of(words, rows, width)
    # Ranks of 0.1.0 send no own times.
    rows, own = row_fields if len(row_fields) == 2 else (*row_fields, ())
    return generation, first, base_ns, rows, own
