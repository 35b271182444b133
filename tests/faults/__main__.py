"""`python -m tests.faults [ROUNDS]`: every fault so many times, and a table of what was seen."""

from __future__ import annotations

import sys
import time

from tests.faults.faults import FAULTS


def main() -> int:
    """1 where something was not as expected."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    seed = time.time_ns()
    print(f"seed {seed}\n{'fault':<34} {'expected':<10} seen")
    wrong = 0
    for number in range(rounds):
        for fault in FAULTS:
            seen, as_expected = fault.seen(seed + number)
            wrong += not as_expected
            sign = "" if as_expected else "NOT SO: "
            print(f"{fault.name:<34} {fault.expected:<10} {sign}{seen}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
