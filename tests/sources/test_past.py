"""A large recording that tells its own past, as the collector writes it: nothing is missing after a jump."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Flag, Logged, Received, Replica, Run, Steps
from ddptop.recording import pending_index, records
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.sources import player, showing
from ddptop.sources.past import Backfill
from ddptop.sources.player import Player
from ddptop.sources.replay import PairSource, ReplaySource
from tests.made_up_run import (
    GIB,
    NS,
    START_NS,
    START_UNIX_NS,
    STEP_US,
    World,
    a_run,
    collect,
    run_message,
    write,
)
from tests.recording.replays import frame_at
from tests.sources.test_replay import DEADLINE_S, live_frame, path, play, wait_for  # noqa: F401  # fixtures

STEPS = 4500


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with what its collector knew."""
    target = tmp_path_factory.mktemp("past") / "large.ddptop"
    recorder, reducer = Writer(target, limit_bytes=GIB), Reducer()
    recorder.history = NewHistory(reducer)
    for received in a_run(STEPS):
        recorder.add(received, encode(received.message))
        reducer.feed(received)
        recorder.write_due(received.t_ns)
    recorder.close()
    return target


@pytest.fixture
def large(recorded: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811  # the fixture
    """The same where `play` looks for it; it is read in parts, however small it is."""
    monkeypatch.setattr(Player.__init__, "__kwdefaults__", {"whole_rows": 0, "tail_rows": 400, "next_ns": 0})
    path.symlink_to(recorded)
    return path


def test_the_early_history_needs_no_reading(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(backfill: Backfill, seconds: float) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(Backfill, "read_on", work)
    source = play(at=STEPS // 2, playing=False)
    frame = wait_for(source, lambda f: f.group.step == STEPS // 2)
    step, time_s = frame.history.step, frame.history.time_s
    assert step[0] < 64
    assert step[-1] == STEPS // 2
    assert (np.diff(step) > 0).all()
    assert np.diff(step).max() < 64
    assert (np.diff(time_s) > 0).all()
    assert frame.playback is not None
    with Recording.open(large) as recording:
        kinds = [kind for _, past in recording.history_pieces() for _, kind in past.marks]
    assert "straggler" in kinds
    assert [kind for _, kind in frame.playback.marks] == kinds, "of a part that was not read"


def test_what_had_happened_by_a_moment_is_what_was_seen_live_and_nothing_later(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
) -> None:
    source = play(at=STEPS - 100, playing=False)
    for step in (STEPS - 100, 1000):
        source.seek(step=step)
        frame = wait_for(source, lambda f, step=step: f.group.step == step)
        live = live_frame(list(a_run(STEPS)), step).events
        assert "straggler" in {one.kind for one in live}
        told = [(one.kind, one.step, one.message) for one in frame.events]
        assert told == [(one.kind, one.step, one.message) for one in live]


def test_a_rank_s_own_best_is_known_after_a_jump(large: Path) -> None:
    with Recording.open(large) as recording:
        player = Player(recording)
        player.go_to_step(STEPS - 100)
        jumped = player.make_frame().ranks.individual_score
    live = live_frame(list(a_run(STEPS)), STEPS - 100).ranks.individual_score
    assert np.isfinite(jumped).all()
    assert jumped == pytest.approx(live, abs=1e-3)


def test_where_reading_cannot_keep_up_it_leaps(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(showing, "READ_S", -1.0)
    monkeypatch.setattr("ddptop.recording.reader.FIRST_ROWS", 0)  # this recording stands for a longer one
    source = play(speed=100)
    seen = set()
    frame = wait_for(source, lambda f: seen.add(f.group.step) or (f.group.step or 0) > 2000)
    assert len(frame.history.step) < STEPS / 4, "the history is what the recording told of it, and the tail"
    assert frame.group.step_ms_p50 == pytest.approx(STEP_US / 1000)
    assert frame.lost_records == 0
    wait_for(source, lambda f: f.run.state == "finished")


def test_where_a_leap_would_read_no_less_it_plays_more_slowly_and_says_so(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(showing, "READ_S", -1.0)
    monkeypatch.setattr(player, "MESSAGES_PER_CLOCK", 1)
    leaps: list[int] = []
    monkeypatch.setattr(Player, "jump_to", lambda player, t_ns: leaps.append(t_ns))
    source = play(speed=1)
    frame = wait_for(source, lambda f: f.playback.behind)
    source.play(False)
    wait_for(source, lambda f: not f.playback.playing and not f.playback.behind)
    assert frame.playback is not None and frame.playback.position_s < 60
    assert not leaps


def test_steps_that_ended_before_the_run_began_do_not_end_the_replay(
    path: Path,  # noqa: F811
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The clocks of ranks and collector differ: the first steps have times below 0."""
    monkeypatch.setattr(Player.__init__, "__kwdefaults__", {"whole_rows": 0, "tail_rows": 400, "next_ns": 0})
    late = replace(run_message(), unix_ns=START_UNIX_NS + 5 * NS)
    write(path, (r._replace(message=late) if isinstance(r.message, Run) else r for r in a_run(600)))
    source = play(playing=False)
    source.seek(share=0.9)
    wait_for(source, lambda f: (f.group.step or 0) > 500)
    source.seek(share=0.05)
    frame = wait_for(source, lambda f: (f.group.step or 0) < 100)
    assert frame.history.time_s[0] < 0
    assert source.failure() is None


def test_as_fast_as_it_goes_leaves_nothing_out(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
) -> None:
    source = play(speed=math.inf)
    frame = wait_for(source, lambda f: f.run.state == "finished" and not f.playback.playing)
    assert frame.playback is not None
    assert frame.playback.speed == math.inf
    assert frame.history.step.tolist() == list(range(STEPS))


def test_more_than_a_frame_s_usual_parts_is_given_on_demand(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
) -> None:
    source = play(at=500, playing=False)
    assert wait_for(source, lambda f: f.group.step == 500).heat is None
    source.request("heat step 2 10")
    assert wait_for(source, lambda f: f.heat is not None).group.step == 500
    source.request("timeline")
    frame = wait_for(source, lambda f: f.timeline is not None)
    assert frame.heat is None
    source.request("")
    wait_for(source, lambda f: f.timeline is None)


def test_two_recordings_go_together(large: Path, tmp_path: Path) -> None:
    shorter = tmp_path / "b.ddptop"
    writer = Writer(shorter, limit_bytes=GIB)
    for received in a_run(300, world=3):
        writer.add(received, encode(received.message))
    writer.close()
    source = PairSource(ReplaySource(large, playing=False, at=123), ReplaySource(shorter))
    source.start()
    try:
        for step, second in ((123, 123), (50, 50), (4000, 299)):
            source.seek(step=step)
            deadline = time.monotonic() + DEADLINE_S
            while True:
                first, other = source.latest(), source.other()
                stand = first is not None and other is not None and (first.group.step, other.group.step)
                if stand == (step, second):
                    break
                assert time.monotonic() < deadline, stand
                time.sleep(0.005)
            assert source.latest() is source.latest(), "nothing moves, so there is no newer frame"
            assert other.run.world_size == 3
    finally:
        source.close()


def test_seconds_of_the_run_are_moments_of_the_recording(large: Path) -> None:
    with Recording.open(large) as recording:
        for end_ns, past in recording.history_pieces():
            assert end_ns == pytest.approx(START_NS + (past.points["step"][-1] + 1) * STEP_US * 1000, abs=1e6)


SHADOW_EVERY, LAST_STEP = 512, 3_999


def eventful_run() -> Iterator[Received]:
    """Long before its last steps a rank becomes slow, its loss NaN and its replica different, another rank's
    loss departs, and a value is logged for the last time."""
    world = World(3, own=True, detail_every=8)
    yield world.run()
    yield from world.introduce()
    for rank in range(3):
        yield world.received(rank, Logged(0, {"val/accuracy": 0.5 + rank, "epoch": 1.0}))
    losses: dict[int, float] = {}
    while world.step <= LAST_STEP:
        step = world.step
        if step == 900:
            world.delays = {(0, "data"): 9_000}
        if step == 1_200:
            losses[1] = float("nan")
        if step == 1_600:
            losses[1], losses[2] = 1.0, 3.0
        if step == 2_000:
            losses[1] = float("nan")
        for received in world.steps(1, lambda rank, _: losses.get(rank, 1.0)):
            shadow = step >= SHADOW_EVERY and step % SHADOW_EVERY < 10
            yield with_flags(received, Flag.SHADOW) if shadow else received
        if step % 64 == 0:
            for rank in range(3):
                values = (1, 2 + (rank == 2 and step > 1_000)) if step % 512 == 0 else (1,)
                yield world.received(rank, Replica(step, 0, 2, 0, values))


def with_flags(received: Received, flags: Flag) -> Received:
    message = received.message
    assert isinstance(message, Steps)
    rows = tuple(row._replace(flags=int(flags), cells=()) for row in message.rows)
    return received._replace(message=replace(message, rows=rows))


@pytest.fixture(scope="module")
def eventful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That run, recorded by its collector; it has a history every 500 steps."""
    target = tmp_path_factory.mktemp("eventful") / "run.ddptop"
    reducer, recorder = Reducer(), Writer(target, limit_bytes=GIB)
    recorder.history = NewHistory(reducer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pending_index, "INDEX_STEPS", 500)
        collect(recorder, reducer, eventful_run())
        recorder.close()
    return target


def test_a_moment_is_the_same_from_the_last_steps_and_from_all(
    eventful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alerts since when, the recorder's cost, own best times, logged values: and little is read for it."""
    taken: list[int] = []
    kinds: dict[str, dict[str, Any]] = {}
    read_block = records.read_block
    with Recording.open(eventful) as recording:
        whole = Player(recording, whole_rows=GIB)
        for step in (1_250, 1_650, 2_400, LAST_STEP):
            whole.go_to_step(step)
            expected = comparable(whole.make_frame())
            monkeypatch.setattr(records, "read_block", lambda *args: taken.append(1) or read_block(*args))
            shown = comparable(frame_at(eventful, step))
            monkeypatch.setattr(records, "read_block", read_block)
            assert shown == expected, step
            assert whole.from_start and 0 < len(taken) < 0.6 * recording.blocks_until(recording.end_ns)
            taken.clear()
            kinds |= {alert["kind"]: alert for alert in shown["alerts"]}
    assert {"nan", "replica_drift", "straggler", "loss_spread"} <= kinds.keys()
    assert kinds["nan"]["step"] == 2_000
    assert "equal at step" in kinds["replica_drift"]["message"]
    assert shown["overhead"]["measured"]["blocks"] == LAST_STEP // SHADOW_EVERY
    assert shown["logged"].keys() == {"val/accuracy", "epoch"}


def test_of_an_earlier_version_s_recording_alerts_begin_with_their_events(
    eventful: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no more of the steps before those that are read: what it lacks is not made up."""
    said = {alert.kind: alert for alert in frame_at(eventful, 3_900).alerts}
    monkeypatch.setattr(Player, "recorded_since_start", lambda self, t_ns: None)
    frame = frame_at(eventful, 3_900)
    for alert in frame.alerts:
        assert (alert.step, alert.message) == (said[alert.kind].step, said[alert.kind].message)
        assert alert.since_s == pytest.approx(said[alert.kind].since_s, abs=0.1)
    assert {alert.kind for alert in frame.alerts} == said.keys() == {"nan", "replica_drift", "straggler"}
    assert frame.overhead.measured is None


def comparable(frame: Frame) -> dict[str, Any]:
    """What is shown of a frame, but for what a frame of a player alone lacks."""
    plain: dict[str, Any] = json.loads(json.dumps(snapshot(replace(frame, playback=None))))
    return plain
