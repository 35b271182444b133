"""One short run of made-up ranks under the launcher's own supervisor, to which a fault is done."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from unittest import mock

from ddptop.collector.supervisor import CollectorSupervisor, Summary
from ddptop.protocol.messages import Steps
from ddptop.recording.reader import Recording, RecordingError
from ddptop.transport.rundir import create_run_directory

FAKE_RANK = Path(__file__).parents[1] / "collector" / "fake_rank.py"
DEADLINE_S = 60.0
WORLD, STEPS, RATE = 2, 600, 200
DRAIN_S = 10.0
"""How long a made-up rank waits at its end for the last acks: longer than a restarted collector takes."""


@dataclass(frozen=True)
class Seen:
    """What became of a run."""

    summary: Summary | None
    rows: dict[int, int]
    """Different steps of each rank in the recording."""
    doubled: int
    stalls: int
    told: list[str]
    """What the launcher would have said on stderr meanwhile."""

    def __str__(self) -> str:
        if self.summary is None:
            return "the collector did not answer"
        rows = "+".join(str(count) for count in self.rows.values())
        words = [f"{rows or 'no'} steps recorded", f"{self.summary.lost} lost"]
        words += [f"{self.doubled} doubled"] if self.doubled else []
        words += [f"{self.stalls} stalls"] if self.stalls else []
        return ", ".join(words)

    @property
    def whole(self) -> bool:
        """Every step of every rank is there once, and nothing is said to be wrong with the ranks."""
        complete = self.rows == dict.fromkeys(range(WORLD), STEPS)
        return complete and self.summary is not None and self.summary.lost + self.doubled + self.stalls == 0

    @property
    def accounted(self) -> bool:
        """What is not there is counted."""
        missing = WORLD * STEPS - sum(self.rows.values())
        return self.summary is not None and self.summary.lost == missing and self.doubled == 0


class Trial:
    """The run under way, for a fault to be done to it."""

    def __init__(self, home: Path, chance: Random, record_limit: int) -> None:
        self.home, self.chance = home, chance
        self.directory = create_run_directory(f"run{chance.randrange(10**9)}")
        self.recording = home / "recordings" / "run.ddptop"
        self.recording.parent.mkdir(exist_ok=True)
        words = {
            "--run-dir": self.directory, "--run-id": self.directory.name, "--name": "faults",
            "--record": self.recording, "--record-limit": record_limit, "--stall": 2, "--script": "train.py",
        }  # fmt: skip
        self.told: list[str] = []
        arguments = [str(word) for pair in words.items() for word in pair]
        self.supervisor = CollectorSupervisor(arguments, self.directory / "collector.log", self.told.append)
        self.ranks: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start the collector and the ranks, and wait until steps are on the disk."""
        self.supervisor.start()
        for rank in range(WORLD):
            numbers = (rank, WORLD, STEPS, RATE, 3, 1 << 20, DRAIN_S)
            words = [sys.executable, FAKE_RANK, self.directory, self.directory.name, *numbers, "bye"]
            self.ranks.append(subprocess.Popen([*map(str, words)], stdout=subprocess.DEVNULL))
        self.wait_for(lambda: len(self.rows()) == WORLD)

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

    def steps(self) -> list[tuple[int, int]]:
        """(rank, step) of every row in the recording, in order."""
        try:
            with Recording.open(self.recording) as recording:
                return [
                    (received.rank, received.message.first_step + number)
                    for received in recording.records()
                    if isinstance(received.message, Steps)
                    for number in range(len(received.message.rows))
                ]
        except (OSError, RecordingError):
            return []

    def rows(self) -> dict[int, int]:
        """How many different steps of each rank are in the recording."""
        rows: dict[int, int] = {}
        for rank, _ in set(self.steps()):
            rows[rank] = rows.get(rank, 0) + 1
        return dict(sorted(rows.items()))

    def finish(self) -> Seen:
        """Wait for the ranks, end the run, and look what there is."""
        code = max(abs(rank.wait(DEADLINE_S)) for rank in self.ranks)
        summary = self.supervisor.finish(code)
        steps = self.steps()
        return Seen(summary, self.rows(), len(steps) - len(set(steps)), self._stalls(), self.told)

    def _stalls(self) -> int:
        from ddptop.cli.report_reading import read

        try:
            with Recording.open(self.recording) as recording:
                return len(read(recording).stalls)
        except (OSError, RecordingError):
            return 0

    def close(self) -> None:
        """Leave nothing behind."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        if self.supervisor.pid:
            self.supervisor.finish(1)


@contextmanager
def trial(seed: int, record_limit: int = 1 << 30) -> Iterator[Trial]:
    """A run in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ddptop-faults-") as folder:
        home = Path(folder)
        (home / "r").mkdir(mode=0o700)
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": str(home / "r")}):
            made = Trial(home, Random(seed), record_limit)
            try:
                made.start()
                yield made
            finally:
                made.close()
