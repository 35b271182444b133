"""An ordinary DDP training script. It knows nothing of ddptop.

ddptop-run --standalone --nproc-per-node 2 examples/plain_ddp.py
ddptop                                       # in a second terminal
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def train(device: torch.device, epochs: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(8192, 64)
    y = torch.sin(x.sum(1, keepdim=True))
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)  # deals each rank its share of the samples
    loader = DataLoader(dataset, batch_size=64, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    ddp = DDP(model.to(device), device_ids=[device.index] if device.type == "cuda" else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)  # without it every epoch would have the same order
        for batch, target in loader:
            loss = nn.functional.mse_loss(ddp(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()  # DDP averages the gradients of all ranks here
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])  # torchrun and ddptop-run set it
    if torch.cuda.device_count() > 1:
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    train(device, options.epochs)  # in a function of its own: no model should outlive its process group
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
