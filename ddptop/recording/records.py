"""Messages as records of a block, and back; single blocks of a file are read here, and damage counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Annotated, Any, TypeAlias, cast

import msgpack
import msgspec

from ddptop.protocol.decoding import UNDECODABLE, converter_to, decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_NS, MAX_RANK_MESSAGE_BYTES, MAX_STEP, MAX_WORLD
from ddptop.protocol.messages import (
    CODES,
    NAMES,
    Clock,
    Layout,
    Membership,
    Message,
    Received,
    Steps,
    message_code,
    select_kinds,
)
from ddptop.recording.format import (
    BLOCK,
    CLOCKS,
    COPY,
    MAX_PAYLOAD,
    MAX_RAW,
    NO_STEP,
    SUMMARY_BYTES,
    BlockEntry,
    BlockSummary,
    RecordingError,
    block_records,
    copy_content,
    read_corrected,
    read_frame,
    walk_frames,
)

PASSING = select_kinds(lambda traits: traits.is_passing)
_PASSING_CODES = frozenset(map(CODES.__getitem__, PASSING))

COPY_WITHIN = 16
"""A COPY is written behind the block after the one that it is of: so many frames later at most."""

ESSENTIAL = select_kinds(lambda traits: traits.is_essential)

Selector: TypeAlias = "Callable[[int], bool]"
"""Whether messages of the class of this code are requested."""


def pack_record(received: Received, body: bytes) -> bytes:
    """A message as a record of a block."""
    return cast(bytes, msgpack.packb((*received[:4], body)))


class BlockBuilder:
    """Records on their way to a block."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin the next block."""
        self.bytes = 0
        self._parts: list[bytes | memoryview] = []
        self._essential: list[bytes] = []
        self._records = self._first_ns = self._last_ns = 0
        self._first_step = self._last_step = NO_STEP
        self._lasting = 0

    @property
    def first_ns(self) -> int:
        """When the oldest record arrived."""
        return self._first_ns

    @property
    def last_ns(self) -> int:
        """When the newest record arrived; 0: there is none."""
        return self._last_ns

    def add(self, received: Received, body: bytes) -> None:
        """Add a record."""
        if not self._parts:
            # Messages of other hosts are read together, and so may be taken after one that arrived later.
            self._first_ns = self._last_ns = received.t_ns
        self._last_ns = max(self._last_ns, received.t_ns)
        message = received.message
        if isinstance(message, Steps):
            self._note_steps(message.first_step, message.first_step + len(message.rows) - 1)
        elif not isinstance(message, PASSING):
            self._lasting += CLOCKS if isinstance(message, Clock) else 1
        record = pack_record(received, body)
        self._parts.append(record)
        self._records += 1
        if isinstance(message, ESSENTIAL):
            self._essential.append(record)
        self.bytes += len(record)

    def add_passing(self, part: BlockSummary, records: memoryview) -> None:
        """Add PASSING and CLOCK messages, whose records these are, as `add` does each; `part`: the summary of
        a block with them alone."""
        self._first_ns = self._first_ns if self._parts else part.first_ns
        self._last_ns = max(self._last_ns if self._parts else 0, part.last_ns)
        if part.first_step != NO_STEP:
            self._note_steps(part.first_step, part.last_step)
        self._lasting += part.lasting
        self._parts.append(records)
        self._records += part.records
        self.bytes += len(records)

    def _note_steps(self, first: int, last: int) -> None:
        self._first_step = first if self._first_step == NO_STEP else min(first, self._first_step)
        self._last_step = max(last, self._last_step)

    @property
    def essential_records(self) -> bytes:
        """The records of the block that are to be stored twice."""
        return b"".join(self._essential)

    def build_block(self) -> tuple[BlockSummary, bytes | memoryview]:
        """The block's summary and its records."""
        times, steps = (self._first_ns, self._last_ns), (self._first_step, self._last_step)
        # One part needs no copy: many messages that arrived together are a single view.
        records = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        return BlockSummary(*times, *steps, self._records, self._lasting), records


def read_block(descriptor: int, entry: BlockEntry) -> tuple[bytes, bool, int]:
    """The records of a block, decompressed; whether it was whole (else a single wrong bit was corrected); and
    how many bytes it takes in the file.

    Raises RecordingError where more is wrong with it, OSError where the file cannot be read.
    """
    frame = read_frame(descriptor, entry.offset)
    whole = frame is not None
    if frame is None:
        frame = read_corrected(descriptor, entry.offset, os.fstat(descriptor).st_size)
    if frame is None or frame.kind != BLOCK or len(frame.payload) < SUMMARY_BYTES:
        raise RecordingError(f"damaged at byte {entry.offset}")
    return block_records(frame.payload), whole, len(frame.payload)


