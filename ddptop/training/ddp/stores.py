"""The store through which the ranks meet."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ddptop.training.ddp import meeting
from ddptop.training.ddp.place import Place

CONNECT_S = 5.0
"""One attempt to reach rank 0's host; a silently dropped packet must not cost the whole time."""

_stores: dict[tuple[str, int], Any] = {}
"""One store per meeting point and process: its server may not go while others still read from it."""

_setups = itertools.count()


def store_of(place: Place, timeout: timedelta) -> Any:
    """The store of this group: torchrun's own, one that rank 0 serves, or, alone, one in memory.

    Raises:
        RuntimeError: when the port is in use, or when rank 0 does not answer within `timeout`.
    """
    if place.launcher == "alone":
        store = dist.HashStore()
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = next(dist.rendezvous("env://", place.rank, place.world_size, timeout=timeout))[0]
    else:
        store = _served_by_rank_0(place, timeout)
    return dist.PrefixStore(f"ddptop/{next(_setups)}", store)


def _served_by_rank_0(place: Place, timeout: timedelta) -> Any:
    point = (place.master_addr, place.master_port)
    if point in _stores:
        return _stores[point]
    serves = place.rank == 0
    if not serves and not _answers(point, timeout):
        raise RuntimeError(
            f"rank {place.rank} found nobody at {point[0]}:{point[1]} within {timeout.total_seconds():g} s: "
            "rank 0 has not come. Start all ranks, with MASTER_ADDR the host of rank 0 on each of them"
        )
    try:
        _stores[point] = dist.TCPStore(
            *point, is_master=serves, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:  # torch 2.6 has no class of its own for a port in use
        if not serves:
            raise RuntimeError(
                f"what answers rank {place.rank} at {point[0]}:{point[1]} is no rank 0 ({error})"
            ) from error
        raise RuntimeError(
            f"rank 0 cannot serve at {point[0]}:{point[1]}: the port is in use or the host is another. "
            "Set MASTER_PORT to a free port on all ranks, end the training that holds it, or start by "
            f"ddptop.spawn or torchrun --standalone, which find one ({error})"
        ) from error
    return _stores[point]


def _answers(point: tuple[str, int], timeout: timedelta) -> bool:
    """Whether somebody listens at rank 0's address before the time is up."""
    note = meeting.Note()
    for _ in meeting.pauses(timeout.total_seconds()):
        note.when_long(f"still waiting for rank 0: nobody answers at {point[0]}:{point[1]}")
        with contextlib.suppress(OSError), socket.create_connection(point, timeout=CONNECT_S):
            return True
    return False
