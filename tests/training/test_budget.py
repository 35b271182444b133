"""Sampling keeps to the budget, and N moves by powers of two."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddptop.protocol.messages import Flag
from ddptop.training import budget
from ddptop.training.budget import (
    AFTER_UNSEEN_NS,
    ASIDE_NS,
    CALM_BATCHES,
    DETAIL_COSTS,
    EACH_FOURTH_PERIOD,
    EACH_PERIOD,
    EACH_SECOND_PERIOD,
    EACH_SIXTEENTH_PERIOD,
    FEWEST_FULL_DETAIL_STEPS,
    FULL_DETAIL_STEPS,
    MARKS_NS,
    MAX_LOSS_EVERY,
    MAX_MARKS_EVERY,
    MAX_RECORD_EVERY,
    UNSEEN_FACTOR,
    USUAL_MAX_DETAIL_EVERY,
    WATCHED_STEPS,
    WRAPPER_NS,
    Budget,
)
from ddptop.training.medians import median_or_zero
from ddptop.training.own_cost import CLOCKED, is_clocked
from ddptop.training.shadow import is_turn, next_recorded
from ddptop.training.step_record import StepRecord

MS = 1_000_000


def record(step: int, *, wall: int, cost: float, detail: bool, shadow: bool = False) -> StepRecord:
    """`cost`: with what no clock sees."""
    cost = round(cost / UNSEEN_FACTOR)
    begin = step * wall
    flags = int(Flag.DETAIL) if detail else int(Flag.SHADOW) if shadow else 0
    return StepRecord(step, begin, begin + wall, 0, 0, 0, 0, -1, -1, -1, -1, 1, flags, cost, None, [])


class Training:
    """Steps as a rank takes them, on simulated time: costs are the test's, batches come every 250 ms."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.step = 0
        self.seen: list[int] = []
        """`every` after each batch."""

    def run(
        self,
        steps: int,
        *,
        wall: int,
        plain: int | Callable[[int], int],
        detail: int | Callable[[int], int],
        publisher: int = 20_000,
    ) -> None:
        """`plain` and `detail`: CPU ns of a step of the kind, or of the step with this number."""
        end = self.step + steps
        while self.step < end:
            batch = []
            for step in range(self.step, min(end, self.step + max(1, 250 * MS // wall))):
                detailed = is_turn(step, self.budget.detail_every)
                if next_recorded(step, self.budget.record_every) > step:
                    batch.append(
                        record(step, wall=wall, cost=ASIDE_NS - WRAPPER_NS, detail=False, shadow=True)
                    )
                    continue
                cost = detail if detailed else plain
                cost = cost if isinstance(cost, int) else cost(step)
                batch.append(record(step, wall=wall, cost=cost if is_clocked(step) else 0, detail=detailed))
            self.step += len(batch)
            self.budget.account_for(batch, spent_ns=publisher)
            self.seen.append(self.budget.every)


def trained(steps: int = 2_000, **costs: int) -> Budget:
    training = Training(Budget(1.0))
    training.run(steps, **costs)  # type: ignore[arg-type]  # none is a function here
    return training.budget


def test_a_dear_step_after_one_with_detail_is_counted_as_details() -> None:
    training = Training(Budget(1.0))

    def plain(step: int) -> int:
        return 700_000 if (step - 1) % training.budget.detail_every == 0 else 50_000

    training.run(3_000, wall=50 * MS, plain=plain, detail=600_000)
    assert set(training.seen[-100:]) <= {4, 8}
    assert training.budget.cost_pct < 1.0


def test_cheap_detail_is_taken_in_every_step() -> None:
    assert trained(wall=50 * MS, plain=5_000, detail=100_000).every == 1


def test_dear_detail_is_sampled_just_enough() -> None:
    budget = trained(wall=3 * MS, plain=5_000, detail=205_000)
    assert budget.every == 16  # 200 us in the 30 - 5 - 2 - 0.2 = 22.8 us left: every 8.8 steps, so 16
    assert budget.cost_pct < 1.0


def test_the_first_200_steps_are_detailed_whatever_they_cost() -> None:
    training = Training(Budget(1.0))
    training.run(FULL_DETAIL_STEPS - 1, wall=MS, plain=5_000, detail=900_000)
    assert set(training.seen) == {1}


def test_the_interval_changes_by_one_power_of_two_at_a_time() -> None:
    training = Training(Budget(1.0))
    training.run(4_000, wall=3 * MS, plain=5_000, detail=205_000)
    training.run(4_000, wall=50 * MS, plain=5_000, detail=205_000)
    pairs = list(zip([1, *training.seen], training.seen, strict=False))
    assert max(training.seen) == 16, "it did change"
    assert training.seen[-1] == 1, "and came back when steps grew longer"
    assert {max(pair) // min(pair) for pair in pairs} == {1, 2}


def test_a_batch_without_room_does_not_end_detail() -> None:
    """One measurement of a second, or one batch in which nothing but our own threads ran."""
    training = Training(Budget(1.0))
    training.run(1_000, wall=10 * MS, plain=20_000, detail=120_000)
    before = training.budget.every
    outlier = training.step
    training.run(1_000, wall=10 * MS, plain=20_000, detail=lambda s: 10**9 if s - outlier < 8 else 120_000)
    training.run(24, wall=10 * MS, plain=10**9, detail=10**9, publisher=10**9)
    assert set(training.seen[-50:]) == {before}


def test_a_change_of_load_is_forgotten_within_seven_measurements() -> None:
    training = Training(Budget(1.0))
    training.run(2_000, wall=10 * MS, plain=20_000, detail=600_000)
    assert training.budget.every == 8
    begin = len(training.seen)
    training.run(400, wall=10 * MS, plain=20_000, detail=60_000)
    assert training.budget.every == 1
    assert training.seen.index(4, begin) - begin <= DETAIL_COSTS * CLOCKED // 25 + 1, (
        "batches are of 25 steps"
    )


@pytest.mark.parametrize(
    ("extra", "rarest"), [(150_000, 8), (600_000, 32), (1_400_000, 64), (10_000_000, 512)]
)
def test_detail_is_rarer_than_every_8th_step_only_where_it_is_too_dear_there(extra: int, rarest: int) -> None:
    """3 ms steps: 30 us of budget less 7 for all else, so that 600 us must be spread over 26 steps."""
    training = Training(Budget(1.0))
    training.run(60_000, wall=3 * MS, plain=5_000, detail=5_000 + extra)
    assert training.budget.every == rarest
    at = training.seen.index(USUAL_MAX_DETAIL_EVERY)
    if rarest > USUAL_MAX_DETAIL_EVERY:
        batches = training.seen.index(2 * USUAL_MAX_DETAIL_EVERY) - at
        assert batches * 83 >= DETAIL_COSTS * USUAL_MAX_DETAIL_EVERY, (
            "after so many measurements at this rate"
        )


def test_what_the_first_steps_cost_does_not_make_detail_rarer_than_every_8th_step() -> None:
    """Cold caches, a model being compiled, another rank that still starts: many times what it is later."""
    training = Training(Budget(1.0))
    training.run(4_000, wall=10 * MS, plain=20_000, detail=lambda s: 5_000_000 if s < 350 else 300_000)
    assert max(training.seen) == 8


@pytest.mark.parametrize(
    ("wall_us", "plain_us", "pct", "every"),
    [
        (900, 45, 1.0, 64),
        (1_000, 50, 1.0, 32),
        (2_000, 90, 1.0, 16),
        (4_000, 140, 1.0, 8),
        (5_000, 180, 1.0, 8),  # eight buckets, two ranks: 1.5 % with one step in 40 ms at least
        (10_000, 150, 1.0, 4),
        (20_000, 250, 1.0, 2),
        (40_000, 600, 1.0, 1),  # one in 62.5 ms at least
        (2_000, 10, 1.0, 1),
        (10_000, 90, 0.1, 64),
        (40_000, 600, 0.1, 64),
    ],
)
def test_steps_are_left_out_until_the_budget_holds_for_everything(
    wall_us: int, plain_us: int, pct: float, every: int
) -> None:
    training = Training(Budget(pct))
    training.run(30_000, wall=1_000 * wall_us, plain=1_000 * plain_us, detail=2_000 * plain_us, publisher=0)
    budget = training.budget
    assert budget.record_every == every
    if every > 1:
        assert budget.cost_pct <= pct


def test_a_batch_that_is_taken_rarely_stands_for_several() -> None:
    """With next to no budget the steps are taken every 4 s: one after the other took half a minute."""
    training = Training(Budget(0.1))
    seen = []
    for _ in range(20):
        training.run(25, wall=10 * MS, plain=180_000, detail=490_000, publisher=500_000)
        seen.append(training.budget.record_every)
    first = seen.index(next(every for every in seen if every > 1))
    assert seen[first + 3] == MAX_RECORD_EVERY


def test_what_the_publisher_took_is_forgotten_after_seconds_however_rarely_it_works() -> None:
    """Once steps are taken every 4 s, what it took before is not shown for a minute."""
    budget = Budget(0.1)
    training = Training(budget)
    training.run(400, wall=10 * MS, plain=100_000, detail=200_000, publisher=900_000)
    assert budget.every_step_pct > 0.3
    for first in range(400, 1_600, 400):
        steps = [record(step, wall=10 * MS, cost=0, detail=False) for step in range(first, first + 400)]
        budget.account_for(steps, spent_ns=900_000)
    assert budget.every_step_pct < 0.1


def test_a_publisher_that_takes_little_because_it_works_rarely_goes_on_so() -> None:
    budget = Budget(0.1)
    step, rates = 0, []
    for _ in range(60):
        n_steps = 25 * budget.report_every
        steps = [record(n, wall=10 * MS, cost=0, detail=False) for n in range(step, step + n_steps)]
        budget.account_for(steps, spent_ns=900_000)  # 0.36 % of each period
        step += n_steps
        rates.append(budget.report_every)
    assert rates[-40:] == [EACH_SIXTEENTH_PERIOD] * 40


def test_once_costs_are_measured_the_right_share_of_the_steps_is_left_out_at_once() -> None:
    training = Training(Budget(1.0))
    training.run(500, wall=MS // 2, plain=60_000, detail=90_000)
    assert training.budget.record_every <= 2, "the publisher's start is in the first batch"
    training.run(500, wall=MS // 2, plain=60_000, detail=90_000)
    assert training.budget.record_every == MAX_RECORD_EVERY


def test_steps_that_vary_do_not_change_how_many_are_left_out() -> None:
    training = Training(Budget(1.0))
    training.run(3_000, wall=31 * MS, plain=350_000, detail=700_000)
    assert training.budget.record_every == 2
    for wall_ms in (32, 31) * 20:
        training.run(80, wall=wall_ms * MS, plain=350_000, detail=700_000)
        assert training.budget.record_every == 2


def test_steps_that_have_become_longer_are_recorded_one_after_the_other() -> None:
    training = Training(Budget(1.0))
    costs = {"plain": 230_000, "detail": 500_000}
    training.run(8_000, wall=11 * MS, **costs)  # type: ignore[arg-type]
    loss_every = training.budget.loss_every
    assert training.budget.record_every == 4 and loss_every < MAX_LOSS_EVERY
    training.run(22, wall=14 * MS, **costs)  # type: ignore[arg-type]
    assert training.budget.record_every == 1, "one batch later"
    n_recorded = 0
    while training.budget.record_every == 1:
        training.run(14, wall=14 * MS, **costs)  # type: ignore[arg-type]
        n_recorded += 14
    assert 56 <= n_recorded <= 100
    assert training.budget.loss_every == loss_every, "nor do losses become rarer for it"


def test_what_longer_steps_take_to_record_is_saved_before() -> None:
    """Steps that are longer now and then, as on a busy machine, do not take more than the budget."""
    training = Training(Budget(1.0))
    training.run(8_000, wall=11 * MS, plain=230_000, detail=500_000)
    saved_us, watched = WATCHED_STEPS * 290.0, 0
    for number in range(400):
        wall = (14 if number % 12 < 2 else 11) * MS
        training.run(17, wall=wall, plain=230_000, detail=500_000)
        saved_us += 17 * (0.01 * training.budget.step_ns / 1e3 - training.budget.cost_us)
        watched += training.budget.record_every == 1
    assert watched > 20
    assert saved_us >= 0


def test_more_steps_are_left_out_at_once_and_fewer_only_after_some_time() -> None:
    training = Training(Budget(1.0))
    training.run(FULL_DETAIL_STEPS, wall=MS, plain=50_000, detail=60_000)
    batches = 0
    while training.budget.record_every < 16:
        training.run(250, wall=MS, plain=50_000, detail=60_000)
        batches += 1
    assert batches <= 8
    training.run(250 * CALM_BATCHES, wall=MS, plain=2_000, detail=3_000)
    assert training.budget.record_every >= 8
    training.run(60_000, wall=MS, plain=2_000, detail=3_000)
    assert training.budget.record_every == 1
    full = Training(Budget(1.0, full_detail=True))
    full.run(5_000, wall=MS, plain=50_000, detail=60_000)
    assert full.budget.record_every == 1


@pytest.mark.parametrize(
    ("wall_ms", "plain_us", "detail_us", "every", "most_pct"),
    [
        (10, 100, 490, 8, 1.0),  # as measured beside busy loops: 25 to 40 us a bucket; steps are left out
        (53, 350, 675, 8, 1.08),  # about as measured in `ddptop demo`
        (53, 450, 775, 32, 1.22),  # 1.2 % without detail, which takes 1/32 of the budget
    ],
)
def test_detail_goes_on_where_the_phases_fill_the_budget(
    wall_ms: int, plain_us: int, detail_us: int, every: int, most_pct: float
) -> None:
    training = Training(Budget(1.0))
    training.run(4_000, wall=wall_ms * MS, plain=1_000 * plain_us, detail=1_000 * detail_us)
    assert training.seen[-1] == every
    assert training.budget.cost_pct <= most_pct


def test_a_tight_budget_reads_the_loss_less_often_and_a_roomy_one_always() -> None:
    training = Training(Budget(1.0))
    training.run(5_000, wall=MS, plain=20_000, detail=205_000)
    assert 1 < training.budget.loss_every <= MAX_LOSS_EVERY
    training.run(500, wall=50 * MS, plain=20_000, detail=205_000)
    assert training.budget.loss_every == 1


@pytest.mark.parametrize(
    ("pct", "wall_us", "publisher", "every"),
    [
        (1.0, 1_000, 500_000, EACH_SECOND_PERIOD),
        (1.0, 3_900, 20_000, EACH_SECOND_PERIOD),
        (1.0, 4_100, 500_000, EACH_PERIOD),  # half as often a flag would come and go 25 steps of 10 ms later
        (1.0, 20_000, 500_000, EACH_PERIOD),
        (1.0, 40_000, 500_000, EACH_SECOND_PERIOD),
        (1.0, 80_000, 500_000, EACH_SECOND_PERIOD),
        (1.0, 40_000, 1_200_000, EACH_FOURTH_PERIOD),
        (1.0, 28_000, 1_200_000, EACH_SECOND_PERIOD),  # there steps are left out
        (0.5, 10_000, 500_000, EACH_PERIOD),
        (0.1, 10_000, 500_000, EACH_SIXTEENTH_PERIOD),
        (0.1, 40_000, 500_000, EACH_SIXTEENTH_PERIOD),  # 0.2 % of a core
        (0.1, 40_000, 20_000, EACH_SECOND_PERIOD),
        (0.1, 400_000, 20_000, EACH_SECOND_PERIOD),
    ],
)
def test_steps_are_reported_more_rarely_where_they_are_long_or_the_budget_is_tight(
    pct: float, wall_us: int, publisher: int, every: int
) -> None:
    training = Training(Budget(pct))
    training.run(4_000, wall=1_000 * wall_us, plain=180_000, detail=490_000, publisher=publisher)
    assert training.budget.report_every == every


def test_long_steps_are_reported_as_before_once_there_is_room_for_it() -> None:
    training = Training(Budget(1.0))
    training.run(1_000, wall=57 * MS, plain=420_000, detail=700_000)
    assert training.budget.report_every == EACH_FOURTH_PERIOD
    training.run(1_000, wall=57 * MS, plain=330_000, detail=700_000)
    assert training.budget.report_every == EACH_FOURTH_PERIOD, "or it would come and go"
    training.run(1_000, wall=57 * MS, plain=200_000, detail=700_000)
    assert training.budget.report_every == EACH_SECOND_PERIOD


def test_long_steps_are_reported_in_each_second_period_from_the_start_on() -> None:
    training = Training(Budget(1.0))
    training.run(10, wall=40 * MS, plain=180_000, detail=490_000)
    assert training.budget.report_every == EACH_SECOND_PERIOD
    training.run(80, wall=10 * MS, plain=180_000, detail=490_000)
    assert training.budget.report_every == EACH_PERIOD, "only the first ones were long"


@pytest.mark.parametrize(("wall_ms", "steps"), [(10, FULL_DETAIL_STEPS), (80, 50)])
def test_sampling_begins_after_some_steps_or_seconds(wall_ms: int, steps: int) -> None:
    training = Training(Budget(1.0))
    costs = {"plain": 5_000 * wall_ms, "detail": 20_000 * wall_ms}
    training.run(steps - 1000 // wall_ms, wall=wall_ms * MS, **costs)
    assert training.budget.every == 1
    training.run(2 * 1000 // wall_ms, wall=wall_ms * MS, **costs)
    assert training.budget.every > 1


def test_a_long_first_step_ends_no_full_detail() -> None:
    training = Training(Budget(1.0))
    costs = {"plain": 50_000, "detail": 200_000}
    training.run(1, wall=8000 * MS, **costs)
    training.run(FEWEST_FULL_DETAIL_STEPS - 2, wall=10 * MS, **costs)
    assert training.budget.every == 1
    training.run(2, wall=10 * MS, **costs)
    training.run(50, wall=10 * MS, **costs)
    assert training.budget.every > 1


def test_full_detail_is_kept_whatever_it_costs_and_the_cost_is_told() -> None:
    training = Training(Budget(1.0, full_detail=True))
    training.run(2_000, wall=3 * MS, plain=5_000, detail=205_000, publisher=25_000)
    budget = training.budget
    assert budget.every == 1
    assert budget.cost_us == pytest.approx((205_000 + WRAPPER_NS + 300) / 1e3, rel=0.01)
    assert budget.cost_pct == pytest.approx(100 * budget.cost_us / 3_000, rel=0.01)


def test_no_cost_is_reported_before_the_publishers_start_is_one_batch_of_several() -> None:
    budget = Budget(1.0)

    def account_for(first: int, n_steps: int, spent_ns: int) -> tuple[float, float]:
        steps = range(first, first + n_steps)
        budget.account_for([record(step, wall=6 * MS, cost=30_000, detail=True) for step in steps], spent_ns)
        return budget.reported_cost

    # As in a run that hangs at step 60: the start of the publisher beside 20 short steps.
    assert account_for(0, 20, 40 * MS) == (0.0, 0.0)
    assert account_for(20, 40, MS) == (0.0, 0.0)
    assert account_for(60, 40, MS) == (0.0, 0.0)  # three batches, but only 0.6 s
    cost_us, cost_pct = account_for(100, 100, MS)
    assert (cost_us, cost_pct) == (budget.cost_us, budget.cost_pct)
    assert 0.5 < cost_pct < 1.0


def test_a_single_long_batch_says_no_cost_either() -> None:
    budget = Budget(1.0)
    for step in range(2):
        budget.account_for([record(step, wall=5_000 * MS, cost=30_000, detail=True)], spent_ns=40 * MS)
        assert budget.reported_cost == (0.0, 0.0)
    budget.account_for([record(2, wall=5_000 * MS, cost=30_000, detail=True)], spent_ns=MS)
    assert budget.reported_cost == (budget.cost_us, budget.cost_pct)


def test_the_interval_in_use_is_the_largest_of_the_group_and_so_is_the_cost() -> None:
    training = Training(Budget(1.0))
    training.budget.announced = 8
    training.run(1_000, wall=10 * MS, plain=20_000, detail=100_000, publisher=0)
    assert (training.budget.every, training.budget.detail_every) == (2, 8)
    assert training.budget.cost_us == pytest.approx(20 + 2 + 80 / 8, rel=1e-4)


def test_a_pause_between_two_steps_makes_no_room_for_more_detail() -> None:
    budget = Budget(1.0)
    batch = [record(step, wall=3 * MS, cost=8_000, detail=False) for step in range(20)]
    batch[7] = batch[7]._replace(end=batch[7].end + 10**10)
    budget.account_for(batch, spent_ns=0)
    assert budget.cost_pct == pytest.approx(100 * (8_000 + WRAPPER_NS) / (3 * MS), rel=1e-4)


def test_what_the_publisher_takes_between_two_long_steps_is_counted() -> None:
    budget = Budget(1.0)
    for step in range(10):  # steps of 2 s: of eight rounds of the publisher seven bring no record
        for _ in range(7):
            budget.account_for([], spent_ns=500_000)
        budget.account_for([record(step, wall=2_000 * MS, cost=0, detail=False)], spent_ns=500_000)
    assert budget.cost_us == pytest.approx(8 * 500 + WRAPPER_NS / 1e3)


def test_stack_samples_take_what_is_left_of_the_budget_and_count_while_they_are_taken() -> None:
    roomy, over = Budget(1.0), Budget(1.0)
    for used, plain in ((roomy, 20_000), (over, 400_000)):
        training = Training(used)
        training.run(400, wall=25 * MS, plain=plain, detail=plain)
        before_pct = used.cost_pct
        used.stack_share = 0.002
        training.run(200, wall=25 * MS, plain=plain, detail=plain)
        assert used.cost_pct == pytest.approx(before_pct + 0.2, abs=0.01)
    assert roomy.sampling_share == pytest.approx(0.003)
    assert over.cost_pct > 1.0 and over.sampling_share == pytest.approx(0.0005)


def test_what_every_step_pays_is_the_publisher_and_what_is_clocked_where_the_recorder_pauses() -> None:
    budget = Budget(1.0)
    training = Training(budget)
    training.run(500, wall=10 * MS, plain=30_000, detail=60_000, publisher=500_000)
    publisher_pct = 0.2  # of 250 ms
    assert budget.every_step_pct == pytest.approx(publisher_pct + 100 * ASIDE_NS / (10 * MS))
    for clocked_ns in (16_000, 16_000, 900_000):
        budget.note_unseen_end(clocked_ns)
    training.run(500, wall=10 * MS, plain=30_000, detail=60_000, publisher=500_000)
    assert budget.every_step_pct == pytest.approx(
        publisher_pct + 100 * (16_000 + AFTER_UNSEEN_NS) / (10 * MS)
    )


def test_replica_checks_are_counted_per_step() -> None:
    budget = Budget(1.0)
    budget.account_for([record(1, wall=500 * MS, cost=0, detail=False)], spent_ns=0, checks_ns=100_000)
    assert budget.cost_us == pytest.approx(100 + WRAPPER_NS / 1e3)


@pytest.mark.parametrize(
    ("counted_us", "low", "high"),
    [(25.8, 31, 46), (33.1, 35, 53), (75.8, 69, 125), (106.3, 142, 212), (134, 187, 281)],
)
def test_the_cost_of_a_step_is_near_what_was_measured_from_outside(
    counted_us: float, low: float, high: float
) -> None:
    budget = Budget(1.0)
    cost = round(counted_us * 1000)
    batch = [record(step, wall=5 * MS, cost=0, detail=False)._replace(cost=cost) for step in range(40)]
    budget.account_for(batch, spent_ns=0)
    assert low <= budget.cost_us <= high


@pytest.mark.parametrize(("text", "expected"), [("2.5", 2.5), ("", 1.0), ("much", 1.0)])
def test_the_budget_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: float
) -> None:
    monkeypatch.setenv("DDPTOP_BUDGET", text)
    assert Budget.from_environment().budget_pct == expected


def test_on_a_loaded_machine_detail_goes_on() -> None:
    """As recorded beside busy loops: one of two ranks with four buckets, detail in every eighth step.

    `loaded_trace.txt` holds for each step its length and the time of the recorder's own code (us), whether
    that is CPU time or elapsed time, and the timed all-reduces; `batch` and the CPU time of the publisher
    (us) end a batch.
    """
    path = Path(__file__).parent / "loaded_trace.txt"
    rows = [line.split() for line in path.read_text().splitlines()]
    costs: dict[tuple[str, bool], list[int]] = {}
    for row in rows:
        if row[0] != "batch":
            costs.setdefault((row[2], row[3] != "0"), []).append(int(row[1]))
    elapsed = costs["elapsed", True]
    assert max(elapsed) > 20 * median_or_zero(elapsed), "other processes ran within our code"
    budget, batch, seen, taken_pct, at, now = Budget(1.0), [], [], [], 0, 0
    for row in 4 * rows:
        if row[0] == "batch":
            budget.account_for(batch, spent_ns=1_000 * int(row[1]))
            seen.append(budget.every)
            taken_pct.append(budget.cost_pct)
            batch = []
            continue
        detailed = at % budget.detail_every == 0
        kind = costs["cpu", detailed]
        wall = 1_000 * int(row[0])
        made = record(at, wall=wall, cost=1_000 * kind[at // 8 % len(kind)] * UNSEEN_FACTOR, detail=detailed)
        batch.append(made._replace(begin=now, end=now + wall, calls=[[None, 0, 0]] * (4 * detailed)))
        at, now = at + 1, now + wall
    assert max(seen) <= 16, "steps of 10 to 13 ms at a load of 15; the controller before went to 4096"
    assert sorted(seen)[len(seen) // 2] <= 8
    taken_pct = taken_pct[len(taken_pct) // 2 :]
    assert sum(taken_pct) / len(taken_pct) <= 1.0


def test_a_device_that_waits_for_its_host_is_marked_more_rarely_where_the_phases_are_over_budget() -> None:
    training = Training(Budget(1.0))
    costs = {"wall": 2 * MS, "plain": 200_000, "detail": 400_000}
    training.run(1_000, **costs)  # type: ignore[arg-type]
    assert training.budget.marks_every == 1, "a device that is behind its host has times of its own"
    training.budget.device_waits = True
    training.run(3_000, **costs)  # type: ignore[arg-type]
    assert training.budget.marks_every == MAX_MARKS_EVERY
    training.budget.device_waits = False
    training.run(200, **costs)  # type: ignore[arg-type]
    assert training.budget.marks_every == 1


def test_the_marks_of_some_steps_are_in_the_cost_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps whose cost is measured are not marked then."""
    monkeypatch.setattr(budget, "MAX_RECORD_EVERY", 1)
    training = Training(Budget(1.0))
    training.budget.device_waits = True

    def plain(_step: int) -> int:
        return 20_000 if training.budget.marks_every > 1 else 20_000 + MARKS_NS

    training.run(4_000, wall=4 * MS, plain=plain, detail=60_000 + MARKS_NS)
    assert training.budget.marks_every > 1
    assert training.budget.cost_us > (20_000 + MARKS_NS / training.budget.marks_every) / 1e3


def test_in_long_steps_every_one_is_marked() -> None:
    training = Training(Budget(1.0))
    training.budget.device_waits = True
    training.run(1_000, wall=80 * MS, plain=200_000, detail=400_000)
    assert training.budget.marks_every == 1
