"""Frames travel whole or not at all."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import fields, replace

import msgpack
import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames import codec, figures
from ddptop.frames import frame as frames
from ddptop.frames.codec import FrameDecoder, FrameError, encode_frame, has_more
from ddptop.frames.history import COLUMNS, History, RankMinutes, RankSteps
from ddptop.frames.ledger import Ledger, LedgerRanks
from ddptop.protocol.limits import MAX_FRAME_BYTES, MAX_SHOWN_WORLD, MAX_WORLD
from ddptop.protocol.messages import Received, StepRow, Steps
from ddptop.transport.credit import LARGEST_FRAME_BYTES
from tests.made_up_run import feed_together, hello

NS = 1_000_000_000
START_NS = 5_000 * NS


@pytest.fixture
def frame(make_world) -> frames.Frame:
    """With something in every field."""
    world, reducer = make_world(3, delays={(1, "data"): 20_000}, own=True), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(60), world.progress(2)])
    found = reducer.frame(START_NS + world.now_us * 1000, focus=1, recording="/tmp/a.ddptop")
    playback = frames.Playback(1.0, 2.0, 3, 0, 59, True, 1.0, False, None, ((0.5, "straggler"),))
    return replace(found, playback=playback)


def same(one: object, other: object) -> None:
    """Equal, with NaN equal to NaN."""
    for f in fields(one):  # type: ignore[arg-type]
        a, b = getattr(one, f.name), getattr(other, f.name)
        if isinstance(a, (figures.Ranks, RankSteps, RankMinutes, History, Ledger, LedgerRanks)):
            same(a, b)
        elif isinstance(a, np.ndarray):
            np.testing.assert_array_equal(a, b.astype(a.dtype), err_msg=f.name)
        else:
            assert a == b, f.name


def test_round_trip_changes_nothing(frame) -> None:
    assert frame.straggler is not None
    assert frame.focus is not None and frame.focus.minutes is not None
    same(FrameDecoder().decode(encode_frame(frame)), frame)


def test_parts_that_are_the_same_objects_are_packed_once(frame, monkeypatch) -> None:
    written: list[str] = []
    write = codec.write_value
    monkeypatch.setattr(codec, "write_value", lambda kind, *each: written.append(kind) or write(kind, *each))
    packed: dict[str, tuple[object, bytes]] = {}
    encode_frame(frame, packed)
    moved = replace(frame, group=replace(frame.group, step=10**6), unix_s=frame.unix_s + 1)
    written.clear()
    again = encode_frame(moved, packed)
    assert "GroupFigures" in written and not {"RunInfo", "tuple[RankPhase, ...]"} & {*written}
    assert again == encode_frame(moved)


def test_an_empty_frame_travels_too() -> None:
    frame = Reducer().frame(START_NS)
    same(FrameDecoder().decode(encode_frame(frame)), frame)


def test_a_part_as_it_was_in_the_frame_before_is_the_same_object_and_no_other_is(frame) -> None:
    decoder = FrameDecoder()
    first = decoder.decode(encode_frame(frame))
    moved = replace(frame, group=replace(frame.group, step=10**6), unix_s=frame.unix_s + 1)
    second = decoder.decode(encode_frame(moved))
    same(second, moved)
    assert second.run is first.run and second.ranks.host is first.ranks.host
    later = replace(moved, ranks=replace(moved.ranks, age_ms=moved.ranks.age_ms + 200.0))
    third = decoder.decode(encode_frame(later))
    same(third, later)
    assert third.ranks.step_ms is second.ranks.step_ms
    assert first.group.step == frame.group.step


def test_large_counts_stay_exact(make_world) -> None:
    world, reducer = make_world(1), Reducer()
    feed_together(
        reducer, [world.run(), *world.introduce(), world.progress(0, step=2**40 + 1, sequence=2**45 + 1)]
    )
    ranks = FrameDecoder().decode(encode_frame(reducer.frame(START_NS))).ranks
    assert (ranks.step[0], ranks.sequence[0]) == (2**40 + 1, 2**45 + 1)


def test_a_long_history_goes_in_pieces_that_fit(frame) -> None:
    count = 60_000
    numbers = np.arange(count, dtype=float)
    long = replace(frame, history=History(start=0, **dict.fromkeys(COLUMNS, numbers)))
    data = encode_frame(long)
    assert len(data) < MAX_FRAME_BYTES
    got = FrameDecoder().decode(data)
    assert has_more(got)
    assert 10_000 < len(got.history.step) < count
    np.testing.assert_array_equal(got.history.step, numbers[: len(got.history.step)])
    assert not has_more(FrameDecoder().decode(encode_frame(frame)))


def test_the_largest_world_with_a_gpu_for_each_rank_and_a_long_history_fits(frame) -> None:
    numbers = np.arange(MAX_SHOWN_WORLD, dtype=float)
    narrow = {f.name: numbers for f in fields(figures.Ranks) if f.type == "Column"}
    texts = {
        name: tuple(f"{name} {i} " + "x" * 480 for i in range(MAX_SHOWN_WORLD)) for name in ("host", "device")
    }
    alike = {"state": ("live",) * MAX_SHOWN_WORLD, "phase": ("forward",) * MAX_SHOWN_WORLD}
    facts = {f.name: 2**36 for f in fields(frames.GpuFacts)} | {"throttle": "power", "temp_c": 60.5}
    points = dict.fromkeys(COLUMNS, np.arange(60_000, dtype=float))
    large = replace(
        frame,
        ranks=figures.Ranks(**narrow, **texts, **alike),
        gpus=(frames.GpuFacts(**facts),) * MAX_SHOWN_WORLD,
        clocks=tuple(frames.Clocks(f"host {i}", 1.0, 1.0) for i in range(MAX_SHOWN_WORLD // 8)),
        history=History(start=0, **points),
    )
    data = encode_frame(large)
    assert len(data) < LARGEST_FRAME_BYTES
    got = FrameDecoder().decode(data)
    assert len(got.gpus) == len(got.ranks.host) == MAX_SHOWN_WORLD
    wild = tuple(frames.Clocks(f"host {i} " + "x" * 480, 1.0, 1.0) for i in range(MAX_SHOWN_WORLD))
    assert len(encode_frame(replace(large, clocks=wild))) < LARGEST_FRAME_BYTES


def test_a_rank_that_claims_a_large_world_costs_what_one_rank_costs() -> None:
    """Not windows, rings and rows for all that never reported: only columns of numbers."""
    row = StepRow(0, 1000, 1, 1, 1, 1, 1, 2, 3, 1, 1, 1, 0.5, (0, 100, 200, 1, 100, 200))
    tracemalloc.start()
    try:
        reducer = Reducer()
        empty, _ = tracemalloc.get_traced_memory()
        last = MAX_WORLD - 1
        reducer.feed(Received(1, last, 1, 0, hello(last, MAX_WORLD, session=1)))
        for first in range(0, 2000, 100):
            reducer.feed(Received(first, last, 1, 0, Steps(1, first, 0, (row,) * 100)))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken - empty < 200 * MAX_WORLD
    assert len(reducer.frame(10**9).ranks.state) == MAX_WORLD


def test_every_truncation_is_refused(frame) -> None:
    data = encode_frame(frame)
    for length in range(0, len(data), 37):
        with pytest.raises(FrameError):
            FrameDecoder().decode(data[:length])
    with pytest.raises(FrameError):
        FrameDecoder().decode(data + b"\xc0")


def test_garbage_is_refused_or_read_but_never_worse_also_after_a_sound_frame(frame) -> None:
    data = encode_frame(frame)
    noise = random.Random(1)
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(noise.randrange(1, 4)):
            broken[noise.randrange(len(broken))] = noise.randrange(256)
        decoder = FrameDecoder()
        decoder.decode(data)
        try:
            got = FrameDecoder().decode(bytes(broken))
        except FrameError:
            with pytest.raises(FrameError):
                decoder.decode(bytes(broken))
        else:
            same(decoder.decode(bytes(broken)), got)


def test_columns_of_parts_that_become_unequal_are_refused_also_after_a_sound_frame(frame) -> None:
    decoder = FrameDecoder()
    decoder.decode(encode_frame(frame))
    unpacker = msgpack.Unpacker()
    unpacker.feed(encode_frame(frame))
    parts, history = unpacker
    place = 1 + [f.name for f in fields(frame) if f.name != "history"].index("hosts")
    assert all(len(column) == len(frame.hosts) > 0 for column in parts[place])
    parts[place][0].pop()
    with pytest.raises(FrameError):
        decoder.decode(msgpack.packb(parts) + msgpack.packb(history))


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", msgpack.packb({}), msgpack.packb([99]), msgpack.packb([1] * 16)]
)
def test_what_is_no_frame_is_refused(data) -> None:
    with pytest.raises(FrameError):
        FrameDecoder().decode(data)
