"""Shadow blocks: which steps they are, and what the recorder makes of them."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from ddptop.protocol.messages import Flag, Phase, Steps
from ddptop.training import attach, join_run, session, unseen_steps
from ddptop.training import recorder as module
from ddptop.training.guard import Guard
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.publisher import LoggedScalars
from ddptop.training.recorder import Recorder
from ddptop.training.sampling_rates import SamplingRates
from ddptop.training.session import Session
from ddptop.training.shadow import (
    BLOCK,
    LENGTH,
    NEVER,
    PERIOD,
    ShadowBlocks,
    next_recorded,
    recorded_block,
)
from ddptop.training.step_record import LeftOutSteps, StepRecord
from ddptop.training.step_times import StepTimes
from tests.training.test_recorder import Clock, records_of


def test_at_most_two_percent_of_the_steps_and_none_before_warm_up() -> None:
    assert PERIOD > 200 and LENGTH / PERIOD <= 0.02


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ShadowBlocks.from_environment().next == PERIOD
    monkeypatch.setenv("DDPTOP_SHADOW", "off")
    assert ShadowBlocks.from_environment().next == NEVER


def test_a_block_that_is_not_allowed_is_left_out() -> None:
    blocks = ShadowBlocks(on=True)
    assert not blocks.stands_aside_from(PERIOD, False)
    assert (blocks.flag, blocks.next) == (0, 2 * PERIOD)
    assert blocks.stands_aside_from(2 * PERIOD, True)


class Stepped:
    """Stands for an optimizer."""


OPTIMIZERS = (Stepped(), Stepped())


def train(recorder: Recorder, clock: Clock, steps: int, optimizers: int = 1) -> None:
    """Steps of 10 ns data, 20 forward, 30 backward, 40 optimizer, as the phases call the recorder. So many
    optimizers step in turn."""

    def seen_end(optimizer: object, _args: object, _kwargs: object) -> None:
        recorder.unseen_step_ends(id(optimizer))

    unseen_end = None
    for step in range(steps):
        optimizer = OPTIMIZERS[step % optimizers]
        if not recorder.aside:
            recorder.data_begins()
        clock.pass_(10_000)
        if not recorder.aside:
            recorder.data_ends()
        if not recorder.unseen.optimizer:
            recorder.forward_begins(True)
            unseen_end = None
        clock.pass_(20_000)
        if not recorder.aside:
            recorder.forward_ends()
            recorder.backward_begins(0.5)
        clock.pass_(30_000)
        if not recorder.aside:
            recorder.backward_ends()
            recorder.optimizer_begins(id(optimizer))
        clock.pass_(40_000)
        if recorder.unseen.optimizer:
            assert recorder.phase is Phase.OTHER and not recorder.detail
            unseen_end = unseen_end or recorder.make_unseen_end(seen_end)
            unseen_end(optimizer, (), {})
        elif recorder.aside:
            recorder.aside_step_ends()
        else:
            recorder.optimizer_ends(id(optimizer))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The recorder's, and shadow blocks are on."""
    monkeypatch.delenv("DDPTOP_SHADOW", raising=False)
    clock = Clock()
    monkeypatch.setattr(module, "now", clock)
    monkeypatch.setattr(module, "count_graph_nodes", clock)  # there are more of them with each forward
    return clock


@pytest.mark.parametrize("are_alike", [True, False], ids=["only ends are seen", "a forward closes each"])
def test_steps_of_a_block_have_begin_and_end_and_the_others_all(clock: Clock, are_alike: bool) -> None:
    recorder = Recorder()
    seen: list[bool] = []
    recorder.unseen.switches.append(seen.append)
    train(recorder, clock, PERIOD + LENGTH + 5, optimizers=1 if are_alike else 2)
    recorder.finish_step()
    assert seen == ([True, False] if are_alike else [])
    records = records_of(recorder)
    assert [record.step for record in records] == [*range(PERIOD + LENGTH + 5)]
    assert {record.end - record.begin for record in records} == {100_000}
    marked = [record.step for record in records if record.flags & Flag.SHADOW]
    assert marked == [*range(PERIOD, PERIOD + LENGTH)]
    rows = [row for message in pack_steps(records, LayoutTracker({})) for row in message.rows]  # type: ignore[union-attr]
    for step, row in enumerate(rows):
        assert row.wall_us == 100
        if step in marked:
            assert row[2:6] == (0, 0, 0, 0) and row.cells == () and row.own.exposed == -1
        else:
            assert row[2:6] == (10, 20, 30, 40) and row.micro_steps == 1
            assert row.loss == 0.5 and row.own[1:9] == (0,) * 8


def blocks_of(every: int, count: int) -> list[int]:
    """Those of the first `count` blocks that are recorded."""
    return [block for block in range(count) if recorded_block(block, every) == block]


