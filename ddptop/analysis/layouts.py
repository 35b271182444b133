"""Bucket layouts by content: each rank numbers its own generations, only the content can be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from ddptop.protocol.messages import Bucket

    Shape: TypeAlias = tuple[tuple[int, int, int, str, str], ...]


class Layouts:
    """Gives equal layouts the same number, whichever rank they come from and whatever it calls them.

    What a rank learns later of a bucket (its parameters, its bytes on the wire) makes no new layout.
    """

    KEPT: ClassVar[int] = 1024
    """Layouts known at once; DDP makes two or three, for each part of a model that is divided over process
    groups. A number is never given to another layout."""

    def __init__(self) -> None:
        self._numbers: dict[Shape, int] = {}
        self._buckets: dict[int, tuple[Bucket, ...]] = {}
        self._next = 0

    def number(self, buckets: tuple[Bucket, ...]) -> int:
        """Number of this content, from 0."""
        shape = tuple((b.model, b.index, b.bytes, b.dtype, b.hook) for b in buckets)
        number = self._numbers.get(shape)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._numbers[shape] = number
            self._buckets[number] = buckets
            if len(self._numbers) > self.KEPT:
                oldest = next(iter(self._numbers))
                del self._buckets[self._numbers.pop(oldest)]
        else:
            merged = (_merged(old, new) for old, new in zip(self._buckets[number], buckets, strict=True))
            self._buckets[number] = tuple(merged)
        return number

    def buckets(self, number: int) -> tuple[Bucket, ...] | None:
        """The content behind a number, with all that is known of it by now."""
        return self._buckets.get(number)


def _merged(old: Bucket, new: Bucket) -> Bucket:
    return new._replace(
        wire_bytes=old.wire_bytes if new.wire_bytes is None else new.wire_bytes,
        parameters=old.parameters if new.parameters is None else new.parameters,
    )
