"""On small terminals nothing is untrue, and no sentence ends in the middle of a word or of a figure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.frames.activity import EpochProgress, LongActivity
from ddptop.frames.frame import Frame, LoggedEvent, Suspect
from ddptop.frames.phrases import death_phrase
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import NO_RANK_FLAGGED, step_line, verdict
from ddptop.render.plain import draw_frame
from ddptop.render.text import cut_at_word, text_width, wrap_lines
from ddptop.render.trouble import trouble_brief
from ddptop.tui.scene import Place, Scene
from ddptop.tui.views import why
from ddptop.tui.views.overview import draw_verdict, verdict_height
from ddptop.tui.views.why import draw_waits
from tests.frames.ledgers import ledger
from tests.tui.drive import Sketch, sketch
from tests.tui.fake import (
    CASES,
    FakeSource,
    live,
    loading_data,
    lost,
    many,
    replay,
    saving,
    several,
    stale,
    straggler,
    waiting,
)
from tests.tui.fake_hosts import silent, slow_rank
from tests.tui.fake_views import WantedSource, told
from tests.tui.gallery import SIZES, WORLDS, frame_of, lines_of
from tests.tui.pages import place_at
from tests.tui.troubles import died, drifting, mismatch, missing

if TYPE_CHECKING:
    from collections.abc import Callable


def test_the_last_line_that_fits_says_that_there_is_more() -> None:
    text = "rank 1 came last, 20.3 ms after the first"
    assert (
        wrap_lines(text, 20, 3) == wrap_lines(text, 20) == ["rank 1 came last,", "20.3 ms after the", "first"]
    )
    assert wrap_lines(text, 20, 2) == ["rank 1 came last,", "20.3 ms after the …"]
    assert wrap_lines("round trip 0.08 ms", 14, 1) == ["round trip …"]
    assert [text_width(line) <= 17 for line in wrap_lines(text, 17, 1)] == [True]
    assert wrap_lines(text, 17, 1)[0].endswith("…")
    assert wrap_lines(text, 20, 0) == []


def test_the_title_of_the_largest_losses_is_whole_on_a_narrow_page() -> None:
    assert "Without its largest losses" in map(str, lines_of("healthy", "bill", "30x6"))
    assert "What the run would take without its largest losses" in map(
        str, lines_of("healthy", "bill", "80x24")
    )


def test_a_long_name_leaves_room_for_what_is_the_matter_with_the_host() -> None:
    frame = silent(3, 4)
    assert sketch(FakeSource(frame), (30, 6)).splitlines()[1] == "▲ host gpu-002 is unreachable"
    shown = verdict(frame)
    for state in ("is unreachable", "is lost"):
        name = "a-very-long-name-of-a-machine-017"
        there = replace(shown, sentence=f"LOST · host {name} {state}: last message 12 s ago")
        brief = trouble_brief(there, 28)
        assert brief.startswith("host …") and brief.endswith(f"017 {state}") and text_width(brief) <= 28
    for name, width, expected in (
        ("node2", 45, "host node2 is unreachable: ranks 4-7, last"),
        ("node2", 28, "host node2 is unreachable"),
        ("gpu-002.cluster.example", 28, "host gpu-002 is unreachable"),
        ("10.0.0.12", 23, "host …12 is unreachable"),
    ):
        sentence = f"UNREACHABLE · host {name} is unreachable: ranks 4-7, last at step 120"
        assert trouble_brief(replace(shown, sentence=sentence), width) == expected


@pytest.mark.parametrize("width", [160, 80, 67, 50, 40, 30])
@pytest.mark.parametrize("view", ["1", "8"])
def test_a_tally_ends_with_a_whole_clause(view: str, width: int) -> None:
    whole, *cut = (
        next(
            line for line in sketch(FakeSource(silent(64, 8)), (wide, 24), view).splitlines() if "── " in line
        )
        for wide in (200, width)
    )
    whole, cut = whole.partition("┬")[0], [line.partition("┬")[0] for line in cut]
    clauses = whole.strip("─ ").split(" · ")
    assert cut[0].strip("─ ").split(" · ")[1:] == clauses[1 : 1 + cut[0].count(" · ")]
    assert "1 host unreachable" in clauses and "1 lost" in clauses


def test_hosts_of_ranks_that_have_not_reported_are_not_listed_as_live() -> None:
    lines = sketch(FakeSource(waiting()), (50, 24), "8").splitlines()
    assert "1 host ─" in lines[1]
    assert [line for line in lines if "live" in line and "–  " in line[:6]] == []


def test_what_is_known_of_a_host_is_not_cut_in_a_figure() -> None:
    lines = sketch(FakeSource(slow_rank(3, 4)), (50, 24), "8").splitlines()
    words, ranks = lines.index("─" * 50), next(i for i, line in enumerate(lines) if "ranks of gpu" in line)
    assert ranks == words + 5
    for line in lines[words + 2 : ranks]:
        assert not line.rstrip()[-1:].isdigit(), line
    frame = slow_rank(3, 4)
    unread = [replace(host, cpu_pct=None, memory_bytes=None, received_bytes_s=None) for host in frame.hosts]
    assert "not known" in sketch(FakeSource(replace(frame, hosts=tuple(unread))), (50, 24), "8")


def test_a_stall_page_makes_no_promise_about_silent_hosts() -> None:
    text = sketch(FakeSource(silent(3, 4)), (80, 24), "7")
    assert "nothing comes from 1 host: of its ranks nothing can be said" in text
    assert "nothing is stalled" not in text


WHY = {
    "silent": (silent(3, 4), "hosts", None),
    "stalled": (many(64 * 64), "rank", 2050),
    "lost": (lost(), "rank", 2),
}


@pytest.mark.parametrize("case", WHY)
def test_why_opens_what_the_verdict_is_about(case: str) -> None:
    frame, view, rank = WHY[case]
    person = Sketch(FakeSource(frame), (80, 24))
    person.press("w")
    assert person.place.view == view
    assert rank is None or person.place.rank == rank


def test_wrong_numbers_come_with_what_to_try() -> None:
    frame = drifting()
    assert verdict(frame).kind == "nan"
    assert "  try: look at the batch of step 57 on rank 2\n" in sketch(FakeSource(frame), (80, 24))
    apart = replace(frame, alerts=tuple(alert for alert in frame.alerts if alert.kind == "loss_spread"))
    assert "  try: compare the batches of the ranks" in sketch(FakeSource(apart), (80, 24))
    assert "  try: Look at the batch of step 57" in draw_frame(frame, 80)


def test_hosts_side_by_side_differ() -> None:
    for width in (50, 30):
        lines = sketch(FakeSource(slow_rank(3, 4)), (width, 24), "c", "down", "c").splitlines()
        host = next(line for line in lines if line.strip().startswith("host"))
        assert host.split()[1:] == (["gpu-001", "gpu-000"] if width == 50 else ["…-001", "…-000"])


def test_a_state_is_a_word_or_its_sign_and_no_part_of_a_word() -> None:
    lines = sketch(FakeSource(missing()), (30, 24), "c", "down", "c").splitlines()
    state = next(line for line in lines if line.strip().startswith("state"))
    assert state.split()[1:] == ["■", "○"]


def test_what_to_try_ends_with_a_clause() -> None:
    for size in ((67, 19), (50, 24)):
        lines = sketch(FakeSource(slow_rank(3, 4)), size).splitlines()
        line = next(line for line in lines if "try:" in line)
        assert line.split()[-1] in ("num_workers", "6", "…"), line


def test_since_when_a_rank_is_slow_is_whole() -> None:
    text = sketch(FakeSource(straggler()), (50, 24), "w")
    assert "  data loading +20.3 ms" in text and "data load…" not in text


def test_an_event_in_full_says_nothing_twice() -> None:
    frame, message = straggler(), "rank 1 became slow: data loading (step 11,902)"
    text = sketch(FakeSource(frame), (80, 24), "5")
    assert text.count(message) == 2, "in the alerts and in the events"
    assert "rank 1 takes 20.3 ±0.1 ms longer" in text and "try: speed up the data loading" in text
    many = replace(frame, events=frame.events * 6)
    assert f"12:30:40, 27 s ago · {message}" in sketch(FakeSource(many), (80, 24), "5").splitlines()


def test_an_alert_on_a_narrow_screen_has_its_age_alone() -> None:
    lines = sketch(FakeSource(several()), (30, 6), "5").splitlines()
    assert lines[2].startswith("▸ ▲ 27 s  rank 1 became slow")


def test_a_legend_of_buckets_names_the_columns_that_are_there() -> None:
    source = WantedSource(straggler())
    narrow, wide = (sketch(source, size, "3") for size in ((50, 24), (80, 24)))
    assert "best%" not in narrow and wide.count("best%") == 2
    assert "busbw: GB/s" in narrow


def test_the_devices_of_a_host_are_those_of_all_its_ranks() -> None:
    frame = told()
    assert "cuda:0-1" in sketch(FakeSource(frame), (80, 24), "6")
    ranks = frame.ranks
    other = replace(frame, ranks=replace(ranks, device=tuple("cpu" for _ in ranks.device)))
    text = sketch(FakeSource(other), (80, 24), "6")
    assert " cpu " in text and np.isfinite(frame.ranks.step).all()


def test_on_few_lines_a_figure_has_its_sentence() -> None:
    lines = sketch(FakeSource(straggler()), (30, 6), "f1").splitlines()
    assert lines[2].startswith("▸  excess")
    assert lines[3:5] == ["  how much longer the rank", "  takes than the others"]


def test_a_state_explains_itself() -> None:
    text = sketch(FakeSource(straggler()), (80, 24), "f1", "up", "up", "up", "up")
    assert "what the rank does now" in text


@pytest.mark.parametrize(("height", "last"), [(19, "samples there."), (17, "try: speed up …")])
def test_what_to_try_about_a_rank_is_whole_or_ends_with_an_ellipsis(height: int, last: str) -> None:
    person = Sketch(WantedSource(replay()), (67, height))
    lines = person.press("w").splitlines()
    end = lines[-3].strip()  # the replay bar and the keys come below it
    assert (end[:13].rstrip() + " …" if end.endswith("…") else end) == last


def test_a_ledger_that_is_not_known_is_not_one_that_begins() -> None:
    assert "where the time went is not known" in sketch(
        FakeSource(replace(live(), ledger=None)), (80, 24), "9"
    )
    young = replace(waiting(), ledger=None)
    assert "nothing to add up yet" in sketch(FakeSource(young), (80, 24), "9")


@pytest.mark.parametrize("size", [(80, 24), (160, 50), (50, 24)])
def test_how_far_the_epoch_is_stands_above_the_charts(size: tuple[int, int]) -> None:
    frame = replace(live(), progress=EpochProgress(3, 120, 400, 41.0))
    lines = sketch(FakeSource(frame), size).splitlines()
    line = next(line for line in lines if line.removeprefix("├").startswith("── epoch"))
    assert "── epoch 3 · batch 120/400 · 41 s left in it ──" in line
    assert len(line) == size[0]
    assert "epoch" not in sketch(FakeSource(replace(live(), progress=None)), size)


@pytest.mark.parametrize(
    ("world", "view", "size", "expected"),
    [
        ("stall", "overview", "50x24", "step ms 26.6 p50"),
        ("stall", "overview", "67x19", "step ms 26.6 p50 before the stall"),
        ("4,096 ranks", "overview", "50x24", "2050 ■ stalled"),
        ("a silent host", "stall", "50x24", "message 4.3 s ago"),
        ("stall", "compare", "50x24", "── 11 lines below ──"),
        ("stall", "compare", "67x19", "── c changes sides · 15 lines below ──"),
        ("stall", "compare", "30x6", "── compare ─ 28 lines below ──"),
        ("with a bill", "bill", "30x6", "── bill ──── 33 lines below ──"),
    ],
)
def test_a_small_page_names_what_it_shows_in_whole_words(
    world: str, view: str, size: str, expected: str
) -> None:
    assert any(
        str(line).rstrip().endswith(expected) or expected in str(line).split("┃")[0]
        for line in lines_of(world, view, size)
    ), expected


@pytest.mark.parametrize("world", ["straggler", "two stragglers", "without DDP"])
@pytest.mark.parametrize("size", ["50x24", "67x19"])
def test_the_page_of_buckets_has_charts_where_there_is_room(world: str, size: str) -> None:
    text = "\n".join(map(str, lines_of(world, "buckets", size)))
    assert "ms now" in text and "└───" in text


@pytest.mark.parametrize(
    ("world", "view", "size", "expected"),
    [
        ("straggler", "overview", "50x24", "12:30 ▲ rank 1 became slow: data loading"),
        ("straggler", "events", "50x24", "12:30:40 ▲ rank 1 became slow: data loading"),
        ("stall", "events", "50x24", "12:31:05 ■ stall: rank 1 is missing: it has not…"),
        (
            "dead",
            "events",
            "80x24",
            "12:30:55 ■ rank 2 failed: ValueError: shard 7 is empty (data.py:31 read)",
        ),
        ("a silent host", "overview", "80x24", "is unreachable: last message 4 s ago, at…"),
        ("straggler", "timeline", "50x24", "0         20        40 ms     wait transfer"),
        ("healthy", "timeline", "80x24", "● no rank stands out: all within 0.10 ±0.10 ms"),
        ("healthy", "timeline", "50x24", "● no rank stands out: all within 0.10 ±0.10 ms"),
        ("a silent host", "overview", "50x24", "▸     8 ◇ unreachable 4s"),
        ("a silent host", "overview", "160x50", "▸     8 gpu-002 cuda:0 ◇ unreachable 4s"),
        ("3 hosts", "overview", "160x50", "▸ rank 6  20.3 ms  gpu-001   "),
        ("4,096 ranks", "hosts", "80x24", "▸node256 ■ stalled      8/8  2050     0.0"),
        ("dead", "hosts", "50x24", "▸node0 ✗ failed       0/4     2     0.1"),
        ("4,096 ranks", "stall", "160x50", "try: py-spy dump --pid 6360 on node256"),
        ("a silent host", "stall", "67x19", "step ms 46.8 p50 last known"),
        ("replay", "heat", "160x50", "node0  cuda:1  running"),
        ("evaluating", "heat", "160x50", "node0  cuda:0  eval"),
        ("3 hosts", "hosts", "160x50", "parts of the steps of all ranks, newest"),
        ("3 hosts", "timeline", "160x50", "parts of the steps around this one"),
        ("waiting", "rank", "30x6", "  yet"),
        ("4,096 ranks", "run", "160x50", "├── loss and step time"),
        ("stall", "timeline", "50x24", "▪█████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒"),
    ],
)
def test_a_page_shows_its_culprit_its_units_and_whole_words(
    world: str, view: str, size: str, expected: str
) -> None:
    text = "\n".join(str(line).rstrip() for line in lines_of(world, view, size))
    assert expected in text


CUT_EVENTS = {
    ("a silent host", "overview"): ("80x24", "160x50", "67x19", "50x24"),
    ("a silent host", "events"): ("80x24", "160x50", "67x19", "50x24"),
    ("a silent host", "stall"): ("160x50",),
    ("stall", "events"): ("80x24", "160x50", "67x19", "50x24"),
    ("stall", "compare"): ("160x50",),
    ("dead", "events"): ("67x19", "50x24"),
}
"""Pages and sizes at which an event is longer than its line."""


@pytest.mark.parametrize(
    ("world", "view", "size"), [(*page, size) for page, sizes in CUT_EVENTS.items() for size in sizes]
)
def test_an_event_ends_with_a_word(world: str, view: str, size: str) -> None:
    frame = frame_of(world)
    words = {
        word.strip(":,;()") for event in (*frame.events, *frame.alerts) for word in event.message.split()
    }
    text = "\n".join(map(str, lines_of(world, view, size)))
    ends = [event.split()[-1] for event in re.findall(r"\d\d:\d\d:?\d* [▲■●] ([^│\n]*?)…", text)]
    assert ends, text
    assert all(end in words and not end.isdecimal() for end in ends), ends


@pytest.mark.parametrize(("world", "size"), [("stall", (30, 6)), ("dead", (20, 5)), ("stall", (20, 5))])
def test_a_stall_page_that_is_longer_than_the_screen_has_a_sign_of_it(
    world: str, size: tuple[int, int]
) -> None:
    *_, last, _ = sketch(FakeSource(frame_of(world)), size, "7").splitlines()
    assert last.endswith("…")


@pytest.mark.parametrize(
    ("world", "view", "size", "expected"),
    [
        ("dead", "rank", "80x24", "░ other                    1.1     1.2    -0.2"),
        ("start of 64", "hosts", "80x24", "· import of torch  ░ script  ≡ process group  ≈ model  ▒ waits"),
        ("start", "start", "30x6", "1-9    Esc back ? help q quit"),
        ("4,096 ranks", "events", "160x50", "others waited 883.5 rank-minutes for rank 1 in data load"),
        ("start", "overview", "80x24", "▸     3 –     –   ○ missing"),
    ],
)
def test_nothing_of_a_page_is_lost(world: str, view: str, size: str, expected: str) -> None:
    text = "\n".join(map(str, lines_of(world, view, size)))
    assert expected in text and "next ba…" not in text, text


@pytest.mark.parametrize("width", [40, 60, 80, 160])
def test_how_long_the_others_waited_is_a_whole_sentence(width: int) -> None:
    scene = Scene(frame_of("4,096 ranks"), place_at("events"))
    assert "in data loading" in " ".join(str(line).strip() for line in draw_waits(scene, [1], width))


def test_a_rank_that_has_not_reported_is_missing_also_in_a_stall() -> None:
    frame = waiting()
    stalled = replace(frame, run=replace(frame.run, state="stalled"), stall=missing().stall)
    words = {Scene(shown, place_at("overview")).state_word(3) for shown in (frame, stalled, live())}
    assert words == {"missing", "live"}


@pytest.mark.parametrize(("frame", "where"), [(missing(), "train.py:88"), (died(), "data.py:31")])
def test_the_page_of_a_stall_says_where_then_what_and_each_once(frame: Frame, where: str) -> None:
    person = Sketch(FakeSource(frame), (30, 6))
    person.press("7")
    lines = [line.strip() for line in person.text().splitlines()]
    assert where in lines[1], lines
    whole = " ".join(lines[2:-1]).removesuffix("…").rstrip()  # the sign that there is more below
    sentence = frame.stall.sentence if frame.stall is not None else death_phrase(frame.deaths[0])
    assert sentence.startswith(whole), "the sentence, from its begin"
    person.press("end")
    assert "STALLED 17 s  rank" not in person.text() and "DIED" not in person.text()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("world", ["stall", "straggler", "evaluating", "with a bill"])
@pytest.mark.parametrize("view", ["overview", "events", "rank", "stall"])
def test_labels_of_an_axis_are_apart(view: str, world: str, size: str) -> None:
    text = "\n".join(map(str, lines_of(world, view, size)))
    assert not re.search(r":\d\d[─═]?\d\d:\d\d", text), text


def test_without_ddp_the_screen_says_which_phase_is_longer_and_shows_no_empty_column() -> None:
    frame = frame_of("without DDP")
    assert step_line(frame) == "median step 46.8 ms · its forward takes 20.3 ms longer"
    for size, words in (("80x24", "its forward takes 20.3 ms longer"), ("50x24", "late at collectives")):
        text = "\n".join(map(str, lines_of("without DDP", "overview", size)))
        assert words in text and " – " not in text, text
    assert "its forward takes" in "\n".join(map(str, lines_of("without DDP", "why", "80x24")))
    even = replace(frame.ranks, forward_ms=np.full(4, 7.1))
    assert step_line(replace(frame, ranks=even)) == "median step 46.8 ms", "no phase of it is longer"
    several_late = replace(frame.straggler, ranks=(1, 3))
    slow = replace(frame.ranks, data_ms=np.array([1.2, 21.5, 1.2, 21.5]), forward_ms=np.full(4, 7.1))
    shown = step_line(replace(frame, ranks=slow, straggler=several_late))
    assert shown == "median step 46.8 ms · their data loading takes 20.3 ms longer"


def test_the_bars_of_two_ranks_are_two_lines_high_on_a_usual_terminal() -> None:
    def bars(ranks: int) -> int:
        lines = sketch(FakeSource(live(ranks)), (80, 24)).splitlines()
        first = next(row for row, line in enumerate(lines) if "breakdown" in line)
        return next(row for row, line in enumerate(lines) if "optimizer" in line) - first - 1

    assert [bars(ranks) for ranks in (2, 3, 4)] == [4, 3, 4]


def test_on_one_line_the_verdict_has_no_half_of_a_word() -> None:
    shown = {"evaluating": "○ rank 0 is evaluating", "with a bill": "● waiting costs 33% ±3%"}
    for world, line in shown.items():
        assert str(lines_of(world, "overview", "30x6")[1]).rstrip() == line


def test_a_stuck_step_says_in_one_line_who_and_where() -> None:
    assert str(lines_of("stall", "timeline", "30x6")[2]).rstrip() == "■ rank 1 missing · train.py:88"


def test_what_to_try_is_cut_before_the_place_and_not_in_the_middle() -> None:
    shown = {"stall": "find out what holds rank 1", "dead": "fix the ValueError in data.py:31 read"}
    for world, words in shown.items():
        lines = [str(line).strip("▌ ") for line in lines_of(world, "overview", "50x24")]
        assert f"try: {words}" in lines, lines


@pytest.mark.parametrize(
    ("action", "shown"),
    [
        ("Set it to an interface that reaches the other ranks.", "set it to an interface that …"),
        ("Use fewer DataLoader workers (num_workers) or batches.", "use fewer DataLoader workers"),
        ("Let all ranks call the same in the same order.", "let all ranks call the same"),
        ("Find out what holds it: a lock, a worker, or a file.", "find out what holds it: a lock"),
    ],
)
def test_what_to_try_is_cut_where_a_part_of_it_ends(
    monkeypatch: pytest.MonkeyPatch, action: str, shown: str
) -> None:
    monkeypatch.setattr(why, "next_action", lambda frame: action)
    [line] = why.draw_first_action(Scene(frame_of("healthy"), Place()), 37)
    assert str(line).rstrip() == f"try: {shown}"


def test_a_rank_that_evaluates_waits_or_saves_has_one_word_for_it() -> None:
    words = "\n".join(map(str, lines_of("evaluating", "overview", "80x24")))
    assert words.count("○ waiting") == 3 and "waits" not in words
    assert "▤ saving" in "\n".join(map(str, lines_of("with a bill", "overview", "80x24")))


@pytest.mark.parametrize("world", ["without DDP", "healthy", "3 hosts", "64 ranks"])
def test_the_title_of_the_cells_of_ranks_is_whole(world: str) -> None:
    text = "\n".join(map(str, lines_of(world, "overview", "160x50")))
    titles = re.findall(r"(?:step time|excess) ms by (?:host and )?rank", text)
    assert len(titles) == 1, text


def test_pictures_of_the_overview_have_the_parts_that_it_asks_for() -> None:
    lines = [str(line) for line in lines_of("straggler", "overview", "160x50")]
    assert any("of each rank in each step" in line and "last 149 steps" in line for line in lines)


@pytest.mark.parametrize("size", ["80x24", "67x19", "50x24", "30x6"])
def test_no_line_of_the_verdict_is_cut(size: str) -> None:
    width, height = SIZES[size]
    frames = [frame_of(world) for world in WORLDS]
    frames += [make() for make in (*CASES.values(), mismatch, missing, died, drifting)]
    load_data = [replace(frame, ledger=loading_data(frame.run.world_size).ledger) for frame in frames]
    told_kinds = {verdict(frame).kind for frame in load_data if "loads data" in verdict(frame).sentence}
    assert told_kinds == {"data_bound"} <= NO_RANK_FLAGGED
    for frame in frames + load_data:
        lines = draw_verdict(Scene(frame, Place()), width, verdict_height(width, height - 3))
        assert not any("…" in str(line) for line in lines), [str(line) for line in lines]


def test_an_even_run_that_loads_data_for_long_is_told_so_and_what_to_try() -> None:
    for world, who in ((4, "every rank"), (1, "the rank")):
        frame = loading_data(world)
        shown = verdict(frame)
        assert shown.line() == f"▲ {who} loads data for 39% of step time"
        no_rank = "one rank" if world == 1 else "no rank is slow · waiting costs 0% of step time"
        assert shown.detail.startswith(no_rank) and " · median step 41.6 ms" in shown.detail
        assert next_action(frame).startswith("More DataLoader workers")
        assert "try: More DataLoader workers" in draw_frame(frame, 80)
    for size, words in (
        ("80x24", "more DataLoader workers (num_workers"),
        ("50x24", "more DataLoader workers"),
    ):
        text = "\n".join(map(str, lines_of("loads data", "overview", size)[1:5]))
        assert "no rank is slow" in text and "every rank loads data for 39% of step time" in text, text
        assert f"try: {words}" in text, text
    figures = "median step 41.6 ms · 41.4 without waiting · 38.5 if communication were hidden too"
    wide = draw_verdict(Scene(loading_data(), Place()), 145, 3)
    assert "loads data for 39% of step time" in str(wide[0])
    assert f"no rank is slow · waiting costs 0% of step time · {figures}" in str(wide[1])
    assert "waiting costs 0% of step time · median step" in str(
        lines_of("loads data", "overview", "80x24")[2]
    )
    few = loading_data(more_ms=1.0)
    frame = loading_data()
    assert frame.ledger is not None
    one_does_not = ledger(elapsed_s=100.0, data=[2.9, 39.0, 39.0, 39.0])
    first_steps = replace(frame.ledger, run=replace(frame.ledger.run, steps=63))
    others = (replace(frame, ledger=of_frame) for of_frame in (one_does_not, first_steps, None))
    for frame in (live(), few, *others):
        assert verdict(frame).detail.startswith("median step") and not next_action(frame)


def test_in_an_evaluation_no_bar_says_what_waiting_costs_and_no_comma_parts_clauses() -> None:
    lines = [str(line).strip("▌ ") for line in lines_of("evaluating", "overview", "80x24")[1:4]]
    assert lines[1:] == ["evaluating usually takes 17 s · last complete step 12,480", "median step 26.6 ms"]


def test_a_stall_is_in_the_step_after_the_last_complete_one_on_every_page() -> None:
    for view in ("overview", "timeline", "stall"):
        text = "\n".join(map(str, lines_of("stall", view, "80x24")))
        assert "step 12,481" in text and "complete step 12,481" not in text
    assert "last complete step 12,480" in "\n".join(map(str, lines_of("stall", "timeline", "80x24")))


@pytest.mark.parametrize(
    ("size", "line"),
    [((30, 6), "▲ data loading takes 39%"), ((60, 6), "▲ every rank loads data for 39% of step time")],
)
def test_one_line_names_the_loss_that_all_ranks_share(size: tuple[int, int], line: str) -> None:
    assert sketch(FakeSource(loading_data()), size).splitlines()[1] == line


def test_one_line_names_the_verdict_where_it_is_about_a_rank_or_about_waiting() -> None:
    frame, waits = loading_data(), saving()
    costs = waits.ledger
    assert costs is not None
    data_s = costs.ranks.data_s + 0.2 * costs.elapsed_s
    step = frame.group.step
    ended = LoggedEvent(frame.unix_s, "straggler_end", "info", 1, step, "rank 1 is no longer slow")
    shown = {
        "waiting costs 33%": replace(waits, ledger=replace(costs, ranks=replace(costs.ranks, data_s=data_s))),
        "rank 1 was the slowest in 6 of 8 steps": replace(
            frame, suspect=Suspect(1, 9.0, 0.1, 6, 8, "every_step")
        ),
        ended.message: replace(frame, events=(*frame.events, ended)),
    }
    assert [verdict(frame).kind for frame in shown.values()] == ["uneven", "suspect", "recovered"]
    for words, frame in shown.items():
        assert "every rank loads data for" in verdict(frame).detail
        for size in ((60, 6), (80, 6)):
            line = sketch(FakeSource(frame), size).splitlines()[1]
            assert words in line and "loads data" not in line


def test_no_bar_of_a_cost_stands_beside_another_loss() -> None:
    assert "█" not in sketch(FakeSource(loading_data()), (80, 24)).splitlines()[2]


def test_a_wide_screen_of_few_lines_has_room_for_its_panel_or_has_none() -> None:
    for height in range(3, 14):
        for make in (live, many):
            lines = sketch(FakeSource(make()), (140, height)).splitlines()
            assert len(lines) == height and (height > 6 or "by host" not in lines[2])


@pytest.mark.parametrize("view", ["timeline", "buckets", "heat", "bill", "rank", "compare"])
def test_a_page_without_a_step_says_why_there_is_none(view: str) -> None:
    for world, words in (
        ("waiting", "waiting for ranks 2 and 3"),
        ("start held up", "rank 1 is in train.py:6"),
    ):
        for size in ("80x24", "30x6"):
            if (view, size) in (("bill", "30x6"), ("compare", "30x6"), ("rank", "30x6")):
                continue  # these have more to say than they have lines
            assert words in "\n".join(map(str, lines_of(world, view, size))), (world, size)


def test_what_a_figure_says_ends_with_a_clause() -> None:
    text = sketch(FakeSource(straggler()), (80, 24), "f1")
    lines = text.splitlines()[2:15]
    assert not any(line.endswith("…") for line in lines)
    assert "as the rank reports at its start" in text and "by its last message and its exit" in text


def test_a_rank_that_has_finished_is_in_no_phase() -> None:
    assert "in backward" not in "\n".join(map(str, lines_of("finished", "rank", "80x24")))
    assert "in backward" in "\n".join(map(str, lines_of("dead", "rank", "80x24")))


def used(**seconds: float) -> Frame:
    """An even run of which every rank has spent 100 s of step time so."""
    frame = live()
    of_ranks = {name: [of_rank_s] * 4 for name, of_rank_s in seconds.items()}
    return replace(frame, ledger=ledger(elapsed_s=100.0, **of_ranks))


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (
            used(forward=20.0, own_backward=40.0, optimizer=11.0, transfer=24.0, between=5.0),
            "computes for 71%",
        ),
        (used(forward=20.0, own_backward=40.0, transfer=40.0), "transfers gradients for 40%"),
        (used(forward=20.0, own_backward=20.0, transfer=10.0, between=50.0), ""),
        (used(forward=30.0, own_backward=60.0), ""),  # the rest is not known
        (used(forward=15.0, own_backward=25.0, between=10.0, evaluation=50.0), "computes for 80%"),
    ],
)
def test_an_even_run_says_what_its_time_goes_to(frame: Frame, words: str) -> None:
    detail = verdict(frame).detail
    begin = f"every rank {words} of step time · " if words else ""
    assert detail.startswith(f"{begin}median step 26.6 ms")
    if not words:
        assert "every rank" not in detail
    else:
        shown = sketch(FakeSource(frame), (80, 24)).splitlines()
        assert shown[2].startswith(f"▌  every rank {words} of step time")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("view", ["overview", "buckets", "stall", "run"])
def test_no_chart_has_dots_that_its_title_does_not_explain(view: str, size: str) -> None:
    text = "\n".join(map(str, lines_of("steps left out", view, size)))
    assert ("····" not in text) or "left out" in text.replace("steps that were left out", "")


def test_names_of_two_compared_ranks_have_their_unit_only_where_it_fits() -> None:
    assert "  own time " in "\n".join(map(str, lines_of("healthy", "compare", "30x6")))
    assert "  own time ms " in "\n".join(map(str, lines_of("healthy", "compare", "80x24")))


def test_the_stall_page_of_a_run_that_stands_still_does_not_say_what_it_would_show() -> None:
    says = "When a run makes no progress"
    for world, is_said in (("healthy", True), ("4,096 ranks", False)):
        assert any(says in str(line) for line in lines_of(world, "stall", "80x24")) == is_said


def test_the_bill_of_a_run_without_ddp_says_why_nobody_waited() -> None:
    text = "\n".join(map(str, lines_of("without DDP", "bill", "160x50")))
    assert "no DDP model (FSDP2): waiting is in the classes on the left" in text


def test_a_message_is_cut_after_a_place_but_not_after_a_figure() -> None:
    assert cut_at_word("rank 1 is in train.py:6 preprocess_dataset", 30) == "rank 1 is in train.py:6…"
    assert cut_at_word("it waits since step 12,480 for rank 1", 28) == "it waits since step…"


@pytest.mark.parametrize("size", [(80, 24), (67, 19), (50, 24)])
@pytest.mark.parametrize(
    ("age_s", "expected"), [(4.2, "4s"), (12.9, "12s"), (99.0, "99s"), (130.0, "2m"), (9_000.0, "2h")]
)
def test_a_stale_rank_has_the_age_of_its_last_update_beside_it(
    age_s: float, expected: str, size: tuple[int, int]
) -> None:
    frame = stale()
    ages_ms = np.where(np.array(frame.ranks.state) == "stale", age_s * 1e3, frame.ranks.age_ms)
    frame = replace(frame, ranks=replace(frame.ranks, age_ms=ages_ms))
    assert f"◌ stale {expected} " in sketch(FakeSource(frame), size)
    assert f" stale {expected} " in draw_frame(frame, size[0])


@pytest.mark.parametrize(("case", "sign"), [(stale, "◌"), (missing, "■")])
def test_a_rank_that_a_signal_has_stopped_says_so_in_its_row(case: Callable[[], Frame], sign: str) -> None:
    frame = case()
    if frame.stall is None:
        frame = replace(frame, activities=(LongActivity("stopped", "", (3,), frame.unix_s - 12),))
    else:
        positions = tuple(
            replace(position, process="stopped" if position.rank == 1 else position.process)
            for position in frame.stall.positions
        )
        frame = replace(frame, stall=replace(frame.stall, positions=positions))
    assert f"{sign} stopped " in sketch(FakeSource(frame), (80, 24))
    assert " stopped " in draw_frame(frame, 80)


@pytest.mark.parametrize("size", ["80x24", "67x19", "50x24"])
@pytest.mark.parametrize("view", ["overview", "buckets", "rank", "hosts", "compare"])
def test_a_page_says_of_which_steps_its_times_are(view: str, size: str) -> None:
    """Those of buckets are only of the steps with bucket detail."""
    words = "timed steps of last 100: wait" if view == "buckets" else "last 100 steps"
    assert words in " ".join(str(line).strip() for line in lines_of("straggler", view, size))


def test_what_a_chart_spans_is_not_said_of_the_figure_in_its_title() -> None:
    lines = [str(line) for line in lines_of("straggler", "buckets", "80x24")]
    assert any(line.startswith("busbw GB/s 11.42 now · axis: whole run") for line in lines)
    text = "\n".join(map(str, lines_of("straggler", "bill", "160x50")))
    assert "ms now ▒ wait" in text and "axis: whole run" in text


@pytest.mark.parametrize("world", ["stall", "dead"])
@pytest.mark.parametrize("size", ["80x24", "67x19", "50x24"])
def test_the_parts_of_a_step_are_whole_or_counted_below_a_stack(world: str, size: str) -> None:
    lines = [str(line).rstrip() for line in lines_of(world, "rank", size)]
    heads = [index for index, line in enumerate(lines) if line.startswith("ms, last 100 steps")]
    for head in heads:
        assert any("other " in line or "more parts" in line for line in lines[head + 1 :])


def test_no_page_names_waiting_that_is_not_timed() -> None:
    assert not any("▒ waiting" in str(line) for line in lines_of("without DDP", "hosts", "160x50"))
