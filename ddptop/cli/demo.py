"""`ddptop demo`: two real DDP ranks on this machine, watched on the live screen.

The screen opens at once and says what the demo waits for, while the launcher and the ranks import torch.
The demo's processes end when their standard input does: a pipe that the command holds, and closes by any
kind of exit. So no process is left after SIGKILL or a closed terminal.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ddptop.cli import find, first_picture, show
from ddptop.cli.errors import CliError, note
from ddptop.cli.settings import Settings, load_settings
from ddptop.frames.numbers import counted, fixed
from ddptop.host.installation import own_command
from ddptop.host.kernel_view import children_of
from ddptop.host.processes import InputEnd
from ddptop.host.rank_starts import count_initializing_ranks

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.host.runs import RunFile

SAY_EVERY_S = 10.0
"""Time between two lines that say what the command waits for: with a cold disk, importing torch takes
minutes."""

GRACE_S = 7.0
"""For the ranks and the launcher to end by themselves; with what SIGTERM takes then, all are gone in 10 s."""

MAX_OUTPUT = 1 << 20
"""Bytes of what the demo's processes print that are looked at."""

STOP_S = 20.0
"""By then the launcher has sent itself SIGTERM, and its ranks and collector have had time to end."""

REFUSED = "ddptop: cannot record"
"""Beginning of the line of a launcher that trains without being recorded."""

SLOW_FROM, SLOW_UNTIL, EVERY = 80, 260, 360
"""In every 360 steps, the last rank is slow between these: on two idle cores for some 18 s of 27."""

LEAST_STEPS, MOST_STEPS = EVERY, 3 * EVERY
"""Steps without a screen: until the slow rank was flagged and is even again, on a noisy machine at most so
many. On an idle one about half a minute."""

SHOWN_S = 20.0
"""How long the screen says what is seen."""


def main(options: argparse.Namespace) -> int:
    """Start the training, show it until the user quits or the steps are done, and clean up. Needs torch."""
    settings = load_settings(vars(options)).settings
    mode = show.Mode.WATCH if options.headless else show.choose_mode(options, live=True)
    name = f"demo-{secrets.token_hex(2)}"
    if mode is not show.Mode.SCREEN:  # which says what it waits for
        note(f"starting {counted(options.ranks, 'rank')}: importing torch takes some seconds")
    with tempfile.TemporaryFile() as output:
        training = _start_training(name, options.ranks, options.steps or 0, output)
        start = Start(name, training, output, options.ranks)
        lesson = Lesson(options.ranks, start.describe_ranks)
        ends = mode is not show.Mode.SCREEN and not options.steps
        try:
            code = watch_run(start, mode, settings, lesson, ends=ends)
            # Without a screen the demo ends by itself, once it has shown what it is to show.
            if mode is show.Mode.WATCH:
                wait_for_end(training)  # the run has ended, and the launcher is about to
        finally:
            # Asked before the process is stopped: only what ended by itself can have failed.
            stopped = training.poll() is None or (ends and lesson.over)
            stop_process(training, at_once=start.run is None)
        if training.returncode and not stopped:
            raise CliError(f"the demo's training failed: {_last_line(output)}")
        if lesson.is_noisy:
            note(TOO_NOISY.format(rank=options.ranks - 1))
        elif options.ranks == 1:
            note(ALONE.format(option="--ranks"))
        print_replay_hint(start.run)
    return code


class Start:
    """A demo's processes until the run is there, and what they are doing meanwhile."""

    def __init__(
        self,
        name: str,
        process: subprocess.Popen[bytes],
        output: IO[bytes],
        ranks: int | None = None,
        seen: threading.Event | None = None,
    ) -> None:
        """`process`: the launcher, or the one that simulates all ranks; `ranks`: None where they are
        simulated. `seen` is set once a frame of the run is there."""
        self.name = name
        self.process = process
        self.output = output
        self.run: RunFile | None = None
        """Once its collector is there."""
        self.seen = seen or threading.Event()
        self._ranks = ranks
        self._began_s = time.monotonic()

    def wait_for_run(self, say: Callable[[str], None], stopped: threading.Event) -> RunFile | None:
        """Wait for the run, and say what is waited for whenever that changes; None once `stopped` is set.

        Raises CliError where the process ends before, or cannot be recorded.
        """
        while self.run is None and not stopped.is_set():
            say(self.describe_start())
            self.run = look_for_run(self.name, self.process, self.output)
            if self.run is None:
                stopped.wait(show.POLL_S)
        return self.run

    def describe_start(self) -> str:
        """What the start is waiting for, in one line."""
        waited_s = fixed(time.monotonic() - self._began_s, 0)
        if self._ranks is None:
            return f"starting the collector · {waited_s} s"
        # The launcher imports torch before it starts its first process, the collector.
        doing = "starting the collector" if children_of(self.process.pid) else "importing torch"
        return f"{doing} · {_share_of_ranks(0, self._ranks, 'reported')} · {waited_s} s"

    def describe_ranks(self, n_reported: int) -> str:
        """How far the ranks are, of which so many have reported."""
        n_met = 0 if self.run is None else count_initializing_ranks(self.run.directory)
        met = _share_of_ranks(n_met, self._ranks or 0, "reached init_process_group")
        return f"demo: {met} · {n_reported} of {self._ranks} reported"


