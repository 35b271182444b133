"""What ranks of the tests do; in a module of its own, because spawned processes import it."""

from __future__ import annotations

import contextlib
import io
import math
import os
import random
import sys
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

import ddptop
from tests.processes import has_nccl

TEN = TensorDataset(torch.arange(10.0).unsqueeze(1))


def everything(rank: int, folder: Path) -> None:
    """All that a group of three does, in one launch: starting processes is what takes time."""
    with ddptop.setup(seed=5) as group:
        assert (group.rank, group.world_size, group.local_rank) == (rank, 3, rank)
        assert (group.backend, group.device.type, group.restarts) == ("gloo", "cpu", 0)
        randomness(group)
        options(group)
        gathering(group)
        averages(group)
        evaluation(group)
        turns(group, folder)
        accumulation(group)
        uneven_inputs(group)
        checkpoints(group, folder)
    assert not dist.is_initialized()
    assert os.environ["RANK"] == str(rank), "spawn's own environment stays"


def randomness(group: ddptop.Group) -> None:
    """The same model everywhere, then each rank's own numbers, once."""
    bare = nn.Linear(4, 4)
    assert all_equal(group, bare.weight)
    assert torch.initial_seed() == 5
    group.wrap(bare)
    assert torch.initial_seed() == 5 + 1 + group.rank
    drawn = (float(torch.rand(())), random.random(), float(numpy.random.rand()))
    for values in zip(*group.gather_object(drawn) or (), strict=True):
        assert len(set(values)) == group.world_size
    group.wrap(nn.Linear(4, 4))
    assert float(torch.rand(())) != drawn[0], "a second model does not start the numbers over"
    group.wrap(wrapped := nn.Linear(4, 4))
    assert all_equal(group, wrapped.weight), "DDP has sent rank 0's weights"


def options(group: ddptop.Group) -> None:
    """DDP's options and hooks reach it, and the gradients are the mean."""
    for hook in (None, "allreduce", "fp16", "powersgd"):
        ddp = group.wrap(nn.Linear(1, 1, bias=False), comm_hook=hook, bucket_cap_mb=1, static_graph=True)
        assert isinstance(ddp, DistributedDataParallel)
        assert ddp.static_graph
        ddp(torch.full((1, 1), float(group.rank))).sum().backward()
        assert ddp.module.weight.grad == pytest.approx(1.0)
    assert buckets_of(group) > 1
    assert buckets_of(group, comm_hook="powersgd") == 1, "on gloo more of them can hang"
    assert buckets_of(group, comm_hook="powersgd", bucket_cap_mb=1) > 1, "unless it is asked for"
    ddp = group.wrap(nn.Linear(1, 1, bias=False), comm_hook="noop")
    ddp(torch.full((1, 1), float(group.rank))).sum().backward()
    assert ddp.module.weight.grad == group.rank

    seen = []

    def own(state, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations that are strings
        state.append(bucket.index())
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    ddp = group.wrap(nn.Linear(1, 1), comm_hook=own, hook_state=seen)
    ddp(torch.ones(1, 1)).sum().backward()
    assert seen == [0]

    model = nn.ModuleDict({"kept": nn.Linear(1, 1), "left": nn.Linear(1, 1)})
    model["left"].weight.data.fill_(group.rank)
    ddp = group.wrap(model, ignore=["left"])
    assert ddp.module["left"].weight == group.rank
    assert ddp.parameters_to_ignore == {"left.weight", "left.bias"}
    with pytest.raises(ValueError, match="no parameter, buffer or submodule 'lef'"):
        group.wrap(nn.ModuleDict({"left": nn.Linear(1, 1)}), ignore=["lef"])
    needs_nccl = r"BF16 all reduce communication hook required .* comm_hook='fp16'"
    with contextlib.nullcontext() if has_nccl() else pytest.raises(TypeError, match=needs_nccl):
        group.wrap(nn.Linear(1, 1), comm_hook="bf16")
    with pytest.raises(ValueError, match="one of allreduce, fp16"):
        group.wrap(nn.Linear(1, 1), comm_hook="fp8")

    expected = pytest.warns(UserWarning, match="no SyncBatchNorm on the CPU")
    with expected if group.rank == 0 else contextlib.nullcontext():
        ddp = group.wrap(nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2)), sync_batchnorm=True)
    assert type(ddp.module[1]) is nn.BatchNorm1d


