"""Is anybody named in a healthy run? Equal ranks train for a while beside noise, looked at every second.

Every rank's batches take a random while, another process burns a core in bursts, and whatever else the
machine does comes on top. Prints in how many looks a rank was named or an alert was up, and the first of
each kind.

Run by hand: python -m tests.benchmarks.bench_healthy [--ranks N] [--minutes M]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.processes import DDPTOP, DDPTOP_RUN, environment, run, started

SCRIPT = Path(__file__).parent / "scripts" / "healthy.py"
BURST = "import random, time\nwhile True:\n end = time.time() + random.uniform(0, 0.4)\n" + (
    " while time.time() < end: pass\n time.sleep(random.uniform(0, 2))"
)
EVERY_S = 1.0


def main() -> None:
    """Print what was seen."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    looks: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        env = environment(home)
        words = ["--ddptop-name", "healthy", "--standalone", "--nproc-per-node", options.ranks, SCRIPT]
        command = [str(word) for word in (*DDPTOP_RUN, *words, 60 * options.minutes)]
        with started([sys.executable, "-c", BURST], env, home), started(command, env, home) as training:
            while training.poll() is None:
                begin = time.monotonic()
                watch(looks, run([*DDPTOP, "healthy", "--json"], env, home).stdout)
                time.sleep(max(0.0, EVERY_S - (time.monotonic() - begin)))
            if training.returncode:
                raise SystemExit(training.communicate()[1])
    print(f"{options.ranks} ranks, {options.minutes:g} minutes, {looks.pop('looks', 0)} looks")
    print(f"a rank named in {looks.pop('named', 0)}, an alert in {looks.pop('alerted', 0)}")
    for what, count in looks.items():
        print(f"{what}: {count}")


def watch(looks: Counter[str], out: str) -> None:
    """Take in one look; a run that has not begun or just ended shows nothing."""
    shown = json.loads(out) if out else {}
    if shown.get("source") != "live" or shown["group"]["step"] is None:
        return
    looks["looks"] += 1
    looks["named"] += shown["straggler"] is not None
    looks["alerted"] += bool(shown["alerts"])
    for alert in shown["alerts"]:
        what = f"{alert['kind']} of rank {alert['rank']}"
        if not looks[what]:
            print(f"step {shown['group']['step']}: {alert['message']}, {alert['evidence']}", flush=True)
        looks[what] += 1


if __name__ == "__main__":
    main()