def _share_of_ranks(number: int, ranks: int, done: str) -> str:
    return f"{number} of {ranks} {'rank has' if ranks == 1 else 'ranks have'} {done}"


TOO_NOISY = (
    "rank {rank} was slow on purpose but was not flagged: this machine is too noisy for the lesson, other "
    "programs delay the ranks as much"
)

ALONE = "one rank has no other to be compared with: {option} 2 shows a slow rank"


class Lesson:
    """What the demo is to show: the last rank is flagged while it is slow, and even again after that.

    A single rank is never slow on purpose.
    """

    def __init__(self, ranks: int, describe_ranks: Callable[[int], str]) -> None:
        """`describe_ranks`: what is waited for while only so many ranks have reported."""
        self._describe_ranks = describe_ranks
        self._alone = ranks == 1
        self._step = 0
        self._flagged = False
        self.over = False
        """It was shown, or MOST_STEPS were too few: training without a screen has been asked to end."""

    @property
    def is_noisy(self) -> bool:
        """Whether the slow rank has been slow, and was not flagged."""
        return self._step >= SLOW_UNTIL and not self._flagged and not self._alone

    def note_frame(self, frame: Frame) -> None:
        """Take in the newest frame."""
        self._step = frame.group.step or 0
        # The demo's script slows the last rank.
        last = frame.run.world_size - 1
        flags = (event.rank == last for event in frame.events if event.kind == "straggler")
        self._flagged = self._flagged or any(flags)
        shown = self._alone or (self._flagged and frame.straggler is None)
        self.over = self.over or self._step >= (LEAST_STEPS if shown else MOST_STEPS)

    def next_line(self, frame: Frame) -> str:
        """What is seen now, and which key shows more. Empty after some time, until something changes."""
        from ddptop.frames.phrases import blamed  # numpy, which the launcher does without
        from ddptop.frames.verdict import run_state

        states = frame.ranks.state
        if run_state(frame) == "waiting":
            return self._describe_ranks(len(states) - states.count("waiting"))
        if self._alone:
            return f"demo: {ALONE.format(option='--ranks')}"
        last = frame.run.world_size - 1
        if last in blamed(frame.straggler):
            since_s = min((alert.since_s for alert in frame.alerts if alert.kind == "straggler"), default=0.0)
            # Said for a while; who has read it needs the line no more.
            if frame.unix_s - since_s > SHOWN_S:
                return ""
            return f"demo: rank {last} sleeps while it loads data · w shows why it is slow, 2 one step"
        if self.is_noisy and self._step % EVERY >= SLOW_UNTIL:
            again = (self._step // EVERY + 1) * EVERY + SLOW_FROM
            return f"demo: {TOO_NOISY.format(rank=last)}; once more from step {again}"
        ended = [event.unix_s for event in frame.events if event.kind == "straggler_end"]
        if ended and frame.unix_s - ended[-1] <= SHOWN_S:
            return f"demo: rank {last} is even again · 5 lists what happened, q ends the demo"
        if self._step < SLOW_FROM:
            return f"demo: all ranks are even; from step {SLOW_FROM} on rank {last} is slow on purpose"
        return ""


def _start_training(name: str, ranks: int, steps: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    launcher = [sys.executable, "-m", "ddptop.cli.demo", "--ddptop-name", name]
    torchrun = ["--standalone", "--nproc-per-node", str(ranks), "-m", "ddptop.training.demo"]
    slow = map(str, (SLOW_FROM, SLOW_UNTIL, EVERY))
    # A process of its own: this one must not import torch, and ends at any moment.
    return subprocess.Popen(
        [*launcher, *torchrun, "--steps", str(steps), "--slow", *slow],
        stdin=subprocess.PIPE,  # the launcher's ranks inherit it
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C ends the screen, which then ends the training orderly
    )


def launch_training(words: Sequence[str]) -> int:
    """`ddptop-run WORDS` in this process; when its input ends, ranks end by themselves, or by SIGTERM."""
    from ddptop.cli import launch as ddptop_run

    # Until torchrun has handlers of its own: what has begun is undone, the run's folder and its collector.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    InputEnd(lambda: os.kill(os.getpid(), signal.SIGTERM), GRACE_S)
    return ddptop_run.main(words)


def look_for_run(name: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> RunFile | None:
    """The run file, once its collector is there.

    Raises CliError where the process has ended before, or cannot be recorded.
    """
    has_ended = process.poll() is not None  # asked first: the run is there before its last step
    for run in find.find_live():
        # Whatever its state: the name is random, and only this demo has it.
        if run.name == name:
            return run
    if has_ended:
        raise CliError(f"the demo did not start: {_last_line(output)}")
    refusal = next((line for line in _read_output(output) if line.startswith(REFUSED)), None)
    if refusal is not None:
        raise CliError(f"the demo cannot be watched: {refusal.removeprefix('ddptop: ')}")
    return None


def wait_with_notes(start: Start) -> None:
    """Wait for the run without a screen: now and then a line on stderr says what is waited for.

    Raises CliError as `look_for_run` does.
    """
    due_s = time.monotonic() + SAY_EVERY_S

    def say(line: str) -> None:
        nonlocal due_s
        if time.monotonic() > due_s:
            due_s += SAY_EVERY_S
            note(f"the demo is starting: {line}; Ctrl-C ends it")

    start.wait_for_run(say, threading.Event())


def watch_run(
    start: Start, mode: show.Mode, settings: Settings, lesson: Lesson | None = None, *, ends: bool = False
) -> int:
    """Show the run until it ends or the user quits; a screen ends with the demo's process as well.

    `ends`: training is asked to end once the lesson is over. Raises CliError where there will be no run.
    """
    from ddptop.cli.demo_source import DemoSource

    if mode is show.Mode.SCREEN:
        what_comes = "" if lesson is None else ": one of its ranks will be slow for a while"
        first_picture.show_first_page(f"the demo is starting{what_comes}")
    else:
        wait_with_notes(start)

    def see(frame: Frame) -> None:
        start.seen.set()
        if lesson is not None:
            lesson.note_frame(frame)
            # Its end is asked for by closing its input, as at any end of this command.
            if ends and lesson.over and start.process.stdin is not None:
                start.process.stdin.close()

    # The screen ends with the training: it would wait for a key after the last step.
    over = _event_of_end(start.process)
    source = DemoSource(start.name, start.wait_for_run, see, over.set)
    code = show.show_source(source, mode, settings, until=over, guide=lesson.next_line if lesson else None)
    if source.problem is not None:
        raise source.problem
    return code


def _event_of_end(training: subprocess.Popen[bytes]) -> threading.Event:
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


def stop_process(process: subprocess.Popen[bytes], *, at_once: bool = False) -> None:
    """End a process by closing its input, else by SIGTERM, and after STOP_S by SIGKILL.

    `at_once`: send SIGTERM right away, as the process has begun nothing that should end by itself.
    """
    # First by closing its input: it ends its ranks in good order.
    if process.stdin is not None:
        process.stdin.close()
    if process.stdin is None or at_once:
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_line(output: IO[bytes]) -> str:
    lines = _read_output(output)
    return lines[-1] if lines else "it printed nothing"


def _read_output(output: IO[bytes]) -> list[str]:
    """What it has printed so far, read without moving the file position."""
    data = os.pread(output.fileno(), MAX_OUTPUT, 0)
    return [line.strip() for line in data.decode(errors="replace").splitlines() if line.strip()]


def print_replay_hint(run: RunFile | None) -> None:
    """Say how to replay it, or that it was not recorded. None: it has not begun."""
    if run is None:
        return
    if run.recording is None:
        note("it was not recorded: there is nothing to replay")
    elif Path(run.recording).exists():
        note(f"replay it with: {own_command()} replay {shlex.quote(run.recording)}")


if __name__ == "__main__":
    sys.exit(launch_training(sys.argv[1:]))
