"""The first words of a failing rank, before its end makes the others fail too.

When a rank raises, its connections break and the others raise as well, moments later. Who was first is
noted where the exception is seen first, so that `spawn` and torchrun can name the rank that began it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from torch.distributed import distributed_c10d
from torch.distributed.elastic.multiprocessing.errors import get_error_handler


class Note(NamedTuple):
    """How one rank has failed."""

    moment_ns: int
    traceback: str
    exit_code: int | None
    """Of `sys.exit`; None for an exception."""


STAY_S = 2.0
"""How much longer a rank stays that has failed only after another: launchers take the first process that
ends for the cause. torchrun looks every 0.1 s, and ends the others then."""

ASK_S = 1.0
"""How long a failing rank waits to hear whether it is the first: rank 0 may be stopped."""

_path: Path | None = None
_noted = False


def write_to(path: Path) -> None:
    """Where this process leaves its note; without this call there is none."""
    global _path
    _path = path


def note(error: BaseException) -> None:
    """Write down, once, the moment (CLOCK_MONOTONIC: one for all processes of a host) and what it was."""
    global _noted
    if _noted or isinstance(error, KeyboardInterrupt):
        return
    _noted = True
    # torchrun's report takes its tracebacks from there; of an exit code it tells by itself.
    if os.environ.get("TORCHELASTIC_ERROR_FILE") and isinstance(error, Exception):
        with contextlib.suppress(OSError):
            get_error_handler().record_exception(error)
    if _path is None:
        return
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    with contextlib.suppress(OSError):
        _path.write_bytes(pickle.dumps(Note(time.monotonic_ns(), text, exit_code(error))))


def read(path: Path) -> Note | None:
    """The note of a process that has failed; None of one that has not."""
    with contextlib.suppress(OSError, pickle.UnpicklingError, EOFError):
        note = pickle.loads(path.read_bytes())
        return note if isinstance(note, Note) else None
    return None


def is_first_of_group() -> bool:
    """Whether no other rank of the default process group has asked this before; False where none can tell."""
    answers: list[int] = []

    def ask() -> None:
        with contextlib.suppress(RuntimeError, ValueError):  # rank 0, which serves the store, may be gone
            answers.append(distributed_c10d._get_default_store().add("failed", 1))

    asking = threading.Thread(target=ask, name="ddptop-failure", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be had
        asking.start()
        asking.join(ASK_S)
    return answers == [1]


def exit_code(error: BaseException) -> int | None:
    """What `sys.exit` was given, as the number that it becomes; None for anything else."""
    if not isinstance(error, SystemExit):
        return None
    return error.code if isinstance(error.code, int) else int(error.code is not None)
