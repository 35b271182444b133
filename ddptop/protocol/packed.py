"""Many msgpack values read together, without Python for each: one field of all of them after the other."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ddptop.protocol.checks import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]
    Bytes = NDArray[np.uint8]

_INTEGERS = dict(
    zip(range(0xCC, 0xD4), (">u1", ">u2", ">u4", ">u8", ">i1", ">i2", ">i4", ">i8"), strict=True)
)
"""What follows each first byte of an integer."""
_BY_SIZE = dict(sorted(_INTEGERS.items(), key=lambda item: int(item[1][-1])))
_ARRAY = 0x90
"""Of at most 15 elements: plus how many they are, the first byte."""
_LARGEST_FIXED, _LEAST_FIXED = 0x7F, 0xE0
"""Up to the one, and from the other (-32) on, an integer is its first byte."""
_NONE, _FLOAT = 0xC0, 0xCB
_TEXTS = range(0xA0, 0xC0)
"""Of at most 31 bytes."""
_BYTES = {0xC4: ">u1", 0xC5: ">u2", 0xC6: ">u4"}
"""The length that follows the first byte of a byte string."""
_SIZES = np.array([1 + np.dtype(_INTEGERS[tag]).itemsize if tag in _INTEGERS else 1 for tag in range(256)])

_ALL = slice(None)

PADDING = bytes(64)
"""Follows the values, so that some bytes behind them may be read."""


def integer_sizes(tags: Bytes) -> Integers:
    """Bytes of integers that begin with these; 1 for other values."""
    return np.asarray(_SIZES[tags])


@lru_cache(maxsize=64, typed=True)  # of the same few counts again and again
def constant(value: object, count: int) -> NDArray[Any]:
    """(count,) the same object everywhere, which takes no memory."""
    return np.broadcast_to(np.array(value, object), count)


def is_constant(values: NDArray[Any]) -> bool:
    """Whether it was made by `constant`."""
    return values.dtype == object and values.strides == (0,)


def _is_integer(tag: int) -> bool:
    return tag <= _LARGEST_FIXED or tag >= _LEAST_FIXED or tag in _INTEGERS


def _alike(tags: Bytes) -> list[tuple[int, Integers | slice]]:
    """The first bytes that occur, and where each does; those of small integers, which are alike, once."""
    if not len(tags):
        return []
    first = int(tags[0])
    if tags.max() <= _LARGEST_FIXED if first <= _LARGEST_FIXED else tags.tobytes().count(first) == len(tags):
        return [(first if first > _LARGEST_FIXED else 0, _ALL)]
    large = np.flatnonzero(tags > _LARGEST_FIXED)
    present = np.flatnonzero(np.bincount(tags[large], minlength=256)).tolist()
    found: list[tuple[int, Integers | slice]] = [(tag, large[tags[large] == tag]) for tag in present]
    if len(large) < len(tags):
        found.append((0, np.flatnonzero(tags <= _LARGEST_FIXED)))
    return found


def numbers_at(data: Bytes, dtype: str, at: Integers, behind: int = 0) -> NDArray[Any]:
    """The numbers that begin so many bytes behind these places. Raises IndexError behind the end."""
    count = max(0, len(data) - behind - int(dtype[-1]) + 1)
    return np.asarray(np.ndarray(count, dtype, data.data, behind, (1,))[at])


def _pieces(data: Bytes, size: int) -> NDArray[np.void]:
    """So many bytes from every place on; they overlap."""
    return np.asarray(np.ndarray(max(0, len(data) - size + 1), f"V{size}", data.data, strides=(1,)))


def _cells(column: Integers, kinds: Mapping[int, str]) -> Bytes:
    """(n, bytes) the numbers in the first of these kinds that holds them all, each behind its first byte."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    tag, kind = next(
        (tag, kind) for tag, kind in kinds.items() if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max
    )
    size = np.dtype(kind).itemsize
    cells = np.empty((len(column), 1 + size), np.uint8)
    cells[:, 0], cells[:, 1:] = tag, column.astype(kind).view(np.uint8).reshape(-1, size)
    return cells


