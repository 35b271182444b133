"""Who may connect over TCP: CURVE keys of a run, and the list of those that are admitted to a socket.

CURVE encrypts, and shows the client that it has the right server; that the server has the right client is
decided by ZAP (ZeroMQ's RFC 27) alone. Every socket has a *domain*, and a key is admitted to a domain: the
key of an agent is refused where viewers connect, and the other way round.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import zmq
from zmq.utils import z85

from ddptop.host.folders import (
    RunDirectoryError,
    check_private,
    open_private,
    open_regular,
    read_private,
    write_private,
)
from ddptop.protocol.limits import CURVE_KEY_CHARACTERS

AGENTS = "agents"
"""Domain of the socket that receives from the agents of other hosts."""

VIEWERS = "viewers"
"""Domain of the socket where viewers connect."""

KEYS_FILE = "keys.json"

MAX_BYTES = 4096

ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Where libzmq asks, by its RFC 27."""

ZAP_VERSION = b"1.0"

REFUSED = b"400"


class KeyPair(NamedTuple):
    """A CURVE key pair, in Z85."""

    public: str
    secret: str

    @classmethod
    def new(cls) -> KeyPair:
        """A random one."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())


class RunKeys(NamedTuple):
    """The keys of a run, and the port of its collector: a collector that was restarted has the same ones."""

    collector: KeyPair
    agents: KeyPair
    """Shared by all agents of the run."""
    port: int
    """0: the collector has not bound one yet."""


def load_keys(folder: Path) -> RunKeys:
    """The keys in a run folder, made if there are none. Raises RunDirectoryError, OSError."""
    try:
        return _read_keys(folder)
    # Also where the file is damaged: these keys are of one run, unlike those of viewers, which people hold.
    except (OSError, ValueError, RunDirectoryError):
        keys = RunKeys(KeyPair.new(), KeyPair.new(), 0)
        save_keys(folder, keys)
        return keys


def save_keys(folder: Path, keys: RunKeys) -> None:
    """Put the keys into a run folder, mode 0600. Raises RunDirectoryError, OSError."""
    with open_private(folder) as inside:
        write_private(inside, KEYS_FILE, json.dumps(keys).encode())


def _read_keys(folder: Path) -> RunKeys:
    data = read_private(folder, KEYS_FILE, MAX_BYTES + 1)
    match json.loads(data) if len(data) <= MAX_BYTES else None:
        case [[str(), str()] as collector, [str(), str()] as agents, int(port)] if 0 <= port < 65_536:
            keys = RunKeys(KeyPair(*collector), KeyPair(*agents), port)
            if all(len(key) == CURVE_KEY_CHARACTERS for pair in keys[:2] for key in pair):
                return keys
    raise ValueError("not the keys of a run")


VIEWERS_FILE = "viewers.json"

MAX_VIEWER_KEYS = 100


class ViewerKeys(NamedTuple):
    """The keys by which the collectors of this user let viewers in over TCP."""

    collector: KeyPair
    admitted: dict[str, str]
    """Public keys of viewers, each with a name for a person."""


def load_viewer_keys(folder: Path) -> ViewerKeys:
    """The keys in the folder of recordings, made if there are none. Raises RunDirectoryError, OSError."""
    try:
        data = read_private(folder, VIEWERS_FILE, MAX_BYTES * MAX_VIEWER_KEYS)
    except FileNotFoundError:
        keys = ViewerKeys(KeyPair.new(), {})
        save_viewer_keys(folder, keys)
        return keys
    try:
        match json.loads(data):
            case [[str(), str()] as collector, dict() as admitted] if all(
                map(_is_key, [*collector, *admitted])
            ):
                return ViewerKeys(KeyPair(*collector), {key: str(name) for key, name in admitted.items()})
    except ValueError:
        pass
    # Never replaced silently: every viewer's key in it would be lost.
    raise RunDirectoryError(f"{folder / VIEWERS_FILE} does not hold keys; remove it to make new ones")


def save_viewer_keys(folder: Path, keys: ViewerKeys) -> None:
    """Put them there, mode 0600. Raises RunDirectoryError, OSError."""
    with open_private(folder) as inside:
        write_private(inside, VIEWERS_FILE, json.dumps(keys).encode())


class ViewerKey(NamedTuple):
    """What a viewer needs to get in: the content of the file that `ddptop key new` makes."""

    server_key: str
    """Public key of the collectors."""
    keys: KeyPair

    @classmethod
    def read_file(cls, path: Path) -> ViewerKey:
        """Raises OSError, RunDirectoryError where others may read the file, ValueError where it is no key."""
        # `follow`: a user may keep the file behind a link of their own.
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            check_private(file.fileno(), path)
            data = file.read(MAX_BYTES + 1)
        match json.loads(data) if len(data) <= MAX_BYTES else None:
            case [str() as server, [str(), str()] as pair] if all(map(_is_key, [server, *pair])):
                return cls(server, KeyPair(*pair))
        raise ValueError("not a key of ddptop key new")


def _is_key(text: str) -> bool:
    return len(text) == CURVE_KEY_CHARACTERS and set(text.encode()) <= set(z85.Z85CHARS)


def make_server(socket: zmq.Socket[bytes], keys: KeyPair, domain: str) -> None:
    """Give a socket CURVE's server side, before it is bound. Without a `Gate` it then refuses everybody."""
    socket.curve_server = 1
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()
    socket.set(zmq.ZAP_DOMAIN, domain.encode())
    # With it libzmq refuses everybody while nobody answers for the domain; without it, it admits every key.
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)


