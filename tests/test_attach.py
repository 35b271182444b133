"""`ddptop attach`: a run of plain torchrun, recorded from its middle on and left again."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddptop.cli.commands.attach import Exchange
from ddptop.cli.errors import CliError
from ddptop.cli.main import main
from tests.processes import (
    DDPTOP,
    DEADLINE_S,
    TORCHRUN,
    environment,
    live_step,
    names_ddptop,
    run,
    started,
    until,
)

SCRIPT = """
import gc, hashlib, json, os, sys, threading, time, types
from pathlib import Path
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim import optimizer
from torch.utils.data import dataloader

def left():
    owners = (DDP, dist, dist.distributed_c10d, torch.autograd, dist.Work, dist.ProcessGroup,
              dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
    functions = [(owner, name) for owner in owners for name in vars(owner)]
    hooks = [*optimizer._global_optimizer_pre_hooks, *optimizer._global_optimizer_post_hooks]
    return {
        "functions": [name for owner, name in functions if type(vars(owner)[name]) is types.FunctionType
                      and vars(owner)[name].__globals__["__name__"].startswith("ddptop")],
        "hooks": len(hooks), "collector": len(gc.callbacks),
        "variables": [name for name in os.environ if name.startswith("DDPTOP")],
        "threads": [thread.name for thread in threading.enumerate()],
    }

before = left()
dist.init_process_group("gloo")
rank, last = dist.get_rank(), int(sys.argv[1])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Linear(64, 8))
model = DDP(model, bucket_cap_mb=0.004) if "ddp" in sys.argv else model
steps = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
number, end = 0, torch.zeros(1)
while not end:
    number += 1
    model(torch.randn(4, 32)).pow(2).mean().backward()
    for part in model.parameters() if "ddp" not in sys.argv else ():
        dist.all_reduce(part.grad)
    steps.step()
    steps.zero_grad()
    end = torch.tensor([float(number == last or os.path.exists("stop"))])
    dist.all_reduce(end)
    if number == 3:
        Path(f"pid-{rank}").write_text(str(os.getpid()))
    time.sleep(0.002 if not last else 0)
