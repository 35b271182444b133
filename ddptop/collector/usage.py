"""Memory and CPU of the ranks' processes, read from outside at no cost to them."""

from __future__ import annotations

from collections.abc import Iterable

import psutil

from ddptop.collector.watch import RankProcess
from ddptop.protocol.machine import Usage


class UsageSampler:
    """Reads the processes it is given. CPU is that since the reading before, so the first gives none."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}

    def sample(self, living: Iterable[RankProcess], now_ns: int) -> list[tuple[RankProcess, Usage]]:
        """One reading of each process that can be read."""
        before, self._processes = self._processes, {}
        readings = []
        for rank in living:
            known = before.get(rank.session)
            try:
                process = known or psutil.Process(rank.pid)
                with process.oneshot():
                    cpu_pct, rss_bytes = process.cpu_percent(None), process.memory_info().rss
            except psutil.Error:
                continue
            self._processes[rank.session] = process
            if known is not None:
                readings.append((rank, Usage(now_ns, int(rss_bytes), float(cpu_pct))))
        return readings
