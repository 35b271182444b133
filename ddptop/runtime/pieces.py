"""How the bytes of a model's parameters are divided into pieces: from sizes alone, so that ranks agree."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

PIECE_BYTES = 128 * 1024
"""A checksum of so much takes 32 us (crc32, 4 GB/s): the least that a check can cost on short steps."""

MAX_SLICES = 16
"""Small parameters in one piece: a call for each costs as much as 8 KiB of checksum."""

LEAST_EVERY = 16
"""Replicas are checked where step % N == 0, N a power of two of at least this."""

_GOLDEN = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4)."""


class Slice(NamedTuple):
    """Consecutive bytes of one parameter."""

    parameter: int
    begin: int
    end: int


class Pieces:
    """Large parameters are cut, small ones share a piece."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: bytes of each parameter, in their order."""
        self._sizes = tuple(sizes)
        self._first: list[int] = []
        """Number of the first piece of each entry of `_parameters`."""
        self._parameters: list[tuple[int, ...]] = []
        """Those that share one piece, or one that may have many."""
        self.count = 0
        shared: list[int] = []
        for number, size in enumerate(self._sizes):
            if shared and (
                sum(self._sizes[other] for other in shared) + size > PIECE_BYTES or len(shared) == MAX_SLICES
            ):
                self._add(shared)
                shared = []
            shared.append(number)
        if shared:
            self._add(shared)

    def _add(self, parameters: list[int]) -> None:
        self._first.append(self.count)
        self._parameters.append(tuple(parameters))
        size = sum(self._sizes[number] for number in parameters)
        self.count += max(1, -(-size // PIECE_BYTES))

    def slices(self, piece: int) -> Iterator[Slice]:
        """What is in a piece."""
        place = bisect_right(self._first, piece) - 1
        parameters = self._parameters[place]
        offset = (piece - self._first[place]) * PIECE_BYTES
        for number in parameters:
            yield Slice(number, offset, min(self._sizes[number], offset + PIECE_BYTES))


def first_piece(step: int, count: int) -> int:
    """Where the check of a step begins, among `count` pieces.

    From the step alone, so that ranks that check more or less often, or more or less at a time, still share
    pieces. Multiples of the golden ratio fall evenly whatever their number, so that the checks of some steps,
    each of some pieces in a row, soon cover all.
    """
    turn = (step // LEAST_EVERY * _GOLDEN) % 2**64
    return turn * count >> 64
