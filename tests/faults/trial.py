"""One short run of made-up ranks under the launcher's own supervisor, to which a fault is done."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

from ddptop.collector.supervisor import CollectorSupervisor, RunSummary
from ddptop.host.runs import create_run_directory
from ddptop.protocol.messages import Event, Received, Steps
from ddptop.recording.reader import Recording, RecordingError
from tests import warm
from tests.faults.row import CannotTryError
from tests.processes import DDPTOP

FAKE_RANK = Path(__file__).parents[1] / "collector" / "fake_rank.py"
DEADLINE_S = 120.0
WORLD = 2
USUAL_EVENTS = {"settings", "exit", "process"}
DRAIN_S = 40.0
"""How long a made-up rank waits at its end for the last acks: longer than a collector takes."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large a run is: steps of each rank, steps per second, buckets, sizes in bytes."""

    steps: int = 600
    rate: int = 200
    buckets: int = 3
    record_limit: int = 1 << 30
    disk_bytes: int | None = None
    """Size of a disk that holds the recording alone."""
    held: bool = False
    """The second half of the steps is taken once the fault is done: it meets a rank that runs."""


@dataclass(frozen=True)
class Seen:
    """What became of a run."""

    summary: RunSummary | None
    rows: dict[int, int]
    """Different steps of each rank in the recording."""
    last: dict[int, int]
    """The last step of each rank in the recording."""
    doubled: int
    stalls: int
    events: set[tuple[str, int]]
    """(kind, rank) of the recorded events."""
    told: list[str]
    """What the launcher would have said on stderr meanwhile."""

    def __str__(self) -> str:
        if self.summary is None:
            return "the collector did not answer"
        rows = "+".join(str(count) for count in self.rows.values())
        words = [f"{rows or 'no'} steps recorded", f"{self.summary.lost} lost"]
        words += [f"{self.doubled} doubled"] if self.doubled else []
        words += [f"{self.stalls} stalls"] if self.stalls else []
        kinds = {kind for kind, _ in self.events} - USUAL_EVENTS
        return ", ".join([*words, *sorted(kinds)])


class Trial:
    """The run under way, for a fault to be done to it."""

    def __init__(self, home: Path, chance: Random, scale: Scale) -> None:
        self.home, self.chance, self.scale = home, chance, scale
        self.directory = create_run_directory(f"run{chance.randrange(10**9)}")
        self.recording = home / "recordings" / "run.ddptop"
        self.recording.parent.mkdir(exist_ok=True)
        words = {
            "--run-dir": self.directory, "--run-id": self.directory.name, "--name": "faults",
            "--record": self.recording, "--record-limit": scale.record_limit, "--stall": 2,
            "--script": "train.py", "--most-ranks": WORLD,
        }  # fmt: skip
        self.told: list[str] = []
        arguments = [str(word) for pair in words.items() for word in pair]
        self.supervisor = CollectorSupervisor(arguments, self.directory / "collector.log", self.told.append)
        self.ranks: list[subprocess.Popen[str]] = []
        self.others: list[subprocess.Popen[bytes]] = []
        self.terminals: list[int] = []

    def start(self) -> None:
        """Start the collector and the ranks, and wait until steps are on the disk."""
        self.supervisor.start_process()
        for rank in range(WORLD):
            scale = self.scale
            numbers = (rank, WORLD, scale.steps, scale.rate, scale.buckets, 4 << 20, DRAIN_S)
            words = [sys.executable, FAKE_RANK, self.directory, self.directory.name, *numbers, "bye"]
            env = os.environ | ({"GATE": str(self.home / "go")} if scale.held else {})
            self.ranks.append(warm.WarmPopen([*map(str, words)], stdout=subprocess.DEVNULL, env=env))
        self.wait_for(lambda: len({rank for rank, _ in steps_of(self.records())}) == WORLD)

    def viewer(self, *words: str) -> subprocess.Popen[bytes]:
        """A `ddptop` of this run that has begun to show it, on a terminal of its own."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [*DDPTOP, self.directory.name, *words]
        env = os.environ | {"TERM": "xterm-256color"}
        viewer = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
        )
        os.close(theirs)
        self.others.append(viewer)
        self.terminals.append(ours)
        self.wait_for(lambda: select.select([ours], [], [], 0)[0])
        return viewer

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Try again until it holds."""
        end = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError("waited in vain")
            time.sleep(0.02)

    def some_time(self) -> None:
        """Up to half a second, at random: a fault shall meet every state of a run."""
        time.sleep(self.chance.random() / 2)

    def records(self) -> list[Received]:
        """What is in the recording, in order; nothing where it cannot be opened."""
        try:
            with Recording.open(self.recording) as recording:
                return list(recording.records())
        except (OSError, RecordingError):
            return []

    def finish(self) -> Seen:
        """Wait for the ranks, end the run, and read what was recorded."""
        (self.home / "go").touch()
        code = max(abs(rank.wait(DEADLINE_S)) for rank in self.ranks)
        summary = self.supervisor.finish_run(code)
        records = self.records()
        steps, different = steps_of(records), set(steps_of(records))
        rows = Counter(rank for rank, _ in sorted(different))
        events = {(r.message.kind, r.message.rank) for r in records if isinstance(r.message, Event)}
        last = {rank: max(step for of, step in different if of == rank) for rank in rows}
        doubled = len(steps) - len(different)
        return Seen(summary, dict(rows), last, doubled, self._stalls(), events, self.told)

    def _stalls(self) -> int:
        from ddptop.report.build import read_report

        try:
            with Recording.open(self.recording) as recording:
                return len(read_report(recording).stalls)
        except (OSError, RecordingError):
            return 0

    def close(self) -> None:
        """Leave nothing behind."""
        for process in (*self.ranks, *self.others):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        for terminal in self.terminals:
            os.close(terminal)
        if self.supervisor.pid:
            self.supervisor.finish_run(1)


def steps_of(records: Iterable[Received]) -> list[tuple[int, int]]:
    """(rank, step) of every row, in order."""
    return [
        (received.rank, received.message.first_step + number)
        for received in records
        if isinstance(received.message, Steps)
        for number in range(len(received.message.rows))
    ]


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """A disk of this size at `folder`. Raises CannotTryError where mounting is not allowed."""
    folder.mkdir(exist_ok=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "ddptop-faults", str(folder)]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise CannotTryError("a disk cannot be mounted here") from None
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def trial(seed: int, scale: Scale) -> Iterator[Trial]:
    """A run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ddptop-faults-") as folder, ExitStack() as stack:
        home = Path(folder)
        (home / "r").mkdir(mode=0o700)
        if scale.disk_bytes is not None:
            stack.enter_context(small_disk(home / "recordings", scale.disk_bytes))
        stack.enter_context(mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(home / "r")}))
        warm.begin()
        stack.enter_context(mock.patch("ddptop.collector.supervisor.subprocess.Popen", warm.WarmPopen))
        made = Trial(home, Random(seed), scale)
        stack.callback(made.close)
        made.start()
        yield made
