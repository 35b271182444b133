"""The step's definition, on a clock that the test owns."""

from collections import deque
from itertools import pairwise

import pytest

from ddptop.protocol.messages import Flag, Phase, Steps
from ddptop.training import own_cost
from ddptop.training import recorder as module
from ddptop.training.own_cost import is_clocked
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.recorder import Recorder
from ddptop.training.sampling_rates import SamplingRates
from ddptop.training.shadow import BLOCK, TURN, is_turn, next_recorded
from ddptop.training.step_record import (
    MAX_CALLS,
    MAX_WAITS,
    PATIENCE_STEPS,
    StepRecord,
    without_buffers,
)
from ddptop.training.step_times import StepTimes


class Clock:
    """Stands still until told to move: reading it costs nothing."""

    def __init__(self) -> None:
        self.ns = 1_000

    def __call__(self) -> int:
        return self.ns

    def pass_(self, ns: int) -> None:
        self.ns += ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now", clock)
    return clock


def records_of(recorder: Recorder) -> list[StepRecord]:
    """What the publisher makes of all steps so far, those left out one by one; the recorder keeps them."""
    records: list[StepRecord] = []
    for taken in StepTimes(recorder.gc_pauses).take_steps(deque(recorder.records)):
        if isinstance(taken, StepRecord):
            records.append(taken)
            continue
        begins_and_ends = pairwise((taken.begin, *taken.ends))
        records += [
            StepRecord(
                step, begin, end, data=0, forward=0, backward=0, optimizer=0,
                forward_at=-1, backward_at=-1, optimizer_at=-1, backward_end=-1,
                micro_steps=0, flags=int(Flag.SHADOW), cost=0, loss=None, calls=(),
            )
            for step, (begin, end) in enumerate(begins_and_ends, taken.step)
        ]  # fmt: skip
    return records


class Loop:
    """A training loop in which every phase takes a known time."""

    def __init__(self, clock: Clock, *, optimizer_exists: bool = True) -> None:
        self.clock = clock
        self.recorder = Recorder(optimizer_exists=lambda: optimizer_exists)
        self.on = self.recorder.on

    def data(self, ns: int) -> None:
        self.on.data_begins()
        self.clock.pass_(ns)
        self.on.data_ends()

    def forward(self, ns: int, *, synchronises: bool = True) -> None:
        self.on.forward_begins(synchronises)
        self.clock.pass_(ns)
        self.on.forward_ends()

    def backward(self, ns: int, loss: float | None = 0.5, *, exposed: int | None = None) -> None:
        """`exposed`: after the last gradient, of these `ns`; None: there is no stamp."""
        self.on.backward_begins(loss)
        self.clock.pass_(ns - (exposed or 0))
        if exposed is not None:
            assert self.recorder.stamp_due
            self.recorder.stamp_due = False
            self.recorder.last_gradient()
            self.clock.pass_(exposed)
        self.on.backward_ends()

    def waits(self, ns: int, *, of_buffers: bool = False) -> None:
        """In a collective of the script's own, or in DDP's broadcast of buffers."""
        began = self.recorder.wait_begins(of_buffers=of_buffers)
        self.clock.pass_(ns)
        self.recorder.wait_ends(began, of_buffers=of_buffers)

    def optimizer(self, ns: int, which: int = 1) -> None:
        self.on.optimizer_begins(which)
        self.clock.pass_(ns)
        self.on.optimizer_ends(which)

    def records(self) -> list[StepRecord]:
        return records_of(self.recorder)


