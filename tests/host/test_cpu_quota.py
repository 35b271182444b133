"""What a process waits for a CPU for: its cgroup's quota, other threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddptop.frames.phrases import cpu_reason
from ddptop.host import rank_processes
from ddptop.host.rank_processes import CpuQuota
from ddptop.protocol.machine import Usage


def test_the_share_of_throttled_periods_is_that_since_the_last_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = tmp_path / "cpu.stat"
    monkeypatch.setattr(rank_processes, "_statistics", lambda pid: statistics)
    quota, shares = CpuQuota(1), []
    for periods, throttled in ((10, 2), (20, 6), (20, 6)):
        statistics.write_text(f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5\n")
        shares.append(quota.throttled_pct())
    statistics.unlink()
    assert [*shares, quota.throttled_pct()] == [None, 40.0, None, None]


def test_the_reason_is_the_quota_where_it_is_used_up_else_the_threads() -> None:
    assert cpu_reason(Usage(0, 1, 30.0, 40.0, 5, 2)) == "CPU quota: throttled in 40% of periods"
    assert cpu_reason(Usage(0, 1, 30.0, 0.0, 5, 1)) == "5 runnable threads, it may use 1 core"
    assert cpu_reason(Usage(0, 1, 30.0)) == cpu_reason(None) == ""
