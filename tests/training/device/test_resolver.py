"""Steps whose moments the device tells later: order, late draining, lost events."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ddptop.protocol.messages import Flag, Phase
from ddptop.training.device import events, resolver
from ddptop.training.device.clock import RENEW_NS, DeviceClock
from ddptop.training.device.events import UNTIMED, EventPool
from ddptop.training.device.marks import Mark, PhaseMarks
from ddptop.training.device.resolver import (
    GIVE_UP_NS,
    MAX_HELD,
    WAITED_STEPS,
    DeviceScalars,
    StepResolver,
)
from ddptop.training.device.timing import EITHER, IDLE, device_position
from ddptop.training.guard import Guard
from ddptop.training.step_record import IN_BUFFERS, LaterLosses, StepRecord
from tests.training.device.fake import FakeDevice, FakeEvent
from tests.training.device.test_timers import FakeSlots

MS = 1_000_000
FORWARD, BACKWARD, ALL_REDUCE, OPTIMIZER = 4 * MS, 9 * MS, 3 * MS, 2 * MS


class Training:
    """A host that launches steps in no time, and a device that takes its own over them."""

    def __init__(self) -> None:
        self.device = FakeDevice(look_ns=0)
        self.pool = EventPool(self.device, now=self.device.now)
        self.clock = DeviceClock(self.device, self.pool, now=self.device.now, sleep=self.device.sleep)
        self.scalars = DeviceScalars(self.pool, FakeSlots())
        self.marks = PhaseMarks(self.device, self.pool)
        self.resolver = StepResolver(self.clock, self.pool, self.scalars, now=self.device.now)
        self.clock.renew_reference()
        self.steps = 0

    def phase(self, begin: Mark, ns: int) -> None:
        self.marks(begin)
        self.device.compute(ns)
        self.marks(Mark(begin + 1))

    def step(
        self, *, data: int = 0, loss: float | None = None, stamped: bool = False, loss_ns: int = 0
    ) -> StepRecord:
        begin = self.device.now_ns
        self.phase(Mark.FORWARD, FORWARD)
        taken = None if loss is None else (self.scalars.take_scalar(loss),)
        self.device.compute(loss_ns)
        self.marks(Mark.BACKWARD)
        self.device.compute(BACKWARD)
        ready = self.pool.mark_event()
        if stamped:
            self.marks(Mark.LAST_GRADIENT)
        self.device.compute(ALL_REDUCE)
        call: list[Any] = ["key", ready, self.pool.mark_event()]
        self.marks(Mark.BACKWARD_END)
        self.phase(Mark.OPTIMIZER, OPTIMIZER)
        record = StepRecord(
            self.steps, begin, self.device.now_ns, data, 1, 1, 1, begin, begin, begin, begin, 1, 1, 0, taken,
            [call], self.marks.take(), 17 if stamped else -1,
        )  # fmt: skip
        self.steps += 1
        return record

    def wait(self, ns: int) -> None:
        self.device.now_ns += ns


STEP = FORWARD + BACKWARD + ALL_REDUCE + OPTIMIZER


def near(found: int, expected: int) -> bool:
    """Within what float32 milliseconds resolve."""
    return abs(found - expected) <= 2_000


def test_a_step_goes_out_when_the_device_has_done_it_and_not_before() -> None:
    training = Training()
    record = training.step()
    assert training.resolver.take_done([record]) == []
    training.wait(STEP - MS)
    assert training.resolver.take_done([]) == []
    training.wait(MS)
    (done,) = training.resolver.take_done([])
    assert done.step == 0
    assert training.resolver.waiting == 0


def test_phases_and_buckets_are_the_devices() -> None:
    training = Training()
    begin = training.device.now_ns
    records = [training.step(), training.step(loss=0.25)]
    training.wait(2 * STEP)
    first, second = training.resolver.take_done(records)
    for done in (first, second):
        assert near(done.forward, FORWARD)
        assert near(done.backward, BACKWARD + ALL_REDUCE)
        assert near(done.optimizer, OPTIMIZER)
        _, ready, end = done.calls[0]
        assert near(end - ready, ALL_REDUCE)
        assert done.marks == ()
    assert near(second.begin, begin + STEP)
    assert near(second.end - second.begin, STEP)
    assert near(second.begin, first.end)
    assert first.loss is None
    assert second.loss == 0.25


def test_losses_that_were_divided_by_their_number_are_multiplied_when_they_are_there() -> None:
    training = Training()
    record = training.step(loss=0.25)
    losses = LaterLosses((*record.loss, training.scalars.take_scalar(0.75)))
    losses.factor = 2
    training.wait(2 * STEP)
    (done,) = training.resolver.take_done([record._replace(loss=losses)])
    assert done.loss == 1.0


def test_exposed_communication_and_the_places_are_the_devices() -> None:
    training = Training()
    records = [training.step(stamped=True), training.step(stamped=True, loss_ns=MS), training.step()]
    records.append(training.step(stamped=True)._replace(exposed=-1))
    records.append(training.step()._replace(exposed=0))
    records.append(training.step()._replace(exposed=17))
    training.wait(7 * STEP)
    first, second, unstamped, unknown, unsynchronised, unmarked = training.resolver.take_done(records)
    for done in (first, second):
        assert near(done.exposed, ALL_REDUCE), "whatever the host, which runs ahead, has seen of it"
        assert (done.before_forward, done.before_optimizer) == (0, 0)
    assert (near(first.before_backward, 0), near(second.before_backward, MS)) == (True, True)
    assert [done.exposed for done in (unstamped, unknown, unsynchronised, unmarked)] == [-1, -1, 0, -1]


def test_what_only_the_host_has_timed_says_nothing_of_exposed_communication() -> None:
    training = Training()
    record = training.step(stamped=True)
    unmarked = training.step(stamped=True)._replace(marks=[])
    lost = training.step(stamped=True)
    lost.calls[0][2].at_ns = None
    training.wait(3 * STEP)
    done = training.resolver.take_done([record, unmarked, lost])
    done += training.resolver.flush_all()
    assert [near(found.exposed, ALL_REDUCE) for found in done] == [True, False, False]
    assert [found.exposed for found in done[1:]] == [-1, -1]


def test_a_fetch_that_the_host_hides_is_no_data_time() -> None:
    training = Training()
    records = [training.step()]
    training.wait(5 * MS)  # the host blocks on its loader while the device still computes
    records.append(training.step(data=5 * MS))
    training.wait(2 * STEP)
    _, hidden = training.resolver.take_done(records)
    assert near(hidden.data, 0)
    late = [training.step()]
    training.wait(STEP + 7 * MS)  # here the device has run dry for 7 ms
    late.append(training.step(data=STEP + 7 * MS))
    training.wait(2 * STEP)
    _, bare = training.resolver.take_done(late)
    assert near(bare.data, 7 * MS)
    assert near(bare.end - bare.begin, STEP + 7 * MS)


def test_steps_keep_their_order() -> None:
    training = Training()
    first, second = training.step(), training.step()
    training.wait(2 * STEP)
    lost = first.marks[0][1]
    lost.at_ns = training.device.now_ns + 10 * STEP  # type: ignore[attr-defined]
    assert training.resolver.take_done([first, second]) == []
    training.wait(10 * STEP)
    assert [done.step for done in training.resolver.take_done([])] == [0, 1]


def test_a_lost_event_costs_one_steps_device_times_and_no_more() -> None:
    training = Training()
    first, second = training.step(), training.step()
    first.calls[0][2].at_ns = None
    training.wait(2 * STEP)
    assert training.resolver.take_done([first, second]) == []
    training.wait(GIVE_UP_NS + MS)
    given_up, kept = training.resolver.take_done([])
    assert given_up.calls == []
    assert len(kept.calls) == 1
    assert training.resolver.lost == 1
    assert kept.begin >= given_up.begin


def test_an_error_of_the_device_leaves_what_the_host_saw_and_is_asked_about_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fresh = Guard()
    monkeypatch.setattr(events, "guard", fresh)
    training = Training()
    kept, lost, later = training.step(), training.step(loss=0.5), training.step()
    training.wait(3 * STEP)
    asked = []

    def refuse() -> bool:
        asked.append(1)
        raise RuntimeError("CUDA error: device-side assert triggered")

    lost.marks[-1][1].query = refuse
    done = training.resolver.take_done([kept, lost])
    assert [record.step for record in done] == [0, 1]
    assert len(done[0].calls) == 1
    assert (done[1].calls, done[1].marks, done[1].loss) == ([], (), None)
    assert not done[1].flags & Flag.DETAIL
    assert [record.step for record in training.resolver.take_done([later])] == [2]
    assert (len(asked), fresh.count, training.resolver.lost) == (1, 1, 2)


def test_a_step_of_which_one_end_could_not_be_recorded_shows_no_buckets() -> None:
    training = Training()
    record = training.step()
    record.calls.append(["other", training.pool.mark_event(), UNTIMED])
    training.wait(2 * STEP)
    (done,) = training.resolver.take_done([record])
    assert done.calls == []
    assert not done.flags & Flag.DETAIL
    assert near(done.forward, FORWARD)


def test_where_no_event_is_left_for_a_reference_steps_are_given_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training()
    training.wait(RENEW_NS)
    record = training.step()
    monkeypatch.setattr(events, "MAX_EVENTS", training.pool.made)
    training.clock.references.clear()
    assert training.resolver.take_done([record]) == []
    training.wait(GIVE_UP_NS + MS)
    assert [done.step for done in training.resolver.take_done([])] == [0]


def test_a_stalled_device_does_not_fill_the_memory() -> None:
    training = Training()
    training.device.compute(10**18)
    done = []
    for _ in range(MAX_HELD + 10):
        done += training.resolver.take_done([training.step()])
    assert len(done) == 10
    assert training.resolver.waiting == MAX_HELD
    begins = [record.begin for record in [*done, *training.resolver.flush_all()]]
    assert begins == sorted(begins)


def test_the_end_waits_a_little_for_a_device_that_is_behind_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    records = [training.step(), training.step()]
    monkeypatch.setattr(resolver.time, "sleep", lambda _: training.wait(STEP))
    assert training.resolver.take_done(records) == []
    assert [len(done.calls) for done in training.resolver.flush_all(60.0)] == [1, 1]
    assert training.resolver.lost == 0


def test_the_end_of_training_leaves_nothing_behind() -> None:
    training = Training()
    records = [training.step(), training.step()]
    training.wait(STEP)
    assert [done.step for done in training.resolver.take_done(records)] == [0]
    assert [done.step for done in training.resolver.flush_all()] == [1]
    assert training.resolver.waiting == 0


def test_gloo_that_has_not_called_back_yet_is_waited_for() -> None:
    training = Training()
    record = training.step()
    record.calls[0][2] = 0
    training.wait(STEP)
    assert training.resolver.take_done([record]) == []
    record.calls[0][2] = training.device.now_ns
    (done,) = training.resolver.take_done([])
    assert done.calls[0][2] == training.device.now_ns


@pytest.mark.parametrize("steps", [3, 50])
def test_events_are_used_again_from_step_to_step(steps: int) -> None:
    training = Training()
    for _ in range(steps):
        record = training.step(loss=1.0)
        training.wait(STEP)
        assert len(training.resolver.take_done([record])) == 1
    assert training.pool.made <= 12


def test_a_step_in_a_graph_has_no_marks_and_keeps_the_hosts_times() -> None:
    training = Training()
    record = training.step()._replace(marks=[], calls=[])
    training.wait(STEP)
    (done,) = training.resolver.take_done([record])
    assert (done.begin, done.end) == (record.begin, record.end)


def test_an_error_of_the_device_itself_is_no_failure_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Guard()
    monkeypatch.setattr(events, "guard", fresh)
    training = Training()
    assert not training.pool.failed
    training.pool.note_error(RuntimeError("ours"))
    assert fresh.count == 1
    lost = training.step()
    training.wait(STEP)

    def refuse(_event: FakeEvent) -> bool:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(FakeEvent, "query", refuse)
    assert [record.step for record in training.resolver.take_done([lost])] == [0]
    assert training.pool.failed
    assert (fresh.count, training.resolver.lost) == (1, 1)


def test_a_step_given_up_is_moved_as_a_whole_where_the_device_is_ahead_of_its_begin() -> None:
    training = Training()
    first = training.step()
    training.device.compute(5 * STEP)
    training.wait(7 * STEP)
    late = training.step()  # begins on the device when the one before has ended
    training.wait(STEP)
    (done,) = training.resolver.take_done([first])
    lost = late._replace(
        begin=done.begin - MS, forward_at=done.begin, backward_at=-1, end=done.begin + 3 * MS
    )
    (given_up,) = training.resolver.take_done([lost]) or training.resolver.flush_all()
    assert given_up.begin >= done.begin
    assert given_up.forward_at - given_up.begin >= 0


def test_between_two_references_no_moment_lies_before_its_step() -> None:
    """A reference may be wrong by a time slice of a GPU that others use: 2 ms, more than a step."""
    training = Training()
    records = [training.step() for _ in range(3)]
    training.wait(3 * STEP)
    sent = training.resolver.take_done(records[:2])
    for reference in list(training.clock.references):
        training.clock.references.append(reference._replace(at_ns=reference.at_ns - 2 * STEP, bound_ns=0))
    sent += training.resolver.take_done(records[2:])
    assert [record.step for record in sent] == [0, 1, 2]
    for before, after in pairwise(sent):
        assert after.begin >= before.begin
    for record in sent:
        moments = [record.forward_at, record.backward_at, record.optimizer_at, record.end]
        moments += [moment for _key, *stamps in record.calls for moment in stamps]
        assert min(moments) >= record.begin
        assert near(record.forward, FORWARD)


def test_only_an_end_that_the_host_records_late_widens_its_bound() -> None:
    training = Training()
    record = training.step()
    training.wait(STEP)
    training.resolver.take_done([record])
    assert list(training.resolver.late_ns) == [0]
    ready, launched_ns = training.pool.mark_event(), training.device.now_ns
    ready.recorded_ns = launched_ns
    training.wait(80_000)  # the collective has long ended
    end = training.pool.mark_event()
    end.recorded_ns = training.device.now_ns
    training.wait(STEP)
    record = training.step()._replace(calls=[["key", ready, end]])
    training.wait(STEP)
    training.resolver.take_done([record])
    assert list(training.resolver.late_ns) == [0, 80_000]


def hosted(training: Training, host_ns: int) -> StepRecord:
    """A step in which the device waits for its host, which takes so long."""
    begin = training.device.now_ns
    for mark in (Mark.FORWARD, Mark.BACKWARD, Mark.OPTIMIZER):
        training.marks(mark)
        training.wait(host_ns // 3)
        training.marks(Mark(mark + 1))
    record = StepRecord(
        training.steps, begin, training.device.now_ns, 0, 11, 12, 13, begin, begin, begin, begin, 1, 0, 0,
        None, [], training.marks.take(), 17,
    )  # fmt: skip
    training.steps += 1
    return record


def test_where_the_device_waits_for_the_host_a_step_need_not_be_marked() -> None:
    training = Training()
    assert not training.resolver.device_waits
    records = [hosted(training, 3 * MS) for _ in range(WAITED_STEPS)]
    training.resolver.take_done(records)
    assert training.resolver.device_waits
    training.marks.wanted = False
    record = hosted(training, 3 * MS)
    assert [mark for mark, _ in record.marks] == [Mark.BACKWARD_END]
    (done,) = training.resolver.take_done([record])
    assert (done.forward, done.backward, done.optimizer, done.exposed, done.marks) == (11, 12, 13, 17, ())
    training.marks.wanted = True
    (marked,) = training.resolver.take_done([hosted(training, 3 * MS)])
    assert near(marked.begin, done.end)
    made = training.pool.made
    for _ in range(5):
        training.resolver.take_done([hosted(training, 3 * MS)])
    assert training.pool.made == made, "the events of a step without marks are used again"


def test_a_device_that_falls_behind_is_seen_in_a_step_without_marks() -> None:
    training = Training()
    training.resolver.take_done([hosted(training, 3 * MS) for _ in range(WAITED_STEPS)])
    training.marks.wanted = False
    begin = training.device.now_ns
    training.device.compute(STEP)  # or it waits for another rank
    record = hosted(training, 3 * MS)
    training.wait(2 * STEP)
    (done,) = training.resolver.take_done([record])
    assert done.exposed == -1, "the host does not know how long the device has waited"
    assert not training.resolver.device_waits
    training.marks.wanted = True
    (next_one,) = training.resolver.take_done([hosted(training, 3 * MS)])
    assert next_one.begin >= begin + STEP


def test_the_position_of_a_device_in_a_step_without_marks_is_one_of_two_or_idle() -> None:
    device = FakeDevice(look_ns=0)
    marks = PhaseMarks(device, EventPool(device, now=device.now))
    marks.wanted = False
    marks(Mark.FORWARD)
    device.compute(STEP)
    marks(Mark.BACKWARD_END)
    marks(Mark.OPTIMIZER)
    taken = marks.take()
    assert device_position(taken, []).state == EITHER
    device.now_ns += STEP
    assert device_position(taken, []).state == IDLE


def test_no_event_of_a_step_is_given_back_while_others_are_read_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The training thread may take it at once: here, where the marks of a step were refused."""
    training = Training()

    give_back = training.pool.give_back

    def give_back_and_record_again(*happened: Any) -> None:
        give_back(*happened)
        for _ in happened:
            training.pool.take_event().at_ns = training.device.now_ns + 10 * STEP  # far from happening

    record = training.step()._replace(marks=[])
    record = record._replace(
        calls=[*record.calls, ["key", training.pool.mark_event(), training.pool.mark_event()]]
    )
    training.wait(2 * STEP)
    monkeypatch.setattr(training.pool, "give_back", give_back_and_record_again)
    (done,) = training.resolver.take_done([record])
    assert not training.resolver.broken
    assert [end >= ready for _key, ready, end in done.calls] == [True, True]