def read_copy(descriptor: int, entry: BlockEntry) -> bytes:
    """The records of a block that are stored twice; none where there is no copy. Raises OSError."""
    end = min(os.fstat(descriptor).st_size, entry.offset + COPY_WITHIN * MAX_PAYLOAD)
    for frame in islice(walk_frames(descriptor, entry.offset, end), COPY_WITHIN):
        if frame.kind == COPY:
            try:
                copied_entry, records = copy_content(frame.payload)
            except RecordingError:
                continue
            # By all of its entry: a file that was cut off and continued may have had another block there.
            if copied_entry == entry:
                return records
    return b""


def parse_records(raw: bytes, selects: Selector, most: int = MAX_RAW) -> Iterator[Received]:
    """The messages among the first `most` records whose type is `selects`; others are not decoded.

    Messages of a type that this version does not know are left out. Raises RecordingError for what no writer
    of ours has made, and where there are more records.
    """
    records, damage = _unpack_records(raw, most)
    whole = _valid_records(records)
    kinds = [message_code(record[-1]) for record in whole]
    selected = {kind for kind in set(kinds) if selects(kind)}
    yield from decode_messages([pair for pair in zip(kinds, whole, strict=True) if pair[0] in selected])
    # After the valid ones were given: a damaged block is worth what comes before the damage.
    if len(whole) < len(records):
        raise RecordingError("a record is no record, or a number of it is out of range")
    if damage is not None:
        raise damage


def record_unpacker(raw: bytes) -> msgpack.Unpacker:
    """An unpacker that yields what is in a block, unchecked; nothing in it can be larger than a record."""
    unpacker = msgpack.Unpacker(
        use_list=False,
        max_buffer_size=max(1, len(raw)),
        max_bin_len=MAX_RANK_MESSAGE_BYTES,
        max_array_len=len(Received._fields),
        # A record is integers and bytes: text or a map in it is damage.
        max_str_len=0,
        max_map_len=0,
        max_ext_len=0,
    )
    unpacker.feed(raw)
    return unpacker


def _unpack_records(raw: bytes, most: int = MAX_RAW) -> tuple[list[tuple[Any, ...]], RecordingError | None]:
    """What is in a block up to the first damage, unchecked, and that damage; `most` records at most."""
    unpacker = record_unpacker(raw)
    records: list[tuple[Any, ...]] = []
    try:
        records.extend(islice(unpacker, most))
    except (ValueError, msgpack.UnpackException) as error:
        return records, RecordingError(f"a block holds something else than records: {error}")
    # A file may claim few records in its index and hold millions in a block.
    if len(records) == most and unpacker.tell() < len(raw):
        return records, RecordingError("a block holds more records than its summary says")
    return records, None


Record: TypeAlias = tuple[int, int, int, int, bytes]
"""t_ns, rank, session, seq, and the encoded message."""

_CheckedRecord = tuple[
    Annotated[int, msgspec.Meta(ge=0, le=MAX_NS)],
    Annotated[int, msgspec.Meta(ge=-1, le=MAX_WORLD - 1)],
    Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)],
    Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)],
    Annotated[bytes, msgspec.Meta(max_length=MAX_RANK_MESSAGE_BYTES)],
]
"""A `Record`, with the limits of its numbers and of its message."""
_LEAST_BYTES = 6
"""Fewest bytes of a record."""
_decode_records = msgspec.msgpack.Decoder(list[_CheckedRecord]).decode
_check_records = converter_to(list[_CheckedRecord])


def whole_records(raw: bytes, count: int) -> list[Record] | None:
    """The records of a block; None where these are not so many, or one of them is none."""
    # Before msgspec makes a list of that length: the number comes from the file.
    if count > len(raw) // _LEAST_BYTES:
        return None
    try:
        # Records stand one after the other; with this head they are one array, which is decoded in C.
        return _decode_records(b"\xdd" + count.to_bytes(4, "big") + raw)  # as one msgpack array
    except UNDECODABLE:
        return None


