"""A collector that only listens and asks, and ranks that are real processes without a launcher."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from ddptop.protocol.messages import Hello, Message, Received
from ddptop.transport.receiver import AckedReceiver
from ddptop.transport.sockets import new_context
from tests.processes import environment, free_port, started, until

INJECT = Path(__file__).parents[2] / "ddptop" / "training" / "inject"
LOOK_S = 0.02

Kind = TypeVar("Kind", bound=Message)


class Ear:
    """Takes in what ranks say, in a thread of its own, and sends the questions it is given."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / "run"
        self.directory.mkdir(mode=0o700)
        self.heard: list[Received] = []
        self._questions: list[tuple[int, int]] = []
        self._context = new_context()
        self._receiver = AckedReceiver(self._context, f"ipc://{self.directory}/ingest", epoch=1)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._end.wait(LOOK_S):
            self.heard += [received for received, _ in self._receiver.drain_messages(time.monotonic_ns())]
            while self._questions:
                self._receiver.ask_rank(*self._questions.pop(0))

    def said(self, rank: int, kind: type[Kind]) -> list[Kind]:
        """All messages of a kind from a rank so far."""
        return [
            item.message for item in list(self.heard) if item.rank == rank and isinstance(item.message, kind)
        ]

    def next_said(self, rank: int, kind: type[Kind], already: int = 0) -> Kind:
        """Wait for one more than `already`."""
        until(lambda: len(self.said(rank, kind)) > already, f"a {kind.__name__} of rank {rank}")
        return self.said(rank, kind)[already]

    def ask(self, rank: int, number: int) -> None:
        """As the collector does, again and again until it is answered; here once."""
        self._questions.append((self.next_said(rank, Hello).session, number))

    def environment(self) -> dict[str, str]:
        """That of a command that `ddptop-run` starts."""
        ours = {"DDPTOP_RUN_DIR": str(self.directory), "PYTHONPATH": str(INJECT)}
        return environment(self.home) | ours

    def close(self) -> None:
        self._end.set()
        self._thread.join()
        self._receiver.close()
        self._context.term()


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[Ear]:
    made = Ear(tmp_path)
    yield made
    made.close()


class Ranks:
    """Starts scripts as a launcher does, each rank with pipes of its own."""

    def __init__(self, home: Path, stack: ExitStack) -> None:
        self._home = home
        self._stack = stack

    def start(
        self, script: Path, *words: str, world: int, env: dict[str, str], cold: bool = False
    ) -> list[subprocess.Popen[str]]:
        """All ranks of a world; `cold`: see `tests.processes.started`."""
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(world)}
        return [
            self._stack.enter_context(
                started(
                    [sys.executable, script, *words],
                    env | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                    self._home,
                    cold=cold,
                )
            )
            for rank in range(world)
        ]


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    with ExitStack() as stack:
        yield Ranks(tmp_path, stack)
