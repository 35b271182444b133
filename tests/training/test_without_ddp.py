"""A process that trains without DistributedDataParallel is a rank, too: its steps, phases and losses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ddptop.protocol.messages import Bye, Hello, Phase, Replica, StepRow, Steps
from ddptop.training import recorder
from ddptop.training.activity import EvaluationWatch
from ddptop.training.recorder import FEW_PASSES
from ddptop.training.shadow import PERIOD
from tests.processes import environment, run_plain
from tests.training.conftest import Ear, Ranks
from tests.training.test_recorder import Clock, Loop

SCRIPT = Path(__file__).parent / "scripts" / "without_ddp.py"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recorder, "now", clock)
    return clock


class LoopWithoutDdp(Loop):
    """A loop in which nothing says that a forward begins or ends."""

    def __init__(self, clock: Clock, *, optimizer_exists: bool = True) -> None:
        super().__init__(clock, optimizer_exists=optimizer_exists)
        self.recorder.begin_without_ddp()

    def loss_and_backward(self, forward_ns: int, backward_ns: int, loss: float = 0.5) -> None:
        self.clock.pass_(forward_ns)
        self.on.loss_is_ready()
        self.on.backward_begins(loss)
        self.clock.pass_(backward_ns)
        self.on.backward_ends()


def test_a_step_ends_with_its_optimizer_and_forward_is_what_is_before_backward(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    for step in range(3):
        loop.data(10)
        loop.loss_and_backward(20, 30, loss=float(step))
        clock.pass_(3)
        loop.optimizer(5)
        clock.pass_(4)
    loop.recorder.finish_step()
    first, second, third = loop.records()
    assert [record.step for record in (first, second, third)] == [0, 1, 2]
    assert (first.end - first.begin, second.end - second.begin) == (68, 72)
    assert second.begin == first.end, "nothing between two steps is lost"
    for step, record in enumerate((first, second, third)):
        assert (record.data, record.forward, record.backward, record.optimizer) == (10, 20, 30, 5)
        assert (record.loss, record.micro_steps, record.before_optimizer) == (float(step), 1, 3)
        assert record.exposed == 0, "its own time is known"
    assert second.forward_at - second.begin == 4 + 10


def test_without_a_loader_the_forward_begins_where_the_step_before_ended(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    for _ in range(3):
        loop.loss_and_backward(20, 30)
        loop.optimizer(5)
    loop.recorder.finish_step()
    assert [(record.forward, record.end - record.begin) for record in loop.records()[1:]] == [(20, 55)] * 2


def test_accumulation_and_several_optimizers_are_one_step(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    for _ in range(2):
        for micro in range(3):
            loop.data(1)
            loop.loss_and_backward(2, 3, loss=float(micro))
        loop.optimizer(4, which=1)
        loop.optimizer(5, which=2)
    loop.recorder.finish_step()
    for record in loop.records():
        assert (record.micro_steps, record.data, record.forward, record.backward) == (3, 3, 6, 9)
        assert (record.optimizer, record.loss) == (9, 1.0)


def test_an_optimizer_that_steps_once_for_each_group_of_parameters_is_counted_once(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)  # DeepSpeed's ZeRO steps the optimizer that it wraps so
    for _ in range(3):
        loop.data(1)
        loop.loss_and_backward(2, 3)
        for _ in range(4):
            loop.optimizer(5)
    loop.recorder.finish_step()
    assert [record.optimizer for record in loop.records()] == [20] * 3


def test_a_step_without_backward_begins_with_the_same_optimizer(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)  # `torch.autograd.grad`
    for _ in range(3):
        loop.data(1)
        clock.pass_(2)
        loop.optimizer(4, which=1)
        loop.optimizer(5, which=2)
    loop.recorder.finish_step()
    records = loop.records()
    assert [(record.step, record.optimizer) for record in records] == [(0, 9), (1, 9), (2, 9)]
    assert records[1].end - records[1].begin == 12


def test_where_no_torch_optimizer_steps_a_backward_ends_the_step(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock, optimizer_exists=False)
    for _ in range(FEW_PASSES):
        loop.loss_and_backward(2, 3)
    assert not loop.recorder.records, "a script may try its model before it trains"
    for _ in range(4):
        loop.data(1)
        loop.loss_and_backward(2, 3)
        clock.pass_(4)
    loop.recorder.finish_step()
    records = loop.records()[1:]
    assert [(record.data, record.forward, record.backward) for record in records] == [(1, 2, 3)] * 3
    assert {record.end - record.begin for record in records} == {10}


def test_an_evaluation_is_no_forward(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    loop.data(1)
    loop.loss_and_backward(2, 3)
    loop.optimizer(4)
    watch = EvaluationWatch(loop.recorder)
    watch.current_phase()
    for _ in range(5):
        loop.data(1)
        clock.pass_(100)
    assert watch.current_phase() == Phase.EVALUATE
    loop.data(1)
    loop.loss_and_backward(2, 3)
    loop.optimizer(4)
    loop.recorder.finish_step()
    assert [record.forward for record in loop.records()] == [2, 2]


def test_waits_in_collectives_of_the_script_are_no_time_of_its_own(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    for _ in range(2):
        loop.data(1)
        loop.waits(50)  # as FSDP gathers parameters
        loop.loss_and_backward(2, 3)
        loop.waits(70)  # an all-reduce of gradients
        loop.optimizer(4)
    loop.recorder.finish_step()
    for record in loop.records():
        assert sum(ns for _, ns in record.waits) == 120
        assert (record.forward, record.before_optimizer) == (52, 0)


def test_a_shadow_block_has_steps_too(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPTOP_SHADOW", "on")
    loop = LoopWithoutDdp(clock)
    asides = 0
    for _ in range(PERIOD + 20):
        loop.on.loss_is_ready()
        asides += loop.recorder.aside
        if loop.recorder.aside:
            clock.pass_(9)
            loop.recorder.aside_step_ends()
        else:
            loop.loss_and_backward(2, 3)
            loop.optimizer(4)
    loop.recorder.finish_step()
    assert asides == 9
    assert [record.step for record in loop.records()] == list(range(PERIOD + 20))
    assert {record.end - record.begin for record in loop.records()[1:]} == {9}


def test_steps_begin_anew_with_ddp_only_where_there_were_any(clock: Clock) -> None:
    loop = LoopWithoutDdp(clock)
    loop.loss_and_backward(2, 3)
    assert not loop.recorder.begin_with_ddp()
    loop.recorder.begin_without_ddp()
    loop.loss_and_backward(2, 3)
    loop.optimizer(4)
    assert loop.recorder.begin_with_ddp()
    assert not loop.recorder.without_ddp


def rows_of(ear: Ear, rank: int) -> list[StepRow]:
    return [row for message in ear.said(rank, Steps) for row in message.rows]


@pytest.mark.parametrize(("kind", "world"), [("alone", 1), ("all_reduce", 2)])
def test_a_script_without_ddp_is_recorded_and_trains_alike(
    ear: Ear, ranks: Ranks, tmp_path: Path, kind: str, world: int
) -> None:
    processes = ranks.start(SCRIPT, kind, "12", world=world, env=ear.environment())
    printed = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0] * world, printed
    plain = ranks.start(SCRIPT, kind, "12", world=world, env=environment(tmp_path))
    assert [process.communicate(timeout=100)[0] for process in plain] == [out for out, _ in printed]
    for rank in range(world):
        ear.next_said(rank, Bye)
        assert {hello.world_size for hello in ear.said(rank, Hello)} == {world}
        rows = rows_of(ear, rank)
        assert len(rows) == 12
        assert all(row.data_us > 0 and row.forward_us > 0 and row.backward_us > 0 for row in rows[1:])
        assert all(row.loss is not None and row.own.exposed >= 0 for row in rows[1:])
        assert all((row.own.waited_other > 0) is (world > 1) for row in rows[1:])
    of_ranks = [[(r.step, r.pieces, r.values) for r in ear.said(rank, Replica)] for rank in range(world)]
    assert [step for step, _, _ in of_ranks[0]] == ([0] if world > 1 else []), "every 16th"
    assert of_ranks[0] == of_ranks[-1], "the replicas are equal"


def test_a_process_without_a_launcher_is_the_only_rank(ear: Ear, tmp_path: Path) -> None:
    done = run_plain([sys.executable, SCRIPT, "alone", "12"], ear.environment(), tmp_path)
    assert done.returncode == 0, done.stderr
    ear.next_said(0, Bye)
    assert len(rows_of(ear, 0)) == 12


def test_ddp_takes_over_with_steps_of_its_own(ear: Ear, ranks: Ranks) -> None:
    processes = ranks.start(SCRIPT, "before_ddp", "12", world=2, env=ear.environment())
    for process in processes:
        assert process.wait(timeout=100) == 0, process.communicate()
    for rank, lives in ((0, 2), (1, 1)):  # rank 0 has trained something by itself before
        ear.next_said(rank, Bye, already=lives - 1)
        sessions = [hello.session for hello in ear.said(rank, Hello)]
        assert len(set(sessions)) == lives
        said = [item.message for item in list(ear.heard) if item.session == sessions[-1]]
        steps = [message for message in said if isinstance(message, Steps)]
        assert steps[0].first_step == 0
        assert sum(len(message.rows) for message in steps) == 12