@pytest.mark.parametrize("power", range(8))
def test_of_so_many_blocks_one_is_recorded_also_by_ranks_that_record_more(power: int) -> None:
    every, count = 1 << power, 1 << 12
    recorded = blocks_of(every, count)
    assert recorded[0] == 0 and [block // every for block in recorded] == [*range(count // every)]
    assert set(recorded) >= set(blocks_of(2 * every, count))
    for block in (0, 1, 1000, 123_456_789, 1 << 50):
        found = recorded_block(block, every)
        assert found // every == block // every and recorded_block(found, every) == found


@pytest.mark.parametrize("every", [2, 4, 8, 64])
@pytest.mark.parametrize("apart", [1 << power for power in range(9)])
def test_work_in_each_so_many_steps_is_recorded_as_often_as_any_other(every: int, apart: int) -> None:
    """Whatever the first step is that has it: evaluations, saves and collections come at round numbers."""
    period = BLOCK * apart
    for first in range(0, period, max(1, period // 37)):
        seen = [next_recorded(first + n * period, every) <= first + n * period for n in range(4 * every)]
        assert [sum(seen[n : n + every]) for n in range(0, len(seen), every)] == [1] * 4


def test_a_block_is_recorded_in_less_than_twice_the_usual_distance() -> None:
    for every in (2, 4, 8, 16, 32, 64):
        recorded = blocks_of(every, 1 << 12)
        apart = [after - before for before, after in pairwise(recorded)]
        assert max(apart) < 2 * every
        assert [1, 1] not in [[*pair] for pair in pairwise(apart)], "three in a row"


def test_the_recorder_asks_once_a_block_which_steps_are_recorded(clock: Clock) -> None:
    asked = []
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=4)
    choose = recorder.shadow.stands_aside_from
    recorder.shadow.stands_aside_from = lambda step, *words: [asked.append(step), choose(step, *words)][1]  # type: ignore[func-returns-value,method-assign]
    train(recorder, clock, 64 * BLOCK)
    assert 16 <= len(asked) <= 64
    assert all(step % BLOCK in (0, 1, BLOCK - 1) for step in asked)


@pytest.mark.parametrize("every", [2, 8])
def test_over_budget_16_of_every_so_many_steps_are_recorded(clock: Clock, every: int) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=every)
    steps = 2 * BLOCK * every + BLOCK + 5
    train(recorder, clock, steps)
    recorder.finish_step()
    records = records_of(recorder)
    assert [record.step for record in records] == [*range(steps)]
    assert {record.end - record.begin for record in records} == {100_000}
    recorded = [record.step for record in records if not record.flags & Flag.SHADOW]
    assert recorded == [step for step in range(steps) if next_recorded(step, every) <= step]
    assert {records[step].backward for step in recorded} == {30_000}
    taken = StepTimes(recorder.gc_pauses).take_steps(deque(recorder.records))
    assert any(isinstance(each, LeftOutSteps) for each in taken)
    assert sent_rows(taken) == sent_rows(records)


def test_the_first_loss_after_steps_that_are_left_out_is_read(clock: Clock) -> None:
    """However rarely losses are read: it may have become NaN in a step that was left out."""
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=2, loss_every=1 << 30)
    read: list[int] = []
    backward_begins = recorder.backward_begins

    def note_and_begin(loss: float) -> None:
        if recorder.wants_loss:
            read.append(recorder.step)
        backward_begins(loss)

    recorder.backward_begins = note_and_begin  # type: ignore[method-assign]
    train(recorder, clock, 16 * BLOCK)
    recorded = blocks_of(2, 16)
    assert read == [block * BLOCK for block in recorded if block - 1 not in recorded]


def test_who_takes_the_recorder_out_finds_its_wrappers_where_steps_are_about_to_be_left_out(
    clock: Clock,
) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=2)
    unseen: list[bool] = []
    recorder.unseen.switches.append(unseen.append)
    train(recorder, clock, BLOCK)  # the next forward would close the last step of the block
    recorder.finish_step()
    assert (recorder.step, recorder.unseen.optimizer, unseen) == (BLOCK, 0, [True, False])


def sent_rows(records: Sequence[StepRecord | LeftOutSteps]) -> list[tuple[object, ...]]:
    """The rows of all STEPS, each with its step and begin."""
    messages = [message for message in pack_steps(records, LayoutTracker({})) if isinstance(message, Steps)]
    return [
        (step, message.base_ns + 1000 * row.begin_us, *row[1:])
        for message in messages
        for step, row in enumerate(message.rows, message.first_step)
    ]


