"""How the ranks meet before there is a process group: through a store, and with one decision for all.

Every rank writes a card (what it is, and what it was asked for) into the store; rank 0 waits for all of them,
decides what all ranks do (or what is wrong), and writes the decision for the others. So a mistake is reported
on every rank in the same words, before a collective could hang because of it.

The store is polled instead of waited for in one blocking call, so that Ctrl-C works.
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
from ddptop.training.guard import print_line

FIRST_S, LONGEST_S = 0.005, 0.5
"""Pauses between two polls: short for what is nearly there, long for a download, a compile, a slow node."""

NOTICE_S = 15.0
"""Ranks of one job start within seconds of one another; a user who waits longer should know what for."""


class WaitNotice:
    """Prints once, on stderr, what a long wait is for."""

    def __init__(self) -> None:
        self._due: float | None = time.monotonic() + NOTICE_S

    def when_long(self, text: str) -> None:
        """Print the first text that is given after NOTICE_S. To be called repeatedly."""
        if self._due is not None and time.monotonic() >= self._due:
            self._due = None
            print_line(text)


def growing_pauses(within_s: float | None = None) -> Iterator[None]:
    """Yield at once, then after longer and longer pauses, for `within_s` seconds (None: without end)."""
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
    return any(store.check(list(keys)) for _ in growing_pauses(within_s))


GRACE = timedelta(seconds=10)
"""How much longer than rank 0 the others wait: only rank 0 knows which ranks are missing."""


@dataclass(frozen=True)
class RankCard:
    """What one rank is, and what it was asked for."""

    rank: int
    world_size: int
    host: str
    pid: int
    gpu: str | None
    """UUID of the device that it would take; None without one."""
    backend: str | None
    """As asked for; None: to be decided."""
    seed: int | None
    address: str = ""
    """Address of its host, as used to connect to rank 0."""
    nonce: str = ""
    """Random text of this process: an earlier one may have had the same rank."""
    device: str | None = None
    """Kind of device (`cpu`, `cuda`) that it was given; None: to be decided."""
    has_collector: bool = False
    """Its host has the run's collector from before an elastic restart."""


class Agreement(NamedTuple):
    """What all ranks do alike."""

    backend: str
    addresses: tuple[str, ...]
    """Addresses of the hosts, each once."""
    number: str
    """Number of this meeting: no other has the same."""
    collector: str
    """Address of the host that has the run's collector already; empty: none has."""


def meet_ranks(store: Any, card: RankCard, timeout: timedelta) -> Agreement:
    """Wait until all ranks are here; returns what they all do.

    torchrun keeps its store over restarts, so it may contain entries of ranks that have exited. A card
    counts only once its rank has acknowledged the decision that was made of it.

    Raises:
        RuntimeError: after `timeout`, naming the ranks that have not come.
        ValueError: where the ranks do not fit together: twice the same rank, different world sizes or
            seeds, two ranks on one GPU under NCCL.
    """
    store.set(_card_key(card.rank), json.dumps(asdict(card)))
    decision = (
        _decide_for_all(store, card, timeout)
        if card.rank == 0
        else _receive_decision(store, card, timeout + GRACE)
    )
    if "missing" in decision:
        raise RuntimeError(decision["missing"])
    if "wrong" in decision:
        raise ValueError(decision["wrong"])
    addresses, collector = tuple(decision["addresses"]), decision.get("collector", "")
    return Agreement(decision["backend"], addresses, decision["number"], collector)


