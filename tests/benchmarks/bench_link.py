"""What the rank's end of its link costs: `python -m tests.benchmarks.bench_link [MESSAGES]`.

A receiver in a process of its own takes MESSAGES of 400 bytes and a heartbeat in each of 1,500 rounds, and
acknowledges them. Printed are CPU times of the sending process, all its threads, and its memory. With
`PYTHONPATH` naming another checkout that one is measured.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS, PAUSE_S = 1_500, 0.004

RECEIVER = """
import sys, time
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context
receiver = AckedReceiver(new_context(), sys.argv[1], epoch=1)
print("ready", flush=True)
while True:
    receiver.socket.poll(100)
    time.sleep(0.002)
    receiver.drain_messages(time.monotonic_ns())
"""


def memory_mb() -> float:
    """This process's resident memory."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


def measure(endpoint: str, messages: int) -> str:
    """The figures, as a line."""
    from ddptop.protocol.codec import encode
    from ddptop.protocol.messages import Event, Hello, Progress

    begin = time.process_time()
    from ddptop.transport.sender import AckedSender

    imported = time.process_time()
    hello = encode(Hello(1, "run", 77, 0, 2, 0, 0, "host", 1, "cpu", "gloo", "hook", 1, 1, 1.0))
    message = encode(Event("test", 1, 0, 1, {"padding": "x" * 400}))
    beat = encode(Progress(1, 5, 0, -1, -1, 1, 0.0, 0.0, 0))
    sender = AckedSender(endpoint, lambda: hello)
    sender.offer_message(message)
    while sender.pending:
        sender.exchange_messages()
        time.sleep(PAUSE_S)
    started = time.process_time()
    for _ in range(ROUNDS):
        for _ in range(messages):
            sender.offer_message(message)
        sender.set_heartbeat(beat)
        sender.exchange_messages()
        time.sleep(PAUSE_S)
    ended = time.process_time()
    left = sender.close(5)
    return (
        f"import {(imported - begin) * 1e3:.1f} ms, first ack {(started - imported) * 1e3:.1f} ms, "
        f"{(ended - started) / ROUNDS * 1e6:.0f} us a round of {messages}, {memory_mb():.1f} MB, {left} left"
    )


def main() -> None:
    """Measure once."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/ingest"
        command = [sys.executable, "-c", RECEIVER, endpoint]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as receiver:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            print(measure(endpoint, int(sys.argv[1]) if len(sys.argv) > 1 else 1))
            receiver.kill()


if __name__ == "__main__":
    main()
