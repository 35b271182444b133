"""Cells of single ranks put together."""

from __future__ import annotations

import numpy as np

from ddptop.analysis.steps.bucket_times import figures, launched, timing
from ddptop.analysis.steps.complete_steps import CompleteStep, columns_of
from ddptop.analysis.steps.pairing import Pairing
from ddptop.protocol.message_run import StepMessages
from ddptop.protocol.messages import Flag, StepRow, Steps


def row(begin_us: int, *cells: int, flags: int = Flag.DETAIL) -> StepRow:
    return StepRow(begin_us, 50_000, 0, 0, 0, 0, 0, 0, -1, 1, flags, 0, None, cells)


def step(*rows: StepRow, layouts: tuple[int, ...] = (0, 0, 0)) -> CompleteStep:
    messages = StepMessages.of([Steps(0, 7, 1_000_000, (one,)) for one in rows])
    ranks = np.arange(len(rows))
    _, ((_, steps),) = Pairing(len(rows)).add(messages, ranks, np.array(layouts[: len(rows)]))
    return CompleteStep(7, columns_of([steps]))


def launches(complete: CompleteStep) -> tuple[int, ...] | None:
    """The buckets that all ranks launched."""
    (numbers,) = launched(complete.block, np.array([complete.at]))
    return numbers


def test_rows_that_begin_at_different_times_meet_on_one_clock() -> None:
    """Rank 1 begins 2 ms earlier and arrives 20 ms later: one bucket of 1 ms."""
    steps = [step(row(2_000, 0, 5_000, 21_000), row(0, 0, 27_000, 1_000))]
    found = figures(timing(steps, (0,), lanes=2, aligned=True))
    assert found.lateness.tolist() == [[-20.0, 20.0]]
    assert found.waits.wait.tolist() == [[20.0, 0.0]]
    assert found.waits.transfer.tolist() == [[1.0, 1.0]]
    assert found.last.tolist() == [1]
    assert found.recoverable.tolist() == [20.0]
    assert found.both.tolist() == [21.0]


def test_between_hosts_nobody_is_named_but_the_wait_is_known() -> None:
    steps = [step(row(2_000, 0, 5_000, 21_000), row(900_000, 0, 27_000, 1_000))]
    found = figures(timing(steps, (0,), lanes=2, aligned=False))
    assert np.isnan(found.lateness).all()
    assert np.isnan(found.recoverable).all()
    assert np.isnan(found.bucket_skew).all()
    assert found.last.tolist() == [-1]
    assert found.waits.wait.tolist() == [[20.0, 0.0]]
    assert found.waits.transfer.tolist() == [[1.0, 1.0]]


def test_a_late_completion_stamp_does_not_make_anybody_late() -> None:
    """Three buckets, two lanes; rank 0 saw the first end 18 ms too late. Ready stamps are equal."""
    honest = row(0, 0, 1_000, 2_000, 1, 2_000, 2_000, 2, 3_000, 2_000)
    stamped = row(0, 0, 1_000, 20_000, 1, 2_000, 20_000, 2, 3_000, 19_000)
    found = figures(timing([step(stamped, honest)], (0, 1, 2), lanes=2, aligned=True))
    assert found.lateness.tolist() == [[0.0, 0.0]]
    assert found.recoverable.tolist() == [0.0]


def test_a_joined_rank_is_never_scored() -> None:
    joined = row(0, 0, 1, 40_000, flags=Flag.JOINED | Flag.DETAIL)
    steps = [step(row(0, 0, 5_000, 6_000), joined, row(0, 0, 10_000, 1_000))]
    assert launches(steps[0]) == (0,)
    found = figures(timing(steps, (0,), lanes=2, aligned=True))
    np.testing.assert_array_equal(found.lateness, [[-5.0, np.nan, 5.0]])
    assert found.last.tolist() == [2]
    assert np.isnan(found.waits.wait[0, 1])


def test_an_unknown_end_leaves_that_rank_unknown() -> None:
    steps = [step(row(0, 0, 5_000, -1), row(0, 0, 10_000, 1_000))]
    found = figures(timing(steps, (0,), lanes=2, aligned=True))
    np.testing.assert_array_equal(found.waits.collective, [[np.nan, 1.0]])
    np.testing.assert_array_equal(found.lateness, [[-5.0, 5.0]])


def test_steps_are_judged_only_if_all_ranks_launched_the_same() -> None:
    assert launches(step(row(0, 0, 1, 1), row(0, 0, 1, 1))) == (0,)
    assert launches(step(row(0, 0, 1, 1), row(0, 1, 1, 1))) is None
    assert launches(step(row(0, 0, 1, 1), row(0, 0, 1, 1, 1, 2, 1))) is None
    assert launches(step(row(0, 0, 1, 1), row(0, flags=0))) is None
    assert launches(step(row(0, 0, 1, 1), row(0, 0, 1, 1), layouts=(0, 1))) is None
    assert launches(step(row(0, 0, 1, 1), row(0, 0, 1, 1), layouts=(-1, -1))) is None


def test_a_rank_late_only_for_a_hidden_bucket_costs_nothing() -> None:
    """Rank 1 is 5 ms late for the first bucket and on time for the last: the step is no longer for it."""
    steps = [step(row(0, 0, 1_000, 6_000, 1, 20_000, 1_000), row(0, 0, 6_000, 1_000, 1, 20_000, 1_000))]
    found = figures(timing(steps, (0, 1), lanes=2, aligned=True))
    assert found.lateness.tolist() == [[-5.0, 5.0]]
    assert found.recoverable.tolist() == [0.0]
    assert found.waits.exposed_wait.tolist() == [[0.0, 0.0]]
