"""Bars of the start: what each rank did until now, in seconds after the launch."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from textual.color import Color

from ddptop.frames.start import MOST_EARLY_S
from ddptop.render.colours import THEMES_OF_ROLES
from ddptop.render.context import RenderContext
from ddptop.render.line import Line, join_in_lines
from ddptop.render.milestones import STAGES, WAITS, draw_milestones
from ddptop.render.phases import find_plain_letters
from ddptop.tui.theme import contrast
from tests.tui.drive import sketch
from tests.tui.fake import CASES, FakeSource, nobody
from tests.tui.fake_start import held_up, on_their_way, rank_start, starting


def test_a_rank_that_is_behind_is_busy_and_the_others_wait() -> None:
    lines = [str(line) for line in draw_milestones(RenderContext(held_up()), 100, 5)]
    assert lines[2].startswith("rank 1 │") and "model 27 s" in lines[2]
    assert ["waits 26 s" in line for line in lines] == [False, True, False, True, True]


def test_bars_end_now_and_each_rank_has_one_or_shares_it_with_those_that_are_alike() -> None:
    for width in (40, 80, 158):
        lines = [str(line) for line in draw_milestones(RenderContext(held_up(64)), width, 9)]
        assert {len(line) for line in lines[1:7]} == {width}
        assert [line.partition("│")[0].strip() for line in lines[2:7:3]] == ["rank 1", "63 of 64 ranks"]
        assert "░ script" in lines[7] and "▒ waits" in lines[-1] and len(lines) <= 9


def test_the_seconds_give_way_to_ranks_and_before_the_launch_there_is_nothing() -> None:
    def labels(height: int) -> list[str]:
        lines = draw_milestones(RenderContext(on_their_way()), 80, height)
        return [str(line).partition("│")[0].strip() for line in lines]

    assert labels(3) == ["rank 3", "rank 2", "ranks 0 and 1"]
    assert labels(4)[1:] == ["rank 3", "rank 2", "ranks 0 and 1"] and labels(5)[1:5] == [
        f"rank {rank}" for rank in range(4)
    ]
    early = replace(on_their_way(), unix_s=on_their_way().run.started_at)
    assert draw_milestones(RenderContext(early), 80, 9) == []


def test_a_rank_without_ddp_has_a_stage_of_its_own_and_a_silent_one_none() -> None:
    frame = starting((rank_start(0, "recorded"), rank_start(1, ""), rank_start(2, "step", step_s=20.0)))
    lines = [str(line) for line in draw_milestones(RenderContext(frame), 120, 4)]
    assert "model and first step" in lines[1]
    assert lines[2].endswith("│has not reported")
    assert len(lines[3]) < len(lines[1]), "its first step is the end of the way"


def test_a_moment_before_the_launch_by_another_clock_is_the_launch() -> None:
    frame = starting((rank_start(0, "torch", process_s=-9.0),))
    assert max(line.width for line in draw_milestones(RenderContext(frame), 80, 4)) <= 80


@pytest.mark.parametrize("size", [(80, 24), (67, 19), (50, 24), (160, 50)])
def test_before_the_first_step_the_overview_says_nothing_yet_at_most_once(size: tuple[int, int]) -> None:
    for frame in (held_up(), on_their_way(), CASES["waiting"](), nobody()):
        picture = sketch(FakeSource(replace(frame)), size, "1")
        assert len(re.findall(r"(nothing|not|none|no rank)\b.* yet", picture)) <= 1
        assert ("S start: 0 of 4 ranks" in picture) == (frame.start is not None)


@pytest.mark.parametrize("theme", THEMES_OF_ROLES)
def test_stages_look_different_and_long_ones_differ_from_their_neighbours_by_lightness(theme: str) -> None:
    looks = {(stage.glyph, stage.plain, stage.role): stage.name for stage in (*STAGES.values(), WAITS)}
    assert len({*looks.values()}) == len(looks) == len({plain for _, plain, _ in looks})
    colours = [THEMES_OF_ROLES[theme][stage.role] for stage in STAGES.values()]
    for one, other in itertools.pairwise(colours[1:6]):
        assert contrast(Color.parse(one), Color.parse(other)) >= 3.0


def test_the_legend_names_every_stage_and_a_sign_stands_for_one_of_them_also_without_colours() -> None:
    lines = [str(line) for line in draw_milestones(RenderContext(on_their_way()), 80, 7)]
    assert all(name in " ".join(lines[5:]) for name in ("import of torch", "script", "forward"))
    stages = {stage.glyph for stage in STAGES.values()}
    for bar in draw_milestones(RenderContext(on_their_way()), 80, 7)[1:4]:
        plain = "".join(find_plain_letters(text, role) for text, role in bar.pieces[2:])
        signs = re.sub(r"[a-z]+( [a-z]+)* \d+ s", "", plain).strip()
        assert {*signs[:-1]} <= stages, "but for the last cell, which is one in part"
        assert signs.startswith("···") and "█·" not in signs and "·█" not in signs


def test_no_part_of_a_line_on_several_is_left_out() -> None:
    parts = [Line("late 20.3 ms"), Line(), Line("at 6 collectives of group mesh"), Line("last 96%")]
    assert [str(line) for line in join_in_lines(parts, 80)] == [
        "late 20.3 ms  at 6 collectives of group mesh  last 96%"
    ]
    assert [str(line) for line in join_in_lines(parts, 30)] == [
        "late 20.3 ms", "at 6 collectives of group mesh", "last 96%",
    ]  # fmt: skip


def test_seconds_are_counted_from_the_first_process_also_where_it_came_before_the_recorder() -> None:
    ranks = tuple(rank_start(rank, "torch", process_s=-2.0 + rank, torch_s=25.0) for rank in range(2))
    _, first, second, *_ = map(str, draw_milestones(RenderContext(starting(ranks)), 80, 4))
    assert "import of torch 27 s" in first and "import of torch 26 s" in second
    in_another_clock = tuple(replace(rank, process_s=-3_600.0) for rank in ranks)
    assert starting(in_another_clock).start.launch_s == -MOST_EARLY_S
