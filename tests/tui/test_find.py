"""Filters, searches, following, sorting: finding a rank among thousands and an event among many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.tui.keys import Do
from ddptop.tui.match import error_in, find_matches, highlight_pattern, parse_conditions
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake import FakeSource, live, many, straggler
from tests.tui.fake_hosts import slow_rank
from tests.tui.troubles import drifting

SIZE = (120, 30)

TEXTS = ["node0 cuda:0 live backward", "node1 cuda:1 stale forward", "gpu[x] cuda:0 lost data"]


@pytest.mark.parametrize(
    ("typed", "places"),
    [
        ("", [0, 1, 2]),
        ("cuda:0", [0, 2]),
        ("cuda:0 live", [0]),
        ("!live", [1, 2]),
        ("!live !lost", [1]),
        ("NODE", [0, 1]),
        ("/node[01]/", [0, 1]),
        ("node[01]", [0, 1]),
        ("gpu[x]", [2]),
        ("!/^node/", [2]),
        ("/cuda:0 l/", [0, 2]),
        ("/[/", [0, 1, 2]),
        ("[", [2]),
        ("!", [0, 1, 2]),
        ("1-2", [1, 2]),
        ("!1", [0, 2]),
        ("9", []),
        ("9999999999", []),
    ],
)
def test_what_a_filter_lets_pass(typed: str, places: list[int]) -> None:
    assert find_matches(typed, TEXTS, number=int) == places


def test_without_numbers_a_number_is_text() -> None:
    assert find_matches("0", ["step 10", "step 11"]) == [0]


def test_an_expression_that_cannot_be_read_is_named() -> None:
    assert error_in("live /[/") == "/[/: unterminated character set"
    assert error_in("/[ab]/ [") is None


def test_what_is_highlighted_is_what_was_found() -> None:
    assert highlight_pattern("!live 3") is None
    pattern = highlight_pattern("node /l.st/")
    assert pattern is not None
    assert [found[0] for found in pattern.finditer("Node1 lost live")] == ["Node", "lost"]
    assert parse_conditions("a !/b c/ !d") == parse_conditions("a  !/b c/  !d")


def test_matches_are_marked_in_the_table_and_stay_so_when_the_filter_goes() -> None:
    sketch = Sketch(FakeSource(live()), SIZE)
    sketch.press("slash", *"node1", "enter")
    assert marked(sketch) == ["node1", "node1"]
    assert sketch.place.order == (2, 3)
    sketch.press("escape")
    assert sketch.place.order == (0, 1, 2, 3)
    assert marked(sketch) == ["node1", "node1"]
    sketch.press("escape")
    assert marked(sketch) == []


def test_n_goes_from_match_to_match_and_round() -> None:
    sketch = Sketch(FakeSource(live(8)), SIZE)
    sketch.press("slash", *"node[13]", "enter", "escape")
    ranks = []
    for key in ("n", "n", "n", "n", "n", "N", "N"):
        sketch.press(key)
        ranks.append(sketch.place.rank)
    assert ranks == [2, 3, 6, 7, 2, 7, 6]
    assert "no search yet" in Sketch(FakeSource(live()), SIZE).press("n")
    assert "no rank matches 'xy'" in Sketch(FakeSource(live()), SIZE).press(
        "slash", *"xy", "enter", "escape", "escape", "slash", *"xy", "enter", "n"
    )


def test_a_filter_that_cannot_be_read_says_why_and_stays_open() -> None:
    sketch = Sketch(FakeSource(live()), SIZE)
    assert "unterminated character set" in sketch.press("slash", *"/[", "enter")
    assert sketch.place.prompt is not None
    assert sketch.press("escape").count("node") >= 4


def test_events_are_filtered_and_searched() -> None:
    sketch = Sketch(FakeSource(drifting()), SIZE)
    everything = sketch.press("5")
    page = sketch.press("slash", *"rank 2", "enter")
    assert "filter 'rank 2'" in page
    assert len(page.strip()) < len(everything.strip())
    assert "no event matches" in sketch.press("slash", "ctrl+u", *"zzz", "enter")
    assert sketch.press("escape") == everything
    assert sketch.place.view == "events"
    sketch.press("slash", *"joined", "enter", "escape", "n")
    assert "joined" in next(line for line in sketch.press().splitlines() if line.startswith("▸"))


def test_a_page_of_text_is_searched() -> None:
    sketch = Sketch(FakeSource(live()), (80, 24))
    page = sketch.press("question_mark", "slash", *"clipboard", "enter")
    assert "clipboard" in page
    assert marked(sketch) == ["clipboard"]
    first = Sketch(FakeSource(live()), (80, 24))
    first.press("question_mark", "slash", *"rank", "enter")
    tops = {first.place.scroll.hit}
    for _ in range(3):
        first.press("n")
        tops.add(first.place.scroll.hit)
    assert len(tops) == 4, "every press goes on"
    before = first.place.scroll.hit
    first.press("n", "N")
    assert first.place.scroll.hit == before


def test_every_column_sorts_both_ways_and_the_unknown_comes_last() -> None:
    frame = straggler()
    loss = frame.ranks.loss.copy()
    loss[2] = float("nan")
    frame = replace(frame, ranks=replace(frame.ranks, loss=loss), straggler=None)
    sketch = Sketch(FakeSource(frame), (200, 30))
    for column in sketch.place.sortable:
        orders = []
        for _ in range(2):
            sketch.act(Do.SORT_BY(column))
            orders.append(sketch.place.order)
        if column == "rank":  # it was sorted by that already
            orders.reverse()
        assert sorted(orders[0]) == sorted(orders[1]) == [0, 1, 2, 3], column
        if column == "loss":
            assert orders[0][-1] == orders[1][-1] == 2
        if column in ("rank", "host", "late", "score", "loss"):
            assert orders[0] != orders[1], column
        sketch.act(Do.SORT_BY("rank")) if sketch.place.sort != "rank" else None


def test_a_bound_is_nothing_to_sort_by() -> None:
    sketch = Sketch(FakeSource(straggler()), (200, 30))
    sketch.act(Do.SORT_BY("±"))
    assert sketch.place.sort == "rank"


def test_the_order_is_turned_round_and_its_sign_with_it() -> None:
    sketch = Sketch(FakeSource(live()), SIZE)
    assert "rank▴" in sketch.press()
    assert "rank▾" in sketch.press("I")
    assert sketch.place.order == (3, 2, 1, 0)
    assert "rank▴" in sketch.press("I")


def test_the_straggler_is_first_in_every_order() -> None:
    sketch = Sketch(FakeSource(straggler()), SIZE)
    assert "worst first" in sketch.text() and sketch.place.order == (1, 0, 2, 3)
    sketch.press("I")
    assert sketch.place.order == (1, 3, 2, 0)
    sketch.act(Do.SORT_BY("loss"))
    assert sketch.place.order == (1, 0, 2, 3)


def test_the_cursor_stays_in_its_line_while_rows_are_sorted_anew() -> None:
    source = FakeSource(live())
    sketch = Sketch(source, (160, 50))
    sketch.act(Do.SORT_BY("loss"))
    sketch.press("down")
    first, under = sketch.place.order[:2]
    assert sketch.place.rank == under
    source.frame = replace(live(), ranks=replace(live().ranks, loss=live().ranks.loss[::-1].copy()))
    sketch.text()
    assert sketch.place.order[1] != under and sketch.place.rank == sketch.place.order[1]
    sketch.press("home")
    source.frame = live()
    sketch.text()
    assert sketch.place.rank == first == sketch.place.order[0], "Home stays with the worst"
    sketch.press("F")
    source.frame = replace(live(), ranks=replace(live().ranks, loss=live().ranks.loss[::-1].copy()))
    sketch.text()
    assert sketch.place.rank == first != sketch.place.order[0], (
        "a rank that is followed takes the cursor along"
    )


@pytest.mark.parametrize("key", ["home", "down", "end", "pagedown"])
def test_a_key_goes_to_a_place_on_the_screen_though_rows_change_places_before_the_next_picture(
    key: str,
) -> None:
    """As they do while a run goes on: each picture has another order."""
    turned = replace(live(), ranks=replace(live().ranks, loss=live().ranks.loss[::-1].copy()))
    source = FakeSource(live())
    sketch = Sketch(source, (160, 50))
    sketch.act(Do.SORT_BY("loss"))
    sketch.press("down", "down")
    place = {"home": 0, "down": 3, "end": 3, "pagedown": 3}[key]
    for frame in (turned, live(), turned):
        source.frame = frame
        sketch.press(key)
        assert sketch.place.order.index(sketch.place.rank) == place


@pytest.mark.parametrize(("key", "place"), [("home", 0), ("end", 2)])
def test_so_it_does_in_the_list_of_hosts(key: str, place: int) -> None:
    frame = slow_rank(3, 4)
    there, back = (
        replace(frame, hosts=tuple(replace(one, cpu_pct=sign * at) for at, one in enumerate(frame.hosts)))
        for sign in (1.0, -1.0)
    )
    source = FakeSource(back)
    sketch = Sketch(source, (160, 50))
    sketch.press("8")
    sketch.act(Do.SORT_BY("cpu%"))
    sketch.press("down")
    for newer in (there, back, there):
        source.frame = newer
        sketch.press(key)
        assert sketch.place.hosts.order.index(sketch.place.hosts.cursor) == place


def test_a_sort_whose_column_does_not_fit_is_named() -> None:
    sketch = Sketch(FakeSource(straggler()), (50, 24))
    sketch.place.sort = "mem"
    assert "sorted by mem ▾" in sketch.text()


def test_a_followed_rank_stays_whatever_the_filter() -> None:
    sketch = Sketch(FakeSource(many()), SIZE)
    sketch.press("v")
    sketch.act(Do.RANK(77))
    sketch.press("escape")
    assert "following rank 77" in sketch.press("F")
    page = sketch.press("slash", *"lost", "enter")
    assert sketch.place.order == (77,)
    assert "following rank 77" in page
    sketch.press("escape", "end")
    assert not sketch.place.follow, "whoever goes to another rank no longer follows"
    assert sketch.place.rank == 4095


def test_a_click_on_a_title_sorts_and_on_a_key_presses_it() -> None:
    async def act(stage: Stage) -> None:
        rows = (await stage.text()).splitlines()
        title = next(at for at, row in enumerate(rows) if "rank▴" in row)
        for sign in ("▾", "▴"):
            await stage.pilot.click(offset=(rows[title].index("loss"), title))
            assert f"loss{sign}" in await stage.text()
        await stage.pilot.click(offset=(rows[-2].index("3 b"), len(rows) - 2))
        assert "2 buckets" in await stage.text()
        assert stage.app.place.view == "buckets"

    on_stage(FakeSource(live()), SIZE, act)


def marked(sketch: Sketch) -> list[str]:
    return [text for line in sketch.lines for text, role in line.pieces if role.partition("/")[0] == "match"]
