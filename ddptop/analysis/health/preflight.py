"""What differs between ranks and should not, or is shared and should not be: by what each says of itself.

Two ranks on one GPU, other versions on some hosts, a network interface with another MTU.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase, which_hosts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.analysis.state import RunState
    from ddptop.protocol.messages import Scalar

VERSIONS = ("torch", "nccl", "ddptop")
"""Entries of a rank's card that should be equal on all ranks, in the order in which they are looked at."""

OF_NETWORKS = ("interface", "mtu")
"""Likewise, where there are several hosts."""


class Preflight:
    """Looks at the cards again after one has come."""

    def __init__(self) -> None:
        self._is_due = False
        self._alert: Alert | None = None
        self._since_s = 0.0

    def note_card(self, unix_s: float) -> None:
        """A card has come."""
        self._is_due, self._since_s = True, self._since_s or unix_s

    def alert(self, state: RunState) -> Alert | None:
        """What is found first; None: nothing is."""
        if self._is_due:
            self._is_due = False
            self._alert = _shared_gpu(state, self._since_s) or _differing(state, self._since_s)
        return self._alert


def _cards(state: RunState) -> Mapping[int, Mapping[str, Scalar]]:
    return {rank: card for rank, card in state.cards.items() if rank < state.world}


def _shared_gpu(state: RunState, since_s: float) -> Alert | None:
    """Ranks of one host on one GPU. Instances of a divided GPU (MIG) have its bus id: their names say so."""
    ranks_of: dict[tuple[str, Scalar], list[int]] = defaultdict(list)
    cards = _cards(state)
    for rank, card in sorted(cards.items()):
        gpu = card.get("gpu.bus_id")
        if gpu is not None and " MIG " not in str(card.get("gpu.name")):
            ranks_of[state.ranks[rank].host, gpu].append(rank)
    shared = next((ranks for ranks in ranks_of.values() if len(ranks) > 1), None)
    if shared is None:
        return None
    visible = cards[shared[0]].get("gpu.visible")
    never_set = isinstance(visible, int) and visible >= len(shared)
    gpu = str(cards[shared[0]]["gpu.bus_id"])
    message = say(
        "preflight",
        "never_set" if never_set else "same_gpu",
        who=ranks_phrase(shared, state.world),
        where=which_hosts(state.host_names, shared[:1]),
        gpu=gpu,
        visible=visible,
    )
    evidence: dict[str, Scalar] = {
        "why": "never_set" if never_set else "same_gpu",
        "gpu": gpu,
        "ranks": len(shared),
    }
    return Alert.declared("preflight", shared[0], None, since_s, message, evidence)


def _differing(state: RunState, since_s: float) -> Alert | None:
    cards = _cards(state)
    several = len({state.ranks[rank].host for rank in cards}) > 1
    for name in (*VERSIONS, *(OF_NETWORKS if several else ())):
        ranks_of: dict[str, list[int]] = defaultdict(list)
        for rank, card in sorted(cards.items()):
            if card.get(name) is not None:
                ranks_of[str(card[name])].append(rank)
        if len(ranks_of) > 1:
            (usual, most), *others = sorted(ranks_of.items(), key=lambda entry: (-len(entry[1]), entry[1]))
            value, ranks = others[0]
            message = say(
                "preflight",
                "interface" if name in OF_NETWORKS else "versions",
                who=ranks_phrase(ranks, state.world),
                have="has" if len(ranks) == 1 else "have",
                where=which_hosts(state.host_names, ranks),
                name="MTU" if name == "mtu" else name,
                value=value,
                others=ranks_phrase(most, state.world),
                usual=usual,
            )
            evidence: dict[str, Scalar] = {"why": name, "value": value, "usual": usual, "ranks": len(ranks)}
            return Alert.declared("preflight", ranks[0], None, since_s, message, evidence)
    return None
