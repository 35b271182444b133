"""Divides complete steps by process group, and keeps the last detailed ones for timelines."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps.complete_steps import keep_apart
from ddptop.analysis.steps.groups import Layouts, Scope
from ddptop.protocol.messages import StepRow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.analysis.steps.complete_steps import CompleteStep
    from ddptop.analysis.steps.groups import Groups
    from ddptop.frames.columns import Indices, Mask
    from ddptop.protocol.messages import Bucket

KEPT_STEPS = 64
"""Detailed steps that can be requested: as many as a person steps through."""

KEPT_ASIDE = 8
"""Steps in which ranks evaluated or saved, beside these: they are rare, and soon would be too old."""

RAW_INTEGERS = 2**16
"""Most integers in steps that are kept as they arrived, some 3 MB. With few ranks, only steps that are
requested are ever converted."""

PACKED_BYTES = 4 * 2**20
"""Most bytes of older steps, which are packed: six steps of 4096 ranks with ten buckets."""

HEAD = (
    "begin_us",
    "wall_us",
    "data_us",
    "forward_us",
    "backward_us",
    "optimizer_us",
    "forward_at_us",
    "backward_at_us",
    "optimizer_at_us",
    "micro_steps",
    "flags",
)
"""Columns of `Packed.head`: the fields of a StepRow up to here."""

LONGEST_US = 2**31 - 1
"""35 minutes: a longer step is drawn as if it had ended then."""


class Part(NamedTuple):
    """A process group that reduces buckets in a step."""

    scope: Scope
    layout: int
    """Number of the content of the group's own buckets; -1: not reported."""
    buckets: tuple[Bucket, ...]
    """The group's own buckets, with models as its first rank numbers them."""
    backend: str
    """The group's backend; empty: not reported."""


class Peers(NamedTuple):
    """The ranks of a process group, within which own times are compared. Slices where all ranks are members:
    nothing is copied then."""

    members: Indices | slice
    """All ranks of the group."""
    is_own: Mask | slice
    """(members,) whether a member has this group as its own: the first of its groups."""
    own_ranks: Indices | slice
    """The ranks that have it as their own."""


def _peers(scopes: Sequence[Scope], world: int) -> Iterable[Peers]:
    free = np.ones(world, bool)
    for scope in scopes:
        members = np.array(scope.ranks)
        is_own = free[members]
        free[members] = False
        if len(members) == world and is_own.all():
            yield Peers(*[slice(None)] * 3)
        elif is_own.any():
            yield Peers(members, is_own, members[is_own])


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
        self.peers: list[Peers] = []
        """Ranks of the process groups within which own times are compared at that version."""
        self._only: Scope | None = None
        self._shares: dict[tuple[int, int], tuple[tuple[Bucket, ...], list[_Share]]] = {}

    def update(self) -> None:
        """Divide by the memberships that are known now."""
        if self.version != self._groups.version:
            self.restart(self._world)
            self.version = self._groups.version
            self._only = self._groups.only(self._world)
            self.peers = [*_peers(self._groups.largest(self._world), self._world)]

    def only_part(self, layout: int) -> Part | None:
        """The part of steps with this layout where all ranks share one group; None: there are several."""
        if self._only is None:
            return None
        backend = self._groups.backend_of(self._only)
        return Part(self._only, layout, self._layouts.buckets(layout) or (), backend)

    def split(self, step: CompleteStep) -> Iterable[tuple[Part, CompleteStep]]:
        """One part for each group of which every rank has reported its buckets, and the step of its ranks in
        their order."""
        shares_of: dict[Scope, dict[int, _Share]] = {}
        layouts = step.layout.tolist()
        for rank, layout in enumerate(layouts):
            for share in self._shares_of(rank, layout):
                shares_of.setdefault(share.scope, {})[rank] = share
        for scope in sorted(shares_of, key=lambda scope: (-len(scope.ranks), scope)):
            shares_of_scope = shares_of[scope]
            if len(shares_of_scope) == len(scope.ranks):
                ranks = np.array(scope.ranks)
                numbers = np.array([shares_of_scope[rank].layout for rank in scope.ranks], np.int64)
                part = step.part(ranks, numbers, [shares_of_scope[rank].place for rank in scope.ranks])
                backend = self._groups.backend_of(scope)
                yield Part(scope, int(numbers.max()), shares_of_scope[scope.ranks[0]].buckets, backend), part

    def _shares_of(self, rank: int, layout: int) -> list[_Share]:
        buckets = self._layouts.buckets(layout)
        if buckets is None:
            return []
        shares = self._shares.get((rank, layout))
        if shares is None or shares[0] is not buckets:  # more is known of a bucket by now
            shares = self._shares[rank, layout] = (buckets, list(self._divided(rank, buckets)))
        return shares[1]

    def _divided(self, rank: int, buckets: tuple[Bucket, ...]) -> Iterable[_Share]:
        models: dict[Scope, list[int]] = {}
        for model in sorted({bucket.model for bucket in buckets}):
            scope = self._groups.scope_of(rank, model, self._world)
            if rank in scope.ranks and scope.ranks[-1] < self._world:
                models.setdefault(scope, []).append(model)
        for scope, models_of_scope in models.items():
            numbers = [i for i, bucket in enumerate(buckets) if bucket.model in models_of_scope]
            own_buckets = tuple(
                buckets[i]._replace(model=models_of_scope.index(buckets[i].model)) for i in numbers
            )
            place = {number: i for i, number in enumerate(numbers)}
            yield _Share(scope, self._own.number(own_buckets), tuple(buckets[i] for i in numbers), place)


