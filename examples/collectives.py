"""Collectives one by one: what each does with the numbers of the ranks, and the ways people need more often.

ddptop-run --standalone --nproc-per-node 2 examples/collectives.py
ddptop                                       # in a second terminal

A collective is called by all ranks, in the same order; one that is missing leaves the others waiting.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn

import ddptop


def torchs_own(group: ddptop.Group) -> None:
    """Most of them change the tensor that they are given, and return nothing."""
    world = group.world_size

    def mine() -> torch.Tensor:
        """[0, 0] on rank 0, [1, 1] on rank 1, ..."""
        return torch.full((2,), float(group.rank), device=group.device)

    def like_mine() -> list[torch.Tensor]:
        return [torch.empty(2, device=group.device) for _ in range(world)]

    x = mine()
    dist.broadcast(x, src=world - 1)
    group.print("broadcast: all have what the last rank had:", x.tolist())

    x = mine()
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    group.print("all_reduce: all have the sum:", x.tolist())

    x = mine()
    dist.reduce(x, dst=0, op=dist.ReduceOp.SUM)
    group.print("reduce: rank 0 has it:", x.tolist() if group.rank == 0 else "(not to be relied on)")

    rows = like_mine()
    dist.all_gather(rows, mine())
    group.print("all_gather: all have all:", [row.tolist() for row in rows])

    rows = like_mine() if group.rank == 0 else None
    dist.gather(mine(), rows, dst=0)
    group.print("gather: rank 0 has all:", rows and [row.tolist() for row in rows])

    rows = [torch.full((2,), 10.0 * rank, device=group.device) for rank in range(world)]
    x = mine()
    dist.scatter(x, rows if group.rank == 0 else None, src=0)
    group.print("scatter: each has its row of rank 0's:", x.tolist())

    x = torch.empty(2, device=group.device)
    dist.reduce_scatter(x, [mine() + rank for rank in range(world)])
    group.print("reduce_scatter: each has its row of the sum:", x.tolist())

    sent = torch.arange(world, device=group.device) + 10 * group.rank
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    group.print("all_to_all_single: each has one number of everyone:", received.tolist())

    if world > 1 and group.rank < 2:  # not a collective: two ranks are enough
        x = torch.tensor([42.0 if group.rank == 0 else 0.0], device=group.device)
        if group.rank == 0:
            dist.send(x, dst=1)
        else:
            dist.recv(x, src=0)
    group.barrier()  # nobody goes on before all are here


def for_people(group: ddptop.Group) -> None:
    """What is mostly wanted of them; these return what they find and check shapes before they begin."""
    stacked = group.gather(torch.tensor([group.rank]))
    group.print("group.gather:", stacked.tolist())

    mixed = group.gather_list([torch.zeros(group.rank + 1), torch.tensor(True)], dst=0)
    if mixed is not None:
        shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in mixed]
        print(f"group.gather_list, in one collective, to rank 0: {shapes}", flush=True)

    words = group.gather_object({"rank": group.rank, "word": "abc"[group.rank % 3]})
    group.print("group.gather_object:", [said["word"] for said in words])
    group.print("group.broadcast_object:", group.broadcast_object(f"rank {group.rank} decides"))

    # Rank 0 has seen one sample, rank 1 two, ...: the mean over samples, not over ranks.
    group.print("group.mean:", group.mean(float(group.rank), weight=group.rank + 1))

    with group.first():
        group.logger().warning("group.first: rank 0 first, then the others; the logger is rank 0's only")


def what_ddp_does(group: ddptop.Group, steps: int) -> None:
    """In every backward: gradients are put together in buckets, and each bucket is all-reduced."""
    model = group.wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(32, 64, device=group.device)  # other numbers on each rank, from its own generator
        loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ddptop.log(loss=loss)
    gradients = group.gather(model.module[0].bias.grad)
    group.print("DDP: gradients are equal on all ranks:", bool((gradients == gradients[0]).all()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000, help="of the small DDP training at the end")
    options = parser.parse_args()
    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)
        torchs_own(group)
        for_people(group)
        what_ddp_does(group, options.steps)


if __name__ == "__main__":
    main()
