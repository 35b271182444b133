"""Saving, copying, dragging: what a person takes from the screen, and where they take it by the mouse."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.tui.drive import Sketch, Stage, on_stage, sketch
from tests.tui.fake import FakeSource, live, replay, straggler
from tests.tui.troubles import missing

SIZE = (100, 30)


def test_s_saves_text_and_svg_of_any_view_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    page = sketch(FakeSource(straggler()), (200, 30), "3", "s")
    text, svg = sorted((tmp_path / "ddptop").iterdir(), key=lambda path: path.suffix, reverse=True)
    assert text.name == "ddptop-train-k7qf-buckets-20251009-123107.txt"
    assert svg.name == "ddptop-train-k7qf-buckets-20251009-123107.svg"
    assert f"saved to {text} and .svg" in page
    assert "busbw" in text.read_text(encoding="utf-8")
    assert "saved to" not in sketch(FakeSource(straggler()), (200, 30), "s", "down"), "until the next key"


def test_the_whole_path_is_shown_however_narrow_the_screen_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "a folder with spaces" / ("deep" * 20)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    page = sketch(FakeSource(straggler()), (80, 24), "s")
    [text] = (state / "ddptop").glob("*.txt")
    assert f"savedto{text}and.svg".replace(" ", "") in "".join(page.split())


def test_a_folder_that_was_told_takes_what_is_saved(tmp_path: Path) -> None:
    painted = Sketch(FakeSource(straggler()), (200, 30))
    painted.save_to = tmp_path
    page = painted.press("s")
    [text] = tmp_path.glob("*.txt")
    assert f"saved to {text} and .svg" in page


def test_y_hands_the_screen_to_the_clipboard() -> None:
    painted = Sketch(FakeSource(straggler()), SIZE)
    page = painted.text()
    assert "copied to the terminal's clipboard" in painted.press("y")
    assert painted.clipboard == page


def test_the_app_writes_an_svg_of_what_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.press("y", "s")
        [svg] = (tmp_path / "ddptop").glob("*.svg")
        assert "12,480" in svg.read_text(encoding="utf-8").replace("&#160;", " ")
        assert "● LIVE" in stage.app.clipboard

    on_stage(FakeSource(straggler()), SIZE, act)


def test_the_bar_of_a_recording_is_clicked_and_dragged() -> None:
    source = FakeSource(replay())

    async def act(stage: Stage) -> None:
        bar = (await stage.text()).splitlines()[-3]
        left, right = bar.index("├"), bar.index("┤")
        middle = (left + right) // 2
        await stage.pilot.mouse_down(offset=(middle, SIZE[1] - 3))
        await stage.pilot.hover(offset=(right + 20, SIZE[1] - 3))
        await stage.pilot.mouse_up(offset=(right + 20, SIZE[1] - 3))
        await stage.pilot.hover(offset=(left, SIZE[1] - 3))
        await stage.pilot.pause()

    on_stage(source, SIZE, act)
    shares = [asked[2] for asked in source.asked if asked[0] == "seek"]
    assert shares[0] == pytest.approx(0.5, abs=0.02)
    assert shares[-1] == 1.0, "it follows past the end of the bar, and no longer once it is let go"


def test_the_header_says_in_words_what_is_looked_at() -> None:
    def first(source: FakeSource, *keys: str) -> str:
        return sketch(source, SIZE, *keys).splitlines()[0]

    assert "● LIVE" in first(FakeSource(live()))
    assert "■ STALLED 17 s" in first(FakeSource(missing()))
    assert "▶ REPLAY 4x" in first(FakeSource(replay()))
    assert "‖ REPLAY 4x" in first(FakeSource(replay(playing=False)))
    assert "● LIVE SIMULATED" in first(FakeSource(replace(live(), source="simulated")))
    assert "‖ PAUSED" in first(FakeSource(live()), "space")
    fast = replay()
    assert fast.playback is not None
    fast = replace(fast, playback=replace(fast.playback, speed=float("inf")))
    assert "▶ REPLAY max" in first(FakeSource(fast))


def test_a_held_picture_stays_held_from_view_to_view_while_frames_come() -> None:
    source = FakeSource(live())
    painted = Sketch(source, SIZE)
    painted.press("space")
    source.frame = replace(live(), unix_s=live().unix_s + 60, group=replace(live().group, step=20_000))
    for key in ("3", "5", "6", "1"):
        page = painted.press(key)
        assert "PAUSED" in page.splitlines()[0]
        assert "1 min" in page.splitlines()[-3]
        assert "20,000" not in page
    assert "20,000" in painted.press("space")


@pytest.mark.parametrize("number", ["1", "2", "3", "4", "5", "6", "7"])
@pytest.mark.parametrize("size", [(30, 6), (20, 5)])
def test_tiny_terminals_keep_state_and_page(size: tuple[int, int], number: str) -> None:
    rows = sketch(FakeSource(straggler()), size, number).splitlines()
    assert "●" in rows[0]
    assert len(rows) == size[1]