class Bodies(NamedTuple):
    """n encoded messages in one piece of data."""

    data: Bytes
    """Ends with PADDING."""
    begins: Integers
    """(n,)"""
    sizes: Integers
    """(n,) bytes."""

    @classmethod
    def of(cls, bodies: Sequence[bytes]) -> Bodies:
        """From single messages."""
        sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        return cls(np.frombuffer(b"".join((*bodies, PADDING)), np.uint8), np.cumsum(sizes) - sizes, sizes)

    def at(self, places: Integers | slice) -> Bodies:
        """Some of them."""
        return Bodies(self.data, self.begins[places], self.sizes[places])

    def body(self, place: int) -> bytes:
        """One of them."""
        begin = int(self.begins[place])
        return self.data[begin : begin + int(self.sizes[place])].tobytes()

    def single(self) -> list[bytes]:
        """Each of them."""
        spans, data = (
            zip(self.begins.tolist(), (self.begins + self.sizes).tolist(), strict=True),
            self.data.data,
        )
        return [data[begin:end].tobytes() for begin, end in spans]

    def records(self, heads: Integers) -> tuple[memoryview, Integers]:
        """As msgpack arrays one after the other, each of its `heads` (numbers, n) and the message; and (n,)
        where each ends. Those of the same size are copied together."""
        n = len(self.sizes)
        numbers = [_cells(column, _BY_SIZE) for column in heads]
        begin = np.full((n, 1), _ARRAY + len(heads) + 1, np.uint8)
        head = np.concatenate([begin, *numbers, _cells(self.sizes, _BYTES)], axis=1)
        size = head.shape[1]
        ends = np.cumsum(size + self.sizes)
        data, begins = np.empty(int(ends[-1]) if n else 0, np.uint8), ends - self.sizes
        _pieces(data, size)[begins - size] = head.view(f"V{size}")[:, 0]
        for size in np.flatnonzero(np.bincount(self.sizes)).tolist():
            places = np.flatnonzero(self.sizes == size)
            _pieces(data, size)[begins[places]] = _pieces(self.data, size)[self.begins[places]]
        return data.data, ends

    def codes(self) -> Bytes:
        """(n,) number of the type of each, its second byte; 0 where it is too short."""
        return np.where(self.sizes > 1, self.data[self.begins + 1], 0)

    def fields(self, *begins: int) -> Packed:
        """What follows these first bytes, which all messages have. Raises ProtocolError where one has not."""
        if any((self.data[self.begins + at] != byte).any() for at, byte in enumerate(begins)):
            raise ProtocolError("a message of another type")
        return Packed(self.data, self.begins + len(begins))

    def end_at(self, at: Integers) -> bool:
        """Whether each message ends at these places."""
        return bool((self.begins + self.sizes == at).all())


class Packed:
    """The next value of each of n messages: reading it steps past it. Everything raises ProtocolError, or
    IndexError at the end of the data, where some values are of another type."""

    def __init__(self, data: Bytes, at: Integers) -> None:
        self._data = data
        self.at = at
        """(n,) where in the data the next values are."""

    def integers(self) -> Integers:
        """Integers within 64 bits."""
        tags = self._data[self.at]
        return self._integers(tags, _alike(tags))

    def _integers(self, tags: Bytes, kinds: list[tuple[int, Integers | slice]]) -> Integers:
        values = tags.astype(np.int64)
        for tag, places in kinds:
            if tag in _INTEGERS:
                wide = self._numbers(_INTEGERS[tag], places).astype(np.int64)
                if tag == 0xCF and wide.min() < 0:
                    raise ProtocolError("an integer of more than 63 bits")
                values[places] = wide
            elif tag >= _LEAST_FIXED:
                values[places] -= 256
            elif tag > _LARGEST_FIXED:
                raise ProtocolError("no integer")
        self.at = self.at + (_SIZES[kinds[0][0]] if len(kinds) == 1 else _SIZES[tags])
        return values

    def values(self) -> NDArray[Any]:
        """Integers, or floats, or objects: numbers, texts and None; all None or empty as `constant`."""
        tags = self._data[self.at]
        kinds = _alike(tags)
        present = [tag for tag, _ in kinds]
        if all(_is_integer(tag) for tag in present):
            return self._integers(tags, kinds)
        if present == [_FLOAT]:
            return np.asarray(self._of_one_kind(_FLOAT))
        if present in ([_NONE], [_TEXTS.start]):
            return constant(self._of_one_kind(present[0]), len(tags))
        found, following = np.full(len(tags), None, object), self.at.copy()
        for tag, places in kinds:
            part = Packed(self._data, self.at[places])
            found[places] = part._of_one_kind(tag)
            following[places] = part.at
        self.at = following
        return found

    def lengths(self) -> Integers:
        """Lengths of byte strings, whose bytes come next: `rows` reads them, `skip` steps past them."""
        tags = self._data[self.at]
        lengths, following = np.zeros(len(tags), np.int64), self.at + 1
        for tag, places in _alike(tags):
            if tag not in _BYTES:
                raise ProtocolError("no bytes")
            lengths[places] = self._numbers(_BYTES[tag], places)
            following[places] += int(_BYTES[tag][-1])
        self.at = following
        return lengths

    def rows(self, size: int, places: Integers | slice = _ALL) -> Bytes:
        """(some, size) the next bytes of these messages."""
        pieces = _pieces(self._data, size)[self.at[places]]
        return pieces.view(np.uint8).reshape(len(pieces), size)

    def ahead(self) -> Packed:
        """The same values, to be read later."""
        return Packed(self._data, self.at)

    def skip(self, sizes: Integers | int) -> None:
        """Step past so many bytes of each."""
        self.at = self.at + sizes

    def _of_one_kind(self, tag: int) -> Any:
        """The values, whose first byte is this one."""
        if _is_integer(tag):
            return self.integers()
        if tag == _FLOAT:
            floats = self._numbers(">f8", _ALL).astype(np.float64)
            self.skip(9)
            return floats
        self.skip(1)
        if tag == _NONE:
            return None
        if tag not in _TEXTS:
            raise ProtocolError("neither number, text nor None")
        return self._texts(tag - _TEXTS.start)

    def _texts(self, size: int) -> list[str] | str:
        """Texts of so many bytes."""
        if not size:
            return ""
        texts: list[bytes] = _pieces(self._data, size)[self.at].tolist()
        self.skip(size)
        known = {text: text.decode() for text in set(texts)}  # a few, each of them often
        return [*map(known.__getitem__, texts)]

    def _numbers(self, dtype: str, places: Integers | slice) -> NDArray[Any]:
        """The numbers behind the first byte of the next values of some messages."""
        return numbers_at(self._data, dtype, self.at if places is _ALL else self.at[places], 1)
