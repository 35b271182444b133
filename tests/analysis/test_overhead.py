"""The recorder's cost by shadow blocks: the interval holds the true value, whatever step times do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ddptop.analysis.health.overhead import APART, AROUND, FEWEST, RecordedSteps, ShadowCost, estimate
from ddptop.analysis.reducer import Reducer
from ddptop.frames.overhead import MeasuredCost, Overhead
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.machine import OwnCost
from ddptop.protocol.messages import Flag, OwnTime, Phase, Received, Steps
from ddptop.training.shadow import BLOCK, LENGTH, PERIOD, next_recorded
from tests.analysis.stalling import Stage, op, users, waits
from tests.made_up_run import START_NS, feed_together

STEP_MS = 3.0


def simulated(rng: np.random.Generator, blocks: int, cost_ms: float) -> ShadowCost:
    """A run whose steps drift, are correlated with their neighbours, and are slow now and then."""
    n = blocks * PERIOD + AROUND + LENGTH
    noise = np.convolve(0.15 * rng.standard_normal(n), 0.6 ** np.arange(64))[:n]
    wall = STEP_MS + noise + 0.3 * np.sin(np.arange(n) / 900)
    wall += np.where(rng.random(n) < 0.05, rng.exponential(8.0, n), 0.0)
    numbers = np.arange(n)
    shadow = (numbers >= PERIOD) & (numbers % PERIOD < LENGTH)
    wall += np.where(shadow, 0.0, cost_ms)
    cost = ShadowCost()
    for part in np.array_split(numbers, n // 100):
        cost.take(part, wall[part], shadow[part, None].repeat(2, axis=1), np.zeros(len(part), bool))
    return cost


@pytest.mark.parametrize(
    "cost_ms", [0.0, 0.2, *(pytest.param(ms, marks=pytest.mark.slow) for ms in (0.05, 1.0))]
)
def test_the_interval_holds_the_true_cost_in_nine_of_ten_runs(cost_ms: float) -> None:
    rng = np.random.default_rng(18)
    held = 0
    for _ in range(100):
        measured = simulated(rng, 12, cost_ms).measured
        assert measured is not None and measured.blocks == 12
        held += measured.low <= 100 * cost_ms / STEP_MS <= measured.high
    assert held >= 90


def test_a_steady_run_gives_its_cost_with_the_share_of_bucket_detail() -> None:
    n = 8 * PERIOD + AROUND + LENGTH
    numbers = np.arange(n)
    shadow = (numbers >= PERIOD) & (numbers % PERIOD < LENGTH)
    detail = (numbers % 32 == 0) & ~shadow
    wall = np.where(shadow, 10.0, 10.1) + np.where(detail, 0.64, 0.0)
    cost = ShadowCost()
    cost.take(numbers, wall, shadow[:, None], detail)
    assert cost.measured is not None
    assert cost.measured.pct == pytest.approx(1.2, abs=0.02)
    assert cost.measured.blocks == 8


def recorded_by_first_blocks(step: int, every: int) -> bool:
    """As versions up to 2026-11-29 chose the steps that they recorded."""
    return step % (BLOCK * every) < BLOCK


def recorded_by_spread_blocks(step: int, every: int) -> bool:
    return next_recorded(step, every) <= step


@pytest.mark.parametrize("is_recorded", [recorded_by_first_blocks, recorded_by_spread_blocks])
def test_how_many_steps_are_left_out_is_known_soon_after_it_changes(
    is_recorded: Callable[[int, int], bool],
) -> None:
    """In recordings of earlier versions as soon as two stretches are apart as far."""
    counted, begin = RecordedSteps(), 0
    for every in (1, 4, 16, 64):
        numbers = np.arange(begin, begin := begin + 8 * BLOCK * max(every, 8))
        recorded = np.array([is_recorded(step, every) for step in numbers.tolist()])
        seen = []
        for part in np.array_split(np.arange(len(numbers)), len(numbers) // BLOCK):
            counted.take(numbers[part], recorded[part])
            seen.append(counted.every)
        assert max(seen) == seen[-1] == every, "never more than that"
        if is_recorded is recorded_by_first_blocks:
            assert seen.index(every) <= 2 * every, "at the second stretch"


@pytest.mark.parametrize("every", [2, 8])
def test_where_steps_are_left_out_the_cost_is_that_of_all_steps(every: int) -> None:
    """Recorded steps take 4 % longer, and 1 in `every` is recorded."""
    numbers = np.arange(20 * 512)
    shadow = np.array([next_recorded(step, every) > step for step in numbers.tolist()])
    wall = np.where(shadow, 1.0, 1.04)
    cost, recorded = ShadowCost(), RecordedSteps()
    assert recorded.every == 1
    for part in np.array_split(numbers, 70):
        recorded.take(part, ~shadow[part])
        cost.take(part, wall[part], shadow[part, None], np.zeros(len(part), bool), recorded.every)
    assert recorded.every == every
    assert cost.measured is not None and FEWEST <= cost.measured.blocks <= len(numbers) / APART
    assert cost.measured.pct == pytest.approx(4.0 / every, rel=0.01)
    recorded.take(numbers[:100], ~shadow[:1].repeat(100))
    assert recorded.every == 1, "all are recorded again"


def test_shadow_blocks_leave_out_no_steps_for_the_budget() -> None:
    numbers = np.arange(4 * PERIOD)
    recorded = RecordedSteps()
    recorded.take(numbers, (numbers < PERIOD) | (numbers % PERIOD >= LENGTH))
    assert recorded.every == 1


def test_blocks_beside_missing_steps_or_of_some_ranks_only_do_not_count() -> None:
    n = 8 * PERIOD + AROUND + LENGTH
    numbers = np.arange(n)
    shadow = ((numbers >= PERIOD) & (numbers % PERIOD < LENGTH))[:, None].repeat(2, axis=1)
    shadow[: 3 * PERIOD, 1] = False
    kept = numbers != 4 * PERIOD - 5
    cost = ShadowCost()
    cost.take(numbers[kept], np.full(n - 1, 5.0), shadow[kept], np.zeros(n - 1, bool))
    assert cost.measured is None
    cost.take(numbers[:0], np.empty(0), shadow[:0], np.zeros(0, bool))
    assert cost.measured is None


def test_fewer_than_six_blocks_have_no_interval() -> None:
    assert estimate(np.ones(FEWEST - 1)) is None
    found = estimate(np.array([0.01, 0.02, 0.03, 0.02, 0.01, 0.9]))
    assert found is not None and found.low == pytest.approx(1.0) and 1.0 < found.pct < 3.0
    assert found.sentence == "what ddptop costs is not measurable yet (6 shadow blocks)"
    narrow = replace(found, high=4.0)
    assert narrow.sentence == "ddptop takes 2.0% of a step (95%: 1.0 to 4.0%; 6 shadow blocks)"
    unseen = replace(narrow, pct=0.4, low=-0.2)
    assert unseen.sentence == "no cost of ddptop is seen: 0.40% (95%: -0.20 to 4.00%; 6 shadow blocks)"
    wide = replace(found, pct=-14.1, low=-49.9, high=40.5)
    assert "not measurable yet" in wide.sentence


def standing_aside(steps: Steps) -> Steps:
    """As a rank reports this step in a shadow block."""
    row = steps.rows[0]._replace(
        **dict.fromkeys(("data_us", "forward_us", "backward_us", "optimizer_us", "micro_steps"), 0),
        **dict.fromkeys(("forward_at_us", "backward_at_us", "optimizer_at_us"), -1),
        flags=int(Flag.SHADOW),
        cells=(),
        own=OwnTime(-1, *[0] * 8),
    )
    return Steps(steps.generation, steps.first_step, steps.base_ns, (row,))


def test_shadow_steps_are_in_no_figure_but_the_step_counter_and_the_history(make_world) -> None:
    """A straggler stays flagged, and columns add up, in the window after a block."""
    world, reducer = make_world(2, own=True, delays={(1, "data"): 20_000}), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for received in world.steps(140):
        message = received.message
        assert isinstance(message, Steps)
        if 125 <= message.first_step < 135:
            message = standing_aside(message)
        reducer.feed(received._replace(message=message))
        if received.message.first_step in (130, 136):
            frame = reducer.frame(START_NS + world.now_us * 1000)
            assert frame.straggler is not None and frame.straggler.rank == 1
            assert frame.straggler.cause == "data"
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.group.step == 139 and frame.group.window_steps == 100
    assert len(frame.history.step) == 140 and not np.isnan(frame.history.step_ms).any()
    assert np.isnan(frame.history.data_ms).sum() == 10
    ranks, parts = frame.ranks, ("data", "forward", "backward", "optimizer", "other")
    total = sum(getattr(ranks, f"{name}_ms") for name in parts)
    assert total == pytest.approx(ranks.step_ms, abs=0.01)
    assert ranks.micro_steps.tolist() == [1, 1]
    assert frame.lost_records == 0
    shown = snapshot(frame)["overhead"]
    assert isinstance(shown, dict) and shown["measured"] is None


def test_the_measured_cost_has_what_steps_pay_in_shadow_blocks_as_well(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])

    def sent(received: Received) -> Received:
        message = received.message
        if isinstance(message, Steps) and message.first_step % PERIOD < LENGTH <= message.first_step:
            return received._replace(message=standing_aside(message))
        return received

    feed_together(reducer, map(sent, world.steps(8 * PERIOD + AROUND + LENGTH)))
    now_ns = START_NS + world.now_us * 1000
    before = reducer.frame(now_ns).overhead
    assert before.measured is not None and before.every_step_pct is None, "an earlier version"
    for rank, pct in enumerate((2.5, 3.0)):
        reducer.feed(Received(now_ns, rank, world.session(rank), 0, OwnCost(now_ns, pct)))
    frame = reducer.frame(now_ns)
    measured = frame.overhead.measured
    assert measured is not None
    for name in ("pct", "low", "high"):
        assert getattr(measured, name) == pytest.approx(getattr(before.measured, name) + 3.0)
    shown = snapshot(frame)["overhead"]
    assert isinstance(shown, dict) and shown["every_step_pct"] == 3.0


def test_a_stall_in_a_shadow_block_is_diagnosed_as_any_other(make_world) -> None:
    """The ranks report no phase and no bucket there, but steps, heartbeats and sequence numbers go on."""
    stage = Stage(make_world(4), steps=35)
    for received in stage.world.steps(5):
        message = received.message
        assert isinstance(message, Steps)
        stage.feed(received._replace(message=standing_aside(message)))
    stage.last_ns = START_NS + stage.world.now_us * 1000
    aside = {"step": 40, "bucket": -1, "phase": int(Phase.OTHER), "sequence": 83}
    stage.beat(17, {rank: aside | ({"sequence": 82} if rank == 1 else {}) for rank in range(4)})
    stage.answer(1, users("tokenize"), groups={"0": 82})
    for rank in (0, 2, 3):
        stage.answer(rank, waits(), groups={"0": 83}, operations=(op(82, done=True), op(83)))
    stall = stage.frame().stall
    assert stall is not None
    assert (stall.kind, stall.ranks, stall.waiting, stall.step) == ("missing", (1,), (0, 2, 3), 40)


@pytest.mark.parametrize(
    ("every", "us", "pct", "sentence"),
    [
        (1, 9.0, 1.8, ""),
        (8, 9.0, 0.9, "1 in 8 steps recorded"),
        (64, 9.0, 1.8, "1 in 64 steps recorded; with 9 us a step that is over the budget"),
        (64, None, None, "1 in 64 steps recorded"),
    ],
)
def test_sampling_that_does_not_keep_the_budget_says_so(
    every: int, us: float | None, pct: float | None, sentence: str
) -> None:
    assert Overhead(1.0, pct, us, 8, 0, recorded_every=every).sampling_sentence == sentence


@pytest.mark.parametrize(
    ("counted_pct", "measured", "phrase", "over"),
    [
        (0.9, None, "0.9%", False),
        (1.2, None, "1.2%", True),
        (None, None, "–", False),
        (0.9, (0.6, 0.3, 1.2), "0.6% (0.3 to 1.2)", False),
        (0.9, (1.6, 1.1, 2.4), "1.6% (1.1 to 2.4)", True),
        (0.9, (1.2, -0.4, 2.7), "0.9%", False),  # an interval that says less than what is counted
    ],
)
def test_the_measured_cost_takes_the_place_of_the_counted_one_once_it_is_known(
    counted_pct: float | None, measured: tuple[float, float, float] | None, phrase: str, over: bool
) -> None:
    shadow = None if measured is None else MeasuredCost(*measured, blocks=24)
    overhead = Overhead(1.0, counted_pct, 30.0, 8, 0, measured=shadow)
    assert overhead.phrase == phrase
    assert overhead.is_over_budget is over
