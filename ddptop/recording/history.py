"""The group's history inside a recording, in few bytes, so that a reader need not read all of the file.

A long run has millions of steps. Of every `GROUP` complete steps a recording keeps `POINTS` as points of the
group's history, selected so that median and slow steps are among them; losses of these points, and what is
known in some steps only, are those of the whole group of steps. With them goes each rank's own best time so
far.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgpack
import numpy as np

from ddptop.protocol.limits import MAX_NS, NS
from ddptop.protocol.since_start import SinceStart, pack_since_start, unpack_since_start
from ddptop.recording.format import HISTORY, MAX_RAW, RecordingError, read_frame
from ddptop.recording.records import UnpackedSize
from ddptop.recording.upgrade import upgrade_history

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.protocol.vocabulary import Severity

    Columns = Mapping[str, NDArray[np.float64]]

GROUP = 64
POINTS = 4
"""A million steps are some 60,000 points, 2 MB: read in a few hundredths of a second."""

WIDE = ("step", "time_s")
NARROW = ("loss_mean", "loss_min", "loss_max", "step_ms", "wait_ms", "transfer_ms", "busbw_gbps")
"""Columns of a point, as in `ddptop.frames.history.History`: float64 and float32."""

ADDED = ("data_ms", "forward_ms", "own_backward_ms", "optimizer_ms", "other_ms")
"""Columns, float32, that 0.1.0 did not record. They are written behind the events, where it does not read."""

SAMPLED = ("wait_ms", "transfer_ms", "own_backward_ms", "busbw_gbps")
"""Columns that may be known in some steps of a group only; then each of its points gets their mean."""

MOST_MARKS = 500
MOST_CHARACTERS = 500
"""Characters of the message of one event at most."""


class PastEvent(NamedTuple):
    """Something that happened, as in `ddptop.frames.frame.LoggedEvent`."""

    at_s: float
    """Since the run began."""
    kind: str
    severity: Severity
    rank: int | None
    step: int | None
    message: str
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class HistoryPiece:
    """Points of the history, oldest first, and what the analysis knew at the last of them."""

    points: Columns
    best_ms: NDArray[np.float64]
    """(ranks,) each rank's own best median self time since its layouts were made; NaN: none yet."""
    marks: tuple[tuple[float, str], ...]
    """(seconds since the run began, kind) of the warnings of the analysis since the last piece."""
    events: tuple[PastEvent, ...] | None = None
    """All that happened since the last piece; None: written by a version that did not record it."""
    excess: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
    """Seconds since the run began (n,), and the ranks' excess, (2, n, ranks) ms: mean and largest of some
    seconds; NaN unknown. None: likewise."""
    since_start: SinceStart | None = None
    """What the analysis knew by then of all steps; None: likewise."""
    ledger: bytes | None = None
    """The sums of the ledger by then, as `ddptop.analysis.ledger.recorded` packs them; None: likewise, or not
    known."""


def pack_piece(past: HistoryPiece) -> bytes:
    """The content of a HISTORY frame: readers take at most MAX_RAW bytes of it."""
    columns = [past.points[name].astype("<f8").tobytes() for name in WIDE]
    columns += [past.points[name].astype("<f4").tobytes() for name in NARROW]
    best = past.best_ms.astype("<f4").tobytes()
    content = [columns, best, list(past.marks[:MOST_MARKS])]
    # In this order, each only with those before it: a reader knows them by their place.
    if past.events is not None:
        events = past.events[:MOST_MARKS]
        content.append([event._replace(message=event.message[:MOST_CHARACTERS]) for event in events])
        content.append([past.points[name].astype("<f4").tobytes() for name in ADDED])
        if past.excess is not None:
            at_s, figures = past.excess
            content.append([at_s.astype("<f8").tobytes(), _pack_float16(figures)])
            if past.since_start is not None:
                content.append(pack_since_start(past.since_start))
                if past.ledger is not None:
                    content.append(past.ledger)
    packed: bytes = msgpack.packb(content)
    return packed


def history_payload(past: HistoryPiece) -> bytes | None:
    """Payload of a HISTORY frame; None: no reader would take so much."""
    packed = pack_piece(past)
    return zlib.compress(packed, 1) if len(packed) <= MAX_RAW else None


