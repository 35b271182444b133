"""The timeline as text: lanes, what is said of them, and the keys that move about in it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest

from ddptop.analysis.to_frame.timeline import mark_activities
from ddptop.frames.detail import LaneSpan, Timeline, TimelineRequest
from ddptop.render.line import combine_roles
from ddptop.render.phases import DARK_ROLES, LIGHT_ROLES, is_parted
from ddptop.tui.views.timeline_state import MAX_ZOOM, TimelineState
from tests.tui import fake_views
from tests.tui.drive import Sketch, Stage, on_stage
from tests.tui.fake import CASES, FakeSource, live, replay, straggler
from tests.tui.fake_views import WantedSource
from tests.tui.pages import SIZES, TINY, page, place_at
from tests.tui.screens import check

SHOWN = {
    "late": fake_views.timeline(),
    "untimed": fake_views.untimed(),
    "clock_free": fake_views.clock_free(),
    "many_buckets": fake_views.timeline(buckets=12),
    "odd": fake_views.odd(),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", SHOWN)
def test_lanes(case: str, size: str) -> None:
    frame = replace(straggler(), timeline=SHOWN[case])
    check(f"lanes-{case}-{size}", page(frame, place_at("timeline"), SIZES[size]))


@pytest.mark.parametrize("size", [*SIZES, *TINY])
def test_of_thousands_the_culprit_stays_above_those_about_the_cursor(size: str) -> None:
    place = place_at("timeline", timeline=TimelineState(rank=2_000))
    check(f"lanes-many-{size}", page(straggler(4096), place, (SIZES | TINY)[size]))


@pytest.mark.parametrize("width", range(30, 61))
@pytest.mark.parametrize("skew_ms", [20.3, 1_234.5])
def test_by_how_much_a_rank_came_last_is_said_with_what_it_is_after(skew_ms: float, width: int) -> None:
    frame = replace(straggler(), timeline=replace(SHOWN["late"], skew_ms=skew_ms))
    line = page(frame, place_at("timeline"), (width, 24)).splitlines()[1 + 1]
    assert line == "▸ rank 1 came last" or re.fullmatch(
        r"▸ rank 1 (came )?last, [\d.,]+ ±0.1 ms after the first", line
    )


@pytest.mark.parametrize("case", ["stale", "lost", "waiting", "unknowns"])
def test_whatever_the_run_is_like(case: str) -> None:
    check(f"lanes-{case}-80x24", page(CASES[case](), place_at("timeline"), SIZES["80x24"]))


def test_in_a_thinned_recording_at_a_step_that_is_no_longer_kept() -> None:
    place = place_at("timeline", timeline=TimelineState(step=7))
    frame = replace(replay(), timeline=fake_views.timeline(kept_every=8, micro_steps=4))
    check("lanes-replay-80x24", page(frame, place, SIZES["80x24"]))


@pytest.mark.parametrize(("plain", "signs"), [(False, "◇▤"), (True, "eS")])
def test_an_evaluation_and_a_save_have_signs_and_a_legend(plain: bool, signs: str) -> None:
    usual = SHOWN["late"]
    first = usual.lanes[1]
    spans = mark_activities(first.spans, (LaneSpan("evaluation", 2.0, 8.0), LaneSpan("saving", 8.0, 20.0)))
    shown = replace(usual, lanes=(usual.lanes[0], replace(first, spans=spans), *usual.lanes[2:]))
    text = page(replace(straggler(), timeline=shown), place_at("timeline"), SIZES["80x24"], plain=plain)
    lane = next(line for line in text.splitlines() if "r1 " in line and "exposed" in line)
    assert f"{signs[0] * 2}{signs[1] * 2}" in lane
    assert f"{signs[0]} evaluating  {signs[1]} saving" in text
    usual_text = page(replace(straggler(), timeline=usual), place_at("timeline"), SIZES["80x24"], plain=plain)
    assert "evaluating" not in usual_text


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("case", SHOWN)
def test_neighbouring_parts_differ_in_lightness_or_have_an_edge(case: str, plain: bool) -> None:
    person = Sketch(FakeSource(replace(straggler(), timeline=SHOWN[case])), (160, 50), plain)
    person.press("2")
    pairs = {
        (before[1], after[1])
        for line in person.lines
        if line.target is not None
        for before, after in itertools.pairwise(line.pieces)
    }
    solid = {combine_roles(role, role): role for role in (*LIGHT_ROLES, *DARK_ROLES)}
    parts = [(solid[one], solid[other]) for one, other in pairs if {one, other} <= solid.keys()]
    assert parts and all(one == other or is_parted(one, other) for one, other in parts), parts
    if case == "late":
        assert (combine_roles("backward", "backward"), combine_roles("ink", "transfer")) in pairs


def test_ascii() -> None:
    frame = replace(straggler(), timeline=SHOWN["odd"])
    text = page(frame, place_at("timeline"), SIZES["80x24"], plain=True)
    assert text.isascii()
    check("lanes-ascii-80x24", text)


def test_zoomed_in_and_paused() -> None:
    state = TimelineState(rank=1)
    state.zoom(2)
    state.pan(2)
    frame = replace(straggler(), timeline=SHOWN["late"])
    check("lanes-zoomed-80x24", page(frame, place_at("timeline", timeline=state), (80, 24), frozen=True))


def test_zoom_keeps_the_middle_and_stays_on_the_step() -> None:
    state = TimelineState()
    state.zoom(1)
    assert (state.begin, state.share) == (0.25, 0.5)
    state.pan(100)
    assert state.begin == 0.5
    state.zoom(100)
    assert state.level == MAX_ZOOM and state.begin + state.share <= 1.0
    state.zoom(-100)
    assert (state.begin, state.share) == (0.0, 1.0)


def test_picking_goes_along_the_kept_steps_and_holds_until_released() -> None:
    state, shown = TimelineState(), fake_views.timeline()
    state.pick(1, shown)
    assert state.step == shown.kept[-1]
    state.pick(-1, shown)
    state.pick(-1, shown)  # before the next frame has come
    assert state.step == shown.kept[-3]
    state.step = shown.kept[2] + 1
    state.pick(1, shown)
    assert state.step == shown.kept[3]
    state.step = shown.kept[2] + 1
    state.pick(-1, shown)
    assert state.step == shown.kept[2]
    state.step = 3
    state.pick(-1, shown)
    assert state.step == 3  # nothing older is kept
    state.pick(1, shown)
    assert state.step == shown.kept[0]
    assert state.release() and state.step is None and not state.release()
    state.pick(-1, None)
    assert state.step is None


def test_a_picked_step_stays_when_the_collector_has_given_it_up() -> None:
    place = place_at("timeline", timeline=TimelineState(step=12_000))
    picked = fake_views.timeline(step=12_000, kept=(12_000, 12_004), step_ms=99.5)
    newest = fake_views.timeline(step=13_000, kept=(12_900, 13_000))
    texts = [page(replace(straggler(), timeline=one), place, (80, 24)) for one in (picked, newest)]
    assert all("step 12,000 ▸  99.5 ms   held" in text for text in texts)
    place.timeline.release()
    last = page(replace(straggler(), timeline=newest), place, (80, 24))
    assert "step 13,000    46.8 ms  newest" in last


def test_the_app_asks_for_the_step_and_follows_the_keys() -> None:
    source = WantedSource(straggler())

    async def act(stage: Stage) -> None:
        first = await stage.press("2")
        assert "newest" in first and "rank 1 came last" in first
        assert ("want", "timeline -1 1") in source.asked, "of the straggler, the first of the table"
        await stage.press("comma")
        assert source.asked[-1] == ("want", "timeline 12476 1")
        assert "held" in await stage.text()
        assert "newest" in await stage.press("escape")
        await stage.press("down")
        assert source.asked[-1] == ("want", "timeline -1 2")
        await stage.press("1")
        assert source.asked[-1] == ("want", "")

    on_stage(source, (80, 24), act)


def watched(*, replayed: bool = False) -> tuple[Sketch, list[int]]:
    """The timeline over three seconds, four frames in each of which a step is newer by four."""
    first = replay() if replayed else live()
    source = FakeSource(replace(first, timeline=fake_views.timeline(newest=12_480)))
    person = Sketch(source, (80, 24))
    person.press("2")
    seen = []
    for quarter in range(12):
        newest = fake_views.timeline(newest=12_480 + 4 * quarter)
        source.frame = replace(first, unix_s=first.unix_s + quarter / 4, timeline=newest)
        step = re.search(r"step ([\d,]+)", person.text().splitlines()[1])
        assert step is not None
        seen.append(int(step[1].replace(",", "")))
    return person, seen


def test_a_step_that_is_followed_stays_for_two_seconds() -> None:
    person, seen = watched()
    assert seen == [12_480] * 8 + [12_512] * 4
    assert "step 12,508" in person.press("comma"), "the one before that which is seen"
    assert "step 12,524" in person.press("f"), "the newest, at once"


class Watched:
    """A live run whose timeline is open, and what the screen says of the step."""

    def __init__(self) -> None:
        self.source = FakeSource(replace(live(), timeline=even(12_480)))
        self.person = Sketch(self.source, (80, 24))
        self.person.press("2")

    def see(self, after_s: float, shown: Timeline, **changes: Any) -> str:
        """The line on the step so long after the begin, when this one is the newest."""
        frame = replace(live(), unix_s=live().unix_s + after_s, timeline=shown, **changes)
        self.source.frame = replace(frame, group=replace(frame.group, step_ms_p50=27.0))
        return self.person.text().splitlines()[1]


def even(newest: int, **changes: Any) -> Timeline:
    """A step in which no rank is late."""
    return fake_views.timeline(slow=(), newest=newest, **changes)


def late(newest: int, **changes: Any) -> Timeline:
    """One in which another rank is late, and most of the picture is another one."""
    return fake_views.timeline(slow=(1,), newest=newest, **changes)


def test_a_usual_step_stays_until_one_comes_that_looks_like_it_or_for_half_a_minute() -> None:
    run = Watched()
    for after_s in (1.0, 8.0, 15.0, 29.0):
        line = run.see(after_s, late(12_500))
        assert "step 12,480" in line and f"  {int(after_s)} s ago  " in line
    assert "step 12,508    46.8 ms  newest" in run.see(30.0, late(12_508))
    assert "step 12,508 ▸  46.8 ms  3 s ago" in run.see(33.0, even(12_512))
    assert "step 12,516    46.8 ms  newest" in run.see(33.5, late(12_516))
    assert "step 12,516" in run.see(35.0, late(12_520)), "it is shown for less than two seconds"


def test_a_usual_step_replaces_an_unusual_one_but_not_the_other_way_round() -> None:
    run = Watched()
    assert "step 12,480" in run.see(3.0, even(12_500, step_ms=60.0))
    assert "step 12,480" in run.see(29.0, even(12_500, step_ms=60.0))
    assert "step 12,502" in run.see(30.0, even(12_502, step_ms=60.0)), "all steps may be so by now"
    assert "step 12,504" in run.see(33.0, even(12_504))


def test_in_another_state_of_the_run_another_step_is_shown_at_once() -> None:
    run = Watched()
    assert "step 12,500" in run.see(3.0, even(12_500, step_ms=60.0), straggler=straggler().straggler)
    assert "step 12,504" in run.see(5.0, late(12_504), straggler=straggler().straggler)


def test_the_axis_stays_for_a_step_that_fits_it_and_fills_most_of_it() -> None:
    state = TimelineState().settle_axis(10.0)
    assert state.axis_ms == 11.0
    assert state.settle_axis(11.0) == state.settle_axis(7.8) == state
    assert state.settle_axis(11.5).axis_ms > 12.0 and state.settle_axis(7.0).axis_ms < 8.0


def test_a_frozen_timeline_keeps_what_was_seen_and_says_how_old_that_is() -> None:
    run = Watched()
    before = run.see(7.0, late(12_500))
    assert "step 12,480" in before and "7 s ago" in before
    run.person.press("space")
    for after_s in (8.0, 60.0):
        assert run.see(after_s, even(12_516)) == before
    run.person.press("space")
    assert "step 12,516" in run.see(60.0, even(12_516))


def picked(step: int, newest: int) -> Timeline:
    """An even step that was picked, when another one is the newest."""
    return even(newest, want=TimelineRequest(step))


def test_until_a_picked_step_comes_the_one_before_stays_and_no_step_is_called_lost() -> None:
    run = Watched()
    run.see(1.0, late(12_500))
    pressed = run.person.press("comma")
    assert "step 12,480" in pressed and "step 12,476 comes" in pressed and "not kept" not in pressed
    assert "step 12,476 ▸  26.6 ms   held " in run.see(1.2, picked(12_476, 12_504))
    pressed = run.person.press("comma")
    assert "step 12,476" in pressed and "not kept" not in pressed


def test_a_step_that_was_picked_is_not_the_newest_until_that_comes() -> None:
    run = Watched()
    run.person.press("comma")
    run.see(1.0, picked(12_476, 12_500))
    pressed = run.person.press("f")
    assert "step 12,476" in pressed and " held " in pressed and "newest" not in pressed
    assert "step 12,504 " in (line := run.see(1.2, late(12_504))) and "newest" in line


def test_in_a_frozen_frame_a_picked_step_is_asked_for_and_not_called_lost() -> None:
    run = Watched()
    run.person.press("space")
    pressed = run.person.press("comma")
    assert "the frozen frame has this step only: press space for step 12,476" in pressed
    run.see(1.0, picked(12_476, 12_500))
    assert "step 12,476 ▸" in run.person.press("space")


def test_a_held_step_is_of_the_restart_in_which_it_was_seen() -> None:
    run = Watched()
    run.person.press("comma")
    held = run.see(1.0, picked(12_476, 12_500))
    restarted = replace(live().group, incarnation=1, step=40)
    after = run.see(9.0, even(40), group=restarted)
    assert "step 12,476" in held and "step 12,476" in after
    assert "restart" not in after and "ago" not in after
    assert "restart 1" in run.person.press("f").splitlines()[1]


@pytest.mark.parametrize(("behind", "words"), [(16, "newest"), (5_000, "5,000 steps ago")])
def test_the_newest_step_with_its_buckets_may_be_old(behind: int, words: str) -> None:
    run = Watched()
    group = replace(live().group, step=12_508 + behind, steps_per_s=30.0)
    line = run.see(40.0, even(12_508), group=group)
    assert "step 12,508" in line and "newest" in line and words in line
    assert ("ago" in line) == (words != "newest")


def test_a_timeline_that_is_opened_while_frozen_has_the_step_of_that_moment() -> None:
    run = Watched()
    run.see(1.0, even(12_480))
    run.person.press("1")
    run.see(1.5, late(12_500))
    run.person.press("space")
    run.see(1.9, late(12_508))
    line = run.person.press("2").splitlines()[1]
    assert "step 12,500" in line and "newest" in line


def test_in_a_recording_each_step_is_shown() -> None:
    assert watched(replayed=True)[1] == [12_480 + 4 * quarter for quarter in range(12)]
