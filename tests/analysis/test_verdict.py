"""One sentence for every situation: true, never empty, and with a plain form."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import Clocks, LoggedEvent, Suspect
from ddptop.frames.numbers import duration
from ddptop.frames.remedies import ALONE_REMEDIES, MORE_WORKERS, next_action
from ddptop.frames.verdict import IN_FEW_STEPS, PLACES_ALONE, WHILE_SLOW, slowest, verdict
from tests.made_up_run import feed_together
from tests.tui.fake import saving, straggler

NS = 1_000_000_000
START_NS = 5_000 * NS


@pytest.fixture
def scene(make_world):
    """Run a world and read the verdict some seconds later."""

    def run(steps: int, *, after_s: float = 0.0, also=lambda world: (), without: int = 0, **options):
        world, reducer = make_world(**options), Reducer()
        introduced = [r for r in world.introduce() if r.rank >= without]
        feed_together(reducer, [world.run(), *introduced, *world.steps(steps), *also(world)])
        return reducer.frame(START_NS + world.now_us * 1000 + int(after_s * NS))

    return run


def both(frame) -> tuple[str, str]:
    found = verdict(frame)
    for plain in (found.line(ascii_only=True), found.second(ascii_only=True)):
        assert plain.isascii()
    assert len(found.line()) > 10
    return found.line(), found.second()


def test_even(scene) -> None:
    line, second = both(scene(60, size=4))
    assert line == "● no rank is slow in 60 steps so far · waiting costs 0% of each step"
    assert second == "median step 14.0 ms · 14.0 without waiting · 12.0 if communication were hidden too"


def test_straggler(scene) -> None:
    line, second = both(scene(60, size=4, delays={(1, "data"): 20_300}))
    assert line == "▲ rank 1 arrives 20.3 ±0.1 ms late in 100% of steps · data loading · costs 59%"
    assert (
        second == "median step 34.3 ms · 14.0 without the slow rank · 12.0 if communication were hidden too"
    )


def test_straggler_in_ascii(scene) -> None:
    found = verdict(scene(60, size=2, delays={(1, "other"): 20_000}))
    plain = found.line(ascii_only=True)
    assert plain == "! rank 1 arrives 20.0 +-0.1 ms late in 100% of steps | outside the phases | costs 59%"


def test_waiting(scene) -> None:
    assert both(Reducer().frame(START_NS))[0] == "○ waiting for ranks: none has reported yet"
    assert both(scene(0, size=4, without=2))[0] == "○ waiting for ranks 0 and 1 (node0): 2 of 4 are here"


def test_before_the_first_step(scene) -> None:
    line, _ = both(scene(0, size=4, after_s=1))
    assert line == "○ all 4 ranks are here; they have not all finished a step yet · 1.0 s"


def test_too_little_detail_to_compare(scene) -> None:
    def beat(world):
        return [world.progress(0)]

    line, second = both(scene(100, size=4, detail_every=64, also=beat))
    often = "one step in 64 has them, more would exceed the 1% budget"
    assert line == f"○ too few timed buckets yet to compare the ranks: {often}"
    assert second == "median step 14.0 ms"


def test_a_lone_rank_and_several_hosts(scene) -> None:
    assert both(scene(30, size=1))[0] == "● one rank: no other rank to wait for"
    line, _ = both(scene(60, size=4, hosts=("a", "b"), delays={(1, "data"): 20_000}))
    assert line == "◌ 2 hosts: their clocks are not compared yet, so no rank is flagged"


def test_hosts_whose_clocks_are_compared(scene) -> None:
    frame = scene(60, size=4, hosts=("a", "b"))
    clocks = (Clocks("a", 0.0, 0.0), Clocks("b", 4.0, 3.0))
    buckets = tuple(
        replace(bucket, skew_ms=skew) for bucket, skew in zip(frame.buckets, (0.4, 1.2), strict=True)
    )
    group = replace(frame.group, clock_free=True, bound_ms=3.0)
    unclear = replace(frame, clocks=clocks, group=group, buckets=buckets)
    assert both(unclear)[0] == (
        "◌ ranks arrive 1.2 ms apart, less than the clock error (±3.0 ms): no rank is flagged"
    )
    nothing = replace(unclear, buckets=(), group=replace(group, bound_ms=None))
    assert both(nothing)[0] == "◌ ranks arrive within the clock error: no rank is flagged"
    clear = replace(unclear, group=replace(frame.group, no_straggler_ms=14.0, clock_free=False))
    assert both(clear)[0] == "● no rank is slow in 60 steps so far · waiting costs 0% of each step"
    unknown = replace(unclear, clocks=(*clocks[:1], Clocks("b", None, None)))
    assert both(unknown)[0] == "◌ 2 hosts: their clocks are not compared yet, so no rank is flagged"


def test_several_stragglers_and_patterns(scene) -> None:
    frame = scene(60, size=4, delays={(1, "data"): 20_300})
    slow = replace(frame.straggler, pattern="persistent", cost_pct=59.2, last_pct=96.0)

    def line(**changes) -> str:
        return both(replace(frame, straggler=replace(slow, **changes)))[0]

    assert line() == "▲ rank 1 arrives 20.3 ±0.1 ms late in 96% of steps · data loading · costs 59%"
    assert line(ranks=(1, 2)) == (
        "▲ ranks 1 and 2 arrive 20.3 ±0.1 ms late in 96% of steps · data loading · costs 59%"
    )
    assert line(pattern="intermittent", last_pct=12.0, cost_pct=4.0) == (
        "▲ rank 1 is now and then 20.3 ±0.1 ms late, in 12% of steps · data loading · costs 4.0% on average"
    )
    assert line(pattern="rotating", cause=None) == (
        "▲ one rank is 20.3 ±0.1 ms late, a different one over time, now rank 1 · costs 59%"
    )
    assert line(ranks=tuple(range(6))).startswith("▲ ranks 0, 1, 2, 3, ... arrive")


def test_a_what_if_has_its_interval_and_so_has_the_cost_of_skew(scene) -> None:
    frame = scene(70, size=2)
    group = replace(
        frame.group,
        steps_per_s=8.0,
        step_ms_p50=20.0,
        no_straggler_ms=16.0,
        no_straggler_low_ms=15.8,
        no_straggler_high_ms=16.4,
    )
    line, second = both(replace(frame, group=group))
    assert line == "● no rank is consistently slow · waiting costs 20% ±2% of each step"
    assert second.startswith("median step 20.0 ms, mean 125 · 16.0 ±0.4 without waiting · ")
    group = replace(group, no_straggler_ms=19.9, no_straggler_low_ms=19.8, no_straggler_high_ms=20.0)
    assert both(replace(frame, group=group))[0] == "● no rank is slow · waiting costs 0.5% ±0.5% of each step"


def test_uneven_without_a_culprit(scene) -> None:
    frame = scene(70, size=2)
    group = replace(frame.group, step_ms_p50=20.0, no_straggler_ms=16.0)
    assert (
        both(replace(frame, group=group))[0]
        == "● no rank is consistently slow · waiting costs 20% of each step"
    )
    early = replace(group, window_steps=40)
    assert both(replace(frame, group=early))[0] == (
        "● no rank is slow in 40 steps so far · waiting costs 20% of each step"
    )


def test_a_rank_that_has_only_just_become_slow_is_not_denied(scene) -> None:
    frame = scene(30, size=2, delays={(1, "data"): 20_300})
    assert frame.straggler is None, "in 30 steps"
    assert (
        both(frame)[0] == "○ rank 1 came last in 12 of 12 measured steps, by 20.3 ±0.1 ms · waiting costs 59%"
    )


def test_a_suspect_and_what_it_costs_do_not_contradict_each_other(scene) -> None:
    frame = scene(30, size=2, delays={(1, "data"): 20_300})
    suspect = Suspect(1, 9.1, 0.4, 22, 22, basis="every_step")
    group = replace(frame.group, step_ms_p50=40.0, no_straggler_ms=40.0)
    sentence = "○ rank 1 was the slowest in 22 of 22 steps, by 9.1 ±0.4 ms"
    assert both(replace(frame, suspect=suspect, group=group))[0] == sentence, "0 % lost cannot be"
    known = replace(group, no_straggler_ms=32.0)
    assert both(replace(frame, suspect=suspect, group=known))[0] == f"{sentence} · waiting costs 20%"


def test_a_share_with_too_wide_an_interval_is_no_headline(scene) -> None:
    frame = replace(scene(60, size=2), suspect=None)
    wide = replace(
        frame.group,
        step_ms_p50=40.0,
        no_straggler_ms=24.0,
        no_straggler_low_ms=4.0,
        no_straggler_high_ms=60.0,
    )
    said = verdict(replace(frame, group=wide))
    assert (said.kind, said.sign) == ("little_detail", "busy")
    assert said.sentence == "no rank is slow so far · the cost of waiting is not measurable yet"


def test_figures_that_still_hold_a_straggler_of_before_are_laid_to_it(scene) -> None:
    frame = scene(70, size=2)
    group = replace(frame.group, step_ms_p50=20.0, no_straggler_ms=16.0)
    ended = LoggedEvent(5.0, "straggler_end", "info", 1, 40, "as an earlier version says it")
    after = replace(frame, group=group, events=(ended,))
    assert both(after)[0] == "● rank 1 is no longer slow · waiting costs 20% of each step"
    even = replace(group, no_straggler_ms=19.8)
    assert both(replace(after, group=even))[0].startswith("● rank 1 is no longer slow · waiting costs 1.0%")
    for other in (replace(group, step=140), replace(group, incarnation=1)):
        assert "no rank is consistently slow" in both(replace(after, group=other))[0]


def test_stalled(scene) -> None:
    def beats(world):
        at = world.now_us + 17_000_000
        return [world.progress(0, t_us=at, step=31), world.progress(1, t_us=at, phase=1)]

    line, second = both(scene(30, size=2, after_s=17, also=beats))
    assert line == "■ STALLED 17 s · rank 1 is missing: still in step 30, the others in 31"
    assert second == "the last heartbeat of rank 1 was in data"


def test_lost(scene) -> None:
    line, second = both(scene(30, size=4, also=lambda world: [world.event("lost_rank", 2)]))
    assert line == "■ LOST · rank 2 lost: its process is gone"
    assert re.fullmatch(r"at \d\d:\d\d:\d\d, .+ s ago · last complete step 29", second)


def test_failed_and_finished(scene) -> None:
    def fail(world):
        return [world.bye(1, "ValueError"), world.run("failed", 1)]

    line, second = both(scene(30, size=2, also=fail))
    assert line == "■ FAILED · rank 1 failed: ValueError"
    assert re.fullmatch(r"at \d\d:\d\d:\d\d, 0 s ago · last complete step 29 · exit code 1", second)

    def finish(world):
        return [world.bye(0), world.bye(1), world.run("finished", 0)]

    line, second = both(scene(30, size=2, also=finish))
    assert line == "● finished: 30 steps · 0.4 s"
    assert second.startswith("median step 14.0 ms")
    _, second = both(scene(60, size=2, also=finish, delays={(1, "data"): 20_000}))
    assert second.startswith("at the end rank 1 arrives 20.0")


def test_stale_and_unreachable(scene) -> None:
    line, second = both(scene(30, size=2, after_s=4.2))
    assert line == "◌ STALE · last update 4.2 s ago: the figures may be outdated"
    assert second == f"last known: {both(scene(30, size=2))[0].removeprefix('● ')}"
    late = {(1, "data"): 20_000}
    _, second = both(scene(60, size=2, after_s=4.2, delays=late))
    assert second == f"last known: {both(scene(60, size=2, delays=late))[0].removeprefix('▲ ')}"
    assert second.startswith("last known: rank 1 ") and " costs " in second
    frame = scene(30, size=2)
    held = replace(frame, run=replace(frame.run, state="stale"))
    assert both(held)[0] == "◌ STALE · no fresh data: the figures may be outdated"
    gone = replace(frame, run=replace(frame.run, state="lost"))
    assert both(gone)[0] == "■ LOST · the run sends no updates any more"
    assert next_action(gone).startswith("Read the output of the launcher")
    cut_off = replace(gone, source="replay")
    assert (
        both(cut_off)[0]
        == "■ LOST · how the run ended is unknown: the recording stops in the middle of the run"
    )
    assert next_action(cut_off).startswith("If the file was copied, compare its size with the original. Read")


def test_nan_comes_before_a_straggler(make_world) -> None:
    world, reducer = make_world(2, delays={(1, "data"): 20_000}), Reducer()
    lossy = world.steps(60, loss=lambda rank, step: float("nan") if step >= 40 and rank == 1 else 1.0)
    feed_together(reducer, [world.run(), *world.introduce(), *lossy])
    line, _ = both(reducer.frame(START_NS + world.now_us * 1000))
    assert line == "■ the loss of rank 1 is NaN or infinite since step 40"


def test_the_rank_of_a_nan_is_not_named_before_all_have_reported_the_step_before(make_world) -> None:
    """Rank 1 made it in step 40, and rank 0, whose report comes sooner, has it since step 41."""
    world, reducer = make_world(2), Reducer()
    steps = [*world.steps(44, loss=lambda rank, step: float("nan") if step >= 41 - rank else 1.0)]
    late = [one for one in steps if one.rank == 1 and one.message.first_step >= 40]
    feed_together(reducer, [world.run(), *world.introduce(), *(one for one in steps if one not in late)])
    now_ns = START_NS + world.now_us * 1000
    assert "NaN" not in both(reducer.frame(now_ns))[0]
    assert "loss of rank 0 is NaN" in str(reducer.frame(now_ns + 2_100_000_000).alerts)
    feed_together(reducer, late)
    sentence = both(reducer.frame(now_ns))[0]
    assert sentence == "■ the loss of rank 1 and then of rank 0 is NaN or infinite since step 40"


@pytest.mark.parametrize(
    ("seconds", "text"), [(4.25, "4.2 s"), (17.9, "17 s"), (545, "9 min 05 s"), (11_100, "3 h 05 min")]
)
def test_durations(seconds, text) -> None:
    assert duration(seconds) == text


def test_a_median_step_is_not_said_to_be_longer_for_waiting_that_few_steps_have() -> None:
    rare, usual = verdict(saving()), verdict(straggler())
    assert "waiting costs 33% ±3% of step time" in rare.sentence
    assert rare.detail.endswith(f"median step 26.6 ms · {IN_FEW_STEPS}")
    assert "26.6 ±0.4 without the slow rank" in usual.detail and IN_FEW_STEPS not in usual.detail


def test_waiting_for_a_rank_that_was_slow_is_not_said_to_be_in_few_steps() -> None:
    frame = saving()
    ended = LoggedEvent(frame.unix_s - 60, "straggler_end", "info", 1, 150, "rank 1 is no longer slow")
    shown = verdict(replace(frame, events=(*frame.events, ended)))
    assert shown.detail.endswith(f"median step 26.6 ms · {WHILE_SLOW}")
    assert frame.ledger is not None
    long_ago = replace(ended, unix_s=frame.unix_s - 2 * frame.ledger.recent.over_s)
    assert IN_FEW_STEPS in verdict(replace(frame, events=(long_ago, *frame.events))).detail


BURST_US = 46_000
"""How long each rank waits for every fourth batch, as with four workers that start together."""


def run_with_bursts(make_world, ranks: tuple[int, ...], *, burst_us: int = BURST_US, **sizes: int):
    """A run whose ranks need 33 ms for a step, 1 ms of it for the batch, and these ranks bursts on top."""
    world = make_world(own=True, **sizes)
    reducer, forward = Reducer(), {(rank, "forward"): 19_000 for rank in range(world.size)}
    feed_together(reducer, [world.run(), *world.introduce()])

    def begin_step() -> None:
        waits = burst_us if world.step % 4 == 3 else 0
        world.delays = forward | {(rank, "data"): waits for rank in ranks}

    feed_together(reducer, world.steps(200, before_step=begin_step))
    return reducer.frame(START_NS + world.now_us * 1000)


def test_data_that_is_loaded_in_bursts_is_told_while_the_run_is_live(make_world) -> None:
    frame = run_with_bursts(make_world, (0, 1, 2, 3))
    assert frame.group.step_ms_p50 == pytest.approx(33.0)
    assert frame.ranks.data_ms.tolist() == [1.0] * 4, "the medians show nothing of it"
    shown = verdict(frame)
    # 50 of 178 ms in four steps: more than the waiting, so it is the headline.
    loads = "every rank loads data for 28% of step time"
    assert (shown.kind, shown.sign, shown.sentence) == ("data_bound", "warning", loads)
    assert shown.detail.startswith("no rank is slow · waiting costs 0% of step time · median step 33.0 ms")
    assert slowest(frame) == "none"
    assert next_action(frame) == MORE_WORKERS


def test_a_healthy_run_is_not_said_to_load_data(make_world) -> None:
    for frame in (
        run_with_bursts(make_world, (0, 1, 2, 3), burst_us=0),
        run_with_bursts(make_world, (1, 2, 3)),  # rank 0 has its batches: more workers are for the others
    ):
        assert verdict(frame).kind != "data_bound" and next_action(frame) != MORE_WORKERS


def test_whatever_is_said_of_the_ranks_it_is_told_that_all_of_them_load_data(make_world) -> None:
    frame = run_with_bursts(make_world, (0, 1, 2, 3))
    loads = "every rank loads data for 28% of step time"
    ledger = frame.ledger
    assert ledger is not None
    few = replace(frame, group=replace(frame.group, no_straggler_ms=None, window_steps=80))
    uneven = replace(frame, ledger=replace(ledger, recent=replace(ledger.recent, lost_pct=32.0)))
    ended = LoggedEvent(frame.unix_s, "straggler_end", "info", 1, 150, "rank 1 is no longer slow")
    recovered = replace(frame, events=(*frame.events, ended))
    suspect = replace(frame, suspect=Suspect(1, 9.0, 0.1, 6, 8, "every_step"))
    for one, kind, below in (
        (few, "data_bound", "measuring: 64 of 64 steps"),
        (uneven, "uneven", loads),
        (recovered, "recovered", loads),
        (suspect, "suspect", loads),
    ):
        shown = verdict(one)
        assert shown.kind == kind and below in shown.detail and next_action(one) == MORE_WORKERS
        assert (shown.sentence == loads) == (kind == "data_bound")
    slow = replace(straggler(), ledger=ledger)
    assert verdict(slow).kind == "straggler" and "loads data" not in verdict(slow).detail


def test_the_remedy_of_what_one_rank_does_alone_comes_before_that_of_data_loading() -> None:
    frame = saving()
    of_saves = frame.ledger
    assert of_saves is not None
    data_s = of_saves.ranks.data_s + 0.2 * of_saves.elapsed_s
    loading = replace(frame, ledger=replace(of_saves, ranks=replace(of_saves.ranks, data_s=data_s)))
    assert verdict(loading).detail.startswith("most of it for rank 0 saving checkpoints · every rank loads")
    assert next_action(loading) == next_action(frame) != MORE_WORKERS
    recent = of_saves.recent
    in_backward = tuple(replace(waited, place="backward") for waited in recent.waited_for)
    assert loading.ledger is not None
    even = replace(loading, ledger=replace(loading.ledger, recent=replace(recent, waited_for=in_backward)))
    detail = verdict(even).detail
    assert detail.startswith("every rank loads data") and " · most of it for rank 0 in backward · " in detail
    assert next_action(even) == MORE_WORKERS


def test_each_place_where_a_rank_works_alone_has_a_remedy() -> None:
    assert ALONE_REMEDIES.keys() == PLACES_ALONE
