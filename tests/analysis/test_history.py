"""History: append-only, without holes, never changed under a reader."""

from __future__ import annotations

import numpy as np

from ddptop.frames.history import COLUMNS, History, HistoryStore


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


def test_views_stay_as_they_were_while_the_store_grows_and_forgets() -> None:
    store = HistoryStore(kept=1000)
    early = store.extend(piece(0, 100))
    for start in range(100, 5000, 100):
        store.extend(piece(start, 100))
    assert early.step.tolist() == list(range(100))
    kept = store.since(0)
    assert 1000 <= len(kept.step) <= 1251
    assert kept.start + len(kept.step) == store.end == 5000
    assert kept.step[0] == kept.start
    assert not kept.step.flags.writeable


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
