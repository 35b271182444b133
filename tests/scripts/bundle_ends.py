"""A collector or an agent that does nothing but keep the link, to be killed: bundle_ends.py ROLE FOLDER PORT

`collector`: receives bundles at PORT with the keys in FOLDER, and writes `session seq number` of each message
into FOLDER/record every 50 ms; it acks what it has written, and goes on with that file where it finds one.
`agent`: receives ranks at FOLDER/ingest, and relays to PORT.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

import zmq

from ddptop.protocol.hosts import Host
from ddptop.protocol.messages import Event, Received
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import AGENTS, Gate, load_keys
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context

WRITE_EVERY_S = 0.05
RECORD = "record"


def collect(folder: Path, port: int) -> None:
    context, keys = new_context(), load_keys(folder)
    gate = Gate(context)
    gate.admit_keys(AGENTS, [keys.agents.public])
    receiver = BundleReceiver(
        context, f"tcp://127.0.0.1:{port}", keys.collector, epoch=random.getrandbits(60)
    )
    path = folder / RECORD
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    for line in whole.splitlines():
        session, seq, _ = map(int, line.split())
        receiver.note_recorded(session, seq)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.ftruncate(file, len(whole) + bool(whole))
    waiting: list[Received] = []
    write_s = 0.0
    while os.getppid() != 1:
        receiver.socket.poll(5)
        gate.answer_questions()
        waiting += [one for one, _ in receiver.drain_bundles(time.monotonic_ns()) if one.seq]
        if waiting and time.monotonic() > write_s:
            write_s = time.monotonic() + WRITE_EVERY_S
            lines = [
                f"{one.session} {one.seq} {one.message.step if isinstance(one.message, Event) else -1}\n"
                for one in waiting
            ]
            os.write(file, "".join(lines).encode())
            waiting.clear()
        receiver.acknowledge(safe=not waiting)


def relay(folder: Path, port: int) -> None:
    context, keys = new_context(), load_keys(folder)
    ingest = folder / "ingest"
    ingest.unlink(missing_ok=True)
    ranks = AckedReceiver(context, f"ipc://{ingest}", epoch=random.getrandbits(60), hold_acks=True)
    host = Host(1, "run", random.getrandbits(60) + 1, "far", os.getpid(), 1, 1, 1, 1, "boot")
    sender = BundleSender(context, host, interval_ns=20_000_000)
    sender.connect_to(f"tcp://127.0.0.1:{port}", keys.collector.public, keys.agents)
    reported_s = 0.0
    while os.getppid() != 1:
        ranks.socket.poll(5)
        for received, body in ranks.drain_messages(time.monotonic_ns()):
            sender.relay_message(received, body)
        if time.monotonic() > reported_s:
            reported_s = time.monotonic() + 0.1
            sender.report_message(Event("own", 1, -1, -1, {}))
        for session, seq in sender.exchange_messages().acked:
            ranks.mark_safe(session, seq)
        ranks.acknowledge(safe=False)


if __name__ == "__main__":
    try:
        {"collector": collect, "agent": relay}[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
    except zmq.ZMQError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
