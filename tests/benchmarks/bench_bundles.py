"""What the link from the hosts' agents costs the collector: bench_bundles.py [AGENTS [RANKS [SECONDS]]]

One process has all agents (512 of 8 ranks each), each rank at 10 steps a second of 10 buckets, a message and
a heartbeat every 250 ms; the other has one `BundleReceiver`, which pauses as the collector does. All over TCP
with CURVE on the loopback. CPU time: taking bundles apart and accepting, decoding the messages, replying, and
libzmq's thread (decryption, TCP).
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from ddptop.collector.remote_hosts import BUNDLES
from ddptop.collector.service import PAUSE_NS
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import Host
from ddptop.protocol.limits import NS
from ddptop.protocol.message_run import EncodedRun
from ddptop.protocol.messages import Hello, OwnTime, Progress, Received, StepRow, Steps
from ddptop.transport import bundle_receiver
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import AGENTS, Gate, KeyPair
from ddptop.transport.sockets import new_context

PERIOD_NS = NS // 4
BUCKETS = 10
DETAIL_EVERY = 32


def row(number: int) -> StepRow:
    """A step of 100 ms; one in DETAIL_EVERY has bucket detail."""
    cells = tuple(n for i in range(BUCKETS) for n in (i, 40_000 + i * 999, 4_000)) * (
        number % DETAIL_EVERY == 0
    )
    own = OwnTime(5_000, 10, 20, 30, 0, 0, 0, 0, 0)
    begin = 100_000 * (number % 3)
    return StepRow(begin, 100_000, 9, 30_000, 60_000, 5_000, 10, 30_010, 90_010, 1, 0, 30, 2.5, cells, own)


def feed(pipe: Connection, port: int, server_key: str, keys: KeyPair, agents: int, ranks: int) -> None:
    """All agents: relay until the other end closes the pipe."""
    context = new_context()
    senders = []
    for number in range(agents):
        name = f"host{number}"
        sender = BundleSender(context, Host(1, "run", 1 + number, name, 1, 1, 1, 8, 1 << 36, "boot"))
        sender.connect_to(f"tcp://127.0.0.1:{port}", server_key, keys)
        world = agents * ranks
        for local in range(ranks):
            rank = number * ranks + local
            hello = Hello(1, "run", 10_000 + rank, rank, world, local, 0, name, 1, "", "", "", 1, 1, 1.0)
            sender.relay_message(Received(0, rank, hello.session, 0, hello), encode(hello))
        senders.append(sender)
    steps = [encode(Steps(1, i * 3, 1, tuple(row(i * 3 + j) for j in range(2 + i % 2)))) for i in range(64)]
    beat = Progress(1, 5, 0, -1, -1, 1, 0.0, 0.0, 0)
    beat_body = encode(beat)
    sequence = 0
    due_ns = time.monotonic_ns()
    while not pipe.poll():
        begun_ns = time.monotonic_ns()
        fills = begun_ns >= due_ns and all(sender.connected for sender in senders)
        if fills:
            due_ns = begun_ns + PERIOD_NS
            sequence += 1
        for number, sender in enumerate(senders):
            if fills:
                for rank in range(number * ranks, (number + 1) * ranks):
                    body = steps[sequence % len(steps)]
                    sender.relay_message(Received(0, rank, 10_000 + rank, sequence, beat), body)
                    sender.relay_message(Received(0, rank, 10_000 + rank, 0, beat), beat_body)
            sender.exchange_messages()
        time.sleep(max(0.0, 0.02 - (time.monotonic_ns() - begun_ns) / NS))
    pipe.send(sum(sender.kept for sender in senders))
    for sender in senders:
        sender.close()
    context.term()


def main() -> None:
    """Print one table."""
    agents, ranks, seconds = (*map(int, sys.argv[1:]), *(512, 8, 20)[len(sys.argv) - 1 :])
    context, keys, agent_keys = new_context(), KeyPair.new(), KeyPair.new()
    gate = Gate(context)
    gate.admit_keys(AGENTS, [agent_keys.public])
    receiver = BundleReceiver(context, "tcp://127.0.0.1:*", keys, epoch=1)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=feed, args=(theirs, receiver.port, keys.public, agent_keys, agents, ranks)
    )
    process.start()
    entries = size = 0
    numbered = 0
    spent = {"receive": 0.0, "decode": 0.0, "reply": 0.0}
    decode_accepted = bundle_receiver.decode_accepted

    def timed(*arguments: Any) -> EncodedRun:
        before = time.thread_time()
        result = decode_accepted(*arguments)
        spent["decode"] += time.thread_time() - before
        return result

    bundle_receiver.decode_accepted = timed  # type: ignore[assignment]
    began = None
    while began is None or time.monotonic() < began + seconds:
        receiver.socket.poll(20)
        time.sleep(PAUSE_NS[1] / NS)
        gate.answer_questions()
        before = time.thread_time()
        arrived = receiver.drain_bundles(time.monotonic_ns(), BUNDLES)
        between = time.thread_time()
        receiver.acknowledge()
        after = time.thread_time()
        if began is None:
            if len(receiver.connected_agents()) < agents or not (arrived.heads[3] > 8).any():
                continue
            spent = dict.fromkeys(spent, 0.0)
            began, cpu_began, own_began = time.monotonic(), time.process_time(), time.thread_time()
            continue
        spent["receive"] += between - before
        spent["reply"] += after - between
        entries += len(arrived)
        numbered += int((arrived.heads[3] > 0).sum())
        size += sum(len(arrived.body(place)) for place in range(len(arrived)))
    wall = time.monotonic() - began
    cpu, own = time.process_time() - cpu_began, time.thread_time() - own_began
    ours.send("end")
    kept = ours.recv()
    process.join()
    spent["receive"] -= spent["decode"]
    print(f"{agents} agents of {ranks} ranks, {wall:.1f} s, refused {receiver.refused}, unacked {kept}")
    print(
        f"{entries / wall:,.0f} messages/s, {numbered / wall:,.0f} of them numbered; {size / wall:,.0f} B/s"
    )
    for name, value in (*spent.items(), ("libzmq", cpu - own), ("whole process", cpu)):
        print(f"{name:14} {value / entries * 1e6:6.2f} us a message, {100 * value / wall:5.1f} % of a core")
    receiver.close()
    gate.close()
    context.term()


if __name__ == "__main__":
    main()
