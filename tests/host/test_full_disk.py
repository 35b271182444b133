"""A file system on which nothing can be written any more is noticed, and named with what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddptop.agent.host_watch import HostWatch
from ddptop.host.exits import RankProcess
from ddptop.host.kernel_view import DISKS_NS, REPEAT_NS, FullDisks, folders_of, is_full
from ddptop.host.step_counters import new_step_counter, note_step_count
from ddptop.protocol.messages import Event
from tests.agent.test_silent_rank import Gpus, Processes, Ranks
from tests.made_up_run import hello
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


def test_a_rank_counts_its_steps_in_memory_where_no_file_can_be_written(small_disk: Path) -> None:
    fill(small_disk)
    greeting = hello(0, 1)
    counter = new_step_counter(small_disk, greeting)
    try:
        note_step_count(small_disk, greeting.session, 5)
        assert [path.name for path in small_disk.iterdir()] == ["large"]
        assert os.pwrite(counter, b"\x07", 0) == 1
    finally:
        os.close(counter)


def test_a_text_for_a_full_disk_is_dropped(small_disk: Path) -> None:
    fill(small_disk)
    code = "import sys; from ddptop.protocol.outlets import print_text; print_text('x', file=sys.stderr)"
    with (small_disk / "log").open("wb") as log:
        assert subprocess.run([sys.executable, "-c", code], stderr=log).returncode == 0


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


def test_the_full_working_folder_of_a_rank_is_reported_and_that_it_is_no_longer(small_disk: Path) -> None:
    fill(small_disk)
    disks, now = FullDisks(), iter(range(10**6))
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=small_disk, stdin=subprocess.PIPE) as rank:

        def changed() -> list[tuple[str, bool]]:
            return disks.check_folders(lambda: folders_of(rank.pid), next(now) * DISKS_NS)

        words = f"{small_disk} (working folder)"
        assert until(changed, "the full folder is reported") == [(words, True)]
        assert not any(changed() for _ in range(REPEAT_NS // DISKS_NS - 1))
        (small_disk / "large").unlink()
        free = until(lambda: [one for one in changed() if not one[1]], "it is no longer full")
        assert free == [(words, False)]
        rank.communicate(b"\n", timeout=60)


def test_the_host_reports_the_full_folder_as_an_event_of_a_rank_that_runs_there(
    small_disk: Path, tmp_path: Path
) -> None:
    fill(small_disk)
    with subprocess.Popen([sys.executable, "-c", "input()"], cwd=small_disk, stdin=subprocess.PIPE) as rank:
        ranks, processes = Ranks([rank.pid, os.getpid()]), Processes([RankProcess(7, 1, rank.pid)])
        ranks.asked = set()
        watch = HostWatch(tmp_path, "run", ranks, processes, Gpus(), None)  # type: ignore[arg-type]

        def told() -> list[Event]:
            watch.check_each_second(time.monotonic_ns())
            return [event for event in ranks.events if event.kind == "disk"]

        (event,) = until(told, "the event")  # type: ignore[misc]
        assert (event.rank, event.fields["session"], event.fields["full"]) == (1, 7, True)
        assert event.fields["folder"] == f"{small_disk} (working folder)"
        rank.communicate(b"\n", timeout=60)


@pytest.mark.parametrize(("flag", "full"), [(0, True), (os.ST_RDONLY, False)])
def test_a_read_only_file_system_is_not_full(monkeypatch: pytest.MonkeyPatch, flag: int, full: bool) -> None:
    image = {"f_flag": flag, "f_frsize": 4096, "f_blocks": 900, "f_bfree": 0, "f_bavail": 0}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**image, f_files=20, f_favail=0))
    assert is_full("/image") is full


def test_a_folder_that_stays_full_is_reported_every_minute_and_one_that_is_gone_never_as_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ddptop.host.kernel_view.is_full", lambda path: True)
    disks, now, folders, asked_by = FullDisks(), iter(range(10**6)), {"/data (working folder)": "/data"}, []

    def read() -> dict[str, str]:
        asked_by.append(threading.current_thread())
        return dict(folders)

    def changed() -> list[tuple[str, bool]]:
        return disks.check_folders(read, next(now) * DISKS_NS)

    full = [("/data (working folder)", True)]
    assert until(changed, "the full folder is reported") == full
    every = REPEAT_NS // DISKS_NS
    assert [changed() for _ in range(2 * every)] == 2 * [*(every - 1) * [[]], full]
    folders.clear()
    already, later = len(asked_by), []

    def read_since() -> bool:
        later.extend(changed())
        return len(asked_by) > already + 2  # of the one before, the folders are known

    until(read_since, "the folders were read again")
    later += [one for _ in range(2 * every) for one in changed()]
    assert {*later} <= {*full}
    assert not any(changed() for _ in range(2 * every))
    assert threading.main_thread() not in asked_by, "a dead server would block it"


@pytest.mark.parametrize("recorded", [False, True])
def test_the_folder_that_is_recorded_to_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    monkeypatch.setattr("ddptop.host.kernel_view.is_full", lambda path: True)
    ranks, processes = Ranks([os.getpid(), 0]), Processes([RankProcess(7, 1, os.getpid())])
    ranks.asked = set()
    file = tmp_path / "mine" / "run.ddptop" if recorded else None
    watch = HostWatch(tmp_path, "run", ranks, processes, Gpus(), file)  # type: ignore[arg-type]

    def reported() -> list[str]:
        watch.check_each_second(time.monotonic_ns())
        return [str(event.fields["folder"]) for event in ranks.events if event.kind == "disk"]

    of_recordings = [name for name in until(reported, "the events") if "(recordings)" in name]
    assert of_recordings == ([f"{tmp_path}/mine (recordings)"] if recorded else [])
