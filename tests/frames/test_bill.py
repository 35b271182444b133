"""The bill adds up as it is shown, and says what the run would take without its largest losses."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from ddptop.frames.bill import CLASSES, bill_of, dear_phrase, headline, ledger_place_phrase, round_to_sum
from ddptop.frames.codec import WORDS
from ddptop.frames.ledger import LEDGER_CLASSES, WaitedFor
from ddptop.frames.numbers import percent
from ddptop.render.bill import (
    LOSSES_TITLE,
    draw_bill,
    draw_bill_bar,
    draw_rank_bills,
    loss_phrases,
    waited_columns,
)
from ddptop.render.colours import THEMES_OF_ROLES
from ddptop.render.line import Role
from ddptop.render.phases import is_parted
from ddptop.render.text import text_width
from ddptop.report.ledger_advice import is_rare
from tests.frames.ledgers import checkpoints, ledger, waited


def test_what_is_shown_adds_up() -> None:
    bill = bill_of(checkpoints())
    assert headline(bill) == "In all 255.0 rank-seconds: 3 ranks for 1 min 25 s"
    assert sum(float(row.amount) for row in bill.rows) == pytest.approx(255.0)
    assert sum(row.share_pct for row in bill.rows) == pytest.approx(100.0)
    columns, n_rows = waited_columns(checkpoints(), bill)
    for column in columns[2:4]:
        *parts, whole = (float(column.cell(row)[0]) for row in range(n_rows))
        assert sum(parts) == pytest.approx(whole)
    waiting = next(row for row in bill.rows if row.key == "waiting")
    assert columns[2].cell(n_rows - 1)[0] == waiting.amount


@pytest.mark.parametrize(
    ("values", "rounded"),
    [
        ([33.333, 33.333, 33.334], [33.3, 33.3, 33.4]),
        ([0.04] * 5, [0.1, 0.1, 0.0, 0.0, 0.0]),
        ([12.25, 87.75], [12.3, 87.7]),
        ([], []),
    ],
)
def test_rounded_parts_add_up(values: list[float], rounded: list[float]) -> None:
    assert round_to_sum(values, 1) == pytest.approx(rounded)
    assert sum(round_to_sum(values, 1)) == pytest.approx(round(sum(values), 1))


def test_the_run_without_its_losses() -> None:
    """Rank 0 holds two others up for 42 s: they wait 84 rank-seconds, and the run is 42 s longer."""
    first, second, third = bill_of(checkpoints()).losses
    assert (first.what, first.rank, first.key) == ("rank 0 after the optimizer", 0, "after_optimizer")
    assert first.gives_back_s == pytest.approx(42.0) and first.elapsed_s == pytest.approx(43.0)
    assert (second.what, second.rank) == ("the start-up", None)
    assert second.gives_back_s == pytest.approx(4.0), "what every rank lost"
    assert third.what == "exposed transfer"


def test_no_loss_gives_back_more_than_the_run() -> None:
    made = ledger(
        elapsed_s=10.0, waiting=[0.0, 40.0], waited_for=(waited(0, "data", 40.0, steps=4, each_s=10),)
    )
    assert bill_of(made).losses[0].elapsed_s == 0.0


def test_a_wait_in_no_known_place_is_no_loss_that_can_be_mended() -> None:
    rows = (waited(0, "unknown", 40.0, steps=4, each_s=10), waited(1, "data", 20.0, steps=4, each_s=5))
    bill = bill_of(ledger(elapsed_s=100.0, waiting=[20.0, 40.0], waited_for=rows))
    assert [loss.what for loss in bill.losses] == ["rank 1 in data loading"]


def test_a_wide_page_has_the_step_of_a_loss_whole() -> None:
    made = checkpoints()
    longest = replace(made.run.waited_for[0], steps=12_345, n_dear=1, n_dear_in_all=1, longest_step=1_234_567)
    made = replace(made, run=replace(made.run, waited_for=(longest, *made.run.waited_for[1:])))
    page = "\n".join(str(line) for line in draw_bill(made, 160, ascii_only=False))
    assert "12,345 steps, at most 6.0 s in step 1,234,567" in page


def test_units_follow_the_size() -> None:
    made = checkpoints()
    large = replace(made, ranks=replace(made.ranks, forward_s=made.ranks.forward_s + 400_000))
    assert bill_of(large, on_gpus=True).unit == "GPU-hours"
    assert bill_of(large, on_gpus=True).total == "333.4"
    middle = replace(made, ranks=replace(made.ranks, forward_s=made.ranks.forward_s + 400))
    assert bill_of(middle).unit == "rank-minutes"


def test_every_place_has_words() -> None:
    assert all(ledger_place_phrase(place) for place in WORDS[WaitedFor.__annotations__["place"]])


def test_the_rhythm_of_a_loss() -> None:
    each = waited(0, "after_optimizer", 84.0, steps=7, each_s=6.0)
    assert dear_phrase(each) == "7 steps, 6.0 s in each"
    assert dear_phrase(replace(each, steps=1_204)) == "1,204 steps, 6.0 s in 7 of them"
    assert (
        dear_phrase(replace(each, steps=1, n_dear=1, n_dear_in_all=1)) == "1 step, at most 6.0 s in step 199"
    )
    few = replace(each, steps=12, n_dear=5, n_dear_in_all=47, dear_s=0.1)
    assert dear_phrase(few) == "12 recorded steps, 100.0 ms in 5 of them (some 47 in all)"
    told = replace(few, n_witnessed=3)
    assert dear_phrase(told) == "12 seen steps, 100.0 ms in 5 of them (some 47 in all)", (
        "not all are recorded"
    )


def test_steps_are_rare_among_those_that_they_are_counted_of() -> None:
    """Where heartbeats told of some, of all steps, with those that were left out."""
    made = checkpoints()
    run = replace(made.run, recorded_steps=100)
    made = replace(made, run=run)
    row = replace(run.waited_for[0], n_dear=15, n_dear_in_all=90, dear_s=1.0)
    assert not is_rare(row, made), "15 of 100 recorded ones"
    assert is_rare(replace(row, n_witnessed=8), made), "90 of 1,000"
    assert not is_rare(replace(row, n_dear=9, n_dear_in_all=190, n_witnessed=8), made), "190 of 1,000"


def test_ranks_and_places_beyond_the_first_are_one_row() -> None:
    rows = tuple(waited(rank, "data", 10.0 - rank, steps=5, each_s=1.0) for rank in range(9))
    made = ledger(elapsed_s=30.0, waiting=[6.0] * 9, waited_for=rows)
    columns, n_rows = waited_columns(made, bill_of(made))
    assert [columns[0].cell(row)[0] for row in range(n_rows)][-2:] == ["others", "in all"]
    assert [float(columns[2].cell(row)[0]) for row in range(n_rows)] == [10, 9, 8, 7, 6, 5, 9, 54]


@pytest.mark.parametrize("width", [28, 50, 80, 160])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_every_width_holds_the_bar_and_the_shares(width: int, ascii_only: bool) -> None:
    lines = draw_bill(checkpoints(), width, ascii_only)
    texts = [str(line) for line in lines]
    assert max(map(text_width, texts)) <= width
    assert not ascii_only or "".join(texts).replace("…", "").isascii()
    bar = draw_bill_bar(bill_of(checkpoints()), width, ascii_only)
    assert bar.width == width and bar in lines
    assert any(text.rstrip().endswith("100.0") for text in texts)


@pytest.mark.parametrize("theme", THEMES_OF_ROLES)
def test_no_two_classes_have_the_same_colour(theme: str) -> None:
    assert len({THEMES_OF_ROLES[theme][words.role] for words in CLASSES.values()}) == len(CLASSES)


def test_what_the_run_would_take_without_its_losses_comes_first() -> None:
    texts = [str(line) for line in draw_bill(checkpoints(), 80, ascii_only=False)]
    assert texts[1:3] == [
        LOSSES_TITLE,
        "         43 s without rank 0 after the optimizer (49% less)",
    ]


def test_a_loss_that_the_duration_does_not_show_is_left_out() -> None:
    rows = (waited(0, "data", 0.5, steps=5, each_s=0.1), waited(1, "data", 10.0, steps=5, each_s=2.0))
    bill = bill_of(ledger(elapsed_s=90.9, waiting=[10.0, 0.5], waited_for=rows))
    assert [loss.rank for loss in bill.losses] == [1, 0]
    ((lasts, without),) = loss_phrases(bill)
    assert lasts == "1 min 20 s"
    assert without.startswith("without rank 1 ")


def test_a_run_that_has_not_begun_has_no_bill() -> None:
    assert draw_bill(ledger(elapsed_s=0.0, **{name: [0.0] for name in LEDGER_CLASSES}), 80, False) == []


@pytest.mark.filterwarnings("error")
def test_a_class_that_no_rank_knows_is_no_loss() -> None:
    known = ledger(data=[40.0, 50.0])
    unknown = replace(known, ranks=replace(known.ranks, data_s=np.full(2, np.nan)))
    assert known.least_seconds_of("data") == 40.0
    assert [loss.key for loss in bill_of(known).losses] == ["data"]
    assert not bill_of(unknown).losses


@pytest.mark.parametrize("ascii_only", [False, True])
def test_each_rank_has_a_bar_of_its_classes_as_long_as_that_of_all_ranks(ascii_only: bool) -> None:
    bill = bill_of(checkpoints())
    lines = [str(line) for line in draw_rank_bills(checkpoints(), bill, 100, 8, ascii_only)]
    assert [line.partition("│")[0].strip() for line in lines] == ["all ranks", "rank 0", "rank 1", "rank 2"]
    assert {len(line) for line in lines} == {100}
    assert ["waiting for a later rank 50%" in line for line in lines] == [False, False, True, False]
    shown = [str(line) for line in draw_rank_bills(checkpoints(), bill, 100, 1, ascii_only)]
    assert len(shown) == 2 and shown[1].startswith("rank 0"), (
        "the others waited for the one that waited least"
    )


def test_a_further_line_of_a_bar_has_no_letters_where_the_first_one_tells_the_parts() -> None:
    bill = bill_of(checkpoints())
    first, further = draw_rank_bills(checkpoints(), bill, 100, 8, False, tall=2)[2:4]
    assert any(role.startswith("ink") for _, role in first.pieces)
    assert not any(role.startswith("ink") for _, role in further.pieces)
    assert further.width == first.width


@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_bar_of_the_bill_has_its_shares_and_parts_all_neighbours(ascii_only: bool) -> None:
    """By lightness, or by a letter: shares change places, so that any two classes may be neighbours."""
    bill = bill_of(checkpoints())
    line = draw_bill_bar(bill, 80, ascii_only)
    largest = max(bill.rows, key=lambda row: row.share_pct)
    assert line.width == 80 and f"{largest.title} {percent(largest.share_pct)}" in str(line)
    assert not set(str(line)) & set("▏▎▍▌▋▊▉"), "text without colours has whole cells"
    solid = [role for _, role in line.pieces if not role.startswith("ink")]
    for one, other in itertools.pairwise(dict.fromkeys(role.partition("/")[2] for role in solid)):
        letters = any(role == f"ink/{other}" for _, role in line.pieces)
        assert ascii_only or letters or is_parted(cast("Role", one), cast("Role", other)), (one, other)


@pytest.mark.parametrize("width", [28, 50, 65, 80, 160])
def test_a_longer_duration_moves_nothing_in_the_bill(width: int) -> None:
    """Below the line that says the duration, digits change alone."""
    row = waited(0, "optimizer", 10.0, steps=2, each_s=5.0)
    before, after = (
        [
            re.sub(r"\d+ min \d\d s| {7}\d\d s|\d", "", str(line))
            for line in draw_bill(
                ledger(elapsed_s=seconds, waiting=[0.0, 10.0], waited_for=(row,)), width, False
            )
        ]
        for seconds in (59.4, 60.4)
    )
    assert before[-1].split() == after[-1].split()
    n_headline = before.index(next(line for line in before if "ithout its largest losses" in line))
    assert before[n_headline:] == after[n_headline:]
    assert any("without rank" in line for line in after)


def test_the_bill_says_how_much_of_it_is_an_estimate_where_dear_steps_were_left_out() -> None:
    made = checkpoints()
    first, *others = made.run.waited_for
    some = replace(first, n_dear_in_all=10 * first.n_dear)
    estimated = replace(made, run=replace(made.run, waited_for=(some, *others)), scaled_s=made.total_s / 4)
    for width in (50, 160):
        page = " ".join(str(line).strip() for line in draw_bill(estimated, width, ascii_only=False))
        assert "25% of it is an estimate: steps that were left out, divided like recorded ones" in page
        assert "estimate" not in "".join(map(str, draw_bill(made, width, ascii_only=False)))


def test_a_bill_that_is_not_known_for_much_says_how_few_steps_were_recorded() -> None:
    made = ledger(elapsed_s=100.0, forward=[42.0, 42.0], unknown=[58.0, 58.0])
    sampled = replace(made, run=replace(made.run, steps=200, recorded_steps=25))
    words = "58% of it is not known: 25 of 200 steps were recorded; --ddptop-detail full records all"
    assert words in " ".join(str(line).strip() for line in draw_bill(sampled, 160, ascii_only=False))
    full = replace(made, run=replace(made.run, steps=200, recorded_steps=200))
    assert "not known:" not in " ".join(map(str, draw_bill(full, 160, ascii_only=False)))
