"""Reports of the collector's own host, in a run over several hosts: there it is the agent of that host.

They have session 0, as all that the collector reports itself. A run on one host has no such reports.
"""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from ddptop.agent.host_usage import PERIOD_NS, HostSampler, describe_host
from ddptop.protocol.hosts import HostUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ddptop.host.exits import RankProcess
    from ddptop.protocol.messages import Message

SESSION = 0


class OwnHost:
    """Introduces the host, then reports its usage once a second."""

    def __init__(
        self,
        run_id: str,
        report: Callable[[Message, int], None],
        processes: Callable[[], Iterable[RankProcess]],
    ) -> None:
        """`report` takes a message and the time; `processes` gives those of the ranks on this host."""
        self._report = report
        self._sampler = HostSampler(processes)
        self._due_ns = 0
        clocks = (time.monotonic_ns(), time.time_ns())
        report(describe_host(socket.gethostname(), run_id, SESSION, lambda: clocks), clocks[0])

    def check(self, now_ns: int) -> None:
        """Report the usage, if it is due."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + PERIOD_NS
        usage = HostUsage(
            t_ns=now_ns,
            **self._sampler.sample(now_ns)._asdict(),
            round_trip_ns=None,
            kept=0,
            local_recording=None,
            thinned=0,
        )
        self._report(usage, now_ns)
