"""Losses of ranks beside each other: noise is not a difference, a level of one's own is."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from ddptop.analysis.event_log import EventLog
from ddptop.analysis.health.loss_spread import LossSpread, median_losses, stands_apart
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.verdict import verdict
from tests.analysis.stalling import Stage

STEPS, WORLD = 100, 8


def falling(rng: np.random.Generator, world: int = WORLD, steps: int = STEPS, noise: float = 0.1):
    """A loss that falls from 2, with the noise of different batches."""
    return (2 - np.linspace(0, 1, steps))[:, None] + noise * rng.standard_normal((steps, world))


def apart_of(losses) -> list:
    return stands_apart(losses, median_losses(losses))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("world", [2, 3, 8, 256])
def test_the_noise_of_different_batches_is_healthy(seed, world) -> None:
    rng = np.random.default_rng(seed)
    assert apart_of(falling(rng, world)) == []
    assert apart_of(falling(rng, world, steps=32)) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("world", [2, 3, 8, 256])
def test_heavy_tails_are_healthy(seed, world) -> None:
    rng = np.random.default_rng(seed)
    assert apart_of(1 + 0.1 * np.abs(rng.standard_cauchy((STEPS, world)))) == []


def test_ranks_with_levels_of_their_own_are_healthy() -> None:
    """Small shards, learnt by heart: every rank is steady at its own loss."""
    rng = np.random.default_rng(0)
    levels = np.array([0.40, 0.41, 0.43, 0.45, 0.38, 0.42, 0.44, 0.39])
    assert apart_of(levels + 0.001 * rng.standard_normal((STEPS, WORLD))) == []


def test_equal_losses_are_healthy() -> None:
    assert apart_of(np.ones((STEPS, 4))) == []
    assert apart_of(np.ones((STEPS, 4)) + 1e-7 * np.arange(4)) == []


@pytest.mark.parametrize("tails", ["normal", "heavy"])
@pytest.mark.parametrize("world", [3, 4, 64])
def test_a_rank_on_other_data_stands_apart(tails, world) -> None:
    rng = np.random.default_rng(1)
    losses = falling(rng, world)
    if tails == "heavy":
        losses = losses + 0.02 * rng.standard_cauchy((STEPS, world))
    losses[:, 2] += 1.5
    found = apart_of(losses)
    assert [one.rank for one in found] == [2]
    assert found[0].own - found[0].others == pytest.approx(1.5, abs=0.1)
    assert found[0].steps == STEPS


def test_two_of_five_stand_apart() -> None:
    losses = falling(np.random.default_rng(2), 5)
    losses[:, [1, 4]] += 2.0
    assert {one.rank for one in apart_of(losses)} == {1, 4}


def test_too_few_known_steps_say_nothing() -> None:
    losses = falling(np.random.default_rng(3), 4)
    losses[:, 2] += 5
    losses[31:, 0] = np.nan
    assert apart_of(losses) == []
    losses[31, 0] = 1.0
    assert [one.rank for one in apart_of(losses)] == [2]


def test_the_alert_comes_and_goes(make_world) -> None:
    rng = np.random.default_rng(4)
    stage = Stage(make_world(4), steps=0)

    def loss(rank: int, step: int) -> float:
        return 1.0 + 0.05 * rng.standard_normal() + (2.0 if rank == 3 and step < 100 else 0.0)

    stage.feed(*stage.world.steps(48, loss=loss))
    stage.last_ns = 5_000 * 10**9 + stage.world.now_us * 1000
    alert = stage.frame().alerts[0]
    assert (alert.kind, alert.severity, alert.rank) == ("loss_spread", "warning", 3)
    assert alert.message.startswith("loss of rank 3 stands apart: 3.0")
    assert verdict(stage.frame()).line() == f"▲ {alert.message}"
    assert len(stage.said("loss_spread")) == 1
    stage.feed(*stage.world.steps(160, loss=loss))
    stage.last_ns = 5_000 * 10**9 + stage.world.now_us * 1000
    assert stage.frame().alerts == ()
    assert stage.said("loss_spread_end") == ["the ranks' losses agree again"]


def test_a_loss_of_any_size_reaches_viewers(make_world) -> None:
    stage = Stage(make_world(4), steps=0)
    stage.feed(*stage.world.steps(64, loss=lambda rank, step: 1e30 if rank == 3 else 1.0))
    frame = stage.frame()
    assert frame.alerts[0].evidence["loss"] == 1e30
    assert FrameDecoder().decode(encode_frame(frame)).alerts == frame.alerts


def test_of_two_ranks_neither_is_right(make_world) -> None:
    stage = Stage(make_world(2), steps=0)
    stage.feed(*stage.world.steps(64, loss=lambda rank, step: 1.0 + 2 * rank))
    alert = stage.frame().alerts[0]
    assert alert.message == "losses of ranks 0 and 1 stand apart: 1 and 3"


@pytest.mark.parametrize("other", [0.1, 1e300, np.inf])
def test_losses_are_kept_as_float32_until_one_is_another_number(other) -> None:
    """The alert is that of float64 all the same."""
    rng, log = np.random.default_rng(6), EventLog()
    losses = (falling(rng, 3, steps=64) + np.array([0, 0, 2])).astype(np.float32).astype(np.float64)
    losses[5, 1] = np.nan
    spread = LossSpread(log)

    numbers, unix_s = np.arange(64.0), float
    for part in (slice(0, 40), slice(40, 41), slice(41, 64)):  # however many steps are taken at once
        spread.take(numbers[part], losses[part], unix_s)
    assert spread.losses.dtype == np.float32
    assert spread.apart == apart_of(losses) != []
    before = [*losses.copy()]
    losses[0, 0] = other
    spread.take(numbers[:1], losses[:1], unix_s)
    assert spread.losses.dtype == (np.float32 if np.isinf(other) else np.float64)
    np.testing.assert_array_equal(spread.losses[:65], [*before, losses[0]])


def test_many_steps_at_once_say_the_same_as_single_ones() -> None:
    rng, logs = np.random.default_rng(7), []
    losses = falling(rng, 3, steps=2000)
    losses[300:900, 1] *= 1.5
    losses[1200:, 2] *= 1.5
    losses[1500, 0] = np.nan
    for size in (1, 50, 2000):
        spread = LossSpread(log := EventLog())
        for begin in range(0, 2000, size):
            part = slice(begin, begin + size)
            spread.take(np.arange(2000.0)[part], losses[part], begin.__add__)
        logs.append([(event.kind, event.step) for event in log.all()])
    assert logs[0] == logs[1] == logs[2]
    assert [kind for kind, _ in logs[0]] == ["loss_spread", "loss_spread_end", "loss_spread"]


def test_losses_of_many_ranks_are_compared_in_parts_in_little_memory() -> None:
    """The figures are those of whole arrays, the memory is that of one: the collector's was at its highest
    here."""
    rng = np.random.default_rng(5)
    losses = falling(rng, 4096).astype(np.float32)  # as the collector keeps them
    losses[:, [7, 3000]] += 1.5
    middle = np.median(losses, axis=1)[:, None]
    found = apart_of(losses)
    assert {one.rank for one in found} == {7, 3000}
    assert found[0].own == np.median(losses[:, found[0].rank])
    apart = np.abs(np.median(losses - middle, axis=0))
    assert [one.rank for one in found] == sorted((7, 3000), key=lambda rank: -apart[rank])
    tracemalloc.start()
    try:
        assert apart_of(falling(rng, 4096)) == []
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert apart_of(losses[:, 8:2999]) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 1.5 * losses.nbytes
