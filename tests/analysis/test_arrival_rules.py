"""Which rank is flagged, why, and which is not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.straggler.arrival_flags import find_cause
from ddptop.analysis.straggler.arrival_rules import measure
from tests.analysis.arrivals import looks
from tests.made_up_run import bucket, feed_together

NS = 1_000_000_000
START_NS = 5_000 * NS


def watch(world, steps: int, reducer: Reducer | None = None):
    """Run the world on and look at it."""
    if reducer is None:
        reducer = Reducer()
        feed_together(reducer, [world.run(), *world.introduce()])
    feed_together(reducer, world.steps(steps))
    return reducer.frame(START_NS + world.now_us * 1000), reducer


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("where", "blamed"),
    [
        ("data", "data"),
        ("forward", "forward"),
        ("backward", "backward"),
        ("late_backward", "backward"),
        ("optimizer", "optimizer"),
        ("other", "other"),
    ],
)
def test_a_rank_20_ms_late_is_named_within_100_steps_with_its_cause(make_world, size, where, blamed) -> None:
    found, _ = watch(make_world(size, delays={(1, where): 20_000}), 100)
    straggler = found.straggler
    assert straggler is not None
    assert (straggler.rank, straggler.cause, straggler.pattern) == (1, blamed, "persistent")
    assert straggler.lateness_ms == pytest.approx(20.0, rel=0.05)
    assert straggler.recoverable_ms == pytest.approx(20.0, rel=0.05)
    assert straggler.last_pct >= 99
    assert straggler.cost_pct == pytest.approx(100 * 20 / 34, rel=0.05)
    assert straggler.parts_ms[blamed] == pytest.approx(20.0, rel=0.05)
    others = [rank for rank in range(size) if rank != 1]
    assert found.ranks.exposed_wait_ms[others].tolist() == pytest.approx([20.0] * len(others), rel=0.05)
    assert found.ranks.exposed_wait_ms[1] == 0
    assert found.ranks.transfer_ms.tolist() == pytest.approx([3.0] * size)
    assert found.group.no_straggler_ms == pytest.approx(14.0)
    assert found.group.both_ms == pytest.approx(12.0)
    assert found.ranks.relative_score[1] == pytest.approx(14 / 34, rel=0.01)


def test_the_cause_is_mixed_when_no_phase_holds_four_fifths(make_world) -> None:
    found, _ = watch(make_world(4, delays={(2, "data"): 12_000, (2, "forward"): 8_000}), 50)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (2, "mixed")


def test_causes() -> None:
    assert find_cause({"data": 8.0, "forward": 2.0, "backward": -5.0}) == "data"
    assert find_cause({"data": 7.9, "forward": 2.1, "backward": 0.0}) == "mixed"
    assert find_cause({"data": 0.0, "forward": -1.0}) is None


@pytest.mark.parametrize("slow", [(1, 3), (0, 3)])
def test_two_slow_ranks_of_four_are_named_together(make_world, slow) -> None:
    """Mending only one of them gives nothing back; the cost is that of both."""
    found, _ = watch(make_world(4, delays={(rank, "data"): 20_000 for rank in slow}), 60)
    straggler = found.straggler
    assert straggler is not None
    assert straggler.rank in slow
    assert (sorted(straggler.ranks), straggler.pattern) == ([*slow], "persistent")
    assert straggler.recoverable_ms == pytest.approx(20.0)
    assert straggler.cost_pct == pytest.approx(100 * 20 / 34, rel=0.01)
    assert (straggler.cause, straggler.parts_ms["data"]) == ("data", pytest.approx(20.0))
    assert straggler.last_pct == 100
    late = [20 if rank in slow else -20 for rank in range(4)]
    assert found.ranks.lateness_ms.tolist() == late
    assert found.group.no_straggler_ms == pytest.approx(14.0)
    assert found.group.both_ms == pytest.approx(12.0)


def test_a_second_rank_that_is_much_less_late_is_not_blamed(make_world) -> None:
    found, _ = watch(make_world(6, delays={(1, "data"): 20_000, (3, "data"): 6_000}), 60)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.ranks) == (1, ())
    assert found.straggler.recoverable_ms == pytest.approx(14.0)


def test_slow_ranks_that_are_the_most_are_not_slow(make_world) -> None:
    """Three of four: then the fourth is fast, and there is nothing to mend in one or two."""
    found, _ = watch(make_world(4, delays={(rank, "data"): 20_000 for rank in (0, 1, 2)}), 60)
    assert found.straggler is None


def test_two_late_ranks_whose_delay_hides_behind_compute_cost_nothing(make_world) -> None:
    """Both are 2 ms late for the first bucket and on time for the last, which decides the step."""
    delays = {(rank, "backward"): 2_000 for rank in (1, 3)} | {
        (rank, "late_backward"): -2_000 for rank in (1, 3)
    }
    found, _ = watch(make_world(4, delays=delays), 60)
    assert found.ranks.lateness_ms.tolist() == [-2, 2, -2, 2]
    assert found.straggler is None


def test_a_joined_rank_is_neither_named_nor_waited_for(make_world) -> None:
    world = make_world(4, delays={(2, "data"): 20_000})
    world.joined = {2}
    found, _ = watch(world, 100)
    (event,) = [event for event in found.events if event.kind == "out_of_batches"]
    assert (event.rank, event.step) == (2, 0)
    assert event.message.startswith("rank 2 has no batches left since step 0: ")
    assert found.straggler is None
    assert np.isnan(found.ranks.lateness_ms[2])
    assert np.isnan(found.ranks.wait_ms[2])
    assert found.ranks.wait_ms[[0, 1, 3]].tolist() == [0, 0, 0]
    assert found.group.no_straggler_ms == found.group.step_ms_p50


def test_what_costs_too_little_is_not_worth_a_name(make_world) -> None:
    found, _ = watch(make_world(4, delays={(1, "data"): 250}), 60)
    assert found.straggler is None
    assert found.ranks.lateness_ms[1] == pytest.approx(0.25)
    assert found.ranks.last_pct[1] == 100


def test_a_straggler_that_recovers_is_let_go_and_both_are_told(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 20_000})
    _, reducer = watch(world, 120)
    world.delays.clear()
    found, _ = watch(world, 120, reducer)
    assert found.straggler is None
    told = [(h.kind, h.rank) for h in found.events]
    assert told == [("joined", None), ("straggler", 1), ("straggler_end", 1)]
    assert found.ranks.individual_score[1] == pytest.approx(1.0)


def test_a_rebuild_lets_the_name_go_and_baselines_start_again(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 20_000})
    _, reducer = watch(world, 100)
    world.generation = 1
    rebuilt = (bucket(0, 16_000_000), bucket(1, 1_000))
    for rank in range(2):
        reducer.feed(world.layout(rank, rebuilt))
    found, _ = watch(world, 10, reducer)
    assert found.straggler is None
    assert found.events[-1].kind == "straggler_end"
    assert np.isnan(found.ranks.individual_score).all()
    found, _ = watch(world, 60, reducer)
    assert found.straggler is not None
    assert found.straggler.lateness_ms == pytest.approx(20.0)


def test_a_rank_that_has_just_become_slow_is_shown_with_what_it_costs_now(make_world) -> None:
    world = make_world(4)
    _, reducer = watch(world, 100)
    world.delays[2, "backward"] = 20_000
    shown = [watch(world, 1, reducer)[0].straggler for _ in range(100)]
    first = next(i for i, found in enumerate(shown) if found is not None)
    assert 24 <= first < 80, "more than half of the newest steps"
    for found in shown[first:]:
        assert found is not None
        assert (found.rank, found.cause) == (2, "backward")
        assert found.lateness_ms == pytest.approx(20.0)


def test_a_rank_that_became_slow_scores_below_its_own_best(make_world) -> None:
    world = make_world(2)
    _, reducer = watch(world, 100)
    world.delays[1, "data"] = 14_000
    found, _ = watch(world, 100, reducer)
    assert found.ranks.individual_score.tolist() == pytest.approx([1.0, 0.5])


def test_a_straggler_that_moves_is_named_anew(make_world) -> None:
    world = make_world(4, delays={(1, "data"): 20_000})
    _, reducer = watch(world, 120)
    world.delays = {(3, "optimizer"): 20_000}
    found, _ = watch(world, 100, reducer)
    assert found.straggler is not None
    assert (found.straggler.rank, found.straggler.cause) == (3, "optimizer")
    assert found.straggler.pattern == "persistent", "one move is no rotation"


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_equal_ranks_under_heavy_noise_are_never_named(make_world, size) -> None:
    """Each rank is 3 ms late on average, exponentially: a fifth of the step, and nobody's fault."""
    noise = random.Random(size)
    world = make_world(size)
    _, reducer = watch(world, 1)

    def delay_ranks() -> None:
        for rank in range(size):
            world.delays[rank, "forward"] = int(noise.expovariate(1 / 3000))

    for _ in range(250):
        feed_together(reducer, world.steps(8, before_step=delay_ranks))
        assert reducer.frame(START_NS + world.now_us * 1000).straggler is None


