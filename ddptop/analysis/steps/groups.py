"""Which ranks reduce the gradients of which model together.

Complete steps divided into the parts that belong to one process group each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ddptop.analysis.steps.pairing import CompleteStep, Layouts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.analysis.steps.pairing import Batch
    from ddptop.protocol.messages import Bucket, Membership, StepRow


class Scope(NamedTuple):
    """A process group: only its own members' all-reduces are paired, waited for and judged together."""

    group: str
    """Its name; empty: nobody told one."""
    ranks: tuple[int, ...]
    """Ascending."""


class Groups:
    """The process group of every rank's every model, as the ranks told."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, int], Membership] = {}
        self._backends: dict[str, str] = {}
        self.version = 0
        """Grows with every word that changes a membership."""

    def take(self, rank: int, membership: Membership) -> None:
        """A rank tells the process group of one of its models."""
        if self._told.get((rank, membership.model)) != membership:
            self._told[rank, membership.model] = membership
            self._backends[membership.group] = membership.backend
            self.version += 1

    def of(self, rank: int, model: int) -> Membership | None:
        """The group of a rank's model; None where it has not told."""
        return self._told.get((rank, model))

    def restart(self) -> None:
        """A new incarnation of the group: what the old processes told is void."""
        self._told.clear()
        self._backends.clear()
        self.version += 1

    def only(self, world: int) -> Scope | None:
        """The one group of all ranks, or None where there are several. Who told nothing is in it."""
        told = {(m.group, m.ranks) for m in self._told.values()}
        everybody = tuple(range(world))
        names = {group for group, _ in told}
        whole = all(not ranks or ranks == everybody for _, ranks in told)
        return Scope(min(names, default=""), everybody) if whole and len(names) <= 1 else None

    def scope_of(self, rank: int, model: int, world: int) -> Scope:
        """The group of a rank's model; of one that told nothing, the group of all."""
        told = self._told.get((rank, model))
        if told is None:
            return Scope("", tuple(range(world)))
        return Scope(told.group, tuple(sorted({*told.ranks})) or tuple(range(world)))

    def backend_of(self, scope: Scope) -> str:
        """What moves the bytes of a group; empty: not told."""
        return self._backends.get(scope.group, "")


class Part(NamedTuple):
    """What one process group did in a step; rows and batches are those of its ranks, in their order."""

    scope: Scope
    step: CompleteStep
    layout: int
    """Number of the content of the group's own buckets; -1: not told."""
    buckets: tuple[Bucket, ...]
    """These, as the group's first rank numbers its models."""
    backend: str
    """Empty: not told."""


class _Share(NamedTuple):
    """The buckets of one rank's layout that one group reduces."""

    scope: Scope
    layout: int
    buckets: tuple[Bucket, ...]
    place: dict[int, int]
    """Bucket number in the rank's layout -> in the group's."""


class Splitter:
    """Divides steps by process group. Where all ranks share one group nothing is copied."""

    def __init__(self, groups: Groups, layouts: Layouts) -> None:
        self._groups = groups
        self._layouts = layouts
        self._own = Layouts()
        """Layouts of single groups: models are numbered anew within the group, so that ranks whose other
        models differ still agree on it."""
        self.restart(0)

    def restart(self, world: int) -> None:
        """A group of another size, or other processes."""
        self._world = world
        self.version = -1
        """Of the memberships that steps are divided by now."""
        self._only: Scope | None = None
        self._shares: dict[tuple[int, int], tuple[tuple[Bucket, ...], list[_Share]]] = {}

    def split(self, step: CompleteStep) -> tuple[Part, ...]:
        """One part for each group of which every member has told its buckets."""
        if self.version != self._groups.version:
            self.restart(self._world)
            self.version = self._groups.version
            self._only = self._groups.only(self._world)
        if self._only is not None:
            layout = max(batch.layout for batch in step.batches)
            backend = self._groups.backend_of(self._only)
            return (Part(self._only, step, layout, self._layouts.buckets(layout) or (), backend),)
        return tuple(self._parts(step))

    def _parts(self, step: CompleteStep) -> Iterable[Part]:
        found: dict[Scope, dict[int, tuple[StepRow, Batch]]] = {}
        for rank, (row, batch) in enumerate(zip(step.rows, step.batches, strict=True)):
            for share in self._shares_of(rank, batch.layout):
                mine = row._replace(cells=_picked(row.cells, share.place))
                found.setdefault(share.scope, {})[rank] = (mine, batch._replace(layout=share.layout))
        for scope in sorted(found, key=lambda one: (-len(one.ranks), one)):
            theirs = found[scope]
            if len(theirs) == len(scope.ranks):
                rows = [theirs[rank][0] for rank in scope.ranks]
                batches = [theirs[rank][1] for rank in scope.ranks]
                layout = max(batch.layout for batch in batches)
                first = scope.ranks[0]
                shares = self._shares_of(first, step.batches[first].layout)
                buckets = next(share.buckets for share in shares if share.scope == scope)
                backend = self._groups.backend_of(scope)
                yield Part(scope, CompleteStep(step.step, rows, batches), layout, buckets, backend)

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


def _picked(cells: tuple[int, ...], place: dict[int, int]) -> tuple[int, ...]:
    """The cells of a group's own buckets, with their numbers in its layout."""
    if len(cells) % 3:
        return ()
    return tuple(
        n
        for i in range(0, len(cells), 3)
        if cells[i] in place
        for n in (place[cells[i]], cells[i + 1], cells[i + 2])
    )
