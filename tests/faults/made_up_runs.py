"""Faults done to a run of made-up ranks, with what is expected of its recording."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import zmq

from tests.collector.hostile import HOSTILE
from tests.faults.row import Result, Row
from tests.faults.trial import WORLD, Scale, Seen, Trial, trial


def whole(run: Trial, seen: Seen) -> bool:
    """Every step of every rank is there once, nothing is reported lost or stalled."""
    complete = seen.rows == dict.fromkeys(range(WORLD), run.scale.steps)
    return complete and seen.summary is not None and seen.summary.lost + seen.doubled + seen.stalls == 0


def counted(run: Trial, seen: Seen) -> bool:
    """What is not there is counted."""
    missing = WORLD * run.scale.steps - sum(seen.rows.values())
    return seen.summary is not None and seen.summary.lost == missing and seen.doubled == 0


def goes_on_and_counted(run: Trial, seen: Seen) -> bool:
    """What is not there is counted, and the last steps are there."""
    return counted(run, seen) and set(seen.last.values()) == {run.scale.steps - 1}


def death_reported(run: Trial, seen: Seen) -> bool:
    """Rank 1 is reported dead, what it kept is counted or said to be unknown, and rank 0 is whole."""
    told = {kind for kind, rank in seen.events if rank == 1}
    contiguous = seen.rows.get(1, 0) == seen.last.get(1, -1) + 1
    return seen.rows.get(0) == run.scale.steps and {"lost_rank", "unsent"} <= told and contiguous


def refused_and_whole(run: Trial, seen: Seen) -> bool:
    """The refused messages are counted, and nothing is missing."""
    return whole(run, seen) and "refused_messages" in {kind for kind, _ in seen.events}


def thinned(run: Trial, seen: Seen) -> bool:
    """The limit holds, the thinning is reported, nothing is called lost, and the end is there: every 64th."""
    kinds = {kind for kind, _ in seen.events}
    limit = run.recording.stat().st_size <= run.scale.record_limit
    last = len(seen.last) == WORLD and min(seen.last.values()) >= run.scale.steps - 64
    return limit and last and "thinned" in kinds and seen.summary is not None and seen.summary.lost == 0


Check = Callable[[Trial, Seen], bool]
EXPECTED: dict[Check, str] = {
    whole: "every step once, no stall",
    counted: "what is missing is counted",
    goes_on_and_counted: "goes on to the last step, missing steps are counted",
    death_reported: "death reported, no hole before it, other rank whole",
    refused_and_whole: "refused, counted, every step once",
    thinned: "limit holds, thinning reported, none lost",
}


def row(done: str, do: Callable[[Trial], object], check: Check, scale: Scale, *, short: bool = False) -> Row:
    """A row whose fault is done to a run of this scale."""

    def attempt(seed: int) -> Result:
        with trial(seed, scale) as run:
            do(run)
            seen = run.finish()
            return Result(str(seen), check(run, seen))

    return Row(done, EXPECTED[check], attempt, short)


def _collector(run: Trial, number: signal.Signals) -> None:
    if run.supervisor.pid:
        with suppress(ProcessLookupError):
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


def kill_the_stopped_collector(run: Trial) -> None:
    """With all that had been sent to it meanwhile."""
    run.some_time()
    _collector(run, signal.SIGSTOP)
    run.some_time()
    _collector(run, signal.SIGKILL)


def storm(run: Trial) -> None:
    """Collector, ranks and viewers are killed, stopped and continued in an order of chance."""
    kills = 0
    for _ in range(12):
        run.some_time()
        choice = run.chance.randrange(4)
        if choice == 0 and kills < 3:  # a fourth pause would outlast the ranks' last wait
            kills += 1
            _collector(run, signal.SIGKILL)
        elif choice == 1:
            _collector(run, signal.SIGSTOP)
            run.some_time()
            _collector(run, signal.SIGCONT)
        elif choice == 2:
            rank = run.chance.choice(run.ranks)
            rank.send_signal(signal.SIGSTOP)
            run.some_time()
            rank.send_signal(signal.SIGCONT)
        else:
            run.viewer("--watch").send_signal(run.chance.choice([signal.SIGKILL, signal.SIGSTOP]))


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


def kill_a_rank(run: Trial) -> None:
    """At a moment of chance; its launcher reports the exit."""
    run.some_time()
    rank = run.ranks[1]
    rank.kill()
    run.supervisor.report_exits([(rank.pid, rank.wait())])


def kill_and_stop_viewers(run: Trial) -> None:
    """Lines and screens: each is killed or stopped as soon as it shows something."""
    for words in (["--watch"], [], ["--watch"], []):
        viewer = run.viewer(*words)
        run.some_time()
        viewer.send_signal(run.chance.choice([signal.SIGKILL, signal.SIGSTOP]))


def fill_the_disk(run: Trial) -> None:
    """For two seconds; then there is room again."""
    run.some_time()
    filler = run.recording.parent / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            continue
    time.sleep(2)
    filler.unlink()


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


def send_false_hellos(run: Trial) -> None:
    """As rank 0 and in its name, with pids and worlds that cannot be."""
    words = [sys.executable, "-c", HOSTILE, str(run.directory), run.directory.name]
    client = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"RANK_PID": str(run.ranks[0].pid)},
    )
    run.others.append(client)
    assert client.stdout is not None
    client.stdout.readline()


def nothing(run: Trial) -> None:
    """A run to compare with."""


USUAL = Scale()
LONG = Scale(steps=1200)
MUCH = Scale(steps=16_000, rate=3000, buckets=30, record_limit=1 << 20)
SMALL_DISK = Scale(disk_bytes=128 << 10)

ROWS = (
    row("nothing", nothing, whole, USUAL),
    row("collector killed three times", kill_the_collector, whole, USUAL, short=True),
    row("collector stopped for 3 s, longer than a stall", stop_the_collector, whole, USUAL),
    row("collector stopped, then killed", kill_the_stopped_collector, whole, USUAL),
    row("viewers and screens killed and stopped", kill_and_stop_viewers, whole, USUAL),
    row("a rank stopped for a moment", stop_a_rank, whole, USUAL),
    row("a rank killed", kill_a_rank, death_reported, Scale(held=True)),
    row("12 kills and stops of all of them, by chance", storm, whole, LONG),
    row("run folder removed", remove_the_run_folder, whole, USUAL, short=True),
    row("recording and its folder removed", remove_the_recording, whole, USUAL, short=True),
    row("both removed, collector killed", remove_both_and_kill, counted, USUAL),
    row("disk of the recording full for 2 s", fill_the_disk, goes_on_and_counted, SMALL_DISK, short=True),
    row("recording limit of 1 MiB, 32,000 steps", nothing, thinned, MUCH),
    row("garbage sent to both sockets", send_garbage, whole, USUAL),
    row(
        "false HELLOs: rank 0, its pid, 2^31, 65,536", send_false_hellos, refused_and_whole, USUAL, short=True
    ),
)
