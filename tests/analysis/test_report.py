"""The report of made-up runs whose delays, and so whose costs, are known."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ddptop.frames.frame import LoggedEvent
from ddptop.protocol.evidence import Evidence, Stack, StackFrame
from ddptop.protocol.machine import Usage
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import Event, Hello, Phase, Received, Steps
from ddptop.recording.reader import Recording
from ddptop.report.build import make_report, read_report
from ddptop.report.content import StallPeriod, as_data
from ddptop.report.findings import make_findings
from ddptop.report.html import html_page
from ddptop.report.sampling import RunSampler
from ddptop.report.tables import beside_others
from ddptop.report.text import text_page
from tests.made_up_run import DATA, START_NS, World, report_from_messages

if TYPE_CHECKING:
    from ddptop.report.content import Report

LATE_MS = 10
SLOW = 300
EVEN = 200


def begun(world: World) -> Iterator[Received]:
    return chain([world.run()], world.introduce())


def slow_for_a_while(world: World) -> Iterator[Received]:
    """200 even steps, 300 in which rank 1 loads its data 10 ms longer, 200 even ones."""
    yield from begun(world)
    yield from world.steps(EVEN)
    world.delays[1, "data"] = 1000 * LATE_MS
    yield from world.steps(SLOW)
    world.delays.clear()
    yield from world.steps(EVEN)
    yield world.run("finished", 0)


@pytest.fixture(scope="module")
def slow() -> Report:
    return report_from_messages(slow_for_a_while(World()))


def kinds(found: Report) -> list[str]:
    return [one.kind for one in found.verdict]


def test_the_cost_is_the_delay_times_the_steps(slow: Report) -> None:
    truth_s = SLOW * LATE_MS / 1e3
    assert slow.cost.flagged_s == pytest.approx(truth_s, rel=0.1)
    assert slow.stragglers[0].lost_s == slow.cost.flagged_s
    assert slow.cost.flagged_pct == pytest.approx(100 * truth_s / slow.cost.step_s, rel=0.1)
    assert slow.cost.uneven_s == pytest.approx(truth_s, rel=0.1)


def test_what_happens_now_and_then_is_added_up(make_world: type[World]) -> None:
    """A median would not see it: one step in five is 40 ms longer."""
    world = make_world()
    messages = [*begun(world)]
    for step in range(300):
        world.delays = {(1, "data"): 40_000} if step % 5 == 0 else {}
        messages += world.steps(1)
    found = report_from_messages([*messages, world.run("finished", 0)])
    assert found.cost.uneven_s == pytest.approx(60 * 0.04, rel=0.05)
    assert kinds(found)[0] in ("uneven", "straggler")


def test_the_straggler_is_shown_with_cause_and_steps(slow: Report) -> None:
    (one,) = slow.stragglers
    assert (one.rank, one.cause) == (1, "data")
    assert one.lateness_ms == pytest.approx(LATE_MS, rel=0.05)
    assert one.parts_ms["data"] == pytest.approx(LATE_MS, rel=0.05)
    assert one.first_step == pytest.approx(EVEN, abs=40)
    assert one.last_step == pytest.approx(EVEN + SLOW, abs=40)
    assert kinds(slow) == ["straggler"]
    assert "rank 1 was slow: data loading · cost 2.9 s" in slow.verdict[0].sentence


def test_spans_add_up_to_the_whole(slow: Report) -> None:
    assert sum(span.steps for span in slow.spans) == slow.reading.steps == 2 * EVEN + SLOW
    assert sum(span.lost_s or 0 for span in slow.spans) == pytest.approx(slow.cost.flagged_s)
    who = [span.rank for span in slow.spans]
    assert who[0] is None
    assert who[len(who) // 2] == 1
    assert who[-1] is None
    middle, edge = slow.spans[len(who) // 2], slow.spans[0]
    assert middle.step_ms == pytest.approx((edge.step_ms or 0) + LATE_MS, rel=0.01)
    assert (middle.wait_pct or 0) > 20 > (edge.wait_pct or 0)


def test_the_step_without_waiting_is_shorter_by_all_that_the_slow_rank_costs() -> None:
    """Not by what ranks wait on average: of two ranks one waits."""
    with Recording.open(Path(__file__).parents[1] / "recording" / "data" / "rows.ddptop") as recording:
        found = read_report(recording)
    comm, cost = found.communication, found.cost
    assert cost.is_summed and cost.uneven_pct is not None and cost.flagged_pct is not None
    assert cost.uneven_pct < 0.6 * cost.flagged_pct
    assert comm.step_ms is not None and comm.no_straggler_ms is not None
    lost_pct = 100 * (1 - comm.no_straggler_ms / comm.step_ms)
    assert lost_pct == pytest.approx(cost.flagged_pct, rel=0.1)


def test_the_first_suggestion_rests_on_what_the_data_costs(slow: Report) -> None:
    first = slow.advice[0]
    assert first.kind == "data_workers"
    assert first.figures["rank"] == 1
    assert first.gain_pct == pytest.approx(slow.cost.flagged_pct, rel=0.05)
    assert "10.0 ms more than the others in data loading" in first.because


def test_buckets_have_their_bandwidth(slow: Report) -> None:
    first, second = slow.buckets
    assert first.transfer_ms == pytest.approx(1.0, rel=0.05)
    assert second.transfer_ms == pytest.approx(2.0, rel=0.05)
    assert first.algbw_gbps == pytest.approx(8.0, rel=0.05)
    assert first.busbw_gbps == pytest.approx(8.0 * 2 * 3 / 4, rel=0.05)


@pytest.mark.parametrize(
    ("phase", "kind"),
    [("forward", "slow_device"), ("backward", "slow_device"), ("other", "work_between_steps")],
)
def test_another_cause_is_another_suggestion(make_world: type[World], phase: str, kind: str) -> None:
    world = make_world(delays={(2, phase): 10_000})
    found = report_from_messages(chain(begun(world), world.steps(150)))
    assert found.stragglers[0].cause == phase
    assert kind in [one.kind for one in found.advice]
    assert "data_workers" not in [one.kind for one in found.advice if one.figures.get("rank") == 2]


def test_equal_ranks_are_healthy(make_world: type[World]) -> None:
    world = make_world()
    found = report_from_messages(chain(begun(world), world.steps(200), [world.run("finished", 0)]))
    assert kinds(found) == ["even"]
    assert found.cost.flagged_s == 0.0
    assert "no rank was slow · waiting cost 0%" in found.verdict[0].sentence
    assert not [one for one in found.advice if one.kind in ("data_workers", "slow_device", "even_batches")]


def test_nothing_is_kept_for_timelines_and_charts_of_ranks(make_world: type[World]) -> None:
    world, sampler = make_world(own=True), RunSampler(20)
    for received in chain(begun(world), world.steps(60)):
        sampler.feed_message(received)
    figures = sampler.reducer.state.figures
    assert figures.steps.has_own
    assert figures.detail is not None
    assert figures.kept.numbers == ()
    assert figures.minutes.of(0) is None


def test_steps_left_out_are_counted_and_are_neither_lost_nor_a_stall(
    slow: Report, make_world: type[World]
) -> None:
    sampler = RunSampler(20)
    skipping = False
    for received in slow_for_a_while(make_world()):
        if isinstance(received.message, Steps):
            leave_out = received.message.first_step % 200 < 60
            if leave_out and not skipping:
                sampler.skip_rows()
            skipping = leave_out
            if leave_out:
                continue
        sampler.feed_message(received)
    part = make_report(sampler, whole=False)
    assert part.reading.steps == slow.reading.steps
    assert part.reading.read_steps < slow.reading.read_steps
    assert part.cost.flagged_s == pytest.approx(slow.cost.flagged_s, rel=0.2)
    assert all(rank.lost_records == 0 for rank in part.ranks)
    assert not part.stalls
    assert not [one for one in part.events if one.kind.startswith("stall")]
    assert part.ledger is None and "where the time went is not known" in text_page(part, 200)


def test_no_share_of_a_span_is_above_100_per_cent(make_world: type[World]) -> None:
    """What a stall takes out of a step is taken out of what that step waited."""
    world = make_world(size=2, own=True)
    messages = [*begun(world), *world.steps(100)]
    messages += standing(world, 40)
    world.delays[1, "forward"] = 40_000_000
    messages += world.steps(1)
    world.delays.clear()
    found = report_from_messages(chain(messages, world.steps(100), [world.run("finished", 0)]))
    assert found.stalls
    shares = [share for span in found.spans for share in (span.wait_pct, span.transfer_pct, span.cost_pct)]
    assert max(share for share in shares if share is not None) <= 100.0
    assert all((s.wait_pct or 0.0) + (s.transfer_pct or 0.0) <= 100.01 for s in found.spans)


def test_a_flag_does_not_cite_the_warnings_of_the_start(make_world: type[World]) -> None:
    world = make_world(own=True)
    messages = [*begun(world)]
    warned = Event("warning", world.base_ns(0), 0, 0, {"message": "UserWarning: deprecated"})
    messages += [world.received(0, warned), *world.steps(EVEN)]
    world.delays[1, "data"] = 1000 * LATE_MS
    found = report_from_messages(chain(messages, world.steps(SLOW), [world.run("finished", 0)]))
    assert "deprecated" in " ".join(event.message for event in found.events)
    beside = beside_others(found)
    assert beside is not None and beside.flagged_s is not None
    assert not beside.near
    later = LoggedEvent(beside.flagged_s - 1, "warning", "warning", 1, 90, "UserWarning: the disk is slow")
    near = beside_others(replace(found, events=(*found.events, later)))
    assert near is not None and near.near == (later,), "one of that moment may be the reason"


def test_lost_steps_still_count_as_lost(make_world: type[World]) -> None:
    world = make_world(size=2)
    rows = list(world.steps(100))
    kept = [r for r in rows if not (r.rank == 1 and 40 <= r.message.first_step < 50)]  # type: ignore[union-attr]
    world_two = make_world(size=2)
    found = report_from_messages(chain(begun(world_two), kept))
    assert found.ranks[1].lost_records == 10
    assert "lost_records" in [alert.kind for alert in found.troubles]
    assert found.reading.steps == 100
    assert found.reading.read_steps == 90


def test_a_nan_names_rank_and_step_and_comes_before_speed(make_world: type[World]) -> None:
    world = make_world(delays={(1, "data"): 10_000})
    rows = world.steps(150, loss=lambda rank, step: math.nan if rank == 2 and 57 <= step < 60 else 1.0)
    found = report_from_messages(chain(begun(world), rows))
    assert kinds(found)[:2] == ["lost", "nan"]
    assert found.advice[0].kind == "nan"
    assert found.advice[0].figures == {"rank": 2, "step": 57}
    assert [one.kind for one in found.advice].count("nan") == 1
    json.dumps(as_data(found), allow_nan=False)


def test_of_a_nan_that_was_over_the_last_step_is_said(make_world: type[World]) -> None:
    world = make_world()
    rows = world.steps(150, loss=lambda rank, step: math.nan if rank == 2 and 57 <= step < 90 else 1.0)
    found = report_from_messages(chain(begun(world), rows))
    [trouble] = [one for one in found.troubles if one.kind == "nan"]
    assert (trouble.severity, trouble.step) == ("critical", 57)
    assert trouble.message == "the loss of rank 2 was NaN or infinite from step 57 to 89"


@pytest.mark.parametrize("last", [80, 1000])
def test_a_nan_of_one_rank_is_told_once_though_all_have_it_in_the_next_step(
    make_world: type[World], last: int
) -> None:
    world = make_world()
    first = {rank: 57 if rank == 2 else 58 for rank in range(world.size)}
    rows = world.steps(150, loss=lambda rank, step: math.nan if first[rank] <= step < last else 1.0)
    found = report_from_messages(chain(begun(world), rows))
    [trouble] = [one for one in found.troubles if one.kind == "nan"]
    assert (trouble.rank, trouble.step) == (2, 57)
    assert found.advice[0].figures == {"rank": 2, "step": 57}


def test_two_nans_far_from_each_other_are_two_also_where_no_frame_shows_them(make_world: type[World]) -> None:
    """Steps of 10 s: each NaN is over, and was so for ten minutes, before the next sample."""
    world = make_world(2, delays={(rank, "other"): 10_000_000 for rank in range(2)})
    bad = {(1, 110), (0, 111), (0, 320), (1, 321)}
    rows = world.steps(450, loss=lambda rank, step: math.nan if (rank, step) in bad else 1.0)
    found = report_from_messages(chain(begun(world), rows, [world.run("finished", 0)]))
    assert [(one.rank, one.step) for one in found.troubles if one.kind == "nan"] == [(1, 110), (0, 320)]


def standing(world: World, seconds: int) -> Iterator[Received]:
    """Heartbeats of all ranks while no step is finished."""
    for _ in range(2 * seconds):
        world.now_us += 500_000
        for rank in range(world.size):
            yield world.progress(rank)
    world.begin_us = [world.now_us] * world.size


def test_a_stall_that_was_over_is_in_the_report(make_world: type[World]) -> None:
    world = make_world(size=2)
    messages = chain(
        begun(world), world.steps(100), standing(world, 40), world.steps(100), [world.run("finished", 0)]
    )
    found = report_from_messages(messages)
    (stall,) = found.stalls
    assert stall.lasted_s == pytest.approx(40, abs=2)
    assert stall.until_s is not None
    assert found.cost.stalled_s == stall.lasted_s
    assert found.cost.step_s < 10
    assert kinds(found)[0] == "stall"


def test_a_stall_that_was_over_costs_no_more_than_the_time_in_steps(make_world: type[World]) -> None:
    """The step in which it was is complete: its time, and what the others waited in it, are of the steps."""
    world = make_world(size=2, own=True)

    def stalls_once() -> Iterator[Received]:
        yield from begun(world)
        yield from world.steps(100)
        now_us, begin_us = world.now_us, world.begin_us
        yield from standing(world, 40)
        world.now_us, world.begin_us = now_us, begin_us
        world.delays = {(1, "after_optimizer"): 40_000_000}
        yield from world.steps(1)
        world.delays = {}
        yield from world.steps(100)

    found = report_from_messages(stalls_once())
    assert len(found.stalls) == 1
    comm, cost = found.communication, found.cost
    assert cost.is_summed and cost.flagged_s == pytest.approx(40, rel=0.05)
    assert cost.flagged_pct == pytest.approx(100 * cost.flagged_s / cost.step_s) and cost.flagged_pct < 97
    assert comm.step_ms_max == pytest.approx(40_000, rel=0.05)
    assert comm.step_ms_p50 == pytest.approx(comm.no_straggler_ms, rel=0.3)
    assert [span.rank for span in found.spans if span.lost_s] == [1]


def test_a_step_that_was_a_stall_is_not_told_again_as_a_slow_rank(make_world: type[World]) -> None:
    world = make_world(size=2, own=True)

    def pauses_once() -> Iterator[Received]:
        yield from begun(world)
        yield from world.steps(100)
        world.delays = {(1, "after_optimizer"): 22_000_000}
        yield from world.steps(1)
        world.delays = {}
        yield from world.steps(100)

    found = report_from_messages(pauses_once())
    assert [slow.pattern for slow in found.stragglers] == ["rare"]
    assert [finding.kind for finding in make_findings(found)].count("straggler") == 1
    stall = StallPeriod("missing", 1.0, 101, (1,), (0,), "rank 1 is missing", (), (), until_s=23.0)
    told = make_findings(replace(found, stalls=(stall,)))
    assert [finding.kind for finding in told] == ["lost", "stall"]


@pytest.mark.parametrize("steps", [300, 2_000])
def test_what_rare_slow_steps_cost_is_in_the_spans_of_these_steps(
    make_world: type[World], steps: int
) -> None:
    world = make_world(size=2, own=True)

    def saves_at_times() -> Iterator[Received]:
        yield from begun(world)
        for step in range(steps):
            world.delays = {(0, "after_optimizer"): 2_000_000} if step % 100 == 99 else {}
            yield from world.steps(1)

    found = report_from_messages(saves_at_times())
    assert [slow.pattern for slow in found.stragglers] == ["rare"]
    (slow,) = found.stragglers
    spans_s = [span.lost_s or 0.0 for span in found.spans]
    assert sum(spans_s) == pytest.approx(found.cost.flagged_s) == pytest.approx(slow.lost_s)
    slow_spans = [
        span
        for span in found.spans
        if span.first_step is not None
        and span.last_step is not None
        and span.first_step // 100 < (span.last_step + 1) // 100
    ]
    assert sum(span.lost_s or 0.0 for span in slow_spans) == pytest.approx(slow.lost_s)
    assert all((span.rank, span.cause) == (0, "other") for span in slow_spans)
    assert all((span.cost_pct or 0.0) > 30 for span in slow_spans)
    assert all(span.rank is None for span in found.spans if span not in slow_spans)


def test_a_run_that_stands_at_the_end(make_world: type[World]) -> None:
    world = make_world(size=2)
    found = report_from_messages(chain(begun(world), world.steps(100), standing(world, 40)), growing=True)
    assert found.run.state == "stalled"
    assert found.stalls[-1].until_s is None
    assert "(still stalled)" in found.verdict[0].sentence


def test_a_restart_keeps_what_was_before(make_world: type[World]) -> None:
    world = make_world(size=2, delays={(1, "data"): 10_000})
    messages = [*begun(world), *world.steps(120), world.bye(1, "ValueError")]
    world.now_us += 1000
    messages.append(world.bye(0, "RuntimeError"))
    again = make_world(
        size=2, session_base=500, incarnation=1, now_us=world.now_us + 1000, delays={(1, "data"): 10_000}
    )
    messages += [*again.introduce(), *again.steps(80), again.run("finished", 0)]
    found = report_from_messages(messages)
    assert found.reading.steps == 200
    assert found.stragglers[0].lost_s == pytest.approx(2.0, rel=0.2)
    assert [death.rank for death in found.deaths][:1] == [1]
    assert found.run.state == "finished"
    slow = found.stragglers[0]
    assert (slow.incarnation, slow.last_incarnation, slow.last_step) == (0, 1, 79)
    assert slow.first_step > 79 or slow.first_step < 60
    finding = next(one for one in found.verdict if one.kind == "straggler")
    assert finding.detail[0].startswith(f"step {slow.first_step} to elastic restart 1, step 79, ")
    last = found.spans[-1]
    assert (last.incarnation, last.last_incarnation, last.last_step) == (1, 1, 79)
    assert {span.incarnation for span in found.spans} == {0, 1}


def test_a_run_of_messages_is_taken_as_each_of_them(make_world: type[World], monkeypatch) -> None:
    world = make_world(size=16, delays={(1, "data"): 10_000})
    messages = [*begun(world), *world.steps(60), world.bye(1, "ValueError")]
    again = make_world(size=16, session_base=500, incarnation=1, now_us=world.now_us + 1000)
    messages += [*again.introduce(), *again.steps(60), again.run("finished", 0)]
    alone, together = RunSampler(), RunSampler()
    for received in messages:
        alone.feed_message(received)
    noted: list[int] = []
    feed = RunSampler.feed_message
    monkeypatch.setattr(
        RunSampler,
        "feed_message",
        lambda self, one: noted.append(one.session * isinstance(one.message, Hello)) or feed(self, one),
    )
    together.feed_run(MessageRun.of(messages), lambda: pytest.fail("refused"))
    first, second = ([one.session(rank) for rank in range(16)] for one in (world, again))
    assert not {*noted} & {*first[1:]}  # the first HELLO of a rank needs no sample
    assert {*noted} >= {*second}
    assert len(alone.samples) == len(together.samples)
    assert json.dumps(as_data(make_report(alone))) == json.dumps(as_data(make_report(together)))


def test_an_alert_after_a_restart_names_it(make_world: type[World]) -> None:
    world = make_world(size=2)
    messages = [*begun(world), *world.steps(60), world.bye(1, "ValueError")]
    again = make_world(size=2, session_base=500, incarnation=1, now_us=world.now_us + 1000)
    broken = again.steps(60, lambda rank, step: math.nan if rank == 1 and step > 10 else 1.0)
    messages += [*again.introduce(), *broken, again.run("finished", 0)]
    found = report_from_messages(messages)
    nan = next(alert for alert in found.troubles if alert.kind == "nan")
    assert nan.incarnation == 1
    sentence = next(one.sentence for one in found.verdict if one.kind == "nan")
    assert sentence.startswith("elastic restart 1: the loss of rank 1 ")
    assert "elastic restart 1: the loss of rank 1 " in text_page(found, 200)
    assert "of elastic restart 1, step " in found.advice[0].action


def test_nothing_measured_is_said_plainly(make_world: type[World]) -> None:
    world = make_world()
    found = report_from_messages(begun(world))
    assert kinds(found)[-1] == "no_step"
    assert found.cost.flagged_s is None
    assert found.communication.step_ms is None
    assert [bucket.bytes for bucket in found.buckets] == [8_000_000, 8_000_000]
    assert json.loads(json.dumps(as_data(found), allow_nan=False))["cost"]["flagged_s"] is None


def test_one_rank_has_nobody_to_wait_for(make_world: type[World]) -> None:
    world = make_world(size=1)
    found = report_from_messages(chain(begun(world), world.steps(100), [world.run("finished", 0)]))
    assert kinds(found) == ["alone"]


def test_without_bucket_detail_nobody_is_judged(make_world: type[World]) -> None:
    world = make_world(detail_every=1000, delays={(1, "data"): 10_000})
    world.step = 1
    found = report_from_messages(chain(begun(world), world.steps(150), [world.run("finished", 0)]))
    assert kinds(found) == ["no_detail"]
    assert found.reading.judged_pct == 0.0
    assert found.communication.step_ms is not None


def test_json_is_the_report_with_its_units(slow: Report) -> None:
    data = json.loads(json.dumps(as_data(slow), allow_nan=False))
    assert (data["schema"], data["source"]) == (1, "recording")
    assert data["run"]["exit_code"] == 0
    assert data["run"]["card"]["ddp.static_graph"] is False
    assert data["run"]["started_at"] == 1_700_000_000.0
    assert data["stragglers"][0]["cause"] == "data"
    assert len(data["spans"]) == len(slow.spans)
    assert set(data["ranks"][0]) >= {"lateness_ms", "last_pct", "relative_score", "wait_ms"}


def test_a_report_rests_on_every_step_and_names_the_place(make_world: type[World]) -> None:
    """Bucket detail in one step of 1,000: the verdict, the cost and what to try come from own times."""
    world = make_world(own=True, detail_every=1000)
    messages = [*begun(world), *world.steps(EVEN)]
    world.delays[1, "before_optimizer"] = 1000 * LATE_MS
    messages += world.steps(SLOW)
    world.delays.clear()
    found = report_from_messages(chain(messages, world.steps(EVEN), [world.run("finished", 0)]))
    slow = found.stragglers[0]
    assert (slow.rank, slow.basis, slow.cause, slow.place) == (1, "every_step", "other", "before_optimizer")
    assert slow.lateness_ms == pytest.approx(LATE_MS, rel=0.05)
    assert found.cost.flagged_s == pytest.approx(SLOW * LATE_MS / 1e3, rel=0.15)
    sentence = next(one for one in found.verdict if one.kind == "straggler")
    assert "between backward and the optimizer" in sentence.sentence
    assert any(
        "ms longer between backward and the optimizer, the slowest in" in line for line in sentence.detail
    )
    assert any(" without the slow rank" in line and "±" in line for line in sentence.detail)
    advice = found.advice[0]
    assert advice.kind == "work_between_steps"
    assert "between backward and the optimizer" in advice.action
    assert "10.0 ms more than the others between backward and the optimizer" in advice.because
    ranks = {rank.rank: rank for rank in found.ranks}
    assert ranks[1].has_own_times
    assert "excess ms" in text_page(found, 120)


def test_waits_for_ranks_in_turn_are_not_those_for_a_rank_that_is_slow_later(
    make_world: type[World],
) -> None:
    world, uneven = make_world(own=True, detail_every=1000), 60
    messages = [*begun(world)]
    for step in range(uneven):
        world.delays = {(step % world.size, "data"): 600 * LATE_MS}
        messages += world.steps(1)
    world.delays = {(1, "before_optimizer"): 1000 * LATE_MS}
    messages += [*world.steps(EVEN), world.run("finished", 0)]
    slow = report_from_messages(messages).stragglers[0]
    assert slow.first_step == pytest.approx(uneven, abs=3)
    assert slow.lost_s == pytest.approx(EVEN * LATE_MS / 1e3, rel=0.05)


@pytest.mark.parametrize("has_loader", [True, False])
def test_without_a_data_loader_time_before_forward_is_time_between_steps(
    make_world: type[World], has_loader: bool
) -> None:
    """Nothing parts the end of the optimizer from forward then: it may be a checkpoint or the batch."""
    world = make_world(own=True, detail_every=1000)
    fetched = {} if has_loader else {(rank, "data"): -DATA for rank in range(world.size)}
    world.delays |= fetched
    messages = [*begun(world), *world.steps(EVEN)]
    world.delays[1, "other"] = 1000 * LATE_MS
    found = report_from_messages(chain(messages, world.steps(SLOW), [world.run("finished", 0)]))
    slow, advice = found.stragglers[0], found.advice[0]
    assert (slow.rank, slow.cause) == (1, "other")
    assert slow.place == ("before_forward" if has_loader else "between_steps")
    assert ("no DataLoader was seen" in advice.action) is not has_loader
    sentence = next(one for one in found.verdict if one.kind == "straggler").sentence
    assert ("between two steps" in sentence) is not has_loader
    assert ("became slow" in found.events[-1].message) and found.events[-1].kind == "straggler"
    assert ("between two steps" in found.events[-1].message) is not has_loader


def test_the_event_of_a_pause_without_a_data_loader_names_the_place_as_the_verdict(
    make_world: type[World],
) -> None:
    """Also where the first of its steps are not kept any more: what they spent on data is not known then."""
    world = make_world(own=True, detail_every=1000)
    world.delays |= (fetched := {(rank, "data"): -DATA for rank in range(world.size)})
    messages = begun(world)
    for _ in range(8):
        messages = [*messages, *world.steps(49)]
        world.delays[1, "other"] = 1_500_000
        messages += world.steps(1)
        world.delays = dict(fetched)
    found = report_from_messages(chain(messages, [world.run("finished", 0)]))
    assert found.stragglers[0].place == "between_steps"
    assert [one.message for one in found.events if one.kind == "straggler"] == [
        "rank 1 became slow in few steps: 1.5 s between two steps (step 99)",
        "rank 1 became slow: between two steps (step 303)",
    ]


def test_pauses_that_two_rules_find_are_told_and_counted_once(make_world: type[World]) -> None:
    world = make_world(2, own=True)

    def pausing() -> Iterator[Received]:
        yield from begun(world)
        for step in range(400):
            world.delays = {(1, "forward"): 1_200_000} if step % 5 == 4 else {}
            world.gc_us = {1: 1_200_000} if step % 5 == 4 else {}
            yield from world.steps(1)

    found = report_from_messages(pausing())
    assert [(slow.rank, slow.pattern, slow.cause) for slow in found.stragglers] == [(1, "intermittent", "gc")]
    assert found.cost.flagged_s is not None and found.cost.flagged_s < 80 * 1.2, "what was waited in all"


def test_a_healthy_run_is_told_from_every_step_without_bucket_detail(make_world: type[World]) -> None:
    world = make_world(own=True, detail_every=1000)
    found = report_from_messages(chain(begun(world), world.steps(200), [world.run("finished", 0)]))
    assert [(one.kind, one.sign) for one in found.verdict] == [("even", "good")]
    assert found.cost.uneven_pct == pytest.approx(0.0, abs=0.1)


@pytest.mark.parametrize(("state", "yet"), [("live", " yet"), ("finished", ""), ("lost", "")])
def test_a_share_that_stayed_unclear_is_not_said_to_be_so_yet_at_the_end(
    make_world: type[World], state: str, yet: str
) -> None:
    world = make_world(own=True, detail_every=1000)
    made = report_from_messages(chain(begun(world), world.steps(200), [world.run("finished", 0)]))
    wide = replace(
        made.communication,
        step_ms=40.0,
        no_straggler_ms=32.0,
        no_straggler_low_ms=4.0,
        no_straggler_high_ms=60.0,
    )
    cost = replace(made.cost, uneven_s=1.0, uneven_pct=20.0, is_summed=False)
    unclear = replace(made, cost=cost, communication=wide)
    found = make_findings(replace(unclear, run=replace(made.run, state=state)))
    assert found[-1].sentence == f"no rank was slow · the cost of waiting is not measurable{yet}"


def test_why_has_the_excess_over_the_run_and_the_figures_of_the_process(make_world: type[World]) -> None:
    world = make_world(own=True, detail_every=1000)

    def readings() -> list[Received]:
        t_ns = START_NS + 1000 * world.now_us
        usages = (Usage(t_ns, 2_000_000_000, cpu_pct) for cpu_pct in (98.0, 20.0))
        return [Received(t_ns, rank, 0, 0, usage) for rank, usage in enumerate(usages)]

    messages = [*begun(world), *readings(), *world.steps(EVEN)]
    world.delays[1, "data"] = 1000 * LATE_MS
    messages += [*world.steps(SLOW), *readings()]
    world.delays.clear()
    found = report_from_messages([*messages, *world.steps(EVEN), world.run("finished", 0)])
    (slow,) = found.stragglers
    assert len(slow.excess_ms) == len(found.spans)
    flagged = [span.rank == 1 for span in found.spans]
    during = [ms for ms, its in zip(slow.excess_ms, flagged, strict=True) if its and ms is not None]
    besides = [ms for ms, its in zip(slow.excess_ms, flagged, strict=True) if not its and ms is not None]
    assert len(during) > 20 and len(besides) > 20
    assert sum(during) / len(during) == pytest.approx(LATE_MS, rel=0.1)
    assert sum(besides) / len(besides) == pytest.approx(0.0, abs=0.5)
    assert slow.differs == ("its process uses 20% of a CPU, the others 98%",)
    text = text_page(found, 80)
    (strip,) = [line for line in text.splitlines() if line.startswith("excess ms ") and "█" in line]
    (cost,) = [line for line in text.splitlines() if line.startswith("cost % ")]
    assert strip.index("█") == pytest.approx(next(i for i, c in enumerate(cost) if c in "▄▅▆▇█"), abs=1)
    assert slow.differs[0] in text and slow.differs[0] in html_page(found)
    assert 'aria-label="excess of rank 1 from' in html_page(found)
    # In its own collectives a script waits outside the phases, too, which is no work.
    waiting = [
        replace(rank, means={**rank.means, "other_ms": (rank.means["other_ms"] or 0.0) + 50.0})
        for rank in found.ranks
    ]
    assert beside_others(replace(found, ranks=waiting)) == beside_others(found)
    assert as_data(found)["stragglers"][0]["differs"] == [*slow.differs]


def test_a_step_in_which_a_rank_compiled_is_told_by_that(make_world: type[World]) -> None:
    world = make_world(2)

    def messages() -> Iterator[Received]:
        yield from begun(world)
        yield from world.steps(EVEN)
        world.now_us += 20_000_000
        compiler = StackFrame("/v/site-packages/torch/_inductor/compile_fx.py", 9, "compile_fx", "")
        stacks = (Stack("MainThread", True, (compiler, StackFrame("/me/train.py", 18, "main", ""))),)
        at_ns = START_NS + world.now_us * 1000
        yield world.received(1, Evidence(at_ns, 1, EVEN, int(Phase.FORWARD), 0, "", (), stacks, ()))
        yield from world.steps(EVEN)
        yield world.run("finished", 0)

    shown = text_page(report_from_messages(messages()), 80)
    assert shown.count(f"rank 1 was compiling in step {EVEN} (train.py:18 main)") == 1
    assert "M compiling" in shown
