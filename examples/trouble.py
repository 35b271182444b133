"""Trouble on purpose, to try the dashboard on: a rank that is slow in every step, or one that stands still.

ddptop-run --standalone --nproc-per-node 2 examples/trouble.py straggler
ddptop-run --standalone --nproc-per-node 2 examples/trouble.py straggler --where forward --ms 50
ddptop-run --standalone --nproc-per-node 2 --ddptop-stall 5 examples/trouble.py hang
ddptop                                       # in a second terminal

The hang ends by itself after --seconds, or by Ctrl-C.
"""

import argparse
import itertools
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset, default_collate

import ddptop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["straggler", "hang"])
    parser.add_argument("--rank", type=int, default=1, help="the rank that makes trouble")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--where", choices=["data", "forward", "backward", "optimizer"], default="data")
    parser.add_argument("--ms", type=float, default=30, help="straggler: milliseconds lost in each step")
    parser.add_argument("--seconds", type=float, default=90, help="hang: how long")
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)
        troubled = group.rank == options.rank

        def lose_time(where: str) -> None:
            if troubled and options.kind == "straggler" and where == options.where:
                time.sleep(options.ms / 1000)

        def collate(samples: list) -> list:
            lose_time("data")
            return default_collate(samples)

        x = torch.randn(8192, 64, generator=torch.Generator().manual_seed(1))
        loader = group.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=64, collate_fn=collate)

        net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
        net.register_forward_pre_hook(lambda *_: lose_time("forward"))
        net[2].register_full_backward_hook(lambda *_: lose_time("backward"))
        model = group.wrap(net)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer.register_step_pre_hook(lambda *_: lose_time("optimizer"))

        batches = (batch for epoch in range(options.steps) for batch in loader.epoch(epoch))
        for step, (x, y) in enumerate(itertools.islice(batches, options.steps)):
            if troubled and options.kind == "hang" and step == options.steps // 2:
                print(f"rank {group.rank} stands still for {options.seconds:g} s", flush=True)
                time.sleep(options.seconds)  # the others wait for it in the all-reduce of this step
            loss = nn.functional.mse_loss(model(x.to(group.device)), y.to(group.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddptop.log(loss=loss)
        if group.rank == 0:
            print(f"{options.steps} steps done", flush=True)


if __name__ == "__main__":
    main()
