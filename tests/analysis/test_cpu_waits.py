"""A rank that waits for a CPU: scatter while it does so now and then, a cause when it does so lastingly."""

from __future__ import annotations

import numpy as np
import pytest

from ddptop.analysis.figures import StepFlag, StepFlags
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps import formulas
from ddptop.analysis.steps.own_times import OWN_COLUMNS, PART_COLUMNS
from ddptop.analysis.steps.windows import STEP_COLUMNS, StepWindow
from ddptop.analysis.straggler.cost import compute_what_if, measure_straggler, slow_transfer_ms
from ddptop.analysis.straggler.cpu_waits import throttled, waits_by_quota
from ddptop.analysis.straggler.own_time_flags import StepFlagging
from ddptop.frames.phrases import straggler_phrase
from ddptop.frames.remedies import next_action
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.machine import Usage
from ddptop.protocol.messages import Received
from ddptop.report.build import make_report
from ddptop.report.sampling import RunSampler
from tests.made_up_run import START_NS, feed_together

WORK_MS, TRANSFER_MS = 8.0, 2.0


def flags_of(work, waits, *, known: bool = True, pauses=None, at_once: int = 8):
    """(step, flag, figures) after each evaluation; `work` and `waits` are (steps, ranks) in ms. `pauses`: for
    garbage collection, a part of both. `at_once`: steps that are added before they are evaluated."""
    steps, ranks = work.shape
    window, flags = StepWindow(ranks, 100), StepFlags()
    flagging, groups = StepFlagging(flags), [np.arange(ranks)]
    own = work + waits
    wall = np.repeat(own.max(axis=1, keepdims=True) + TRANSFER_MS, ranks, axis=1)
    excess = formulas.excess(own, own)
    work_excess = formulas.excess(work, work) if known else excess
    parts = {"backward": own, "cpu": waits if known else np.full(own.shape, np.nan), "exposed": wall - own}
    parts["exposed_wait"] = parts["exposed"] - parts["exposed"].min(axis=1, keepdims=True)
    zeros, seen = np.zeros(own.shape), []
    parts["gc"] = zeros if pauses is None else pauses
    for first in range(0, steps - at_once + 1, at_once):
        run = slice(first, first + at_once)
        columns = np.stack([wall, *[zeros] * (len(STEP_COLUMNS) - 1)])[:, run]
        nothing, numbers = np.zeros(at_once), np.arange(first, first + float(at_once))
        window.add(numbers, nothing, columns, zeros[run], (nothing, nothing, nothing))
        own_columns = np.stack([own, excess, work_excess])[:, run]
        assert len(own_columns) == len(OWN_COLUMNS)
        window.add_own(own_columns, np.stack([parts.get(name, zeros) for name in PART_COLUMNS])[:, run])
        for at in range(first, first + at_once, 8):
            flagging.evaluate(window, np.arange(at + 7, first + at_once, 8), groups)
            flag = flags.flag
            slots = np.arange(max(0, at - 92), at + 8)
            seen.append((at + 8, flag, None if flag is None else measure_straggler(window, flag, slots)))
    return seen


def busy(steps: int, ranks: int, mean_ms: float, seed: int = 0):
    """Waits as of a busy machine: many small ones, a few of a time slice, in episodes of one rank."""
    rng = np.random.default_rng(seed)
    waits = rng.exponential(mean_ms, (steps, ranks))
    for begin in range(0, steps, 20):
        waits[begin : begin + 20, rng.integers(ranks)] *= rng.uniform(1, 6)
    return waits


def work_of(steps: int, ranks: int, seed: int = 0):
    return WORK_MS + np.random.default_rng(seed).normal(0.0, 0.2, (steps, ranks))


def test_waits_that_come_and_go_flag_nobody() -> None:
    seen = flags_of(work_of(2400, 2), busy(2400, 2, 3.0))
    assert not [step for step, flag, _ in seen if flag is not None]


