"""The past of the GPUs, which the screen keeps: what is kept, and where it is drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptop.frames.frame import Frame
from ddptop.tui.gpu_past import KEPT_S, MOST_RANKS, GpuPast
from tests.tui.drive import Sketch
from tests.tui.gallery import SIZES, StepsSource, frame_of


def later(frame: Frame, seconds: float, util_pct: float = 80.0) -> Frame:
    """The same run some seconds later, with this use of each GPU and a watt more for each rank."""
    gpus = tuple(replace(gpu, util_pct=util_pct, power_w=500.0 + gpu.rank) for gpu in frame.gpus)
    return replace(frame, unix_s=frame.unix_s + seconds, gpus=gpus)


def test_a_reading_a_second_is_kept_for_some_minutes() -> None:
    past, frame = GpuPast(), frame_of("healthy")
    for quarter in range(4 * (KEPT_S + 60)):
        past.notice(later(frame, quarter / 4, float(quarter % 100)), 0)
    series = past.series_of(2, later(frame, KEPT_S + 59.75))
    assert series is not None
    assert len(series.time_s) == KEPT_S and (np.diff(series.time_s) == 1.0).all()
    assert (series.power_w == 502.0).all() and series.mem_pct[0] == pytest.approx(100 * 61.2 / 81.0, abs=0.3)
    assert past.series_of(9, later(frame, KEPT_S)) is None


def test_an_earlier_moment_of_a_recording_and_another_run_begin_anew() -> None:
    past, frame = GpuPast(), frame_of("healthy")
    for second in range(20):
        past.notice(later(frame, second), 0)
    past.notice(later(frame, 5.5), 0)
    series = past.series_of(0, later(frame, 5.5))
    assert series is not None and series.time_s[-1] - series.time_s[0] == 5.0
    before_gpus = replace(later(frame, 2.5), gpus=())
    past.notice(before_gpus, 0)
    series = past.series_of(0, before_gpus)
    assert series is not None and series.time_s[-1] - series.time_s[0] == 2.0, "no GPU is known at that time"
    other = replace(later(frame, 30), run=replace(frame.run, name="another"))
    past.notice(other, 0)
    assert past.series_of(0, other) is None and past.series_of(0, later(frame, 30)) is None
    past.notice(replace(frame, gpus=()), 0)


def test_of_very_many_ranks_that_of_one_is_kept() -> None:
    past, frame = GpuPast(), frame_of("healthy")
    frame = replace(frame, gpus=tuple(replace(frame.gpus[0], rank=rank) for rank in range(MOST_RANKS + 1)))
    past.notice(later(frame, 0), 3)
    past.notice(later(frame, 1), 3)
    assert past.series_of(3, later(frame, 1)) is not None and past.series_of(4, later(frame, 1)) is None


def test_in_a_fast_replay_readings_far_apart_cover_no_more_than_is_kept() -> None:
    past, frame = GpuPast(), frame_of("healthy")
    for second in range(0, 20 * KEPT_S, 75):
        past.notice(later(frame, second), 0)
    series = past.series_of(0, later(frame, 20 * KEPT_S - 75))
    assert series is not None and len(series.time_s) == 4 and np.ptp(series.time_s) == 225


def test_a_frozen_screen_shows_the_past_of_its_own_moment() -> None:
    frame = frame_of("healthy")
    source = StepsSource(frame)
    person = Sketch(source, SIZES["160x50"])
    person.press("enter")

    def go_on(seconds: range, util_pct: float) -> None:
        for second in seconds:
            assert source.frame is not None
            source.frame = replace(later(frame, second, util_pct), focus=source.frame.focus)
            person.repaint()

    go_on(range(60), 20.0)
    frozen = gpu_charts(person.press("space"))
    go_on(range(60, 60 + 3 * KEPT_S, 10), 95.0)
    assert gpu_charts(person.text()) == frozen
    assert "GPU use % 95" in person.press("space")


def gpu_charts(text: str) -> list[str]:
    """The lines from the charts on, without the last ones, which say how much newer the run is."""
    return text.split("GPU use %", 1)[1].splitlines()[:-3]


def watched(size: str, ascii_only: bool = False) -> str:
    """The page of rank 0 after two minutes: the GPU was idle, then busy."""
    frame = frame_of("healthy")
    source = StepsSource(frame)
    person = Sketch(source, SIZES[size], ascii_only)
    person.press("enter")
    for second in range(120):
        assert source.frame is not None
        source.frame = replace(later(frame, second, 5.0 if second < 60 else 95.0), focus=source.frame.focus)
        person.repaint()
    return person.text()


def test_a_wide_page_of_a_rank_charts_the_past_of_its_gpu() -> None:
    text = watched("160x50")
    for title in ("GPU use % 95 last 1 min", "GPU memory % 75", "GPU power W 500", "GPU temperature °C 64"):
        assert title in text
    assert "12,480 0.4131" in text, "beside its single steps"


def test_elsewhere_its_use_is_a_row_of_bars() -> None:
    line = next(line for line in watched("80x24").splitlines() if line.startswith("torch allocated"))
    assert line.endswith("█") and " use " in line and "▁" in line
    line = next(line for line in watched("80x24", True).splitlines() if line.startswith("torch allocated"))
    assert line.endswith("#") and line.isascii()


def test_a_page_that_has_just_been_opened_has_no_past() -> None:
    text = Sketch(StepsSource(frame_of("healthy")), SIZES["160x50"]).press("enter")
    assert "GPU use" not in text
