"""Agent and real collector, killed and stopped at random moments: every record is recorded once."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import pytest

from ddptop.collector.backlog import KIND
from ddptop.host.runs import create_run_directory
from ddptop.protocol.hosts import HOST_END, HostUsage
from ddptop.protocol.messages import Event, Message, Steps
from ddptop.recording.reader import Recording
from ddptop.transport.bundles import MAX_THIN
from tests.agent.test_outage import recorded_steps
from tests.collector.conftest import UNREAD_RANK
from tests.recording.replays import frame_at
from tests.run_processes import RUN_ID, wait_for

STEPS = 2000


STARVED = """
import sys
from pathlib import Path
from ddptop.collector import backlog
from ddptop.collector.__main__ import main
starved, note = Path(sys.argv.pop()), backlog.Backlog.note_round
backlog.EFFECT_NS = backlog.CALM_NS = 10**8

def late(self, begun_ns, now_ns, *, emptied):
    behind = starved.exists()
    return note(self, now_ns - 2 * 10**9 * behind, now_ns, emptied=not behind)

backlog.Backlog.note_round = late
sys.exit(main())
"""
"""A collector whose rounds take 2 s, as if it had no processor, while there is a file `starved`, and else no
time, however busy the machine is.

It asks for less, or for more again, after a tenth of a second instead of 2 and 20 s."""


class Pair:
    """An agent and the collector that it relays to, each started again by the test."""

    def __init__(self, host, *, starved: Path | None = None):
        self.host = host
        self.starved = starved
        self.folder = create_run_directory("far")
        self.recording = host.state / "run.ddptop"
        self.collector = self.start_collector()
        wait_for((self.folder / "collector.json").exists)
        shutil.copy(self.folder / "collector.json", host.directory)
        self.agent = host.agent()

    def start_collector(self) -> subprocess.Popen[str]:
        """On the same folder: it goes on with keys, port and recording of the one before."""
        words = ["--run-dir", self.folder, "--run-id", RUN_ID, "--name", "name", "--record", self.recording]
        words += ["--serve", "127.0.0.1:0"]
        if self.starved is None:
            process = self.host.spawn("-m", "ddptop.collector", *words)
        else:
            process = self.host.spawn("-c", STARVED, *words, self.starved)
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
    for _ in range(12):
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
def test_a_starved_collector_gets_less_bucket_detail_which_is_counted_and_nothing_else_is_lost(
    host, tmp_path
):
    starved, gate = tmp_path / "starved", tmp_path / "gate"
    host.environment |= {"GATE": str(gate)}

    def let_come(steps: int) -> None:
        """Steps up to this one, however long all else takes: a busy machine is late with all of it."""
        gate.with_suffix(".new").write_text(str(steps))
        gate.with_suffix(".new").rename(gate)

    let_come(STEPS // 4)
    pair = Pair(host, starved=starved)
    ranks = [host.rank(rank, steps=STEPS, rate=100) for rank in (0, 1)]

    def messages() -> list[Message]:
        with Recording.open(pair.recording) as recording:
            return [received.message for received in recording.records()]

    def thinned() -> list[int]:
        with Recording.open(pair.recording) as recording:
            lasting = [received.message for received in recording.lasting_messages()]
        return [m.fields["thin"] for m in lasting if isinstance(m, Event) and m.kind == KIND]

    def counted() -> list[int]:
        return [message.thinned for message in messages() if isinstance(message, HostUsage) and message.t_ns]

    wait_for(lambda: pair.recording.stat().st_size > 50_000)
    starved.touch()
    wait_for(lambda: thinned()[-1:] == [MAX_THIN])
    let_come(3 * STEPS // 4)
    wait_for(lambda: max(counted(), default=0))
    starved.unlink()
    wait_for(lambda: thinned()[-1:] == [0])
    let_come(STEPS)
    host.ended(ranks)
    summary = pair.finish()
    assert (summary["steps"], summary["records"], summary["lost"]) == (STEPS - 1, 2 * STEPS, 0)
    assert recorded_steps(pair.recording) == {0: [*range(STEPS)], 1: [*range(STEPS)]}
    levels = [(*range(7), MAX_THIN).index(thin) for thin in (0, *thinned())]
    assert {abs(new - old) for old, new in pairwise(levels)} == {1}, levels
    rows = [row for message in messages() if isinstance(message, Steps) for row in message.rows]
    assert max(counted()) == sum(not row.cells for row in rows) > 0
    assert rows[0].cells
    assert any(row.cells for row in rows[-STEPS // 4 :]), "a busy machine may starve it once more"
    assert "keeps up again" in str(
        [m.fields["message"] for m in messages() if isinstance(m, Event) and m.kind == KIND][-1]
    )


@pytest.mark.slow
def test_the_recording_of_a_run_is_completed_from_that_of_a_host(host, tmp_path):
    """The collector is gone for good before the ranks of the other host end."""
    from ddptop.recording.merge import merge_recordings

    pair = Pair(host)
    ranks = [host.rank(rank, steps=1500, rate=100) for rank in (0, 1)]
    wait_for(lambda: pair.recording.stat().st_size > 20_000)
    pair.collector.kill()
    host.ended(ranks)
    pair.agent.stdin.write(json.dumps({"exit_code": 0}) + "\n")
    pair.agent.stdin.flush()
    wait_for(lambda: "records" in json.loads(pair.agent.stdout.readline()))
    pair.agent.wait(60)  # it goes on for 30 s
    (local,) = [path for path in host.local_recordings() if "@" in path.name]
    before = recorded_steps(pair.recording)
    assert 0 < len(before[0]) < 1500
    merged = merge_recordings([local, pair.recording], tmp_path / "whole.ddptop")
    assert merged.added == 3000 - len(before[0]) - len(before[1])
    assert recorded_steps(tmp_path / "whole.ddptop") == {0: [*range(1500)], 1: [*range(1500)]}


def test_a_collector_whose_run_has_ended_waits_for_the_agent_to_report_its_end(host):
    """Also where nothing of its ranks is missing: the agent still reports on its own, and would keep that."""
    pair = Pair(host)
    host.ended([host.rank(rank, steps=20) for rank in (0, 1)])
    assert pair.collector.stdin is not None and pair.collector.stdout is not None
    print(json.dumps({"exit_code": 0}), file=pair.collector.stdin, flush=True)
    assert json.loads(pair.collector.stdout.readline())["missing"]
    assert host.finish(pair.agent)[-1]["goes_on"] is False
    out, err = pair.collector.communicate(timeout=60)
    assert (pair.collector.returncode, err, json.loads(out)["records"]) == (0, "", 40)
    assert [path for path in host.local_recordings() if "@" in path.name] == []
    with Recording.open(pair.recording) as recording:
        kinds = [item.message.kind for item in recording.records() if isinstance(item.message, Event)]
    assert kinds.count(HOST_END) == 1


def test_a_rank_killed_before_any_agent_met_it_is_counted_by_the_next_one(host):
    pair = Pair(host)
    pair.agent.kill()
    pair.agent.communicate()
    rank = host.spawn(UNREAD_RANK, host.directory, RUN_ID, 1, 2)
    assert rank.stdout.readline() == "counted\n"
    rank.kill()
    rank.wait()
    pair.agent = host.agent()
    print(json.dumps({"exits": [{"pid": rank.pid, "exit_code": -9}]}), file=pair.agent.stdin)
    assert pair.finish()["lost"] == 41
    assert [(death.rank, death.signal) for death in frame_at(pair.recording, None).deaths] == [(1, "SIGKILL")]
