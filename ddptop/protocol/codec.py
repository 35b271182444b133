"""Messages as bytes, and the answers that a rank reads: what a training process needs of the protocol.

A message is one msgpack array, `[Type, field, ...]` with the fields in the order of `messages.py`;
`decoding.py` reads them all. STEPS has two forms. Ranks send it in columns (`step_words.py`). In rows it is
sent where a number does not fit: one flat array for each row, its fields in order, with the cells spliced in
at the end. After the rows come the fields of their `OwnTime`, as one flat array; a later version may send
more of each, which are skipped. What earlier versions do not send, `earlier_steps.py` fills in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import TypeVar, cast

import msgpack

from ddptop.protocol import limits, step_words
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.evidence import Ask
from ddptop.protocol.messages import (
    CODES,
    NAMES,
    Ack,
    Bucket,
    Hello,
    Message,
    Steps,
)

_Item = TypeVar("_Item")


_NUMBERS = {int, float, bool, type(None)}


def _fields_of(names: tuple[str, ...]) -> Callable[[Message], tuple[object, ...]]:
    """Gives the values of these fields of a message."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda message: (get(message),)


_FIELDS = {kind: _fields_of(names) for kind, names in NAMES.items()}


def encode(message: Message) -> bytes:
    """The message as bytes.

    Text is cut to MAX_TEXT characters, a list or map of texts to MAX_CARD entries and half of a message:
    long arguments must not stop a rank from reporting. Numbers are not checked here; `decode`
    refuses those out of range.
    """
    if isinstance(message, Steps):
        # Rows are only for steps that do not fit in columns, as those with a number of more than 32 bits.
        plain: object = step_words.in_columns(message) or _in_rows(message)
    else:
        kind = type(message)
        values = _FIELDS[kind](message)
        # Most messages are numbers alone: a call for each field would be most of what a heartbeat takes.
        plain = (CODES[kind], *(values if {*map(type, values)} <= _NUMBERS else map(_cut_texts, values)))
    # What the file system calls a name need not be valid text.
    return cast(bytes, msgpack.packb(plain, unicode_errors="replace"))


def _in_rows(steps: Steps) -> tuple[object, ...]:
    """The fields of STEPS in rows."""
    rows = [row[: step_words.HEAD] + row.cells for row in steps.rows]
    own_times = [number for row in steps.rows for number in row.own]
    return (CODES[Steps], steps.generation, steps.first_step, steps.base_ns, rows, own_times)


def _cut_texts(value: object) -> object:
    """The value with its text cut to what `decode` takes."""
    if isinstance(value, str):
        return value[: limits.MAX_TEXT]
    if isinstance(value, dict):
        return dict(_first_that_fit((_cut_texts(key), _cut_texts(item)) for key, item in value.items()))
    # Buckets and integers have limits of their own (MAX_BUCKETS, MAX_MEMBERS), which are above MAX_CARD.
    if isinstance(value, tuple) and not (value and isinstance(value[0], (Bucket, int))):
        return list(_first_that_fit(_cut_texts(item) for item in value))
    return value


def _first_that_fit(items: Iterable[_Item]) -> Iterator[_Item]:
    """The first items of a list or map, as many as have room in a message."""
    # Half of a message, so that its other fields fit beside the list.
    room = limits.MAX_RANK_MESSAGE_BYTES // 2
    for item in islice(items, limits.MAX_CARD):
        room -= len(msgpack.packb(item, unicode_errors="replace"))
        if room < 0:
            return
        yield item


def decode_answer(data: bytes) -> Ack | Ask:
    """What the collector, or the agent of the host, sends to a rank. Raises ProtocolError for anything else.

    As `decoding.decode`, which a training process does without.
    """
    try:
        # No text, map or bytes in any answer: what a hostile process sends allocates nothing here.
        code, *fields = msgpack.unpackb(
            data, max_str_len=0, max_bin_len=0, max_array_len=8, max_map_len=0, max_ext_len=0
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"no msgpack message: {error}") from error
    if code == CODES[Ask] and [*map(type, fields)] == [int] and 0 <= fields[0] < 2**63:
        return Ask(*fields)
    if code != CODES[Ack] or [*map(type, fields)] != [int, int, bool, int]:
        raise ProtocolError("neither ACK nor ASK")
    # `type` and not `isinstance` above: a bool is an int, and must not pass for a number.
    epoch, seq, _, detail_every = fields
    if not (0 <= epoch < 2**63 and 0 <= seq <= limits.MAX_STEP and 1 <= detail_every <= limits.MAX_STEP):
        raise ProtocolError("a number is out of range")
    return Ack(*fields)


def hello_head(hello: bytes) -> tuple[int, int]:
    """Session and rank of a HELLO that this process has encoded."""
    code, _, _, session, rank, *_ = msgpack.unpackb(hello)
    if code != CODES[Hello]:
        raise ValueError(f"hello() gave a message of type {code}")
    return session, rank
