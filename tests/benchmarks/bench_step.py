"""What the recorder costs a step: short segments with and without it, in turn, inside one run of two ranks.

Finer than `bench_rank.py`, whose whole runs drown 1 % in the noise of a shared machine. The publisher and the
collector run all the time here: what they take from a third core is not in the ratio.

Run by hand: python -m tests.benchmarks.bench_step [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "alternate.py"
MODELS = {"2 buckets": (2, 64), "10 buckets": (10, 440)}
BUDGETS = {
    "phases only": ["--ddptop-budget", "0.0001"],
    "default, 1 %": [],
    "full detail": ["--ddptop-detail", "full"],
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=60)
    rounds = parser.parse_args().rounds
    print(
        f"{'model':11} {'budget':13} {'ms/step':>8} {'ratio':>7} {'control':>8} "
        f"{'CPU us':>7} {'control':>8} {'told us':>8} {'detail every':>13}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for model, shape in MODELS.items():
            for budget, options in BUDGETS.items():
                words = ["--ddptop-record", "off", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
                command = [*DDPTOP_RUN, *options, *words, *map(str, (*shape, rounds))]
                with started(command, environment(Path(folder)), Path(folder)) as process:
                    out, err = process.communicate(timeout=900)
                if process.returncode:
                    raise SystemExit(err)
                print(row(model, budget, [json.loads(line) for line in out.splitlines()]), flush=True)


def row(model: str, budget: str, ranks: list[dict[str, float]]) -> str:
    """One line: means over the ranks."""
    mean = {key: statistics.mean(rank[key] for rank in ranks) for key in ranks[0]}
    return (
        f"{model:11} {budget:13} {mean['ms']:8.2f} {mean['ratio']:7.3f} {mean['control']:8.3f} "
        f"{mean['cpu_us']:7.0f} {mean['cpu_control_us']:8.0f} {mean['told_us']:8.0f} {mean['every']:13.0f}"
    )


if __name__ == "__main__":
    main()
