"""The history that a recording keeps of itself."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import msgpack
import numpy as np
import pytest

from ddptop.protocol.codec import encode
from ddptop.recording.format import HEADER, HISTORY, MAX_RAW, RecordingError, walk_frames
from ddptop.recording.history import (
    ADDED,
    GROUP,
    NARROW,
    POINTS,
    WIDE,
    HistoryPiece,
    PastEvent,
    history_payload,
    join_pieces,
    pick_points,
    unpack_piece,
)
from ddptop.recording.reader import Recording
from ddptop.recording.writer import Writer
from tests.made_up_run import GIB, a_run

NAN = float("nan")


def points(count: int, first: int = 0) -> dict[str, np.ndarray]:
    """Points whose step time tells the step."""
    step = np.arange(first, first + count, dtype=float)
    columns = dict.fromkeys((*NARROW, *ADDED), step * 0.01)
    return {**columns, "step": step, "time_s": step * 0.02, "step_ms": 20 + step % GROUP}


class Teller:
    """Tells ten points at every question."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def take_back(self) -> None:
        """Not asked for: its disk takes everything."""

    def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
        """The next ten."""
        self.asked.append(final)
        return HistoryPiece(points(10, 10 * len(self.asked)), np.array([1.5, NAN]), ((0.5, "straggler"),))


def test_what_is_written_is_read() -> None:
    late = PastEvent(0.5, "straggler", "warning", 1, 10, "rank 1, data")
    past = HistoryPiece(points(100), np.array([1.5, NAN]), ((0.5, "straggler"), (2.0, "nan")), (late,))
    read = unpack_piece(history_payload(past))[0]
    assert (read.marks, read.events) == (past.marks, past.events)
    assert unpack_piece(history_payload(replace(past, events=None)))[0].events is None, "of an older writer"
    np.testing.assert_equal(read.best_ms, past.best_ms)
    for name in (*WIDE, *NARROW, *ADDED):
        np.testing.assert_allclose(read.points[name], past.points[name], rtol=1e-6)


def test_the_ranks_excess_is_written_in_two_bytes_each_and_read() -> None:
    figures = np.array([[[0.25, NAN], [20.2, 1e9]], [[1.0, NAN], [3.0, -2.0]]])
    past = HistoryPiece(points(100), np.array([1.5, NAN]), (), (), (np.array([4.0, 12.0]), figures))
    payload = history_payload(past)
    read = unpack_piece(payload)[0].excess
    assert read is not None and read[0].tolist() == [4.0, 12.0]
    np.testing.assert_allclose(read[1], np.clip(figures, None, 60_000), rtol=1e-3)
    content = msgpack.unpackb(zlib.decompress(payload))
    assert unpack_piece(zlib.compress(msgpack.packb(content[:5])))[0].excess is None, "of an older writer"
    for wrong in ([b"", b"12"], [b"12345678", b"12"], [content[5][0], b""], [b""], "no columns"):
        with pytest.raises(RecordingError):
            unpack_piece(zlib.compress(msgpack.packb([*content[:5], wrong])))[0]


def test_a_history_of_the_first_version_is_read_and_it_reads_ours() -> None:
    past = HistoryPiece(points(100), np.array([1.5, NAN]), (), ())
    content = msgpack.unpackb(zlib.decompress(history_payload(past)))
    assert len(content[0]) == len(WIDE) + len(NARROW), "more columns here would be refused by 0.1.0"
    read = unpack_piece(zlib.compress(msgpack.packb(content[:4])))[0]
    assert np.isnan(read.points["own_backward_ms"]).all()
    np.testing.assert_allclose(read.points["wait_ms"], past.points["wait_ms"], rtol=1e-6)
    assert len(join_pieces([read.points, past.points])["data_ms"]) == 200


def test_of_a_column_known_in_every_step_each_point_keeps_its_own() -> None:
    columns = {**points(GROUP), "busbw_gbps": np.where(np.arange(GROUP) % 8, NAN, 4.0)}
    chosen = pick_points(columns)
    np.testing.assert_allclose(chosen["wait_ms"], chosen["step"] * 0.01)
    assert chosen["busbw_gbps"].tolist() == [4.0] * len(chosen["step"])


@pytest.mark.parametrize(
    "content",
    [
        None,
        (),
        ([b""] * 9, b"", "no marks"),
        ([b"12345678"] * 8 + [b"1234567"], b"", []),
        ([b"12345678"] * 9, b"", []),
        ([np.array([2.0, 1.0]).tobytes()] * 2 + [b"12345678"] * 7, b"", []),
        ([b""] * 9, b"1", []),
        ([b""] * 9, b"", [(1.0, "a", "b")]),
        ([b""] * 9, b"", [], [(1.0, "a", "info", "one", None, "message")]),
    ],
)
def test_what_no_writer_of_ours_has_made_is_refused(content: object) -> None:
    with pytest.raises(RecordingError):
        unpack_piece(zlib.compress(msgpack.packb(content)))[0]
    with pytest.raises(RecordingError):
        unpack_piece(b"no zlib")


