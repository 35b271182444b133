"""Two recordings side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddptop.cli.commands.check import result_sentence
from ddptop.frames.frame import Frame, LoggedEvent, rate_without_stalls
from ddptop.report.check import Measured, against_base
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views.compare import draw_two_runs
from tests.recording.replays import frame_at
from tests.tui.drive import screen
from tests.tui.fake import NOW, FakeSource, replay, unknowns
from tests.tui.screens import check

BY_STEP = ("step_ms", "exposed_comm_ms", "exposed_wait_ms")


class Two(FakeSource):
    """A source with a second recording."""

    def __init__(self, first: Frame, second: Frame | None) -> None:
        super().__init__(first)
        self._second = second

    def other(self) -> Frame | None:
        """The second one's frame."""
        return self._second


def second() -> Frame:
    """A run of the same script that is a little faster, and has one bucket more."""
    frame = replay()
    group = replace(frame.group, step_ms_p50=40.0, loss_mean=0.43, busbw_gbps=11.5, overlap_pct=None)
    extra = replace(frame.buckets[1], index=2)
    slower = frame.history.step_ms * 0.85
    return replace(
        frame,
        run=replace(frame.run, name="train-b2[red]"),
        group=group,
        buckets=(*frame.buckets, extra),
        straggler=None,
        history=replace(frame.history, step_ms=slower),
    )


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (50, 24)])
def test_two_runs_at_the_same_step(size: tuple[int, int]) -> None:
    text = screen(Two(replay(), second()), size)
    check(f"runs-{size[0]}x{size[1]}", text)
    assert "+6.8" in text, "the difference in step time"
    assert "A is slower than B · 7.0 ms (18%) more a step" in text or size[0] == 50
    assert "▲ A is slower than B" in text


def test_losses_that_span_decades_are_compared_on_a_logarithmic_axis() -> None:
    def titled(frame: Frame) -> bool:
        page = draw_two_runs(Scene(frame, Place(), other=second()), 80, 22)
        return any("loss by step ━ A ┄ B log" in str(line) for line in page.lines)

    decades = replace(replay().history, loss_mean=np.geomspace(60.0, 0.01, len(replay().history.step)))
    assert titled(replace(replay(), history=decades)) and not titled(replay())


@pytest.mark.parametrize("size", [(30, 6), (20, 5)])
def test_tiny_terminals_survive(size: tuple[int, int]) -> None:
    assert len(screen(Two(replay(), second()), size).splitlines()) == size[1]


def test_what_is_not_known_is_a_dash_and_so_is_its_difference() -> None:
    other = unknowns()
    scene = Scene(replay(), Place(), other=replace(other, group=replace(other.group, exposed_comm_ms=None)))
    lines = [str(line) for line in draw_two_runs(scene, 80, 22).lines]
    [exposed] = [line for line in lines if line.startswith("exposed ms")]
    assert exposed.split()[3:] == ["–", "–", "–"]


@pytest.mark.parametrize(
    ("losses", "has_bar"), [((np.inf, 0.4), True), ((0.4, np.inf), True), ((np.inf, np.inf), False)]
)
def test_an_infinite_loss_differs_from_any_other_by_all_of_the_bar(
    losses: tuple[float, float], has_bar: bool
) -> None:
    first, other = (replace(replay(), group=replace(replay().group, loss_mean=value)) for value in losses)
    lines = [str(line) for line in draw_two_runs(Scene(first, Place(), other=other), 200, 50).lines]
    row = next(line for line in lines if line.startswith("loss "))
    assert ("█" in row.partition("│")[0]) == has_bar


def test_while_the_second_one_is_being_read() -> None:
    [line] = draw_two_runs(Scene(replay(), Place()), 80, 22).lines
    assert "waiting for the second recording" in str(line)


def test_stalls_of_either_run_are_named_and_equal_runs_do_not_differ_by_more_than_chance() -> None:
    stall = LoggedEvent(NOW - 60, "stall", "critical", 1, 12_000, "stall: rank 1 is missing")
    one, other = (replace(replay(), events=(*replay().events, *more)) for more in ((), (stall, stall)))
    for width in (80, 160):
        lines = [str(line) for line in draw_two_runs(Scene(one, Place(), other=other), width, 40).lines]
        assert [line for line in lines if "stalled" in line] == [
            "■ B stalled 2 times, last at 12:30:07: rank 1 is missing"
        ]
        assert any(
            line.startswith("▌● no difference beyond chance · 0.0 ms (0%) more a step") for line in lines
        )


def stalled(frame: Frame, at_point: int, for_s: float) -> Frame:
    """The run with a stall in the step that ends with this point of its history, from the end on."""
    time_s = frame.history.time_s.copy()
    time_s[:at_point] -= for_s
    begun_s = frame.run.started_at + float(time_s[at_point - 1])
    events = [  # again once its cause is known
        LoggedEvent(begun_s + later_s, "stall", "critical", 1, 0, "stall: rank 1") for later_s in (15, 20)
    ]
    return with_times(replace(frame, events=(*frame.events, *events)), time_s)


def with_times(frame: Frame, time_s: np.ndarray) -> Frame:
    rate = 99 / float(time_s[-1] - time_s[-100])
    history = replace(frame.history, time_s=time_s)
    return replace(frame, history=history, group=replace(frame.group, steps_per_s=rate))


