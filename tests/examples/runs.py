"""Examples started as a person would, for few steps: watched by `ddptop-run`, and without ddptop."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.processes import DDPTOP_RUN, TORCHRUN, environment, run

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO_RANKS = ["--standalone", "--nproc-per-node", "2"]
AT_A_TIME = 2
"""CI has two cores."""


@dataclass(frozen=True)
class Example:
    """One example with arguments that make it short."""

    script: str
    arguments: tuple[str, ...] = ()
    ranks: int = 2
    spawns: bool = False
    """It starts its own ranks."""
    watched_only: tuple[str, ...] = ()
    """Arguments of the watched run, which comes first."""

    @property
    def name(self) -> str:
        """Of the run: the script's."""
        return Path(self.script).stem

    def command(self, *more: str) -> list[str]:
        """The script and its arguments."""
        return [str(EXAMPLES / self.script), *self.arguments, *more]


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


def watched_command(example: Example, *options: str) -> list[str]:
    """`ddptop-run`, with every bucket of every step recorded: these runs are short."""
    ours = ["--ddptop-name", example.name, "--ddptop-record", "run.ddptop", "--ddptop-detail", "full"]
    launch = ["--ddptop-exec", sys.executable] if example.spawns else TWO_RANKS
    return [*DDPTOP_RUN, *ours, *options, *launch, *example.command(*example.watched_only)]


def plain_command(example: Example, *, torchrun: bool) -> list[str]:
    """torchrun, or plain `python`: a group of one, unless the example spawns its ranks."""
    return [*(TORCHRUN + TWO_RANKS if torchrun else [sys.executable]), *example.command()]


class Runs:
    """All the runs that are wanted, begun at once in the background."""

    def __init__(self, folder: Path, wanted: dict[Example, bool]) -> None:
        self._pool = ThreadPoolExecutor(AT_A_TIME)
        self._futures: dict[Example, Future[Ended]] = {
            example: self._pool.submit(self._run, folder / example.name, example, torchrun)
            for example, torchrun in wanted.items()
        }

    def of(self, example: Example) -> Ended:
        """Waits for it."""
        return self._futures[example].result()

    def end(self) -> None:
        """Begin no more, and wait for those under way."""
        self._pool.shutdown(cancel_futures=True)

    @staticmethod
    def _run(home: Path, example: Example, torchrun: bool) -> Ended:
        env = environment(home)
        watched = run(watched_command(example), env, home)
        return Ended(home, watched, run(plain_command(example, torchrun=torchrun), env, home))
