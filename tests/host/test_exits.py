"""How a process ended, read from outside: by somebody who is not its parent."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from ddptop.host import exits
from ddptop.host.exits import RankExit, RankProcess, exit_code_of
from ddptop.host.processes import process_start, process_status

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd here")


@pytest.mark.parametrize(
    ("script", "exit_code"),
    [
        ("input()", 1),  # at the end of its stdin it raises
        ("import sys; sys.stdin.read(); sys.exit(3)", 3),
        ("import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)", -9),
        ("import sys; sys.stdin.read()", 0),
    ],
)
def test_it_is_told_before_the_parent_asks_and_on_new_kernels_after(script, exit_code):
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    descriptor = os.pidfd_open(process.pid)
    try:
        start = process_start(process.pid)
        assert exit_code_of(process.pid, start, descriptor) is None
        process.stdin.close()
        assert select.select([descriptor], [], [], 60)[0]
        assert process_status(process.pid).state == "Z"
        assert exit_code_of(process.pid, start, None) == exit_code
        assert exit_code_of(process.pid, start + 1, None) is None
        process.wait()
        assert exit_code_of(process.pid, start, None) is None
        assert exit_code_of(process.pid, start, descriptor) in (exit_code, None)
        if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15):
            assert exit_code_of(process.pid, start, descriptor) == exit_code
    finally:
        process.kill()
        process.wait()
        os.close(descriptor)


def test_an_exit_code_of_subprocess_becomes_an_event():
    event = RankExit(RankProcess(1, 2, 3), 4, 0, left_group=True).to_event("exit")
    assert (event.kind, event.rank, event.t_ns) == ("exit", 2, 4)
    assert event.fields == {"pid": 3, "session": 1, "exit_code": 0, "signal": None, "left": True}
    for code, exit_code, signal in ((-15, None, "SIGTERM"), (-40, None, "signal 40"), (None, None, None)):
        fields = RankExit(RankProcess(1, 2, 3), 4, code).to_event("lost_rank").fields
        assert fields == {"pid": 3, "session": 1, "exit_code": exit_code, "signal": signal}


def test_a_pidfd_of_a_kernel_that_does_not_tell_is_no_error(monkeypatch):
    monkeypatch.setattr(exits, "GET_INFO", 0)
    descriptor = os.pidfd_open(os.getpid())
    try:
        assert exit_code_of(2**22 + 7, 1, descriptor) is None
    finally:
        os.close(descriptor)
