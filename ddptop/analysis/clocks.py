"""How the clocks of the hosts stand to the collector's, and when the collector did not run."""

from __future__ import annotations

from collections import deque
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


class Interruptions:
    """When the collector did not run: nothing of that time could arrive, whatever the ranks did."""

    KEPT = 64
    """Older ones lie before any stall that is still judged."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque(maxlen=self.KEPT)
        self.unkept_ns = 0
        """Between two heartbeats of a rank that a thinned recording keeps."""

    def add(self, begin_ns: int, end_ns: int) -> None:
        """One more, on the collector's clock; later than those before it."""
        if end_ns > begin_ns:
            self._spans.append((begin_ns, end_ns))

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of this span in which the collector did not run."""
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in self._spans)

    def silence_ns(self, heard_ns: int, now_ns: int) -> int:
        """How long nothing has come of what was last heard at `heard_ns`, while somebody listened."""
        return max(0, now_ns - heard_ns - self.within(heard_ns, now_ns) - self.unkept_ns)
