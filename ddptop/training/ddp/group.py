"""`Group`: the process group as one rank sees it, and the list of all that can be asked of it.

Log on rank 0 only.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from types import TracebackType

import torch
import torch.distributed as dist

from ddptop.training.ddp import checkpoint, collectives, failure, turns
from ddptop.training.ddp import collectives as metrics
from ddptop.training.ddp import loader as loaders
from ddptop.training.ddp import wrap as wrapping


class RankZero(logging.Filter):
    """Lets records pass on rank 0 only."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0


def rank_logger(group: Group, name: str | None = None) -> logging.Logger:
    """`logging.getLogger(name)`, silent on all ranks but 0; level and handlers are the script's to set."""
    found = logging.getLogger(name or "train")
    for known in [known for known in found.filters if isinstance(known, RankZero)]:
        found.removeFilter(known)
    found.addFilter(RankZero(group.rank))
    return found


@dataclass(frozen=True, eq=False)
class Group:
    """The process group of this run, as one rank sees it. Leaving the `with` block destroys it."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str
    local_world_size: int = 1
    seed: int | None = None
    """As given to `setup`: of the weights. Each rank's own random numbers come from seed + 1 + rank."""

    @classmethod
    def current(cls) -> Group:
        """The process group that someone else has made (a trainer); a group of one where there is none."""
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
        from ddptop.training.ddp.setup import end

        if error is None or failure.exit_code(error) == 0:
            end(failed=False)
            return
        failure.note(error)
        first = failure.is_first_of_group()
        end(failed=True)
        if not first and not isinstance(error, KeyboardInterrupt):
            time.sleep(failure.STAY_S)

    @property
    def restarts(self) -> int:
        """How often torchrun has restarted the group; 0 without it."""
        text = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
        return int(text) if text.isdecimal() else 0

    loader = loaders.loader
    wrap = wrapping.wrap_in_group
    accumulate = wrapping.accumulate
    join = wrapping.join

    gather = collectives.gather
    gather_list = collectives.gather_list
    gather_object = collectives.gather_object
    broadcast_object = collectives.broadcast_object
    barrier = collectives.barrier
    mean = metrics.mean

    first = turns.first
    print = turns.print_in_order
    logger = rank_logger

    save = checkpoint.save
    load = checkpoint.load
    resume = checkpoint.resume
