"""The run that a person means: one that is live, or one that left a recording."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop.cli.errors import CliError, Exit

if TYPE_CHECKING:
    from ddptop.transport.rundir import RunFile

SUFFIX = ".ddptop"
"""Of a recording's file name; what stands before it is the name of the run."""

NAMES_IN_A_COMPLAINT = 8
"""More than that on one line help nobody; `ddptop ls` has them all."""


@dataclass(frozen=True)
class Recorded:
    """A recording in the state directory."""

    name: str
    path: Path


def live() -> list[RunFile]:
    """Runs with a living collector, newest first. Raises CliError (4) where the run directory is not safe."""
    from ddptop.transport.rundir import RunDirectoryError, live_runs

    try:
        return live_runs()
    except RunDirectoryError as error:
        raise CliError(str(error), Exit.REFUSED) from None


def recorded(running: Iterable[RunFile]) -> list[Recorded]:
    """Recordings in the state directory, newest first, without those that the running ones still write."""
    from ddptop.transport.rundir import RunDirectoryError, state_directory

    try:
        folder = state_directory()
    except RunDirectoryError as error:
        raise CliError(str(error), Exit.REFUSED) from None
    busy = {str(run.recording) for run in running}
    paths = [path for path in folder.glob(f"*{SUFFIX}") if str(path) not in busy]
    paths.sort(key=modified, reverse=True)
    return [Recorded(path.name.removesuffix(SUFFIX), path) for path in paths]


def find(word: str) -> RunFile | Recorded:
    """The run of this name or id, or of a unique beginning of one; a live run comes before a recording.

    Raises CliError (3) when there is none or when several match.
    """
    running = live()
    kept = recorded(running)
    for kind, matches in _rounds(word, running, kept):
        if len(matches) == 1:
            return matches[0]
        if matches:
            names = _listed([match.name for match in matches])
            raise CliError(f"several {kind} match {word!r}: {names}; give more of the name", Exit.NOT_FOUND)
    raise CliError(
        _no_such(word, [run.name for run in running] + [item.name for item in kept]), Exit.NOT_FOUND
    )


def only() -> list[RunFile]:
    """The live runs, when none was named. Raises CliError (3) if there is none."""
    if running := live():
        return running
    hint = "start one with ddptop-run SCRIPT, or see ddptop ls for recordings"
    raise CliError(f"no live run on this machine; {hint}", Exit.NOT_FOUND)


def modified(path: Path) -> float:
    """Unix seconds of the last write; 0 for a file that has just vanished."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _rounds(
    word: str, running: Sequence[RunFile], kept: Sequence[Recorded]
) -> Iterator[tuple[str, Sequence[RunFile | Recorded]]]:
    """Ever looser ways to match. The last one opens the recordings, so it is only reached when need be."""
    yield "live runs", [run for run in running if word in (run.name, run.run_id)]
    yield "recordings", [item for item in kept if item.name == word]
    yield "live runs", [run for run in running if run.name.startswith(word) or run.run_id.startswith(word)]
    yield "recordings", [item for item in kept if item.name.startswith(word)]
    from ddptop.cli.catalog import recorded_id

    yield "recordings", [item for item in kept if recorded_id(item.path).startswith(word)]


def _no_such(word: str, names: Sequence[str]) -> str:
    if Path(word).is_file():
        ways = f"ddptop replay {word} plays it, ddptop report {word} sums it up"
        return f"no run is called {word!r}, but it is a file: {ways}"
    from ddptop.cli.commands import COMMANDS

    near = get_close_matches(word, [*names, *(command.name for command in COMMANDS)], n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"no run is called {word!r}; {hint}ddptop ls lists live runs and recordings"


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - NAMES_IN_A_COMPLAINT
    return ", ".join(names[:NAMES_IN_A_COMPLAINT]) + (f" and {rest} more" if rest > 0 else "")
