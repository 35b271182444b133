"""What differs between ranks and should not, or is shared and should not be: by what each says of itself.

Two ranks on one GPU, other versions on some hosts, a network interface with another MTU.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeAlias

from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase, which_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.protocol.messages import Scalar

Cards: TypeAlias = "Mapping[int, Mapping[str, Scalar]]"
"""By rank, what it says of itself."""

VERSIONS = ("torch", "nccl", "ddptop")
"""Entries of a rank's card that should be equal on all ranks, in the order in which they are looked at."""

NETWORK_ENTRIES = ("interface", "mtu")
"""Entries that should also be equal where there are several hosts."""


class Preflight:
    """Looks at the cards again after one has come."""

    def __init__(self) -> None:
        self._is_due = False
        self._alert: Alert | None = None
        self._since_s = 0.0

    def note_card(self, unix_s: float) -> None:
        """A card has come."""
        self._is_due, self._since_s = True, self._since_s or unix_s

    def alert(self, cards: Cards, hosts: tuple[str, ...]) -> Alert | None:
        """The first thing that is wrong before training; None: nothing is. `hosts`: the host of each rank."""
        if self._is_due:
            self._is_due = False
            cards = {rank: card for rank, card in sorted(cards.items()) if rank < len(hosts)}
            self._alert = _alert_of_shared_gpu(cards, hosts, self._since_s) or _differing(
                cards, hosts, self._since_s
            )
        return self._alert


def _alert_of_shared_gpu(cards: Cards, hosts: tuple[str, ...], since_s: float) -> Alert | None:
    """Ranks of one host on one GPU. Instances of a divided GPU (MIG) have its bus id: their names say so."""
    ranks_of: dict[tuple[str, Scalar], list[int]] = defaultdict(list)
    for rank, card in cards.items():
        gpu = card.get("gpu.bus_id")
        if gpu is not None and " MIG " not in str(card.get("gpu.name")):
            ranks_of[hosts[rank], gpu].append(rank)
    shared = next((ranks for ranks in ranks_of.values() if len(ranks) > 1), None)
    if shared is None:
        return None
    visible = cards[shared[0]].get("gpu.visible")
    never_set = isinstance(visible, int) and visible >= len(shared)
    gpu = str(cards[shared[0]]["gpu.bus_id"])
    message = say(
        "preflight",
        "never_set" if never_set else "same_gpu",
        who=ranks_phrase(shared, len(hosts)),
        where=which_hosts(hosts, shared[:1]),
        gpu=gpu,
        visible=visible,
    )
    evidence: dict[str, Scalar] = {
        "why": "never_set" if never_set else "same_gpu",
        "gpu": gpu,
        "ranks": len(shared),
    }
    return Alert.declared("preflight", shared[0], None, since_s, message, evidence)


def _differing(cards: Cards, hosts: tuple[str, ...], since_s: float) -> Alert | None:
    several = len({hosts[rank] for rank in cards}) > 1
    for name in (*VERSIONS, *(NETWORK_ENTRIES if several else ())):
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, card in cards.items():
            if card.get(name) is not None:
                ranks_of[str(card[name])].append(rank)
        if len(ranks_of) > 1:
            (usual, most), *others = sorted(ranks_of.items(), key=lambda entry: (-len(entry[1]), entry[1]))
            value, ranks = others[0]
            message = say(
                "preflight",
                "interface" if name in NETWORK_ENTRIES else "versions",
                who=ranks_phrase(ranks, len(hosts)),
                have="has" if len(ranks) == 1 else "have",
                where=which_hosts(hosts, ranks),
                name="MTU" if name == "mtu" else name,
                value=value,
                others=ranks_phrase(most, len(hosts)),
                usual=usual,
            )
            evidence: dict[str, Scalar] = {"why": name, "value": value, "usual": usual, "ranks": len(ranks)}
            return Alert.declared("preflight", ranks[0], None, since_s, message, evidence)
    return None
