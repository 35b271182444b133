"""An ordinary DDP training script. It knows nothing of ddptop.

ddptop-run --standalone --nproc-per-node 2 examples/plain_ddp.py
ddptop                                       # in a second terminal
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    epochs = parser.parse_args().epochs

    use_cuda = torch.cuda.is_available() and torch.cuda.device_count() > 1
    dist.init_process_group("nccl" if use_cuda else "gloo")
    rank = dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count()) if use_cuda else torch.device("cpu")
    torch.manual_seed(0)

    x = torch.randn(8192, 64)
    y = torch.sin(x.sum(1, keepdim=True))
    dataset = TensorDataset(x, y)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler)

    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    ddp = DDP(model.to(device), device_ids=[device.index] if use_cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for batch, target in loader:
            loss = nn.functional.mse_loss(ddp(batch.to(device)), target.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
