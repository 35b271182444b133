"""Speeds, places and marks of a recording that plays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ddptop.tui.actions.playback import SPEEDS, SeekTarget, next_mark, next_speed, parse_target, speed_word
from tests.tui.drive import Sketch, screen
from tests.tui.fake import FakeSource, live, replay
from tests.tui.screens import check


@pytest.mark.parametrize(
    ("text", "goal"),
    [
        ("12480", SeekTarget(step=12_480)),
        ("12,480", SeekTarget(step=12_480)),
        ("50%", SeekTarget(share=0.5)),
        ("12.5 %", SeekTarget(share=0.125)),
        ("14m", SeekTarget(share=0.25)),
        ("0.25h", SeekTarget(share=900 / 3360)),
        ("1h20m", SeekTarget(share=1.0)),
        ("28m30s", SeekTarget(share=1710 / 3360)),
        ("90s", SeekTarget(share=90 / 3360)),
        # It begins at 12:17:07.
        ("12:31:07", SeekTarget(share=0.25)),
        ("12:45:07", SeekTarget(share=0.5)),
        ("12:17", SeekTarget(share=0.0)),
        ("", None),
        ("soon", None),
        ("150%", None),
        ("nan%", None),
        ("25:00", None),
        ("1h-3m", None),
    ],
)
def test_where_a_person_may_go(text: str, goal: SeekTarget | None) -> None:
    found = parse_target(text, replay())
    if goal is None or goal.share is None or found is None:
        assert found == goal
    else:
        assert (found.step, found.share) == (None, pytest.approx(goal.share))


def test_a_time_of_day_before_the_beginning_is_one_of_the_next_day() -> None:
    frame = replay()
    assert frame.playback is not None
    long = replace(frame, playback=replace(frame.playback, duration_s=2 * 86_400.0))
    assert parse_target("12:16:07", long) == SeekTarget(share=pytest.approx((86_400 - 60) / (2 * 86_400)))


def test_a_live_run_has_no_places() -> None:
    assert parse_target("50%", live()) is None


def test_the_ladder_of_speeds() -> None:
    assert next_speed(1.0, 1) == 2.0
    assert next_speed(3.0, -1) == 2.0
    assert next_speed(64.0, 1) == math.inf
    assert next_speed(math.inf, 1) == math.inf
    assert next_speed(math.inf, -1) == 64.0
    assert next_speed(0.25, -1) == 0.25
    assert [speed_word(speed) for speed in (SPEEDS[0], 4.0, SPEEDS[-1])] == ["0.25x", "4x", "max"]


def test_marks_before_and_after() -> None:
    played = replay().playback
    assert played is not None
    assert next_mark(played, 1) == 0.4
    assert next_mark(played, -1) == 0.2
    assert next_mark(replace(played, position_s=0.2 * played.duration_s), -1) is None
    assert next_mark(replace(played, duration_s=0.0), 1) is None


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (50, 24)])
def test_a_bar_full_of_marks_at_full_speed(size: tuple[int, int]) -> None:
    frame = replay()
    kinds = ("straggler", "lost_records", "stall", "failed_rank", "restart", "nan", "mute")
    marks = tuple((0.05 + 0.12 * at, kind) for at, kind in enumerate(kinds))
    assert frame.playback is not None
    full = replace(frame.playback, marks=marks, speed=math.inf, growing=True)
    text = screen(FakeSource(replace(frame, playback=full)), size)
    check(f"replay-marks-{size[0]}x{size[1]}", text)


def test_a_replay_that_an_internal_error_stopped_says_so() -> None:
    source = FakeSource(replay())
    source.failed = "internal error: AssertionError at backfill.py:67"
    sketch = Sketch(source, (80, 24))
    text = sketch.text()
    assert "INTERNAL ERROR" in text.splitlines()[0]
    assert "REPLAY" not in text
    assert source.failed in text
    assert "rank" in sketch.press("3")


def test_a_thread_of_the_screen_that_ends_by_an_error_is_told() -> None:
    sketch = Sketch(FakeSource(replay()), (80, 24))
    sketch.start_thread(lambda: 1 // 0, "ddptop-open")
    sketch.wait_for_threads()
    assert "internal error: ZeroDivisionError" in sketch.text()
    assert len(sketch.failures) == 1
