"""A launcher's notice to its ranks: who is asked, who answers, and that nobody waits for long."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from ddptop.host.end_notices import PREFIX, EndNotices, give_notice
from ddptop.host.runs import create_run_directory, remove_run_directory
from tests.processes import DEADLINE_S, until


def publish(notices: EndNotices, end: threading.Event) -> None:
    """As a publisher's thread."""
    while not end.is_set():
        notices.wait_for_notice(DEADLINE_S)
        notices.answer_launchers(notices.take_notices())


def test_every_rank_answers_and_one_that_was_killed_is_not_waited_for(tmp_path: Path) -> None:
    ranks, end = [EndNotices(tmp_path, session) for session in (5, 1 << 60)], threading.Event()
    threads = [threading.Thread(target=publish, args=(notices, end)) for notices in ranks]
    killed = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    killed.bind(str(tmp_path / f"{PREFIX}0000beef"))
    killed.close()
    for thread in threads:
        thread.start()
    try:
        assert give_notice(tmp_path, DEADLINE_S) == give_notice(tmp_path, DEADLINE_S) == 2
    finally:
        end.set()
        for notices, thread in zip(ranks, threads, strict=True):
            notices.end_wait()
            thread.join()
            notices.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}0000beef"]


def test_a_rank_that_does_not_answer_is_waited_for_so_long_at_most(tmp_path: Path) -> None:
    """Its publisher cannot run: C code holds the interpreter lock, or its process is stopped."""
    notices = EndNotices(tmp_path, 1)
    assert give_notice(tmp_path, 0.01) == 0
    assert give_notice(tmp_path / "gone", DEADLINE_S) == 0
    assert len(notices.take_notices()) == 1
    notices.close()
    assert give_notice(tmp_path, DEADLINE_S) == 0


def open_sockets() -> set[int]:
    """The descriptors of this process that are sockets."""
    links = [*Path("/proc/self/fd").iterdir()]
    return {int(link.name) for link in links if link.is_socket()}


def test_a_script_may_close_all_descriptors(tmp_path: Path) -> None:
    before = open_sockets()
    notices = EndNotices(tmp_path, 1)
    (opened,) = open_sockets() - before
    with (tmp_path / "file").open("wb") as file:
        number = os.dup2(file.fileno(), opened)
        assert not notices.wait_for_notice(DEADLINE_S)
        notices.end_wait()
        notices.answer_launchers([str(tmp_path / "other")])
        assert notices.take_notices() == []
        notices.close()
        os.write(number, b"it is still open")
        os.close(number)


def test_another_thread_may_close_the_socket_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publisher closes it at a rank's end, when the training thread may wake the publisher."""
    notices, fstat = EndNotices(tmp_path, 1), os.fstat

    def close_meanwhile(number: int) -> os.stat_result:
        monkeypatch.setattr(os, "fstat", fstat)
        notices.close()
        return fstat(number)

    monkeypatch.setattr(os, "fstat", close_meanwhile)
    notices.end_wait()
    assert os.fstat is fstat, "it was closed while it was used"
    assert not notices.wait_for_notice(DEADLINE_S)


def test_a_forked_child_leaves_the_socket_of_its_parent_alone(tmp_path: Path) -> None:
    notices = EndNotices(tmp_path, 1)
    child = os.fork()
    if child == 0:
        notices.close_in_child()
        notices.close()
        os._exit(notices.wait_for_notice(0.0))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    notices.end_wait()
    assert until(lambda: notices.wait_for_notice(DEADLINE_S), "a wake")
    notices.close()


def test_a_socket_that_is_left_goes_with_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = create_run_directory("run")
    EndNotices(folder, 1 << 40).close_in_child()
    assert [*folder.glob(f"{PREFIX}*")]
    remove_run_directory(folder)
    assert not folder.exists()
