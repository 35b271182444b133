"""Whole screens as text. Read `golden/*.txt` in a diff; `UPDATE_GOLDEN=1` rewrites them."""

from __future__ import annotations

import pytest

from tests.tui.drive import screen
from tests.tui.fake import CASES, FakeSource, nobody
from tests.tui.screens import check

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24)}

TINY = {"30x6": (30, 6), "20x5": (20, 5)}

VIEWS = {"buckets": ("2",), "events": ("3",), "rank": ("down", "enter"), "help": ("question_mark",)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_overview(case: str, size: str) -> None:
    check(f"overview-{case}-{size}", screen(FakeSource(CASES[case]()), SIZES[size]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str, size: str) -> None:
    check(f"{view}-{size}", screen(FakeSource(CASES["straggler"]()), SIZES[size], *VIEWS[view]))


@pytest.mark.parametrize("size", TINY)
@pytest.mark.parametrize("case", ["straggler", "replay", "lost"])
def test_tiny_terminals_still_tell_the_state(case: str, size: str) -> None:
    check(f"overview-{case}-{size}", screen(FakeSource(CASES[case]()), TINY[size]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", ["waiting", "unknowns", "lost"])
def test_views_without_figures(case: str, view: str) -> None:
    check(f"{view}-{case}-80x24", screen(FakeSource(CASES[case]()), (80, 24), *VIEWS[view]))


def test_paused() -> None:
    check("paused-80x24", screen(FakeSource(CASES["live"]()), (80, 24), "space"))


def test_before_the_first_frame() -> None:
    check("nobody-80x24", screen(FakeSource(nobody()), (80, 24)))
    check("empty-80x24", screen(FakeSource(None, "connecting to train-k7qf"), (80, 24)))


def test_ascii() -> None:
    text = screen(FakeSource(CASES["straggler"]()), (80, 24), ascii_only=True)
    check("overview-straggler-ascii-80x24", text)


@pytest.mark.parametrize("keys", [(), ("2",), ("3",), ("enter",), ("question_mark",), ("space",), ("slash",)])
@pytest.mark.parametrize("case", ["unknowns", "replay", "lost", "stale"])
def test_ascii_means_ascii_everywhere(case: str, keys: tuple[str, ...]) -> None:
    assert screen(FakeSource(CASES[case]()), (120, 30), *keys, ascii_only=True).isascii()
