"""`GroupInfo`: rank, sizes, device and seed of a process group, as one rank sees it.

What a group can do is built on it: loader, collectives, checkpoints and `wrap` take a `GroupInfo`, and
`Group` (`group.py`) lists them as methods.

Random numbers are the same on every rank until the model is wrapped, and each rank's own from then on. A
model built after `setup` has the same initial weights on all ranks. Dropout and augmentation must differ
between ranks, or the group would train on fewer random numbers than it has ranks; so `wrap` seeds the
generators again, for the first model of a process. What DDP itself does (sending rank 0's weights to all)
is left as it is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)
class GroupInfo:
    """The process group of this run, as one rank sees it."""

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    backend: str
    local_world_size: int = 1
    seed: int | None = None
    """As given to `setup`: of the weights. Each rank's own random numbers come from seed + 1 + rank."""


def seed_generators(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators (all devices) with `seed`."""
    import numpy

    random.seed(seed)
    # numpy takes 32 bits.
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of one rank's own generators: never that of the weights."""
    return seed + 1 + rank
