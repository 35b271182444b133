"""What an export costs: `python -m tests.benchmarks.bench_export [RANKS [STEPS [DETAIL_EVERY]]]`.

A made-up recording (8 ranks, 100,000 steps, bucket detail in every 16th unless told) is exported by the
command, to each format. Printed are CPU and wall time, the largest memory of the command, and the
size of the output.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Layout, Message, Received, Steps
from ddptop.recording.writer import Writer
from ddptop.sources.simulation.story import Story
from tests.made_up_run import START_NS, hello, run_message

BATCH, BATCHES = 96, 20
"""Steps of a message, and how many of the simulation's batches the run consists of: it repeats them."""


def make(path: Path, world: int, steps: int, detail_every: int) -> None:
    """Record the steps of the simulation, repeated."""
    story = Story(world, 100.0, detail_every=detail_every)
    patterns = []
    for first in range(0, BATCHES * BATCH, BATCH):
        begin_us, rows = 0, []
        for step in range(first, first + BATCH):
            wall_us, of_step = story.make_rows(step, begin_us)
            rows.append(of_step)
            begin_us += wall_us
        patterns.append((begin_us, [*zip(*rows, strict=True)]))
    writer = Writer(path, limit_bytes=64 << 30)

    def add(t_ns: int, rank: int, number: int, message: Message) -> None:
        session = 1000 + rank if rank >= 0 else 0
        writer.add(Received(t_ns, rank, session, number, message), encode(message))

    t_ns = START_NS
    add(t_ns, -1, 0, run_message())
    for rank in range(world):
        add(t_ns, rank, 0, hello(rank, world))
        add(t_ns, rank, 1, Layout(1, story.buckets))
    for number, first in enumerate(range(0, steps, BATCH)):
        length_us, rows = patterns[number % BATCHES]
        count = min(BATCH, steps - first)
        for rank in range(world):
            add(t_ns + length_us * 1000, rank, 2 + number, Steps(1, first, t_ns, rows[rank][:count]))
        t_ns += length_us * 1000
        writer.write_due(t_ns)
    add(t_ns, -1, 0, run_message("finished", 0))
    writer.close()


def memory_kb(pid: int) -> int:
    """Memory of a process and of those that it has started, in kB; 0: it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        started = " ".join((task / "children").read_text(encoding="ascii") for task in tasks).split()
    except OSError:
        return 0
    own = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
    return own + sum(memory_kb(int(child)) for child in started)


def measure(form: str, recording: Path, folder: Path) -> str:
    """One line: an export by a process of its own."""
    command = [
        sys.executable,
        "-m",
        "ddptop",
        "export",
        str(recording),
        "--to",
        form,
        "-o",
        str(folder / form),
    ]
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    largest_kb, pid = 0, 0
    while not pid:
        largest_kb = max(largest_kb, memory_kb(process.pid))
        time.sleep(0.2)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    output = folder / form
    files = [*output.iterdir()] if output.is_dir() else [output]
    size = sum(file.stat().st_size for file in files)
    cpu = usage.ru_utime + usage.ru_stime
    return (
        f"{form:<10} {cpu:7.1f} s CPU {took:7.1f} s wall  {largest_kb * 1024 / 1e6:6.0f} MB  "
        f"{size / 1e6:8.1f} MB  exit code {process.returncode}"
    )


def main() -> None:
    """Make the recording and export it."""
    given = [int(word) for word in sys.argv[1:4]]
    world, steps, detail_every = [*given, *(8, 100_000, 16)[len(given) :]]
    forms = sys.argv[4:] or ["parquet", "csv", "json", "perfetto"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "large.ddptop"
        make(path, world, steps, detail_every)
        print(
            f"{world} ranks, {steps:,} steps, detail every {detail_every}: {path.stat().st_size / 1e6:.0f} MB"
        )
        for form in forms:
            print(measure(form, path, folder), flush=True)


if __name__ == "__main__":
    main()
