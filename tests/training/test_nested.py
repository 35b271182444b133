"""Trainings that a rank starts itself are no ranks of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.agent.admission import Admission
from ddptop.host.processes import process_start
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import Hello
from ddptop.recording.reader import Recording
from ddptop.training import attach
from tests import made_up_run
from tests.processes import DDPTOP_RUN, environment, run
from tests.recording.replays import frame_at

NESTED = """
import os, sys, time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
def train(rank, world, kind):
    how = dict(rank=rank, world_size=world, init_method=f"file://{os.getcwd()}/{kind}")
    how = {} if kind == "torchrun" else how
    dist.init_process_group("gloo", **how)
    model = DDP(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(7):
        optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
    time.sleep(0.1)  # torch's last work may end: without that its thread can abort or hang the process
    dist.destroy_process_group()
    print("nested", flush=True)
if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        torch.multiprocessing.spawn(train, (2, "spawn"), nprocs=2)
    else:
        train(0, 1, sys.argv[1])
"""

TRAIN = """
import subprocess, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(30):
    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
    if step == 10 and dist.get_rank() == 0:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        for kind in sys.argv[1:]:
            launcher = torchrun if kind == "torchrun" else []
            subprocess.run([sys.executable, *launcher, "nested.py", kind], check=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("kinds", "ranks"), [(["torchrun"], 2), (["spawn", "alone"], 3)])
@pytest.mark.slow
def test_trainings_that_a_rank_starts_do_not_take_its_place(
    tmp_path: Path, kinds: list[str], ranks: int
) -> None:
    (tmp_path / "nested.py").write_text(NESTED)
    (tmp_path / "train.py").write_text(TRAIN)
    recording = tmp_path / "run.ddptop"
    options = ["--ddptop-record", str(recording), "--standalone", "--nproc-per-node", "2"]
    done = run([*DDPTOP_RUN, *options, "train.py", *kinds], environment(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("nested") == ranks
    with Recording.open(recording) as opened:
        hellos = [one.message for one in opened.records() if isinstance(one.message, Hello)]
    assert sorted((hello.rank, hello.world_size) for hello in hellos) == [(0, 2), (1, 2)]
    last = frame_at(recording, None)
    assert (last.run.state, last.group.step, last.lost_records) == ("finished", 29, 0)
    assert not [alert for alert in last.alerts if alert.kind == "refused_messages"]


IN_JOB = {"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}


@pytest.fixture
def of_a_run(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in (IN_JOB | {"DDPTOP_RUN_ID": "aa", "DDPTOP_RUN_DIR": "/nowhere"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DDPTOP", raising=False)
    monkeypatch.setenv(attach.STARTED_BY, "")  # what the code sets is undone after the test
    return monkeypatch


def started_by(pid: int, **changes: str) -> dict[str, str]:
    """Variables of what this rank starts, with some of its own in place of the rank's."""
    return {attach.STARTED_BY: f"aa {pid} {process_start(pid)} h/1/2 0/0", **changes}


@pytest.mark.parametrize(
    ("changes", "nested"),
    [
        ({}, True),  # an evaluation script, mp.spawn: the variables are those of the rank
        ({"MASTER_PORT": "2", "RANK": "1", "LOCAL_RANK": "1"}, True),  # a torchrun
        ({"WORLD_SIZE": "3", "LOCAL_RANK": "1"}, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False),  # another rank of the job: Lightning starts it
        ({"DDPTOP_RUN_ID": "bb"}, False),  # a ddptop-run
        ({attach.STARTED_BY: "aa 1 2"}, False),
        ({attach.STARTED_BY: "aa x y h/1/2 0/0"}, False),
    ],
)
def test_what_a_rank_starts_is_told_by_its_variables(
    of_a_run: pytest.MonkeyPatch, changes: dict[str, str], nested: bool
) -> None:
    for name, value in started_by(os.getppid(), **changes).items():
        of_a_run.setenv(name, value)
    assert attach.is_nested() is nested
    assert attach.is_enabled() is not nested


def test_a_rank_itself_and_what_outlives_it_may_train(of_a_run: pytest.MonkeyPatch) -> None:
    attach.mark_children()
    assert os.environ[attach.STARTED_BY] == started_by(os.getpid())[attach.STARTED_BY]
    assert not attach.is_nested()
    attach.leave_group()
    assert attach.STARTED_BY not in os.environ
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        of_a_run.setenv(attach.STARTED_BY, started_by(child.pid)[attach.STARTED_BY])
    assert not attach.is_nested()
    attach.leave_group()  # not its own: it stays
    assert attach.STARTED_BY in os.environ


def test_another_world_that_a_rank_has_started_is_refused_by_the_collector() -> None:
    """Whatever its variables say."""

    def hello(pid: int, session: int, rank: int, world: int) -> Hello:
        return made_up_run.hello(rank, world, pid=pid, session=session)

    admission, me = Admission(launcher=0), os.getpid()
    admission(hello(me, 1, 0, 3), me)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        for rank in (0, 3):
            with pytest.raises(ProtocolError, match="a world of 4 ranks that rank 0 has started"):
                admission(hello(child.pid, 2, rank, 4), child.pid)
        admission(hello(child.pid, 3, 1, 3), child.pid)  # another rank of its own world
        assert child.stdin is not None
        child.stdin.close()
