"""What `decode` expects of every message but STEPS: a check for each field, in the fields' order."""

from __future__ import annotations

from typing import Any

from ddptop.protocol import limits
from ddptop.protocol.checks import (
    Check,
    ProtocolError,
    flag,
    integer,
    number,
    one_of,
    optional,
    scalars,
    text,
    texts,
)
from ddptop.protocol.messages import (
    Ack,
    Bucket,
    Bye,
    Card,
    Credit,
    Event,
    Hello,
    Layout,
    Message,
    Phase,
    Progress,
    Run,
    State,
    Type,
    Usage,
)

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
_pid = integer(0, 2**32)
_exit_code = integer(-(2**31), 2**32)
_state = one_of("live", "finished", "failed")
# Costs and loads have no natural ceiling; beyond this they are nonsense.
_quantity = number(0.0, 1e12)


def _frame(value: object) -> bytes:
    if type(value) is not bytes:
        raise ProtocolError("no bytes")
    return value


def _buckets(value: object) -> tuple[Bucket, ...]:
    if type(value) is not tuple or len(value) > limits.MAX_BUCKETS:
        raise ProtocolError(f"no list of at most {limits.MAX_BUCKETS} buckets")
    return tuple(Bucket._make(checked(Bucket._fields, _BUCKET, item)) for item in value)


_BUCKET: tuple[Check, ...] = (_number, _number, _bytes, optional(_bytes), optional(count), text, text)

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
    Bye: (ns, text),
    Run: (_version, text, text, text, texts, ns, ns, _state, optional(_exit_code), flag),
    Credit: (_identifier, count, _rank_or_group),
    State: (_identifier, count, _frame),
    Usage: (ns, _bytes, _quantity),
}  # fmt: skip
"""STEPS, which must be fast, is checked by the codec itself."""

CODES: dict[type[Message], Type] = {kind: Type[kind.__name__.upper()] for kind in CHECKS}
KINDS: dict[int, type[Message]] = {int(code): kind for kind, code in CODES.items()}
NAMES: dict[type[Message], tuple[str, ...]] = {kind: tuple(kind.__dataclass_fields__) for kind in CHECKS}


def checked(names: tuple[str, ...], checks: tuple[Check, ...], fields: object) -> list[Any]:
    """The fields as the checks return them. Raises ProtocolError, naming the field that is wrong."""
    if type(fields) is not tuple or len(fields) != len(checks):
        raise ProtocolError(f"not {len(checks)} fields")
    values = []
    for name, check, field in zip(names, checks, fields, strict=True):
        try:
            values.append(check(field))
        except ProtocolError as error:
            raise ProtocolError(f"{name}: {error}") from None
    return values
