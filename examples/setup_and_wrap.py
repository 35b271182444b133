"""A training on ddptop's own runtime: process group, device, seed, data, model and clean-up in a call each.

ddptop-run --standalone --nproc-per-node 2 examples/setup_and_wrap.py
ddptop                                       # in a second terminal

It runs under torchrun and srun too, and by plain `python` as a group of one.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import ddptop


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    x = torch.randn(8192, 64, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))

    with ddptop.setup(seed=0) as group:
        loader = group.loader(dataset, batch_size=64)
        net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Dropout(0.1), nn.Linear(512, 1))
        model = group.wrap(net, comm_hook="fp16")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for epoch in range(epochs):
            for batch, target in loader.epoch(epoch):
                output = model(batch.to(group.device))
                loss = nn.functional.mse_loss(output, target.to(group.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ddptop.log(loss=loss)
            mean = group.mean(loss.detach(), weight=len(batch))
            if group.rank == 0:
                print(f"epoch {epoch}: loss {mean:.4f}", flush=True)


if __name__ == "__main__":
    main()
