"""Contexts and options that every socket of libzmq's shares: all but the ranks' (`ddptop.transport.zmtp`)."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

import zmq

from ddptop.host.processes import need_threads
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError, UnknownType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ddptop.protocol.messages import Message

RECONNECT_MS = (100, 500)
"""First and longest pause between attempts. An attempt costs some 30 us."""

HANDSHAKE_MS = 3000
"""A peer that connects and sends nothing is dropped."""

CONNECT_MS = 2000
"""An attempt over TCP that gets no answer is given up. The kernel would repeat it at growing intervals, and
notice only after up to a minute that a cut link is back."""

BACKLOG = 1024
"""Connections over TCP that wait to be accepted: the agents of a large job begin at the same moment."""

SILENT_MS = 6000
"""A connection over TCP whose other end acknowledges nothing for so long is closed, by the kernel.

Not ZeroMQ's heartbeats (HEARTBEAT_IVL), at either end: where a receiver has stopped reading at its high-water
mark and the connection is closed by the peer, libzmq 4.3.5 ends the process at the next heartbeat
(`Assertion failed: !_io_error`, its issue 4364). Over ipc a closed end is seen at once.
"""

KEEPALIVE_S = (2, 2)
"""Idle time before the kernel asks the other end of a connection over TCP, and pause between questions."""

_IPV4 = re.compile(r"tcp://[0-9.]+:")
"""Such an address needs no IPv6 of the system."""

MAX_SOCKETS = 65_536
"""ZeroMQ's default of 1023 counts connections too."""


_MORE_FOLLOW = zmq.NOBLOCK | zmq.SNDMORE

DESCRIPTORS = 16
"""Descriptors that must be free for a context: its threads take up to 6, and libzmq ends a process that has
none left."""

THREADS = 16
"""Threads that must be free for a context: it takes 2, and libzmq ends a process that cannot start them. The
others are for what starts threads at the same moment under the same limit: the ranks, with torch's."""


class Refusals:
    """What a receiver has refused: its base class."""

    def __init__(self) -> None:
        self.refused = 0
        """Messages that were not valid, or what of them was not."""
        self.refused_why = ""
        """Why the last of them was refused."""
        self.unknown = 0
        """Messages of a type that this version does not know."""

    def _note_refusal(self, error: Exception) -> None:
        if isinstance(error, UnknownType):
            self.unknown += 1
            return
        self.refused += 1
        self.refused_why = str(error) if isinstance(error, ProtocolError) else repr(error)


def new_context() -> zmq.Context[zmq.Socket[bytes]]:
    """A context of its own for one end of a link: one I/O thread, never shared with the user's ZeroMQ.

    Raises OSError where this process has hardly a file descriptor left, or can hardly start a thread.
    """
    _need_descriptors()
    # Before the context, because a failure inside libzmq aborts the process and cannot be caught.
    need_threads(THREADS)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    context.socket(zmq.PAIR).close()  # the context's threads begin with its first socket: now, not later
    return context


