"""Several runs: the picker, and going from one to another without leaving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddptop.tui.keys import Do
from ddptop.tui.runs import NoSource, RunChoice
from ddptop.tui.scene import Place
from ddptop.tui.views.picker import draw_picker
from tests.processes import until
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake import NOW, FakeSource, live, straggler
from tests.tui.screens import check

CHOICES = (
    RunChoice(
        "train-k7qf", "4f2a", True, "live", 4, "/home/ada/train.py", NOW - 581, "/data/train-k7qf.ddptop"
    ),
    RunChoice("bert-a9a9", "77b0", True, "live", 64, "pretrain.py", NOW - 3 * 86_400, None),
    RunChoice("train-2c4d", "91cc", False, "finished", 4, "train.py", NOW - 7_200, "/data/train-2c4d.ddptop"),
    RunChoice(
        "big-0f0f", "", False, "unreadable", None, "", None, "/data/big-0f0f.ddptop", "it ends in the middle"
    ),
    RunChoice("[b]名前\x1b[31m", "", False, "lost", 2, "a\u202eb.py", NOW - 60, "/data/x.ddptop"),
)


class FakeRuns:
    """Three runs that can be opened, and one that cannot."""

    def __init__(self) -> None:
        self.opened: dict[str, Closing] = {}
        self.there = CHOICES
        self.looks = 0

    def choices(self) -> Sequence[RunChoice]:
        self.looks += 1
        return self.there

    def open(self, choice: RunChoice) -> FakeSource:
        if choice.state == "unreadable":
            raise ValueError(f"{choice.name} cannot be opened: {choice.note}")
        frame = straggler()
        self.opened[choice.name] = Closing(replace(frame, run=replace(frame.run, name=choice.name)))
        return self.opened[choice.name]


class Closing(FakeSource):
    started = closed = False

    def start(self) -> None:
        self.started = True

    def close(self) -> None:
        self.closed = True


def with_runs(source: FakeSource, size: tuple[int, int] = (100, 30)) -> Sketch:
    sketch = Sketch(source, size)
    sketch.runs = FakeRuns()
    return sketch


def pressed(sketch: Sketch, *keys: str) -> str:
    for key in keys:
        sketch.press(key)
        if sketch.view.lists_runs:  # the next key may be about them
            until(lambda: sketch.place.choices is not None, "the runs")
    sketch.wait_for_threads()
    return sketch.text()


def test_the_picker_lists_all_runs() -> None:
    place = Place("picker", choices=CHOICES)
    place.scroll.cursor = 3
    text = ""
    for size in ((80, 12), (120, 12), (40, 8)):
        rows = [row.cut(size[0]) for row in draw_picker(place, *size, ascii_only=False, now_s=NOW).lines]
        text += f"{size[0]}x{size[1]}\n" + "".join(f"{str(row).rstrip()}\n" for row in rows)
        assert len(rows) == size[1]
    check("picker", text)


def test_r_opens_the_picker_and_enter_goes_to_another_run() -> None:
    old = Closing(live())
    sketch = with_runs(old)
    sketch.press("greater_than_sign", "2")
    assert "bert-a9a9" in pressed(sketch, "r")
    page = pressed(sketch, "down", "enter")
    assert page.startswith("ddptop bert-a9a9")
    assert old.closed, "the old run is let go"
    assert sketch.runs.opened["bert-a9a9"].started
    assert (sketch.place.view, sketch.place.sort) == ("overview", "host"), "how ranks are sorted goes along"


def test_an_open_picker_looks_again_and_its_cursor_stays_on_its_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddptop.tui.actions.runs.LOOKUP_INTERVAL_S", 0.01)
    sketch = with_runs(FakeSource(live()))
    try:
        sketch.press("r")
        until(lambda: sketch.place.choices, "the runs")
        assert sketch.press("down").count("● live") == 2
        ended = replace(CHOICES[0], live=False, state="failed")
        sketch.runs.there = (CHOICES[1], ended, CHOICES[2])
        until(lambda: "✗ failed" in sketch.text(), "the state that has changed")
        assert sketch.place.scroll.cursor == 0
        sketch.press("escape")
    finally:
        sketch.wait_for_threads()
    looks = sketch.runs.looks
    assert "bert-a9a9" in pressed(sketch, "r", "enter"), "it looks anew"
    assert sketch.runs.looks > looks


def test_the_picker_is_filtered_and_enter_opens_what_is_seen() -> None:
    sketch = with_runs(FakeSource(live()))
    page = pressed(sketch, "r", "slash", *"train !live", "enter")
    assert "0 live runs, 1 recording of 5 · filter train !live" in page
    assert "bert-a9a9" not in page
    assert pressed(sketch, "enter").startswith("ddptop train-2c4d")
    assert "none matches" in pressed(sketch, "r", "slash", *"zebra", "enter")
    assert "2 live runs, 3 recordings" in pressed(sketch, "escape"), "Esc clears it, and stays"
    assert sketch.place.view == "picker"


def test_the_picker_can_be_filtered_before_any_run_is_open() -> None:
    sketch = with_runs(NoSource(), (60, 12))  # type: ignore[arg-type]
    sketch.place.open("picker")
    sketch.place.choices = CHOICES
    assert "filter: bert" in sketch.press("slash", *"bert")
    page = sketch.press("enter")
    assert "1 live run, 0 recordings of 5" in page
    assert page.splitlines()[-1].startswith("/ filter Enter open"), "the keys that do something here"
    page = sketch.press("7")
    assert "1 live run" in page and "choose a run: Enter opens it" in page, "no page hides the runs"


def test_a_run_that_cannot_be_opened_leaves_the_old_one() -> None:
    sketch = with_runs(FakeSource(live()))
    assert "cannot be opened: it ends in the middle" in pressed(sketch, "r", "down", "down", "down", "enter")
    assert "train-k7qf" in pressed(sketch, "escape").splitlines()[0]
    assert sketch.place.view == "overview"


@pytest.mark.parametrize(
    ("keys", "left"),
    [
        (("r", "question_mark"), ["picker", "events"]),
        (("question_mark", "f1", "f1"), ["events"]),
        (("f1", "question_mark", "f1", "r"), ["columns", "events"]),
    ],
)
def test_esc_leads_from_pages_about_pages_back_to_the_first(keys: tuple[str, ...], left: list[str]) -> None:
    sketch = with_runs(FakeSource(live()))
    pressed(sketch, "5", *keys)
    for view in left:
        pressed(sketch, "escape")
        assert sketch.place.view == view


def test_a_held_picture_does_not_outlive_its_run() -> None:
    sketch = with_runs(FakeSource(live()))
    assert "PAUSED" in pressed(sketch, "space")
    page = pressed(sketch, "r")
    page = pressed(sketch, "down", "down", "enter")
    assert "train-2c4d" in page
    assert "PAUSED" not in page


def test_a_run_that_was_opened_while_the_person_left_is_closed() -> None:
    sketch = with_runs(FakeSource(live()))
    sketch.later = lambda do: None  # type: ignore[method-assign]  # the screen has ended
    sketch.place.choices = CHOICES
    sketch.act(Do.SWITCH(0))
    sketch.wait_for_threads()
    opened = sketch.runs.opened["train-k7qf"]
    assert opened.started
    assert opened.closed


def test_where_no_other_runs_are_to_be_had_it_says_so() -> None:
    assert "no other runs can be opened from here" in Sketch(FakeSource(live()), (100, 30)).press("r")


def test_runs_are_in_the_palette() -> None:
    sketch = with_runs(FakeSource(live()))
    assert "run train-2c4d" in pressed(sketch, "colon", *"2c4d")
    assert pressed(sketch, "enter").startswith("ddptop train-2c4d")


def test_the_app_begins_with_the_picker_where_no_run_was_named() -> None:
    async def act(stage: Stage) -> None:
        await stage.pilot.pause()
        until(lambda: stage.app.place.choices is not None, "the runs")
        page = await stage.text()
        assert "2 live runs, 3 recordings" in page
        await stage.pilot.click(
            offset=(5, next(at for at, row in enumerate(page.splitlines()) if "2c4d" in row)), times=2
        )
        stage.app.wait_for_threads()
        assert "ddptop train-2c4d" in await stage.text()
        stage.app.wait_for_threads()

    on_stage(NoSource(), (100, 30), act, runs=FakeRuns(), place=Place("picker"))
