"""Without DistributedDataParallel: no_ddp.py all_reduce|fsdp2|hsdp|accelerate STEPS [slow|hang|nan|raise]

From step STEPS / 4 on rank 1 is in trouble: its loader takes 20 ms more, it sleeps for good before its
optimizer, its loss is NaN, or it raises. Prints the last loss and a sum of the weights, to all digits.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

kind, steps, trouble = sys.argv[1], int(sys.argv[2]), "".join(sys.argv[3:])
if kind != "accelerate":
    dist.init_process_group("gloo")
rank = dist.get_rank() if dist.is_initialized() else 0
in_trouble = rank == 1 or kind == "accelerate"


class Samples(Dataset):
    """Batches of their own on each rank."""

    def __len__(self) -> int:
        return steps

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if trouble == "slow" and in_trouble and index >= steps // 4:
            time.sleep(0.02)
        random = torch.Generator().manual_seed(1000 * rank + index)
        return torch.randn(8, 64, generator=random), torch.randn(8, 1, generator=random)


def wait_for_good() -> None:
    time.sleep(1000)


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
if kind in ("fsdp2", "hsdp"):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "hsdp":
        sizes = (2, dist.get_world_size() // 2)
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = DataLoader(Samples(), batch_size=None)
backward = torch.Tensor.backward
if kind == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    backward = accelerator.backward
for step, (inputs, targets) in enumerate(loader):
    optimizer.zero_grad()
    loss = (model(inputs) - targets).square().mean()
    if in_trouble and step == steps // 4 and trouble == "nan":
        loss = loss * float("nan")
    backward(loss)
    if kind == "all_reduce":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
    if in_trouble and step == steps // 4 and trouble == "hang":
        wait_for_good()
    if in_trouble and step == steps // 4 and trouble == "raise":
        raise ValueError("no more")
    optimizer.step()
parts = [getattr(part, "full_tensor", lambda part=part: part)() for part in model.parameters()]
weights = sum(part.detach().double().sum().item() for part in parts)
sys.stdout.write(f"{loss.item()} {weights}\n")  # in one piece: two ranks write to one pipe
sys.stdout.flush()
if dist.is_initialized():
    dist.destroy_process_group()
