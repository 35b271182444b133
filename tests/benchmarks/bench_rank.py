"""What ddptop costs a training: alternating runs under torchrun, ddptop-run and torchrun again (the control).

Run by hand: python -m tests.benchmarks.bench_rank [--pairs N] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddptop.protocol.messages import Progress
from ddptop.recording.reader import Recording
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "train.py"
MODELS = {"about 3 ms": (2, 64), "about 25 ms": (10, 440)}
"""Layers (each a bucket) and their width."""
SAMPLE_S = 0.5


@dataclass
class Cost:
    """One run: means over its ranks, per step in seconds, memory in bytes; the collector's peak."""

    wall: float
    cpu: float
    uss: float
    collector_uss: int
    collector_pss: int
    told_us: float
    """Per step, as the recorder itself measured it; the median of its heartbeats."""


def measure(launcher: list[str], model: tuple[int, int], steps: int, folder: Path) -> Cost:
    """Train once and read what the ranks print."""
    recording = folder / "bench.ddptop"
    recording.unlink(missing_ok=True)
    options = ["--standalone", "--nproc-per-node", "2", str(SCRIPT), *map(str, (*model, steps))]
    env = environment(folder) | {"DDPTOP_RECORD": str(recording)}
    with started([*launcher, *options], env, folder) as process:
        watcher = CollectorMemory(process.pid)
        watcher.start()
        out, err = process.communicate(timeout=1200)
        watcher.stop()
    if process.returncode:
        raise SystemExit(err)
    ranks = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    mean = {key: statistics.mean(rank[key] for rank in ranks) for key in ranks[0]}
    return Cost(mean["wall"], mean["cpu"], mean["uss"], watcher.uss, watcher.pss, told_us(recording))


def told_us(recording: Path) -> float:
    """Median of the cost that the ranks' heartbeats told, past the first seconds; 0 without ddptop."""
    if not recording.exists():
        return 0.0
    with Recording.open(recording) as opened:
        beats = [r.message.cost_us for r in opened.records() if isinstance(r.message, Progress)]
    return statistics.median(beats[4:]) if len(beats) > 4 else math.nan


class CollectorMemory(threading.Thread):
    """Follows the memory of the collector below a launcher: its own (USS), and with its share (PSS)."""

    def __init__(self, launcher: int) -> None:
        super().__init__()
        self.uss = self.pss = 0
        self._launcher = launcher
        self._end = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._end.wait(SAMPLE_S):
            try:
                for child in psutil.Process(self._launcher).children():
                    if "ddptop.collector" in child.cmdline():
                        memory = child.memory_full_info()
                        self.uss, self.pss = max(self.uss, memory.uss), max(self.pss, memory.pss)
            except psutil.Error:
                continue

    def stop(self) -> None:
        """End the thread."""
        self._end.set()
        self.join()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    print(
        f"{'step':12} {'ms':>6} {'wall ratio':>18} {'control':>18} "
        f"{'CPU us':>7} {'control':>8} {'told us':>8} {'MB/rank':>8} {'collector MB':>13}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            steps = options.steps if model[0] < 10 else max(200, options.steps // 5)
            runs = [
                [
                    measure(launcher, model, steps, Path(folder))
                    for launcher in (TORCHRUN, DDPTOP_RUN, TORCHRUN)
                ]
                for _ in range(options.pairs)
            ]
            print(row(name, runs), flush=True)


def row(name: str, runs: list[list[Cost]]) -> str:
    """One line of the table: medians over the rounds, with the least and the greatest."""
    plain = [(first.wall + last.wall) / 2 for first, _, last in runs]
    ratios = [watched.wall / wall for (_, watched, _), wall in zip(runs, plain, strict=True)]
    control = [last.wall / first.wall for first, _, last in runs]
    cpu = [(watched.cpu - (first.cpu + last.cpu) / 2) * 1e6 for first, watched, last in runs]
    memory = [(watched.uss - (first.uss + last.uss) / 2) / 1e6 for first, watched, last in runs]
    noise = [(last.cpu - first.cpu) * 1e6 for first, _, last in runs]
    told = [watched.told_us for _, watched, _ in runs]
    collector = max(watched.collector_uss for _, watched, _ in runs) / 1e6
    return (
        f"{name:12} {statistics.median(plain) * 1e3:6.2f} {_spread(ratios):>18} {_spread(control):>18} "
        f"{statistics.median(cpu):7.0f} {statistics.median(noise):8.0f} {statistics.median(told):8.0f} "
        f"{statistics.median(memory):8.1f} {collector:13.1f}"
    )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    main()