def test_a_broadcast_of_buffers_takes_what_the_device_takes_for_it() -> None:
    training = Training()
    begin = training.device.now_ns
    training.marks(Mark.FORWARD)
    training.marks(Mark.BUFFERS)
    training.device.compute(3 * MS)
    training.marks(Mark.WAIT_END)
    training.device.compute(4 * MS)
    training.marks(Mark.FORWARD_END)
    for mark in (Mark.BACKWARD, Mark.BACKWARD_END, Mark.OPTIMIZER, Mark.OPTIMIZER_END):
        training.marks(mark)
    host_waits = [[int(Phase.FORWARD), 7], [IN_BUFFERS, 7]]
    record = StepRecord(
        0, begin, training.device.now_ns, 0, 11, 12, 13, begin, begin, begin, begin, 1, 0, 0,
        None, [], training.marks.take(), 17, waits=host_waits,
    )  # fmt: skip
    training.wait(STEP)
    (done,) = training.resolver.take_done([record])
    waits = dict(done.waits)
    assert near(waits[int(Phase.FORWARD)], 3 * MS) and near(waits[IN_BUFFERS], 3 * MS)
    training.marks.wanted = False
    training.marks(Mark.BUFFERS)
    training.marks(Mark.WAIT_END)
    training.marks(Mark.BACKWARD_END)
    bare = record._replace(step=1, marks=training.marks.take())
    (seen,) = training.resolver.take_done([bare])
    assert [ns < 0 for phase, ns in seen.waits if phase == IN_BUFFERS] == [True], "not known without marks"
