"""A rank without training: makes up steps and publishes them. Run as a program, prints a line at its end.

fake_rank.py DIRECTORY RUN_ID RANK WORLD STEPS STEPS_PER_S BUCKETS WINDOW_BYTES DRAIN_S END

END is what happens after the last step: `bye`, `exit` (a BYE, and exit code 3), `crash` (SIGABRT, with a
crash file), `hang` (it answers every ASK, until it is killed), `deaf` (the same without an answer).
With a variable GATE it takes the second half of its steps once that file exists, or no more steps in all than
the number in it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from ddptop.protocol.codec import encode
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.protocol.messages import Bucket, Bye, Hello, Layout, Phase, Progress, StepRow, Steps
from ddptop.transport.sender import AckedSender

PR_SET_PDEATHSIG = 1
"""Of `prctl`: the signal at the end of the parent."""

LOOK_S = 0.25
BATCH = 250


def row(step: int, begin_us: int, wall_us: int, buckets: int) -> StepRow:
    """A step whose loss tells which one it is. Bucket times vary: equal ones would compress to nothing."""
    backward_at = wall_us // 3
    cells = [
        number
        for bucket in range(buckets)
        for number in (
            bucket,
            backward_at + bucket * wall_us // (3 * buckets) + random.getrandbits(8),
            wall_us // 20 + random.getrandbits(8),
        )
    ]
    quarter = wall_us // 4
    times = (
        begin_us,
        wall_us,
        quarter,
        quarter,
        quarter,
        wall_us // 5,
        wall_us // 4,
        backward_at,
        2 * quarter,
    )
    return StepRow(*times, 1, 1, 20, float(step), tuple(cells))


def hang(sender: AckedSender, steps: int, *, answers: bool) -> None:
    """Beat, and answer each question once."""
    answered = 0
    stacks = (Stack("MainThread", True, (StackFrame("train.py", 7, "load", "time.sleep(600)"),)),)
    while True:
        time.sleep(LOOK_S / 5)
        now_ns = time.monotonic_ns()
        sender.set_heartbeat(encode(Progress(now_ns, steps, Phase.FORWARD, -1, steps, 1, 20.0, 0.5, 0)))
        if answers and sender.asked != answered:
            answered = sender.asked
            sender.offer_message(
                encode(Evidence(now_ns, answered, steps, Phase.DATA, -1, "", (), stacks, ()))
            )
        sender.exchange_messages()


def crash(sender: AckedSender, directory: str, session: int) -> None:
    """As torch ends a process whose C++ has thrown, once all is delivered."""
    while sender.pending:
        sender.exchange_messages()
        time.sleep(LOOK_S / 5)
    with Path(directory, f"crash-{session}.txt").open("w") as file:
        faulthandler.enable(file)
        os.abort()


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed pytest ends no process itself
    directory, run_id, *numbers, end_word = sys.argv[1:]
    rank, world, steps = (int(text) for text in numbers[:3])
    rate, buckets, window, drain_s = float(numbers[3]), int(numbers[4]), int(numbers[5]), float(numbers[6])
    session = int.from_bytes(os.urandom(7), "big") + 1
    began, unix = time.monotonic_ns(), time.time_ns()
    hello = Hello(
        1, run_id, session, rank, world, rank, 0, "host", os.getpid(), "cpu", "gloo", "hook", began, unix, 1.0
    )
    sender = AckedSender(f"ipc://{directory}/ingest", lambda: encode(hello), window_bytes=window)
    layout = tuple(Bucket(0, index, 1 << 20, 1 << 20, 1000, "float32", "") for index in range(buckets))
    sender.offer_message(encode(Layout(1, layout)))
    wall_us = int(1e6 / rate)
    done = 0
    gate = Path(os.environ.get("GATE", "/"))
    while done < steps:
        time.sleep(LOOK_S)
        allowed = int(gate.read_text() or steps) if gate.is_file() else steps if gate.exists() else steps // 2
        due = min(allowed, int((time.monotonic_ns() - began) / 1e9 * rate))
        while done < due:
            end = min(due, done + BATCH)
            rows = tuple(row(step, (step - done) * wall_us, wall_us, buckets) for step in range(done, end))
            sender.offer_message(encode(Steps(1, done, began + done * wall_us * 1000, rows)))
            done = end
        sender.set_heartbeat(
            encode(Progress(time.monotonic_ns(), done, Phase.FORWARD, -1, done, 1, 20.0, 0.5, 0))
        )
        sender.exchange_messages()
    if end_word in ("hang", "deaf"):
        hang(sender, steps, answers=end_word == "hang")
    elif end_word == "crash":
        crash(sender, directory, session)
    sender.offer_message(encode(Bye(time.monotonic_ns(), "finished")))
    began_close = time.monotonic()
    left = sender.close(drain_s)
    print(json.dumps({"left": left, "dropped": sender.dropped, "close_s": time.monotonic() - began_close}))
    sys.exit(3 if end_word == "exit" else 0)


if __name__ == "__main__":
    main()
