"""Where a rank of these scripts trains: on a GPU of its own, or with others on one."""

from __future__ import annotations

import os

import torch

CUDA = torch.cuda.is_available()


def own_device() -> torch.device:
    """This rank's device, made the current one. To be called before the process group is made.

    NCCL refuses two ranks on one GPU unless they are on two hosts, which it takes NCCL_HOSTID to say; their
    all-reduces then go over a socket.
    """
    if not CUDA:
        return torch.device("cpu")
    rank, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if int(os.environ["LOCAL_WORLD_SIZE"]) > count:
        os.environ["NCCL_HOSTID"] = f"host{rank}"
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    return device