def _decide_for_all(store: Any, own_card: RankCard, timeout: timedelta) -> dict[str, Any]:
    """Rank 0's part: decide anew for every change of the cards, until all ranks have acknowledged."""
    ranks = range(own_card.world_size)
    number, nonces, acknowledged = "", [""], [0]
    note = WaitNotice()
    for _ in growing_pauses(timeout.total_seconds()):
        cards = _cards_here(store, ranks)
        _refuse_a_second(cards.get(own_card.rank, own_card), own_card)
        # By nonces: a rank that was started again has another one, and needs another decision.
        present = [card.nonce for card in cards.values()]
        if present != nonces:
            number, nonces, acknowledged = secrets.token_hex(8), present, [0]
            decision = decide_group(list(cards.values())) if len(cards) == own_card.world_size else {}
            if decision:
                # With the nonces: a decision about an earlier process of the same rank is not for this one.
                store.set("decision", json.dumps(decision | {"nonces": nonces, "number": number}))
        # One by one: `check` of several keys tells only whether all are there.
        acknowledged = [0, *(rank for rank in ranks[1:] if store.check([f"ack/{number}/{rank}"]))]
        if decision and len(acknowledged) == own_card.world_size:
            store.set(f"go/{number}", "")
            return decision | {"number": number}
        came = acknowledged if decision else list(cards)
        note.when_long(f"still waiting: {_absent_text(came, own_card.world_size)}")
    missing = {"missing": _missing_text(came, own_card.world_size, timeout)}
    every = [cards[rank].nonce if rank in cards else "" for rank in ranks]
    store.set("decision", json.dumps(missing | {"nonces": every, "number": number}))
    return missing


def _receive_decision(store: Any, own_card: RankCard, timeout: timedelta) -> dict[str, Any]:
    """The other ranks' part."""
    why = f"nothing for {_seconds_text(timeout)}"
    acknowledged = ""
    try:
        for _ in growing_pauses(timeout.total_seconds()):
            _refuse_a_second(RankCard(**json.loads(store.get(_card_key(own_card.rank)))), own_card)
            decision = json.loads(store.get("decision")) if store.check(["decision"]) else {}
            if decision and decision["nonces"][own_card.rank : own_card.rank + 1] == [own_card.nonce]:
                if "missing" in decision:
                    return dict(decision)
                if decision["number"] != acknowledged:
                    acknowledged = decision["number"]
                    store.set(f"ack/{acknowledged}/{own_card.rank}", "")
                if store.check([f"go/{acknowledged}"]):
                    return dict(decision)
    except (dist.DistStoreError, dist.DistNetworkError) as error:
        why = str(error)
    raise RuntimeError(
        f"rank {own_card.rank} has waited in vain for rank 0, whose own error may say why ({why})"
    )


def _card_key(rank: int) -> str:
    return f"card/{rank}"


def _cards_here(store: Any, ranks: range) -> dict[int, RankCard]:
    """In rank order."""
    return {
        rank: RankCard(**json.loads(store.get(_card_key(rank))))
        for rank in ranks
        if store.check([_card_key(rank)])
    }


def _refuse_a_second(written: RankCard, own_card: RankCard) -> None:
    """Raise ValueError where another process has overwritten this rank's card: it has the same rank."""
    if written.nonce != own_card.nonce:
        raise ValueError(
            f"two processes say that they are rank {own_card.rank}: {_process_text(own_card)} "
            f"and {_process_text(written)}. Give each its own rank, or this training another MASTER_PORT"
        )


def decide_group(cards: list[RankCard]) -> dict[str, Any]:
    """The backend for ranks that are all present, or a text of what is `wrong` with them."""
    for what in ("world_size", "seed", "backend"):
        given: dict[object, RankCard] = {}
        for card in cards:
            given.setdefault(getattr(card, what), card)
        if len(given) > 1:
            values = ", ".join(f"rank {card.rank} {value}" for value, card in given.items())
            hint = "; ddptop makes each rank's own random numbers from one seed" if what == "seed" else ""
            return {"wrong": f"the ranks were given different values of {what}: {values}{hint}"}
    shared = _find_shared_gpu(cards)
    without = next((card for card in cards if card.gpu is None), None)
    # Collectives need one backend: a rank without a GPU, or two on one, make all take gloo.
    backend = cards[0].backend or ("gloo" if shared or without else "nccl")
    if "nccl" in backend and without is not None:
        has = "sees none" if without.device is None else f"was given device {without.device!r}"
        return {
            "wrong": f"NCCL needs a GPU for each rank and {_process_text(without)} {has}; use backend='gloo'"
        }
    if "nccl" in backend and shared is not None:
        first_card, second_card = shared
        return {
            "wrong": f"{_process_text(first_card)} and {_process_text(second_card)} are on one GPU, "
            "and NCCL needs one for each rank. Start fewer ranks, give each its own by "
            "CUDA_VISIBLE_DEVICES, or use backend='gloo'"
        }
    if "nccl" not in backend and (mixed := _mixed_devices(cards)) is not None:
        first_card, second_card = mixed
        return {
            "wrong": f"{_process_text(first_card)} would train on {first_card.device or 'cpu'} "
            f"and {_process_text(second_card)} on {second_card.device or 'cpu'}: "
            "give all ranks a device= of one kind, or none"
        }
    collector = next((card.address for card in cards if card.has_collector), "")
    decided = {"backend": backend, "addresses": sorted({card.address for card in cards})}
    return decided | ({"collector": collector} if collector else {})


