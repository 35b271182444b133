"""Dear steps that were left out: recorded ones like them explain them, and nothing else does."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest

from ddptop.analysis.ledger.dear_times import LEAST_RECORDED
from ddptop.analysis.ledger.recorded import VERSION, pack_ledger, resume_ledger
from ddptop.analysis.ledger.sums import NO_BIN
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.since_start import known_since_start
from ddptop.frames.ledger import LEDGER_CLASSES, Ledger
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Received
from ddptop.training.shadow import next_recorded
from tests.analysis.test_ledger import assert_adds_up, ledger_of, saved, shadowed
from tests.made_up_run import START_NS, World, feed_together

EVERY = 8
"""One block of steps in so many is recorded."""

Delays = dict[tuple[int, str], int]


def settings_of(world: World, version: int = VERSION) -> Received:
    return world.event("settings", ledger=version)


def begun(world: World, version: int = VERSION) -> Reducer:
    reducer = Reducer()
    feed_together(reducer, [world.run(), settings_of(world, version), *world.introduce()])
    return reducer


def messages_of(world: World, delays: dict[int, Delays], steps: int, every: int = EVERY) -> list[Received]:
    """So many steps of all ranks, most of them left out; `delays`: of a step."""
    messages = []
    for step in range(steps):
        world.delays = delays.get(step, {})
        is_recorded = next_recorded(step, every) <= step
        messages += [message if is_recorded else shadowed(message) for message in world.steps(1)]
    return messages


def rarely(every: int, us: int, steps: int, rank: int = 0) -> dict[int, Delays]:
    return {step: {(rank, "after_optimizer"): us} for step in range(every - 1, steps, every)}


def left_out_steps(steps: int, every: int = EVERY) -> list[int]:
    return [step for step in range(steps) if next_recorded(step, every) > step]


def ledger_after(
    delays: dict[int, Delays], steps: int, *, every: int = EVERY, version: int = VERSION
) -> Ledger:
    world = World(3, own=True)
    reducer = begun(world, version)
    feed_together(reducer, messages_of(world, delays, steps, every))
    ledger = ledger_of(world, reducer)
    assert_adds_up(ledger, world.now_us / 1e6)
    return ledger


def test_what_is_rare_and_dear_has_its_true_cost_where_most_steps_are_left_out() -> None:
    delays = rarely(37, 1_000_000, 2000)
    truth = ledger_after(delays, 2000, every=1)
    ledger = ledger_after(delays, 2000)
    first, true_first = ledger.run.waited_for[0], truth.run.waited_for[0]
    assert (first.rank, first.place) == (true_first.rank, true_first.place)
    assert first.rank_seconds == pytest.approx(true_first.rank_seconds, rel=0.02)
    assert first.dear_rank_seconds == pytest.approx(true_first.dear_rank_seconds, rel=0.02)
    assert first.n_dear < true_first.n_dear / 5
    assert first.n_dear_in_all == pytest.approx(true_first.n_dear, rel=0.02)
    for name in LEDGER_CLASSES:
        np.testing.assert_allclose(
            ledger.seconds_of(name), truth.seconds_of(name), atol=0.02 * truth.elapsed_s
        )
    for cost, true_cost in ((ledger.run, truth.run), (ledger.recent, truth.recent)):
        assert cost.lost_pct == pytest.approx(true_cost.lost_pct, rel=0.03)
        assert cost.low_pct is not None and cost.high_pct is not None
        assert cost.low_pct < true_cost.lost_pct < cost.high_pct
        assert sum(row.rank_seconds for row in cost.waited_for) == pytest.approx(cost.rank_seconds)
    assert ledger.scaled_s > 0.8 * ledger.total_s


def test_an_earlier_version_did_not_explain_them() -> None:
    delays = rarely(37, 1_000_000, 2000)
    ledger = ledger_after(delays, 2000, version=1)
    first = ledger.run.waited_for[0]
    assert first.n_dear_in_all == first.n_dear
    assert ledger.ranks.unknown_s.min() > 40


def test_the_verdict_names_a_rank_by_what_all_of_its_dear_steps_cost() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    delays = rarely(37, 400_000, 2000)
    feed_together(reducer, messages_of(world, delays, 2000))
    frame = reducer.frame(START_NS + world.now_us * 1000)
    straggler = frame.straggler
    assert straggler is not None and straggler.rare is not None
    assert (straggler.rank, straggler.place) == (0, "after_optimizer")
    true_pct = 100 * 0.4 * len(delays) / (world.now_us / 1e6)
    assert straggler.cost_pct == pytest.approx(true_pct, rel=0.05)
    assert straggler.rare.n_slow_in_all == pytest.approx(len(delays), rel=0.05)
    assert (
        f"{straggler.rare.n_slow} recorded, some {straggler.rare.n_slow_in_all} in all"
        in verdict(frame).detail
    )
    assert any("became slow in few steps" in event.message for event in frame.events)


def test_a_pause_that_nothing_recorded_resembles_is_not_known() -> None:
    """It is ten seconds long; what is recorded is a tenth of a second."""
    delays = rarely(37, 100_000, 2000)
    pause = next(step for step in left_out_steps(2000) if step > 1000 and step not in delays)
    without = ledger_after(delays, 2000)
    ledger = ledger_after(delays | {pause: {(1, "forward"): 10_000_000}}, 2000)
    np.testing.assert_allclose(ledger.ranks.unknown_s - without.ranks.unknown_s, 10.0, rtol=0.02)
    assert ledger.run.rank_seconds == pytest.approx(without.run.rank_seconds, rel=0.01)


@pytest.mark.parametrize(
    ("n_recorded", "is_explained"), [(LEAST_RECORDED - 1, False), (LEAST_RECORDED, True)]
)
def test_so_many_recorded_steps_explain_what_was_left_out(n_recorded: int, is_explained: bool) -> None:
    left_out = left_out_steps(2000)
    recorded = [step for step in range(100, 2000) if step not in left_out]
    slow = {*recorded[:: len(recorded) // n_recorded][:n_recorded], *left_out[100:1000:30]}
    ledger = ledger_after({step: {(2, "data"): 500_000} for step in slow}, 2000)
    n_in_all = ledger.run.waited_for[0].n_dear_in_all
    if is_explained:
        assert n_in_all == pytest.approx(len(slow), abs=1)
        assert ledger.ranks.unknown_s.max() < 0.5
    else:
        assert n_in_all == n_recorded
        np.testing.assert_allclose(ledger.ranks.unknown_s, 0.5 * (len(slow) - n_recorded), rtol=0.1)


def test_steps_of_twice_the_length_explain_where_those_of_the_same_are_too_few() -> None:
    left_out = left_out_steps(2000)
    recorded = [step for step in range(100, 2000) if step not in left_out]
    # 0.2 s and 0.3 s lie in neighbouring powers of two.
    slow = dict.fromkeys(recorded[::40], 300_000) | dict.fromkeys(left_out[50:1000:40], 200_000)
    ledger = ledger_after({step: {(2, "data"): us} for step, us in slow.items()}, 2000)
    true_s = 2 * sum(slow.values()) / 1e6
    assert ledger.run.waited_for[0].rank_seconds == pytest.approx(true_s, rel=0.05)


@pytest.mark.parametrize("size", [pytest.param(5, marks=pytest.mark.slow), 1000])
def test_sums_and_log_do_not_depend_on_how_many_steps_are_evaluated_at_once(size: int) -> None:
    def shown(size: int) -> tuple[str, list[str]]:
        world = World(3, own=True)
        reducer = begun(world)
        messages = messages_of(world, rarely(37, 400_000, 2000), 2000)
        for begin in range(0, len(messages), 3 * size):
            feed_together(reducer, messages[begin : begin + 3 * size])
            reducer.state.settle()
        frame = reducer.frame(START_NS + world.now_us * 1000)
        return repr(frame.ledger), [event.message for event in frame.events]

    ledger, events = shown(size)
    assert any("became slow in few steps" in event for event in events)
    assert (ledger, events) == shown(129)


def test_recorded_sums_go_on_with_the_same_estimate() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    introduced = [world.run(), settings_of(world), *world.introduce()]
    messages = messages_of(world, rarely(37, 400_000, 2000), 2000)
    pieces, since_bin = [], NO_BIN
    for begin in (0, 2250):
        feed_together(reducer, messages[begin : begin + 2250])
        reducer.state.settle()
        pieces.append((known_since_start(reducer.state), pack_ledger(reducer.state.ledger, since_bin)))
        since_bin = reducer.state.ledger.recent_bins[-1].number
    again = Reducer(tail=True)
    assert resume_ledger(again.state.ledger, pieces)
    feed_together(again, introduced)
    for each in (reducer, again):
        feed_together(each, messages[4500:])
    ledger = ledger_of(world, reducer)
    assert ledger.run.waited_for[0].n_dear_in_all > 20
    assert repr(ledger_of(world, again)) == repr(ledger)


def sums_of_version_1(packed: bytes) -> bytes:
    """The same sums as version 1 packed them."""
    content = msgpack.unpackb(packed)[:10]
    content[0] = 1
    waits_of_run, waits_of_bins = content[6], content[9][1]
    for waits in (waits_of_run, waits_of_bins):
        heads = np.frombuffer(waits[5], "<i8").reshape(-1, 3).copy()
        longest_ms, since_s, until_s = np.frombuffer(waits[6], "<f8").reshape(-1, 3).T
        _, n_steps = np.frombuffer(waits[8], "<i8").reshape(-1, 2).T
        rank_ms = np.frombuffer(waits[9], "<f8")
        begins = np.cumsum(heads[:, 1]) - heads[:, 1]
        heads[:, 1] = np.add.reduceat(n_steps, begins)
        waits[5] = heads.tobytes()
        rank_ms = np.add.reduceat(rank_ms, begins)
        waits[6] = np.stack([longest_ms, rank_ms, since_s, until_s], axis=1).tobytes()
        del waits[8:]
    return msgpack.packb(content)


def test_sums_of_version_1_are_read_and_show_what_they_showed() -> None:
    world = World(3, own=True)
    reducer = begun(world, version=1)
    introduced = [world.run(), *world.introduce()]
    feed_together(reducer, messages_of(world, rarely(37, 400_000, 2000), 2000))
    ledger = ledger_of(world, reducer)
    reducer.state.settle()
    packed = sums_of_version_1(pack_ledger(reducer.state.ledger, NO_BIN))
    again = Reducer(tail=True)
    assert resume_ledger(again.state.ledger, [(known_since_start(reducer.state), packed)])
    feed_together(again, introduced)
    assert repr(ledger_of(world, again)) == repr(ledger)


def test_saves_in_steps_that_were_left_out_stay_known_and_tell_who_waited_for_them() -> None:
    """Unmarked pauses as long as the saves are not taken for saves."""
    world = World(3, own=True)
    reducer = begun(world)
    messages, n_saves, unmarked = [], 0, left_out_steps(2000)[500:510]
    for step in range(2000):
        saves = step % 37 == 36
        world.delays = {(1, "forward"): 2_000_000} if step in unmarked else {}
        if saves:
            n_saves += 1
            world.delays = {(0, "after_optimizer"): 2_000_000}
            messages.append(saved(world, 0, world.now_us + 1_950_000, 1_900_000))
        is_recorded = next_recorded(step, EVERY) <= step
        messages += [message if is_recorded else shadowed(message) for message in world.steps(1)]
    feed_together(reducer, messages)
    ledger = ledger_of(world, reducer)
    assert_adds_up(ledger, world.now_us / 1e6)
    assert ledger.ranks.saving_s.tolist() == pytest.approx([1.9 * n_saves, 0.0, 0.0], rel=1e-3)
    first = ledger.run.waited_for[0]
    assert (first.rank, first.place) == (0, "saving")
    assert first.rank_seconds == pytest.approx(2 * 2.0 * n_saves, rel=0.1)
    assert ledger.ranks.unknown_s[2] == pytest.approx(2.0 * len(unmarked), rel=0.1)
