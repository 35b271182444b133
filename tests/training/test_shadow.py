"""Shadow blocks: which steps they are, and what the recorder makes of them."""

from __future__ import annotations

import pytest

from ddptop.protocol.messages import Flag, Phase
from ddptop.training import recorder as module
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.recorder import Recorder
from ddptop.training.shadow import LENGTH, NEVER, PERIOD, ShadowBlocks
from ddptop.training.step_record import StepRecord
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


def train(clock: Clock, steps: int) -> list[StepRecord]:
    """Steps of 10 ns data, 20 forward, 30 backward, 40 optimizer, as the phases call the recorder."""
    recorder = Recorder()
    for _ in range(steps):
        if not recorder.aside:
            recorder.data_begins()
        clock.pass_(10_000)
        if not recorder.aside:
            recorder.data_ends()
        recorder.forward_begins(True)
        clock.pass_(20_000)
        if not recorder.aside:
            recorder.forward_ends()
            recorder.backward_begins(0.5)
        clock.pass_(30_000)
        if not recorder.aside:
            recorder.backward_ends()
            recorder.optimizer_begins(1)
        clock.pass_(40_000)
        if recorder.aside:
            assert recorder.phase is Phase.OTHER and not recorder.detail
            recorder.aside_step_ends()
        else:
            recorder.optimizer_ends(1)
    recorder.finish_step()
    return records_of(recorder)


def test_steps_of_a_block_have_begin_and_end_and_the_others_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPTOP_SHADOW", raising=False)
    clock = Clock()
    monkeypatch.setattr(module, "now", clock)
    records = train(clock, PERIOD + LENGTH + 5)
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


def test_steps_that_no_optimizer_ends_are_in_no_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPTOP_SHADOW", raising=False)
    recorder = Recorder(optimizer_exists=lambda: False)
    for _ in range(PERIOD + 5):
        recorder.forward_begins(True)
        assert not recorder.aside
        recorder.forward_ends()
        recorder.backward_begins(0.5)
        recorder.backward_ends()
