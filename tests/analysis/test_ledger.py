"""The ledger: every second of a rank is in one class, and what ranks waited is waited for somebody."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.ledger.rare import rare_straggler
from ddptop.analysis.ledger.recorded import MEASURES_ASIDE, VERSION
from ddptop.analysis.reducer import Reducer
from ddptop.frames.ledger import LEDGER_CLASSES, Ledger
from ddptop.frames.numbers import percent
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Activity, Event, Flag, Phase, Received, Run, Steps
from ddptop.recording.reader import Recording
from ddptop.sources.player import Player
from ddptop.training.shadow import next_recorded
from tests.made_up_run import NS, START_NS, World, feed_together

if TYPE_CHECKING:
    from ddptop.analysis.ledger.step_times import AsidePlace
    from ddptop.frames.columns import Column, Indices

RECORDINGS = sorted((Path(__file__).parents[1] / "recording").glob("*/*.ddptop"))


HEAVY_SERIES = 60
"""Runs without a fault, of which few may be flagged."""


def run_world(world: World, reducer: Reducer, steps: int) -> None:
    feed_together(reducer, world.steps(steps))


def begun(world: World) -> Reducer:
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce()])
    return reducer


def ledger_of(world: World, reducer: Reducer) -> Ledger:
    ledger = reducer.frame(START_NS + world.now_us * 1000).ledger
    assert ledger is not None
    return ledger


def assert_adds_up(ledger: Ledger, life_s: float | None = None) -> None:
    """The classes of a rank are its life, those of all are ranks times the run, what was waited is waited for
    ranks, and no cost is above it."""
    by_class = np.array([ledger.seconds_of(name) for name in LEDGER_CLASSES])
    assert (by_class >= 0).all()
    np.testing.assert_allclose(by_class.sum(axis=0), ledger.ranks.elapsed_s, rtol=5e-3, atol=1e-6)
    np.testing.assert_allclose(ledger.ranks.elapsed_s, ledger.elapsed_s, rtol=5e-3, atol=1e-6)
    if life_s is not None:
        np.testing.assert_allclose(ledger.ranks.elapsed_s, life_s, rtol=5e-3)
    waiting_s = float(ledger.ranks.waiting_s.sum())
    assert ledger.run.rank_seconds == pytest.approx(waiting_s, rel=5e-3, abs=1e-6)
    for cost in (ledger.run, ledger.recent):
        listed_s = sum(waited.rank_seconds for waited in cost.waited_for)
        assert listed_s <= cost.rank_seconds * 1.000001
        if cost.lost_pct is not None:
            assert 0 <= cost.lost_pct <= 100
            assert sum(waited.share_pct for waited in cost.waited_for) <= cost.lost_pct + 1e-6
        if cost.low_pct is not None and cost.high_pct is not None and cost.lost_pct is not None:
            assert cost.low_pct <= cost.lost_pct <= cost.high_pct


@pytest.mark.parametrize("seed", range(8))
def test_classes_add_up_to_the_life_of_each_rank(seed: int) -> None:
    chance = random.Random(seed)
    size = chance.choice((2, 3, 4, 8))
    world = World(size, own=seed != 7, detail_every=chance.choice((1, 4)))
    world.no_last_gradient = {0} if seed == 6 else set()
    reducer = begun(world)
    phases = ("after_optimizer", "data", "other", "forward", "before_backward", "backward", "optimizer")
    for _ in range(12):
        ranks = chance.sample(range(size), chance.randint(0, 2))
        world.delays = {(rank, chance.choice(phases)): chance.randint(0, 400_000) for rank in ranks}
        world.gc_us = {rank: us // 2 for (rank, _), us in world.delays.items()}
        run_world(world, reducer, chance.randint(1, 9))
        if chance.random() < 0.5:
            ledger_of(world, reducer)  # when a frame is made changes nothing
    assert_adds_up(ledger_of(world, reducer), world.now_us / 1e6)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_classes_add_up_in_every_recording(path: Path) -> None:
    with Recording.open(path) as recording:
        player = Player(recording)
        for share in (0.3, 1.0):
            span_ns = recording.end_ns - recording.start_ns
            player.go_to(recording.start_ns + int(share * span_ns))
            frame = player.make_frame()
            assert (frame.ledger is None) == (not frame.ranks.state)
            if frame.ledger is not None:
                assert_adds_up(frame.ledger)


def test_what_is_rare_and_dear_has_its_true_cost() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    for _ in range(2):
        run_world(world, reducer, 199)
        world.delays = {(0, "after_optimizer"): 6_000_000}
        run_world(world, reducer, 1)
        world.delays = {}
    ledger = ledger_of(world, reducer)
    first, *_ = ledger.run.waited_for
    assert (first.rank, first.place) == (0, "after_optimizer")
    assert first.rank_seconds == pytest.approx(24.0, rel=0.03)
    assert first.share_pct == pytest.approx(100 * 24 / (3 * world.now_us / 1e6), rel=0.03)
    assert first.dear_steps == (199, 399)
    assert first.n_dear == 2
    assert first.dear_s == pytest.approx(6.0, rel=0.03)
    assert ledger.ranks.between_s[0] == pytest.approx(12.0, rel=0.03)


def test_what_is_waited_in_a_first_step_is_known_of_its_buckets() -> None:
    """DDP tells the last gradient from the second step on."""
    world = World(2, own=True, no_last_gradient={0, 1}, delays={(0, "forward"): 2_000_000})
    reducer = begun(world)
    run_world(world, reducer, 1)
    world.no_last_gradient, world.delays = set(), {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.waiting_s[1] == pytest.approx(2.0, rel=0.01)
    assert_adds_up(ledger, world.now_us / 1e6)


@pytest.mark.parametrize("kept_every", [1, 8])
def test_a_frame_where_steps_are_missing_changes_no_sum(kept_every: int) -> None:
    """They were lost, or left out of a recording that was thinned."""

    def ledger(*, with_frame: bool) -> Ledger:
        world = World(2, own=True)
        reducer = begun(world)
        reducer.state.missing.kept_every = kept_every
        for _ in range(4):
            run_world(world, reducer, 8)
            for _ in range(7):
                world.rows()
            if with_frame:
                ledger_of(world, reducer)
        run_world(world, reducer, 8)
        return ledger_of(world, reducer)

    once, often = ledger(with_frame=False), ledger(with_frame=True)
    for name in LEDGER_CLASSES:
        np.testing.assert_allclose(often.seconds_of(name), once.seconds_of(name), atol=1e-9)
    assert often.recent == once.recent and often.run == once.run


def test_frames_between_steps_change_no_sum() -> None:
    def of(every: int) -> Ledger:
        world = World(3, own=True)
        reducer = begun(world)
        for step in range(150):
            world.delays = {(1, "data"): 300_000} if step % 20 == 7 else {}
            run_world(world, reducer, 1)
            if step % every == 0:
                ledger_of(world, reducer)
        return ledger_of(world, reducer)

    often, seldom = of(1), of(149)
    for cost, other in ((often.run, seldom.run), (often.recent, seldom.recent)):
        assert cost.rank_seconds == pytest.approx(other.rank_seconds)
        assert cost.lost_pct == pytest.approx(other.lost_pct)
        for waited, same in zip(cost.waited_for, other.waited_for, strict=True):
            assert (waited.rank, waited.place, waited.steps) == (same.rank, same.place, same.steps)
            assert (waited.longest_step, waited.dear_steps) == (same.longest_step, same.dear_steps)
    for name in LEDGER_CLASSES:
        np.testing.assert_allclose(often.seconds_of(name), seldom.seconds_of(name), atol=1e-9)


def test_garbage_collection_is_a_class_and_a_place() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    for step in range(60):
        slow = step % 20 == 10
        world.delays = {(0, "forward"): 250_000} if slow else {}
        world.gc_us = {0: 246_000} if slow else {}
        run_world(world, reducer, 1)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.gc_s[0] == pytest.approx(3 * 0.246, rel=0.01)
    assert (ledger.run.waited_for[0].rank, ledger.run.waited_for[0].place) == (0, "gc")


def test_waits_in_collectives_of_the_script_are_for_the_last_rank() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    run_world(world, reducer, 20)
    # Rank 2 is 5 s late to a barrier, in which it is 1 ms itself.
    world.delays = {(0, "other"): 5_001_000, (1, "other"): 5_001_000, (2, "other"): 5_001_000}
    world.waited = {(0, "other"): 5_001_000, (1, "other"): 5_001_000, (2, "other"): 1_000}
    run_world(world, reducer, 1)
    ledger = ledger_of(world, reducer)
    first = ledger.run.waited_for[0]
    assert (first.rank, first.place) == (2, "before_forward")
    assert first.rank_seconds == pytest.approx(10.0, rel=0.01)
    assert_adds_up(ledger, world.now_us / 1e6)


def shadowed(message: Received) -> Received:
    assert isinstance(message.message, Steps)
    (row,) = message.message.rows
    aside = row._replace(
        flags=int(Flag.SHADOW), data_us=0, forward_us=0, backward_us=0, optimizer_us=0, cells=()
    )
    return message._replace(message=Steps(0, message.message.first_step, message.message.base_ns, (aside,)))


def test_steps_without_phases_count_as_recorded_ones() -> None:
    world = World(2, own=True, delays={(1, "forward"): 10_000})
    reducer = begun(world)
    run_world(world, reducer, 1)
    for step in range(100):
        for message in world.steps(1):
            reducer.feed(shadowed(message) if step % 2 else message)
    ledger = ledger_of(world, reducer)
    assert ledger.run.rank_seconds == pytest.approx(101 * 0.010, rel=0.02)
    assert ledger.scaled_s == pytest.approx(ledger.total_s / 2, rel=0.02)
    assert_adds_up(ledger, world.now_us / 1e6)


@pytest.mark.parametrize("says", [{"phase": int(Phase.EVALUATE)}, {"activity": int(Activity.EVALUATE)}])
def test_evaluations_have_a_class_and_are_a_place(says: dict[str, int]) -> None:
    world = World(2, own=True)
    reducer = begun(world)
    run_world(world, reducer, 20)
    world.delays = {(0, "after_optimizer"): 8_000_000}
    for second in (1, 3, 5, 7):
        at_us = world.now_us + second * 1_000_000
        reducer.feed(world.progress(0, at_us, **says))
    run_world(world, reducer, 1)
    world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.evaluation_s[0] == pytest.approx(8.0, rel=0.01)
    assert ledger.ranks.evaluation_s[1] == 0
    assert (ledger.run.waited_for[0].rank, ledger.run.waited_for[0].place) == (0, "evaluation")
    assert_adds_up(ledger, world.now_us / 1e6)


def evaluated(world: World, rank: int, at_us: int, us: int, data_us: int = 0) -> Received:
    """The event of a rank that has evaluated for so long until `at_us`."""
    fields = {"ns": us * 1000, "data_ns": data_us * 1000}
    event = Event("evaluated", world.host_ns("node0", at_us), rank, world.step, fields)
    return world.received(rank, event, at_us)


def with_measured(world: World, version: int = MEASURES_ASIDE) -> Reducer:
    reducer = Reducer()
    settings = world.event("settings", ledger=version)
    feed_together(reducer, [world.run(), settings, *world.introduce()])
    return reducer


@pytest.mark.parametrize("pause", ["after_optimizer", "data"])
@pytest.mark.parametrize("seen", [True, False])
def test_the_pause_beside_an_evaluation_is_no_evaluation(seen: bool, pause: str) -> None:
    """Also where heartbeats say during the pause that the rank evaluates."""
    world = World(2, own=True)
    reducer = with_measured(world)
    for _ in range(2):
        run_world(world, reducer, 20)
        world.delays = {(rank, "after_optimizer"): 200_000 for rank in (0, 1)}
        world.delays |= {(rank, "data"): 100_000 for rank in (0, 1)}
        world.delays[0, pause] += 2_000_000
        for rank in (0, 1):
            for at_us in (100_000, 600_000, 1_100_000):
                beat = world.progress(rank, world.now_us + at_us, activity=int(Activity.EVALUATE))
                reducer.feed(beat)
            reducer.feed(evaluated(world, rank, world.now_us + 300_000, 300_000, 100_000))
        for message in world.steps(1):
            reducer.feed(message if seen else shadowed(message))
        world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.evaluation_s.tolist() == pytest.approx([0.6, 0.6], rel=0.01)
    assert_adds_up(ledger, world.now_us / 1e6)
    if seen:
        place = "between" if pause == "after_optimizer" else "data"
        assert ledger.seconds_of(place)[0] - ledger.seconds_of(place)[1] == pytest.approx(4.0, rel=0.01)
        first = ledger.run.waited_for[0]
        assert (first.rank, first.place) == (0, pause), "both have evaluated"


def test_the_rank_that_evaluates_or_saves_longer_is_waited_for_in_that() -> None:
    world = World(2, own=True)
    reducer = with_measured(world)
    for _ in range(2):
        run_world(world, reducer, 20)
        world.delays = {(0, "after_optimizer"): 2_300_000, (1, "after_optimizer"): 1_000_000}
        reducer.feed(evaluated(world, 0, world.now_us + 1_900_000, 1_900_000))
        reducer.feed(saved(world, 0, world.now_us + 1_500_000, 300_000))  # within the evaluation
        reducer.feed(evaluated(world, 1, world.now_us + 900_000, 900_000))
        run_world(world, reducer, 1)
        world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.evaluation_s.tolist() == pytest.approx([3.2, 1.8], rel=0.01)
    assert ledger.ranks.saving_s.tolist() == pytest.approx([0.6, 0], rel=0.01)
    assert (ledger.run.waited_for[0].rank, ledger.run.waited_for[0].place) == (0, "evaluation")
    assert_adds_up(ledger, world.now_us / 1e6)


def test_an_evaluation_within_a_declared_phase_is_one() -> None:
    world = World(2, own=True)
    reducer = with_measured(world)
    run_world(world, reducer, 20)
    world.delays = {(0, "after_optimizer"): 3_000_000}
    for at_us, kind in ((500_000, "phase_begins"), (2_500_000, "phase_ends")):
        event = Event(kind, world.host_ns("node0", world.now_us + at_us), 0, world.step, {"name": "x"})
        reducer.feed(world.received(0, event, world.now_us + at_us))
    reducer.feed(evaluated(world, 0, world.now_us + 2_000_000, 500_000))
    run_world(world, reducer, 1)
    world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.evaluation_s[0] == pytest.approx(0.5, rel=0.01)
    assert ledger.ranks.phase_s[0] == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize(("version", "evaluates_s"), [(VERSION, 5.0), (MEASURES_ASIDE, 0.0)])
def test_an_evaluation_after_the_last_step_is_one(version: int, evaluates_s: float) -> None:
    """A recording that was begun before shows what it showed. The pause beside it stays the end."""
    world = World(2, own=True)
    reducer = with_measured(world, version)
    run_world(world, reducer, 20)
    last_us = world.now_us
    for tenth in range(10, 61, 5):
        beat = world.progress(0, last_us + tenth * 100_000, activity=int(Activity.EVALUATE))
        reducer.feed(beat)
    reducer.feed(saved(world, 1, last_us + 3_000_000, 2_000_000))
    world.now_us = last_us + 8_000_000
    feed_together(reducer, [*(world.bye(rank) for rank in range(2)), world.run("finished", 0)])
    ranks = ledger_of(world, reducer).ranks
    assert ranks.evaluation_s.tolist() == pytest.approx([evaluates_s, 0.0], abs=0.01)
    saves_s = 2.0 if version == VERSION else 0.0
    assert ranks.saving_s.tolist() == pytest.approx([0.0, saves_s], abs=0.01)
    assert ranks.end_s.tolist() == pytest.approx([8.0 - evaluates_s, 8.0 - saves_s], abs=0.01)
    assert_adds_up(ledger_of(world, reducer), world.now_us / 1e6)


@pytest.mark.parametrize("is_in_phase", [False, True])
def test_what_a_rank_does_within_an_evaluation_after_the_last_step_is_taken_from_it(
    is_in_phase: bool,
) -> None:
    """No time is in two classes, and none of the evaluation is lost."""
    world = World(2, own=True)
    reducer = with_measured(world, VERSION)
    run_world(world, reducer, 20)
    last_us = world.now_us
    if is_in_phase:
        for at_us, kind in ((500_000, "phase_begins"), (7_000_000, "phase_ends")):
            fields = {"name": "x"}
            event = Event(kind, world.host_ns("node0", last_us + at_us), 0, world.step, fields)
            reducer.feed(world.received(0, event, last_us + at_us))
    for tenth in range(10, 61, 5):
        beat = world.progress(0, last_us + tenth * 100_000, activity=int(Activity.EVALUATE))
        reducer.feed(beat)
    reducer.feed(compiled(world, 0, last_us + 2_000_000, 400_000, Phase.OTHER))
    reducer.feed(saved(world, 0, last_us + 3_000_000, 30_000))
    world.now_us = last_us + 8_000_000
    feed_together(reducer, [*(world.bye(rank) for rank in range(2)), world.run("finished", 0)])
    ranks = ledger_of(world, reducer).ranks
    phase_s = 1.5 if is_in_phase else 0.0
    assert ranks.evaluation_s.tolist() == pytest.approx([4.57, 0.0], abs=0.01)
    assert ranks.compiling_s.tolist() == pytest.approx([0.4, 0.0], abs=0.01)
    assert ranks.saving_s.tolist() == pytest.approx([0.03, 0.0], abs=0.01)
    assert ranks.phase_s.tolist() == pytest.approx([phase_s, 0.0], abs=0.01)
    assert ranks.end_s.tolist() == pytest.approx([3.0 - phase_s, 8.0], abs=0.01)
    assert_adds_up(ledger_of(world, reducer), world.now_us / 1e6)


def test_between_steps_no_frame_looks_at_what_comes_after_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(2, own=True)
    reducer = with_measured(world, VERSION)
    run_world(world, reducer, 20)
    asked: list[int] = []
    ledger = reducer.state.ledger
    divide = ledger.aside_after_last_step

    def note_ranks(ranks: Indices) -> dict[AsidePlace, Column]:
        asked.extend(ranks.tolist())
        return divide(ranks)

    monkeypatch.setattr(ledger, "aside_after_last_step", note_ranks)
    reducer.feed(saved(world, 0, world.now_us + 1_000_000, 500_000))
    world.now_us += 2_000_000
    ledger_of(world, reducer)
    assert asked == []
    reducer.feed(world.bye(1))
    ledger_of(world, reducer)
    assert asked == [1]


def test_of_an_evaluation_without_batches_heartbeats_tell_the_length() -> None:
    world = World(2, own=True)
    reducer = with_measured(world)
    run_world(world, reducer, 20)
    world.delays = {(0, "after_optimizer"): 8_000_000}
    for tenth in range(10, 61, 5):
        at_us = world.now_us + tenth * 100_000
        reducer.feed(world.progress(0, at_us, activity=int(Activity.EVALUATE)))
    run_world(world, reducer, 1)
    world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.evaluation_s[0] == pytest.approx(5.0, rel=0.01)
    assert (ledger.run.waited_for[0].rank, ledger.run.waited_for[0].place) == (0, "evaluation")
    assert_adds_up(ledger, world.now_us / 1e6)


def compiled(
    world: World,
    rank: int,
    at_us: int,
    us: int,
    phase: Phase,
    times: int = 1,
    what: str = "forward (model.py:3)",
) -> Received:
    """The event of a rank that has waited for torch.compile for so long until `at_us`."""
    fields = {"ns": us * 1000, "phase": int(phase), "what": what, "times": times}
    event = Event("compiled", world.host_ns("node0", at_us), rank, world.step, fields)
    return world.received(rank, event, at_us)


@pytest.mark.parametrize("place", ["forward", "after_optimizer", "backward"])
@pytest.mark.parametrize("seen", [True, False])
def test_compiling_again_is_a_class_and_a_place(place: str, seen: bool) -> None:
    """Beside a pause of all ranks, and within an evaluation."""
    phase = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD}.get(place, Phase.OTHER)
    world = World(2, own=True)
    reducer = with_measured(world)
    # What the first step compiles is the start.
    reducer.feed(compiled(world, 0, world.now_us + 1000, 1000, Phase.FORWARD, 0))
    for _ in range(2):
        run_world(world, reducer, 20)
        world.delays = {(rank, "data"): 500_000 for rank in (0, 1)}
        world.delays[0, place] = 2_000_000
        reducer.feed(compiled(world, 0, world.now_us + 1_900_000, 1_800_000, phase))
        if phase is Phase.OTHER:
            reducer.feed(evaluated(world, 0, world.now_us + 2_000_000, 1_950_000))
        for message in world.steps(1):
            reducer.feed(message if seen else shadowed(message))
        world.delays = {}
    run_world(world, reducer, 20)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.compiling_s.tolist() == pytest.approx([3.6, 0], rel=0.01)
    if phase is Phase.OTHER:
        assert ledger.ranks.evaluation_s.tolist() == pytest.approx([0.3, 0], rel=0.05)
    if seen:
        first = ledger.run.waited_for[0]
        assert (first.rank, first.place) == (0, "compiling")
    assert_adds_up(ledger, world.now_us / 1e6)


def test_of_a_phase_that_nobody_knows_compilation_is_taken_from_outside_the_phases() -> None:
    """A later version may have more phases, and recorded sums may hold any number."""
    world = World(2, own=True)
    reducer = with_measured(world)
    run_world(world, reducer, 20)
    world.delays = {(0, "after_optimizer"): 2_000_000}
    reducer.feed(compiled(world, 0, world.now_us + 1_900_000, 1_800_000, 77))
    run_world(world, reducer, 1)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.compiling_s.tolist() == pytest.approx([1.8, 0], rel=0.01)
    assert_adds_up(ledger, world.now_us / 1e6)


def test_a_rank_that_compiles_again_is_flagged_for_it_and_the_log_says_when() -> None:
    world = World(3, own=True)
    reducer = with_measured(world)
    for step in range(130):
        again = step % 50 == 49
        world.delays = {(0, "forward"): 6_000_000} if again else {}
        if again:
            reducer.feed(compiled(world, 0, world.now_us + 5_900_000, 5_800_000, Phase.FORWARD))
            reducer.feed(compiled(world, 0, world.now_us + 5_950_000, 50_000, Phase.BACKWARD, 1, "backward"))
        run_world(world, reducer, 1)
    found = straggler_after(world, reducer)
    assert found is not None and (found.rank, found.pattern, found.place) == (0, "rare", "compiling")
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert "6.0 s in torch.compile" in verdict(frame).sentence, verdict(frame).sentence
    logged = [event.message for event in frame.events if event.kind == "compiling"]
    assert logged == [f"rank 0 compiled again in step {step}: forward (model.py:3)" for step in (49, 99)]


def saved(world: World, rank: int, at_us: int, us: int) -> Received:
    """The event of a rank that has saved for so long until `at_us`."""
    event = Event("saved", world.host_ns("node0", at_us), rank, world.step, {"ns": us * 1000})
    return world.received(rank, event, at_us)


@pytest.mark.parametrize("seen", [True, False])
def test_saves_are_a_class_and_a_place(seen: bool) -> None:
    """Also within a declared phase, of which the rest is one, and in a step without phases."""
    world = World(2, own=True)
    reducer = begun(world)
    run_world(world, reducer, 40)
    for _ in range(2):
        world.delays = {(0, "after_optimizer"): 4_000_000}
        begin_us = world.now_us
        for at_us, kind in ((500_000, "phase_begins"), (3_500_000, "phase_ends")):
            event = Event(kind, world.host_ns("node0", begin_us + at_us), 0, world.step, {"name": "save"})
            reducer.feed(world.received(0, event, begin_us + at_us))
        reducer.feed(saved(world, 0, begin_us + 2_000_000, 700_000))
        reducer.feed(saved(world, 0, begin_us + 3_000_000, 900_000))
        for message in world.steps(1):
            reducer.feed(message if seen else shadowed(message))
        world.delays = {}
        run_world(world, reducer, 40)
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.saving_s.tolist() == pytest.approx([2 * 1.6, 0.0], rel=1e-3)
    assert ledger.ranks.phase_s.tolist() == pytest.approx([2 * 1.4, 0.0], rel=1e-3)
    if seen:
        first = ledger.run.waited_for[0]
        assert (first.rank, first.place, first.n_dear) == (0, "phase", 2), "saves were less than half of it"
    assert_adds_up(ledger, world.now_us / 1e6)


def test_a_rank_that_saves_now_and_then_is_flagged_for_it() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    for step in range(130):
        saves = step % 50 == 49
        world.delays = {(0, "after_optimizer"): 6_000_000} if saves else {}
        if saves:
            reducer.feed(saved(world, 0, world.now_us + 5_900_000, 5_800_000))
        run_world(world, reducer, 1)
    found = straggler_after(world, reducer)
    assert found is not None and (found.rank, found.pattern, found.place) == (0, "rare", "saving")
    ledger = ledger_of(world, reducer)
    assert (ledger.run.waited_for[0].rank, ledger.run.waited_for[0].place) == (0, "saving")
    assert ledger.ranks.saving_s.tolist() == pytest.approx([2 * 5.8, 0.0, 0.0], rel=1e-3)
    sentence = verdict(reducer.frame(START_NS + world.now_us * 1000)).sentence
    assert "6.0 s saving checkpoints" in sentence, sentence
    reducer.feed(world.progress(0, world.now_us + 2_000_000, activity=int(Activity.SAVE)))
    world.now_us += 3_000_000
    assert ledger_of(world, reducer).ranks.saving_s[0] == pytest.approx(2 * 5.8 + 3.0, rel=0.02)


def with_flag(message: Received, flag: Flag) -> Received:
    assert isinstance(message.message, Steps)
    rows = tuple(row._replace(flags=row.flags | int(flag)) for row in message.message.rows)
    return message._replace(message=Steps(0, message.message.first_step, message.message.base_ns, rows))


def test_the_first_batch_of_an_epoch_is_a_class_and_a_place() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    for step in range(80):
        begins = step % 20 == 0
        world.delays = {(0, "data"): 3_000_000, (1, "data"): 1_000_000} if begins else {}
        for message in world.steps(1):
            reducer.feed(with_flag(message, Flag.FIRST_BATCH) if begins else message)
    ledger = ledger_of(world, reducer)
    # That of the first step is the start; each has the 1 ms that every batch takes.
    np.testing.assert_allclose(ledger.ranks.first_batch_s, [3 * 3.001, 3 * 1.001], rtol=1e-3)
    np.testing.assert_allclose(ledger.ranks.data_s, 76 * 0.001, rtol=0.01)
    first = ledger.run.waited_for[0]
    assert (first.rank, first.place) == (0, "first_batch")
    assert first.dear_steps == (20, 40, 60)
    found = straggler_after(world, reducer)
    assert found is not None and (found.rank, found.pattern, found.place) == (0, "rare", "first_batch")
    assert "in the first batch of an epoch" in verdict(reducer.frame(START_NS + world.now_us * 1000)).sentence
    assert_adds_up(ledger, world.now_us / 1e6)


def test_noise_beside_what_is_dear_does_not_dilute_it() -> None:
    """The same rank and place is now and then slow by accident, as on a busy machine."""
    world = World(2, own=True)
    reducer = begun(world)
    for step in range(200):
        dear, accident = step % 50 == 40, step % 9 == 5
        world.delays = {(0, "after_optimizer"): 4_000_000 if dear else 40_000 if accident else 0}
        run_world(world, reducer, 1)
    found = straggler_after(world, reducer)
    assert found is not None and found.rare is not None
    assert (found.rare.n_slow, found.rare.steps) == (4, (40, 90, 140, 190))
    assert found.lateness_ms == pytest.approx(4000, rel=0.01)


def test_two_waits_for_a_rank_in_one_step_are_one_dear_step() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    for step in range(60):
        slow = step in (20, 40)
        world.delays = {(0, "forward"): 1_500_000, (1, "other"): 500_000} if slow else {}
        # Rank 1 waits for rank 0 in a collective of the script's own, and again in backward.
        world.waited = {(1, "other"): 500_000} if slow else {}
        run_world(world, reducer, 1)
    ledger = ledger_of(world, reducer)
    dear = [waited for waited in ledger.run.waited_for if waited.n_dear]
    assert dear
    assert all(len({*waited.dear_steps}) == len(waited.dear_steps) == waited.n_dear for waited in dear)


def test_time_before_the_first_step_and_after_the_last_one() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    frame = reducer.frame(START_NS + 3 * NS)
    assert frame.ledger is not None
    np.testing.assert_allclose(frame.ledger.ranks.start_s, 3.0)
    assert frame.ledger.run.lost_pct is None
    run_world(world, reducer, 10)
    end_us = world.now_us
    world.now_us += 5_000_000
    for rank in range(2):
        reducer.feed(world.bye(rank))
    world.now_us += 1_000_000
    reducer.feed(world.run("finished", 0))
    ledger = ledger_of(world, reducer)
    # A process that has ended is kept for the run until that ends.
    np.testing.assert_allclose(ledger.ranks.end_s, 6.0, atol=0.002)
    np.testing.assert_allclose(ledger.ranks.elapsed_s, end_us / 1e6 + 6.0, atol=0.002)
    assert_adds_up(ledger)


def test_time_after_the_recording_stopped_is_not_known() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    run_world(world, reducer, 10)
    reducer.feed(world.event("recording", message="recording stopped at step 9: the disk is full"))
    world.now_us += 5_000_000
    for rank in range(2):
        reducer.feed(world.event("unrecorded", rank, rows=500, steps=510))
        reducer.feed(world.bye(rank))
    reducer.feed(world.run("finished", 0))
    ledger = ledger_of(world, reducer)
    np.testing.assert_allclose(ledger.ranks.unknown_s, 5.0, atol=0.002)
    np.testing.assert_allclose(ledger.ranks.end_s, 0.0, atol=0.002)
    assert_adds_up(ledger)


def test_steps_that_began_before_the_first_message_are_no_more_than_the_run() -> None:
    """The collector was late: the run is what it has seen."""
    world, late_ns = World(2, own=True), 300_000_000
    reducer = Reducer()
    first = world.run()
    assert isinstance(first.message, Run)
    run = replace(
        first.message,
        unix_ns=first.message.unix_ns + late_ns,
        monotonic_ns=first.message.monotonic_ns + late_ns,
    )
    messages = [first._replace(message=run), *world.introduce(), *world.steps(50)]
    feed_together(reducer, [message._replace(t_ns=message.t_ns + late_ns) for message in messages])
    world.now_us += late_ns // 1000
    ledger = ledger_of(world, reducer)
    assert ledger.ranks.start_s.max() < 0.05
    assert_adds_up(ledger)


def test_a_restart_is_a_class_and_the_sums_go_on() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    run_world(world, reducer, 30)
    before = ledger_of(world, reducer)
    world.session_base, world.incarnation, world.step = 300, 1, 0
    world.now_us += 20 * 1_000_000
    world.begin_us = [world.now_us] * 2
    feed_together(reducer, world.introduce())
    run_world(world, reducer, 30)
    after = ledger_of(world, reducer)
    np.testing.assert_allclose(after.ranks.restart_s, 20.0, atol=0.05)
    assert after.run.steps == 60
    assert (after.ranks.forward_s > before.ranks.forward_s * 1.9).all()
    assert_adds_up(after, world.now_us / 1e6)


def test_lost_steps_are_not_known() -> None:
    world = World(2, own=True)
    reducer = begun(world)
    for step in range(40):
        for received in world.steps(1):
            if not (received.rank == 1 and 10 <= step < 20):
                reducer.feed(received)
    ledger = ledger_of(world, reducer)
    np.testing.assert_allclose(ledger.ranks.unknown_s, 10 * world.now_us / 40 / 1e6, rtol=0.05)
    assert_adds_up(ledger, world.now_us / 1e6)


def straggler_after(world: World, reducer: Reducer):
    return reducer.frame(START_NS + world.now_us * 1000).straggler


@pytest.mark.parametrize("every", [20, 200, 1000])
def test_a_rare_and_dear_step_is_flagged_the_second_time(every: int) -> None:
    world = World(3, own=True)
    reducer = begun(world)
    for _ in range(2):
        run_world(world, reducer, every - 1)
        assert straggler_after(world, reducer) is None
        world.delays = {(0, "after_optimizer"): 6_000_000}
        run_world(world, reducer, 1)
        world.delays = {}
    found = straggler_after(world, reducer)
    assert found is not None and found.rare is not None
    assert (found.rank, found.pattern, found.place) == (0, "rare", "after_optimizer")
    assert found.rare.steps == (every - 1, 2 * every - 1)
    assert found.rare.often == f"1 of {every:,} steps"
    assert found.lateness_ms == pytest.approx(6000, rel=0.01)
    assert found.cost_pct == pytest.approx(100 * 12 / (world.now_us / 1e6), rel=0.03)
    frame = reducer.frame(START_NS + world.now_us * 1000)
    said = verdict(frame)
    cost = f"costs {percent(found.cost_pct)} of step time"
    assert said.sentence == f"rank 0 is slow in 1 of {every:,} steps: 6.0 s after the optimizer · {cost}"
    assert said.detail.startswith(f"steps {every - 1:,} and {2 * every - 1:,} · ")
    (alert,) = [alert for alert in frame.alerts if alert.kind == "straggler"]
    assert alert.message == said.sentence
    assert (alert.rank, alert.step) == (0, 2 * every - 1)


def test_how_often_a_rank_is_slow_is_known_of_recorded_steps_alone() -> None:
    """Every 256th step is slow, and of four blocks of 16 steps one is recorded."""
    world = World(3, own=True)
    reducer = begun(world)

    def delay_rank_0() -> None:
        world.delays = {(0, "after_optimizer"): 6_000_000} if world.step % 256 == 250 else {}

    def seen(message: Received) -> Received:
        assert isinstance(message.message, Steps)
        step = message.message.first_step
        return message if next_recorded(step, 4) <= step else shadowed(message)

    feed_together(reducer, map(seen, world.steps(16 * 256, before_step=delay_rank_0)))
    found = straggler_after(world, reducer)
    assert found is not None and found.rare is not None
    assert found.rare.n_slow == 4
    assert found.rare.n_steps == pytest.approx(1024, rel=0.02)
    assert found.last_pct == pytest.approx(100 / 256, rel=0.02)
    assert ledger_of(world, reducer).run.steps == 4096


def test_a_step_of_ten_seconds_is_flagged_at_once() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    run_world(world, reducer, 100)
    world.delays = {(2, "data"): 12_000_000}
    run_world(world, reducer, 1)
    found = straggler_after(world, reducer)
    assert found is not None
    assert (found.rank, found.pattern, found.cause) == (2, "rare", "data")


def test_short_pauses_far_outside_the_noise_are_flagged_the_second_time() -> None:
    """A rank takes 0.4 s more every 50 steps; the kernel stops any rank for up to 60 ms."""
    chance = random.Random(2)
    world = World(3, own=True)
    reducer = begun(world)
    flagged_after = []
    for step in range(130):
        slow, stops = step % 50 == 40, chance.random() < 0.05
        world.delays = {(chance.randrange(3), "forward"): chance.randrange(60_000) if stops else 0}
        if slow:
            world.delays[1, "after_optimizer"] = 400_000
        run_world(world, reducer, 1)
        found = straggler_after(world, reducer)
        if found is not None and found.pattern == "rare":
            assert (found.rank, found.place) == (1, "after_optimizer")
            flagged_after.append(step)
    assert flagged_after[0] in (90, 91), "others wait in the step behind the second one"
    (logged,) = rare_events_of(reducer, world)
    assert "400 ms after the optimizer" in logged and flagged_after[0] == int(logged[-3:-1])


def test_short_stops_of_all_ranks_do_not_hide_pauses_that_are_longer() -> None:
    """A rank takes 0.3 s more every 40 steps; the kernel often stops any rank for up to 120 ms."""
    chance = random.Random(4)
    world = World(3, own=True)
    reducer = with_measured(world, VERSION)

    def stop_a_rank() -> None:
        stops_us = chance.randrange(90_000, 120_000) if chance.random() < 0.25 else 0
        world.delays = {(chance.randrange(3), "forward"): stops_us}
        if world.step % 40 == 39:
            world.delays[1, "after_optimizer"] = 300_000

    feed_together(reducer, world.steps(400, before_step=stop_a_rank))
    ledger = ledger_of(world, reducer)
    pauses = next(row for row in ledger.run.waited_for if row.place == "after_optimizer")
    assert (pauses.rank, pauses.n_dear, pauses.is_main) == (1, 10, True)
    dear_s = sum(row.dear_rank_seconds for row in ledger.run.waited_for)
    assert pauses.dear_rank_seconds < 0.5 * dear_s, "most is waited in short stops"
    found = rare_straggler(ledger)
    assert found is not None and (found.rank, found.place) == (1, "after_optimizer")
    assert len(rare_events_of(reducer, world)) == 1


@pytest.mark.slow
def test_stops_of_any_rank_with_a_heavy_tail_are_seldom_flagged() -> None:
    """Series of 300 steps without a fault, each with a seed of its own; a few of the stops cost the most."""
    n_flagged = n_logged = 0
    for seed in range(HEAVY_SERIES):
        chance = random.Random(seed)
        world = World(2, own=True)
        reducer = with_measured(world, VERSION)

        def stop_a_rank(world: World = world, chance: random.Random = chance) -> None:
            stops_us = int(40_000 * chance.paretovariate(1.3)) if chance.random() < 0.1 else 0
            world.delays = {(chance.randrange(2), "forward"): stops_us}

        feed_together(reducer, world.steps(300, before_step=stop_a_rank))
        n_flagged += rare_straggler(ledger_of(world, reducer)) is not None
        n_logged += bool(rare_events_of(reducer, world))
    assert n_flagged <= 0.2 * HEAVY_SERIES
    assert n_logged <= 0.3 * HEAVY_SERIES


@pytest.mark.parametrize(
    "noise_us", [(100_000, 400_000), pytest.param((300_000, 320_000), marks=pytest.mark.slow)]
)
def test_two_pauses_within_the_noise_are_not_flagged(noise_us: tuple[int, int]) -> None:
    """Of very different length, or no longer than another rank's."""
    world = World(3, own=True)
    reducer = begun(world)
    for step in range(130):
        world.delays = {}
        if step in (40, 90):
            world.delays = {(1, "after_optimizer"): noise_us[step == 90]}
        if step == 60 and noise_us[0] > 200_000:
            world.delays = {(2, "forward"): 100_000}
        run_world(world, reducer, 1)
        found = straggler_after(world, reducer)
        assert found is None or found.pattern != "rare"
    assert not rare_events_of(reducer, world)


