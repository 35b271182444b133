"""What ddptop costs a training, measured from outside: of several trainings one runs, the others are stopped.

Run by hand: python -m tests.benchmarks.bench_outside [--rounds N] [--ms 0.5 2] [--ranks 1] [--against FOLDER]

The same training is started under torchrun, torchrun again (the control), ddptop-run, ddptop-run with a
tenth of the budget, ddptop-run of another version of this repository (`--against`), and TraceML where it is
installed (`pip install traceml-ai`). In each round each of them in turn, in an order drawn anew, gets SIGCONT
until it has done as many steps as the others, and SIGSTOP then. A ratio is to torchrun in the same round, so
a machine that grows slower over minutes changes none. On a busy machine only the CPU time says something.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
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
MODELS = {0.5: (2, 64), 2.0: (6, 320), 10.0: (8, 512), 40.0: (10, 1024)}
"""By the step of one rank on a quiet core, in ms: layers (each a bucket) and their width."""

WARM_UP_STEPS, WARM_UP_S = 1500, 4.0
"""The recorder has chosen what it samples: so many steps, or in so much time on a quiet machine."""

SETTLE_S = 0.3
"""Of each window, not measured: caches are filled again, and who was stopped hears of it."""

DEADLINE_S = 300.0


@dataclass
class Window:
    """What one training did in one window: per step in seconds."""

    mean: float
    median: float
    cpu: float
    """CPU of the ranks' processes, per rank."""
    beside: float
    """CPU of all other processes of the run (launcher, collector) by elapsed time."""


class Training:
    """One of the trainings; stopped except in its windows."""

    def __init__(self, launcher: int, folder: Path, ranks: int, warm_up: int) -> None:
        self._launcher = psutil.Process(launcher)
        self._paths = [folder / str(rank) for rank in range(ranks)]
        until(lambda: self._have_begun(), f"the first step in {folder.name}", DEADLINE_S)
        self._notes = [endless.notes(path, "rb") for path in self._paths]
        self._ranks = {int(notes[0]) for notes in self._notes}
        until(lambda: self._steps() > warm_up, f"{warm_up} steps in {folder.name}", DEADLINE_S)
        self.send(signal.SIGSTOP)

    def _have_begun(self) -> bool:
        if not all(path.exists() and path.stat().st_size for path in self._paths):
            return False
        return all(endless.notes(path, "rb")[1] for path in self._paths)

    def _steps(self) -> int:
        return min(int(notes[1]) for notes in self._notes)

    def send(self, number: signal.Signals) -> None:
        """To all processes of the run."""
        for process in [self._launcher, *self._launcher.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def window(self, steps: int) -> Window:
        """Let it run, and measure so many steps."""
        self.send(signal.SIGCONT)
        time.sleep(SETTLE_S)
        began, first, beside = time.monotonic(), self._steps(), self._beside()
        until(lambda: self._steps() > first + steps, f"{steps} steps", DEADLINE_S)
        beside, elapsed = self._beside() - beside, time.monotonic() - began
        self.send(signal.SIGSTOP)
        ring = np.arange(first, first + steps + 1) % endless.RING
        ends = self._notes[0][2:][ring]
        cpu = [np.ptp(notes[2 + endless.RING :][ring[[0, -1]]]) for notes in self._notes]
        return Window(
            (ends[-1] - ends[0]) / 1e9 / steps,
            float(np.median(np.diff(ends))) / 1e9,
            statistics.mean(map(float, cpu)) / 1e9 / steps,
            beside / elapsed,
        )

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
def trainings(
    ms: float, ranks: int, folder: Path, against: Path | None, *, traceml: bool
) -> Iterator[dict[str, Training]]:
    """All of them, stopped; killed at the end."""
    run = ["--standalone", "--nproc-per-node", str(ranks)]
    patient = [*DDPTOP_RUN, "--ddptop-stall", "3600", "--ddptop-record", "off", *run]
    launchers = {
        "torchrun": [*TORCHRUN, *run],
        "torchrun again": [*TORCHRUN, *run],
        "ddptop-run": patient,
        "budget 0.1 %": [*patient, "--ddptop-budget", "0.1"],
    }
    if against is not None:
        launchers[f"ddptop-run {against.name}"] = patient
    if traceml and (command := shutil.which("traceml")):
        name = f"TraceML {importlib.metadata.version('traceml-ai')}"
        launchers[name] = [command, "run", "--nproc-per-node", str(ranks)]
    with ExitStack() as stack:
        found = {}
        for name, launcher in launchers.items():
            own = folder / name
            own.mkdir()
            env, words = environment(own), [*map(str, MODELS[ms]), str(own)]
            if name.startswith("TraceML"):
                env["BENCH_TRACEML"], words = "1", ["--args", *words]
            if against is not None and name.endswith(against.name):
                env["PYTHONPATH"] = str(against)
            process = stack.enter_context(started([*launcher, str(SCRIPT), *words], env, own, cold=True))
            found[name] = Training(process.pid, own, ranks, min(WARM_UP_STEPS, int(1000 * WARM_UP_S / ms)))
        yield found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window, where steps are as planned")
    parser.add_argument("--ms", type=float, nargs="*", default=[*MODELS], choices=MODELS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--against", type=Path, help="a folder with another version of this repository")
    parser.add_argument("--traceml", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the trainings end with it
    ratios = f"{'CPU':>19} {'wall, mean':>19} {'wall, median':>19}"
    print(f"{'':22} {'step ms':>8} {'CPU ms':>8} {ratios} {'beside':>7}")
    for ranks in options.ranks:
        for ms in options.ms:
            measure(ms, ranks, options)


def measure(ms: float, ranks: int, options: argparse.Namespace) -> None:
    """Print the lines of one training."""
    steps = int(1000 * options.seconds / ms)
    with (
        tempfile.TemporaryDirectory() as folder,
        trainings(ms, ranks, Path(folder), options.against, traceml=options.traceml) as running,
    ):
        windows: dict[str, list[Window]] = {each: [] for each in running}
        for _ in range(options.rounds):
            for each in random.sample(list(running), len(running)):
                windows[each].append(running[each].window(steps))
    print(f"{ranks} rank{'s'[: ranks > 1]}, {ms:g} ms, load {os.getloadavg()[0]:.0f}")
    for each, own in windows.items():
        print(row(each, own, windows["torchrun"]), flush=True)


def row(name: str, own: list[Window], plain: list[Window]) -> str:
    """Ratios: the median over the rounds, with their quartiles."""

    def ratio(figure: str) -> str:
        ratios = [getattr(a, figure) / getattr(b, figure) for a, b in zip(own, plain, strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        return f"{middle:.3f} ({low:.3f}-{high:.3f})"

    step = statistics.median(window.median for window in own) * 1e3
    cpu = statistics.median(window.cpu for window in own) * 1e3
    beside = statistics.median(window.beside for window in own)
    ratios = f"{ratio('cpu'):>19} {ratio('mean'):>19} {ratio('median'):>19}"
    return f"  {name:20} {step:8.2f} {cpu:8.3f} {ratios} {beside:7.1%}"


if __name__ == "__main__":
    main()
