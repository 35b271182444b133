"""A sentence for each way in which a rank is slow: which basis, where, how often, what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.frames.causes import PLACES, cause_phrase
from ddptop.frames.frame import Straggler, Suspect
from ddptop.frames.ledger import RareSlowness
from ddptop.frames.phrases import (
    interval_error,
    median_phrase,
    skew_phrase,
    step_phrase,
    steps_phrase,
    straggler_brief,
    straggler_phrase,
    suspect_phrase,
    what_if_phrase,
    which_hosts,
)
from ddptop.render.trouble import shorten_detail

SLOW = Straggler(
    rank=1,
    pattern="persistent",
    lateness_ms=20.3,
    bound_ms=0.1,
    recoverable_ms=20.2,
    cost_pct=43.2,
    last_pct=96.0,
    cause="data",
    parts_ms={"data": 20.2},
    place="data",
    basis="every_step",
)


def test_a_straggler_from_every_step_takes_longer_one_from_arrivals_arrives_late() -> None:
    assert straggler_phrase(SLOW) == (
        "rank 1 takes 20.3 ±0.1 ms longer in data loading · 96% of steps · costs 43%"
    )
    assert len(straggler_phrase(SLOW)) <= 78, "one line of 80 columns"
    assert straggler_phrase(replace(SLOW, basis="arrivals", place=None)) == (
        "rank 1 arrives 20.3 ±0.1 ms late in 96% of steps · data loading · costs 43%"
    )


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("before_forward", "between the batch and forward"),
        ("before_backward", "between forward and backward"),
        ("before_optimizer", "between backward and the optimizer"),
        ("after_optimizer", "after the optimizer"),
        ("between_steps", "between two steps"),
    ],
)
def test_time_in_none_of_the_phases_is_told_by_its_place(place, words: str) -> None:
    slow = replace(SLOW, cause="other", place=place)
    assert straggler_phrase(slow) == f"rank 1 takes 20.3 ±0.1 ms longer {words} · 96% of steps · costs 43%"


def test_a_size_of_all_its_own_time_is_not_said_to_be_of_one_part() -> None:
    for cause, words in (("mixed", "mixed causes"), ("other", "outside the phases")):
        slow = replace(SLOW, cause=cause, place=None)
        expected = f"rank 1 takes 20.3 ±0.1 ms longer in 96% of steps · {words} · costs 43%"
        assert straggler_phrase(slow) == expected
        assert straggler_brief(slow, 60) == f"rank 1 takes 20.3 ms longer · {words} · costs 43%"
        assert straggler_brief(slow, 38) == f"rank 1 +20.3 ms · {cause} · costs 43%"


def test_a_place_is_named_for_time_in_none_of_the_phases_alone() -> None:
    assert cause_phrase("backward", "backward") == "backward"
    assert cause_phrase("mixed", None) == "mixed causes"
    assert cause_phrase("other", "before_optimizer", short=True) == "before optimizer"
    assert cause_phrase("data", "data", short=True) == "data"
    assert cause_phrase(None, None) == cause_phrase(None, None, short=True) == ""
    between = {"before_forward", "before_backward", "before_optimizer", "after_optimizer", "between_steps"}
    between |= {"evaluation", "saving", "phase", "first_batch", "compiling"}
    assert set(PLACES) == between


def test_several_ranks_and_patterns() -> None:
    def line(**changes) -> str:
        return straggler_phrase(replace(SLOW, **changes))

    assert line(ranks=(1, 3)).startswith(
        "ranks 1 and 3 take 20.3 ±0.1 ms longer in data loading · 96% of steps"
    )
    assert line(ranks=(3, 1, 5, 2, 4)).startswith("ranks 3, 1, 5, 2, ... take ")
    assert line(pattern="intermittent", last_pct=5.0, cost_pct=4.1) == (
        "rank 1 now and then takes 20.3 ±0.1 ms longer in data loading, in 5% of steps"
        " · costs 4.1% on average"
    )
    assert line(pattern="intermittent", ranks=(1, 3)).startswith("ranks 1 and 3 now and then take 20.3")
    assert line(pattern="rotating", cause=None, place=None) == (
        "one rank takes 20.3 ±0.1 ms longer, a different one over time, now rank 1 · costs 43%"
    )


def test_a_throttled_gpu_and_arrivals_that_disagree_are_named() -> None:
    assert straggler_phrase(replace(SLOW, throttle="thermal", disagrees=True)).endswith(
        "data loading · 96% of steps · its GPU is throttled: thermal · costs 43% · bucket arrivals disagree"
    )


def test_in_few_cells_who_comes_before_why_and_that_before_what_it_costs() -> None:
    widths = (40, 28, 25, 24, 19, 5)
    whole, cost = "rank 1 +20.3 ms data · costs 43%", "rank 1 · data · costs 43%"
    cause, size = "rank 1 +20.3 ms data", "rank 1 +20.3 ms"
    assert [straggler_brief(SLOW, width) for width in widths] == [whole, cost, cost, cause, size, size]
    assert straggler_brief(replace(SLOW, ranks=(1, 3)), 50) == "ranks 1 and 3 +20.3 ms data · costs 43%"
    assert straggler_brief(replace(SLOW, pattern="rotating"), 50).startswith("ranks in turn +20.3 ms")
    uneven = replace(SLOW, pattern="rotating", cause="uneven_work")
    assert straggler_brief(uneven, 50) == "ranks in turn +20.3 ms · uneven work · costs 43%"
    assert straggler_brief(replace(SLOW, cause=None), 38) == "rank 1 +20.3 ms · costs 43%"


def test_a_sentence_comes_before_a_sum_where_it_fits() -> None:
    assert straggler_brief(SLOW, 60) == "rank 1 takes 20.3 ms longer in data loading · costs 43%"
    both = straggler_brief(replace(SLOW, ranks=(1, 3)), 70)
    assert both == "ranks 1 and 3 take 20.3 ms longer in data loading · costs 43%"
    for width, where in ((66, " on gpu-001"), (65, "")):
        brief = straggler_brief(SLOW, width, " on gpu-001")
        assert brief == f"rank 1{where} takes 20.3 ms longer in data loading · costs 43%"
    in_group = replace(SLOW, cause=None, place=None, basis="arrivals", group="the default group")
    assert straggler_brief(in_group, 60) == "rank 1 arrives 20.3 ms late at collectives · costs 43%"


def test_a_suspect() -> None:
    late = Suspect(1, 20.3, 0.1, 12, 12)
    assert suspect_phrase(late) == "rank 1 came last in 12 of 12 measured steps, by 20.3 ±0.1 ms"
    wide = replace(late, basis="every_step", bound_ms=21.0)
    assert suspect_phrase(wide) == "rank 1 was the slowest in 12 of 12 steps, by roughly 20 ms"
    assert suspect_phrase(replace(late, basis="every_step")) == (
        "rank 1 was the slowest in 12 of 12 steps, by 20.3 ±0.1 ms"
    )


def test_the_cost_of_skew_has_its_error() -> None:
    assert skew_phrase(0.84, 0.21) == "waiting costs 0.8% ±0.2% of each step"
    assert skew_phrase(19.6, 1.4) == "waiting costs 20% ±1% of each step"
    assert skew_phrase(3.6, 6.0) == "waiting costs up to 9.6% of each step"
    assert skew_phrase(3.6, 8.0) == "the cost of waiting is not measurable yet"
    for pct, error_pct in ((19.6, 30.0), (38.0, 160.0)):  # up to 100 % says nothing
        assert skew_phrase(pct, error_pct) == "the cost of waiting is not measurable yet"
    assert skew_phrase(40.0, 25.0) == "waiting costs 40% ±25% of each step"
    assert skew_phrase(19.6, None) == "waiting costs 20% of each step"


def test_a_what_if_has_the_farther_end_of_its_interval() -> None:
    assert what_if_phrase(26.6, 26.4, 27.0) == "26.6 ±0.4"
    assert what_if_phrase(26.6, 20.0, 80.0) == "roughly 27"
    assert what_if_phrase(26.6) == "26.6"
    assert what_if_phrase(None, 1.0, 2.0) == "–"
    assert interval_error(26.6, 26.1, 26.7) == pytest.approx(0.5)
    assert interval_error(26.6, None, 26.7) is None
    assert interval_error(26.6, 26.7, 26.6) == 0.0


def test_the_mean_step_is_told_where_it_differs_from_the_median() -> None:
    assert median_phrase(91.8, 6.0) == "median step 91.8 ms, mean 167"
    assert median_phrase(20.0, 1e3 / 23.1) == "median step 20.0 ms, mean 23.1"
    assert median_phrase(20.0, 1e3 / 22.9) == median_phrase(20.0, None) == "median step 20.0 ms"


def test_the_second_line_in_80_columns() -> None:
    whole = "median step 46.8 ms · 26.6 ±0.4 without the slow rank · 24.9 if communication were hidden too"
    assert shorten_detail(whole, 120) == whole
    assert (
        shorten_detail(whole, 84)
        == "step 46.8 ms, 26.6 ±0.4 without the slow rank, 24.9 if communication were hidden too"
    )
    assert shorten_detail(whole, 78) == whole, "on two lines"
    before = "every rank loads data for 39% of step time"
    assert shorten_detail(f"{before} · {whole}", 131) == f"{before} · {shorten_detail(whole, 84)}"
    long_step = "evaluating usually takes 17 s · last complete step 12,480 · median step 26.6 ms"
    assert shorten_detail(long_step, len(long_step) - 1) == long_step, "no figure follows"


def test_steps_of_several_incarnations() -> None:
    assert step_phrase(1_200, 0) == "step 1,200"
    assert step_phrase(12, 1) == "elastic restart 1, step 12"
    assert steps_phrase(3, 1_200, 0, 0) == "steps 3 to 1,200"
    assert steps_phrase(3, 12, 1, 1) == "elastic restart 1, steps 3 to 12"
    assert steps_phrase(900, 12, 0, 1) == "step 900 to elastic restart 1, step 12"


def test_hosts_are_named_where_there_are_several() -> None:
    hosts = ("gpu-0.local", "gpu-0.local", "gpu-1.local", "")
    assert which_hosts(hosts, (2,)) == " on gpu-1"
    assert which_hosts(hosts, (0, 2)) == " on 2 hosts"
    assert which_hosts(hosts, (3,)) == which_hosts(hosts[:2], (0,)) == ""


def test_a_rank_that_is_slow_in_few_steps_has_a_sentence_in_any_width() -> None:
    rare = RareSlowness(1, 1, 177, (12,), 60.0, True, False, 20.0)
    slow = replace(SLOW, rank=0, cause="other", place=None, cost_pct=18.0, rare=rare)
    often = "rank 0 is slow in 1 of 177 steps"
    assert straggler_brief(slow, 90) == f"{often}, in the time outside all phases · costs 18%"
    assert straggler_brief(slow, 50) == f"{often} · costs 18%"
    assert straggler_brief(slow, 30) == "rank 0 is slow · costs 18%"
    assert straggler_brief(slow, 15) == "rank 0 is slow"
