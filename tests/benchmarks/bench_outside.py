"""What ddptop costs a training, measured from outside: of several trainings one runs, the others are stopped.

Run by hand: python -m tests.benchmarks.bench_outside [--minutes 5] [--ms 0.5 2] [--ranks 1 2]

It prints the table of README.md beside this file, as Markdown. `--minutes` bounds each training: with 5, all
eight (0.5, 2, 10 and 40 ms, one and two ranks) take up to 45 minutes.

The same training is started under torchrun, torchrun again (`control`), ddptop-run, ddptop-run with a
tenth of the budget, ddptop-run of another version of this repository (`--against`), and TraceML where it is
installed (`pip install traceml-ai`). In each round each of them in turn, in an order drawn anew, gets SIGCONT
until it has done as many steps as the others, and SIGSTOP then. A ratio is to torchrun in the same round, so
a machine that grows slower over minutes changes none. On a busy machine only the CPU time says something.
Beside it stand what ddptop counts of itself, and what its shadow blocks show with their interval of 95 %.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.scripts import endless
from tests.processes import DDPTOP, DDPTOP_RUN, TORCHRUN, environment, started, until

SCRIPT = Path(endless.__file__)
MODELS = {0.5: (2, 64), 2.0: (6, 320), 10.0: (8, 512), 40.0: (10, 1024)}
"""By the step of one rank on a quiet core, in ms: layers (each a bucket) and their width."""

WARM_UP_STEPS, WARM_UP_S = 1500, 12.0
"""Steps until the recorder has chosen what it samples, or their time on a quiet machine: 4 s in full detail,
and with a tenth of the budget two batches of 4 s."""

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
        self._launcher, self._folder = psutil.Process(launcher), folder
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

    def own_figures(self) -> tuple[str, str]:
        """What ddptop counts of itself, and what its shadow blocks show, in percent of a step."""
        self.send(signal.SIGCONT)
        env = environment(self._folder)
        done = subprocess.run([*DDPTOP, "--json"], env=env, capture_output=True, text=True, check=False)
        self.send(signal.SIGSTOP)
        if done.returncode:  # a run without ddptop
            return "", ""
        overhead = json.loads(done.stdout)["overhead"]
        counted, measured = overhead["measured_pct"], overhead["measured"]
        between = measured and f"{measured['pct']:.1f} % ({measured['low']:.1f} to {measured['high']:.1f})"
        return f"{counted:.2f} %", between or "too few"

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
        "control": [*TORCHRUN, *run],
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


HEADER = (
    "training",
    "",
    "CPU of the ranks",
    "wall, mean",
    "wall, median",
    "beside, of a core",
    "counted",
    "shadow blocks",
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0, help="of a training, its start included")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a window, where steps are as planned")
    parser.add_argument("--ms", type=float, nargs="*", default=[*MODELS], choices=MODELS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--against", type=Path, help="a folder with another version of this repository")
    parser.add_argument("--traceml", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the trainings end with it
    print_row(HEADER)
    print_row(["---"] * len(HEADER))
    for ranks in options.ranks:
        for ms in options.ms:
            measure(ms, ranks, options)


def measure(ms: float, ranks: int, options: argparse.Namespace) -> None:
    """Print the rows of one training."""
    end_s = time.monotonic() + 60 * options.minutes
    steps = int(1000 * options.seconds / ms)
    with (
        tempfile.TemporaryDirectory() as folder,
        trainings(ms, ranks, Path(folder), options.against, traceml=options.traceml) as running,
    ):
        windows: dict[str, list[Window]] = {each: [] for each in running}
        round_s = 0.0
        for number in range(options.rounds):
            began_s = time.monotonic()
            if number > 1 and began_s + round_s > end_s:
                break
            for each in random.sample(list(running), len(running)):
                windows[each].append(running[each].window(steps))
            round_s = time.monotonic() - began_s
        own = {each: training.own_figures() for each, training in running.items()}
    plain = windows["torchrun"]
    name = f"{ranks} rank{'s'[: ranks > 1]}, {middle(plain, 'median') * 1e3:.1f} ms"
    for each in list(running)[1:]:
        ratios = [ratio(windows[each], plain, figure) for figure in ("cpu", "mean", "median")]
        print_row([name, each, *ratios, f"{middle(windows[each], 'beside'):.1%}", *own[each]])
        name = ""
    print(f"{len(plain)} rounds, load {os.getloadavg()[0]:.0f}", file=sys.stderr, flush=True)


def middle(windows: list[Window], figure: str) -> float:
    """The median over the rounds."""
    return statistics.median(getattr(window, figure) for window in windows)


def ratio(own: list[Window], plain: list[Window], figure: str) -> str:
    """The median over the rounds, with their quartiles."""
    ratios = [getattr(a, figure) / getattr(b, figure) for a, b in zip(own, plain, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def print_row(cells: Sequence[str]) -> None:
    """Print a row of a table in Markdown."""
    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
