"""What the agent of a host costs: bench_agent.py [RANKS ...] [--seconds S]

For each number of ranks (8 by default) there are a real agent process, a real collector that it relays to
over TCP and CURVE, and as many processes that publish as ranks do: 10 steps a second of 10 buckets, all with
bucket detail and own times, four messages of steps and heartbeats a second. Printed are memory of the agent
and CPU time of all its threads as a share of one core, which holds on a busy machine too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgpack

from ddptop.host.collector_address import read_address, write_address
from ddptop.host.runs import create_run_directory
from ddptop.protocol.codec import encode
from ddptop.protocol.limits import NS, REPORT_S
from ddptop.protocol.messages import Bucket, Bye, Hello, Layout, Phase, Progress
from ddptop.transport.sender import AckedSender
from tests.benchmarks.bench_hosts import BUCKETS, STEP_NS, STEPS_BEGIN, pattern
from tests.benchmarks.bench_screen import cpu_s, memory_mb

SETTLE_S = 15.0


def publish(directory: str, rank: int, world: int, steps: int) -> None:
    """A rank without training, in a process of its own."""
    session, began_ns, done = 1_000_000 + rank, time.monotonic_ns(), 0
    head = (1, "run", session, rank, world, rank, 0, "host", os.getpid())
    hello = Hello(*head, "cpu", "gloo", "reducer", began_ns, time.time_ns(), 1.0)
    sender = AckedSender(f"ipc://{directory}/ingest", lambda: encode(hello), window_bytes=1 << 20)
    buckets = tuple(Bucket(0, i, 25 << 20, 25 << 20, 12, "float32", "") for i in range(BUCKETS))
    sender.offer_message(encode(Layout(1, buckets)))
    while done < steps:
        time.sleep(REPORT_S - time.monotonic() % REPORT_S)  # all ranks at the same moments
        now_ns = time.monotonic_ns()
        count = min(steps, (now_ns - began_ns) // STEP_NS) - done
        if count:
            head_bytes = msgpack.packb(done) + msgpack.packb(began_ns + done * STEP_NS)
            sender.offer_message(STEPS_BEGIN + head_bytes + pattern(rank, count, done, 1))
        done += count
        sender.set_heartbeat(encode(Progress(now_ns, done, Phase.FORWARD, -1, done, 1, 20.0, 0.5, 0)))
        sender.exchange_messages()
    sender.offer_message(encode(Bye(time.monotonic_ns(), "finished")))
    sender.close(30.0)


def start(module: str, directory: Path, *more: object) -> subprocess.Popen[str]:
    """An agent or a collector on a run's folder; it is ready."""
    words = ["--run-dir", directory, "--run-id", "run", "--name", "bench", *more]
    command = [sys.executable, "-m", module, *map(str, words)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> dict[str, int]:
    """Report the end of the run; the summary."""
    out, _ = process.communicate(json.dumps({"exit_code": 0}) + "\n", timeout=60)
    summary: dict[str, int] = json.loads(out.splitlines()[-1])
    return summary


def measure(world: int, seconds: float) -> str:
    """One line of the table."""
    here, far = create_run_directory(f"agent{world}"), create_run_directory(f"collector{world}")
    collector = start("ddptop.collector", far, "--record", far.parent / "run", "--serve", "127.0.0.1:0")
    address = read_address(far)
    assert address is not None
    write_address(here, address)
    agent = start("ddptop.agent", here, "--record", "unused")
    steps = int((SETTLE_S + seconds + 5) * NS / STEP_NS)
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=publish, args=(str(here), rank, world, steps)) for rank in range(world)]
    for process in ranks:
        process.start()
    time.sleep(SETTLE_S)
    before, begun = cpu_s(agent.pid), time.monotonic()
    time.sleep(seconds)
    spent, passed = cpu_s(agent.pid) - before, time.monotonic() - begun
    memory = memory_mb(agent.pid)
    for process in ranks:
        process.join()
    end(agent)
    missing = world * steps - end(collector)["records"]
    (far.parent / "run").unlink()
    share = 100 * spent / passed
    return f"{world:4} ranks: {share:5.2f} % of a core, {memory:3.0f} MB, {missing} steps missing"


def main() -> None:
    """The table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ranks", type=int, nargs="*", default=[8])
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_STATE_HOME"] = folder
        Path(folder).chmod(0o700)
        for ranks in options.ranks:
            print(measure(ranks, options.seconds), flush=True)


if __name__ == "__main__":
    main()
