"""Agents and collectors that are killed at random moments: every message is recorded, none twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event
from ddptop.transport.curve import load_keys
from ddptop.transport.sender import AckedSender
from tests.link import Link
from tests.made_up_run import hello
from tests.processes import free_port

SCRIPT = Path(__file__).parent.parent / "scripts" / "bundle_ends.py"
DEADLINE_S = 240.0
RANKS = 6


class Job:
    """Ranks in this process; the agents of two hosts and the collector as processes, a link in between."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.link = Link(("127.0.0.1", self.port), delay_s=0.002, back_delay_s=0.001)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("collector", "agent0", "agent1"):
            (folder / name).mkdir(mode=0o700)
        load_keys(folder / "collector")
        for name in ("agent0", "agent1"):
            keys = (folder / "collector" / "keys.json").read_bytes()
            (folder / name / "keys.json").write_bytes(keys)
            (folder / name / "keys.json").chmod(0o600)
        self.senders: list[AckedSender] = []
        self.made = [0] * RANKS

    def start(self, name: str) -> None:
        port = self.port if name == "collector" else self.link.port
        command = [sys.executable, str(SCRIPT), name.rstrip("01"), str(self.folder / name), str(port)]
        self.processes[name] = subprocess.Popen(command, cwd=SCRIPT.parent.parent.parent)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        assert process.poll() is None, f"{name} ended by itself"
        process.kill()
        process.wait()

    def begin(self, window_bytes: int = 1 << 20) -> None:
        for name in ("collector", "agent0", "agent1"):
            self.start(name)
        for rank in range(RANKS):
            endpoint = f"ipc://{self.folder}/agent{rank % 2}/ingest"
            body = encode(hello(rank, RANKS, session=100 + rank))
            self.senders.append(AckedSender(endpoint, lambda body=body: body, window_bytes=window_bytes))

    def train(self, seconds: float, padding: int = 0) -> None:
        """All ranks report, about a hundred times a second."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for rank, sender in enumerate(self.senders):
                self.made[rank] += 1
                sender.offer_message(
                    encode(Event("test", 1, rank, self.made[rank], {"padding": "x" * padding}))
                )
                sender.exchange_messages()
            time.sleep(0.01)

    def finish(self) -> None:
        end = time.monotonic() + DEADLINE_S
        while any(sender.pending for sender in self.senders):
            assert time.monotonic() < end, "not all was acked"
            for sender in self.senders:
                sender.exchange_messages()
            time.sleep(0.01)

    def recorded(self) -> list[list[int]]:
        """Of each rank, the numbers in the collector's record."""
        numbers: list[list[int]] = [[] for _ in range(RANKS)]
        for line in (self.folder / "collector" / "record").read_text().splitlines():
            session, _, number = map(int, line.split())
            if session < 100 + RANKS:
                numbers[session - 100].append(number)
        return numbers

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for sender in self.senders:
            sender.close(0)
        self.link.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    made.close()


def test_the_collector_and_an_agent_killed_and_the_link_cut(job):
    job.begin()
    job.train(0.3)
    for name in ("collector", "agent0"):
        job.kill(name)
        job.train(0.2)
        job.start(name)
        job.train(0.3)
    job.link.cut()
    job.train(0.2)
    job.link.restore()
    job.finish()
    assert job.recorded() == [[*range(1, made + 1)] for made in job.made]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_kills_of_each_and_cuts_at_random_moments(job, seed):
    chance = random.Random(seed)
    job.begin()
    job.train(0.5)
    faults = ["collector", "agent0", "agent1", "cut", "stop"] * 20
    chance.shuffle(faults)
    for fault in faults:
        if fault == "cut":
            job.link.cut()
            job.train(chance.random() / 3)
            chance.choice([job.link.restore, job.link.kill])()
            job.link.restore()
        elif fault == "stop":
            process = job.processes[chance.choice(["collector", "agent0", "agent1"])]
            process.send_signal(signal.SIGSTOP)
            job.train(chance.random() / 3)
            process.send_signal(signal.SIGCONT)
        else:
            job.kill(fault)
            job.train(chance.random() / 3)
            job.start(fault)
        job.train(chance.random() / 2)
    job.finish()
    assert job.recorded() == [[*range(1, made + 1)] for made in job.made]


@pytest.mark.slow
def test_what_has_no_room_in_an_outage_is_missing_and_all_else_is_there_once(job):
    job.begin(window_bytes=20_000)
    job.train(0.5, padding=200)
    for name in ("collector", "agent1", "agent0"):
        job.kill(name)
        job.train(3.0, padding=200)
        job.start(name)
        job.train(1.0, padding=200)
    job.finish()
    dropped = 0
    for numbers, made, sender in zip(job.recorded(), job.made, job.senders, strict=True):
        assert numbers == sorted(set(numbers))
        assert numbers[-1] == made
        # A rank's own count includes what had arrived and was not acked yet.
        assert made - len(numbers) <= sender.dropped
        dropped += made - len(numbers)
    assert dropped > 0


@pytest.mark.slow
@pytest.mark.parametrize("cut_s", [3.0, 10.0])
def test_a_link_that_is_cut_for_seconds(job, cut_s):
    job.begin()
    job.train(0.5)
    job.link.cut()
    job.train(cut_s)
    job.link.restore()
    job.train(0.5)
    job.finish()
    assert job.recorded() == [[*range(1, made + 1)] for made in job.made]