def _need_descriptors() -> None:
    with ExitStack() as stack:
        for _ in range(DESCRIPTORS):
            # Opened and closed again: a limit of open files shows only when one is opened.
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def connect_dealer(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    *,
    send_high: int,
    receive_high: int,
    max_bytes: int,
    prepare: Callable[[zmq.Socket[bytes]], object] | None = None,
) -> zmq.Socket[bytes]:
    """A DEALER that keeps trying to reach `endpoint` and queues nothing while it is not connected.

    `prepare` sets further options before it connects.
    """
    socket = context.socket(zmq.DEALER)
    # Linger 0 everywhere: libzmq's default waits without end for a peer that does not read. The link has
    # acks.
    socket.linger = 0
    socket.sndhwm = send_high
    socket.rcvhwm = receive_high
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    # Without it, libzmq queues messages for a collector that never answers, and sends them stale later.
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.RECONNECT_IVL, RECONNECT_MS[0])
    socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1])
    if endpoint.startswith("tcp:"):
        socket.set(zmq.IPV6, not _IPV4.match(endpoint))
        # Only over TCP: a unix socket is there at once, or not at all.
        socket.set(zmq.CONNECT_TIMEOUT, CONNECT_MS)
        _limit_silence(socket)
    try:
        if prepare is not None:
            prepare(socket)
        socket.connect(endpoint)
    # The socket is closed by whoever made it: the caller has no name for it yet.
    except (zmq.ZMQError, ValueError):
        socket.close()
        raise
    return socket


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    *,
    high: int,
    max_bytes: int,
    prepare: Callable[[zmq.Socket[bytes]], object] | None = None,
) -> zmq.Socket[bytes]:
    """A ROUTER at `endpoint`; over ipc only for processes of this user. Raises zmq.ZMQError.

    `prepare` sets further options before it is bound.
    """
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.sndhwm = high
    socket.rcvhwm = high
    socket.set(zmq.MAXMSGSIZE, max_bytes)
    # A connection that never says who it is would hold a descriptor for good.
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    if endpoint.startswith("ipc:"):
        # The folder is 0700; this holds where a user has opened it.
        socket.set(zmq.IPC_FILTER_UID, os.getuid())
    else:
        socket.set(zmq.IPV6, not _IPV4.match(endpoint))
        socket.set(zmq.BACKLOG, BACKLOG)
        _limit_silence(socket)
    if prepare is not None:
        prepare(socket)
    try:
        socket.bind(endpoint)
    except zmq.ZMQError:
        socket.close()
        raise
    return socket


def bind_again(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Listen at an ipc endpoint whose file was removed; connections that are there stay. Raises zmq.ZMQError.

    Without `unbind`, which would close them: the socket also listens where no file leads any more.
    """
    socket.bind(endpoint)


def peer_pid(frame: zmq.Frame) -> int | None:
    """The process that made the connection over which a frame came, as the kernel reported it to libzmq then.

    None: not over ipc, a libzmq without SO_PEERCRED, or a process of another pid namespace.
    libzmq gives `NAME:UID:GID:PID`.
    """
    # The last part of what libzmq gives; a name may contain colons itself.
    try:
        pid = int(str(frame.get("Peer-Address")).rpartition(":")[2])
    except (zmq.ZMQError, ValueError):
        return None
    return pid if pid > 0 else None


def receive_frames(socket: zmq.Socket[bytes]) -> list[zmq.Frame]:
    """The frames of the next message, uncopied: they say whether more follow, at half the cost of asking.

    Raises zmq.Again.
    """
    frames = [socket.recv(zmq.NOBLOCK, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(zmq.NOBLOCK, copy=False))
    return frames


def send_frames(socket: zmq.Socket[bytes], route: bytes, body: bytes) -> None:
    """Send two frames as `send_multipart` does, which checks them first and takes twice as long.

    Raises zmq.ZMQError.
    """
    socket.send(route, _MORE_FOLLOW)
    socket.send(body, zmq.NOBLOCK)


def receive_messages(socket: zmq.Socket[bytes]) -> Iterator[Message]:
    """The valid messages that have arrived at a DEALER. Never blocks."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        try:
            message = decode(frames[0])
        # A frame that cannot be read costs that frame: the next one replaces it.
        except ProtocolError:
            continue
        yield message


def _limit_silence(socket: zmq.Socket[bytes]) -> None:
    socket.set(zmq.TCP_MAXRT, SILENT_MS)
    socket.set(zmq.TCP_KEEPALIVE, 1)
    socket.set(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_S[0])
    socket.set(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_S[1])
    # The kernel's count of questions until the connection is closed after SILENT_MS.
    socket.set(zmq.TCP_KEEPALIVE_CNT, SILENT_MS // 1000 // KEEPALIVE_S[1])
