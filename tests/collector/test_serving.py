"""What viewers get, and what ends a collector."""

from __future__ import annotations

import os
import random
import signal

import numpy as np
import pytest
import zmq

from ddptop.analysis.ranks import SILENT_S
from ddptop.frames.history import KEPT_POINTS
from ddptop.host.runs import ingest_endpoint, read_run_file, view_endpoint
from ddptop.protocol.messages import Credit
from ddptop.transport.credit import CreditClient
from tests.run_processes import DEADLINE_S


def test_a_run_is_served_from_its_first_step_to_its_last(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("GATE", str(tmp_path / "go"))
    collector = stage.collector(record="off")
    source = stage.source()
    ranks = stage.ranks(steps=400, rate=800)
    live = stage.until(source, lambda frame: frame.group.step is not None)
    assert (live.source, live.run.state, live.run.world_size) == ("live", "live", 2)
    (tmp_path / "go").touch()
    stage.wait_for(lambda: read_run_file(stage.directory).world_size == 2)
    assert all(said["left"] == said["dropped"] == 0 for said in stage.ended(ranks))
    summary = stage.finish(collector)
    assert summary == {
        "steps": 399,
        "records": 800,
        "lost": 0,
        "recording": None,
        "recording_note": None,
        "reached": "",
        "failure": "",
    }
    last = stage.until(source, lambda frame: frame.run.state == "finished")
    assert last.group.step == 399
    np.testing.assert_array_equal(last.history.step, np.arange(400))
    assert source.status() == "the run has finished"
    assert not stage.directory.exists()


def test_a_late_viewer_gets_the_history_without_a_hole(stage):
    collector = stage.collector(record="off")
    stage.ended(stage.ranks(steps=600, rate=600))
    first = stage.until(stage.source(), lambda frame: frame.group.step == 599)
    assert first.history.start == 0
    np.testing.assert_array_equal(first.history.step, np.arange(600))
    stage.finish(collector)


def test_of_a_long_history_come_the_newest_steps_and_bins_of_the_others(stage):
    collector = stage.collector(record="off")
    stage.ended([stage.rank(0, 1, steps=30_000, rate=30_000, buckets=0, window=4 << 20)])
    source = stage.source()
    first = stage.until(source, lambda frame: True)
    history = first.history
    assert history.start + len(history.step) == 30_000
    np.testing.assert_array_equal(history.step[-KEPT_POINTS:], np.arange(30_000 - KEPT_POINTS, 30_000))
    assert history.step[0] < 100 and (np.diff(history.step) > 0).all()
    stage.finish(collector)


def test_a_stopped_viewer_gets_the_newest_state_when_it_goes_on(stage):
    collector = stage.collector(record="off")
    ranks = stage.ranks(steps=100_000)
    viewer = stage.spawn(
        "-c",
        f"""
from ddptop.sources.live import LiveSource
from ddptop.protocol.messages import Credit
from ddptop.transport.credit import CreditClient
from ddptop.host.runs import read_run_file
from pathlib import Path
source = LiveSource(read_run_file(Path({str(stage.directory)!r})))
source.start()
for line in iter(input, ""):
    frame = source.latest()
    points = len(frame.history.step) if frame else 0
    print(frame.group.step if frame else None, source.skipped, points, flush=True)
source.close()
""",
    )

    def ask() -> list[int]:
        viewer.stdin.write("now\n")
        viewer.stdin.flush()
        return [0 if word == "None" else int(word) for word in viewer.stdout.readline().split()]

    stage.wait_for(lambda: ask()[0] > 0)
    before = ask()
    watcher = stage.source()
    os.kill(viewer.pid, signal.SIGSTOP)
    now = stage.until(watcher, lambda frame: (frame.group.step or 0) > before[0] + 600).group.step
    os.kill(viewer.pid, signal.SIGCONT)
    stage.wait_for(lambda: ask()[0] >= now)
    step, skipped, points = ask()
    assert skipped >= before[1] + 2
    assert points == step + 1
    viewer.stdin.write("\n")
    viewer.stdin.flush()
    viewer.wait(DEADLINE_S)
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)


def test_a_killed_rank_is_lost_at_once(stage):
    collector = stage.collector()
    source = stage.source()
    ranks = stage.ranks(steps=100_000)
    stage.until(source, lambda frame: frame.group.step is not None)
    ranks[1].kill()
    frame = stage.until(source, lambda frame: frame.ranks.state[1] == "lost")
    assert frame.ranks.age_ms[1] < 1000 * SILENT_S  # its silence alone would say so after that
    assert ("lost_rank", 1) in [(item.kind, item.rank) for item in frame.events]
    stage.until(source, lambda frame: frame.ranks.state[0] == "live")
    ranks[0].kill()
    stage.finish(collector, 1)
    assert stage.until(source, lambda frame: frame.run.state == "failed").run.exit_code == 1


