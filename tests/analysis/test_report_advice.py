"""Each suggestion appears where its figure supports it, names it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import pytest

from ddptop.frames.overhead import MeasuredCost
from ddptop.frames.stall import RankPosition
from ddptop.frames.verdict import FEW_STEPS
from ddptop.protocol.messages import Steps
from ddptop.report.advice import make_suggestions
from ddptop.report.content import BucketSummary, Report, StallPeriod
from ddptop.report.findings import make_findings
from ddptop.report.text import text_page
from tests.frames.ledgers import checkpoints, ledger, waited
from tests.made_up_run import World, report_from_messages


@pytest.fixture
def healthy(make_world: type[World]) -> Report:
    world = make_world()
    messages = chain([world.run()], world.introduce(), world.steps(100), [world.run("finished", 0)])
    found = report_from_messages(messages)
    return moving(found, exposed_transfer_ms=0.1, exposed_transfer_pct=1.0, overlap_pct=90.0)


def moving(found: Report, **figures: float) -> Report:
    return replace(found, communication=replace(found.communication, **figures))


def with_card(found: Report, **entries: int) -> Report:
    card = {f"ddp.{name}": value for name, value in entries.items()}
    return replace(found, run=replace(found.run, card=card))


def bucket(index: int, size: int, busbw: float | None, **changes: Any) -> BucketSummary:
    transfer_ms = size / busbw / 1e6 if busbw else 1.0
    made = BucketSummary(index, 0, "", size, 4, "float32", "", 2.0, 0.0, transfer_ms, busbw, busbw, 0.0)
    return replace(made, **changes)


HEAVY = {"exposed_transfer_ms": 8.0, "exposed_transfer_pct": 40.0, "overlap_pct": 20.0}


def found_in(made: Report) -> dict[str, Any]:
    return {one.kind: one for one in make_suggestions(made)}


def test_a_healthy_run_gets_no_suggestion(healthy: Report) -> None:
    assert make_suggestions(healthy) == ()


def test_small_buckets_that_are_slower_than_large_ones(healthy: Report) -> None:
    buckets = tuple(bucket(i, 400_000 if i < 8 else 8_000_000, 0.5 if i < 8 else 4.0) for i in range(10))
    one = found_in(replace(moving(healthy, **HEAVY), buckets=buckets))["larger_buckets"]
    assert one.figures["buckets"] == 10
    assert "busbw 0.50 GB/s in the smaller half of 10 buckets" in one.because
    assert "8.0 ms" in one.because
    hidden = replace(healthy, buckets=buckets)
    assert "larger_buckets" not in found_in(hidden), "their traffic is hidden: nothing to gain"
    alike = tuple(bucket(i, 400_000 if i < 8 else 8_000_000, 4.0) for i in range(10))
    assert "larger_buckets" not in found_in(replace(moving(healthy, **HEAVY), buckets=alike))


def test_tiny_buckets_of_one_size(healthy: Report) -> None:
    made = replace(moving(healthy, **HEAVY), buckets=tuple(bucket(i, 4_000, 0.01) for i in range(6)))
    assert "6 buckets of 4.0 kB or less" in found_in(made)["larger_buckets"].because
    odd = bucket(6, 256, 0.001), bucket(7, 2_000_000, 1.0)
    for others in ((odd[0],), (odd[1],), odd):  # whatever one odd bucket is
        many = tuple(bucket(i, 33_000, 0.02) for i in range(75))
        first, *rest = make_suggestions(replace(moving(healthy, **HEAVY), buckets=(*many, *others)))
        assert first.kind == "larger_buckets" and first.gain_pct is not None
        assert "33.0 kB or less" in first.because or "smaller half" in first.because
        assert all((one.gain_pct or 0.0) < first.gain_pct for one in rest)


def test_waiting_for_cpus_comes_before_advice_on_bytes_and_after_what_brings_more(healthy: Report) -> None:
    busy = replace(moving(healthy, **HEAVY), cpu_wait_pct=18.0, buckets=(bucket(0, 90_000_000, 4.0),))
    kinds = [one.kind for one in make_suggestions(busy)]
    assert kinds[0] == "cpus" and {"compress", "smaller_buckets"} <= {*kinds}
    tiny = [
        one.kind
        for one in make_suggestions(replace(busy, buckets=tuple(bucket(i, 33_000, 0.02) for i in range(75))))
    ]
    assert tiny[:2] == ["larger_buckets", "cpus"] and "accumulate" in tiny
    few = replace(busy, cpu_shortage="4 ranks may use core 0 only", buckets=(bucket(0, 33_000, 0.02),) * 75)
    assert make_suggestions(few)[0].kind == "cpus"


def test_one_large_bucket_that_nothing_hides(healthy: Report) -> None:
    made = replace(moving(healthy, **HEAVY), buckets=(bucket(0, 90_000_000, 4.0),))
    made = with_card(made, bucket_cap_bytes=100 << 20)
    one = found_in(made)["smaller_buckets"]
    assert "(now 100)" in one.action
    assert "one bucket of up to 90.0 MB, overlap 20%" in one.because
    assert "larger_buckets" not in found_in(made)
    assert "smaller_buckets" not in found_in(moving(made, overlap_pct=80.0))


def test_compression_is_for_full_precision_alone(healthy: Report) -> None:
    made = replace(moving(healthy, **HEAVY), buckets=(bucket(0, 90_000_000, 4.0),))
    one = found_in(made)["compress"]
    assert one.gain_pct == 20.0
    assert "90.0 MB of float32" in one.because
    for changes in ({"dtype": "bfloat16"}, {"hook": "fp16_compress_hook"}, {"bytes": 4000}):
        other = replace(made, buckets=(replace(made.buckets[0], **changes),))
        assert "compress" not in found_in(other)


def test_fewer_all_reduces_only_where_traffic_weighs(healthy: Report) -> None:
    assert "accumulate" in found_in(moving(healthy, **HEAVY))
    assert "accumulate" not in found_in(moving(healthy, exposed_transfer_pct=8.0))


def test_bucket_view_saves_what_the_gradients_take(healthy: Report) -> None:
    off = with_card(healthy, gradient_as_bucket_view=0, total_parameter_size_bytes=500_000_000)
    assert "500.0 MB of gradients" in found_in(off)["gradient_as_bucket_view"].because
    on = with_card(healthy, gradient_as_bucket_view=1, total_parameter_size_bytes=500_000_000)
    assert "gradient_as_bucket_view" not in found_in(on)
    small = with_card(healthy, gradient_as_bucket_view=0, total_parameter_size_bytes=5_000_000)
    assert "gradient_as_bucket_view" not in found_in(small)


def test_buffers_that_each_forward_sends(healthy: Report) -> None:
    sent = with_card(moving(healthy, **HEAVY, step_ms=20.0, buffers_ms=7.0), buffer_bytes=9_600_000)
    one = found_in(sent)["broadcast_buffers"]
    assert one.gain_pct == pytest.approx(35.0)
    assert "broadcast_buffers=False" in one.action and "2.13 on forward_sync_buffers=False" in one.action
    assert "the broadcast of 9.6 MB of buffers in each forward takes 7.0 ms" in one.because
    assert "accumulate" not in found_in(sent), "1.0 ms of gradients is left of the transfer"
    assert "broadcast_buffers" not in found_in(moving(healthy, **HEAVY, step_ms=20.0, buffers_ms=0.2))


def test_the_size_of_buckets_is_rounded(healthy: Report) -> None:
    buckets = tuple(bucket(i, 20_000, 0.5) for i in range(10))
    sent = with_card(moving(healthy, **HEAVY), bucket_cap_bytes=20_971)
    assert "bucket_cap_mb (now 0.02)" in found_in(replace(sent, buckets=buckets))["larger_buckets"].action


def test_unused_parameters_that_nobody_saw(healthy: Report) -> None:
    assert "100 steps" in found_in(with_card(healthy, find_unused_parameters=1))["unused_parameters"].because
    used = with_card(healthy, find_unused_parameters=1, unused_parameter_size=4000)
    assert "unused_parameters" not in found_in(used)
    static = with_card(healthy, find_unused_parameters=1, static_graph=1)
    assert "unused_parameters" not in found_in(static)


def test_data_that_holds_up_everybody(healthy: Report) -> None:
    """Every rank waits 30 s for batches; what one rank waits longer is what the others wait for."""
    sums = ledger(data=[30.0, 42.0])
    made = replace(healthy, cost=replace(healthy.cost, step_s=100.0), ledger=sums)
    suggestion = found_in(made)["data_workers"]
    assert suggestion.gain_pct == pytest.approx(30.0)
    assert suggestion.because == "every rank loads data for 30% of step time: 30 s"
    started = ledger(elapsed_s=400.0, start=[300.0, 300.0], data=[30.0, 42.0])
    assert found_in(replace(made, ledger=started))["data_workers"].because == suggestion.because
    few_steps = replace(sums, run=replace(sums.run, steps=FEW_STEPS - 1))
    assert make_findings(replace(made, ledger=few_steps))[-1].kind != "data_bound", "too few steps to say so"
    many = replace(sums, run=replace(sums.run, steps=FEW_STEPS))
    finding = make_findings(replace(made, ledger=many))[-1]
    assert (finding.kind, finding.sign) == ("data_bound", "warning")
    assert finding.sentence == "every rank loads data for 30% of step time"
    assert finding.detail[0].startswith("no rank was slow · waiting cost")
    few = replace(made, ledger=ledger(data=[9.0, 42.0]))
    assert "data_workers" not in found_in(few)


@pytest.mark.parametrize("aside", ["evaluation", "compiling", "saving", "phase"])
def test_what_lies_outside_steps_does_not_hide_that_they_load_data(healthy: Report, aside: str) -> None:
    """15 s of 100 s in steps, then 60 s of a final evaluation."""
    seconds = {"data": [15.0, 15.0], "forward": [85.0, 85.0], aside: [60.0, 60.0]}
    made = replace(healthy, ledger=ledger(elapsed_s=160.0, **seconds))
    assert found_in(made)["data_workers"].because == "every rank loads data for 15% of step time: 15 s"


def test_workers_that_start_anew_in_each_epoch(healthy: Report) -> None:
    made = replace(healthy, ledger=ledger(elapsed_s=51.6, first_batch=[36.0, 36.2], data=[0.5, 0.5]))
    suggestion = found_in(made)["persistent_workers"]
    assert "persistent_workers=True" in suggestion.action
    assert suggestion.because == "every rank waits for the first batch of each epoch: 36 s, 70% of the run"
    assert "data_workers" not in found_in(made)


def test_a_checkpoint_that_the_others_wait_for(healthy: Report) -> None:
    """84 of 255 rank-seconds: two ranks waited 42 s each, which the run is longer."""
    made = replace(healthy, cost=replace(healthy.cost, step_s=80.0), ledger=checkpoints())
    suggestion = found_in(made)["one_rank_work"]
    assert suggestion.gain_pct == pytest.approx(100 * 42 / 80)
    assert "async_save" in suggestion.action and "rank 0 works alone after the optimizer" in suggestion.action
    assert "If it saves a checkpoint" in suggestion.action, "that it does was not seen"
    assert suggestion.because == (
        "rank 0 was after the optimizer in 7 steps, 6.0 s in each; "
        "the others waited 84 s for it in all, 33% of all ranks' time"
    )
    assert [one.kind for one in make_suggestions(made) if one.figures.get("rank") == 2] == [], (
        "1.2 s are not worth it"
    )


def test_an_evaluation_on_one_rank(healthy: Report) -> None:
    rows = (waited(0, "evaluation", 57.5, steps=3, each_s=19.2),)
    made = replace(healthy, ledger=ledger(waited_for=rows, waiting=[0.0, 57.5], evaluation=[57.5, 0.0]))
    assert "Let every rank evaluate an equal part" in found_in(made)["evaluate_together"].action


def test_a_long_start(healthy: Report) -> None:
    assert "start_up" in found_in(replace(healthy, ledger=ledger(elapsed_s=400.0, start=[95.0, 90.0])))
    assert "start_up" not in found_in(replace(healthy, ledger=ledger(elapsed_s=40.0, start=[9.5, 9.0])))


def test_a_recorded_run_with_a_long_start_that_reduces_in_every_micro_step() -> None:
    """What to try, in the order of the rank-seconds that it gives back, each with its figure."""
    world = World(2, own=True)
    messages = [world.run(), *world.introduce()]
    for start_s, steps in ((0, 0), (40, 900)):
        world.now_us += start_s * 1_000_000
        world.begin_us = [world.now_us] * 2
        for received in world.steps(steps):
            message = received.message
            assert isinstance(message, Steps)
            rows = tuple(row._replace(micro_steps=4, cells=row.cells * 4) for row in message.rows)
            messages.append(received._replace(message=replace(message, rows=rows)))
    made = report_from_messages([*messages, world.run("finished", 0)])
    assert made.ledger is not None
    suggested = [one for one in made.advice if one.kind in ("start_up", "no_sync")]
    assert [one.kind for one in suggested] == ["start_up", "no_sync"]
    start, no_sync = suggested
    assert start.figures["start_s"] == pytest.approx(40.0, rel=0.01)
    assert "40 s" in start.because and "TORCHINDUCTOR_CACHE_DIR" in start.action
    assert "num_workers" in start.action
    transfer_s = float(made.ledger.ranks.transfer_s.sum())
    assert no_sync.figures["launches"] == 4 and "4 all-reduces of each bucket in a step" in no_sync.because
    assert no_sync.gain_pct is not None
    gives_back_s = no_sync.gain_pct / 100 * made.cost.step_s * 2
    assert gives_back_s == pytest.approx(3 / 4 * transfer_s, rel=0.03), "three of four are for nothing"
    assert start.gain_pct is not None and start.gain_pct > no_sync.gain_pct
    assert start.gain_pct / 100 * made.cost.step_s == pytest.approx(40.0, rel=0.01), "longer than all steps"
    assert "saves at most 80 s of all ranks" in " ".join(text_page(made, 100).split())


def test_what_gives_back_most_comes_first(healthy: Report) -> None:
    rows = (
        waited(1, "forward", 4.0, steps=900, each_s=0.004),
        waited(0, "evaluation", 20.0, steps=2, each_s=10),
    )
    made = ledger(waited_for=rows, waiting=[4.0, 20.0], first_batch=[11.0, 11.0])
    made_report = replace(healthy, cost=replace(healthy.cost, step_s=100.0), ledger=made)
    kinds = [one.kind for one in make_suggestions(made_report) if one.gain_pct]
    assert kinds[:3] == ["evaluate_together", "persistent_workers", "slow_device"]


def test_ranks_that_are_late_in_turn_have_no_one_to_blame(healthy: Report) -> None:
    """Each of four is the latest now and then, by chance or by its batches."""
    rows = tuple(waited(rank, "backward", 9.0, steps=200, each_s=0.015) for rank in range(4))
    made = replace(healthy, cost=replace(healthy.cost, step_s=90.0))
    even = replace(made, ledger=ledger(waited_for=rows, waiting=[9.0] * 4))
    (one,) = (one for one in make_suggestions(even) if one.gain_pct)
    assert "No rank is slow by itself" in one.action and "in backward" in one.action
    assert one.because == "the ranks waited 36 s for each other in turn, 9% of their time"
    assert one.gain_pct == pytest.approx(100 * 36 / 4 / 90), "steps as long as those of the mean rank"
    few = replace(even, ledger=ledger(waited_for=rows[:1], waiting=[0.0, 3.0, 3.0, 3.0]))
    assert [one.kind for one in make_suggestions(few) if one.gain_pct] == ["slow_device"], "one rank alone"


def test_a_rank_is_to_blame_for_what_it_is_later_than_its_peers(healthy: Report) -> None:
    places = {0: 2.0, 1: 20.0, 2: 2.0, 3: 2.0}
    rows = tuple(waited(rank, "forward", s, steps=400, each_s=0.01) for rank, s in places.items())
    made = replace(healthy, cost=replace(healthy.cost, step_s=90.0))
    made = replace(made, ledger=ledger(waited_for=rows, waiting=[8.0, 2.0, 8.0, 8.0]))
    (one,) = (one for one in make_suggestions(made) if one.gain_pct)
    assert (one.kind, one.figures["rank"]) == ("slow_device", 1)
    assert one.gain_pct == pytest.approx(100 * (20 - 2) / 3 / 90)


def test_late_arrivals_of_nobody_in_particular(healthy: Report) -> None:
    """A figure without a cause suggests nothing."""
    uneven = replace(healthy, cost=replace(healthy.cost, uneven_pct=12.0, uneven_s=3.0))
    assert found_in(uneven).keys() == found_in(healthy).keys()


def test_the_recorder_over_its_budget(healthy: Report) -> None:
    over = replace(healthy, overhead=replace(healthy.overhead, measured_pct=2.0, budget_pct=1.0))
    assert "overhead 2.0%" in found_in(over)["recorder_budget"].because


@pytest.mark.parametrize(("low", "pct", "high", "is_told"), [(-0.3, 0.4, 1.1, False), (2.2, 2.6, 3.1, True)])
def test_the_recorder_is_over_its_budget_by_what_the_first_line_of_the_screen_says(
    healthy: Report, low: float, pct: float, high: float, is_told: bool
) -> None:
    measured = MeasuredCost(pct, low, high, 90)
    cost = replace(healthy.overhead, measured_pct=0.8 if is_told else 2.8, budget_pct=1.0, measured=measured)
    suggested = found_in(replace(healthy, overhead=cost))
    assert ("recorder_budget" in suggested) is is_told
    if is_told:
        over = suggested["recorder_budget"]
        assert f"overhead {cost.phrase} of" in over.because
        assert over.figures == {"measured_pct": 0.8, "budget_pct": 1.0, "taken_pct": pct}


def test_the_most_valuable_comes_first(healthy: Report) -> None:
    made = replace(moving(healthy, **HEAVY), buckets=(bucket(0, 90_000_000, 4.0),))
    made = with_card(made, gradient_as_bucket_view=0, total_parameter_size_bytes=500_000_000)
    made = replace(made, cost=replace(made.cost, step_s=100.0), ledger=ledger(data=[30.0, 30.0]))
    gains = [one.gain_pct for one in make_suggestions(made)]
    assert gains[0] == pytest.approx(30.0)
    assert gains[-1] is None
    assert sorted((gain for gain in gains if gain is not None), reverse=True) == gains[:-1]


def test_buckets_of_several_models_are_not_to_be_merged(healthy) -> None:
    buckets = tuple(replace(bucket(i, 4_000, 0.1 * (i + 1)), model=i, group="0") for i in range(6))
    assert "larger_buckets" not in found_in(replace(moving(healthy, **HEAVY), buckets=buckets))


MISSING = StallPeriod(
    kind="missing",
    since_s=1_700_000_000.0,
    step=40,
    ranks=(1,),
    waiting=(0,),
    sentence="rank 1 is missing",
    detail=(),
    positions=(),
    lasted_s=41.0,
)


def test_the_page_says_for_which_worker_a_rank_of_a_stall_waited_whenever_it_was_diagnosed(
    healthy: Report,
) -> None:
    worker = "DataLoader worker pid 7002 in data.py:41 decode, which sleeps in hrtimer_nanosleep"
    position = RankPosition(
        rank=1,
        host="node0",
        pid=7000,
        process="ended by SIGINT",
        step=40,
        bucket=None,
        sequence=None,
        group="",
        operation="",
        user_call=None,
        traces=(),
        at_s=None,
        waits_for=worker,
    )
    detail = ("rank 1, node0, pid 7000, was in train.py:12 <module>",)
    period = replace(MISSING, detail=detail, positions=(position,))
    while_it_lasted = replace(period, detail=(*period.detail, f"it waits for {worker}"))
    for stall in (period, while_it_lasted):
        text = " ".join(text_page(replace(healthy, stalls=(stall,)), 80).split())
        assert text.count(f"it waits for {worker}") == 1


def test_a_stall_comes_before_a_tuning_hint_and_nothing_is_suggested_that_the_run_does(
    healthy: Report,
) -> None:
    heavy = moving(healthy, **HEAVY)
    cost = replace(heavy.cost, stalled_s=41.0)
    first, *others = make_suggestions(replace(heavy, stalls=(MISSING,), cost=cost))
    assert first.kind == "stall" and "41 s" in first.because
    assert "while the others waited" in first.action
    assert others, "the hints follow"
    of_all = replace(MISSING, ranks=tuple(range(healthy.run.world_size)), waiting=())
    paused = found_in(replace(healthy, stalls=(of_all,)))["stall"]
    assert paused.action.startswith("Find out what ranks 0") and "the others" not in paused.action
    assert "accumulate" in found_in(heavy)
    ranks = tuple(replace(rank, means={**rank.means, "micro_steps": 4.0}) for rank in heavy.ranks)
    assert "accumulate" not in found_in(replace(heavy, ranks=ranks))


def test_a_rank_without_batches_under_join(make_world: type[World]) -> None:
    world = make_world(2, own=True)
    messages = [world.run(), *world.introduce(), *world.steps(60)]
    world.joined = {1}
    messages += [*world.steps(60), world.run("finished", 0)]
    suggestion = found_in(report_from_messages(messages))["equal_batches"]
    assert suggestion.because.startswith("rank 1 had no batches left from step 60 on, and only answered ")
    assert suggestion.figures["without_batches_s"] == pytest.approx(60 * world.now_us / 120 / 1e6, rel=0.05)
    assert suggestion.gain_pct == pytest.approx(25, abs=3)
    assert "DistributedSampler" in suggestion.action