def _mixed_devices(cards: list[RankCard]) -> tuple[RankCard, RankCard] | None:
    """Two ranks whose models would be on devices of different kinds, each on the one that it was given."""
    different_card = next(
        (card for card in cards if (card.device or "cpu") != (cards[0].device or "cpu")), None
    )
    return None if different_card is None else (cards[0], different_card)


def _find_shared_gpu(cards: list[RankCard]) -> tuple[RankCard, RankCard] | None:
    owners: dict[str, RankCard] = {}
    for card in cards:
        if card.gpu is not None and owners.setdefault(card.gpu, card) is not card:
            return owners[card.gpu], card
    return None


def _missing_text(came: list[int], world_size: int, timeout: timedelta) -> str:
    return (
        f"after {_seconds_text(timeout)} {_absent_text(came, world_size)}. "
        f"Here: {_rank_list(came)}. Look for their errors, or start as many ranks as the world size says"
    )


def _absent_text(came: list[int], world_size: int) -> str:
    missing = sorted(set(range(world_size)) - set(came))
    return f"{len(missing)} of {world_size} ranks have not come: {_rank_list(missing)}"


MAX_LISTED_RANKS = 16


def _rank_list(ranks: list[int]) -> str:
    listed = ", ".join(str(rank) for rank in ranks[:MAX_LISTED_RANKS])
    n_more = len(ranks) - MAX_LISTED_RANKS
    return f"{listed} and {n_more} more" if n_more > 0 else listed


def _process_text(card: RankCard) -> str:
    return f"rank {card.rank} (process {card.pid} on {card.host})"


def _seconds_text(timeout: timedelta) -> str:
    return f"{timeout.total_seconds():g} s"


def host_name() -> str:
    """This machine's name, as it appears in messages."""
    return socket.gethostname()


CONNECT_S = 5.0
"""For one attempt to reach rank 0's host: a silently dropped packet must not cost all of the timeout."""

_stores: dict[tuple[str, int], Any] = {}
"""One store per address and process: its server must not stop while others still read from it."""

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
    # A prefix for each setup of this process: keys of an earlier group would be taken for this one's.
    return dist.PrefixStore(f"ddptop/{next(_setups)}", store)


def _served_by_rank_0(placement: Placement, timeout: timedelta) -> Any:
    point = (placement.master_addr, placement.master_port)
    if point in _stores:
        return _stores[point]
    serves = placement.rank == 0
    # Waited for here, so that Ctrl-C works meanwhile.
    if not serves and not _wait_for_server(point, timeout):
        raise RuntimeError(
            f"rank {placement.rank} reached no store at {point[0]}:{point[1]} within "
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


def _wait_for_server(point: tuple[str, int], timeout: timedelta) -> bool:
    """Whether a server listens at rank 0's address within the timeout."""
    note = WaitNotice()
    for _ in growing_pauses(timeout.total_seconds()):
        note.when_long(f"still waiting for rank 0: no answer from {point[0]}:{point[1]}")
        with contextlib.suppress(OSError), socket.create_connection(point, timeout=CONNECT_S):
            return True
    return False
