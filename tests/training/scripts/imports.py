"""Tells what has been imported between the construction of its DDP model and the end of its recording."""

import sys

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Linear(2, 2))
before = set(sys.modules)
dist.destroy_process_group()  # waits until the publisher has said what there is
print(sorted(set(sys.modules) - before))