def test_a_small_delay_is_flagged_at_once_beside_large_waits() -> None:
    work = work_of(800, 2)
    work[400:, 1] += 3.0
    seen = flags_of(work, busy(800, 2, 10.0))
    first, flag, figures = next(one for one in seen if one[1] is not None)
    assert 400 < first <= 500
    assert flag.rank == 1 and flag.place != "cpu"
    assert figures.cause != "cpu"


def test_a_rank_for_which_the_others_do_not_wait_is_not_flagged_because_they_waited_for_a_cpu() -> None:
    work, waits = work_of(600, 3), np.full((600, 3), 0.9)
    work[:, 1] += 0.8
    waits[:, 1] = 0.0
    assert not [step for step, flag, _ in flags_of(work, waits) if flag is not None]


@pytest.mark.parametrize("ranks", [2, 5])
def test_a_rank_that_waits_lastingly_is_flagged_with_that_cause_and_cleared(ranks: int) -> None:
    waits = busy(1200, ranks, 1.0)
    waits[400:1000, 1] += 60.0
    seen = flags_of(work_of(1200, ranks), waits)
    flagged = [(step, flag, figures) for step, flag, figures in seen if flag is not None]
    first, _, figures = flagged[0]
    assert {flag.ranks for _, flag, _ in flagged} == {(1,)}
    assert 400 + 260 <= first <= 400 + 400  # steps of 70 ms: 20 s are 286
    assert (figures.cause, figures.place, figures.pattern) == ("cpu", "cpu", "persistent")
    assert "ms longer for a CPU in 100% of steps" in straggler_phrase(figures)
    assert 1000 < flagged[-1][0] <= 1080


def test_a_rank_that_waits_for_ten_seconds_is_not_flagged() -> None:
    waits = busy(800, 2, 1.0)
    waits[400:540, 1] += 60.0
    assert not [step for step, flag, _ in flags_of(work_of(800, 2), waits) if flag is not None]


def test_pauses_that_wait_for_a_cpu_as_well_are_flagged_without_a_gap() -> None:
    work, waits, pauses = work_of(600, 2), busy(600, 2, 1.0), np.zeros((600, 2))
    pauses[200::5, 1] = 30.0
    work[200::5, 1] += 10.0
    waits[200::5, 1] += 20.0
    flags = [flag for step, flag, _ in flags_of(work, waits, pauses=pauses) if step > 320]
    assert {(flag.rank, flag.place, flag.pattern) if flag else None for flag in flags} == {
        (1, "gc", "intermittent")
    }


def test_a_rank_whose_work_is_longer_only_because_the_other_waited_is_not_flagged() -> None:
    work, waits = work_of(600, 2), busy(600, 2, 1.0)
    waits[200::7, 1] += 20.0
    work[200::7, 1] -= 20.0  # both took the same time
    assert not [flag for _, flag, _ in flags_of(work, waits) if flag is not None and flag.rank == 0]


def test_where_waits_are_not_known_own_time_decides() -> None:
    waits = np.zeros((400, 2))
    waits[100:, 1] = 20.0
    seen = flags_of(work_of(400, 2), waits, known=False)
    _, flag, figures = next(one for one in seen if one[1] is not None)
    assert flag.rank == 1 and figures.cause == "backward"


def quota(steps: int, begin: int, end: int, seed: int = 0):
    """(n,) ms longer: of steps of 10 ms one in six waits for the rest of the period of a quota."""
    over = np.random.default_rng(seed).normal(0.0, 1.0, steps)
    over[begin:end:6] += 40.0
    return over, np.full(steps, 10.0)


def test_a_rank_whose_quota_is_used_up_waits_now_and_then() -> None:
    over, wall = quota(200, 40, 200)
    pattern, first, level_ms = waits_by_quota(over, wall, 30, 190)
    assert (pattern, first) == ("intermittent", 40)
    assert 38 < level_ms < 42


def test_long_steps_all_wait_for_the_quota() -> None:
    over, wall = quota(100, 0, 0)
    pattern, first, level_ms = waits_by_quota(over + 300.0, wall + 500.0, 10, 100)
    assert (pattern, first) == ("persistent", 10)
    assert level_ms > 290