def test_what_is_recorded_changes_with_the_budget_and_no_step_is_half_seen(clock: Clock) -> None:
    """All that a rank with the larger number records is recorded with the smaller one, too."""
    recorder = Recorder()
    for every in (4, 1, 2, 16, 8, 1):
        recorder.rates = SamplingRates(record_every=every)
        train(recorder, clock, 150)
    recorder.finish_step()
    records = records_of(recorder)
    assert [record.step for record in records] == [*range(900)]
    assert {record.end - record.begin for record in records} == {100_000}
    recorded = [record for record in records if not record.flags & Flag.SHADOW]
    assert {record[3:7] for record in recorded} == {(10_000, 20_000, 30_000, 40_000)}
    assert not any(record.flags & Flag.SHADOW for record in records[192:300]), (
        "from the end of the stretch on"
    )


def test_where_steps_are_left_out_a_pass_over_the_data_has_few_of_them_seen(clock: Clock) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    train(recorder, clock, 40)
    recorder.see_again()  # as where a pass begins
    train(recorder, clock, 4)
    assert recorder.aside and not recorder.unseen.optimizer
    train(recorder, clock, BLOCK)
    assert recorder.unseen.optimizer
    train(recorder, clock, 13 * BLOCK)
    recorder.finish_step()
    records = records_of(recorder)
    recorded = [record.step for record in records if not record.flags & Flag.SHADOW]
    second = next_recorded(BLOCK, 8)
    assert recorded == [*range(BLOCK), *range(second, second + BLOCK)]
    assert {record.end - record.begin for record in records} == {100_000}


def test_another_optimizer_ends_no_step_and_has_more_seen(clock: Clock) -> None:
    recorder = Recorder()
    train(recorder, clock, PERIOD + 3)
    assert recorder.unseen.optimizer and recorder.step == PERIOD + 3
    recorder.unseen_step_ends(id(OPTIMIZERS[1]))
    assert not recorder.unseen.optimizer and recorder.aside
    train(recorder, clock, LENGTH)
    recorder.finish_step()
    records = records_of(recorder)
    assert [record.step for record in records] == [*range(PERIOD + 3 + LENGTH)]
    assert {record.end - record.begin for record in records} == {100_000}


def test_what_is_to_be_done_between_two_steps_is_not_put_off(clock: Clock) -> None:
    recorder = Recorder()
    train(recorder, clock, PERIOD + 3)
    done: list[int] = []
    recorder.do_between_steps(lambda: done.append(recorder.step))
    train(recorder, clock, 1)
    assert done == [PERIOD + 4] and not recorder.unseen.optimizer


def test_what_another_thread_wants_done_is_done_at_the_next_end_of_a_step_that_is_not_seen(
    clock: Clock,
) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    train(recorder, clock, 4 * BLOCK)
    asked: list[int] = []

    def seen_end(optimizer: object, _args: object, _kwargs: object) -> None:
        asked.append(recorder.step)

    end_step = recorder.make_unseen_end(seen_end)
    for _ in range(4):
        end_step(OPTIMIZERS[0])
    recorder.do_between_steps(lambda: None)
    end_step(OPTIMIZERS[0])
    assert asked == [4 * BLOCK + 4]
    recorder.between_steps.clear()  # as where a launcher has ended nothing
    for _ in range(3):
        end_step(OPTIMIZERS[0])
    assert recorder.step == 4 * BLOCK + 7
    recorder.do_between_steps(lambda: None)
    end_step = recorder.make_unseen_end(seen_end)
    end_step(OPTIMIZERS[0])
    assert asked == [4 * BLOCK + 4, 4 * BLOCK + 7], "it was there before the row"


def test_an_optimizer_is_not_kept_alive_by_the_steps_that_it_ends(clock: Clock) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    train(recorder, clock, 4 * BLOCK)
    optimizer = Stepped()
    recorder.unseen.optimizer = id(optimizer)
    end_step = recorder.make_unseen_end(lambda *_: None)
    for _ in range(3):
        end_step(optimizer)
    reference = weakref.ref(optimizer)
    del optimizer
    assert recorder.step == 4 * BLOCK + 3 and reference() is None


