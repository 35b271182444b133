"""The same training on ddptop's own runtime: process group, device, seed and clean-up in one call.

ddptop-run --standalone --nproc-per-node 2 examples/setup_and_wrap.py
ddptop                                       # in a second terminal
"""

import torch
from torch import nn

import ddptop


def main() -> None:
    with ddptop.setup(seed=0) as group:
        model = group.wrap(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1)), comm_hook="fp16")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(1 + group.rank)
        for _ in range(2000):
            x = torch.randn(64, 64, generator=generator)
            y = torch.sin(x.sum(1, keepdim=True))
            loss = nn.functional.mse_loss(model(x.to(group.device)), y.to(group.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ddptop.log(loss=loss)


if __name__ == "__main__":
    main()
