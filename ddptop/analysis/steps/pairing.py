"""Rows of single ranks become complete steps: steps that every rank has reported.

Bucket layouts by content: each rank numbers its own generations, only the content can be compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ddptop.protocol.messages import Bucket, StepRow

    Shape: TypeAlias = tuple[tuple[int, int, int, str, str], ...]

MAX_HELD = 16_384
"""Rows kept for ranks that have not caught up, at most some 20 MB. The 1 MiB that a rank's sender keeps for
a collector that does not answer is up to 10,000 rows. Rows of more than ten buckets count several times."""

CELLS_PER_ROW = 32

ALWAYS_KEPT = 8
"""Steps that are never given up, however large the world: ranks of one step report within a heartbeat."""


class Batch(NamedTuple):
    """What the rows of one STEPS message share."""

    base_ns: int
    layout: int
    """Number of the layout's content, the same for all ranks that have it; -1: never told."""


class CompleteStep(NamedTuple):
    """A step with the row of every rank, index = rank."""

    step: int
    rows: list[StepRow]
    batches: list[Batch]


class Pairing:
    """Holds what is reported until every rank has reported it. A step that some rank lost is passed over."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.held = 0
        """Rows waiting for the other ranks, large ones counted several times."""
        self._floor = -1
        self._steps: dict[int, dict[int, tuple[StepRow, Batch]]] = {}
        """By step and rank: what ranks that report nothing would take is not held."""
        self._weights: dict[int, int] = {}

    def add(self, rank: int, step: int, row: StepRow, batch: Batch) -> CompleteStep | None:
        """Take a row; a rank's rows come in order. Returns the step when this was the last row it lacked."""
        if step <= self._floor:
            return None
        rows = self._steps.get(step)
        if rows is None:
            rows = self._steps[step] = {}
            self._weights[step] = 0
        if rank in rows:
            return None
        rows[rank] = (row, batch)
        weight = 1 + len(row.cells) // CELLS_PER_ROW
        self.held += weight
        self._weights[step] += weight
        if len(rows) < self._world:
            if self.held > MAX_HELD and len(self._steps) > ALWAYS_KEPT:
                self._forget_oldest()
            return None
        done = [rows[rank] for rank in range(self._world)]
        self._forget_through(step)
        return CompleteStep(step, [pair[0] for pair in done], [pair[1] for pair in done])

    def _forget_through(self, last: int) -> None:
        """Every rank is past `last`, so what an earlier step still lacks is lost."""
        self._floor = last
        if len(self._steps) == 1 and last in self._steps:
            self.held = 0
            self._steps.clear()
            self._weights.clear()
            return
        for step in [step for step in self._steps if step <= last]:
            self.held -= self._weights.pop(step)
            del self._steps[step]

    def _forget_oldest(self) -> None:
        """Give up the oldest eighth of the steps: a rank never heard must not fill the memory."""
        steps = sorted(self._steps)
        self._forget_through(steps[len(steps) // 8])


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