@pytest.mark.parametrize("wait_ms", [22.0, 60.0], ids=["5 % of the newest 40 steps", "one long wait"])
@pytest.mark.parametrize(("held", "flagged"), [(False, False), (True, True)])
def test_a_flagged_rank_needs_half_of_the_waits_to_stay_flagged(
    held: bool, flagged: bool, wait_ms: float
) -> None:
    over, wall = quota(200, 40, 200)
    over[160:] = 0.0
    over[180] = wait_ms
    assert (waits_by_quota(over, wall, 30, 190, held=held) is not None) == flagged


def test_waits_that_have_ended_or_cost_little_flag_nobody() -> None:
    over, wall = quota(200, 40, 150)
    assert waits_by_quota(over, wall, 30, 190) is None
    over, wall = quota(200, 40, 200)
    assert waits_by_quota(over / 10, wall, 30, 190) is None


def throttled_runs(readings, ranks: int = 2):
    """Whether a rank is flagged: steps of 10 ms, rank 1 waits as by a quota from step 300 on."""
    window = StepWindow(ranks, 100)
    waits = np.zeros((600, ranks))
    waits[300::6, 1] = 40.0
    zeros, ends = np.zeros(waits.shape), np.arange(600) * 0.025
    wall = np.stack([waits + 10.0, *[zeros] * (len(STEP_COLUMNS) - 1)])
    parts = np.stack([waits if name == "cpu" else zeros for name in PART_COLUMNS])
    own = np.stack([waits + 8.0, *[zeros] * (len(OWN_COLUMNS) - 1)])
    for at in range(0, 600, 100):
        run = slice(at, at + 100)
        nothing = np.zeros(100)
        window.add(
            np.arange(at, at + 100.0), ends[run], wall[:, run], zeros[run], (nothing, nothing, nothing)
        )
        window.add_own(own[:, run], parts[:, run])
    return throttled(window, 599, np.arange(ranks), readings, None)


ENDS_S = 599 * 0.025


def test_readings_of_the_quota_flag_the_rank_that_waits() -> None:
    flag = throttled_runs({1: [ENDS_S - 3.0, ENDS_S - 2.0, ENDS_S - 1.0]})
    assert flag is not None
    assert (flag.rank, flag.pattern, flag.place) == (1, "intermittent", "cpu")


@pytest.mark.parametrize(
    "readings",
    [
        {},
        {1: [ENDS_S - 1.0]},
        {1: [ENDS_S - 3.0, ENDS_S - 2.0]},
        {1: [ENDS_S - 1.0, ENDS_S + 0.1]},
        {0: [ENDS_S - 2.0, ENDS_S - 1.0]},
        {0: [ENDS_S - 2.0, ENDS_S - 1.0], 1: [ENDS_S - 2.0, ENDS_S - 1.0]},
    ],
    ids=["none", "one", "ended", "after the step", "another rank", "shared by all"],
)
def test_other_readings_flag_nobody(readings) -> None:
    assert throttled_runs(readings) is None


def test_in_a_large_group_fewer_steps_are_kept_than_the_rules_read() -> None:
    assert throttled_runs({1: [ENDS_S - 2.0, ENDS_S - 1.0]}, ranks=1200) is not None


@pytest.mark.parametrize("slow_ms", [0.0, 2.0, 20.0])
def test_the_flags_do_not_depend_on_how_many_steps_are_added_at_once(slow_ms: float) -> None:
    work, waits = work_of(640, 4), busy(640, 4, 0.5)
    work[200:360, 2] += slow_ms
    work[400::20, 1] += 8 * slow_ms
    waits[300:, 3] += slow_ms
    pauses = np.where(np.arange(640)[:, None] % 40 == np.arange(4), slow_ms, 0.0)
    alone, together = (flags_of(work, waits, pauses=pauses, at_once=count) for count in (8, 128))
    places = {flag.place for _, flag, _ in alone if flag is not None}
    assert len(places) >= 1 if slow_ms else not places
    assert [(step, repr(flag)) for step, flag, _ in together] == [
        (step, repr(flag)) for step, flag, _ in alone
    ]