def decode_messages(records: Sequence[tuple[int, tuple[Any, ...]]]) -> Iterator[Received]:
    """The messages in these (type, record), without those of unknown type or with invalid fields.

    STEPS are decoded together; of equal LAYOUT and MEMBERSHIP only the first one is.
    """
    from ddptop.protocol.step_columns import decode_steps  # numpy: a host's agent needs none

    steps: Iterator[Steps] | None = None
    with suppress(ProtocolError):  # one of them is invalid: each is decoded alone
        steps = iter(decode_steps([record[-1] for kind, record in records if kind == CODES[Steps]]))
    # Each of thousands of ranks sends the same layout, which takes long to decode and much memory.
    same: dict[bytes, Message] = {}
    for kind, (t_ns, rank, session, seq, body) in records:
        message = next(steps) if steps is not None and kind == CODES[Steps] else same.get(body)
        if message is None:
            try:
                message = decode(body)
            except ProtocolError:
                continue
            if isinstance(message, (Layout, Membership)):
                same[body] = message
        # `Received` is a NamedTuple, whose own `__new__` is a Python function: too slow for each message.
        yield tuple.__new__(Received, (t_ns, rank, session, seq, message))


def count_records(raw: bytes) -> int:
    """How many records these are."""
    return sum(1 for _ in parse_records(raw, lambda kind: True)) if raw else 0


def _are_records(unpacked: list[Any]) -> bool:
    """Whether each is a record with numbers in their range."""
    try:
        _check_records(unpacked)
    except UNDECODABLE:
        return False
    return True


def _valid_records(unpacked: list[Any]) -> list[Any]:
    """The records up to the first that is not valid."""
    # Nearly always all are valid, which one call finds.
    if _are_records(unpacked):
        return unpacked
    return [*takewhile(lambda record: _are_records([record]), unpacked)]


LASTING_KEPT = 50_000
"""Lasting messages that stay in memory, some 50 MB at most: 4096 ranks send three each when they join."""


UNPACKED_TIMES = 24
"""Records of our own are compressed to a fourth; those of 512 ranks that differ in nothing to a fifteenth,
and some of their blocks to a twentieth."""
UNPACKED_BYTES = 128 << 20
"""Bytes more that the blocks of a file may unpack to in all: 4,096 ranks that send the same 32 kB of
stacks."""


class TooMuchUnpacked(RecordingError):
    """The file unpacks to more than any writer of ours has packed into so many bytes."""


