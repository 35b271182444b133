"""Ranks without a DDP model: what is told of them, and what is said that cannot be told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.messages import Card, Flag, Hello, Steps
from ddptop.render.phases import Breakdown
from ddptop.render.plain import draw_frame

HIDDEN = "no DDP model (FSDP2): own time in forward and backward includes waiting in collectives"


def frame_of(
    world, *, training: str, backend: str, late_us: int = 0, flags: int = 0, steps: int = 60
) -> Frame:
    """After steps without buckets; rank 0 waits for `late_us` of rank 1 in forward, not in backward."""
    reducer = Reducer()
    for received in (world.run(), *world.introduce(), *world.steps(steps)):
        message = received.message
        if isinstance(message, Hello):
            message = dataclasses.replace(message, backend=backend)
        elif isinstance(message, Card):
            message = Card({"torch": "2.13.0", "training": training})
        elif isinstance(message, Steps):
            moved = late_us if received.rank == 0 else 0
            message = dataclasses.replace(
                message,
                rows=tuple(
                    row._replace(
                        flags=row.flags & ~Flag.DETAIL | flags,
                        cells=(),
                        forward_us=row.forward_us + moved,
                        backward_us=row.backward_us - moved,
                        own=row.own._replace(exposed=-1 if flags else 0),
                    )
                    for row in message.rows
                ),
            )
        reducer.feed(received._replace(message=message))
    return reducer.frame(0)


def test_a_slow_loader_is_found_although_forward_and_backward_hide_the_waiting(make_world) -> None:
    world = make_world(2, delays={(1, "data"): 5_000}, own=True)
    frame = frame_of(world, training="fsdp2", backend="nccl", late_us=5_000, flags=int(Flag.WAITS_UNSEEN))
    assert frame.straggler is not None
    assert (frame.straggler.rank, frame.straggler.cause) == (1, "data")
    assert frame.straggler.lateness_ms == pytest.approx(5, abs=0.1)
    assert np.isnan(frame.ranks.own_ms).all(), "it is not known what of it was waiting"
    assert frame.ranks.excess_ms.tolist() == pytest.approx([-5, 5], abs=0.1)
    assert snapshot(frame)["run"]["training"] == "fsdp2"
    assert HIDDEN in draw_frame(frame, 120)


def test_ranks_are_said_to_be_even_only_outside_forward_and_backward(make_world) -> None:
    world = make_world(2, own=True)
    frame = frame_of(world, training="fsdp2", backend="nccl", flags=int(Flag.WAITS_UNSEEN), steps=120)
    said = verdict(frame)
    assert "slow outside forward and backward" in said.sentence
    assert said.detail.startswith(HIDDEN)


@pytest.mark.parametrize(
    ("training", "limits"),
    [
        (
            "collectives",
            "no DDP model (its own collectives): no bucket is timed, and no bubble between pipeline stages",
        ),
        ("fsdp2", "no DDP model (FSDP2): own time includes waiting in collectives that Python does not wait"),
        ("alone", ""),
        ("what a later version says", ""),
    ],
)
def test_the_kind_of_training_is_said(make_world, training: str, limits: str) -> None:
    frame = frame_of(make_world(2, own=True), training=training, backend="gloo")
    text = draw_frame(frame, 120)
    assert limits in text
    assert ("no DDP model" in text) is bool(limits)
    known = "ddp" if training.startswith("what") else training
    assert (frame.run.training, snapshot(frame)["run"]["training"]) == (known, known)


def test_medians_that_do_not_add_up_make_no_wait_without_ddp(make_world) -> None:
    frame = frame_of(make_world(2, own=True), training="alone", backend="")
    ranks = dataclasses.replace(frame.ranks, step_ms=frame.ranks.step_ms + 3)
    parts, before = Breakdown(ranks), Breakdown(frame.ranks)
    assert (parts.column("wait").tolist(), parts.column("transfer").tolist()) == ([0, 0], [0, 0])
    assert (parts.column("other") - before.column("other")).tolist() == pytest.approx([3, 3])


@pytest.mark.parametrize("training", ["collectives", "fsdp2", "ddp"])
def test_where_no_bucket_is_timed_lost_is_unknown_and_never_0(make_world, training: str) -> None:
    frame = frame_of(make_world(2, own=True), training=training, backend="gloo")
    told = snapshot(frame)
    is_known = training == "ddp"
    names = ("exposed_wait_ms", "exposed_comm_ms")
    for figures in (*told["ranks"], told["group"]):
        assert [figures[name] is None for name in names] == [not is_known] * 2
    assert (told["group"]["exposed_comm_pct"] is None) is not is_known
    assert np.isfinite(frame.ranks.excess_ms).all()
    parts = Breakdown(frame.ranks)
    assert bool(np.isnan(parts.column("wait")).all()) is not is_known
    assert np.nansum(parts.ms, axis=0).tolist() == pytest.approx(frame.ranks.step_ms.tolist(), abs=0.01)
