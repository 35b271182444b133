"""Which line takes the time: chosen from the samples of a rank, and shown wherever the rank is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.frame import Frame
from ddptop.frames.sampled_stack import (
    HELD_WORDS,
    SampledStack,
    StackShare,
    hot_line,
    hot_path,
    hot_share_pct,
    samples_phrase,
    stack_of_straggler,
)
from ddptop.frames.snapshot import snapshot
from ddptop.frames.verdict import verdict
from ddptop.protocol.evidence import SampledCall, StackSamples, samples_request
from ddptop.render.plain import draw_frame
from tests.made_up_run import World, feed_together

LOADS = (
    SampledCall("/me/train.py", 88, "<module>", -1, 50),
    SampledCall("/me/dataset.py", 31, "__getitem__", 0, 41),
    SampledCall("/me/dataset.py", 33, "__getitem__", 0, 9),
)


def stack_of(calls: tuple[SampledCall, ...], samples: int = 50, **changes: Any) -> SampledStack:
    shares = tuple(
        StackShare(call.file, call.line, call.function, call.parent, 100 * call.samples / samples)
        for call in calls
    )
    values = {"place": "data", "is_long_step": False, "held_pct": 0.0, "workers": (), **changes}
    return SampledStack(rank=1, step=3, taken_s=0.0, samples=samples, calls=shares, **values)


def test_the_line_in_most_samples_is_named_with_the_one_that_led_to_it() -> None:
    stack = stack_of(LOADS)
    assert hot_line(stack) == "dataset.py:31 __getitem__ < train.py:88"
    assert hot_share_pct(stack) == 82
    assert samples_phrase(stack) == "in 82% of samples: dataset.py:31 __getitem__ < train.py:88"


def test_of_a_loop_all_lines_are_named() -> None:
    calls = (
        SampledCall("/me/train.py", 88, "<module>", -1, 50),
        *(SampledCall("/me/train.py", line, "decode", 0, n) for line, n in ((31, 20), (32, 16), (33, 11))),
        SampledCall("/me/train.py", 40, "decode", 0, 3),
    )
    assert samples_phrase(stack_of(calls)) == "in 94% of samples: train.py:31-33 decode < train.py:88"


def test_the_function_with_the_larger_part_is_followed_and_no_further() -> None:
    calls = (
        SampledCall("/me/train.py", 88, "main", -1, 50),
        SampledCall("/me/dataset.py", 31, "__getitem__", 0, 44),
        SampledCall("/me/dataset.py", 10, "decode", 1, 20),
        SampledCall("/me/dataset.py", 11, "crop", 1, 18),
    )
    assert [group.call.function for group in hot_path(stack_of(calls))] == ["main", "__getitem__"]
    assert samples_phrase(stack_of(calls)) == (
        "in 88% of samples: dataset.py:31 __getitem__ < train.py:88 main"
    )


def test_of_a_library_the_call_is_named_behind_the_users() -> None:
    calls = (
        SampledCall("/me/train.py", 88, "<module>", -1, 28),
        SampledCall("/me/train.py", 57, "save_checkpoint", 0, 28),
        SampledCall("/lib/torch/serialization.py", 0, "torch.save", 1, 27),
    )
    assert hot_line(stack_of(calls, 28)) == "train.py:57 save_checkpoint > torch.save"


def test_what_cannot_be_sampled_is_said() -> None:
    assert samples_phrase(stack_of((), 0, held_pct=90.0)) == (f"not seen for 90% of the time: {HELD_WORDS}")
    few = samples_phrase(stack_of(LOADS[:2], 5, held_pct=70.0))
    assert f"< train.py:88 · not seen for 70% of the time: {HELD_WORDS}" in few
    assert "of 5 samples" in few
    assert samples_phrase(stack_of(LOADS[:1], 1)).startswith("in the only sample: train.py:88")


def test_workers_come_first() -> None:
    workers = ("data.py:41 decode", "data.py:41 decode", "data.py:9 read")
    assert samples_phrase(stack_of((), 0, workers=workers)) == "2 of 3 workers: data.py:41 decode"


def test_of_a_rank_that_waits_for_its_workers_only_these_are_named() -> None:
    calls = (
        SampledCall("/me/train.py", 88, "<module>", -1, 50),
        SampledCall("/lib/dataloader.py", 0, "torch.utils.data.dataloader.__next__", 0, 50),
    )
    assert samples_phrase(stack_of(calls, workers=("data.py:41 decode",))) == "its worker: data.py:41 decode"


def frame_with(world: World, *samples: tuple[int, StackSamples], steps: int = 120) -> Frame:
    """A frame of a world in which these ranks have sent samples; as a viewer receives it."""
    reducer = Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(steps)])
    for rank, message in samples:
        reducer.feed(world.received(rank, message))
    return FrameDecoder().decode(encode_frame(reducer.frame(reducer.state.newest_ns)))


def asked(place: str, calls: tuple[SampledCall, ...] = LOADS) -> StackSamples:
    return StackSamples(1, samples_request(1, place), 3, place, 50, 2_000, 0, calls)


@pytest.fixture
def slow_loader() -> World:
    return World(own=True, delays={(1, "data"): 20_000})


def test_the_verdicts_second_line_begins_with_the_line_of_the_straggler(slow_loader: World) -> None:
    frame = frame_with(slow_loader, (1, asked("data")))
    shown = verdict(frame)
    assert shown.kind == "straggler"
    line, *rest = shown.detail.split(" · ")
    assert line == "in 82% of samples: dataset.py:31 __getitem__ < train.py:88"
    assert rest[0].startswith("median step")
    assert line in draw_frame(frame, 80)


def test_samples_of_another_place_or_rank_are_not_the_stragglers(slow_loader: World) -> None:
    frame = frame_with(slow_loader, (1, asked("forward")), (2, asked("data")))
    assert verdict(frame).detail.startswith("median step")
    assert len(frame.sampled) == 2


def test_of_a_rank_that_is_rarely_slow_the_samples_are_those_of_its_long_step() -> None:
    slow = SimpleNamespace(pattern="rare", cause="other", place="after_optimizer")
    usual, long_step = stack_of(LOADS), stack_of(LOADS[:2], place="", is_long_step=True)
    assert stack_of_straggler([usual, long_step], slow, 1) is long_step
    assert stack_of_straggler([usual], slow, 1) is None


def test_json_has_the_tree(slow_loader: World) -> None:
    frame = frame_with(slow_loader, (1, asked("data")))
    (shown,) = snapshot(frame)["sampled"]  # type: ignore[misc]
    assert (shown["rank"], shown["place"], shown["is_long_step"], shown["samples"]) == (1, "data", False, 50)
    assert (shown["line"], shown["share_pct"]) == ("dataset.py:31 __getitem__ < train.py:88", 82.0)
    assert shown["calls"][1] == {
        "file": "/me/dataset.py",
        "line": 31,
        "function": "__getitem__",
        "parent": 0,
        "share_pct": 82.0,
    }


def test_the_newest_series_of_a_place_is_kept(slow_loader: World) -> None:
    newer = asked("data", LOADS[:1])
    frame = frame_with(slow_loader, (1, asked("data")), (1, newer))
    assert [len(stack.calls) for stack in frame.sampled] == [1]
