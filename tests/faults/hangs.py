"""Ranks that hang, leave or wait for each other in real training, and what is said of it while it lasts."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from tempfile import TemporaryDirectory

from ddptop.frames.snapshot import snapshot
from tests.faults.real_runs import ended, home_of
from tests.faults.row import Result, Row
from tests.processes import DDPTOP, DDPTOP_RUN, collector_below, run, started, until
from tests.recording.replays import frame_at

TROUBLED = Path(__file__).parents[1] / "scripts" / "troubled.py"
STEPS = 400


def command(home: Path, trouble: str, world: int, stall_s: int = 5) -> list[str]:
    """`ddptop-run` of the script that gets into trouble at step 40."""
    options = [
        "--ddptop-name",
        "troubled",
        "--ddptop-record",
        str(home / "run.ddptop"),
        "--ddptop-stall",
        str(stall_s),
    ]
    words = ["--standalone", "--nproc-per-node", str(world), str(TROUBLED), trouble, str(STEPS), str(home)]
    return [*DDPTOP_RUN, *options, *words]


def lines_of(shown: dict[str, object]) -> list[str]:
    """What a snapshot says of a stall, of exits and of conditions."""
    stall, alerts = shown["stall"], shown["alerts"]
    assert isinstance(alerts, list)
    lines = [stall["sentence"], *stall["detail"], stall["followed"]] if isinstance(stall, dict) else []
    return [*lines, *(alert["message"] for alert in alerts)]


def row(done: str, trouble: str, *expected: str, world: int = 3, stall_s: int = 5) -> Row:
    """A row whose trouble is to be described in lines that match all of these patterns."""

    def attempt(_: int) -> Result:
        with home_of("") as (home, env):
            said: list[str] = []

            def is_told() -> bool:
                done = run([*DDPTOP, "troubled", "--json"], env, home)
                if done.returncode == 0:
                    said[:] = lines_of(json.loads(done.stdout))
                elif ended(home / "run.ddptop"):
                    said[:] = lines_of(snapshot(frame_at(home / "run.ddptop", None)))
                return all(any(re.search(words, line) for line in said) for words in expected)

            with started(command(home, trouble, world, stall_s), env, home):
                try:
                    until(is_told, "told")
                except AssertionError:
                    return Result("; ".join(said) or "nothing", False)
            return Result("; ".join(said), True)

    return Row(done, " / ".join(expected), attempt)


def healthy(_: int) -> Result:
    """Nothing is said of a run that trains to its end."""
    with home_of("") as (home, env):
        done = run(command(home, "none", 3), env, home)
        frame = frame_at(home / "run.ddptop", None)
        said = [
            *lines_of(snapshot(frame)),
            *(event.message for event in frame.events if event.kind == "stall"),
        ]
        return Result("; ".join(said) or "nothing", done.returncode == 0 and not said)


def killed_before_its_hello(_: int) -> Result:
    """The collector is stopped when the ranks begin; rank 1 is killed after 40 steps, the others end for it.

    In a folder in memory, where the counts are exact.
    """
    memory = Path("/dev/shm") if Path("/dev/shm").is_dir() else None
    with home_of("") as (home, env), TemporaryDirectory(dir=memory) as runtime:
        env |= {"XDG_RUNTIME_DIR": runtime}
        with started(command(home, "kill", 2), env, home) as process:
            os.kill(collector_below(process.pid), signal.SIGSTOP)
            _, err = process.communicate(timeout=100)
        frame = frame_at(home / "run.ddptop", None)
        exact = memory is not None
        lost = sorted(int(count) for count in frame.ranks.lost_records)
        seen = f"{lost} lost; " + "; ".join(lines_of(snapshot(frame)))
        counted = lost[0] >= 38 and f"{sum(lost)} records missing" in err
        right = "rank 1 was killed by SIGKILL at step" in seen and (counted or not exact)
        return Result(seen if right else f"{seen}: {err}", right)


ROWS = (
    Row("nothing, three ranks that train", "nothing is said", healthy),
    row("a rank leaves with exit code 0 in a step", "leave", "rank 1 exited with code 0 before the end"),
    row("a rank leaves by os._exit(0) in a step", "vanish", "rank 1 exited with code 0 before the end"),
    *(
        row(
            f"collectives time out after 8 s, a run counts as stalled after {stall_s} s", "timeout",
            "^rank 1 is missing: it has not entered all_reduce .*of step 40",
            r"rank 1, .* was in troubled.py:\d+ tokenize",
            "ranks 0 and 2 gave up waiting after 8 s",
            "rank 1 was ended by SIGTERM",  # so that it is of the end
            stall_s=stall_s,
        )
        for stall_s in (5, 60)
    ),
    row(
        "a rank calls one barrier more than the others at the end", "barriers",
        r"rank 1 failed in barrier \(troubled.py:\d+ main\): the others had ended in good order, one barrier"
        " behind",
    ),
    row(
        "two process groups in opposite order", "order",
        "deadlock: rank 0 waits in all_reduce of group .* where rank 1 waits in all_reduce of group",
        world=2,
    ),
    row(
        "a rank sleeps before init_process_group", "late",
        r"rank 1 is in troubled.py:\d+ \w+; ranks 0 and 2 wait for it in init_process_group",
        "ranks 0 and 2 wait there since",
    ),
    row(
        "rank 0 is in save_checkpoint, the others in a barrier", "checkpoint",
        "rank 0 is in save_checkpoint, 2 ranks wait in barrier",
    ),
    row(
        "a C call of a rank holds the interpreter lock", "lock",
        r"rank 1 does not answer: a C call holds the interpreter lock \(it sleeps in .*nanosleep, 0% CPU\)",
    ),
    row(
        "a DataLoader worker sleeps", "worker",
        r"rank 1, .* is in troubled.py:\d+ next_batch",
        r"it waits for DataLoader workers? pid \d+( \d+)?( in .*)?, which sleeps? in .*nanosleep",
        world=2,
    ),
    Row("a rank killed before a collector met it", "rank 1 was killed, its steps are counted",
        killed_before_its_hello),
)  # fmt: skip
