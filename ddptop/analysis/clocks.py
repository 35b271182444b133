"""How the clocks of the hosts stand to the collector's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Clock


class HostClocks:
    """The newest offset and bound of every host."""

    def __init__(self) -> None:
        self._newest: dict[str, Clock] = {}

    def take(self, clock: Clock) -> None:
        """A new comparison of a host's clock with the collector's."""
        self._newest[clock.host] = clock

    def of(self, host: str) -> Clock | None:
        """The newest word on a host; None where nothing is known."""
        return self._newest.get(host)
