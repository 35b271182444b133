"""How the ranks find one another before there is a process group: a store, a roll call, one verdict.

Every rank writes a card into the store; rank 0 waits for all of them, decides what they all do (or what is
wrong), and writes that down for the others. So a mistake is told on every rank in the same words, before
a collective could hang on it.

Waiting on a store in small looks, not in one blocking call, so that Ctrl-C gets through.

The store through which the ranks meet.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import torch.distributed as dist

from ddptop.training.ddp.placement import Placement
from ddptop.training.guard import say

FIRST_S, LONGEST_S = 0.005, 0.5
"""Pauses between two looks: short for what is nearly there, long for a download, a compile, a slow node."""

TELL_S = 15.0
"""Ranks of one job start within seconds of one another; who waits longer should know what for."""


class WaitNotice:
    """Tells the user once, on stderr, what a long wait is for: nobody should sit before a silent screen."""

    def __init__(self) -> None:
        self._due: float | None = time.monotonic() + TELL_S

    def when_long(self, words: str) -> None:
        """To be called again and again: the first words after TELL_S are told."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            say(words)


def pauses(within_s: float | None = None) -> Iterator[None]:
    """Yield at once, then after longer and longer pauses, for `within_s` seconds (None: for ever)."""
    end = None if within_s is None else time.monotonic() + within_s
    pause = FIRST_S
    while True:
        yield
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(pause)
        pause = min(LONGEST_S, pause * 1.5)


def wait_for_keys(store: Any, keys: Sequence[str], within_s: float | None = None) -> bool:
    """Wait until a store has all keys; False when `within_s` seconds were not enough."""
    return any(store.check(list(keys)) for _ in pauses(within_s))


GRACE = timedelta(seconds=10)
"""How much longer than rank 0 the others wait: it is rank 0 that can say who is missing."""


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
    nonce: str = ""
    """Of this process: an earlier one may have had the same rank."""
    device: str | None = None
    """Kind of device (`cpu`, `cuda`) that it was told to take; None: decide for me."""


class Agreement(NamedTuple):
    """What all ranks do alike."""

    backend: str
    addresses: tuple[str, ...]
    """Of the hosts, each once."""
    number: str
    """Of this meeting: no other has had it."""


def meet(store: Any, card: Card, timeout: timedelta) -> Agreement:
    """Wait until all ranks are here; returns what they all do.

    torchrun keeps its store over restarts, so what is in it may be of ranks that are gone. A card counts
    only once its rank has acknowledged the verdict that was made of it.

    Raises:
        RuntimeError: after `timeout`, naming the ranks that have not come.
        ValueError: where the ranks do not fit together: twice the same rank, different world sizes or
            seeds, two ranks on one GPU under NCCL.
    """
    store.set(_card(card.rank), json.dumps(asdict(card)))
    told = (
        _call_the_roll(store, card, timeout)
        if card.rank == 0
        else _hear_from_rank_0(store, card, timeout + GRACE)
    )
    if "missing" in told:
        raise RuntimeError(told["missing"])
    if "wrong" in told:
        raise ValueError(told["wrong"])
    return Agreement(told["backend"], tuple(told["addresses"]), told["number"])


def _call_the_roll(store: Any, own: Card, timeout: timedelta) -> dict[str, Any]:
    """Rank 0's part: a verdict is made anew until all have acknowledged one."""
    ranks = range(own.world_size)
    number, nonces, acknowledged = "", [""], [0]
    note = WaitNotice()
    for _ in pauses(timeout.total_seconds()):
        cards = _cards_here(store, ranks)
        _refuse_a_second(cards.get(own.rank, own), own)
        found = [card.nonce for card in cards.values()]
        if found != nonces:
            number, nonces, acknowledged = secrets.token_hex(8), found, [0]
            told = verdict(list(cards.values())) if len(cards) == own.world_size else {}
            if told:
                store.set("verdict", json.dumps(told | {"nonces": nonces, "number": number}))
        acknowledged = [0, *(rank for rank in ranks[1:] if store.check([f"ack/{number}/{rank}"]))]
        if told and len(acknowledged) == own.world_size:
            store.set(f"go/{number}", "")
            return told | {"number": number}
        came = acknowledged if told else list(cards)
        note.when_long(f"still waiting: {_absent(came, own.world_size)}")
    missing = {"missing": _missing(came, own.world_size, timeout)}
    every = [cards[rank].nonce if rank in cards else "" for rank in ranks]
    store.set("verdict", json.dumps(missing | {"nonces": every, "number": number}))
    return missing


def _hear_from_rank_0(store: Any, own: Card, timeout: timedelta) -> dict[str, Any]:
    """The other ranks' part."""
    why = f"nothing for {_words(timeout)}"
    acknowledged = ""
    try:
        for _ in pauses(timeout.total_seconds()):
            _refuse_a_second(Card(**json.loads(store.get(_card(own.rank)))), own)
            told = json.loads(store.get("verdict")) if store.check(["verdict"]) else {}
            if told and told["nonces"][own.rank : own.rank + 1] == [own.nonce]:
                if "missing" in told:
                    return dict(told)
                if told["number"] != acknowledged:
                    acknowledged = told["number"]
                    store.set(f"ack/{acknowledged}/{own.rank}", "")
                if store.check([f"go/{acknowledged}"]):
                    return dict(told)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        why = str(error)
    raise RuntimeError(f"rank {own.rank} has waited in vain for rank 0, whose own error may say why ({why})")


