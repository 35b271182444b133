"""Training without DistributedDataParallel: without_ddp.py alone|all_reduce|before_ddp STEPS

`before_ddp`: rank 0 trains a model of its own first, then all train one with DDP. Prints the last loss and a
sum of the weights, to all digits.
"""

import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

kind, steps = sys.argv[1], int(sys.argv[2])
if kind != "alone":
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
torch.manual_seed(rank)
loader = DataLoader(TensorDataset(torch.randn(8 * steps, 16), torch.randn(8 * steps, 1)), batch_size=8)
torch.manual_seed(0)


def train(model: torch.nn.Module, *, reduces: bool) -> None:
    """One pass over the data."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = (model(inputs) - targets).square().mean()
        loss.backward()
        for parameter in model.parameters() if reduces else ():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(loss.item(), weights, flush=True)


model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
if kind == "before_ddp":
    if rank == 0:
        train(torch.nn.Linear(16, 1), reduces=False)
    model = DistributedDataParallel(model)
train(model, reduces=kind == "all_reduce")
if dist.is_initialized():
    dist.destroy_process_group()
