"""A rank that neither answers nor sends heartbeats is read from outside; one that answers is not."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from ddptop.agent.host_watch import SILENT_NS, HostWatch
from ddptop.host.exits import RankProcess
from ddptop.protocol.messages import Event, Progress
from tests.made_up_run import progress
from tests.processes import until


class Ranks:
    """Two ranks that were asked; the second one has been silent for long enough."""

    def __init__(self, pids: list[int]) -> None:
        self.asked = {1, 2}
        self.events: list[Event] = []
        self.silent_since_ns = {pids[0]: 0, pids[1]: 2 * SILENT_NS}

    def report_message(self, message: Any, now_ns: int, **_: object) -> None:
        if isinstance(message, Event):
            self.events.append(message)

    def report_readings(self, readings: Any, now_ns: int, *, keep: bool) -> None:
        pass

    def progress_of(self, process: RankProcess) -> tuple[int, Progress | None]:
        t_ns = time.monotonic_ns() - self.silent_since_ns[process.pid]
        return 3, progress(t_ns, 3)

    def bus_id_of(self, process: RankProcess) -> str:
        return ""

    known_sessions = ()


class Processes:
    """Both run."""

    def __init__(self, processes: list[RankProcess]) -> None:
        self._processes = processes

    def living_processes(self) -> list[RankProcess]:
        return self._processes

    def check_processes(self, now_ns: int) -> list[tuple[RankProcess, bool]]:
        return []


class Gpus:
    def request_gpus(self, bus_ids: object) -> None:
        pass

    def newest_reading(self, bus_id: str) -> None:
        pass


def test_only_the_silent_rank_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "py-spy"
    frame = '{"filename": "/home/me/train.py", "line": 88, "name": "tokenize"}'
    program.write_text(f"#!/bin/sh\necho '[{{\"os_thread_id\": '$5', \"frames\": [{frame}]}}]'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sleeping = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    try:
        pids = [one.pid for one in sleeping]
        ranks, processes = Ranks(pids), [RankProcess(1, 0, pids[0]), RankProcess(2, 1, pids[1])]
        watch = HostWatch(tmp_path, "run", ranks, Processes(processes), Gpus(), None)  # type: ignore[arg-type]

        def read() -> list[Event]:
            watch.check_each_second(time.monotonic_ns())
            return [event for event in ranks.events if event.kind == "worker_call"]

        (event,) = until(read, "a process was read")  # type: ignore[misc]
        assert (event.rank, event.fields["pid"], event.fields["call"]) == (1, pids[1], "train.py:88 tokenize")
    finally:
        for one in sleeping:
            one.kill()
            one.wait()
