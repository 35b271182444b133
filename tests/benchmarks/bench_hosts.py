"""What a run over many hosts costs its collector: bench_hosts.py [RANKS ...] [--detail-every N] [--seconds S]

For each number of ranks (8, 64, 512 and 4,096 by default) there are simulated agents of 8 ranks each, in two
processes, which speak the real link (TCP, CURVE) to one real collector process with a recording, and one
viewer in this process. Each rank makes 10 steps a second of 10 buckets and sends, as a real one does, four
messages of steps a second, and heartbeats; each agent a CLOCK and a reading of its host a second, and one of
each rank's process every 5 s.

Ranks of a host send at the same moments, and its agent READ_AT_S later, as real ones do.

Printed are CPU time and memory of the collector, the time from when an agent has sent a record, and from
when its rank has, until the viewer has the frame that counts it, and what was lost. CPU time is a share of
one core while it is measured, and microseconds for each step of a rank from the collector's start on: only
the latter holds on a busy machine, where the collector gets less than it needs. The times to the viewer are
wall times: read them on a quiet machine. With `--eager` the viewer asks for the next frame at once; without,
as a screen does, so seldom that its process takes 2.5 % of a core for them. With `--nice N` all have that
niceness: the collector's own, 10, leaves it hardly any time beside busy processes of others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from struct import pack, unpack

import msgpack

from ddptop.agent.round_times import READ_AT_S
from ddptop.host.collector_address import CollectorAddress, read_address
from ddptop.host.runs import create_run_directory, read_run_file
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import NS, REPORT_S
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import (
    Bucket,
    Bye,
    Clock,
    Flag,
    Hello,
    Layout,
    OwnTime,
    Phase,
    Progress,
    Received,
    StepRow,
    Steps,
)
from ddptop.sources.live import Link, LiveSource
from ddptop.transport import bundle_sender
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context
from tests.benchmarks.bench_screen import cpu_s, memory_mb

RANKS_OF_AN_AGENT = 8
FEEDERS = 2
STEP_NS = NS // 10
PERIOD_NS = int(REPORT_S * NS)
READ_AT_NS = int(READ_AT_S * NS)
BUCKETS = 10
PATTERNS = 32
SETTLE_S = 12.0
LONGEST = 4
"""Steps in one message."""
MOST_NOTED = 64
"""Agents of which the times to the viewer are noted, nearly."""
STEPS_BEGIN = b"\x97\x02\x01"
"""Of a message of generation 1 in columns; the first step and the time follow, which are 0 in `pattern`."""


def pattern(number: int, count: int, first: int, detail_every: int) -> bytes:
    """The end of a STEPS message of `count` steps, behind its first step and time."""
    noise = random.Random(PATTERNS * first + number)
    rows = []
    for i in range(count):
        late = noise.randrange(900)
        detail = (first + i) % detail_every == 0
        cells = tuple(n for b in range(BUCKETS) for n in (b, 31_000 + 6_500 * b + late, 7_000 - late + b))
        more = [noise.randrange(100) for _ in range(8)]
        forward, backward, optimizer = 30_000 + more[0], 60_000 + more[1], 8_000 + more[2]
        at = (600 + late, 31_000 + late, 91_000 + more[3])
        times = (i * 100_000, 100_000 + more[4], 500 + late, forward, backward, optimizer, *at)
        between, paused = (10 + more[5], 20 + more[6], 30 + more[7]), 400 if noise.random() < 0.01 else 0
        own = OwnTime(5_000 + late, *between, 0, 0, 0, 0, 0, noise.randrange(50), paused, 4_194_304)
        (loss,) = unpack("<f", pack("<f", 0.5 + late / 1e4))  # as torch's
        facts = (1, Flag.DETAIL * detail, 30, loss)
        rows.append(StepRow(*times, *facts, cells if detail else (), own))
    return encode(Steps(1, 0, 0, tuple(rows)))[len(STEPS_BEGIN) + 2 :]


class SimulatedRank:
    """Sends what a real rank sends; of one in eight it is noted when."""

    def __init__(
        self, link: bundle_sender.BundleSender, rank: int, world: int, host: str, began_ns: int
    ) -> None:
        self.link, self.rank, self.began_ns = link, rank, began_ns
        self.session = 1_000_000 + rank
        self.seq = self.done = self.beats = 0
        self.due_ns = began_ns + random.Random(rank // RANKS_OF_AN_AGENT).randrange(PERIOD_NS)
        self.usage_ns = self.due_ns
        self.noted: list[tuple[int, int]] | None = [] if rank % RANKS_OF_AN_AGENT == 0 else None
        """By number of the message - 2: steps so far, when the agent received it."""
        head = (1, "run", self.session, rank, world, rank % 8, 0, host, 1000 + rank)
        hello = Hello(*head, f"cuda:{rank % 8}", "nccl", "reducer", began_ns, time.time_ns(), 1.0)
        link.relay_message(Received(0, rank, self.session, 0, hello), encode(hello))
        buckets = tuple(Bucket(0, i, 25 << 20, 25 << 20, 12, "float32", "") for i in range(BUCKETS))
        self.offer(Layout(1, buckets))

    def offer(self, message: Layout | Bye) -> None:
        self.seq += 1
        self.link.relay_message(Received(0, self.rank, self.session, self.seq, message), encode(message))

    def work(self, now_ns: int, patterns: dict[tuple[int, int, int], bytes], detail_every: int) -> None:
        if now_ns < self.due_ns:
            return
        self.due_ns += PERIOD_NS
        made = min((now_ns - self.began_ns) // STEP_NS, self.done + LONGEST)
        count = made - self.done
        if count > 0:
            rows = patterns[self.rank % PATTERNS, count, self.done % detail_every]
            base_ns = self.began_ns + self.done * STEP_NS
            body = STEPS_BEGIN + msgpack.packb(self.done) + msgpack.packb(base_ns) + rows
            self.seq += 1
            self.done = made
            self.link.relay_message(Received(0, self.rank, self.session, self.seq, _STEPS), body)
            if self.noted is not None:
                self.noted.append((made, now_ns))
        self.beats += 1
        if self.beats % 2:
            beat = Progress(now_ns, self.done, Phase.BACKWARD, 0, 10 * self.done, detail_every, 30.0, 0.1, 0)
            self.link.relay_message(Received(0, self.rank, self.session, 0, beat), encode(beat))
        if now_ns >= self.usage_ns:
            self.usage_ns += 5 * NS
            self.link.report_message(About(self.rank, self.session, encode(Usage(now_ns, 1 << 30, 99.0))))


_STEPS = Steps(1, 0, 0, ())


def feed(pipe: Connection, address: CollectorAddress, agents: range, world: int, detail_every: int) -> None:
    """Some agents, until the other end sends the number of steps at which to end."""
    context = new_context()
    sent: dict[tuple[int, int], int] = {}
    pack_bundle = bundle_sender.pack_bundle

    def noting(t0_ns: int, entries: list[bundle_sender.BundleEntry]) -> bytes:
        for entry in entries:
            if entry.seq and entry.rank >= 0 and entry.rank % RANKS_OF_AN_AGENT == 0:
                sent.setdefault((entry.rank, entry.seq), t0_ns)
        return pack_bundle(t0_ns, entries)

    bundle_sender.pack_bundle = noting  # type: ignore[assignment]
    patterns = {
        (number, count, first): pattern(number, count, first, detail_every)
        for number in range(PATTERNS)
        for count in range(1, LONGEST + 1)
        for first in range(detail_every)
    }
    began_ns = time.monotonic_ns()
    links, ranks = [], []
    for agent in agents:
        host = Host(1, "run", 1 + agent, f"node{agent:03}", 1, 1, 1, 64, 1 << 40, f"boot{agent}")
        link = bundle_sender.BundleSender(context, host, interval_ns=2 * PERIOD_NS)
        link.connect_to(
            address.endpoint, address.server_key, KeyPair(address.agent_public, address.agent_secret)
        )
        links.append(link)
        mine = range(agent * RANKS_OF_AN_AGENT, min(world, (agent + 1) * RANKS_OF_AN_AGENT))
        ranks += [SimulatedRank(link, rank, world, host.name, began_ns) for rank in mine]
    sends_ns = [began_ns + READ_AT_NS + random.Random(agent).randrange(PERIOD_NS) for agent in agents]
    clock_ns = began_ns
    until = None
    while until is None or any(rank.done < until for rank in ranks):
        now_ns = time.monotonic_ns()
        if until is None and pipe.poll():
            until = pipe.recv()
        for rank in ranks:
            if until is None or rank.done < until:
                rank.work(now_ns, patterns, detail_every)
        if now_ns >= clock_ns:
            clock_ns += NS
            for agent, link in zip(agents, links, strict=True):
                link.report_message(Clock(now_ns, f"node{agent:03}", 0, 50_000, 0, 100_000))
                link.set_usage(HostUsage(now_ns, 50.0, 1 << 38, 1e6, 1e6, 100_000, link.kept, None, 0))
        for at, link in enumerate(links):
            if now_ns >= sends_ns[at]:
                sends_ns[at] += PERIOD_NS
                link.flush()
            link.exchange_messages()
        time.sleep(0.01)
    for rank in ranks:
        rank.offer(Bye(time.monotonic_ns(), "finished"))
    end = time.monotonic() + 30
    while any(link.kept for link in links) and time.monotonic() < end:
        for link in links:
            link.flush()
            link.exchange_messages()
        time.sleep(0.05)
    noted = {rank.rank: rank.noted for rank in ranks if rank.noted is not None}
    pipe.send((sum(rank.done for rank in ranks), sum(link.kept for link in links), noted, sent))
    for link in links:
        link.close()
    context.term()


class Viewer(LiveSource):
    """Notes when it first had a frame with so many steps of a rank, in the thread that reads the frames: to
    look for them again and again from another one takes as much as reading them."""

    def __init__(self, directory: Path, ranks: range, *, eager: bool) -> None:
        run = read_run_file(directory)
        assert run is not None
        super().__init__(run)
        if eager:
            self.pace.slowest_s = 0.0
        self._ranks = ranks
        self.seen: dict[int, list[tuple[int, int]]] = {rank: [] for rank in ranks}
        self.frames = 0
        self.start()

    def _receive_frames(self, link: Link) -> None:
        before = self.latest()
        super()._receive_frames(link)
        frame, now_ns = self.latest(), time.monotonic_ns()
        if frame is None or frame is before:
            return
        self.frames += 1
        records = frame.ranks.records
        for rank in self._ranks:
            if rank < len(records):
                self.seen[rank].append((int(records[rank]), now_ns))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else float("nan")


def measure(
    world: int, detail_every: int, seconds: float, profile: str | None, nice: int | None, eager: bool
) -> str:
    """One line of the table."""
    agents = -(-world // RANKS_OF_AN_AGENT)
    directory = create_run_directory(f"bench{world}")
    recording = directory.parent.parent / f"bench{world}.ddptop"
    words = ["--run-dir", directory, "--run-id", directory.name, "--name", "bench", "--record", recording]
    program = [sys.executable, *(() if profile is None else ("-m", "cProfile", "-o", profile))]
    collector = subprocess.Popen(
        [*program, "-m", "ddptop.collector", *map(str, words), "--serve", "127.0.0.1:0"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert collector.stdin is not None and collector.stdout is not None
    collector.stdout.readline()
    if nice is not None:
        for pid in (0, collector.pid):
            for thread in Path(f"/proc/{pid or os.getpid()}/task").iterdir():
                os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
    address = read_address(directory)
    assert address is not None
    spawn = multiprocessing.get_context("spawn")
    pipes, feeders = [], []
    for number in range(min(FEEDERS, agents)):
        ours, theirs = spawn.Pipe()
        mine = range(number * agents // FEEDERS, (number + 1) * agents // FEEDERS) if agents > 1 else range(1)
        feeders.append(spawn.Process(target=feed, args=(theirs, address, mine, world, detail_every)))
        feeders[-1].start()
        pipes.append(ours)
    viewer = Viewer(directory, range(0, world, RANKS_OF_AN_AGENT * max(1, agents // MOST_NOTED)), eager=eager)
    time.sleep(SETTLE_S)
    cpu, fed_cpu = cpu_s(collector.pid), sum(cpu_s(one.pid or 0) for one in feeders)
    wall, begun_ns, frames = time.monotonic(), time.monotonic_ns(), viewer.frames
    time.sleep(seconds)
    passed = time.monotonic() - wall
    cpu, fed_cpu = cpu_s(collector.pid) - cpu, sum(cpu_s(one.pid or 0) for one in feeders) - fed_cpu
    frames = viewer.frames - frames
    ended_ns = time.monotonic_ns()
    memory = memory_mb(collector.pid)
    for pipe in pipes:
        pipe.send(int((SETTLE_S + seconds + 5) * NS / STEP_NS))
    time.sleep(5.0)
    made = kept = 0
    received: list[float] = []
    sent: list[float] = []
    for pipe in pipes:
        steps, left, noted, sent_ns = pipe.recv()
        made, kept = made + steps, kept + left
        for rank, messages in noted.items():
            seen = iter(viewer.seen.get(rank, ()))
            shown = next(seen, None)
            for number, (upto, at_ns) in enumerate(messages):
                while shown is not None and shown[0] < upto:
                    shown = next(seen, None)
                if shown is not None and begun_ns < at_ns < ended_ns - NS:
                    received.append((shown[1] - at_ns) / 1e6)
                    sent.append((shown[1] - sent_ns.get((rank, number + 2), at_ns)) / 1e6)
    for feeder in feeders:
        feeder.join()
    whole_cpu = cpu_s(collector.pid)
    viewer.close()
    out, _ = collector.communicate(json.dumps({"exit_code": 0}) + "\n", timeout=60)
    summary = json.loads(out.splitlines()[-1])
    size = recording.stat().st_size
    recording.unlink()
    lost, missing = summary["lost"], made - summary["records"]
    times = [percentile(values, share) for values in (sent, received) for share in (0.5, 0.99)]
    return (
        f"{world:6,} {agents:7,} {100 * cpu / passed:9.1f}% {1e6 * whole_cpu / made:7.1f} us {memory:7.0f} MB"
        f" {times[0]:7.0f} {times[1]:6.0f} ms {times[2]:7.0f} {times[3]:6.0f} ms {frames / passed:5.1f}/s"
        f" {lost:6,} lost {missing:6,} missing {kept:5,} unacked"
        f" {size / (SETTLE_S + seconds + 5) / 1e6:6.2f} MB/s {100 * fed_cpu / passed:7.1f}%"
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="*", default=[8, 64, 512, 4096])
    parser.add_argument("--detail-every", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--profile", default=None, help="a file for the collector's cProfile")
    parser.add_argument("--eager", action="store_true", help="a viewer that asks at once for the next frame")
    parser.add_argument("--nice", type=int, default=None)
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_STATE_HOME"] = folder
        Path(folder).chmod(0o700)
        print(
            " ranks  agents  collector  CPU/step    memory   sent: p50    p99   received: p50   p99   frames",
            end="",
        )
        print("    lost          missing    unacked      recorded   agents' CPU")
        for ranks in options.ranks:
            print(
                measure(
                    ranks, options.detail_every, options.seconds, options.profile, options.nice, options.eager
                ),
                flush=True,
            )


if __name__ == "__main__":
    main()
