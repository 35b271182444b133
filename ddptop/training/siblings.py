"""Ranks without a launcher's variables: the first one in `init_process_group` tells the others their ranks.

`mp.spawn` and Slurm number the processes that they start, and a script makes ranks of these numbers. The
first rank that comes to `init_process_group` shows how: it leaves a mark with the difference. A process of
the same numbering that hangs before is told its rank by that mark, and reports.

Importing this module costs next to nothing.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ddptop.host.folders import NEW_FILE, open_regular

MARK = "ddptop-numbered-"

SLURM = "slurm"

_MARK = re.compile(rf"{MARK}(\w+)-(m?\d+)-(\d+)")


class Number(NamedTuple):
    """The number that a process was started with."""

    numbering: str
    """Which processes are numbered together: `SLURM`, all of the job; `mp4711`, those of one parent."""
    number: int


def own_number() -> Number | None:
    """The number of this process among its siblings; None: it has none, or none yet, as while its script is
    imported."""
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import current_process, parent_process

        parent, identity = parent_process(), getattr(current_process(), "_identity", ())
        if parent is not None:
            # A DataLoader's worker is a daemon, a rank hardly ever: it may start no workers then.
            is_worker = current_process().daemon
            return Number(f"mp{parent.pid}", identity[-1]) if identity and not is_worker else None
        if getattr(current_process(), "_inheriting", False):
            return None
    task = os.environ.get("SLURM_PROCID", "")
    return Number(SLURM, int(task)) if task.isdecimal() and "SLURM_STEP_ID" in os.environ else None


def is_numbered_by_job() -> bool:
    """Whether other hosts know this process's number too. A parent's process id may be there twice."""
    number = own_number()
    return number is not None and number.numbering == SLURM


def is_numbered() -> bool:
    """Whether this process has such a number, or will have one, and no launcher's variables."""
    if "RANK" in os.environ:
        return False
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import current_process, parent_process

        # A child knows its parent only after it has imported its script.
        if parent_process() is not None or getattr(current_process(), "_inheriting", False):
            return True
    return "SLURM_PROCID" in os.environ and "SLURM_STEP_ID" in os.environ


def mark_of(rank: int, world_size: int) -> str | None:
    """The mark that says that this process is that rank; None: it has no number."""
    numbered = own_number()
    if numbered is None:
        return None
    # `-` divides the parts of a mark.
    difference = str(numbered.number - rank).replace("-", "m")
    return f"{MARK}{numbered.numbering}-{difference}-{world_size}"


def tell_siblings(rank: int, world_size: int) -> None:
    """Leave the mark: this process is that rank."""
    name, directory = mark_of(rank, world_size), os.environ.get("DDPTOP_RUN_DIR")
    if name is not None and directory:
        with suppress(OSError):  # a sibling has left it, or the folder is gone
            os.close(open_regular(Path(directory) / name, NEW_FILE))


def told_by_siblings() -> tuple[int, int] | None:
    """Rank and world size of this process by a sibling's mark; None: there is none."""
    directory = os.environ.get("DDPTOP_RUN_DIR")
    if own_number() is None or not directory:
        return None
    with suppress(OSError):
        return next(filter(None, (told_by(path.name) for path in Path(directory).iterdir())), None)
    return None


def told_by(name: str) -> tuple[int, int] | None:
    """Rank and world size of this process by the mark of this name; None: it is no mark, or one of other
    processes."""
    mark, numbered = _MARK.fullmatch(name), own_number()
    if mark is None or numbered is None or mark[1] != numbered.numbering:
        return None
    rank, world_size = numbered.number - int(mark[2].replace("m", "-")), int(mark[3])
    return (rank, world_size) if 0 <= rank < world_size else None
