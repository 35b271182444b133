"""A run's folder: private, found again, and held by one collector only."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ddptop.host import collector_start
from ddptop.host import folders as roots_module
from ddptop.host.early_failures import leave_failure
from ddptop.host.folders import RunDirectoryError, open_log, run_roots, state_directory, state_path
from ddptop.host.processes import current_process, process_start
from ddptop.host.runs import (
    STARTING,
    RunFile,
    create_run_directory,
    ensure_run_directory,
    flight_folder,
    hold_lock,
    ingest_endpoint,
    live_runs,
    remove_run_directory,
    write_command,
    write_run_file,
)
from ddptop.protocol.evidence import Evidence
from tests.made_up_run import hello


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All roots inside the test's folder."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(roots_module, "SHARED_TMP", tmp_path / "tmp")
    return tmp_path


def run_file(directory: Path, **changes: object) -> RunFile:
    pid, start, boot, namespace = current_process()
    run = RunFile("name", directory.name, pid, start, boot, namespace, 1.5, "train.py", 2, None, directory)
    return replace(run, **changes)  # type: ignore[arg-type]


def test_a_run_is_made_found_and_removed(places):
    directory = create_run_directory("abc")
    assert directory == places / "runtime" / "ddptop" / "abc"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert live_runs() == []
    run = run_file(directory, recording="/some/where", world_size=0)
    write_run_file(directory, run)
    write_run_file(directory, run)
    flight_folder(directory).mkdir(mode=0o700)
    (flight_folder(directory) / "ddptop_gloo_rank_0").touch()
    leave_failure(directory, hello(0, 1), Evidence(0, 0, 0, 0, -1, "ValueError", (), (), ()))
    assert (directory / "run.json").stat().st_mode & 0o777 == 0o600
    assert live_runs() == [run]
    remove_run_directory(directory)
    remove_run_directory(directory)
    assert not directory.exists()
    assert live_runs() == []


def test_what_is_not_ours_in_a_runs_folder_is_not_removed():
    directory = create_run_directory("abc")
    flight_folder(directory).mkdir(mode=0o700)
    theirs = [directory / "model.pt", flight_folder(directory) / "model_rank_0"]
    for path in [*theirs, directory / "crash-1.txt"]:
        path.write_text("")
    remove_run_directory(directory)
    assert sorted(path for path in directory.rglob("*") if path.is_file()) == sorted(theirs)


def test_a_fifo_in_the_place_of_a_file_of_ours_is_not_waited_for():
    directory = create_run_directory("abc")
    for name in ("run.json", "lock", "members", "collector.log"):
        os.mkfifo(directory / name, 0o600)
    assert live_runs() == []
    assert collector_start.end_requested(directory)
    for attempt in (lambda: hold_lock(directory), lambda: collector_start.become_member(directory)):
        with pytest.raises(OSError, match="no regular file"):
            attempt()
    with pytest.raises(OSError, match="No such device"):
        open_log(directory / "collector.log")
    create_run_directory("next")


def test_runs_of_both_roots_are_found_newest_first(monkeypatch):
    first = create_run_directory("first")
    write_run_file(first, run_file(first, started_at=1.0))
    runtime = os.environ["XDG_RUNTIME_DIR"]
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    second = create_run_directory("second")
    write_run_file(second, run_file(second, started_at=2.0))
    assert second.parent.name == f"ddptop-{os.geteuid()}"
    assert [run.run_id for run in live_runs()] == ["second"]
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert [run.run_id for run in live_runs()] == ["second", "first"]


def test_a_runtime_folder_that_cannot_be_written_is_passed_over(places, monkeypatch):
    access = os.access
    before = create_run_directory("before")
    write_run_file(before, run_file(before))

    def without_runtime(path, mode, *, effective_ids):
        assert effective_ids
        return "/runtime" not in str(path) and access(path, mode, effective_ids=True)

    monkeypatch.setattr(os, "access", without_runtime)
    monkeypatch.setattr(os, "supports_effective_ids", {without_runtime})
    assert roots_module.read_only_root() == places / "runtime" / "ddptop"
    directory = create_run_directory("abc")
    assert directory.parent == places / "tmp" / f"ddptop-{os.geteuid()}"
    write_run_file(directory, run_file(directory))
    assert {run.run_id for run in live_runs()} == {"abc", "before"}, "it is still looked into"
    directory.parent.chmod(0o755)
    with pytest.raises(RunDirectoryError, match="open to other users"):
        create_run_directory("second")
    monkeypatch.setattr(os, "access", lambda _path, _mode, **_ids: False)
    assert roots_module.read_only_root() is None


@pytest.mark.parametrize("change", [{"process_start": 1}, {"boot_id": "another"}, {"pid": 2**22 + 5}])
def test_stale_runs_are_hidden_and_removed_by_the_next(change):
    directory = create_run_directory("dead")
    write_run_file(directory, run_file(directory, **change))
    assert live_runs() == []
    create_run_directory("next")
    assert not directory.exists()


@pytest.mark.parametrize("name", ["lock", "agent", "members"])
def test_a_stale_run_whose_lock_is_held_is_not_removed(name):
    """Its collector has died, and whoever holds the lock starts another or is one."""
    directory = create_run_directory("between")
    write_run_file(directory, run_file(directory, process_start=1))
    with (directory / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        create_run_directory("next")
        assert directory.exists()
    create_run_directory("after")
    assert not directory.exists()


def test_what_a_collector_that_never_began_has_left_is_removed():
    folder = collector_start.folder_of("stillborn")
    member = collector_start.become_member(folder)
    os.close(collector_start.open_agent_lock(folder))
    collector_start.folder_of("next")
    assert folder.exists()
    os.close(member)
    collector_start.folder_of("stillborn")
    assert folder.exists()
    collector_start.folder_of("next")
    assert not folder.exists()


def test_what_a_launcher_that_was_killed_before_its_collector_has_left_is_removed():
    """As one that waited for the launchers of other hosts."""
    directory = create_run_directory("dead")
    member = collector_start.become_member(directory)
    write_command(directory, ["train.py"])
    starting = directory.parent / f"{STARTING}4711"
    starting.touch()
    create_run_directory("next")
    assert directory.exists()
    assert not starting.exists()
    os.utime(directory, (0, 0))
    create_run_directory("second")
    assert directory.exists()
    os.close(member)
    create_run_directory("third")
    assert not directory.exists()
    assert {path.name for path in directory.parent.iterdir()} == {"next", "second", "third"}


def test_across_pid_namespaces_the_lock_tells_who_lives():
    directory = create_run_directory("elsewhere")
    write_run_file(directory, run_file(directory, pid=1, process_start=1, pid_namespace="pid:[1]"))
    assert live_runs() == []
    lock = hold_lock(directory)
    assert [run.run_id for run in live_runs()] == ["elsewhere"]
    os.close(lock)


def test_a_process_that_ended_has_no_start():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = process_start(process.pid)
    assert started is not None
    process.kill()
    end = time.monotonic() + 120
    while process_start(process.pid) is not None:  # a zombie until it is waited for
        assert time.monotonic() < end
        time.sleep(0.002)
    process.communicate()
    assert process_start(process.pid) is None


def test_the_lock_is_held_once():
    directory = create_run_directory("locked")
    lock = hold_lock(directory)
    with pytest.raises(RunDirectoryError, match="another collector already serves"):
        hold_lock(directory, patience_s=0)
    os.close(lock)
    os.close(hold_lock(directory, patience_s=0))


def _open_to_all(root: Path) -> None:
    root.mkdir(mode=0o700)
    root.chmod(0o755)


def _link(root: Path) -> None:
    elsewhere = root.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    root.symlink_to(elsewhere)


def _file(root: Path) -> None:
    root.write_text("")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [(_open_to_all, "chmod 700"), (_link, "is a link"), (_file, "is a link or no folder")],
)
def test_a_root_that_is_not_ours_alone_is_refused_in_one_line(spoil, reason):
    root = run_roots()[0]
    spoil(root)
    for attempt in (
        lambda: create_run_directory("abc"),
        live_runs,
        lambda: ensure_run_directory(root / "abc"),
    ):
        with pytest.raises(RunDirectoryError, match=reason) as caught:
            attempt()
        assert str(root) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_another_users_roots_are_passed_over():
    for preferred in run_roots()[:-1]:
        preferred.mkdir(mode=0o700)
        os.chown(preferred, 12345, 12345)
    directory = create_run_directory("abc")
    assert directory.parent == state_path() / "run"
    write_run_file(directory, run_file(directory))
    assert [run.run_id for run in live_runs()] == ["abc"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_runtime_folder_of_another_user_is_passed_over(places):
    os.chown(places / "runtime", 12345, 12345)
    assert create_run_directory("abc").parent.parent == places / "tmp"


def test_a_run_that_lives_is_found_beside_a_root_that_is_refused(places):
    directory = create_run_directory("abc")
    write_run_file(directory, run_file(directory))
    _open_to_all(run_roots()[1])
    assert [run.run_id for run in live_runs()] == ["abc"]


def test_a_path_too_long_for_a_socket_goes_to_the_short_root(places, monkeypatch):
    deep = places / ("d" * 120)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    directory = create_run_directory("abc")
    assert directory.parent == run_roots()[1]
    assert ingest_endpoint(directory) == f"ipc://{directory}/ingest"


@pytest.mark.parametrize("run_id", ["", "../up", "a/b", ".hidden", "x" * 65, "new\nline"])
def test_a_run_id_is_a_plain_name(run_id):
    with pytest.raises(RunDirectoryError, match="run id"):
        create_run_directory(run_id)


def test_the_same_run_is_not_made_twice():
    create_run_directory("abc")
    with pytest.raises(RunDirectoryError, match="already"):
        create_run_directory("abc")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"name": 1}', b"\xff\xfe", b"{" * 100_000])
def test_a_run_file_that_is_none_is_passed_over(data):
    directory = create_run_directory("abc")
    path = directory / "run.json"
    path.write_bytes(data)
    path.chmod(0o600)
    assert live_runs() == []


def test_the_state_folder_is_made_private(places, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "state"))
    assert state_directory() == places / "state" / "ddptop"
    assert state_directory().stat().st_mode & 0o777 == 0o700
    (places / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "file"))
    with pytest.raises(RunDirectoryError, match="cannot make"):
        state_directory()
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "others"))
    (places / "others" / "ddptop").mkdir(parents=True)
    (places / "others" / "ddptop").chmod(0o755)
    with pytest.raises(RunDirectoryError, match="chmod 700"):
        state_directory()
    (places / "others" / "ddptop").rmdir()
    (places / "others" / "ddptop").symlink_to(places / "state" / "ddptop")
    with pytest.raises(RunDirectoryError, match="is a link"):
        state_directory()


def test_what_is_made_for_the_state_folder_is_private_whatever_the_umask(places, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(places / "a" / "b"))
    before = os.umask(0)
    try:
        path = state_directory()
    finally:
        os.umask(before)
    assert [folder.stat().st_mode & 0o777 for folder in (path, *path.parents[:2])] == [0o700] * 3


def test_without_a_home_recordings_go_beside_the_runs(places, monkeypatch):
    def unknown(_uid):
        raise KeyError

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    root = places / "tmp" / f"ddptop-{os.geteuid()}"
    assert state_directory() == root / "recordings"
    assert [path.stat().st_mode & 0o777 for path in (root, root / "recordings")] == [0o700] * 2
    create_run_directory("abc")
    assert state_directory().exists()
    root.chmod(0o755)
    with pytest.raises(RunDirectoryError, match="chmod 700"):
        state_directory()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_state_folder_of_another_user_is_not_ours(places, monkeypatch):
    """`sudo -E` keeps the variables of the user who calls it."""
    theirs = places / "home" / ".local" / "state" / "ddptop"
    theirs.mkdir(parents=True, mode=0o700)
    for folder in (theirs, *theirs.parents[:3]):
        os.chown(folder, 12345, 12345)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(places / "home"))
    assert state_path() == Path("~root/.local/state/ddptop").expanduser()
    monkeypatch.setenv("XDG_STATE_HOME", str(theirs.parent))
    with pytest.raises(RunDirectoryError, match="belongs to user 12345"):
        state_directory()


def test_to_look_for_members_makes_no_file(tmp_path: Path) -> None:
    recordings = tmp_path / "recordings"  # beside the runs' folders, where there is no home
    recordings.mkdir()
    assert not collector_start.has_members(recordings)
    assert list(recordings.iterdir()) == []
    member = collector_start.become_member(recordings)
    assert member is not None and collector_start.has_members(recordings)
    os.close(member)
    assert not collector_start.has_members(recordings)
