"""The run's folder, which the collector or the agent of a host serves while it holds the lock in it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import zmq

from ddptop.host.folders import RunDirectoryError
from ddptop.host.runs import ensure_run_directory, hold_folder_again, hold_lock, holds_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RunFolder:
    """Holds the lock of a run's folder."""

    def __init__(self, directory: Path, *, can_make_again: bool) -> None:
        """`can_make_again`: False where others have locks in it too, which are gone with the folder.

        Raises RunDirectoryError where the folder is not ours alone or another process serves it.
        """
        ensure_run_directory(directory)
        self._directory = directory
        self._can_make_again = can_make_again
        self._lock = hold_lock(directory)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def is_served(self, fill: Callable[[], None]) -> bool:
        """Whether this process serves the folder. A folder that was removed is made again.

        `fill` then binds sockets and writes files in it, so that connected ranks and viewers notice nothing
        and others find the run again. If the folder cannot be made now, as the one around it is gone too, the
        run is recorded all the same. Returns False where another process serves it, or it cannot be filled.
        """
        if holds_folder(self._directory, self._lock):
            return True
        if not self._can_make_again:
            return False
        try:
            # The next call tries it again: the folder around it may be back by then.
            if hold_folder_again(self._directory, self._lock):
                fill()
        except (OSError, RunDirectoryError, zmq.ZMQError):
            return False
        return True
