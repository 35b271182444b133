"""A rank of a script that no launcher of ours has started: the first of the host starts the run's collector.

`ddptop.setup` calls `join_run`. Nothing of it is heard in the training: no word on its streams, no child of
its process, a few milliseconds once, and where the collector cannot be had the script is a plain DDP script.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddptop.host import collector_start, processes
from ddptop.host.processes import need_threads, process_start
from ddptop.host.runs import ensure_run_directory, read_command, write_command
from ddptop.training.guard import guard

STARTS_ANEW = "DDPTOP_AGENT"
"""Set where the ranks themselves see to it that there is a collector: process that may restart them."""

TEND_S = 5.0
"""Without an ack for this long, a rank looks whether the collector is gone, and no oftener."""

MOST_STARTS = 20
"""A collector that dies more often than this has a reason that starting it again will not mend."""


def join_run(number: str, listen_for_models: Callable[[], None]) -> None:
    """Have this process recorded: by the run that its launcher has begun, or by one of the script's own.

    `number` is the same on all ranks of the group, and no other group has had it. `listen_for_models` makes
    the models of this process recorded. Never raises.
    """
    if os.environ.get("DDPTOP") == "0":
        return
    try:
        processes.fill_standard_streams()
        if not os.environ.get("DDPTOP_RUN_DIR"):
            need_threads()
            _variables.update(_variables or _run_of(number))
            os.environ.update(_variables)
            tending.look()
        elif os.environ.get(STARTS_ANEW):
            tending.look()
        listen_for_models()
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def leave_run() -> None:
    """Take away what `join_run` has set: a command that the script starts later is none of its ranks."""
    for name, value in _variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]


_variables: dict[str, str] = {}
"""Of the run that this process has joined; if it sets up another group it goes on with it."""


def _run_of(number: str) -> dict[str, str]:
    under_torchrun = os.environ.get("TORCHELASTIC_RUN_ID")
    parent = os.getppid()
    started = process_start(parent) or 0
    # torchrun restarts its ranks: all attempts are one run.
    parts = ("torchrun", under_torchrun, parent, started) if under_torchrun else ("group", number)
    run_id = collector_start.run_id_of(*parts)
    return {
        "DDPTOP_RUN_DIR": str(collector_start.folder_of(run_id)),
        "DDPTOP_RUN_ID": run_id,
        STARTS_ANEW: f"{parent}:{started}" if under_torchrun else "0:0",
    }


class Tending:
    """Sees to it that there is a collector, from a process that is a member of the run."""

    def __init__(self) -> None:
        self._member: int | None = None
        self._starts = 0
        self._due_s = 0.0
        self._watching_forks = False

    def look(self) -> None:
        """Be a member, and start the collector if nobody has. Raises OSError or RunDirectoryError."""
        folder = Path(os.environ["DDPTOP_RUN_DIR"])
        ensure_run_directory(folder)
        self._leave()  # the folder may be another by now
        self._member = collector_start.join(folder)
        if not self._watching_forks:
            self._watching_forks = True
            os.register_at_fork(after_in_child=self._leave)
        if not read_command(folder):
            write_command(folder, sys.argv, arguments=os.environ.get("DDPTOP_ARGV") != "off")
        self._starts += collector_start.start(folder, _command(folder), processes.environment())

    def after_silence(self, heard_s: float) -> None:
        """From the publisher, where the last ack came at `heard_s` (of `time.monotonic`)."""
        now_s = time.monotonic()
        if now_s - heard_s < TEND_S or now_s < self._due_s or self._starts >= MOST_STARTS:
            return
        self._due_s = now_s + TEND_S
        if not os.environ.get(STARTS_ANEW):
            return
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _leave(self) -> None:
        """Also in a forked child, which is no member of its own and shall not keep its parent's place."""
        member, self._member = self._member, None
        if member is not None:
            os.close(member)


tending = Tending()
"""Of this process."""


def _command(folder: Path) -> Sequence[str]:
    words = ["-m", "ddptop.cli.agent", str(folder), os.environ["DDPTOP_RUN_ID"], os.environ[STARTS_ANEW]]
    return [sys.executable, *words]
