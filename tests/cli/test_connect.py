"""`ddptop --connect` through a real sshd, and through what stands in for srun and kubectl."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ddptop.cli.commands.look import Look
from ddptop.cli.connect import target_of
from ddptop.cli.errors import CliError, Exit
from ddptop.cli.main import main
from tests.processes import DDPTOP, DEADLINE_S, environment, processes_of, run, started, until
from tests.sshd import REPOSITORY, Sshd, needs_sshd, script
from tests.test_terminal import needs_tmux
from tests.tmux import Terminal, terminals

RANKS = 3


class Far:
    """A simulated run, and an sshd on its host. The near end has a home of its own, without any run."""

    def __init__(self, place: Path) -> None:
        (place / "far").mkdir()
        (place / "near").mkdir()
        (place / "sshd").mkdir()
        self.far = environment(place / "far")
        self.sshd = Sshd(place / "sshd", self.far)
        self.cwd = place
        path = f"{self.sshd.programs}:{os.environ['PATH']}"
        self.near = environment(place / "near") | {"PATH": path, "PYTHONPATH": str(REPOSITORY)}
        self.name = ""

    def look(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`ddptop` at the near end, run to its end."""
        return run([*DDPTOP, *words], self.near, self.cwd, cold=True)

    def at_far_end(self) -> list[int]:
        """Processes of `ddptop relay` at the far end, and of `ssh` at the near end."""
        found = []
        for process in [*processes_of(self.far), *processes_of(self.near)]:
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            if "relay" in words or any(word.endswith("/ssh") for word in words[:2]):
                found.append(process.pid)
        return found


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    made = Far(tmp_path_factory.mktemp("connect"))
    training = [*DDPTOP, "demo", "--simulate", str(RANKS), "--headless", "--steps", "100000"]
    with started(training, made.far, made.cwd, cold=True) as process:
        def name() -> str:
            listed = run([*DDPTOP, "ls", "--json"], made.far, made.cwd, cold=True).stdout
            return next((each["name"] for each in json.loads(listed)["runs"]), "") if listed else ""

        made.name = str(until(name, "a run"))
        made.sshd.start()
        try:
            yield made
        finally:
            made.sshd.stop()
            process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)


@needs_sshd
@pytest.mark.parametrize("host", ["far", "jumped"])
def test_a_run_on_another_host_and_through_a_jump_host(far: Far, host: str) -> None:
    done = far.look("--connect", f"{host}/{far.name[:-2]}", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["run"]["name"], shown["run"]["world_size"]) == (far.name, RANKS)
    assert done.stderr == ""
    until(lambda: not far.at_far_end(), "nothing left")