class Division(NamedTuple):
    """How steps are divided by process group, with the clock comparisons at that moment: later ones do not
    change their figures."""

    parts: tuple[Part, ...]
    compared: tuple[Comparison, ...]
    """How the ranks of each part can be compared."""
    version: int
    """`Groups.version` at that moment."""
    peers: list[Peers]
    """Ranks of the process groups within which own times are compared."""


class DividedStep(NamedTuple):
    """A complete step divided by process group."""

    step: CompleteStep
    of_parts: tuple[CompleteStep, ...]
    """The step of the ranks of each part."""
    division: Division

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of `Division`."""
        return self.division.parts

    @property
    def compared(self) -> tuple[Comparison, ...]:
        """How the ranks of each part can be compared, of `Division`."""
        return self.division.compared


class Kind(NamedTuple):
    """The properties that consecutive steps must share to be evaluated together."""

    version: int
    launched: tuple[tuple[int, tuple[int, ...], int, int, bool], ...]
    """For each part with bucket detail: its index, the buckets launched, the layout, the `id` of its tuple of
    buckets, and whether its ranks can be compared."""


class PackedPart(NamedTuple):
    """The all-reduces of one process group in a step, (launches, ranks of the group) in microseconds."""

    scope: Scope
    buckets: tuple[Bucket, ...]
    backend: str
    compared: Comparison
    numbers: tuple[int, ...]
    """Bucket number in `buckets`, per launch."""
    ready: NDArray[np.int32]
    """Microseconds since the rank's own begin of the step."""
    took: NDArray[np.int32]
    """Duration; -1: the end is not known."""
    joined: NDArray[np.bool_]
    """(ranks of the group,) whether the rank only answered the others' collectives (`join`)."""

    @property
    def bytes(self) -> int:
        """Bytes that the arrays take."""
        return int(self.ready.nbytes + self.took.nbytes)


class Packed(NamedTuple):
    """A complete step as arrays."""

    step: int
    head: NDArray[np.int32]
    """(fields, ranks)."""
    begin_ns: NDArray[np.int64]
    """(ranks,) on the clock of each rank's host."""
    parts: tuple[PackedPart, ...]
    compared: tuple[tuple[Scope, Comparison], ...]
    """All process groups, including those without bucket detail in this step."""
    exposed_us: NDArray[np.int32]
    """(ranks,) `OwnTime.exposed`; -1: not known."""

    @property
    def bytes(self) -> int:
        """Bytes that the arrays take."""
        head_bytes = int(self.head.nbytes + self.begin_ns.nbytes + self.exposed_us.nbytes)
        return head_bytes + sum(part.bytes for part in self.parts)


