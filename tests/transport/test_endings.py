"""How a process ended, read from outside: by somebody who is not its parent."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from ddptop.host import processes
from ddptop.host.processes import Ending, ending_of, ending_of_code, process_start, process_status

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no pidfd here")


@pytest.mark.parametrize(
    ("script", "ending"),
    [
        ("input()", Ending(1, None)),  # at the end of its stdin it raises
        ("import sys; sys.stdin.read(); sys.exit(3)", Ending(3, None)),
        ("import os, sys; sys.stdin.read(); os.kill(os.getpid(), 9)", Ending(None, "SIGKILL")),
        ("import sys; sys.stdin.read()", Ending(0, None)),
    ],
)
def test_it_is_told_before_the_parent_asks_and_on_new_kernels_after(script, ending):
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    descriptor = os.pidfd_open(process.pid)
    try:
        start = process_start(process.pid)
        assert ending_of(process.pid, start, descriptor) is None
        process.stdin.close()
        assert select.select([descriptor], [], [], 60)[0]
        assert process_status(process.pid).state == "Z"
        assert ending_of(process.pid, start, None) == ending
        assert ending_of(process.pid, start + 1, None) is None
        process.wait()
        assert ending_of(process.pid, start, None) is None
        assert ending_of(process.pid, start, descriptor) in (ending, None)
        if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 15):
            assert ending_of(process.pid, start, descriptor) == ending
    finally:
        process.kill()
        process.wait()
        os.close(descriptor)


def test_codes_are_read_as_subprocess_writes_them():
    assert ending_of_code(0) == Ending(0, None)
    assert ending_of_code(-15) == Ending(None, "SIGTERM")
    assert ending_of_code(-40) == Ending(None, "signal 40")


def test_a_pidfd_of_a_kernel_that_does_not_tell_is_no_error(monkeypatch):
    monkeypatch.setattr(processes, "_GET_INFO", 0)
    descriptor = os.pidfd_open(os.getpid())
    try:
        assert ending_of(2**22 + 7, 1, descriptor) is None
    finally:
        os.close(descriptor)
