"""Which ranks reduce the gradients of which model together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Membership


class Groups:
    """The process group of every rank's every model, as the ranks told."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], Membership] = {}

    def take(self, rank: int, membership: Membership) -> None:
        """A rank tells the process group of one of its models."""
        self._told[rank, membership.model] = membership

    def of(self, rank: int, model: int) -> Membership | None:
        """The group of a rank's model; None where it has not told."""
        return self._told.get((rank, model))

    def restart(self) -> None:
        """A new incarnation of the group: what the old processes told is void."""
        self._told.clear()
