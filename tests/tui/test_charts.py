"""Charts: what they show, what they say of data that are not there, and what the crosshair reads."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ddptop.frames.activity import ActivitySpan
from ddptop.frames.detail import HeatRequest
from ddptop.frames.frame import Frame, LoggedEvent
from ddptop.frames.history import COLUMNS
from ddptop.frames.statistics import quantiles_of_bins
from ddptop.render.chart import Axis, Scale, find_holes, find_thinned, no_number, step_ticks, time_ticks
from ddptop.render.curves import EIGHTHS, LOWER_BLOCKS, draw_areas
from ddptop.render.line import Line, Piece, Role
from ddptop.tui.scene import ChartState, Place, Scene
from ddptop.tui.views.charts import draw_charts, draw_excess_by_step, is_logarithmic, share_drawing
from ddptop.tui.views.curve import Curve, draw_chart
from tests.tui.drive import Sketch, Stage, on_stage, screen, sketch
from tests.tui.fake import (
    NAN,
    NOW,
    FakeSource,
    column,
    finished,
    history,
    last_minutes,
    live,
    replay,
    single_steps,
    straggler,
    without_own_times,
)
from tests.tui.fake_views import heat
from tests.tui.pages import page, place_at
from tests.tui.screens import check, unboxed
from tests.tui.troubles import missing

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Mask

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24)}


def with_losses() -> Frame:
    """A run whose chart has a hole, a loss that was NaN, and a pause in which nothing was lost."""
    frame, kept = live(), history(6000)
    time_s = kept.time_s + np.where(kept.step > 2500, 30.0, 0.0)  # a pause
    there = (kept.step < 4000) | (kept.step > 4900)  # records that were lost
    columns = {name: getattr(kept, name)[there] for name in COLUMNS}
    columns["loss_mean"] = np.where(columns["step"] == 3000, np.nan, columns["loss_mean"])
    columns["time_s"] = time_s[there]
    found = replace(kept, **columns)
    nan = LoggedEvent(frame.run.started_at + float(time_s[3500]), "nan", "critical", 1, 3500, "rank 1: NaN")
    return replace(frame, history=found, events=(*frame.events, nan))


@pytest.mark.parametrize("size", SIZES)
def test_lost_steps_and_losses_that_are_no_number_are_marked_where_they_lie(size: str) -> None:
    check(f"charts-lost-{size}", screen(FakeSource(with_losses()), SIZES[size]))


@pytest.mark.parametrize("size", SIZES)
def test_the_crosshair_reads_every_chart_at_one_moment(size: str) -> None:
    keys = ("x", "shift+left", "left", "left", "l")
    check(f"charts-cross-{size}", screen(FakeSource(live()), SIZES[size], *keys))


def test_the_crosshair_says_where_there_is_no_step() -> None:
    frame, place = with_losses(), Place()
    kept = frame.history
    place.charts.at_s = float(kept.time_s[kept.step == 3999][0]) + 10.0
    lines = [str(line) for line in draw_charts(Scene(frame, place), 160, 26).lines]
    assert lines[0].count("┊ no step here") == 2
    assert "NaN" not in lines[0], "the reading takes the title's place"
    place.charts.at_s = float(kept.time_s[kept.step == 3500][0])
    lines = [str(line) for line in draw_charts(Scene(frame, place), 160, 26).lines]
    assert lines[0].count("step 3,5") == 2


def test_ascii_charts_are_ascii() -> None:
    text = screen(FakeSource(with_losses()), (160, 50), "x", "l", ascii_only=True)
    assert text.isascii()
    check("charts-ascii-160x50", text)


@pytest.mark.parametrize(("ascii_only", "signs"), [(False, "◇▤"), (True, "eS")])
def test_the_axis_shows_when_ranks_evaluated_and_saved(ascii_only: bool, signs: str) -> None:
    frame = live()
    end_s = frame.run.started_at + float(frame.history.time_s[-1])
    past = ActivitySpan("evaluate", end_s - 300, end_s - 200), ActivitySpan("save", end_s - 200, end_s - 190)
    drawn = draw_charts(Scene(replace(frame, past_activities=past), Place(), ascii_only=ascii_only), 160, 26)
    title, *_, axis = map(str, drawn.lines)
    assert f"{signs[0]} eval {signs[1]} saving" in title
    assert f"{signs[0] * 3}{signs[1]}" in axis
    untouched = draw_charts(Scene(frame, Place(), ascii_only=ascii_only), 160, 26)
    assert "eval" not in str(untouched.lines[0])


def test_the_mouse_puts_the_crosshair_where_it_points() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        state = stage.app.place.charts
        plot = state.plots[-1]
        x, y = stage.app.place.inset + plot.left + plot.width // 2, plot.top + 1
        await stage.pilot.click(offset=(x, y))
        text = await stage.text()
        middle = plot.begin_s + (plot.width // 2 + 0.5) * plot.cell_s
        assert state.at_s == pytest.approx(middle)
        assert text.count("┊ ") >= 2
        assert await stage.press("escape") != text
        assert state.at_s is None
        await stage.press("enter")
        await stage.pilot.click(offset=(x, y))
        assert state.at_s is None, "on a rank's page other charts stand there"

    on_stage(FakeSource(live()), (160, 50), act)


def test_arrows_on_a_rank_s_page_go_to_the_next_rank_though_a_crosshair_was_left_on_the_overview() -> None:
    person = Sketch(FakeSource(live()), (160, 50))
    assert " rank 1 ──" in person.press("x", "enter", "right")
    assert person.place.charts.at_s is not None
    assert "┊ " in person.press("escape"), "there it still is"


def test_the_crosshair_stays_on_the_charts() -> None:
    place = Place()
    place.charts.plots = draw_charts(Scene(live(), place), 160, 26).plots
    state: ChartState = place.charts
    assert not state.move(1)
    state.toggle()
    newest = state.at_s
    state.move(1)
    assert state.at_s == newest, "nothing is known of what comes"
    state.move(-100_000)
    assert state.at_s == min(plot.begin_s for plot in state.plots)
    assert not state.hover(0, 0)
    state.toggle()
    assert state.at_s is None


def test_holes_are_jumps_larger_than_those_around_them() -> None:
    step = np.concatenate([np.arange(0.0, 100), np.arange(150.0, 250)])
    assert find_holes(step, step * 0.1, 1.0) == [(pytest.approx(9.9), 15.0)]
    assert find_holes(step, step * 0.1, 100.0) == [], "too short to be seen"
    paused = np.arange(0.0, 100)
    assert find_holes(paused, paused + 60 * (paused > 50), 1.0) == [], "a pause loses nothing"
    assert find_holes(np.arange(0.0, 6400, 64), np.arange(0.0, 6400, 64), 1.0) == [], "thinned evenly"
    restarted = np.concatenate([np.arange(50.0), np.arange(50.0)])
    assert find_holes(restarted, np.arange(100.0) * 9, 1.0) == []


def test_thinned_recordings_are_known_by_their_even_jumps() -> None:
    step = np.concatenate([np.arange(0.0, 64), np.arange(64.0, 256, 4)])
    assert not find_thinned(step)[:60].any()
    assert find_thinned(step)[68:].all()
    assert not find_thinned(np.array([0.0, 3, 9, 17, 20, 31])).any()


def test_losses_that_were_told_and_are_no_number() -> None:
    nan, inf = float("nan"), float("inf")
    assert no_number(column(1, nan, nan, inf), column(1, nan, 2, inf)).tolist() == [False, False, True, True]


def test_quantiles_per_bin() -> None:
    values = column(*range(1, 101), float("nan"), 7)
    p50, p95 = quantiles_of_bins(values, np.array([0, 100, 100, 101, 102]), (0.5, 0.95))
    assert p50[[0, 3]].tolist() == [51, 7]
    assert p95[[0, 3]].tolist() == [96, 7]
    assert np.isnan(p50[[1, 2]]).all()


def test_a_logarithmic_scale_is_labelled_with_values() -> None:
    scale = Scale.of_logs(column(-2.0, 1.0))
    assert (scale.label(scale.low), scale.label(scale.high)) == ("0.01", "10")
    assert [scale.label(value) for value in (1.9, 2, 3.079, 4.5, 5)] == [
        "79",
        "100",
        "1,200",
        "32,000",
        "1e+05",
    ]
    assert Axis.over_time(column(0, NOW), 10, None).columns == 10


def test_parts_lie_on_top_of_each_other_and_the_unknown_is_a_gap() -> None:
    looks: list[Piece] = [("a", "data"), ("b", "wait")]
    parts = np.array([[1.0, 2.0, NAN, 1.0], [3.0, 2.0, 1.0, 0.0]])
    lines = [str(line) for line in draw_areas(parts, Scale(0.0, 4.0), 4, looks)]
    assert lines == ["bb  ", "bb  ", "ba  ", "aa a"]
    assert str(draw_areas(parts * 2, Scale(0.0, 4.0), 4, looks)[0]) == "ba  ", "cut at the top"


COLUMNS_OF_PARTS = arrays(np.float64, (7, 5), elements=st.floats(0.0, 30.0))


PHASE_ROLES: tuple[Role, ...] = ("data", "forward", "backward", "wait", "transfer", "optimizer", "other")


@pytest.mark.parametrize("n_steps", [20, 90])
def test_the_figures_beside_the_excess_of_each_step_stand_below_their_names(n_steps: int) -> None:
    frame = replace(straggler(), heat=heat(4, HeatRequest("excess", 4, n_steps)))
    title, *rows = map(str, draw_excess_by_step(Scene(frame, Place()), (4, n_steps), 160))
    assert title.endswith("median      most") and {len(row) for row in rows} == {len(title)}


def test_charts_below_each_other_begin_in_the_same_cell() -> None:
    frame = straggler()
    losses = frame.history.loss_mean / 1e4  # its labels need more cells than those of the chart below
    frame = replace(frame, history=replace(frame.history, loss_mean=losses, loss_max=losses))
    drawn = draw_charts(Scene(frame, Place()), 160, 26)
    assert len(drawn.plots) == 4
    assert drawn.plots[0].left == drawn.plots[2].left > 4 and drawn.plots[1].left == drawn.plots[3].left


def eighths_drawn(lines: list[Line], column: int) -> dict[str, int]:
    """By role, how many eighths of a cell a column of areas has."""
    drawn: dict[str, int] = dict.fromkeys(PHASE_ROLES, 0)
    for line in lines:
        sign, role = [(sign, role) for text, role in line.pieces for sign in text][column]
        if sign == " ":
            continue
        front, _, behind = role.partition("/")
        share = LOWER_BLOCKS.index(sign) if sign in LOWER_BLOCKS else EIGHTHS
        drawn[front] += share
        if behind:
            drawn[behind] += EIGHTHS - share
    return drawn


def test_the_upper_edge_of_a_curve_has_its_own_colour_and_the_same_height_beside_a_lower_neighbour() -> None:
    values = np.repeat([4.0, 2.0, 2.0, 1.0, 3.0], 10)
    curve = Curve([Line("busbw")], np.arange(50.0), values, "area", zero=True, reach=4.0)
    lines = draw_chart(curve, 54, 6, False).lines[1:-1]
    cells = [[role.partition("/")[0] for text, role in line.pieces for _ in text][4:] for line in lines]
    uppermost = [row[2] for row in cells]
    assert uppermost == ["edge", "area", "area", "area"], "the first in two colours, and then its ground"
    assert [row[9] for row in cells] == uppermost, "as high as elsewhere"
    assert [str(line)[6] for line in lines[1:]] == ["█"] * 3, "in text it is solid"


@given(COLUMNS_OF_PARTS, st.integers(3, 30))
def test_areas_are_exact_to_an_eighth_of_a_cell(parts: Column, height: int) -> None:
    scale = Scale(0.0, float(parts.sum(axis=0).max()) + 1.0)
    lines = draw_areas(parts, scale, height, [("█", role) for role in PHASE_ROLES])
    assert len(lines) == height and {line.width for line in lines} == {5}
    for at in range(5):
        drawn = eighths_drawn(lines, at)
        exact = parts[:, at] * height * EIGHTHS / scale.high
        assert abs(sum(drawn.values()) - max(1.0, exact.sum())) <= 0.5 + 1e-6, "the whole, always"
        edges = np.rint(np.cumsum(exact)).astype(int)
        crowded = any(
            len({*edges[(edges > low) & (edges < low + EIGHTHS)]}) > 1 for low in range(0, 8 * height, 8)
        )
        if not crowded:
            # Each of a part's two edges is rounded to an eighth.
            assert all(
                abs(drawn[role] - size) <= 1.0 + 1e-6 or sum(exact) < 1
                for role, size in zip(PHASE_ROLES, exact, strict=True)
            )


@given(st.integers(0, 2**32 - 1), st.integers(24, 90), st.integers(4, 20), st.booleans(), st.booleans())
def test_a_chart_never_overflows_and_where_the_data_stay_nothing_moves(
    seed: int, width: int, height: int, ascii_only: bool, zero: bool
) -> None:
    random = np.random.default_rng(seed)
    values = random.lognormal(3.0, 0.2, 400)
    time_s = np.arange(400) * 0.3

    def drawn(main: Column) -> list[Line]:
        curve = Curve(
            [Line("step ms")], time_s, main, "area", zero=zero, waste=main / 4, band=True, behind=main * 1.1
        )
        return draw_chart(curve, width, height, ascii_only).lines

    before = drawn(values)
    assert all(line.width <= width for line in before)
    changed = values.copy()
    changed[200:210] = np.median(values)
    after = drawn(changed)
    gutter = str(before[1]).index("│")
    axis = Axis.over_time(time_s, width - gutter - 1, None)
    cells = {int((second - axis.begin_s) / axis.bin_s) + gutter + 1 for second in time_s[199:211]}
    if [str(line)[:gutter] for line in before] == [str(line)[:gutter] for line in after]:  # the same scale
        moved = {
            column
            for one, other in zip(before[1:], after[1:], strict=True)
            for column, (old, new) in enumerate(zip(*map(without_figures, (one, other)), strict=True))
            if old != new
        }
        # A stroke of a curve, and the edge of an area, reach to the neighbour.
        assert moved <= {cell + beside for cell in cells for beside in (-1, 0, 1)}, (moved, cells)


def without_figures(line: Line) -> str:
    """A row of a chart without the figure of a peak, which stands beside the mark of it."""
    return re.sub(r"[\d.,]", " ", str(line))


def losses(seed: int) -> Column:
    """A curve of losses: of any size, falling or not, smooth or not."""
    random = np.random.default_rng(seed)
    n_points = int(random.integers(2, 400))
    size = 10.0 ** random.uniform(-6, 7)
    fall = np.exp(-np.arange(n_points) * random.uniform(0, 0.1))
    noise = random.lognormal(0.0, random.uniform(0, 2), n_points)
    return np.asarray(size * (random.uniform(0, 1) + fall) * noise)


def test_the_scale_of_a_chart_has_room_for_its_labels_whatever_the_losses() -> None:
    """Beside wider labels a curve has fewer bins, which can change the scale and so the labels."""
    for seed in range(900):
        values = losses(seed)
        width, log = 24 + seed % 60, bool(seed % 2)
        curve = Curve([Line("loss")], np.arange(len(values)) * 0.3, values, "accent", log=log)
        lines = [str(line) for line in draw_chart(curve, width, 9, False).lines[1:]]
        assert {line.index("│") for line in lines[:-1]} == {lines[-1].index("└")}, (seed, lines)
        assert all(len(line) <= width for line in lines) and "…" not in "".join(lines)


def test_what_goes_on_above_the_scale_is_marked_with_how_far_it_goes() -> None:
    values = np.full(400, 10.0)
    values[190:200] = (10.0, 900.0) * 5
    time_s = np.arange(400) * 0.1
    band = Curve([Line("step ms"), Line("p95")], time_s, values, "forward", zero=True, band=True)
    stack = replace(band, band=False, stack=np.stack([values / 7] * 7))
    for curve, most in ((band, "900"), (stack, "")):
        title, top, *rest = (str(line) for line in draw_chart(curve, 60, 9, False).lines)
        assert "↑" in top and 5 <= len(top.partition("↑")[0]) - len(top) // 2 + 30 <= 60
        assert "↑" not in "".join(rest)
        assert f"↑{most}" in top and "up to" not in title
    narrow = replace(band, main=np.where(np.arange(400) % 40 == 9, 900.0, 10.0))
    title, top, *_ = (str(line) for line in draw_chart(narrow, 24, 9, False).lines)
    assert title.startswith("step ms ↑ up to 900 p95") and "900" not in top, "no room beside the marks"
    even = replace(band, main=np.full(400, 10.0))
    assert "↑" not in "".join(str(line) for line in draw_chart(even, 60, 9, False).lines)


@pytest.mark.parametrize("height", range(3, 10))
def test_a_low_chart_loses_rows_and_never_its_axis(height: int) -> None:
    curve = Curve([Line("step ms")], np.arange(50.0), np.full(50, 3.0), "area", zero=True, reach=4.0)
    _, first, *_, last = (str(line) for line in draw_chart(curve, 40, height, False).lines)
    assert last.startswith("   └") and first.startswith("4.0│"), "the time, and how high the scale is"


@pytest.mark.parametrize("size", [*SIZES.values(), (67, 19), (30, 6)])
@pytest.mark.parametrize("world", [2, 4, 8])
def test_every_chart_of_the_overview_has_an_axis(world: int, size: tuple[int, int]) -> None:
    lines = sketch(FakeSource(live(world)), size).splitlines()
    if any("loss 0" in line and "step ms" in line for line in lines[4:]):
        assert any(line.count("└") >= 2 for line in lines), "\n".join(lines)


def test_the_figure_of_a_peak_comes_after_the_names_of_the_areas() -> None:
    values = np.where(np.arange(400) % 40 == 9, 900.0, 10.0)
    parts = [Line("step ms"), Line("▒ waiting"), Line("p95 12")]
    curve = Curve(parts, np.arange(400) * 0.1, values, "area", zero=True, band=True, n_names=3)
    assert str(draw_chart(curve, 24, 9, False).lines[0]) == "step ms ▒ waiting p95 12"


def test_the_least_and_the_largest_step_of_a_column_are_drawn_however_many_steps_it_has() -> None:
    median = np.full(4_000, 10.0)
    largest, least = median.copy(), median.copy()
    largest[1_000], least[3_000] = 18.0, 1.0
    time_s = np.arange(4_000) * 0.1
    curve = Curve([Line("step ms")], time_s, median, "forward", zero=True, band=True, early=2_000, p95=median)
    curve = replace(curve, reach=20.0)
    without = [str(line) for line in draw_chart(curve, 60, 9, False).lines]
    drawn = [str(line) for line in draw_chart(replace(curve, extremes=(least, largest)), 60, 9, False).lines]
    changed = {
        (row, column)
        for row, (before, after) in enumerate(zip(without, drawn, strict=True))
        for column, (old, new) in enumerate(zip(before, after, strict=True))
        if old != new
    }
    assert len(changed) == 2, changed
    (top, _), (bottom, _) = sorted(changed)
    assert top <= 2 and bottom >= 6
    far = np.where(largest > 10, 900.0, largest)
    title, top_row, *_ = draw_chart(replace(curve, extremes=(least, far)), 60, 9, False).lines
    assert "up to" not in str(title) and str(top_row).count("↑900") == str(top_row).count("↑") == 1


def test_the_parts_of_the_step_over_time_take_the_place_of_waiting_where_they_are_known() -> None:
    known, unknown = straggler(), without_own_times(straggler())
    for frame, title in ((known, "ms now "), (unknown, "waiting ")):
        drawn = page(frame, place_at("overview"), (160, 50))
        assert title in drawn
        assert "unknown" not in drawn
    assert "ms now " not in page(known, place_at("overview"), (80, 24)), "no room"
    assert page(known, place_at("overview"), (160, 50), plain=True).isascii()


@pytest.mark.parametrize("width", range(60, 100, 3))
def test_a_stall_is_marked_where_the_steps_end(width: int) -> None:
    axis = next(line for line in sketch(FakeSource(missing()), (width, 24)).splitlines() if "└──" in line)
    left = axis[: width // 2].rstrip()
    assert left.endswith("■"), "it is noticed after the newest step"
    assert all(len(label) in (5, 8) for label in re.findall(r"[\d:]+", left)), "no label is cut"


def test_the_axis_has_times_of_day_events_and_the_episodes_of_a_straggler() -> None:
    frame = straggler()
    began = NOW - 120.0
    events = (
        LoggedEvent(began + 20, "straggler", "warning", 1, 400, "rank 1 became slow"),
        LoggedEvent(began + 50, "straggler_end", "info", 1, 900, "rank 1 is no longer slow"),
        LoggedEvent(began + 70, "stall", "critical", 1, 950, "stalled"),
    )
    frame = replace(frame, run=replace(frame.run, started_at=began), events=events, straggler=None)
    frame = replace(frame, history=history(4_000))
    axis = str(draw_charts(Scene(frame, Place()), 160, 10).lines[-1])
    assert axis.count("▲") == axis.count("■") == 2, "on both charts"
    assert "▲═" in axis
    assert "═─" in axis
    assert "┴12:3" in axis
    assert time_ticks(NOW, NOW + 7_200, 5)[0] == (NOW - NOW % 1_800 + 1_800, "13:00")
    assert step_ticks(0, 1_000, 4) == [(0, "0"), (500, "500")]


@pytest.mark.parametrize("decades", [True, False])
def test_a_loss_that_spans_decades_is_logarithmic_by_itself_and_a_key_goes_through_three_axes(
    decades: bool,
) -> None:
    frame = live()
    if decades:
        frame = replace(frame, history=replace(frame.history, loss_mean=3.0 / frame.history.step))
    person = Sketch(FakeSource(frame), (160, 50))
    by_itself, other = ("logarithmic", "linear") if decades else ("linear", "logarithmic")
    assert (" log" in person.text().partition("worst 0.")[0]) == decades
    for axis, kept in ((other, False), (by_itself, False), (by_itself, None)):
        page = person.press("l")
        assert (" log" in page.partition("worst 0.")[0]) == (axis == "logarithmic")
        how = f"automatic, now {axis}" if kept is None else f"{axis} until you leave"
        assert f"axis of the loss: {how}" in page.splitlines()[-1]
    assert person.place.charts.log_loss is None
    assert is_logarithmic(Scene(frame, Place())) == decades


def test_charts_are_drawn_every_two_seconds_while_a_run_goes_on() -> None:
    frame, place = live(), Place()
    first = draw_charts(Scene(frame, place), 160, 26)
    later = replace(frame, unix_s=frame.unix_s + 0.25, history=history(11_000))
    assert draw_charts(Scene(later, place), 160, 26) == first
    for changed in (
        replace(later, unix_s=frame.unix_s + 2.0),
        replace(later, events=(*frame.events, frame.events[0])),
        replace(later, run=replace(frame.run, state="stalled")),
        replace(later, group=replace(frame.group, incarnation=1)),
    ):
        assert draw_charts(Scene(changed, place), 160, 26).lines != first.lines
    place.charts.log_loss = True
    assert draw_charts(Scene(later, place), 160, 26).lines != first.lines
    stepped = replace(later, source="replay", playback=replay(playing=False).playback)
    other = replace(stepped, unix_s=stepped.unix_s + 0.05, history=history(12_000))
    drawings = [draw_charts(Scene(shown, place), 160, 26).lines for shown in (stepped, other)]
    assert drawings[0] != drawings[1], "each step of a recording is drawn"


@pytest.mark.parametrize("log_loss", [False, True])
@pytest.mark.parametrize("times", [0.5, 4.0])
def test_the_axis_of_a_chart_holds_the_newest_figure_though_its_curve_is_of_the_means_of_many_steps(
    times: float, log_loss: bool
) -> None:
    frame, place = live(), Place()
    place.charts.log_loss = log_loss
    before = draw_charts(Scene(frame, place), 160, 26)
    group = frame.group
    newest = {"loss": group.loss_mean, "step": group.step_ms_p50, "busbw": group.busbw_gbps}
    newest = {name: times * value for name, value in newest.items() if value is not None}
    group = replace(group, loss_mean=newest["loss"], step_ms_p50=newest["step"], busbw_gbps=newest["busbw"])
    moved = replace(frame, group=group)
    for drawn in (draw_charts(Scene(moved, Place()), 160, 26), draw_charts(Scene(moved, place), 160, 26)):
        for name, value in newest.items():
            assert drawn.scales[name][0].holds(value)
    assert not all(before.scales[name][0].holds(value) for name, value in newest.items())
    again = draw_charts(Scene(moved, place), 160, 26)
    assert [str(line) for line in again.lines] == [str(line) for line in drawn.lines]


@pytest.mark.parametrize(("lasts_s", "pause_s"), [(10.0, 1.0), (20.0, 2.0), (100.0, 2.0), (10_000.0, 2.0)])
def test_the_curves_of_a_young_run_are_drawn_after_each_part_of_its_length(
    lasts_s: float, pause_s: float
) -> None:
    frame, place = replace(live(), unix_s=1e9), Place()
    kept = history(600)
    frame = replace(frame, history=replace(kept, time_s=np.linspace(0.0, lasts_s, len(kept.step))))
    for after_s, is_same in ((pause_s * 0.9, True), (pause_s, False)):
        later = replace(frame, unix_s=frame.unix_s + after_s)
        scenes = (Scene(frame, place), Scene(later, place))
        assert (share_drawing(scenes[0]) == share_drawing(scenes[1])) == is_same


@pytest.mark.filterwarnings("error")
def test_curves_of_a_run_of_no_length_are_drawn_in_each_frame() -> None:
    kept = history(600)
    times_s = np.zeros(len(kept.step))
    times_s[-1] = 5e-324
    frame = replace(live(), unix_s=1e9, history=replace(kept, time_s=times_s))
    later = replace(frame, unix_s=frame.unix_s + 0.25)
    assert share_drawing(Scene(frame, Place())) != share_drawing(Scene(later, Place()))


def test_charts_beside_each_other_end_at_the_same_step() -> None:
    """Losses may be known in some steps only: the newest is held until the next one is overdue."""
    kept = history(600)
    steps = np.arange(len(kept.step))

    def find_ends(loss_is_known: Mask) -> set[int]:
        rare = np.where(loss_is_known, kept.loss_mean, NAN)
        group = replace(live().group, loss_mean=float(np.nanmin(rare)))
        frame = replace(live(), group=group, history=replace(kept, loss_mean=rare))
        lines = draw_charts(Scene(frame, Place()), 160, 12).lines
        return {len(half.rstrip()) for half in (str(lines[10])[:79], str(lines[10])[80:159])}

    assert len(find_ends(steps % 100 < 2)) == 1
    assert len(find_ends((steps % 100 < 2) & (steps < 200))) == 2


def test_the_figures_over_charts_are_those_of_the_frame_though_curves_are_drawn_less_often() -> None:
    frame = straggler()
    person = Sketch(FakeSource(frame), (160, 50))
    first = unboxed(person.text())
    group = replace(
        frame.group, loss_mean=0.5123, loss_max=0.6345, loss_max_rank=3, step_ms_p50=47.7, step_ms_p95=48.8
    )
    person.source.frame = replace(frame, unix_s=frame.unix_s + 0.25, group=group)
    later = unboxed(person.text())
    assert "loss 0.5123" in later[0]
    row = next(at for at, line in enumerate(first) if line.startswith("├── loss "))
    assert later[row].startswith("├── loss 0.5123") and " step ms 47.7 " in later[row]
    assert "  worst 0.6345 rank 3" in later[row] and "┄ p95 48.8" in later[row], "of the same step"
    assert later[row + 1 : row + 6] == first[row + 1 : row + 6], "the curves are those of the last picture"


def test_a_chart_over_a_whole_run_of_any_length_ends_at_its_border() -> None:
    for frame, lasts_s in ((finished(), 50.0), (live(), 1_234.0), (live(), 2_300.0), (live(), 90_000.0)):
        kept = history(6_000)
        kept = replace(kept, time_s=kept.time_s * (lasts_s / float(kept.time_s[-1])))
        drawn = draw_charts(Scene(replace(frame, history=kept), Place()), 160, 26)
        ends = [(plot.end_s - plot.begin_s) / (plot.width * plot.cell_s) for plot in drawn.plots]
        assert len(ends) == 4 and min(ends) > 0.95, (lasts_s, ends)


def test_what_the_shade_below_a_curve_means_is_in_its_title() -> None:
    assert "═ slow rank" in page(straggler(), place_at("overview"), (160, 50))
    assert "═ slow rank" not in page(live(), place_at("overview"), (160, 50))


def test_the_page_of_a_rank_has_its_excess_over_the_last_minutes_with_a_gap_where_it_is_not_known() -> None:
    lines = unboxed(Sketch(FakeSource(straggler()), (160, 50)).press("w"))
    at = next(at for at, line in enumerate(lines) if line.startswith("excess ms"))
    assert lines[at].startswith("excess ms last 7 min ▒ mean ┄ peak (own time minus median of the others)")
    below = next(line for line in lines[at + 1 :] if line.startswith("   └"))[:80]
    assert all(f"12:2{minute}" in below for minute in (4, 6, 8)) and "▲═" in below, (
        "times of day, and since when"
    )
    foot = lines[lines.index(next(line for line in lines if line.startswith("   └"))) - 1][4:80]
    assert re.fullmatch(r"[^ ]{20,} {10,}[^ ]{20,} *", foot), (
        "two minutes of which nothing is known are a gap"
    )


def test_a_rank_of_an_old_recording_has_its_last_steps_in_its_place() -> None:
    focus = single_steps(1)
    for unknown in (None, replace(last_minutes(1), mean_ms=np.full(240, NAN))):
        frame = replace(straggler(), focus=replace(focus, minutes=unknown))
        text = page(frame, place_at("rank", rank=1), (160, 50))
        assert "excess ms last 100 steps" in text
