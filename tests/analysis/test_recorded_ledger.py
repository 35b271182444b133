"""The sums of the ledger in a recording: what is put back is what was there, or nothing."""

from __future__ import annotations

import random

import msgpack
import pytest

from ddptop.analysis.ledger.recorded import VERSION, VERSION_LENGTHS, pack_ledger, resume_ledger
from ddptop.analysis.ledger.sums import NO_BIN
from ddptop.analysis.reducer import Reducer
from ddptop.analysis.since_start import known_since_start
from ddptop.protocol.messages import Phase
from tests.analysis.test_ledger import begun, run_world
from tests.made_up_run import START_NS, World, feed_together


def eventful(reducer: Reducer, world: World, steps: int) -> None:
    """Ranks are slow now and then, some steps are dear, and one rank evaluates."""
    chance = random.Random(steps)
    for step in range(steps):
        world.delays = {(chance.randrange(3), "forward"): chance.randint(0, 9_000)}
        if step % 40 == 30:
            world.delays = {(0, "after_optimizer"): 2_000_000}
            at_us = world.now_us + 1_000_000
            reducer.feed(world.progress(0, at_us, phase=int(Phase.EVALUATE)))
        run_world(world, reducer, 1)


def shown(reducer: Reducer, world: World) -> object:
    return repr(reducer.frame(START_NS + world.now_us * 1000).ledger)


def resumed(pieces: list[tuple[object, bytes]]) -> Reducer | None:
    reducer = Reducer(tail=True)
    return reducer if resume_ledger(reducer.state.ledger, pieces) else None  # type: ignore[arg-type]


def packed(reducer: Reducer, since_bin: int = NO_BIN) -> tuple[object, bytes]:
    since_start = known_since_start(reducer.state)
    return since_start, pack_ledger(reducer.state.ledger, since_bin)


def test_the_sums_are_put_back_and_go_on() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    introduced = [world.run(), *world.introduce()]
    eventful(reducer, world, 150)
    first = packed(reducer)
    newest_bin = reducer.state.ledger.recent_bins[-1].number
    eventful(reducer, world, 300)
    pieces = [first, packed(reducer, newest_bin)]
    assert len(pieces[1][1]) < len(packed(reducer)[1]), "bins of the last minutes are written once"
    again = resumed(pieces)
    assert again is not None
    feed_together(again, introduced)
    now = shown(reducer, world)
    assert shown(again, world) == now
    for received in world.steps(100):
        for one in (reducer, again):
            one.feed(received)
    assert shown(again, world) == shown(reducer, world) != now


def test_a_short_wait_behind_recorded_sums_does_not_hide_that_a_rank_was_flagged() -> None:
    """The recorded log has its event: five long pauses are enough, whatever comes after them."""
    world = World(3, own=True)
    introduced = [world.run(), world.event("settings", ledger=VERSION), *world.introduce()]
    reducer = Reducer()
    feed_together(reducer, introduced)

    def pause_rank_1(reducer: Reducer, pause_us: int) -> None:
        world.delays = {}
        run_world(world, reducer, 39)
        world.delays = {(1, "after_optimizer"): pause_us}
        run_world(world, reducer, 1)

    for _ in range(5):
        pause_rank_1(reducer, 400_000)
    frame = reducer.frame(START_NS + world.now_us * 1000)
    assert [event.kind for event in frame.events if event.rank == 1] == ["straggler"]
    again = resumed([packed(reducer)])
    assert again is not None
    feed_together(again, introduced)
    for pause_us in (60_000, 400_000, 400_000, 400_000, 400_000, 400_000):
        pause_rank_1(again, pause_us)
        shown(again, world)
    frame = again.frame(START_NS + world.now_us * 1000)
    assert frame.straggler is not None and frame.straggler.rank == 1
    assert not [event for event in frame.events if event.kind == "straggler"]


def test_where_a_piece_between_is_missing_there_is_no_ledger() -> None:
    world = World(3, own=True)
    reducer = begun(world)
    eventful(reducer, world, 100)
    reducer.state.settle()
    newest_bin = reducer.state.ledger.recent_bins[-1].number
    eventful(reducer, world, 100)
    only_later = [packed(reducer, newest_bin)]
    assert resumed(only_later) is None


@pytest.mark.parametrize("place", range(VERSION_LENGTHS[VERSION]))
def test_what_nobody_has_packed_so_is_refused(place: int) -> None:
    world = World(2, own=True)
    reducer = begun(world)
    eventful(reducer, world, 60)
    since_start, whole = packed(reducer)
    assert resumed([(since_start, whole)]) is not None
    content = msgpack.unpackb(whole)
    for forged in (None, -1, "x", b"\xff" * 9, [], [b"\x00" * 8] * 9, [[b"\xff" * 16] * 9] * 9):
        content[place] = forged
        assert resumed([(since_start, msgpack.packb(content))]) is None, forged
    assert resumed([(since_start, whole[:-3])]) is None
