"""What viewers want, in words: they are read back as they were written, and nonsense is no want."""

from __future__ import annotations

import pytest

from ddptop.frames.detail import MOST_COLUMNS, MOST_ROWS, HeatRequest, TimelineRequest, parse_request


@pytest.mark.parametrize(
    "want",
    [
        TimelineRequest(),
        TimelineRequest(12_480, 7),
        HeatRequest("data", 18, 66),
        HeatRequest("lateness", MOST_ROWS, MOST_COLUMNS, 128, 64),
    ],
)
def test_a_want_survives_its_words(want: TimelineRequest | HeatRequest) -> None:
    assert parse_request(str(want)) == want


def test_what_is_left_out_has_a_meaning() -> None:
    assert parse_request("timeline") == TimelineRequest(None, 0)
    assert parse_request("timeline 5") == TimelineRequest(5, 0)
    assert parse_request("heat loss 4 9 2") == HeatRequest("loss", 4, 9, 2, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "timeline x",
        "timeline 1 -2",
        "timeline 1 2 3",
        "heat",
        "heat data 1",
        "heat beauty 4 9",
        "heat data 0 9",
        "heat data 4 -1",
        f"heat data {MOST_ROWS + 1} 9",
        "heat data 4 9 -1 2",
        "heat data 4 9 0 0 0",
        "heat data 4.5 9",
        "stars 3",
    ],
)
def test_nonsense_is_no_want(text: str) -> None:
    assert parse_request(text) is None
