"""Frames as bytes, for the credit link: msgpack arrays in field order, columns as little-endian floats.

The dataclasses in `frames` are the format: each field is written and checked by its annotation.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import msgpack
import numpy as np

from ddptop.analysis import frames, stall_frames, wanted_frames
from ddptop.analysis.history import WIDE as HISTORY_WIDE
from ddptop.protocol import limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = 3
"""Raised when a frame's fields change: viewer and collector may be of different installations."""

ROOM = limits.MAX_FRAME_BYTES - 4096
"""What a frame may take of one link message; history beyond it comes with the next."""

WIDE = HISTORY_WIDE | {
    *("local_rank", "pid", "incarnation", "age_ms", "bucket"),
    *("sequence", "records", "lost_records", "rss_bytes"),
}
"""Columns that are counts or ids and need float64 to stay exact; the others travel as float32."""

MAX_ITEMS = limits.MAX_WORLD
MAX_CHARACTERS = 4096
"""In one text: longer than any message that the reducer writes."""


class FrameError(ValueError):
    """The bytes are no frame of this version."""


def encode_frame(frame: frames.Frame) -> bytes:
    """A frame as bytes. Of its history the oldest points that fit: the next cursor asks for the rest."""
    parts = [VERSION, *(_write(f.type, getattr(frame, f.name)) for f in fields(frame) if f.name != "history")]
    body: bytes = msgpack.packb(parts)
    names = _columns(frames.History)
    point_bytes = sum(_dtype(name).itemsize for name in names)
    fit = max(0, ROOM - len(body)) // point_bytes
    history = [frame.history.start, *(_column(name, getattr(frame.history, name)[:fit]) for name in names)]
    return body + bytes(msgpack.packb(history))


def decode_frame(data: bytes) -> frames.Frame:
    """The frame in `data`. Raises FrameError if anything in it is not as `encode_frame` writes it."""
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
    wanted = [f for f in fields(frames.Frame) if f.name != "history"]
    if not isinstance(parts, list) or not parts or parts[0] != VERSION:
        raise FrameError("a frame of another version of ddptop")
    if len(parts) != 1 + len(wanted) or unpacker.tell() != len(data):
        raise FrameError("a frame of the wrong length")
    values = {f.name: _read(f.type, value) for f, value in zip(wanted, parts[1:], strict=True)}
    return frames.Frame(**values, history=_read_columns(frames.History, history))


def _columns(kind: Any) -> list[str]:
    return [f.name for f in fields(kind) if f.type == "Column"]


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype("<f8" if name in WIDE or name == "step" else "<f4")


def _column(name: str, values: Any) -> bytes:
    return bytes(np.ascontiguousarray(values, dtype=_dtype(name)).tobytes())


# ---------------------------------------------------------------------- writing


def _write(kind: Any, value: Any) -> Any:
    """A field's value as msgpack knows it."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, WITH_COLUMNS):
        return [_write_field(f.name, f.type, getattr(value, f.name)) for f in fields(value)]
    if kind in PARTS or kind in OPTIONAL_PARTS:
        return [_write(f.type, getattr(value, f.name)) for f in fields(value)]
    if kind in LISTS:
        return [_write(LISTS[kind], item) for item in value]
    if isinstance(value, tuple):
        return [list(item) if isinstance(item, tuple) else item for item in value]
    return dict(value)


def _write_field(name: str, kind: Any, value: Any) -> Any:
    if kind == "Column":
        return _column(name, value)
    if kind == TEXTS:
        distinct = list(dict.fromkeys(value))
        places = {text: place for place, text in enumerate(distinct)}
        return [distinct, np.array([places[text] for text in value], "<u4").tobytes()]
    return _write(kind, value)


# ---------------------------------------------------------------------- reading


def _read(kind: Any, value: Any) -> Any:
    """A field's value, checked by its annotation."""
    if kind in OPTIONAL_PARTS and value is None:
        return None
    if kind in COLUMN_PARTS:
        return _read_columns(COLUMN_PARTS[kind], value)
    if kind in PARTS or kind in OPTIONAL_PARTS:
        part = PARTS.get(kind) or OPTIONAL_PARTS[kind]
        names = fields(part)
        items = _list(value, len(names))
        return part(**{f.name: _read(f.type, item) for f, item in zip(names, items, strict=True)})
    if kind in LISTS:
        return tuple(_read(LISTS[kind], item) for item in _list(value))
    check = CHECKS.get(kind)
    if check is None or not check(value):
        raise FrameError(f"a field that should be {kind} is {type(value).__name__}")
    if isinstance(value, list):
        return tuple(tuple(item) if isinstance(item, list) else item for item in value)
    return value


