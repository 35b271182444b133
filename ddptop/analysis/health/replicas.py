"""Replica drift: DDP keeps the parameters of all ranks equal; checksums show when they are not.

A check compares the checksums of some pieces of a model that all ranks of its process group reported after
the same step. Where a piece differs, the value of more than half of the ranks counts as right; without such a
majority no rank is flagged.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.conditions import say
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase
from ddptop.protocol.since_start import UNKNOWN, EqualPieces, PieceDrift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Set

    from ddptop.analysis.event_log import EventLog
    from ddptop.analysis.health.synchronisation import Synchronisation
    from ddptop.protocol.messages import Replica, Scalar
    from ddptop.protocol.vocabulary import Severity

MAX_ANSWERS = 64
"""Most different reports that one check keeps; equal replicas give one."""


class PieceResult(NamedTuple):
    """The result of a check for one piece."""

    reported: frozenset[int]
    """Ranks that reported the piece. Each reports as many pieces as its budget allows."""
    differing: tuple[int, ...]
    """Ranks without the majority's value; all of `reported` without a majority; empty where all are equal."""
    majority: bool
    value: int | None = None
    """The checksum of all, where they are equal."""


@dataclass(slots=True)
class _Answer:
    """Ranks whose reports are equal on the pieces that they share, with the longest of these reports."""

    values: tuple[int, ...]
    counts: dict[int, int]
    """Rank to number of pieces that it reported."""

    def takes(self, rank: int, values: tuple[int, ...]) -> bool:
        """Add the rank if its report is equal on the shared pieces; returns whether it was added."""
        common = min(len(values), len(self.values))
        if values[:common] != self.values[:common]:
            return False
        self.counts[rank] = len(values)
        if len(values) > common:
            self.values = values
        return True


@dataclass(slots=True)
class Check:
    """The reports to one check so far."""

    pieces: int
    reported: set[int] = field(default_factory=set)
    answers: list[_Answer] = field(default_factory=list)
    overflow: set[int] = field(default_factory=set)
    """Ranks whose reports are not kept, because there are too many different ones."""

    def add(self, rank: int, values: tuple[int, ...]) -> None:
        """Add the report of a rank."""
        self.reported.add(rank)
        if any(answer.takes(rank, values) for answer in self.answers):
            return
        if len(self.answers) < MAX_ANSWERS:
            self.answers.append(_Answer(values, {rank: len(values)}))
        else:
            self.overflow.add(rank)

    def complete(self, group: tuple[int, ...], present: Set[int]) -> bool:
        """Whether every present rank of the group (empty: all ranks) has reported."""
        if not group:
            return len(self.reported) >= len(present) and present <= self.reported
        return all(rank in self.reported or rank not in present for rank in group)

    def piece_results(self) -> Iterator[PieceResult]:
        """The results of all pieces in their order."""
        least = min(min(answer.counts.values()) for answer in self.answers)
        every_rank = frozenset(self.reported)
        for i in range(max(len(answer.values) for answer in self.answers)):
            if i < least and len(self.answers) == 1:
                yield PieceResult(every_rank, (), True, self.answers[0].values[i])
            else:
                yield self._result_of(i)

    def _result_of(self, i: int) -> PieceResult:
        ranks_with: dict[int, list[int]] = {}
        for answer in self.answers:
            ranks = [rank for rank, count in answer.counts.items() if count > i]
            if ranks:
                ranks_with.setdefault(answer.values[i], []).extend(ranks)
        reported = frozenset(rank for ranks in ranks_with.values() for rank in ranks) | self.overflow
        if len(ranks_with) == 1 and not self.overflow:
            return PieceResult(reported, (), True, next(iter(ranks_with)))
        most = max(ranks_with, key=lambda value: len(ranks_with[value]))
        majority = 2 * len(ranks_with[most]) > len(reported)
        differing = {
            rank for value, ranks in ranks_with.items() if not majority or value != most for rank in ranks
        }
        return PieceResult(reported, tuple(sorted(differing | self.overflow)), majority)


