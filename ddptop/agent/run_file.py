"""Keeps the run file of this process's run up to date, for those who look for runs on this host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ddptop.host.folders import RunDirectoryError
from ddptop.host.processes import current_process
from ddptop.host.runs import RunFile, write_run_file
from ddptop.protocol.outlets import print_text

if TYPE_CHECKING:
    from ddptop.agent.launcher import Arguments


class KeptRunFile:
    """The run file of a collector, or of the agent of one host of a run."""

    def __init__(self, arguments: Arguments, started_at: float) -> None:
        """`started_at`: when the run began, in Unix seconds."""
        self._arguments = arguments
        self._started_at = started_at
        self._process = current_process()
        self._written: RunFile | None = None

    def forget_written(self) -> None:
        """Note that the file was removed: the next `write_if_changed` writes it again."""
        self._written = None

    def write_if_changed(
        self,
        *,
        world_size: int,
        recording: str | None,
        collector_host: str | None = None,
        collector_reached: bool = True,
    ) -> None:
        """Write the run file, where its content has changed. Without one the run is only not listed.

        `collector_host`: None: this process is the collector; empty: not known yet.
        """
        pid, start, boot, namespace = self._process
        arguments, directory = self._arguments, self._arguments.run_dir
        run = RunFile(
            name=arguments.name,
            run_id=arguments.run_id,
            pid=pid,
            process_start=start,
            boot_id=boot,
            pid_namespace=namespace,
            started_at=self._started_at,
            script=arguments.script,
            world_size=world_size,
            recording=recording,
            directory=directory,
            collector_host=collector_host,
            collector_reached=collector_reached,
        )
        if run == self._written:
            return
        self._written = run
        try:
            write_run_file(directory, run)
        except RunDirectoryError as error:
            if directory.exists():  # else it was removed, and is made again if that is possible
                print_text(f"ddptop: {error}", file=sys.stderr)