def buckets_of(group: ddptop.Group, **options: object) -> int:
    """How many a model of 2 MB gets, once DDP has arranged them anew and tells so: in the third backward."""
    ddp = group.wrap(nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512)), **options)
    for _ in range(3):
        ddp(torch.ones(1, 512)).sum().backward()
    return len(str(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(","))


def gathering(group: ddptop.Group) -> None:
    """Tensors and objects, to all and to one."""
    world = range(group.world_size)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        got = group.gather(torch.full((2, 3), group.rank).to(dtype))
        assert got.dtype == dtype
        assert torch.equal(got, torch.stack([torch.full((2, 3), rank).to(dtype) for rank in world]))
    assert group.gather(torch.tensor(group.rank)).tolist() == [0, 1, 2]
    assert group.gather(torch.zeros(0, 2)).shape == (3, 0, 2)
    assert group.gather(torch.arange(4.0).view(2, 2).t()).tolist() == [[[0, 2], [1, 3]]] * 3
    to_one = group.gather(torch.tensor([group.rank]), dst=2)
    assert to_one.tolist() == [[0], [1], [2]] if group.rank == 2 else to_one is None
    with pytest.raises(ValueError, match=r"gather_list\(\) takes any: rank 0 \(1,\) torch.float32, rank 1"):
        group.gather(torch.zeros(group.rank + 1))

    def of(rank: int) -> list[torch.Tensor]:
        return [torch.full((rank, 2), rank), torch.tensor(True), torch.ones(3, dtype=torch.bfloat16) * rank][
            : rank + 1
        ]

    for dst in (None, 1):
        lists = group.gather_list(of(group.rank), dst=dst)
        if dst is not None and group.rank != dst:
            assert lists is None
            continue
        for rank, tensors in enumerate(lists):
            assert [t.dtype for t in tensors] == [t.dtype for t in of(rank)]
            assert all(torch.equal(a, b) for a, b in zip(tensors, of(rank), strict=True))
    assert group.gather_list([]) == [[], [], []]

    assert group.gather_object({"rank": group.rank}) == [{"rank": rank} for rank in world]
    assert group.gather_object("x", dst=1) == (["x"] * 3 if group.rank == 1 else None)
    assert group.broadcast_object(f"from {group.rank}", src=1) == "from 1"
    group.barrier()


def averages(group: ddptop.Group) -> None:
    """Over samples, not over ranks."""
    assert group.mean(torch.tensor(float(group.rank))) == 1.0
    means = group.mean({"loss": torch.tensor(group.rank * 3.0), "same": 1}, weight=[1, 2, 0][group.rank])
    assert means == {"loss": 2.0, "same": 1.0}
    own = {} if group.rank == 0 else {"only": float("nan") if group.rank == 1 else 4.0}
    assert group.mean(own, weight=float(group.rank == 2)) == {"only": 4.0}
    assert group.mean(1.0, weight=0) != group.mean(1.0, weight=0), "NaN: nothing was seen"
    assert group.mean(1.7e308) == math.inf
    assert math.isnan(group.mean(math.inf if group.rank else -math.inf))
    with pytest.raises(ValueError, match="negative"):
        group.mean(1.0, weight=-1)


def evaluation(group: ddptop.Group) -> None:
    """Ten samples on three ranks count as ten."""
    loader = group.loader(TEN, batch_size=2, shuffle=False)
    total, count = 0.0, 0
    for (x,), real in loader.counted():
        total += float(x[:real].sum())
        count += real
    assert group.gather_object(count) == [4, 3, 3]
    assert group.mean(total / count, weight=count) == pytest.approx(4.5)
    assert group.gather_object(loader.padding) == [0, 1, 1]


def turns(group: ddptop.Group, folder: Path) -> None:
    """One first, with its failure reaching the others; all in order."""
    for local in (False, True):
        with group.first(local=local):
            if group.rank == 0:
                (folder / f"downloaded-{local}").write_text("data")
            assert (folder / f"downloaded-{local}").read_text() == "data"
    kind, words = (
        (OSError, "no network")
        if group.rank == 0
        else (RuntimeError, "rank 0 failed while this rank waited for it: OSError: no network")
    )
    with pytest.raises(kind, match=words), group.first():
        raise OSError("no network")
    caught = io.StringIO()
    with contextlib.redirect_stdout(caught):
        group.print("I am", group.rank)
    expected = "".join(f"[rank {rank}] I am {rank}\n" for rank in range(3)) if group.rank == 0 else ""
    assert caught.getvalue() == expected
    logger = group.logger("ddptop.test")
    caught = io.StringIO()
    handler = __import__("logging").StreamHandler(caught)
    logger.addHandler(handler)
    logger.warning("once")
    assert caught.getvalue() == ("once\n" if group.rank == 0 else "")


def accumulation(group: ddptop.Group) -> None:
    """Two batches to an all-reduce; the last one steps as well."""
    ddp = group.wrap(nn.Linear(1, 1, bias=False))
    weight = ddp.module.weight
    steps, gradients = [], []
    for x, step in group.accumulate(ddp, [1.0, 2.0, 3.0], every=2):
        ddp(torch.full((1, 1), x * group.rank)).sum().backward()
        steps.append(step)
        gradients.append(float(weight.grad))
        if step:
            weight.grad = None
    assert steps == [False, True, True]
    assert gradients == pytest.approx([1.0 * group.rank, 3.0, 3.0])
    assert ddp.require_backward_grad_sync
    for _ in group.accumulate(ddp, [1, 2], every=2):
        break
    assert ddp.require_backward_grad_sync, "a loop that is left gives synchronisation back"
    assert list(group.accumulate(ddp, [], every=2)) == []
    with pytest.raises(ValueError, match="at least 1"):
        group.accumulate(ddp, [], every=0)


def uneven_inputs(group: ddptop.Group) -> None:
    """Ranks with more batches go on; dividing by the ranks that are left is right without a hook only."""
    for initial in (True, False):
        ddp = group.wrap(nn.Linear(1, 1, bias=False))
        with group.join(ddp, divide_by_initial_world_size=initial):
            for _ in range(1 + group.rank):
                ddp.zero_grad()
                ddp(torch.ones(1, 1)).sum().backward()
        if group.rank == 2:
            assert float(ddp.module.weight.grad) == pytest.approx(1 / 3 if initial else 1.0)
    hooked = group.wrap(nn.Linear(1, 1), comm_hook="allreduce")
    with pytest.raises(ValueError, match="wrap the model without comm_hook"):
        group.join(hooked, divide_by_initial_world_size=False)


def checkpoints(group: ddptop.Group, folder: Path) -> None:
    """Saved once, loaded everywhere; what rank 0 cannot write fails on all."""
    ddp = group.wrap(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(ddp.parameters())
    ddp(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    path = group.save(folder / "runs", ddp, optimizer, epoch=1, step=1)
    assert path.exists()
    other = group.wrap(nn.Linear(2, 2))
    found = group.resume(folder / "runs", other, torch.optim.Adam(other.parameters()))
    assert (found.epoch, found.step) == (1, 1)
    assert torch.equal(other.module.weight, ddp.module.weight)
    with pytest.raises(NotADirectoryError if group.rank == 0 else RuntimeError, match="Not a directory"):
        group.save(path / "below" / "a.pt", ddp)
    missing = path if group.rank != 1 else path.with_name("gone.pt")
    with pytest.raises(FileNotFoundError if group.rank == 1 else RuntimeError, match=r"gone\.pt"):
        group.load(missing, ddp)


def all_equal(group: ddptop.Group, tensor: torch.Tensor) -> bool:
    gathered = group.gather(tensor)
    return all(torch.equal(gathered[0], other) for other in gathered)


def one_fails(rank: int, folder: Path, how: str) -> None:
    """Rank 1 fails with a collective under way that nobody will join; rank 0 waits in another."""
    with ddptop.setup():
        if rank == 1:
            dist.all_reduce(torch.ones(10), async_op=True)
            if how == "raise":
                raise ValueError("the user's own mistake")
            sys.exit(3)
        dist.all_reduce(torch.ones(10))
        dist.all_reduce(torch.ones(10))
    (folder / "went on").touch()


def many_groups(rank: int) -> None:
    """One after the other. In each a model outlives the group, as that of any script with a `main` does."""
    for _ in range(30):
        one_group()


def one_group() -> None:
    with ddptop.setup() as group:
        ddp = group.wrap(nn.Linear(8, 8))
        for _ in range(3):
            ddp(torch.ones(2, 8)).sum().backward()
        group.mean(1.0)


def slurm_task(folder: Path) -> None:
    """One task of a Slurm job."""
    with ddptop.setup(seed=9) as group:
        told = (group.rank, group.local_rank, group.local_world_size, group.world_size, group.device.type)
        group.wrap(nn.Linear(1, 1))
        rows = group.gather_object((*told, torch.initial_seed(), os.environ["MASTER_ADDR"]))
        if group.rank == 0:
            (folder / "rows").write_text(repr(rows))
    assert "MASTER_ADDR" not in os.environ, "what setup has set, it takes away"


if __name__ == "__main__":
    slurm_task(Path(sys.argv[1]))
