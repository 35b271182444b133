"""What `ddptop-run` adds to the start of a script: whole runs under it and under torchrun, in turn.

`python -m tests.benchmarks.bench_startup [--pairs N] [--ranks N]`

Each pair begins with the other one. Wall time counts from the launcher's start to the end of the script's
first step, and to the launcher's exit; CPU time is that of rank 0 until its first step, and that of all
processes until the exit: launcher, ranks and, under ddptop-run, the collector. Intervals are of the median of
the differences within pairs (bootstrap, 95 %). On a busy machine only CPU times say something.
"""

from __future__ import annotations

import argparse
import compileall
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import ddptop
from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run

SCRIPT = Path(__file__).parent / "scripts" / "first_step.py"


class Start(NamedTuple):
    """Seconds of one run."""

    first_step: float
    exit: float
    rank_cpu: float
    all_cpu: float


TITLES = Start("first step", "exit", "CPU of rank 0 to its first step", "CPU of all to the exit")  # type: ignore[arg-type]


def measure_start(launcher: list[str], ranks: int, folder: Path) -> Start:
    """One run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.time()
    words = ["--standalone", "--nproc-per-node", str(ranks), str(SCRIPT)]
    done = run([*launcher, *words], environment(folder), folder, cold=True)
    end = time.time()
    if done.returncode:
        raise SystemExit(done.stderr)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    first_step, rank_cpu = map(float, done.stdout.splitlines()[0].split())
    cpu = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
    return Start(first_step - begin, end - begin, rank_cpu, cpu)


def interval(differences: list[float]) -> tuple[float, float]:
    """Of their median, 95 %."""
    chance = random.Random(1)
    medians = sorted(statistics.median(chance.choices(differences, k=len(differences))) for _ in range(2000))
    return medians[50], medians[-51]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=1)
    options = parser.parse_args()
    # An installed package is compiled; where bytecode is not written, each start would compile it again.
    compileall.compile_dir(Path(ddptop.__file__).parent, quiet=1)
    plain: list[Start] = []
    ours: list[Start] = []
    recorded = [*DDPTOP_RUN, "--ddptop-record", "run.ddptop"]
    with tempfile.TemporaryDirectory() as name:
        for launcher in (
            TORCHRUN,
            recorded,
        ):  # the first of each reads files that the next ones find in memory
            measure_start(launcher, options.ranks, Path(name))
        for pair in range(options.pairs):
            both = [(TORCHRUN, plain), (recorded, ours)]
            for launcher, starts in both if pair % 2 else reversed(both):
                starts.append(measure_start(launcher, options.ranks, Path(name)))
    print(f"{options.pairs} pairs, {options.ranks} ranks, medians in ms")
    print("| until | torchrun | ddptop-run | longer, 95 % interval |")
    print("|---|---|---|---|")
    for index, title in enumerate(TITLES):
        before = [start[index] for start in plain]
        differences = [own[index] - other[index] for own, other in zip(ours, plain, strict=True)]
        low, high = interval(differences)
        median = statistics.median(before)
        share = f"{100 * statistics.median(differences) / median:.1f} %"
        print(
            f"| {title} | {1e3 * median:.0f} | {1e3 * statistics.median(own[index] for own in ours):.0f} "
            f"| {1e3 * statistics.median(differences):.0f} ({1e3 * low:.0f} to {1e3 * high:.0f}), {share} |"
        )


if __name__ == "__main__":
    main()
