"""All blocks of a recording as columns: a long run has hundreds of thousands of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ddptop.recording.format import ENTRY_FIELDS, Entry, Summary

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROW = np.dtype(list(ENTRY_FIELDS))


class Blocks:
    """A sequence of entries that never changes; `first_ns` and the others are columns of it."""

    def __init__(self, rows: NDArray[Any] | None = None) -> None:
        """`rows` as `of_bytes` makes them; None: no block."""
        self._rows = np.empty(0, _ROW) if rows is None else rows
        self.first_ns: NDArray[np.int64] = self._rows["first_ns"]
        self.last_ns: NDArray[np.int64] = np.ascontiguousarray(self._rows["last_ns"])
        self.first_step: NDArray[np.int64] = np.ascontiguousarray(self._rows["first_step"])
        self.last_step: NDArray[np.int64] = np.ascontiguousarray(self._rows["last_step"])
        self.records: NDArray[np.uint32] = self._rows["records"]
        self.lasting: NDArray[np.uint32] = self._rows["lasting"]

    @classmethod
    def of_bytes(cls, pieces: Iterable[bytes]) -> Blocks:
        """From packed entries, as they stand in INDEX frames. Raises ValueError where the length is wrong."""
        return cls(np.frombuffer(b"".join(pieces), _ROW))

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Blocks:
        """From single entries."""
        return cls(np.array([(entry.offset, *entry.summary) for entry in entries], _ROW))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Entry:
        offset, *summary = self._rows[index].item()
        return Entry(offset, Summary._make(summary))

    def __iter__(self) -> Iterator[Entry]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: Blocks) -> Blocks:
        if not len(other):
            return self
        return other if not len(self) else Blocks(np.concatenate([self._rows, other._rows]))

    def part(self, first: int, stop: int) -> Blocks:
        """Blocks first to before stop."""
        return Blocks(self._rows[first:stop])
