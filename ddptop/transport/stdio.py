"""The viewer link over two pipes: what `ddptop relay` and `ddptop --connect` send each other.

The far end begins with GREETING. A remote shell may print something before it, so the near end searches for
it. After it each side sends frames: kind (1 byte), length of the payload (4 bytes, big-endian), payload, a
newline. The newline is there because `srun` passes output on by lines. The far end's first frame is a HELLO
or an ERROR.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_FRAME_BYTES, MAX_TEXT
from ddptop.protocol.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = 1
"""Raised when a frame changes meaning. Both ends have to be of the same version."""

GREETING = b"\n\0ddptop relay\0\n"

MAX_GREETING_BYTES = 256 * 1024
"""What a remote shell may print before it."""

HELLO, ERROR, STATE, BEAT, CREDIT = b"H", b"E", b"S", b"B", b"C"
"""Kinds of frames. STATE and CREDIT hold a message of the protocol (`ddptop.protocol.codec`), BEAT one byte:
`1` where the collector runs, else `0`; HELLO and ERROR are JSON."""

FROM_FAR: Mapping[bytes, int] = {HELLO: 8192, ERROR: 8192, STATE: MAX_FRAME_BYTES, BEAT: 1}
FROM_NEAR: Mapping[bytes, int] = {CREDIT: 8192}
"""What each end sends, and the largest payload in bytes."""

BEAT_S = 1.0
"""The far end sends a beat this often: the near end can tell a silent collector from a broken link."""

_HEAD = struct.Struct(">cI")
_READ_BYTES = 1 << 16
_READS = 64
"""Reads in one call of `receive_frames`, 4 MiB: a pipe that is always full must not keep it."""


class PipeFrame(NamedTuple):
    """One frame."""

    kind: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class RelayHello:
    """The far end's first frame: which run it is."""

    version: int
    ddptop: str
    """Version of ddptop there."""
    run_id: str
    name: str
    host: str


@dataclass(frozen=True, slots=True)
class RelayError:
    """Why there is no run to show."""

    code: int
    """Exit code for the near end's command."""
    text: str
    host: str = ""
    """The host on which the run is collected, where it is another one."""


_Part = TypeVar("_Part", RelayHello, RelayError)


def to_json(part: RelayHello | RelayError) -> bytes:
    """The payload of a HELLO or ERROR."""
    return json.dumps({name: _cut_text(value) for name, value in asdict(part).items()}).encode()


def _cut_text(value: str | int) -> str | int:
    return value[:MAX_TEXT] if isinstance(value, str) else value


def from_json(kind: type[_Part], payload: bytes) -> _Part:
    """What `to_json` has made: every field of the right type, texts safe to show. Raises ProtocolError."""
    try:
        values = json.loads(payload)
    except ValueError as error:
        raise ProtocolError(f"no JSON: {error}") from None
    if not isinstance(values, dict):
        raise ProtocolError("no JSON object")
    checked: dict[str, Any] = {}
    for field in fields(kind):
        value = values.get(field.name)
        # The exact type, because `True` is an `int`.
        if field.type == "int" and type(value) is int and abs(value) < 2**31:
            checked[field.name] = value
        elif field.type == "str" and isinstance(value, str) and len(value) <= MAX_TEXT:
            checked[field.name] = printable(value)
        else:
            raise ProtocolError(f"no proper {field.name}")
    return kind(**checked)


def pack_pipe_frame(kind: bytes, payload: bytes) -> bytes:
    """The frame as bytes."""
    return _HEAD.pack(kind, len(payload)) + payload + b"\n"


class FrameReader:
    """Takes bytes as they come and gives whole frames. Holds at most one frame and what was read with it."""

    def __init__(self, accepted: Mapping[bytes, int], *, greeted: bool) -> None:
        """`accepted`: kinds, each with its largest payload. `greeted`: whether no GREETING comes first."""
        self._accepted = accepted
        self._data = bytearray()
        self._passed = 0
        self.greeted = greeted
        """Whether the GREETING has been found."""

    def take_bytes(self, data: bytes) -> list[PipeFrame]:
        """The frames that are whole with these bytes. Raises ProtocolError for bytes that are none."""
        self._data += data
        if not self.greeted and not self._find_greeting():
            return []
        frames = []
        while (frame := self._take_frame()) is not None:
            frames.append(frame)
        return frames

    def _find_greeting(self) -> bool:
        begin = self._data.find(GREETING)
        if begin >= 0:
            del self._data[: begin + len(GREETING)]
            self.greeted = True
            return True
        # The greeting may be cut in two by the pipe: its possible begin stays.
        passed = max(0, len(self._data) - len(GREETING) + 1)
        del self._data[:passed]  # its beginning may be at the end of these bytes
        self._passed += passed
        if self._passed > MAX_GREETING_BYTES:
            raise ProtocolError("no ddptop answers there")
        return False

    def _take_frame(self) -> PipeFrame | None:
        if len(self._data) < _HEAD.size:
            return None
        kind, length = _HEAD.unpack_from(self._data)
        max_length = self._accepted.get(kind)
        # Before the payload is awaited: a length of 4 GiB would otherwise be collected.
        if max_length is None or length > max_length:
            raise ProtocolError(f"a frame of kind {kind!r} and {length} bytes")
        end = _HEAD.size + length
        if len(self._data) <= end:
            return None
        # It costs a byte, and finds at once that the two ends have lost each other's borders.
        if self._data[end : end + 1] != b"\n":
            raise ProtocolError("a frame without its end")
        payload = bytes(self._data[_HEAD.size : end])
        del self._data[: end + 1]
        return PipeFrame(kind, payload)


class FramePipe:
    """Frames over a pair of descriptors, without blocking. The descriptors are the caller's to close."""

    def __init__(self, read_fd: int, write_fd: int, reader: FrameReader) -> None:
        self.read_fd, self.write_fd = read_fd, write_fd
        self.reader = reader
        self.ended = False
        """The other end has closed one of them."""
        self.received_bytes = 0
        self._unsent = bytearray()
        # A pipe whose far end has stopped must not stop the thread that reads keys or frames.
        for descriptor in (read_fd, write_fd):
            os.set_blocking(descriptor, False)

    @property
    def unsent(self) -> int:
        """Bytes that wait until the pipe has room for them."""
        return len(self._unsent)

    def receive_frames(self) -> list[PipeFrame]:
        """The frames that have arrived. Raises ProtocolError for bytes that are none."""
        frames: list[PipeFrame] = []
        for _ in range(_READS):
            try:
                data = os.read(self.read_fd, _READ_BYTES)
            except BlockingIOError:
                break
            # A closed pipe and one that fails mean the same here: the other end is gone.
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            self.received_bytes += len(data)
            frames += self.reader.take_bytes(data)
        return frames

    def send_frame(self, kind: bytes, payload: bytes) -> None:
        """Send a frame, now or when `flush` finds room."""
        self.send_bytes(pack_pipe_frame(kind, payload))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that are no frame: the GREETING."""
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Write what the pipe has room for."""
        # A part is written as far as the pipe has room; the rest waits here, not in a blocked thread.
        while self._unsent:
            try:
                written = os.write(self.write_fd, self._unsent)
            except BlockingIOError:
                return
            except OSError:
                self.ended = True
                self._unsent.clear()
                return
            del self._unsent[:written]