def pack(divided: DividedStep, kind: Kind) -> Packed:
    """A step as arrays."""
    step = divided.step
    head = step.integers[: len(HEAD)]
    parts = []
    for i, numbers, *_ in kind.launched:
        part, of_part = divided.parts[i], divided.of_parts[i]
        times = of_part.launches(len(numbers)).transpose(2, 1, 0)
        ready, took = (_narrow(times[column]) for column in (1, 2))
        parts.append(
            PackedPart(
                part.scope,
                part.buckets,
                part.backend,
                divided.compared[i],
                numbers,
                ready,
                took,
                of_part.joined,
            )
        )
    compared = tuple((part.scope, how) for part, how in zip(divided.parts, divided.compared, strict=True))
    return Packed(step.step, _narrow(head), step.begin_ns, tuple(parts), compared, _narrow(step.exposed))


def _narrow(times_us: NDArray[np.int64]) -> NDArray[np.int32]:
    return np.clip(times_us, -1, LONGEST_US).astype(np.int32)


class KeptSteps:
    """The newest steps with bucket detail, the newest in which ranks evaluated or saved, and the newest of
    all."""

    def __init__(self) -> None:
        self.newest: tuple[DividedStep, Kind] | None = None
        self._raw: deque[tuple[DividedStep, Kind]] = deque()
        self._raw_integers = 0
        self._packed: deque[Packed] = deque()
        self._packed_bytes = 0
        self._aside: deque[Packed] = deque(maxlen=KEPT_ASIDE)
        self._looked: Packed | None = None

    def take(
        self,
        newest: DividedStep,
        detailed: Sequence[tuple[DividedStep, Kind]],
        aside: Sequence[tuple[DividedStep, Kind]] = (),
    ) -> None:
        """Take the newest of some steps, those with bucket detail, and those in which ranks evaluated or
        saved, oldest first."""
        self._aside += [pack(divided, kind) for divided, kind in aside[-KEPT_ASIDE:]]
        self.newest = newest, Kind(newest.division.version, ())
        kept = {
            id(divided): divided
            for divided in (newest, *(divided_step for divided_step, _ in detailed[-KEPT_STEPS:]))
        }
        keep_apart([divided.step for divided in kept.values()])
        for divided, kind in detailed[-KEPT_STEPS:]:
            if divided is newest:
                self.newest = divided, kind
            self._raw.append((divided, kind))
            self._raw_integers += _count_integers(divided)
            self._make_room()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The steps that can be requested, ascending."""
        packed = (packed_step.step for packed_step in (*self._aside, *self._packed))
        return (*sorted({*packed, *(divided.step.step for divided, _ in self._raw)}),)

    def find(self, step: int | None) -> Packed | None:
        """The step with this number, or None where it is not kept.

        `step` None: the newest step with detail, or else the newest step of all."""
        if self._looked is not None and self._looked.step == self._wanted(step):
            return self._looked
        self._looked = self._look_up(self._wanted(step))
        return self._looked

    def _wanted(self, step: int | None) -> int | None:
        if step is not None:
            return step
        if self._raw:
            return self._raw[-1][0].step.step
        if self._packed:
            return self._packed[-1].step
        return None if self.newest is None else self.newest[0].step.step

    def _look_up(self, step: int | None) -> Packed | None:
        newest = () if self.newest is None else (self.newest,)
        for divided, kind in (*self._raw, *newest):
            if divided.step.step == step:
                return pack(divided, kind)
        packed = (*self._packed, *self._aside)
        return next((packed_step for packed_step in packed if packed_step.step == step), None)

    def _make_room(self) -> None:
        while self._raw_integers > RAW_INTEGERS and self._raw:
            divided, kind = self._raw.popleft()
            self._raw_integers -= _count_integers(divided)
            packed = pack(divided, kind)
            self._packed.append(packed)
            self._packed_bytes += packed.bytes
        while len(self._packed) > 1 and self._packed_bytes > PACKED_BYTES:
            self._packed_bytes -= self._packed.popleft().bytes
        if len(self._raw) + len(self._packed) > KEPT_STEPS:
            if self._packed:
                self._packed_bytes -= self._packed.popleft().bytes
            else:
                self._raw_integers -= _count_integers(self._raw.popleft()[0])


def _count_integers(divided: DividedStep) -> int:
    step = divided.step
    return step.ranks * (len(StepRow._fields) + step.cells_of_first)
