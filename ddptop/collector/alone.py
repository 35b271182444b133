"""The end of a run whose launcher does not say it, as it is none of ours or was killed: that of its ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from ddptop.transport.agents import has_members, is_to_end
from ddptop.transport.processes import process_start

LINGER_NS = 3_000_000_000
"""How long the run outlives its last member: of ranks started by hand one may be late, or started anew."""


class Linger:
    """Whether a run has ended, by whether its processes are there."""

    def __init__(self) -> None:
        self._left_ns: int | None = None

    def is_over(self, present: bool, now_ns: int, linger_ns: int = LINGER_NS) -> bool:
        """Whether no process has been `present` for `linger_ns`."""
        if present:
            self._left_ns = None
            return False
        self._left_ns = now_ns if self._left_ns is None else self._left_ns
        return now_ns - self._left_ns >= linger_ns


def ranks_started(run_id: str) -> list[tuple[int, int]]:
    """Pid and start of the ranks of a run that torchrun has started on this host, reported or not.

    They have the run's id in their environment, and a session of their own, which no child of theirs has.
    """
    ranks = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if os.getsid(process.pid) == process.pid:
                variables = process.environ()
                if variables.get("DDPTOP_RUN_ID") == run_id and "LOCAL_RANK" in variables:
                    ranks.append((process.pid, process_start(process.pid) or 0))
    return ranks


class Alone:
    """Looks whether the run's members, and whoever restarts them, are still there."""

    def __init__(self, folder: Path, launcher: tuple[int, int], well: Callable[[], bool]) -> None:
        """`launcher`: pid and start of the process that may start ranks again (torchrun), or zeros.

        `well`: whether all ranks have ended as they should.
        """
        self._folder = folder
        self._launcher = launcher
        self._well = well
        self._linger = Linger()
        self.descriptor, self._silent = os.pipe()
        """For a poller; nothing ever comes out of it."""
        self.ended = False
        self.killed = False
        """Never: the launcher is none of ours."""
        self.exit_code: int | None = None
        """Nobody tells."""

    @property
    def well(self) -> bool:
        """Whether the run has ended as it should."""
        return self._well()

    def look(self, now_ns: int) -> None:
        """Look whether the run has ended; once a second will do."""
        pid, start = self._launcher
        present = has_members(self._folder) or (pid > 0 and process_start(pid) == start)
        self.ended = self._linger.is_over(present, now_ns, 0 if pid or is_to_end(self._folder) else LINGER_NS)

    def read(self) -> None:
        """Nothing comes."""

    def take_exits(self) -> list[tuple[int, int]]:
        """Nobody tells."""
        return []

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        os.close(self._silent)
