"""`python -m ddptop.sources.simulation`: all the ranks of a simulated run in one process."""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from pathlib import Path

from ddptop.host.runs import ingest_endpoint
from ddptop.sources.simulation.ranks import SimulatedRanks
from ddptop.sources.simulation.story import Story, usual_rate


def main() -> int:
    """Simulate the given number of steps, or without end."""
    parser = argparse.ArgumentParser(prog="python -m ddptop.sources.simulation", allow_abbrev=False)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--steps", type=int, default=0, help="0: no end")
    parser.add_argument("--rate", type=float, default=0.0, help="steps a second; 0: by the number of ranks")
    parser.add_argument("--parent", type=int, default=os.getppid(), help="process without which it ends")
    options = parser.parse_args()
    # A descriptor for each simulated host, and the soft limit is often 1024.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rate = options.rate or usual_rate(options.ranks)
    # With many ranks one step in four, as real ranks would sample under the budget.
    story = Story(options.ranks, rate, detail_every=1 if options.ranks <= 64 else 4)
    ranks = SimulatedRanks(story, ingest_endpoint(options.directory), options.run_id, steps=options.steps)

    def goes_on() -> bool:
        # The process that started it may have been killed: simulated ranks are of no other use.
        return bool(os.getppid() == options.parent)

    try:
        while ranks.await_collector(time.monotonic_ns()) and goes_on():
            time.sleep(ranks.pause_s)
        while ranks.work_due(time.monotonic_ns()) and goes_on():
            time.sleep(ranks.pause_s)
    finally:
        ranks.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
