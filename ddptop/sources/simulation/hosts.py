"""The simulated hosts: clocks that are apart and drift, readings, and what an agent reports of both."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ddptop.protocol.hosts import Host, HostUsage
from ddptop.protocol.limits import VERSION
from ddptop.protocol.messages import Clock

RANKS_PER_NODE = 8

CORES, MEMORY_BYTES = 96, 1 << 40

BOUND_NS, ROUND_TRIP_NS = 130_000, 170_000
"""Bound and round trip of a clock exchange in a data centre's network. The bound is half the round trip and
what the drift may be wrong by."""

MOST_APART_NS = 20_000_000
"""Largest difference between the clocks of two hosts."""

MOST_DRIFT_PPM = 40

CUT_S = 8.0
"""How long nothing arrives from one host, which is not yet lost."""


@dataclass(frozen=True)
class SimulatedHost:
    """One host by its number. Host 0 has the collector, so its clock is the collector's."""

    number: int
    began_ns: int = field(default_factory=time.monotonic_ns)
    """Its clock drifts from then on."""

    @property
    def name(self) -> str:
        """`node003`."""
        return f"node{self.number:03d}"

    @property
    def agent_session(self) -> int:
        """The session of its agent; 0: the collector is the agent of its own host."""
        # `and`: 0 for host 0.
        return self.number and 2**61 + self.number

    @property
    def drift_ppb(self) -> int:
        """How much faster the collector's clock runs."""
        # From the number, so that a run looks the same every time; 7,919 is a prime, which spreads them.
        return self.number and (self.number * 7_919) % (2_000 * MOST_DRIFT_PPM) - 1_000 * MOST_DRIFT_PPM

    def clock_ns(self, t_ns: int) -> int:
        """A time of the collector's clock on the host's, which is some milliseconds off."""
        ahead_ns = self.number * 1_299_709 % MOST_APART_NS
        return t_ns + ahead_ns - round(self.drift_ppb * (t_ns - self.began_ns) / 1e9)

    def introduction(self, run_id: str, now_ns: int, unix_ns: int) -> Host:
        """The first message of its agent. `now_ns`, here and below: by the collector's clock."""
        return Host(
            VERSION, run_id, self.agent_session, self.name, 1_000 + self.number,
            self.clock_ns(now_ns), unix_ns, CORES, MEMORY_BYTES, f"simulated-{self.number}",
        )  # fmt: skip

    def compare_clocks(self, now_ns: int) -> Clock:
        """An exchange with the collector: the offset is wrong by less than its bound."""
        t_ns = self.clock_ns(now_ns)
        # Within the bound, and different for each host and moment.
        wrong_ns = round(0.3 * BOUND_NS * math.sin(self.number + now_ns / 7e9))
        offset_ns = now_ns - t_ns + wrong_ns
        return Clock(t_ns, self.name, offset_ns, BOUND_NS, self.drift_ppb, ROUND_TRIP_NS)

    def read_usage(self, now_ns: int, *, kept: int = 0) -> HostUsage:
        """A reading of it; one host in 16 is busier than the others."""
        wave = math.sin(self.number * 1.7 + now_ns / 11e9)
        busy = 91.0 if self.number % 16 == 11 else 34.0
        traffic = 2.1e9 + 1.5e8 * wave
        return HostUsage(
            t_ns=self.clock_ns(now_ns),
            cpu_pct=round(busy + 4 * wave, 1),
            memory_used_bytes=int((0.41 + 0.02 * wave) * MEMORY_BYTES),
            received_bytes_s=traffic,
            sent_bytes_s=0.98 * traffic,
            round_trip_ns=ROUND_TRIP_NS + int(4e4 * wave) if self.number else None,
            kept=kept,
            local_recording=None,
            thinned=0,
        )