def rare_events_of(reducer: Reducer, world: World) -> list[str]:
    frame = reducer.frame(START_NS + world.now_us * 1000)
    return [event.message for event in frame.events if "became slow in few steps" in event.message]


@pytest.mark.parametrize(("version", "n_dear"), [(VERSION, 10), (MEASURES_ASIDE, 20)])
def test_waits_for_a_rank_and_for_others_count_from_the_same_length_on(version: int, n_dear: int) -> None:
    """A quarter as long as the dearest: neither those for the rank count nor those for another one. A
    recording that was begun before shows what it showed."""
    world = World(3, own=True)
    reducer = with_measured(world, version)

    def delay_ranks() -> None:
        pauses = {10: (1, 400_000), 20: (1, 100_000), 30: (2, 100_000)}
        rank, pause_us = pauses.get(world.step % 40, (0, 0))
        world.delays = {(rank, "after_optimizer"): pause_us}

    feed_together(reducer, world.steps(400, before_step=delay_ranks))
    pauses = next(row for row in ledger_of(world, reducer).run.waited_for if row.rank == 1)
    assert (pauses.n_dear, pauses.is_main) == (n_dear, True)
    assert pauses.dear_s == pytest.approx(0.4 if n_dear == 10 else 0.25, rel=0.03)


