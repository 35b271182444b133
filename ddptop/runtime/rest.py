"""Gloo's threads come to rest before the interpreter ends.

After a collective a thread of gloo lets go of what the collective held, and takes the interpreter's lock for
what Python knows of it. On a busy machine it may get its turn only when the interpreter is already ending;
then Python (up to 3.13) ends the thread, which C++ answers with `terminate called without an active
exception`: a training that has done all its work dies by SIGABRT. Plain torch 2.13 does so about once in 200
processes on two busy cores. A few milliseconds at the very end prevent it.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from pathlib import Path

THREAD = "pt_gloo_runloop"
"""What torch calls the threads that run gloo's collectives; as the kernel keeps it, 15 characters."""

DEADLINE_S = 0.5
"""A thread that is still busy then has something else to do: a collective that is still under way."""

LOOK_S = 0.001
LOOKS = 3
"""Looks in a row that find all of them asleep. At one look a thread may be asleep because it waits for the
interpreter's lock, which we hold while we look and give away between two looks."""


def at_exit() -> None:
    """Have it done when the interpreter ends, after all that is registered later. May be called twice."""
    atexit.unregister(_last)
    if sys.version_info < (3, 14):
        atexit.register(_last)


def _last() -> None:
    with contextlib.suppress(KeyboardInterrupt):  # plain Python has nothing here that Ctrl-C could end
        gloo_rests()


def gloo_rests(tasks: Path = Path("/proc/self/task"), deadline_s: float = DEADLINE_S) -> bool:
    """Wait until no thread of gloo has anything to do, at most `deadline_s`; whether that came to be."""
    if "torch.distributed" not in sys.modules:
        return True
    end = time.monotonic() + deadline_s
    asleep = 0
    while asleep < LOOKS:
        if time.monotonic() > end:
            return False
        asleep = 0 if _busy(tasks) else asleep + 1
        if asleep < LOOKS:
            time.sleep(LOOK_S)
    return True


def _busy(tasks: Path) -> bool:
    """Whether a thread of gloo runs or waits for its turn on a core."""
    try:
        threads = list(tasks.iterdir())
    except OSError:  # no /proc: nothing to be told
        return False
    return any(_runs(thread / "stat") for thread in threads)


def _runs(stat: Path) -> bool:
    try:
        words = stat.read_text()
    except OSError:  # it has just ended
        return False
    name, _, rest = words.partition("(")[2].rpartition(")")
    return name == THREAD and rest.split()[0] in ("R", "D")
