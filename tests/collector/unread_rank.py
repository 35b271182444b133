"""A rank that has finished 41 steps and that no collector has met: unread_rank.py DIRECTORY RUN_ID RANK WORLD

Its step counter is a file of DIRECTORY, as where that is in memory. Prints a line, then waits to be killed.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from pathlib import Path

from ddptop.host import step_counters
from ddptop.protocol.messages import Hello

STEPS = 41


def main() -> None:
    directory, run_id, rank, world = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    step_counters.is_in_memory = lambda _: True
    process = (rank, 0, socket.gethostname(), os.getpid())
    clocks = (time.monotonic_ns(), time.time_ns())
    hello = Hello(1, run_id, 500 + rank, rank, world, *process, "cpu", "gloo", "hook", *clocks, 1.0)
    memory = mmap.mmap(step_counters.new_step_counter(directory, hello), 8)
    memory[:8] = STEPS.to_bytes(8, sys.byteorder)
    print("counted", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main()
