"""A file system on which nothing can be written any more is noticed, and named with what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.agent.host_watch import HostWatch
from ddptop.host.exits import RankProcess
from ddptop.host.kernel_view import DISKS_NS, FullDisks, folders_of, is_full
from ddptop.protocol.messages import Event
from tests.agent.test_silent_rank import Gpus, Processes, Ranks
from tests.processes import until


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB; skips where this machine lets us make none."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=64", "small", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs root that may mount")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "large").open("wb", buffering=0) as file, pytest.raises(OSError):
        while True:
            file.write(b"x" * (1 << 20))


def test_a_disk_is_full_once_nothing_more_can_be_written(small_disk: Path) -> None:
    assert not is_full(str(small_disk))
    fill(small_disk)
    assert is_full(str(small_disk))
    (small_disk / "large").unlink()
    assert not is_full(str(small_disk))
    for number in range(64):
        try:
            (small_disk / str(number)).touch()
        except OSError:
            break
    assert is_full(str(small_disk)), "it has no inodes left"
    assert not is_full(str(small_disk / "none"))


def test_the_full_working_folder_of_a_rank_is_told_once_and_that_it_is_no_longer(small_disk: Path) -> None:
    fill(small_disk)
    disks, now = FullDisks(), iter(range(10**6))
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=small_disk, stdin=subprocess.PIPE) as rank:

        def changed() -> list[tuple[str, bool]]:
            return disks.check(lambda: folders_of(rank.pid), next(now) * DISKS_NS)

        words = f"{small_disk} (working folder)"
        assert until(changed, "the full folder is told") == [(words, True)]
        assert not any(changed() for _ in range(20))
        (small_disk / "large").unlink()
        assert until(changed, "it is told to be no longer full") == [(words, False)]
        rank.communicate(b"\n", timeout=60)


def test_the_host_reports_the_full_folder_as_an_event_of_a_rank_that_runs_there(
    small_disk: Path, tmp_path: Path
) -> None:
    fill(small_disk)
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=small_disk, stdin=subprocess.PIPE) as rank:
        ranks, processes = Ranks([rank.pid, os.getpid()]), Processes([RankProcess(7, 1, rank.pid)])
        ranks.asked = set()
        watch = HostWatch(tmp_path, "run", ranks, processes, Gpus())  # type: ignore[arg-type]

        def told() -> list[Event]:
            watch.check(time.monotonic_ns())
            return [event for event in ranks.events if event.kind == "disk"]

        (event,) = until(told, "the event")  # type: ignore[misc]
        assert (event.rank, event.fields["session"], event.fields["full"]) == (1, 7, True)
        assert event.fields["folder"] == f"{small_disk} (working folder)"
        rank.communicate(b"\n", timeout=60)