def test_a_plain_step_is_dated_from_optimizer_end_to_optimizer_end(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(3):
        loop.data(10)
        clock.pass_(1)
        loop.forward(20)
        clock.pass_(2)
        loop.backward(30, loss=0.25)
        loop.optimizer(5)
        clock.pass_(4)
    loop.recorder.finish_step()
    first, second, third = loop.records()
    assert [first.step, second.step, third.step] == [0, 1, 2]
    assert first.end - first.begin == 10 + 1 + 20 + 2 + 30 + 5
    assert second.begin == first.end, "nothing between two steps is lost"
    assert second.end - second.begin == 4 + 10 + 1 + 20 + 2 + 30 + 5
    for record in (first, second, third):
        assert (record.data, record.forward, record.backward, record.optimizer) == (10, 20, 30, 5)
        assert record.loss == 0.25
        assert record.micro_steps == 1
    assert second.forward_at - second.begin == 4 + 10 + 1
    assert second.backward_at - second.begin == 4 + 10 + 1 + 20 + 2
    assert second.optimizer_at - second.begin == 4 + 10 + 1 + 20 + 2 + 30
    assert second.backward_end == second.optimizer_at


def test_accumulation_is_one_step_with_its_micro_steps(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        for micro in range(4):
            loop.data(1)
            loop.forward(2, synchronises=micro == 3)
            loop.backward(3, loss=float(micro))
        loop.optimizer(4)
    loop.recorder.finish_step()
    for record in loop.records():
        assert (record.micro_steps, record.data, record.forward, record.backward) == (4, 4, 8, 12)
        assert record.loss == 1.5, "mean over the micro-steps"


def test_a_step_that_a_scaler_skips_belongs_to_the_next_one(clock: Clock) -> None:
    loop = Loop(clock)
    for stepped in (True, False, True):
        loop.forward(1)
        loop.backward(1)
        if stepped:
            loop.optimizer(1)
    loop.recorder.finish_step()
    assert [record.micro_steps for record in loop.records()] == [1, 2]


def test_several_optimizers_make_one_step(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(3, which=1)
        loop.optimizer(4, which=2)
    loop.recorder.finish_step()
    assert [record.optimizer for record in loop.records()] == [7, 7]


def test_an_optimizer_inside_another_is_counted_once(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1)
    loop.recorder.optimizer_begins(1)
    loop.optimizer(5, which=2)
    clock.pass_(1)
    loop.recorder.optimizer_ends(1)
    loop.recorder.finish_step()
    (record,) = loop.records()
    assert record.optimizer == 6


def test_a_subclass_that_calls_the_step_of_its_parent_keeps_its_own_time(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        loop.forward(1)
        loop.backward(1)
        loop.recorder.optimizer_begins(1)
        clock.pass_(20)  # before super().step(), which is hooked as well
        loop.optimizer(5, which=1)
        clock.pass_(1)
        loop.recorder.optimizer_ends(1)
    loop.forward(1)
    assert [record.optimizer for record in loop.records()] == [26, 26]


def test_an_optimizer_step_that_raised_does_not_stop_the_count(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1)
    loop.recorder.optimizer_begins(1)  # raises: no end
    loop.data(1)
    loop.forward(1)
    loop.backward(1)
    loop.optimizer(2, which=2)
    loop.recorder.finish_step()
    assert len(loop.records()) == 1


def test_another_optimizer_takes_over_from_one_that_raised_without_any_loader(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1)
    loop.recorder.optimizer_begins(1)  # raises: no end
    for _ in range(2):
        clock.pass_(1)
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(2, which=2)
    loop.recorder.finish_step()
    assert len(loop.records()) == 2


def test_a_closure_keeps_forward_and_backward_out_of_the_optimizer(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        loop.recorder.optimizer_begins(1)
        for _ in range(3):
            loop.forward(10)
            loop.backward(20)
        clock.pass_(7)
        loop.recorder.optimizer_ends(1)
    loop.recorder.finish_step()
    assert [(r.forward, r.backward, r.optimizer) for r in loop.records()] == [(30, 60, 7), (30, 60, 7)]


def test_an_optimizer_inside_backward_ends_the_step_with_it(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        loop.forward(10)
        loop.recorder.backward_begins(None)
        clock.pass_(5)
        loop.optimizer(3)
        clock.pass_(2)
        loop.recorder.backward_ends()
    loop.recorder.finish_step()
    assert [(r.backward, r.optimizer, r.end - r.begin) for r in loop.records()] == [(10, 0, 20), (10, 0, 20)]


def test_without_any_optimizer_a_synchronised_backward_ends_the_step(clock: Clock) -> None:
    loop = Loop(clock, optimizer_exists=False)
    for micro in range(6):
        loop.forward(1, synchronises=micro % 2 == 1)
        loop.backward(1)
    loop.recorder.finish_step()
    assert [record.micro_steps for record in loop.records()] == [2, 2, 2]


def test_an_optimizer_that_never_steps_is_not_waited_for_for_ever(clock: Clock) -> None:
    loop = Loop(clock, optimizer_exists=True)
    for _ in range(PATIENCE_STEPS + 2):
        loop.forward(1)
        loop.backward(1)
    loop.recorder.finish_step()
    assert [record.micro_steps for record in loop.records()] == [PATIENCE_STEPS, 1, 1]


def test_nested_backward_belongs_to_the_outermost(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.recorder.backward_begins(2.0)
    loop.backward(5, loss=9.0)
    clock.pass_(1)
    loop.recorder.backward_ends()
    loop.optimizer(1)
    loop.recorder.finish_step()
    (record,) = loop.records()
    assert (record.backward, record.micro_steps, record.loss) == (6, 1, 2.0)


def test_a_logged_loss_replaces_the_one_of_backward(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1, loss=128.0)
    loop.optimizer(1)
    loop.recorder.losses.logged = 0.125
    loop.recorder.finish_step()
    (record,) = loop.records()
    assert record.loss == 0.125
    assert record.flags & Flag.LOSS_LOGGED


def test_detail_is_taken_where_the_step_number_says(clock: Clock) -> None:
    loop = Loop(clock)
    switched: list[bool] = []
    loop.recorder.on_detail.append(switched.append)
    loop.recorder.rates = SamplingRates(detail_every=4)
    for _ in range(8):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    loop.recorder.finish_step()
    assert [bool(r.flags & Flag.DETAIL) for r in loop.records()] == [True, False, False, False] * 2
    assert switched == [False, True, False, True]


@pytest.mark.parametrize("every", [2, 4, 32, 64, 256])
def test_detail_is_taken_of_both_optimizers_that_alternate(every: int) -> None:
    steps = 4 * max(every, TURN)
    detailed = [step for step in range(steps) if is_turn(step, every)]
    assert len(detailed) == steps / every == 2 * sum(step % 2 for step in detailed)
    assert [step // every for step in detailed] == [*range(steps // every)]
    assert {*detailed} >= {step for step in range(steps) if is_turn(step, 2 * every)}
    for record_every in (4, 64):
        steps = 4 * max(every, BLOCK * record_every)
        recorded = [step for step in range(steps) if next_recorded(step, record_every) <= step]
        # Where others are left out, it falls into the steps that are recorded.
        taken = [step for step in recorded if is_turn(step, every)]
        assert len(taken) == steps / max(every, min(every, BLOCK) * record_every)
        assert len(taken) == 2 * sum(step % 2 for step in taken), "of both there, too"


def test_a_step_without_detail_has_no_buckets_of_a_later_one(clock: Clock) -> None:
    """Its record is read half a second later, when the next step with detail has noted its own."""
    loop = Loop(clock)
    loop.recorder.rates = SamplingRates(detail_every=4)
    for _ in range(9):
        loop.forward(1)
        if loop.recorder.detail:
            loop.recorder.note_bucket("key", clock(), clock())
        loop.backward(1)
        loop.optimizer(1)
    loop.recorder.finish_step()
    assert [len(record.calls) for record in loop.records()] == [1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_a_joined_rank_counts_the_steps_it_shadows(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1)
    loop.optimizer(1)
    for _ in range(2):
        began = clock()
        clock.pass_(10)
        loop.recorder.shadow_step_ends(began)
    assert [(r.step, bool(r.flags & Flag.JOINED)) for r in loop.records()] == [
        (0, False),
        (1, True),
        (2, True),
    ]


def test_calls_of_a_step_are_bounded(clock: Clock) -> None:
    recorder = Recorder()
    noted = [recorder.note_bucket("key", 0) for _ in range(MAX_CALLS + 1)]
    assert noted[-1] is None
    assert len(recorder.calls) == MAX_CALLS


def test_a_task_that_is_taken_back_while_a_step_ends_is_not_run(clock: Clock) -> None:
    loop = Loop(clock)
    done: list[int] = []
    loop.recorder.do_between_steps(loop.recorder.between_steps.clear)  # as another thread does just then
    loop.recorder.do_between_steps(lambda: done.append(1))
    for _ in range(3):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    assert loop.recorder.step == 2 and not done


def test_a_task_runs_once_between_two_steps(clock: Clock) -> None:
    loop = Loop(clock)
    done: list[int] = []
    loop.recorder.do_between_steps(lambda: done.append(loop.recorder.step))
    for _ in range(3):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    loop.recorder.finish_step()
    assert done == [1]


def test_after_a_loss_that_is_no_number_every_loss_is_read(clock: Clock) -> None:
    loop = Loop(clock)
    loop.recorder.rates = SamplingRates(loss_every=8)
    wanted = []
    for step in range(12):
        loop.forward(1)
        wanted.append(loop.recorder.wants_loss)
        loop.backward(1, loss=float("nan") if step in (9, 10) else 0.5)
        loop.optimizer(1)
    assert [step for step, read in enumerate(wanted) if read] == [0, 9, 10, 11]


@pytest.mark.parametrize("every", [2, 4, 8])
@pytest.mark.parametrize("turns", [2, 3, 4, 8])
def test_losses_that_are_read_rarely_are_read_of_every_optimizer_in_turn(
    clock: Clock, every: int, turns: int
) -> None:
    loop = Loop(clock)
    loop.recorder.rates = SamplingRates(loss_every=every)
    read = []
    for step in range(320):
        loop.forward(1)
        read += [step % turns] if loop.recorder.wants_loss else []
        loop.backward(1)
        loop.optimizer(1)
    assert len(read) == pytest.approx(320 / every, abs=2)
    assert min(read.count(turn) for turn in range(turns)) >= len(read) / turns / 2


def test_batches_and_forwards_outside_training_are_counted_until_training_goes_on(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(3):
        loop.data(1)
    assert loop.recorder.calls_since_forward == 3
    loop.forward(1)
    assert loop.recorder.calls_since_forward == 0


def test_an_interval_of_checks_calls_after_its_steps_and_only_there(clock: Clock) -> None:
    loop = Loop(clock)
    checked: list[int] = []
    runs: list[int] = []
    loop.recorder.check = checked.append
    for step in range(34):
        if step == 16:
            loop.recorder.do_between_steps(lambda: runs.append(1))
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    assert checked == [0, 16, 32]
    assert runs == [1]


def test_a_forked_child_that_trains_counts_its_own_steps(clock: Clock) -> None:
    """Steps before its first would be counted as lost."""
    loop = Loop(clock)
    for _ in range(2):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    loop.recorder.forward_begins(True)
    loop.recorder.backward_begins(0.5)
    loop.recorder.restart_in_child()
    clock.pass_(100)
    for _ in range(2):
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
    loop.recorder.finish_step()
    records = loop.records()
    assert [record.step for record in records] == [0, 1]
    assert [record.end - record.begin for record in records] == [3, 3]


def test_own_cost_is_cpu_time_of_three_steps_in_32(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the operating system runs another process within our code, only the wall clock moves on."""
    cpu, readings = Clock(), []

    def read_cpu() -> int:
        readings.append(1)
        clock.pass_(10_000_000)  # preempted at every reading
        cpu.pass_(400)  # which costs something itself
        return cpu.ns

    for place in (module, own_cost):
        monkeypatch.setattr(place, "cpu_now", read_cpu)
    loop = Loop(clock)
    loop.recorder.check = lambda _step: cpu.pass_(300_000)  # counts itself, and is not of the step after
    for _ in range(65):
        loop.data(1)
        loop.forward(1)
        loop.backward(1)
        loop.optimizer(1)
        loop.recorder.add_cost(5_000 if is_clocked(loop.recorder.step) else 0)
    loop.recorder.finish_step()
    costs = [record.cost for record in loop.records()]
    stretches = 8  # begins and ends of data, forward (with the close), backward, optimizer
    measured = 5_000 + 400 * stretches
    after_check = measured + 400  # one of the two readings around it
    assert min(costs) == 0, "nothing is taken off that was not counted, as after step 0"
    assert costs[32:64] == [measured, after_check, 0, measured, *[0] * 28]
    assert sum(readings) <= 2 * stretches * 7 + 2 + 2 * 3, "in measured steps only, and around their checks"


def places(record: StepRecord) -> tuple[int, int, int, int]:
    """What lies outside the phases: before forward, backward, optimizer, and the rest of it."""
    own = (record.before_forward, record.before_backward, record.before_optimizer)
    phases = record.data + record.forward + record.backward + record.optimizer
    waited = sum(ns for phase, ns in record.waits if phase == Phase.OTHER)
    return (*own, record.end - record.begin - phases - waited - sum(own))


def test_backward_is_divided_at_its_last_gradient(clock: Clock) -> None:
    loop = Loop(clock)
    for exposed in (0, 4, 9):
        loop.forward(5)
        loop.backward(20, exposed=exposed)
        loop.optimizer(1)
    loop.recorder.finish_step()
    assert [(record.exposed, record.backward) for record in loop.records()] == [(0, 20), (4, 20), (9, 20)]


def test_exposed_communication_is_that_of_the_backwards_that_synchronise(clock: Clock) -> None:
    loop = Loop(clock)
    for micro in range(3):
        loop.forward(5, synchronises=micro == 2)
        loop.backward(20, exposed=3)
    loop.optimizer(1)
    loop.forward(5, synchronises=False)
    loop.backward(20)
    loop.optimizer(1)
    loop.recorder.finish_step()
    assert [record.exposed for record in loop.records()] == [3, 0]


def test_without_a_stamp_in_each_of_them_it_is_not_known(clock: Clock) -> None:
    loop = Loop(clock)
    for stamps in ((3, None), (None, 3), (3, 4)):
        for exposed in stamps:
            loop.forward(5)
            loop.backward(20, exposed=exposed)
        loop.optimizer(1)
    loop.forward(5)
    loop.recorder.backward_begins(None)
    loop.recorder.spoil_stamp()
    loop.recorder.last_gradient()
    loop.recorder.backward_ends()
    loop.optimizer(1)
    loop.recorder.finish_step()
    assert [max(-1, record.exposed) for record in loop.records()] == [-1, -1, 7, -1]


def test_with_several_models_any_backward_may_wait(clock: Clock) -> None:
    loop = Loop(clock)
    loop.recorder.several_models = True
    for exposed in (3, None):
        loop.forward(5, synchronises=False)
        loop.backward(20, exposed=exposed)
        loop.optimizer(1)
    loop.recorder.finish_step()
    assert [max(-1, record.exposed) for record in loop.records()] == [3, -1]


def test_a_stamp_before_a_backward_inside_backward_does_not_count(clock: Clock) -> None:
    """All-reduces may be waited for in the inner one; a hook after it shows that they are not."""
    loop = Loop(clock)
    recorder = loop.recorder
    for stamped_again in (False, True):
        loop.forward(5)
        recorder.backward_begins(None)
        recorder.stamp_due = False
        recorder.last_gradient()
        recorder.backward_begins(None)
        assert not recorder.stamp_due
        recorder.backward_ends()
        assert recorder.stamp_due
        if stamped_again:
            recorder.stamp_due = False
            recorder.last_gradient()
        clock.pass_(2)
        recorder.backward_ends()
        loop.optimizer(1)
    recorder.finish_step()
    assert [max(-1, record.exposed) for record in loop.records()] == [-1, 2]


def test_what_lies_outside_the_phases_is_told_by_what_comes_next(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(3):
        clock.pass_(7)
        loop.data(10)
        clock.pass_(1)
        loop.forward(20)
        clock.pass_(2)
        loop.backward(30)
        clock.pass_(3)
        loop.optimizer(5)
    loop.recorder.finish_step()
    assert [places(record) for record in loop.records()] == [(1, 2, 3, 0), (1, 2, 3, 7), (1, 2, 3, 7)]


def test_places_of_micro_steps_evaluations_and_several_optimizers(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        for micro in range(3):
            loop.data(10)
            clock.pass_(1)
            loop.forward(20, synchronises=micro == 2)
            clock.pass_(2)
            loop.backward(30)
            clock.pass_(4)  # logs after each
        loop.optimizer(5, which=1)
        clock.pass_(8)
        loop.optimizer(5, which=2)
        for _ in range(2):  # an evaluation
            clock.pass_(100)
            loop.data(1)
    loop.recorder.finish_step()
    assert [places(record) for record in loop.records()] == [(3, 6, 20, 0), (3, 6, 20, 200)]


def test_a_batch_fetched_before_the_optimizer_steps_divides_its_place_no_further(clock: Clock) -> None:
    loop = Loop(clock)
    loop.data(10)
    for _ in range(3):
        loop.forward(20)
        loop.backward(30)
        clock.pass_(3)
        loop.data(10)
        clock.pass_(4)
        loop.optimizer(5)
        clock.pass_(1)
    loop.recorder.finish_step()
    assert [places(record) for record in loop.records()] == [(0, 0, 7, 0), (1, 0, 7, 0), (1, 0, 7, 0)]


def test_places_around_a_closure(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(3):
        clock.pass_(7)
        loop.data(10)
        clock.pass_(3)
        loop.recorder.optimizer_begins(1)
        for _ in range(2):
            clock.pass_(1)
            loop.forward(10)
            clock.pass_(2)
            loop.backward(20)
        loop.recorder.optimizer_ends(1)
    loop.recorder.finish_step()
    first, *others = loop.records()
    assert [places(record) for record in others] == [(0, 0, 3, 7), (0, 0, 3, 7)]
    assert [record.optimizer for record in others] == [6, 6]
    assert places(first)[:3] == (0, 0, 3)


def test_without_any_optimizer_what_follows_backward_belongs_to_the_next_step(clock: Clock) -> None:
    loop = Loop(clock, optimizer_exists=False)
    for _ in range(3):
        loop.data(10)
        loop.forward(20)
        loop.backward(30)
        clock.pass_(9)  # the script's own update of its weights
    loop.recorder.finish_step()
    assert [places(record) for record in loop.records()] == [(0, 0, 0, 0), (0, 0, 0, 9), (0, 0, 0, 9)]


def test_waits_in_collectives_of_the_script_lie_in_no_place(clock: Clock) -> None:
    loop = Loop(clock)
    loop.waits(1000)  # before training
    for _ in range(2):
        loop.data(10)
        clock.pass_(1)
        loop.waits(100)
        loop.recorder.forward_begins(True)
        loop.waits(50)
        loop.recorder.forward_ends()
        loop.waits(30)
        clock.pass_(2)
        loop.backward(30, exposed=4)
        loop.waits(20)
        loop.waits(20)
        loop.optimizer(5)
        clock.pass_(3)
        loop.waits(7)  # a metric after the step: part of the next one
    loop.recorder.finish_step()
    first, second = loop.records()
    other, forward = int(Phase.OTHER), int(Phase.FORWARD)
    waits = [[other, 100], [forward, 50], [other, 30], [other, 20 + 20]]
    assert list(first.waits) == waits
    assert list(second.waits) == [[other, 7 + 100], *waits[1:]]
    assert (places(first), places(second)) == ((1, 2, 0, 0), (1, 2, 0, 3))
    assert first.forward == 50


def test_broadcasts_of_buffers_are_told_apart_from_collectives_of_the_script(clock: Clock) -> None:
    loop = Loop(clock)
    for micro_step in range(2):
        loop.recorder.forward_begins(True)
        loop.waits(50_000, of_buffers=True)
        clock.pass_(3_000)
        loop.recorder.forward_ends()
        loop.waits(20_000)
        loop.backward(30_000, exposed=4_000)
        clock.pass_(1_000 * micro_step)
    loop.optimizer(5_000)
    loop.waits(9_000, of_buffers=True)  # an evaluation after the step: part of the next one
    loop.recorder.finish_step()
    (record,) = loop.records()
    rows = [
        row for message in pack_steps([record], LayoutTracker({})) for row in getattr(message, "rows", ())
    ]
    (own,) = (row.own for row in rows)
    assert own is not None
    assert (own.waited_forward, own.waited_other, own.buffers) == (100, 40, 100)
    unknown = record._replace(waits=without_buffers(record.waits))
    (row,) = next(m for m in pack_steps([unknown], LayoutTracker({})) if isinstance(m, Steps)).rows
    assert (row.own.waited_forward, row.own.buffers) == (100, -1), "a host that runs ahead of its device"


def test_a_wait_after_the_last_gradient_is_exposed_communication_already(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(5)
    loop.recorder.backward_begins(None)
    loop.waits(6)
    loop.recorder.stamp_due = False
    loop.recorder.last_gradient()
    loop.waits(8)
    loop.recorder.backward_ends()
    loop.optimizer(1)
    loop.recorder.finish_step()
    (record,) = loop.records()
    assert (record.exposed, list(record.waits)) == (8, [[int(Phase.BACKWARD), 6]])


def test_a_wait_between_the_phases_of_a_closure_is_the_optimizers(clock: Clock) -> None:
    loop = Loop(clock)
    for _ in range(2):
        loop.recorder.optimizer_begins(1)
        loop.forward(10)
        loop.waits(4)
        loop.backward(20)
        loop.recorder.optimizer_ends(1)
    loop.recorder.finish_step()
    assert [list(record.waits) for record in loop.records()] == [[[int(Phase.OPTIMIZER), 4]]] * 2


def test_rows_of_waits_are_bounded_and_none_is_lost(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    for _ in range(MAX_WAITS):
        loop.waits(1)
        loop.data(0)
        loop.recorder.data_begins()
        loop.waits(1)
        loop.recorder.data_ends()
    loop.backward(1)
    loop.optimizer(1)
    loop.recorder.finish_step()
    (record,) = loop.records()
    assert len(record.waits) == MAX_WAITS
    assert sum(ns for _, ns in record.waits) == 2 * MAX_WAITS


def test_a_joined_rank_says_nothing_of_exposed_communication(clock: Clock) -> None:
    loop = Loop(clock)
    loop.forward(1)
    loop.backward(1, exposed=1)
    loop.optimizer(1)
    for _ in range(2):
        began = clock()
        clock.pass_(10)
        loop.recorder.shadow_step_ends(began)
    clock.pass_(5)
    loop.forward(1)
    loop.backward(1, exposed=1)
    loop.optimizer(1)
    loop.recorder.finish_step()
    records = loop.records()
    assert [max(-1, record.exposed) for record in records] == [1, -1, -1, 1]
    assert records[-1].before_forward == 5
