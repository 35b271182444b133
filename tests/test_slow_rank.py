"""One rank of four sleeps 20 ms, in every place where it can: who it is, where, and what it does to the
others.

One run, in which the delay moves on through the phases, with stretches of equal ranks around: in backward and
in data with the quick tests, in all of them with the slow ones. The script
knows how long it slept and when its ranks had their gradients, by its own clock; figures are compared with
that, so that a busy machine, on which a sleep takes longer and ranks compute in turn, fails nothing.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ddptop
from ddptop.frames.snapshot import snapshot
from tests.processes import DDPTOP_RUN, environment, run
from tests.recording.replays import frame_at

SCRIPT = Path(__file__).parent / "scripts" / "moving_delay.py"
QUICK = ("backward", "data")
EVERYWHERE = (*QUICK, "forward", "optimizer", "other")
EQUAL, SLOW = 110, 100
"""Steps of a stretch. A name is gone when the last hundred steps, of which figures are made, are without."""

NOWHERE = ("nowhere", EQUAL)
LATE_MS = 0.3
"""Ranks less late than this are equal."""

WITHIN = 0.05
"""What the method is to be trusted to."""


@dataclass
class Stretch:
    """The snapshot at the end of a stretch, and medians of what the script told of the same steps."""

    place: str
    """Where rank 1 slept, or `nowhere`."""
    slept_ms: float
    """Of rank 1."""
    late_ms: float
    """How much later rank 1 had its gradients than the median of the others."""
    ranks_wait_ms: list[float]
    """Of each rank how much sooner it had them than the last one."""
    reduced_ms: float
    """From when the last rank had its gradients to the end of backward, the mean over the ranks."""
    ranks_late_ms: list[tuple[float, float]]
    """Of each rank the median, and what a tenth of the steps exceed."""
    shown: dict[str, Any]

    def explains(self, ms: float) -> bool:
        """Whether a delay is what the script slept, or, where the machine adds to that, how late it came."""
        low, high = sorted((self.slept_ms, self.late_ms))
        return low * (1 - WITHIN) <= ms <= high * (1 + WITHIN)

    def transfer(self) -> float:
        """The mean over the ranks."""
        return self.shown["buckets"][0]["transfer_ms"]


@pytest.fixture(
    scope="module",
    params=[QUICK, pytest.param(EVERYWHERE, marks=pytest.mark.slow)],
    ids=["quick", "everywhere"],
)
def stretches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Stretch]:
    home = tmp_path_factory.mktemp("slow")
    recording = home / "slow.ddptop"
    # Full detail: a sampled bucket in every fourth step is enough to name a rank, but not in 100 steps.
    options = [
        "--ddptop-record",
        recording,
        "--ddptop-detail",
        "full",
        "--standalone",
        "--nproc-per-node",
        "4",
    ]
    first, *others = request.param
    plan = [NOWHERE, (first, SLOW), NOWHERE, *((place, SLOW) for place in others), NOWHERE]
    words = [f"{place}:{steps}" for place, steps in plan]
    done = run([*DDPTOP_RUN, *options, SCRIPT, *words], environment(home), home)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    slept, came, reduced = (np.array(told[name]) / 1e6 for name in ("slept_ns", "came_ns", "reduced_ns"))
    recorded = np.unique(ddptop.read(recording).buckets["step"])
    ends = np.cumsum([steps for _, steps in plan])
    found = []
    for (place, _), end in zip(plan, ends.tolist(), strict=True):
        shown = snapshot(frame_at(recording, end - 1))
        steps = recorded[recorded < end][-shown["group"]["window_steps"] :]
        found.append(summarize(place, slept[steps], came[steps], reduced[steps], shown))
    return found


def summarize(
    place: str, slept: np.ndarray, came: np.ndarray, reduced: np.ndarray, shown: dict[str, Any]
) -> Stretch:
    """What the script saw in the steps of which `shown` is made: ms, each (steps, ranks)."""
    last = came.max(axis=1, keepdims=True)
    ranks = range(came.shape[1])
    late = np.stack(
        [came[:, rank] - np.median(np.delete(came, rank, axis=1), axis=1) for rank in ranks], axis=1
    )
    return Stretch(
        place=place,
        slept_ms=float(np.median(slept[:, 1])),
        late_ms=float(np.median(late[:, 1])),
        ranks_wait_ms=np.median(last - came, axis=0).tolist(),
        reduced_ms=float(np.median((reduced - last).mean(axis=1))),
        ranks_late_ms=np.quantile(late, (0.5, 0.9), axis=0).T.tolist(),
        shown=shown,
    )


@pytest.fixture
def slow(stretches: list[Stretch]) -> list[Stretch]:
    """Those in which rank 1 slept."""
    return [stretch for stretch in stretches if stretch.place != "nowhere"]


def test_the_slow_rank_is_named_within_a_hundred_steps_with_the_phase(slow: list[Stretch]) -> None:
    for stretch in slow:
        straggler = stretch.shown["straggler"]
        assert straggler is not None, stretch.shown["ranks"]
        assert (straggler["rank"], straggler["cause"]) == (1, stretch.place)
        assert stretch.explains(straggler["parts_ms"][stretch.place]), (straggler, stretch)
        assert straggler["last_pct"] > 90


def test_its_lateness_is_what_the_script_itself_saw(slow: list[Stretch]) -> None:
    for stretch in slow:
        straggler, arrives_late_ms = stretch.shown["straggler"], stretch.shown["ranks"][1]["lateness_ms"]
        print(stretch.place, straggler["lateness_ms"], "slept", stretch.slept_ms)
        print(stretch.place, arrives_late_ms, "seen", stretch.late_ms)
        assert straggler["basis"] == "every_step"
        assert stretch.explains(straggler["lateness_ms"])
        assert arrives_late_ms == pytest.approx(stretch.late_ms, rel=WITHIN)


def test_each_rank_waits_as_long_as_the_script_itself_saw(slow: list[Stretch]) -> None:
    for stretch in slow:
        waits = [rank["wait_ms"] for rank in stretch.shown["ranks"]]
        assert waits == pytest.approx(stretch.ranks_wait_ms, rel=WITHIN, abs=LATE_MS), stretch.place
        own = waits.pop(1)
        assert own < min(waits)


def test_the_transfer_is_within_what_the_script_itself_saw(stretches: list[Stretch]) -> None:
    # It ends before backward does. Four ranks on two cores move bytes in 2 to 8 ms, as their threads get
    # their turns; a wait taken for transfer would be some 15 ms more.
    for stretch in stretches:
        assert 0 < stretch.transfer() < stretch.reduced_ms * (1 + WITHIN), stretch.place


def test_of_ranks_that_the_script_saw_equal_nobody_is_named(stretches: list[Stretch]) -> None:
    for stretch in stretches:
        if stretch.place != "nowhere":
            continue
        named = stretch.shown["straggler"]
        seen = stretch.ranks_late_ms
        print("named", named, "seen", seen)
        if max(usual for usual, _ in seen) < LATE_MS:
            assert named is None or named["pattern"] == "intermittent", (named, seen)
        if named is None:
            continue
        # Four ranks take turns on two cores that others use as well, and one may really be late for a while.
        # Then its name must be the right one, and no delay before may have left it behind.
        usual, often = seen[named["rank"]]
        if named["pattern"] == "intermittent":
            assert often > named["lateness_ms"] / 2, (named, seen)
        else:
            assert named["lateness_ms"] == pytest.approx(usual, rel=0.25, abs=LATE_MS), (named, seen)
