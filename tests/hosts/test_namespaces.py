"""The hosts that the tests of this folder run on."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil

from tests.hosts.namespaces import hosts
from tests.processes import until

WHO = "import socket, os, time; print(socket.gethostname(), os.getpid() < 100, os.listdir('/tmp')[:1])"
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 22), timeout=0.3)"


def test_hosts_have_their_own_name_processes_files_and_clock_and_leave_nothing(tmp_path: Path) -> None:
    with hosts(3, tmp_path, clocks_s=(0, 5000, 100)) as (a, b, c):
        assert a.run([sys.executable, "-c", WHO]).stdout.startswith("node-a True ")
        assert b.run(["sh", "-c", "touch /tmp/mine; ls /tmp; exit 3"]).returncode == 3
        assert "mine" not in c.run(["ls", "/tmp"]).stdout
        ahead = float(b.run([sys.executable, "-c", "import time; print(time.monotonic())"]).stdout)
        assert 4900 < ahead - time.monotonic() < 5100

        with a.started(["sleep", "1000"]) as sleeping, c.started(["sleep", "1000"]):
            first = a.first_pid
            assert [process.pid for process in a.processes()] == [sleeping.inner_pid()]
            c.kill()
            assert sleeping.poll() is None
        assert not a.processes()
    until(lambda: not psutil.pid_exists(first), "the first process of a host is gone")


def test_hosts_reach_each_other_by_name_until_the_cable_is_cut(tmp_path: Path) -> None:
    with hosts(2, tmp_path) as (a, b):

        def answer() -> str:
            error = a.run([sys.executable, "-c", CONNECT, "node-b"]).stderr.strip().splitlines()[-1]
            return error.partition(":")[0]

        assert answer() == "ConnectionRefusedError"
        b.cut()
        assert answer() in ("TimeoutError", "OSError")
        b.mend()
        until(lambda: answer() == "ConnectionRefusedError", "the link is back")
