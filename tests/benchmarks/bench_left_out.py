"""What a left-out step costs: how long `optimizer.step()` takes in such steps and in plain ones, in turn.

Run by hand: python -m tests.benchmarks.bench_left_out [--rounds N]

A left-out step differs from a plain one in the optimizer's hooks alone, so that they are all that it costs
the training thread. They are timed there: in CPU time of whole steps, which is printed too, a busy machine
hides 3 us. In the last row other memory is read before each `optimizer.step()`, so that the hooks find
nothing in the caches: the most that they can cost. The control is plain training against plain training;
"clocked" is what the recorder itself sees of it, to which `AFTER_UNSEEN_NS` of budget.py is added. The
publisher is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.processes import DDPTOP_RUN, environment, started

SCRIPT = Path(__file__).parent / "scripts" / "left_out.py"
SMALL = {"depth": 2, "width": 64}
TRAININGS: dict[str, dict[str, Any]] = {
    "2 layers of 64, SGD": SMALL,
    "Adam, foreach": SMALL | {"optimizer": "Adam, foreach"},
    "Adam, fused": SMALL | {"optimizer": "Adam, fused"},
    "SGD, 4 micro-steps": SMALL | {"micro_steps": 4},
    "4 layers of 256, SGD": {"depth": 4, "width": 256},
    "6 layers of 320, SGD": {"depth": 6, "width": 320},
    "SGD, caches emptied": SMALL | {"evicted_mb": 64},
}


def main() -> None:
    """Print a line for each training: us a step."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=500, help="a tenth of them where caches are emptied")
    parser.add_argument("--only", nargs="*", default=[*TRAININGS], choices=TRAININGS)
    options = parser.parse_args()
    for name in options.only:
        rounds = options.rounds // (10 if "evicted_mb" in TRAININGS[name] else 1)
        with tempfile.TemporaryDirectory() as folder:
            words = ["--ddptop-record", "off", "--ddptop-shadow", "off", "--standalone"]
            words += ["--nproc-per-node", "1", str(SCRIPT), json.dumps(TRAININGS[name] | {"rounds": rounds})]
            with started([*DDPTOP_RUN, *words], environment(Path(folder)), Path(folder)) as process:
                out, err = process.communicate(timeout=900)
            if process.returncode:
                raise SystemExit(err)
        figures = json.loads(out)
        print(
            f"{name:20}  load {os.getloadavg()[0]:.0f}  optimizer.step {figures['plain_us']:.0f} us  "
            + "  ".join(f"{name} {show(figures[name])}" for name in figures if name != "plain_us"),
            flush=True,
        )


def show(quartiles: list[float]) -> str:
    """A median and its quartiles."""
    low, median, high = quartiles
    return f"{median:.1f} ({low:.1f} to {high:.1f})"


if __name__ == "__main__":
    main()
