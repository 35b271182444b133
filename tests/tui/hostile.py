"""Frames as a far end that lies would send them: values of a sound frame are replaced by others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from ddptop.frames import codec
from ddptop.frames.frame import Frame

NAN, INFINITY = float("nan"), float("inf")

ESCAPES = "\x1b]0;title\x07\x1b[41m\x9b31m\u202ered\x00\r\n[bold]x[/] </svg><script>"
"""Sets a title, colours, reverses the order of letters, and is markup of three kinds."""

NUMBERS = (
    0,
    -1,
    1,
    2.5,
    1e-300,
    -1e-9,
    2**31,
    1e12,
    2**53,
    -1e17,
    1e18,
    1e19,
    1e308,
    INFINITY,
    -INFINITY,
    NAN,
)

TEXTS = ("", ESCAPES, "x" * 4096, "主机" * 900, "live", "0", "  ", "e\u0301" * 2000)


def paths(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a frame: names of fields, indices of tuples, names in maps."""
    if is_dataclass(part):
        for field in fields(part):
            yield from paths(getattr(part, field.name), (*path, field.name))
    elif isinstance(part, tuple) and part:
        for index in {0, len(part) - 1}:
            yield from paths(part[index], (*path, index))
    elif isinstance(part, dict) and part:
        for name in part:
            yield (*path, name)
    else:
        yield path


def value_at(part: Any, path: tuple[Any, ...]) -> Any:
    """What lies there."""
    for name in path:
        part = getattr(part, name) if is_dataclass(part) else part[name]
    return part


def changed(part: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The same frame with another value there."""
    if not path:
        return value
    name, rest = path[0], path[1:]
    if is_dataclass(part):
        return replace(part, **{name: changed(getattr(part, name), rest, value)})
    if isinstance(part, dict):
        return {**part, name: value}
    return tuple(changed(item, rest, value) if index == name else item for index, item in enumerate(part))


def lies(value: Any) -> list[Any]:
    """Other values of about the same type, as a frame's bytes may hold them."""
    if isinstance(value, np.ndarray):
        columns: list[Any] = []
        for number in NUMBERS:
            columns.append(np.full(len(value), number))
            column = np.array(value, float)
            column[len(value) // 2 :][:1] = number
            columns.append(column)
        return [*columns, np.array(value, float)[::-1]]
    if isinstance(value, str):
        return list(TEXTS)
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, tuple):  # an empty one
        return [value]
    whole = [number for number in NUMBERS if isinstance(number, int)]
    return [
        *(whole if isinstance(value, int) else NUMBERS),
        *((None, *TEXTS, *NUMBERS) if value is None else ()),
    ]


def sent(frame: Frame) -> Frame:
    """As a viewer receives it. Raises FrameError where it refuses it."""
    return codec.FrameDecoder().decode(codec.encode_frame(frame))
