"""Ranks one after another: one of them first, or all of them in order on one screen."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.distributed import distributed_c10d

from ddptop.training.ddp import meeting
from ddptop.training.ddp import meeting as waiting
from ddptop.training.ddp.collectives import gather_object
from ddptop.training.ddp.logging import phase

if TYPE_CHECKING:
    from ddptop.training.ddp.group import Group

_turns = itertools.count()


@contextlib.contextmanager
def first(group: Group, *, local: bool = False) -> Iterator[None]:
    """Rank 0 runs the block first; the others wait and run it when it is done (download once, then read).

    Args:
        group: the process group; all ranks enter.
        local: the first rank of every host runs it first, for what each host keeps for itself.

    Raises:
        RuntimeError: on the ranks that wait, where the first one raised, in its words.
    """
    number = next(_turns)
    if not dist.is_initialized() or group.world_size == 1:
        yield
        return
    store = distributed_c10d._get_default_store()
    key = f"first/{number}/{meeting.host()}" if local else f"first/{number}"
    if (group.local_rank if local else group.rank) != 0:
        with phase("waiting for rank 0"):
            waiting.for_keys(store, [key])  # through the store: a download may outlast a collective's timeout
            said = bytes(store.get(key)).decode()
        if said:
            raise RuntimeError(f"rank {said.replace(' ', ' failed while this rank waited for it: ', 1)}")
        yield
        return
    try:
        yield
    except BaseException as error:
        store.set(key, f"{group.rank} {type(error).__name__}: {error}")
        raise
    store.set(key, "")


def print_in_order(group: Group, *values: object, sep: str = " ") -> None:
    """As `print`, from all ranks: rank 0 prints what each has to say, in rank order, with its number."""
    texts = gather_object(group, sep.join(str(value) for value in values), dst=0)
    if group.rank == 0 and texts is not None:
        for rank, text in enumerate(texts):
            print(f"[rank {rank}] {text}", flush=True)