def test_a_phase_bears_out_a_straggler_whose_arrivals_vary() -> None:
    """Rank 1's forward is 3 ms longer, and load on the machine delays both ranks by more than that."""
    for seed in range(5):
        noise = np.random.default_rng(seed)
        load = noise.normal(0, 4, (500, 2))
        delay = np.zeros((500, 2))
        delay[250:, 1] = 3 + np.abs(noise.normal(0, 0.3, 250))
        late = 15 + load + delay
        names = [(at, named) for at, named, _ in looks(late, shown=(delay + 10) / late, hidden=True)]
        assert [at for at, named in names if at <= 250 and named is not None] == []
        found = [named for at, named in names if 250 < at <= 350 and named is not None]
        assert found, f"seed {seed}: within 100 steps"
        assert {(named.rank, named.pattern) for named in found} == {(1, "persistent")}


def test_a_straggler_is_named_within_250_steps_with_detail_in_every_eighth(make_world) -> None:
    world = make_world(2, detail_every=8)
    _, reducer = watch(world, 500)
    world.delays[1, "data"] = 3_000
    named = [watch(world, 10, reducer)[0].straggler for _ in range(25)]
    assert named[-1] is not None
    assert (named[-1].rank, named[-1].cause) == (1, "data")


@pytest.mark.parametrize("late_us", [500, 20_000])
def test_no_measurement_costs_more_than_what_rules_it_out(make_world, late_us) -> None:
    """With one rank late, with several, and with a joined rank whose arrival is not known."""
    world = make_world(5, delays={(1, "data"): late_us, (3, "forward"): late_us - 100})
    _, reducer = watch(world, 70)
    world.joined = {4}
    watch(world, 30, reducer)
    (window,) = reducer.state.figures.detail.scopes.values()
    slots = window.group.recent(100)
    for steps in (slots, slots[:60], slots[-40:]):
        measured = [one for rank in range(5) if (one := measure(window, steps, rank)) is not None]
        most = window.most_lost_pct(steps)
        assert measured and max(one.cost_pct for one in measured) <= most
        assert (most == float("inf")) == (steps[-1] >= 70)
