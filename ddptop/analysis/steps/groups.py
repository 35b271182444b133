"""Process groups, the rank that is flagged in one of them, and bucket layouts, as the ranks reported them.

Bucket layouts are compared by content, because each rank numbers its own generations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from ddptop.protocol.messages import Bucket, Membership
    from ddptop.protocol.vocabulary import Pattern

    Shape: TypeAlias = tuple[tuple[int, int, int, str, str], ...]


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
        self._last: tuple[tuple[Bucket, ...] | None, int] = None, -1
        """The last content, and its number: that of many ranks is one object."""

    def number(self, buckets: tuple[Bucket, ...]) -> int:
        """Number of this content, from 0."""
        if buckets is self._last[0]:
            return self._last[1]
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
        self._last = buckets, number
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


class Flagged(NamedTuple):
    """The flagged rank, or the first of several, and by which pattern it was flagged."""

    scope: Scope
    rank: int
    """Its index in the process group."""
    pattern: Pattern
    cost_ms: float
    lateness_ms: float
    """Its lateness when it was flagged."""

    @property
    def global_rank(self) -> int:
        return self.scope.ranks[self.rank]


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
        reported = {(m.group, m.ranks): model_of_member for model_of_member, m in self._memberships.items()}
        scopes = {self.scope_of(rank, model, world) for rank, model in reported.values()}
        inside = sorted(scope for scope in scopes if scope.ranks[-1] < world)
        inside.sort(key=lambda scope: -len(scope.ranks))
        return (*inside, Scope("", tuple(range(world))))

    def backend_of(self, scope: Scope) -> str:
        """The backend of a group; empty: not reported."""
        return self._backends.get(scope.group, "")
