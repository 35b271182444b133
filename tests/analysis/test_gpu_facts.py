"""GPUs of the ranks: joined with them, carried to the screen, and named where they slow a rank down."""

from __future__ import annotations

from dataclasses import replace

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.machine import Gpu, Memory
from ddptop.protocol.messages import Received
from tests.made_up_run import feed_together

START_NS = 5_000 * 1_000_000_000

GPU = Gpu(97.0, 5 << 30, 80 << 30, 83.0, 412.5, 1200, 1980, "power cap", None, None, None, None, START_NS)


def fed(world, **messages):
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(120)])
    for message, rank in messages.items():
        told = GPU if message == "gpu" else Memory(START_NS, 1 << 30, 2 << 30, 3 << 30, 4)
        reducer.feed(Received(START_NS + world.now_us * 1000, rank, world.session(rank), 0, told))
    return reducer.frame(START_NS + world.now_us * 1000)


def test_a_rank_without_a_gpu_has_none(make_world) -> None:
    frame = fed(make_world(2))
    assert frame.gpus == ()
    assert [rank["gpu"] for rank in snapshot(frame)["ranks"]] == [None, None]


def test_what_is_read_of_a_gpu_reaches_its_rank(make_world) -> None:
    frame = FrameDecoder().decode(encode_frame(fed(make_world(2), gpu=1, memory=1)))
    assert [facts.rank for facts in frame.gpus] == [1]
    shown = snapshot(frame)["ranks"][1]["gpu"]
    assert (shown["util_pct"], shown["temp_c"], shown["power_w"], shown["throttle"]) == (
        97.0,
        83.0,
        412.5,
        "power cap",
    )
    assert (shown["mem_bytes"], shown["mem_total_bytes"]) == (5 << 30, 80 << 30)
    assert (shown["allocated_bytes"], shown["retries"]) == (1 << 30, 4)
    assert shown["nvlink_tx_bytes"] is None


def test_a_straggler_whose_gpu_throttles_says_so(make_world) -> None:
    slow = make_world(2, delays={(1, "forward"): 20_000})
    frame = fed(slow, gpu=1)
    assert frame.straggler is not None
    assert frame.straggler.throttle == "power cap"
    assert "forward · its GPU is throttled: power cap" in verdict(frame).sentence


def test_another_ranks_throttled_gpu_is_not_its_cause(make_world) -> None:
    slow = make_world(2, delays={(1, "forward"): 20_000})
    frame = fed(slow, gpu=0)
    assert frame.straggler is not None
    assert frame.straggler.throttle == ""
    assert "throttled" not in verdict(replace(frame)).sentence
