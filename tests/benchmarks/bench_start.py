"""Hangs before the first step, each started in several ways: how often the rank, its line and where the
others wait are said, and when.

`python -m tests.benchmarks.bench_start [--times N] [--stall S] [--starts NAMES] [--troubles NAMES]`; two
hosts need root, as they are namespaces of this machine (`hosts` by torchrun, `hosts_srun`, and `hosts_spawn`:
a task of Slurm on each host spawns two ranks).

"said after" counts from the moment when the last of the two ranks had come to its trouble, so it contains
the stall time, and a look of ddptop (`--json`, about once a second).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.hosts.jobs import in_repository, launch, tasks
from tests.hosts.namespaces import hosts
from tests.processes import DDPTOP, DDPTOP_RUN, environment, free_port, run, started
from tests.test_start import PLACES, SCRIPT, SLOW_MODULE, kill_below

NAME, WORDS = "start", ("--ddptop-name", "start")
LIMIT_S = 20.0
"""After the stall time: what has not been said by then is not counted."""

SENTENCES = {
    "wrong_port": "the ranks look for one another at different addresses: ",
    "world_size_too_large": "init_process_group waits for 3 ranks, and the launcher has started 2",
}
"""How they begin where the ranks have a launcher that knows their number."""

Look = Callable[[], dict[str, Any] | None]


def is_right(trouble: str, stall: dict[str, Any]) -> bool:
    """Whether a stall of the snapshot names the rank, the place with its line, and where the others wait."""
    sentence = stall["sentence"]
    if trouble in SENTENCES:
        missing = "rank 2 has not reported (not started, or torch not imported); ranks 0 and 1 wait for it in"
        return sentence.startswith((SENTENCES[trouble], missing))
    ranks, place, where = PLACES[trouble]
    named = (
        f"rank {ranks[0]} is in " in sentence or f"rank {ranks[0]} waits for the first batch in" in sentence
    )
    waits = re.search(f" waits? for it in {re.escape(where)}", sentence) is not None
    return stall["ranks"] == ranks and named and place in sentence and waits


def time_until_said(
    folders: list[Path], trouble: str, look: Look, limit_s: float
) -> tuple[float | None, str]:
    """Seconds from the trouble until it is said right; None: not within the limit. And what was said last."""
    said, sentence, end = None, "no run", time.monotonic() + 120
    while time.monotonic() < end:
        begun = [
            path.stat().st_mtime
            for path in (folder / f"at-{r}" for folder in folders for r in (0, 1))
            if path.exists()
        ]
        now = time.time()
        if len(begun) == 2 and now - max(begun) > limit_s:
            break
        picture = look()
        if picture is not None:
            stall = picture["stall"]
            sentence = picture["verdict"]["sentence"] if stall is None else stall["sentence"]
            if stall is not None and is_right(trouble, stall) and len(begun) == 2:
                return time.time() - max(begun), sentence
        time.sleep(0.2)
    return said, sentence


def json_of(command: list[str | Path], env: dict[str, str], folder: Path) -> dict[str, Any] | None:
    done = run(command, env, folder)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else None


@contextmanager
def on_one_host(folder: Path, trouble: str, start: str, stall_s: float) -> Iterator[tuple[list[Path], Look]]:
    env, port = environment(folder), str(free_port())
    options = [*WORDS, "--ddptop-stall", str(stall_s)]
    exec_ = [*DDPTOP_RUN, *options, "--ddptop-exec", sys.executable, SCRIPT, trouble, port]
    commands = {
        "torchrun": [[*DDPTOP_RUN, *options, "--standalone", "--nproc-per-node", "2", SCRIPT, trouble, port]],
        "spawn": [[*exec_, "spawn"]],
        "srun": [exec_, exec_],
    }[start]
    with contextlib.ExitStack() as ends:
        for rank, command in enumerate(commands):
            own = env | (slurm(rank) if start == "srun" else {})
            # Cold: a child of multiprocessing must import torch itself.
            process = ends.enter_context(started(command, own, folder, cold=start == "spawn"))
            ends.callback(kill_below, process.pid)
        yield [folder], lambda: json_of([*DDPTOP, NAME, "--json"], env, folder)


def slurm(rank: int) -> dict[str, str]:
    """The variables of a task of srun, two on this host."""
    return {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_NNODES": "1",
        "SLURM_JOB_NODELIST": "127.0.0.1",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
    }


@contextmanager
def on_two_hosts(folder: Path, trouble: str, start: str, stall_s: float) -> Iterator[tuple[list[Path], Look]]:
    port, stall = str(free_port()), ["--ddptop-stall", str(stall_s)]
    with hosts(2, folder) as both, contextlib.ExitStack() as ends:
        for host in both:
            (host.folder / "slow_module.py").write_text(SLOW_MODULE)
        if start in ("hosts_srun", "hosts_spawn"):
            words = [*DDPTOP_RUN, *WORDS, *stall, "--ddptop-exec", sys.executable, SCRIPT, trouble, port]
            words += ["spawn"] if start == "hosts_spawn" else []
            # As most batch scripts export them.
            variables = {"MASTER_ADDR": both[0].name, "MASTER_PORT": port}
            ends.enter_context(tasks(both, words, slurm=True, variables=variables))
        else:
            for host in both:
                options = [*WORDS, *stall]
                process = launch(host, both, trouble, port, script_path=SCRIPT, options=options)
                ends.callback(process.kill_all)
        first = both[0]
        command = [*DDPTOP, NAME, "--json"]

        def look() -> dict[str, Any] | None:
            done = first.run(command, in_repository(first))
            return dict(json.loads(done.stdout)) if done.returncode == 0 else None

        yield [host.folder for host in both], look


STARTS = {
    "torchrun": on_one_host,
    "spawn": on_one_host,
    "srun": on_one_host,
    "hosts": on_two_hosts,
    "hosts_srun": on_two_hosts,
    "hosts_spawn": on_two_hosts,
}
TROUBLES = [*PLACES, *SENTENCES]


def main() -> int:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--stall", type=float, default=4.0, help="as --ddptop-stall")
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=[*STARTS])
    parser.add_argument("--troubles", nargs="+", choices=TROUBLES, default=TROUBLES)
    options = parser.parse_args()
    print("| start | trouble | right | said after s: median, longest | said instead |")
    print("|---|---|---|---|---|", flush=True)
    failed = 0
    for start in options.starts:
        for trouble in options.troubles:
            times, wrong = [], []
            for _ in range(options.times):
                with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
                    folder = Path(name)
                    (folder / "slow_module.py").write_text(SLOW_MODULE)
                    with STARTS[start](folder, trouble, start, options.stall) as (folders, look):
                        took, sentence = time_until_said(folders, trouble, look, options.stall + LIMIT_S)
                if took is None:
                    wrong.append(sentence)
                else:
                    times.append(took)
            failed += len(wrong)
            said = f"{statistics.median(times):.1f}, {max(times):.1f}" if times else ""
            right, instead = f"{len(times)} of {options.times}", " / ".join(sorted({*wrong}))
            print(f"| {start} | {trouble} | {right} | {said} | {instead} |", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
