"""The credit link: a viewer gets a frame only when it has given credit for one.

Wire: viewer to collector [CREDIT], collector to viewer [STATE], one frame each. A credit replaces the one
before it. So a viewer that was stopped finds at most one frame in its socket.
"""

from __future__ import annotations

import socket as sockets
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import msgpack
import zmq

from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.limits import MAX_FRAME_BYTES, MAX_RANK_MESSAGE_BYTES
from ddptop.protocol.messages import Credit, State
from ddptop.transport.curve import VIEWERS, Gate, load_viewer_keys, make_server
from ddptop.transport.sockets import bind_router, connect_dealer, new_context, receive_messages, send_frames

if TYPE_CHECKING:
    from collections.abc import Callable

HIGH_SERVER = 50
HIGH_CLIENT = (8, 16)

LARGEST_FRAME_BYTES = MAX_FRAME_BYTES - 64
"""What fits in a STATE: its other fields and msgpack's marks take less than 64 bytes."""

FORGET_NS = 600 * 10**9
"""A viewer that sent nothing for ten minutes is forgotten; if it was only stopped, it is a new one later."""

STOPPED_NS = 10 * 10**9
"""A viewer that has asked for nothing for so long is stopped: it asks every few seconds. It gives up its
place if all are taken."""

OVER_IPC, OVER_TCP = b"i", b"t"
"""How a viewer is connected: the first byte of its name."""

KEYS_AGAIN_S = 1.0
"""The file of the viewers' keys is read again for a new connection, at most this often."""

MAX_VIEWERS = 256
"""Viewers at a time, more than a team has: a process that connects in a loop must not use up the collector's
memory."""


class WaitingViewer(NamedTuple):
    """A viewer with room for a frame."""

    name: bytes
    """How it is connected, and its name in that socket."""
    credit: Credit
    since_ns: int
    """When it first gave this credit."""
    sent_ns: int | None
    """When it was last sent a frame; None: never."""


@dataclass(slots=True)
class _Viewer:
    received_ns: int
    credit: Credit | None = None
    since_ns: int = 0
    sent_ns: int | None = None


def _encode_state(state: State) -> bytes:
    """The state as `encode` packs it, but in pieces: `encode` copies a large frame three times."""
    size = len(state.frame)
    # Below this msgpack's mark for bytes is another one than 0xc6, and copies cost little.
    if size < 1 << 16:
        return encode(state)
    before = encode(replace(state, frame=b"")).removesuffix(msgpack.packb(b""))
    # 0xc6: msgpack's bytes with a length of four bytes.
    return b"".join((before, b"\xc6", size.to_bytes(4, "big"), state.frame))


class CreditServer:
    """The collector's end: which viewers have given credit."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, *, listen: str | None = None
    ) -> None:
        """`listen`: HOST:PORT where viewers are let in over TCP as well."""
        self._viewers: dict[bytes, _Viewer] = {}
        self.refused = 0
        """Messages that were no credit, and credits of viewers beyond the limit."""
        self.socket = bind_router(context, endpoint, high=HIGH_SERVER, max_bytes=MAX_RANK_MESSAGE_BYTES)
        # The only way to notice that a viewer is gone, see `_forget_closed`.
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self._port: ViewerPort | None = None
        self.remark: str | None = None
        """Why viewers are not let in over TCP, for a person."""
        if listen is not None:
            # A port that cannot be bound is no reason to record nothing: the run goes on, and the remark is
            # shown.
            try:
                self._port = ViewerPort(listen)
            except (OSError, ValueError, RunDirectoryError, zmq.ZMQError) as error:
                self.remark = f"no viewers at {listen}: {error}"

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """The sockets to poll for credits."""
        return (
            [self.socket] if self._port is None else [self.socket, self._port.socket, self._port.gate.socket]
        )

    def drain_credits(self, now_ns: int, limit: int = 1000) -> None:
        """Note the credits that have arrived, at most `limit` from each socket. Never blocks."""
        self._drain_socket(self.socket, OVER_IPC, now_ns, limit)
        if self._port is not None:
            self._port.serve_gate()
            self._drain_socket(self._port.socket, OVER_TCP, now_ns, limit)
        # libzmq reports no closed connection: a viewer that is gone is only silent.
        silent = [name for name, viewer in self._viewers.items() if now_ns - viewer.received_ns > FORGET_NS]
        for name in silent:
            del self._viewers[name]

    def waiting_viewers(self) -> list[WaitingViewer]:
        """Viewers with room for a frame, and what they asked for."""
        return [
            WaitingViewer(name, viewer.credit, viewer.since_ns, viewer.sent_ns)
            for name, viewer in self._viewers.items()
            if viewer.credit is not None
        ]

    def active_since(self, t_ns: int) -> set[bytes]:
        """Viewers that gave a credit after this moment."""
        return {name for name, viewer in self._viewers.items() if viewer.received_ns > t_ns}

    def send_frame(self, name: bytes, state: State, now_ns: int) -> bool:
        """Send a frame and use up the credit. False: the viewer was forgotten or its socket is full."""
        try:
            self._send_body(name, _encode_state(state))
        except zmq.Again:
            return False
        except zmq.ZMQError:
            self._viewers.pop(name, None)
            return False
        self.deny_frame(name, now_ns)
        return True

    def deny_frame(self, name: bytes, now_ns: int) -> None:
        """Use up the credit without a frame: none can be made now."""
        viewer = self._viewers[name]
        viewer.credit, viewer.sent_ns = None, now_ns

    def close(self, linger_ms: int = 0) -> None:
        """Close the sockets, leaving last frames that long to go out; the context is the caller's."""
        self.socket.close(linger=linger_ms)
        if self._port is not None:
            self._port.close(linger_ms)

    def _drain_socket(self, socket: zmq.Socket[bytes], via: bytes, now_ns: int, limit: int) -> None:
        for _ in range(limit):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if not self._note_credit(via, frames, now_ns):
                self.refused += 1

    def _send_body(self, name: bytes, body: bytes) -> None:
        """Raises zmq.ZMQError where the viewer is not there, zmq.Again where its socket is full."""
        over_tcp = self._port is not None and name.startswith(OVER_TCP)
        socket = self._port.socket if self._port is not None and over_tcp else self.socket
        send_frames(socket, name[1:], body)

    def _note_credit(self, via: bytes, frames: list[bytes], now_ns: int) -> bool:
        if len(frames) != 2:
            return False
        name, body = via + frames[0], frames[1]
        try:
            credit = decode(body)
        except ProtocolError:
            return False
        if not isinstance(credit, Credit):
            return False
        # Only where the limit is reached: asking each connection costs a message.
        if name not in self._viewers and len(self._viewers) >= MAX_VIEWERS:
            self._forget_closed()
            if len(self._viewers) >= MAX_VIEWERS and not self._forget_stopped(now_ns):
                return False
        viewer = self._viewers.setdefault(name, _Viewer(now_ns))
        if viewer.credit is None:
            # The first ask counts: a viewer that repeats its credit must not lose its turn.
            viewer.since_ns = now_ns
        viewer.credit, viewer.received_ns = credit, now_ns
        return True

    def _forget_closed(self) -> None:
        """Forget viewers whose connection is closed, also those that were killed.

        libzmq gives no event that names them; but a ROUTER that must deliver refuses a peer that is not
        there. The others get an empty message, which every viewer ignores.
        """
        for name in list(self._viewers):
            try:
                self._send_body(name, b"")
            except zmq.Again:  # it is stopped, and its connection is there
                continue
            except zmq.ZMQError:
                del self._viewers[name]

    def _forget_stopped(self, now_ns: int) -> bool:
        """Forget the viewer that has been silent longest, if it is stopped: it is a new one when it goes on.
        Returns whether one was forgotten."""
        name = min(self._viewers, key=lambda name: self._viewers[name].received_ns)
        if now_ns - self._viewers[name].received_ns <= STOPPED_NS:
            return False
        del self._viewers[name]
        return True


