"""What ddptop's wrappers take of the training thread in a real step, and what the recorder counts of itself.

Each wrapper is timed from outside, without the function of torch inside it (`scripts/calls.py`): elapsed
times, of which a median over steps leaves out the few in which the operating system ran another process.
This is steadier than `bench_parts.py`, which compares CPU times of whole steps, but does not see what our
code takes of torch's caches, nor the engine's part of the hook at the last gradient.

Run by hand: python -m tests.benchmarks.bench_calls [--rounds N] [--against FOLDER]
(of another version of this repository, in turn with this one)
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tests.processes import DDPTOP_RUN, environment, started

HERE = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "calls.py"
MODELS = {"4 layers of 256": (4, 256), "6 layers of 512": (6, 512)}


def main() -> None:
    """Print a line for each run: us a step in each wrapper."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--against", type=Path)
    arguments = parser.parse_args()
    versions = [HERE] if arguments.against is None else [arguments.against, HERE]
    for name, shape in MODELS.items():
        for _ in range(arguments.rounds):
            for version in versions:
                with tempfile.TemporaryDirectory() as folder:
                    # Every step is recorded so; the script takes the detail out.
                    words = ["--ddptop-record", "off", "--ddptop-detail", "full", "--ddptop-shadow", "off"]
                    words += ["--standalone", "--nproc-per-node", "1", str(SCRIPT), *map(str, shape)]
                    command = [*DDPTOP_RUN, *words]
                    env = environment(Path(folder)) | {"PYTHONPATH": str(version)}
                    with started(command, env, Path(folder), cold=True) as process:
                        out, err = process.communicate(timeout=300)
                    if process.returncode:
                        raise SystemExit(err)
                load = os.getloadavg()[0]
                print(f"{version.name:8} {name:16} load {load:.0f}", show(json.loads(out)), flush=True)


def show(figures: dict[str, float]) -> str:
    """One line."""
    return "  ".join(f"{name} {value:.1f}" for name, value in figures.items())


if __name__ == "__main__":
    main()
