"""A process that has no file descriptors left is not ended by the recorder."""

from __future__ import annotations

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
