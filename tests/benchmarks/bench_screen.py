"""What the screen costs: `python tests/benchmarks/bench_screen.py [RANKS ...]` (8 and 4096 by default).

For each number of ranks a simulated run with its real collector, and `ddptop RUN` in a pseudo terminal of
160 x 50 beside it. Printed are the CPU time of every process as a share of one core over 20 s (CPU time, not
wall: the machine may be busy), the viewer's memory, the bytes that one of 80 x 24 writes while no key is
pressed, the time from the command to its first picture (the best of five), and that from a key to the first
byte of its answer. The last two are wall times: read them on a quiet machine; beside each stands the CPU time
that the viewer took meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import select
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

SIZE, SMALL = (50, 160), (24, 80)
"""Lines and columns."""

MEASURED_S = 20.0
SETTLE_S = 8.0
"""Until all ranks have said who they are, and the first burst of frames is over."""

KEYS = ("5", "1", "3", "1", "4", "1", "2", "1", "\x1b[B", "\x1b[B", "\x1b[6~", ">")
"""Views there and back, the cursor, another order of the ranks."""

ROUNDS = 9
"""Times that all of these keys are pressed: enough for a 99th percentile."""

STARTS = 5
"""The best of them is the time to the first picture: the others were held up by somebody else."""


class Viewer:
    """`ddptop RUN` in a pseudo terminal."""

    def __init__(self, run: str, size: tuple[int, int] = SIZE) -> None:
        self.began = time.monotonic()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.environ.pop(
                "PYTHONDONTWRITEBYTECODE", None
            )  # or every module that changed is compiled each time
            os.execv(sys.executable, [sys.executable, "-m", "ddptop.cli.main", run])
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    def read(self, seconds: float, until: bytes | None = None) -> bytes:
        """What it draws in so long, or up to some text."""
        end, seen = time.monotonic() + seconds, b""
        while (left := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], left)[0]:
                try:
                    seen += os.read(self._terminal, 65536)
                except OSError:  # EIO: it has ended
                    break
                if until is not None and until in seen:
                    break
        return seen

    def answer_ms(self, key: str) -> tuple[float, float]:
        """From a key to the first byte of what it changes, in a moment in which nothing else is drawn.

        By the wall, and CPU time of the viewer.
        """
        while self.read(0.03):
            pass
        begin, before_s = time.monotonic(), cpu_s(self.pid)
        os.write(self._terminal, key.encode())
        select.select([self._terminal], [], [], 5.0)
        took = 1000 * (time.monotonic() - begin), 1000 * (cpu_s(self.pid) - before_s)
        self.read(0.3)
        return took

    def quit(self) -> None:
        """Leave in good order."""
        os.write(self._terminal, b"q")
        self.read(1.0)
        os.close(self._terminal)
        os.waitpid(self.pid, 0)


def cpu_s(pid: int) -> float:
    """CPU seconds of the threads of a process so far, to the nanosecond."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(Path(thread, "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def memory_mb(pid: int) -> float:
    """Resident memory at its highest."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def first_picture(name: str) -> tuple[float, float]:
    """From the command to the first picture, in seconds: by the wall, and CPU time."""
    viewer = Viewer(name)
    viewer.read(20.0, until=b"LIVE")
    took = time.monotonic() - viewer.began, cpu_s(viewer.pid)
    viewer.quit()
    return took


def at(times: list[float], share: float) -> float:
    """A quantile of sorted times."""
    return times[min(len(times) - 1, int(share * len(times)))]


def measure(ranks: int) -> str:
    """One line of the table."""
    from ddptop.cli.simulate import Simulated
    from ddptop.host.runs import live_runs

    name = f"bench-screen-{ranks}"
    simulated = Simulated(name, ranks, 0)
    try:
        time.sleep(SETTLE_S)
        first_s, first_cpu_s = (
            min(times) for times in zip(*(first_picture(name) for _ in range(STARTS)), strict=True)
        )
        viewer = Viewer(name)
        viewer.read(20.0, until=b"LIVE")
        viewer.read(3.0)
        (collector_pid,) = (run.pid for run in live_runs() if run.name == name)
        pids = (viewer.pid, collector_pid, simulated.process.pid)
        before, begin = [cpu_s(pid) for pid in pids], time.monotonic()
        viewer.read(MEASURED_S)
        passed = time.monotonic() - begin
        shares = [100 * (cpu_s(pid) - had) / passed for pid, had in zip(pids, before, strict=True)]
        keys, keys_cpu = (
            sorted(times) for times in zip(*(viewer.answer_ms(key) for key in KEYS * ROUNDS), strict=True)
        )
        memory = memory_mb(viewer.pid)
        viewer.quit()
        small = Viewer(name, SMALL)
        small.read(20.0, until=b"LIVE")
        small.read(3.0)
        drawn = len(small.read(MEASURED_S)) / MEASURED_S
        small.quit()
    finally:
        simulated.stop_ranks()
    return (
        f"{ranks:6,} {shares[0]:7.1f}% {memory:7.0f} MB {drawn / 1000:7.1f} kB/s {first_s:7.2f} s"
        f" {first_cpu_s:7.2f} s {at(keys, 0.5):7.0f} ms {at(keys, 0.99):6.0f} ms"
        f" {at(keys_cpu, 0.5):7.0f} ms {at(keys_cpu, 0.99):6.0f} ms {shares[1]:9.1f}% {shares[2]:9.1f}%"
    )


def main() -> None:
    """The table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = os.environ["XDG_STATE_HOME"] = folder
        Path(folder).chmod(0o700)
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        print(" ranks   viewer    memory   80x24 at rest first pic  its CPU    key p50       p99", end="")
        print("    its CPU p50  p99  collector      ranks")
        for ranks in [int(word) for word in sys.argv[1:]] or [8, 4096]:
            print(measure(ranks), flush=True)


if __name__ == "__main__":
    main()
