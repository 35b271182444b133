"""Frames as bytes, for the credit link: msgpack arrays in field order, columns as little-endian floats.

The dataclasses in `frames` are the format: each field is written and checked by its annotation, as number,
text, part (another dataclass) or list of parts. A list of parts that hold only scalars and lists of numbers
is written field by field: the first field of all parts, then the second.

A far end may lie. So what is decoded is checked: words are of the vocabulary that the annotation names, texts
have no control characters, and dates exist. Numbers are finite unless the field is in `MAY_BE_INFINITE`.
"""

from __future__ import annotations

import zlib
from dataclasses import fields, replace
from functools import cache, lru_cache
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, get_args, get_origin

import msgpack
import numpy as np

from ddptop.frames import (
    activity,
    causes,
    conditions,
    detail,
    frame,
    hosts,
    ledger,
    overhead,
    process_groups,
    sampled_stack,
    stall,
    start,
)
from ddptop.frames import frame as frames
from ddptop.frames.figures import RANK_FIGURES, Ranks
from ddptop.frames.history import WIDE as HISTORY_WIDE
from ddptop.frames.history import History, RankMinutes, RankSteps
from ddptop.protocol import limits, ranges, vocabulary
from ddptop.protocol.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ddptop.frames.columns import Column


CLOSED_SETS = {
    name: getattr(module, name)
    for module in (vocabulary, activity, causes, conditions, start)
    for name in module.NAMES
}
"""The closed sets of texts, by their names in annotations."""

_KINDS: Mapping[str, frozenset[type]] = {
    "int": frozenset((int,)),
    "float": frozenset((int, float)),
    "bool": frozenset((bool,)),
    **dict.fromkeys(("str", *CLOSED_SETS), frozenset((str,))),
}

SCALARS = {**_KINDS, **{f"{kind} | None": types | {type(None)} for kind, types in _KINDS.items()}}
"""By annotation of a scalar, the types of its values as they arrive."""

WORDS: Mapping[str, frozenset[str | None]] = {
    annotation: frozenset(get_args(closed)) | more
    for name, closed in CLOSED_SETS.items()
    for annotation, more in ((name, frozenset()), (f"{name} | None", frozenset((None,))))
}
"""By annotation of a text of the vocabulary, the texts that it may be."""

TEXT_KINDS = frozenset({"str", "str | None"})

MAY_BE_INFINITE = {
    *(name for name, figure in RANK_FIGURES.items() if figure.may_be_infinite),
    "loss_mean",
    "loss_min",
    "loss_max",
    "value",
    "low",
    "middle",
    "high",
    "mean",
    "min",
    "max",
    "focus",
    "least",
    "largest",
}
"""Numbers of the training itself: a loss, what it logs, and both in a heat map."""

ALWAYS_KNOWN = frozenset({"time_s"})
"""Columns without NaN: the axis of a chart."""

MOMENTS = frozenset({"unix_s", "started_at", "since_s", "until_s", "at_s", "taken_s"})
"""Fields in Unix seconds."""

FIRST_MOMENT_S, LAST_MOMENT_S = -60_000_000_000.0, 250_000_000_000.0
"""Their range. These are in the years 68 and 9892: a calendar has both dates in every time zone."""

MOST_S = 1e12
"""Longest time in seconds. A moment plus this is still one that localtime takes."""

MOST = 1e18
"""Largest absolute value of other numbers: no figure of a run comes near it, and sums stay finite."""


@cache
def _range_of(name: str) -> tuple[float, float]:
    """The least and the largest number in a field of this name; NaN is in no field."""
    if name in MOMENTS:
        return FIRST_MOMENT_S, LAST_MOMENT_S
    most = MOST_S if name.endswith("_s") else MOST
    return -most, most


def _clean_text(text: str) -> str:
    return text if text.isprintable() else printable(text)


def _is_list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _read_scalar_map(value: Any) -> dict[str, Any] | None:
    """What the script or a machine has said, by name; None: it is no such thing."""
    if not isinstance(value, dict):
        return None
    cleaned: dict[str, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str) or not (item is None or isinstance(item, (int, float, str, bool))):
            return None
        cleaned[_clean_text(name)] = _clean_text(item) if isinstance(item, str) else item
    return cleaned


