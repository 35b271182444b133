"""A real agent process on a folder of the test's own, made-up ranks, and a collector in a thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ddptop.host import folders
from ddptop.host.runs import create_run_directory
from tests import warm
from tests.agent.fake_collector import FakeCollector

DEADLINE_S = 120.0
FAKE_RANK = Path(__file__).parent.parent / "collector" / "fake_rank.py"
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
        time.sleep(min(0.5, max(0.02, time.monotonic() - began)))


class OneHost:
    """A run's folder on this host, its agent, its ranks, and the collector that they are relayed to."""

    def __init__(self, directory: Path, state: Path) -> None:
        self.directory = directory
        self.state = state
        self.collector = FakeCollector()
        self.processes: list[subprocess.Popen[str]] = []
        self.environment = os.environ | {"XDG_STATE_HOME": str(state)}

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

    def agent(self, *more: str, ready: bool = True, haste: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start it, and wait until it is ready. `haste`: with shorter times (see in_haste.py)."""
        words = ["--run-dir", self.directory, "--run-id", RUN_ID, "--name", "name", "--script", "train.py"]
        module = (warm.IN_HASTE, *haste, "ddptop.agent") if haste else ("-m", "ddptop.agent")
        process = self.spawn(*module, *words, "--record", "unused", *more)
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
        window: int = 1 << 20,
        drain_s: float = 60.0,
        end: str = "bye",
    ) -> subprocess.Popen[str]:
        """Start a made-up rank (see fake_rank.py)."""
        return self.spawn(
            FAKE_RANK, self.directory, RUN_ID, rank, world, steps, rate, 3, window, drain_s, end
        )

    def ended(self, ranks: list[subprocess.Popen[str]]) -> None:
        """Wait for the ranks' end."""
        for rank in ranks:
            _, err = rank.communicate(timeout=DEADLINE_S)
            assert rank.returncode == 0, err

    def finish(self, agent: subprocess.Popen[str], exit_code: int = 0) -> list[dict[str, object]]:
        """Report the end of the run to the agent; the lines that it has written since it was ready."""
        out, err = agent.communicate(json.dumps({"exit_code": exit_code}) + "\n", timeout=DEADLINE_S)
        assert (agent.returncode, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]

    def local_recordings(self) -> list[Path]:
        """What an agent has recorded itself."""
        return sorted((self.state / "ddptop").glob("*.ddptop"))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneHost]:
    for name in ("runtime", "state"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setattr(folders, "SHARED_TMP", tmp_path)
    one = OneHost(create_run_directory(RUN_ID), tmp_path / "state")
    yield one
    for process in one.processes:
        process.kill()
        process.communicate()
    one.collector.stop()
