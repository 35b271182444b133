"""The history points that the collector writes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptop.analysis.ledger.recorded import pack_ledger, resume_ledger
from ddptop.analysis.ledger.sums import NO_BIN
from ddptop.analysis.reducer import Reducer
from ddptop.collector import new_history
from ddptop.collector.new_history import LENGTH_BYTES, LOST, NewHistory
from ddptop.protocol.messages import Phase, Steps
from ddptop.recording.history import GROUP, POINTS, history_payload, pack_piece, unpack_piece
from tests.analysis.test_ledger import run_world
from tests.analysis.test_left_out_dear import begun
from tests.made_up_run import World, a_run, feed_together


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


def hanging_run(n_ranks: int, n_beats: int) -> Reducer:
    """Some steps, and one that does not end, with so many heartbeats of each rank."""
    world = World(n_ranks, own=True)
    reducer = begun(world)
    run_world(world, reducer, 100)
    since_ns = world.host_ns(world.host(0), world.now_us)
    values = {"step": 100, "phase": int(Phase.BACKWARD), "sequence": 300, "since_ns": since_ns}
    beats_us = [world.now_us + 500_000 + 700_000 * beat for beat in range(n_beats)]
    feed_together(
        reducer, [world.progress(rank, at_us, **values) for at_us in beats_us for rank in range(n_ranks)]
    )
    reducer.state.settle()
    return reducer


def test_the_sums_of_a_run_that_hangs_are_written_so_that_they_are_read() -> None:
    piece = NewHistory(hanging_run(4, 500)).take(final=True)
    assert piece is not None
    payload = history_payload(piece)
    assert payload is not None
    read = unpack_piece(payload)[0]
    assert read.since_start is not None and read.ledger is not None
    again = Reducer(tail=True)
    assert resume_ledger(again.state.ledger, [(read.since_start, read.ledger)])
    assert again.state.ledger.heartbeats.columns().shape[1] == 2 * 4


def test_where_they_do_not_fit_heartbeats_are_left_out_and_then_the_sums(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reducer = hanging_run(2, 2)
    ledger = reducer.state.ledger
    whole, without = (pack_ledger(ledger, NO_BIN, with_heartbeats=has) for has in (True, False))
    assert len(without) < len(whole)
    piece = NewHistory(reducer).take(final=True)
    assert piece is not None and piece.ledger == whole
    rest_bytes = len(pack_piece(replace(piece, ledger=None))) + LENGTH_BYTES
    for room, packed in ((len(whole), whole), (len(whole) - 1, without), (len(without) - 1, None)):
        monkeypatch.setattr(new_history, "MAX_RAW", rest_bytes + room)
        fitting = NewHistory(reducer).take(final=True)
        assert fitting is not None and fitting.ledger == packed
        assert len(pack_piece(fitting)) <= rest_bytes + room


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
