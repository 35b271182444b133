"""The hosts that a launcher waits for, until they have met: a file in the run's folder, for viewers."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ddptop.host.folders import RunDirectoryError, open_private, read_private, write_private

MEETING_FILE = "meeting"

MAX_BYTES = 4096

MAX_NAMES = 8
"""The sentence is one line in a terminal or two."""


@dataclass(frozen=True, slots=True)
class OpenRendezvous:
    """A rendezvous that is not complete."""

    endpoint: str
    """HOST:PORT at which the hosts meet."""
    least: int
    most: int
    """How many hosts the job has; two numbers where it is elastic."""
    reached: bool
    """Whether a connection to the endpoint was possible."""
    come: tuple[str, ...] = ()
    """Names of the hosts that have come; empty: the rendezvous does not tell."""

    def describe(self) -> str:
        """What the launcher waits for, in words that follow the name of the run."""
        number = str(self.least) if self.least == self.most else f"{self.least} to {self.most}"
        if not self.reached:
            return f"waits for its {number} hosts: {self.endpoint}, where they meet, does not answer"
        if not self.come:
            return f"waits for its {number} hosts; {self.endpoint} answers, but does not tell which have come"
        names = ", ".join(self.come[:MAX_NAMES])
        others = len(self.come) - MAX_NAMES
        more = f" and {others} more" if others > 0 else ""
        verb = "has" if len(self.come) == 1 else "have"
        return f"waits for its hosts: {len(self.come)} of {number} {verb} come: {names}{more}"


class AwaitedHosts(NamedTuple):
    """What the launcher of a run waits for."""

    run: str
    """The name of the run."""
    words: str
    """`waits for its hosts: 1 of 2 has come: node-0`."""

    @property
    def sentence(self) -> str:
        """What is said of it in a line of its own."""
        return f"run {self.run} {self.words}"


def write_meeting(folder: Path, meeting: AwaitedHosts) -> None:
    """Put the meeting into the run's folder. Where that fails, there is none."""
    with suppress(RunDirectoryError, OSError), open_private(folder) as inside:
        write_private(inside, MEETING_FILE, "\n".join(meeting).encode())


def remove_meeting(folder: Path) -> None:
    """Remove the meeting: the hosts have met."""
    with suppress(OSError):
        (folder / MEETING_FILE).unlink()


def read_meeting(folder: Path) -> AwaitedHosts | None:
    """The meeting in a run's folder; None: there is none."""
    try:
        text = read_private(folder, MEETING_FILE, MAX_BYTES).decode(errors="replace")
    except (RunDirectoryError, OSError):
        return None
    run, _, words = text.partition("\n")
    return AwaitedHosts(run, words)
