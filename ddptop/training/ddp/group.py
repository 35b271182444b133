"""`Group`: the process group as one rank sees it, with everything that can be done with it as methods."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from types import TracebackType

import torch
import torch.distributed as dist

from ddptop.training.ddp import checkpoint, collectives, logging, teardown
from ddptop.training.ddp import loader as loaders
from ddptop.training.ddp import wrap as wrapping
from ddptop.training.ddp.group_info import GroupInfo
from ddptop.training.launcher_variables import environment_number


@dataclass(frozen=True, eq=False)
class Group(GroupInfo):
    """The process group of this run, as one rank sees it. Leaving the `with` block destroys it."""

    @classmethod
    def current(cls) -> Group:
        """The process group that was made elsewhere (by a trainer); a group of one where there is none."""
        # Only where CUDA is in use: asking for the device would make a context on GPU 0.
        gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
        device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
        if not dist.is_initialized():
            return cls(0, 1, 0, device, "none")
        rank, world_size = dist.get_rank(), dist.get_world_size()
        local, of_host = os.environ.get("LOCAL_RANK", ""), os.environ.get("LOCAL_WORLD_SIZE", "")
        return cls(
            rank,
            world_size,
            int(local) if local.isdecimal() else rank,
            device,
            str(dist.get_backend()),
            local_world_size=int(of_host) if of_host.isdecimal() else world_size,
        )

    def __enter__(self) -> Group:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # `sys.exit(0)` within the block is no failure.
        if error is None or teardown.exit_code(error) == 0:
            teardown.end_group(failed=False)
            return
        teardown.note_failure(error)
        is_first = teardown.is_first_failure()
        teardown.end_group(failed=True)
        if not is_first and not isinstance(error, KeyboardInterrupt):
            time.sleep(teardown.STAY_S)

    @property
    def restarts(self) -> int:
        """How often torchrun has restarted the group; 0 without it."""
        return environment_number("TORCHELASTIC_RESTART_COUNT")

    loader = loaders.loader
    wrap = wrapping.wrap_in_group
    accumulate = wrapping.accumulate
    join = wrapping.join

    gather = collectives.gather
    gather_list = collectives.gather_list
    gather_object = collectives.gather_object
    broadcast_object = collectives.broadcast_object
    barrier = collectives.barrier
    mean = collectives.mean
    first = collectives.first
    print = collectives.print_in_order
    logger = logging.rank_logger

    save = checkpoint.save
    load = checkpoint.load
    resume = checkpoint.resume
