"""The painting helpers: figures to text, with answers known by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddptop.frames import numbers
from ddptop.frames.hosts import without_domain
from ddptop.frames.verdict import verdict
from ddptop.render.chart import Axis, Scale, bin_values, join_holes, round_to_ladder
from ddptop.render.line import Line, combine_roles, draw_rule, highlight_matches, join_parts
from ddptop.render.phases import ALL_PARTS, PARTS, PHASES, Breakdown, own_parts, rank_parts, step_parts
from ddptop.render.text import ASCII, clean_text, fit_tail, fit_text, text_width, to_ascii, wrap_lines
from ddptop.tui.lines_widget import changed_spans
from ddptop.tui.scene import Place, Scene, Scroll
from ddptop.tui.views.curve import STACK
from ddptop.tui.views.overview import draw_verdict
from tests.tui.fake import CASES, NAN, column, even_ranks, late_ranks, live


def test_a_cleaned_line_is_one_line_with_its_target() -> None:
    line = Line("a\x1b[2J\n", "dim").add("b", "bad")
    line.target = 3
    cleaned = line.cleaned()
    assert (str(cleaned), cleaned.target) == ("a[2J b", 3)
    assert cleaned.cleaned() is cleaned


def test_a_difference_has_its_sign_but_zero_has_none() -> None:
    assert [numbers.signed(value) for value in (1.25, -0.3, -0.04, 0.04, 0.0)] == [
        "+1.2",
        "-0.3",
        "0.0",
        "0.0",
        "0.0",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (NAN, "–"), (0.0, "0.0"), (12_480.04, "12,480.0"), (-0.1, "-0.1"), (-0.04, "0.0")],
)
def test_fixed(value: float | None, text: str) -> None:
    assert numbers.fixed(value) == text


def test_a_figure_is_the_same_text_whether_numpy_or_python_holds_it() -> None:
    halves = [at / 20 for at in range(1, 400, 2)]
    assert [numbers.fixed(value) for value in np.array(halves)] == [numbers.fixed(value) for value in halves]


def test_shares_errors_and_numbers_of_unknown_size() -> None:
    shares = [numbers.percent(value) for value in (None, NAN, 0.0, 0.04, 0.84, 4.94, 4.96, 43.2)]
    assert shares == ["–", "–", "0%", "0.0%", "0.8%", "4.9%", "5%", "43%"]
    assert numbers.percent(3.2, 0) == "3%"
    assert numbers.bounded(20.3, 0.06) == "20.3 ±0.1"
    assert [numbers.bounded(20.3, None), numbers.bounded(None, 0.1)] == ["20.3", "–"]
    assert [numbers.significant(value) for value in (0.0314159, 12_345_678.0, None)] == [
        "0.03142",
        "1.235e+07",
        "–",
    ]


def test_other_numbers() -> None:
    assert numbers.count(61_204.0) == "61,204"
    assert numbers.count(float("inf")) == "–"
    assert numbers.size(25_165_824) == "25.2 MB"
    assert numbers.loss(1.5e-7) == "1.500e-07"
    assert numbers.duration(4.24) == "4.2 s"
    assert numbers.duration(581) == "9 min 41 s"
    assert numbers.duration(3 * 3600 + 300) == "3 h 05 min"
    assert numbers.counted(1, "rank") == "1 rank"


@pytest.mark.parametrize(
    ("foreign", "safe"),
    [
        ("node0", "node0"),
        ("a\x1b[31mb", "a?[31mb"),
        ("x‮y⁦z", "x?y?z"),
        ("line\r\nnext\tcell", "line??next?cell"),
        ("e\u0301", "é"),
        ("z" + "\u0308" * 40, "z"),
        ("a\u200db", "a?b"),
        ("[red]not markup[/]", "[red]not markup[/]"),
    ],
)
def test_clean(foreign: str, safe: str) -> None:
    assert clean_text(foreign) == safe


def test_wide_characters_are_measured_in_cells() -> None:
    assert text_width("主机-01") == 7
    assert fit_text("主机-01", 6) == "主机-…"
    assert text_width(fit_tail("主机-01主机-02", 8)) == 8
    assert str(Line("主机").add("-01").cut(4)) == "主 …"
    assert clean_text("主机 ±1", ascii_only=True) == "?? +/-1"


def test_ascii_keeps_the_width() -> None:
    assert all(len(plain) == 1 for plain in ASCII.values())
    assert to_ascii("▲ 20.3 ±0.1 ms …") == "^ 20.3 +/-0.1 ms ..."


def test_the_cells_of_a_line_that_changed_are_sent() -> None:
    before = Line("step 1", "dim").add("  ").add("x", "warn").add(" ", "faint")
    assert changed_spans(before, Line("step 2", "dim").add("  ").add("x", "warn"), 20) == [(5, 6)]
    red = Line("step 1", "dim").add("  ").add("x", "bad")
    assert changed_spans(before, red, 20) == [(8, 9)], "its colour"
    assert changed_spans(before, Line("step 1", "dim"), 20) == [(8, 9)], "what went is cleared"
    assert changed_spans(before, Line("主机", "dim"), 20) == [(0, 20)]
    assert changed_spans(before, Line("step 1", ground="cursor"), 20) == [(0, 20)]


def test_a_cell_in_two_shades_of_an_area_is_sent_when_their_edge_has_moved() -> None:
    """In text such a cell is solid, whatever its edge: only the terminal shows it."""
    two_shades = combine_roles("area", "edge")
    assert changed_spans(Line("█▃", two_shades), Line("█▅", two_shades), 20) == [(1, 2)]


def test_no_line_begins_or_ends_with_the_dot_between_clauses() -> None:
    assert wrap_lines("rank 1 · data loading · costs 43%", 8) == ["rank 1", "data", "loading", "costs", "43%"]
    assert wrap_lines("rank 1 · data loading · costs 43%", 9) == ["rank 1", "data", "loading", "costs 43%"]


def test_wrap_and_gather() -> None:
    assert wrap_lines("one two three", 7) == ["one two", "three"]
    assert str(join_parts([Line("ab"), Line(""), Line("cd"), Line("too long"), Line("e")], 8)) == "ab  cd"
    assert draw_rule(20, "4 ranks").width == 20
    for width, rule in (
        (27, "── 4 ranks · live ── all ──"), (26, "── 4 ranks · live ─ all ──"),
        (24, "── 4 ranks ────── all ──"), (18, "── 4 ranks  all ──"), (17, "── 4 ranks ──────"),
    ):  # fmt: skip
        assert str(draw_rule(width, "4 ranks · live", "all")) == rule


def test_bars_share_one_scale_and_the_slowest_fills_it() -> None:
    ranks = even_ranks(2)
    slow = replace(ranks, own_data_ms=column(1.2, 27.8), step_ms=column(26.6, 53.2))
    breakdown = Breakdown(slow)
    assert breakdown.full_ms == 53.2
    assert breakdown.bar(1, 53, False).width == 53
    assert breakdown.bar(0, 53, False).width == 26


def test_bar_of_the_late_rank_is_work_and_of_the_others_waiting() -> None:
    breakdown = Breakdown(late_ranks(2))
    assert str(breakdown.bar(0, 47, True)) == "d" + "F" * 7 + "B" * 11 + "w" * 21 + "ttt" + "oo" + "xx"
    assert str(breakdown.bar(1, 47, True)).count("d") == 22
    assert "w" not in str(breakdown.bar(1, 47, True))


@given(st.floats(0.0, 60.0), st.integers(8, 90), st.booleans())
def test_a_solid_bar_is_exact_to_an_eighth_of_a_cell_and_never_wider_than_its_room(
    late_ms: float, width: int, named: bool
) -> None:
    ranks = even_ranks(2)
    data_ms = column(1.2, 1.2 + late_ms)
    slow = replace(ranks, own_data_ms=data_ms, step_ms=25.4 + data_ms)
    breakdown = Breakdown(slow)
    for rank in (0, 1):
        bar = breakdown.solid_bar(rank, width, False, labelled=ALL_PARTS if named else (), waits_for="1")
        cells = [(sign, role) for text, role in bar.pieces for sign in text]
        assert len(cells) <= width
        last = cells[-1]
        drawn = len(cells) - 1 + ("▏▎▍▌▋▊▉".find(last[0]) + 1 or 8) / 8 if "/" not in last[1] else len(cells)
        exact = float(slow.step_ms[rank]) / breakdown.full_ms * width
        assert abs(drawn - exact) <= 1 / 16 + 1e-9, (drawn, exact)
        data = sum(role.endswith("/data") for _, role in cells)
        assert abs(data - data_ms[rank] / breakdown.full_ms * width) < 1.0


def test_a_bar_names_its_parts_where_they_have_room_and_whom_the_rank_waits_for() -> None:
    breakdown = Breakdown(late_ranks(2))
    assert "waits 20.3 for 1" in str(breakdown.solid_bar(0, 60, False, labelled=ALL_PARTS, waits_for="1"))
    assert "data 21.5" in str(breakdown.solid_bar(1, 60, False, labelled=ALL_PARTS, waits_for="1"))
    narrow = str(breakdown.solid_bar(0, 30, False, labelled=ALL_PARTS, waits_for="1"))
    assert "wait 20.3" in narrow and " for " not in narrow
    assert not any(letter.isdigit() for letter in str(breakdown.solid_bar(0, 60, False)))
    cause_alone = str(breakdown.solid_bar(1, 26, False, labelled={"data"}))
    assert re.findall("[a-z]+ [0-9.]+", cause_alone) == ["data 21.5"]


def test_backward_stays_whole_where_the_exposed_part_is_unknown() -> None:
    phases = np.array([[1, 1], [2, 2], [10, 10], [1, 1], [1, 1]], float)
    parts = step_parts(column(15, 15), phases, column(NAN, 4), column(1, 3))
    assert parts[:, 0].tolist()[:3] == [1, 2, 10]
    assert np.isnan(parts[3:5, 0]).all()
    assert parts[:, 1].tolist() == [1, 2, 6, 3, 1, 1, 1, 0, 0]


@given(
    st.floats(0.1, 1e4),
    st.lists(st.floats(0, 1e4), min_size=5, max_size=5),
    st.floats(0, 1e4) | st.just(NAN),
    st.floats(0, 1e4) | st.just(NAN),
)
def test_the_parts_of_a_step_add_up_to_it(step: float, phases: list[float], bare: float, wait: float) -> None:
    """Whatever the medians of the parts are: they need not be of the same steps."""
    parts = step_parts(column(step), np.array(phases)[:, None], column(bare), column(wait))
    assert np.nansum(parts) == pytest.approx(step)
    assert (np.nan_to_num(parts) >= 0).all()


def test_time_that_no_known_phase_holds_is_marked() -> None:
    ranks = replace(even_ranks(1), optimizer_ms=column(NAN), own_optimizer_ms=column(NAN))
    assert str(Breakdown(ranks).bar(0, 53, True)).endswith("??????")
    assert len({part.glyph for part in PARTS}) == len({part.plain for part in PARTS}) == len(PARTS)


def test_bins() -> None:
    edges = np.array([0, 2, 2, 4])
    values = column(1, 3, NAN, 5)
    assert bin_values(values, edges, "mean")[[0, 2]].tolist() == [2, 5]
    assert np.isnan(bin_values(values, edges, "mean")[1])
    assert bin_values(values, edges, "max")[[0, 2]].tolist() == [3, 5]


def test_bins_stay_where_they_are_as_points_come_in() -> None:
    before = Axis.over_time(column(0.0, 99.0), 60, None)
    after = Axis.over_time(column(0.0, 99.5), 60, None)
    assert before == after
    steps = [round_to_ladder(value) for value in (0.01, 0.06, 0.1, 0.11, 1.7)]
    assert steps == pytest.approx([0.05, 0.0609375, 0.1, 0.1125, 1.7])
    for value in np.geomspace(0.05, 900, 200).tolist():
        assert 32 / 33 <= value / round_to_ladder(value) <= 1, "a chart over a whole run ends at its border"


def test_the_time_axis_stays_for_the_first_minute_and_then_for_some_ten_seconds() -> None:
    """With every new length of a cell the whole curve changes, down to its noise."""
    young = {Axis.over_time(column(0.0, lasts_s), 75, None, grows=True) for lasts_s in (0.5, 9.0, 59.0)}
    assert len(young) == 1
    changed_s, before = [], None
    for lasts_s in np.arange(60.0, 1_800.0, 0.5).tolist():
        axis = Axis.over_time(column(0.0, lasts_s), 75, None, grows=True)
        assert 8 / 9 - 1 / 60 <= lasts_s / (axis.bin_s * axis.columns) <= 1, lasts_s
        if axis != before:
            changed_s, before = [*changed_s, lasts_s], axis
    pauses_s = np.diff(changed_s)
    assert np.quantile(pauses_s, 0.1) >= 5.0 and len(changed_s) < 120, pauses_s
    at_ten_minutes = Axis.over_time(column(0.0, 600.0), 75, None, grows=True)
    assert 600.0 / (at_ten_minutes.bin_s * at_ten_minutes.columns) >= 32 / 33 - 1 / 60, (
        "and then it ends at its border"
    )


def test_gaps_are_drawn_through_only_while_they_are_small() -> None:
    values = column(1, NAN, 3, NAN, 5, *[NAN] * 9, 7)
    filled = join_holes(values)
    assert filled[:5].tolist() == [1, 2, 3, 4, 5]
    assert np.isnan(filled[5:14]).all()


def test_holes_are_small_where_few_values_are_known_around_them() -> None:
    dense, sparse = [1.0] * 20, [*[NAN] * 5, 1.0] * 9
    values = column(*dense, *sparse)
    assert np.isfinite(join_holes(values)).all(), "the first hole is as large as those after it"
    assert np.isnan(join_holes(column(*dense, *[NAN] * 5, *dense))).sum() == 5
    rest = column(*values, *[NAN] * 30)
    for n_begun, n_held in ((len(values) + 10, 10), (len(values) + 30, 0)):
        assert np.isfinite(join_holes(rest, n_begun)).sum() == len(values) + n_held


def test_scales_are_round_and_clip_lone_peaks() -> None:
    assert Scale.around_series(column(0.41, 2.19), zero=False) == Scale(0.4, 2.2)
    assert Scale.around_series(column(*[26.6] * 99, 2_000.0), zero=True).high == 60.0
    assert Scale.around_series(column(5.0), zero=True).low == 0.0
    assert Scale.around_series(column(NAN), zero=True) == Scale(0.0, 1.0)


def test_a_list_scrolls_only_as_far_as_the_cursor_asks() -> None:
    scroll, shown = Scroll().fitted(100, 10)
    assert shown == range(10)
    scroll.cursor = 10
    scroll, shown = scroll.fitted(100, 10)
    assert shown == range(1, 11)
    scroll.cursor = 5
    scroll, shown = scroll.fitted(100, 10)
    assert shown == range(1, 11)
    scroll, shown = scroll.fitted(3, 10)
    assert shown == range(3)
    assert scroll.cursor == 2


def test_a_match_is_marked_across_pieces_and_widens_nothing() -> None:
    line = Line("no").add("de1 ", "dim").add("主机node", "strong")
    line.target = 3
    found = highlight_matches(line.spot(0, 2, "pick"), re.compile("node1?|机"))
    assert found.pieces == [
        ("no", "match"),
        ("de1", "match"),
        (" ", "dim"),
        ("主", "strong"),
        ("机node", "match"),
    ]
    assert (str(found), found.width, found.target, found.spots) == (str(line), line.width, 3, line.spots)
    assert highlight_matches(line, re.compile("x*")).pieces == line.pieces


def test_a_blank_needs_no_colours_of_its_own_unless_it_is_seen() -> None:
    row = Line("  ").add("3", "strong").add(" ").add("live", "good").add(" ").add("17", "good").add(" ")
    assert row.runs() == [("  3 ", "strong"), ("live 17 ", "good")]
    seen = Line(" ").add(" a", "match").add("  ", "match").add(" ").add(" x ", "badge").add(" ")
    assert seen.runs() == [(" ", "text"), (" a  ", "match"), (" ", "text"), (" x ", "badge"), (" ", "text")]
    assert Line().runs() == []


def test_spots_move_with_their_text_and_are_cut_with_it() -> None:
    line = Line("left ").extend(Line("middle").spot(0, 6, "a")).extend(Line("right").spot(1, 4, "b"))
    assert line.spots == ((5, 11, "a"), (12, 15, "b"))
    assert line.cut(8).spots == ((5, 8, "a"),)


@pytest.mark.parametrize(
    ("hosts", "short"),
    [
        (("gpu1.a.b", "gpu2.a.b"), ("gpu1", "gpu2")),
        (("gpu1.a", "gpu1.b"), ("gpu1.a", "gpu1.b")),
        (("10.0.0.1", "11.0.0.2"), ("10.0.0.1", "11.0.0.2")),
        (("", "a"), ("", "a")),
    ],
)
def test_a_domain_is_left_out_where_hosts_stay_apart(hosts: tuple[str, ...], short: tuple[str, ...]) -> None:
    assert without_domain(hosts) == short


def test_parts_from_every_step_add_up_and_the_rest_is_waiting() -> None:
    """Own time by phase, transfer, what was waited in all-reduces, and apart the script's barriers."""
    ranks = late_ranks(4)
    parts = rank_parts(lambda name: getattr(ranks, f"{name}_ms"))
    by_name = dict(zip([*(part.name for part in PARTS), "unknown"], parts, strict=True))
    assert parts.sum(axis=0) == pytest.approx(46.8)
    assert by_name["data"].tolist() == ranks.own_data_ms.tolist()
    assert by_name["backward"].tolist() == ranks.own_backward_ms.tolist()
    assert by_name["other"] == pytest.approx(ranks.other_ms)
    assert by_name["transfer"] == pytest.approx(ranks.exposed_comm_ms - ranks.exposed_wait_ms)
    assert by_name["wait"][1] < 0.2 < 19.8 < by_name["wait"][0]
    alone = rank_parts(lambda name: getattr(ranks, f"{name}_ms")[:1])
    assert (alone[3], alone[6]) == (0.0, pytest.approx(by_name["other"][:1] + by_name["wait"][:1]))
    barrier = replace(
        ranks, other_ms=ranks.other_ms + 5.0, waited_ms=np.full(4, 5.0), step_ms=np.full(4, 51.8)
    )
    held = rank_parts(lambda name: getattr(barrier, f"{name}_ms"))
    assert held[3] == pytest.approx(by_name["wait"]), "waiting for others in DDP's communication"
    assert held[6] == pytest.approx(by_name["other"]), "waiting in other collectives is no other time"
    assert held[7] == pytest.approx(5.0)
    moved = replace(
        ranks, buffers_ms=np.full(4, 6.0), buffers_wait_ms=column(2, 0, 2, 2), step_ms=np.full(4, 52.8)
    )
    sent = rank_parts(lambda name: getattr(moved, f"{name}_ms"))
    assert sent[4] - by_name["transfer"] == pytest.approx([4, 6, 4, 4])
    assert sent[3] - by_name["wait"] == pytest.approx([2, 0, 2, 2])


