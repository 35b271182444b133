"""Messages as bytes: `encode` trusts its caller, `decode` checks every field.

A message is one msgpack array, `[Type, field, ...]` with the fields in the order of `messages.py`.
STEPS has two forms, and `decode` takes both. Ranks send it in columns (`step_words.py`). In rows it is sent
where a number does not fit, or a row has no own times: one flat array for each row, its fields in order, with
the cells spliced in at the end. After the rows come the fields of their `OwnTime`, as one flat array; 0.1.0
sends none, an earlier version than this may leave out the last ones, and a later one may send more, which are
skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, repeat
from math import isfinite
from operator import itemgetter
from typing import Any, TypeVar, cast

import msgpack

from ddptop.protocol import limits, step_words
from ddptop.protocol.checks import (
    ADDED,
    CHECKS,
    CODES,
    KINDS,
    NAMES,
    Check,
    ProtocolError,
    checked,
    count,
    ns,
)
from ddptop.protocol.hosts import About
from ddptop.protocol.messages import (
    LEAST_OWN,
    Bucket,
    Hello,
    Message,
    OwnTime,
    State,
    StepRow,
    Steps,
    Type,
)

__all__ = [
    "ProtocolError",
    "UnknownType",
    "decode",
    "decode_steps",
    "encode",
    "valid_parts",
]


class UnknownType(ProtocolError):
    """A well-formed message of a type that this version does not know: to be counted and skipped."""


_Item = TypeVar("_Item")

_ROW_HEAD = StepRow._fields.index("cells")
"""Fields of a row before its cells."""
_OWN = len(OwnTime._fields)
_CELL = 3
"""Integers for each bucket all-reduce."""
_LOSS = StepRow._fields.index("loss")
_FIRST_AT = StepRow._fields.index("forward_at_us")
_AFTER_AT = StepRow._fields.index("optimizer_at_us") + 1

_STATE_BEGINS = bytes((0x90 + 1 + len(NAMES[State]), Type.STATE))
"""A msgpack array of so many elements and its first one: how the one message begins that may be large."""
_ABOUT_BEGINS = bytes((0x90 + 1 + len(NAMES[About]), Type.ABOUT))
_COLUMNS_BEGIN = bytes((0x90 + step_words.FIELDS, Type.STEPS))
"""Likewise the others that hold bytes."""


def encode(message: Message) -> bytes:
    """The message as bytes.

    Text is cut to MAX_TEXT characters, a list or map of texts to MAX_CARD entries and half of a message:
    long arguments must not stop a rank from reporting. Numbers are not checked here; `decode`
    refuses those out of range.
    """
    if isinstance(message, Steps):
        plain: object = step_words.in_columns(message) or _in_rows(message)
    else:
        kind = type(message)
        plain = (int(CODES[kind]), *(_fit(getattr(message, name)) for name in NAMES[kind]))
    # What the file system calls a name need not be valid text.
    return cast(bytes, msgpack.packb(plain, unicode_errors="replace"))


def _in_rows(steps: Steps) -> tuple[object, ...]:
    """The fields of STEPS in rows."""
    rows = [row[:_ROW_HEAD] + row.cells for row in steps.rows]
    own = [n for row in steps.rows if row.own is not None for n in row.own]
    plain = (int(Type.STEPS), steps.generation, steps.first_step, steps.base_ns, rows)
    return (*plain, own) if len(own) == _OWN * len(rows) else plain


def _fit(value: object) -> object:
    """The value with its text cut to what `decode` takes."""
    if isinstance(value, str):
        return value[: limits.MAX_TEXT]
    if isinstance(value, dict):
        return dict(_few((_fit(key), _fit(item)) for key, item in value.items()))
    if isinstance(value, tuple) and not (value and isinstance(value[0], (Bucket, int))):
        return list(_few(_fit(item) for item in value))
    return value


def _few(items: Iterable[_Item]) -> Iterator[_Item]:
    """The first items of a list or map, as many as have room in a message."""
    room = limits.MAX_RANK_MESSAGE_BYTES // 2
    for item in islice(items, limits.MAX_CARD):
        room -= len(msgpack.packb(item, unicode_errors="replace"))
        if room < 0:
            return
        yield item


def decode(data: bytes) -> Message:
    """The message in `data`, every field checked for type and range; texts are safe to show.

    Raises UnknownType for a type of a later version, ProtocolError for anything else that is not right.
    Memory stays within a small multiple of the size limits, whatever the bytes are.
    """
    fields = _unpack(data)
    code = fields[0]
    if code == Type.STEPS:
        return _steps(fields if len(fields) != step_words.FIELDS else step_words.in_rows(fields))
    kind = KINDS.get(code)
    if kind is None:
        raise UnknownType(f"message of type {code}")
    values = checked(NAMES[kind], CHECKS[kind], fields[1:], added=ADDED.get(kind, 0))
    if kind is Hello:
        if cast(int, values[3]) >= cast(int, values[4]):
            raise ProtocolError("rank is not below the world size")
        values = [_kept_once(one) if type(one) is str else one for one in values]
    return kind(*values)  # the checks have made them what the fields are


@lru_cache(maxsize=1024)
def _kept_once(text: str) -> str:
    """The first one of equal texts: most of a HELLO are those of other ranks. Not `sys.intern`, which keeps
    all of them for good in Python 3.12."""
    return text


def _unpack(data: bytes) -> tuple[Any, ...]:
    """The outer array of the message; its first element is an integer, the others may be anything."""
    frame, has_bytes = data[:2] == _STATE_BEGINS, data[:2] in (_ABOUT_BEGINS, _COLUMNS_BEGIN)
    if len(data) > (limits.MAX_FRAME_BYTES if frame else limits.MAX_RANK_MESSAGE_BYTES):
        raise ProtocolError(f"message of {len(data)} bytes")
    try:
        fields = msgpack.unpackb(
            data,
            use_list=False,
            max_str_len=4 * limits.MAX_TEXT,  # bytes, and a character has up to four
            max_bin_len=len(data) if frame or has_bytes else 0,
            max_array_len=8 if frame else _ROW_HEAD + limits.MAX_CELLS,
            max_map_len=0 if frame else limits.MAX_CARD,
            max_ext_len=0,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"no msgpack message: {error}") from error
    if type(fields) is not tuple or not fields or type(fields[0]) is not int:
        raise ProtocolError("no message")
    return fields


def decode_steps(bodies: Sequence[bytes]) -> list[Steps]:
    """All of these STEPS messages, checked together as `decode` checks each, which costs less.

    Raises ProtocolError where not all of them are right; `decode` shows which one is wrong.
    """
    from ddptop.protocol.step_columns import steps_of  # numpy: a rank and a host's agent need none

    return steps_of(_unpack_all(bodies, _ROW_HEAD + limits.MAX_CELLS))


def decode_alike(kind: type[Message], bodies: Sequence[bytes]) -> list[Message]:
    """All of these messages of one kind with single values as fields, checked together as `decode` checks
    each, which costs less.

    Raises ProtocolError where not all of them are right.
    """
    columns = columns_alike(kind, bodies)
    return [kind(*values) for values in zip(*columns, strict=True)]


def columns_alike(
    kind: type[Message], bodies: Sequence[bytes], checked: Callable[[Sequence[Any], Check], Any] | None = None
) -> list[Any]:
    """The fields of these messages as `decode_alike` has them, a column of each: what `checked` makes of its
    values and their check, else their sequence."""
    checks = CHECKS[kind]
    messages = _unpack_all(bodies, 1 + len(checks), 4 * limits.MAX_TEXT)
    if not messages:
        return []
    if set(map(type, messages)) != {tuple} or set(map(len, messages)) != {1 + len(checks)}:
        raise ProtocolError(f"{kind.__name__} has another number of fields")
    kinds, *columns = zip(*messages, strict=True)
    if set(kinds) != {int(CODES[kind])}:
        raise ProtocolError(f"no {kind.__name__}")
    return [*map(checked or checked_values, columns, checks)]


def checked_values(column: Sequence[Any], check: Check) -> Sequence[Any]:
    """The values of a column as the check returns each."""
    types = set(map(type, column))
    if types <= {str, type(None)}:  # a few texts, each of them often
        known = {value: check(value) for value in set(column)}
        return [*map(known.__getitem__, column)]
    if len(types) > 1 or not types <= {int, float} or not (types == {int} or all(map(isfinite, column))):
        return [*map(check, column)]
    low = check(min(column))  # a value between two that are right is right
    check(max(column))
    return [*map(type(low), column)] if type(low) is not type(column[0]) else column


def _unpack_all(bodies: Sequence[bytes], most: int, most_text: int = 0) -> list[Any]:
    """What is in each body: one msgpack value of arrays (of at most `most` items), numbers, bytes, and texts
    of at most `most_text` bytes."""
    unpacker = msgpack.Unpacker(
        use_list=False,
        max_buffer_size=max(1, sum(map(len, bodies))),
        max_array_len=most,
        max_str_len=most_text,
        max_bin_len=limits.MAX_RANK_MESSAGE_BYTES,
        max_map_len=0,
        max_ext_len=0,
    )
    unpacker.feed(b"".join(bodies))
    end = 0
    messages: list[Any] = []
    unpack, tell = unpacker.unpack, unpacker.tell
    try:
        for body in bodies:
            end += len(body)
            messages.append(unpack())
            if tell() != end or len(body) > limits.MAX_RANK_MESSAGE_BYTES:
                raise ProtocolError("not one message of an allowed size")
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"no msgpack message: {error}") from error
    return messages


def _steps(fields: tuple[Any, ...]) -> Steps:
    generation, first, base, rows, own = _steps_fields(fields)
    _check_rows(rows)
    new = tuple.__new__
    made = [
        new(StepRow, (*row[:_ROW_HEAD], row[_ROW_HEAD:], time)) for row, time in zip(rows, own, strict=True)
    ]
    return Steps(generation, first, base, tuple(made))


def valid_parts(data: bytes) -> tuple[list[Steps], list[int]]:
    """Of STEPS that `decode` refuses: the runs of consecutive rows that are right, each as STEPS of its own;
    and the steps whose rows are wrong.

    No parts where something else than a row is wrong, or it is another message. Raises ProtocolError where it
    is no message at all.
    """
    fields = _unpack(data)
    if fields[0] != Type.STEPS:
        return [], []
    kind, generation, first, base, rows, *own = (
        fields if len(fields) != step_words.FIELDS else step_words.in_rows(fields)
    )
    if type(rows) is not tuple or not 0 < len(rows) <= limits.MAX_ROWS:
        return [], []
    each = len(own[0]) // len(rows) if own and type(own[0]) is tuple else 0
    if own and (not each or len(own[0]) % len(rows)):
        return [], []
    parts: list[Steps] = []
    wrong: list[int] = []
    for at, row in enumerate(rows):
        times = [own[0][at * each : (at + 1) * each]] if own else []
        try:
            one = _steps((kind, generation, count(first) + at, base, (row,), *times))
        except ProtocolError:
            wrong.append(first + at)
            continue
        if parts and parts[-1].first_step + len(parts[-1].rows) == one.first_step:
            one = Steps(one.generation, parts[-1].first_step, one.base_ns, (*parts.pop().rows, *one.rows))
        parts.append(one)
    return parts, wrong


def _steps_fields(fields: Any) -> tuple[int, int, int, tuple[Any, ...], Iterable[OwnTime | None]]:
    """Generation, first step, base, rows, and the rows' own times; the rows are not checked."""
    if type(fields) is not tuple or not 5 <= len(fields) <= 6 or fields[0] != Type.STEPS:
        raise ProtocolError("STEPS has not 5 or 6 fields")
    rows = fields[4]
    if type(rows) is not tuple or not 0 < len(rows) <= limits.MAX_ROWS:
        raise ProtocolError(f"STEPS has not 1 to {limits.MAX_ROWS} rows")
    own = _own_times(fields[5], len(rows)) if len(fields) == 6 else repeat(None, len(rows))
    return count(fields[1]), count(fields[2]), ns(fields[3]), rows, own


