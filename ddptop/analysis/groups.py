"""Which ranks reduce the gradients of which model together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ddptop.protocol.messages import Membership


class Scope(NamedTuple):
    """A process group: only its own members' all-reduces are paired, waited for and judged together."""

    group: str
    """Its name; empty: nobody told one."""
    ranks: tuple[int, ...]
    """Ascending."""


class Groups:
    """The process group of every rank's every model, as the ranks told."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], Membership] = {}
        self._backends: dict[str, str] = {}
        self.version = 0
        """Grows with every word that changes a membership."""

    def take(self, rank: int, membership: Membership) -> None:
        """A rank tells the process group of one of its models."""
        if self._told.get((rank, membership.model)) != membership:
            self._told[rank, membership.model] = membership
            self._backends[membership.group] = membership.backend
            self.version += 1

    def of(self, rank: int, model: int) -> Membership | None:
        """The group of a rank's model; None where it has not told."""
        return self._told.get((rank, model))

    def restart(self) -> None:
        """A new incarnation of the group: what the old processes told is void."""
        self._told.clear()
        self._backends.clear()
        self.version += 1

    def only(self, world: int) -> Scope | None:
        """The one group of all ranks, or None where there are several. Who told nothing is in it."""
        told = {(m.group, m.ranks) for m in self._told.values()}
        everybody = tuple(range(world))
        names = {group for group, _ in told}
        whole = all(not ranks or ranks == everybody for _, ranks in told)
        return Scope(min(names, default=""), everybody) if whole and len(names) <= 1 else None

    def scope_of(self, rank: int, model: int, world: int) -> Scope:
        """The group of a rank's model; of one that told nothing, the group of all."""
        told = self._told.get((rank, model))
        if told is None:
            return Scope("", tuple(range(world)))
        return Scope(told.group, tuple(sorted({*told.ranks})) or tuple(range(world)))

    def backend_of(self, scope: Scope) -> str:
        """What moves the bytes of a group; empty: not told."""
        return self._backends.get(scope.group, "")