def test_short_stops_of_any_rank_are_not_flagged() -> None:
    chance = random.Random(1)
    world = World(4, own=True)
    reducer = begun(world)

    def stop_a_rank() -> None:
        world.delays = {(chance.randrange(4), "forward"): 60_000} if chance.random() < 0.03 else {}

    feed_together(reducer, world.steps(600, before_step=stop_a_rank))
    found = straggler_after(world, reducer)
    assert found is None or found.pattern != "rare"


def test_what_is_dear_is_not_hidden_by_what_is_small() -> None:
    world = World(2, own=True)
    reducer = begun(world)

    def delay_rank_0() -> None:
        dear = world.step % 25 == 24
        world.delays = {(0, "forward"): 246_000 if dear else 1_400}
        world.gc_us = {0: 246_000} if dear else {}

    feed_together(reducer, world.steps(400, before_step=delay_rank_0))
    found = straggler_after(world, reducer)
    assert found is not None
    assert (found.rank, found.pattern, found.cause) == (0, "rare", "gc")
    assert found.cost_pct > 30


def test_ranks_wait_within_their_process_group() -> None:
    world = World(4, own=True, groups=(((0, 1), (2, 3)), ((0, 1), (2, 3))))
    reducer = begun(world)
    for rank in range(4):
        reducer.feed(world.membership(rank, "g", *((0, 1) if rank < 2 else (2, 3))))
    world.delays = {(0, "forward"): 30_000, (3, "data"): 50_000}
    run_world(world, reducer, 40)
    ledger = ledger_of(world, reducer)
    waits = {(one.rank, one.place): one.rank_seconds for one in ledger.run.waited_for}
    assert waits[0, "forward"] == pytest.approx(40 * 0.030, rel=0.03)
    assert waits[3, "data"] == pytest.approx(40 * 0.050, rel=0.03)
    assert_adds_up(ledger)


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 7, 1000])
def test_the_log_says_when_rare_slowness_began_and_when_it_is_long_ago(every: int) -> None:
    """`every`: after how many steps they are evaluated. All ranks pause for longer than the last minutes."""
    world = World(3, own=True)
    reducer = begun(world)
    all_pause = {(rank, "after_optimizer"): 310_000_000 for rank in range(3)}
    delays = {
        40: {(0, "after_optimizer"): 6_000_000},
        80: {(0, "after_optimizer"): 4_000_000},
        120: all_pause,
    }
    for step in range(130):
        world.delays = delays.get(step, {})
        run_world(world, reducer, 1)
        if step % every == 0:
            ledger_of(world, reducer)
    ledger_of(world, reducer)
    events = [event for event in reducer.state.log.all() if event.kind.startswith("straggler")]
    assert [(event.kind, event.rank, event.step, event.message) for event in events] == [
        ("straggler", 0, 80, "rank 0 became slow in few steps: 5.0 s after the optimizer (step 80)"),
        ("straggler_end", 0, 120, "rank 0 is no longer slow in few steps: the last was step 80"),
    ]
    begin, end = events
    assert end.unix_s - begin.unix_s == pytest.approx(300.0)