def _read_phase_times(value: Any) -> dict[str, float] | None:
    numbers = SCALARS["float"]
    if not isinstance(value, dict) or not WORDS["StepPhase"].issuperset(value):
        return None
    return value if all(type(ms) in numbers and not abs(ms) > MOST for ms in value.values()) else None


def _read_marks(value: Any) -> tuple[tuple[float, str], ...] | None:
    numbers = SCALARS["float"]
    if not isinstance(value, list) or not all(
        isinstance(mark, list) and len(mark) == 2 and type(mark[0]) in numbers and isinstance(mark[1], str)
        for mark in value
    ):
        return None
    marks = tuple((share, _clean_text(kind)) for share, kind in value)
    return marks if all(0 <= share <= 1 for share, _ in marks) else None


def _read_integers(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, list) or not {int}.issuperset(map(type, value)):
        return None
    return tuple(value) if all(abs(item) <= MOST for item in value) else None


def _read_floats_of_list(value: Any) -> tuple[float, ...] | None:
    if not isinstance(value, list) or not SCALARS["float"].issuperset(map(type, value)):
        return None
    return tuple(value) if all(abs(item) <= MOST for item in value) else None


def _read_texts(value: Any) -> tuple[str, ...] | None:
    return tuple(map(_clean_text, value)) if _is_list_of(str)(value) else None


TEXTS = frozenset({"tuple[str, ...]", "tuple[RankStatus, ...]", "tuple[RankPhase, ...]"})
"""Annotations of fields with one text per rank."""

COLUMN_WORDS = {f"tuple[{name}, ...]": WORDS[name] for name in ("RankStatus", "RankPhase")}
"""Kinds of columns whose texts are words of the vocabulary."""

COMPOUNDS: Mapping[str, Callable[[Any], Any]] = {
    "tuple[str, ...]": _read_texts,
    "tuple[int, ...]": _read_integers,
    "tuple[float, ...]": _read_floats_of_list,
    "tuple[tuple[float, str], ...]": _read_marks,
    "Mapping[str, Scalar]": _read_scalar_map,
    "Mapping[StepPhase, float]": _read_phase_times,
}
"""By annotation of a list or map of scalars, its value where it is one, else None."""

PARTS: Mapping[str, Any] = {
    "RunInfo": frame.RunInfo,
    "GroupFigures": frame.GroupFigures,
    "BucketFigures": frame.BucketFigures,
    "Alert": frame.Alert,
    "LoggedEvent": frame.LoggedEvent,
    "Overhead": overhead.Overhead,
    "Clocks": frame.Clocks,
    "HostFigures": hosts.HostFigures,
    "Call": stall.Call,
    "Trace": stall.Trace,
    "RankPosition": stall.RankPosition,
    "Death": stall.Death,
    "GpuFacts": frame.GpuFacts,
    "LoggedScalar": frame.LoggedScalar,
    "ActivitySpan": activity.ActivitySpan,
    "LongActivity": activity.LongActivity,
    "StackShare": sampled_stack.StackShare,
    "SampledStack": sampled_stack.SampledStack,
    "LaneSpan": detail.LaneSpan,
    "Reduce": detail.Reduce,
    "SkewCost": ledger.SkewCost,
    "WaitedFor": ledger.WaitedFor,
    "RankStart": start.RankStart,
    "ProcessGroupFigures": process_groups.ProcessGroupFigures,
}
"""Dataclasses whose fields are values or other parts, by name."""

COLUMN_PARTS: Mapping[str, Any] = {
    "Ranks": Ranks,
    "RankSteps | None": RankSteps,
    "RankMinutes | None": RankMinutes,
    "Lane": detail.Lane,
    "Heat | None": detail.Heat,
    "LedgerRanks": ledger.LedgerRanks,
}
"""Dataclasses with columns, by annotation. The columns of one object have the same length."""

OPTIONAL_PARTS: Mapping[str, Any] = {
    "Straggler | None": frame.Straggler,
    "Suspect | None": frame.Suspect,
    "Stall | None": stall.Stall,
    "Call | None": stall.Call,
    "RankSteps | None": RankSteps,
    "RankMinutes | None": RankMinutes,
    "Playback | None": frame.Playback,
    "Timeline | None": detail.Timeline,
    "Heat | None": detail.Heat,
    "RankPosition | None": stall.RankPosition,
    "MeasuredCost | None": overhead.MeasuredCost,
    "Ledger | None": ledger.Ledger,
    "RareSlowness | None": ledger.RareSlowness,
    "StartStatus | None": start.StartStatus,
    "EpochProgress | None": activity.EpochProgress,
}
"""Dataclasses that may be None, by annotation."""

