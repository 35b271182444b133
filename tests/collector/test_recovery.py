"""Nothing lost, nothing doubled, whatever happens to the collector; and a small window's loss to the step."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.cli.find import RecordingEntry
from ddptop.cli.runs import of_recording
from ddptop.collector.record import PROGRESS_EVERY_NS
from ddptop.host.runs import live_runs, read_run_file
from ddptop.host.step_counters import leave_step_count
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Bye, Event, Hello, Layout, Progress, Run, Steps
from ddptop.recording.reader import Recording, RecordingError
from tests.collector.conftest import UNREAD_RANK
from tests.made_up_run import hello
from tests.processes import remove_folder
from tests.recording.replays import frame_at
from tests.run_processes import DEADLINE_S


def steps_of(recording, rank):
    """Every step of a rank in the recording, with its loss, in file order."""
    return [
        (received.message.first_step + offset, row.loss)
        for received in recording.records()
        if received.rank == rank and isinstance(received.message, Steps)
        for offset, row in enumerate(received.message.rows)
    ]


def whole(count):
    return [(step, float(step)) for step in range(count)]


def recorded_past(stage, step, rank=0):
    """Whether the file holds a later step of this rank."""
    try:
        return any(at > step for at, _ in steps_of(Recording.open(stage.recording), rank))
    except (OSError, RecordingError):  # not there yet
        return False


def ranks_with_usage(stage):
    """Ranks whose memory and CPU time are in the file."""
    with Recording.open(stage.recording) as recording:
        return {item.rank for item in recording.records() if isinstance(item.message, Usage)}


def events(recording):
    return [item.message.kind for item in recording.records() if isinstance(item.message, Event)]


def restarts_recorded(stage):
    with Recording.open(stage.recording) as recording:
        return events(recording).count("collector_restart")


def test_a_recording_holds_the_run(stage):
    collector = stage.collector()
    stage.ended(stage.ranks(steps=900, rate=1200))
    summary = stage.finish(collector)
    assert summary == {
        "steps": 899,
        "records": 1800,
        "lost": 0,
        "recording": str(stage.recording),
        "recording_note": None,
        "reached": "",
        "failure": "",
    }
    recording = Recording.open(stage.recording)
    assert recording.damage is None
    records = list(recording.records())
    kinds = Counter(type(item.message) for item in records)
    assert kinds[Hello] == kinds[Layout] == kinds[Bye] == 2
    assert [item.message.state for item in records if isinstance(item.message, Run)] == ["live", "finished"]
    for rank in (0, 1):
        beats = [item.t_ns for item in records if item.rank == rank and isinstance(item.message, Progress)]
        assert all(later - earlier >= PROGRESS_EVERY_NS for earlier, later in pairwise(beats))
    for rank in (0, 1):
        assert steps_of(recording, rank) == whole(900)
    for session in {item.session for item in records if item.seq}:
        numbers = [item.seq for item in records if item.session == session and item.seq]
        assert numbers == list(range(1, len(numbers) + 1))


def test_a_killed_collector_resumes_its_recording(stage):
    collector = stage.collector()
    source = stage.source()
    ranks = stage.ranks(steps=1500, rate=1000)
    for restarts in (0, 1):
        stage.wait_for(lambda past=200 + 500 * restarts: recorded_past(stage, past))
        # On a busy machine the collector before may have recorded these steps already.
        stage.wait_for(lambda restarts=restarts: restarts_recorded(stage) == restarts)
        collector.kill()
        collector.wait()
        collector = stage.collector()
    ended = stage.ended(ranks)
    assert [said["left"] + said["dropped"] for said in ended] == [0, 0]
    summary = stage.finish(collector)
    assert (summary["steps"], summary["lost"]) == (1499, 0)
    last = stage.until(source, lambda frame: frame.run.state == "finished")
    assert last.lost_records == 0
    np.testing.assert_array_equal(last.history.step, np.arange(1500))
    recording = Recording.open(stage.recording)
    for rank in (0, 1):
        assert steps_of(recording, rank) == whole(1500)
    # How a reaped process ended is not to be learnt on every kernel; a busy machine holds up the collector.
    told = [kind for kind in events(recording) if kind not in ("exit", "interruption", "counts")]
    assert told == ["settings", "collector_restart", "collector_restart"]


def test_a_stopped_collector_loses_nothing(stage):
    collector = stage.collector()
    ranks = stage.ranks(steps=900, rate=600)
    stage.wait_for(lambda: recorded_past(stage, 100))
    os.kill(collector.pid, signal.SIGSTOP)
    stage.wait_for_resend()
    os.kill(collector.pid, signal.SIGCONT)
    stage.ended(ranks)
    assert stage.finish(collector)["lost"] == 0
    recording = Recording.open(stage.recording)
    for rank in (0, 1):
        assert steps_of(recording, rank) == whole(900)


def test_with_a_small_window_the_loss_is_the_gap(stage, monkeypatch, tmp_path):
    monkeypatch.setenv("GATE", str(tmp_path / "go"))
    collector = stage.collector()
    ranks = stage.ranks(steps=1500, window=4000)
    stage.wait_for(lambda: recorded_past(stage, 100, rank=0) and recorded_past(stage, 100, rank=1))
    collector.kill()
    collector.wait()
    (tmp_path / "go").touch()
    stage.wait_for_resend()
    collector = stage.collector()
    stage.ended(ranks)
    summary = stage.finish(collector)
    recording = Recording.open(stage.recording)
    lost = 0
    for rank in (0, 1):
        steps = [step for step, _ in steps_of(recording, rank)]
        assert steps == sorted(set(steps))
        assert steps[-1] == 1499
        assert max(after - before for before, after in pairwise(steps)) > 1
        lost += 1500 - len(steps)
    assert summary["lost"] == lost > 0


def test_a_rank_that_died_while_there_was_no_collector_is_lost(stage):
    collector = stage.collector()
    ranks = stage.ranks(steps=100_000)
    # Both: of a rank that the first collector never wrote down, the second one cannot know.
    stage.wait_for(lambda: recorded_past(stage, 50, rank=0) and recorded_past(stage, 50, rank=1))
    collector.kill()
    collector.wait()
    ranks[1].kill()
    ranks[1].wait()
    collector = stage.collector()
    # The other one may report to the next collector a moment later.
    stage.until(stage.source(), lambda frame: tuple(frame.ranks.state) == ("live", "lost"))
    ranks[0].kill()
    stage.finish(collector, 1)
    assert events(Recording.open(stage.recording)).count("lost_rank") == 2


@pytest.mark.slow
def test_a_run_whose_launcher_was_killed_is_recorded_until_its_ranks_end(stage):
    collector = stage.collector()
    ranks = stage.ranks(steps=900)
    stage.wait_for(lambda: recorded_past(stage, 100))
    collector.stdin.close()
    collector.stdin = None
    source = stage.source()
    stage.until(source, lambda frame: frame.run.state == "live" and (frame.group.step or 0) > 500)
    stage.ended(ranks)
    last = stage.until(source, lambda frame: frame.run.state == "finished")
    assert (last.run.exit_code, last.group.step) == (None, 899)
    out, err = collector.communicate(timeout=DEADLINE_S)
    assert (collector.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["lost"] == 0
    recording = Recording.open(stage.recording)
    assert "launcher_killed" in events(recording)
    for rank in (0, 1):
        assert steps_of(recording, rank) == whole(900)


def test_without_a_recording_a_new_collector_goes_on_as_well(stage):
    collector = stage.collector(record="off")
    source = stage.source()
    ranks = stage.ranks(steps=1500, rate=1000)
    stage.until(source, lambda frame: (frame.group.step or 0) > 100)
    collector.kill()
    collector.wait()
    collector = stage.collector(record="off")
    stage.ended(ranks)
    assert stage.finish(collector)["steps"] == 1499


def test_a_recording_that_cannot_be_written_is_told_and_the_run_goes_on(stage):
    stage.recording.parent.joinpath("file").write_text("")
    collector = stage.collector(record=stage.recording.parent / "file" / "run.ddptop")
    source = stage.source()
    stage.ended(stage.ranks(steps=300))
    frame = stage.until(source, lambda frame: frame.group.step == 299)
    assert [item.kind for item in frame.events].count("recording") == 1
    summary = stage.finish(collector)
    assert (summary["steps"], summary["recording"]) == (299, None)
    assert "not recorded" in summary["recording_note"]


def test_a_recording_of_another_run_is_not_written_over(stage):
    first = stage.collector("--run-id", "other")
    stage.finish(first)
    stage.directory.mkdir(mode=0o700)
    before = stage.recording.read_bytes()
    ranks = stage.ranks(steps=100)
    for again in (False, True):
        second = stage.collector()
        stage.wait_for(lambda: read_run_file(stage.directory))
        if not again:
            second.kill()
            second.wait()
    stage.ended(ranks)
    stage.finish(second)
    assert stage.recording.read_bytes() == before
    recordings = sorted(path.name for path in stage.recording.parent.glob("*.ddptop"))
    beside = stage.recording.with_stem(f"{stage.recording.stem}-2")
    assert recordings == sorted([stage.recording.name, beside.name]), (
        "the second collector has gone on with it"
    )
    recording = Recording.open(beside)
    assert recording.run.run_id == "run"
    assert "collector_restart" in events(recording)


def put_in_the_way(root: Path) -> bool:
    """A file in the place of a folder that the collector may make again at any moment."""
    try:
        root.write_text("in the way")
    except IsADirectoryError:
        remove_folder(root)
        return False
    return True


@pytest.mark.parametrize("can_be_made", [True, False], ids=["made again", "cannot be made"])
def test_a_run_whose_folder_is_removed_goes_on_and_is_called_live(stage, can_be_made):
    collector = stage.collector()
    ranks = stage.ranks(steps=900, rate=600)
    stage.wait_for(lambda: recorded_past(stage, 50))
    root = stage.directory.parent
    remove_folder(root)
    if can_be_made:
        stage.wait_for(lambda: read_run_file(stage.directory) is not None)
        assert [(run.name, run.pid) for run in live_runs()] == [("name", collector.pid)]
        stage.until(stage.source(), lambda frame: frame.group.step is not None)
        remove_folder(stage.directory)  # once more
        stage.wait_for(lambda: read_run_file(stage.directory) is not None)
    else:
        stage.wait_for(lambda: put_in_the_way(root))
    recorded = RecordingEntry("run", stage.recording)
    assert of_recording(recorded).state == "live"
    stage.ended(ranks)
    summary = stage.finish(collector)
    assert (summary["steps"], summary["lost"]) == (899, 0)
    assert of_recording(recorded).state == "finished"
    assert not can_be_made or not stage.directory.exists()
    with Recording.open(stage.recording) as recording:
        for rank in (0, 1):
            assert steps_of(recording, rank) == whole(900)


def test_what_dead_ranks_kept_is_counted_or_said_to_be_unknown(stage):
    """These ranks have no counter: their heartbeats say how far they were at least."""
    collector = stage.collector()
    ranks = stage.ranks(steps=100_000, window=1 << 20)
    stage.wait_for(lambda: recorded_past(stage, 50, rank=0) and recorded_past(stage, 50, rank=1))
    stage.wait_for(lambda: {0, 1} <= ranks_with_usage(stage))
    for rank in ranks:
        rank.kill()
    stage.finish(collector, 1)
    with Recording.open(stage.recording) as recording:
        told = [r.message for r in recording.records() if getattr(r.message, "kind", "") == "unsent"]
    assert {(event.rank, event.fields["exact"]) for event in told} == {(0, False), (1, False)}


def test_steps_that_nobody_took_at_the_end_are_counted_by_the_next_collector(stage):
    collector = stage.collector()
    ranks = stage.ranks(steps=100_000)
    stage.wait_for(lambda: recorded_past(stage, 50, rank=0) and recorded_past(stage, 50, rank=1))
    collector.kill()
    collector.wait()
    for rank in ranks:
        rank.kill()
        rank.wait()
    with Recording.open(stage.recording) as recording:
        hellos = [item.message for item in recording.records() if isinstance(item.message, Hello)]
        for hello in hellos:
            leave_step_count(stage.directory, hello, 90_000, 1)  # as a rank does at its end
        kept = sum(len(steps_of(recording, rank)) for rank in (0, 1))
    assert stage.finish(stage.collector())["lost"] == 2 * 90_000 - kept


@pytest.mark.parametrize("finished", [True, False])
def test_ranks_whose_hello_nobody_read_are_counted(stage, finished):
    """Of a training that was shorter than the collector's start. What finished is not lost."""
    dead = stage.spawn("-c", "")
    dead.wait()
    now_ns, unix_ns = time.monotonic_ns(), time.time_ns()
    for rank, run_id in ((0, "run"), (1, "run"), (2, "another")):
        clocks = {"monotonic_ns": now_ns, "unix_ns": unix_ns}
        message = hello(rank, 3, run_id=run_id, session=500 + rank, pid=dead.pid, **clocks)
        leave_step_count(stage.directory, message, 70 + rank, 1, finished=finished)
    summary = stage.finish(stage.collector())
    assert (summary["steps"], summary["records"], summary["lost"]) == (None, 0, 70 + 71)
    with Recording.open(stage.recording) as recording:
        told = [r.message for r in recording.records() if getattr(r.message, "kind", "") == "unsent"]
        reducer = Reducer()
        for received in recording.records():
            reducer.feed(received)
    assert [(event.rank, event.fields["steps"], event.fields["exact"]) for event in told] == [
        (0, 70, True),
        (1, 71, True),
    ]
    assert [rank.finished for rank in reducer.state.ranks[:2]] == [finished] * 2
    assert frame_at(stage.recording, None).lost_records == 70 + 71


def test_a_rank_killed_before_any_collector_met_it_is_shown_with_its_cause_and_steps(stage):
    rank = stage.spawn(UNREAD_RANK, stage.directory, "run", 1, 3)
    assert rank.stdout.readline() == "counted\n"
    rank.kill()
    rank.wait()
    collector = stage.collector()
    print(json.dumps({"exits": [{"pid": rank.pid, "exit_code": -9}]}), file=collector.stdin)
    summary = stage.finish(collector, 1)
    assert (summary["records"], summary["lost"]) == (0, 41)
    shown = frame_at(stage.recording, None)
    assert [(death.rank, death.signal) for death in shown.deaths] == [(1, "SIGKILL")]
    assert not list(stage.directory.glob("ddptop-steps-*"))
