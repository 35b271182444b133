"""Ranks with different numbers of batches, and `join`, which lets those that are done answer the others.

ddptop-run --standalone --nproc-per-node 2 examples/uneven_join.py
ddptop                                       # in a second terminal

Without join, a rank that has run out of batches leaves the others waiting in an all-reduce for ever. With it,
such a rank shows on the screen as `joined`.
"""

import argparse

import torch
from torch import nn

import ddptop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--batches", type=int, default=200, help="of rank 0; each further rank has a half more"
    )
    options = parser.parse_args()

    with ddptop.setup(seed=0) as group:
        if group.rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)

        # Data that no sampler can divide evenly: each rank has a file or a stream of its own, for example.
        batches = options.batches + options.batches // 2 * group.rank
        generator = torch.Generator().manual_seed(group.rank)
        data = [torch.randn(32, 64, generator=generator) for _ in range(batches)]

        model = group.wrap(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
        # A rank that is done gets the others' weights at the end of the block, but not the state of their
        # optimizer: with Adam or momentum the ranks' models would part ways in the next epoch.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        for epoch in range(options.epochs):
            total = 0.0
            with group.join(model):
                for x in data:
                    x = x.to(group.device)
                    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    total += loss.item()
                    ddptop.log(loss=loss)
            # The number of batches is the weight: a plain mean of two means would count them unequally.
            mean = group.mean(total / batches, weight=batches)
            if group.rank == 0:
                print(f"epoch {epoch}: loss {mean:.4f}", flush=True)
        group.print(f"{batches} batches an epoch")


if __name__ == "__main__":
    main()