LISTS: Mapping[str, str] = {f"tuple[{name}, ...]": name for name in (*PARTS, "Lane")}
"""Annotations of tuples, and the annotation of their elements."""


ROOM = limits.MAX_FRAME_BYTES - 4096
"""Most bytes of a frame in one link message."""

HISTORY_BYTES = 768 * 1024
"""Most bytes of history in one frame; the points after it are sent with the next frame."""

TEXT_CHARACTERS = 512 * 1024
"""Most characters in a column of texts: 256 for each of 2048 hosts. With more texts, each is cut to fit."""

WIDE = HISTORY_WIDE | {name for name, figure in RANK_FIGURES.items() if figure.as_float64}
WIDE |= {"elapsed_s", *(f"{name}_s" for name in ledger.LEDGER_CLASSES)}
"""Columns that are counts or ids and need float64 to stay exact; the others travel as float32."""

MAX_ITEMS = limits.MAX_WORLD
MAX_CHARACTERS = 4096
"""Most characters of one text: longer than any message that the reducer writes."""


class FrameError(ValueError):
    """The bytes are not a frame of this version."""


def encode_frame(frame: frames.Frame, packed: dict[str, tuple[Any, bytes]] | None = None) -> bytes:
    """A frame as bytes, with at most the oldest `POINTS` of its history; the next cursor requests the rest.

    Clocks, GPUs and logged values are left out where they would make the frame too large. `packed`: by field
    the part of the last frame and its bytes, for parts that are the same object."""
    columns = [
        _as_column(name, getattr(frame.history, name)[:POINTS]).data for name in _column_names(History)
    ]
    start, early = frame.history.start, min(POINTS, frame.history.early)
    history, packed = msgpack.packb([start, *columns, early]), {} if packed is None else packed
    begin = msgpack.Packer().pack_array_header(1 + len(_kinds_without_history())) + msgpack.packb(VERSION)
    data = b"".join([begin, *_pack_pieces(frame, packed), history])
    # Parts that grow with the number of ranks, and that every view can do without for a moment.
    if len(data) - len(history) > ROOM - HISTORY_BYTES:
        data = b"".join(
            [begin, *_pack_pieces(replace(frame, clocks=(), gpus=(), logged=()), packed), history]
        )
    return data


def has_more(frame: frames.Frame) -> bool:
    """Whether a received frame has as many points of history as fit, so that there may be more."""
    return len(frame.history.step) >= POINTS


def _pack_pieces(part: Any, packed: dict[str, tuple[Any, bytes]]) -> Iterator[bytes | memoryview]:
    """A frame's fields but for its history, the columns of its ranks uncopied: they are most of it."""
    for name, kind in _field_kinds(part.__class__):
        value = getattr(part, name)
        if kind == "Column":
            yield _bytes_begin(len(value) * _column_dtype(name).itemsize)
            yield _as_column(name, value).data
        elif kind == "Ranks":
            yield msgpack.Packer().pack_array_header(len(_field_kinds(Ranks)))
            yield from _pack_pieces(value, packed)
        elif kind != "History":
            key = f"{kind} {name}"  # ranks have fields of their own
            if key not in packed or packed[key][0] is not value:
                packed[key] = value, msgpack.packb(write_value(kind, value, name))
            yield packed[key][1]