class ViewerPort:
    """A port for viewers on other machines, who need a key that `ddptop key new` has made.

    It has a context of its own: a `Gate` decides for all sockets of one, and the agents have another.
    """

    def __init__(self, listen: str) -> None:
        """Bind HOST:PORT. Raises OSError, ValueError, RunDirectoryError, zmq.ZMQError."""
        host, _, port = listen.rpartition(":")
        # libzmq binds numeric addresses only.
        addresses = sockets.getaddrinfo(host.strip("[]"), int(port), type=sockets.SOCK_STREAM)
        address = str(addresses[0][4][0])
        self._keys = load_viewer_keys(state_directory())
        self._read_s = 0.0
        self._context = new_context()
        self.gate = Gate(self._context)
        try:
            self.socket = bind_router(
                self._context,
                f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}",
                high=HIGH_SERVER,
                max_bytes=MAX_RANK_MESSAGE_BYTES,
                prepare=self._prepare_socket,
            )
        except BaseException:
            self.gate.close()
            self._context.term()
            raise

    def serve_gate(self) -> None:
        """Answer who may connect. Keys that were made or removed since then count."""
        if not self.gate.socket.poll(0):
            return
        now_s = time.monotonic()
        if now_s - self._read_s > KEYS_AGAIN_S:
            self._read_s = now_s
            try:
                # The server's own key stays: it is bound to the socket, and a new file may have another.
                self._keys = load_viewer_keys(state_directory())._replace(collector=self._keys.collector)
            except (OSError, RunDirectoryError):
                # A file that cannot be read admits nobody, rather than those that were admitted before.
                self._keys = self._keys._replace(admitted={})
            self.gate.admit_keys(VIEWERS, self._keys.admitted)
        self.gate.answer_questions()

    def close(self, linger_ms: int) -> None:
        """Close the sockets and the context."""
        self.socket.close(linger=linger_ms)
        self.gate.close()
        self._context.term()

    def _prepare_socket(self, socket: zmq.Socket[bytes]) -> None:
        make_server(socket, self._keys.collector, VIEWERS)
        socket.set(zmq.ROUTER_MANDATORY, 1)


class CreditClient:
    """The viewer's end, with a context of its own. One thread."""

    def __init__(self, endpoint: str, prepare: Callable[[zmq.Socket[bytes]], object] | None = None) -> None:
        """`prepare` sets further options before it connects, over TCP."""
        self._context = new_context()
        try:
            self.socket = connect_dealer(
                self._context,
                endpoint,
                send_high=HIGH_CLIENT[0],
                receive_high=HIGH_CLIENT[1],
                max_bytes=MAX_FRAME_BYTES,
                prepare=prepare,
            )
        except zmq.ZMQError:
            self._context.term()
            raise

    def grant_credit(self, credit: Credit) -> bool:
        """Ask for one frame; False if no collector is connected. Never blocks."""
        try:
            self.socket.send(encode(credit), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive_frame(self) -> State | None:
        """The next frame that has arrived, None if there is none. Never blocks."""
        return next(
            (message for message in receive_messages(self.socket) if isinstance(message, State)), None
        )

    def close(self) -> None:
        """Close socket and context; may be called twice."""
        self.socket.close(linger=0)
        self._context.term()
