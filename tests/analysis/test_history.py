"""History: append-only, without holes, never changed under a reader; older steps in bins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptop.analysis.reducer import Reducer
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.frame import Frame
from ddptop.frames.history import BIN_COLUMNS, COLUMNS, KEPT_POINTS, MOST_BINS, History, HistoryStore
from tests.made_up_run import NS, START_NS, World, feed_together


def piece(start: int, count: int) -> History:
    numbers = np.arange(start, start + count, dtype=float)
    return History(start=start, **dict.fromkeys(COLUMNS, numbers))


def test_pieces_join_and_overlaps_are_skipped() -> None:
    store = HistoryStore()
    store.extend(piece(0, 10))
    kept = store.extend(piece(5, 10))
    assert kept.start == 0
    assert kept.step.tolist() == list(range(15))
    assert store.extend(piece(3, 2)).step.tolist() == list(range(15))


def test_a_hole_starts_anew_rather_than_lie() -> None:
    store = HistoryStore()
    store.extend(piece(0, 10))
    kept = store.extend(piece(20, 5))
    assert (kept.start, kept.step.tolist()) == (20, [20, 21, 22, 23, 24])


def test_views_stay_as_they_were_while_the_store_grows_and_makes_bins() -> None:
    store = HistoryStore(kept=1000)
    early = store.extend(piece(0, 100))
    for start in range(100, 5000, 100):
        store.extend(piece(start, 100))
    assert early.step.tolist() == list(range(100))
    kept = store.since(0)
    single = kept.step[kept.early :]
    assert 1000 <= len(single) <= 1251
    assert kept.start + len(kept.step) == store.end == 5000
    assert single[0] == kept.start + kept.early == store.first
    assert not kept.step.flags.writeable


def noisy(start: int, count: int) -> dict[str, np.ndarray]:
    """Steps of 10 ms and one of 900 ms; a loss that is once no number; bandwidth of every fourth step."""
    step = np.arange(start, start + count, dtype=float)
    columns = dict.fromkeys(COLUMNS, 10.0 + step % 4)
    columns |= {"step": step, "time_s": step * 0.01, "busbw_gbps": np.where(step % 4, np.nan, 8.0)}
    columns["loss_mean"] = np.where(step == 777, np.nan, 2.0)
    columns["step_ms"] = np.where(step == 333, 900.0, 10.0 + step % 4)
    return {name: column for name, column in columns.items() if name not in BIN_COLUMNS}


def test_older_steps_are_bins_with_mean_least_and_largest() -> None:
    store = HistoryStore()
    for start in range(0, 400_000, 500):
        store.append(noisy(start, 500))
    kept = store.since(0)
    early = slice(0, kept.early)
    assert 3_000 < kept.early <= MOST_BINS
    assert KEPT_POINTS <= len(kept.step) - kept.early <= KEPT_POINTS * 5 // 4 + 1
    assert sum(getattr(kept, name).nbytes for name in COLUMNS) < 262_144 * 64 / 10, "a tenth of single steps"
    assert (np.diff(kept.step) > 0).all() and kept.step[kept.early - 1] == store.first - 1
    assert np.diff(kept.step[early]).max() < 2 * 400_000 / (MOST_BINS / 2), "nowhere coarser than elsewhere"
    assert np.diff(kept.step[early])[-100:].max() < 65, "the newer ones are shorter"
    assert kept.step_max_ms.max() == 900.0 and kept.step_ms[early].max() < 14.0, "one long step is not lost"
    assert np.isnan(kept.loss_mean[early]).sum() == 1
    np.testing.assert_allclose(kept.wait_ms[early], 11.5)
    np.testing.assert_allclose(kept.step_min_ms[early], 10.0)
    np.testing.assert_allclose(kept.step_ms[early], 11.5, atol=0.2)
    np.testing.assert_allclose(kept.busbw_gbps[early], 8.0)
    assert (kept.step_p95_ms[early][kept.step_max_ms[early] < 100] > 12.9).all()


def test_a_restart_begins_another_bin() -> None:
    store = HistoryStore(kept=10)
    for _ in range(3):
        store.append(noisy(0, 90))
    kept = store.since(0)
    falls = np.flatnonzero(np.diff(kept.step) < 0)
    assert kept.step[falls].tolist() == [89.0, 89.0]
    assert kept.step[falls + 1].tolist() == [15.0, 15.0]


def test_who_joins_late_gets_the_bins_over_the_wire(frame: Frame) -> None:
    """In pieces, while steps are added; then each follows in the same way."""
    store, viewer = HistoryStore(), HistoryStore()
    for start in range(0, 60_000, 500):
        store.append(noisy(start, 500))
    for start in range(60_000, 80_000, 500):
        sent = FrameDecoder().decode(encode_frame(replace(frame, history=store.since(viewer.end)))).history
        shown = viewer.extend(sent)
        assert shown.start + len(shown.step) == viewer.end
        store.append(noisy(start, 500))
    shown, kept = viewer.extend(store.since(viewer.end)), store.since(0)
    assert (viewer.end, shown.step[-1]) == (store.end, kept.step[-1])
    assert (np.diff(shown.step) > 0).all()
    assert shown.step_max_ms.max() == 900.0
    assert abs(len(shown.step) - len(kept.step)) < KEPT_POINTS


@pytest.fixture
def frame(make_world: type[World]) -> Frame:
    world, reducer = make_world(2), Reducer()
    feed_together(reducer, [world.run(), *world.introduce(), *world.steps(3)])
    return reducer.frame(START_NS + NS)


def test_since_gives_what_was_added_after_a_cursor() -> None:
    store = HistoryStore()
    store.extend(piece(0, 10))
    assert store.since(7).step.tolist() == [7, 8, 9]
    assert store.since(10).step.tolist() == []
    assert store.since(10).start == 10
    assert store.since(11).start == 0, "the cursor of another history"


def test_a_piece_larger_than_what_is_kept() -> None:
    store = HistoryStore(kept=100)
    kept = store.extend(piece(0, 5000))
    assert kept.step[-1] == 4999
    assert kept.start + len(kept.step) == 5000
