"""A real collector process on a folder of the test's own, with made-up ranks that are real processes too."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from ddptop.frames.frame import Frame
from ddptop.host import folders
from ddptop.host.runs import create_run_directory, read_run_file
from ddptop.sources.live import LiveSource
from ddptop.transport.sender import RESEND_S
from tests.run_processes import DEADLINE_S, RUN_ID, RunProcesses, wait_for

UNREAD_RANK = Path(__file__).parent / "unread_rank.py"
FAKE_AGENT = "tests.collector.fake_agent"


class Stage(RunProcesses):
    """A run's folder, and the processes of a test around it."""

    def __init__(self, directory: Path, recording: Path) -> None:
        super().__init__(directory)
        self.recording = recording
        self.sources: list[LiveSource] = []
        self.wait_for = wait_for

    def collector(
        self, *more: str, record: object = None, ready: bool = True, haste: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        """Start it as `start_service` does."""
        return self.start_service(
            "ddptop.collector", record or self.recording, *more, ready=ready, haste=haste
        )

    def ranks(self, world: int = 2, **options: float | str) -> list[subprocess.Popen[str]]:
        """Start all of them."""
        return [self.rank(rank, world, **options) for rank in range(world)]  # type: ignore[arg-type]

    def agent(
        self,
        host: str,
        first: int,
        ranks: int = 2,
        *,
        world: int,
        steps: int = 300,
        rate: float = 300,
        drain_s: float = 60.0,
        end: str = "bye",
        port: int = 0,
    ) -> subprocess.Popen[str]:
        """Start a made-up agent with some ranks from `first` on (see fake_agent.py)."""
        words = (self.directory, host, first, ranks, world, steps, rate, drain_s, end, port)
        return self.spawn("-m", FAKE_AGENT, *words)

    def wait_for_resend(self) -> None:
        """Long enough for ranks to miss their acks and to send again."""
        time.sleep(2 * RESEND_S)

    def ended(self, ranks: list[subprocess.Popen[str]]) -> list[dict[str, float]]:
        """What ranks say at their end."""
        said = []
        for rank in ranks:
            out, err = rank.communicate(timeout=DEADLINE_S)
            assert rank.returncode == 0, err
            said.append(json.loads(out))
        return said

    def finish(self, collector: subprocess.Popen[str], exit_code: int = 0) -> dict[str, object]:
        """Tell the collector that the run has ended; its summary."""
        out, err = collector.communicate(json.dumps({"exit_code": exit_code}) + "\n", timeout=DEADLINE_S)
        assert (collector.returncode, err) == (0, "")
        summary: dict[str, object] = json.loads(out.splitlines()[-1])
        return summary

    def source(self) -> LiveSource:
        """A viewer in this process."""
        run = read_run_file(self.directory)
        assert run is not None
        source = LiveSource(run)
        self.sources.append(source)
        source.start()
        return source

    def until(self, source: LiveSource, condition: Callable[[Frame], object]) -> Frame:
        """Wait for a frame that is so."""
        found: list[Frame] = []

        def look() -> bool:
            frame = source.latest()
            if frame is not None and condition(frame):
                found.append(frame)
            return bool(found)

        wait_for(look)
        return found[0]

    def close(self) -> None:
        for source in self.sources:
            source.close()
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(folders, "SHARED_TMP", tmp_path)
    made = Stage(create_run_directory(RUN_ID), tmp_path / "run.ddptop")
    yield made
    made.close()
