"""Which steps are complete."""

from __future__ import annotations

from ddptop.analysis.steps.pairing import MAX_HELD, Batch, Pairing
from ddptop.protocol.messages import StepRow

ROW = StepRow(0, 1, 0, 0, 0, 0, 0, 0, -1, 1, 0, 0, None, ())
BATCH = Batch(0, 0)


def test_a_step_is_complete_when_the_last_rank_has_reported_it() -> None:
    pairing = Pairing(2)
    assert pairing.add(0, 0, ROW, BATCH) is None
    assert pairing.add(0, 1, ROW, BATCH) is None
    first, second = pairing.add(1, 0, ROW, BATCH), pairing.add(1, 1, ROW, BATCH)
    assert first is not None
    assert second is not None
    assert (first.step, second.step) == (0, 1)


def test_a_step_that_one_rank_lost_is_passed_over() -> None:
    pairing = Pairing(2)
    for step in range(3):
        pairing.add(0, step, ROW, BATCH)
    assert pairing.add(1, 0, ROW, BATCH) is not None
    done = pairing.add(1, 2, ROW, BATCH)
    assert done is not None
    assert done.step == 2
    assert pairing.add(1, 1, ROW, BATCH) is None


def test_repeated_rows_count_once() -> None:
    pairing = Pairing(2)
    assert pairing.add(0, 0, ROW, BATCH) is None
    assert pairing.add(0, 0, ROW, BATCH) is None


def test_a_rank_that_is_never_heard_does_not_fill_the_memory() -> None:
    pairing = Pairing(2)
    for step in range(3 * MAX_HELD):
        pairing.add(0, step, ROW, BATCH)
    assert pairing.held <= MAX_HELD
    done = pairing.add(1, 3 * MAX_HELD - 1, ROW, BATCH)
    assert done is not None
