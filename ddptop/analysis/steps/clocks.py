"""Clocks: offsets and bounds between hosts, timers inside a host, and when the collector did not run.

`Comparison` says how accurately the times of two ranks can be compared. `Interruptions` holds the time in
which no message could arrive, whatever the ranks did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column
    from ddptop.protocol.messages import Clock


class HostClocks:
    """The newest offset and bound of every host."""

    def __init__(self) -> None:
        self._newest: dict[str, Clock] = {}
        self.version = 0
        """Grows with every change of an offset or a bound."""

    def take(self, clock: Clock) -> None:
        """A new comparison of a host's clock with the collector's."""
        before = self._newest.get(clock.host)
        self._newest[clock.host] = clock
        if before is None or (before.offset_ns, before.bound_ns) != (clock.offset_ns, clock.bound_ns):
            self.version += 1

    def of(self, host: str) -> Clock | None:
        """The newest comparison of a host's clock; None where there is none."""
        return self._newest.get(host)


class Interruptions:
    """Intervals in which the collector did not run, so that no message could arrive."""

    KEPT = 64
    """Older ones ended before any stall that can still be diagnosed began."""

    def __init__(self) -> None:
        self._spans: deque[tuple[int, int]] = deque(maxlen=self.KEPT)
        self.unkept_ns = 0
        """Time between two heartbeats that a thinned recording keeps; it does not count as silence."""

    def add(self, begin_ns: int, end_ns: int) -> None:
        """Add an interval on the collector's clock. It is later than those before it."""
        if end_ns > begin_ns:
            self._spans.append((begin_ns, end_ns))

    def within(self, begin_ns: int, end_ns: int) -> int:
        """Nanoseconds of this span in which the collector did not run."""
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in self._spans)

    def silence_ns(self, heard_ns: int, now_ns: int) -> int:
        """Time since `heard_ns`, less that in which the collector did not run and less `unkept_ns`."""
        return max(0, now_ns - heard_ns - self.within(heard_ns, now_ns) - self.unkept_ns)


SAME_HOST_BOUND_MS = 0.1
"""How far two ready stamps of one host may be wrong where the ranks have reported no bound. The host has one
clock, which is read on entry to the hook, so only a delay of the reading itself counts: tens of us on a busy
machine. Completion stamps, which are up to 18 ms late, are not used for this."""

STAMP_MS = 0.002
"""Least bound: stamps are whole microseconds, and a comparison takes two."""

MS = 1e6
"""Nanoseconds in a millisecond."""


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """How the ranks' times can be compared at one moment; a column is (ranks,)."""

    host: NDArray[np.int64]
    """Number of the rank's host."""
    offset_ns: NDArray[np.int64]
    """To be added to the rank's times to put them on the collector's clock."""
    clock_ms: Column
    """The offset is wrong by at most this; NaN: the host's clock was not compared."""
    ready_ms: Column
    """Bound of a ready stamp, from the rank's own timer."""
    end_ms: Column
    """How late the rank's completion callbacks were seen to run; 0: not reported."""

    several_hosts: bool
    comparable: bool
    """Whether arrivals can be compared at all: one host, or every host's clock has an offset."""

    def bound_ms(self) -> Column:
        """(ranks,) bound of each rank's arrival against the others': the widest pair that it is part of.

        Between two hosts the bounds of both clocks are added; ranks of one host share a clock. A ready stamp
        is early by at most its timer's bound, so that the larger of two holds for a pair. NaN: not
        comparable.
        """
        clock = np.zeros(len(self.host))
        if self.several_hosts:
            hosts, first = np.unique(self.host, return_index=True)
            each = self.clock_ms[first]
            widest = each.argmax()  # the first NaN, where there is one: the result stays NaN
            rest = np.delete(each, widest).max()
            clock = self.clock_ms + np.where(self.host == hosts[widest], rest, each[widest])
        return np.asarray(clock + self.ready_ms.max(initial=STAMP_MS))


class TimerBounds:
    """The bounds that the ranks report of their own timers."""

    def __init__(self) -> None:
        self._bounds: dict[int, tuple[float, float]] = {}
        self.version = 0

    def take(self, rank: int, ready_us: float, end_us: float) -> None:
        """`ready_us`: from a bucket's ready stamp until it was handed on; `end_us`: lateness of callbacks."""
        bounds = (max(ready_us / 1e3, STAMP_MS), max(end_us / 1e3, 0.0))
        if self._bounds.get(rank) != bounds:
            self._bounds[rank] = bounds
            self.version += 1

    def compare(self, ranks: Sequence[int], names: Sequence[str], clocks: HostClocks) -> Comparison:
        """How the times of these ranks can be compared now; `names`: of their hosts."""
        number = {name: i for i, name in enumerate(sorted(set(names)))}
        known = {name: clocks.of(name) if len(number) > 1 else None for name in number}
        alone = 0.0 if len(number) == 1 else np.nan  # one host: its clock need not be put on another
        offset = {name: clock.offset_ns if clock is not None else 0 for name, clock in known.items()}
        bound = {name: clock.bound_ns / MS if clock is not None else alone for name, clock in known.items()}
        timers = [self._bounds.get(rank, (SAME_HOST_BOUND_MS, 0.0)) for rank in ranks]
        return Comparison(
            host=np.array([number[name] for name in names], np.int64),
            offset_ns=np.array([offset[name] for name in names], np.int64),
            clock_ms=np.array([bound[name] for name in names], np.float64),
            ready_ms=np.array([ready for ready, _ in timers], np.float64),
            end_ms=np.array([end for _, end in timers], np.float64),
            several_hosts=len(number) > 1,
            comparable=not any(np.isnan(one) for one in bound.values()),
        )
