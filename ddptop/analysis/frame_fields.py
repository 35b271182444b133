"""Which annotation of a frame's fields is written and read how: numbers and texts, parts, lists of parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddptop.analysis import frames, stall_frames, wanted_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
"""Among columns: a text for each of their elements."""

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
"""Whether a value is what the annotation says; it is taken as it is."""

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
"""Dataclasses of such values."""

COLUMN_PARTS: Mapping[str, Any] = {
    "Ranks": frames.Ranks,
    "RankSteps | None": frames.RankSteps,
    "Lane": wanted_frames.Lane,
    "Heat | None": wanted_frames.Heat,
}
"""Dataclasses with columns, which within one of them are of one length."""

WITH_COLUMNS = tuple(COLUMN_PARTS.values())
"""The classes of them."""

OPTIONAL_PARTS: Mapping[str, Any] = {
    "Straggler | None": frames.Straggler,
    "Suspect | None": frames.Suspect,
    "Stall | None": stall_frames.Stall,
    "Call | None": stall_frames.Call,
    "RankSteps | None": frames.RankSteps,
    "Playback | None": frames.Playback,
    "Timeline | None": wanted_frames.Timeline,
    "Heat | None": wanted_frames.Heat,
}
"""Dataclasses that may also be None."""

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
"""Tuples of dataclasses, by what they hold."""
