"""Two ranks side by side."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource, clock_free, live, straggler, waiting
from tests.tui.screens import unboxed

SIZE = (100, 40)


def compared(sketch: Sketch) -> dict[str, list[str]]:
    """Cells of every row by its name."""
    rows = [line for line in unboxed(sketch.text()) if line.startswith("  ")]
    return {row[2:22].strip(): row[22:].split() for row in rows}


def test_a_mark_and_another_rank_open_the_page() -> None:
    sketch = Sketch(FakeSource(straggler()), SIZE)
    sketch.press("down")
    assert "rank 0 is marked: c on another rank compares the two" in sketch.press("c")
    assert "◆" in sketch.press("up")
    page = sketch.press("c")
    assert " rank 0 and rank 1 ──" in page
    assert re.search(r" rank 0 +rank 1 +r1 - r0\b", page), "which way the differences go"
    assert compared(sketch)["data ms"][:3] == ["1.2", "21.5", "+20.3"]
    assert compared(sketch)["late ms"][:3] == ["-0.1", "20.3", "+20.4"]
    assert compared(sketch)["relative"][:3] == ["0.99", "0.54", "-0.45"]
    assert compared(sketch)["step"][:3] == ["12,480", "12,480", "0"]
    assert "rank 1 is most often last in bucket 0 (96%), 1 (96%)" in page


def test_a_rank_that_waits_for_the_other_is_not_the_worse_one() -> None:
    person = Sketch(FakeSource(straggler()), SIZE)
    person.press("c", "down", "c")
    rows = compared(person)
    assert rows["data ms"][3].startswith("▾")
    assert rows["wait ms"][2:] == rows["collectives ms"][2:] == ["+20.3"]


def test_the_sides_change_and_the_right_one_goes_on() -> None:
    sketch = Sketch(FakeSource(straggler()), SIZE)
    sketch.press("down", "c", "up", "c", "c")
    assert compared(sketch)["data ms"][:3] == ["21.5", "1.2", "-20.3"]
    assert " rank 1 and rank 3 ──" in sketch.press("left", "left")
    assert " rank 1 and rank 2 ──" in sketch.press("up")
    assert sketch.press("escape")
    assert sketch.place.view == "overview"


def test_the_mark_is_taken_back() -> None:
    sketch = Sketch(FakeSource(live()), SIZE)
    assert "rank 0 is no longer marked" in sketch.press("c", "c")
    assert "◆" not in sketch.press("down")
    sketch.press("c", "escape")
    assert sketch.place.marked is None


def test_what_is_not_known_is_a_dash_and_has_no_difference() -> None:
    sketch = Sketch(FakeSource(waiting()), SIZE)
    sketch.press("c", "down", "c")
    page = sketch.text()
    assert "no figure is known yet" in page and "–" not in page
    assert "waiting for ranks 2 and 3: 2 of 4 are here" in page
    sketch.size = (160, 50)
    assert "most often last" not in sketch.press("c", "c")
    sketch = Sketch(FakeSource(clock_free()), SIZE)
    sketch.press("c", "down", "c")
    assert compared(sketch)["late ms"] == ["–", "–", "–"], "the clocks cannot tell"


def test_on_a_low_page_the_figures_that_tell_two_ranks_apart_come_first() -> None:
    person = Sketch(FakeSource(straggler()), (30, 6))
    rows = [line.split() for line in person.press("c", "down", "c").splitlines()[3:5]]
    assert rows == [["excess", "20.3", "0.0", "-20.3"], ["own", "time", "43.9", "23.6", "-20.3"]]
    person.size = SIZE
    assert person.text().splitlines()[3].split()[0] == "state"


def test_a_rank_that_goes_away_is_not_compared() -> None:
    source = FakeSource(straggler(8))
    sketch = Sketch(source, SIZE)
    sketch.press("end", "c", "up", "c")
    source.frame = replace(live(2))
    assert "c on the overview marks a rank" in sketch.text()


def test_scatter_is_not_drawn_as_a_difference() -> None:
    person = Sketch(FakeSource(live()), (160, 50))
    assert "▲" not in (page := person.press("c", "down", "c")) and "▾" not in page
    assert compared(person)["excess ms"] == ["0.0", "0.1", "+0.1"]