class FrameDecoder:
    """Decodes successive frames. What has not changed since the last frame is not checked again, and is the
    same object, in parts that have changed as well: of 512 hosts mostly a few fields are others."""

    def __init__(self) -> None:
        self._before: dict[str, _Before] = {}
        """By field of a frame."""

    def decode(self, data: bytes) -> frames.Frame:
        """The frame in `data`. Raises FrameError if `data` is not as `encode_frame` writes it."""
        parts, history = _unpack_frame(data)
        expected = _kinds_without_history()
        if not isinstance(parts, list) or not parts or parts[0] != VERSION:
            raise FrameError("a frame of another version of ddptop")
        if len(parts) != 1 + len(expected):
            raise FrameError("a frame of the wrong length")
        values = {
            name: self._decode_part(name, kind, raw)
            for (name, kind), raw in zip(expected, parts[1:], strict=True)
        }
        # Views use these as indices: a far end that lies must not end the screen with an IndexError.
        _check_timeline(values["timeline"])
        _check_heat(values["heat"])
        for named in (values["straggler"], values["suspect"]):
            if named is not None and not 0 <= named.rank < len(values["ranks"].state):
                raise FrameError(f"rank {named.rank}, which is not in the frame")
        points = _read_columns(History, history)
        if not 0 <= points.early <= len(points.step):
            raise FrameError("a history with more bins than points")
        return frames.Frame(**values, history=points)

    def _decode_part(self, name: str, kind: Any, raw: Any) -> Any:
        decoded = _read_again(kind, raw, name, self._before.get(name))
        self._before[name] = (raw, decoded)
        return decoded


def _check_timeline(timeline: detail.Timeline | None) -> None:
    """Each lane has the all-reduces of the timeline, by their index."""
    if timeline is None:
        return
    for lane in timeline.lanes:
        indices = lane.reduces
        if not bool(np.all((indices >= 0) & (indices < len(timeline.reduces)))):
            raise FrameError("a lane of a timeline with an all-reduce that it has not")


def _check_heat(heat: detail.Heat | None) -> None:
    """A known figure, a cell for each row and step, and rows of ranks in order."""
    if heat is None:
        return
    if heat.figure not in detail.HEAT_FIGURES:
        raise FrameError("a heat map of an unknown figure")
    if len(heat.value) != (len(heat.rows) - 1) * len(heat.steps):
        raise FrameError("a heat map of the wrong size")
    if not all(0 <= first <= stop <= limits.MAX_WORLD for first, stop in pairwise(heat.rows)):
        raise FrameError("a heat map of ranks that are not in order")


def _unpack_frame(data: bytes) -> tuple[Any, Any]:
    """The two arrays of a frame: its parts, and its history."""
    unpacker = msgpack.Unpacker(
        max_buffer_size=max(len(data), 1),
        max_str_len=MAX_CHARACTERS,
        max_bin_len=len(data),
        max_array_len=MAX_ITEMS,
        max_map_len=limits.MAX_CARD * 2,
        max_ext_len=0,
    )
    unpacker.feed(data)
    try:
        parts, history = unpacker.unpack(), unpacker.unpack()
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        raise FrameError(f"not a frame: {error}") from None
    if unpacker.tell() != len(data):
        raise FrameError("a frame of the wrong length")
    return parts, history


@cache
def _field_kinds(part: Any) -> tuple[tuple[str, Any], ...]:
    """Name and annotation of every field; cached, because a frame of 4096 ranks needs them 500 times."""
    return tuple((f.name, _without_range(f.type)) for f in fields(part))


def _without_range(annotation: Any) -> Any:
    """`int | None` for `Size | None`: a part that messages have too names the ranges of its fields."""
    name, *optional = annotation.split(" | ")
    declared = getattr(ranges, name, None)
    if get_origin(declared) is not Annotated:
        return annotation
    return " | ".join([get_args(declared)[0].__name__, *optional])


MEANING = 16
"""Incremented when a field gets another meaning, though it keeps its name and type."""


def _hash_of_fields() -> int:
    """A number that changes with the name, type or order of any field: viewer and collector may be of
    different installations."""
    parts = {frame.Frame, History, *PARTS.values(), *COLUMN_PARTS.values(), *OPTIONAL_PARTS.values()}
    layout = sorted((part.__name__, _field_kinds(part)) for part in parts)
    return zlib.crc32(repr((MEANING, layout)).encode())


VERSION = _hash_of_fields()


@cache
def _kinds_without_history() -> tuple[tuple[str, Any], ...]:
    return tuple(field for field in _field_kinds(frames.Frame) if field[0] != "history")


@cache
def _field_names(part: Any) -> tuple[str, ...]:
    return tuple(name for name, _ in _field_kinds(part))


NUMBER_LISTS = ("tuple[int, ...]", "tuple[float, ...]")


@cache
def _is_flat(part: Any) -> bool:
    """Whether all fields are scalars and lists of numbers."""
    return all(kind in SCALARS or kind in NUMBER_LISTS for _, kind in _field_kinds(part))


