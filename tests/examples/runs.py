"""Examples started as a person would, for few steps: watched by `ddptop-run`, and without ddptop."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.examples.in_turn import BEGINS
from tests.processes import DDPTOP, DDPTOP_RUN, DEADLINE_S, TORCHRUN, environment, run, started, until

EXAMPLES = Path(__file__).parents[2] / "examples"
HERE = Path(__file__).parent
TWO_RANKS = ["--standalone", "--nproc-per-node", "2"]
AT_A_TIME = 2
"""CI has two cores."""

Snapshot = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """One example with arguments that make it short."""

    script: str
    arguments: tuple[str, ...]
    steps: int
    """Of the watched run."""
    hold: int
    """The step in which its ranks are held until the test has looked."""
    watched_only: tuple[str, ...] = ()
    """Further arguments of the watched run."""
    with_nccl: int = 0
    """Steps more where torch has NCCL: elsewhere it refuses a hook."""
    ranks: int = 2
    spawns: bool = False
    """It starts its ranks itself."""
    drawn: bool = False
    """Its picture is looked at, too."""
    joined: tuple[int, ...] = ()
    """Ranks out of inputs when its ranks are held."""

    @property
    def name(self) -> str:
        """The script's, and the run's."""
        return Path(self.script).stem

    def watched(self, *options: str) -> list[str]:
        """The command that has it watched, with every bucket of every step: these runs are short."""
        ours = ["--ddptop-name", self.name, "--ddptop-record", "run.ddptop", "--ddptop-detail", "full"]
        launch = ["--ddptop-exec", sys.executable] if self.spawns else TWO_RANKS
        return [*DDPTOP_RUN, *ours, *options, *launch, *self.command(), *self.watched_only]

    def command(self) -> list[str]:
        """The script and its arguments."""
        return [str(EXAMPLES / self.script), *self.arguments]


@dataclass(frozen=True)
class Watched:
    """A run under `ddptop-run`."""

    live: Snapshot
    """What `ddptop NAME --json` told while its ranks were held."""
    picture: str
    """What `ddptop NAME --once` drew then; empty unless it is asked for."""
    done: subprocess.CompletedProcess[str]
    recording: Path


@dataclass(frozen=True)
class Streams:
    """What an example has written without ddptop."""

    out: str
    err: str


Enough = Callable[[Snapshot, Example], bool]


class Runs:
    """Runs in the background, begun at once and a few at a time."""

    def __init__(self, folder: Path, wanted: list[Example], enough: Enough) -> None:
        """`enough`: whether a live snapshot of an example shows all that it is to show."""
        self._pool = ThreadPoolExecutor(AT_A_TIME)
        self._folder = folder
        self._watched: dict[Example, Future[Watched]] = {
            example: self._pool.submit(watch, folder / example.name, example, enough) for example in wanted
        }
        launched = [example for example in wanted if not example.spawns]
        self._in_turn = self._pool.submit(_in_turn, folder / "in_turn", launched)

    def watched(self, example: Example) -> Watched:
        """Waits for it."""
        return self._watched[example].result()

    def by_torchrun(self, example: Example) -> Streams:
        """Without ddptop, on two ranks; waits for all of them."""
        return self._in_turn.result()[example.name]

    def by_python(self, example: Example) -> subprocess.CompletedProcess[str]:
        """Without ddptop and without a launcher, in the folder where it has been watched."""
        self.watched(example)
        home = self._folder / example.name
        return run([sys.executable, *example.command()], environment(home), home)

    def end(self) -> None:
        """Begin no more, and wait for those under way."""
        self._pool.shutdown(cancel_futures=True)


HELD_STATES = "● LIVE", "○ LONG STEP"
"""What a picture calls a run whose ranks are held: from about a second on, the step is a long one."""


def watch(home: Path, example: Example, enough: Enough) -> Watched:
    """Run it to the step in which its ranks are held, look until enough is seen, and let it end."""
    env = environment(home)
    gate = {"PYTHONPATH": str(HERE / "gate"), "DDPTOP_TEST_GATE": f"{home} {example.hold}"}
    command = example.watched("--ddptop-stall", "60")
    with started(command, env | gate, home) as process:
        until(lambda: (home / "reached").exists() or process.poll() is not None, "the step", DEADLINE_S)
        assert process.poll() is None, process.communicate()
        # On a busy machine nothing may come from a rank for a second or two: then it is no more live.
        live = look(
            home, example, env, lambda shown, of: enough(shown, of) and shown["run"]["state"] == "live"
        )
        wide = env | {"COLUMNS": "160"}

        def drawn() -> str:
            picture = run([*DDPTOP, example.name, "--once"], wide, home).stdout
            return picture if any(state in picture for state in HELD_STATES) else ""

        picture = str(until(drawn, "a picture of the live run", DEADLINE_S)) if example.drawn else ""
        (home / "looked").touch()
        out, err = process.communicate(timeout=DEADLINE_S)
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    return Watched(live, picture, done, home / "run.ddptop")


def look(home: Path, example: Example, env: dict[str, str], enough: Enough) -> Snapshot:
    """The first live snapshot that shows enough."""

    def seen() -> Snapshot | None:
        done = run([*DDPTOP, example.name, "--json"], env, home)
        shown: Snapshot = json.loads(done.stdout) if done.returncode == 0 else {"source": ""}
        return shown if shown["source"] == "live" and enough(shown, example) else None

    found = until(seen, f"enough of {example.name} in --json", DEADLINE_S)
    assert isinstance(found, dict)
    return found


def _in_turn(home: Path, examples: list[Example]) -> dict[str, Streams]:
    """All by one torchrun: both ranks run one after the other."""
    commands = json.dumps([example.command() for example in examples])
    done = run([*TORCHRUN, *TWO_RANKS, str(HERE / "in_turn.py"), commands], environment(home), home)
    assert done.returncode == 0, done.stdout + done.stderr
    out, err = _parts(done.stdout), _parts(done.stderr)
    return {example.name: Streams(out[example.name], err[example.name]) for example in examples}


def _parts(text: str) -> dict[str, str]:
    parts = (part.partition("\n") for part in f"\n{text}".split(f"\n{BEGINS}")[1:])
    return {name: rest if rest.endswith("\n") else f"{rest}\n" for name, _, rest in parts}
