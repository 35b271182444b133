"""The rank's connection to the ROUTER of its host, without libzmq: a small client of ZeroMQ's wire protocol.

libzmq would take two threads of each training process, and ends the process where it cannot start one. A rank
needs one connection over a unix socket, which is served when the publisher thread wakes up.

The protocol is ZMTP 3.1, https://rfc.zeromq.org/spec/37/ (3.0: https://rfc.zeromq.org/spec/23/), with the
mechanism NULL. Each end sends

    greeting   64 bytes: FF, 8 of padding, 7F; version 3, 1; mechanism (20), as-server (1), filler (31)
    READY      a command, with the type of its socket
    traffic    messages, each of one or more frames, and commands

A frame is

    flags      1 byte: MORE (of the same message), LONG, COMMAND
    size       1 byte, or 8 where LONG is set, big-endian
    body       of a command: length of its name (1 byte), name, data

No identity is sent: a ROUTER ignores a second connection with the same one, as after a reconnect.
"""

from __future__ import annotations

import math
import os
import select
import socket
import time
from collections.abc import Iterator
from typing import NamedTuple

from ddptop.protocol.errors import ProtocolError

MORE, LONG, COMMAND = 1, 2, 4
"""Bits of a frame's flags. The others are reserved."""

GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)

TTL_BYTES, MAX_CONTEXT_BYTES = 2, 16
"""A PING has its time to live, then a context that the PONG repeats."""

RECONNECT_S = (0.1, 0.5)
"""First and longest pause between attempts, each twice the one before. A rank that ends waits 0.8 s for a
collector that was started again: it must have tried by then."""

ANSWER_S = 0.05
"""How long a call that has connected waits for the other end's READY, which mostly comes within a ms: what is
to be sent need not wait for the next call."""

QUEUE_BYTES = 1 << 16
"""No message is taken while more waits for room in the socket, whose own buffer holds some 200 kB. This is in
place of a high-water mark."""

MAX_FRAMES = 16
"""Frames of a message that is received."""

READ_BYTES, READS = 1 << 14, 8
"""Bytes in a read, and reads in a call of `receive_messages`: an end that sends without pause must not keep
it."""

NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
"""A script may have restored SIGPIPE, which then ends the process when the other end has closed."""


class ZmtpFrame(NamedTuple):
    """One frame."""

    flags: int
    body: bytes


def pack_zmtp_frame(flags: int, body: bytes) -> bytes:
    """The frame as bytes; `flags` without LONG."""
    # The short form has one byte for the size: most messages of a rank need the long one.
    if len(body) > 255:
        return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body
    return bytes((flags, len(body))) + body


def pack_command(name: bytes, data: bytes) -> bytes:
    """A command as bytes."""
    return pack_zmtp_frame(COMMAND, bytes((len(name),)) + name + data)


def pack_property(name: bytes, value: bytes) -> bytes:
    """One of READY's properties as bytes."""
    return bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value


READY = pack_command(b"READY", pack_property(b"Socket-Type", b"DEALER"))


def check_greeting(greeting: bytes) -> None:
    """Raises ProtocolError for another protocol, an earlier version, or another mechanism than NULL."""
    if greeting[0] != 0xFF or greeting[9] != 0x7F or greeting[10] < 3:
        raise ProtocolError("no ZMTP 3")
    if greeting[12:32] != GREETING[12:32]:
        raise ProtocolError("another mechanism than NULL")


def take_frame(data: bytearray, max_bytes: int) -> ZmtpFrame | None:
    """Take the first frame out of `data`; None while it is not whole.

    Raises ProtocolError for impossible flags, and for a body of more than `max_bytes`.
    """
    if len(data) < 2:
        return None
    flags = data[0]
    # No command has MORE; reserved bits mean another protocol or a lost border.
    if flags > MORE | LONG | COMMAND or (flags & COMMAND and flags & MORE):
        raise ProtocolError(f"flags {flags:#x}")
    begin = 9 if flags & LONG else 2
    if len(data) < begin:
        return None
    size = int.from_bytes(data[1:begin], "big")
    # Before the body is collected: the size comes from outside.
    if size > max_bytes:
        raise ProtocolError(f"a frame of {size} bytes")
    if len(data) < begin + size:
        return None
    body = bytes(data[begin : begin + size])
    del data[: begin + size]
    return ZmtpFrame(flags, body)