@cache
def _column_names(part: Any) -> tuple[str, ...]:
    return tuple(name for name, kind in _field_kinds(part) if kind == "Column")


@cache
def _column_dtype(name: str) -> np.dtype[Any]:
    return np.dtype("<f8" if name in WIDE or name == "step" else "<f4")


def _as_column(name: str, values: Any) -> Any:
    # What is too large becomes infinite, which is refused at the other end where no number is.
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values, dtype=_column_dtype(name))


@lru_cache(maxsize=8)
def _bytes_begin(length: int) -> bytes:
    """How msgpack begins so many bytes."""
    return bytes(msgpack.packb(bytes(length))[: -length or None])


POINTS = HISTORY_BYTES // sum(_column_dtype(name).itemsize for name in _column_names(History))
"""Most points of history in one frame."""


def write_value(kind: Any, value: Any, name: str = "") -> Any:
    """A field's value as msgpack writes it. `name`: of a field beside columns."""
    if kind == "Column":
        return _as_column(name, value).data
    if name and kind in TEXTS:
        return _index_texts(value)
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if kind in COLUMN_PARTS or kind in PARTS or kind in OPTIONAL_PARTS:
        named = kind in COLUMN_PARTS
        return [
            write_value(field_kind, getattr(value, n), n if named else "")
            for n, field_kind in _field_kinds(value.__class__)
        ]
    if kind in LISTS:
        part = PARTS.get(LISTS[kind])
        if part is not None and _is_flat(part):
            return list(zip(*map(attrgetter(*_field_names(part)), value), strict=True))  # of tuples, arrays
        return [write_value(LISTS[kind], item) for item in value]
    if isinstance(value, tuple):
        return [list(item) if isinstance(item, tuple) else item for item in value]
    return dict(value)