def test_hostile_peers_do_not_end_it(stage):
    collector = stage.collector(record="off")
    ranks = stage.ranks(steps=600, rate=600)
    context = zmq.Context()
    random.seed(3)
    for endpoint in (ingest_endpoint(stage.directory), view_endpoint(stage.directory)):
        for frames in (
            [[random.randbytes(random.randrange(200))] * random.randrange(1, 11) for _ in range(200)],
            [[b"x" * (2 << 20)]],
            [[b"x"] * 10],
        ):
            socket = context.socket(zmq.DEALER)
            socket.linger = 1000
            socket.connect(endpoint)
            for parts in frames:
                socket.send_multipart(parts)
            socket.close()
    greedy = CreditClient(view_endpoint(stage.directory))
    for credit in (Credit(0, 2**47, 65_535), Credit(2**62, 2**47, 0)):
        stage.wait_for(lambda credit=credit: greedy.grant_credit(credit))
        stage.wait_for(greedy.receive_frame)
    greedy.close()
    os.kill(collector.pid, signal.SIGINT)
    os.kill(collector.pid, signal.SIGTERM)
    stage.ended(ranks)
    summary = stage.finish(collector)
    context.destroy(linger=0)
    assert (summary["steps"], summary["lost"]) == (599, 0)


def test_it_ends_when_the_launcher_dies(stage):
    collector = stage.collector(haste=["ddptop.agent.launcher.LINGER_NS=0.3"])
    source = stage.source()
    stage.until(source, lambda frame: frame.run.state == "waiting")
    out, err = collector.communicate(timeout=DEADLINE_S)  # closes its stdin and says nothing
    assert (collector.returncode, err) == (0, "")
    assert '"steps": null' in out
    assert not stage.directory.exists()
    assert stage.until(source, lambda frame: frame.run.state == "failed").run.exit_code is None


def test_a_second_collector_takes_nothing_from_the_first(stage):
    collector = stage.collector(record="off")
    second = stage.collector(ready=False, record="off")
    out, err = second.communicate(timeout=DEADLINE_S)
    assert (second.returncode, out) == (1, "")
    assert err == f"ddptop collector: another collector already serves {stage.directory}\n"
    stage.ended(stage.ranks(steps=100))
    assert stage.finish(collector)["steps"] == 99


def _open_to_all(directory):
    directory.chmod(0o755)


def _link(directory):
    elsewhere = directory.with_name("elsewhere")
    directory.rename(elsewhere)
    directory.symlink_to(elsewhere)


def _give_away(directory):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(directory, 12345, 12345)


@pytest.mark.parametrize("spoil", [_open_to_all, _link, _give_away])
def test_a_folder_that_is_not_ours_alone_is_refused_in_one_line(stage, spoil):
    spoil(stage.directory)
    collector = stage.collector(ready=False, record="off")
    out, err = collector.communicate(timeout=DEADLINE_S)
    assert (collector.returncode, out, err.count("\n")) == (1, "", 1)
    assert str(stage.directory.name) in err


def test_a_viewer_of_a_dead_collector_does_not_call_the_run_live(stage):
    collector = stage.collector(record="off")
    source = stage.source()
    ranks = stage.ranks(steps=100_000)
    stage.until(source, lambda frame: frame.group.step is not None)
    os.kill(collector.pid, signal.SIGSTOP)
    stale = stage.until(source, lambda frame: frame.run.state == "stale")
    assert set(stale.ranks.state) == {"stale"}
    assert "does not answer" in source.status()
    collector.kill()
    collector.wait()
    lost = stage.until(source, lambda frame: frame.run.state == "lost")
    assert lost.unix_s > stale.unix_s
    again = stage.collector(record="off")
    stage.until(source, lambda frame: frame.run.state == "live")
    assert source.status() is None
    for rank in ranks:
        rank.kill()
    stage.finish(again, 1)


def test_no_heavy_library_is_loaded(stage):
    code = """
import sys
import ddptop.collector.__main__, ddptop.collector.service, ddptop.sources.live, ddptop.host.runs
print(sorted({"torch", "textual", "pandas"} & set(sys.modules)))
"""
    out, err = stage.spawn("-c", code).communicate(timeout=DEADLINE_S)
    assert out == "[]\n", err
