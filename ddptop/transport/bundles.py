"""Frames of the link between a host's agent and the collector: what many ranks sent, and what is answered.

Agent to collector, BUNDLE: msgpack [64, t0, heads, bodies]. `heads` are columns of little-endian numbers, one
entry each (`HEAD_COLUMNS`), `bodies` the entries' messages one after the other, as the ranks encoded them.
An entry is (session, rank, seq, back, body): rank -1 is the agent itself. seq 0 is not acked (HELLO, HOST,
heartbeats). `back` says which message the session's sender kept before this one: number `seq - back`, or
none with 0, and then nothing before it will ever come.

Collector to agent, REPLY: msgpack [65, epoch, detail_every, thin, window, t0, t1, t2, acks, nacks, asks], the
last three as columns of numbers too: (session, seq), (session), (session, number of the ASK).
t0: when the newest bundle was sent, t1: when it was read, t2: when the reply was sent. 0: none is echoed.
A bundle without entries compares clocks, and is answered at once; others are when what they hold is recorded.

Columns cost no Python for each number to read, and hostile ones no more memory than their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import msgpack

from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_NS, MAX_RANK_MESSAGE_BYTES, MAX_STEP

BUNDLE, REPLY = 64, 65
"""First element of the two frames: above the numbers of `messages.Type`."""

MAX_BUNDLE_BYTES = 1 << 20
"""A sender begins a new bundle before its bodies exceed this; the last one may, by one message."""

MAX_ENTRIES = 16_384
"""Entries of a bundle at most: with heads and bodies it takes MAX_WIRE_BYTES at most."""

HEAD_COLUMNS = (("sessions", "<i8"), ("seqs", "<i8"), ("ranks", "<i4"), ("backs", "<u4"), ("lengths", "<u4"))
"""The columns of the heads, one after the other."""
HEAD_BYTES = 8 + 8 + 4 + 4 + 4
"""Bytes of the head of an entry. A whole bundle without entries is shorter."""

MAX_WIRE_BYTES = MAX_BUNDLE_BYTES + MAX_RANK_MESSAGE_BYTES + MAX_ENTRIES * HEAD_BYTES + 64

MAX_REPLY_BYTES = 1 << 20

MAX_THIN = 16
"""Steps of thinning that a collector can ask for."""

WINDOW_BYTES = (128 << 10, 4 << 20)
"""Least and most that an agent may have sent and not acked: it is sent twice after an interruption, and fills
the collector's memory when hundreds of agents come back at the same moment. The least holds before the
collector has answered."""

INTRODUCE = 0
"""In the nacks of a reply, in place of a session: the collector does not know the agent. It begins again."""


class BundleEntry(NamedTuple):
    """One message in a bundle."""

    session: int
    rank: int
    """-1: the agent itself."""
    seq: int
    back: int
    """How many numbers before `seq` the session's message before this one is; 0: there is none any more."""
    body: bytes


class Reply(NamedTuple):
    """What the collector answers."""

    epoch: int
    """Random number of the collector process: a new one means that it restarted."""
    detail_every: int
    """The largest sampling interval of the group, for all ranks to share the same detailed steps."""
    thin: int
    """How far the agent is to thin out bucket detail; 0: not at all."""
    window_bytes: int
    """How much the agent may have sent and not acked."""
    t0_ns: int
    """When the agent sent its newest bundle, by its clock; 0: no bundle is echoed."""
    t1_ns: int
    """When that bundle was read, by the collector's clock."""
    t2_ns: int
    """When this was sent, by the collector's clock."""
    acks: tuple[tuple[int, int], ...] = ()
    """(session, number): the session is recorded up to it."""
    nacks: tuple[int, ...] = ()
    """Sessions of which something is missing: to be sent again, HELLO first."""
    asks: tuple[tuple[int, int], ...] = ()
    """(session, number of the ASK)."""


def pack_bundle(t0_ns: int, entries: Sequence[BundleEntry]) -> bytes:
    """The frame of a bundle; the caller keeps to its limits."""
    n = len(entries)
    # Without entries `zip` would give nothing to unpack: such a bundle compares clocks.
    sessions, ranks, seqs, backs, bodies = zip(*entries, strict=True) if n else ((), (), (), (), ())
    heads = struct.pack(_heads_format(n), *sessions, *seqs, *ranks, *backs, *map(len, bodies))
    return cast(bytes, msgpack.packb((BUNDLE, t0_ns, heads, b"".join(bodies))))


def sent_ns(data: bytes) -> int:
    """When a bundle without entries was sent, by the agent's clock. Raises ProtocolError."""
    t0_ns, heads, bodies = _unpack_fields(data, BUNDLE, 4, HEAD_BYTES)
    if not _is_time(t0_ns) or heads != b"" or bodies != b"":
        raise ProtocolError("not a bundle's fields")
    return cast(int, t0_ns)


def pack_columns(head: tuple[int, ...], acks: bytes, nacks: bytes, asks: bytes) -> bytes:
    """The frame of a reply whose columns are encoded; `head`: the fields before them."""
    return cast(bytes, msgpack.packb((REPLY, *head, acks, nacks, asks)))


def unpack_reply(data: bytes) -> Reply:
    """The reply in a frame, checked. Raises ProtocolError."""
    epoch, every, thin, window, *times_and_columns = _unpack_fields(data, REPLY, 11, MAX_REPLY_BYTES)
    (t0_ns, t1_ns, t2_ns), columns = times_and_columns[:3], times_and_columns[3:]
    if any(type(number) is not int for number in (epoch, every, thin, window)):
        raise ProtocolError("not a reply's fields")
    if not (0 <= epoch < 2**63 and 1 <= every < MAX_STEP and 0 <= thin <= MAX_THIN and 0 < window < 2**40):
        raise ProtocolError("a number of a reply is out of range")
    if not all(map(_is_time, (t0_ns, t1_ns, t2_ns))):
        raise ProtocolError("a time of a reply is out of range")
    acks, nacks, asks = map(_unpack_numbers, columns)
    if len(acks) % 2 or len(asks) % 2:
        raise ProtocolError("a pair is incomplete")
    pairs = (tuple(zip(numbers[::2], numbers[1::2], strict=True)) for numbers in (acks, asks))
    return Reply(epoch, every, thin, window, t0_ns, t1_ns, t2_ns, next(pairs), nacks, next(pairs))


def _heads_format(n: int) -> str:
    """Sessions, numbers, ranks, backs, lengths of the bodies."""
    return f"<{n}q{n}q{n}i{n}I{n}I"


def _unpack_fields(data: bytes, kind: int, n_fields: int, most_bytes: int) -> list[Any]:
    """The fields of a frame after its first, which is `kind`; each is an integer or bytes."""
    if len(data) > most_bytes:
        raise ProtocolError(f"frame of {len(data)} bytes")
    try:
        # Limits before anything is made of the bytes: a few of them may claim a gigabyte.
        fields = msgpack.unpackb(
            data, max_bin_len=len(data), max_array_len=n_fields, max_str_len=0, max_map_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise ProtocolError(f"no msgpack frame: {error}") from error
    if type(fields) is not list or len(fields) != n_fields or fields[0] != kind:
        raise ProtocolError(f"not a frame of type {kind}")
    return fields[1:]


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value <= MAX_NS


def _unpack_numbers(column: object) -> tuple[int, ...]:
    if type(column) is not bytes or len(column) % 8:
        raise ProtocolError("not a column of numbers")
    numbers = struct.unpack(f"<{len(column) // 8}q", column)
    if numbers and min(numbers) < 0:
        raise ProtocolError("a number is negative")
    return numbers
