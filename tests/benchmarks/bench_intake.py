"""What the collector's parts cost for many hosts, without the link: bench_intake.py [RANKS ...]

Bundles of simulated agents (8 ranks each, 10 steps a second of 10 buckets; each second of each rank four
messages of steps, one heartbeat and one reading of its process, of each host its usage and clock) go through
the collector's own `BundleReceiver`, `Intake`, recording and reducer in one thread, and five frames a second
are made. Printed is CPU time, as a share of one core for each second of the run: it holds on a busy machine
too. TCP and decryption are not in it (`bench_bundles`).
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import zmq

from ddptop.agent.local_ranks import LocalRanks
from ddptop.analysis.reducer import Reducer
from ddptop.collector import viewers
from ddptop.collector.__main__ import ALLOCATIONS
from ddptop.collector.intake import Intake
from ddptop.collector.record import Record
from ddptop.collector.remote_hosts import BUNDLES
from ddptop.collector.viewers import INTERVAL_NS, LiveFrames
from ddptop.frames.codec import encode_frame
from ddptop.protocol.codec import encode
from ddptop.protocol.hosts import About, Host, HostUsage
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Bucket, Clock, Hello, Layout, Message, Phase, Progress, Run
from ddptop.transport import bundle_receiver
from ddptop.transport.bundle_receiver import BundleReceiver
from ddptop.transport.bundles import BundleEntry, pack_bundle
from ddptop.transport.curve import KeyPair
from ddptop.transport.sockets import new_context
from tests.benchmarks.bench_hosts import BUCKETS, PATTERNS, RANKS_OF_AN_AGENT, STEPS_BEGIN, pattern

ROUND_NS = NS // 20
"""A round of the collector: the pause after one, and its work."""
SETTLE_S = 2


class Wire:
    """In place of the socket."""

    def __init__(self) -> None:
        self.arriving: deque[zmq.Frame] = deque()
        self.replies = 0
        self._reply: list[bytes] = []

    def arrive(self, messages: Iterable[list[bytes]]) -> None:
        for message in messages:
            frames = [*map(zmq.Frame, message)]
            for frame in frames[:-1]:
                frame.more = True
            self.arriving.extend(frames)

    def recv(self, _: object, copy: bool = True) -> bytes | zmq.Frame:
        if not self.arriving:
            raise zmq.Again
        frame = self.arriving.popleft()
        return frame.bytes if copy else frame

    def send(self, part: bytes, flags: int) -> None:
        self._reply.append(part)
        if not flags & zmq.SNDMORE:
            frames, self._reply = self._reply, []
            self.note(frames)

    def note(self, frames: list[bytes]) -> None:
        """A reply was sent."""
        self.replies += 1


def introductions(agent: int, world: int) -> list[BundleEntry]:
    name = f"node{agent:03}"
    own = 1 + agent
    entries = [
        BundleEntry(own, -1, 0, 0, encode(Host(1, "run", own, name, 1, 1, 1, 64, 1 << 40, f"boot{agent}")))
    ]
    buckets = tuple(Bucket(0, i, 25 << 20, 25 << 20, 12, "float32", "") for i in range(BUCKETS))
    for rank in range(agent * RANKS_OF_AN_AGENT, min(world, (agent + 1) * RANKS_OF_AN_AGENT)):
        session = 1_000_000 + rank
        head = (1, "run", session, rank, world, rank % 8, 0, name, 1000 + rank)
        hello = Hello(*head, f"cuda:{rank % 8}", "nccl", "reducer", 0, 10**18, 1.0)
        entries.append(BundleEntry(session, rank, 0, 0, encode(hello)))
        entries.append(BundleEntry(session, rank, 1, 1, encode(Layout(1, buckets))))
    return entries


class Agents:
    """Makes the bundles of every agent in time."""

    def __init__(self, world: int, detail_every: int) -> None:
        self.world, self.every = world, detail_every
        agents = -(-world // RANKS_OF_AN_AGENT)
        # As hosts that started by themselves.
        self.due = sorted((random.Random(at).randrange(NS // 4), at) for at in range(agents))
        self.sent = [0] * agents
        self.numbers = [0] * agents
        """Of the messages of each agent's own session."""
        self.bundles = 0
        self.patterns = {
            (number, count, first): pattern(number, count, first, detail_every)
            for number in range(PATTERNS)
            for count in (2, 3)
            for first in range(detail_every)
        }

    def until(self, now_ns: int) -> list[list[bytes]]:
        frames = []
        while self.due[0][0] <= now_ns:
            due_ns, agent = self.due.pop(0)
            self.due.append((due_ns + NS // 4, agent))
            frames.append([b"agent%d" % agent, self.bundle(agent, due_ns)])
        return frames

    def bundle(self, agent: int, now_ns: int) -> bytes:
        number = self.sent[agent]
        self.sent[agent] += 1
        first, until = (5 * number + 1) // 2, (5 * number + 6) // 2
        entries = [] if number else introductions(agent, self.world)
        head = STEPS_BEGIN + msgpack.packb(first) + msgpack.packb(NS + first * NS // 10)
        for rank in range(agent * RANKS_OF_AN_AGENT, min(self.world, (agent + 1) * RANKS_OF_AN_AGENT)):
            session = 1_000_000 + rank
            rows = self.patterns[rank % PATTERNS, until - first, first % self.every]
            entries.append(BundleEntry(session, rank, 2 + number, 1, head + rows))
            if (number + rank) % 4 == 1:
                reading = Usage(now_ns, (9 << 30) + now_ns // 7, 101.5, None, 40 + rank % 7, 96, 0.0, 0.0)
                entries.append(self.own(agent, About(rank, session, encode(reading))))
            if (number + rank) % 4 == 0:
                beat = Progress(NS + now_ns, until, Phase.BACKWARD, 0, 10 * until, self.every, 30.0, 0.1, 0)
                entries.append(BundleEntry(session, rank, 0, 0, encode(beat)))
        if number % 4 == 0:
            usage = HostUsage(now_ns, 50.0, 1 << 38, 1e6, 1e6, 100_000, 0, None, 0)
            entries.append(BundleEntry(1 + agent, -1, 0, 0, encode(usage)))
            clock = Clock(NS + now_ns, f"node{agent:03}", 5_000 + now_ns % 999, 20_000, agent, 90_000)
            entries.append(self.own(agent, clock))
        return pack_bundle(now_ns, entries)

    def own(self, agent: int, message: Message) -> BundleEntry:
        """A numbered message of an agent's own."""
        self.numbers[agent] += 1
        return BundleEntry(1 + agent, -1, self.numbers[agent], 1, encode(message))


def measure(world: int, detail_every: int, seconds: int, folder: Path, profile: str | None) -> str:
    """One line of the table."""
    context = new_context()
    receiver = BundleReceiver(context, "tcp://127.0.0.1:*", KeyPair.new(), epoch=1)
    receiver.socket.close()
    wire = Wire()
    receiver.socket = wire  # type: ignore[assignment]
    record, reducer = Record(folder / f"{world}.ddptop", limit_bytes=1 << 34, resume=False), Reducer()
    hosts = SimpleNamespace(
        receive_relayed=lambda now_ns, at_once: receiver.drain_bundles(now_ns, BUNDLES, at_once=at_once),
        receiver=receiver, emptied=True, refused=0, refused_why="",
    )  # fmt: skip
    none: Any = SimpleNamespace(
        drain_messages=lambda now_ns: [], acknowledge=lambda safe: None,
        forget_session=lambda session: None,
        note_recorded=lambda *_: None, refused=0, refused_why="", sessions=(),
    )  # fmt: skip
    intake = Intake(LocalRanks(none, none, none), record, reducer, none, none, hosts)  # type: ignore[arg-type]
    intake.report_message(Run(1, "run", "bench", "train.py", (), 10**18, 0, "live", None, False), 0)
    agents = Agents(world, detail_every)
    spent: Counter[str] = Counter()
    inner_s = [0.0]
    """Time of what was called within the call that is timed."""

    def timed(name: str, call: Callable[[], object]) -> Any:
        begun, before = time.process_time(), inner_s[0]
        inner_s[0] = 0.0
        result = call()
        whole = time.process_time() - begun
        spent[name] += whole - inner_s[0]
        inner_s[0] = before + whole
        return result

    def timing(target: object, method: str, name: str) -> None:
        """Count a method's time under its own name, and not in what calls it."""
        inner = getattr(target, method)
        setattr(target, method, lambda *each, **named: timed(name, partial(inner, *each, **named)))

    timing(bundle_receiver, "decode_accepted", "decode")
    timing(record, "add_run", "record")
    timing(receiver, "drain_bundles", "receive")
    timing(record, "write_due", "tick")
    timing(reducer.evaluation, "_evaluate", "evaluate")
    frames = LiveFrames(reducer, record, "live")
    packed: dict[str, tuple[object, bytes]] = {}
    cursor, now_ns, rows = 0, 0, 0
    for module in (bundle_receiver, viewers):
        module.time = SimpleNamespace(monotonic_ns=lambda: NS + now_ns)  # type: ignore[attr-defined]
    frame_ns = 0
    began_ns = SETTLE_S * NS
    profiler = None
    while now_ns < began_ns + seconds * NS:
        now_ns += ROUND_NS
        if now_ns == began_ns:
            spent.clear()
            rows = -sum(rank.records for rank in reducer.state.ranks)
            if profile is not None:
                import cProfile

                profiler = cProfile.Profile(time.process_time)
                profiler.enable()
        if profiler is not None:
            profiler.disable()
        wire.arrive(agents.until(now_ns))
        if profiler is not None:
            profiler.enable()
        while wire.arriving:
            timed("intake", partial(intake.take_arrived, NS + now_ns))
        timed("acks", partial(intake.acknowledge_written, NS + now_ns))
        if now_ns >= frame_ns:
            frame_ns = now_ns + INTERVAL_NS
            frame = timed("frame", partial(frames, cursor=cursor, focus=None, want=""))
            timed("encode", partial(encode_frame, frame, packed))
            timed("figures", frames.prepare_next)
            cursor = frame.history.start + len(frame.history.step)
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(profile)
    rows += sum(rank.records for rank in reducer.state.ranks)
    record.close()
    context.term()
    parts = "  ".join(f"{name} {100 * value / seconds:5.1f}%" for name, value in spent.items())
    size = (folder / f"{world}.ddptop").stat().st_size
    assert not sum(rank.lost_records for rank in reducer.state.ranks) and not receiver.refused
    return (
        f"{world:6,} ranks: {100 * sum(spent.values()) / seconds:6.1f}%   {parts}   "
        f"{1e6 * sum(spent.values()) / rows:5.2f} us/row   {size / (SETTLE_S + seconds) / 1e6:.2f} MB/s"
    )


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="*", default=[8, 64, 512, 4096])
    parser.add_argument("--detail-every", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--profile", default=None, help="a file for cProfile")
    options = parser.parse_args()
    gc.freeze()  # as in the collector
    gc.set_threshold(ALLOCATIONS, *gc.get_threshold()[1:])
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            line = measure(ranks, options.detail_every, options.seconds, Path(folder), options.profile)
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
