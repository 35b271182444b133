"""The processes of one run that a test starts itself: an agent or a collector, and made-up ranks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests import warm

DEADLINE_S = 120.0
FAKE_RANK = Path(__file__).parent / "collector" / "fake_rank.py"
RUN_ID = "run"


def wait_for(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Try again until it holds."""
    end = time.monotonic() + deadline_s
    while True:
        began = time.monotonic()
        if condition():
            return
        assert began < end, "waited in vain"
        # A look that reads a recording takes half of the time at most: what it waits for needs the CPU, too.
        time.sleep(min(0.5, max(0.01, time.monotonic() - began)))


class RunProcesses:
    """A run's folder and its processes. The test that uses it ends them."""

    def __init__(self, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: of the processes; None: that of this one."""
        self.directory = directory
        self.processes: list[subprocess.Popen[str]] = []
        self.environment = None if environment is None else dict(environment)

    def spawn(self, *words: object) -> subprocess.Popen[str]:
        """A Python process with pipes for its streams."""
        warm.begin()
        process = warm.WarmPopen(
            [sys.executable, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        self.processes.append(process)
        return process

    def start_service(
        self, module: str, record: object, *more: str, ready: bool = True, haste: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start an agent or a collector, and wait until it is ready. `haste`: with shorter times (see
        in_haste.py)."""
        words = ["--run-dir", self.directory, "--run-id", RUN_ID, "--name", "name", "--script", "train.py"]
        start = (warm.IN_HASTE, *haste, module) if haste else ("-m", module)
        process = self.spawn(*start, *words, "--record", record, *more)
        if ready:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline()) == {"ready": True}
        return process

    def rank(
        self,
        rank: int,
        world: int = 2,
        *,
        steps: int = 300,
        rate: float = 300,
        buckets: int = 3,
        window: int = 1 << 20,
        drain_s: float = 60.0,
        end: str = "bye",
    ) -> subprocess.Popen[str]:
        """Start a made-up rank; `end` is what it does after its last step (see fake_rank.py).

        At its end it waits up to `drain_s` for a collector that is slow, or has not started again.
        """
        return self.spawn(
            FAKE_RANK, self.directory, RUN_ID, rank, world, steps, rate, buckets, window, drain_s, end
        )