@lru_cache(maxsize=8)
def _index_texts(texts: tuple[str, ...]) -> tuple[list[str], bytes]:
    """The distinct texts, and the place of each rank's. Cached: most are those of the last frame."""
    places = {text: place.to_bytes(4, "little") for place, text in enumerate(dict.fromkeys(texts))}
    most = max(1, TEXT_CHARACTERS // max(1, len(places)))
    return [text[:most] for text in places], b"".join(map(places.__getitem__, texts))


_Before: TypeAlias = "tuple[Any, Any]"
"""A value of the last frame as it arrived, and what was read from it."""


def _read_again(kind: Any, value: Any, name: str, before: _Before | None) -> Any:
    """As `_read_value`; what was read before where that was from an equal value."""
    if before is not None and before[0] == value:
        return before[1]
    return _read_value(kind, value, name, before)


def _read_value(kind: Any, value: Any, name: str, before: _Before | None = None) -> Any:
    """A field's value, checked by its annotation and its name."""
    if kind in SCALARS:
        return _read_scalar_column(name, kind, [value])[0]
    if kind in OPTIONAL_PARTS and value is None:
        return None
    if kind in COLUMN_PARTS:
        return _read_columns(COLUMN_PARTS[kind], value, before)
    if kind in PARTS or kind in OPTIONAL_PARTS:
        part = PARTS.get(kind) or OPTIONAL_PARTS[kind]
        return part(*[_read_again(*field) for field in _fields_to_read(part, value, before)])
    if kind in LISTS:
        part = PARTS.get(LISTS[kind])
        if part is not None and _is_flat(part):
            return _read_flat_parts(part, _read_list(value), before)
        return tuple(_read_value(LISTS[kind], item, name) for item in _read_list(value))
    checked = COMPOUNDS[kind](value) if kind in COMPOUNDS else None
    if checked is None:
        raise FrameError(f"a field {name} that should be {kind} is {type(value).__name__}")
    return checked


def _fields_to_read(
    part: Any, value: Any, before: _Before | None
) -> Iterator[tuple[Any, Any, str, _Before | None]]:
    """The arguments of `_read_again` for each field of a part."""
    expected = _field_kinds(part)
    items = _read_list(value, len(expected))
    if before is not None and before[1] is None:
        before = None
    for index, ((name, kind), item) in enumerate(zip(expected, items, strict=True)):
        yield kind, item, name, None if before is None else (before[0][index], getattr(before[1], name))


def _read_flat_parts(part: Any, columns: list[Any], before: _Before | None) -> tuple[Any, ...]:
    """Dataclasses of scalars and lists of numbers, a field of all after the other: 512 hosts change with
    every frame."""
    if not columns:
        return ()
    expected = _field_kinds(part)
    length = len(_read_list(_read_list(columns, len(expected))[0]))
    arrived, decoded = before if before is not None and before[1] else (expected, ())
    checked: list[Iterable[Any]] = []
    for (name, kind), column, column_before in zip(expected, columns, arrived, strict=True):
        values = _read_list(column, length)
        if values == column_before:
            checked.append(map(attrgetter(name), decoded))
        elif kind in SCALARS:
            checked.append(_read_scalar_column(name, kind, values))
        else:
            checked.append([_read_value(kind, value, name) for value in values])
    return tuple(map(part, *checked))


def _read_scalar_column(name: str, kind: Any, values: list[Any]) -> list[Any]:
    """Values of one field, checked; texts cleaned."""
    types = set(map(type, values))
    if not types <= SCALARS[kind]:
        raise FrameError(f"a field {name} of the wrong type")
    if types == {type(None)}:
        return values
    if (words := WORDS.get(kind)) is not None:
        if not words.issuperset(values):
            raise FrameError(f"a field {name} that is no {kind}")
    elif kind in TEXT_KINDS:
        return [None if text is None else _clean_text(text) for text in values]
    elif name not in MAY_BE_INFINITE:
        least, most = _range_of(name)
        if not all(value is None or least <= value <= most for value in values):
            raise FrameError(f"a number {name} that no run has")
    return values


def _read_columns(part: Any, value: Any, before: _Before | None = None) -> Any:
    """A dataclass with columns of one length, among texts and numbers."""
    arrays: dict[str, Any] = {}
    lengths = set()
    for kind, item, name, field_before in _fields_to_read(part, value, before):
        if field_before is not None and field_before[0] == item:
            arrays[name] = field_before[1]
        elif kind == "Column":
            arrays[name] = _read_floats(name, item)
        elif kind in TEXTS:
            arrays[name] = _read_text_column(item, kind)
        else:
            arrays[name] = _read_value(kind, item, name, field_before)
        if kind == "Column" or kind in TEXTS:
            lengths.add(len(arrays[name]))
    if len(lengths) > 1:
        raise FrameError("columns of different lengths")
    return part(**arrays)


def _read_floats(name: str, value: Any) -> Any:
    dtype = _column_dtype(name)
    if not isinstance(value, bytes) or len(value) % dtype.itemsize:
        raise FrameError(f"column {name} is no row of floats")
    column = np.frombuffer(value, dtype)
    if column.size and not _is_sound(name, column):
        raise FrameError(f"a number in {name} that no run has")
    return column


def _is_sound(name: str, column: Column) -> bool:
    """Whether all numbers may stand in a column of this name."""
    least, largest = np.fmin.reduce(column), np.fmax.reduce(column)  # NaN where all are: unknown
    if name in ALWAYS_KNOWN and bool(np.isnan(column).any()):
        return False
    if name in MAY_BE_INFINITE:
        return True
    most = MOST_S if name in ALWAYS_KNOWN else MOST
    return not (least < -most or largest > most)


def _read_text_column(value: Any, kind: str) -> tuple[str, ...]:
    distinct, places = _read_list(value, 2)
    if not isinstance(distinct, list) or not all(isinstance(text, str) for text in distinct):
        raise FrameError("a text column has something other than texts")
    words = COLUMN_WORDS.get(kind)
    if words is None:
        distinct = [*map(_clean_text, distinct)]
    elif not words.issuperset(distinct):
        raise FrameError(f"a text column that is no {kind}")
    if not isinstance(places, bytes) or len(places) % 4:
        raise FrameError("a text column is malformed")
    return _texts_by_rank(tuple(distinct), places)


@lru_cache(maxsize=8)
def _texts_by_rank(distinct: tuple[str, ...], places: bytes) -> tuple[str, ...]:
    """A text per rank. Cached: hosts, devices and most states are those of the last frame, and at 4096 ranks
    the same tuple takes a tenth of the time."""
    index = np.frombuffer(places, "<u4")
    if index.size and index.max() >= len(distinct):
        raise FrameError("a text column points outside its texts")
    return tuple(map(distinct.__getitem__, index.tolist()))


def _read_list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise FrameError("a list of the wrong length")
    return value