def _own_times(values: Any, rows: int) -> list[OwnTime | None]:
    """One for each row. `values`: the rows' integers one after the other, at least LEAST_OWN of each row."""
    if type(values) is not tuple or len(values) % rows or len(values) < LEAST_OWN * rows:
        raise ProtocolError("the rows' own times are not as many integers of each row")
    if set(map(type, values)) != {int}:
        raise ProtocolError("an own time is not an integer")
    each = len(values) // rows
    known = [values[i : i + min(each, _OWN)] for i in range(0, len(values), each)]
    lowest = min(map(min, known))
    if max(map(max, known)) > limits.MAX_US or lowest < -1:
        raise ProtocolError("an own time is out of range")
    if lowest < 0 and any(min(own[1:LEAST_OWN]) < 0 for own in known):
        raise ProtocolError("an own time is negative")
    return [OwnTime(*own) for own in known]


def _check_rows(rows: Sequence[Any]) -> None:
    if set(map(type, rows)) != {tuple}:
        raise ProtocolError("a row is no row")
    if any(length < _ROW_HEAD or (length - _ROW_HEAD) % _CELL for length in set(map(len, rows))):
        raise ProtocolError("a row is no row")
    if not set(map(type, map(itemgetter(_LOSS), rows))) <= {float, type(None)}:
        raise ProtocolError("loss: no float")
    # One pass in C over all the integers; only -1, which few fields may be, needs a second check.
    integers = list(chain.from_iterable([row[:_LOSS] + row[_ROW_HEAD:] for row in rows]))
    if set(map(type, integers)) != {int}:
        raise ProtocolError("a row holds something else than integers")
    lowest = min(integers)
    if lowest < -1 or max(integers) > limits.MAX_US:
        raise ProtocolError("a row's number is out of range")
    if lowest < 0:
        _check_unknowns(rows)
    numbers = list(chain.from_iterable([row[_ROW_HEAD::_CELL] for row in rows]))
    if numbers and max(numbers) >= limits.MAX_BUCKETS:
        raise ProtocolError("a bucket number is out of range")


def _check_unknowns(rows: Sequence[tuple[int, ...]]) -> None:
    """-1 stands for "did not happen" in the three `*_at_us` and for "not known" in the end of a cell."""
    for row in rows:
        known = row[:_FIRST_AT] + row[_AFTER_AT:_LOSS] + row[_ROW_HEAD::_CELL] + row[_ROW_HEAD + 1 :: _CELL]
        if min(known) < 0:
            raise ProtocolError("a row's number is negative")
