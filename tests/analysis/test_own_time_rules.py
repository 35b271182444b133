"""The rules over every step's own times: hand-made arrays, properties, noise, and whole runs."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import formulas
from ddptop.analysis.straggler import agreement, cost, own_time_rules, shared_rules
from ddptop.frames.snapshot import snapshot
from ddptop.frames.statistics import interval_of_median
from tests.made_up_run import feed_together

STEP_MS = 10.0
RANKS, STEPS = 4, 160


def noise(seed: int, ranks: int = RANKS, steps: int = STEPS, scale: float = 0.3, memory: float = 0.9):
    """(ranks, steps) autocorrelated noise with heavy tails, as of a busy machine."""
    rng = np.random.default_rng(seed)
    values = rng.laplace(0.0, scale, (ranks, steps))
    for i in range(1, steps):
        values[:, i] += memory * values[:, i - 1] * rng.uniform(0, 1, ranks)
    bursts = rng.uniform(size=values.shape) < 0.02
    return values + np.where(bursts, rng.exponential(5.0, values.shape), 0.0)


def case(own):
    """Excess and wall of own times (ranks, n): the slowest rank decides the step."""
    own = own + 8.0
    return formulas.more_than_others(own.T).T, own.max(axis=0) + 2.0


def persistent(excess, wall):
    """The ranks that a run would flag over these steps: its rules, one after the other, for one evaluation.

    `excess`: (ranks, n)."""
    newest = excess[:, -own_time_rules.NEWEST :]
    if newest.shape[1] < own_time_rules.NEWEST:
        return None
    least = own_time_rules.least_excess(wall[None, -own_time_rules.NEWEST :])
    (often,) = own_time_rules.late_often(newest, least, np.arange(own_time_rules.NEWEST)[None])
    rows = own_time_rules.candidates(newest, often)
    over = excess[rows]
    first = shared_rules.onsets(over, own_time_rules.THRESHOLDS)
    level = own_time_rules.lasting(over, np.broadcast_to(wall, over.shape), first)
    numbers = np.flatnonzero(~np.isnan(level)).tolist()
    if not numbers:
        return None
    late = own_time_rules.latest_of(numbers, first.tolist(), level.tolist(), len(excess))
    return late._replace(ranks=tuple(rows[[*late.ranks]].tolist()))


def flagged_after(own, first: int):
    """Steps from `first` until a rank is flagged, evaluated as in a run."""
    excess, wall = case(own)
    for end in range(first + own_time_rules.EVERY, own.shape[1] + 1, own_time_rules.EVERY):
        begin = max(0, end - 256)
        if (late := persistent(excess[:, begin:end], wall[begin:end])) is not None:
            return late, end - first, begin
    return None, None, 0


@pytest.mark.parametrize(("delay_ms", "at_most"), [(20.0, 40), (3.0, 60), (1.0, 100)])
def test_a_persistent_delay_is_flagged_in_time_with_onset_and_size(delay_ms: float, at_most: int) -> None:
    own = noise(1, 2, 300, scale=0.05)
    own[1, 120:] += delay_ms
    late, after, begin = flagged_after(own, 120)
    assert late is not None and after is not None
    assert late.ranks == (1,)
    assert after <= at_most
    assert begin + late.first == pytest.approx(120, abs=6)
    assert late.level_ms == pytest.approx(delay_ms, abs=0.15)


def test_a_small_delay_that_is_alike_takes_fewer_steps_than_one_that_scatters() -> None:
    own = noise(1, 2, 300, scale=0.01)
    own[1, 120:] += 1.0
    scattered = own.copy()
    scattered[1, 120::3] -= 0.4
    assert flagged_after(own, 120)[1] == 40
    assert flagged_after(scattered, 120)[1] == 72


def test_a_delay_that_comes_again_begins_anew() -> None:
    own = noise(1, 2, 256, scale=0.05)
    own[1, :180] += 3.0
    own[1, 220:] += 3.0
    late = persistent(*case(own))
    assert late is not None
    assert late.first == pytest.approx(220, abs=6)


def test_two_late_ranks_of_four_are_flagged_together_the_later_first() -> None:
    own = noise(2, 4, scale=0.05)
    own[1] += 5.0
    own[3] += 7.0
    late = persistent(*case(own))
    assert late is not None
    assert late.ranks == (3, 1)


def test_a_delay_in_half_of_the_steps_is_not_persistent() -> None:
    own = noise(3, 2, scale=0.05)
    own[1, ::2] += 5.0
    assert persistent(*case(own)) is None


def test_equal_ranks_that_differ_a_little_are_not_flagged() -> None:
    own = noise(4, 2, scale=0.02)
    own[1] += 0.2
    assert persistent(*case(own)) is None


def test_a_flag_ends_with_the_delay_and_not_before() -> None:
    own = noise(5, 2, 400, scale=0.1)
    own[1, :200] += 3.0
    excess, wall = case(own)
    kept = [own_time_rules.still_late(excess[1, :end], wall[:end], 3.0) for end in range(100, 401, 8)]
    ends = [end for end, late in zip(range(100, 401, 8), kept, strict=True) if not late]
    assert 200 < ends[0] <= 260
    assert not any(kept[kept.index(False) :])


def test_waits_for_a_cpu_are_cleared_after_more_steps_than_work() -> None:
    over, wall = np.full(200, 5.0), np.full(200, 10.0)
    over[-14:] = 0.0
    assert not own_time_rules.still_late(over, wall, 5.0)
    assert own_time_rules.still_late(over, wall, 5.0, bursts=True)
    over[-17:] = 0.0
    assert not own_time_rules.still_late(over, wall, 5.0, bursts=True)


def test_one_step_in_twenty_is_intermittent_within_150_steps() -> None:
    own = noise(6, 2, 150, scale=0.3)
    own[1, 7::20] += 100.0
    late = own_time_rules.intermittent(*case(own))
    assert late is not None
    assert late.ranks == (1,)
    assert late.first == 7
    assert late.level_ms == pytest.approx(100.0, rel=0.03)


@pytest.mark.parametrize("late_of_ten", [5, 6, 7, 8, 9])
def test_a_rank_that_is_late_in_half_of_the_steps_or_more_is_flagged_at_every_evaluation(
    late_of_ten: int,
) -> None:
    """By one of the two rules: none lies between what one and the other take."""
    own = noise(12, 2, 400, scale=0.1)
    own[1, np.arange(400) * late_of_ten % 10 < late_of_ten] += 20.0
    excess, wall = case(own)
    for end in range(160, 401, own_time_rules.EVERY):
        steps = slice(end - 128, end)
        late = persistent(excess[:, steps], wall[steps])
        late = late or own_time_rules.intermittent(excess[:, steps], wall[steps], held=True)
        assert late is not None and late.ranks == (1,), end


def test_it_is_over_when_no_step_was_late_for_a_while() -> None:
    own = noise(7, 2, 256, scale=0.3)
    own[1, 7:170:20] += 100.0
    excess, wall = case(own)
    assert own_time_rules.intermittent(excess[:, :192], wall[:192]) is not None
    assert own_time_rules.intermittent(excess[:, :208], wall[:208]) is None


def test_it_is_over_sooner_the_more_often_it_was() -> None:
    assert own_time_rules.silence(np.arange(0, 100, 5)) == own_time_rules.SOONEST
    assert own_time_rules.silence(np.array([0, 20, 50, 60])) == pytest.approx(1.4 * 30)
    assert own_time_rules.silence(np.array([0, 50])) == own_time_rules.FRESH


def test_large_excesses_of_both_ranks_or_in_one_burst_are_no_pattern() -> None:
    both = noise(8, 2, 256, scale=0.3)
    both[1, 7::20] += 100.0
    both[0, 17::40] += 100.0
    assert own_time_rules.intermittent(*case(both)) is None
    burst = noise(9, 2, 256, scale=0.3)
    burst[1, 200:212] += 100.0
    assert own_time_rules.intermittent(*case(burst)) is None


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_random_rank_late_in_each_step_is_rotating(ranks: int) -> None:
    own = noise(10, ranks, 100, scale=0.3)
    late = np.random.default_rng(0).integers(0, ranks, 100)
    own[late, np.arange(100)] += 20.0
    excess, wall = case(own)
    found = own_time_rules.rotating(*own_time_rules.outstanding(excess), wall, ranks)
    assert found is not None
    assert sorted(found.ranks) == list(range(ranks))
    assert found.level_ms == pytest.approx(20.0, rel=0.1)
    assert persistent(excess, wall) is None


@pytest.mark.parametrize(("step_ms", "least"), [(10.0, 192), (30.0, 116), (100.0, 80)])
def test_ranks_a_little_late_in_turn_are_flagged_once_it_has_lasted(step_ms: float, least: int) -> None:
    """On two busy cores two healthy ranks are for a second or two."""

    def late_in(steps: int, share: float = 0.15, *, held: bool = False) -> own_time_rules.Late | None:
        own = noise(13, 2, steps, scale=0.01 * step_ms) + step_ms - 10.0
        own[np.random.default_rng(1).integers(0, 2, steps), np.arange(steps)] += share * step_ms
        excess, wall = case(own)
        return own_time_rules.rotating(*own_time_rules.outstanding(excess), wall, 2, held=held)

    assert late_in(least * 9 // 10) is None
    assert late_in(least * 11 // 10) is not None
    assert late_in(80, 0.5) is not None
    assert late_in(80, held=True) is not None


def test_one_late_rank_and_noise_are_not_rotating() -> None:
    own = noise(11, 3, 100, scale=0.3)
    assert own_time_rules.rotating(*own_time_rules.outstanding(case(own)[0]), case(own)[1], 3) is None
    own[1] += 20.0
    assert own_time_rules.rotating(*own_time_rules.outstanding(case(own)[0]), case(own)[1], 3) is None


def test_a_suspect_takes_fewer_steps_than_a_flag() -> None:
    own = noise(12, 2, 100, scale=0.05)
    own[1, -14:] += 3.0
    assert persistent(*case(own)) is None
    found = own_time_rules.suspect(*case(own))
    assert found is not None
    late, last = found
    assert late.ranks == (1,)
    assert last == 14
    assert late.level_ms == pytest.approx(3.0, rel=0.1)
    assert own_time_rules.suspect(*case(noise(13, 2, 100))) is None


@pytest.mark.parametrize("delay_ms", [1.0, 5.0, 20.0])
def test_the_gain_takes_the_delay_away_and_no_more(delay_ms: float) -> None:
    even = np.abs(noise(14, 4, 200, scale=0.3)) + 8.0
    own = even.copy()
    own[2] += delay_ms
    gain = cost.ms_saved_by_own_time(own, np.arange(4) == 2)
    assert (gain >= 0).all()
    without = float(np.median(own.max(axis=0) - gain))
    assert without == pytest.approx(float(np.median(even.max(axis=0))), rel=0.02)


def test_a_delay_that_varies_is_taken_away_too() -> None:
    rng = np.random.default_rng(3)
    even = np.abs(noise(15, 3, 200, scale=0.3)) + 8.0
    own = even.copy()
    own[0] += rng.exponential(6.0, 200)
    without = own.max(axis=0) - cost.ms_saved_by_own_time(own, np.arange(3) == 0)
    assert float(np.median(without)) == pytest.approx(float(np.median(even.max(axis=0))), rel=0.03)


def test_without_a_late_rank_the_gain_is_what_scatter_costs() -> None:
    own = np.array([[8.0, 9.0, 8.0], [8.0, 8.0, 12.0], [8.0, 8.0, 10.0]])
    assert cost.ms_saved_by_own_time(own, np.zeros(3, bool)).tolist() == [0.0, 1.0, 2.0]


delays = st.sampled_from([0.0, 0.4, 1.0, 3.0, 20.0])


@given(st.integers(0, 40), delays, st.floats(0.5, 20.0), st.permutations(range(RANKS)))
@settings(max_examples=40)
def test_scaling_shifting_and_permuting_change_no_verdict(
    seed: int, delay_ms: float, factor: float, order: list[int]
) -> None:
    """Times of 8 ms and more are far above FLAG_MS, so that only shares of the step count."""
    own = noise(seed, scale=0.2)
    own[1] += delay_ms
    excess, wall = case(own)
    if wall.mean() * own_time_rules.FLAG_SHARE * min(factor, 1.0) < own_time_rules.FLAG_MS:
        factor = max(factor, 1.0)
        excess, wall = 3 * excess, 3 * wall
    late = persistent(excess, wall)
    scaled = persistent(excess * factor, wall * factor)
    assert (late and late.ranks) == (scaled and scaled.ranks)
    shifted = formulas.more_than_others((own + 5.0 * np.sin(np.arange(own.shape[1]))).T).T
    assert shifted == pytest.approx(formulas.more_than_others(own.T).T, abs=1e-9), "common to all ranks"
    permuted = persistent(excess[list(order)], wall)
    assert (late and late.ranks) == (permuted and tuple(order[rank] for rank in permuted.ranks))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_healthy_noise_is_never_flagged(ranks: int, memory: float) -> None:
    """20,000 steps of autocorrelated noise of a tenth of the step, with bursts."""
    own = noise(99, ranks, 20_000, scale=0.6, memory=memory)
    excess, wall = case(own)
    last, gain = own_time_rules.outstanding(excess)
    for end in range(256, own.shape[1], 4 * own_time_rules.EVERY):
        now = slice(end - 256, end)
        assert persistent(excess[:, now], wall[now]) is None
        assert own_time_rules.intermittent(excess[:, now], wall[now]) is None
        assert own_time_rules.rotating(last[now], gain[now], wall[now], ranks) is None


def played(world, count: int, memberships=()):
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *memberships, *world.steps(count)])
    return reducer, reducer.frame(5_000 * 10**9 + world.now_us * 1000)


@pytest.mark.parametrize("place", ["data", "forward", "backward", "optimizer", "before_backward"])
def test_a_run_has_one_verdict_with_cause_and_place(make_world, place: str) -> None:
    world = make_world(2, delays={(1, place): 20_000}, own=True)
    world.detail_every = 1000
    reducer, frame = played(world, 40)
    late = frame.straggler
    assert late is not None
    assert (late.rank, late.pattern, late.basis, late.place) == (1, "persistent", "every_step", place)
    assert late.cause == (place if place in ("data", "forward", "backward", "optimizer") else "other")
    assert late.lateness_ms == pytest.approx(20.0, rel=0.003)
    assert late.last_pct == 100.0
    assert late.cost_pct == pytest.approx(100 * 20 / 34, rel=0.01)
    assert not late.disagrees
    assert frame.group.no_straggler_ms == pytest.approx(14.0, rel=0.01)
    assert frame.group.no_straggler_low_ms <= frame.group.no_straggler_ms <= frame.group.no_straggler_high_ms
    assert [alert.kind for alert in frame.alerts] == ["straggler"]
    events = [event for event in frame.events if event.kind == "straggler"]
    assert [event.rank for event in events] == [1]
    assert reducer.state.figures.straggler == 1
    shown = json.loads(json.dumps(snapshot(frame)))
    assert shown["straggler"]["place"] == place
    assert shown["straggler"]["basis"] == "every_step"
    assert shown["group"]["what_if"]["no_straggler_low_ms"] is not None


@pytest.mark.parametrize(("us", "places", "place"), [(240, 2, None), (480, 1, "data"), (480, 2, "mixed")])
def test_what_no_place_alone_explains_must_be_larger(make_world, us: int, places: int, place) -> None:
    """480 us are 3.3 % of the step: enough in one place, too little over two."""
    world = make_world(2, delays={(1, name): us for name in ("data", "optimizer")[:places]}, own=True)
    world.detail_every = 1000
    late = played(world, 160)[1].straggler
    assert (None if late is None else late.place or late.cause) == place


@pytest.mark.parametrize(("us", "steps", "late"), [(400, 184, False), (400, 200, True), (1_000, 64, True)])
def test_a_little_in_several_places_must_last(make_world, us: int, steps: int, late: bool) -> None:
    """400 us in each of three places are 8 % of the step, less than 3 % in each place; 1 ms are 18 %."""
    places = ("data", "optimizer", "before_backward")
    world = make_world(2, delays={(1, name): us for name in places}, own=True)
    world.detail_every = 1000
    assert (played(world, steps)[1].straggler is not None) == late


def test_an_evaluation_makes_no_little_delay_last(make_world) -> None:
    """Slow for 69 steps, which are one second, between two of which all ranks evaluate for ten."""
    slow = {(1, name): 400 for name in ("data", "optimizer", "before_backward")}
    world = make_world(2, delays=slow, own=True)
    world.detail_every = 1000
    reducer = played(world, 4)[0]
    world.delays = slow | {(rank, "after_optimizer"): 10_000_000 for rank in range(2)}
    feed_together(reducer, world.steps(1))
    world.delays = slow
    feed_together(reducer, world.steps(64))
    assert reducer.frame(5_000 * 10**9 + world.now_us * 1000).straggler is None


def test_a_little_in_backward_need_not_last(make_world) -> None:
    """1.2 ms, 8 % of the step: own backward is not searched by itself, but this is a delay in one place."""
    world = make_world(2, delays={(1, "backward"): 1_200}, own=True)
    world.detail_every = 1000
    assert played(world, 104)[1].straggler.rank == 1


def test_where_steps_are_long_it_need_not_last_so_many(make_world) -> None:
    """90 ms of 1.1 s, which no burst of other work takes from each of a hundred steps."""
    delays = {(rank, "forward"): 1_000_000 for rank in range(2)}
    places = ("data", "optimizer", "before_backward")
    world = make_world(2, delays=delays | {(1, name): 30_000 for name in places}, own=True)
    world.detail_every = 1000
    assert played(world, 104)[1].straggler.rank == 1


def test_in_groups_whose_places_are_not_searched_it_need_not_be_larger(make_world, monkeypatch) -> None:
    monkeypatch.setattr(own_time_rules, "PLACE_RANKS", 1)
    world = make_world(2, delays={(1, "data"): 480}, own=True)
    world.detail_every = 1000
    assert played(world, 160)[1].straggler.rank == 1


def test_a_rank_that_is_a_little_late_between_the_pauses_of_another_contradicts_nothing(make_world) -> None:
    """Arrivals flag it with certainty; own times do not, because in part it waits for a CPU."""
    world = make_world(3, own=True)
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for step in range(480):
        world.delays = {(1, ("data", "forward", "before_backward")[step % 3]): 3_000}
        world.cpu_us = {0: 0, 1: 3_000 if step % 5 in (0, 2) else 0, 2: 0}
        if step % 40 == 39:
            world.delays[0, "optimizer"] = 1_500_000
        feed_together(reducer, world.steps(1))
    reducer.state.settle()
    figures = reducer.state.figures
    slot = figures.steps.ranks.count - 1
    assert figures.flags.at(slot).flag.pattern == "intermittent"
    assert not agreement.arrivals_disagree(figures, slot)


def test_figures_describe_the_steps_since_the_onset_and_since_it_has_recovered(make_world) -> None:
    world = make_world(2, own=True)
    reducer, _ = played(world, 100)
    world.delays = {(0, "forward"): 10_000}
    feed_together(reducer, world.steps(40))
    frame = reducer.frame(5_000 * 10**9 + world.now_us * 1000)
    assert frame.straggler is not None
    assert frame.group.window_steps == 40
    assert frame.straggler.lateness_ms == pytest.approx(10.0)
    assert frame.group.step_ms_p50 == pytest.approx(24.0)
    world.delays = {}
    for before, healthy in itertools.pairwise((0, 32, 60, 140)):
        feed_together(reducer, world.steps(healthy - before))
        frame = reducer.frame(5_000 * 10**9 + world.now_us * 1000)
        assert frame.straggler is None
        assert frame.group.window_steps == min(100, healthy), "those since it has recovered"
        assert frame.ranks.excess_ms.tolist() == pytest.approx([0.0, 0.0], abs=0.1)
        assert frame.group.step_ms_p50 == pytest.approx(14.0)
    assert [event.kind for event in frame.events if "straggler" in event.kind] == [
        "straggler",
        "straggler_end",
    ]


def test_a_rank_that_stays_late_in_steps_that_take_longer_has_not_recovered(make_world) -> None:
    world = make_world(2, delays={(0, "forward"): 10_000}, own=True)
    reducer, frame = played(world, 100)
    assert frame.straggler is not None
    world.delays = {(0, "forward"): 1_010_000, (1, "forward"): 1_000_000}
    feed_together(reducer, world.steps(60))
    frame = reducer.frame(5_000 * 10**9 + world.now_us * 1000)
    assert frame.straggler is None, "10 ms of 1 s"
    assert frame.group.window_steps == 100
    assert frame.ranks.excess_ms.tolist() == pytest.approx([10.0, -10.0], abs=0.1)


def test_ranks_are_compared_within_their_group_and_hosts_need_no_clocks(make_world) -> None:
    pairs = ((0, 1), (2, 3))
    world = make_world(4, groups=(pairs, pairs), delays={(3, "forward"): 6_000}, own=True)
    members = [world.membership(rank, str(1 + rank // 2), *pairs[rank // 2]) for rank in range(4)]
    _, frame = played(world, 60, members)
    assert frame.straggler is not None
    assert frame.straggler.rank == 3


def test_without_the_last_gradient_other_places_count_and_backward_is_unknown(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 6_000}, own=True)
    world.no_last_gradient = {0, 1}
    _, frame = played(world, 80)
    late = frame.straggler
    assert late is not None
    assert (late.rank, late.cause, late.basis) == (1, "data", "every_step")
    assert np.isnan(late.parts_ms["backward"])
    assert json.loads(json.dumps(snapshot(frame)))["straggler"]["parts_ms"]["backward"] is None
    hidden = make_world(2, delays={(1, "backward"): 20_000}, own=True)
    hidden.no_last_gradient = {0, 1}
    _, frame = played(hidden, 120)
    assert frame.straggler is not None
    assert frame.straggler.basis == "arrivals", "every step is blind to backward, the buckets are not"


def test_verdicts_do_not_depend_on_how_often_frames_are_made(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 3_000}, own=True)
    messages = [world.run(), *world.introduce(), *world.steps(90)]
    often, once = Reducer(), Reducer()
    for received in messages:
        often.feed(received)
        often.state.settle()
        once.feed(received)
    now = 5_000 * 10**9 + world.now_us * 1000
    assert snapshot(often.frame(now)) == snapshot(once.frame(now))


@pytest.mark.parametrize("alike", [0.0, 0.8])
def test_intervals_of_a_median_hold_what_they_claim(alike: float) -> None:
    rng, held = np.random.default_rng(1), 0
    for _ in range(100):
        noise = rng.normal(size=140)
        for at in range(1, 140):
            noise[at] = alike * noise[at - 1] + np.sqrt(1 - alike**2) * noise[at]
        low, high = interval_of_median(10.0 + noise[40:])
        held += low <= 10.0 <= high
    assert held >= 90  # of 95; with blocks of 8 steps, 80 where neighbours are alike


def test_an_interval_is_wider_by_what_the_steps_do_not_show() -> None:
    values = np.random.default_rng(0).normal(10.0, 1.0, 100)
    low, high = interval_of_median(values)
    wide = interval_of_median(values, 2.0)
    assert wide[1] - wide[0] == pytest.approx(2 * (high - low))


def gc_excess(ms: float):
    """Pauses of one of two ranks in one step in five, of steps of 20 ms."""
    excess = np.zeros((2, 200))
    excess[1, 40::5] = ms
    return excess, np.full(200, 20.0)


def test_stamped_pauses_are_large_from_a_tenth_of_the_step() -> None:
    excess, wall = gc_excess(4.0)
    assert own_time_rules.intermittent(excess, wall) is None
    late = own_time_rules.intermittent(excess, wall, are_pauses=True)
    assert late is not None and late.ranks == (1,)
    excess, wall = gc_excess(1.5)
    assert own_time_rules.intermittent(excess, wall, are_pauses=True) is None


def test_few_pauses_need_not_be_alike() -> None:
    excess, wall = gc_excess(25.0)
    excess[1, :160] = 0.0
    excess[1, 165::10] = 60.0
    assert own_time_rules.intermittent(excess, wall) is None
    late = own_time_rules.intermittent(excess, wall, are_pauses=True)
    assert late is not None and late.ranks == (1,)


@pytest.mark.parametrize("blinded", ["own_time_rules.FLAG_MS", "agreement.ON_TIME"])
def test_arrivals_disagree_alike_however_many_steps_are_evaluated_at_once(
    make_world, monkeypatch, blinded: str
) -> None:
    """Own times flag no rank where arrivals do, or the flagged rank is taken to arrive on time."""
    monkeypatch.setattr(f"ddptop.analysis.straggler.{blinded}", 1e6)
    world = make_world(2, own=True)
    received = [world.run(), *world.introduce()]
    for delay_us in (0, 5_000, 0, 5_000):
        world.delays = {(1, "forward"): delay_us}
        received += world.steps(150)
    found = []
    for n_messages in (len(received), 20):
        reducer = Reducer()
        for begin in range(0, len(received), n_messages):
            feed_together(reducer, received[begin : begin + n_messages])
            reducer.state.settle()
        events = [(event.step, event.message) for event in reducer.state.log.all()]
        found.append(events)
    assert found[0] == found[1]
    assert sum("say otherwise" in text for _, text in found[0]) == 2


def test_which_ranks_are_late_often_is_found_for_all_windows_at_once() -> None:
    excess = np.where(noise(8, 5, 200, scale=0.3) > 0.1, 0.2, 0.0) + np.linspace(0.0, 0.3, 5)[:, None]
    excess[2, 40:60] = np.nan
    ends = np.arange(own_time_rules.NEWEST - 1, 200, own_time_rules.EVERY)
    windows = ends[:, None] + np.arange(1 - own_time_rules.NEWEST, 1)
    least = np.linspace(0.15, 0.45, len(ends))
    found = own_time_rules.late_often(excess, least, windows)
    single = [
        [(rank_excess[window] > at_least).sum() >= 0.7 * len(window) for rank_excess in excess]
        for window, at_least in zip(windows, least, strict=True)
    ]
    assert found.tolist() == single and 0 < found.sum() < found.size
