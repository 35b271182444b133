"""Sampling keeps to the budget, and N moves by powers of two."""

import pytest

from ddptop.protocol.messages import Flag
from ddptop.runtime.budget import MAX_EVERY, MAX_LOSS_EVERY, SETTLE_STEPS, WRAPPER_NS, Budget
from ddptop.runtime.recorder import StepRecord


def record(step: int, *, wall: int, cost: int, detail: bool) -> StepRecord:
    begin = step * wall
    flags = int(Flag.DETAIL) if detail else 0
    return StepRecord(step, begin, begin + wall, 0, 0, 0, 0, -1, -1, -1, -1, 1, flags, cost, None, [])


def run(budget: Budget, *, wall: int, plain: int, detail: int, batches: int = 60) -> None:
    step = 0
    for _ in range(batches):
        batch = []
        for _ in range(20):
            detailed = step % budget.every == 0
            batch.append(record(step, wall=wall, cost=detail if detailed else plain, detail=detailed))
            step += 1
        budget.account(batch, publisher_ns=20_000)


def test_cheap_detail_is_taken_in_every_step() -> None:
    budget = Budget(1.0)
    run(budget, wall=50_000_000, plain=5_000, detail=100_000)
    assert budget.every == 1


def test_dear_detail_is_sampled_just_enough() -> None:
    budget = Budget(1.0)
    run(budget, wall=3_000_000, plain=5_000, detail=205_000)
    assert budget.every == 16  # 200 us in the 30 - 5 - 2 - 1 = 22 us left: every 9.1 steps, so 16
    assert budget.cost_pct < 1.0


def test_no_room_at_all_leaves_the_least_detail() -> None:
    budget = Budget(1.0)
    run(budget, wall=100_000, plain=5_000, detail=205_000)
    assert budget.every == MAX_EVERY


def test_a_tight_budget_reads_the_loss_less_often_and_a_roomy_one_always() -> None:
    budget = Budget(1.0)
    run(budget, wall=1_000_000, plain=20_000, detail=205_000)
    assert (budget.tight, budget.loss_every) == (True, MAX_LOSS_EVERY)
    run(budget, wall=50_000_000, plain=20_000, detail=205_000)
    assert (budget.tight, budget.loss_every) == (False, 1)


def test_full_detail_is_kept_whatever_it_costs_and_the_cost_is_told() -> None:
    budget = Budget(1.0, full_detail=True)
    run(budget, wall=3_000_000, plain=5_000, detail=205_000)
    assert budget.every == 1
    assert budget.cost_us == pytest.approx((205_000 + WRAPPER_NS + 1_000) / 1e3, rel=0.01)
    assert budget.cost_pct == pytest.approx(100 * budget.cost_us / 3_000, rel=0.01)


def test_a_pause_between_two_steps_makes_no_room_for_more_detail() -> None:
    budget = Budget(1.0)
    batch = [record(step, wall=3_000_000, cost=8_000, detail=False) for step in range(20)]
    batch[7] = batch[7]._replace(end=batch[7].end + 10**10)
    budget.account(batch, publisher_ns=0)
    assert budget.cost_pct == pytest.approx(100 * (8_000 + WRAPPER_NS) / 3_000_000)


def test_detail_comes_back_when_steps_grow_longer() -> None:
    budget = Budget(1.0)
    run(budget, wall=3_000_000, plain=5_000, detail=205_000)
    before = budget.every
    run(budget, wall=50_000_000, plain=5_000, detail=205_000)
    assert budget.every < before


def test_the_first_steps_are_detailed_to_learn_the_layout() -> None:
    budget = Budget(1.0)
    budget.account([record(s, wall=100_000, cost=500_000, detail=True) for s in range(SETTLE_STEPS - 1)], 0)
    assert budget.every == 1


@pytest.mark.parametrize(("text", "expected"), [("2.5", 2.5), ("", 1.0), ("much", 1.0)])
def test_the_budget_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: float
) -> None:
    monkeypatch.setenv("DDPTOP_BUDGET", text)
    assert Budget.from_environment().budget_pct == expected


def test_a_dear_step_now_and_then_is_told_as_what_it_costs_per_step() -> None:
    budget = Budget(1.0)
    for step in range(160):  # long steps: one in a batch
        cost = 1_600_000 if step % 16 == 0 else 0
        budget.account([record(step, wall=500_000_000, cost=cost, detail=False)], publisher_ns=0)
    assert budget.cost_us == pytest.approx(100 + WRAPPER_NS / 1e3)
