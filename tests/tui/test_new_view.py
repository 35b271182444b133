"""A new view is one class in one module, and one line in `tui/all_views.py`: nothing else names it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddptop.render.line import Line, draw_rule
from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import ScreenKey, view_key
from ddptop.tui.palette import find_entries
from ddptop.tui.scene import Page, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import View
from tests.tui.drive import Sketch, screen, sketch
from tests.tui.fake import CASES, FakeSource, live
from tests.tui.screens import check, unboxed
from tests.tui.test_golden import SIZES

SIZE = (160, 40)


class DummyView(View):
    """Counts how often a key was pressed."""

    name = "dummy"
    answers = "how often d was pressed"
    number = "0"
    pressed = 0

    def own_keys(self) -> tuple[ScreenKey, ...]:
        return (view_key("d", "d", self.count, "count", "count by one", 1),)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        return Page(
            [draw_rule(width, "dummy"), Line(f"step {scene.frame.group.step}: pressed {self.pressed}")]
        )

    def count(self, screen: Screen, by: int) -> None:
        self.pressed += by
        screen.repaint()


@pytest.fixture(autouse=True)
def with_dummy() -> Iterator[None]:
    VIEWS.add(DummyView())
    yield
    VIEWS.remove("dummy")


def test_its_number_opens_it_and_its_key_does_what_it_declares() -> None:
    person = Sketch(FakeSource(live()), SIZE)
    lines = unboxed(person.press("0", "d", "d"))
    assert lines[2] == "step 12480: pressed 2"
    assert "0 dummy" in lines[-2] and "d count" in lines[-1]
    assert "── dummy ──" not in person.press("escape"), "Esc leads to the overview"


def test_help_and_palette_explain_it_and_tab_leads_to_it() -> None:
    person = Sketch(FakeSource(live()), (160, 240))
    text = person.press("0", "question_mark")
    assert "on the page before this: dummy, how often d was pressed" in text
    assert f"  {'d':<8}count by one" in text and f"  {'0':<8}dummy: how often d was pressed" in text
    assert "count by one (dummy)" in person.press("question_mark", "1", "question_mark")
    assert {"dummy", "count by one"} <= {entry.name for entry in find_entries("", "dummy")}
    assert "count by one" not in {entry.name for entry in find_entries("", "overview")}
    assert "── dummy ──" in Sketch(FakeSource(live()), SIZE).press("9", "tab")


def test_its_keys_reach_it_through_the_application() -> None:
    assert "pressed 1" in screen(FakeSource(live()), SIZE, "0", "d")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("page", ["1", "3", "5", "7"])
def test_no_other_picture_changes(page: str, size: str) -> None:
    name = {"1": "overview", "3": "buckets", "5": "events", "7": "stall"}[page]
    with_it = sketch(FakeSource(CASES["lost"]()), SIZES[size], page)
    if name == "overview" or size == "80x24":
        check(f"{name}-lost-{size}", with_it)
    VIEWS.remove("dummy")
    assert sketch(FakeSource(CASES["lost"]()), SIZES[size], page) == with_it
    VIEWS.add(DummyView())
