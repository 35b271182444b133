"""Whether the interval of shadow blocks holds a cost that is known: the recorder burns it on purpose.

Run by hand: python -m tests.benchmarks.bench_shadow [--groups 100] [--recording FILE]

One training has blocks of all burns in turn (`scripts/shadow_burn.py`). There are two true costs of a block:
what is burned and what the recorder takes itself, the median over all blocks without a burn; and what all
blocks of the same burn outside of the interval show (median), since a burn costs the step more than it takes:
the code after it runs with colder caches. One rank by default: on a busy machine two wait for each other.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from ddptop.analysis.health import overhead
from ddptop.protocol.messages import Flag, Steps
from ddptop.recording.reader import Recording
from ddptop.training.shadow import LENGTH
from tests.benchmarks.scripts.shadow_burn import BURNS_US
from tests.processes import DDPTOP_RUN, environment

SCRIPT = Path(__file__).parent / "scripts" / "shadow_burn.py"
PERIOD = 40
"""Steps from block to block: ten times as often as in a real run, at the same distance to the neighbours."""
GROUP = 8
"""Blocks of one interval."""
WARM_UP = 20
"""Blocks that are left out."""


def record(folder: Path, steps: int, ranks: int, pause_ms: int) -> Path:
    """Train with burns; the recording."""
    recording = folder / "burn.ddptop"
    options = ["--standalone", "--nproc-per-node", str(ranks), str(SCRIPT), str(PERIOD), str(steps)]
    options.append(str(pause_ms))
    env = environment(folder) | {"DDPTOP_RECORD": str(recording), "DDPTOP_BUDGET": "100"}
    subprocess.run([*DDPTOP_RUN, *options], env=env, check=True)
    return recording


def blocks_of(recording: Path) -> dict[int, tuple[list[float], list[float]]]:
    """By burn, of each of its blocks the measured cost as a share, and the step without the recorder (ms)."""
    walls: dict[int, dict[int, tuple[int, int]]] = {}
    with Recording.open(recording) as opened:
        for received in opened.records():
            message = received.message
            if isinstance(message, Steps):
                of_rank = walls.setdefault(received.session, {})
                for step, row in enumerate(message.rows, message.first_step):
                    of_rank[step] = row.wall_us, row.flags
    steps = sorted(set.intersection(*(set(of_rank) for of_rank in walls.values())))
    us = np.array([[of_rank[step] for step in steps] for of_rank in walls.values()])
    wall, flags = np.median(us[:, :, 0], axis=0) / 1000, us[0, :, 1]
    cost = overhead.ShadowCost()
    blocks: list[tuple[int, float]] = []
    numbers = np.array(steps, np.float64)
    aside, detail = (flags & Flag.SHADOW != 0)[:, None], flags & Flag.DETAIL != 0
    for part in np.array_split(np.arange(len(steps)), len(steps) // 100):
        cost.take(numbers[part], wall[part], aside[part], detail[part])
        blocks += [block for block in cost.blocks if not blocks or block[0] > blocks[-1][0]]
    found: dict[int, tuple[list[float], list[float]]] = {burn: ([], []) for burn in BURNS_US}
    for last, share in blocks[WARM_UP:]:
        end = int(np.searchsorted(numbers, last)) + 1
        begin = end - int(np.argmin(aside[:end, 0][::-1]))
        shares, steps_ms = found[BURNS_US[steps[begin] // PERIOD % len(BURNS_US)]]
        shares.append(share)
        steps_ms.append(float(np.median(wall[begin + overhead.SETTLE : end - 1])))
    return found


def main() -> None:
    """Print for each burn how many intervals hold the true cost."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--groups", type=int, default=100)
    options.add_argument("--ranks", type=int, default=1)
    options.add_argument("--pause-ms", type=int, default=0, help="the script sleeps so long in each step")
    options.add_argument("--recording", type=Path)
    parsed = options.parse_args()
    overhead.AROUND = (PERIOD - LENGTH) // 2  # no step of another burn
    overhead.APART = 0
    overhead.KEPT = 4 * PERIOD
    blocks = (parsed.groups * GROUP + WARM_UP) * len(BURNS_US)
    with tempfile.TemporaryDirectory() as folder:
        found = blocks_of(
            parsed.recording or record(Path(folder), blocks * PERIOD, parsed.ranks, parsed.pause_ms)
        )
    own_ms = float(np.median(np.prod(found[0], axis=0)))
    print(f"the recorder itself: {1000 * own_ms:.0f} us in steps of {np.median(found[0][1]):.2f} ms")
    for burn, blocks_of_burn in found.items():
        shares, steps_ms = (np.array(column) for column in blocks_of_burn)
        costs_ms = shares * steps_ms
        held = held_by_others = groups = 0
        for at in range(0, len(shares) - GROUP + 1, GROUP):
            measured = overhead.estimate(shares[at : at + GROUP])
            assert measured is not None
            others_ms = float(np.median(np.delete(costs_ms, slice(at, at + GROUP))))
            step_ms = float(np.median(steps_ms[at : at + GROUP]))
            held += measured.low <= 100 * (own_ms + burn / 1000) / step_ms <= measured.high
            held_by_others += measured.low <= 100 * others_ms / step_ms <= measured.high
            groups += 1
        over_us = 1000 * (float(np.median(costs_ms)) - own_ms)
        print(
            f"{burn:5} us: of {groups} intervals {held} hold what is burned, {held_by_others} what the other "
            f"blocks show; estimate {over_us:.0f} us over none"
        )


if __name__ == "__main__":
    sys.exit(main())
