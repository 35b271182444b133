"""How the ranks find one another before there is a process group: a store, a roll call, one verdict.

Every rank writes a card into the store; rank 0 waits for all of them, decides what they all do (or what is
wrong), and writes that down for the others. So a mistake is told on every rank in the same words, before
a collective could hang on it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ddptop.runtime.group import waiting
from ddptop.runtime.group.place import Place

GRACE = timedelta(seconds=10)
"""How much longer than rank 0 the others wait: it is rank 0 that can say who is missing."""

CONNECT_S = 5.0
"""One attempt to reach rank 0's host; a silently dropped packet must not cost the whole time."""

_stores: dict[tuple[str, int], Any] = {}
"""One store per meeting point and process: its server may not go while others still read from it."""

_setups = itertools.count()


@dataclass(frozen=True)
class Card:
    """What one rank says of itself."""

    rank: int
    world_size: int
    host: str
    pid: int
    gpu: str | None
    """UUID of the device that it would take; None without one."""
    backend: str | None
    """As asked for; None: decide for me."""
    seed: int | None
    address: str = ""
    """Of its host, on the way to rank 0."""


class Agreement(NamedTuple):
    """What all ranks do alike."""

    backend: str
    addresses: tuple[str, ...]
    """Of the hosts, each once."""


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
            f"rank {place.rank} found nobody at {point[0]}:{point[1]} within {_words(timeout)}: rank 0 has "
            "not come. Start all ranks, with MASTER_ADDR the host of rank 0 on each of them"
        )
    try:
        _stores[point] = dist.TCPStore(
            *point, is_master=serves, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except (dist.DistStoreError, dist.DistNetworkError) as error:
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
    for _ in waiting.pauses(timeout.total_seconds()):
        with contextlib.suppress(OSError), socket.create_connection(point, timeout=CONNECT_S):
            return True
    return False


def meet(store: Any, card: Card, timeout: timedelta) -> Agreement:
    """Wait until all ranks are here; returns what they all do.

    Raises:
        RuntimeError: after `timeout`, naming the ranks that have not come.
        ValueError: where the ranks do not fit together: twice the same rank, different world sizes or
            seeds, two ranks on one GPU under NCCL.
    """
    twice = store.add(f"count/{card.rank}", 1) > 1
    store.set(f"twice/{card.rank}" if twice else f"card/{card.rank}", json.dumps(asdict(card)))
    if twice:
        first = Card(**json.loads(store.get(f"card/{card.rank}")))
        raise ValueError(
            f"two processes say that they are rank {card.rank}: {_name(first)} and {_name(card)}. "
            "Give each its own rank, or this training another MASTER_PORT"
        )
    if card.rank == 0:
        told = _call_the_roll(store, card.world_size, timeout)
        store.set("verdict", json.dumps(told))
    else:
        told = json.loads(_heard_from_rank_0(store, card.rank, timeout + GRACE))
    if "missing" in told:
        raise RuntimeError(told["missing"])
    if "wrong" in told:
        raise ValueError(told["wrong"])
    return Agreement(told["backend"], tuple(told["addresses"]))


def _heard_from_rank_0(store: Any, rank: int, timeout: timedelta) -> str:
    why = f"nothing for {_words(timeout)}"
    try:
        if waiting.for_keys(store, ["verdict"], timeout.total_seconds()):
            return bytes(store.get("verdict")).decode()
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        why = str(error)
    raise RuntimeError(f"rank {rank} has waited in vain for rank 0, whose own error may say why ({why})")


def _call_the_roll(store: Any, world_size: int, timeout: timedelta) -> dict[str, Any]:
    keys = [f"card/{rank}" for rank in range(world_size)]
    if not waiting.for_keys(store, keys, timeout.total_seconds()):
        came = [rank for rank, key in enumerate(keys) if store.check([key])]
        return {"missing": _missing(came, world_size, timeout)}
    return verdict([Card(**json.loads(store.get(key))) for key in keys])


def verdict(cards: list[Card]) -> dict[str, Any]:
    """The backend for ranks that are all there, or in words what is `wrong` with them."""
    for what in ("world_size", "seed", "backend"):
        said: dict[object, Card] = {}
        for card in cards:
            said.setdefault(getattr(card, what), card)
        if len(said) > 1:
            words = ", ".join(f"rank {card.rank} {value}" for value, card in said.items())
            hint = "; ddptop makes each rank's own random numbers from one seed" if what == "seed" else ""
            return {"wrong": f"the ranks were given different values of {what}: {words}{hint}"}
    shared = _shared_gpu(cards)
    without = next((card for card in cards if card.gpu is None), None)
    backend = cards[0].backend or ("gloo" if shared or without else "nccl")
    if "nccl" in backend and without is not None:
        return {"wrong": f"NCCL needs a GPU for each rank and {_name(without)} sees none; use backend='gloo'"}
    if "nccl" in backend and shared is not None:
        one, other = shared
        return {
            "wrong": f"{_name(one)} and {_name(other)} are on one GPU, and NCCL needs one for each rank. "
            "Start fewer ranks, give each its own by CUDA_VISIBLE_DEVICES, or use backend='gloo'"
        }
    return {"backend": backend, "addresses": sorted({card.address for card in cards})}


def _shared_gpu(cards: list[Card]) -> tuple[Card, Card] | None:
    owners: dict[str, Card] = {}
    for card in cards:
        if card.gpu is not None and owners.setdefault(card.gpu, card) is not card:
            return owners[card.gpu], card
    return None


def _missing(came: list[int], world_size: int, timeout: timedelta) -> str:
    missing = sorted(set(range(world_size)) - set(came))
    return (
        f"after {_words(timeout)} {len(missing)} of {world_size} ranks have not come: {_some(missing)}. "
        f"Here: {_some(came)}. Look for their errors, or start as many ranks as the world size says"
    )


def _some(ranks: list[int], most: int = 16) -> str:
    words = ", ".join(str(rank) for rank in ranks[:most])
    return words if len(ranks) <= most else f"{words} and {len(ranks) - most} more"


def _name(card: Card) -> str:
    return f"rank {card.rank} (process {card.pid} on {card.host})"


def _words(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():g} s"


def host() -> str:
    """This machine's name, as it is told in messages."""
    return socket.gethostname()