def unpack_piece(payload: bytes) -> tuple[HistoryPiece, int]:
    """The piece in such a payload, and how many bytes it has decompressed. Raises RecordingError."""
    try:
        # MAX_RAW bounds what a small payload may unpack to; what is cut off there is no msgpack any more.
        raw = zlib.decompressobj().decompress(payload, MAX_RAW)
    except zlib.error as error:
        raise RecordingError(f"a history does not decompress: {error}") from error
    try:
        parts = msgpack.unpackb(raw, max_ext_len=0, max_map_len=0, use_list=False)
        parts = upgrade_history(parts, len(ADDED))
        columns, best, marks, events, added, excess, since_start, ledger, *_ = parts
        wide = [np.frombuffer(column, "<f8") for column in columns[: len(WIDE)]]
        narrow = [np.frombuffer(column, "<f4") for column in columns[len(WIDE) :]]
        points: dict[str, Any] = dict(zip((*WIDE, *NARROW), [*wide, *narrow], strict=True))
        points |= {name: np.frombuffer(column, "<f4") for name, column in zip(ADDED, added, strict=False)}
        # `zip` would leave a missing column out silently.
        if len(points) != len(WIDE) + len(NARROW) + len(ADDED):
            raise ValueError("columns are missing")
        # The checksum of a frame does not detect a file that was forged.
        if len({len(column) for column in points.values()}) != 1:
            raise ValueError("columns of different lengths")
        # NaN or times that go back would keep whoever draws the history in a loop.
        if not np.isfinite(points["time_s"]).all() or (np.diff(points["time_s"]) < 0).any():
            raise ValueError("times that are not in order")
        if len(points["time_s"]) and not 0 <= points["time_s"][-1] < MAX_NS / 1e9:
            raise ValueError("a time that cannot be")
        checked = tuple((float(at_s), str(kind)) for at_s, kind in marks[:MOST_MARKS])
        best_ms = np.frombuffer(best, "<f4").astype(np.float64)
        piece = HistoryPiece(
            points,
            best_ms,
            checked,
            None if events is None else tuple(_make_event(*fields) for fields in events[:MOST_MARKS]),
            None if excess is None else _unpack_excess(excess, len(best_ms)),
            None if since_start is None else unpack_since_start(since_start),
            ledger if isinstance(ledger, bytes) else None,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RecordingError(f"a history cannot be read: {error}") from error
    return piece, len(raw)


def _make_event(
    at_s: float,
    kind: str,
    severity: str,
    rank: int | None,
    step: int | None,
    message: str,
    incarnation: int,
) -> PastEvent:
    where, when = (None if number is None else int(number) for number in (rank, step))
    message = str(message)[:MOST_CHARACTERS]
    return PastEvent(
        float(at_s), str(kind), cast("Severity", str(severity)), where, when, message, int(incarnation)
    )


def _pack_float16(figures: NDArray[np.float64]) -> bytes:
    """Two bytes each: three digits are enough for a chart, and more than a minute counts as a minute."""
    return np.clip(figures, -60_000, 60_000).astype("<f2").tobytes()


def _unpack_excess(columns: Sequence[bytes], ranks: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    at_s, figures = columns
    times = np.frombuffer(at_s, "<f8").astype(np.float64)
    if not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise ValueError("times that are not in order")
    return times, np.frombuffer(figures, "<f2").astype(np.float64).reshape(2, len(times), ranks)


def pick_points(points: Columns) -> dict[str, NDArray[np.float64]]:
    """At most `POINTS` points for one group of steps: usual steps and a slow one, by step time.

    Their losses and waits are those of all steps of the group."""
    count = len(points["step"])
    if count <= POINTS:
        return {name: np.asarray(column, np.float64) for name, column in points.items()}
    order = np.argsort(points["step_ms"], kind="stable")
    slow = count - 1 - (count - 1) // 20  # the slowest but for one step in twenty: the group's p95
    # A sixth, a half, five sixths: usual steps, evenly spread by their time; and the slow one.
    places = np.unique([order[count // 6], order[count // 2], order[(5 * count) // 6], order[slow]])
    chosen = {name: np.asarray(column, np.float64)[places] for name, column in points.items()}
    # Losses of a diverged run are infinite, which is no reason to warn.
    with np.errstate(invalid="ignore", over="ignore"):
        for name in SAMPLED:
            finite_values = points[name][np.isfinite(points[name])]
            if len(finite_values) < count:
                chosen[name][:] = finite_values.mean() if len(finite_values) else np.nan
        means = points["loss_mean"]
        finite = means[np.isfinite(means)]
        chosen["loss_mean"][:] = finite.mean() if len(finite) else np.nan
        chosen["loss_min"][:] = np.fmin.reduce(points["loss_min"])
        chosen["loss_max"][:] = np.fmax.reduce(points["loss_max"])
    # A NaN or Inf loss must not be averaged away.
    bad = np.flatnonzero(np.isinf(means) | (np.isnan(means) & np.isnan(points["loss_max"])))
    if len(bad) and len(finite):
        chosen["loss_mean"][-1] = means[bad[0]]
    return chosen


def join_pieces(pieces: Sequence[Columns]) -> dict[str, NDArray[np.float64]]:
    """The points of several pieces, one after the other."""
    names = (*WIDE, *NARROW, *ADDED)
    if not pieces:
        return {name: np.empty(0) for name in names}
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in names}


UNPACKED_BYTES = 64 << 20
"""As `records.UNPACKED_BYTES`, of all pieces: those of a month take 100 MB, and compress to a half."""


class HistoryPieces:
    """The pieces in one file, kept once they are read. A damaged one is left out."""

    def __init__(self, descriptor: int) -> None:
        """The descriptor is the caller's to close."""
        self._descriptor = descriptor
        self._unpacked = UnpackedSize(UNPACKED_BYTES)
        self._read = 0
        self._pieces: list[tuple[int, HistoryPiece]] = []

    def up_to(self, offsets: Sequence[int], began_ns: int) -> list[tuple[int, HistoryPiece]]:
        """(last moment that it covers, HistoryPiece) for every piece, oldest first.

        `offsets`: where in the file they are, as far as that is known by now; `began_ns`: when the run began.
        Raises TooMuchUnpacked.
        """
        # A recording that grows is asked again: only what is new is read.
        for offset in offsets[self._read :]:
            frame = read_frame(self._descriptor, offset)
            if frame is None or frame.kind != HISTORY:
                continue
            try:
                past, n_bytes = unpack_piece(frame.payload)
            except RecordingError:
                continue
            self._unpacked.note_part(offset, len(frame.payload), n_bytes)
            if len(past.points["time_s"]):
                self._pieces.append((began_ns + int(past.points["time_s"][-1] * NS), past))
        self._read = len(offsets)
        return self._pieces
