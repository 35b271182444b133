"""A recording shown as if the run were happening again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.collector.new_history import NewHistory
from ddptop.frames.codec import encode_frame
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.codec import encode
from ddptop.protocol.messages import Event, Received, Steps
from ddptop.recording.reader import Recording, RecordingError
from ddptop.recording.writer import Writer
from ddptop.render.plain import draw_frame
from ddptop.sources.player import Player
from ddptop.sources.replay import ReplaySource
from tests.made_up_run import (
    GIB,
    NS,
    START_NS,
    START_UNIX_NS,
    STEP_US,
    World,
    a_run,
    feed_together,
    hello,
    run_message,
    steps,
    write,
)
from tests.recording.replays import frame_at

DEADLINE_S = 120


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train-k7qf.ddptop"


@pytest.fixture
def play(path: Path) -> Iterator[Callable[..., ReplaySource]]:
    """Starts a source over `path`; it is closed at the end, and its thread is gone."""
    opened: list[ReplaySource] = []

    def start(**options: object) -> ReplaySource:
        source = ReplaySource(path, **options)  # type: ignore[arg-type]
        opened.append(source)
        source.start()
        return source

    yield start
    for source in opened:
        source.close()
        source.close()
    wait_until(lambda: all(thread.name != "ddptop-replay" for thread in threading.enumerate()))


def wait_for(source: ReplaySource, condition: Callable[[Frame], bool]) -> Frame:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        frame = source.latest()
        if frame is not None and condition(frame):
            return frame
        assert source.status() is None
        time.sleep(0.005)
    raise AssertionError(f"waited in vain; the last frame stands at {frame and frame.playback}")


def step_of(frame: Frame) -> int | None:
    assert frame.playback is not None
    assert frame.playback.step == frame.group.step
    return frame.group.step


def figures(frame: Frame) -> dict[str, object]:
    """What depends on complete steps alone: the same live and in replay."""
    plain = snapshot(frame)
    own = ("age_ms", "state", "step", "bucket", "sequence", "records", "rss_bytes", "cpu_pct")
    ranks = [{k: v for k, v in rank.items() if k not in own} for rank in plain["ranks"]]  # type: ignore[attr-defined]
    return {
        "group": plain["group"],
        "buckets": plain["buckets"],
        "straggler": plain["straggler"],
        "ranks": ranks,
    }


def live_frame(records: list[Received], step: int) -> Frame:
    """What was shown live when `step` was the newest complete one."""
    reducer, until = Reducer(), []
    for received in records:
        if isinstance(received.message, Steps):
            message = received.message
            count = max(0, min(len(message.rows), step + 1 - message.first_step))
            if not count:
                break
            received = received._replace(message=replace(message, rows=message.rows[:count]))
        until.append(received)
    feed_together(reducer, until)
    return reducer.frame(received.t_ns)


@pytest.mark.parametrize("step", [0, 9, 10, 157, 290, 299])
def test_any_step_has_the_figures_that_were_shown_live(path: Path, step: int) -> None:
    records = list(a_run(300))
    write(path, records)
    frame = frame_at(path, step)
    assert step_of(frame) == step
    assert figures(frame) == figures(live_frame(records, step))
    assert (frame.source, frame.run.recording) == ("replay", str(path))


def test_the_end_is_the_end(path: Path) -> None:
    write(path, a_run(300))
    for step in (None, 299, 10_000):
        frame = frame_at(path, step)
        assert (frame.run.state, step_of(frame)) == ("finished", 299)
        assert frame.playback is not None
        assert frame.playback.position_s == frame.playback.duration_s


def test_nobody_saw_the_end(path: Path) -> None:
    """A collector that was killed: the last bytes are cut off, and the run does not look alive."""
    whole = path.with_name("whole.ddptop")
    writer = write(whole, a_run(300, ending=False), close=False)
    path.write_bytes(whole.read_bytes()[:-3])
    writer.close()
    frame = frame_at(path, None)
    assert frame.run.state == "lost"
    assert frame.playback is not None
    assert frame.playback.damage is not None
    assert frame_at(path, 100).run.state == "live"


def test_no_recording(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello")
    for call in (lambda p: frame_at(p, None), ReplaySource):
        with pytest.raises(RecordingError):
            call(tmp_path / "x")
        with pytest.raises(FileNotFoundError):
            call(tmp_path / "none")


def test_it_plays_to_the_end_and_holds_there(path: Path, play: Callable[..., ReplaySource]) -> None:
    write(path, a_run(300, event_at=150))
    source = play(speed=20)
    frame = wait_for(source, lambda f: f.run.state == "finished" and not f.playback.playing)
    assert step_of(frame) == 299
    assert len(frame.history.step) == 300
    assert frame.playback is not None
    assert (frame.playback.first_step, frame.playback.last_step) == (0, 299)
    assert frame.playback.position_s == frame.playback.duration_s
    [(share, _)] = [mark for mark in frame.playback.marks if mark[1] == "mute"]
    assert share == pytest.approx(160 / 300, abs=0.02)


def test_frames_have_the_run_s_own_time(path: Path, play: Callable[..., ReplaySource]) -> None:
    write(path, a_run(300))
    frame = wait_for(play(at=149, playing=False), lambda f: f.group.step == 149)
    assert frame.unix_s == pytest.approx(START_UNIX_NS / NS + 150 * STEP_US / 1e6, abs=0.001)
    assert frame.run.elapsed_s == pytest.approx(3.0, abs=0.001)
    assert set(frame.ranks.state) == {"live"}


def test_going_to_and_fro(path: Path, play: Callable[..., ReplaySource]) -> None:
    write(path, a_run(300))
    source = play(playing=False)
    for step in (200, 57, 58, 290, 0):
        source.seek(step=step)
        wait_for(source, lambda f, step=step: f.group.step == step)
    source.seek(by_steps=1)
    source.seek(by_steps=1)
    source.seek(by_steps=5)
    wait_for(source, lambda f: f.group.step == 7)
    source.seek(by_steps=-3)
    wait_for(source, lambda f: f.group.step == 4)
    source.seek(by_steps=-100)
    wait_for(source, lambda f: f.group.step is None)
    source.seek(by_steps=1)
    wait_for(source, lambda f: f.group.step == 0)
    source.seek(share=0.5)
    frame = wait_for(source, lambda f: (f.group.step or 0) > 100)
    assert frame.playback is not None
    assert frame.playback.position_s == pytest.approx(frame.playback.duration_s / 2, abs=0.001)
    source.seek(share=7)
    wait_for(source, lambda f: f.run.state == "finished")


def test_held_it_stands_and_on_it_goes(path: Path, play: Callable[..., ReplaySource]) -> None:
    write(path, a_run(300))
    source = play(at=100, playing=False)
    frame = wait_for(source, lambda f: f.group.step == 100)
    assert source.latest() is frame, "nothing moves, so there is no newer frame"
    source.focus(1)
    frame = wait_for(source, lambda f: f.focus is not None)
    assert frame.focus is not None
    assert (frame.focus.rank, frame.focus.step[-1]) == (1, 100)
    source.focus(None)
    wait_for(source, lambda f: f.focus is None)
    source.set_speed(50)
    source.play()
    frame = wait_for(source, lambda f: f.run.state == "finished")
    assert len(frame.history.step) == 300, "what was held back at step 100 was shown as well"
    assert frame.lost_records == 0


def test_before_it_is_started_it_can_be_told_where_to_begin(path: Path) -> None:
    write(path, a_run(100))
    source = ReplaySource(path, playing=False)
    source.seek(share=1.0)
    source.start()
    try:
        wait_for(source, lambda f: f.run.state == "finished")
    finally:
        source.close()


def test_a_large_recording_is_stood_in_by_its_tail(path: Path) -> None:
    records = list(a_run(2000))
    write(path, records)
    with Recording.open(path) as recording:
        player = Player(recording, whole_rows=0, tail_rows=800)
        for step in (1500, 1000, 1999, 700):
            player.go_to_step(step)
            frame = player.make_frame()
            assert not player.from_start
            assert (frame.group.step, frame.lost_records) == (step, 0)
            live = figures(live_frame(records, step))
            shown = figures(frame)
            for ranks in (live["ranks"], shown["ranks"]):
                for rank in ranks:  # type: ignore[attr-defined]
                    rank.pop("individual_score")  # its own best since the start of the run
            assert shown == live


@pytest.mark.parametrize(
    ("every", "own"),
    [
        pytest.param(1, False, marks=pytest.mark.slow),
        pytest.param(4, False, marks=pytest.mark.slow),
        (4, True),
        pytest.param(32, True, marks=pytest.mark.slow),
    ],
)
def test_a_jump_shows_what_playing_shows(path: Path, every: int, own: bool) -> None:
    """Also while a rank has just become slow or recovered: ranks are judged at the same steps."""
    world = World(4, detail_every=every, own=own)
    records = [world.run(), *world.introduce(), *world.steps(1003)]
    world.delays = {(2, "data"): 9_000}
    records += world.steps(400)
    world.delays = {}
    records += world.steps(400)
    write(path, records)
    with Recording.open(path) as recording:
        jumping, playing = Player(recording, whole_rows=0), Player(recording, whole_rows=GIB)
        who = []
        for step in (900, 1002, 1006, 1010, 1050, 1290, 1403, 1440, 1700):
            jumping.go_to_step(step)
            while (playing.step or 0) < step:
                playing.go_by(min(50, step - (playing.step or 0)))
            assert not jumping.from_start
            assert playing.from_start
            shown, played = figures(jumping.make_frame()), figures(playing.make_frame())
            for ranks in (played["ranks"], shown["ranks"]):
                for rank in ranks:  # type: ignore[attr-defined]
                    rank.pop("individual_score")
            assert shown == played, step
            assert verdict(jumping.make_frame()).sentence == verdict(playing.make_frame()).sentence
            steps = [player.reducer.state.figures.steps for player in (jumping, playing)]
            kept = [window.excess(window.recent(OWN_STEPS)) for window in steps]
            np.testing.assert_array_equal(*kept)
            straggler = jumping.make_frame().straggler
            who.append(None if straggler is None else straggler.rank)
            jumping.go_to_step(20)
        assert set(who) == {None, 2}


def test_after_a_jump_the_excess_of_a_rank_reaches_as_far_back_as_while_playing(path: Path) -> None:
    world = World(3, own=True)
    records = [world.run(), *world.introduce(), *world.steps(1_400)]
    world.delays = {(2, "data"): 9_000}
    records += world.steps(1_400)
    reducer = Reducer()
    writer = Writer(path, limit_bytes=GIB)
    writer.history = NewHistory(reducer)
    for first in range(0, len(records), 12):
        feed_together(reducer, records[first : first + 12])
        for received in records[first : first + 12]:
            writer.add(received, encode(received.message))
        writer.flush()
    writer.close()
    with Recording.open(path) as recording:
        jumping, playing = Player(recording, whole_rows=0), Player(recording, whole_rows=GIB)
        for step in (2_790, 1_260):
            found = []
            for player in (jumping, playing):
                player.go_to_step(step)
                focus = player.make_frame(focus=2).focus
                assert focus is not None and focus.minutes is not None
                found.append(focus.minutes)
            assert not jumping.from_start
            jumped, played = found
            assert jumped.time_s[0] <= played.time_s[0] + 8.0 and len(jumped.time_s) > 3
            for minutes in found:
                gaps_s = np.diff(minutes.time_s)
                assert gaps_s.max() < 3 * np.median(gaps_s), "the chart has no gap"
            late = played.time_s[played.mean_ms > 1.0]
            apart = np.abs(jumped.time_s - (late[0] if len(late) else 0.0)) > 8.0  # than one recorded bin
            known = np.interp(jumped.time_s, played.time_s, played.mean_ms)
            np.testing.assert_allclose(jumped.mean_ms[apart], known[apart], atol=0.01)
            assert (step > 1_400) == (jumped.mean_ms.max() > 8.0)
            assert jumped.largest_ms.max() == pytest.approx(played.largest_ms.max(), rel=2e-3)


def test_the_early_history_is_filled_in(
    path: Path, play: Callable[..., ReplaySource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Player.__init__, "__kwdefaults__", {"whole_rows": 0, "tail_rows": 800, "next_ns": 0})
    write(path, a_run(3000))
    source = play(at=2500, playing=False)
    frame = wait_for(source, lambda f: len(f.history.step) == 2501)
    assert frame.history.start == 0
    assert list(frame.history.step) == list(range(2501))


def test_a_player_that_begins_far_ahead_is_where_going_there_leads(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, a_run(3000))
    begun: list[int] = []
    start_over = Player.start_over
    monkeypatch.setattr(
        Player, "start_over", lambda self, t_ns, **options: begun.append(t_ns) or start_over(self, t_ns)
    )
    frames = []
    with Recording.open(path) as recording:
        for next_ns in (0, recording.end_ns):
            player = Player(recording, whole_rows=0, tail_rows=800, next_ns=next_ns)
            player.go_to(recording.end_ns)
            frames.append(encode_frame(player.make_frame()))
        assert begun == [recording.start_ns, recording.end_ns, recording.end_ns], (
            "no start that is left at once"
        )
    assert frames[0] == frames[1]


def test_a_growing_recording_is_followed_to_its_end(path: Path, play: Callable[..., ReplaySource]) -> None:
    records = list(a_run(300))
    writer = Writer(path, limit_bytes=GIB)
    for received in records[:40]:
        writer.add(received, encode(received.message))
    writer.flush()
    source = play(speed=1000)
    frame = wait_for(source, lambda f: f.playback.growing and f.playback.step == f.playback.last_step)
    assert frame.playback is not None
    assert frame.playback.playing, "it waits for more"
    for received in records[40:]:
        writer.add(received, encode(received.message))
    writer.close()
    frame = wait_for(source, lambda f: f.run.state == "finished" and not f.playback.growing)
    assert step_of(frame) == 299


def restarted_run() -> list[Received]:
    """Steps 0 to 99, then again from 0 in a new incarnation; a step that one rank lost in it."""
    records = list(a_run(100, ending=False))
    t_ns = records[-1].t_ns
    for k in range(2):
        again = hello(k, 2, session=2000 + k, incarnation=1, t_ns=t_ns)
        records.append(Received(t_ns, k, 2000 + k, 0, again))
    start_ns = t_ns
    for first in range(0, 60, 10):
        t_ns += 10 * STEP_US * 1000
        for k in range(2):
            if (first, k) != (30, 1):
                batch = steps(first, 10, k, start_ns=start_ns)
                records.append(Received(t_ns, k, 2000 + k, 1 + first // 10, batch))
    records.append(Received(t_ns, -1, 0, 0, Event("mute", t_ns, 1, -1)))
    records.append(Received(t_ns + 1, -1, 0, 0, run_message("failed", 1)))
    return records


def test_a_step_of_two_incarnations_in_one_block(path: Path) -> None:
    """The restart and what came just before it lie side by side: step 5 is not step 99's past."""
    writer = Writer(path, limit_bytes=GIB)
    for received in restarted_run():
        writer.add(received, encode(received.message))
    writer.close()
    frame = frame_at(path, 5)
    assert (frame.group.step, frame.group.incarnation) == (5, 1)
    assert "step 5 (restart 1)" in draw_frame(frame, 80).splitlines()[0]
    assert "restart" not in draw_frame(frame_at(path, 80), 80).splitlines()[0]