def after_even_steps(world) -> Reducer:
    """The reducer after 40 steps in which no rank waits for a CPU."""
    reducer = Reducer()
    world.cpu_us = {0: 0}
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(40)])
    return reducer


def test_a_rank_that_waits_for_a_cpu_is_a_suspect_until_it_is_sure(make_world) -> None:
    """Never `no rank is consistently slow` while one rank is last in nearly all steps."""
    world = make_world(2, own=True)
    reducer = after_even_steps(world)
    world.delays[1, "forward"] = world.cpu_us[1] = 20_000
    feed_together(reducer, world.steps(32))
    said = verdict(reducer.frame(START_NS + world.now_us * 1000))
    assert said.sentence.startswith(
        "rank 1 is last in 100% of steps and waits for a CPU; sure after 20 s, 1 so far"
    )
    feed_together(reducer, world.steps(128))
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.straggler is None
    assert frame.suspect is not None and frame.suspect.cause == "cpu"
    said = verdict(frame)
    assert (said.kind, said.sign) == ("suspect", "busy")
    so_far_s = frame.suspect.so_far_s
    assert so_far_s == pytest.approx(160 * 0.034, abs=2.3), "as far as blocks of 32 steps tell"
    assert said.sentence.startswith(
        f"rank 1 is last in 100% of steps and waits for a CPU; sure after 20 s, {so_far_s:.0f} so far"
    )
    assert snapshot(frame)["suspect"]["cause"] == "cpu"
    feed_together(reducer, world.steps(520))
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.straggler is not None and (frame.straggler.rank, frame.straggler.cause) == (1, "cpu")
    assert frame.suspect is None


def test_a_rank_that_is_last_in_all_steps_is_named_though_it_waits_too_little_to_be_flagged(
    make_world,
) -> None:
    world = make_world(4, own=True)
    reducer = after_even_steps(world)
    world.delays[1, "forward"] = world.cpu_us[1] = 1_500
    feed_together(reducer, world.steps(120))
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.straggler is None
    assert verdict(frame).sentence.startswith("rank 1 was the slowest in 48 of 48 steps, by 1.5 ")


@pytest.mark.parametrize(("on_time_every", "named"), [(16, True), (8, False)])
def test_a_rank_that_is_on_time_in_more_than_a_tenth_of_the_steps_is_not_named(
    make_world, on_time_every: int, named: bool
) -> None:
    world = make_world(4, own=True)
    reducer = after_even_steps(world)
    for step in range(120):
        late_us = 0 if step % on_time_every == 0 else 1_500
        world.delays[1, "forward"] = world.cpu_us[1] = late_us
        world.delays[2, "forward"] = 100 if late_us == 0 else 0
        feed_together(reducer, world.steps(1))
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert frame.straggler is None
    assert (frame.suspect is not None) == named


def test_of_long_steps_it_is_sure_after_so_many_steps_not_after_20_s(make_world) -> None:
    world, reducer = make_world(2, own=True), Reducer()
    world.delays[1, "forward"] = world.cpu_us[1] = 186_000
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(160)])
    said = verdict(reducer.frame(START_NS + world.now_us * 1000))
    assert "sure after 45 s, 32 so far" in said.sentence  # 224 steps of 0.2 s


