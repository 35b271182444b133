"""A rank reports before its first DDP model: that it is there, its milestones, and where it is when asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.protocol.evidence import Evidence
from ddptop.protocol.messages import MILESTONE, RECORDED, Bye, Event, Hello
from tests.processes import run, until
from tests.training.conftest import Ear, Ranks

SCRIPT = Path(__file__).parent / "scripts" / "starts.py"
WORKERS = SCRIPT.with_name("starts_workers.py")
BEFORE_DDP = ["torch", "process", "init", "store", "group"]


def milestones(ear: Ear, rank: int) -> list[str]:
    return [str(event.fields["name"]) for event in ear.said(rank, Event) if event.kind == MILESTONE]


def start(ear: Ear, ranks: Ranks, *words: str) -> subprocess.Popen[str]:
    """One rank, once it has come to its process group."""
    (process,) = ranks.start(SCRIPT, *words, world=1, env=ear.environment(), cold=True)
    until(lambda: milestones(ear, 0) == BEFORE_DDP, "the milestones before DDP")
    return process


def test_a_rank_reports_before_ddp_and_its_session_goes_on_with_that(ear: Ear, ranks: Ranks) -> None:
    process = start(ear, ranks)
    hello = ear.next_said(0, Hello)
    assert (hello.pid, hello.world_size, hello.backend, hello.timing_path) == (process.pid, 1, "", "")
    ear.ask(0, 7)
    evidence = ear.next_said(0, Evidence)
    assert "preprocess_dataset" in [frame.function for frame in evidence.stacks[0].frames]
    (ear.home / "go").touch()
    assert ear.next_said(0, Bye).reason in ("finished", "left its group")
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert [one.session for one in ear.said(0, Hello)] == [hello.session]
    assert {*milestones(ear, 0)[len(BEFORE_DDP) :]} == {"ddp", "model", RECORDED}
    (recorded,) = [event for event in ear.said(0, Event) if event.fields.get("name") == RECORDED]
    assert (recorded.fields["device"], recorded.fields["backend"]) == ("cpu", "gloo")
    # Not the helper, which has inherited the rank's numbers.
    assert {item.session for item in ear.heard} == {hello.session}


@pytest.mark.slow
def test_a_rank_that_fails_before_ddp_says_why_over_its_connection(ear: Ear, ranks: Ranks) -> None:
    process = start(ear, ranks, "raise")
    (ear.home / "go").touch()
    assert ear.next_said(0, Bye).reason == "OSError: no such shard"
    assert ear.said(0, Evidence)[-1].reason == "OSError: no such shard"
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert [path.name for path in ear.directory.glob("ddptop-failed-*")] == []


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "import time, torch; time.sleep(2)"),  # of a pod, not of a rank
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, "import torch", marks=pytest.mark.slow
        ),  # it only looks
        pytest.param({}, "import time, torch; time.sleep(2)", marks=pytest.mark.slow),
    ],
)
def test_what_is_no_rank_says_nothing(ear: Ear, variables: dict[str, str], code: str) -> None:
    done = run([sys.executable, "-c", code], ear.environment() | variables, ear.home, cold=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert ear.heard == []


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_of_a_loader_has_no_thread_of_ours_and_says_nothing(
    ear: Ear, ranks: Ranks, method: str
) -> None:
    (process,) = ranks.start(WORKERS, method, world=1, env=ear.environment(), cold=True)
    hello = ear.next_said(0, Hello)
    (ear.home / "go").touch()
    out, err = process.communicate(timeout=90)
    assert (process.returncode, out.split()[-1]) == (0, "none"), out + err
    assert {item.session for item in ear.heard} == {hello.session}
