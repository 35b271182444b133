"""The palette: whatever a key does, and what no key does, by name."""

from __future__ import annotations

import pytest

from ddptop.cli.settings import SETTINGS
from ddptop.tui.all_views import VIEWS
from ddptop.tui.keys import Do, PaletteEntry
from ddptop.tui.palette import find_entries, rank_entries
from ddptop.tui.settings import SCREEN_SETTINGS
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake import FakeSource, live, many, replay, straggler
from tests.tui.fake_hosts import slow_rank
from tests.tui.fake_views import WantedSource

SIZE = (100, 30)


@pytest.mark.parametrize(
    ("better", "worse", "typed"),
    [
        ("heat", "theme dark", "he"),
        ("the heat", "theatre", "heat"),
        ("theme dark", "the marked one", "theme"),
        ("timeline", "the time is late", "tmln"),
    ],
)
def test_the_likelier_comes_first(better: str, worse: str, typed: str) -> None:
    found = rank_entries(typed, [PaletteEntry(name, "", "", Do.OPEN()) for name in (worse, better)])
    assert found[0].name == better


def test_all_that_can_be_done_is_offered_where_it_can_be() -> None:
    for view in VIEWS:
        actions = {entry.action for entry in find_entries("", view.name, themes=("nord",), replay=True)}
        assert {Do.VIEW(name) for name in VIEWS.numbered_names} <= actions
        assert Do.THEME("nord") in actions
        assert {key.action for key in view.keys if key.keys not in _WITHOUT} <= actions
    live_ones = {entry.action for entry in find_entries("", "overview")}
    assert Do.STEP(1) not in live_ones, "there is no recording"
    assert not {key.action for key in VIEWS["timeline"].keys} & live_ones, "there is no timeline"


@pytest.mark.parametrize(
    "view",
    [
        "overview",
        *(pytest.param(view, marks=pytest.mark.slow) for view in VIEWS.numbered_names if view != "overview"),
    ],
)
def test_every_entry_can_be_done(view: str) -> None:
    sketch = Sketch(WantedSource(replay()), (50, 12))
    for entry in find_entries("", view, themes=("ddptop-light",), ranks=4, replay=True):
        if entry.action.do not in (Do.FINISH, Do.SAVE):
            sketch.place.prompt = None
            if sketch.place.view != view:
                sketch.act(Do.VIEW(view))
            sketch.act(entry.action)


def test_hosts_figures_orders_and_columns_by_their_names() -> None:
    sketch = Sketch(WantedSource(slow_rank(3, 4)), (160, 50))
    assert "▸ host gpu-001" in sketch.press("colon", *"gpu-001")
    sketch.press("enter")
    assert (sketch.place.view, sketch.place.hosts.cursor) == ("hosts", "gpu-001.cluster.local")
    sketch.press("colon", *"figure", "space", *"lost", "enter")
    assert "▸  lost" in sketch.text() and "exposed communication − transfer of the step" in sketch.text()
    sketch.press("colon", *"sort", "space", *"by", "space", *"lost", "enter")
    assert (sketch.place.view, sketch.place.sort) == ("overview", "lost")
    sketch.press("colon", *"column", "space", *"own", "enter")
    assert sketch.place.columns == {"own": True}
    on_one_host = Sketch(WantedSource(straggler(2)), SIZE)
    assert "▸ host" not in on_one_host.press("colon", *"node")


def test_every_setting_is_found_by_its_name() -> None:
    by_other_names = {"sort": "sort by lost", "columns": "column lost", "theme": "theme nord"}
    names = {entry.name for entry in find_entries("", "overview", themes=("nord",))}
    for name in SETTINGS:
        assert any(found.startswith(by_other_names.get(name, f"setting {name}")) for found in names), name
    # What a note names as the setting's variable is one.
    assert {setting.name for setting in SCREEN_SETTINGS} <= {*SETTINGS}


def test_settings_change_at_once_or_say_where_they_are_set() -> None:
    sketch = Sketch(FakeSource(straggler()), SIZE)
    assert "█" in sketch.text()
    text = sketch.press("colon", *"ascii", "space", *"on", "enter")
    assert "█" not in text and "ascii: on until you leave" in text
    assert "log: on until you leave" in sketch.press("colon", *"log", "space", *"on", "enter")
    assert sketch.place.charts.log_loss
    assert "mouse in config.toml or DDPTOP_MOUSE" in sketch.press("colon", *"mouse", "enter")


def test_the_app_takes_settings_from_the_palette() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        for value in ("rate 8", "bell off", "ascii on"):
            await stage.press(
                "colon", *("space" if letter == " " else letter for letter in f"setting {value}"), "enter"
            )
        text = await stage.text()
        assert text.isascii() and "ascii: on until you leave" in text

    on_stage(FakeSource(straggler()), SIZE, act)


def test_a_rank_by_its_number() -> None:
    sketch = Sketch(FakeSource(many()), SIZE)
    assert "▸ rank 2050" in sketch.press("colon", *"rank", "space", *"2050")
    assert " rank 2050 ──" in sketch.press("enter")
    assert "rank 4096" not in Sketch(FakeSource(many()), SIZE).press("colon", *"4096")
    sketch = Sketch(FakeSource(many()), SIZE)
    assert " rank 7 and rank 2050 ──" in sketch.press("colon", *"compare", "space", "7", "enter")


def test_on_the_timeline_as_well() -> None:
    """The lane under the cursor is another rank's."""
    sketch = Sketch(FakeSource(live()), SIZE)
    sketch.press("2")
    assert " rank 3 ──" in sketch.press("colon", *"rank", "space", "3", "enter")


def test_nothing_is_called_so() -> None:
    assert "no match" in Sketch(FakeSource(live()), SIZE).press("colon", *"zzzz")
    assert "no match" in Sketch(FakeSource(live()), SIZE).press("colon", *"zzzz", "enter")


def test_keys_choose_and_escape_leaves() -> None:
    sketch = Sketch(FakeSource(live()), SIZE)
    sketch.press("colon", "down", "down", "enter")
    assert sketch.place.view == "buckets"
    sketch.press("colon", "up", "escape")
    assert sketch.place.prompt is None
    assert sketch.place.view == "buckets"


def test_a_theme_from_the_palette_and_a_click_in_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("ctrl+p", *"ddptop-light", "enter")
        assert stage.app.theme == stage.app.chosen_theme == "ddptop-light"
        rows = (await stage.press("colon", *"events")).splitlines()
        await stage.pilot.click(
            offset=(4, next(at for at, row in enumerate(rows) if row.startswith("▸ events")))
        )
        await stage.text()
        assert stage.app.place.view == "events"
        assert stage.app.place.prompt is None

    on_stage(FakeSource(live()), SIZE, act)


_WITHOUT = frozenset(("left", "right"))


@pytest.mark.parametrize("typed", ["options", "Settings", "preferences", "option ascii"])
def test_settings_are_found_by_what_other_programs_call_them(typed: str) -> None:
    assert find_entries(typed, "overview")[0].name.startswith("setting ")
