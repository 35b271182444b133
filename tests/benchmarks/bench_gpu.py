"""What the recorder costs a step on GPUs: short segments with and without it, in turn, inside one run.

Run by hand, on a machine with one or more GPUs: python -m tests.benchmarks.bench_gpu [--rounds N]
Exit code 1 where a step of 10 ms or more takes over 1.005 times as long with the recorder as without it,
while the control, the same twice without it, stays below that.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "alternate_gpu.py"
STEPS_MS = (2.0, 10.0, 40.0)
"""Least step times; the aim is for the second and the third."""

AIM, AIM_FROM_MS = 1.005, 10.0
BUDGETS: dict[str, list[str]] = {
    "phases only": ["--ddptop-budget", "0.0001"],
    "default, 1 %": [],
    "full detail": ["--ddptop-detail", "full"],
}
DEADLINE_S = 900


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ms", type=float, nargs="*", default=STEPS_MS)
    parser.add_argument("--budgets", nargs="*", default=[*BUDGETS], choices=BUDGETS)
    parser.add_argument("--ranks", type=int, help="all GPUs, unless given")
    options = parser.parse_args()
    ranks = options.ranks or gpus()
    if not ranks:
        raise SystemExit("bench_gpu: no GPU here (--ranks N runs N ranks on the CPU all the same)")
    missed = False
    header = (
        f"{'budget':13} {'ms/step':>8} {'ratio':>7} {'control':>8} {'told us':>8} {'detail every':>13}  GPU"
    )
    print(header, flush=True)
    for least_ms in options.ms:
        for budget in options.budgets:
            found = measured(ranks, options.rounds, least_ms, BUDGETS[budget])
            print(row(budget, found), flush=True)
            missed |= budget.startswith("default") and misses(found)
    sys.exit(1 if missed else 0)


def gpus() -> int:
    """How many there are."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def measured(ranks: int, rounds: int, least_ms: float, words: list[str]) -> dict[str, Any]:
    """Means over the ranks of one run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*DDPTOP_RUN, *words, "--ddptop-record", "off", "--standalone"]
        command += ["--nproc-per-node", str(ranks), str(SCRIPT), str(rounds), str(least_ms)]
        with started(command, environment(Path(folder), gpus=True), Path(folder)) as process:
            out, err = process.communicate(timeout=DEADLINE_S)
        if process.returncode:
            raise SystemExit(err)
    told = [json.loads(line) for line in out.splitlines()]
    names = ("ms", "ratio", "control", "told_us", "every")
    return {name: statistics.mean(rank[name] for rank in told) for name in names} | {"gpu": told[0]["gpu"]}


def row(budget: str, found: dict[str, Any]) -> str:
    """One line of the table."""
    return (
        f"{budget:13} {found['ms']:8.2f} {found['ratio']:7.4f} {found['control']:8.4f} "
        f"{found['told_us']:8.0f} {found['every']:13.0f}  {found['gpu']}"
    )


def misses(found: dict[str, Any]) -> bool:
    """Whether the aim is missed by more than the noise of the control."""
    noise = abs(found["control"] - 1)
    return bool(found["ms"] >= AIM_FROM_MS and found["ratio"] > AIM and noise < AIM - 1)


if __name__ == "__main__":
    main()
