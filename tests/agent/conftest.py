"""A real agent process on a folder of the test's own, made-up ranks, and a collector in a thread."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ddptop.host import folders
from ddptop.host.runs import create_run_directory
from tests.agent.fake_collector import FakeCollector
from tests.run_processes import DEADLINE_S, RUN_ID, RunProcesses


class OneHost(RunProcesses):
    """A run's folder on this host, its agent, its ranks, and the collector that they are relayed to."""

    def __init__(self, directory: Path, state: Path) -> None:
        super().__init__(directory, os.environ | {"XDG_STATE_HOME": str(state)})
        self.state = state
        self.collector = FakeCollector()

    def agent(self, *more: str, ready: bool = True, haste: Sequence[str] = ()) -> subprocess.Popen[str]:
        """Start it as `start_service` does."""
        return self.start_service("ddptop.agent", "unused", *more, ready=ready, haste=haste)

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
