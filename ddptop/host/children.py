"""A process that ddptop starts: its environment, and that it ends with the process that has started it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]

_INSTALLED = ("site-packages", "dist-packages")

_OF_A_RANK = ("DDPTOP_RUN_", "DDPTOP_AGENT")


def environment() -> dict[str, str]:
    """This process's own, without what makes a rank of a process, and without the current folder.

    `python -m` looks for modules in the current folder first (Python 3.11 and later can be told not to):
    a `queue.py` or `secrets.py` that lies beside the script would take the place of Python's own.
    """
    mine = {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_RANK)}
    inject = str(_PACKAGE / "training" / "inject")
    path = [entry for entry in mine.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != inject]
    here = str(_PACKAGE.parent)
    # A checkout that only this process knows of. Installed packages every process finds, behind Python's own.
    if here in sys.path and here not in path and _PACKAGE.parent.name not in _INSTALLED:
        path.append(here)
    mine["PYTHONPATH"] = os.pathsep.join(path)
    mine["PYTHONSAFEPATH"] = "1"
    # One thread works at a time; OpenBLAS would reserve memory for each core.
    mine["OMP_NUM_THREADS"] = mine["OPENBLAS_NUM_THREADS"] = "1"
    return mine


def fill_standard_streams() -> None:
    """Open /dev/null, not for children, in place of the standard streams that are closed.

    Otherwise a file, pipe or socket of ours would have the number of one, and receive what C code writes to
    stderr: libzmq aborts the process where that is one of its own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free


class InputEnd(threading.Event):
    """Set when standard input ends, in a process that is to end then.

    Standard input is a pipe that nothing is written to. It ends when the process at its other end closes it
    or is gone, however that one ended: the only sign that SIGKILL leaves on every system.
    """

    def __init__(self, end: Callable[[], object], grace_s: float = 0.0) -> None:
        """`end()` is called `grace_s` seconds later, if the process is still there."""
        super().__init__()
        self._end = end
        self.grace_s = grace_s
        threading.Thread(target=self._wait, name="ddptop-input", daemon=True).start()

    def _wait(self) -> None:
        with suppress(OSError):
            while os.read(0, 4096):
                pass
        self.set()
        time.sleep(self.grace_s)
        self._end()
