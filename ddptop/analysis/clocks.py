"""How the clocks of the hosts stand to the collector's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Clock


class HostClocks:
    """The newest offset and bound of every host."""

    def __init__(self) -> None:
        self._newest: dict[str, Clock] = {}
        self.version = 0
        """Grows with every word that changes an offset or a bound."""

    def take(self, clock: Clock) -> None:
        """A new comparison of a host's clock with the collector's."""
        before = self._newest.get(clock.host)
        self._newest[clock.host] = clock
        if before is None or (before.offset_ns, before.bound_ns) != (clock.offset_ns, clock.bound_ns):
            self.version += 1

    def of(self, host: str) -> Clock | None:
        """The newest word on a host; None where nothing is known."""
        return self._newest.get(host)
