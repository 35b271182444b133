"""Clocks: offsets and bounds between hosts, timers inside a host, and when the collector did not run.

`Comparison` says how accurately the times of two ranks can be compared. `Interruptions` holds the time in
which no message could arrive, whatever the ranks did.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.protocol.messages import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column


MS = 1e6
"""Nanoseconds in a millisecond."""

VALID_NS = 2_000_000_000
"""A CLOCK holds so long before and after its time; further away its bound grows as fast as within. It
contains what the drift may be wrong by over this time (`transport/clock_filter.py`, HORIZON_NS)."""


CLOCK_FIELDS = ("t_ns", "offset_ns", "bound_ns", "drift_ppb", "round_trip_ns")
_FIELDS, _ROUND_TRIP = attrgetter(*CLOCK_FIELDS), CLOCK_FIELDS.index("round_trip_ns")


class HostOffsets(NamedTuple):
    """The newest CLOCK of some hosts as columns, (hosts,)."""

    t_ns: NDArray[np.int64]
    """By the host's clock."""
    offset_ns: NDArray[np.int64]
    drift: Column
    """Nanoseconds that the offset grows by in a nanosecond."""
    bound_ms: Column
    """NaN: the host's clock was not compared."""
    growth: Column
    """Milliseconds that the bound grows by in a nanosecond, outside of VALID_NS."""

    def bounds_at(self, t_ns: NDArray[np.int64]) -> Column:
        """(hosts,) bounds at times by the clock of each host, in ms."""
        beyond_ns = np.abs(t_ns - self.t_ns) - VALID_NS
        return np.asarray(self.bound_ms + self.growth * np.maximum(beyond_ns, 0))


