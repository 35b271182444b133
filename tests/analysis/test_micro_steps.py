"""Accumulation without `no_sync()`: figures count the all-reduces of every backward pass of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.bucket_times import backward_passes, figures, timing
from ddptop.export.metrics import metric_families
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import UNKNOWN_OWN_TIME, Flag, OwnTime, StepRow, Steps
from ddptop.render.plain import draw_frame
from ddptop.report.advice import make_suggestions
from ddptop.report.text import text_page
from tests.made_up_run import START_NS, feed_together, report_from_messages

from .test_detail import row, step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.protocol.messages import Received
    from tests.made_up_run import World

MICRO_STEPS = 4
LATE_US = 20_000


def joined_rows(rows: list[StepRow], flags: int) -> StepRow:
    """Consecutive steps of a rank as the micro-steps of one, each with all-reduces of its own."""
    first, cells = rows[0], []
    for each in rows:
        since = each.begin_us - first.begin_us
        for at in range(0, len(each.cells), 3):
            number, ready, took = each.cells[at : at + 3]
            cells += [number, ready + since, took]
    sums = [sum(times) for times in zip(*(each.own for each in rows), strict=True)]
    summed = UNKNOWN_OWN_TIME if sums[1] < 0 else OwnTime(*sums[:9])
    wall, data, forward, backward, optimizer = (sum(column) for column in list(zip(*rows, strict=True))[1:6])
    return first._replace(
        wall_us=wall,
        data_us=data,
        forward_us=forward,
        backward_us=backward,
        optimizer_us=optimizer,
        micro_steps=len(rows),
        backward_at_us=rows[-1].begin_us - first.begin_us + rows[-1].backward_at_us,
        optimizer_at_us=first.optimizer_at_us,
        flags=first.flags | flags,
        cells=tuple(cells),
        own=summed,
    )


def accumulated(
    world: World, steps: int, micro_steps: int = MICRO_STEPS, flags: int = 0
) -> Iterator[Received]:
    """So many steps of the world, of several micro-steps each, whose gradients are all-reduced in all."""
    for number in range(steps):
        passes = [world.rows() for _ in range(MICRO_STEPS)]
        for rank in range(world.size):
            merged = joined_rows([rows[rank] for rows in passes], flags)
            yield world.received(rank, Steps(0, number, world.base_ns(rank), (merged,)))


def test_a_bucket_that_comes_again_begins_the_next_pass() -> None:
    assert backward_passes((0, 1, 0, 1, 0, 1)).tolist() == [0, 0, 1, 1, 2, 2]
    assert backward_passes((0, 1, 2)).tolist() == [0, 0, 0]
    assert backward_passes((0, 0, 1, 0)).tolist() == [0, 1, 1, 2]


def test_what_nothing_hides_in_one_pass_is_not_hidden_by_the_next() -> None:
    """Two passes of one bucket of 3 ms each: all of both is exposed. Rank 1 is 5 ms late in each."""
    punctual = row(0, 0, 5_000, 8_000, 0, 30_000, 8_000)
    late = row(0, 0, 10_000, 3_000, 0, 35_000, 3_000)
    found = figures(timing([step(punctual, late)], (0, 0), lanes=2, aligned=True))
    assert found.waits.exposed.tolist() == [[16.0, 6.0]]
    assert found.waits.exposed_wait.tolist() == [[10.0, 0.0]]
    assert found.waits.collective.tolist() == [[16.0, 6.0]]
    assert found.lateness.tolist() == [[-10.0, 10.0]]
    assert (found.last.tolist(), found.skew.tolist()) == ([1], [10.0])
    assert found.recoverable.tolist() == [10.0]
    assert found.both.tolist() == [16.0]


@pytest.fixture(params=[True, False], ids=["own", "arrivals"])
def reducer(make_world: type[World], request: pytest.FixtureRequest) -> tuple[Reducer, int]:
    world = make_world(2, delays={(1, "forward"): LATE_US}, own=request.param)
    found = Reducer()
    feed_together(found, [world.run(), *world.introduce(), *accumulated(world, 120)])
    return found, START_NS + 1000 * world.now_us


def test_all_micro_steps_count(reducer: tuple[Reducer, int], make_world: type[World]) -> None:
    frame = reducer[0].frame(reducer[1])
    plain_world, plain_reducer = make_world(2, delays={(1, "forward"): LATE_US}, own=True), Reducer()
    feed_together(plain_reducer, [plain_world.run(), *plain_world.introduce(), *plain_world.steps(120)])
    plain = plain_reducer.frame(START_NS + 1000 * plain_world.now_us)
    group, once = frame.group, plain.group
    assert (group.all_reduces, once.all_reduces) == (8, 2)
    assert (group.wire_bytes, once.wire_bytes) == (64e6, 16e6)
    assert group.overlap_pct == pytest.approx(once.overlap_pct)
    assert group.busbw_gbps == pytest.approx(once.busbw_gbps)
    for name in ("collective_ms", "wait_ms", "transfer_ms", "exposed_comm_ms", "exposed_wait_ms"):
        assert getattr(group, name) == pytest.approx(MICRO_STEPS * getattr(once, name), rel=0.02), name
    for bucket, of_one_pass in zip(frame.buckets, plain.buckets, strict=True):
        assert (bucket.launches, of_one_pass.launches) == (MICRO_STEPS, 1)
        assert bucket.transfer_ms == pytest.approx(of_one_pass.transfer_ms)
        assert bucket.busbw_gbps == pytest.approx(of_one_pass.busbw_gbps)


def test_a_rank_that_is_late_in_each_is_late_by_the_sum(reducer: tuple[Reducer, int]) -> None:
    straggler = reducer[0].frame(reducer[1]).straggler
    assert straggler is not None
    assert (straggler.rank, straggler.cause) == (1, "forward")
    assert straggler.lateness_ms == pytest.approx(80.0, abs=0.5)
    assert straggler.recoverable_ms == pytest.approx(80.0, abs=1.0)


def test_every_outlet_has_the_number_and_bytes(reducer: tuple[Reducer, int]) -> None:
    frame = reducer[0].frame(reducer[1])
    shown = snapshot(frame)
    assert (shown["group"]["all_reduces"], shown["group"]["wire_bytes"]) == (8.0, 64_000_000)
    assert shown["buckets"][0]["launches"] == 4.0
    shown_once = draw_frame(frame, 100)
    assert "8 all-reduces of 64.0 MB a step" in shown_once
    assert "4×" in shown_once
    metrics = {family.name: family for family in metric_families(frame)}
    assert metrics["all_reduced"].samples[0].value == 64e6


def test_passes_of_different_models_do_not_hide_each_other(make_world: type[World]) -> None:
    """Two buckets that are reduced in a pass each: the last gradients show that nothing is hidden."""
    world, found = make_world(2, own=True), Reducer()
    feed_together(found, [world.run(), *world.introduce()])
    for number in range(100):
        each = [world.rows() for _ in range(2)]
        for rank in (0, 1):
            cells = [rows[rank].cells for rows in each]
            one_bucket = [
                rows[rank]._replace(cells=of_pass[3 * i : 3 * i + 3])
                for i, (rows, of_pass) in enumerate(zip(each, cells, strict=True))
            ]
            merged = joined_rows(one_bucket, 0)
            took_us = sum(merged.cells[2::3])
            merged = merged._replace(own=merged.own._replace(exposed=took_us))
            found.feed(world.received(rank, Steps(0, number, world.base_ns(rank), (merged,))))
    assert found.frame(START_NS + 1000 * world.now_us).group.overlap_pct == pytest.approx(0.0, abs=0.1)


def test_waits_of_ranks_that_are_late_in_turn_within_a_step_are_no_transfer(make_world: type[World]) -> None:
    """Rank 0 is late by 20 ms in two micro-steps, rank 1 in the other two."""
    world, found = make_world(2, own=True), Reducer()
    feed_together(found, [world.run(), *world.introduce()])
    for number in range(100):
        passes = []
        for micro in range(MICRO_STEPS):
            world.delays = {(micro % 2, "forward"): LATE_US}
            passes.append(world.rows())
        for rank in (0, 1):
            merged = joined_rows([rows[rank] for rows in passes], 0)
            found.feed(world.received(rank, Steps(0, number, world.base_ns(rank), (merged,))))
    group = found.frame(START_NS + 1000 * world.now_us).group
    assert group.exposed_wait_ms == pytest.approx(40.0, abs=0.1)
    assert group.exposed_transfer_ms == pytest.approx(4 * 2.0, abs=0.1)


@pytest.mark.parametrize("late", [False, True])
def test_no_sync_is_advised_with_what_it_gives(make_world: type[World], *, late: bool) -> None:
    world = make_world(2, own=True)
    flags = int(Flag.LATE_NO_SYNC) if late else 0
    messages = [world.run(), *world.introduce(), *accumulated(world, 100, flags=flags)]
    made = report_from_messages(iter([*messages, world.run("finished", 0)]))
    (found,) = (one for one in make_suggestions(made) if one.kind == "no_sync")
    assert "4 all-reduces of each bucket in a step, 64.0 MB, where one is enough" in found.because
    transfer_ms = made.communication.exposed_transfer_ms
    assert found.figures["saved_ms"] == pytest.approx(0.75 * transfer_ms)
    assert ("must enclose forward too" in found.action) == late
    assert made.communication.late_no_sync == late
    assert any(event.kind == "no_sync" for event in made.events) == late
    assert make_suggestions(made)[0].kind == "no_sync", "it gives the most"
    assert "no_sync()" in text_page(made, 80)


def test_where_the_last_micro_step_alone_synchronises_nothing_is_advised(make_world: type[World]) -> None:
    world = make_world(2, own=True)
    rows = [*world.steps(100)]
    rows = [
        received._replace(
            message=Steps(
                received.message.generation,
                received.message.first_step,
                received.message.base_ns,
                tuple(each._replace(micro_steps=4) for each in received.message.rows),
            )
        )
        for received in rows
    ]
    made = report_from_messages(iter([world.run(), *world.introduce(), *rows, world.run("finished", 0)]))
    assert not {"no_sync", "accumulate"} & {one.kind for one in make_suggestions(made)}
    assert np.isfinite(made.communication.overlap_pct)