OPEN_CHECKS = 8
"""Most incomplete checks of one model; all ranks report a step within about a second."""

REDUCING_HOOKS = frozenset(
    {
        "allreduce_hook",
        "fp16_compress_hook",
        "bf16_compress_hook",
        "fp16_compress_wrapper_hook",
        "bf16_compress_wrapper_hook",
        "powerSGD_hook",
        "batched_powerSGD_hook",
        "quantization_pertensor_hook",
        "quantization_perchannel_hook",
    }
)
"""torch's communication hooks after which all ranks have the same gradients."""

EQUAL_UPDATES = 4
"""Without a DDP model parameters count as replicas after so many checks in a row, in each of which a piece
was equal on all ranks and had changed since the check before. Ranks that hold other parts of a model have
equal parameters only before they train; ranks that average theirs now and then, only now and then."""


class _EqualUpdates(NamedTuple):
    """The last checks of a piece, which were equal on all ranks."""

    value: int
    n_changes: int
    """How often it had changed since the check before."""


MAX_PIECES = 4096
"""Most pieces of one model that are tracked."""


class _Key(NamedTuple):
    """A model and the ranks that reduce its gradients together; no ranks: all."""

    model: int
    ranks: tuple[int, ...]


class _LastEqual(NamedTuple):
    """The last check in which a piece was equal.

    `step`: on the ranks in `reported`; `full`: on all ranks, None where there was no such check.
    """

    step: int
    reported: frozenset[int]
    full: int | None

    def of(self, ranks: tuple[int, ...]) -> int | None:
        """The step of the last check in which the piece was equal and these ranks reported it."""
        return self.step if self.reported.issuperset(ranks) else self.full


@dataclass(frozen=True, slots=True)
class Drift:
    """A piece on which the ranks differ."""

    ranks: tuple[int, ...]
    """The ranks without the majority's value; without a majority all that reported the piece."""
    majority: bool
    since: int
    """Step of the first check in which the piece differed."""
    equal: int | None
    """Step of the last check in which it was equal; None: never."""
    since_s: float


class DriftCause(NamedTuple):
    """Why replicas differ."""

    text: str
    """Empty: not known."""
    comm_hook: str = ""
    """Name of a communication hook of the user's own, which may let replicas differ on purpose."""

    @property
    def severity(self) -> Severity:
        return "warning" if self.comm_hook else "critical"


