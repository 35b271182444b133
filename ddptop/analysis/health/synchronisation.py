"""Gradients that DDP did not all-reduce, and forwards that had no backward on some ranks.

Ranks report optimizer steps with gradients that were not all-reduced, each with a checksum of parameters
from before that step. Where these differ between the ranks, the missing all-reduce is why. Where they are
equal, the script synchronises gradients or parameters itself, which is no fault.

A rank reports this before it reports the step. So when all ranks have reported a step, nothing that
they have to say about it is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.conditions import CONDITIONS, say
from ddptop.frames.frame import Alert
from ddptop.frames.phrases import ranks_phrase

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from ddptop.analysis.event_log import EventLog
    from ddptop.protocol.messages import Event, Scalar

OPEN_STEPS = 256
"""Most steps for which reports of some ranks wait for those of others."""

REPORTED_ALL = 8
"""Ranks report so many steps one by one, and later ones now and then only: `FIRST_REPORTS` in
`training/synchronisation.py`."""

ENOUGH = 3
"""Steps after which missing all-reduces are reported, where parameters cannot be compared (a GPU)."""

EVALUATION = 3
"""Forwards without a backward in one step from which they are an evaluation, not a skipped batch."""


class ModelKey(NamedTuple):
    """A DDP model and the ranks that reduce its gradients together; no ranks: all."""

    model: int
    ranks: tuple[int, ...]


class Unreduced(NamedTuple):
    """What one rank reports of an optimizer step with gradients that were not all-reduced."""

    name: str
    """Class of the model."""
    why: str
    """`no_sync`: backward ran under it; `again`: twice after one DDP forward; `bypass`: without any."""
    steps: int
    """How many such steps it has made, this one included."""
    checksum: int | None
    """Checksum of parameters before the step; None: it cannot read them."""
    waits: int
    """Collectives of the script itself since the last such step."""
    averaged: bool
    """The script uses one of torch's model averagers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Gradients of a model are not synchronised."""

    name: str
    why: str
    ranks: tuple[int, ...]
    since: int
    """The first step without an all-reduce."""
    differ: int | None
    """The first step before which the parameters were seen to differ; None: they are not compared."""
    since_s: float


class _Model:
    """What is known of one model."""

    def __init__(self) -> None:
        self.steps: dict[int, dict[int, Unreduced]] = {}
        """By step and rank, what some ranks have reported and others not yet."""
        self.newest_s = 0.0
        """When the newest of these reports arrived."""
        self.counts: dict[int, int] = {}
        """By rank, its newest count."""
        self.first: dict[int, tuple[int, Unreduced]] = {}
        """By rank, its first report, with the step."""
        self.were_equal = self.reduces_itself = self.is_excused = False
        """The parameters were equal before such a step, and after one; they differ on purpose."""
        self.fault: Fault | None = None


