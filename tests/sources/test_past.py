"""A large recording that tells its own past, as the collector writes it: nothing is missing after a jump."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import NewHistory
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Run
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from ddptop.sources import player, showing
from ddptop.sources.past import Backfill
from ddptop.sources.player import Player
from ddptop.sources.replay import PairSource, ReplaySource
from tests.recording.made_up import GIB, NS, START_NS, START_UNIX_NS, STEP_US, a_run, run_message, write
from tests.sources.test_replay import DEADLINE_S, live_frame, path, play, wait_for  # noqa: F401  # fixtures

STEPS = 4500


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with what its collector knew."""
    target = tmp_path_factory.mktemp("past") / "large.ddptop"
    writer, reducer = Writer(target, limit_bytes=GIB), Reducer()
    writer.history = NewHistory(reducer)
    for received in a_run(STEPS):
        writer.add(received, encode(received.message))
        reducer.feed(received)
        writer.tick(received.t_ns)
    writer.close()
    return target


@pytest.fixture
def large(recorded: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:  # noqa: F811  # the fixture
    """The same where `play` looks for it; it is read in parts, however small it is."""
    monkeypatch.setattr(Player.__init__, "__kwdefaults__", {"whole_bytes": 0, "tail_rows": 400, "next_ns": 0})
    path.symlink_to(recorded)
    return path


def test_the_early_history_needs_no_reading(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(backfill: Backfill, seconds: float) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(Backfill, "work", work)
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
        jumped = player.frame().ranks.individual_score
    live = live_frame(list(a_run(STEPS)), STEPS - 100).ranks.individual_score
    assert np.isfinite(jumped).all()
    assert jumped == pytest.approx(live, abs=1e-3)


def test_where_reading_cannot_keep_up_it_leaps(
    large: Path,
    play: Callable[..., ReplaySource],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(showing, "READ_S", -1.0)
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
    monkeypatch.setattr(Player.__init__, "__kwdefaults__", {"whole_bytes": 0, "tail_rows": 400, "next_ns": 0})
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