def test_a_group_of_steps_becomes_points_that_show_its_middle_and_its_slow_ones() -> None:
    group = points(GROUP)
    group["wait_ms"] = np.where(np.arange(GROUP) % 8 == 0, 4.0, NAN)
    found = pick_points(group)
    assert len(found["step"]) == POINTS
    assert list(found["step"]) == sorted(found["step"])
    assert np.median(found["step_ms"]) == pytest.approx(np.median(group["step_ms"]), abs=12)
    assert found["step_ms"].max() == pytest.approx(np.percentile(group["step_ms"], 95), abs=2)
    assert found["loss_mean"] == pytest.approx(np.full(POINTS, group["loss_mean"].mean()))
    assert found["wait_ms"] == pytest.approx(np.full(POINTS, 4.0))
    assert pick_points(points(POINTS))["step"].tolist() == [0, 1, 2, 3]


def test_a_loss_that_is_no_number_is_not_averaged_away() -> None:
    group = points(GROUP)
    group["loss_mean"][7], group["loss_max"][7] = NAN, NAN
    assert np.isnan(pick_points(group)["loss_mean"]).sum() == 1
    assert np.isfinite(pick_points(group)["loss_mean"]).any()


def test_it_stands_behind_every_index_and_disturbs_nobody(tmp_path: Path) -> None:
    path, teller = tmp_path / "a.ddptop", Teller()
    records = list(a_run(2000))
    for part, resume in ((records[:200], False), (records[200:], True)):
        writer = Writer(path, limit_bytes=GIB, resume=resume)
        writer.history = teller
        for received in part:
            writer.add(received, encode(received.message))
            writer.flush()
        writer.close()
    assert teller.asked.count(True) == 2
    assert len(teller.asked) > 2
    with Recording.open(path) as recording:
        assert recording.damage is None
        assert list(recording.records()) == records
        pasts = recording.history_pieces()
        assert len(pasts) == len(teller.asked)
        steps = join_pieces([past.points for _, past in pasts])["step"]
        assert steps.tolist() == list(range(10, 10 + len(steps)))
        assert [end_ns for end_ns, _ in pasts] == sorted(end_ns for end_ns, _ in pasts)


def test_what_no_reader_would_take_is_not_written(tmp_path: Path) -> None:
    """It may compress to far less."""

    class LargeTeller(Teller):
        def take(self, *, final: bool, coarser: int = 1) -> HistoryPiece | None:
            """Zeros: of each point 44 bytes."""
            many = {name: np.zeros(MAX_RAW // 40) for name in (*WIDE, *NARROW, *ADDED)}
            return HistoryPiece(many, np.array([1.5, NAN]), ())

    assert history_payload(LargeTeller().take(final=True)) is None
    writer = Writer(tmp_path / "a.ddptop", limit_bytes=GIB)
    writer.history = LargeTeller()
    for received in a_run(300):
        writer.add(received, encode(received.message))
    writer.close()
    with Recording.open(tmp_path / "a.ddptop") as recording:
        assert recording.damage is None
        assert recording.history_pieces() == []
    with (tmp_path / "a.ddptop").open("rb") as stream:
        size = (tmp_path / "a.ddptop").stat().st_size
        assert HISTORY not in {frame.kind for frame in walk_frames(stream.fileno(), 8, size)}


def test_it_is_found_in_a_file_that_grows_and_left_out_where_it_is_damaged(tmp_path: Path) -> None:
    path, teller = tmp_path / "a.ddptop", Teller()
    records = list(a_run(2000))
    writer = Writer(path, limit_bytes=GIB)
    writer.history = teller
    writer.add(records[0], encode(records[0].message))
    writer.flush()
    with Recording.open(path) as recording:
        assert recording.history_pieces() == []
        for received in records[1:]:
            writer.add(received, encode(received.message))
            writer.flush()
        recording.refresh()
        assert len(recording.history_pieces()) == len(teller.asked) > 0
        assert recording.history_pieces() is recording.history_pieces()
    writer.close()
    data = bytearray(path.read_bytes())
    with path.open("rb") as stream:
        first = next(f for f in walk_frames(stream.fileno(), 8, len(data)) if f.kind == HISTORY)
    data[first.offset + HEADER.size] ^= 0xFF
    path.write_bytes(data)
    with Recording.open(path) as recording:
        assert len(recording.history_pieces()) == len(teller.asked) - 1
        assert list(recording.records()) == records
