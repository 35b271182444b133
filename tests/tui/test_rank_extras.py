"""GPUs and logged values on the page of a rank, and in the table."""

from __future__ import annotations

from dataclasses import replace

from ddptop.frames.frame import GpuFacts, LoggedScalar
from tests.tui.drive import Sketch, sketch
from tests.tui.fake import FakeSource, live, waiting
from tests.tui.fake_views import WantedSource

GPU = GpuFacts(
    97.0, 31_000_000_000, 80_000_000_000, 71.0, 402.0, 1_410, 1_980, "power cap",
    None, None, None, None, 1, 24_000_000_000, 30_000_000_000, 29_000_000_000, 2,
)  # fmt: skip

LOGGED = tuple(LoggedScalar(f"name{at}", 4, 0.5, 0.25, 0.75, 0, 3, 0.625) for at in range(6))


def test_the_page_of_a_rank_tells_of_its_gpu_and_what_it_logs() -> None:
    frame = replace(live(), gpus=(GPU,), logged=LOGGED)
    page = sketch(FakeSource(frame), (110, 30), "down", "enter")
    assert (
        "gpu 97%  memory 31.0 GB of 80.0 GB  71 °C  402 W  1,410 of 1,980 MHz  ▲ throttled: power cap" in page
    )
    assert "torch allocated 24.0 GB of 30.0 GB reserved  peak 29.0 GB" in page
    assert "▲ 2 allocations had to be retried" in page
    assert "logged  name0 0.625 (mean 0.5)" in page
    assert "and 3 more" in page
    assert "gpu 97%" not in sketch(FakeSource(frame), (110, 30), "enter"), "rank 0 has told of none"


def test_the_table_has_its_columns_only_where_some_rank_tells() -> None:
    frame = replace(live(), gpus=(GPU,))
    rows = sketch(FakeSource(frame), (200, 30)).splitlines()
    title = next(row for row in rows if "gpu%" in row)
    assert "gpumem" in title
    at = title.index("gpu%") + 4
    cells = [row[at - 4 : at].strip() for row in rows if "node" in row[:at]]
    assert cells == ["–", "97", "–", "–"]
    assert "gpu%" not in sketch(FakeSource(live()), (200, 30))


def test_a_bound_is_written_in_ascii_as_everywhere() -> None:
    assert "late 0.0 +/-0.1 ms" in Sketch(WantedSource(live()), (160, 50), True).press("enter")


def test_a_rank_that_has_not_reported_has_no_page_of_dashes() -> None:
    person = Sketch(WantedSource(waiting()), (80, 24))
    lines = person.press("enter").splitlines()
    assert "rank 2" in lines[1] and lines[2] == "  this rank has not reported yet"
    assert lines[5] == "  waiting for ranks 2 and 3: 2 of 4 are here"
    assert not any(lines[7:-2])
