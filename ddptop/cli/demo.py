"""`ddptop demo`: two real DDP ranks on this machine, watched on the live screen."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ddptop.cli import find, show
from ddptop.cli.errors import CliError
from ddptop.cli.settings import Settings, load

if TYPE_CHECKING:
    from ddptop.transport.rundir import RunFile

START_S = 60.0
"""Importing torch for several ranks on a cold disk takes its time."""

GRACE_S = 5.0
"""A step and the ends of the ranks, the launcher and the collector take a second or two. It is a run that has
been left, not one that has failed."""

STOP_S = 20.0
"""After SIGTERM the launcher gives its ranks a moment, and then the collector."""

HEADLESS_STEPS = 600
"""Without a screen somebody has to end it: about half a minute, with one slow spell of the slow rank."""


def main(options: argparse.Namespace) -> int:
    """Start the training, show it until the person or the steps end it, and clean up."""
    settings = load(vars(options)).settings
    mode = show.Mode.WATCH if options.headless else show.choose_mode(options, live=True)
    steps = options.steps or (0 if mode is show.Mode.SCREEN else HEADLESS_STEPS)
    name = f"demo-{secrets.token_hex(2)}"
    with tempfile.TemporaryFile() as output, tempfile.TemporaryDirectory(prefix="ddptop-demo-") as folder:
        enough = Path(folder, "enough")
        training = _start(name, options.ranks, steps, enough, output)
        try:
            code = watch(wait_for_run(name, training, output), training, mode, settings)
            if training.poll() is None and steps and mode is show.Mode.WATCH:
                training.wait(STOP_S)
        finally:
            stopped = training.poll() is None
            enough.touch()
            stop(training, GRACE_S)
        if training.returncode and not stopped:
            raise CliError(f"the demo's training failed: {_last_line(output)}")
        say_farewell(name)
    return code


def _start(name: str, ranks: int, steps: int, enough: Path, output: IO[bytes]) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "ddptop.cli.launch", "--ddptop-name", name]
    torchrun = ["--standalone", "--nproc-per-node", str(ranks), "-m", "ddptop.runtime.demo"]
    return subprocess.Popen(
        [*launcher, *torchrun, "--steps", str(steps), "--until", str(enough)],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C ends the watching, and that ends the training in good order
    )


def wait_for_run(name: str, training: subprocess.Popen[bytes], output: IO[bytes]) -> RunFile:
    """The run file, once its collector is there. Raises CliError where it does not come."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for run in find.live():
            if run.name == name:
                return run
        if training.poll() is not None:
            raise CliError(f"the demo's training did not start: {_last_line(output)}")
        time.sleep(show.POLL_S)
    raise CliError(f"the demo's training did not start in {START_S:g} s: {_last_line(output)}")


def watch(run: RunFile, training: subprocess.Popen[bytes], mode: show.Mode, settings: Settings) -> int:
    """Show the run until it or the person ends; a screen ends with the process `training` as well."""
    from ddptop.sources.live import LiveSource

    source = LiveSource(run)
    if mode is not show.Mode.SCREEN:
        return show.show(source, mode, settings)
    # The screen ends with the training: nobody is there to press q when the steps are done.
    return show.show(source, mode, settings, until=_ended(training))


def _ended(training: subprocess.Popen[bytes]) -> threading.Event:
    over = threading.Event()

    def wait() -> None:
        training.wait()
        over.set()

    threading.Thread(target=wait, name="ddptop-demo", daemon=True).start()
    return over


def stop(training: subprocess.Popen[bytes], grace_s: float = 0.0) -> None:
    """Have it ended: by itself within `grace_s`, in which it has been asked to, or else by SIGTERM."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        training.wait(grace_s)
    if training.poll() is None:
        training.terminate()
        try:
            training.wait(STOP_S)
        except subprocess.TimeoutExpired:
            training.kill()
            training.wait()


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    lines = [line for line in output.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def say_farewell(name: str) -> None:
    """Tell how to see it again."""
    for recording in find.recorded(find.live()):
        if recording.name == name:
            print(f"replay it with: ddptop replay {recording.path}", file=sys.stderr)