class Dealer:
    """A connection to the ROUTER at an ipc endpoint, made again whenever it ends. All methods on one thread.

    None of them waits but `wait_until_ready`, and `receive_messages` when it has connected. Nothing that the
    other end does or sends makes one raise."""

    def __init__(self, endpoint: str, *, max_bytes: int) -> None:
        """`endpoint`: `ipc://PATH`. `max_bytes`: the most that a frame may have that is received."""
        self._path = endpoint.removeprefix("ipc://")
        self._max_bytes = max_bytes
        self._socket: socket.socket | None = None
        # Kept to be compared with: a number alone says nothing about what it stands for.
        self._opened: os.stat_result
        """What the socket's descriptor stands for."""
        self._unread = bytearray()
        self._unsent = bytearray()
        self._frames: list[bytes] = []
        """Frames of a message that has not arrived completely."""
        self._greeted = False
        self.pause_s = RECONNECT_S[0]
        """From when the connection ends to the next attempt."""
        self.due_s = 0.0
        """When an attempt to connect is due, where there is no connection, by `time.monotonic`."""
        self.is_ready = False
        """Messages can be sent: both ends have sent READY."""
        self.connections = 0
        """How many there were, this one included: what went over an earlier one may not have arrived."""

    def fileno(self) -> int:
        """The descriptor of the connection; -1: there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def receive_messages(self) -> list[list[bytes]]:
        """The messages that have arrived, as their frames. Connects, and writes what waits, where it can."""
        messages: list[list[bytes]] = []
        # A script that daemonises closes every descriptor: this number may be its log file by now.
        if self._socket is not None and not self._is_ours(self._socket):
            self._disconnect()
        if self._socket is None:
            self._try_to_connect()
            self.flush()
            end_s = time.monotonic() + ANSWER_S
            while self._socket is not None and not self.is_ready and (left_s := end_s - time.monotonic()) > 0:
                self.wait_until_ready(left_s)
                self._read_messages(messages)
        else:
            self._read_messages(messages)
        self.flush()
        return messages

    def send_message(self, *frames: bytes) -> bool:
        """Send a message with the next `flush`; False where it cannot be sent now: nothing of it is kept."""
        if len(self._unsent) >= QUEUE_BYTES:
            self.flush()
        # Nothing is kept for later here: the window of `AckedSender` has it, and is bounded.
        if not self.is_ready or len(self._unsent) >= QUEUE_BYTES:
            return False
        *all_but_last, last = frames
        for body in all_but_last:
            self._unsent += pack_zmtp_frame(MORE, body)
        self._unsent += pack_zmtp_frame(0, last)
        return True

    def flush(self) -> None:
        """Write what the socket has room for."""
        try:
            while self._unsent and self._socket is not None:
                written = self._socket.send(self._unsent, NO_SIGNAL)
                del self._unsent[:written]
        except BlockingIOError:
            return
        except OSError:
            self._disconnect()

    def wait_until_ready(self, timeout_s: float) -> None:
        """Wait until something has arrived, or what waits can be written; at most so long."""
        if self._socket is None:
            # Without a socket there is nothing to poll; the caller's pause between attempts is kept all the
            # same.
            time.sleep(timeout_s)
            return
        # `poll`, since `select` fails with a descriptor above 1023.
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.poll(timeout_s * 1000)

    def has_arrived(self) -> bool:
        """Whether something can be read now."""
        if self._socket is None:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the connection for good. In a forked child only its own copy: the parent's goes on."""
        self._disconnect()
        self.due_s = math.inf

    def close_in_child(self) -> None:
        """In a forked child: close its copy of the connection for good, whatever the parent's thread does.

        The buffers are left as they are. A thread that was in a system call has exported one of them, which
        cannot change its size any more: that thread does not exist here, and never releases it.
        """
        self.due_s = math.inf
        self.is_ready = False
        connected, self._socket = self._socket, None
        if connected is not None:
            self._close_or_detach(connected)

    def _try_to_connect(self) -> None:
        """A unix socket is connected at once or not at all; EAGAIN: too many wait to be accepted."""
        if time.monotonic() < self.due_s:
            return
        try:
            connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._opened = os.fstat(connected.fileno())
            self._socket = connected
            self._socket.setblocking(False)
            self._socket.connect(self._path)
        except OSError:
            self._disconnect()
        else:
            self._unsent += GREETING + READY

    def _is_ours(self, connected: socket.socket) -> bool:
        """False where the script has closed all descriptors: by now the number may be a file's of its own."""
        try:
            return os.path.samestat(os.fstat(connected.fileno()), self._opened)
        except OSError:
            return False

    def _close_or_detach(self, connected: socket.socket) -> None:
        if self._is_ours(connected):
            connected.close()
        else:
            # `close` would close the script's own file; `detach` only forgets the number.
            connected.detach()

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._close_or_detach(self._socket)
        self._socket = None
        self._greeted = self.is_ready = False
        # Half a message of the old connection must not come before the first one of the next.
        for buffer in (self._unread, self._unsent, self._frames):
            buffer.clear()
        self.due_s = time.monotonic() + self.pause_s
        self.pause_s = min(RECONNECT_S[1], 2 * self.pause_s)

    def _read_messages(self, messages: list[list[bytes]]) -> None:
        if self._socket is None:
            return
        try:
            for data in _read_pieces(self._socket):
                self._unread += data
                self._take_frames(messages)
        # Whatever the other end did wrong: the connection is closed, and made again after a pause.
        except (OSError, ProtocolError):
            self._disconnect()

    def _take_frames(self, messages: list[list[bytes]]) -> None:
        if not self._greeted:
            if len(self._unread) < len(GREETING):
                return
            check_greeting(bytes(self._unread[: len(GREETING)]))
            del self._unread[: len(GREETING)]
            self._greeted = True
        while (frame := take_frame(self._unread, self._max_bytes)) is not None:
            if frame.flags & COMMAND:
                self._execute_command(frame.body)
                continue
            if not self.is_ready or len(self._frames) == MAX_FRAMES:
                raise ProtocolError("a message before READY, or of too many frames")
            self._frames.append(frame.body)
            if not frame.flags & MORE:
                messages.append(self._frames)
                self._frames = []
                self.pause_s = RECONNECT_S[0]  # only now: the other end may close after every greeting

    def _execute_command(self, command: bytes) -> None:
        """A command of the other end's. In traffic those that are not known are ignored."""
        length = command[0] if command else 0
        name, data = command[1 : 1 + length], command[1 + length :]
        if name == b"ERROR":
            raise ProtocolError(f"refused: {data[1:]!r}")
        if not self.is_ready:
            if name != b"READY":
                raise ProtocolError(f"{name!r} before READY")
            self.is_ready = True
            self.connections += 1
        # Unanswered where much waits: a peer that sends PINGs without reading would fill the memory.
        elif name == b"PING" and len(self._unsent) < QUEUE_BYTES:
            self._unsent += pack_command(b"PONG", data[TTL_BYTES:][:MAX_CONTEXT_BYTES])


def _read_pieces(connected: socket.socket) -> Iterator[bytes]:
    """Pieces of what has arrived. Raises OSError where the other end has closed."""
    for _ in range(READS):
        try:
            data = connected.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError
        yield data
        if len(data) < READ_BYTES:  # that was all: to be told so takes a call and an exception
            return
