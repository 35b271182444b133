"""Patterns of lateness under noise: what is found, how soon, and what must not be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import windows
from ddptop.analysis.steps.groups import Scope
from ddptop.analysis.straggler import arrival_flags
from ddptop.frames.statistics import certainty
from tests.analysis.arrivals import looks, straggler
from tests.made_up_run import feed_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from ddptop.analysis.steps.groups import Flagged
    from ddptop.analysis.steps.windows import DetailWindow
    from ddptop.frames.columns import Column

    Load = Callable[[Generator, int, int], Column]

HEALTHY_STEPS = 4_000
"""For each kind of noise and each world; together 80 minutes at 30 steps in a second."""


def correlated(rho: float) -> Load:
    """Load that comes and goes: a process of the first order."""

    def load(noise: Generator, steps: int, world: int) -> Column:
        level = np.zeros(world)
        shocks = noise.normal(0, np.sqrt(1 - rho * rho), (steps, world))
        found = np.empty((steps, world))
        for i in range(steps):
            found[i] = level = rho * level + shocks[i]
        return np.abs(3 * found)

    return load


def uneven(load: Load) -> Load:
    """The same, and the noise of one rank a fifth greater."""

    def found(noise: Generator, steps: int, world: int) -> Column:
        return load(noise, steps, world) * np.where(np.arange(world) == 1, 1.2, 1.0)

    return found


def half_normal(noise: Generator, steps: int, world: int) -> Column:
    return np.abs(noise.normal(0, 3, (steps, world)))


def exponential(noise: Generator, steps: int, world: int) -> Column:
    return noise.exponential(3, (steps, world))


def heavy(noise: Generator, steps: int, world: int) -> Column:
    return noise.lognormal(0, 1.5, (steps, world))


def start_up(noise: Generator, steps: int, world: int) -> Column:
    """One rank is slow for the first two dozen steps, and single long hiccups come later."""
    found = np.abs(noise.normal(0, 1, (steps, world)))
    found[:24, noise.integers(world)] += 20
    found[noise.integers(steps, size=20), noise.integers(world, size=20)] += 500
    return found


def bursts(noise: Generator, steps: int, world: int) -> Column:
    """Now and then something else on the machine slows one rank for up to 20 steps."""
    found = np.abs(noise.normal(0, 1, (steps, world)))
    for at in range(0, steps - 20, 200):
        found[at : at + noise.integers(5, 21), noise.integers(world)] += noise.uniform(3, 15)
    return found


HEALTHY = {
    "half-normal": half_normal,
    "exponential": exponential,
    "heavy": heavy,
    "start-up": start_up,
    "bursts": bursts,
    "correlated": correlated(0.5),
    "uneven half-normal": uneven(half_normal),
    "uneven exponential": uneven(exponential),
    "uneven heavy": uneven(heavy),
}


@pytest.mark.parametrize("world", [8, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 3, 4))])
@pytest.mark.parametrize("kind", HEALTHY)
def test_nobody_is_named_in_a_healthy_noisy_run(kind, world) -> None:
    noise = np.random.default_rng([len(kind), world])
    named = [who for _, who, _ in looks(HEALTHY[kind](noise, HEALTHY_STEPS, world)) if who is not None]
    assert named == []


def last(late: Column) -> tuple[list[tuple[int, Flagged | None]], DetailWindow]:
    """All looks, and the state after the last."""
    found = list(looks(late))
    return [(steps, who) for steps, who, _ in found], found[-1][2]


def noisy(world: int, steps: int, seed: int = 0) -> tuple[Generator, Column]:
    noise = np.random.default_rng([seed, world])
    return noise, noise.exponential(1.0, (steps, world))


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("delay", [4.0, 20.0])
def test_a_persistent_straggler_is_named_within_100_steps(world, delay) -> None:
    noise, late = noisy(world, 600)
    late[300:, 1] += noise.normal(delay, delay / 10, 300)
    found, state = last(late)
    assert {who for steps, who in found if steps <= 300} == {None}
    named = {(who.rank, who.pattern) if who else None for steps, who in found if steps >= 400}
    assert named == {(1, "persistent")}
    shown = straggler(state, 600)
    assert shown is not None
    assert shown.lateness_ms == pytest.approx(delay, abs=1.0)
    assert shown.cause == "forward"


def test_random_delays_of_one_rank_are_persistent_too() -> None:
    noise, late = noisy(4, 400)
    late[:, 2] += noise.exponential(20.0, 400)
    found, _ = last(late)
    assert {who and (who.rank, who.pattern) for steps, who in found if steps >= 100} == {(2, "persistent")}


@pytest.mark.parametrize(("world", "count"), [(4, 2), (8, 2), (8, 3), (8, 4)])
def test_a_set_of_slow_ranks_is_named_with_the_cost_of_all(world, count) -> None:
    noise, late = noisy(world, 300)
    late[:, 1 : 1 + count] += noise.normal(20.0, 2.0, (300, count))
    found, state = last(late)
    assert all(who is not None and 1 <= who.rank <= count for steps, who in found if steps >= 100)
    shown = straggler(state, 300)
    assert shown is not None
    assert sorted(shown.ranks) == list(range(1, 1 + count))
    assert shown.ranks[0] == shown.rank
    others = np.delete(late, list(shown.ranks), axis=1).max(axis=1)
    assert shown.recoverable_ms == pytest.approx(float(np.median(late.max(axis=1) - others)), rel=0.1)
    assert shown.parts_ms["forward"] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("share", [0.2, 0.45])
def test_a_rank_late_now_and_then_is_intermittent(world, share) -> None:
    noise, late = noisy(world, 800)
    slow = noise.random(800) < share
    late[:, 1] += np.where(slow, 20.0, 0.0)
    found, state = last(late)
    assert {who.rank for _, who in found if who is not None} == {1}
    now = found[-1][1]
    assert now is not None
    assert now.pattern == "intermittent"
    shown = straggler(state, 800)
    assert shown is not None
    # Its cost is a mean: over the steps remembered it is what the late ones lose, spread over all.
    lost = np.where(slow, late[:, 1] - np.delete(late, 1, axis=1).max(axis=1), 0.0).clip(0).mean()
    assert shown.cost_pct == pytest.approx(100 * lost / (22.0 + late.max(axis=1).mean()), rel=0.1)
    assert shown.last_pct == pytest.approx(100 * slow.mean(), abs=4)
    assert shown.lateness_ms == pytest.approx(20.0, abs=2)
    assert (shown.cause, shown.parts_ms["forward"]) == ("forward", pytest.approx(20.0, abs=2))


def test_a_rank_late_in_every_second_step_is_intermittent() -> None:
    _, late = noisy(4, 400)
    late[::2, 3] += 20.0
    found, _ = last(late)
    assert found[-1][1] is not None
    assert found[-1][1][1:3] == (3, "intermittent")


def test_one_bad_stretch_is_no_habit_and_what_is_over_is_let_go() -> None:
    noise, late = noisy(4, 1500)
    late[:700, 1] += np.where(noise.random(700) < 0.3, 20.0, 0.0)
    found, _ = last(late)
    assert any(who is not None and who.pattern == "intermittent" for steps, who in found if steps <= 700)
    assert {who for steps, who in found if steps >= 800} == {None}


@pytest.mark.parametrize("world", [2, 3, 4, 8])
@pytest.mark.parametrize("in_order", [True, False])
def test_ranks_that_are_late_in_turns_rotate(world, in_order) -> None:
    noise, late = noisy(world, 300)
    turn = np.arange(300) % world if in_order else noise.integers(world, size=300)
    late[np.arange(300), turn] += noise.normal(20.0, 2.0, 300)
    found, state = last(late)
    named = {who and who.pattern for steps, who in found if steps >= 100}
    assert named == {"rotating"}
    assert len({who.rank for _, who in found if who is not None}) == 1, "the name does not flicker"
    shown = straggler(state, 300)
    assert shown is not None
    assert shown.ranks[0] == shown.rank
    assert len(shown.ranks) >= 2
    assert shown.lateness_ms == pytest.approx(20.0, abs=2)
    assert shown.cause == "forward"


@pytest.mark.parametrize("world", [2, 4])
def test_a_slow_rank_that_moves_is_named_anew_within_100_steps_and_rotates_in_the_end(world) -> None:
    noise, late = noisy(world, 750)
    slow = (1 + np.arange(750) // 150) % world
    late[np.arange(750), slow] += noise.normal(20.0, 2.0, 750)
    found, state = last(late)
    for steps, who in found:
        if (steps - 1) % 150 >= 99:
            assert who is not None
            assert who.rank == slow[steps - 1]
    shown = straggler(state, 750)
    assert shown is not None
    assert shown.pattern == "rotating"


def test_certainty_asks_more_of_steps_that_resemble_the_ones_before() -> None:
    noise = np.random.default_rng(1)
    alone = 2 + noise.normal(0, 1, 100)
    shared = 2 + np.repeat(noise.normal(0, 1, 10), 10)
    assert certainty(alone) > 5 > certainty(shared)
    assert certainty(np.full(50, 20.0)) == np.inf
    assert certainty(np.full(50, -20.0)) == -np.inf
    assert certainty(np.zeros(50)) == 0
    assert certainty(np.array([1.0])) == 0
    hiccup = alone.copy()
    hiccup[50] = 5_000
    assert certainty(hiccup) == pytest.approx(certainty(alone), rel=0.2)


def test_an_intermittent_straggler_in_a_frame(make_world) -> None:
    world, reducer = make_world(4), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for step in range(300):
        world.delays = {(2, "backward"): 20_000} if step % 5 == 0 else {}
        feed_together(reducer, world.steps(1))
    found = reducer.frame(5_000_000_000_000 + world.now_us * 1000).straggler
    assert found is not None
    assert (found.rank, found.pattern, found.cause) == (2, "intermittent", "backward")
    assert found.lateness_ms == pytest.approx(20.0)
    assert found.recoverable_ms == pytest.approx(20.0)
    assert found.last_pct == pytest.approx(20.0, abs=0.5)
    assert found.cost_pct == pytest.approx(100 * 4 / 18, rel=0.01)


@pytest.mark.parametrize(("shown", "named"), [(1.0, True), (0.7, True), (0.2, False)])
def test_a_lateness_that_no_phase_of_the_rank_bears_out_is_not_named(shown: float, named: bool) -> None:
    late = np.abs(np.random.default_rng(5).normal(0, 0.2, (200, 4)))
    late[:, 2] += 5.0
    found = [name for _, name, _ in looks(late, shown=shown, hidden=True)]
    assert any(found) is named


def test_noise_does_not_keep_a_name_that_a_delay_has_earned() -> None:
    noise = np.random.default_rng(11)
    late = np.abs(noise.normal(0, 1.5, (600, 4)))
    late[:200, 1] += 20.0
    late[200:, 1] += 0.4  # what is left of it would never have earned the name
    names = [(at, named) for at, named, _ in looks(late)]
    assert any(named for at, named in names if at <= 200)
    assert not any(named for at, named in names if at > 320)


MANY = {
    "nothing": lambda late: None,
    "one": lambda late: late.__setitem__((slice(70, None), 5), 12.0),
    "in turn": lambda late: late.__setitem__((np.arange(len(late)), np.arange(len(late)) % 3), 12.0),
}


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 8])
@pytest.mark.parametrize(
    ("pattern", "until"),
    [
        pytest.param("nothing", 0, marks=pytest.mark.slow),
        pytest.param("one", 0, marks=pytest.mark.slow),
        ("in turn", 0),
        pytest.param("in turn", 70, marks=pytest.mark.slow),
        ("one", 70),
    ],
)
def test_of_many_ranks_fewer_detailed_steps_show_the_same(monkeypatch, pattern, until, every):
    def shown() -> list[tuple[object, ...]]:
        found: list[tuple[object, ...]] = []
        for at, flag, window in looks(late, every=every, bounds_ms=bounds_ms):
            slots = window.evaluated((at - 1) * every + 1)
            columns = [window.ranks.of(name, slots) for name in ("exposed", "self", "part_forward")]
            more = [window.best_self, *(scope.bound_ms(slots) for scope in window.scopes.values())]
            held.append(len(window.ranks.recent(1000)))
            found.append((at, flag, arrival_flags.find_straggler(window, slots), np.stack(columns), *more))
        return found

    late = np.abs(np.random.default_rng(3).normal(0, 0.3, (200, windows.MANY_RANKS)))
    MANY[pattern](late)
    bounds_ms = np.where(np.arange(len(late)) < until, 30.0, 0.05)
    held: list[int] = []
    few = shown()
    assert held[-1] == (100 if every == 1 else windows.NEEDED)
    monkeypatch.setattr(windows, "MANY_RANKS", 10**6)
    whole = shown()
    assert held[-1] == 100
    assert len(few) == len(whole)
    named = [at for at, flag, *_ in few if flag is not None]
    assert bool(named) == (pattern != "nothing")
    assert not (pattern == "in turn" and until) or named[0] >= until + 96  # the bound of all of them counts
    for one, other in zip(few, whole, strict=True):
        assert one[:3] == other[:3]
        for mine, theirs in zip(one[3:], other[3:], strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_of_many_ranks_a_group_with_detail_in_some_steps_has_as_many_of_them():
    scopes = [Scope(str(half), tuple(range(512 * half, 512 * half + 512))) for half in (0, 1)]

    def newest() -> list[list[int]]:
        window = windows.DetailWindow(windows.MANY_RANKS, 100, several_hosts=False)
        for scope in scopes:
            window.scope(scope, 0, (), several_hosts=False)
        for step in range(200):
            figures = np.full((len(window.ranks.index), 1, windows.MANY_RANKS), float(step))
            own_figures = np.empty((len(windows.BUCKET_COLUMNS), 1, 0))
            own = (figures[:4, :, :512], np.full((8, 1), float(step)), own_figures)
            window.add(figures, np.full((8, 1), 8.0 * step), {scopes[step % 2]: own})
        return [window.scopes[scope].newest(64).tolist() for scope in scopes]

    assert [len(slots) for slots in newest()] == [50, 50]
