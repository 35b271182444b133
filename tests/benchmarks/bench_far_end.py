"""What a far end that lies costs a viewer: `python -m tests.benchmarks.bench_far_end [SECONDS [MODE ...]]`.

For each mode of `tests/cli/lying_far_end.py` (all, unless some are named) `python -m ddptop --connect -- ...`
in a pseudo terminal of 160 x 50. Printed are the CPU time that the viewer took in SECONDS (30) after its
first three, as a share of a core, its memory, how often it started the far end, and how long it took to end
after q, Ctrl-C and SIGTERM. CPU time holds on a busy machine; the times of the ends want a quiet one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.processes import environment

FAR_END = Path(__file__).parents[1] / "cli" / "lying_far_end.py"
MODES = (
    *("sound", "escapes", "nan", "infinity", "frames", "beats", "rubbish"),
    *("endless", "wide", "drip", "errors", "banner", "refuses"),
)
SETTLE_S = 3.0
SECONDS = 30.0
MOST_S = 60.0
"""An end that takes longer is none."""


@contextmanager
def viewer(words: list[str], env: dict[str, str]) -> Iterator[tuple[psutil.Process, int]]:
    """A viewer in a terminal, and the terminal's descriptor, which is read meanwhile."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-m", "ddptop", *words], env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))

    def drain() -> None:
        with suppress(OSError):
            while select.select([terminal], [], [], 1.0)[0] or psutil.pid_exists(pid):
                if not os.read(terminal, 65_536):
                    return

    reading = threading.Thread(target=drain, daemon=True)
    reading.start()
    try:
        yield psutil.Process(pid), terminal
    finally:
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(terminal)


def cpu_s(process: psutil.Process) -> float:
    """CPU time of the process itself; its far end is another one."""
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system
    return float("nan")


def end_s(process: psutil.Process, leave: object) -> float:
    """How long it takes to end after `leave()`; infinite: it does not."""
    begin_s = time.monotonic()
    leave()  # type: ignore[operator]
    while time.monotonic() - begin_s < MOST_S:
        done, _ = os.waitpid(process.pid, os.WNOHANG)
        if done:
            return time.monotonic() - begin_s
        time.sleep(0.005)
    return float("inf")


def measure(mode: str, seconds: float, folder: Path) -> None:
    env = environment(folder) | {"LANG": "C.UTF-8", "PYTHONPATH": str(FAR_END.parents[2])}
    starts = folder / f"starts-{mode}"
    words = ["--connect", "--", sys.executable, str(FAR_END), mode, str(starts)]
    ends: list[float] = []
    share = memory = float("nan")
    for way in ("q", "Ctrl-C", "SIGTERM"):
        with viewer(words, env) as (process, terminal):
            time.sleep(SETTLE_S)
            if way == "q":
                before_s = cpu_s(process)
                time.sleep(seconds)
                share = 100 * (cpu_s(process) - before_s) / seconds
                with suppress(psutil.Error):
                    memory = process.memory_info().rss / 2**20
                begun = len(starts.read_text().splitlines())
            leave = {
                "q": lambda: os.write(terminal, b"q"),
                "Ctrl-C": lambda: os.write(terminal, b"\x03"),
                "SIGTERM": lambda: process.send_signal(signal.SIGTERM),
            }[way]
            ends.append(end_s(process, leave))
    times = "".join(f"{one:9.2f}" for one in ends)
    print(f"{mode:10}{share:8.1f} %{memory:9.0f} MB{begun:8}{times}", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    print(
        f"{'mode':10}{'a core':>10}{'memory':>12}{'starts':>8}{'q':>9}{'Ctrl-C':>9}{'SIGTERM':>9}   (ends: s)"
    )
    with tempfile.TemporaryDirectory(prefix="ddptop-far-end-") as folder:
        for mode in sys.argv[2:] or MODES:
            measure(mode, seconds, Path(folder))


if __name__ == "__main__":
    main()
