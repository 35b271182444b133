"""`ddptop demo`: two real DDP ranks on this machine, watched on the live screen.

The demo's processes end when their standard input does: a pipe that the command holds, and closes by any
kind of exit. So no process is left after SIGKILL or a closed terminal.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from ddptop.cli import find, show
from ddptop.cli.errors import CliError, note
from ddptop.cli.settings import Settings, load
from ddptop.host.processes import InputEnd
from ddptop.training.torch_compat import installed_version, why_unusable

if TYPE_CHECKING:
    from ddptop.host.runs import RunFile

SAY_EVERY_S = 10.0
"""Between two lines that say what the command waits for: with a cold disk, importing torch takes minutes."""

GRACE_S = 7.0
"""For the ranks and the launcher to end by themselves; with what SIGTERM takes then, all are gone in 10 s."""

MAX_OUTPUT = 1 << 20
"""Bytes of what the demo's processes print that are looked at."""

STOP_S = 20.0
"""By then the launcher has sent itself SIGTERM, and its ranks and collector have had time to end."""

REFUSED = "ddptop: cannot record"
"""Beginning of the line of a launcher that trains without being recorded."""

HEADLESS_STEPS = 600
"""End without a screen: about half a minute, with one slow period of the slow rank."""


def main(options: argparse.Namespace) -> int:
    """Start the training, show it until the user quits or the steps are done, and clean up."""
    problem = why_unusable("ddptop demo", installed_version())
    if problem is not None:
        raise CliError(problem)
    settings = load(vars(options)).settings
    mode = show.Mode.WATCH if options.headless else show.choose_mode(options, live=True)
    steps = options.steps or (0 if mode is show.Mode.SCREEN else HEADLESS_STEPS)
    name = f"demo-{secrets.token_hex(2)}"
    with tempfile.TemporaryFile() as output:
        training = _start(name, options.ranks, steps, output)
        try:
            code = watch(wait_for_run(name, training, output), training, mode, settings)
            if mode is show.Mode.WATCH:
                wait_for_end(training)  # the run has ended, and the launcher is about to
        finally:
            stopped = training.poll() is None
            stop(training)
        if training.returncode and not stopped:
            raise CliError(f"the demo's training failed: {_last_line(output)}")
        print_replay_hint(name)
    return code


def _start(name: str, ranks: int, steps: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "ddptop.cli.demo", "--ddptop-name", name]
    torchrun = ["--standalone", "--nproc-per-node", str(ranks), "-m", "ddptop.training.demo"]
    return subprocess.Popen(
        [*launcher, *torchrun, "--steps", str(steps)],
        stdin=subprocess.PIPE,  # the launcher's ranks inherit it
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C ends the screen, which then ends the training orderly
    )


def launch(words: Sequence[str]) -> int:
    """`ddptop-run WORDS` in this process; when its input ends, ranks end by themselves, or by SIGTERM."""
    from ddptop.cli import launch as ddptop_run

    InputEnd(lambda: os.kill(os.getpid(), signal.SIGTERM), GRACE_S)
    return ddptop_run.main(words)


def wait_for_run(name: str, training: subprocess.Popen[bytes], output: IO[bytes]) -> RunFile:
    """The run file, once its collector is there; waits as long as `training` lives.

    Raises CliError where that one ended before, or cannot be recorded.
    """
    began_s = time.monotonic()
    due_s = began_s + SAY_EVERY_S
    while True:
        for run in find.live():
            if run.name == name:
                return run
        if training.poll() is not None:
            raise CliError(f"the demo did not start: {_last_line(output)}")
        refusal = next((line for line in _lines(output) if line.startswith(REFUSED)), None)
        if refusal is not None:
            raise CliError(f"the demo cannot be watched: {refusal.removeprefix('ddptop: ')}")
        if time.monotonic() > due_s:
            due_s += SAY_EVERY_S
            note(f"the demo is starting, for {time.monotonic() - began_s:.0f} s now; Ctrl-C ends it")
        time.sleep(show.POLL_S)


def watch(run: RunFile, training: subprocess.Popen[bytes], mode: show.Mode, settings: Settings) -> int:
    """Show the run until it ends or the user quits; a screen ends with the process `training` as well."""
    from ddptop.sources.live import LiveSource

    # The screen ends with the training: it would wait for a key after the last step.
    return show.show(LiveSource(run), mode, settings, until=_ended(training))


def _ended(training: subprocess.Popen[bytes]) -> threading.Event:
    over = threading.Event()

    def wait() -> None:
        training.wait()
        over.set()

    threading.Thread(target=wait, name="ddptop-demo", daemon=True).start()
    return over


def wait_for_end(training: subprocess.Popen[bytes]) -> None:
    """Wait as long as `training` lives, and say so."""
    while training.poll() is None:
        try:
            training.wait(SAY_EVERY_S)
        except subprocess.TimeoutExpired:
            note("the run has ended; waiting for its last process")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that ends with its input, or else by SIGTERM; after STOP_S by SIGKILL."""
    if process.stdin is not None:
        process.stdin.close()
    else:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(output: IO[bytes]) -> str:
    lines = _lines(output)
    return lines[-1] if lines else "it printed nothing"


def _lines(output: IO[bytes]) -> list[str]:
    """What it has printed so far, read without moving the file position."""
    data = os.pread(output.fileno(), MAX_OUTPUT, 0)
    return [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]


def print_replay_hint(name: str) -> None:
    """Say how to replay it."""
    for recording in find.recorded(find.live()):
        if recording.name == name:
            note(f"replay it with: ddptop replay {recording.path}")


if __name__ == "__main__":
    sys.exit(launch(sys.argv[1:]))
