"""Ranks of a script that was started without `ddptop-run`: the first one of the host starts the collector.

`ddptop.setup` calls `join_run`. Training does not notice: no output, no child process, a few milliseconds
once. Where no collector can be started the script is a plain DDP script.
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

RESTARTED_BY = "DDPTOP_AGENT"
"""Environment variable, set where the ranks themselves keep a collector running: pid and start of the process
that may restart the ranks (torchrun), or zeros."""

CHECK_S = 5.0
"""After this long without an ack, a rank checks whether the collector has exited; at most this often."""

MAX_STARTS = 20
"""A collector that exits more often than this would do so again."""


def join_run(number: str, listen_for_models: Callable[[], None]) -> None:
    """Have this process recorded: in the run of its launcher, or in one of the script's own.

    `number` is the same on all ranks of the group, and of no other group. `listen_for_models` makes
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
            collector_keeper.ensure_collector()
        elif os.environ.get(RESTARTED_BY):
            collector_keeper.ensure_collector()
        listen_for_models()
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def leave_run() -> None:
    """Remove the variables that `join_run` has set: commands that the script starts later are no ranks."""
    for name, value in _variables.items():
        if os.environ.get(name) == value:
            del os.environ[name]


_variables: dict[str, str] = {}
"""Environment of the run that this process has joined; also for the groups that it sets up later."""


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
        RESTARTED_BY: f"{parent}:{started}" if under_torchrun else "0:0",
    }


class CollectorKeeper:
    """Keeps a collector running, from a process that is a member of the run."""

    def __init__(self) -> None:
        self._member: int | None = None
        self._starts = 0
        self._due_s = 0.0
        self._watching_forks = False

    def ensure_collector(self) -> None:
        """Become a member, and start a collector unless there is one. Raises OSError, RunDirectoryError."""
        folder = Path(os.environ["DDPTOP_RUN_DIR"])
        ensure_run_directory(folder)
        self._end_membership()  # the folder may be another by now
        self._member = collector_start.join(folder)
        if not self._watching_forks:
            self._watching_forks = True
            os.register_at_fork(after_in_child=self._end_membership)
        if not read_command(folder):
            write_command(folder, sys.argv, arguments=os.environ.get("DDPTOP_ARGV") != "off")
        self._starts += collector_start.start(folder, _command(folder), processes.environment())

    def check(self, last_ack_s: float) -> None:
        """Start a collector again if it has exited; called by the publisher.

        `last_ack_s`: when the last ack was received, by `time.monotonic`.
        """
        now_s = time.monotonic()
        if now_s - last_ack_s < CHECK_S or now_s < self._due_s or self._starts >= MAX_STARTS:
            return
        self._due_s = now_s + CHECK_S
        if not os.environ.get(RESTARTED_BY):
            return
        try:
            self.ensure_collector()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _end_membership(self) -> None:
        """End the membership; also in a forked child, which must not keep its parent's membership."""
        member, self._member = self._member, None
        if member is not None:
            os.close(member)


collector_keeper = CollectorKeeper()
"""Of this process."""


def _command(folder: Path) -> Sequence[str]:
    arguments = ["-m", "ddptop.cli.agent", str(folder), os.environ["DDPTOP_RUN_ID"], os.environ[RESTARTED_BY]]
    return [sys.executable, *arguments]
