"""Checks of single fields that came from outside: each returns the value, or raises ProtocolError."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

from ddptop.protocol.limits import MAX_CARD, MAX_TEXT
from ddptop.protocol.messages import Scalar

Check: TypeAlias = "Callable[[object], object]"


class ProtocolError(ValueError):
    """A message that is not as `messages.py` says: wrong length, type or range. It is refused as a whole."""


def integer(low: int, high: int) -> Callable[[object], int]:
    """An integer in low..high, both included. A bool is none."""

    def check(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise ProtocolError(f"no integer in {low}..{high}")
        return value

    return check


def number(low: float, high: float) -> Callable[[object], float]:
    """A finite number in low..high; msgpack may have written it as an integer."""

    def check(value: object) -> float:
        # NaN fails the comparison, which is what is wanted.
        if type(value) not in (int, float) or not low <= value <= high:  # type: ignore[operator]
            raise ProtocolError(f"no number in {low}..{high}")
        return float(value)  # type: ignore[arg-type]

    return check


def text(value: object) -> str:
    """Text of at most MAX_TEXT characters, made safe to show on a terminal."""
    if type(value) is not str or len(value) > MAX_TEXT:
        raise ProtocolError(f"no text of at most {MAX_TEXT} characters")
    return value if value.isprintable() else printable(value)


def printable(value: str) -> str:
    """Without control, escape and bidirectional characters; a line break or tab becomes a space.

    >>> printable("a" + chr(27) + "[2Jb")
    'a[2Jb'
    """
    spaced = (" " if char.isspace() else char for char in value)
    return "".join(char for char in spaced if char.isprintable())


def flag(value: object) -> bool:
    """A bool, and nothing that merely counts as one."""
    if type(value) is not bool:
        raise ProtocolError("no bool")
    return value


def optional(check: Check) -> Check:
    """None, or what `check` takes."""
    return lambda value: None if value is None else check(value)


def one_of(*words: str) -> Callable[[object], str]:
    """One of these words."""

    def check(value: object) -> str:
        if type(value) is not str or value not in words:
            raise ProtocolError(f"none of {', '.join(words)}")
        return value

    return check


def texts(value: object) -> tuple[str, ...]:
    """A list of at most MAX_CARD texts."""
    if type(value) is not tuple or len(value) > MAX_CARD:
        raise ProtocolError(f"no list of at most {MAX_CARD} texts")
    return tuple(text(item) for item in value)


def scalars(value: object) -> dict[str, Scalar]:
    """A map of at most MAX_CARD texts to scalars; numbers finite, integers within 64 bits."""
    if type(value) is not dict or len(value) > MAX_CARD:
        raise ProtocolError(f"no map of at most {MAX_CARD} entries")
    return {text(key): _scalar(item) for key, item in value.items()}


def _scalar(value: object) -> Scalar:
    if value is None or type(value) is bool:
        return value
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    return text(value)
