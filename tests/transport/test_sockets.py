"""A process that has no file descriptors or threads left is not ended by the recorder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.processes import environment, run

SCRIPT = """
import os, resource, sys
from ddptop.transport.sender import AckedSender
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    for _ in range(int(sys.argv[1])):
        os.close(held.pop())
try:
    AckedSender("ipc://nowhere", bytes)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("free", [0, 3])
def test_a_link_for_which_there_are_no_descriptors_is_refused(tmp_path: Path, free: int) -> None:
    done = run([sys.executable, "-c", SCRIPT, str(free)], environment(tmp_path), tmp_path)
    assert (done.returncode, done.stdout) == (0, "Too many open files\n"), done.stderr


LIMITS = """
import os, resource
from ddptop.transport.sockets import new_context
for limit in range(1, 31):
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.setresuid(54322, 54322, 54322)
        try:
            new_context()
        except OSError as error:
            os._exit(1 if "threads can be started" in error.strerror else 2)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), end=" ")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_link_for_which_there_are_no_threads_is_refused(tmp_path: Path) -> None:
    done = run([sys.executable, "-c", LIMITS], environment(tmp_path), tmp_path)
    codes = done.stdout.split()
    assert codes == ["1"] * (len(codes) - codes.count("0")) + ["0"] * codes.count("0"), done.stderr
    assert (len(codes), codes.count("0") > 0, codes.count("1") > 2) == (30, True, True)
