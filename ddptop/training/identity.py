"""Who this rank is: what its HELLO says."""

from __future__ import annotations

import os
import secrets
import socket
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Hello
from ddptop.training.process_groups import backend_of


@dataclass(frozen=True)
class Identity:
    """What does not change while the process lives."""

    run_id: str
    session: int
    rank: int
    world_size: int
    local_rank: int
    incarnation: int
    host: str
    device: str
    backend: str
    budget_pct: float

    @classmethod
    def of_this_process(cls, device: torch.device, budget_pct: float) -> Identity:
        """Read rank and world size from the default process group, which DDP has required to exist."""
        rank = dist.get_rank()
        local = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID")
        return cls(
            run_id=os.environ.get("DDPTOP_RUN_ID", ""),
            session=secrets.randbits(62) + 1,
            rank=rank,
            world_size=dist.get_world_size(),
            # Without a launcher's word (mp.spawn) the ranks of one machine are numbered like the world.
            local_rank=int(local) if local and local.isdecimal() else rank,
            incarnation=_number("TORCHELASTIC_RESTART_COUNT"),
            host=socket.gethostname(),
            device=str(device),
            backend=backend_of(dist.group.WORLD),
            budget_pct=budget_pct,
        )

    def hello(self, road: str) -> Hello:
        """The HELLO of this moment, with both clocks read together."""
        return Hello(
            version=VERSION,
            run_id=self.run_id,
            session=self.session,
            rank=self.rank,
            world_size=self.world_size,
            local_rank=self.local_rank,
            incarnation=self.incarnation,
            host=self.host,
            pid=os.getpid(),
            device=self.device,
            backend=self.backend,
            road=road,
            monotonic_ns=time.monotonic_ns(),
            unix_ns=time.time_ns(),
            budget_pct=self.budget_pct,
        )


def _number(variable: str) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else 0
