"""Gradient accumulation: several small batches to one optimizer step, and one all-reduce for all of them.

ddptop-run --standalone --nproc-per-node 2 examples/accumulation.py
ddptop                                       # in a second terminal

The table of ranks then has a column `micro`, the backward passes of a step; on a narrow screen a rank's own
page (Enter) shows them.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ddptop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--every", type=int, default=4, help="batches to one optimizer step")
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)

        x = torch.randn(8192, 64, generator=torch.Generator().manual_seed(1))
        loader = group.loader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
        model = group.wrap(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        steps = batches = 0
        for epoch in range(options.epochs):
            # Under the hood: all but every fourth backward run under DDP's `model.no_sync()`.
            for (x, y), last in group.accumulate(model, loader.epoch(epoch), every=options.every):
                loss = nn.functional.mse_loss(model(x.to(group.device)), y.to(group.device))
                (loss / options.every).backward()  # the gradients of the four add up to their mean
                batches += 1
                if last:
                    optimizer.step()
                    optimizer.zero_grad()
                    steps += 1
                    ddptop.log(loss=loss)
            mean = group.mean(loss.detach())
            if group.rank == 0:
                print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
        if group.rank == 0:
            print(f"{batches} batches in {steps} optimizer steps", flush=True)


if __name__ == "__main__":
    main()
