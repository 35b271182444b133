"""What /proc and /sys say of swap, of the processors' clock and of their throttling for heat."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import psutil
import pytest

from ddptop.host import kernel_view
from ddptop.host.exits import RankProcess
from ddptop.host.kernel_view import (
    READINGS,
    HeatThrottling,
    SwapIns,
    UsageSampler,
    clock_pct,
    swapped_bytes,
)
from ddptop.host.processes import process_status
from ddptop.protocol.limits import NS


def test_what_of_a_process_is_in_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert swapped_bytes(os.getpid()) is not None, "this kernel tells it"
    assert swapped_bytes(2**22 + 1) is None
    (tmp_path / "7").write_text("Name:\tpython\nVmRSS:\t 4096 kB\nVmSwap:\t 2048 kB\nThreads:\t1\n")
    monkeypatch.setattr(kernel_view, "STATUS_FILE", f"{tmp_path}/{{}}")
    assert swapped_bytes(7) == 2 << 20


def test_pages_read_back_from_swap_are_those_since_the_last_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(kernel_view, "VMSTAT", vmstat)
    swap_ins, rates = SwapIns(), []
    for second, pages in enumerate((1000, 1400, 1400)):
        vmstat.write_text(f"pgfault 7\npswpin {pages}\npswpout 9\n")
        rates.append(swap_ins.per_s(2 * second * NS))
    vmstat.unlink()
    assert [*rates, swap_ins.per_s(9 * NS)] == [None, 200.0, 0.0, None]


@pytest.fixture
def processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of processor 3, with a clock and counters of heat."""
    monkeypatch.setattr(kernel_view, "PROCESSORS", tmp_path)
    folder = tmp_path / "cpu3"
    for name in ("cpufreq", "thermal_throttle"):
        (folder / name).mkdir(parents=True)
    (folder / "cpufreq" / "cpuinfo_max_freq").write_text("3600000\n")
    (folder / "cpufreq" / "scaling_cur_freq").write_text("1800000\n")
    (folder / "thermal_throttle" / "core_throttle_total_time_ms").write_text("100\n")
    (folder / "thermal_throttle" / "package_throttle_total_time_ms").write_text("4000\n")
    return folder


def test_the_clock_is_a_share_of_the_highest_and_unknown_where_no_file_tells_it(processor: Path) -> None:
    assert clock_pct(3) == 50.0
    assert clock_pct(4) is None


def test_the_time_throttled_for_heat_is_that_since_the_last_reading(processor: Path) -> None:
    heat = HeatThrottling()
    assert heat.throttled_pct(3, 10 * NS) is None
    (processor / "thermal_throttle" / "package_throttle_total_time_ms").write_text("4800\n")
    assert heat.throttled_pct(3, 12 * NS) == 40.0
    assert heat.throttled_pct(3, 13 * NS) == 0.0
    assert heat.throttled_pct(4, 14 * NS) is None


def test_files_about_heat_that_are_not_there_are_not_looked_for_again(
    processor: Path,
) -> None:
    heat = HeatThrottling()
    assert heat.throttled_pct(4, 10 * NS) is None
    shutil.copytree(processor, processor.with_name("cpu4"))
    assert [heat.throttled_pct(4, second * NS) for second in (11, 12)] == [None, None]
    looks_anew = HeatThrottling()
    assert [looks_anew.throttled_pct(4, second * NS) for second in (11, 12)] == [None, 0.0]


def test_what_is_in_swap_is_read_where_pages_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vmstat = tmp_path / "vmstat"
    monkeypatch.setattr(kernel_view, "VMSTAT", vmstat)
    rank, sampler, read = RankProcess(7, 1, os.getpid()), UsageSampler(), []
    for second, pages in enumerate((100, 100, 500, 500)):
        vmstat.write_text(f"pswpin {pages}\n")
        read += [
            (usage.swap_ins_s, usage.swapped_bytes is not None)
            for _, usage in sampler.sample_usage([rank], second * NS)
        ]
    assert read == [(0.0, False), (400.0, True), (0.0, False)]


def test_cpu_and_memory_of_a_process_are_those_that_psutil_reads() -> None:
    rank, sampler, process = RankProcess(7, 1, os.getpid()), UsageSampler(), psutil.Process()
    begun_ns, spent = time.monotonic_ns(), process.cpu_times()
    sampler.sample_usage([rank], begun_ns)
    while time.process_time() < spent.user + spent.system + 0.3:
        pass
    ended_ns = time.monotonic_ns()
    ((_, usage),) = sampler.sample_usage([rank], ended_ns)
    cpu_s = sum(process.cpu_times()[:2]) - spent.user - spent.system
    assert usage.cpu_pct == pytest.approx(100 * cpu_s * NS / (ended_ns - begun_ns), rel=0.15)
    assert usage.rss_bytes == pytest.approx(process.memory_info().rss, rel=0.05)


def test_the_clock_of_a_rank_is_the_mean_of_readings_that_found_it_running(
    processor: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = process_status(os.getpid())
    assert own is not None
    states = iter("SR" * READINGS)
    monkeypatch.setattr(
        kernel_view, "process_status", lambda _: own._replace(state=next(states), processor=3)
    )
    rank, sampler = RankProcess(7, 1, os.getpid()), UsageSampler()
    usages = [usage for s in range(2 * READINGS) for _, usage in sampler.sample_usage([rank], s * NS)]
    assert [usage.clock_pct for usage in usages] == [*[None] * (2 * READINGS - 2), 50.0]
    assert usages[0].heat_pct == 0.0
    assert usages[-1].watcher_pct is not None and usages[-1].watcher_pct > 0
    assert usages[-1].swap_ins_s is not None


def test_the_kernel_tells_on_which_processor_a_process_ran() -> None:
    status = process_status(os.getpid())
    assert status is not None and 0 <= status.processor < (os.cpu_count() or 1)