class Synchronisation:
    """Collects the ranks' reports; depends on the order of messages alone."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self.restart(0)

    def restart(self, world: int) -> None:
        """Begin anew, with new processes."""
        self._models: dict[ModelKey, _Model] = {}
        self._waiting = False
        """Whether reports wait for those of other ranks."""
        self._world = world
        self.skipped = SkippedBackwards(self._log, world)

    def take(self, rank: int, event: Event, ranks: tuple[int, ...], present: Set[int], unix_s: float) -> None:
        """Take a rank's report of a step. `ranks`: those that have this model, empty: all."""
        report = _unreduced(event.fields)
        if report is None or event.step < 0:
            return
        key = ModelKey(_integer_of(event.fields.get("model")), ranks)
        model = self._models.setdefault(key, _Model())
        model.first.setdefault(rank, (event.step, report))
        model.counts[rank] = report.steps
        model.newest_s = unix_s
        reports = model.steps.setdefault(event.step, {})
        reports[rank] = report
        if reports.keys() >= _expected(key, present):
            del model.steps[event.step]
            self._compare(key, model, event.step, reports, unix_s)
        elif len(model.steps) > OPEN_STEPS:
            del model.steps[min(model.steps)]
        self._waiting = any(model.steps for model in self._models.values())

    @property
    def waits(self) -> bool:
        """Whether reports wait for those of other ranks: then `complete` is to be called."""
        return self._waiting or self.skipped.waits

    def complete(self, step: int, present: Set[int]) -> None:
        """All ranks have reported this step."""
        self.skipped.complete(step)
        for key, model in self._models.items():
            for reported in sorted(reported for reported in model.steps if reported <= step):
                self._blame_some(key, model, model.steps.pop(reported), present)
        self._waiting = any(model.steps for model in self._models.values())

    def explains(self, model: int, ranks: tuple[int, ...], step: int) -> bool:
        """Whether replicas of a model may differ after `step` since its gradients were not all-reduced."""
        known_model = self._models.get(ModelKey(model, ranks))
        if known_model is None or known_model.fault is not None:
            return known_model is not None
        return not known_model.reduces_itself and any(
            first <= step for first, _ in known_model.first.values()
        )

    def averages(self, model: int, ranks: tuple[int, ...]) -> bool:
        """Whether the replicas of a model differ on purpose: the script averages them now and then."""
        known_model = self._models.get(ModelKey(model, ranks))
        return known_model is not None and known_model.is_excused

    def alert(self) -> Alert | None:
        """The alert of the first fault, until its replicas are equal again or the ranks restart."""
        faults = [(model.fault, key) for key, model in self._models.items() if model.fault is not None]
        if not faults:
            return None
        fault, key = min(faults, key=lambda entry: (entry[0].since, entry[1]))
        evidence: dict[str, Scalar] = {
            "model": key.model,
            "name": fault.name,
            "why": fault.why,
            "since_step": fault.since,
            "differ_step": fault.differ,
            "ranks": len(fault.ranks),
        }
        rank = fault.ranks[0] if len(fault.ranks) == 1 else None
        text = fault_phrase(fault, key, self._world)
        return Alert.declared("not_synchronised", rank, fault.since, fault.since_s, text, evidence)

    def _compare(
        self, key: ModelKey, model: _Model, step: int, reports: Mapping[int, Unreduced], unix_s: float
    ) -> None:
        """All ranks stepped their optimizers with gradients that were not all-reduced."""
        if any(report.averaged for report in reports.values()):
            self._excuse(model, say("averaged"), step, unix_s)
            return
        sums = {report.checksum for report in reports.values()}
        own_collectives = any(report.waits for report in reports.values())
        first = min(report.steps for report in reports.values()) == 1
        if len(sums) == 1 and None not in sums:
            if model.fault is not None and not first:
                model.fault = None
                self._excuse(model, say("averaged", "by_script", step=step), step, unix_s)
            model.were_equal = True
            model.reduces_itself |= not first
        elif first or model.is_excused or model.fault is not None:
            return
        elif None in sums:
            if min(report.steps for report in reports.values()) >= ENOUGH and not own_collectives:
                self._blame(key, model, reports, None, unix_s)
        elif model.were_equal or not own_collectives:
            self._blame(key, model, reports, step, unix_s)

    def _blame_some(
        self,
        key: ModelKey,
        model: _Model,
        reports: Mapping[int, Unreduced],
        present: Set[int],
    ) -> None:
        """Some ranks did not all-reduce their gradients in a step in which the others did."""
        without_report = _expected(key, present) - reports.keys()
        unsure = any(model.counts.get(rank, 0) >= REPORTED_ALL for rank in without_report)
        if without_report and not unsure and not model.is_excused and model.fault is None:
            self._blame(key, model, reports, None, model.newest_s)

    def _blame(
        self,
        key: ModelKey,
        model: _Model,
        reports: Mapping[int, Unreduced],
        differ: int | None,
        unix_s: float,
    ) -> None:
        ranks = tuple(sorted(reports))
        report = reports[ranks[0]]
        since = min(model.first[rank][0] for rank in ranks)
        model.fault = Fault(report.name, report.why, ranks, since, differ, unix_s)
        text = fault_phrase(model.fault, key, self._world)
        rank = ranks[0] if len(ranks) == 1 else None
        self._log.add(unix_s, "not_synchronised", text, rank=rank, step=since)

    def _excuse(self, model: _Model, text: str, step: int, unix_s: float) -> None:
        if not model.is_excused:
            model.is_excused = True
            self._log.add(unix_s, "averaged", text, step=step)


def fault_phrase(fault: Fault, key: ModelKey, world: int) -> str:
    """`gradients of Net are not synchronised: its forward bypasses DDP since step 0 (3 ranks)`."""
    name = f"{fault.name} (DDP model {key.model})" if key.model else fault.name or "the model"
    who, why = ranks_phrase(fault.ranks, world), say("not_synchronised", fault.why)
    return say("not_synchronised", model=name, why=why, since=fault.since, who=who)


class _Skipped(NamedTuple):
    forwards: int
    prepared: int


