"""Large screens: a cell for every rank beside the table, and alike ranks in one line."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from ddptop.frames.frame import Frame
from ddptop.tui.keys import Action, Do
from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource, many, straggler
from tests.tui.fake_views import WantedSource
from tests.tui.gallery import PAGES, WORLDS, lines_of

WIDE = (160, 50)

MOST_EMPTY = 15
"""Lines below each other on a wide page without a letter."""
ON_ONE_HOST = ("node0",) * 8


def cells_of(person: Sketch) -> dict[int, list[str]]:
    """The letters of the cells of each rank, by what a click on them opens."""
    cells: dict[int, list[str]] = {}
    for line in person.lines:
        for begin, end, action in line.spots:
            if isinstance(action, Action) and action.do is Do.RANK:
                cells.setdefault(action.arguments[0], []).append(str(line)[begin:end])
    return cells


def roles_at(person: Sketch, rank: int) -> set[str]:
    """The grounds of the cells of a rank."""
    grounds = set()
    for line in person.lines:
        cells = [role for text, role in line.pieces for _ in text]
        for begin, end, action in line.spots:
            if isinstance(action, Action) and action.arguments == (rank,):
                grounds |= {role.partition("/")[2] for role in cells[begin:end] if "/" in role}
    return grounds


@pytest.mark.parametrize("frame", [straggler(2), straggler(64)])
def test_every_rank_has_a_cell(frame: Frame) -> None:
    person = Sketch(FakeSource(frame), WIDE)
    assert sorted(cells_of(person)) == [*range(len(frame.ranks.state))]


@pytest.mark.parametrize(
    ("ranks", "each", "is_named", "cell"),
    [(64, 8, True, 5), (64, 2, True, 4), (128, 8, True, 2), (512, 8, False, 1)],
)
def test_the_cells_of_many_hosts_use_the_room(ranks: int, each: int, is_named: bool, cell: int) -> None:
    """Names of hosts once had more room than their ranks."""
    frame = straggler(ranks)
    hosts = tuple(f"node{rank // each}" for rank in range(ranks))
    frame = replace(frame, ranks=replace(frame.ranks, host=hosts))
    person = Sketch(FakeSource(frame), WIDE)
    cells = cells_of(person)
    assert sorted(cells) == [*range(ranks)]
    assert {len(text) for texts in cells.values() for text in texts} == {cell}
    panel = "".join(str(line)[100:] for line in person.lines[4:22])
    assert all(host in panel for host in hosts) is is_named


def test_the_cell_of_the_slow_rank_stands_out_and_a_click_opens_its_page() -> None:
    person = Sketch(FakeSource(straggler(16)), WIDE)
    assert roles_at(person, 1) == {"warn"} and roles_at(person, 2) == {"heat0"}
    assert any("[1]" in cell for cell in cells_of(person)[1]), "the cursor is on it"
    person.press("down")
    assert any(f"[{person.place.rank}]" in cell for cell in cells_of(person)[person.place.rank])
    _, _, action = next(
        spot for line in person.lines for spot in line.spots if getattr(spot[2], "arguments", ()) == (5,)
    )
    person.act(action)
    assert (person.place.view, person.place.rank) == ("rank", 5)


def test_many_hosts_share_cells_and_the_worst_of_them_is_seen() -> None:
    frame = many()
    person = Sketch(FakeSource(frame), WIDE)
    cells = cells_of(person)
    assert len(cells) < 4096 and 1 in cells, "rank 1 is the worst of its fold"
    assert roles_at(person, 1) == {"warn"}


def test_the_ranks_of_one_host_lie_in_several_rows() -> None:
    frame = straggler(8)
    frame = replace(frame, ranks=replace(frame.ranks, host=ON_ONE_HOST, local_rank=np.arange(8.0)))
    person = Sketch(FakeSource(frame), WIDE)
    first_row = next(line for line in person.lines if any(spot[2] == Do.RANK(0) for spot in line.spots))
    opened = [spot[2] for spot in first_row.spots if isinstance(spot[2], Action)]
    assert [action.arguments for action in opened if action.do is Do.RANK] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("size", [(117, 50), (80, 24), (50, 24)])
def test_a_narrow_screen_has_no_cells(size: tuple[int, int]) -> None:
    assert not cells_of(Sketch(FakeSource(straggler(64)), size))


def test_alike_ranks_are_one_line_with_their_number_and_range() -> None:
    person = Sketch(FakeSource(straggler(64)), (80, 24))
    folded = next(line for line in person.text().splitlines() if "more ranks" in line)
    number = re.search(r"\+ (\d+) more ranks, alike: own time 23.5 to 23.7 ms, lost 20.1 to 20.3", folded)
    rows = [line for line in person.text().splitlines() if " ● live" in line]
    assert number is None or int(number[1]) + 2 * len(rows) == 64
    assert "alike" in folded and "stand out" not in folded


def test_ranks_that_stand_out_are_counted_while_they_have_no_row() -> None:
    person = Sketch(FakeSource(many()), (80, 24))
    assert "stand out" not in person.text(), "the worst are in sight"
    text = person.press("end")
    assert re.search(r"more ranks, 2 of them stand out: own time", text), text


def test_few_ranks_have_rows_of_two_lines_and_many_have_not() -> None:
    def targets_of(frame: Frame) -> list[int | None]:
        return [line.target for line in Sketch(FakeSource(frame), WIDE).lines if line.target is not None]

    assert [targets_of(straggler(4)).count(rank) for rank in range(4)] == [2, 2, 2, 2]
    ranks = [target for target in targets_of(straggler(64)) if target != -1]
    assert len(ranks) == len(set(ranks))


@pytest.mark.parametrize(
    ("view", "world"),
    [
        ("bill", "with a bill"), ("bill", "healthy"), ("stall", "stall"), ("stall", "dead"),
        ("stall", "healthy"), ("start", "start held up"), ("start", "start"), ("run", "healthy"),
        ("compare", "straggler"),
    ],
)  # fmt: skip
def test_no_large_part_of_a_wide_page_is_empty(view: str, world: str) -> None:
    is_empty = [not str(line).strip(" │") for line in lines_of(world, view, "160x50")]
    holes = [len(list(lines)) for empty, lines in itertools.groupby(is_empty) if empty]
    assert max(holes, default=0) <= MOST_EMPTY


@pytest.mark.parametrize(
    ("view", "world"),
    [
        ("bill", "with a bill"), ("stall", "stall"), ("run", "healthy"), ("buckets", "healthy"),
        ("events", "straggler"), ("timeline", "healthy"), ("timeline", "stall"),
    ],
)  # fmt: skip
def test_a_page_whose_charts_are_kept_looks_the_same_when_it_is_painted_again(view: str, world: str) -> None:
    person = Sketch(WantedSource(WORLDS[world]()), WIDE)
    painted = person.press(*PAGES[view])
    assert person.place.charts.kept
    person.repaint()
    assert person.text() == painted


@pytest.mark.parametrize("view", [view for view in PAGES if view != "heat"])
@pytest.mark.parametrize("world", ["straggler", "stall", "start", "3 hosts", "replay"])
def test_the_panels_of_a_large_page_are_closed_by_a_box(view: str, world: str) -> None:
    foot = 3 if world == "replay" else 2
    rows = [str(line) for line in lines_of(world, view, "160x50")[1:-foot]]
    first = next((at for at, row in enumerate(rows) if row.startswith("┌")), None)
    if first is None:
        assert not any(re.match(r"[├─│]", row) for row in rows), "a page of words alone"
        return
    assert rows[first].endswith("┐")
    assert rows[-1].startswith("└") and rows[-1].endswith("┘")
    assert all(len(row) == 160 and row[0] in "│├" and row[-1] in "│┤" for row in rows[first + 1 : -1])
    assert not any(re.search("└[^│├┌┬┼]*┤$", row) for row in rows), "an axis is no rule"


def test_an_excess_below_zero_is_0_in_the_table_beside_it_and_on_the_page_of_the_rank() -> None:
    frame = straggler(2)
    excess_ms = np.where(np.arange(2) == 0, -1.9, 1.9)
    person = Sketch(FakeSource(replace(frame, ranks=replace(frame.ranks, excess_ms=excess_ms))), WIDE)
    person.press("down")
    assert re.search(r"▸ rank 0  0\.0 ms", person.text())
    assert "-1.9" not in person.text()
    assert re.search(r"own time [\d.]+ ms, excess 0\.0", person.press("enter"))
