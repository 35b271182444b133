"""Encoded STEPS messages in columns (`step_words.py`) and readings, many read together."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.protocol import limits
from ddptop.protocol.checks import ADDED, CHECKS, CODES, Check, ProtocolError
from ddptop.protocol.codec import checked_values, columns_alike, decode_steps
from ddptop.protocol.hosts import About
from ddptop.protocol.message_run import Readings, StepMessages
from ddptop.protocol.messages import Type
from ddptop.protocol.packed import Bodies, constant, is_constant
from ddptop.protocol.step_columns import columns_of_words
from ddptop.protocol.step_words import FIELDS, LEAST_WIDTH, WORD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.protocol.messages import Message

    Integers = NDArray[np.int64]

_ARRAY = 0x90
"""Of at most 15 elements: plus how many they are, the first byte."""


def decode_step_messages(bodies: Bodies) -> StepMessages:
    """STEPS messages in columns, checked as `codec.decode` checks each.

    Raises ProtocolError where one of them is in rows, or is invalid: `codec.decode` shows which one.
    """
    _check_sizes(bodies)
    try:
        return _step_messages(bodies)
    except IndexError as error:
        raise ProtocolError(f"no STEPS in columns: {error}") from error


def _check_sizes(bodies: Bodies) -> None:
    if not len(bodies.sizes) or bodies.sizes.max() > limits.MAX_RANK_MESSAGE_BYTES:
        raise ProtocolError("not messages of an allowed size")


def _step_messages(bodies: Bodies) -> StepMessages:
    fields = bodies.fields(_ARRAY + FIELDS, int(Type.STEPS))
    generation, first, base_ns = fields.integers(), fields.integers(), fields.integers()
    for column, most in ((generation, limits.MAX_STEP), (first, limits.MAX_STEP), (base_ns, limits.MAX_NS)):
        if column.min() < 0 or column.max() > most:
            raise ProtocolError("a number of STEPS is out of range")
    sizes = fields.lengths()
    words = fields.ahead()
    fields.skip(sizes)
    rows, width = fields.integers(), fields.integers()
    if not bodies.end_at(fields.at) or rows.min() < 1 or rows.max() > limits.MAX_ROWS:
        raise ProtocolError("STEPS has not its rows and a width")
    if width.min() < LEAST_WIDTH or (sizes % WORD).any() or (sizes // WORD // width < rows).any():
        raise ProtocolError("the words of STEPS are not as many columns")
    alike = (sizes << 32) + (rows << 16) + width  # each of them is below 2**16
    parts, begin, begins = [], 0, np.empty(len(rows), np.int64)
    for one in np.unique(alike).tolist():
        places, number = np.flatnonzero(alike == one), one >> 16 & 0xFFFF
        parts.append((words.rows(one >> 32, places), number, one & 0xFFFF))
        begins[places] = begin + number * np.arange(len(places))
        begin += number * len(places)
    return StepMessages(generation, first, base_ns, begins, rows, columns_of_words(parts))


def step_messages(bodies: Bodies) -> StepMessages | None:
    """STEPS messages of any version; None where there is none, or one of them is invalid: each is to be
    decoded alone then."""
    if not len(bodies.sizes):
        return None
    with suppress(ProtocolError):
        return decode_step_messages(bodies)
    with suppress(ProtocolError):  # earlier versions sent them in rows
        return StepMessages.of(decode_steps(bodies.single()))
    return None


def readings_of(kind: type[Message], places: Integers, bodies: Bodies) -> Readings | None:
    """Messages of one of COLUMNS; None where one of them is invalid, as `step_messages`."""
    with suppress(ValueError, IndexError, OverflowError):
        return Readings(kind, places, _columns(kind, bodies))
    with suppress(ProtocolError, OverflowError):  # of the usual types are not all of their fields
        return Readings(kind, places, tuple(columns_alike(kind, bodies.single(), _column)))
    return None


def about_columns(bodies: Bodies) -> tuple[Integers, Integers, Bodies]:
    """Rank, session and body of ABOUT messages. Raises ProtocolError where one of them is not valid."""
    try:
        _check_sizes(bodies)
        checks = CHECKS[About]
        fields = bodies.fields(_ARRAY + 1 + len(checks), int(Type.ABOUT))
        rank, session = (_column(fields.integers(), check) for check in checks[:2])
        sizes = fields.lengths()
        inner = Bodies(bodies.data, fields.at, sizes)
        fields.skip(sizes)
    except IndexError as error:
        raise ProtocolError(f"no ABOUT: {error}") from error
    if not bodies.end_at(fields.at):
        raise ProtocolError("ABOUT has another number of fields")
    return rank, session, inner


def _columns(kind: type[Message], bodies: Bodies) -> tuple[NDArray[Any], ...]:
    """The fields of these messages, as far as all are numbers, texts and None."""
    _check_sizes(bodies)
    checks = CHECKS[kind]
    sent = int(bodies.data[bodies.begins[0]]) - _ARRAY - 1  # as many as its version has, in all of them
    if not len(checks) - ADDED.get(kind, 0) <= sent <= len(checks):
        raise ProtocolError(f"{kind.__name__} has another number of fields")
    defaults = _DEFAULTS[kind][sent - len(checks) :] if sent < len(checks) else []
    packed = bodies.fields(_ARRAY + 1 + sent, int(CODES[kind]))
    columns = [_column(packed.values(), check) for check in checks[:sent]]
    if not bodies.end_at(packed.at):
        raise ProtocolError(f"{kind.__name__} has another number of fields")
    return (*columns, *(_objects([default] * len(bodies.sizes)) for default in defaults))


_DEFAULTS = {kind: [field.default for field in fields(kind)[-added:]] for kind, added in ADDED.items()}
"""Of the fields that earlier versions did not send."""


def _column(values: Sequence[Any] | NDArray[Any], check: Check) -> NDArray[Any]:
    """As `checked_values`, in less time where all are numbers."""
    if isinstance(values, np.ndarray) and is_constant(values):
        value = check(values[0])
        return values if value is values[0] else constant(value, len(values))
    single = values.tolist() if isinstance(values, np.ndarray) and values.dtype == object else values
    if not isinstance(single, np.ndarray):
        types = set(map(type, single))
        if types != {int} and types != {float}:
            return _objects(checked_values(single, check))
        single = np.fromiter(single, types.pop(), len(single))
    least, _ = check(single.min().item()), check(single.max().item())  # what is between them is right
    return single.astype(type(least), copy=False)


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    """As numbers where all are."""
    types = set(map(type, values))
    plain = {int: np.int64, float: np.float64}.get(types.pop()) if len(types) == 1 else None
    return np.array(values, plain) if plain else np.fromiter(values, object, len(values))
