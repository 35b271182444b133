"""Sums over buckets that are all-reduced once in a step, or in each of its backward passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ddptop.frames.numbers import UNKNOWN, counted, fixed, size

if TYPE_CHECKING:
    from collections.abc import Sequence


class Reduced(Protocol):
    """A bucket of the frame or of the report."""

    @property
    def bytes(self) -> int | None:
        """Bytes that an all-reduce of it sends; None where a hook hides them."""

    @property
    def launches(self) -> float | None:
        """All-reduces of it in a step; None: not measured."""


def launches_of(bucket: Reduced) -> float:
    """All-reduces of a bucket in a step: 1 where that was not measured."""
    return 1.0 if bucket.launches is None else bucket.launches


def all_reduces(buckets: Sequence[Reduced]) -> float | None:
    """All-reduces in a step; None where those of some bucket were not measured."""
    if not buckets or any(bucket.launches is None for bucket in buckets):
        return None
    return sum(map(launches_of, buckets))


def wire_bytes(buckets: Sequence[Reduced]) -> float | None:
    """Bytes that a rank gives to the all-reduces of a step; None where a hook hides them."""
    sizes = [bucket.bytes for bucket in buckets]
    known_sizes = [bytes_once for bytes_once in sizes if bytes_once is not None]
    if not sizes or len(known_sizes) < len(sizes):
        return None
    return sum(
        size_bytes * launches_of(bucket) for size_bytes, bucket in zip(known_sizes, buckets, strict=True)
    )


def times_a_step(launches: float | None) -> str:
    """`4×`, `2.5×`; a dash where it was not measured."""
    if launches is None:
        return UNKNOWN
    return f"{fixed(launches, 0 if launches == round(launches) else 1)}×"


def a_step_phrase(number: float | None, total_bytes: float | None) -> str:
    """` · 4 all-reduces of 16.0 MB a step`; empty where that is not known."""
    if number is None or total_bytes is None:
        return ""
    return f" · {counted(round(number), 'all-reduce')} of {size(total_bytes)} a step"


def sent_phrase(buckets: Sequence[Reduced]) -> str:
    """`16.0 MB`, `16.0 MB in 4 all-reduces` where a bucket is reduced more than once; empty: not known."""
    total = wire_bytes(buckets)
    if total is None:
        return ""
    number = all_reduces(buckets)
    if number is None or number <= len(buckets):
        return size(total)
    return f"{size(total)} in {fixed(number, 0)} all-reduces"
