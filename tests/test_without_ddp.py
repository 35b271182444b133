"""Runs without DistributedDataParallel: FSDP2, collectives of the script's own, Accelerate in one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from ddptop.frames.frame import Frame
from tests.processes import DDPTOP, DDPTOP_RUN, TORCHRUN, environment, run, run_plain, started, until
from tests.recording.replays import frame_at

pytestmark = pytest.mark.slow  # whole runs

SCRIPT = Path(__file__).parent / "scripts" / "no_ddp.py"
TWO_RANKS = ("--standalone", "--nproc-per-node", "2", str(SCRIPT))


def trained(home: Path, *words: str, code: int = 0) -> tuple[str, Frame]:
    """What a recorded run printed, and its last frame."""
    recording = home / "run.ddptop"
    done = run([*DDPTOP_RUN, "--ddptop-record", str(recording), *words], environment(home), home)
    assert done.returncode == code, done.stderr
    assert "installed in the Python that trains" not in done.stderr
    return done.stdout, frame_at(recording, None)


@pytest.mark.parametrize("kind", ["all_reduce", "fsdp2"])
def test_it_trains_alike_and_is_recorded(tmp_path: Path, kind: str) -> None:
    printed, frame = trained(tmp_path, *TWO_RANKS, kind, "30")
    plain = run_plain([*TORCHRUN, *TWO_RANKS, kind, "30"], environment(tmp_path), tmp_path)
    assert sorted(printed.splitlines()) == sorted(plain.stdout.splitlines()), "weights, to the last bit"
    assert len(printed.splitlines()) == 2
    kinds = {"all_reduce": "collectives", "fsdp2": "fsdp2"}
    assert (frame.run.state, frame.run.world_size, frame.run.training) == ("finished", 2, kinds[kind])
    assert (frame.group.step, frame.lost_records) == (29, 0)
    assert frame.group.loss_mean is not None
    for ms in (frame.ranks.forward_ms, frame.ranks.backward_ms, frame.ranks.optimizer_ms):
        assert (ms > 0).all()


@pytest.mark.parametrize("kind", ["all_reduce", "fsdp2"])
def test_a_rank_with_a_slow_loader_is_named(tmp_path: Path, kind: str) -> None:
    _, frame = trained(tmp_path, *TWO_RANKS, kind, "200", "slow")
    assert frame.straggler is not None
    assert (frame.straggler.rank, frame.straggler.cause) == (1, "data")
    assert 18 < frame.straggler.lateness_ms < 30
    (group,) = frame.process_groups
    assert (group.name, group.last_arriver, group.size) == ("0", 1, 2)
    assert group.lateness_ms is not None and 15 < group.lateness_ms < 40
    assert group.seen_pct is not None and group.seen_pct > 90, "the buffers hold the whole run"


@pytest.mark.parametrize("kind", ["all_reduce", "fsdp2"])
def test_a_rank_that_hangs_is_named_with_its_line(tmp_path: Path, kind: str) -> None:
    env = environment(tmp_path)
    options = ["--ddptop-name", "hangs", "--ddptop-stall", "3", *TWO_RANKS, kind, "80", "hang"]
    shown: list[dict[str, Any]] = []

    def has_line() -> bool:
        done = run([*DDPTOP, "hangs", "--json"], env, tmp_path)
        if done.returncode == 0:
            shown.append(json.loads(done.stdout))
        return bool(shown) and "wait_for_good" in shown[-1]["verdict"]["detail"]

    with started([*DDPTOP_RUN, *options], env, tmp_path):
        until(has_line, "the line of the rank that hangs")
    assert shown[-1]["verdict"]["kind"] == "stalled"
    assert shown[-1]["stall"]["ranks"] == [1]
    assert "no_ddp.py:" in shown[-1]["verdict"]["detail"]


def test_a_nan_is_found(tmp_path: Path) -> None:
    _, frame = trained(tmp_path, *TWO_RANKS, "all_reduce", "40", "nan")
    assert [(alert.rank, alert.step) for alert in frame.alerts if alert.kind == "nan"][:1] == [(1, 10)]


def test_a_rank_that_raises_is_the_cause_of_the_end(tmp_path: Path) -> None:
    _, frame = trained(tmp_path, *TWO_RANKS, "all_reduce", "40", "raise", code=1)
    assert [(death.rank, "no more" in death.reason) for death in frame.deaths][:1] == [(1, True)]


def test_accelerate_in_one_process_is_a_run_of_one_rank(tmp_path: Path) -> None:
    pytest.importorskip("accelerate", reason="pip install 'ddptop[trainers]'")
    command = [sys.executable, str(SCRIPT), "accelerate", "30"]
    printed, frame = trained(tmp_path, "--ddptop-exec", *command)
    assert printed == run_plain(command, environment(tmp_path), tmp_path).stdout
    assert (frame.run.world_size, frame.run.training, frame.group.step) == (1, "alone", 29)
    assert not list(tmp_path.glob("r/ddptop/*")), "nothing of the run is left"
