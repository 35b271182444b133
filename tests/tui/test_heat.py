"""The heat map as text: shades, folds, what the cursor says, and the keys that move it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from ddptop.frames.detail import HEAT_FIGURES, HeatRequest
from ddptop.frames.frame import GpuFacts
from ddptop.tui.views.heat_columns import arrange_columns, choose_steps_per_column, fold_steps
from ddptop.tui.views.heat_shades import Shades
from ddptop.tui.views.heat_state import HeatState
from tests.tui import fake_views
from tests.tui.drive import Stage, on_stage
from tests.tui.fake import CASES, NAN, straggler
from tests.tui.fake_views import WantedSource
from tests.tui.pages import SIZES, TINY, page, place_at
from tests.tui.screens import check

ALL = SIZES | TINY


@pytest.mark.parametrize("size", ALL)
@pytest.mark.parametrize("world", [4, 4096])
def test_ranks_and_steps(world: int, size: str) -> None:
    place = place_at("heat", heat=HeatState(figure="data"))
    page(straggler(world), place, ALL[size])
    place.heat.move(0, -1_000)
    place.heat.move(0, 3)
    check(f"cells-steps-{world}-{size}", page(straggler(world), place, ALL[size]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world", [8, 4096])
def test_hosts_and_local_ranks(world: int, size: str) -> None:
    place = place_at("heat", heat=HeatState(figure="data", hosts=True, column=1))
    frame = fake_views.on_hosts(straggler(world), of=8)
    check(f"cells-hosts-{world}-{size}", page(frame, place, SIZES[size]))


@pytest.mark.parametrize("case", ["stale", "lost", "waiting", "replay", "unknowns"])
def test_whatever_the_run_is_like(case: str) -> None:
    check(f"cells-{case}-80x24", page(CASES[case](), place_at("heat"), SIZES["80x24"]))
    page(CASES[case](), place_at("heat", heat=HeatState(hosts=True, column=0)), SIZES["80x24"])


def test_ascii() -> None:
    for hosts in (False, True):
        place = place_at("heat", heat=HeatState(figure="data", hosts=hosts))
        page(straggler(64), place, (80, 24))
        place.heat.move(0, -1_000)
        text = page(straggler(64), place, (80, 24), plain=True)
        assert text.isascii()
        check(f"cells-ascii-{'hosts' if hosts else 'steps'}-80x24", text)


def test_where_clocks_cannot_tell_lateness_is_unknown_and_says_so() -> None:
    place = place_at("heat", heat=HeatState(figure="lateness"))
    text = page(CASES["clock_free"](), place, (80, 24))
    assert "clocks too inexact" in text


def test_missing_steps_are_left_out_and_marked_on_the_axis() -> None:
    frame = fake_views.with_wanted(straggler(), "heat data 16 40")
    assert frame.heat is not None
    frame = replace(frame, heat=replace(frame.heat, steps=(*range(114, 134), *range(140, 160))))
    place = place_at("heat", heat=HeatState(figure="data", steps_per_column=2))
    _, title, axis, row, *_ = page(frame, place, (80, 24)).splitlines()
    assert "last 40 steps  2 a column" in title
    assert axis.index("114") == 8 and axis.index("!") == 8 + 13 and axis.index("159▾") == 8 + 19
    assert row[8:31] == "·" * 10 + "   " + "·" * 8 + "[·"


def test_a_step_keeps_its_column_and_the_columns_that_are_drawn_are_counted() -> None:
    """The columns are filled again from the left; the one after the newest is empty."""
    seen: dict[int, int] = {}
    for newest in range(200):
        columns = arrange_columns(range(newest + 1), n_columns=20, steps_per_column=3)
        of_step = dict(zip((first for first, _ in columns.steps), columns.places, strict=True))
        assert all(seen.setdefault(step, place) == place for step, place in of_step.items())
        assert len(set(columns.places)) == len(columns.places) == min(newest // 3 + 1, 19)
        assert columns.steps[-1][1] == newest and (columns.places[-1] + 1) % 20 not in columns.places
        assert columns.edges[-1] - columns.edges[0] == 1 + newest - columns.steps[0][0]
    restarted = arrange_columns((*range(50, 90), *range(10, 14)), n_columns=20, steps_per_column=1)
    assert restarted.places == (10, 11, 12, 13), "earlier steps are another restart's"


def draw_axis(newest: int, n_steps: int = 160, size: str = "80x24") -> tuple[str, str]:
    """The axis and the first row of a map of 57 columns, or of 33, with a step in each."""
    frame = fake_views.with_wanted(straggler(), f"heat data 16 {n_steps}")
    assert frame.heat is not None
    heat = replace(frame.heat, steps=tuple(range(newest - n_steps + 1, newest + 1)))
    place = place_at("heat", heat=HeatState(figure="data", steps_per_column=1))
    frame = replace(frame, group=replace(frame.group, step_ms_p50=1_000.0), heat=heat)
    _, _, axis, row, *_ = page(frame, place, SIZES[size]).splitlines()
    return axis[8:66].rstrip(), row[7:]


def test_a_line_and_the_steps_beside_it_part_the_newest_from_the_oldest() -> None:
    axis, row = draw_axis(570 + 30)
    assert axis == "570                 newest 600▾ oldest 545            569"
    assert row[:59] == "│" + "·" * 29 + "[·]" + "·" * 25 + "│"
    assert draw_axis(570 + 6)[0] == "   576▾ oldest 521                                    569"
    assert draw_axis(570 + 1)[0] == " ▾newest 571                                          569"
    axis, row = draw_axis(569)
    assert axis == " 514                                          newest 569▾"
    assert row[:59] == "│ " + "·" * 54 + "[·]", "all steps are in order"
    assert draw_axis(590, 21)[0] == "570       newest 590▾", "a young run has no older ones"


def test_a_narrow_map_has_short_names_at_its_axis() -> None:
    assert draw_axis(596, size="50x24")[0] == "574            new 596▾ old 557       573"


def test_the_cursor_stays_on_its_step_whatever_a_column_stands_for() -> None:
    """Further steps come, columns get more of them, and a metric is known in every 16th step only."""
    place = place_at("heat")

    def draw(*steps: int, step_ms: float = 100.0) -> str:
        """The line of the cursor, two steps a column; fewer of slower steps."""
        frame = fake_views.with_wanted(straggler(), f"heat {place.heat.figure} 16 {len(steps)}")
        assert frame.heat is not None
        group, heat = replace(frame.group, step_ms_p50=step_ms), replace(frame.heat, steps=steps)
        place.heat.steps_per_column = 0
        text = page(replace(frame, group=group, heat=heat), place, (80, 24))
        return text.splitlines()[-4]

    draw(*range(100, 200))
    place.heat.point_at(40)
    assert "steps 180 to 181 " in draw(*range(100, 200))
    assert "steps 180 to 181 " in draw(*range(120, 220)), "in the same column"
    assert "step 180 " in draw(*range(120, 220), step_ms=200.0)
    assert "steps 180 to 183 " in draw(*range(120, 220), step_ms=46.0)
    place.heat.next_figure(1)
    assert "step 176 " in draw(*range(16, 224, 16))
    assert "step 176 " in draw(*range(16, 192, 16)), "the newest one that is known"
    assert "steps 180 to 181 " in draw(*range(100, 200)), "it has not followed the newest"
    assert "steps 318 to 319 " in draw(*range(220, 320)), "its step was replaced"
    place.heat.step = 20_000
    assert "steps 318 to 319 " in draw(*range(220, 320)), "a step of before a restart"


def test_a_cell_of_several_steps_shows_the_worst_of_them_and_whose_it_is() -> None:
    heat = fake_views.heat(2, HeatRequest("data", 1, 6), slow=None)
    value, rank = np.array([1.0, NAN, 3.0, 2.0, NAN, NAN]), np.array([0.0, NAN, 1.0, 0.0, NAN, NAN])
    heat = replace(heat, steps=tuple(range(6)), rows=(0, 2), value=value, rank=rank)
    columns = arrange_columns(heat.steps, n_columns=9, steps_per_column=2)
    for least, worst in ((False, 3.0), (True, 2.0)):
        values, ranks = fold_steps(heat, columns, 1, worst_is_least=least)
        np.testing.assert_array_equal(values, [[1.0, worst, NAN]])
        np.testing.assert_array_equal(ranks, [[0.0, 0.0 if least else 1.0, NAN]])


def test_a_fast_run_has_several_steps_in_a_column_and_small_changes_of_its_speed_keep_them() -> None:
    assert choose_steps_per_column(57, 256, 1_000.0, before=0) == 1
    assert choose_steps_per_column(57, 256, 14.0, before=1) == 4, "as many as are kept"
    assert choose_steps_per_column(57, 100, 14.0, before=4) == 1, "fewer are kept for many ranks"
    assert choose_steps_per_column(57, 256, 80.0, before=4) == 4
    assert choose_steps_per_column(57, 256, 0.0, before=0) == 1, "no step is known"
    assert choose_steps_per_column(57, 256, 1e-321, before=0) == 4, "a far end that lies"


def test_shades_stay_while_the_values_are_about_as_large() -> None:
    first, wider, far = (
        Shades((low + width, low + 2 * width, low + 3 * width, low + 4 * width))
        for low, width in ((10.0, 2.0), (10.5, 5.0), (14.0, 2.0))
    )
    assert wider.settle(first) is first and far.settle(first) is far
    assert first.settle(wider) is wider, "less than half as wide"
    widest = Shades((12.0, 23.0, 34.0, 45.0))
    assert widest.settle(first) is widest and first.settle(widest) is first
    unknown = Shades((NAN, NAN, NAN, NAN))
    assert unknown.settle(first) is unknown and first.settle(unknown) is first


def test_an_unknown_value_has_no_shade_and_an_even_map_is_calm() -> None:
    values = np.array([10.0, 10.1, 9.9, NAN])
    shades = Shades.of(values, 10.0, least=1.0)
    assert shades.levels(values).tolist() == [0, 0, 0, -1]
    assert shades.sign(-1, ascii_only=True)[0] not in " .:+#"


def test_the_loudest_shade_is_for_what_is_far_off_and_one_hiccup_does_not_pale_the_rest() -> None:
    values = np.full((30, 60), 10.0)
    values[4] = 30.0
    values[9, 9] = 4_000.0
    levels = Shades.of(values.ravel(), 10.0, least=1.0).levels(values)
    assert (levels[4] == 4).all() and levels[9, 9] == 4 and levels[0, 0] == 0


def test_of_a_score_the_small_values_are_loud() -> None:
    values = np.array([0.99, 0.98, 0.4])
    levels = Shades.of(values, 0.99, least=0.01, down=True).levels(values)
    assert levels[2] == 4 and levels[0] == 0


def test_entering_unfolds_until_there_is_one_rank_and_leaving_folds_again() -> None:
    frame, place = straggler(4096), place_at("heat", heat=HeatState(figure="data"))
    page(frame, place, (80, 24))
    assert place.heat.rank() == 1
    seen = []
    for _ in range(4):
        rank = place.heat.enter()
        if rank is not None:
            break
        seen.append((place.heat.first, place.heat.count))
        page(frame, place, (80, 24))
        assert place.heat.rank() == 1
    assert rank == 1 and seen[0][1] > seen[-1][1]
    while place.heat.leave():
        page(frame, place, (80, 24))
    assert place.heat.count == 0


@pytest.mark.parametrize("size", ["50x24", "80x24", "160x50"])
@pytest.mark.parametrize("hosts", [False, True])
def test_a_folded_row_that_is_marked_for_a_rank_names_that_rank(hosts: bool, size: str) -> None:
    frame = CASES["many"]()
    place = place_at("heat", heat=HeatState(hosts=hosts, column=1))
    page(frame, place, SIZES[size])
    grid = place.heat.grid
    assert grid is not None and grid.gravest.count(None) == grid.rows - 1
    place.heat.row = next(row for row, rank in enumerate(grid.gravest) if rank == 2050)
    text = page(frame, place, SIZES[size])
    assert "■ rank 2050 stalled" in text
    assert hosts or size == "50x24" or "■ r2050" in text
    while (rank := place.heat.enter()) is None:
        page(frame, place, SIZES[size])
    assert hosts or rank == 2050


def test_the_cursor_goes_along_the_blocks_of_hosts() -> None:
    frame = fake_views.on_hosts(straggler(4096), of=8)
    place = place_at("heat", heat=HeatState(hosts=True, column=0))
    page(frame, place, (80, 24))
    state = place.heat
    assert state.grid is not None and state.grid.lines < state.grid.rows
    state.move(0, 7)
    assert (state.row, state.column) == (0, 7)
    state.move(0, 1)
    assert (state.row, state.column) == (state.grid.lines, 0)
    state.move(0, -1)
    assert (state.row, state.column) == (0, 7)
    grid = state.grid
    assert state.click(grid.block + grid.left + 2 * grid.cell, grid.top + 3)
    assert (state.row, state.column) == (grid.lines + 3, 2)
    assert not state.click(0, grid.top)


def test_at_the_newest_step_the_cursor_stays_with_it() -> None:
    place = place_at("heat")
    page(straggler(), place, (80, 24))
    state = place.heat
    grid = state.grid
    assert grid is not None
    state.move(0, -1)
    assert state.step == grid.first_steps[-2]
    state.move(0, 1)
    assert state.step is None
    state.move(0, -1_000)
    assert state.step == grid.first_steps[0], "the oldest step"
    assert state.click(grid.left + grid.order[2], grid.top + 4) and state.step == grid.first_steps[2]
    assert state.row == 1  # rows are three lines tall here
    empty = ({*range(grid.columns)} - {*grid.order}).pop()
    assert not state.click(grid.left + empty, grid.top)


def test_figures_that_are_not_known_step_by_step_show_hosts() -> None:
    state = HeatState()
    assert state.fitted_to(8, by_steps=False).figure == "step", "recorded without own times"
    state.next_figure(-1)
    assert state.figure == HEAT_FIGURES[-1] and not state.hosts
    state.choose("cpu")
    assert state.hosts and state.request() == ""
    state.toggle_shape()
    assert state.figure in HEAT_FIGURES and state.request().startswith("heat ")
    state.choose("nothing such")
    assert state.figure in HEAT_FIGURES


def test_the_app_asks_for_the_map_in_the_size_that_it_has_room_for() -> None:
    source = WantedSource(straggler(64))

    async def act(stage: Stage) -> None:
        first = await stage.press("4")
        assert "excess ms" in first
        asked = source.asked[-1]
        assert asked[0] == "want" and asked[1].startswith("heat excess 17 ")
        assert "own time ms" in await stage.press("m")
        assert "hosts" in await stage.press("v")
        assert source.asked[-1] == ("want", "")

    on_stage(source, (80, 24), act)


def test_gpus_are_shown_by_host_and_ranks_without_one_are_unknown() -> None:
    frame = fake_views.on_hosts(straggler(8), of=4)
    blank = dict.fromkeys((field.name for field in dataclasses.fields(GpuFacts)), None)
    gpu = GpuFacts(**{**blank, "rank": 5, "temp_c": 83.0})  # type: ignore[arg-type]  # not told
    place = place_at("heat", heat=HeatState(figure="gpu_temp", hosts=True, row=1, column=1))
    text = page(replace(frame, gpus=(gpu,)), place, (80, 24))
    assert "gpu temperature 83.0 C" in text
    assert text.splitlines()[2].count("–") == 8
