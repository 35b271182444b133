"""Causes below the phase: garbage collection where the pauses have the excess, else the phase alone."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.straggler.causes import carried, late_place
from ddptop.frames.causes import remedy
from ddptop.frames.phrases import straggler_phrase
from tests.made_up_run import START_NS, feed_together

LATE_US = 20_000


def verdict_of(make_world, pause_us, *, late=lambda step: [1], ranks: int = 2):
    """The straggler after 128 steps in which the ranks `late(step)` take 20 ms longer in forward, of which
    `pause_us` are a collection."""
    world, reducer = make_world(ranks, own=True), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for at in range(128):
        world.delays = {(rank, "forward"): LATE_US for rank in late(at)}
        world.gc_us = dict.fromkeys(late(at), pause_us)
        feed_together(reducer, world.steps(1))
    return reducer.frame(START_NS + world.now_us * 1000)


def test_pauses_that_have_the_excess_are_the_cause(make_world) -> None:
    frame = verdict_of(make_world, 19_000)
    late = frame.straggler
    assert (late.rank, late.cause, late.place, late.pattern) == (1, "gc", "gc", "persistent")
    assert late.lateness_ms == pytest.approx(19.0)
    assert " ms longer in garbage collection · " in straggler_phrase(late)
    assert frame.ranks.gc_ms.tolist() == pytest.approx([0.0, 19.0], abs=0.01)


def test_pauses_that_are_a_part_of_it_are_not(make_world) -> None:
    late = verdict_of(make_world, 12_000).straggler
    assert (late.rank, late.cause, late.place) == (1, "forward", "forward")


def test_of_ranks_that_collect_in_turn_it_is_the_common_cause(make_world) -> None:
    late = verdict_of(make_world, 19_500, late=lambda step: [step % 3], ranks=3).straggler
    assert (late.pattern, late.cause, set(late.ranks)) == ("rotating", "gc", {0, 1, 2})
    assert late.cost_pct > 10


def test_where_a_version_does_not_report_them_the_phase_is_the_cause(make_world) -> None:
    frame = verdict_of(make_world, -1)
    assert frame.straggler.cause == "forward"
    assert np.isnan(frame.ranks.gc_ms[1])


def test_a_few_long_pauses_do_not_carry_a_delay_of_every_step() -> None:
    lateness = np.full(100, 20.0)
    assert carried(np.full(100, 18.0), lateness)
    assert not carried(np.where(np.arange(100) % 3 > 0, 20.0, 0.0), lateness)
    assert not carried(np.full(100, np.nan), lateness)


def uneven(make_world, us_per_element: float, elements, *, ranks: int = 2, slow_us: int = 0):
    """The frame after 128 steps in which forward takes `us_per_element` for each of `elements(rank, step)`,
    and `slow_us` more on rank 1."""
    world, reducer = make_world(ranks, own=True), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    rng = np.random.default_rng(0)
    for at in range(128):
        sizes = {rank: elements(rank, at) for rank in range(ranks)}
        more = rng.integers(0, 300, ranks)
        more[1] += slow_us
        world.delays = {(rank, "forward"): int(us_per_element * n + more[rank]) for rank, n in sizes.items()}
        world.elements = sizes
        feed_together(reducer, world.steps(1))
    return reducer.frame(START_NS + world.now_us * 1000)


def drawn(rank: int, step: int) -> int:
    return int(np.random.default_rng((rank, step)).integers(200, 2000))


@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_whose_batches_differ_take_turns_and_none_is_blamed(make_world, ranks: int) -> None:
    late = uneven(make_world, 10.0, drawn, ranks=ranks).straggler
    assert (late.pattern, late.cause, late.place) == ("rotating", "uneven_work", "uneven_work")
    assert late.elements_ratio > 1.3
    phrase = straggler_phrase(late)
    assert phrase.startswith("ranks take turns: the latest has ") and "x the elements" in phrase
    assert "rank 0" not in phrase and "rank 1" not in phrase and late.cost_pct > 5


def test_sizes_that_cost_no_time_flag_nobody(make_world) -> None:
    assert uneven(make_world, 0.0, drawn).straggler is None


def test_a_rank_with_more_in_every_step_has_uneven_work(make_world) -> None:
    late = uneven(make_world, 40.0, lambda rank, step: 1700 if rank else 1000).straggler
    assert (late.rank, late.cause, late.elements_ratio) == (1, "uneven_work", pytest.approx(1.7))
    assert straggler_phrase(late).startswith("rank 1 has 1.7x the elements, ")


def test_work_that_does_not_grow_with_the_size_is_not_shared_out(make_world) -> None:
    # Beside 14 ms that a step takes anyway, 29,000 elements more take 29 ms, half of which can be moved.
    late = uneven(make_world, 1.0, lambda rank, step: 30_000 if rank else 1000).straggler
    assert (late.rank, late.cause, late.elements_ratio) == (1, "uneven_work", pytest.approx(30))
    assert 25 < late.cost_pct < 45


def test_a_slow_rank_is_slow_also_with_larger_batches_or_beside_uneven_ones(make_world) -> None:
    late = uneven(make_world, 10.0, lambda rank, step: 1000 + 300 * rank, slow_us=20_000).straggler
    assert (late.rank, late.cause, late.elements_ratio) == (1, "forward", None)
    late = uneven(make_world, 2.0, drawn, slow_us=20_000).straggler
    assert (late.rank, late.cause, late.pattern) == (1, "forward", "persistent")


def test_a_place_with_next_to_no_excess_is_not_where_it_is() -> None:
    steady, varying = np.full(100, 1.0), np.where(np.arange(100) % 2, 1.6, 0.2)
    assert late_place({"after_optimizer": 0.03 * steady, "backward": varying, "forward": varying}) is None
    assert late_place({"after_optimizer": 0.03 * steady, "backward": varying}) == "backward"
    assert late_place({"data": 3.0 * steady, "backward": varying}) == "data"
    assert late_place({"data": 3.0 * steady, "backward": steady}) is None
    assert late_place({"data": -steady}) is None


def test_of_an_unknown_cause_nothing_is_said_of_phases() -> None:
    unknown, mixed = (
        remedy(cause, None, "persistent", "rank 1", "node0, cpu")[1] for cause in (None, "mixed")
    )
    assert "several phases" in mixed and "phases" not in unknown
    assert unknown.startswith("Find out what slows rank 1: larger samples") and "(node0, cpu)" in unknown