def _card(rank: int) -> str:
    return f"card/{rank}"


def _cards_here(store: Any, ranks: range) -> dict[int, Card]:
    """In rank order."""
    return {rank: Card(**json.loads(store.get(_card(rank)))) for rank in ranks if store.check([_card(rank)])}


def _refuse_a_second(written: Card, own: Card) -> None:
    """Who wrote over this rank's card is alive: it has the same rank."""
    if written.nonce != own.nonce:
        raise ValueError(
            f"two processes say that they are rank {own.rank}: {_name(own)} and {_name(written)}. "
            "Give each its own rank, or this training another MASTER_PORT"
        )


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
        has = "sees none" if without.device is None else f"was given device {without.device!r}"
        return {"wrong": f"NCCL needs a GPU for each rank and {_name(without)} {has}; use backend='gloo'"}
    if "nccl" in backend and shared is not None:
        one, other = shared
        return {
            "wrong": f"{_name(one)} and {_name(other)} are on one GPU, and NCCL needs one for each rank. "
            "Start fewer ranks, give each its own by CUDA_VISIBLE_DEVICES, or use backend='gloo'"
        }
    if "nccl" not in backend and (mixed := _mixed(cards)) is not None:
        one, other = mixed
        return {
            "wrong": f"{_name(one)} would train on {one.device or 'cpu'} and {_name(other)} on "
            f"{other.device or 'cpu'}: give all ranks a device= of one kind, or none"
        }
    return {"backend": backend, "addresses": sorted({card.address for card in cards})}


def _mixed(cards: list[Card]) -> tuple[Card, Card] | None:
    """Two ranks whose models would lie on devices of different kinds, where each takes what it was given."""
    other = next((card for card in cards if (card.device or "cpu") != (cards[0].device or "cpu")), None)
    return None if other is None else (cards[0], other)


def _shared_gpu(cards: list[Card]) -> tuple[Card, Card] | None:
    owners: dict[str, Card] = {}
    for card in cards:
        if card.gpu is not None and owners.setdefault(card.gpu, card) is not card:
            return owners[card.gpu], card
    return None


def _missing(came: list[int], world_size: int, timeout: timedelta) -> str:
    return (
        f"after {_words(timeout)} {_absent(came, world_size)}. "
        f"Here: {_some(came)}. Look for their errors, or start as many ranks as the world size says"
    )


def _absent(came: list[int], world_size: int) -> str:
    missing = sorted(set(range(world_size)) - set(came))
    return f"{len(missing)} of {world_size} ranks have not come: {_some(missing)}"


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


CONNECT_S = 5.0
"""One attempt to reach rank 0's host; a silently dropped packet must not cost the whole time."""

_stores: dict[tuple[str, int], Any] = {}
"""One store per meeting point and process: its server may not go while others still read from it."""

_setups = itertools.count()


def store_of(placement: Placement, timeout: timedelta) -> Any:
    """The store of this group: torchrun's own, one that rank 0 serves, or, alone, one in memory.

    Raises:
        RuntimeError: when the port is in use, or when rank 0 does not answer within `timeout`.
    """
    if placement.launcher == "alone":
        store = dist.HashStore()
    elif os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = next(dist.rendezvous("env://", placement.rank, placement.world_size, timeout=timeout))[0]
    else:
        store = _served_by_rank_0(placement, timeout)
    return dist.PrefixStore(f"ddptop/{next(_setups)}", store)


def _served_by_rank_0(placement: Placement, timeout: timedelta) -> Any:
    point = (placement.master_addr, placement.master_port)
    if point in _stores:
        return _stores[point]
    serves = placement.rank == 0
    if not serves and not _answers(point, timeout):
        raise RuntimeError(
            f"rank {placement.rank} found nobody at {point[0]}:{point[1]} within "
            f"{timeout.total_seconds():g} s: rank 0 has not come. Start all ranks, with MASTER_ADDR the host "
            "of rank 0 on each of them"
        )
    try:
        _stores[point] = dist.TCPStore(
            *point, is_master=serves, timeout=timeout, wait_for_workers=False, multi_tenant=True
        )
    except RuntimeError as error:  # torch 2.6 has no class of its own for a port in use
        if not serves:
            raise RuntimeError(
                f"what answers rank {placement.rank} at {point[0]}:{point[1]} is no rank 0 ({error})"
            ) from error
        raise RuntimeError(
            f"rank 0 cannot serve at {point[0]}:{point[1]}: the port is in use or the host is another. "
            "Set MASTER_PORT to a free port on all ranks, end the training that holds it, or start by "
            f"ddptop.spawn or torchrun --standalone, which find one ({error})"
        ) from error
    return _stores[point]


def _answers(point: tuple[str, int], timeout: timedelta) -> bool:
    """Whether somebody listens at rank 0's address before the time is up."""
    note = WaitNotice()
    for _ in pauses(timeout.total_seconds()):
        note.when_long(f"still waiting for rank 0: nobody answers at {point[0]}:{point[1]}")
        with contextlib.suppress(OSError), socket.create_connection(point, timeout=CONNECT_S):
            return True
    return False
