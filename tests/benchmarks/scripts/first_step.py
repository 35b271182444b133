"""Comes to its first step and prints when, and the CPU time that this process has taken until then."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model(torch.ones(4, 64)).sum().backward()
optimizer.step()
print(time.time(), time.process_time(), flush=True)
dist.destroy_process_group()
