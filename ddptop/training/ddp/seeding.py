"""Random numbers: the same on every rank until the model is wrapped, each rank's own from then on.

A model built after `setup` has the same initial weights on all ranks. Dropout and augmentation must differ
between ranks, or the group would train on fewer random numbers than it has ranks; so `wrap` seeds the
generators again, for the first model of a process. What DDP itself does (sending rank 0's weights to all)
is left as it is.
"""

from __future__ import annotations

import random

import torch


def seed_alike(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators (all devices) with `seed`."""
    import numpy

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def seed_of_rank(seed: int, rank: int) -> int:
    """The seed of one rank's own generators: never that of the weights."""
    return seed + 1 + rank
