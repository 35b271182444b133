"""Examples started as a person would, for few steps: watched by `ddptop-run`, and without ddptop."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.processes import DDPTOP, DDPTOP_RUN, TORCHRUN, environment, run, run_plain, started, until

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_RANKS = ["--standalone", "--nproc-per-node", "2"]
AT_A_TIME = 2
"""CI has two cores."""


@dataclass(frozen=True)
class Example:
    """One example with arguments that make it short."""

    script: str
    arguments: tuple[str, ...]
    steps: int
    """Of the watched run."""
    watched_only: tuple[str, ...] = ()
    """Further arguments of the watched run."""
    ranks: int = 2
    spawns: bool = False
    """It starts its ranks itself."""
    torchrun: bool = False
    """Without ddptop it is started by torchrun; otherwise by plain `python`, as a group of one."""

    @property
    def name(self) -> str:
        """The script's, and the run's."""
        return Path(self.script).stem

    def watched(self, *options: str) -> list[str]:
        """The command that has it watched, with every bucket of every step: these runs are short."""
        ours = ["--ddptop-name", self.name, "--ddptop-record", "run.ddptop", "--ddptop-detail", "full"]
        launch = ["--ddptop-exec", sys.executable] if self.spawns else TWO_RANKS
        return [*DDPTOP_RUN, *ours, *options, *launch, *self._script(), *self.watched_only]

    def plain(self) -> list[str]:
        """The command without ddptop."""
        return [*(TORCHRUN + TWO_RANKS if self.torchrun else [sys.executable]), *self._script()]

    def _script(self) -> list[str]:
        return [str(EXAMPLES / self.script), *self.arguments]


@dataclass(frozen=True)
class Ended:
    """The watched run of an example, then the one without ddptop, in the same folder."""

    home: Path
    watched: subprocess.CompletedProcess[str]
    plain: subprocess.CompletedProcess[str]

    @property
    def recording(self) -> Path:
        """Of the watched run."""
        return self.home / "run.ddptop"


class Runs:
    """Runs in the background, begun at once and a few at a time."""

    def __init__(self, folder: Path, wanted: list[Example]) -> None:
        self._pool = ThreadPoolExecutor(AT_A_TIME)
        self._futures: dict[Example, Future[Ended]] = {
            example: self._pool.submit(_both, folder / example.name, example) for example in wanted
        }

    def of(self, example: Example) -> Ended:
        """Waits for it."""
        return self._futures[example].result()

    def end(self) -> None:
        """Begin no more, and wait for those under way."""
        self._pool.shutdown(cancel_futures=True)


def _both(home: Path, example: Example) -> Ended:
    env = environment(home)
    alone = run_plain if example.name == "plain_ddp" else run
    return Ended(home, run(example.watched(), env, home), alone(example.plain(), env, home))


def seen_to_stall(home: Path, example: Example) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """The live snapshot in which a stall is first laid to a rank, and how the run then ended."""
    env = environment(home)
    snapshots: list[dict[str, Any]] = []

    def stalled() -> bool:
        done = run([*DDPTOP, example.name, "--json"], env, home)
        if done.returncode or json.loads(done.stdout)["source"] != "live":
            return False
        snapshots.append(json.loads(done.stdout))
        alerts = snapshots[-1]["alerts"]
        return any(alert["kind"] == "stall" and alert["rank"] is not None for alert in alerts)

    command = example.watched("--ddptop-stall", "1")
    with started(command, env, home) as process:
        until(stalled, "a stall")
        out, err = process.communicate(timeout=60)
    return snapshots[-1], subprocess.CompletedProcess(command, process.returncode, out, err)
