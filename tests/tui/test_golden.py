"""Whole screens as text. Read `golden/*.txt` in a diff; `UPDATE_GOLDEN=1` rewrites them."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from ddptop.frames.frame import Alert, Frame, LoggedEvent
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import LONG_WAIT_S, run_state, verdict
from ddptop.protocol.vocabulary import Basis
from ddptop.render.context import RenderContext
from ddptop.render.plain import draw_frame, watch_line
from ddptop.render.text import text_width
from ddptop.render.trouble import trouble_brief
from ddptop.tui.scene import Scene
from ddptop.tui.views.overview import EDGE, draw_verdict
from tests.frames.ledgers import checkpoints
from tests.tui import gallery
from tests.tui.drive import Sketch, screen, sketch
from tests.tui.fake import CASES, FakeSource, live, lost, nobody, out_of_reach, replay, saving, straggler
from tests.tui.fake_hosts import silent, spread
from tests.tui.fake_start import held_up
from tests.tui.fake_views import WantedSource
from tests.tui.gallery import WORLDS
from tests.tui.pages import place_at
from tests.tui.screens import check, unboxed
from tests.tui.troubles import died, drifting, hostile, mismatch, missing, stalled_in_replay

SIZES = {"80x24": (80, 24), "160x50": (160, 50), "50x24": (50, 24)}

TINY = {"30x6": (30, 6), "20x5": (20, 5)}

TROUBLES = {
    "missing": missing,
    "mismatch": mismatch,
    "died": died,
    "hostile": hostile,
    "stalled replay": stalled_in_replay,
}

VIEWS = {
    "buckets": ("3",),
    "events": ("5",),
    "stall": ("7",),
    "rank": ("down", "enter"),
    "help": ("question_mark",),
}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("straggler", "replay")])
def test_overview(case: str, size: str) -> None:
    check(f"overview-{case}-{size}", sketch(FakeSource(CASES[case]()), SIZES[size]))


def test_on_a_low_page_all_ranks_come_before_a_chart() -> None:
    lines = sketch(FakeSource(live(8)), (67, 19)).splitlines()
    assert sum("● live" in line for line in lines) == 8
    assert not any(line.startswith("loss") for line in lines)
    assert any(line.startswith("loss") for line in sketch(FakeSource(live(8)), (80, 24)).splitlines())


def test_a_stale_run_keeps_its_straggler_and_has_one_age() -> None:
    lines = sketch(FakeSource(out_of_reach()), (160, 50)).splitlines()
    known = verdict(straggler()).sentence
    assert lines[2].strip("▌ ") == f"last known: {known}" and " costs " in known
    assert lines[3].strip("▌ ").startswith("try: check with top if the collector or the ranks are stopped")
    ages = [line for line in lines if re.search(r"\d\.\d s\b|stale \d", line)]
    assert ages == lines[:2] and "STALE 4.3 s" in ages[0] and "4.3 s ago" in ages[1], ages


@pytest.mark.parametrize("size", {**SIZES, "30x6": TINY["30x6"]})
def test_bill(size: str) -> None:
    frame = replace(live(3), ledger=checkpoints())
    area = {**SIZES, **TINY}[size]
    check(f"bill-{size}", sketch(FakeSource(frame), area, "9"))


@pytest.mark.parametrize("size", SIZES)
def test_help(size: str) -> None:
    check(f"help-{size}", sketch(FakeSource(CASES["straggler"]()), SIZES[size], "question_mark"))


STATES = {"live": straggler, "stale": out_of_reach, "stalled": missing, "replay": replay, "paused": straggler}

PAGES = {
    "overview": ("1",),
    "timeline": ("2",),
    "buckets": ("3",),
    "heat": ("4",),
    "events": ("5",),
    "run": ("6",),
    "stall": ("7",),
    "rank": ("enter",),
    "compare": ("c", "down", "c"),
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_in_every_state_and_size(page: str, state: str) -> None:
    screens = [f"{size}\n{_page(page, state, area)}" for size, area in SIZES.items()]
    check(f"{page}-{state}", "\n".join(screens))


@pytest.mark.parametrize("page", [*PAGES, "help"])
def test_every_page_survives_the_smallest_terminals(page: str) -> None:
    screens = [f"{size}\n{_page(page, 'live', area)}" for size, area in TINY.items()]
    check(f"{page}-tiny", "\n".join(screens))
    for state, sign in (("stale", "◌"), ("stalled", "■"), ("replay", "▶"), ("paused", "‖")):
        for columns, rows in TINY.values():
            lines = _page(page, state, (columns, rows)).splitlines()
            assert len(lines) == rows
            assert sign in lines[0], "the state comes before everything else"
            assert max(map(text_width, lines)) <= columns


OTHER_LAYOUTS = ("straggler", "with a bill", "stall", "dead", "waiting", "replay", "64 ranks", "3 hosts")
"""Worlds whose pages have other parts than those of the others, which are slow tests."""


@pytest.mark.parametrize(
    "state",
    [pytest.param(state, marks=() if state in OTHER_LAYOUTS else pytest.mark.slow) for state in WORLDS],
)
def test_every_page_in_every_state_fits_every_size_in_letters_and_in_ascii(state: str) -> None:
    for view, (size, (width, height)), plain in product(gallery.PAGES, gallery.SIZES.items(), (False, True)):
        if plain and size not in ("80x24", "30x6"):
            continue
        lines = gallery.lines_of(state, view, size, plain)
        assert len(lines) == height, (view, size)
        assert max(line.width for line in lines) <= width, (view, size)
        assert not plain or "".join(map(str, lines)).isascii(), (view, size)


def test_a_page_of_the_gallery_has_a_picture_of_every_state_and_loads_nothing() -> None:
    assert {size for _, size, _ in gallery.names()} == set(gallery.SIZES)
    assert {colours for *_, colours in gallery.names()} == {
        "dark", "light", "contrast", "cvd", "no-color", "ascii",
    }  # fmt: skip
    for colours in ("light", "no-color", "ascii"):
        text = gallery.page("overview", "50x24", colours)
        assert text.count("<svg ") == len(WORLDS)
        assert set(re.findall(r"https?://[^\"]+", text)) == {"http://www.w3.org/2000/svg"}


def _page(page: str, state: str, size: tuple[int, int]) -> str:
    person = Sketch(WantedSource(STATES[state]()), size)
    person.press(*(PAGES[page] if page in PAGES else VIEWS[page]))
    return person.press(*(["space"] if state == "paused" else []))


def test_the_app_shows_what_the_sketch_of_it_does() -> None:
    for keys in ((), ("5", "down"), ("colon", "b", "u", "c"), ("slash", "1")):
        frame = CASES["straggler"]()
        assert screen(FakeSource(frame), (80, 24), *keys) == sketch(FakeSource(frame), (80, 24), *keys)


@pytest.mark.parametrize("size", TINY)
@pytest.mark.parametrize("case", ["straggler", "replay", "lost"])
def test_tiny_terminals_still_tell_the_state(case: str, size: str) -> None:
    check(f"overview-{case}-{size}", sketch(FakeSource(CASES[case]()), TINY[size]))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("case", ["waiting", "unknowns", "lost"])
def test_views_without_figures(case: str, view: str) -> None:
    check(f"{view}-{case}-80x24", sketch(FakeSource(CASES[case]()), (80, 24), *VIEWS[view]))


def test_paused() -> None:
    check("paused-80x24", sketch(FakeSource(CASES["live"]()), (80, 24), "space"))


def test_before_the_first_frame() -> None:
    check("nobody-80x24", sketch(FakeSource(nobody()), (80, 24)))
    check("empty-80x24", sketch(FakeSource(None, "connecting to train-k7qf"), (80, 24)))


def test_ascii() -> None:
    text = sketch(FakeSource(CASES["straggler"]()), (80, 24), ascii_only=True)
    check("overview-straggler-ascii-80x24", text)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", ["missing", "mismatch", "died"])
def test_stalls_and_deaths(case: str, size: str) -> None:
    check(f"stall-{case}-{size}", sketch(FakeSource(TROUBLES[case]()), SIZES[size], "7"))


@pytest.mark.parametrize("case", ["missing", "died"])
def test_the_overview_says_what_is_wrong_and_which_key_shows_more(case: str) -> None:
    check(f"overview-{case}-80x24", sketch(FakeSource(TROUBLES[case]()), (80, 24)))
    check(f"rank-{case}-80x24", sketch(FakeSource(TROUBLES[case]()), (80, 24), "enter"))


BRIEF = {
    "missing": "■ rank 1 missing · train.py:88",
    "mismatch": "■ rank 2 is in train.py:61",
    "died": "■ rank 2 failed: ValueError",
}


@pytest.mark.parametrize("case", BRIEF)
def test_one_line_says_whom_a_stall_or_an_end_is_due_to(case: str) -> None:
    assert sketch(FakeSource(TROUBLES[case]()), (30, 6)).splitlines()[1] == BRIEF[case]
    assert "train.py:88 tokenize" in trouble_brief(verdict(missing()), 40)
    assert trouble_brief(verdict(missing()), 26) == "rank 1 is in train.py:88"
    assert trouble_brief(verdict(missing()), 20) == "rank 1 is missing"
    killed = replace(verdict(died()), sentence="FAILED · rank 2 was killed by SIGKILL at step 772 (oom?)")
    assert trouble_brief(killed, 28) == "rank 2 was killed by SIGKILL"


OUT_OF_MEMORY = (
    "failed: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.0 GiB (train.py:88 load)"
)


@pytest.mark.parametrize(
    ("exit_text", "expected"),
    [
        (f"rank 2 {OUT_OF_MEMORY}", "rank 2: OutOfMemoryError"),
        (f"rank 4,095 {OUT_OF_MEMORY}", "rank 4,095: OutOfMemoryError"),
        ("rank 2 failed: KeyboardInterrupt", "rank 2: KeyboardInterrupt"),
        ("rank 4,095 failed: KeyError: 7 (train.py:88 load)", "rank 4,095: KeyError: 7"),
        ("rank 4,095 failed: KeyboardInterrupt", "rank 4,095 failed"),
        ("rank 12 was killed by SIGKILL at step 340 (out of memory?)", "rank 12 killed by SIGKILL"),
        ("rank 4,095 was ended by SIGTERM at step 340", "rank 4,095 ended by SIGTERM"),
        ("rank 2 crashed (SIGSEGV) at step 340", "rank 2 crashed (SIGSEGV)"),
        ("rank 2 crashed (SIGBUS) at step 340 (shared memory full?)", "rank 2 crashed (SIGBUS)"),
        ("rank 4,095 aborted (SIGABRT) at step 340", "rank 4,095 aborted (SIGABRT)"),
        ("rank 2 exited with code 3 at step 340", "rank 2 exited with code 3"),
        ("rank 4,095 exited with code 3 at step 340", "rank 4,095: exit code 3"),
        ("rank 12 exited with code 0 before the end of training", "rank 12 exited with code 0"),
        ("rank 2 lost: its process is gone", "rank 2 lost"),
        ("the launcher reports a failure", "launcher reports a failure"),
    ],
)
def test_one_line_says_how_a_rank_ended(exit_text: str, expected: str) -> None:
    frame = died()
    alerts = (replace(frame.alerts[0], message=exit_text),) if exit_text.startswith("rank") else ()
    assert sketch(FakeSource(replace(frame, alerts=alerts)), (30, 6)).splitlines()[1] == f"■ {expected}"


def test_the_page_of_a_rank_that_has_died_says_how_before_its_figures() -> None:
    for frame, exit_text in ((died(), "ValueError: shard 7 is empty"), (lost(), "its process is gone")):
        assert sketch(FakeSource(frame), (30, 6), "enter").splitlines()[3] == f"■ {exit_text}"
    assert "■ ValueError: shard 7 is empty (exit code 1)\n" in sketch(FakeSource(died()), (50, 24), "enter")
    out = replace(died().deaths[0], reason="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")
    line = sketch(FakeSource(replace(died(), deaths=(out,))), (30, 6), "enter").splitlines()[3]
    assert line == "■ torch.OutOfMemoryError: …"
    assert "■ " not in sketch(FakeSource(lost()), (30, 6), "down", "enter"), "another rank"


@pytest.mark.parametrize("case", ["missing", "died"])
def test_the_foot_does_not_repeat_the_verdict(case: str) -> None:
    frame = TROUBLES[case]()
    told = frame.events[-1].message.removeprefix("stall: ")[:40]
    assert sketch(FakeSource(frame), (80, 24)).count(told) == 1
    later = replace(
        frame, events=(*frame.events, replace(frame.events[-1], kind="process", message="another one"))
    )
    assert "another one" in sketch(FakeSource(later), (80, 24))
    assert frame.events[-1].message in sketch(FakeSource(frame), (220, 50), "5"), "the page of events has all"


def test_the_overview_says_what_to_try() -> None:
    for size in ((80, 24), (67, 19), (50, 24)):
        for case, who in (("straggler", "rank 1"), ("several", "ranks 1 and 3")):
            text = sketch(FakeSource(CASES[case]()), size)
            assert f"  try: speed up the data loading of {who}" in text
            assert "node0, cuda" not in text, "a mount is the host's, not the device's"
            assert text.count("without the slow rank") == 1 or size[0] == 50


def test_a_run_that_was_interrupted_has_nothing_to_mend() -> None:
    deaths = tuple(replace(death, reason="KeyboardInterrupt", signal=None) for death in died().deaths)
    lines = sketch(FakeSource(replace(died(), deaths=deaths)), (80, 24)).splitlines()
    assert "▌  try: start again from the last checkpoint" in lines[2:5]


def seldom_late(basis: Basis = "every_step") -> Frame:
    """Rank 1 loads its data 10 ms too slowly in one step of ten."""
    frame = straggler()
    assert frame.straggler is not None
    late = replace(frame.straggler, pattern="intermittent", last_pct=10.0, lateness_ms=10.0, basis=basis)
    return replace(frame, straggler=late)


class SeldomLate(FakeSource):
    """Gives the single steps with the excess of the slow ones: a rank after the first is late by 3 ms."""

    def focus(self, rank: int | None) -> None:
        """Of any rank."""
        super().focus(rank)
        if self.frame is not None and self.frame.focus is not None:
            excess = (10.0 if rank == 1 else 3.0) * (self.frame.focus.step % 10 == 0)
            self.frame = replace(self.frame, focus=replace(self.frame.focus, excess_ms=excess))


def test_a_rank_that_is_seldom_late_has_its_slow_steps_beside_its_normal_ones() -> None:
    for size in ((80, 24), (160, 50), (50, 24)):
        lines = unboxed(sketch(SeldomLate(seldom_late()), size, "w"))
        at = next(at for at, line in enumerate(lines) if line.startswith("ms, in its steps"))
        assert lines[at].split()[4:7] == ["slow", "normal", "more"]
        assert lines[at + 1].split()[1:5] == ["data", "11.2", "1.2", "+10.0"]
        assert lines[at + 2].split()[1:5] == ["forward", "7.1", "7.1", "0.0"]
        assert not any("medians do not show" in line for line in lines)


def test_so_has_a_second_rank_whose_delay_is_much_smaller() -> None:
    frame = seldom_late()
    assert frame.straggler is not None
    frame = replace(frame, straggler=replace(frame.straggler, ranks=(1, 3)))
    text = sketch(SeldomLate(frame), (80, 24), "down", "enter")
    assert "rank 3" in text.splitlines()[1]
    assert "ms, in its steps" in text and "medians do not show" not in text


def test_medians_beside_a_rank_that_is_seldom_late_say_so_where_its_slow_steps_are_not_known() -> None:
    assert "medians do not show" not in sketch(FakeSource(straggler()), (80, 24), "w")
    for source in (SeldomLate(seldom_late("arrivals")), FakeSource(seldom_late())):
        assert "medians do not show what it loses in 10% of steps" in sketch(source, (80, 24), "w")


def test_since_when_a_rank_is_flagged_is_the_first_event_on_the_overview() -> None:
    frame = straggler()
    newer = LoggedEvent(frame.unix_s - 1, "warning", "warning", 2, 12_470, "rank 2: a warning")
    frame = replace(frame, events=(*frame.events, newer))
    foot = sketch(FakeSource(frame), (80, 24)).splitlines()[-3]
    assert foot.startswith("12:30 ▲ rank 1 became slow: data loading (step 11,902)")
    lines = unboxed(sketch(FakeSource(frame), (160, 50)))
    events = [line[9:] for line in lines if line[2:3] == line[5:6] == ":"]
    assert events[0].startswith("▲ rank 1 became slow") and events[1].startswith("▲ rank 2: a warning")
    assert sum("rank 1 became slow" in line for line in lines) == 1


@pytest.mark.parametrize("case", ["missing", "mismatch", "died", "lost"])
def test_the_page_of_a_stall_says_what_to_try_and_never_that_all_is_well(case: str) -> None:
    text = sketch(FakeSource({**CASES, **TROUBLES}[case]()), (80, 24), "7")
    assert f"  try: {ACTIONS[case]}".lower()[:60] in text.lower()
    assert "nothing is stalled" not in text


def test_what_most_of_the_waiting_is_for_is_said_where_no_rank_is_slow_in_every_step() -> None:
    lines = sketch(FakeSource(saving()), (80, 24)).splitlines()
    assert "most of it for rank 0 saving checkpoints · median step 26.6 ms" in lines[2]
    assert "try: save checkpoints asynchronously: torch.distributed.checkpoint.async_save" in lines[3]
    frame = saving()
    assert frame.ledger is not None
    first, second = frame.ledger.recent.waited_for
    evenly = replace(
        frame.ledger.recent, waited_for=(replace(first, rank_seconds=second.rank_seconds), second)
    )
    frame = replace(frame, ledger=replace(frame.ledger, recent=evenly))
    assert "most of it" not in sketch(FakeSource(frame), (80, 24))
    assert next_action(frame) == ""


@pytest.mark.parametrize(("frame", "role"), [(saving, "text"), (live, "good")])
def test_what_waiting_costs_is_not_green_where_no_rank_is_to_blame(frame, role: str) -> None:
    """As in text and in the report."""
    edge = draw_verdict(Scene(frame(), place_at("overview")), 80, 3)[0]
    assert edge.pieces[0] == (EDGE, role)


def test_a_verdict_takes_one_line_where_a_shorter_cause_makes_it_fit() -> None:
    lines = sketch(FakeSource(CASES["several"]()), (80, 24)).splitlines()
    assert lines[1] == "▌▲ ranks 1 and 3 take 20.3 ±0.1 ms longer in data · 96% of steps · costs 43%"
    assert "longer in data loading ·" in sketch(FakeSource(CASES["several"]()), (160, 50)).splitlines()[1]


def test_an_event_hides_no_label_of_a_time_axis() -> None:
    axis = sketch(FakeSource(straggler()), (84, 24)).splitlines()[-4]
    assert axis.count("12:30┴") == 2 and axis.count("▲") == 2


ACTIONS = {
    "missing": "find out what holds rank 1 in train.py:88 tokenize: a lock, a worker, a file",
    "mismatch": "let all ranks call the same collectives in the same order: see",
    "died": "fix the ValueError in data.py:31 read (rank 2), then resume from a checkpoint",
    "lost": "read the output of rank 2 for the reason",
    "waiting": "read the output of ranks 2 and 3",
    "many": "py-spy dump --pid 6360 on node1025: what is rank 2050 doing?",
    "silent": "run ssh gpu-002.cluster.local uptime to see if it is up; check its network",
}


@pytest.mark.parametrize("case", ACTIONS)
def test_what_to_do_next_about_a_run_that_makes_no_steps(case: str) -> None:
    frame = silent(3, 4) if case == "silent" else {**CASES, **TROUBLES}[case]()
    if case == "waiting":
        frame = replace(frame, run=replace(frame.run, elapsed_s=LONG_WAIT_S))
    assert next_action(frame).lower().startswith(ACTIONS[case].lower())
    for size in ((80, 24), (67, 19), (50, 24)):
        lines = sketch(FakeSource(frame), size).splitlines()
        assert f"  try: {ACTIONS[case]}"[:25] in "\n".join(lines[1:8])
    assert "  try: " in draw_frame(frame, 80)


@pytest.mark.parametrize("case", ["many", "silent"])
def test_the_gravest_matter_comes_first_everywhere(case: str) -> None:
    """A straggler is flagged, too: header, verdict, JSON and both texts have what is lost or stalled."""
    frame = silent(3, 4) if case == "silent" else CASES[case]()
    assert frame.straggler is not None and frame.run.state == "live"
    state, sentence = run_state(frame), verdict(frame).sentence
    assert state == {"silent": "unreachable", "many": "stalled"}[case]
    shown = snapshot(frame)
    assert (shown["run"]["state"], shown["verdict"]["sentence"]) == (state, sentence)
    assert sentence in watch_line(frame) and "slowest" not in watch_line(frame)
    screens = [sketch(FakeSource(frame), size) for size in ((80, 24), (30, 6))]
    assert not any(state.upper() in text.splitlines()[1] for text in screens), "the header says it"
    for text in (draw_frame(frame, 100), *screens):
        head, below, *_ = text.splitlines()
        assert state.upper() in head and "LIVE" not in head
        assert sentence.partition(" · ")[2][:12] in below


def test_only_the_rank_that_it_is_due_to_is_marked() -> None:
    for frame, own, others in ((missing(), "stalled", "waiting"), (died(), "failed", "ended")):
        words = [RenderContext(frame).state_word(rank) for rank in range(4)]
        assert words.count(own) == 1 and words.count(others) == 3
        assert sketch(FakeSource(frame), (80, 24)).count(f"○ {others}") == 3
    lanes = sketch(FakeSource(missing()), (80, 24), "2").splitlines()
    assert [line[:5] for line in lanes if line.endswith("waiting")] == [" r0  ", " r2  ", " r3  "]
    hosts = sketch(FakeSource(spread(died(), 2)), (80, 24), "8")
    assert re.search(r"gpu-001\S* +✗ failed", hosts) and "finished" not in hosts
    alike = [replace(death, reason="ValueError: shard 7 is empty") for death in died().deaths]
    assert RenderContext(replace(died(), deaths=tuple(alike))).responsible == {0, 1, 2, 3}


def test_figures_of_before_a_stall_are_marked_as_old() -> None:
    for case, words in (("missing", "before the stall"), ("died", "before the end")):
        text = sketch(FakeSource(TROUBLES[case]()), (80, 24))
        assert f"┃{words}" in text and f"step ms 26.6 p50 {words}" in text
        assert f"complete steps, {words}" in draw_frame(TROUBLES[case](), 80)
    assert "before" not in sketch(FakeSource(live()), (80, 24)) + draw_frame(live(), 80)
    held = sketch(FakeSource(held_up()), (80, 24))
    assert "STALLED" in held and "before the stall" not in held, "there are no figures yet"


def test_a_narrow_header_has_the_whole_state() -> None:
    frame = replace(died(), source="replay", playback=replay(False).playback)
    frame = replace(frame, run=replace(frame.run, exit_code=-11))
    assert "✗ FAILED exit -11" in sketch(FakeSource(frame), (30, 6)).splitlines()[0]


def test_header_and_table_have_a_loss_that_is_known_to_be_nan() -> None:
    frame = live()
    losses = np.full_like(frame.ranks.loss, np.nan)
    alert = Alert("nan", "critical", None, 57, frame.unix_s, "loss is NaN", {"ranks": len(losses)})
    group, ranks = replace(frame.group, loss_mean=None), replace(frame.ranks, loss=losses)
    header, *rest = sketch(
        FakeSource(replace(frame, group=group, ranks=ranks, alerts=(alert,))), (160, 50)
    ).splitlines()
    assert " loss nan " in header
    assert sum(" nan " in line for line in rest) >= len(losses)


def test_help_explains_every_word_that_is_ours() -> None:
    text = sketch(FakeSource(straggler()), (80, 240), "question_mark")
    for word in (
        "excess",
        "skew",
        "overlapped",
        "if communication were hidden",
        "overhead",
        "records missing",
        "thinned",
    ):
        assert f"{word}: " in text


def axes(lasts_s: float) -> list[list[str]]:
    """The labels of the time axes of the first two charts, in a run that lasts so long."""
    frame = live()
    frame = replace(frame, history=replace(frame.history, time_s=np.linspace(0.0, lasts_s, 12_480)))
    axis = next(line for line in sketch(FakeSource(frame), (80, 24)).splitlines() if line.count("└") == 2)
    return [[label.rstrip("─ ") for label in part.split("┴")[1:]] for part in axis.split("└")[1:]]


def test_charts_have_one_time_axis_until_a_run_is_longer_than_they_look_back() -> None:
    losses, steps = axes(1_500.0)
    assert losses[-2:] == steps[-2:] and len(losses) > 1
    losses, steps = axes(4_000.0)
    assert losses[0] < steps[0] and losses[-1] != steps[-1]


def test_in_ascii_a_sign_has_one_meaning() -> None:
    text = sketch(FakeSource(straggler()), (80, 24), ascii_only=True)
    assert " - " not in text
    charts = text.split("loss 0.4125 mean")[1]
    assert "ww" in charts and "::" in charts, "in bars and charts a w is waiting"


def test_in_one_line_no_figure_lacks_what_it_is_of() -> None:
    for case, line in (("live", "● no rank is slow"), ("waiting", "○ waiting for ranks 2 and 3")):
        assert sketch(FakeSource(CASES[case]()), (30, 6)).splitlines()[1] == line
    uneven = replace(live(), group=replace(live().group, no_straggler_ms=20.0))
    short = "no rank is consistently slow"
    for width, words in ((30, "waiting costs 25%"), (55, f"{short} · waiting costs 25%")):
        assert sketch(FakeSource(uneven), (width, 6)).splitlines()[1] == f"● {words}"
    assert sketch(FakeSource(live()), (40, 6)).splitlines()[1] == "● no rank is slow · waiting costs 0.8%"


def test_key_7_is_named_after_what_it_shows() -> None:
    assert "7 death" in sketch(FakeSource(died()), (80, 24)).splitlines()[-2]
    assert "7 stall" in sketch(FakeSource(missing()), (80, 24)).splitlines()[-2]


def test_charts_have_an_axis_with_eight_ranks_in_80x24() -> None:
    assert (
        sum(line.startswith("   └") for line in sketch(FakeSource(straggler(8)), (80, 24)).splitlines()) == 1
    )


@pytest.mark.parametrize("size", TINY)
def test_tiny_terminals_still_tell_whom_a_stall_is_due_to(size: str) -> None:
    check(f"stall-missing-{size}", sketch(FakeSource(TROUBLES["missing"]()), TINY[size], "7"))


def test_stalls_in_a_recording_in_ascii_and_in_full() -> None:
    check("stall-replay-80x24", sketch(FakeSource(TROUBLES["stalled replay"]()), (80, 24), "7"))
    check("stall-missing-ascii-80x24", sketch(FakeSource(missing()), (80, 24), "7", ascii_only=True))
    check("stall-missing-every-160x50", sketch(FakeSource(missing()), (160, 50), "7", "t"))


def test_many_models_and_late_ranks_and_clocks_that_cannot_tell() -> None:
    for case in ("several", "clock_free"):
        for size in SIZES:
            check(f"buckets-{case}-{size}", sketch(FakeSource(CASES[case]()), SIZES[size], "3"))
    check("rank-clock_free-80x24", sketch(FakeSource(CASES["clock_free"]()), (80, 24), "enter"))


def test_alerts_have_an_age() -> None:
    for size in SIZES:
        check(f"events-drifting-{size}", sketch(FakeSource(drifting()), SIZES[size], "5", "down"))


@pytest.mark.parametrize(
    "keys", [(), ("2",), ("3",), ("4",), ("7", "t"), ("enter",), ("question_mark",), ("space",), ("slash",)]
)
@pytest.mark.parametrize("case", ["unknowns", "replay", "lost", "stale", "hostile", "clock_free"])
def test_ascii_means_ascii_everywhere(case: str, keys: tuple[str, ...]) -> None:
    make = TROUBLES.get(case) or CASES[case]
    assert sketch(FakeSource(make()), (120, 30), *keys, ascii_only=True).isascii()
