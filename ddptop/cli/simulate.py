"""`ddptop demo --simulate RANKS`: simulated ranks, the real collector, the real screen."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from ddptop.cli import demo, show
from ddptop.cli.errors import CliError, note
from ddptop.cli.settings import load_settings
from ddptop.collector.supervisor import CollectorSupervisor
from ddptop.host.folders import RunDirectoryError, state_directory
from ddptop.host.runs import create_run_directory, remove_run_directory

RECORD_LIMIT = 256 << 20
"""Bytes after which the recording is thinned: a simulated run is not worth more."""


class Simulated:
    """The processes of a simulated run: its collector, and one that simulates all of its ranks."""

    def __init__(self, name: str, ranks: int, steps: int) -> None:
        """Raises CliError where they cannot be started."""
        self._run_id = secrets.token_hex(6)
        self._lock = threading.Lock()
        self._over = False
        self._stopped = False
        """The ranks were ended by the user, which is no failure."""
        self.seen = threading.Event()
        """Somebody has a frame of the run: until then it does not end, however few steps it has."""
        self.output = tempfile.TemporaryFile()  # noqa: SIM115  # closed in stop
        try:
            recording = state_directory() / f"{name}.ddptop"
            self._directory = create_run_directory(self._run_id)
            arguments = self._collector_arguments(name, recording)
            self._supervisor = CollectorSupervisor(arguments, self._directory / "collector.log")
            self._supervisor.start_process()
            self.process = self._start_ranks(ranks, steps)
        except (RunDirectoryError, OSError) as error:
            raise CliError(f"cannot simulate: {error}") from error
        threading.Thread(target=self._end_with_ranks, name="ddptop-simulate", daemon=True).start()

    def _collector_arguments(self, name: str, recording: Path) -> list[str]:
        named = {
            "--run-dir": str(self._directory),
            "--run-id": self._run_id,
            "--name": name,
            "--record": str(recording),
            "--record-limit": str(RECORD_LIMIT),
            "--script": "simulated",
        }
        return [*(word for pair in named.items() for word in pair), "--simulated"]

    def _start_ranks(self, ranks: int, steps: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ddptop.sources.simulation", "--directory", str(self._directory)]
        command += ["--run-id", self._run_id, "--ranks", str(ranks), "--steps", str(steps)]
        command += ["--parent", str(os.getpid())]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends the screen, which then ends the rest orderly
        )

    def _end_with_ranks(self) -> None:
        code = self.process.wait()
        if code == 0:
            self.seen.wait()
        self.finish_run(0 if self._stopped else code)

    def finish_run(self, exit_code: int) -> None:
        """Finish the run; does nothing the second time."""
        with self._lock:
            over, self._over = self._over, True
            if not over and self._supervisor.finish_run(exit_code) is None:
                remove_run_directory(self._directory)

    def stop_ranks(self) -> None:
        """End the ranks if they still run, then the run."""
        self._stopped = self.process.poll() is None
        demo.stop_process(self.process)
        self.seen.set()
        self.finish_run(0 if self._stopped else self.process.returncode)
        self.output.close()


def steps_of_lesson(ranks: int) -> int:
    """Steps without a screen: one rank has been slow, was flagged and is even again, as in the real demo."""
    from ddptop.sources.simulation.story import Story, usual_rate

    return Story(ranks, usual_rate(ranks)).steps_of_lesson


def main(options: argparse.Namespace) -> int:
    """Start the run, show it until the user quits or the steps are done, and clean up."""
    settings = load_settings(vars(options)).settings
    mode = show.Mode.WATCH if options.headless else show.choose_mode(options, live=True)
    # A screen goes on until the user leaves.
    steps = options.steps or (0 if mode is show.Mode.SCREEN else steps_of_lesson(options.simulate))
    name = f"simulated-{secrets.token_hex(2)}"
    if mode is not show.Mode.SCREEN:
        # Before the ranks begin: on a busy machine these imports take as long as some of their steps.
        import ddptop.cli.demo_source
        import ddptop.render.plain  # noqa: F401
    simulated = Simulated(name, options.simulate, steps)
    try:
        start = demo.Start(name, simulated.process, simulated.output, seen=simulated.seen)
        code = demo.watch_run(start, mode, settings)
    finally:
        simulated.stop_ranks()
    if options.simulate == 1:
        note(demo.ALONE.format(option="--simulate"))
    demo.print_replay_hint(start.run)
    return code