class SkippedBackwards:
    """Forwards without a backward that some ranks made and others did not."""

    def __init__(self, log: EventLog, world: int) -> None:
        self._log = log
        self._world = world
        self._steps: dict[tuple[int, ModelKey], tuple[dict[int, _Skipped], float]] = {}
        """By step and model what some ranks have reported and others not yet, and when the newest came."""
        self._ahead: dict[tuple[int, int], int] = {}
        """By model and rank, how many batches it is ahead of the others."""
        self._first: tuple[int, tuple[int, ...], float] | None = None

    def take(self, rank: int, event: Event, ranks: tuple[int, ...], present: Set[int], unix_s: float) -> None:
        """Take a rank's report; the arguments are those of `Synchronisation.take`."""
        skipped = _Skipped(
            _integer_of(event.fields.get("forwards")), _integer_of(event.fields.get("prepared"))
        )
        if skipped.forwards < 1 or event.step < 0:
            return
        place = event.step, ModelKey(_integer_of(event.fields.get("model")), ranks)
        reports, _ = self._steps.get(place, ({}, 0.0))
        reports[rank] = skipped
        self._steps[place] = reports, unix_s
        if reports.keys() >= _expected(place[1], present):  # all ranks did the same
            del self._steps[place]
        elif len(self._steps) > OPEN_STEPS:
            del self._steps[min(self._steps)]

    @property
    def waits(self) -> bool:
        """Whether reports wait for those of other ranks."""
        return bool(self._steps)

    def complete(self, step: int) -> None:
        """All ranks have reported this step."""
        for key in sorted(key for key in self._steps if key[0] <= step):
            reports, unix_s = self._steps.pop(key)
            self._evaluate(key[0], key[1], reports, unix_s)

    def alert(self) -> Alert | None:
        """The alert of ranks that are ahead of the others, while they are."""
        if self._first is None:
            return None
        step, ranks, since_s = self._first
        rank = ranks[0] if len(ranks) == 1 else None
        text = _skipped_phrase("", ranks, step, self._world)
        evidence: dict[str, Scalar] = {"ranks": len(ranks)}
        return Alert.declared("skipped_backward", rank, step, since_s, text, evidence)

    def _evaluate(self, step: int, key: ModelKey, reports: Mapping[int, _Skipped], unix_s: float) -> None:
        by_case: dict[str, list[int]] = {}
        for rank, skipped in sorted(reports.items()):
            case = "" if skipped.prepared else "left_out"
            by_case.setdefault("evaluation" if skipped.forwards >= EVALUATION else case, []).append(rank)
        for case, ranks in by_case.items():
            text = _skipped_phrase(case, tuple(ranks), step, self._world)
            only = ranks[0] if len(ranks) == 1 else None
            self._log.add(unix_s, "skipped_backward", text, rank=only, step=step)
        for rank in by_case.get("", ()):
            self._ahead[key.model, rank] = self._ahead.get((key.model, rank), 0) + reports[rank].prepared
            if self._first is None:
                self._first = step, tuple(by_case[""]), unix_s
        every_rank = key.ranks or tuple(range(self._world))
        of_all = [self._ahead.get((key.model, rank), 0) for rank in every_rank]
        if self._first is not None and min(of_all) == max(of_all):
            self._first = None
            text = say("skipped_backward_end", step=step)
            self._log.add(unix_s, "skipped_backward_end", text, step=step)


def _skipped_phrase(case: str, ranks: tuple[int, ...], step: int, world: int) -> str:
    """What these ranks did in this step: one of the sentences of `skipped_backward`."""
    be = "is" if len(ranks) == 1 else "are"
    return say("skipped_backward", case, who=ranks_phrase(ranks, world), step=step, be=be)


def _expected(key: ModelKey, present: Set[int]) -> Set[int]:
    return present & {*key.ranks} if key.ranks else present


def _unreduced(fields: Mapping[str, Scalar]) -> Unreduced | None:
    """A report as a rank sent it; None where it is not right."""
    name, why, checksum = fields.get("name"), fields.get("why"), fields.get("checksum")
    count = _integer_of(fields.get("count"))
    if not isinstance(name, str) or why not in CONDITIONS["not_synchronised"].sentences or count < 1:
        return None
    known_checksum = checksum if type(checksum) is int else None
    averaged = fields.get("averaged") is True
    return Unreduced(name, str(why), count, known_checksum, _integer_of(fields.get("waits")), averaged)


def _integer_of(value: Scalar) -> int:
    return value if type(value) is int and value > 0 else 0
