"""A run of several launchers, one per rank, as `srun ddptop-run --ddptop-exec python train.py` starts them.

The first of a host starts the collector, and says how to watch; the last to end has it end, and says what
there is. Nothing passes between them but locks (`transport.agents`).
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ddptop.cli.errors import note
from ddptop.cli.launch_options import LaunchOptions
from ddptop.cli.watched_run import in_words, prepare_ranks
from ddptop.collector.supervisor import FINISH_S, summary_in
from ddptop.transport import agents, beside
from ddptop.transport.discovery import read_run_file, write_command
from ddptop.transport.processes import process_start


def one_of_many(environment: Mapping[str, str] = os.environ) -> str | None:
    """The id of the run that this launcher shares with others of its host; None where it has one alone."""
    tasks = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or ""
    if "SLURM_PROCID" not in environment or not tasks.isdecimal() or int(tasks) < 2:
        return None
    job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
    if job and step:
        return agents.run_id_of("slurm", job, step, environment.get("SLURM_RESTART_COUNT", ""))
    parent = os.getppid()
    return agents.run_id_of("tasks", job, parent, process_start(parent))


class SharedRun:
    """This launcher's part in it."""

    def __init__(self, folder: Path, member: int | None, agent: int) -> None:
        self._folder = folder
        self._member = member
        self._agent = agent

    @classmethod
    def begin(cls, run_id: str, options: LaunchOptions, name: str, script: Sequence[str]) -> SharedRun:
        """Join the run, or begin it, and prepare this rank's environment. Leaves the run where it raises."""
        with contextlib.ExitStack() as undo:
            folder = agents.folder_of(run_id)
            member = agents.join(folder)
            if member is not None:
                undo.callback(os.close, member)
            agent = agents.watch_agent(folder)
            undo.callback(os.close, agent)
            write_command(folder, script, arguments=options.argv)
            command = [sys.executable, "-m", "ddptop.cli.agent", str(folder), run_id, "0:0"]
            begun = agents.start(folder, command, beside.environment() | options.as_environment(name))
            prepare_ranks(options, folder, run_id)
            os.environ["DDPTOP_AGENT"] = "0:0"  # the ranks see to it that the collector is there
            undo.pop_all()
        if begun:
            note(f"run {name}: watch it with `ddptop {name}`")
        return cls(folder, member, agent)

    def end(self, exit_code: int) -> None:
        """Leave the run; as the last, wait a moment for its recording and say what there is."""
        if self._member is None:
            return
        last = agents.is_last(self._member)
        run = read_run_file(self._folder) if last else None
        if last:
            agents.have_it_end(self._member)
        os.close(self._member)
        if run is not None:
            said = agents.said_by(self._agent, FINISH_S)
            summary = None if said is None else summary_in(said.decode())
            if summary is not None:
                note(f"run {run.name}: {in_words(summary, exit_code)}")
        with contextlib.suppress(OSError):
            os.close(self._agent)
