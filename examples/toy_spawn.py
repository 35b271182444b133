"""A toy model on ranks that the script starts by itself, and how its few samples are divided among them.

ddptop-run --ddptop-exec python examples/toy_spawn.py     # or, unwatched: python examples/toy_spawn.py
ddptop                                                    # in a second terminal
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ddptop


def train(rank: int, epochs: int, samples: int) -> None:
    """What every rank runs. The model learns sin(x) from a handful of points."""
    with ddptop.setup(seed=0) as group:
        if rank == 0:
            print("To watch: type `ddptop` in a second terminal", flush=True)

        x = torch.linspace(-3, 3, samples).unsqueeze(1)
        dataset = TensorDataset(x, torch.sin(x))
        loader = group.loader(dataset, batch_size=2)
        model = group.wrap(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        for epoch in range(epochs):
            for x, y in loader.epoch(epoch):  # another order in each epoch, the same on all ranks
                loss = nn.functional.mse_loss(model(x.to(group.device)), y.to(group.device))
                optimizer.zero_grad()
                loss.backward()  # DDP averages the gradients of all ranks here
                optimizer.step()
                ddptop.log(loss=loss)

        # Every rank gets equally many samples, so some are dealt twice where they do not divide evenly.
        # `counted` knows which, and the mean over all ranks counts each sample once.
        plain = group.loader(dataset, batch_size=2, shuffle=False)
        group.print(f"samples {list(plain.sampler)}, of which the last {plain.padding} are duplicates")
        error, seen = 0.0, 0
        with ddptop.phase("evaluate"), torch.no_grad():
            for (x, y), count in plain.counted():
                output = model(x.to(group.device)).cpu()
                error += float((output - y)[:count].square().sum())
                seen += count
        mean = group.mean(error / max(1, seen), weight=seen)
        total = sum(group.gather_object(seen))
        if rank == 0:
            print(f"mean squared error {mean:.4f} over {total} samples", flush=True)


if __name__ == "__main__":  # each rank imports this file: only the first process may start ranks
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1500)
    parser.add_argument("--samples", type=int, default=10)
    options = parser.parse_args()
    ddptop.spawn(train, options.ranks, (options.epochs, options.samples))