weights = b"".join(part.detach().numpy().tobytes() for part in model.parameters())
report = {"steps": number, "weights": hashlib.sha256(weights).hexdigest(), "before": before, "after": left()}
Path(f"end-{rank}").write_text(json.dumps(report))
dist.destroy_process_group()
"""


def can_trace() -> bool:
    """Whether gdb is there, and may attach to a process of this user that is no child of it."""
    gdb = shutil.which("gdb")
    if gdb is None:
        return False
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            command = [gdb, "-nx", "-batch", "-p", str(child.pid), "-ex", "set $mxcsr = $mxcsr ^ 0x20"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        finally:
            child.kill()
    return (
        "Couldn't write" not in done.stderr
        and "ptrace" not in done.stderr
        and "attach" not in done.stderr.lower()
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "collectives"])
def test_a_run_of_torchrun_is_recorded_left_again_and_ends_with_the_same_weights(
    tmp_path: Path, kind: str
) -> None:
    if not can_trace():
        pytest.skip("needs gdb, and the permission to trace a process")
    (tmp_path / "train.py").write_text(SCRIPT)
    env = environment(tmp_path)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "train.py"]
    with started([*command, "0", kind], env, tmp_path, cold=True) as training:
        pids = [
            int(str(until(lambda rank=rank: _written(tmp_path / f"pid-{rank}"), "a step"))) for rank in (0, 1)
        ]
        _call_off(tmp_path, pids)
        done = run([*DDPTOP, "attach", str(pids[0])], env, tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert done.stdout.startswith("recording 2 ranks: ddptop train-")
        until(lambda: (live_step(env) or 0) >= 30, "30 complete steps")
        again = run([*DDPTOP, "attach", str(pids[1])], env, tmp_path)
        assert (again.returncode, again.stderr.endswith("it is recorded by ddptop already\n")) == (1, True)
        until(lambda: (live_step(env) or 0) >= 30, "the same run, which it has not disturbed")
        done = run([*DDPTOP, "attach", "--detach", str(pids[1])], env, tmp_path)
        assert (done.returncode, done.stdout) == (0, "detached from 2 ranks\n"), done.stderr
        for words in (["attach"], ["attach", "--detach"]):
            done = run([*DDPTOP, *words, str(pids[0])], env, tmp_path)
            assert done.returncode == 0, done.stderr
        (tmp_path / "stop").touch()
        out, errors = training.communicate(timeout=DEADLINE_S)
    assert training.returncode == 0, errors
    assert not names_ddptop(out + errors)
    _left_as_it_was([*command, kind], env, tmp_path)


HELD = SCRIPT.replace(
    "    time.sleep(0.002 if not last else 0)",
    "    if rank and number == 9 and not last:\n        hold()\n    time.sleep(0.002 if not last else 0)",
).replace(
    "before = left()",
    "def hold():\n    Path('held').touch()\n    while not os.path.exists('go'):\n        time.sleep(0.05)\n\n"
    "before = left()",
)


@pytest.mark.slow
def test_a_run_that_hangs_is_left_as_it_was_and_said_where_its_ranks_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 waits in the all-reduce of a bucket, where it runs no Python; rank 1 has not entered it."""
    if not can_trace() or shutil.which("py-spy") is None:
        pytest.skip("needs gdb, py-spy and the permission to trace a process")
    (tmp_path / "train.py").write_text(HELD)
    env = environment(tmp_path)
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "train.py"]
    with started([*command, "0", "ddp"], env, tmp_path, cold=True) as training:
        until((tmp_path / "held").exists, "the hang")
        pids = [int((tmp_path / f"pid-{rank}").read_text()) for rank in (0, 1)]
        monkeypatch.setattr("ddptop.cli.commands.attach.WAIT_S", 5.0)
        monkeypatch.setattr("ddptop.cli.commands.attach.ranks_of", lambda _: pids)
        assert main(["attach", str(pids[0])]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert f"process {pids[0]} has begun no training step within 5 s" in line
        assert f"process {pids[0]} is in train.py:{_line_of('.backward()')} <module>" in line
        assert f"process {pids[1]} is in train.py:{_line_of('time.sleep(0.05)')} hold" in line
        assert line.endswith("; nothing was recorded, training goes on as before")
        (tmp_path / "go").touch()
        (tmp_path / "stop").touch()
        _, errors = training.communicate(timeout=DEADLINE_S)
    assert training.returncode == 0, errors
    _left_as_it_was([*command, "ddp"], env, tmp_path)


def _written(path: Path) -> str:
    """Its text; empty until there is any."""
    return path.read_text() if path.exists() else ""


def _line_of(text: str) -> int:
    return next(at for at, line in enumerate(HELD.splitlines(), 1) if text in line)


def _call_off(folder: Path, pids: list[int]) -> None:
    """Attach, and call it off before the ranks begin."""
    place = folder / "called-off"
    place.mkdir()
    exchange = Exchange(place, pids)
    exchange.inject_call("begin")
    exchange.wait_for_state("waiting", 3)
    exchange.announce_begin(-1)
    with pytest.raises(CliError, match="called off"):
        exchange.wait_for_state("recording")


def _left_as_it_was(command: list[str], env: dict[str, str], folder: Path) -> None:
    """The processes were left as they were, and as many steps that nothing attaches to end with the same
    weights. `command`: with the kind of training last."""
    ends = _ends(folder)
    for end in ends:
        assert end["after"] == end["before"], "the processes are as they were"
    (folder / "stop").unlink()
    *script, kind = command
    assert run([*script, str(ends[0]["steps"]), kind], env, folder).returncode == 0
    assert [end["weights"] for end in _ends(folder)] == [end["weights"] for end in ends]


def _ends(folder: Path) -> list[dict[str, Any]]:
    ends = [json.loads((folder / f"end-{rank}").read_text()) for rank in (0, 1)]
    assert ends[0]["weights"] == ends[1]["weights"]
    assert ends[0]["steps"] == ends[1]["steps"]
    return ends
