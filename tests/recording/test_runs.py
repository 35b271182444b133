"""Blocks read together give the same frame as their messages one by one."""

from pathlib import Path

import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import encode_frame
from ddptop.recording.reader import Recording

DATA = Path(__file__).with_name("data")


@pytest.mark.parametrize("name", ["straggler", "stall"])
@pytest.mark.parametrize("tail", [False, True])
def test_runs_give_the_same_frame(name, tail):
    failures = []
    with Recording.open(DATA / f"{name}.ddptop") as recording:
        one_by_one, together = Reducer(tail=tail), Reducer(tail=tail)
        messages = [*recording.tail(steps=40)] if tail else [*recording.records()]
        for received in messages:
            one_by_one.feed(received)
        for run in recording.tail_runs(steps=40) if tail else recording.runs():
            at = 0
            while at < len(run):
                at = together.feed_run(
                    run, at, lambda: failures.append(1), stop_ns=recording.start_ns + 10**9
                )
        now_ns = recording.end_ns
    assert not failures
    assert together.state.taken == one_by_one.state.taken
    assert encode_frame(together.frame(now_ns)) == encode_frame(one_by_one.frame(now_ns))
