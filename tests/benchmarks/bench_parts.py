"""What each part of the recorder costs a step, by the CPU clock of the threads that run it.

The parts are put into one run one after the other, in short segments in turn (`scripts/parts.py`). The
control is plain training against plain training.

Run by hand: python -m tests.benchmarks.bench_parts [--rounds N] [--ranks N]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tests.benchmarks.bench_step import MODELS
from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "parts.py"


def main() -> None:
    """Print a table for each number of ranks and each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    arguments = parser.parse_args()
    for ranks in arguments.ranks:
        for model in arguments.models:
            with tempfile.TemporaryDirectory() as folder:
                words = [
                    "--ddptop-record",
                    "off",
                    "--ddptop-detail",  # every step is recorded; the script chooses the parts
                    "full",
                    "--ddptop-shadow",
                    "off",
                    "--standalone",
                    "--nproc-per-node",
                    str(ranks),
                    str(SCRIPT),
                ]
                command = [*DDPTOP_RUN, *words, *map(str, (*MODELS[model], arguments.rounds))]
                with started(command, environment(Path(folder)), Path(folder)) as process:
                    out, err = process.communicate(timeout=900)
                if process.returncode:
                    raise SystemExit(err)
            show(f"{model}, world {ranks}", json.loads(out))


def show(title: str, figures: dict) -> None:
    """One table: us of CPU time per step that each part adds, of the training thread and of the process."""
    print(f"\n{title}, step of {figures['ms']:.2f} ms, load {os.getloadavg()[0]:.0f}")
    print(f"{'part':20} {'thread us':>10} {'process us':>11}")
    for name, (thread, process) in figures["rows"].items():
        print(f"{name:20} {thread:10.1f} {process:11.1f}")
    print(f"{'publisher':20} {'':10} {figures['publisher']:11.1f}")
    counted = ", ".join(f"{cost:.1f}" for cost in figures["counted"])
    print(f"counted by the recorder's clocks without and with bucket detail: {counted}", flush=True)


if __name__ == "__main__":
    main()
