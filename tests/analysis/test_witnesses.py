"""Long steps that were left out: heartbeats in them say what they were, or they stay not known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from ddptop.analysis.ledger.recorded import MARKS_THE_END, VERSION, pack_ledger, resume_ledger
from ddptop.analysis.ledger.sums import NO_BIN
from ddptop.analysis.ledger.witnesses import LEAST_MOST_BEATS, STEP, Heartbeats
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.since_start import known_since_start
from ddptop.frames.ledger import Ledger
from ddptop.protocol.messages import Activity, Phase, Progress, Received
from ddptop.training.shadow import next_recorded
from tests.analysis.test_ledger import assert_adds_up, ledger_of, saved, shadowed
from tests.analysis.test_left_out_dear import EVERY, begun, left_out_steps, settings_of
from tests.made_up_run import START_NS, World, feed_together

LONG_US = 2_000_000
STEPS = 1000
LEFT_OUT_LONG = [step for step in left_out_steps(STEPS) if step > 200][::60]
"""Long steps, of which only the end is known."""

Told = dict[str, int]


def waits(rank: int, step: int) -> Told:
    """Ranks wait in backward for rank 0, which is in no phase."""
    if rank == 0:
        return {"phase": Phase.OTHER, "sequence": 2 * step}
    return {"phase": Phase.BACKWARD, "sequence": 2 * step + 1}


def all_work(rank: int, step: int) -> Told:
    return {"phase": Phase.OTHER, "sequence": 2 * step}


def messages_with_beats(
    world: World,
    told: Callable[[int, int], Told],
    *,
    ranks: range = range(3),
    slow_ranks: tuple[int, ...] = (0,),
    recorded: tuple[int, ...] = (),
) -> list[Received]:
    """Steps most of which are left out. Some are long, with two heartbeats of each of `ranks` in them;
    `recorded`: long ones that are recorded."""
    messages: list[Received] = []
    for step in range(STEPS):
        is_long = step in LEFT_OUT_LONG or step in recorded
        world.delays = {(rank, "after_optimizer"): LONG_US for rank in slow_ranks} if is_long else {}
        begin_us = world.now_us
        of_step = [*world.steps(1)]
        if is_long:
            for after_us in (700_000, 1_700_000):
                for rank in ranks:
                    since_ns = world.host_ns(world.host(rank), begin_us + 100_000)
                    values = {"step": step, "activity": Activity.TRAINING, "since_ns": since_ns}
                    messages.append(world.progress(rank, begin_us + after_us, **(values | told(rank, step))))
        is_recorded = step in recorded or next_recorded(step, EVERY) <= step
        messages += of_step if is_recorded else map(shadowed, of_step)
    return messages


def ledger_with(told: Callable[[int, int], Told], *, version: int = VERSION, **how: object) -> Ledger:
    world = World(3, own=True)
    reducer = begun(world, version)
    feed_together(reducer, messages_with_beats(world, told, **how))  # type: ignore[arg-type]
    ledger = ledger_of(world, reducer)
    assert_adds_up(ledger, world.now_us / 1e6)
    return ledger


N_LONG = len(LEFT_OUT_LONG)
TRUE_S = N_LONG * LONG_US / 1e6


def test_heartbeats_say_for_whom_ranks_waited_in_a_long_step() -> None:
    ledger = ledger_with(waits)
    first = ledger.run.waited_for[0]
    assert (first.rank, first.place) == (0, "unknown"), "where outside the phases is not known"
    assert first.rank_seconds == pytest.approx(2 * TRUE_S, rel=0.02)
    assert (first.n_dear, first.n_dear_in_all) == (N_LONG, N_LONG)
    assert ledger.ranks.waiting_s[1:].tolist() == pytest.approx([TRUE_S, TRUE_S], rel=0.02)
    assert ledger.ranks.between_s[0] == pytest.approx(TRUE_S, rel=0.05)
    assert ledger.ranks.unknown_s.max() < 0.2
    assert (first.n_witnessed, ledger.run.steps) == (N_LONG, STEPS)
    assert ledger.run.lost_pct == pytest.approx(100 * 2 * TRUE_S / ledger.total_s, rel=0.05)


def test_a_recorded_step_says_where_outside_the_phases_the_rank_was() -> None:
    first = ledger_with(waits, recorded=(14,)).run.waited_for[0]
    assert (first.rank, first.place) == (0, "after_optimizer")
    assert first.rank_seconds == pytest.approx(2 * TRUE_S + 4.0, rel=0.02)


def test_where_all_ranks_work_nobody_waits() -> None:
    ledger = ledger_with(all_work, slow_ranks=(0, 1, 2))
    assert ledger.ranks.between_s.min() == pytest.approx(TRUE_S, rel=0.05)
    assert ledger.run.rank_seconds < 0.1
    assert ledger.ranks.unknown_s.max() < 0.2


def test_data_loading_is_named() -> None:
    def load(rank: int, step: int) -> Told:
        return waits(rank, step) | ({"phase": Phase.DATA} if rank == 0 else {})

    first = ledger_with(load).run.waited_for[0]
    assert (first.rank, first.place) == (0, "data")


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        pytest.param(waits, range(2), id="a rank has no heartbeat in it"),
        pytest.param(lambda rank, step: waits(min(1, rank // 2), step), range(3), id="two ranks are behind"),
        pytest.param(
            lambda rank, step: waits(rank, step) | {"phase": Phase.OTHER},
            range(3),
            id="the others are in no collective",
        ),
        pytest.param(
            lambda rank, step: {"phase": Phase.BACKWARD, "sequence": 2 * step},
            range(3),
            id="all are in backward, waiting or not",
        ),
        pytest.param(lambda rank, step: waits(rank, step) | {"sequence": -1}, range(3), id="without numbers"),
        pytest.param(
            lambda rank, step: waits(rank, step) | ({} if rank else {"activity": Activity.AFTER_OPTIMIZER}),
            range(3),
            id="the place is not of the stack, and the rank may load data",
        ),
    ],
)
def test_where_heartbeats_do_not_agree_the_step_stays_not_known(
    told: Callable[[int, int], Told], ranks: range
) -> None:
    ledger = ledger_with(told, ranks=ranks)
    assert ledger.ranks.unknown_s.min() == pytest.approx(TRUE_S, rel=0.05)
    assert ledger.run.rank_seconds < 0.1


def test_recordings_of_earlier_versions_show_what_they_showed() -> None:
    ledger = ledger_with(waits, version=MARKS_THE_END)
    assert ledger.ranks.unknown_s.min() == pytest.approx(TRUE_S, rel=0.05)


@pytest.mark.parametrize("size", [5, 1000])
def test_sums_do_not_depend_on_how_many_steps_are_evaluated_at_once(size: int) -> None:
    def shown(size: int) -> str:
        world = World(3, own=True)
        reducer = begun(world)
        recorded = next(step for step in range(300, 600) if next_recorded(step, EVERY) <= step)
        messages = messages_with_beats(world, waits, recorded=(recorded,))
        for begin in range(0, len(messages), size):
            feed_together(reducer, messages[begin : begin + size])
            reducer.state.settle()
        return repr(ledger_of(world, reducer))

    assert shown(size) == shown(129)


def test_recorded_sums_keep_the_heartbeats_of_the_running_step() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    introduced = [world.run(), settings_of(world), *world.introduce()]
    messages = messages_with_beats(world, waits)
    last_beat = max(
        at for at, received in enumerate(messages) if received.message.__class__.__name__ == "Progress"
    )
    feed_together(reducer, messages[: last_beat + 1])
    reducer.state.settle()
    assert reducer.state.ledger.heartbeats.columns().shape[1] == 6
    piece = known_since_start(reducer.state), pack_ledger(reducer.state.ledger, NO_BIN)
    again = Reducer(tail=True)
    assert resume_ledger(again.state.ledger, [piece])
    feed_together(again, introduced)
    for each in (reducer, again):
        feed_together(each, messages[last_beat + 1 :])
    assert ledger_of(world, reducer).ranks.unknown_s.max() < 0.2
    assert repr(ledger_of(world, again)) == repr(ledger_of(world, reducer))


def test_of_a_run_that_hangs_few_heartbeats_are_kept_and_tell_all() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    messages = messages_with_beats(world, waits)
    beats = [place for place, received in enumerate(messages) if isinstance(received.message, Progress)]
    first_of_last_step, last = beats[-6], beats[-1]
    hanging = messages[first_of_last_step : last + 1]
    feed_together(reducer, messages[:first_of_last_step])
    for at in range(1000):
        between = [
            received._replace(message=replace(received.message, t_ns=received.message.t_ns + at))  # type: ignore[union-attr, type-var]
            for received in hanging[:3]
        ]
        feed_together(reducer, between)
    reducer.state.settle()
    assert reducer.state.ledger.heartbeats.columns().shape[1] == 6
    feed_together(reducer, messages[first_of_last_step:])
    assert ledger_of(world, reducer).ranks.unknown_s.max() < 0.2


class TakenBeats(NamedTuple):
    """Readings of heartbeats."""

    columns: dict[str, np.ndarray]

    def field(self, name: str) -> np.ndarray:
        """One of their fields."""
        return self.columns[name]


def take_beats(heartbeats: Heartbeats, step: int, phases: Sequence[int]) -> None:
    """Of rank 0, one in each of these phases."""
    one_each = np.ones(len(phases), np.int64)
    columns = {"t_ns": (1 + step) * 10**10 * one_each, "since_ns": one_each, "sequence": one_each}
    columns |= {"step": step * one_each, "phase": np.asarray(phases), "activity": 0 * one_each}
    heartbeats.take(0 * one_each, TakenBeats(columns))  # type: ignore[arg-type]


def test_of_a_step_of_which_too_much_is_told_nothing_is_kept() -> None:
    """What came first is not dropped alone: the rest might agree."""
    heartbeats = Heartbeats()
    take_beats(heartbeats, 7, range(LEAST_MOST_BEATS))
    take_beats(heartbeats, 8, range(2))
    assert {*heartbeats.columns()[STEP].tolist()} == {8}
    take_beats(heartbeats, 7, range(2))
    take_beats(heartbeats, 9, range(2))
    assert {*heartbeats.columns()[STEP].tolist()} == {8, 9}
    heartbeats.forget()
    take_beats(heartbeats, 0, range(2))
    assert {*heartbeats.columns()[STEP].tolist()} == {0}, "after a restart steps begin again"


def test_a_save_in_a_long_step_stays_a_save_and_has_its_waits() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    messages = messages_with_beats(world, waits)
    ends = {
        received.message.first_step: place  # type: ignore[union-attr]
        for place, received in reversed([*enumerate(messages)])
        if received.message.__class__.__name__ == "Steps"
    }
    for step in reversed(LEFT_OUT_LONG):
        row = messages[ends[step]].message
        begin_us = (row.base_ns - START_NS) // 1000 + row.rows[0].begin_us  # type: ignore[union-attr]
        messages.insert(ends[step], saved(world, 0, begin_us + 1_960_000, 1_900_000))
    feed_together(reducer, messages)
    ledger = ledger_of(world, reducer)
    first = ledger.run.waited_for[0]
    assert ledger.ranks.saving_s[0] == pytest.approx(1.9 * N_LONG, rel=0.01)
    assert (first.rank, first.place) == (0, "saving")
    assert first.rank_seconds == pytest.approx(2 * TRUE_S, rel=0.02)


def test_how_often_a_rank_is_slow_counts_slow_steps_without_heartbeats() -> None:
    """Of those below a second that were left out, no heartbeat tells."""
    world = World(3, own=True)
    reducer = begun(world)
    slow_steps = {step: (850_000, 950_000, 1_050_000, 1_150_000)[step % 4] for step in range(49, 4000, 49)}
    messages: list[Received] = []
    for step in range(4000):
        late_us = slow_steps.get(step, 0)
        world.delays = {(0, "after_optimizer"): late_us} if late_us else {}
        begin_us = world.now_us
        of_step = [*world.steps(1)]
        if late_us > 1_000_000:
            since_ns = world.host_ns(world.host(0), begin_us + 100_000)
            values = {"step": step, "activity": Activity.TRAINING, "since_ns": since_ns}
            for rank in range(3):
                messages.append(world.progress(rank, begin_us + 700_000, **(values | waits(rank, step))))
        is_recorded = next_recorded(step, EVERY) <= step
        messages += of_step if is_recorded else map(shadowed, of_step)
    feed_together(reducer, messages)
    slow = reducer.frame(START_NS + world.now_us * 1000).straggler
    assert slow is not None and slow.rare is not None
    assert slow.rare.n_slow < 0.8 * len(slow_steps)
    assert slow.rare.n_slow_in_all == pytest.approx(len(slow_steps), rel=0.2)
    assert slow.rare.often == f"1 of {round(4000 / slow.rare.n_slow_in_all)} steps"
    assert slow.last_pct == pytest.approx(100 / 49, rel=0.2)
    assert slow.rare.in_all == f"{slow.rare.n_slow} seen, some {slow.rare.n_slow_in_all} in all"


def test_how_often_a_rank_is_slow_is_of_all_steps() -> None:
    """A recorded step tells where it was: else no rank is flagged."""
    world = World(3, own=True)
    reducer = begun(world)
    feed_together(reducer, messages_with_beats(world, waits, recorded=(14,)))
    slow = reducer.frame(START_NS + world.now_us * 1000).straggler
    assert slow is not None and slow.rare is not None
    assert (slow.rank, slow.place) == (0, "after_optimizer")
    assert (slow.rare.n_slow, slow.rare.n_steps) == (N_LONG + 1, STEPS)