class UnpackedSize:
    """Adds up what parts of one file unpack to, beyond UNPACKED_TIMES their size."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._excess_of: dict[int, int] = {}
        """By offset, of parts that are larger than that: a recording has few."""
        self.excess_bytes = 0
        """By how much all of them together are larger."""

    def note_part(self, offset: int, packed_bytes: int, unpacked_bytes: int) -> None:
        """Note a part, however often it is read. Raises TooMuchUnpacked past `most_bytes` for the file."""
        excess = unpacked_bytes - UNPACKED_TIMES * packed_bytes
        if excess <= 0 or offset in self._excess_of:
            return
        self._excess_of[offset] = excess
        self.excess_bytes += excess
        if self.excess_bytes > self._most_bytes:
            raise TooMuchUnpacked(
                f"it unpacks to {UNPACKED_TIMES} times its size and {self._most_bytes >> 20} MiB more, "
                "which no recording of ddptop does"
            )


class BlockReader:
    """Reads blocks of one file. A damaged block yields what comes before the damage, and is counted.

    Reading raises TooMuchUnpacked where the file was made to take all memory or time.
    """

    def __init__(self, descriptor: int) -> None:
        """The descriptor is the caller's to close."""
        self.descriptor = descriptor
        self.unpacked = UnpackedSize(UNPACKED_BYTES)
        self._unreadable: dict[int, int] = {}
        """By offset of the block: records in it that are lost."""
        self._corrected: set[int] = set()
        self.kept: dict[int, list[Received]] = {}
        """By offset of the block: its lasting messages."""
        self._lasting_kept = 0
        self.offset = 0
        """Where in the file the block begins that was read last."""

    def _read_records(self, entry: BlockEntry) -> tuple[bytes, bool] | None:
        """What `read_block` gives of a block; None where more than a bit is wrong."""
        try:
            records, whole, size = read_block(self.descriptor, entry)
        # Errors of the disk count as damage: the other blocks may still be readable.
        except (RecordingError, OSError):
            return None
        # Here, where every block passes: no way of reading avoids the bound.
        self.unpacked.note_part(entry.offset, size, len(records))
        return records, whole

    @property
    def unreadable(self) -> int:
        """Blocks that were found to be damaged so far."""
        return len(self._unreadable)

    @property
    def lost(self) -> int:
        """Messages that were in them, by the index."""
        return sum(self._unreadable.values())

    @property
    def corrected(self) -> int:
        """Blocks so far in which a single wrong bit was corrected."""
        return len(self._corrected)

    def last_numbers(self, entry: BlockEntry) -> dict[int, int]:
        """The highest number of each session in a block; no message is decoded. Of a damaged block none."""
        block = self._read_records(entry)
        records, _ = _unpack_records(b"" if block is None else block[0])
        # The last number of a session in a block is its highest: they ascend.
        return {record[2]: record[3] for record in records if record[3]} if _are_records(records) else {}

    def read_raw(self, entry: BlockEntry) -> bytes | None:
        """The records of a block, unchecked; None where it is damaged."""
        self.offset = entry.offset
        block = self._read_records(entry)
        # A corrected block is not passed on raw, since its correction has to be counted.
        return block[0] if block is not None and block[1] else None

    def may_hold(self, entry: BlockEntry, kind: type[Message]) -> bool:
        """Whether a block may hold a message of this class, by the bytes that such a message begins with; a
        damaged block may hold any."""
        raw = self.read_raw(entry)
        # May be wrong where the same bytes are in another message: it then only costs the decoding.
        return raw is None or bytes((0x90 + 1 + len(NAMES[kind]), CODES[kind])) in raw

    def read_messages(self, entry: BlockEntry, selects: Selector) -> list[Received]:
        """Messages of the selected types, in order."""
        messages: list[Received] = []
        self.offset = entry.offset
        block = self._read_records(entry)
        if block is None:
            return self._read_copied_messages(entry, selects)
        records, whole = block
        if not whole:
            self._corrected.add(entry.offset)
        try:
            messages.extend(parse_records(records, selects, entry.summary.records))
        except RecordingError:
            # Not the selected ones alone: those of other types before the damage can be read as well.
            n_valid = len(_valid_records(_unpack_records(records, entry.summary.records)[0]))
            if n_valid:
                self._unreadable.setdefault(entry.offset, max(0, entry.summary.records - n_valid))
            # Nothing that was requested could be read: the block's copy may have more.
            if not messages:
                return self._read_copied_messages(entry, selects)
        return messages

    def _read_copied_messages(self, entry: BlockEntry, selects: Selector) -> list[Received]:
        """The messages that were stored twice, of a block that cannot be read."""
        messages: list[Received] = []
        try:
            records = read_copy(self.descriptor, entry)
            messages.extend(parse_records(records, selects))
        except (RecordingError, OSError):
            records = b""
        self._unreadable.setdefault(entry.offset, max(0, entry.summary.records - count_records(records)))
        return messages

    def lasting_messages(self, entry: BlockEntry) -> list[Received]:
        """Lasting messages but CLOCK. Every jump needs them, so many of them are kept."""
        messages = self.kept.get(entry.offset)
        if messages is None:
            messages = self.read_messages(entry, is_lasting_but_clock)
            self.keep_lasting(entry, messages)
        return messages

    def keep_lasting(self, entry: BlockEntry, messages: Sequence[Received]) -> None:
        """Keep the lasting messages among these, which are all of a block but for CLOCK and PASSING ones."""
        if self._lasting_kept < LASTING_KEPT and entry.offset not in self.kept:
            kept = [received for received in messages if not isinstance(received.message, (Clock, *PASSING))]
            self.kept[entry.offset] = kept
            self._lasting_kept += len(kept)


def is_any_type(_code: int) -> bool:
    """Select messages of every type."""
    return True


def is_no_steps(code: int) -> bool:
    """Select all but STEPS, which are most of a recording."""
    return code != CODES[Steps]


def is_lasting(code: int) -> bool:
    """Select messages that hold until a later one replaces them."""
    return code not in _PASSING_CODES


def is_lasting_but_clock(code: int) -> bool:
    """Select lasting messages but CLOCK, of which a reducer needs only the newest of each host."""
    return code != CODES[Clock] and code not in _PASSING_CODES


def is_of_type(kind: type[Message]) -> Selector:
    """A selector of the messages of one class."""
    return lambda code: code == CODES[kind]