def test_a_failure_where_steps_are_seen_again_stays_out_of_training(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = Guard()
    for guarded in (module, unseen_steps):
        monkeypatch.setattr(guarded, "guard", guard)
    recorder = Recorder()
    seen: list[bool] = []
    recorder.unseen.switches += [lambda unseen: 1 // unseen, seen.append]  # type: ignore[list-item]
    train(recorder, clock, PERIOD + LENGTH + 1)
    assert seen == [True, False], "one that fails leaves the others as they are"
    monkeypatch.setattr(recorder, "see_again", lambda: 1 // 0)
    train(recorder, clock, PERIOD)
    assert guard.count == 2 and guard.first == ("ZeroDivisionError: integer division or modulo by zero")


def test_a_loss_that_is_logged_in_a_step_that_is_not_seen_has_it_seen(clock: Clock) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    session = SimpleNamespace(recorder=recorder, scalars=LoggedScalars())
    train(recorder, clock, 4 * BLOCK)
    assert recorder.unseen.optimizer
    Session.log_scalar(session, "loss", 0.25)  # type: ignore[arg-type]
    Session.log_scalar(session, "tokens", 100)  # type: ignore[arg-type]
    train(recorder, clock, BLOCK + 1)
    assert recorder.unseen.optimizer, "a script that logs rarely has few steps more of it seen"
    Session.log_scalar(session, "loss", 0.5)  # type: ignore[arg-type]
    train(recorder, clock, 2 * BLOCK)
    assert not recorder.unseen.optimizer and recorder.aside, "a script that logs often has all of them seen"
    recorder.finish_step()
    logged = {r.step: (r.loss, r.elements) for r in records_of(recorder) if r.flags & Flag.LOSS_LOGGED}
    assert logged == {4 * BLOCK: (0.25, 100), 5 * BLOCK + 1: (0.5, -1)}


@pytest.mark.parametrize("counts", [True, False], ids=["", "a torch that counts no nodes"])
def test_an_optimizer_that_steps_twice_ends_an_unseen_step_once(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    n_nodes = 5
    monkeypatch.setattr(module, "count_graph_nodes", lambda: n_nodes)
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    train(recorder, clock, BLOCK + 1)
    assert recorder.unseen.optimizer
    end_step = recorder.make_unseen_end(lambda *_: None)
    for _ in range(3):
        n_nodes += counts
        end_step(OPTIMIZERS[0], (), {})
    assert recorder.step == BLOCK + 4 and recorder.unseen.optimizer
    end_step(OPTIMIZERS[0], (), {})
    if not counts:
        assert recorder.step == BLOCK + 5 and recorder.unseen.optimizer
        return
    assert recorder.step == BLOCK + 4 and not recorder.unseen.optimizer and recorder.aside
    train(recorder, clock, 1)
    assert recorder.step == BLOCK + 4, "the next forward begins the step after it"
    train(recorder, clock, 1)
    assert recorder.step == BLOCK + 5


def test_steps_that_reduce_nothing_are_seen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    monkeypatch.setattr(recorder, "forward_begins", partial(forward_in_no_sync, recorder))
    train(recorder, clock, 4 * BLOCK)
    assert recorder.aside and not recorder.unseen.optimizer


def forward_in_no_sync(recorder: Recorder, _synchronises: bool) -> None:
    Recorder.forward_begins(recorder, False)


def test_a_step_before_which_steps_were_dropped_is_left_out(clock: Clock) -> None:
    recorder = Recorder()
    recorder.rates = SamplingRates(record_every=8)
    second = next_recorded(BLOCK, 8)
    train(recorder, clock, second + 3)
    recorder.finish_step()
    unseen = [entry for entry in recorder.records if len(entry) == 2]
    assert len(unseen) > 20
    for entry in unseen[10:]:  # as where the queue was full
        recorder.records.remove(entry)
    records = records_of(recorder)
    assert {record.end - record.begin for record in records} == {100_000}
    assert [record.step for record in records] == [*range(unseen[10][0]), *range(second, second + 3)]


def test_a_recorder_whose_publisher_has_failed_stands_aside(clock: Clock) -> None:
    recorder = Recorder()
    recorder.stop_measuring()
    train(recorder, clock, 10 * BLOCK)
    assert recorder.unseen.optimizer and recorder.step == 10 * BLOCK


def test_steps_that_no_optimizer_ends_are_in_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPTOP_SHADOW", raising=False)
    recorder = Recorder(optimizer_exists=lambda: False)
    for _ in range(PERIOD + 5):
        recorder.forward_begins(True)
        assert not recorder.aside
        recorder.forward_ends()
        recorder.backward_begins(0.5)
        recorder.backward_ends()


def test_what_waits_for_a_first_backward_stays_where_a_session_takes_its_wrapper_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = []
    monkeypatch.setattr(torch.autograd, "backward", called.append)
    monkeypatch.setenv("DDPTOP", "1")
    monkeypatch.setattr(join_run, "join_by_store", lambda: None)
    monkeypatch.setattr(session, "Session", lambda _device: SimpleNamespace(ensure_started=lambda: None))
    attach.watch_first_backward()
    waits = torch.autograd.backward
    try:
        assert attach.session_at(None) is not None
        torch.autograd.backward(torch.zeros(1))
    finally:
        attach.forget_session()
    assert torch.autograd.backward is waits, "the session could not put its wrapper back"
    assert len(called) == 1
