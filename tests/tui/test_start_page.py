"""The page of the start: ranks by milestone, the stack of each, and when it shows by itself."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import pytest

from ddptop.frames.stall import Call
from ddptop.tui.app import DdptopApp
from ddptop.tui.views.start import start_page_is_due
from tests.tui.drive import NEVER_HZ, Sketch, sketch
from tests.tui.fake import FakeSource, live, nobody, replay
from tests.tui.fake_hosts import placed
from tests.tui.fake_start import held_up, on_their_way, position, rank_start, starting
from tests.tui.screens import check
from tests.tui.test_golden import SIZES, TINY
from tests.tui.troubles import died

CASES = {"held_up": held_up, "held_up_64": lambda: held_up(64), "on_their_way": on_their_way}


@pytest.mark.parametrize("size", {**SIZES, "30x6": TINY["30x6"]})
@pytest.mark.parametrize("case", CASES)
def test_pictures(case: str, size: str) -> None:
    check(f"start-{case}-{size}", sketch(FakeSource(CASES[case]()), {**SIZES, **TINY}[size], "S"))


def test_the_palette_finds_it() -> None:
    assert "start: 0 of 4 ranks with a first step" in sketch(
        FakeSource(held_up()), (80, 24), "colon", *"start", "enter"
    )


def test_a_rank_that_has_not_answered_is_asked_with_enter_and_no_more_after_escape() -> None:
    source = FakeSource(on_their_way())
    person = Sketch(source, (80, 24))
    assert "rank 3 has not reported, so it cannot be asked" in person.press("S")
    assert "Enter asks rank 2 for its stack" in person.press("down")
    assert "rank 2 is asked for its stack" in person.press("enter")
    assert source.asked[-1] == ("want", "position 2")
    source.frame = replace(
        on_their_way(), position=position(2, (Call("/home/ada/lm/train.py", 60, "warm_up", "x = f(x)"),))
    )
    assert "train.py:60  warm_up  x = f(x)" in person.text()
    person.press("escape")
    assert source.asked[-1] == ("want", "") and person.place.view == "start"
    assert person.press("escape") and person.place.view == "overview"


def test_a_replay_offers_to_show_a_stack_and_not_to_ask_for_one() -> None:
    person = Sketch(
        FakeSource(replace(on_their_way(), source="replay", playback=replay().playback)), (80, 24)
    )
    person.press("S")
    text = person.press("down")
    assert "Enter shows the stack of rank 2, if it was recorded" in text and "asks" not in text
    text = person.press("enter")
    assert "the recording has no stack of rank 2 here" in text and "asked" not in text


def test_it_is_due_until_the_first_step() -> None:
    assert start_page_is_due(on_their_way()) and start_page_is_due(held_up())
    assert start_page_is_due(nobody()), "no rank has reported yet"
    assert not start_page_is_due(replace(nobody(), playback=replay().playback)), "where a recording begins"
    assert not start_page_is_due(live())
    assert not start_page_is_due(replace(on_their_way(), deaths=died().deaths))


@pytest.mark.parametrize("size", {**SIZES, "30x6": TINY["30x6"]})
def test_from_before_the_first_frame_on_one_picture_fills_in(size: str) -> None:
    """What stands in one picture keeps its line in the next."""
    columns, rows = {**SIZES, **TINY}[size]
    source = FakeSource(None, "importing torch")
    person = Sketch(source, (columns, rows))
    pictures = [person.text().splitlines()]
    for frame in (nobody(), on_their_way()):
        source.frame = frame
        person.follow_start(frame)
        pictures.append(person.text().splitlines())
    assert person.place.view == "start"
    for before, after in itertools.pairwise(pictures):
        for look in (is_edge, is_title, is_foot):
            assert [row for row, line in enumerate(before) if look(line)] == [
                row for row, line in enumerate(after) if look(line)
            ]
    assert any("importing torch" in line for line in pictures[0]) or rows < 10


def is_edge(line: str) -> bool:
    return "▌" in line[:2] or line.startswith("○ ")


def is_title(line: str) -> bool:
    return "── start: " in line


def is_foot(line: str) -> bool:
    return line.lstrip().startswith(("1 over", "1-9 views", "/ filter", "Esc back"))


def test_it_opens_and_leaves_by_itself_once_and_only_in_place_of_the_overview() -> None:
    person = Sketch(FakeSource(on_their_way()), (80, 24))
    person.follow_start(on_their_way())
    assert person.place.view == "start"
    person.press("1")
    person.follow_start(on_their_way())
    assert person.place.view == "overview", "who leaves it is not led back"
    person.press("S")
    person.follow_start(live())
    assert person.place.view == "overview"
    person.press("6")
    person.follow_start(on_their_way())
    assert person.place.view == "run", "another page stays"
    person.follow_start(live())
    assert person.place.view == "run"


def test_the_application_follows_the_start() -> None:
    source = FakeSource(held_up())

    async def run() -> None:
        app = DdptopApp(source, rate_hz=NEVER_HZ)
        async with app.run_test(size=(80, 24)) as pilot:
            app.tick()
            await pilot.pause()
            assert app.place.view == "start"
            source.frame = live()
            app.tick()
            await pilot.pause()
            assert app.place.view == "overview"

    asyncio.run(run())


def test_w_leads_there_and_from_there_to_the_stall() -> None:
    person = Sketch(FakeSource(held_up()), (80, 24))
    person.press("w")
    assert person.place.view == "start"
    person.press("w")
    assert person.place.view == "stall"


def test_a_rank_that_has_done_its_step_is_in_the_last_row() -> None:
    ranks = (rank_start(0, "step", step_s=12.0), rank_start(1, "backward", backward_s=11.0))
    person = Sketch(FakeSource(starting(ranks)), (160, 50))
    lines = person.press("S").splitlines()
    assert "start: 1 of 2 ranks with a first step" in lines[4]
    assert "is in its first backward" in lines[6] and "has finished its first step" in lines[7]
    assert "step 12.0 s" in person.press("down")


@pytest.mark.parametrize("size", [(80, 24), (160, 50)])
def test_it_survives_a_start_of_which_no_rank_is_known(size: tuple[int, int]) -> None:
    frame = on_their_way()
    frame = replace(frame, start=replace(frame.start, ranks=(), behind=()))
    assert "start: 0 of 0 ranks" in Sketch(FakeSource(frame), size).press("S")


@pytest.mark.parametrize("view", ["S", "7"])
@pytest.mark.parametrize("size", [(80, 24), (50, 24)])
def test_a_page_with_nothing_of_its_own_to_say_shows_the_steps(view: str, size: tuple[int, int]) -> None:
    text = sketch(FakeSource(live()), size, view)
    assert "step ms 26.6" in text and "└──" in text
    if view == "7":
        assert "forward 21 s" in sketch(FakeSource(on_their_way()), size, view)


def test_pages_without_figures_show_how_far_the_ranks_have_come() -> None:
    for keys in (("9",), ("8",), ("enter",)):
        assert "0 of 4 ranks with a first step" in sketch(FakeSource(placed(held_up())), (80, 24), *keys), (
            keys
        )
    assert "0 of 4 ranks with a first step" in sketch(FakeSource(on_their_way()), (80, 24), "5")
    assert "stand out" not in sketch(FakeSource(held_up(64)), (50, 24), "1")
    assert "waits in" not in sketch(FakeSource(held_up()), (80, 24), "5"), "titles of a table without rows"
