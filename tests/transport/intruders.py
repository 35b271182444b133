"""What somebody without a key, or with the wrong intentions, sends to a port of a collector."""

from __future__ import annotations

import random
import socket
import struct
from pathlib import Path

import zmq

from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Clock, Event, StepRow, Steps
from ddptop.transport.bundles import BundleEntry, pack_bundle, unpack_reply
from ddptop.transport.curve import KeyPair, RunKeys, make_client
from tests.made_up_run import progress
from tests.transport.ends import event, hello, host

RESET = struct.pack("ii", 1, 0)

FORGED = pack_bundle(
    1,
    [
        BundleEntry(66, -1, 0, 0, encode(host(66, "intruder"))),
        BundleEntry(67, 0, 0, 0, encode(hello(0, 67))),
        BundleEntry(67, 0, 1, 0, encode(event(666))),
    ],
)
"""What an agent would send: it changes figures where it gets in."""


NULL_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + b"\0" * 32
CURVE_GREETING = b"\xff" + b"\0" * 8 + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + b"\0" * 32
HUGE = b"\x06" + struct.pack(">Q", 2**60)
"""A command of 2^60 bytes."""


def strings(chance: random.Random) -> bytes:
    """Something to send without keys."""
    return chance.choice(
        [
            chance.randbytes(chance.randrange(1, 2000)),
            NULL_GREETING + HUGE + b"x" * 1000,
            CURVE_GREETING + HUGE + b"x" * 1000,
            CURVE_GREETING + b"\x02" + struct.pack(">Q", 2**60) + b"x" * 1000,
            CURVE_GREETING + b"\x04\xc8\x05HELLO" + chance.randbytes(194),
            CURVE_GREETING + b"\x04\xff\x08INITIATE" + chance.randbytes(246),
            NULL_GREETING + b"\x04\x05\x05READY",
            b"GET / HTTP/1.1\r\n\r\n",
            CURVE_GREETING[: chance.randrange(64)],
        ]
    )


def attack(port: int, connections: int, seed: int) -> None:
    """So many connections one after the other, each with some bytes."""
    chance = random.Random(seed)
    for number in range(connections):
        with socket.create_connection(("127.0.0.1", port), 30) as end:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # no port stays in use
            try:
                end.sendall(strings(chance))
                if number % 50 == 0:
                    end.settimeout(1)
                    while end.recv(1000):  # wait for what it makes of it
                        continue
            except OSError:
                continue


def knock(context: zmq.Context[zmq.Socket[bytes]], port: int, server_key: str, times: int) -> None:
    """So many agents with keys that are not admitted, one after the other."""
    for _ in range(times):
        peer = context.socket(zmq.DEALER)
        peer.linger = 0
        make_client(peer, server_key, KeyPair.new())
        watched = peer.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        peer.connect(f"tcp://127.0.0.1:{port}")
        peer.send(FORGED)
        assert watched.poll(30_000), "neither refused nor admitted"
        assert struct.unpack("=H", watched.recv_multipart()[0][:2])[0] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        peer.disable_monitor()
        watched.close()
        peer.close()


def usage(pid: int) -> tuple[float, int]:
    """A process's memory in MB, and its open descriptors."""
    status = Path(f"/proc/{pid}/status").read_text()
    kilobytes = int(status.partition("VmRSS:")[2].split()[0])
    return kilobytes / 1024, len([*Path(f"/proc/{pid}/fd").iterdir()])


def valid(chance: random.Random) -> bytes:
    """A bundle as an agent sends it."""
    session = chance.randrange(1000, 1020)
    number = chance.randrange(1, 50)
    row = StepRow(0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 9, 1.5, (0, 1, 2) * chance.randrange(20))
    bodies = [
        encode(Steps(1, number, 7, (row,) * chance.randrange(1, 5))),
        encode(Event("test", 1, 0, number, {"text": "x" * chance.randrange(100)})),
        encode(About(0, session, encode(Usage(1, 2, 3.0)))),
        encode(Clock(1, "far", -5, 6, 7, 8)),
        encode(progress(1, 5)),
        encode(hello(session % 4096, session)),
        encode(host(session, "hostile")),
    ]
    entries = [BundleEntry(66, -1, 0, 0, encode(host(66, "hostile")))]
    for _ in range(chance.randrange(12)):
        seq = chance.choice([0, number, number + 1])
        rank = chance.choice([-1, session % 4096, 5])
        entries.append(BundleEntry(session, rank, seq, chance.choice([0, 1, number]), chance.choice(bodies)))
    return pack_bundle(chance.choice([0, 1, 2**60]), entries)


def damaged(chance: random.Random, data: bytes) -> bytes:
    """The same with a few bytes changed, cut, doubled or put in."""
    changed = bytearray(data)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(changed))
        match chance.randrange(4):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                del changed[at : at + chance.randrange(1, 20)]
            case 2:
                changed[at:at] = chance.randbytes(chance.randrange(1, 9))
            case _:
                changed[at : at + 4] = chance.choice(
                    [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\xdd\xff\xff\xff"]
                )
        if not changed:
            break
    return bytes(changed)


def fuzz(context: zmq.Context[zmq.Socket[bytes]], port: int, keys: RunKeys, frames: int, seed: int) -> None:
    """As an agent with the right key that sends damaged bundles; until the collector has read them all."""
    chance = random.Random(seed)
    peer = context.socket(zmq.DEALER)
    peer.linger = 0
    make_client(peer, keys.collector.public, keys.agents)
    peer.connect(f"tcp://127.0.0.1:{port}")
    for _ in range(frames):
        peer.send(damaged(chance, valid(chance)))
        while peer.poll(0):
            peer.recv_multipart()
    echo = 4711  # of the bundle behind them
    peer.send(pack_bundle(echo, [BundleEntry(66, -1, 0, 0, encode(host(66, "hostile")))]))
    while peer.poll(60_000):
        if unpack_reply(peer.recv_multipart()[0]).t0_ns == echo:
            peer.close()
            return
    raise AssertionError("the collector does not answer")