def test_the_log_has_short_rare_slowness_long_after_something_dearer() -> None:
    """As the screen, which compares the last minutes with the last minutes."""
    world = World(3, own=True)
    reducer = begun(world)
    run_world(world, reducer, 40)
    world.delays = {(0, "after_optimizer"): 60_000_000}
    run_world(world, reducer, 1)
    world.delays = {(rank, "after_optimizer"): 310_000_000 for rank in range(3)}
    run_world(world, reducer, 1)
    for _ in range(12):
        world.delays = {}
        run_world(world, reducer, 39)
        world.delays = {(1, "after_optimizer"): 500_000}
        run_world(world, reducer, 1)
    ledger_of(world, reducer)
    assert straggler_after(world, reducer).rank == 1
    begun_by = [event.rank for event in reducer.state.log.all() if event.kind == "straggler"]
    assert begun_by == [0, 1]


@pytest.mark.parametrize("place", ["before_optimizer", "optimizer"])
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 1000])
def test_a_rank_that_is_slow_behind_backward_is_waited_for_in_the_next_step(place: str, every: int) -> None:
    """`every`: after how many steps they are evaluated."""
    world = World(3, own=True)
    reducer = begun(world)
    for step in range(100):
        world.delays = {(2, place): 3_000_000} if step in (40, 80) else {}
        run_world(world, reducer, 1)
        if step % every == 0:
            ledger_of(world, reducer)
    found = straggler_after(world, reducer)
    assert found is not None and found.rare is not None
    assert (found.rank, found.place or found.cause) == (2, place)
    assert found.rare.steps == (41, 81)
    first = ledger_of(world, reducer).run.waited_for[0]
    assert (first.rank, first.place) == (2, place)
    assert first.rank_seconds == pytest.approx(12.0, rel=0.01)
