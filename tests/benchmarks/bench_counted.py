"""Where the cost goes that ddptop counts of itself, and with it how small a budget can be kept.

Run by hand: python -m tests.benchmarks.bench_counted [--budgets 1 0.1] [--seconds 20]

One rank trains without stops. Of each step: the end of a left-out step, the recorded steps and bucket detail
spread over all steps, the publisher. The publisher's share of a core is by the clock of its thread.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tests.benchmarks.bench_outside import print_row
from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "counted.py"
MODELS = ((2, 64), (6, 320), (8, 512), (10, 1024))
PARTS = ("left out", "recorded steps", "detail", "publisher")
HEADER = (
    "step, budget", "load", "counted", "one step in", "a recorded step", *PARTS, "publisher, of a core",
)  # fmt: skip


def main() -> None:
    """Print the table: us a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--budgets", nargs="*", type=float, default=[1.0, 0.1])
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    print_row(HEADER)
    print_row(["---"] * len(HEADER))
    for shape in MODELS:
        for budget in options.budgets:
            with tempfile.TemporaryDirectory() as folder:
                words = ["--ddptop-record", "off", "--ddptop-budget", str(budget), "--standalone"]
                words += ["--nproc-per-node", "1", str(SCRIPT), *map(str, (*shape, options.seconds))]
                with started([*DDPTOP_RUN, *words], environment(Path(folder)), Path(folder)) as process:
                    out, err = process.communicate(timeout=300)
                if process.returncode:
                    raise SystemExit(err)
            figures = json.loads(out)
            print_row(
                [
                    f"{figures['step'] / 1e3:.1f} ms, {budget:g} %",
                    f"{os.getloadavg()[0]:.0f}",
                    f"{figures['counted, %']:.2f} %",
                    f"{figures['one step in']:.0f}",
                    f"{figures['a recorded step']:.0f}",
                    *(f"{figures[part]:.1f}" for part in PARTS),
                    f"{figures['publisher, % of a core']:.3f} %",
                ]
            )


if __name__ == "__main__":
    main()
