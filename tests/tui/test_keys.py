"""What every key does, pressed for real."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from textual.events import Key, Paste
from textual.geometry import Region
from textual.theme import BUILTIN_THEMES

from ddptop.frames.frame import Alert
from ddptop.render.line import Role
from ddptop.tui.all_views import VIEWS
from ddptop.tui.app import DdptopApp
from ddptop.tui.keys import COMMON_KEYS, RECORDING_KEYS, Action, Do, ScreenKey
from ddptop.tui.theme import THEMES
from ddptop.tui.views.footer import TWO_LINES_FROM
from tests.tui.drive import Sketch, Stage, on_stage, screen, sketch
from tests.tui.fake import (
    FakeSource,
    live,
    loading_data,
    lost,
    many,
    nobody,
    replay,
    saving,
    straggler,
    waiting,
)
from tests.tui.fake_views import WantedSource
from tests.tui.screens import unboxed
from tests.tui.troubles import missing

SIZE = (100, 30)


def test_the_cursor_stays_on_its_rank_when_the_order_changes() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        assert _cursor(await stage.press("down", "down")) == 2
        n_columns = stage.app.place.sortable.index("excess")
        sorted_screen = await stage.press(*["greater_than_sign"] * n_columns)
        assert stage.app.place.sort == "excess"
        assert _cursor(sorted_screen) == 2
        assert _ranks(sorted_screen)[0] == 1, "the slowest rank comes first"

    on_stage(FakeSource(straggler()), (120, 30), act)


def test_sorting_goes_round_the_columns_on_the_screen() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("less_than_sign")
        assert stage.app.place.sort == stage.app.place.sortable[-1]
        await stage.press("greater_than_sign")
        assert stage.app.place.sort == "rank"

    on_stage(FakeSource(live()), SIZE, act)


def test_enter_opens_the_page_of_the_rank_and_escape_leaves_it() -> None:
    source = FakeSource(live())

    async def act(stage: Stage) -> None:
        await stage.text()
        assert " rank 1 ──" in await stage.press("down", "enter")
        assert " rank 2 ──" in await stage.press("right")
        assert " rank 1 ──" in await stage.press("left")
        assert "── 4 ranks · ms, last 100 steps ──" in await stage.press("escape")

    on_stage(source, SIZE, act)
    assert source.asked == [("focus", 1), ("focus", 2), ("focus", 1), ("focus", None)]


def test_the_filter_is_applied_while_it_is_typed_and_escape_clears_it() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        assert _ranks(await stage.press("slash", "n", "o", "d", "e", "1")) == [2, 3]
        assert "filter 'node1'" in await stage.press("enter")
        assert _ranks(await stage.press("escape")) == [0, 1, 2, 3]
        assert "no rank matches 'x'" in await stage.press("slash", "x")
        assert _ranks(await stage.press("escape")) == [0, 1, 2, 3]

    on_stage(FakeSource(live()), SIZE, act)


def test_keys_of_the_screen_are_text_inside_a_prompt() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("slash", "q", "question_mark", "space", "2")
        assert stage.app.place.view == "overview"
        assert not stage.app.frozen
        assert stage.app.place.filter == "q? 2"

    on_stage(FakeSource(live()), SIZE, act)


def test_a_prompt_misses_no_key_of_a_fast_typist() -> None:
    source = FakeSource(replay())

    async def act(stage: Stage) -> None:
        await stage.text()
        for key, letter in [
            ("g", "g"),
            ("5", "5"),
            ("0", "0"),
            ("percent_sign", "%"),
            ("enter", "\r"),
            ("3", "3"),
        ]:
            stage.app.post_message(Key(key, letter))
        await stage.text()
        assert stage.app.place.view == "buckets"

    on_stage(source, SIZE, act)
    assert ("seek", None, 0.5, None) in source.asked


def test_editing_a_prompt() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("slash", "a", "b", "backspace", "tab", "ü")
        assert stage.app.place.filter == "aü"
        stage.app.post_message(Paste("x\x1b[2Jy"))
        await stage.text()
        assert stage.app.place.filter == "aüx[2Jy"
        assert "filter: aüx[2Jy" in (await stage.text()).splitlines()[-1]
        await stage.press("ctrl+u", "1", "enter")
        assert _ranks(await stage.text()) == [1]

    on_stage(FakeSource(live()), SIZE, act)


def test_space_holds_the_picture_while_frames_come() -> None:
    source = FakeSource(live())

    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("space")
        later = lost()
        source.frame = replace(later, unix_s=later.unix_s + 14)
        held = await stage.text()
        assert "PAUSED  picture of 12:31:07, 14 s old · now ✖ LOST" in held
        assert "● LIVE" not in held
        assert "✖ LOST" in (await stage.press("space")).splitlines()[0]

    on_stage(source, SIZE, act)
    assert source.asked == []


def test_keys_of_a_recording() -> None:
    source = FakeSource(replay())
    keys = ["space", "left_square_bracket", "right_square_bracket", "home", "end", "plus", "minus"]
    screen(source, SIZE, *keys, "right_curly_bracket", "left_curly_bracket")
    assert [asked for asked in source.asked if asked[0] != "want"] == [
        ("play", None),
        ("seek", None, None, -1),
        ("seek", None, None, 1),
        ("seek", None, 0.0, None),
        ("seek", None, 1.0, None),
        ("speed", 8.0),
        ("speed", 2.0),
        ("seek", None, 0.4, None),
        ("seek", None, 0.2, None),
    ]


@pytest.mark.parametrize(("speed", "key", "asked"), [(64.0, "plus", float("inf")), (0.25, "minus", 0.25)])
def test_speed_has_bounds(speed: float, key: str, asked: float) -> None:
    frame = replay()
    assert frame.playback is not None
    source = FakeSource(replace(frame, playback=replace(frame.playback, speed=speed)))
    sketch(source, SIZE, key)
    assert source.asked == [("speed", asked)]


@pytest.mark.parametrize(
    ("typed", "asked"),
    [("12480", ("seek", 12_480, None, None)), ("50%", ("seek", None, 0.5, None))],
)
def test_go_to(typed: str, asked: tuple[object, ...]) -> None:
    source = FakeSource(replay())
    keys = ["percent_sign" if letter == "%" else letter for letter in typed]
    sketch(source, SIZE, "g", *keys, "enter")
    assert source.asked == [asked]


def test_go_to_says_what_it_wants() -> None:
    source = FakeSource(replay())
    assert "'x' is no step, share (50%) or time (12:31)" in sketch(source, SIZE, "g", "x", "enter")
    assert source.asked == []


def test_replay_keys_do_nothing_to_a_live_run() -> None:
    source = FakeSource(live())
    keys = ["left_square_bracket", "right_curly_bracket", "plus", "minus", "g", "home", "end"]
    text = screen(source, SIZE, *keys)
    assert source.asked == []
    assert _cursor(text) == 3, "End goes to the last row"


def test_trouble_comes_first_where_not_all_ranks_fit() -> None:
    assert _ranks(screen(FakeSource(many()), SIZE, "v"))[:3] == [2050, 1, 0]


def test_paging_through_thousands_of_ranks() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("v")  # not by host
        assert _ranks(await stage.press("end"))[-1] == 4095
        assert _ranks(await stage.press("pageup"))[-1] < 4095
        assert _ranks(await stage.press("home"))[0] == 2050

    on_stage(FakeSource(many()), SIZE, act)


def test_a_click_chooses_a_rank() -> None:
    async def act(stage: Stage) -> None:
        rows = (await stage.text()).splitlines()
        row = next(at for at, line in enumerate(rows) if " 2 node1" in line)
        await stage.pilot.click(offset=(10, row))
        assert _cursor(await stage.text()) == 2

    on_stage(FakeSource(live()), SIZE, act)


def test_help_names_every_key() -> None:
    one_column, two_columns = (
        sketch(FakeSource(replay()), (width, 180), "question_mark") for width in (150, 160)
    )
    for key in VIEWS.all_keys:
        assert f"  {key.shown:<8}{key.help}" in one_column
        assert f"  {key.shown:<8}{key.help[:50]}" in two_columns


@pytest.mark.parametrize("view", VIEWS.numbered_names)
def test_help_begins_with_the_keys_of_the_page_it_was_asked_on(view: str) -> None:
    here = VIEWS[view].keys
    rows = unboxed(sketch(WantedSource(live()), (150, 180), VIEWS[view].number, "question_mark"))
    if here:
        first = next(at for at, row in enumerate(rows) if row.startswith(f"on the page before this: {view}"))
        assert all(key.help in "\n".join(rows[first + 1 : first + 1 + len(here)]) for key in here)


@pytest.mark.parametrize("view", VIEWS.numbered_names)
def test_the_first_page_of_the_help_has_every_key_at_80x24(view: str) -> None:
    rows = sketch(WantedSource(live()), (80, 24), VIEWS[view].number, "question_mark").splitlines()[2:-2]
    first_page = [*rows[: rows.index("")]] if "" in rows else rows
    words = {word for row in first_page for word in row.split()}
    assert not any(row.startswith("on the page before this") for row in first_page)
    for key in (*COMMON_KEYS, *RECORDING_KEYS, *(key for key in VIEWS[view].keys if key.short)):
        assert {*key.shown.split()} <= words, key.shown
    assert "g go" in " ".join(" ".join(row.split()) for row in first_page), "the last one, whole"


def test_a_key_has_one_meaning_on_a_page() -> None:
    for view in VIEWS:
        own = [key.keys for key in view.keys]
        assert len(own) == len(set(own)), view.name
    for keys in (VIEWS.shared_keys, RECORDING_KEYS):
        common = [key.keys for key in keys]
        assert len(common) == len(set(common))


def test_keys_of_vim_and_of_other_programs() -> None:
    painted = Sketch(FakeSource(live()), SIZE)
    assert _cursor(painted.press("j", "j", "k")) == 1
    assert _cursor(painted.press("G")) == 3
    assert _cursor(painted.press("g")) == 0
    painted.press("tab")
    assert painted.place.view == "timeline"
    painted.press("shift+tab", "shift+tab")
    assert painted.place.view == VIEWS.numbered_names[-1]
    painted.press("f1")
    assert painted.place.view == "columns"
    painted.press("question_mark")
    assert painted.place.view == "help"
    painted.press("f10")
    assert painted.left
    in_replay = Sketch(FakeSource(replay()), SIZE)
    assert "go to" in in_replay.press("g").splitlines()[-1], "in a recording g goes to a step"


def test_every_key_does_something_that_there_is() -> None:
    assert all(isinstance(key.action.do, Do) for key in (*COMMON_KEYS, *RECORDING_KEYS))
    assert all(callable(key.action.do) for key in VIEWS.all_keys)
    for do in Do:
        assert callable(getattr(Sketch, f"action_{do.value}")), do


def test_the_header_names_the_machine_of_a_remote_run() -> None:
    source = FakeSource(straggler())
    source.where = "me@gpu01"  # type: ignore[attr-defined]  # as RemoteSource has
    assert screen(source, SIZE).startswith("me@gpu01 train-k7qf")


def test_q_leaves() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.pilot.press("q")
        await stage.pilot.pause()
        assert stage.app._exit

    on_stage(FakeSource(live()), SIZE, act)


@pytest.mark.parametrize("theme", [*(theme.name for theme in THEMES), "nord", "textual-light"])
def test_themes(theme: str) -> None:
    assert "12,480" in screen(FakeSource(straggler()), SIZE, theme=theme)


def test_themes_that_leave_colours_to_the_terminal() -> None:
    names = [name for name in DdptopApp(FakeSource(None)).available_themes if "ansi" in name]
    assert names, "their names change between versions of textual"
    for name in names:
        assert "12,480" in screen(FakeSource(straggler()), SIZE, theme=name)


def test_no_color_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    seen: set[object] = set()

    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("slash", "x", "escape", "2", "1", "space")
        uncovered = stage.app.screen.render_lines(Region(0, 0, 80, 24))  # by a resize, until the next picture
        for strip in (*stage.app.screen._compositor.render_strips(), *uncovered):
            for segment in strip:
                if segment.style is not None:
                    seen.update((segment.style.color, segment.style.bgcolor))
        assert "#7cc7ff" in stage.app.picture_svg(), "what is saved is not for this terminal"

    on_stage(FakeSource(lost()), SIZE, act, theme="ansi-dark" if "ansi-dark" in BUILTIN_THEMES else None)
    assert seen == {None}


def test_with_sixteen_colours_red_is_kept_for_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    palette = DdptopApp(FakeSource(None)).shown_palette
    named = {role: palette.style(role).color.name for role in get_args(Role)}  # type: ignore[union-attr]
    assert [role for role, name in named.items() if "red" in name] == ["bad"]
    work = [named[role] for role in ("data", "forward", "backward", "wait", "transfer", "optimizer")]
    assert len(set(work)) == len(work)


def test_a_theme_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="no theme 'pink'; choose from ddptop-dark"):
        DdptopApp(FakeSource(None), theme="pink")


def test_only_changed_lines_are_drawn() -> None:
    source = FakeSource(live())

    async def act(stage: Stage) -> None:
        await stage.text()
        assert stage.app.repaint() == 0
        assert source.frame is not None
        group = replace(source.frame.group, steps_per_s=37.7)
        source.frame = replace(source.frame, group=group)
        assert stage.app.tick() == 1, "the header alone"
        assert stage.app.tick() == 0

    on_stage(source, SIZE, act)


@pytest.mark.parametrize("size", [(1, 1), (12, 3), (20, 5), (400, 100)])
@pytest.mark.parametrize("make", [nobody, replay, many])
def test_every_size_survives_every_view(size: tuple[int, int], make: object) -> None:
    views = ["2", "down", "3", "down", "4", "right", "enter", "5", "down", "6", "down", "7", "1"]
    others = ["enter", "escape", "c", "down", "c", "r", "escape", "question_mark", "slash", "x", "enter", "n"]
    keys = [*views, *others, "escape", "escape", "colon", "x", "escape", "space", "F", "I", "l", "x", "right"]
    sketch(FakeSource(make()), size, *keys)  # type: ignore[operator]


def _ranks(text: str) -> list[int]:
    rows = (line for line in text.splitlines() if "┃" in line and "rank" not in line)
    return [int(row[2:].split()[0]) for row in rows]


def _cursor(text: str) -> int:
    row = next(line for line in text.splitlines() if line.startswith("▸"))
    return int(row[2:].split()[0])


def test_w_opens_the_page_of_what_the_verdict_is_about() -> None:
    why = Sketch(FakeSource(straggler()), (80, 24)).press("down", "down", "w")
    assert " rank 1 ──" in why
    assert "26.6 ±0.4 without the slow rank" in why
    assert "try: speed up the data loading of rank 1" in why
    assert "20.3 +/-0.1 ms" in sketch(FakeSource(straggler()), (80, 24), "w", ascii_only=True)
    assert "rank 1 is missing" in Sketch(FakeSource(missing()), (80, 24)).press("w")
    assert "no rank is flagged" in Sketch(FakeSource(live()), (80, 24)).press("w")
    loads = Sketch(FakeSource(loading_data()), (80, 24))
    assert "bill of the whole run" in loads.press("w")
    for kind in ("nan", "replica_drift"):
        alert = Alert(kind, "critical", 1, None, live().unix_s - 3.0, "the loss of rank 1 is NaN")
        wrong = Sketch(FakeSource(replace(straggler(), alerts=(alert,))), (80, 24))
        wrong.press("w")
        assert wrong.place.view == "events", "not the slow rank, of which the headline does not speak"
    assert "2 ranks have not reported yet" in Sketch(FakeSource(waiting()), (80, 24)).press("w")


def test_a_key_that_changes_nothing_says_why() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        assert "this view is open" in await stage.press("1")
        assert "the list ends here" in await stage.press("end", "down")
        assert "the list ends here" not in await stage.press("up")
        assert "there is nothing to go back to" in await stage.press("escape", "escape")
        assert "there is nothing to open here" in await stage.press("3", "enter")
        assert "this page has no other order" in await stage.press("6", "less_than_sign")
        assert "0 changes nothing now: the whole step" in await stage.press("2", "0")

    on_stage(FakeSource(live()), SIZE, act)


@pytest.mark.parametrize(
    "view", ["1", "7", *(pytest.param(view, marks=pytest.mark.slow) for view in ("2", "3", "5", "9"))]
)
def test_every_key_is_answered_on_every_page(view: str) -> None:
    """By another picture, or by a line that says why there is none."""
    unseen = {"q", "f10", "s", "r", "y"}
    keys = sorted({key.keys for key in VIEWS.all_keys} - unseen)

    async def act(stage: Stage) -> None:
        app = stage.app
        for key in keys:
            app.place.prompt = None
            for before in ("escape", "escape", view, view):
                app.action_key(before)
            picture = app.picture_text()
            app.action_key(key)
            assert app.picture_text() != picture or app.place.note, key

    on_stage(FakeSource(missing()), SIZE, act)


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (67, 19), (50, 24)])
def test_the_keys_of_all_pages_are_in_the_same_cells(size: tuple[int, int]) -> None:
    n_lines = 2 if size[1] >= TWO_LINES_FROM else 1
    for frame in (missing(), replay()):
        places = set()
        for view in VIEWS:
            if view.lists_runs:
                continue  # a list of runs has no run to pause
            sketch = Sketch(WantedSource(frame), size)
            sketch.act(Do.VIEW(view.name))
            foot = "".join(str(line).ljust(size[0]) for line in sketch.lines[-n_lines:])
            assert "…" not in foot
            shared = ("/ ", "space pause", ": all", "? help", "q quit")
            places.add(tuple(foot.find(key) for key in shared))
        assert len(places) == 1, places
        assert -1 not in places.pop()


def test_w_opens_the_bill_where_it_says_what_most_of_the_waiting_is_for() -> None:
    assert "bill of the whole run" in sketch(FakeSource(saving()), (80, 24), "w")
    assert "no rank is flagged" in sketch(FakeSource(live()), (80, 24), "w")


@pytest.mark.parametrize("view", VIEWS.numbered_names)
def test_all_of_the_help_is_on_one_page_at_160x50(view: str) -> None:
    person = Sketch(WantedSource(live()), (160, 50))
    text = person.press(VIEWS[view].number, "question_mark")
    assert "below" not in text.splitlines()[1]
    for words in (
        "if communication were hidden: ",
        "signs of ranks and hosts",
        "go to a step, a time",
        "  : ^P    the palette",
    ):
        assert words in text
    for key in VIEWS[view].keys:
        assert f"  {key.shown:<8}{key.help[:30]}" in text


def test_enter_in_the_help_runs_the_key_that_was_searched_for() -> None:
    for size in ((80, 24), (160, 50)):
        person = Sketch(FakeSource(live()), size)
        person.press("question_mark", "slash", *"log, linear", "enter", "enter")
        assert person.place.view == "overview" and person.place.charts.log_loss is not None, "as the key l"
        person.press("question_mark", "slash", *"palette: any", "enter", "enter")
        assert person.place.prompt is not None and person.place.prompt.purpose == "palette"


def test_enter_in_columns_of_the_help_runs_the_key_of_the_match_and_not_its_neighbour() -> None:
    for searched, shown in (("save", "s"), ("palette: any", ": ^P")):
        person = Sketch(FakeSource(live()), (160, 50))
        person.press("question_mark", "slash", *searched, "enter")
        action = person.place.scroll.action
        assert isinstance(action, Action)
        (key,) = action.arguments
        assert isinstance(key, ScreenKey) and key.shown == shown
    person = Sketch(FakeSource(live()), (160, 50))
    person.press("question_mark", "slash", *"slower", "enter")
    marked = person.place.scroll.hit
    assert marked is not None and person.place.scroll.action is None, "no key is about this word"
    person.press("enter")
    assert person.place.prompt is not None and person.place.prompt.purpose == "palette"


def test_enter_in_the_help_offers_all_keys_where_none_was_searched_for() -> None:
    person = Sketch(FakeSource(live()), (80, 24))
    person.press("2", "question_mark", "enter")
    assert person.place.view == "timeline"
    assert person.place.prompt is not None and person.place.prompt.purpose == "palette"
    person.press(*"bill", "enter")
    assert person.place.view == "bill"


def test_a_click_on_a_line_of_the_help_does_what_its_key_does() -> None:
    person = Sketch(FakeSource(live()), (160, 50))
    person.press("question_mark")
    line = next(line for line in person.lines if "crosshair on the charts" in str(line))
    action = line.spots[0][2]
    person.act(action)
    assert person.place.view == "overview" and person.place.charts.at_s is not None


def test_a_wide_page_says_on_which_way_one_has_come_to_it() -> None:
    person = Sketch(WantedSource(live()), (160, 50))
    for keys, title in (
        (("down", "enter"), "overview > rank 1"),
        (("question_mark",), "overview > rank 1 > keys"),
        (("escape",), "overview > rank 1"),
        (("2", "f1"), "timeline > figures"),
    ):
        assert f"┌── {title} " in person.press(*keys).splitlines()[1]
    person.size = (80, 24)
    assert "── figures " in person.text().splitlines()[1]


def test_escape_leads_from_a_rank_and_from_two_compared_to_where_one_came_from() -> None:
    person = Sketch(WantedSource(live()), (160, 50))
    assert "┌── timeline > rank 1 " in person.press("2", "down", "enter")
    assert "┌── timeline > rank 2 " in person.press("right"), "the next rank is no step further"
    assert "┌── timeline > rank 3 > rank 2 and rank 3 " in person.press("c", "right", "c", "c", "c")
    person.press("escape")
    assert person.place.view == "rank"
    person.press("escape")
    assert person.place.view == "timeline"
    person.press("escape")
    assert person.place.view == "overview" and not person.place.trail


def test_why_on_the_page_of_the_slow_rank_stays_there() -> None:
    person = Sketch(WantedSource(straggler()), (160, 50))
    assert "┌── heat > rank 1 " in person.press("4", "w")
    assert "┌── heat > rank 1 " in person.press("w")
    person.press("escape")
    assert person.place.view == "heat"
