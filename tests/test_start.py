"""Hangs before the first step: which rank is behind, where in its code, and where the others wait."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import DDPTOP, DDPTOP_RUN, environment, free_port, run, started, until

SCRIPT = Path(__file__).parent / "scripts" / "troubled_start.py"
STALL_S = 4

SLOW_MODULE = """
import time
from pathlib import Path
end = time.monotonic() + 90
while not Path("go").exists() and time.monotonic() < end:
    time.sleep(0.05)
"""

AT_INIT, AT_CTOR = "init_process_group", "DistributedDataParallel()"


def kill_below(pid: int) -> None:
    """Kill all that a launcher has started."""
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()


def seen_in(home: Path, trouble: str, *, spawn: bool = False) -> dict[str, Any]:
    """The snapshot in which the trouble is explained."""
    env = environment(home)
    (home / "slow_module.py").write_text(SLOW_MODULE)
    options = ["--ddptop-name", "start", "--ddptop-stall", str(STALL_S), "--ddptop-record", "run.ddptop"]
    script = [str(SCRIPT), trouble, str(free_port())]
    words = ["--standalone", "--nproc-per-node", "2", *script]
    if spawn:
        words = ["--ddptop-exec", sys.executable, *script, "spawn"]
    looks: list[dict[str, Any]] = []

    def explained() -> bool:
        done = run([*DDPTOP, "start", "--json"], env, home)
        looks.append(json.loads(done.stdout) if done.returncode == 0 else {"stall": None})
        stall = looks[-1]["stall"]
        return stall is not None and (trouble in WITHOUT_PLACE or "troubled_start.py" in stall["sentence"])

    # Cold: a child of multiprocessing is to import torch itself.
    with started([*DDPTOP_RUN, *options, *words], env, home, cold=spawn) as process:
        try:
            try:
                until(explained, "an explanation")
            finally:
                print(json.dumps({name: looks[-1].get(name) for name in ("verdict", "start", "stall")}))
            if trouble not in NEVER_MEET:
                (home / "go").touch()
                out, err = process.communicate(timeout=100)
                assert process.returncode == 0, out + err
        finally:
            kill_below(process.pid)
    return looks[-1]


NEVER_MEET = ("wrong_port", "world_size_too_large")
WITHOUT_PLACE = NEVER_MEET
PLACES = {
    "hang_ctor": ([1], "preprocess_dataset", AT_CTOR),
    "hang_init": ([1], "wait_for_license", AT_INIT),
    "import_slow": ([1], "the import of slow_module (troubled_start.py:", AT_INIT),
    "barrier_download": ([0], "snapshot_download", "barrier"),
    "first_batch": ([1], "preprocess_dataset", "the first backward"),
}


@pytest.mark.parametrize(
    "trouble",
    [
        "hang_ctor",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("barrier_download", "hang_init", "import_slow", "first_batch")
        ),
    ],
)
def test_a_rank_that_holds_up_the_others_before_the_first_step_is_named(tmp_path: Path, trouble: str) -> None:
    look = seen_in(tmp_path, trouble)
    ranks, place, where = PLACES[trouble]
    stall, start = look["stall"], look["start"]
    print(stall["sentence"])
    assert (stall["ranks"], start["behind"]) == (ranks, ranks)
    assert f"rank {ranks[0]} is in " in stall["sentence"] and place in stall["sentence"]
    assert f"rank {1 - ranks[0]} waits for it in {where}" in stall["sentence"]
    assert place in start["ranks"][ranks[0]]["at"]
    assert stall["sentence"] in look["verdict"]["sentence"]


@pytest.mark.slow
def test_a_rank_of_mp_spawn_is_told_its_number_by_the_other(tmp_path: Path) -> None:
    stall = seen_in(tmp_path, "hang_init", spawn=True)["stall"]
    assert stall["ranks"] == [1]
    assert "rank 1 is in troubled_start.py:" in stall["sentence"] and "wait_for_license" in stall["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trouble", "sentence"),
    [
        ("wrong_port", "the ranks look for one another at different addresses: "),
        ("world_size_too_large", "init_process_group waits for 3 ranks, and the launcher has started 2"),
    ],
)
def test_ranks_that_never_meet_say_why(tmp_path: Path, trouble: str, sentence: str) -> None:
    look = seen_in(tmp_path, trouble)
    print(look["stall"]["sentence"])
    assert look["stall"]["sentence"].startswith(sentence)