class HostClocks:
    """The newest offset, drift and bound of every host."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}
        """By host, where its clock is in the columns: 512 hosts report one a second each."""
        self._newest = np.zeros((6, 2), np.int64)
        """(fields, hosts) CLOCK_FIELDS and when it arrived; place 0 is a host that was not compared, place 1
        the collector's own."""
        self._places: tuple[object, NDArray[np.int64]] = None, np.empty(0, np.int64)
        """The hosts that were asked for last, and their places: there are 512, at every step the same."""
        self.own_host: str | None = None
        """The host of the collector, whose clock needs no comparison; None: not known."""
        self.version = 0
        """Grows with every change of an offset or a bound."""

    def take(self, clock: Clock, t_ns: int = 0) -> None:
        """A new comparison of a host's clock with the collector's; `t_ns`: when it arrived."""
        self.take_columns((clock.host,), np.array([[*_FIELDS(clock), t_ns]], np.int64).T)

    def take_columns(self, hosts: Sequence[str], clocks: NDArray[np.int64]) -> None:
        """Take comparisons of clocks in the order of their arrival: (n,) hosts, (6, n) CLOCK_FIELDS and
        arrivals."""
        place = self._place
        new = [host for host in dict.fromkeys(hosts) if host not in place]
        place.update(zip(new, range(2 + len(place), 2 + len(place) + len(new)), strict=True))
        if len(place) + 2 > self._newest.shape[1]:
            self._newest = np.pad(self._newest, ((0, 0), (0, 2 * len(place))))
        places = [place[host] for host in hosts]
        before = self._newest[:, places]
        if new or clocks[_ROUND_TRIP].any() or (before[1:_ROUND_TRIP] != clocks[1:_ROUND_TRIP]).any():
            self.version += 1
        self._newest[:, places] = clocks  # of each host the last one stays

    def set_own_host(self, host: str | None) -> None:
        """The collector runs on this host."""
        if host != self.own_host:
            self.own_host = host
            self.version += 1

    def of(self, host: str) -> Clock | None:
        """The newest comparison of a host's clock; None where there is none."""
        if host == self.own_host:
            return Clock(0, host, 0, 0)
        place = self._place.get(host)
        if place is None:
            return None
        t_ns, *other_values, _ = self._newest[:, place].tolist()
        return Clock(t_ns, host, *other_values)

    def newest(self, hosts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) the hosts' places: 0 of a clock that was not compared, 1 of the collector's, else more; and
        (6, n) the last comparisons, CLOCK_FIELDS and when each arrived."""
        place, own_host = self._place, self.own_host
        key = (*hosts,), own_host, len(place)
        if key != self._places[0]:
            places = np.array([1 if host == own_host else place.get(host, 0) for host in hosts], np.int64)
            self._places = key, places
        return self._places[1], self._newest[:, self._places[1]]

    def of_hosts(self, hosts: Sequence[str]) -> HostOffsets:
        """The newest comparisons of these hosts' clocks."""
        places, (t_ns, offset_ns, bound_ns, drift_ppb, round_trip_ns, _) = self.newest(hosts)
        bound_ms = np.where(places == 0, np.nan, bound_ns / MS)
        growth = np.where(round_trip_ns, bound_ns / MS / VALID_NS, 0.0)
        return HostOffsets(t_ns, offset_ns, drift_ppb / 1e9, bound_ms, growth)

    def to_collector(self, host: str, t_ns: int) -> int | None:
        """A time of a host's clock on the collector's; None: its clock was not compared."""
        clock = self.of(host)
        if clock is None:
            return None
        return t_ns + clock.offset_ns + round(clock.drift_ppb * (t_ns - clock.t_ns) / 1e9)


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


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """How the ranks' times can be compared at one moment; a column is (ranks,)."""

    host: NDArray[np.int64]
    """Number of the rank's host in `clocks`."""
    first: NDArray[np.int64]
    """(hosts,) a rank of each host, by its place."""
    names: tuple[str, ...]
    """Names of the hosts, by their numbers."""
    clocks: HostOffsets
    ready_ms: Column
    """Bound of a ready stamp, from the rank's own timer."""
    end_ms: Column
    """How late the rank's completion callbacks were seen to run; 0: not reported."""

    several_hosts: bool
    comparable: bool
    """Whether arrivals can be compared at all: one host, or every host's clock has an offset."""

    def with_clocks(self, clocks: HostClocks) -> Comparison:
        """This comparison of ranks, with the newest comparisons of their hosts' clocks."""
        if not self.several_hosts:
            return self
        offsets = clocks.of_hosts(self.names)
        return replace(self, clocks=offsets, comparable=not np.isnan(offsets.bound_ms).any())

    def to_collector(self, t_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Times of each rank on the collector's clock: t + offset + drift x (t - time of the offset)."""
        clocks, host = self.clocks, self.host
        moved = clocks.drift[host] * (t_ns - clocks.t_ns[host])
        return np.asarray(t_ns + clocks.offset_ns[host] + np.rint(moved).astype(np.int64))

    @property
    def drift(self) -> Column:
        """How much longer one nanosecond of the rank's clock lasts on the collector's, in ns."""
        return np.asarray(self.clocks.drift[self.host])

    def bound_ms(self, t_ns: NDArray[np.int64]) -> Column:
        """(ranks,) bound of each rank's arrival against the others': the widest pair that it is part of.

        `t_ns`: the time, by the clock of each rank. Between two hosts the bounds of both clocks are added;
        ranks of one host share a clock. A ready stamp is early by at most its timer's bound, so that the
        larger of two holds for a pair. NaN: not comparable.
        """
        clock = np.zeros(len(self.host))
        if self.several_hosts:
            bounds = self.clocks.bounds_at(t_ns[self.first])
            widest = int(bounds.argmax())  # the first NaN, where there is one: the result stays NaN
            largest_other = np.delete(bounds, widest).max()
            clock = (bounds + np.where(np.arange(len(bounds)) == widest, largest_other, bounds[widest]))[
                self.host
            ]
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
        host = np.array([number[name] for name in names], np.int64)
        offsets = clocks.of_hosts([*number]) if len(number) > 1 else ONE_CLOCK
        timers = [self._bounds.get(rank, (SAME_HOST_BOUND_MS, 0.0)) for rank in ranks]
        return Comparison(
            host=host,
            first=np.unique(host, return_index=True)[1],
            names=tuple(number),
            clocks=offsets,
            ready_ms=np.array([ready for ready, _ in timers], np.float64),
            end_ms=np.array([end for _, end in timers], np.float64),
            several_hosts=len(number) > 1,
            comparable=not np.isnan(offsets.bound_ms).any(),
        )


ONE_CLOCK = HostOffsets(*np.zeros((2, 1), np.int64), *np.zeros((3, 1)))
"""Ranks of one host have one clock, which need not be put on another."""