def make_client(socket: zmq.Socket[bytes], server_key: str, keys: KeyPair) -> None:
    """Give a socket CURVE's client side, before it connects."""
    socket.curve_serverkey = server_key.encode()
    socket.curve_publickey = keys.public.encode()
    socket.curve_secretkey = keys.secret.encode()


class Gate:
    """Answers libzmq's question who may connect, for all CURVE sockets of one context.

    Made before any of them is bound, and closed after them. It has no thread: its socket is polled with the
    others, and `answer_questions` called when it is readable; until then new connections wait (3 s at most,
    then their client tries again)."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._allowed: dict[bytes, set[bytes]] = {}
        self.refused = 0
        """Connections that were refused: with a key that is not admitted there, or with none."""
        self.refused_why = ""
        """Domain, address and mechanism of the last of them."""
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP_ENDPOINT)

    def admit_keys(self, domain: str, public_keys: Iterable[str]) -> None:
        """Let exactly these keys (Z85) into a domain, from now on. Raises ValueError for what is no key."""
        self._allowed[domain.encode()] = {z85.decode(key.encode()) for key in public_keys}

    def answer_questions(self, limit: int = 100) -> None:
        """Answer what waits, at most `limit` questions. Never blocks."""
        for _ in range(limit):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # REP answers in turn: a question without an answer would stop all later ones.
            self.socket.send_multipart(self._answer_question(frames))

    def close(self) -> None:
        """Close the socket; the context is the caller's."""
        self.socket.close(linger=0)

    def _answer_question(self, frames: list[bytes]) -> list[bytes]:
        """RFC 27: version, request, domain, address, identity, mechanism, credentials (CURVE: the key)."""
        request = frames[1] if len(frames) > 1 else b""
        is_curve = len(frames) == 7 and frames[0] == ZAP_VERSION and frames[5] == b"CURVE"
        # CURVE has proved by now that the client holds the secret half of this key.
        if is_curve and frames[6] in self._allowed.get(frames[2], ()):
            return [ZAP_VERSION, request, b"200", b"OK", b"", b""]
        self.refused += 1
        # Cut and decoded: these texts are the client's, and appear in the log.
        parts = [part[:64].decode("ascii", "replace") for part in frames[2:6]]
        if len(parts) == 4:
            self.refused_why = f"{parts[0]}: {parts[3]} from {parts[1]} with a key that is not admitted"
        return [ZAP_VERSION, request, REFUSED, b"not admitted", b"", b""]


class ConnectionMonitor:
    """Whether a client's socket is connected, and why not. `read_events` takes what libzmq has reported; it
    never blocks."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._watched = socket
        self._events = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
            | zmq.EVENT_CONNECTED
            | zmq.EVENT_DISCONNECTED
        )
        self.connected = False
        self.connections = 0
        """How many have been made, keys and all."""
        self.trouble: str | None = "no connection yet"
        """Why it is not connected, in one line; None: it is."""
        self.refused = False
        """One end did not have the key that the other one expects."""

    def read_events(self) -> None:
        """Bring `connected`, `connections` and `trouble` up to date."""
        while int(self._events.get(zmq.EVENTS)) & zmq.POLLIN:
            # As zmq_socket_monitor(3) has it; pyzmq's own function imports asyncio, which takes 7 MB.
            event, _ = struct.unpack("=hi", self._events.recv_multipart(zmq.NOBLOCK)[0])
            self._note_event(event)

    def _note_event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.connected, self.trouble, self.refused = True, None, False
            self.connections += 1
        elif event == zmq.EVENT_DISCONNECTED:
            if self.connected:
                self.trouble = "the connection is lost"
            self.connected = False
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.trouble, self.refused = "the collector does not admit our key", True
        elif event == zmq.EVENT_CONNECTED:
            # A reason that was given before stays: this event only says that TCP itself was reached.
            if not self.trouble or self.trouble == "no connection yet":
                self.trouble = "what answers there does not speak as a collector"
        else:
            self.trouble, self.refused = "what answers there has not the key of the collector", True

    def close(self) -> None:
        """End the watch; to be called before the socket itself is closed."""
        self._watched.disable_monitor()
        self._events.close(linger=0)
