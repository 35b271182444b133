"""The sums of the ledger as a recording keeps them, for one who reads only its last steps.

A piece of the recorded history has all sums at one moment, except for the bins of the last minutes: it has
those that have changed since the piece before it.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack
import numpy as np

from ddptop.analysis.ledger.dear_times import N_ROWS, NO_KIND, RECORDED, DearTimes
from ddptop.analysis.ledger.step_times import STEP_CLASSES, WAIT_PLACES
from ddptop.analysis.ledger.sums import (
    DEAR_STEPS,
    NO_BIN,
    RECENT_BINS,
    RUN_BINS,
    DearSum,
    KindWaits,
    MarkedSpan,
    Resumed,
    TimeBin,
    WaitSum,
)
from ddptop.analysis.ledger.witnesses import RANK, RECORDED_ROWS
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.protocol.limits import MAX_WORLD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.ledger.dear_times import DearSums
    from ddptop.analysis.ledger.step_times import AsidePlace
    from ddptop.analysis.ledger.sums import RunLedger, WaitSums
    from ddptop.frames.columns import Column
    from ddptop.protocol.since_start import SinceStart
    from ddptop.protocol.vocabulary import OwnPlace

    Integers = NDArray[np.int64]

_T = TypeVar("_T")

VERSION = 6
"""Version of the layout, and of what the sums mean. A reader takes no sums of later versions."""

SCALES_DEAR = 2
"""From this version on, dear steps that were left out are divided like recorded ones. The run's settings say
with which version its ledger began: a recording of an earlier one shows what it showed then."""

MEASURES_ASIDE = 3
"""From this version on, an evaluation is as long as its rank has measured it (`RunLedger.measures_aside`)."""

SAME_LENGTH = 4
"""From this version on, rare waits for a rank and for others count from the same length on (`RareWaits`)."""

MARKS_THE_END = 5
"""From this version on, what a rank did after its last step is no longer all `end` (`marks_the_end`)."""

TAKES_WITNESSES = 6
"""From this version on, heartbeats say what a long step was that was left out (`witnesses.py`)."""

VERSION_LENGTHS = {1: 10, 2: 11, 3: 11, 4: 11, 5: 11, VERSION: 12}
"""Parts of the sums of each version."""

STEPS_APART = 32
"""Least steps between two recorded sums: those of a rank take as much as a step of it."""

WAIT_NUMBERS, WAIT_COUNTS = ("usual_ms", "other_ms", "longest_ms"), ("n_steps", "longest_step")
"""Fields of a WaitSum: floats and integers."""

DEAR_NUMBERS = ("longest_ms", "since_s", "until_s")
"""Floats of a DearSum."""

PLACES_OF_MARKS: tuple[AsidePlace, ...] = ("evaluation", "phase", "saving", "compiling")
"""A mark is recorded with the index of its place here, so none may move."""


def pack_ledger(ledger: RunLedger, since_bin: int, *, with_heartbeats: bool = True) -> bytes:
    """The sums of all complete steps. `since_bin`: number of the newest bin of the last minutes that an
    earlier piece has; NO_BIN: none has any. `with_heartbeats`: with what tells of the running step."""
    bins = [time_bin for time_bin in ledger.recent_bins if time_bin.number >= since_bin]
    marks = [
        (mark.rank, mark.begin_ns, mark.end_ns, PLACES_OF_MARKS.index(mark.place), mark.data_ns, mark.phase)
        for mark in ledger.marks
    ]
    usual = ledger.usual_length
    content = [
        VERSION,
        [LEDGER_CLASSES, STEP_CLASSES, WAIT_PLACES],
        [*map(_pack_floats, (ledger.by_class, ledger.usual, ledger.usual_total, ledger.left_out))],
        [*map(_pack_integers, (ledger.end_ns, ledger.session, ledger.shift_ns))],
        [ledger.n_steps, ledger.run_bin_s, usual.usual_ms, usual.is_first, _pack_floats(usual.newest)],
        _pack_bins(ledger.run_bins),
        _pack_waits([ledger.waits]),
        [_pack_integers(marks), _pack_integers([*ledger.declared.items()])],
        since_bin,
        [_pack_bins(bins), _pack_waits([time_bin.waits for time_bin in bins])],
        [
            _pack_dear_times([ledger.dear]),
            _pack_dear_times([time_bin.dear for time_bin in ledger.run_bins]),
            _pack_dear_times([time_bin.dear for time_bin in bins]),
        ],
        _pack_integers(ledger.heartbeats.columns()[:RECORDED_ROWS]) if with_heartbeats else b"",
    ]
    packed: bytes = msgpack.packb(content)
    return packed


def resume_ledger(ledger: RunLedger, pieces: Sequence[tuple[SinceStart, bytes]]) -> bool:
    """Put the recorded sums into a ledger, which goes on behind them; False: they cannot be read.

    `pieces`: what was known at each recorded moment, oldest first; the last one is where it goes on. Empty:
    it begins with the launch."""
    if not pieces:
        ledger.is_known = True
        return True
    try:
        _put_back(ledger, [packed for _, packed in pieces])
    except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException):
        return False
    since_start = pieces[-1][0]
    ledger.resumed = Resumed(since_start.at_ns, since_start.incarnation, since_start.step)
    ledger.is_known = True
    return True


def _put_back(ledger: RunLedger, pieces: Sequence[bytes]) -> None:
    """Raises ValueError, TypeError, KeyError, IndexError or UnpackException for what was not recorded so."""
    version, names, floats, integers, numbers, run_bins, waits, marks, _, _, *later = _unpack(pieces[-1])
    classes, step_classes, places = names
    left_out = _read_floats(floats[3])
    n_ranks = len(left_out)
    if n_ranks > MAX_WORLD:
        raise ValueError("too many ranks")
    by_class = _read_rows(
        floats[0], n_ranks, [LEDGER_CLASSES.index(name) for name in classes], len(LEDGER_CLASSES)
    )
    step_rows = [STEP_CLASSES.index(name) for name in step_classes]
    usual = _read_rows(floats[1], n_ranks, step_rows, len(STEP_CLASSES))
    usual_total = _read_floats(floats[2], n_ranks)
    end_ns, session, shift_ns = (_read_integers(column, n_ranks) for column in integers)
    n_steps, run_bin_s, usual_ms, is_first, newest = numbers
    bins = _read_bins(run_bins)
    if len(bins) > RUN_BINS or not 0 < float(run_bin_s) < np.inf:
        raise ValueError("no bins of a run")
    (of_run,) = _read_waits(waits, places, version)
    dear_of_run: list[DearSums] = [{}]
    for of_runs, of_run_bins, _ in later[:1]:
        dear_of_run = _read_dear_times(of_runs, 1, n_ranks, step_rows)
        for time_bin, sums in zip(bins, _read_dear_times(of_run_bins, len(bins), 1, step_rows), strict=True):
            time_bin.dear = sums
    recent = _join_recent(pieces)
    n_of_mark = 6 if version >= MEASURES_ASIDE else 4
    mark_rows, declared = (
        _read_integers(column).reshape(-1, n) for column, n in zip(marks, (n_of_mark, 2), strict=True)
    )
    ledger.marks = [
        MarkedSpan(rank, begin_ns, end_ns, PLACES_OF_MARKS[place], *more)
        for rank, begin_ns, end_ns, place, *more in mark_rows.tolist()
    ]
    ledger.declared = dict(zip(*declared.T.tolist(), strict=True)) if len(declared) else {}
    heartbeats = _read_integers(b"".join(later[1:])).reshape(RECORDED_ROWS, -1)
    if (heartbeats[RANK] < 0).any():
        raise ValueError("no such ranks")
    ledger.heartbeats.put_back(heartbeats)
    ledger.by_class, ledger.usual, ledger.usual_total, ledger.left_out = (
        by_class,
        usual,
        usual_total,
        left_out,
    )
    ledger.end_ns, ledger.session, ledger.shift_ns = end_ns, session, shift_ns
    ledger.n_steps, ledger.run_bin_s = int(n_steps), float(run_bin_s)
    ledger.usual_length.usual_ms, ledger.usual_length.is_first = float(usual_ms), is_first is True
    ledger.usual_length.newest = _read_floats(newest).tolist()
    ledger.run_bins, ledger.waits, (ledger.dear,) = bins, of_run, dear_of_run
    ledger.recent_bins = deque(recent, maxlen=RECENT_BINS)


def _join_recent(pieces: Sequence[bytes]) -> list[TimeBin]:
    """The bins of the last minutes, oldest first. Raises ValueError where a piece between is missing."""
    bins: dict[int, TimeBin] = {}
    least = None
    for packed in reversed(pieces):
        version, (_, step_classes, places), *_, since_bin, (of_bins, waits) = _unpack(packed)[:10]
        read_bins = _read_bins(of_bins)
        if least is not None and (not read_bins or read_bins[-1].number < least):
            raise ValueError("bins are missing")
        for time_bin, sums in zip(read_bins, _read_waits(waits, places, version), strict=True):
            time_bin.waits = sums
            bins.setdefault(time_bin.number, time_bin)
        for *_, of_recent_bins in _unpack(packed)[10:11]:
            rows = [STEP_CLASSES.index(name) for name in step_classes]
            dear = _read_dear_times(of_recent_bins, len(read_bins), 1, rows)
            for time_bin, sums_of_bin in zip(read_bins, dear, strict=True):
                time_bin.dear = sums_of_bin
        if since_bin == NO_BIN or len(bins) > RECENT_BINS:
            return [bins[number] for number in sorted(bins)]
        least = since_bin
    raise ValueError("bins are missing")


def _unpack(packed: bytes) -> list[Any]:
    content: list[Any] = msgpack.unpackb(packed, max_ext_len=0, max_map_len=0)
    version = content[0] if isinstance(content, list) and content else None
    n_parts = VERSION_LENGTHS.get(version) if isinstance(version, int) else None
    if n_parts is None or len(content) < n_parts:
        raise ValueError("sums of another version")
    return content[:n_parts]


def _pack_floats(values: Column | Sequence[float]) -> bytes:
    return np.asarray(values, "<f8").tobytes()


def _pack_integers(values: Integers | Sequence[object]) -> bytes:
    return np.asarray(values, "<i8").tobytes()


def _read_floats(data: bytes, n: int | None = None) -> Column:
    values = np.frombuffer(data, "<f8").astype(np.float64)
    if (n is not None and len(values) != n) or not np.isfinite(values).all():
        raise ValueError("no such sums")
    return values


def _read_integers(data: bytes, n: int | None = None) -> Integers:
    values = np.frombuffer(data, "<i8").astype(np.int64)
    if n is not None and len(values) != n:
        raise ValueError("no such numbers")
    return values


def _read_rows(data: bytes, n_ranks: int, rows: Sequence[int], n_rows: int) -> Column:
    """(n_rows, ranks): those that are there are at `rows`."""
    values = np.zeros((n_rows, n_ranks))
    values[rows] = _read_floats(data, len(rows) * n_ranks).reshape(len(rows), n_ranks)
    return values


BIN_FIELDS = 7
"""Numbers of a bin (`TimeBin.numbers`)."""


def _pack_bins(bins: Sequence[TimeBin]) -> bytes:
    return _pack_floats([number for time_bin in bins for number in time_bin.numbers])


def _read_bins(data: bytes) -> list[TimeBin]:
    rows = _read_floats(data).reshape(-1, BIN_FIELDS).tolist()
    bins = [TimeBin.of(int(number), sums) for number, *sums in rows]
    if any(later.number <= earlier.number for earlier, later in pairwise(bins)):
        raise ValueError("bins that are not in order")
    return bins


def _pack_waits(several: Sequence[WaitSums]) -> list[bytes]:
    """Sums by rank and place, one collection after the other."""
    waits = [wait for sums in several for wait in sums.values()]
    dear = [(power, dear) for wait in waits for power, dear in wait.dear.items()]
    return [
        _pack_integers([len(sums) for sums in several]),
        _pack_integers([divmod(key, len(WAIT_PLACES)) for sums in several for key in sums]),
        _pack_floats([getattr(wait, name) for wait in waits for name in WAIT_NUMBERS]),
        _pack_integers([getattr(wait, name) for wait in waits for name in WAIT_COUNTS]),
        _pack_integers([len(wait.dear) for wait in waits]),
        _pack_integers([(power, len(dear.of_kinds), len(dear.steps)) for power, dear in dear]),
        _pack_floats([getattr(dear, name) for _, dear in dear for name in DEAR_NUMBERS]),
        _pack_integers([step for _, dear in dear for step in dear.steps]),
        _pack_integers(
            [(kind, of_kind.n_steps) for _, dear in dear for kind, of_kind in dear.of_kinds.items()]
        ),
        _pack_floats([of_kind.rank_ms for _, dear in dear for of_kind in dear.of_kinds.values()]),
    ]


def _pack_dear_times(several: Sequence[DearSums]) -> list[bytes]:
    """Dear steps by kind, one collection after the other."""
    times = [(kind, of_kind) for sums in several for kind, of_kind in sums.items()]
    return [
        _pack_integers([len(sums) for sums in several]),
        _pack_integers([(kind, of_kind.n_recorded, of_kind.n_left_out) for kind, of_kind in times]),
        b"".join(_pack_floats(of_kind.sums) for _, of_kind in times),
    ]


def _read_dear_times(
    packed: Sequence[bytes], n_sums: int, n_ranks: int, rows: Sequence[int]
) -> list[DearSums]:
    """`n_sums` collections, in the columns of which are so many ranks; `rows`: of the recorded classes."""
    sizes, heads = _read_integers(packed[0], n_sums), _read_integers(packed[1]).reshape(-1, 3)
    rows = [*rows, *range(RECORDED, N_ROWS)]
    recorded = _read_floats(packed[2], len(heads) * len(rows) * n_ranks)
    sums = np.zeros((len(heads), N_ROWS, n_ranks))
    sums[:, rows] = recorded.reshape(len(heads), len(rows), n_ranks)
    times = [
        (kind, DearTimes(n_recorded, n_left_out, of_kind))
        for (kind, n_recorded, n_left_out), of_kind in zip(heads.tolist(), sums, strict=True)
    ]
    return [*map(dict, _split(times, sizes))]


def _read_waits(packed: Sequence[bytes], places: Sequence[OwnPlace], version: int) -> list[WaitSums]:
    sizes, keys, counts, n_dear = (_read_integers(packed[i]) for i in (0, 1, 3, 4))
    n = len(n_dear)
    numbers = _read_floats(packed[2], n * len(WAIT_NUMBERS)).reshape(n, len(WAIT_NUMBERS)).tolist()
    counts = counts.reshape(n, len(WAIT_COUNTS))
    keys = keys.reshape(n, 2)
    if not ((keys >= 0) & (keys < (MAX_WORLD, len(places)))).all():
        raise ValueError("no such waits")
    of_place = [WAIT_PLACES.index(place) for place in places]
    waits: list[tuple[int, WaitSum]] = []
    read_dear_sums = _read_dear_sums_without_kinds if version == 1 else _read_dear_sums
    dear_sums = _split(read_dear_sums(packed[5:]), n_dear)
    for (rank, place), floats, integers, dear in zip(
        keys.tolist(), numbers, counts.tolist(), dear_sums, strict=True
    ):
        usual_ms, other_ms, longest_ms = floats
        wait = WaitSum(usual_ms, other_ms, integers[0], longest_ms, integers[1], dict(dear))
        waits.append((rank * len(WAIT_PLACES) + of_place[place], wait))
    return [*map(dict, _split(waits, sizes))]


def _read_dear_sums(packed: Sequence[bytes]) -> list[tuple[int, DearSum]]:
    heads = _read_integers(packed[0]).reshape(-1, 3)
    floats = _read_floats(packed[1], len(heads) * len(DEAR_NUMBERS)).reshape(len(heads), len(DEAR_NUMBERS))
    steps = _split(_read_integers(packed[2]).tolist(), heads[:, 2])
    kinds = _read_integers(packed[3]).reshape(-1, 2).tolist()
    waits = [
        (kind, KindWaits(n_steps, rank_ms))
        for (kind, n_steps), rank_ms in zip(kinds, _read_floats(packed[4]).tolist(), strict=True)
    ]
    of_kinds = _split(waits, heads[:, 1])
    return [
        (power, DearSum(dict(of_power), longest_ms, since_s, until_s, deque(newest, DEAR_STEPS)))
        for (power, _, _), (longest_ms, since_s, until_s), newest, of_power in zip(
            heads.tolist(), floats.tolist(), steps, of_kinds, strict=True
        )
    ]


def _read_dear_sums_without_kinds(packed: Sequence[bytes]) -> list[tuple[int, DearSum]]:
    """Sums of version 1: the kinds of their steps are not known."""
    heads = _read_integers(packed[0]).reshape(-1, 3)
    floats = _read_floats(packed[1], 4 * len(heads)).reshape(-1, 4)
    steps = _split(_read_integers(packed[2]).tolist(), heads[:, 2])
    sums: list[tuple[int, DearSum]] = []
    for (power, n_steps, _), numbers, newest in zip(heads.tolist(), floats.tolist(), steps, strict=True):
        longest_ms, rank_ms, since_s, until_s = numbers
        of_kinds = {NO_KIND: KindWaits(n_steps, rank_ms)}
        sums.append((power, DearSum(of_kinds, longest_ms, since_s, until_s, deque(newest, DEAR_STEPS))))
    return sums


def _split(values: Sequence[_T], sizes: Integers) -> list[Sequence[_T]]:
    """The values in parts of these sizes. Raises ValueError where they are others."""
    if (sizes < 0).any() or sizes.sum() != len(values):
        raise ValueError("parts of other sizes")
    ends = np.cumsum(sizes).tolist()
    return [values[end - size : end] for size, end in zip(sizes.tolist(), ends, strict=True)]
