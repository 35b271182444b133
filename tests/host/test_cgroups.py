"""What a process waits for: a CPU (its cgroup's quota, other threads), a disk; kills for want of memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ddptop.frames.phrases import exit_phrase
from ddptop.frames.reasons import blocked_reason, cpu_reason, disk_reason
from ddptop.host import cgroups, kernel_view
from ddptop.host.cgroups import KILLED_NS, CpuQuota, OutOfMemoryKills
from ddptop.host.exits import RankProcess
from ddptop.host.kernel_view import UsageSampler
from ddptop.host.processes import process_status
from ddptop.host.rank_processes import ProcessWatch
from ddptop.protocol.limits import NS
from ddptop.protocol.machine import Usage
from tests.processes import until


def test_the_share_of_throttled_periods_is_that_since_the_last_call(tmp_path: Path) -> None:
    statistics = tmp_path / "cpu.stat"
    quota, shares = CpuQuota(statistics), []
    for periods, throttled in ((10, 2), (20, 6), (20, 6)):
        statistics.write_text(f"nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec 5\n")
        shares.append(quota.throttled_pct())
    statistics.unlink()
    assert [*shares, quota.throttled_pct()] == [None, 40.0, None, None]


def test_the_reason_is_the_quota_where_it_is_used_up_else_the_threads() -> None:
    assert cpu_reason(Usage(0, 1, 30.0, 40.0, 5, 2)) == "CPU quota: throttled in 40% of periods"
    assert cpu_reason(Usage(0, 1, 30.0, 0.0, 5, 1)) == "5 runnable threads, it may use 1 core"
    assert cpu_reason(Usage(0, 1, 30.0)) == cpu_reason(None) == ""


def test_pages_from_disk_are_the_reason_of_the_rank_that_reads_many_more_than_the_others() -> None:
    assert disk_reason(300.4, 70.0, None) == "reads pages back from disk: 300 major faults/s"
    assert (
        disk_reason(300.0, 80.0, None)
        == disk_reason(49.0, 0.0, None)
        == disk_reason(math.nan, 0.0, None)
        == ""
    )


def test_a_rank_that_is_blocked_far_more_often_than_the_others_has_that_as_its_reason() -> None:
    words = "blocked in 40% of readings (state D: a disk, a network file system or a device)"
    assert blocked_reason(40.0, 20.0) == words
    assert blocked_reason(40.0, 30.0) == blocked_reason(20.0, 0.0) == blocked_reason(math.nan, 0.0) == ""


def test_the_share_of_readings_in_state_d_is_told_once_there_are_ten(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process_status(os.getpid())
    assert own is not None
    states = iter("DSDSDSSSSSSS")
    monkeypatch.setattr(kernel_view, "process_status", lambda _: own._replace(state=next(states)))
    rank, sampler = RankProcess(7, 1, os.getpid()), UsageSampler()
    shares = [
        usage.blocked_pct for second in range(12) for _, usage in sampler.sample_usage([rank], second * NS)
    ]
    assert shares == [*[None] * 8, 30.0, 20.0, 20.0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.events", "low 0\nhigh 9\nmax 4\noom 2\noom_kill {}\noom_group_kill 0\n"),
        ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
)
def test_a_kill_for_want_of_memory_is_one_where_the_count_of_its_cgroup_has_just_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    file, kills = tmp_path / name, OutOfMemoryKills()
    monkeypatch.setattr(cgroups, "cgroup_file", lambda *_: file)
    file.write_text(text.format(3))
    kills.watch_process(7, 0)
    assert not kills.was_killed(7, 1), "those before it was watched count for nothing"
    file.write_text(text.format(4))
    kills.read_all(2)
    assert kills.was_killed(7, KILLED_NS) and not kills.was_killed(8, KILLED_NS)
    assert kills.was_killed(7, KILLED_NS + 2) is False, "somebody else has killed it"
    file.unlink()
    kills.read_all(KILLED_NS + 3)
    kills.forget_process(7)
    assert kills.was_killed(7, KILLED_NS + 3) is None, "there is no count"


def test_the_kernels_own_kill_is_said_as_such() -> None:
    words = exit_phrase("SIGKILL", None, "out of memory: the kernel killed it", at=" at step 40")
    assert words == "was killed by SIGKILL at step 40 (out of memory: the kernel killed it)"


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A cgroup whose processes may have 64 MiB; skips where this machine lets us make none."""
    root = Path("/sys/fs/cgroup")
    version_1 = (root / "memory").exists()
    folder = (root / "memory" if version_1 else root) / f"ddptop-test-{time.monotonic_ns()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(64 << 20))
        with suppress(OSError):
            (folder / ("memory.memsw.limit_in_bytes" if version_1 else "memory.swap.max")).write_text("0")
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"needs a cgroup with a limit of memory: {error}")
    yield folder
    folder.rmdir()


GROWING = "kept = []\nwhile True: kept.append(bytearray(b'x') * (1 << 22))"

WORKER_GROWS = f"""
import os
if os.fork() == 0:
    {GROWING.replace(chr(10), chr(10) + "    ")}
os._exit(1 if os.wait()[1] == 9 else 0)
"""


@pytest.mark.parametrize("grows", [GROWING, pytest.param(WORKER_GROWS, id="worker")])
def test_a_process_that_the_kernel_kills_for_want_of_memory(small_cgroup: Path, grows: str) -> None:
    watch = ProcessWatch(lambda _: None, lambda _: None)
    program = f"input()\n{grows}"
    with subprocess.Popen([sys.executable, "-S", "-c", program], stdin=subprocess.PIPE) as process:
        (small_cgroup / "cgroup.procs").write_text(str(process.pid))
        watch.watch_process(RankProcess(1, 0, process.pid), time.time() + 1, time.monotonic_ns())
        process.communicate(b"\n", timeout=60)
    watch.note_exit_code(process.pid, process.returncode, time.monotonic_ns())
    (found,) = until(lambda: watch.take_exits(time.monotonic_ns()), "its exit is reported")
    assert found.to_event("lost_rank").fields["out_of_memory"] is True
