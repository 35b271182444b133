"""Bounds of the clock between an agent and a collector on this machine, where the true offset is zero.

    python -m tests.benchmarks.bench_clock [--seconds 40] [--busy 4]

Real processes, a made-up rank on each side. `--busy`: so many endless loops beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddptop.host.runs import ensure_run_directory
from ddptop.protocol.messages import Clock
from ddptop.recording.reader import Recording
from tests.run_processes import FAKE_RANK

RUN_ID = "run"


def main() -> None:
    """Print the bounds and round trips in ms, and what the two processes have cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    processes: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        command = [sys.executable, *map(str, words)]
        one = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(one)
        return one

    def serve(module: str, folder: Path, *more: object) -> subprocess.Popen[str]:
        ensure_run_directory(folder)
        one = start("-m", module, "--run-dir", folder, "--run-id", RUN_ID, "--name", "name", *more)
        assert one.stdout is not None
        assert json.loads(one.stdout.readline()) == {"ready": True}
        return one

    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"] = name
        try:
            near, far, recording = Path(name) / "near", Path(name) / "far", Path(name) / "run.ddptop"
            collector = serve("ddptop.collector", far, "--record", recording, "--serve", "127.0.0.1:0")
            ensure_run_directory(near)
            shutil.copy(far / "collector.json", near)
            agent = serve("ddptop.agent", near, "--record", "unused")
            for rank, folder in enumerate((far, near)):
                start(FAKE_RANK, folder, RUN_ID, rank, 2, 10**9, 20, 3, 1 << 20, 1, "hang")
            for _ in range(options.busy):
                start("-c", "while True: pass")
            time.sleep(options.seconds)
            with Recording.open(recording) as opened:
                clocks = [item.message for item in opened.records() if isinstance(item.message, Clock)]
            for title, of_clock in (("bound", "bound_ns"), ("round trip", "round_trip_ns")):
                values = sorted(getattr(clock, of_clock) / 1e6 for clock in clocks)
                median, p90 = statistics.median(values), values[len(values) * 9 // 10]
                print(f"{title:>12}: median {median:.3f} ms, p90 {p90:.3f} ms, {len(values)} clocks")
            wrong = sum(abs(clock.offset_ns) > clock.bound_ns for clock in clocks)
            print(f"offsets beyond their bound: {wrong}")
            for title, one in (("collector", collector), ("agent", agent)):
                ticks = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK") / options.seconds
                print(f"{title:>12}: {100 * cpu:.1f} % of a core, load {os.getloadavg()[0]:.1f}")
        finally:
            for one in processes:
                one.kill()
                one.communicate()


if __name__ == "__main__":
    main()