class Replicas:
    """Collects checksums and tracks pieces that differ; depends on the order of messages alone."""

    def __init__(
        self, log: EventLog, synchronisation: Synchronisation, comm_hook: Callable[[int], str] = lambda _: ""
    ) -> None:
        """`comm_hook`: gives the name of a model's communication hook; empty: it has none."""
        self._log = log
        self._synchronisation = synchronisation
        self._comm_hook = comm_hook
        self.restart(0)

    def restart(self, world: int) -> None:
        """Begin anew, with new processes."""
        self.open_checks: dict[_Key, dict[tuple[int, int], Check]] = {}
        self._equal: dict[_Key, dict[int, _LastEqual]] = {}
        self._drifts: dict[tuple[_Key, int], Drift] = {}
        self._newest: dict[tuple[_Key, int], int] = {}
        self._updates: dict[tuple[_Key, int], _EqualUpdates] = {}
        """By model and piece, where it is not known that the model is replicated."""
        self._pieces: dict[_Key, int] = {}
        self._world = world

    def take(
        self,
        rank: int,
        replica: Replica,
        group: tuple[int, ...],
        present: Set[int],
        unix_s: float,
        *,
        is_replicated: bool = True,
    ) -> None:
        """Take a report of checksums.

        `group`: ranks that hold this model, empty: all. `present`: ranks that have neither ended nor joined.
        `is_replicated`: whether it is known that all of them should have equal parameters.
        """
        self._is_replicated = is_replicated
        if not 0 < replica.pieces <= MAX_PIECES or not 0 < len(replica.values) <= replica.pieces:
            return
        key = _Key(replica.model, group)
        if self._synchronisation.averages(*key):
            self._forget(key, replica.pieces)
            return
        if self._pieces.setdefault(key, replica.pieces) != replica.pieces:
            self._forget(key, replica.pieces)
        checks = self.open_checks.setdefault(key, {})
        place = (replica.step, replica.first % replica.pieces)
        check = checks.setdefault(place, Check(replica.pieces))
        if rank in check.reported:
            return
        check.add(rank, replica.values)
        expected = present & {*group} if group else present
        if check.complete(group, present):
            # Messages of a rank arrive in order: what an older check still misses will not arrive.
            for older in sorted(place for place in checks if place[0] <= replica.step):
                self._evaluate(key, checks.pop(older), older, expected, unix_s)
        elif len(checks) > OPEN_CHECKS:
            oldest = min(checks)
            self._evaluate(key, checks.pop(oldest), oldest, expected, unix_s)

    def alert(self) -> Alert | None:
        """The alert of a drift, until the ranks agree again on every piece or restart."""
        if not self._drifts:
            return None
        (key, _), first = min(self._drifts.items(), key=lambda entry: (entry[1].since, entry[0]))
        cause = self._cause(key, first)
        evidence: dict[str, Scalar] = {
            "model": key.model,
            "since_step": first.since,
            "equal_step": first.equal,
            "pieces": len(self._drifts),
            "ranks": len(first.ranks),
            "majority": first.majority,
            "comm_hook": cause.comm_hook or None,
        }
        rank = first.ranks[0] if first.majority else None
        text = drift_phrase(first, self._world, cause)
        return Alert("replica_drift", cause.severity, rank, first.since, first.since_s, text, evidence)

    def drifts(self) -> tuple[PieceDrift, ...]:
        """The pieces on which the ranks differ now."""
        return tuple(
            PieceDrift(
                *key,
                piece,
                drift.ranks,
                drift.majority,
                drift.since,
                UNKNOWN if drift.equal is None else drift.equal,
                drift.since_s,
            )
            for (key, piece), drift in self._drifts.items()
        )

    def equal_pieces(self) -> tuple[EqualPieces, ...]:
        """The last checks in which the pieces of each model were equal on all ranks."""
        return tuple(
            EqualPieces(*key, tuple(_full(equal.get(piece)) for piece in range(self._pieces.get(key, 0))))
            for key, equal in self._equal.items()
        )

    def recall(self, drifts: Iterable[PieceDrift], equal_pieces: Iterable[EqualPieces]) -> None:
        """Put back what was known before the checks that were read here."""
        earlier = {
            (_Key(drift_before.model, drift_before.group), drift_before.piece): drift_before
            for drift_before in drifts
        }
        for model, group, steps in equal_pieces:
            key = _Key(model, group)
            self._pieces.setdefault(key, len(steps))
            equal_pieces_of_model = self._equal.setdefault(key, {})
            for piece, step in enumerate(steps):
                if step == UNKNOWN or piece in equal_pieces_of_model:
                    continue
                equal_pieces_of_model[piece] = _LastEqual(step, frozenset(), step)
                drift = self._drifts.get((key, piece))
                if drift is not None and drift.equal is None:
                    self._drifts[key, piece] = replace(drift, equal=step)
        for place, drift_before in earlier.items():
            if place not in self._newest or place in self._drifts:
                newer = self._drifts.get(place)
                ranks, majority = (
                    (drift_before.ranks, drift_before.majority)
                    if newer is None
                    else (newer.ranks, newer.majority)
                )
                equal = None if drift_before.equal == UNKNOWN else drift_before.equal
                self._drifts[place] = Drift(ranks, majority, drift_before.since, equal, drift_before.unix_s)

    def _evaluate(
        self, key: _Key, check: Check, place: tuple[int, int], expected: Set[int], unix_s: float
    ) -> None:
        """Compare the reports for each piece that more than half of the expected ranks have reported."""
        step, first = place
        before = len(self._drifts)
        equal = self._equal.setdefault(key, {})
        for i, result in enumerate(check.piece_results()):
            piece = (first + i) % check.pieces
            if step < self._newest.get((key, piece), 0) or 2 * len(result.reported) <= len(expected):
                continue
            self._newest[key, piece] = step
            if not self._is_replicated and not self._has_equal_updates(key, piece, result, expected):
                continue
            drift = self._drifts.get((key, piece))
            if result.differing:
                self._differs(key, piece, result, step, unix_s)
            elif result.reported >= (expected if drift is None else expected & {*drift.ranks}):
                self._drifts.pop((key, piece), None)
            if not result.differing:
                full = step if result.reported >= expected else equal[piece].full if piece in equal else None
                equal[piece] = _LastEqual(step, result.reported, full)
        if before and not self._drifts:
            text = say("replica_drift_end", step=step)
            self._log.add(unix_s, "replica_drift_end", text, step=step)

    def _has_equal_updates(self, key: _Key, piece: int, result: PieceResult, expected: Set[int]) -> bool:
        """Whether a piece has shown to be replicated, with this result."""
        value, count = self._updates.get((key, piece), (None, 0))
        if count >= EQUAL_UPDATES:
            return True
        if result.value is None:
            self._updates.pop((key, piece), None)
        elif result.reported >= expected and result.value != value:
            count = count if value is None else count + 1
            self._updates[key, piece] = _EqualUpdates(result.value, count)
        return count >= EQUAL_UPDATES

    def _differs(self, key: _Key, piece: int, result: PieceResult, step: int, unix_s: float) -> None:
        drift_before = self._drifts.get((key, piece))
        since, since_s = (
            (step, unix_s) if drift_before is None else (drift_before.since, drift_before.since_s)
        )
        equal = self._equal[key].get(piece)
        before = equal.of(result.differing) if equal else None
        drift = Drift(result.differing, result.majority, since, before, since_s)
        if not self._drifts:
            rank = result.differing[0] if result.majority and len(result.differing) == 1 else None
            cause = self._cause(key, drift)
            text, severity = drift_phrase(drift, self._world, cause), cause.severity
            self._log.add(unix_s, "replica_drift", text, severity=severity, rank=rank, step=step)
        self._drifts[key, piece] = drift

    def _cause(self, key: _Key, drift: Drift) -> DriftCause:
        if self._synchronisation.explains(*key, drift.since):
            return DriftCause(say("replica_drift", "not_reduced"))
        hook = self._comm_hook(key.model)
        if hook and hook not in REDUCING_HOOKS:
            return DriftCause(say("replica_drift", "comm_hook", hook=hook), hook)
        return DriftCause("")

    def _forget(self, key: _Key, pieces: int) -> None:
        """Forget a model that is now divided into other pieces."""
        self._pieces[key] = pieces
        self.open_checks.pop(key, None)
        self._equal.pop(key, None)
        self._newest = {place: step for place, step in self._newest.items() if place[0] != key}
        self._drifts = {place: drift for place, drift in self._drifts.items() if place[0] != key}
        self._updates = {place: updates for place, updates in self._updates.items() if place[0] != key}


def _full(equal: _LastEqual | None) -> int:
    return UNKNOWN if equal is None or equal.full is None else equal.full


def drift_phrase(drift: Drift, world: int, cause: DriftCause) -> str:
    """`replica of rank 2 differs since step 80 (equal at step 64)`."""
    who = ranks_phrase([*drift.ranks], world)
    whose, differ = ("replica", "differs") if len(drift.ranks) == 1 else ("replicas", "differ")
    why = f": {cause.text}" if cause.text else ""
    if not cause.text:
        why += say("replica_drift", "changed_early") if drift.equal is None else ""
        why += "" if drift.majority else say("replica_drift", "no_majority")
    case = "never_equal" if drift.equal is None else ""
    return say(
        "replica_drift",
        case,
        whose=whose,
        who=who,
        differ=differ,
        since=drift.since,
        equal=drift.equal,
        why=why,
    )
