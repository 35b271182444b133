"""The offset between a host's clock and the collector's, with a bound, from exchanges over their link.

An exchange has four times in ns: `t0` sent by the host, `t1` read by the collector, `t2` answered by the
collector, `t3` read by the host; `t0` and `t3` by the host's clock, `t1` and `t2` by the collector's. The
offset is what has to be added to the host's clock to get the collector's. A message is read after it was
sent, so

    offset at t0 <= t1 - t0,     offset at t3 >= t2 - t3.

Both hold whatever the delays are. Their middle is NTP's offset ((t1-t0)+(t2-t3))/2, and half their distance
is half the round trip, ((t3-t0)-(t2-t1))/2 (RFC 5905, section 8): delay in one direction only makes the
middle wrong by at most half of it, which the bound covers. Moved to a later time by the drift between the
clocks, the limits of several exchanges hold together: the smallest upper and the largest lower one count
(Marzullo 1984, intersection of intervals; the minimum filter of RFC 5905, section 10, in each direction by
itself). The drift has limits likewise: the offset rises from one exchange to a later one by no less and no
more than the limits of both permit.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

MAX_DRIFT = 1000e-6
"""Two clocks run apart by no more: Linux corrects the rate of each by up to 500 ppm (adjtimex(2))."""

WANDER = 10e-6
"""The drift over any part of the window differs from the mean drift by no more. The rate of a crystal changes
by about 1 ppm in some minutes, that of a clock that NTP corrects by a few. A faster change soon contradicts
the limits of earlier exchanges, and these are then discarded."""

DRIFT_KNOWN = 100e-6
"""A drift that may be wrong by more is given as 0, and the bound is larger for it."""

HORIZON_NS = 2_000_000_000
"""An estimate has to hold so long: the agent sends one every second, and may be late."""

SHORTEST_PERIOD_NS, PERIOD_NS = 250_000_000, 8_000_000_000
"""Shortest and longest period. Of its exchanges the one with the shortest round trip is kept. Within these
limits a period is a quarter of the time since the first exchange, so that the drift is soon known."""

KEPT = 32
"""Periods that are kept: the last four minutes. A round trip of 0.2 ms gives the drift to about 1 ppm, one of
10 ms to 40 ppm."""


class Estimate(NamedTuple):
    """The offset of a clock at one time."""

    t_ns: int
    """By the host's clock."""
    offset_ns: int
    """To be added to the host's clock to get the collector's."""
    bound_ns: int
    """The offset, moved on by `drift_ppb`, is wrong by at most this, from `t_ns` until HORIZON_NS later."""
    drift_ppb: int
    """How much faster the collector's clock runs, in parts per billion; 0 while it is not known."""
    round_trip_ns: int
    """Shortest round trip of the exchanges that are kept."""


class _ClockExchange(NamedTuple):
    """What one exchange says: the offset is at most `upper` at `t0` and at least `lower` at `t3`."""

    t0: int
    upper: int
    t3: int
    lower: int

    def round_trip(self, drift: float) -> float:
        """Time on the way, without the time in which the collector held the answer back."""
        return self.upper - self.lower + drift * (self.t3 - self.t0)