@pytest.mark.parametrize("width", [80, 50])
def test_steps_per_second_without_a_stall_have_a_line_of_their_own(width: int) -> None:
    def lines(one: Frame, other: Frame) -> dict[str, str]:
        page = draw_two_runs(Scene(one, Place(), other=other), width, 40)
        return {str(line)[:15].rstrip(): str(line) for line in page.lines}

    run = with_times(replay(), replay().history.time_s)
    for one, other in ((run, stalled(run, -50, 600.0)), (stalled(run, -50, 600.0), run)):
        found = lines(one, other)
        assert {*found["steps/s"].split()[1:3]} == {"21.3", "0.2"}
        assert found["  without stall"].split()[2:5] == ["21.3", "21.3", "0.0"]
    for other in (run, stalled(run, -120, 600.0)):  # as long as the window has not left it behind
        assert "  without stall" not in lines(run, other)


def test_the_rate_of_a_recorded_run_without_its_stall_is_near_that_of_its_median_step() -> None:
    frame = frame_at(Path(__file__).parents[1] / "recording" / "data" / "stall.ddptop", None)
    assert frame.group.steps_per_s is not None and frame.group.step_ms_p50 is not None
    assert frame.group.steps_per_s < 10
    assert rate_without_stalls(frame) == pytest.approx(1e3 / frame.group.step_ms_p50, rel=0.3)


def test_a_rate_with_a_stall_in_it_has_no_colour_and_the_one_without_it_has() -> None:
    run = replay()
    twice = replace(run.history, step_ms=2 * run.history.step_ms, time_s=2 * run.history.time_s)
    slower = stalled(replace(run, history=twice), -50, 600.0)
    for other, colours in ((slower, ("dim", "good")), (stalled(run, -50, 600.0), ("dim", "dim"))):
        page = draw_two_runs(Scene(run, Place(), other=other), 80, 40)
        roles = {str(line)[:15].rstrip(): line.pieces[-1][1] for line in page.lines if line.pieces}
        assert (roles["steps/s"], roles["  without stall"]) == colours


def test_a_difference_that_may_be_chance_has_no_colour() -> None:
    noise = np.random.default_rng(0).normal(40.0, 4.0, len(replay().history.step))
    run = replace(replay(), history=replace(replay().history, step_ms=noise))
    for more, words, role in ((0.0, "no difference beyond chance", "dim"), (20.0, "A is faster", "good")):
        slower = replace(run.history, step_ms=noise[::-1] + more)
        other = replace(run, group=replace(run.group, step_ms_p50=60.0), history=slower)
        lines = draw_two_runs(Scene(run, Place(), other=other), 80, 40).lines
        assert any(words in str(line) for line in lines)
        (figure,) = [line for line in lines if str(line).startswith("step ms  ")]
        assert figure.pieces[-1][1] == role
        assert str(figure).split()[-1] == ("chance" if role == "dim" else "-22.0")


def test_where_steps_vary_too_much_nothing_is_told_in_one_sign() -> None:
    """`no difference beyond chance · -6.5 ms` once stood above -65.7 %. The signs are those of `check`."""
    points = len(replay().history.step)
    busy = np.where(np.arange(points) // 60 % 2 == 0, 3.0, 40.0)  # for 60 steps at a time
    run = replace(replay(), history=replace(replay().history, step_ms=busy))
    other = replace(
        run,
        group=replace(run.group, step_ms_p50=60.0),
        history=replace(run.history, step_ms=np.roll(busy, 25) + 0.5),
    )
    page = draw_two_runs(Scene(run, Place(), other=other), 100, 40)
    [line] = [str(line) for line in page.lines if "a step" in str(line)]
    assert line.startswith("▌○ cannot tell which is faster")
    (figure,) = [str(line) for line in page.lines if str(line).startswith("step ms  ")]
    assert figure.split()[-1] == "chance"
    new, base = np.full(points, 50.0), np.full(points, 40.0)
    run, other = (replace(run, history=replace(run.history, step_ms=steps)) for steps in (new, base))
    values = dict.fromkeys(("lost_pct", "straggler_pct", "stalls", "stalled_s", "own_cost_pct"))
    measured = [
        Measured("run", 2, np.arange(500.0), dict.fromkeys(BY_STEP, steps[:500]), values)
        for steps in (new, base)
    ]
    assert "10.0 ms (25.0%) more" in result_sentence(against_base(*measured, 1.0)[0]).replace(
        "10 ms", "10.0 ms"
    )
    page = draw_two_runs(Scene(run, Place(), other=other), 100, 40)
    assert any("A is slower than B · 10.0 ms (25%) more a step" in str(line) for line in page.lines)


def test_a_difference_from_nothing_has_no_share() -> None:
    """23.8 % of overlap beside 0.0 were 0.0 % more."""
    run = replace(replay(), group=replace(replay().group, overlap_pct=23.8))
    other = replace(run, group=replace(run.group, overlap_pct=0.0))
    for width in (80, 160):
        page = draw_two_runs(Scene(run, Place(), other=other), width, 44)
        [line] = [str(line) for line in page.lines if "overlap %" in str(line)]
        assert re.search(r"overlap % +23\.8 +0\.0 +\+23\.8 +–", line), line


def test_on_the_lowest_screen_which_run_is_faster_comes_first() -> None:
    run = replay()
    slower = replace(run, history=replace(run.history, step_ms=run.history.step_ms * 2))
    page = draw_two_runs(Scene(slower, Place(), other=run), 30, 3)
    assert [str(line)[:15] for line in page.lines] == [
        "▌▲ A is slower ",
        "▌  A train-k7qf",
        "▌  B train-k7qf",
    ]
