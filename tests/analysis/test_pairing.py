"""Which steps are complete."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.analysis.steps import pairing as module
from ddptop.analysis.steps.complete_steps import CompleteStep, columns_of
from ddptop.analysis.steps.pairing import MAX_HELD, Pairing
from ddptop.protocol.codec import encode
from ddptop.protocol.message_run import StepMessages
from ddptop.protocol.messages import OwnTime, StepRow, Steps

ROW = StepRow(0, 1, 0, 0, 0, 0, 0, 0, -1, 1, 0, 0, None, ())


def add(pairing: Pairing, rank: int, step: int, count: int = 1) -> list[int]:
    """The steps that a message of a rank with so many rows makes complete."""
    messages = StepMessages.of([Steps(0, step, 0, (ROW,) * count)])
    taken, done = pairing.add(messages, np.array([rank]), np.array([0]))
    assert taken == 1
    return [step for _, steps in done for step in steps.numbers.tolist()]


def test_a_step_is_complete_when_the_last_rank_has_reported_it() -> None:
    pairing = Pairing(2)
    assert add(pairing, 0, 0, 2) == []
    assert add(pairing, 1, 0) == [0]
    assert add(pairing, 1, 1) == [1]


def test_a_step_that_one_rank_lost_is_passed_over() -> None:
    pairing = Pairing(2)
    assert add(pairing, 0, 0, 3) == []
    assert add(pairing, 1, 0) == [0]
    assert add(pairing, 1, 2) == [2]
    assert add(pairing, 1, 1) == []


def test_repeated_rows_count_once() -> None:
    pairing = Pairing(2)
    assert add(pairing, 0, 0) == []
    assert add(pairing, 0, 0) == []


def test_messages_of_any_length_make_the_same_steps_complete() -> None:
    """Rows that others wait for are kept together where they came together."""
    rng, next_step, sent, orders = np.random.default_rng(4), [0, 0, 0], [], []
    while min(next_step) < 200:
        rank, count = int(rng.integers(3)), int(rng.integers(1, 20))
        if next_step[rank] < min(next_step) + 40:
            sent.append((rank, next_step[rank], count))
            next_step[rank] += count
    for in_single_rows in (False, True):
        pairing, complete = Pairing(3), []
        for rank, first, count in sent:
            for row in range(count if in_single_rows else 1):
                complete += add(pairing, rank, first + row, 1 if in_single_rows else count)
        orders.append((complete, pairing.held))
    assert orders[0] == orders[1]
    assert orders[0][0] == [*range(min(next_step))]


def test_a_rank_that_is_never_heard_does_not_fill_the_memory() -> None:
    pairing = Pairing(2)
    for step in range(0, 3 * MAX_HELD, 64):
        add(pairing, 0, step, 64)
    assert pairing.held <= MAX_HELD
    assert add(pairing, 1, 3 * MAX_HELD - 1) == [3 * MAX_HELD - 1]


def test_messages_with_which_there_is_too_much_to_hold_are_all_added_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_HELD", 40)
    row = ROW._replace(own=OwnTime(*(0,) * len(OwnTime._fields)), begin_us=3_000_000)
    # Rank 2 reports the first steps when the others are far ahead, and then every step.
    sent = [(rank, step) for step in range(0, 60, 2) for rank in (0, 1)] + [(2, s) for s in range(0, 60, 2)]
    messages = StepMessages.decoded([encode(Steps(1, step, 0, (row, row))) for _, step in sent])
    assert messages is not None
    ranks = np.array([rank for rank, _ in sent])
    together, alone = Pairing(3), Pairing(3)
    taken, done = together.add(messages, ranks, np.zeros(len(ranks), np.int64))
    expected = []
    for at, (rank, step) in enumerate(sent):
        expected += [(at, complete) for complete in add(alone, rank, step, 2)]
    assert taken == len(sent)
    assert expected[0][1] > 0  # some were forgotten
    pairs = [zip(numbers.tolist(), steps.numbers.tolist(), strict=True) for numbers, steps in done]
    assert [pair for of_steps in pairs for pair in of_steps] == expected
    assert together.held == alone.held
    block = columns_of([done[0][1]])
    assert CompleteStep(expected[0][1], block).begin_ns.tolist() == [3 * 10**9] * 3
    # As wide as they came.
    assert {block.integers.dtype, block.own.dtype, block.cells.dtype} == {np.dtype(np.int32)}  # type: ignore[union-attr]
