"""How soon is a rank flagged whose loader is late, on a machine that is busy with something else?

Two ranks train in steps of some 10 ms beside busy loops. In every second window of steps the loader of rank 1
is late; in a second run, the control, it never is. Prints for each window after how many steps a rank was
flagged, and how often bucket detail was taken.

Run by hand: python -m tests.benchmarks.bench_late [--load N] [--late MS] [--steps N] [--windows N]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.messages import Progress
from ddptop.recording.reader import Recording
from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "late.py"
DEADLINE_S = 1200
BEGIN = 64
"""Steps of a window in which what was flagged in the one before may still be shown."""


class Seen(NamedTuple):
    """What a recording holds, by step of all ranks."""

    flagged: list[int | None]
    """The rank that is flagged when the step is complete."""
    wall_ms: list[float]
    every: list[int]
    """Of the heartbeats past the first window, the interval of bucket detail."""
    cost_pct: list[float]


def train(load: int, arguments: list[str], folder: Path) -> Path:
    """One run beside `load` busy loops; its recording."""
    recording = folder / "late.ddptop"
    recording.unlink(missing_ok=True)
    env = environment(folder) | {"DDPTOP_RECORD": str(recording)}
    command = [*DDPTOP_RUN, "--standalone", "--nproc-per-node", "2", str(SCRIPT), *arguments]
    with ExitStack() as stack:
        for _ in range(load):
            stack.enter_context(started([sys.executable, "-c", "while True: pass"], env, folder))
        training = stack.enter_context(started(command, env, folder))
        _, err = training.communicate(timeout=DEADLINE_S)
        if training.returncode:
            raise SystemExit(err)
    return recording


def read(path: Path, first: int) -> Seen:
    """The recording through the analysis. `first`: the step from which heartbeats count."""
    reducer = Reducer()
    seen = Seen([], [], [], [])
    with Recording.open(path) as recording:
        for received in recording.records():
            reducer.feed(received)
            reducer.state.settle()
            if reducer.state.complete_step is not None:
                new = reducer.state.complete_step + 1 - len(seen.flagged)
                seen.flagged.extend([reducer.state.figures.straggler] * new)
                if new:
                    slots = reducer.state.figures.steps.slots()[-new:]
                    seen.wall_ms.extend(reducer.state.figures.steps.group.of("step", slots).tolist())
            if isinstance(received.message, Progress) and received.message.step >= first:
                seen.every.append(received.message.detail_every)
                seen.cost_pct.append(received.message.cost_pct)
    return seen


def after(flagged: list[int | None], begin: int, steps: int) -> int | None:
    """After how many steps of the window rank 1 was flagged."""
    return next((i + 1 for i, rank in enumerate(flagged[begin : begin + steps]) if rank == 1), None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--load", type=int, default=4)
    parser.add_argument("--late", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--keep", type=Path, help="keep the recordings in this folder")
    options = parser.parse_args()
    windows = 2 * options.windows + 1
    for late in (options.late, 0.0):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [str(options.steps), str(windows), str(late)]
            path = train(options.load, arguments, Path(folder))
            if options.keep:
                path = path.replace(options.keep / f"late-{late:g}.ddptop")
            seen = read(path, options.steps)
        show(seen, late, options.steps, windows)


def show(seen: Seen, late: float, steps: int, windows: int) -> None:
    """One run."""
    print(f"{late:g} ms late: steps of {statistics.median(seen.wall_ms):.1f} ms (median), ", end="")
    rates = ", ".join(f"{n}: {seen.every.count(n)}" for n in sorted(set(seen.every)))
    print(f"own cost {statistics.median(seen.cost_pct):.2f}%, detail every N steps in heartbeats: {rates}")
    for number in range(windows):
        begin = number * steps
        even = not late or number % 2 == 0
        if even:
            shown = seen.flagged[begin + BEGIN : begin + steps] if number else seen.flagged[:steps]
            wrong = sum(rank is not None for rank in shown)
            print(f"  window {number:2}: even, flagged in {wrong} of {len(shown)} steps")
        else:
            found = after(seen.flagged, begin, steps)
            print(f"  window {number:2}: late, flagged after {found} steps")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
