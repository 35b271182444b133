"""`python -m tests.faults [ROUNDS [SEED]]`: everything so many times, and a table of what was seen.

The exit code is 1 where a row is not as expected.
"""

from __future__ import annotations

import sys
import time
import traceback

from tests.faults.row import CannotTryError, Result, Row
from tests.faults.rows import ROWS

WIDTHS = (46, 52)


def line(done: str, expected: str, seen: str) -> str:
    """A row in columns."""
    return f"{done:<{WIDTHS[0]}} {expected:<{WIDTHS[1]}} {seen}"


def result(row: Row, seed: int) -> Result:
    """What was seen; an exception of the attempt itself is not as expected."""
    try:
        return row.attempt(seed)
    except CannotTryError as reason:
        return Result(f"SKIPPED: {reason}", True)
    except Exception as error:
        traceback.print_exc()
        return Result(f"{type(error).__name__}: {error}", False)


def main() -> int:
    """1 where something was not as expected."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else time.time_ns()
    print(f"seed {seed}\n{line('done', 'expected', 'seen')}", flush=True)
    results = []
    for number in range(rounds):
        for row in ROWS:
            results.append(result(row, seed + number))
            sign = "" if results[-1].as_expected else "NOT SO: "
            print(line(row.done, row.expected, sign + results[-1].seen), flush=True)
    right = sum(one.as_expected for one in results)
    print(f"{right} of {len(results)} as expected")
    return int(right < len(results))


if __name__ == "__main__":
    sys.exit(main())
