"""A host without training: an agent whose ranks are made up, over the real link. Run as a program.

fake_agent.py FOLDER HOST FIRST_RANK RANKS WORLD STEPS STEPS_PER_S DRAIN_S END [PORT]

FOLDER is the collector's run folder, from which it knows address and keys; PORT replaces that port (a link
of the test's). END is what its ranks do after the last step: `bye`, or `hang` (they beat and answer every
ASK until the process is killed). Prints a line at its end, when all is acked or DRAIN_S have passed.
The variable INCARNATION is that of its rank 1; rank 0 has 0.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ddptop.host.collector_address import CollectorAddress, read_address
from ddptop.host.processes import boot_id
from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.hosts import HOST_END, Host, HostUsage
from ddptop.protocol.messages import (
    Bucket,
    Bye,
    Clock,
    Event,
    Hello,
    Layout,
    Message,
    Phase,
    Progress,
    Received,
    Steps,
)
from ddptop.transport.bundle_sender import BundleSender
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context
from tests.collector.fake_rank import row

LOOK_S = 0.1
BUCKETS = 3


class Rank:
    """A made-up rank: its messages, in order."""

    def __init__(self, link: BundleSender, host: str, rank: int, world: int) -> None:
        self.link, self.rank = link, rank
        self.session = int.from_bytes(os.urandom(7), "big") + 1
        self.seq = self.done = 0
        now_ns = time.monotonic_ns()
        incarnation = rank and int(os.environ.get("INCARNATION", "0"))
        head = (1, "elsewhere", self.session, rank, world, 0, incarnation, host, 1 << 22)
        self.relay(Hello(*head, "cpu", "gloo", "hook", now_ns, time.time_ns(), 1.0), numbered=False)
        buckets = tuple(Bucket(0, index, 1 << 20, 1 << 20, 1000, "float32", "") for index in range(BUCKETS))
        self.relay(Layout(1, buckets))

    def relay(self, message: Message, *, numbered: bool = True) -> None:
        self.seq += numbered
        seq = self.seq if numbered else 0
        received = Received(time.monotonic_ns(), self.rank, self.session, seq, message)
        self.link.relay_message(received, encode(message))

    def steps(self, due: int, began_ns: int, wall_us: int) -> None:
        while self.done < due:
            end = min(due, self.done + 50)
            rows = tuple(
                row(step, (step - self.done) * wall_us, wall_us, BUCKETS) for step in range(self.done, end)
            )
            self.relay(Steps(1, self.done, began_ns + self.done * wall_us * 1000, rows))
            self.done = end
        beat = Progress(time.monotonic_ns(), self.done, Phase.FORWARD, -1, self.done, 1, 20.0, 0.5, 0)
        self.relay(beat, numbered=False)

    def answer(self, number: int) -> None:
        now_ns = time.monotonic_ns()
        self.relay(Evidence(now_ns, number, self.done, Phase.BACKWARD, -1, "", (), (), ()))


class Agent:
    """Looks for the collector as long as it does not reach it."""

    def __init__(self, folder: Path, name: str, port: int) -> None:
        self.folder, self.name, self.port = folder, name, port
        self.context = new_context()
        session = int.from_bytes(os.urandom(7), "big") + 1
        now = (time.monotonic_ns(), time.time_ns())
        boot = boot_id() if not name.endswith("'") else "another machine"
        name = name.rstrip("'")
        self.link = BundleSender(
            self.context, Host(1, "elsewhere", session, name, os.getpid(), *now, 8, 1 << 34, boot)
        )
        self.address: CollectorAddress | None = None
        self.looked_s = self.clock_s = 0.0

    def service(self) -> list[tuple[int, int]]:
        """The ASKs that came."""
        now_s = time.monotonic()
        if not self.link.connected and now_s - self.looked_s > 0.2:
            self.looked_s = now_s
            address = read_address(self.folder)
            if address is not None and address != self.address:
                self.address = address
                endpoint = address.endpoint
                if self.port:
                    endpoint = f"tcp://127.0.0.1:{self.port}"
                keys = KeyPair(address.agent_public, address.agent_secret)
                self.link.connect_to(endpoint, address.server_key, keys)
        if now_s - self.clock_s > 1.0:
            self.clock_s, now_ns = now_s, time.monotonic_ns()
            self.link.report_message(Clock(now_ns, self.name.rstrip("'"), 0, 50_000, 0, 100_000))
            usage = (10.0, 1 << 30, 1000.0, 1000.0, 100_000, self.link.kept, None, 0)
            self.link.set_usage(HostUsage(now_ns, *usage))
        return self.link.exchange_messages().asked


def main() -> None:
    folder, name, *words = sys.argv[1:]
    first, ranks_here, world, steps = map(int, words[:4])
    rate, drain_s, end_word = float(words[4]), float(words[5]), words[6]
    agent = Agent(Path(folder), name, int(words[7]) if len(words) > 7 else 0)
    ranks = [Rank(agent.link, name.rstrip("'"), rank, world) for rank in range(first, first + ranks_here)]
    began_ns, wall_us = time.monotonic_ns(), int(1e6 / rate)
    while True:
        time.sleep(LOOK_S)
        due = min(steps, int((time.monotonic_ns() - began_ns) / 1e9 * rate))
        for rank in ranks:
            rank.steps(due, began_ns, wall_us)
        for session, number in agent.service():
            for rank in ranks:
                if rank.session == session:
                    rank.answer(number)
        if due == steps and end_word == "bye":
            break
    for rank in ranks:
        rank.relay(Bye(time.monotonic_ns(), "finished"))
    agent.link.flush()
    began_close = time.monotonic()
    while agent.link.kept and time.monotonic() - began_close < drain_s:
        agent.service()
        time.sleep(0.01)
    kept = agent.link.kept
    if not kept:
        agent.link.report_message(Event(HOST_END, time.monotonic_ns(), -1, -1, {}), urgent=True)
    while agent.link.kept > kept and agent.link.connected and time.monotonic() - began_close < drain_s:
        agent.service()
        time.sleep(0.01)
    agent.link.close()
    agent.context.term()
    close_s = time.monotonic() - began_close
    print(json.dumps({"left": kept, "dropped": agent.link.dropped, "close_s": close_s}))


if __name__ == "__main__":
    main()