def _read_columns(part: Any, value: Any) -> Any:
    """Columns of one length, with texts and numbers between them."""
    names = fields(part)
    found: dict[str, Any] = {}
    lengths = set()
    for f, item in zip(names, _list(value, len(names)), strict=True):
        if f.type == "Column":
            found[f.name] = _floats(f.name, item)
            lengths.add(len(found[f.name]))
        elif f.type == TEXTS:
            found[f.name] = _texts(item)
            lengths.add(len(found[f.name]))
        else:
            found[f.name] = _read(f.type, item)
    if len(lengths) > 1:
        raise FrameError("columns of different lengths")
    return part(**found)


def _floats(name: str, value: Any) -> Any:
    dtype = _dtype(name)
    if not isinstance(value, bytes) or len(value) % dtype.itemsize:
        raise FrameError(f"column {name} is no row of floats")
    return np.frombuffer(value, dtype)


def _texts(value: Any) -> tuple[str, ...]:
    distinct, places = _list(value, 2)
    if not _all(str)(distinct) or not isinstance(places, bytes) or len(places) % 4:
        raise FrameError("a text column is malformed")
    index = np.frombuffer(places, "<u4")
    if index.size and index.max() >= len(distinct):
        raise FrameError("a text column points outside its texts")
    return tuple(distinct[place] for place in index.tolist())


def _list(value: Any, length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        raise FrameError("a list of the wrong length")
    return value


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


def _mapping(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict) and all(isinstance(name, str) and check(item) for name, item in value.items())
    )


def _marks(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(mark, list) and len(mark) == 2 and _number(mark[0]) and _text(mark[1]) for mark in value
    )


def _scalar(value: Any) -> bool:
    return value is None or isinstance(value, (int, float, str, bool))


TEXTS = "tuple[str, ...]"

CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "str": _text,
    "str | None": _or_none(_text),
    "int": _integer,
    "int | None": _or_none(_integer),
    "float": _number,
    "float | None": _or_none(_number),
    "bool": lambda value: isinstance(value, bool),
    TEXTS: _all(str),
    "tuple[int, ...]": lambda value: isinstance(value, list) and all(map(_integer, value)),
    "tuple[tuple[float, str], ...]": _marks,
    "Mapping[str, Scalar]": _mapping(_scalar),
    "Mapping[str, float]": _mapping(_number),
}

PARTS: Mapping[str, Any] = {
    "RunInfo": frames.RunInfo,
    "Group": frames.Group,
    "BucketFigures": frames.BucketFigures,
    "Alert": frames.Alert,
    "Happening": frames.Happening,
    "Overhead": frames.Overhead,
    "Clocks": frames.Clocks,
    "Call": stall_frames.Call,
    "Trace": stall_frames.Trace,
    "Testimony": stall_frames.Testimony,
    "Death": stall_frames.Death,
    "GpuFacts": frames.GpuFacts,
    "LoggedScalar": frames.LoggedScalar,
    "Span": wanted_frames.Span,
    "Reduce": wanted_frames.Reduce,
}

COLUMN_PARTS: Mapping[str, Any] = {
    "Ranks": frames.Ranks,
    "RankSteps | None": frames.RankSteps,
    "Lane": wanted_frames.Lane,
    "Heat | None": wanted_frames.Heat,
}
"""Dataclasses with columns, which within one of them are of one length."""

WITH_COLUMNS = tuple(COLUMN_PARTS.values())

OPTIONAL_PARTS: Mapping[str, Any] = {
    "Straggler | None": frames.Straggler,
    "Stall | None": stall_frames.Stall,
    "Call | None": stall_frames.Call,
    "RankSteps | None": frames.RankSteps,
    "Playback | None": frames.Playback,
    "Timeline | None": wanted_frames.Timeline,
    "Heat | None": wanted_frames.Heat,
}

LISTS: Mapping[str, str] = {
    "tuple[BucketFigures, ...]": "BucketFigures",
    "tuple[Alert, ...]": "Alert",
    "tuple[Happening, ...]": "Happening",
    "tuple[Clocks, ...]": "Clocks",
    "tuple[Call, ...]": "Call",
    "tuple[Trace, ...]": "Trace",
    "tuple[Testimony, ...]": "Testimony",
    "tuple[Death, ...]": "Death",
    "tuple[GpuFacts, ...]": "GpuFacts",
    "tuple[LoggedScalar, ...]": "LoggedScalar",
    "tuple[Span, ...]": "Span",
    "tuple[Reduce, ...]": "Reduce",
    "tuple[Lane, ...]": "Lane",
}