def test_restarts_and_losses(path: Path) -> None:
    write(path, restarted_run())
    with Recording.open(path) as recording:
        player = Player(recording)
        player.go_to_step(50)
        assert player.step == 50
        assert player.position_ns > START_NS + 3 * NS, "the last time it came past this step"
        player.go_to_step(35)
        assert player.step == 29, "step 35 was never complete"
        player.go_by(1)
        assert player.step == 40
        player.go_by(-1)
        assert player.step == 29
        player.go_to(START_NS + NS + 2000)
        assert player.step == 49
        player.go_by(1)
        assert player.step == 50
        assert player.position_ns < START_NS + 2 * NS, "on from here, not from the last time"
        player.go_to_step(99)
        player.go_by(1)
        assert (player.reducer.state.incarnation, player.step) == (1, 0), (
            "after the last step comes the restart"
        )
        player.go_to_step(5)
        assert (player.reducer.state.incarnation, player.step) == (1, 5)
        assert player.make_frame().group.incarnation == 1
        player.go_to_step(80)
        assert player.reducer.state.incarnation == 0
        assert player.step == 80, "only the first incarnation came that far"
        player.go_to(recording.end_ns)
        frame = player.make_frame()
        assert frame.run.state == "failed"
        assert frame.lost_records == 10


def test_an_internal_error_is_shown_and_the_keys_go_on_working(
    path: Path, play: Callable[..., ReplaySource], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(path, a_run(300))
    source = play(playing=False, at=100)
    wait_for(source, lambda f: step_of(f) == 100)
    with monkeypatch.context() as broken:
        broken.setattr(Player, "go_by", lambda player, steps: {}[steps])
        source.seek(by_steps=1)
        wait_until(lambda: source.failure() is not None)
        assert str(source.failure()).startswith("internal error: KeyError: 1 at test_replay.py:")
    source.play(False)
    wait_until(lambda: source.failure() is None)
    # It stands at the same moment again: there the whole batch of ten had arrived.
    wait_for(source, lambda f: step_of(f) == 109)
    source.seek(by_steps=1)
    wait_for(source, lambda f: step_of(f) == 110)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)
