"""Accelerate's own loop, as its manual has it; knows nothing of ddptop: accelerate_ddp.py FOLDER"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = 20


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(7)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(2 * 2 * 8 * STEPS, 16)
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    for step, (inputs, target) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), target)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        print(f"rank {accelerator.process_index} batch {step} loss {loss.item()!r}\n", end="", flush=True)
    mean = accelerator.gather(loss.detach()).mean()
    accelerator.print(f"{accelerator.distributed_type} last loss {mean.item()!r}")
    weights = accelerator.unwrap_model(model).state_dict()
    torch.save(weights, folder / f"weights-{accelerator.process_index}.pt")


if __name__ == "__main__":
    main()
