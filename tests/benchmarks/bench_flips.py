"""How much of a recording is read when a single bit of it is wrong.

python -m tests.benchmarks.bench_flips [--flips 300] [--steps 1000]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.made_up_run import a_run, write
from tests.recording.flips import flipped, read


def main() -> None:
    """Print the share of the steps that is read: mean, worst, and flips that nobody would know of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.ddptop")
        write(path, a_run(arguments.steps, world=4))
        whole = path.read_bytes()
        assert read(path) == (arguments.steps, False)
        found = list(flipped(whole, path, arguments.flips, seed=0))
    shares = [one.steps / arguments.steps for one in found]
    print(f"{len(whole):,} bytes, {len(found)} flips: {100 * sum(shares) / len(shares):.2f} % of the steps,")
    untold = sum(share < 1 and not one.told for share, one in zip(shares, found, strict=True))
    print(
        f"worst {100 * min(shares):.2f} %, {sum(share < 1 for share in shares)} with a loss, {untold} untold"
    )


if __name__ == "__main__":
    main()
