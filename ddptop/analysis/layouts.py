"""Bucket layouts by content: each rank numbers its own generations, only the content can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from ddptop.protocol.messages import Bucket


class Layouts:
    """Gives equal layouts the same number, whichever rank they come from and whatever it calls them."""

    KEPT: ClassVar[int] = 64
    """Layouts known at once; DDP makes two or three. A number is never given to another layout."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Bucket, ...], int] = {}
        self._buckets: dict[int, tuple[Bucket, ...]] = {}
        self._next = 0

    def number(self, buckets: tuple[Bucket, ...]) -> int:
        """Number of this content, from 0."""
        number = self._numbers.get(buckets)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[buckets] = number
            self._buckets[number] = buckets
            if len(self._numbers) > self.KEPT:
                oldest = next(iter(self._numbers))
                del self._buckets[self._numbers.pop(oldest)]
        return number

    def buckets(self, number: int) -> tuple[Bucket, ...] | None:
        """The content behind a number, while it is known."""
        return self._buckets.get(number)
