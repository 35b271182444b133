"""Agent and real collector, killed and stopped at random moments: every record is recorded once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time

import pytest

from ddptop.host.runs import create_run_directory
from tests.agent.conftest import RUN_ID, wait_for
from tests.agent.test_outage import recorded_steps

STEPS = 4000


class Pair:
    """An agent and the collector that it relays to, each started again by the test."""

    def __init__(self, host):
        self.host = host
        self.folder = create_run_directory("far")
        self.recording = host.state / "run.ddptop"
        self.collector = self.start_collector()
        wait_for((self.folder / "collector.json").exists)
        shutil.copy(self.folder / "collector.json", host.directory)
        self.agent = host.agent()

    def start_collector(self) -> subprocess.Popen[str]:
        """On the same folder: it goes on with keys, port and recording of the one before."""
        words = ["--run-dir", self.folder, "--run-id", RUN_ID, "--name", "name", "--record", self.recording]
        process = self.host.spawn("-m", "ddptop.collector", *words, "--serve", "127.0.0.1:0")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        return process

    def restart(self, which: str) -> None:
        """Kill one of the two with SIGKILL and start the next."""
        process = getattr(self, which)
        process.kill()
        process.communicate()
        setattr(self, which, self.start_collector() if which == "collector" else self.host.agent())

    def finish(self) -> dict[str, object]:
        """End the run; the collector's summary."""
        self.host.finish(self.agent)
        out, err = self.collector.communicate(json.dumps({"exit_code": 0}) + "\n", timeout=60)
        assert (self.collector.returncode, err) == (0, "")
        summary: dict[str, object] = json.loads(out.splitlines()[-1])
        return summary


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_both_killed_and_stopped_at_random_moments_lose_and_double_nothing(host, seed):
    chance = random.Random(seed)
    pair = Pair(host)
    ranks = [host.rank(rank, steps=STEPS, rate=80) for rank in (0, 1)]
    for _ in range(20):
        time.sleep(chance.uniform(0.1, 2.0))
        which = chance.choice(["agent", "collector"])
        if chance.random() < 0.3:
            process = getattr(pair, which)
            process.send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.5, 4.0))
            process.send_signal(signal.SIGCONT)
        else:
            pair.restart(which)
    host.ended(ranks)
    summary = pair.finish()
    assert (summary["steps"], summary["records"], summary["lost"]) == (STEPS - 1, 2 * STEPS, 0)
    assert recorded_steps(pair.recording) == {0: [*range(STEPS)], 1: [*range(STEPS)]}
    assert [path for path in host.local_recordings() if "@" in path.name] == []
    assert not host.directory.exists() and not pair.folder.exists()


@pytest.mark.slow
def test_the_recording_of_a_run_is_completed_from_that_of_a_host(host, tmp_path):
    """The collector is gone for good before the ranks of the other host end."""
    from ddptop.recording.merge import merge

    pair = Pair(host)
    ranks = [host.rank(rank, steps=1500, rate=100) for rank in (0, 1)]
    wait_for(lambda: pair.recording.stat().st_size > 50_000)
    pair.collector.kill()
    host.ended(ranks)
    pair.agent.stdin.write(json.dumps({"exit_code": 0}) + "\n")
    pair.agent.stdin.flush()
    wait_for(lambda: "records" in json.loads(pair.agent.stdout.readline()))
    pair.agent.wait(60)  # it goes on for 30 s
    (local,) = [path for path in host.local_recordings() if "@" in path.name]
    before = recorded_steps(pair.recording)
    assert 0 < len(before[0]) < 1500
    merged = merge([local, pair.recording], tmp_path / "whole.ddptop")
    assert merged.added == 3000 - len(before[0]) - len(before[1])
    assert recorded_steps(tmp_path / "whole.ddptop") == {0: [*range(1500)], 1: [*range(1500)]}
