"""Messages in, group state out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ddptop.analysis.health.bad_loss import PASSED_LOSS_NS
from ddptop.analysis.reducer import Reducer
from ddptop.collector.record import Counts
from ddptop.frames.frame import Frame
from ddptop.frames.remedies import remedy_of_alert
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Layout, Received, Steps
from tests.made_up_run import bucket, feed_together

NS = 1_000_000_000
START_NS = 5_000 * NS


def feed(reducer: Reducer, *groups: Received | Iterable[Received]) -> None:
    for group in groups:
        feed_together(reducer, [group] if isinstance(group, Received) else group)


def frame(reducer: Reducer, world, after_s: float = 0.0, **options) -> Frame:
    return reducer.frame(START_NS + world.now_us * 1000 + int(after_s * NS), **options)


@pytest.fixture
def started(make_world):
    """A reducer with a world of four that has introduced itself."""
    world, reducer = make_world(4), Reducer()
    feed(reducer, world.run(), world.introduce())
    return world, reducer


def test_before_anything_is_heard() -> None:
    found = Reducer().frame(START_NS)
    assert found.run.state == "waiting"
    assert found.group.step is None
    assert len(found.ranks.step) == 0


def test_ranks_not_yet_heard_are_waited_for(make_world) -> None:
    world, reducer = make_world(4), Reducer()
    feed(reducer, world.run(), world.hello(0), world.hello(2))
    found = frame(reducer, world)
    assert found.ranks.state == ("live", "waiting", "live", "waiting")
    assert found.run.state == "waiting"
    assert found.events[-1].message == "ranks 0 and 2 joined"


def test_a_healthy_world(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(120, loss=lambda rank, step: rank + step / 100))
    found = frame(reducer, world, focus=2)
    assert reducer.state.complete_step == found.group.step == 119
    assert found.run.state == "live"
    assert found.run.torch == "2.13"
    assert found.run.card == {"ddp.static_graph": False}
    assert found.group.step_ms_p50 == pytest.approx(14.0)
    assert found.group.steps_per_s == pytest.approx(1000 / 14)
    assert (found.group.loss_mean, found.group.loss_min_rank, found.group.loss_max_rank) == (
        pytest.approx(2.69),
        0,
        3,
    )
    assert found.group.no_straggler_ms == pytest.approx(14.0)
    assert found.straggler is None
    assert found.alerts == ()
    assert [h.message for h in found.events] == ["4 ranks joined"]
    assert found.history.time_s[-1] == pytest.approx(120 * 0.014)
    assert found.focus is not None
    np.testing.assert_array_equal(found.focus.step, np.arange(20, 120))
    np.testing.assert_allclose(found.ranks.data_ms, 1.0)
    np.testing.assert_allclose(found.ranks.other_ms, 0.2, rtol=1e-5)
    assert [b.busbw_gbps for b in found.buckets] == [pytest.approx(12.0), pytest.approx(6.0)]


def test_figures_do_not_depend_on_when_frames_are_asked_for(make_world) -> None:
    delays = {(1, "data"): 20_000}
    shown = []
    for every in (7, 1000):  # with 4 ranks: after each rank's message of some step
        world, reducer = make_world(4, delays=dict(delays), detail_every=2), Reducer()
        feed(reducer, world.run(), world.introduce())

        def delay_until_200(world: Any = world) -> None:
            if world.step == 200:
                world.delays.clear()

        messages = world.steps(300, before_step=delay_until_200)
        while together := [*islice(messages, every)]:
            feed(reducer, together)
            frame(reducer, world)
        found = frame(reducer, world)
        shown.append((snapshot(found), found.events, found.history.wait_ms.tolist()))
    for other in shown[1:]:
        np.testing.assert_equal(other, shown[0])


def test_rows_ahead_of_the_complete_step_change_no_figure(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(50))
    before = snapshot(frame(reducer, world))
    world.delays[0, "data"] = 90_000
    feed(reducer, [received for received in world.steps(3) if received.rank < 3])
    after = snapshot(frame(reducer, world))
    for name in ("group", "buckets", "straggler"):
        assert after[name] == before[name]


def test_lost_records_are_counted_exactly(started) -> None:
    world, reducer = started
    for received in world.steps(60):
        step = received.message.first_step
        if (received.rank == 1 and (step < 3 or 20 <= step < 25)) or (received.rank == 2 and step == 40):
            continue
        reducer.feed(received)
    found = frame(reducer, world)
    assert found.ranks.lost_records.tolist() == [0, 8, 1, 0]
    assert found.ranks.records.tolist() == [60, 52, 59, 60]
    assert (found.records, found.lost_records) == (231, 9)
    assert found.group.step == 59
    assert 40 not in found.history.step
    assert len(found.history.step) == 60 - 3 - 5 - 1
    assert [(a.kind, a.rank) for a in found.alerts] == [("lost_records", 1)]


def test_the_end_of_a_recording_is_no_loss(make_world) -> None:
    world, reducer = make_world(2), Reducer(tail=True)
    late = [received for received in world.steps(50) if received.message.first_step >= 30]
    feed(reducer, world.run(), world.introduce(), late)
    found = frame(reducer, world)
    assert (found.records, found.lost_records) == (100, 0)
    reducer.state.tail = False
    feed(reducer, [r for r in world.steps(5) if r.message.first_step != 52])
    assert frame(reducer, world).lost_records == 2


@pytest.mark.parametrize("cut", [0, 20, 45, 58, 61, 75, 85, 99])
def test_counts_are_right_also_from_the_end_of_a_recording(make_world, cut: int) -> None:
    """Rows lost before the end that is read, within it, and by processes that have no row in it."""
    world, whole, counts = make_world(3), Reducer(), Counts()
    messages: list[Received] = []

    def take(*received: Received) -> None:
        for one in received:
            messages.append(one)
            whole.feed(one)
        for event in counts.new_events(whole.state, received[-1].t_ns):
            messages.append(Received(received[-1].t_ns, -1, 0, 0, event))
            whole.feed(messages[-1])

    take(world.run(), *world.introduce())
    for received in world.steps(60):
        step = received.message.first_step
        if not (received.rank == 1 and 10 <= step < 17) and not (received.rank == 2 and step == 57):
            take(received)
    take(world.event("lost_rank", 0, session=world.session(0)), world.bye(2))
    world.incarnation, world.session_base, world.step = 1, 200, 0
    world.unix_ns += 60 * 10**9
    take(*world.introduce())
    for received in world.steps(40):
        if not (received.rank == 0 and received.message.first_step in (22, 30)):
            take(received)

    rows = [received for received in messages if isinstance(received.message, Steps)]
    skipped = {id(received) for received in rows[: cut * len(rows) // 100]}
    end = Reducer(tail=True)
    feed(end, (received for received in messages if id(received) not in skipped))
    for name in ("records", "lost_records"):
        expected = [getattr(rank, name) for rank in whole.state.ranks]
        assert [getattr(rank, name) for rank in end.state.ranks] == expected


def test_what_a_recording_left_out_is_no_loss(started) -> None:
    """Past its limit a recording keeps only steps divisible by a power of two, and says so."""
    world, reducer = started
    feed(reducer, world.steps(10), world.event("thinned", every=4, message="past its limit"))
    kept = [r for r in world.steps(30) if r.message.first_step % 4 == 0]
    feed(reducer, [r for r in kept if (r.rank, r.message.first_step) != (1, 20)])
    found = frame(reducer, world)
    assert found.ranks.lost_records.tolist() == [0, 1, 0, 0]
    assert found.history.step.tolist() == [*range(10), 12, 16, 24, 28, 32, 36]


def test_repeated_and_unknown_messages_change_nothing(started) -> None:
    world, reducer = started
    steps = list(world.steps(10))
    feed(reducer, steps, steps)
    stranger = Received(0, 3, 999, 1, steps[0].message)
    feed(reducer, stranger)
    found = frame(reducer, world)
    assert (found.records, found.lost_records) == (40, 0)


def test_an_elastic_restart_begins_again_but_history_goes_on(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(40))
    leftovers = [received for received in world.steps(1) if received.rank == 0]
    feed(reducer, leftovers)
    again = make_world(2, session_base=200, incarnation=1, now_us=world.now_us + 5_000_000)
    feed(reducer, again.hello(1))
    found = frame(reducer, again)
    assert found.group.step is None
    assert found.ranks.state == ("waiting", "live")
    assert found.events[-1].message == "elastic restart 1: rank 1"
    feed(reducer, again.introduce(), again.steps(10), leftovers)
    found = frame(reducer, again)
    assert found.group.step == 9
    assert found.ranks.incarnation.tolist() == [1, 1]
    assert (found.group.incarnation, found.events[0].incarnation) == (1, 0)
    assert found.events[-1].message == "elastic restart 1: 2 ranks"
    assert found.history.step.tolist() == [*range(40), *range(10)]
    assert found.records == 80 + 1 + 20
    assert found.lost_records == 0


def test_a_late_row_of_the_process_before_is_not_paired_with_the_new_one(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed(reducer, world.run(), world.introduce())
    only_one = [received for received in world.steps(3) if received.rank == 1]
    feed(reducer, only_one)
    again = make_world(2, session_base=200)
    feed(reducer, again.hello(0), again.layout(0))
    feed(reducer, [received for received in again.steps(3) if received.rank == 0])
    assert reducer.state.complete_step is None


def test_a_failure_reported_after_the_next_process_has_begun_is_still_an_event(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(3))
    again = make_world(2, session_base=200, incarnation=1, now_us=world.now_us + 5_000_000)
    feed(reducer, again.introduce(), again.steps(1), world.bye(1, "ValueError"), world.bye(0))
    found = frame(reducer, again)
    failed = [(event.rank, event.message) for event in found.events if event.kind == "failed_rank"]
    assert failed == [(1, "rank 1 failed: ValueError")]
    assert not found.deaths and set(found.ranks.state) == {"live"}


def test_a_restart_with_another_world_size(make_world) -> None:
    world, reducer = make_world(4), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(20))
    smaller = make_world(2, session_base=200, incarnation=1)
    feed(reducer, smaller.introduce(), smaller.steps(20))
    found = frame(reducer, smaller)
    assert (found.run.world_size, found.group.step, len(found.ranks.step)) == (2, 19, 2)


def test_layouts_are_compared_by_content_not_by_generation_number(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed(reducer, world.run(), world.introduce())
    same = (bucket(0), bucket(1))
    other = (*same, bucket(2, 10))
    feed(reducer, world.received(1, Layout(5, other)), world.received(1, Layout(6, same)))
    for received in world.steps(20):
        steps = received.message
        generation = 6 if received.rank == 1 and steps.first_step < 10 else 5 if received.rank == 1 else 0
        feed(
            reducer, world.received(received.rank, Steps(generation, steps.first_step, START_NS, steps.rows))
        )
    found = frame(reducer, world)
    assert np.isfinite(found.history.wait_ms).tolist() == [True] * 10 + [False] * 10
    assert "rank 1 rebuilt gradient buckets, generation 5" in [h.message for h in found.events]


def test_a_rebuild_starts_new_baselines(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(30))
    world.generation = 1
    wider = (bucket(0, 16_000_000), bucket(1, 1))
    feed(reducer, [world.layout(rank, wider) for rank in range(4)], world.steps(10))
    found = frame(reducer, world)
    assert [(b.generation, b.bytes) for b in found.buckets] == [(1, 16_000_000), (1, 1)]
    assert found.buckets[0].algbw_gbps == pytest.approx(16.0)
    assert found.events[-1].message == "4 ranks rebuilt gradient buckets, generation 1"


def test_what_is_learnt_of_a_bucket_later_is_no_rebuild(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(20))
    told = tuple(bucket(i)._replace(parameters=9) for i in range(2))
    feed(reducer, [world.layout(rank, told) for rank in range(4)], world.steps(2))
    found = frame(reducer, world)
    assert [h.kind for h in found.events] == ["joined"]
    assert found.buckets[0].parameters == 9
    assert found.group.no_straggler_ms is not None, "the window went on"


def test_detail_older_than_the_window_is_unknown(make_world) -> None:
    world, reducer = make_world(2, detail_every=32), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(97))
    found = frame(reducer, world)
    assert found.group.no_straggler_ms == pytest.approx(14.0), "every 32nd step is enough"
    assert found.ranks.wait_ms.tolist() == [0, 0]
    world.detail_every, world.delays[0, "data"] = 10**6, 20_000
    feed(reducer, world.steps(60))
    found = frame(reducer, world)
    assert found.group.no_straggler_ms is None, "two detailed steps within the window are too few to compare"
    feed(reducer, world.steps(60))
    found = frame(reducer, world)
    assert (found.group.wait_ms, found.group.busbw_gbps, found.group.overlap_pct) == (None, None, None)
    assert np.isnan(found.ranks.wait_ms).all()
    assert found.buckets[0].bytes == 8_000_000
    assert found.buckets[0].wait_ms is None


def test_wire_bytes_hidden_by_a_hook_leave_bandwidth_unknown(make_world) -> None:
    world, reducer = make_world(2), Reducer()
    feed(reducer, world.run(), world.introduce())
    hidden = tuple(bucket(i, 8)._replace(wire_bytes=None, hook="powersgd") for i in range(2))
    feed(reducer, world.layout(0, hidden), world.layout(1, hidden), world.steps(20))
    found = frame(reducer, world)
    assert found.buckets[0].bytes is None
    assert found.buckets[0].busbw_gbps is None
    assert found.group.busbw_gbps is None
    assert found.buckets[0].transfer_ms == pytest.approx(1.0)


def test_nan_loss_names_the_first_rank_and_step(started) -> None:
    world, reducer = started

    def loss(rank: int, step: int) -> float:
        return float("nan") if (rank == 2 and step >= 57) or step >= 60 else 1.0

    feed(reducer, world.steps(70, loss=loss))
    found = frame(reducer, world)
    alert = found.alerts[0]
    assert (alert.kind, alert.severity, alert.rank, alert.step) == ("nan", "critical", 2, 57)
    assert found.group.loss_mean is None
    assert np.isnan(found.history.loss_mean[-1])
    feed(reducer, world.steps(2))
    recovered = frame(reducer, world)
    passed = recovered.alerts[0]
    assert (passed.kind, passed.severity, passed.rank, passed.step) == ("nan", "warning", 2, 57)
    assert passed.message == "the loss of rank 2 and 3 others was NaN or infinite from step 57 to 69"
    assert verdict(recovered).sentence.startswith(f"{passed.message}, ")
    assert [(h.rank, h.step, h.message) for h in recovered.events if h.kind == "nan"] == [
        (2, 57, "rank 2: loss is NaN since step 57"),
        (None, 60, "ranks 0, 1 and 3: loss is NaN since step 60"),
    ]
    later = frame(reducer, world, after_s=PASSED_LOSS_NS / NS)
    assert "nan" not in [alert.kind for alert in later.alerts], "whoever looks now and then has seen it"


def read_every(every: int, bad_from: Callable[[int], int]) -> Callable[[int, int], float | None]:
    """Losses of which one of so many is read; those of a rank are NaN from a step on."""
    return lambda rank, step: None if step % every else math.nan if step >= bad_from(rank) else 1.0


@pytest.mark.parametrize(("world_size", "who"), [(2, "both ranks"), (4, "all 4 ranks")])
def test_of_losses_that_are_seldom_read_the_begin_is_an_interval_and_no_rank_is_named(
    make_world, world_size, who
) -> None:
    world, reducer = make_world(world_size), Reducer()
    feed(reducer, world.run(), world.introduce())
    feed(reducer, world.steps(70, loss=read_every(16, lambda rank: 41 if rank == 1 else 42)))
    found = frame(reducer, world)
    alert = found.alerts[0]
    assert alert.message == f"the loss of {who} is NaN or infinite since a step between 33 and 48"
    assert (alert.rank, alert.step) == (None, 48)
    assert alert.evidence == {"ranks": world_size, "last_finite_step": 32}
    assert remedy_of_alert(alert).startswith("Look at the batches of steps 33 to 48 on all ranks;")
    [event] = [event for event in found.events if event.kind == "nan"]
    assert event.message.endswith(": loss is NaN since a step between 33 and 48")
    feed(reducer, world.steps(26, loss=read_every(16, lambda rank: 1_000)))
    passed = frame(reducer, world).alerts[0].message
    assert passed == f"the loss of {who} was NaN or infinite from a step between 33 and 48 to step 79"


def test_a_rank_is_named_for_a_loss_that_is_seldom_read_where_the_others_are_still_finite(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(60, loss=read_every(16, lambda rank: 41 if rank == 2 else 1_000)))
    alert = frame(reducer, world).alerts[0]
    assert alert.message == "the loss of rank 2 is NaN or infinite since a step between 33 and 48"
    assert remedy_of_alert(alert).startswith("Look at the batches of steps 33 to 48 on rank 2;")


def test_a_loss_that_is_bad_when_first_read_began_there_at_the_latest(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(20, loss=lambda rank, step: None if step < 10 else math.inf))
    alert = frame(reducer, world).alerts[0]
    assert alert.message == "the loss of all 4 ranks is NaN or infinite since step 10 at the latest"
    assert "last_finite_step" not in alert.evidence


def test_the_first_bad_loss_is_the_one_of_the_lowest_step_whoever_reports_first(started) -> None:
    world, reducer = started
    steps = list(world.steps(20, loss=lambda rank, step: float("inf") if step >= 10 - (rank == 1) else 1.0))
    for rank in (3, 2, 1, 0):
        feed(reducer, [received for received in steps if received.rank == rank])
    alert = frame(reducer, world).alerts[0]
    assert (alert.rank, alert.step, alert.evidence["ranks"]) == (1, 9, 4)


def test_an_unknown_loss_keeps_the_last_known_one(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(20, loss=lambda rank, step: 3.0 if step == 10 else None))
    found = frame(reducer, world)
    assert found.group.loss_mean == 3.0
    assert np.isnan(found.history.loss_mean[-1])


def test_several_hosts_are_not_compared(make_world) -> None:
    world, reducer = make_world(4, hosts=("node0", "node1"), delays={(1, "data"): 20_000}), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(100))
    found = frame(reducer, world)
    assert found.straggler is None
    assert np.isnan(found.ranks.lateness_ms).all()
    assert np.isnan(found.ranks.last_pct).all()
    assert found.group.no_straggler_ms is None
    np.testing.assert_allclose(found.ranks.exposed_wait_ms, [20, 0, 20, 20], atol=1e-4)


def test_a_lone_rank(make_world) -> None:
    world, reducer = make_world(1), Reducer()
    feed(reducer, world.run(), world.introduce(), world.steps(30))
    found = frame(reducer, world)
    assert found.group.step == 29
    assert found.straggler is None
    assert np.isnan(found.ranks.lateness_ms).all()
    assert found.group.wait_ms == 0


def test_only_the_largest_sampling_interval_counts(started) -> None:
    world, reducer = started
    assert reducer.state.detail_every == 1
    world.detail_every = 8
    feed(reducer, world.progress(0))
    world.detail_every = 4
    feed(reducer, world.progress(1))
    assert reducer.state.detail_every == 8
    feed(reducer, world.progress(0))
    assert reducer.state.detail_every == 4


def test_history_is_handed_out_from_a_cursor(started) -> None:
    world, reducer = started
    feed(reducer, world.steps(30))
    assert reducer.state.history_end == 30
    found = frame(reducer, world, cursor=25)
    assert (found.history.start, len(found.history.step)) == (25, 5)


def test_what_a_dead_rank_kept_is_counted_once(make_world) -> None:
    world = make_world(2)
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(40)])
    session = world.session(1)
    for _ in range(2):
        reducer.feed(world.event("unsent", 1, session=session, steps=48, exact=True))
    reducer.feed(world.event("unsent", 1, session=session + 50, steps=90, exact=True))
    assert [member.lost_records for member in reducer.state.ranks] == [0, 8]
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.lost_records == 8
    said = [one.message for one in frame.events if one.kind == "unsent"]
    assert said == ["rank 1 ended before 8 finished steps could be sent"]
    alert = next(alert for alert in frame.alerts if alert.kind == "lost_records")
    assert (alert.rank, alert.evidence["lost"]) == (1, 8)


def test_a_tail_that_nobody_knows_is_said_to_be_unknown(make_world) -> None:
    world = make_world(2)
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(40), world.progress(1, step=43)])
    assert reducer.state.steps_of(world.session(1)) == (40, 43)
    reducer.feed(world.event("unsent", 1, session=world.session(1), steps=43, exact=False))
    assert reducer.state.ranks[1].lost_records == 3
    assert reducer.state.log.all()[-1].message == (
        "rank 1 exited without BYE: its last steps may be missing, 3 of them at least"
    )


@pytest.mark.parametrize("steps", [0, 8])
@pytest.mark.parametrize("finished", [True, False])
def test_a_rank_that_finished_before_its_collector_was_there_is_finished(
    make_world, steps: int, finished: bool
) -> None:
    """Also without a step. Its HELLO and its number of steps were in a file."""
    world = make_world(2)
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    for rank in range(2):
        fields = {"session": world.session(rank), "steps": steps, "exact": True}
        if finished:
            fields["finished"] = True
        reducer.feed(world.event("unsent", rank, **fields))
    reducer.feed(world.run("finished", 0))
    assert [rank.finished for rank in reducer.state.ranks] == [finished] * 2
    assert len(reducer.state.end.finished) == 2 * finished


@pytest.mark.parametrize(
    ("recorded", "has_counter", "is_said"), [(False, False, False), (False, True, True), (True, False, True)]
)
def test_a_rank_that_ends_before_its_first_step_has_lost_none(
    make_world, recorded: bool, has_counter: bool, is_said: bool
) -> None:
    """It has reported since torch's import, and has not made the counter of its steps yet."""
    world = make_world(2)
    reducer = Reducer()
    hello = world.hello(1)
    early = replace(hello.message, device="", backend="", timing_path="" if not recorded else "reducer")
    reducer.feed(world.run())
    reducer.feed(hello._replace(message=early))
    reducer.feed(world.event("milestone", 1, name="torch"))
    ended = {"session": world.session(1), "steps": 0, "exact": False, "has_counter": has_counter}
    reducer.feed(world.event("unsent", 1, **ended))
    said = [one.message for one in reducer.state.log.all() if one.kind == "unsent"]
    assert bool(said) is is_said
    assert not said or "how many is not known" in said[0]
