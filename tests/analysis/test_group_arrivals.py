"""Who is late by the launches of collectives: which are compared, who is flagged, and what is said of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import Frame
from ddptop.frames.process_groups import ProcessGroupFigures
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.arrivals import Arrivals, CollectiveKind
from ddptop.protocol.messages import Card, Received
from ddptop.render.plain import draw_frame
from ddptop.report.html import html_page
from ddptop.report.text import text_page
from tests.made_up_run import START_NS, World, feed_together, report_from_messages

STEP_US, PER_STEP, STEPS = 50_000, 3, 80
END_NS = START_NS + STEPS * STEP_US * 1000
KINDS = (CollectiveKind("_allgather_base", 1000), CollectiveKind("reduce_scatter", 500))

Late = Callable[[int, int], float]
"""By rank and step: how many us later than planned a rank is at the first collective of a step."""


def no_delay(_rank: int, _step: int) -> float:
    return 0.0


def windows(
    ranks: Sequence[int],
    late: Late,
    *,
    steps: int = STEPS,
    group: str = "0",
    description: str = "default_pg",
    backend: str = "gloo",
    at_us: int = 5_000,
    whole: bool = True,
    window: int = 20,
    without: Sequence[int] = (),
) -> Iterator[tuple[int, Arrivals]]:
    """What each rank of a group reports of its collectives, in windows of so many steps.

    Of each step the ranks are late at the first collective, and meet in it. `without`: windows that the
    buffers have lost."""
    for begin in range(0, steps, window):
        for rank in ranks:
            launched_us: list[int] = []
            for step in range(begin, min(steps, begin + window)):
                first = step * STEP_US + at_us
                last = max(first + late(other, step) for other in ranks)
                launched_us.append(round(first + late(rank, step)))
                launched_us += [round(last + 2_000 * place) for place in range(1, PER_STEP)]
            if begin // window in without:
                continue
            count = len(launched_us)
            yield (
                rank,
                Arrivals(
                    t_ns=START_NS + (begin + window) * STEP_US * 1000,
                    group=group,
                    description=description,
                    backend=backend,
                    ranks=() if whole else tuple(ranks),
                    bound_ns=0,
                    first=begin * PER_STEP + 1,
                    base_ns=START_NS,
                    launched_us=tuple(launched_us),
                    first_step=begin,
                    steps=tuple(place // PER_STEP for place in range(count)),
                    kinds=KINDS,
                    of_kind=(0, 0, 1) * (count // PER_STEP),
                ),
            )


def frame_of(
    world: World, reported: Sequence[tuple[int, Arrivals]], *, training: str | None = "fsdp2"
) -> Frame:
    return reducer_of(world, reported, training).frame(END_NS)


def reducer_of(world: World, reported: Sequence[tuple[int, Arrivals]], training: str | None) -> Reducer:
    reducer = Reducer()
    feed_together(reducer, [world.run(), *introduced(world, training), *world.steps(STEPS)])
    for seq, (rank, message) in enumerate(sorted(reported, key=lambda told: told[1].t_ns)):
        reducer.feed(Received(message.t_ns, rank, world.session(rank), 1000 + seq, message))
    reducer.feed(world.progress(0, max(END_NS, message.t_ns) // 1000 - START_NS // 1000 + 1_000_000))
    return reducer


def introduced(world: World, training: str | None) -> Iterator[Received]:
    for received in world.introduce():
        is_card = isinstance(received.message, Card)
        yield received._replace(message=Card({"training": training})) if is_card else received


def of_rank(late_rank: int, late_us: float) -> Late:
    return lambda rank, _step: late_us if rank == late_rank else 0.0


def the_group(frame: Frame) -> ProcessGroupFigures:
    (group,) = frame.process_groups
    return group


def test_a_rank_that_comes_late_is_flagged_with_its_bound(make_world) -> None:
    frame = frame_of(make_world(4, own=True), [*windows(range(4), of_rank(2, 20_000))])
    group = the_group(frame)
    assert (group.name, group.size, group.ranks, group.backend) == ("0", 4, (), "gloo")
    assert (group.collectives, group.seen_pct) == ((STEPS - 2) * PER_STEP, 100), "not the first, nor the last"
    assert (group.per_step, group.step_bytes) == (3, 2500)
    assert group.operations == "2 allgather_base, 1 reduce_scatter"
    assert (group.last_arriver, group.last_arriver_pct) == (2, 100)
    assert group.rank_lateness_ms == pytest.approx((0, 0, 20, 0), abs=0.01)
    assert group.lateness_ms == group.rank_lateness_ms[2]
    assert group.bound_ms == pytest.approx(0.1)
    late = frame.straggler
    assert late is not None
    assert (late.rank, late.basis, late.group, late.cause) == (2, "arrivals", "the default group", None)
    assert (late.lateness_ms, late.bound_ms) == pytest.approx((20, 0.1), abs=0.01)
    assert late.cost_pct == pytest.approx(40, abs=0.1)
    assert np.isnan(frame.ranks.excess_ms).all(), "own times contain the waiting: 0 would contradict the flag"
    said = verdict(frame)
    assert (said.kind, said.sentence) == (
        "straggler",
        "rank 2 arrives 20.0 ±0.1 ms late at the collectives of the default group in 100% of steps "
        "· costs 40%",
    )
    assert "without the slow rank" not in said.detail, "own times do not tell"
    (alert,) = [alert for alert in frame.alerts if alert.kind == "straggler"]
    assert alert.message == (
        "rank 2 arrives 20.0 ms late at the collectives of the default group, costs at least 40% of the step "
        "time"
    )
    assert [event.message for event in frame.events if event.kind == "straggler"] == [
        "rank 2 became slow (step 79)"
    ]
    json = snapshot(frame)
    assert json["straggler"]["group"] == "the default group"
    assert json["process_groups"][0]["rank_lateness_ms"] == pytest.approx([0, 0, 20, 0], abs=0.01)
    assert "allgather_base" in draw_frame(frame, 140)


def test_a_flag_ends_when_the_rank_is_on_time_again(make_world) -> None:
    steps = 200
    reported = [*windows(range(2), lambda rank, step: 9_000.0 * (rank == 1 and step < 100), steps=steps)]
    frame = frame_of(make_world(2, own=True), reported)
    assert frame.straggler is None
    kinds = [event.kind for event in frame.events if event.kind.startswith("straggler")]
    assert kinds == ["straggler", "straggler_end"]


def test_equal_ranks_with_noise_are_not_flagged(make_world) -> None:
    noise = np.random.default_rng(1).exponential(2_000, (4, STEPS))
    reported = [*windows(range(4), lambda rank, step: float(noise[rank, step]))]
    frame = frame_of(make_world(4, own=True), reported)
    assert frame.straggler is None
    assert abs(the_group(frame).lateness_ms or 9) < 1


def mesh(late_us: float) -> list[tuple[int, Arrivals]]:
    """Two replicas of two shards each. Rank 1 is late where the shards gather, and so are rank 0, which waits
    for it, and itself where the replicas meet."""
    reported: list[tuple[int, Arrivals]] = []
    for ranks in ((0, 1), (2, 3)):
        name = {"group": f"s{ranks[0]}", "description": "mesh_dp_shard", "whole": False}
        reported += windows(ranks, of_rank(1, late_us), **name)
    for ranks in ((0, 2), (1, 3)):
        name = {"group": f"r{ranks[0]}", "description": "mesh_dp_replicate", "whole": False}
        late = of_rank(ranks[0], late_us)
        reported += windows(ranks, late, at_us=9_000, **name)
    return reported


def test_in_a_mesh_the_rank_is_flagged_that_the_others_wait_for(make_world) -> None:
    frame = frame_of(make_world(4, own=True), mesh(20_000))
    assert [group.ranks for group in frame.process_groups] == [(0, 1), (0, 2), (1, 3), (2, 3)]
    assert [group.last_arriver for group in frame.process_groups] == [1, 0, 1, None]
    assert frame.straggler is not None
    assert frame.straggler.rank == 1, "rank 0 is late because it has waited for rank 1"
    assert [event.rank for event in frame.events if event.kind == "straggler"] == [1]


def test_what_the_buffers_have_lost_is_left_out_and_counted(make_world) -> None:
    reported = [*windows(range(2), of_rank(1, 9_000), without=(1, 2))]
    group = the_group(frame_of(make_world(2, own=True), reported))
    assert group.collectives == PER_STEP * (18 + 18)
    assert group.seen_pct == pytest.approx(100 * 36 / 78)
    assert group.lateness_ms == pytest.approx(9, abs=0.01)


def test_a_group_that_is_made_anew_is_compared_again(make_world) -> None:
    reported = list(windows(range(3), of_rank(1, 9_000), steps=40))
    later_ns = 40 * STEP_US * 1000
    anew = []
    for rank, message in reported:
        t_ns, base_ns = (later_ns + ns for ns in (message.t_ns, message.base_ns))
        anew.append((rank, replace(message, t_ns=t_ns, base_ns=base_ns, first_step=message.first_step + 40)))
    # One rank has begun the new group before the others have reported the last of the old one.
    mixed = [*reported[:-2], anew[0], *reported[-2:], *anew[1:]]
    figures = the_group(frame_of(make_world(3), mixed))
    assert (figures.collectives, figures.seen_pct, figures.last_arriver) == (38 * PER_STEP, 100, 1)
    assert figures.steps > 38, "those of the group before are kept"


def test_sizes_that_are_never_the_same_take_no_memory(make_world) -> None:
    world = make_world(2)
    of_ranks = windows(range(2), no_delay, window=1)
    sent = [
        (rank, replace(message, kinds=(CollectiveKind("all_reduce", message.first),), of_kind=(0, 1, 0)))
        for rank, message in of_ranks
    ]
    (group,) = reducer_of(world, sent, "fsdp2").state.group_arrivals.groups.values()
    assert {len(launches.kinds) for launches in group.waiting.values()} == {2}
    # The second of each step is of no kind that its message names.
    assert the_group(frame_of(world, sent)).operations == "2 all_reduce"


def test_ranks_that_report_other_windows_are_compared_where_these_overlap(make_world) -> None:
    first = [*windows([0, 1], of_rank(1, 9_000), window=80)]
    later = [(rank, message) for rank, message in windows([0, 1], of_rank(1, 9_000)) if rank == 1]
    group = the_group(frame_of(make_world(2, own=True), [first[0], *later]))
    assert group.collectives == PER_STEP * (STEPS - 2)


def test_launches_of_nccl_are_shown_and_not_judged(make_world) -> None:
    reported = [*windows(range(2), of_rank(1, 9_000), backend="nccl")]
    frame = frame_of(make_world(2, own=True), reported)
    assert frame.straggler is None
    assert (the_group(frame).on_host, the_group(frame).last_arriver) == (True, 1)


def test_nor_are_they_where_a_rank_has_reported_those_of_gloo_before(make_world) -> None:
    """A default group may have both backends."""
    reported = list(windows(range(4), of_rank(2, 20_000), backend="nccl"))
    reported[0] = (reported[0][0], replace(reported[0][1], backend="gloo"))
    frame = frame_of(make_world(4), reported)
    assert the_group(frame).on_host and frame.straggler is None


def test_hosts_whose_clocks_are_not_compared_are_not_judged(make_world) -> None:
    reported = [*windows(range(2), of_rank(1, 9_000))]
    frame = frame_of(make_world(2, hosts=("node0", "node1"), own=True), reported)
    assert frame.straggler is None
    group = the_group(frame)
    assert (group.last_arriver, group.lateness_ms, group.rank_lateness_ms) == (None, None, ())
    assert snapshot(frame)["process_groups"][0]["bound_ms"] is None


def test_a_wall_clock_that_was_set_is_part_of_the_bound(make_world) -> None:
    reported = [
        (rank, replace(message, bound_ns=30_000_000 * rank))
        for rank, message in windows(range(2), of_rank(1, 9_000))
    ]
    frame = frame_of(make_world(2, own=True), reported)
    assert frame.straggler is None, "the bound is wider than the lateness"
    assert the_group(frame).bound_ms == pytest.approx(30.1)


@pytest.mark.parametrize(
    "change",
    [{"steps": (0,)}, {"ranks": (1, 0)}, {"ranks": (0, 9)}, {"ranks": (3,)}, {"of_kind": (0,)}],
)
def test_what_does_not_fit_is_ignored(make_world, change: dict[str, tuple[int, ...]]) -> None:
    reported = [(rank, replace(message, **change)) for rank, message in windows(range(2), no_delay)]
    assert frame_of(make_world(2, own=True), reported).process_groups == ()


@pytest.mark.parametrize("training", ["collectives", None])
def test_where_own_times_are_known_they_must_show_it(make_world, training: str | None) -> None:
    frame = frame_of(make_world(2, own=True), [*windows(range(2), of_rank(1, 20_000))], training=training)
    assert frame.straggler is None
    assert the_group(frame).last_arriver == 1


def test_a_rank_that_waits_for_a_cpu_is_not_flagged(make_world) -> None:
    world = make_world(2, own=True)
    world.cpu_us = {0: 0, 1: 15_000}
    frame = frame_of(world, [*windows(range(2), of_rank(1, 20_000))])
    assert frame.straggler is None or frame.straggler.group == ""


def test_own_times_come_first(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 20_000}, own=True)
    frame = frame_of(world, [*windows(range(2), of_rank(1, 20_000))])
    assert frame.straggler is not None
    assert (frame.straggler.cause, frame.straggler.group) == ("data", "")


def test_the_report_says_in_which_group_a_rank_was_late() -> None:
    world = World(2, own=True)
    arrivals = [*windows(range(2), of_rank(1, 20_000))]

    def messages() -> Iterator[Received]:
        yield world.run()
        yield from introduced(world, "fsdp2")
        yield from world.steps(STEPS)
        for seq, (rank, message) in enumerate(arrivals):
            yield Received(message.t_ns, rank, 100 + rank, 1000 + seq, message)
        yield from world.steps(40)
        yield world.run("finished", 0)

    report = report_from_messages(messages())
    (slow,) = report.stragglers
    assert (slow.rank, slow.group, slow.basis) == (1, "the default group", "arrivals")
    assert slow.lost_s > 0
    text, page = text_page(report, 140), html_page(report)
    assert "waiting %" not in text and "wait 0%" not in text, "no bucket is timed"
    assert not re.search(r"(wait|transfer)</span>", page), "no bar has it"
    assert "20.0 ±0.1 ms late at the collectives of the default group, last in 100% of those steps" in text
