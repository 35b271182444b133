"""What `decode` accepts: a check for each field of every message but STEPS, which the codec checks itself.

A check returns the value of a field that came from outside, or raises ProtocolError.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ddptop.protocol import limits
from ddptop.protocol.evidence import Ask, Evidence, GroupState, Operation, Stack, StackFrame
from ddptop.protocol.hosts import MAX_LINKS, About, Host, HostLink, HostUsage
from ddptop.protocol.limits import MAX_CARD, MAX_TEXT
from ddptop.protocol.machine import Gpu, Memory, Usage
from ddptop.protocol.messages import (
    Ack,
    Bucket,
    Bye,
    Card,
    Clock,
    Credit,
    Event,
    Hello,
    Layout,
    Logged,
    Membership,
    Message,
    Phase,
    Progress,
    Replica,
    Run,
    Scalar,
    State,
    Type,
)

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
        # NaN fails the comparison, as it must.
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


def one_of(*values: str) -> Callable[[object], str]:
    """One of these texts."""

    def check(value: object) -> str:
        if type(value) is not str or value not in values:
            raise ProtocolError(f"none of {', '.join(values)}")
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


count = integer(0, limits.MAX_STEP)
"""Of steps, records, failures: anything that counts from 0."""
ns = integer(0, limits.MAX_NS)
"""A clock reading."""

_count_or_none = integer(-1, limits.MAX_STEP)
_every = integer(1, limits.MAX_STEP)
_bytes = integer(0, limits.MAX_BYTES)
_rank = integer(0, limits.MAX_WORLD - 1)
_rank_or_group = integer(-1, limits.MAX_WORLD - 1)
_world = integer(1, limits.MAX_WORLD)
_number = integer(0, limits.MAX_BUCKETS - 1)
_phase = integer(min(Phase), max(Phase))
_identifier = integer(0, 2**63 - 1)
_version = integer(0, 65_535)
_pid = integer(0, 2**31 - 1)  # what the kernel takes for one
_exit_code = integer(-(2**31), 2**32)
_state = one_of("live", "finished", "failed")
# Costs and loads have no natural ceiling; beyond this they are nonsense.
_quantity = number(0.0, 1e12)


def _frame(value: object) -> bytes:
    if type(value) is not bytes:
        raise ProtocolError("no bytes")
    return value


def _list_of(kind: Any, most: int, *checks: Check) -> Check:
    """A list of at most `most` items, each with the fields of the NamedTuple `kind`; those with a default may
    be missing."""
    added = len(kind._field_defaults)

    def check(value: object) -> tuple[Any, ...]:
        if type(value) is not tuple or len(value) > most:
            raise ProtocolError(f"no list of at most {most} items of {kind.__name__}")
        return tuple(kind(*checked(kind._fields, checks, item, added=added)) for item in value)

    return check


def _integers(most: int, one: Callable[[object], int]) -> Check:
    """A list of at most `most` integers."""

    def check(value: object) -> tuple[int, ...]:
        if type(value) is not tuple or len(value) > most:
            raise ProtocolError(f"no list of at most {most} integers")
        return tuple(one(item) for item in value)

    return check


_buckets = _list_of(
    Bucket, limits.MAX_BUCKETS, _number, _number, _bytes, optional(_bytes), optional(count), text, text
)
_groups = _list_of(GroupState, limits.MAX_OPERATIONS, text, text, count, _count_or_none, _count_or_none)
_frames = _list_of(StackFrame, limits.MAX_DEPTH, text, count, text, text)
_stacks = _list_of(Stack, limits.MAX_STACKS, text, flag, _frames)
_operations = _list_of(Operation, limits.MAX_OPERATIONS, text, _count_or_none, text, text, text, flag, count)
_members = _integers(limits.MAX_MEMBERS, _rank)
_checksums = _integers(limits.MAX_CHECKSUMS, integer(-(2**63), 2**63 - 1))
_links = _list_of(HostLink, MAX_LINKS, text, text, count, *[_bytes] * 6)
_offset = integer(-limits.MAX_NS, limits.MAX_NS)

CHECKS: dict[type[Message], tuple[Check, ...]] = {
    Hello: (
        _version, text, _identifier, _rank, _world, _rank, count, text, _pid, text, text, text, ns, ns,
        _quantity,
    ),
    Event: (text, ns, _rank_or_group, _count_or_none, scalars),
    Ack: (_identifier, count, flag, _every),
    Layout: (count, _buckets),
    Card: (scalars,),
    Progress: (ns, count, _phase, _count_or_none, _count_or_none, _every, _quantity, _quantity, count),
    Bye: (ns, text, _count_or_none),
    Run: (_version, text, text, text, texts, ns, ns, _state, optional(_exit_code), flag),
    Credit: (_identifier, count, _rank_or_group, text),
    State: (_identifier, count, _frame),
    Usage: (
        ns, _bytes, _quantity, optional(_quantity), optional(count), optional(count), optional(_quantity),
        optional(_quantity), optional(_bytes), *[optional(_quantity)] * 4,
        optional(count),
    ),
    Ask: (_identifier,),
    Evidence: (ns, _identifier, count, _phase, _count_or_none, text, _groups, _stacks, _operations, texts),
    Replica: (count, _number, count, count, _checksums),
    Clock: (ns, text, _offset, ns, integer(-(10**9), 10**9), ns),
    Membership: (_number, text, text, _members),
    Gpu: (
        *(optional(check) for check in (_quantity, _bytes, _bytes, _quantity, _quantity, count, count)),
        optional(text), *(optional(check) for check in (_bytes, _bytes, count, count)), ns,
    ),
    Memory: (ns, _bytes, _bytes, _bytes, count),
    Logged: (count, scalars),
    Host: (_version, text, _identifier, text, _pid, ns, ns, count, _bytes, text, texts),
    HostUsage: (
        ns, optional(_quantity), optional(_bytes), optional(_quantity), optional(_quantity), optional(ns),
        count, optional(text), count, optional(_links),
    ),
    About: (_rank, _identifier, _frame),
}  # fmt: skip
"""STEPS, which must be fast, is checked by the codec itself."""

ADDED: dict[type[Message], int] = {Clock: 2, Usage: 11, Host: 1, HostUsage: 1, Evidence: 1, Bye: 1}
"""Fields at the end that earlier versions did not send: they have defaults."""

CODES: dict[type[Message], Type] = {kind: Type[kind.__name__.upper()] for kind in CHECKS}
KINDS: dict[int, type[Message]] = {int(code): kind for kind, code in CODES.items()}
NAMES: dict[type[Message], tuple[str, ...]] = {kind: tuple(kind.__dataclass_fields__) for kind in CHECKS}


def checked(
    names: tuple[str, ...], checks: tuple[Check, ...], fields: object, *, added: int = 0
) -> list[Any]:
    """The fields as the checks return them, of which the last `added` may be missing.

    Raises ProtocolError, naming the field that is wrong.
    """
    if type(fields) is not tuple or not len(checks) - added <= len(fields) <= len(checks):
        raise ProtocolError(f"not {len(checks)} fields")
    values = []
    for name, check, field in zip(names, checks, fields, strict=False):
        try:
            values.append(check(field))
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from None
    return values