def test_parts_longer_than_the_step_are_scaled_to_it() -> None:
    work, between = column(20, 5, 5, 5)[:, None], column(1, 1, 1, 1)[:, None]
    parts = own_parts(column(30), work, between, column(1), column(0), np.array([False]))
    assert parts.sum(axis=0) == pytest.approx(30.0)
    assert parts[:, 0] == pytest.approx([15, 3.75, 3.75, 0, 0.75, 3.75, 3, 0, 0])


def test_a_rank_that_the_others_wait_for_does_not_wait() -> None:
    work, between = np.full((4, 2), 5.0), np.full((4, 2), 0.25)
    parts = own_parts(column(30, 30), work, between, column(3, 3), column(0, 0), np.array([False, True]))
    assert parts[3:5].tolist() == [[6.0, 0.0], [3.0, 9.0]]


def test_ranks_whose_own_time_is_unknown_are_drawn_from_bucket_detail() -> None:
    ranks = late_ranks(2)
    partly = replace(ranks, own_backward_ms=column(10.9, NAN))
    parts = rank_parts(lambda name: getattr(partly, f"{name}_ms"))
    phases = np.vstack([getattr(ranks, f"{name}_ms") for name in PHASES])
    sampled = step_parts(ranks.step_ms, phases, ranks.exposed_comm_ms, ranks.exposed_wait_ms)
    assert parts[:, 1].tolist() == sampled[:, 1].tolist()
    assert parts[2, 0] == 10.9
    assert parts.sum(axis=0) == pytest.approx(46.8)


