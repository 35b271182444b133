"""The history points that the collector writes."""

from __future__ import annotations

import numpy as np

from ddptop.analysis.reducer import Reducer
from ddptop.collector.new_history import LOST, NewHistory
from ddptop.protocol.messages import Steps
from ddptop.recording.history import GROUP, POINTS
from tests.made_up_run import a_run


def test_whole_groups_first_and_the_rest_at_the_end() -> None:
    reducer = Reducer()
    past = NewHistory(reducer)
    assert past.take(final=True) is None
    records = list(a_run(300))
    for received in records[:160]:
        reducer.feed(received)
    told = past.take(final=False)
    assert told is not None
    assert len(told.points["step"]) % POINTS == 0
    assert past.take(final=False) is None, "no whole group more"
    for received in records[160:]:
        reducer.feed(received)
    rest = past.take(final=True)
    assert rest is not None
    seen = np.concatenate([told.points["step"], rest.points["step"]])
    assert (np.diff(seen) > 0).all()
    assert np.diff(seen).max() < GROUP
    assert seen[-1] >= 300 - GROUP
    assert np.isfinite(rest.best_ms).all()
    assert len(rest.best_ms) == 2
    assert ("straggler" in {kind for _, kind in (*told.marks, *rest.marks)}) is (
        reducer.state.figures.straggler == 1
    )
    assert past.take(final=True) is None


def test_losses_leave_a_mark_once() -> None:
    reducer = Reducer()
    past = NewHistory(reducer)
    for received in a_run(300):
        message = received.message
        if isinstance(message, Steps) and message.first_step == 100 and received.rank == 1:
            continue
        reducer.feed(received)
    told = past.take(final=True)
    assert told is not None
    [at_s] = [at for at, kind in told.marks if kind == LOST]
    assert at_s == told.points["time_s"][-1] or at_s > 2.0


def test_steps_that_are_in_bins_by_now_are_not_left_out() -> None:
    reducer = Reducer(history_points=64)
    past = NewHistory(reducer)
    for received in a_run(300):
        reducer.feed(received)
    told = past.take(final=True)
    assert told is not None
    steps = told.points["step"]
    assert steps[0] < GROUP and (np.diff(steps) > 0).all() and np.diff(steps).max() < GROUP
    assert steps[-1] >= 300 - GROUP
