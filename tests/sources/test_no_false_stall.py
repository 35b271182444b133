"""A jump in a recording passes over most of it: that is no stall."""

from __future__ import annotations

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.protocol.messages import Event, Received
from tests.made_up_run import NS, START_NS, a_run, progress


@pytest.mark.parametrize("tail", [False, True])
def test_what_a_jump_leaves_out_is_not_taken_for_a_stall(tail: bool) -> None:
    reducer = Reducer(tail=tail)
    for received in a_run(0, ending=False):
        reducer.feed(received)
    for second in range(100, 110):  # the tail begins: one rank is heard before the other, far from the start
        now_ns = START_NS + second * NS
        reducer.feed(Received(now_ns, 0, 1000, 0, progress(now_ns, 5000)))
        reducer.feed(Received(now_ns + 1, -1, 0, 0, Event("mute", now_ns, -1, -1)))
    told = [event for event in reducer.state.log.all() if "stall" in event.kind]
    assert bool(told) is not tail
