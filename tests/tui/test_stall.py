"""The stall page: how one comes to it, what the keys do there, and what foreign text cannot do."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddptop.frames.frame import Frame
from tests.tui.drive import Sketch, Stage, on_stage, screen, sketch
from tests.tui.fake import CASES, NOW, FakeSource, live, nobody, out_of_reach, several, waiting
from tests.tui.fake_views import timeline
from tests.tui.troubles import SENTENCE, died, drifting, hostile, mismatch, missing, stalled_in_replay

SIZE = (100, 30)


def test_seven_opens_the_page_and_escape_leaves_it() -> None:
    async def act(stage: Stage) -> None:
        assert "7 shows the stacks" in await stage.text()
        page = await stage.press("7")
        assert "STALLED 17 s" in page
        assert "train.py:88       tokenize  while True: self.lock.acquire()" in page
        assert "── 4 ranks" in await stage.press("escape")

    on_stage(FakeSource(missing()), SIZE, act)


def test_a_click_on_the_verdict_opens_the_page() -> None:
    async def act(stage: Stage) -> None:
        await stage.text()
        await stage.pilot.click(offset=(5, 1))
        assert stage.app.place.view == "stall"

    on_stage(FakeSource(missing()), SIZE, act)


def test_a_calm_verdict_leads_nowhere() -> None:
    async def act(stage: Stage) -> None:
        assert "shows the stacks" not in await stage.text()
        await stage.pilot.click(offset=(5, 1))
        assert stage.app.place.view == "overview"

    on_stage(FakeSource(live()), SIZE, act)


def test_the_time_of_a_stall_goes_on() -> None:
    source = FakeSource(missing())

    async def act(stage: Stage) -> None:
        await stage.press("7")
        assert source.frame is not None
        source.frame = replace(source.frame, unix_s=NOW + 300)
        assert "STALLED 5 min" in await stage.text()

    on_stage(source, SIZE, act)


def test_threads_on_demand() -> None:
    async def act(stage: Stage) -> None:
        page = await stage.press("7")
        assert "pin_memory" not in page
        assert "more library calls" in page
        page = await stage.press("t")
        assert "thread pin_memory" in page
        assert "more library call" not in page
        assert "pin_memory" not in await stage.press("t")

    on_stage(FakeSource(missing()), (100, 60), act)


def test_the_page_scrolls_to_its_end_and_back() -> None:
    async def act(stage: Stage) -> None:
        assert "lines below" in await stage.press("7", "t")
        assert "■ STALLED 17 s  rank" not in await stage.press("pagedown")
        page = await stage.press("end")
        assert "below" not in page
        assert "rank 3, node1" in page
        assert "■ STALLED 17 s  rank" in await stage.press("home")

    on_stage(FakeSource(missing()), (80, 24), act)


def test_s_saves_all_of_it_as_text_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    page = sketch(FakeSource(missing()), SIZE, "7", "s")
    [path] = (tmp_path / "ddptop").glob("*.txt")
    assert f"savedto{path}and.svg" in "".join(page.split())
    text = path.read_text(encoding="utf-8")
    assert SENTENCE in text
    assert "while True: self.lock.acquire()" in text
    assert "thread pin_memory" in text
    assert "return Variable._execution_engine.run_b" in text, "lines of code are whole"
    assert "rank 3, node1, pid 4313" in text


def test_a_saved_page_replaces_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sketch(FakeSource(died()), SIZE, "7", "s", "s")
    first, second = sorted((tmp_path / "ddptop").glob("*.txt"))
    assert first.read_text() == second.read_text()


def test_saving_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert "not saved: cannot make" in sketch(FakeSource(missing()), (200, 30), "7", "s")


def test_of_a_healthy_run_the_screen_itself_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    page = sketch(FakeSource(live()), (250, 40), "7", "s")
    [path] = (tmp_path / "ddptop").glob("*.txt")
    assert path.read_text(encoding="utf-8").splitlines()[:-1] == page.splitlines()[:-1], "but for the note"


def test_enter_on_an_alert_opens_what_it_is_about() -> None:
    async def act(stage: Stage) -> None:
        await stage.press("5", "enter")
        assert stage.app.place.view == "stall"

    async def act_on_nan(stage: Stage) -> None:
        assert " rank 2 ──" in await stage.press("5", "enter")

    on_stage(FakeSource(missing()), SIZE, act)
    on_stage(FakeSource(drifting()), SIZE, act_on_nan)


def test_enter_on_an_event_of_a_recording_goes_to_its_moment() -> None:
    source = FakeSource(stalled_in_replay())
    sketch(source, SIZE, "5", "down", "enter")
    seeks = [asked for asked in source.asked if asked[0] == "seek"]
    assert len(seeks) == 1
    assert seeks[0][2] == pytest.approx((840 - 2) / 3_360), "it happened two seconds ago"


def test_the_rank_page_has_its_stack_and_the_other_ranks_theirs() -> None:
    page = sketch(FakeSource(missing()), SIZE, "enter")
    assert "while True: self.lock.acquire()" in page, "the missing rank is the first of the table"
    page = sketch(FakeSource(missing()), SIZE, "down", "enter")
    assert "loss.backward()" in page
    page = sketch(FakeSource(died()), SIZE, "enter")
    assert 'raise ValueError("shard 7 is empty")' in page


def test_culprits_are_marked_in_the_table() -> None:
    def marked(frame: Frame, sign: str) -> list[int]:
        rows = (line for line in sketch(FakeSource(frame), SIZE).splitlines() if "┃" in line)
        return [int(row[2:].split()[0]) for row in rows if row[1] == sign]

    assert marked(several(), "▲") == [1, 3]
    assert marked(missing(), "■") == [1]
    assert marked(died(), "■") == [2], "rank 0 died of it"
    assert marked(live(), "▲") == marked(live(), "■") == []


def test_both_sides_of_a_mismatch_stand_next_to_each_other_where_there_is_room() -> None:
    wide = sketch(FakeSource(mismatch()), (160, 40), "7").splitlines()
    assert any("dist.broadcast" in line and "_engine_run_backward"[:14] in line for line in wide)
    narrow = sketch(FakeSource(mismatch()), (80, 40), "7")
    assert narrow.index("dist.broadcast") < narrow.index("loss.backward()")


def test_foreign_text_stays_text_and_moves_no_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))

    async def act(stage: Stage) -> None:
        for keys in (["7"], ["t"], ["s"], ["1"], ["down", "enter"], ["5"]):
            text = await stage.press(*keys)
            assert not _controls(text), keys
        page = await stage.press("7")
        assert "[b]missing[/b]" in page
        assert "[red]x[/]" in page

    on_stage(FakeSource(hostile()), (120, 40), act)
    [path] = (tmp_path / "ddptop").glob("*stall*.txt")
    assert not _controls(path.read_text(encoding="utf-8"))


def test_a_run_s_name_cannot_choose_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a"))
    frame = missing()
    sketch(FakeSource(replace(frame, run=replace(frame.run, name="../../x\x1b/y"))), SIZE, "7", "s")
    assert [path.parent for path in tmp_path.rglob("*.txt")] == [tmp_path / "a" / "ddptop"]


@pytest.mark.parametrize("size", [(1, 1), (20, 5), (400, 100)])
@pytest.mark.parametrize("make", [mismatch, died, hostile, stalled_in_replay])
def test_every_size_survives_it(
    size: tuple[int, int], make: Callable[[], Frame], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    sketch(FakeSource(make()), size, "7", "t", "down", "pagedown", "s", "5", "down", "enter", "1", "enter")


def test_without_colour_the_page_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    coloured = screen(FakeSource(missing()), SIZE, "7")
    monkeypatch.setenv("NO_COLOR", "1")
    assert screen(FakeSource(missing()), SIZE, "7") == coloured


def _controls(text: str) -> set[str]:
    """Letters that would move the cursor, colour or reorder what follows."""
    return {letter for letter in text if letter != os.linesep and unicodedata.category(letter)[0] == "C"}


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (50, 24), (67, 19), (30, 6)])
def test_header_and_timeline_show_the_step_that_is_stuck(size: tuple[int, int]) -> None:
    """Not the newest complete one, nor the newest whose buckets were timed, 266 steps before."""
    frame = missing()
    old = replace(
        frame, group=replace(frame.group, step=12_478), timeline=timeline(step=12_214, kept=(12_210, 12_214))
    )
    text = screen(FakeSource(old), size, "2")
    assert "12,481" in text
    assert "12,214" not in text
    lanes = {
        line.split()[0].strip("▸"): line for line in text.splitlines() if " r" in line[:4] or "▸r" in line
    }
    if size[1] > 6:
        assert lanes["r1"].rstrip().endswith("missing")
        assert all(lanes[f"r{rank}"].rstrip().endswith("waiting") for rank in (0, 2, 3))


def test_the_steps_before_the_stuck_one_can_be_picked() -> None:
    frame = missing()
    source = FakeSource(replace(frame, timeline=timeline(step=12_214, kept=(12_210, 12_214))))
    seen = Sketch(source, SIZE)
    assert "under way" in seen.press("2")
    assert "under way" not in seen.press("comma")
    assert seen.place.timeline.step == 12_214
    seen.press("comma")
    assert seen.place.timeline.step == 12_210
    seen.press("full_stop")
    assert "under way" in seen.press("full_stop")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (nobody(), "no rank has reported yet: nothing can be said"),
        (waiting(), "2 ranks have not reported yet: of these nothing can be said"),
        (out_of_reach(), "no update comes: at the last one nothing was stalled, and no rank had died"),
    ],
)
def test_nothing_is_said_to_be_well_that_cannot_be_known(frame, words) -> None:
    person = Sketch(FakeSource(frame), (100, 24))
    assert f"○ {words}" in person.press("7") and "● nothing is stalled" not in person.text()
    assert person.lines[1].pieces[0] == ("○ ", "dim")


def test_a_long_wait_is_a_warning() -> None:
    for elapsed_s, roles in ((59.0, ("dim", "strong")), (60.0, ("warn", "warn"))):
        frame = waiting()
        frame = replace(frame, run=replace(frame.run, elapsed_s=elapsed_s))
        header, headline = Sketch(FakeSource(frame), (80, 24)).lines[:2]
        assert [role for _, role in headline.pieces[1:3]] == list(roles)
        assert [role for text, role in header.pieces if "WAITING" in text] == [roles[0]]


def test_ranks_that_were_ended_alike_share_their_lines() -> None:
    lines = sketch(FakeSource(died()), (80, 24), "7").splitlines()
    assert sum("ranks 0, 1 and 3 were ended by SIGTERM" in line for line in lines) == 1
    every = sketch(FakeSource(died()), (80, 50), "7", "t")
    assert all(f"rank {rank} was ended by SIGTERM" in every for rank in (0, 1, 3))


def test_the_chart_of_a_stall_without_evidence_keeps_its_axis() -> None:
    for size in ((80, 24), (67, 19), (50, 24)):
        text = sketch(FakeSource(CASES["many"]()), size, "7")
        assert "12:30" in text and "below" not in text
