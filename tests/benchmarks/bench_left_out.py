"""What a left-out step costs: CPU time of the training thread in such steps and in plain ones, in turn.

Run by hand: python -m tests.benchmarks.bench_left_out [--rounds N]

The publisher is not in it. The control is plain training against plain training.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "left_out.py"
MODELS = {"2 layers of 64": (2, 64), "4 layers of 256": (4, 256)}


def main() -> None:
    """Print a line for each model: us a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    for name, shape in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ddptop-record", "off", "--ddptop-shadow", "off", "--standalone"]
            words += ["--nproc-per-node", "1", str(SCRIPT), *map(str, (*shape, rounds))]
            with started([*DDPTOP_RUN, *words], environment(Path(folder)), Path(folder)) as process:
                out, err = process.communicate(timeout=900)
            if process.returncode:
                raise SystemExit(err)
        figures = json.loads(out)
        print(
            f"{name:16} step {figures['plain_us']:.0f} us of CPU, load {os.getloadavg()[0]:.0f}: "
            f"left out {show(figures['left out'])}, control {show(figures['control'])}",
            flush=True,
        )


def show(quartiles: list[float]) -> str:
    """A median and its quartiles."""
    low, median, high = quartiles
    return f"{median:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
