"""Pairs the rows of single ranks to complete steps, and divides these by process group.

A step is complete when all ranks have reported it.

Bucket layouts are compared by content, because each rank numbers its own generations. A complete step is
divided into one part for each process group that reduces gradients in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ddptop.analysis.steps.complete_steps import Batch, CompleteStep, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.protocol.messages import Bucket, Membership, StepRow
    from ddptop.protocol.step_columns import StepColumns

    Shape: TypeAlias = tuple[tuple[int, int, int, str, str], ...]

MAX_HELD = 16_384
"""Most rows that are kept until the slower ranks report them: some 20 MB. A rank's sender keeps up to 1 MiB,
or 10,000 rows, for a collector that does not answer. Rows of more than ten buckets count several times."""

CELLS_PER_ROW = 32

__all__ = ["Batch", "CompleteStep", "Groups", "Layouts", "Pairing", "Part", "Scope", "Splitter"]

ALWAYS_KEPT = 8
"""Steps that are always kept, for any number of ranks: all ranks report a step within a heartbeat."""


class _Pending:
    """A step that some ranks have reported."""

    __slots__ = ("pieces", "ranks", "weight")

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.ranks = 0
        """How many have reported it."""
        self.weight = 0


class Pairing:
    """Holds the rows of a step until every rank has reported it. A step with a lost row is dropped."""

    def __init__(self, world: int) -> None:
        self._world = world
        self.held = 0
        """Rows waiting for the other ranks, large ones counted several times."""
        self._floor = -1
        self._steps: dict[int, _Pending] = {}
        """By step; a rank that reports nothing takes no memory."""
        self._newest = [-1] * world
        """By rank, its newest step: the rows of a rank come in order."""

    def add(self, rank: int, step: int, row: StepRow, batch: Batch) -> CompleteStep | None:
        """Take a row; the rows of a rank come in order. Returns the step if this row makes it complete."""
        pending = self._pending(rank, step)
        if pending is None:
            return None
        if not pending.pieces or pending.pieces[-1].columns is not None:
            pending.pieces.append(Piece(None))
        piece = pending.pieces[-1]
        piece.ranks.append(rank)
        piece.rows.append(row)
        piece.batches.append(batch)
        return self._added(step, pending, 1 + len(row.cells) // CELLS_PER_ROW)

    def add_from(
        self, columns: StepColumns, at: int, rank: int, step: int, batch: Batch
    ) -> CompleteStep | None:
        """As `add`, of row `at` of columns."""
        pending = self._pending(rank, step)
        if pending is None:
            return None
        piece = pending.pieces[-1] if pending.pieces else None
        if piece is None or piece.columns is not columns:
            piece = Piece(columns)
            pending.pieces.append(piece)
        piece.ranks.append(rank)
        piece.at.append(at)
        piece.batches.append(batch)
        return self._added(step, pending, 1 + columns.cell_counts[at] // CELLS_PER_ROW)

    def _pending(self, rank: int, step: int) -> _Pending | None:
        """What is known of a step, to which a row of this rank is added; None: it has one, or is too old."""
        if step <= self._floor or step <= self._newest[rank]:
            return None
        self._newest[rank] = step
        pending = self._steps.get(step)
        if pending is None:
            pending = self._steps[step] = _Pending()
        return pending

    def _added(self, step: int, pending: _Pending, weight: int) -> CompleteStep | None:
        self.held += weight
        pending.weight += weight
        pending.ranks += 1
        if pending.ranks < self._world:
            if self.held > MAX_HELD and len(self._steps) > ALWAYS_KEPT:
                self._forget_oldest()
            return None
        self._forget_through(step)
        return CompleteStep.of_pieces(step, self._world, pending.pieces)

    def _forget_through(self, last: int) -> None:
        """Drop the steps up to `last`: every rank is past it, so rows that they still lack are lost."""
        self._floor = last
        if len(self._steps) == 1 and last in self._steps:
            self.held = 0
            self._steps.clear()
            return
        for step in [step for step in self._steps if step <= last]:
            self.held -= self._steps.pop(step).weight

    def _forget_oldest(self) -> None:
        """Drop the oldest eighth of the steps: a rank that never reports must not fill the memory."""
        steps = sorted(self._steps)
        self._forget_through(steps[len(steps) // 8])


class Layouts:
    """Gives equal layouts the same number, whichever rank reports them and however it numbers them.

    Facts that a rank reports later (a bucket's parameters, its bytes on the wire) make no new layout.
    """

    KEPT: ClassVar[int] = 1024
    """Most layouts known at once. DDP makes two or three for each part of a model that is divided over
    process groups. A number is never used for another layout."""

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
        """The buckets of this layout, with all that is known of them; None: unknown number."""
        return self._buckets.get(number)


def _merged(old: Bucket, new: Bucket) -> Bucket:
    return new._replace(
        wire_bytes=old.wire_bytes if new.wire_bytes is None else new.wire_bytes,
        parameters=old.parameters if new.parameters is None else new.parameters,
    )


class Scope(NamedTuple):
    """A process group: only the all-reduces of its own ranks are paired and compared."""

    group: str
    """Its name; empty: no rank reported one."""
    ranks: tuple[int, ...]
    """Ascending."""


class Groups:
    """The process group of each model of each rank, as the ranks reported it."""

    def __init__(self) -> None:
        self._memberships: dict[tuple[int, int], Membership] = {}
        self._backends: dict[str, str] = {}
        self.version = 0
        """Grows with every change of a membership."""

    def take(self, rank: int, membership: Membership) -> None:
        """A rank reports the process group of one of its models."""
        if self._memberships.get((rank, membership.model)) != membership:
            self._memberships[rank, membership.model] = membership
            self._backends[membership.group] = membership.backend
            self.version += 1

    def of(self, rank: int, model: int) -> Membership | None:
        """The group of a rank's model; None where it has not reported it."""
        return self._memberships.get((rank, model))

    def restart(self) -> None:
        """Forget the memberships: a new incarnation has begun."""
        self._memberships.clear()
        self._backends.clear()
        self.version += 1

    def only(self, world: int) -> Scope | None:
        """The group of all ranks, or None where there are several. Ranks that reported none belong to it."""
        reported = {(m.group, m.ranks) for m in self._memberships.values()}
        everyone = tuple(range(world))
        names = {group for group, _ in reported}
        whole = all(not ranks or ranks == everyone for _, ranks in reported)
        return Scope(min(names, default=""), everyone) if whole and len(names) <= 1 else None

    def scope_of(self, rank: int, model: int, world: int) -> Scope:
        """The group of a rank's model; where none was reported, a group of all ranks."""
        reported = self._memberships.get((rank, model))
        if reported is None:
            return Scope("", tuple(range(world)))
        return Scope(reported.group, tuple(sorted({*reported.ranks})) or tuple(range(world)))

    def largest(self, world: int) -> tuple[Scope, ...]:
        """The process groups within which own times are compared.

        A rank belongs to the first that holds it, which is the largest of its models' groups. Last comes the
        group of all ranks, for those that reported no group.
        """
        only = self.only(world)
        if only is not None:
            return (only,)
        reported = {(m.group, m.ranks): at for at, m in self._memberships.items()}
        scopes = {self.scope_of(rank, model, world) for rank, model in reported.values()}
        inside = sorted(scope for scope in scopes if scope.ranks[-1] < world)
        inside.sort(key=lambda scope: -len(scope.ranks))
        return (*inside, Scope("", tuple(range(world))))

    def backend_of(self, scope: Scope) -> str:
        """The backend of a group; empty: not reported."""
        return self._backends.get(scope.group, "")


class Part(NamedTuple):
    """The part of a step in one process group; rows and batches are those of its ranks, in their order."""

    scope: Scope
    step: CompleteStep
    layout: int
    """Number of the content of the group's own buckets; -1: not reported."""
    buckets: tuple[Bucket, ...]
    """The group's own buckets, with models as its first rank numbers them."""
    backend: str
    """The group's backend; empty: not reported."""


class _Share(NamedTuple):
    """The buckets of one rank's layout that one group reduces."""

    scope: Scope
    layout: int
    buckets: tuple[Bucket, ...]
    place: dict[int, int]
    """From the bucket number in the rank's layout to that in the group's."""


class Splitter:
    """Divides steps by process group. Where all ranks share one group nothing is copied."""

    def __init__(self, groups: Groups, layouts: Layouts) -> None:
        self._groups = groups
        self._layouts = layouts
        self._own = Layouts()
        """Layouts of single groups. Models are numbered anew within a group, so that its layout is equal on
        ranks whose other models differ."""
        self.restart(0)

    def restart(self, world: int) -> None:
        """Begin anew with another number of ranks or other processes."""
        self._world = world
        self.version = -1
        """`Groups.version` of the memberships by which steps are divided now."""
        self.largest: tuple[Scope, ...] = ()
        """`Groups.largest` at that version."""
        self._only: Scope | None = None
        self._shares: dict[tuple[int, int], tuple[tuple[Bucket, ...], list[_Share]]] = {}

    def split(self, step: CompleteStep) -> tuple[Part, ...]:
        """One part for each group of which every rank has reported its buckets."""
        if self.version != self._groups.version:
            self.restart(self._world)
            self.version = self._groups.version
            self._only = self._groups.only(self._world)
            self.largest = self._groups.largest(self._world)
        if self._only is not None:
            layout = step.largest_layout
            backend = self._groups.backend_of(self._only)
            return (Part(self._only, step, layout, self._layouts.buckets(layout) or (), backend),)
        return tuple(self._parts(step))

    def _parts(self, step: CompleteStep) -> Iterable[Part]:
        found: dict[Scope, dict[int, _Share]] = {}
        layouts = step.layout.tolist()
        for rank, layout in enumerate(layouts):
            for share in self._shares_of(rank, layout):
                found.setdefault(share.scope, {})[rank] = share
        for scope in sorted(found, key=lambda one: (-len(one.ranks), one)):
            theirs = found[scope]
            if len(theirs) == len(scope.ranks):
                ranks = np.array(scope.ranks)
                numbers = np.array([theirs[rank].layout for rank in scope.ranks], np.int64)
                part = step.part(ranks, numbers, [theirs[rank].place for rank in scope.ranks])
                backend = self._groups.backend_of(scope)
                yield Part(scope, part, int(numbers.max()), theirs[scope.ranks[0]].buckets, backend)

    def _shares_of(self, rank: int, layout: int) -> list[_Share]:
        buckets = self._layouts.buckets(layout)
        if buckets is None:
            return []
        known = self._shares.get((rank, layout))
        if known is None or known[0] is not buckets:  # more is known of a bucket by now
            known = self._shares[rank, layout] = (buckets, list(self._divided(rank, buckets)))
        return known[1]

    def _divided(self, rank: int, buckets: tuple[Bucket, ...]) -> Iterable[_Share]:
        models: dict[Scope, list[int]] = {}
        for model in sorted({bucket.model for bucket in buckets}):
            scope = self._groups.scope_of(rank, model, self._world)
            if rank in scope.ranks and scope.ranks[-1] < self._world:
                models.setdefault(scope, []).append(model)
        for scope, theirs in models.items():
            numbers = [i for i, bucket in enumerate(buckets) if bucket.model in theirs]
            own = tuple(buckets[i]._replace(model=theirs.index(buckets[i].model)) for i in numbers)
            place = {number: i for i, number in enumerate(numbers)}
            yield _Share(scope, self._own.number(own), tuple(buckets[i] for i in numbers), place)