def test_what_a_waiting_rank_costs_has_its_slow_part_in_the_all_reduces() -> None:
    """A quota stops the threads of gloo too: the transfer is longer in the same steps."""
    window, n = StepWindow(2, 100), 200
    zeros, slow = np.zeros((n, 2)), np.repeat((np.arange(n) >= 100)[:, None], 2, axis=1)
    waits, exposed = np.where(slow, (0.0, 20.0), 0.0), np.where(slow, 7.0, 2.0)
    own = waits + 8.0
    exposed_wait = own.max(axis=1, keepdims=True) - own
    wall = own + exposed + exposed_wait
    parts = {"forward": own, "cpu": waits, "exposed": exposed + exposed_wait, "exposed_wait": exposed_wait}
    for at in range(0, n, 100):
        run, nothing = slice(at, at + 100), np.zeros(100)
        columns = np.stack([wall, *[zeros] * (len(STEP_COLUMNS) - 1)])[:, run]
        window.add(np.arange(at, at + 100.0), nothing, columns, zeros[run], (nothing, nothing, nothing))
        excess = formulas.excess(own, own)
        own_columns = np.stack([own, excess, zeros])[:, run]
        window.add_own(own_columns, np.stack([parts.get(name, zeros) for name in PART_COLUMNS])[:, run])
    flag = StepFlag((1,), "persistent", 100, 20.0, np.arange(2), "cpu")
    slots = np.arange(100, 200)
    longer = slow_transfer_ms(window, slots, flag)
    assert longer == pytest.approx(np.full(100, 5.0), abs=1e-4)
    without = compute_what_if(
        window, slots, (1,), flag.members, "cpu", extra_transfer_ms=longer
    ).no_straggler_ms
    assert without == pytest.approx(10.0, abs=1e-3), "8 of work and 2 of transfer"
    assert compute_what_if(window, slots, (1,), flag.members, "cpu").no_straggler_ms == pytest.approx(
        15.0, abs=1e-3
    )
    late = StepFlag((1,), "persistent", 0, 20.0, np.arange(2), "cpu")
    assert slow_transfer_ms(window, slots, late).max() == 0.0, "how long it takes without is not known"


def usages(world, **fields):
    """A reading of the process of each rank."""
    at = START_NS + world.now_us * 1000
    return [Received(at, r, world.session(r), 0, Usage(at, 1, 9.0, **fields)) for r in range(world.size)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cores": 1, "first_core": 0}, "3 ranks may use core 0 only"),
        ({"cores": 2, "first_core": 4}, "3 ranks may use 2 cores only, from core 4 on"),
        ({"throttled_pct": 60.0}, "the CPU quota of 3 ranks is used up in 60% of its periods"),
        ({"cores": 2}, ""),
        ({"cores": 3, "first_core": 0}, ""),
        ({}, ""),
    ],
)
def test_ranks_that_share_fewer_cores_than_they_need_say_so_first(make_world, fields, said: str) -> None:
    world, sampler = make_world(3, own=True), RunSampler(100)
    world.cpu_us = dict.fromkeys(range(3), 3_000)
    world.delays = {(rank, "forward"): 3_000 for rank in range(3)}
    for received in (world.run(), *world.introduce(), *world.steps(120), *usages(world, **fields)):
        sampler.feed_message(received)
    frame = sampler.reducer.frame(START_NS + world.now_us * 1000)
    assert frame.group.cpu_shortage.startswith(said) and bool(frame.group.cpu_shortage) == bool(said)
    assert frame.group.cpu_wait_pct == pytest.approx(100 * 3 / 17.0, rel=0.1)
    shown = verdict(frame)
    if said:
        assert (shown.kind, shown.sign) == ("cpus", "warning")
        assert shown.sentence.startswith(said)
        assert "they wait for a CPU 1" in shown.sentence
        assert "--cpus-per-task" in next_action(frame)
    else:
        assert shown.kind == "even"
    sampler.feed_message(world.run("finished", 0))
    found = make_report(sampler)
    assert found.advice[0].kind == "cpus", "before anything about bytes"
    assert ("cpus" in [one.kind for one in found.verdict]) == bool(said)


def test_one_rank_that_waits_for_a_cpu_is_no_shortage_of_all(make_world) -> None:
    world, sampler = make_world(3, own=True), RunSampler(100)
    world.cpu_us, world.delays = {0: 0, 1: 9_000, 2: 0}, {(1, "forward"): 9_000}
    for received in (world.run(), *world.introduce(), *world.steps(120), world.run("finished", 0)):
        sampler.feed_message(received)
    found = make_report(sampler)
    assert found.cpu_wait_pct == pytest.approx(0.0)
    assert "cpus" not in [one.kind for one in found.advice]
