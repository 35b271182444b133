"""What ddptop costs a training, measured from outside: of several trainings one runs, the others are stopped.

Run by hand: python -m tests.benchmarks.bench_windows [--rounds N] [--seconds S]

The same training is started under torchrun, torchrun again (the control), ddptop-run, ddptop-run with a
tenth of the budget, and TraceML where it is installed (`pip install traceml-ai`). In each round each of
them in turn, in an order drawn anew, gets SIGCONT for a window, and SIGSTOP at its end. A ratio is to
torchrun in the same round, so a machine that grows slower over minutes changes none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.scripts import endless
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, started, until

SCRIPT = Path(endless.__file__)
MODELS = {"short": (2, 64), "long": (10, 440)}
"""Layers (each a bucket) and their width."""

RANKS = 2
WARM_UP_STEPS = 500
SETTLE_S = 0.5
"""Of each window, not measured: caches are filled again, and who was stopped hears of it."""


@dataclass
class Window:
    """What one training did in one window: per step in seconds, and in shares of a core."""

    mean: float
    median: float
    cpu: float
    """Of the ranks, together."""
    beside: float
    """CPU of all other processes of the run (launcher, collector) by elapsed time."""


class Training:
    """One of the trainings; stopped except in its windows."""

    def __init__(self, launcher: int, folder: Path) -> None:
        self._launcher = psutil.Process(launcher)
        self._folder = folder
        until(lambda: self._steps() > WARM_UP_STEPS, f"{WARM_UP_STEPS} steps in {folder.name}", 300)
        self._notes = [endless.notes(folder / str(rank), "rb") for rank in range(RANKS)]
        self._ranks = {int(notes[0]) for notes in self._notes}
        self.send(signal.SIGSTOP)

    def _steps(self) -> int:
        paths = [self._folder / str(rank) for rank in range(RANKS)]
        if not all(path.exists() and path.stat().st_size for path in paths):
            return 0
        return min(int(endless.notes(path, "rb")[1]) for path in paths)

    def send(self, number: signal.Signals) -> None:
        """To all processes of the run."""
        for process in [self._launcher, *self._launcher.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def window(self, seconds: float) -> Window:
        """Let it run, and measure."""
        self.send(signal.SIGCONT)
        time.sleep(SETTLE_S)
        began, first, cpu, beside = time.monotonic(), int(self._notes[0][1]), self._cpu(), self._beside()
        time.sleep(seconds)
        cpu, beside = self._cpu() - cpu, self._beside() - beside
        elapsed, last = time.monotonic() - began, int(self._notes[0][1])
        self.send(signal.SIGSTOP)
        ends = self._notes[0][2:][np.arange(first, last) % endless.RING]
        steps = last - first
        return Window(
            (ends[-1] - ends[0]) / 1e9 / (steps - 1),
            float(np.median(np.diff(ends))) / 1e9,
            cpu / steps,
            beside / elapsed,
        )

    def _cpu(self) -> float:
        return sum(cpu_of(rank) for rank in self._ranks)

    def _beside(self) -> float:
        processes = {self._launcher.pid, *(child.pid for child in self._launcher.children(recursive=True))}
        return sum(cpu_of(process) for process in processes - self._ranks)


def cpu_of(process: int) -> float:
    """CPU time of all its threads so far, in seconds; 0 of a process that has ended."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


@contextmanager
def trainings(model: tuple[int, int], folder: Path) -> Iterator[dict[str, Training]]:
    """All of them, stopped; killed at the end."""
    run = ["--standalone", "--nproc-per-node", str(RANKS), str(SCRIPT)]
    patient = [*DDPTOP_RUN, "--ddptop-stall", "3600", "--ddptop-shadow", "off"]
    launchers = {
        "torchrun": TORCHRUN,
        "torchrun again": TORCHRUN,
        "ddptop-run": patient,
        "budget 0.1 %": [*patient, "--ddptop-budget", "0.1"],
    }
    traceml = shutil.which("traceml")
    with ExitStack() as stack:
        found = {}
        for name, launcher in launchers.items():
            own = folder / name
            own.mkdir()
            arguments = [*launcher, *run, *map(str, model), str(own)]
            process = stack.enter_context(started(arguments, environment(own), own, cold=True))
            found[name] = Training(process.pid, own)
        if traceml:
            name = f"TraceML {importlib.metadata.version('traceml-ai')}"
            own = folder / name
            own.mkdir()
            arguments = [
                traceml,
                "run",
                "--nproc-per-node",
                str(RANKS),
                str(SCRIPT),
                "--args",
                *map(str, model),
            ]
            env = environment(own) | {"BENCH_TRACEML": "1"}
            process = stack.enter_context(started([*arguments, str(own)], env, own, cold=True))
            found[name] = Training(process.pid, own)
        yield found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=3.0, help="of a window")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the trainings end with it
    print(f"{'':22} {'step ms':>8} {'wall, mean':>18} {'wall, median':>18} {'rank CPU':>18} {'beside':>7}")
    for name, model in MODELS.items():
        with tempfile.TemporaryDirectory() as folder, trainings(model, Path(folder)) as running:
            windows: dict[str, list[Window]] = {each: [] for each in running}
            for _ in range(options.rounds):
                for each in random.sample(list(running), len(running)):
                    windows[each].append(running[each].window(options.seconds))
        print(name)
        for each, own in windows.items():
            print(row(each, own, windows["torchrun"]), flush=True)


def row(name: str, own: list[Window], plain: list[Window]) -> str:
    """Ratios: the median over the rounds, with their quartiles."""

    def ratio(figure: str) -> str:
        ratios = [getattr(a, figure) / getattr(b, figure) for a, b in zip(own, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return f"{middle:.3f} ({low:.2f}-{high:.2f})"

    step = statistics.median(window.median for window in own) * 1e3
    beside = statistics.median(window.beside for window in own)
    return (
        f"  {name:20} {step:8.2f} {ratio('mean'):>18} {ratio('median'):>18} {ratio('cpu'):>18} {beside:7.1%}"
    )


if __name__ == "__main__":
    main()
