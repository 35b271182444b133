"""The faults, each with what is expected of the run to which it is done."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import zmq

from tests.faults.trial import Seen, Trial, trial

Expected = Literal["whole", "accounted"]


@dataclass(frozen=True)
class Fault:
    """One row of the table."""

    name: str
    do: Callable[[Trial], object]
    expected: Expected
    """`whole`: every step of every rank, none twice, no stall. `accounted`: what is missing is counted."""
    short: bool = False
    """Part of the short form."""
    record_limit: int = 1 << 30

    def seen(self, seed: int) -> tuple[Seen, bool]:
        """Do it to a run; what became of that, and whether it is as expected."""
        with trial(seed, self.record_limit) as run:
            self.do(run)
            seen = run.finish()
            as_expected = seen.whole if self.expected == "whole" else seen.accounted
            return seen, as_expected and _within(run, self.record_limit)


def _within(run: Trial, limit: int) -> bool:
    return not run.recording.exists() or run.recording.stat().st_size <= limit


def _collector(run: Trial, number: signal.Signals) -> None:
    if run.supervisor.pid:
        os.kill(run.supervisor.pid, number)


def kill_the_collector(run: Trial) -> None:
    """Three times."""
    for _ in range(3):
        run.some_time()
        before = run.supervisor.pid
        _collector(run, signal.SIGKILL)
        run.wait_for(lambda before=before: run.supervisor.pid not in (0, before))  # type: ignore[misc]


def stop_the_collector(run: Trial) -> None:
    """Longer than a stall."""
    run.some_time()
    _collector(run, signal.SIGSTOP)
    time.sleep(3)
    _collector(run, signal.SIGCONT)


def remove_the_run_folder(run: Trial) -> None:
    """With its sockets, its lock and its log."""
    run.some_time()
    shutil.rmtree(run.directory, ignore_errors=True)


def remove_the_recording(run: Trial) -> None:
    """And the folder that it was in."""
    run.some_time()
    shutil.rmtree(run.recording.parent)


def remove_both_and_kill(run: Trial) -> None:
    """Nothing is left but the ranks and the launcher: what had been recorded is lost, and counted."""
    run.some_time()
    _collector(run, signal.SIGKILL)
    shutil.rmtree(run.recording.parent)
    run.recording.parent.mkdir()
    shutil.rmtree(run.directory, ignore_errors=True)


def stop_a_rank(run: Trial) -> None:
    """For a moment, shorter than a stall."""
    run.some_time()
    os.kill(run.ranks[0].pid, signal.SIGSTOP)
    run.some_time()
    os.kill(run.ranks[0].pid, signal.SIGCONT)


def send_garbage(run: Trial) -> None:
    """From a client that may connect: to both sockets, frames of every shape."""
    with zmq.Context() as context:
        for name in ("ingest", "view"):
            with context.socket(zmq.DEALER) as socket:
                socket.linger = 0
                socket.connect(f"ipc://{run.directory}/{name}")
                for _ in range(200):
                    parts = [run.chance.randbytes(run.chance.randrange(60)) for _ in range(3)]
                    socket.send_multipart(parts[: run.chance.randrange(1, 4)])
                run.some_time()


def nothing(run: Trial) -> None:
    """A run to compare with."""


FAULTS = (
    Fault("nothing", nothing, "whole"),
    Fault("collector killed three times", kill_the_collector, "whole", short=True),
    Fault("collector stopped for 3 s", stop_the_collector, "whole"),
    Fault("run folder removed", remove_the_run_folder, "whole", short=True),
    Fault("recording and its folder removed", remove_the_recording, "whole", short=True),
    Fault("both removed, collector killed", remove_both_and_kill, "accounted"),
    Fault("a rank stopped for a moment", stop_a_rank, "whole"),
    Fault("garbage sent to both sockets", send_garbage, "whole"),
)
