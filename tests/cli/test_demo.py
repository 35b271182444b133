"""`ddptop demo`: a real training run that ends when the person has seen enough."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from ddptop.sources.replay import frame_at
from tests.processes import DDPTOP, environment, started, until

torch = pytest.importorskip("torch")


def test_ranks_that_are_asked_to_end_do_so_after_the_same_step(tmp_path: Path) -> None:
    from ddptop.runtime.demo import AHEAD, Together

    ranks = [Together(tmp_path / "enough", rank) for rank in range(3)]
    assert not any(rank.last(step) for step in range(5) for rank in ranks)
    (tmp_path / "enough").touch()
    # Rank 1 has begun step 5 before rank 0 looks.
    assert [ranks[rank].last(5) for rank in (1, 0, 2)] == [False] * 3
    ended = [next(step for step in range(6, 20) if rank.last(step)) for rank in reversed(ranks)]
    assert ended == [5 + AHEAD + 1] * 3
    assert not Together(None, 0).last(10**9)


def test_a_demo_that_is_interrupted_has_finished_and_leaves_nothing_behind(tmp_path: Path) -> None:
    env = environment(tmp_path)
    with started([*DDPTOP, "demo", "--headless"], env, tmp_path) as process:
        lines = iter(process.stdout or ())
        assert any("rank" in line and "step" in line for line in lines), "training goes on"
        below = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        until(lambda: not any(child.is_running() for child in below), "the end of all processes")
    recording = next((tmp_path / "state" / "ddptop").glob("demo-*.ddptop"))
    frame = frame_at(recording, None)
    assert frame.run.state == "finished"
    assert len(set(frame.ranks.step)) == 1
