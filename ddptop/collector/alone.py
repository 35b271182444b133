"""In the place of the launcher's pipe where no launcher of ours is there: the run ends with its members."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ddptop.transport.agents import has_members, is_to_end
from ddptop.transport.processes import process_start

LINGER_NS = 3_000_000_000
"""How long the run outlives its last member: of ranks started by hand one may be late, or started anew."""


class Alone:
    """Looks whether the run's members, and whoever restarts them, are still there."""

    def __init__(self, folder: Path, launcher: tuple[int, int], well: Callable[[], bool]) -> None:
        """`launcher`: pid and start of the process that may start ranks again (torchrun), or zeros.

        `well`: whether all ranks have ended as they should.
        """
        self._folder = folder
        self._launcher = launcher
        self._well = well
        self._left_ns: int | None = None
        self.descriptor, self._silent = os.pipe()
        """For a poller; nothing ever comes out of it."""
        self.ended = False
        self.exit_code: int | None = None
        """Nobody tells."""

    @property
    def well(self) -> bool:
        """Whether the run has ended as it should."""
        return self._well()

    def look(self, now_ns: int) -> None:
        """Look whether the run has ended; once a second will do."""
        pid, start = self._launcher
        if has_members(self._folder) or (pid and process_start(pid) == start):
            self._left_ns = None
        elif self._left_ns is None:
            self._left_ns = now_ns
        linger_ns = 0 if pid or is_to_end(self._folder) else LINGER_NS
        self.ended = self._left_ns is not None and now_ns - self._left_ns >= linger_ns

    def read(self) -> None:
        """Nothing comes."""

    def take_exits(self) -> list[tuple[int, int]]:
        """Nobody tells."""
        return []

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.descriptor)
        os.close(self._silent)