class ClockFilter:
    """Estimates the offset between two clocks from the exchanges of one link."""

    def __init__(self) -> None:
        self._kept: list[_ClockExchange] = []
        """The best exchange of each period, in order of time."""
        self._newest: _ClockExchange | None = None
        self._drift = (-MAX_DRIFT, MAX_DRIFT)
        """The mean drift lies between these two."""
        self._period_end = 0

    def add_exchange(self, t0: int, t1: int, t2: int, t3: int) -> None:
        """Take an exchange, later than those before it. One whose times run backward is ignored."""
        if t3 < t0 or t2 < t1 or (self._newest is not None and t3 <= self._newest.t3):
            return
        new = _ClockExchange(t0, t1 - t0, t3, t2 - t3)
        self._newest = new
        low, high = self._limits_of_drift()
        for old in self._kept:
            highest = old.upper + (t3 - old.t0) * high
            # With a negative time between them the highest drift gives the lowest limit.
            lowest = old.lower + (t0 - old.t3) * (low if t0 >= old.t3 else high)
            # The limits contradict each other: the rate of a clock has changed by more than WANDER.
            if new.lower > highest or new.upper < lowest:
                self._begin_anew(new)
                return
        if self._kept and t3 < self._period_end:
            last, drift = self._kept[-1], sum(self._drift) / 2
            # The earlier one loses in sharpness by what the drift is uncertain: a new one that is longer by
            # more is worse.
            longest_allowed = last.round_trip(drift) + (high - low) * (t3 - last.t3)
            if new.round_trip(drift) > longest_allowed:
                return
            self._kept[-1] = new
            return
        self._kept = [*self._kept, new][-KEPT:]
        period = (t3 - self._kept[0].t3) // 4
        self._period_end = t3 + min(max(period, SHORTEST_PERIOD_NS), PERIOD_NS)

    def estimate_offset(self, now_ns: int) -> Estimate | None:
        """The offset at `now_ns` of the host's clock; None before the first exchange.

        The bound is half the distance of the two limits, moved to `now_ns`, plus what the drift may be wrong
        by over HORIZON_NS. It grows while no exchange is added.
        """
        if not self._kept or self._newest is None:
            return None
        # Never back in time: the limits are moved forward only.
        now_ns = max(now_ns, self._newest.t3)
        self._drift = self._drift_between()
        if self._drift[0] > self._drift[1]:
            self._begin_anew(self._newest)
        lower, upper = self._limits_at(now_ns)
        if lower > upper:
            self._begin_anew(self._newest)
            lower, upper = self._limits_at(now_ns)
        low, high = self._limits_of_drift()
        # WANDER is part of the width of the limits, but says nothing about how well the mean is known.
        drift = (low + high) / 2 if (high - low) / 2 <= DRIFT_KNOWN + WANDER else 0.0
        drift_ppb = round(drift * 1e9)
        # The drift is sent as an integer, so that its rounding is a part of the error.
        error = max(high - drift_ppb / 1e9, drift_ppb / 1e9 - low)
        return Estimate(
            t_ns=now_ns,
            offset_ns=self._newest.lower + round((lower + upper) / 2),
            bound_ns=ceil((upper - lower) / 2 + error * HORIZON_NS) + 1,
            drift_ppb=drift_ppb,
            # At least 1: a 0 stands for no exchange.
            round_trip_ns=max(1, round(min(exchange.round_trip(drift) for exchange in self._kept))),
        )

    def _begin_anew(self, newest: _ClockExchange) -> None:
        self._kept, self._drift = [newest], (-MAX_DRIFT, MAX_DRIFT)
        self._period_end = newest.t3 + SHORTEST_PERIOD_NS

    def _limits_of_drift(self) -> tuple[float, float]:
        """Limits of the drift from any exchange that is kept until now, or until the horizon."""
        low, high = self._drift
        return max(low - WANDER, -MAX_DRIFT), min(high + WANDER, MAX_DRIFT)

    def _limits_at(self, now_ns: int) -> tuple[float, float]:
        """Largest lower and least upper limit of the offset at a time, less `lower` of the newest exchange.

        Offsets themselves may be too large for a float.
        """
        assert self._newest is not None
        base = self._newest.lower
        low, high = self._limits_of_drift()
        lower = max(exchange.lower - base + low * (now_ns - exchange.t3) for exchange in self._kept)
        upper = min(exchange.upper - base + high * (now_ns - exchange.t0) for exchange in self._kept)
        return lower, upper

    def _drift_between(self) -> tuple[float, float]:
        """Limits of the mean drift: from each exchange to a later one the offset rises by no less and no more
        than the limits of both permit."""
        low, high = -MAX_DRIFT, MAX_DRIFT
        kept = self._kept
        # All pairs: there are at most KEPT exchanges, and this runs once a second.
        for index, old in enumerate(kept):
            for new in kept[index + 1 :]:
                # Only where one exchange ends before the other begins is the order of their limits known.
                if new.t0 > old.t3:
                    low = max(low, (new.lower - old.upper) / (new.t3 - old.t0) - WANDER)
                    high = min(high, (new.upper - old.lower) / (new.t0 - old.t3) + WANDER)
        return low, high
