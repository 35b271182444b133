"""Wait and transfer agree with a script that knows its own delays and takes its own times.

Three ranks come 0, 10 and 20 ms late to every backward; a communication hook then makes each all-reduce 15
ms longer. And two ranks on a link of 10 ms each way. Both sides are medians over the same steps, so that a
busy machine, on which ranks come later and transfers take longer, fails nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.snapshot import snapshot
from tests.processes import DDPTOP_RUN, environment, run
from tests.recording.replays import frame_at

SCRIPTS = Path(__file__).parent / "scripts"
WINDOW = 100
"""Steps that figures are made of."""

SLEEP_MS, LINK_MS = 15.0, 10.0

NEAR_MS = 0.3
"""Medians of figures that lie between two others may lie so far outside."""


def close_to(truth: float) -> Any:
    """Within 10 %, or a millisecond: what two busy cores take to let a thread go on."""
    return pytest.approx(truth, rel=0.1, abs=1.0)


@dataclass
class Half:
    """One half of a run: what the script saw and what ddptop shows."""

    wait_ms: list[float]
    transfer_ms: float
    least_ms: float | None
    shown: dict[str, Any]

    @property
    def transfer_shown(self) -> float:
        return self.shown["buckets"][0]["transfer_ms"]

    @property
    def waits_shown(self) -> list[float]:
        return [rank["wait_ms"] for rank in self.shown["ranks"]]


def watched(home: Path, world: int, steps: int, *words: object) -> list[Half]:
    recording = home / "run.ddptop"
    # Full detail: ddptop's medians are then over the same steps as the script's.
    recorded = ["--ddptop-record", recording, "--ddptop-detail", "full"]
    options = [*recorded, "--standalone", "--nproc-per-node", world]
    command = [*DDPTOP_RUN, *options, SCRIPTS / "known_delays.py", steps, *words]
    done = run([str(word) for word in command], environment(home), home)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    ends = [steps * (number + 1) // len(told) - 1 for number in range(len(told))]
    halves = [
        Half(**one, shown=snapshot(frame_at(recording, end))) for one, end in zip(told, ends, strict=True)
    ]
    for half, one in zip(halves, told, strict=True):
        print("seen", one, "shown", half.waits_shown, half.transfer_shown)
    return halves


@pytest.fixture(scope="module")
def hooked(tmp_path_factory: pytest.TempPathFactory) -> list[Half]:
    return watched(tmp_path_factory.mktemp("hooked"), 3, 2 * WINDOW, SLEEP_MS)


def test_each_rank_waits_as_long_as_the_others_were_told_to_be_late(hooked: tuple[Half, Half]) -> None:
    for half in hooked:
        assert half.waits_shown == [close_to(wait) for wait in half.wait_ms]
        assert half.waits_shown == sorted(half.waits_shown, reverse=True)


def test_the_transfer_is_longer_by_what_the_hook_sleeps(hooked: tuple[Half, Half]) -> None:
    for half in hooked:
        # From the hook's own end to the return of backward, which a busy machine may delay by milliseconds.
        assert half.least_ms is not None
        assert half.least_ms - NEAR_MS < half.transfer_shown < half.transfer_ms + NEAR_MS
    assert hooked[1].transfer_shown > SLEEP_MS


@contextmanager
def slow_link(name: str) -> Iterator[list[str]]:
    """The two namespaces; skips the test where they cannot be made."""
    command = [sys.executable, str(SCRIPTS / "slow_link.py"), name, str(LINK_MS)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as link:
        assert link.stdin and link.stdout and link.stderr
        if link.stdout.readline() != "up\n":
            link.stdin.close()
            pytest.skip(f"no namespaces or TUN devices here: {link.stderr.read().strip().splitlines()[-1]}")
        yield [name + "a", name + "b"]
        link.stdin.close()
    assert link.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make network namespaces")
def test_on_a_slow_link_the_delay_is_transfer_and_lateness_is_wait(tmp_path: Path) -> None:
    with slow_link(f"ddp{os.getpid()}") as namespaces:
        [half] = watched(tmp_path, 2, 50, 0, *namespaces)
    assert half.transfer_shown == close_to(half.transfer_ms)
    assert half.transfer_shown > LINK_MS
    assert half.waits_shown == [close_to(wait) for wait in half.wait_ms]