@pytest.mark.parametrize(("without_ms", "kind", "role"), [(26.4, "even", "good"), (20.0, "uneven", "text")])
def test_scatter_that_no_rank_can_be_blamed_for_is_calm(without_ms: float, kind: str, role: str) -> None:
    frame = live()
    group = replace(frame.group, no_straggler_ms=without_ms)
    scene = Scene(replace(frame, group=group), Place())
    assert verdict(scene.frame).kind == kind
    lines = draw_verdict(scene, 80, 3)
    assert lines[0].pieces[:2] == [("▌", role), ("● ", role)]
    words = [line.pieces[2:] for line in lines]
    roles = {role for pieces in words for text, role in pieces if text.strip() and "/" not in role}
    assert roles <= {"strong", "dim", "wait"}, "of colours the bar alone"
    assert ("strong" in roles) == (kind == "even"), "the figure is grey"


@pytest.mark.parametrize("case", sorted({*CASES} - {"waiting", "unknowns", "old", "clock_free"}))
def test_made_up_frames_do_not_contradict_themselves(case: str) -> None:
    """Or the screens drawn from them show figures that no run has."""
    frame = CASES[case]()
    group, ranks, late, step_ms = frame.group, frame.ranks, frame.straggler, frame.group.step_ms_p50
    parts = rank_parts(lambda name: getattr(ranks, f"{name}_ms"))
    assert parts.sum(axis=0) == pytest.approx(step_ms)
    whole = ranks.data_ms + ranks.forward_ms + ranks.backward_ms + ranks.optimizer_ms + ranks.other_ms
    assert whole == pytest.approx(ranks.step_ms) and ranks.step_ms == pytest.approx(step_ms)
    past = frame.history
    assert sum(getattr(past, name)[-1] for name in STACK.values()) == pytest.approx(past.step_ms[-1])
    assert past.step_ms[-1] == pytest.approx(step_ms, abs=0.5)
    assert past.loss_mean[-1] == pytest.approx(group.loss_mean, abs=1e-3)
    assert past.time_s[-1] == pytest.approx(frame.run.elapsed_s)
    assert all(frame.run.started_at <= event.unix_s <= frame.unix_s for event in frame.events)
    assert group.loss_mean == pytest.approx(ranks.loss.mean(), abs=1e-4)
    if late is not None:
        others = np.delete(ranks.own_ms, late.ranks or [late.rank])
        assert late.lateness_ms == pytest.approx(ranks.excess_ms[late.rank])
        assert ranks.own_ms[late.rank] - np.median(others) == pytest.approx(late.lateness_ms)
        assert late.recoverable_ms == pytest.approx(step_ms - group.no_straggler_ms)
        assert late.cost_pct == pytest.approx(100 * late.recoverable_ms / step_ms, abs=0.1)
