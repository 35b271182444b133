"""The report as frozen data, which the page of text and `--json` both show, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING

from ddptop.frames.ledger import Ledger
from ddptop.frames.snapshot import SCHEMA, ledger_as_json, tidy, with_old_names
from ddptop.frames.stall import Stall

if TYPE_CHECKING:
    from ddptop.frames.conditions import FindingKind
    from ddptop.frames.frame import Alert, LoggedEvent, RunInfo
    from ddptop.frames.ledger import RareSlowness
    from ddptop.frames.overhead import Overhead
    from ddptop.frames.sampled_stack import SampledStack
    from ddptop.frames.stall import Death
    from ddptop.protocol.messages import Scalar
    from ddptop.protocol.vocabulary import Basis, OwnPlace, Sign


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of the run was read for the report."""

    steps: int
    """Steps that the group finished, by their numbers, summed over all incarnations."""
    read_steps: int
    """Complete steps that were read."""
    judged_pct: float | None
    """Share of the step time in which arrivals could be compared: with bucket detail and accurate clocks."""
    whole: bool
    """Every message was read; otherwise evenly spread ranges of steps, and every message of another kind."""
    clock_free: bool
    """For most of the time the hosts' clocks were not accurate enough to tell which rank arrived last."""
    refused: int
    """Messages that could not be used."""
    damage: str | None
    """Which part of the file could not be read."""
    clock_reason: str | None = None
    """Why arrivals could not be compared between hosts for most of the time; None: they could."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the verdict."""

    kind: FindingKind
    sign: Sign
    sentence: str
    detail: tuple[str, ...] = ()
    """Lines below it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Time spent by the run, in seconds of wall time of the group (not summed over ranks)."""

    step_s: float
    """Time inside steps."""
    flagged_s: float | None
    """Time lost to ranks while they were flagged: the sum of cost x time. None: not measured."""
    flagged_pct: float | None
    """`flagged_s` in percent of the time inside steps."""
    uneven_s: float | None
    """Time lost to late arrivals of any rank, flagged or not."""
    uneven_pct: float | None
    stalled_s: float
    """Total length of the stalls."""
    is_summed: bool = False
    """Whether `uneven_s` and `uneven_pct` are the mean over the ranks of what the ledger says they waited;
    else estimates from samples."""


@dataclass(frozen=True, slots=True)
class StragglerSummary:
    """A rank that was flagged as straggler for a part of the run; means over that time, in ms."""

    rank: int
    ranks: tuple[int, ...]
    """All ranks that were flagged together with it, itself first."""
    cause: str | None
    pattern: str | None
    lateness_ms: float
    bound_ms: float
    last_pct: float
    cost_pct: float
    """Cost in percent of the steps while it was flagged."""
    lost_s: float
    """Time lost to it over the run."""
    flagged_pct: float
    """Share of the step time in which it was flagged."""
    first_step: int
    last_step: int
    parts_ms: Mapping[str, float]
    """How much longer than the others it takes, by phase."""
    relative_score: float | None
    host: str
    device: str
    place: OwnPlace | None = None
    """Where the excess lies, as `cause`, with `other` divided by its place; None: mixed or unknown."""
    basis: Basis = "arrivals"
    """`every_step`: `lateness_ms` is the excess of its own time; `arrivals`: how late its buckets arrive."""
    disagrees: bool = False
    """Bucket arrivals contradicted the verdict for most of that time."""
    step_without_ms: float | None = None
    """The median step without it while it was flagged, and the 95 % interval of that. None: unknown."""
    step_without_low_ms: float | None = None
    step_without_high_ms: float | None = None
    step_ms: float | None = None
    """The median step while it was flagged."""
    incarnation: int = 0
    """Elastic restarts before `first_step`, and before `last_step`."""
    last_incarnation: int = 0
    excess_ms: tuple[float | None, ...] = ()
    """Its excess over the run, one mean for each of `spans`; empty: not known in any."""
    rare: RareSlowness | None = None
    """With pattern `rare`: its slow steps. `cost_pct` is then a share of the run's time, and `lateness_ms`
    what the others waited in such a step."""
    group: str = ""
    """As in the frame's `Straggler`."""
    differs: tuple[str, ...] = ()
    """In what its process, GPU and host differed from the others' when last flagged, and why it waited."""


@dataclass(frozen=True, slots=True)
class Span:
    """One of the equal intervals into which the run's time is divided. Seconds count from its start."""

    begin_s: float
    end_s: float
    first_step: int | None
    last_step: int | None
    steps: int
    read_steps: int
    step_ms: float | None
    """Median wall time of its steps."""
    wait_pct: float | None
    """Exposed wait as a share of the step, mean over ranks."""
    transfer_pct: float | None
    """Exposed transfer as a share of the step, mean over ranks."""
    no_straggler_ms: float | None
    rank: int | None
    """The rank that was flagged for the largest part of it, or was rarely slow and cost more."""
    cause: str | None
    cost_pct: float | None
    """`lost_s` in percent of the time in its steps."""
    lost_s: float | None
    """Time lost to the flagged ranks: of all spans together `Cost.flagged_s`."""
    incarnation: int = 0
    """Elastic restarts before `first_step`, and before `last_step`."""
    last_incarnation: int = 0


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank over the run."""

    rank: int
    host: str
    device: str
    state: str
    lost_records: int | None
    means: Mapping[str, float | None]
    """Mean of the windows' values of each figure that the report has (`Figure.in_report`), by its key. None:
    unknown, such as own times in a recording of 0.1.0. JSON has them among the rank's own fields."""

    @property
    def step_ms(self) -> float | None:
        """Its mean step."""
        return self.means["step_ms"]

    @property
    def has_own_times(self) -> bool:
        """Whether its own times are known, so that its excess says how slow it is."""
        return self.means["excess_ms"] is not None

    @property
    def late_ms(self) -> float | None:
        """As `Ranks.late_ms`: its excess; where that is not known, its lateness."""
        return self.means["excess_ms" if self.has_own_times else "lateness_ms"]


@dataclass(frozen=True, slots=True)
class HostSummary:
    """One host of the group at the end of the run; only where there were several."""

    name: str
    state: str
    ranks: tuple[int, ...]
    step_ms: float | None
    """Mean over its ranks, as theirs over the run."""
    worst_rank: int | None
    """Its rank with the largest excess."""
    excess_ms: float | None
    """Excess of that rank."""
    clock_bound_ms: float | None
    """The largest bound of its clock in any sample; None, as below: it is the collector's own, or was not
    compared."""
    clock_drift_ppm: float | None
    """At the end."""
    silences: int
    """How often nothing arrived from it for some time."""

    @property
    def trouble(self) -> tuple[int, float]:
        """Orders hosts: those that were silent most often, then by the excess of their worst rank."""
        return self.silences, self.excess_ms or 0.0


@dataclass(frozen=True, slots=True)
class Communication:
    """The whole group's communication. Means over ranks and over the run. Exposed communication is that of
    DDP, all-reduces and broadcasts of buffers, as in the breakdown of the step."""

    step_ms: float | None
    step_ms_p50: float | None
    step_ms_p95: float | None
    step_ms_max: float | None
    """The longest step that was read, and its number."""
    step_of_max: int | None
    collective_ms: float | None
    wait_ms: float | None
    transfer_ms: float | None
    exposed_comm_ms: float | None
    exposed_wait_ms: float | None
    exposed_transfer_ms: float | None
    """Exposed communication without the wait in it: what transfer adds to the step."""
    exposed_pct: float | None
    exposed_transfer_pct: float | None
    overlap_pct: float | None
    busbw_gbps: float | None
    no_straggler_ms: float | None
    no_exposed_comm_ms: float | None
    both_ms: float | None
    bound_ms: float | None
    incarnation_of_max: int = 0
    """Elastic restarts before `step_of_max`."""
    no_straggler_low_ms: float | None = None
    """95 % interval of `no_straggler_ms`; None: recordings of 0.1.0."""
    no_straggler_high_ms: float | None = None
    all_reduces: float | None = None
    """In a step, over all backward passes; None: no step with bucket detail."""
    wire_bytes: float | None = None
    """What a rank gives to them; None also where a hook hides it."""
    late_no_sync: bool = False
    """`no_sync()` enclosed backward and not its forward at some time."""
    buffers_ms: float | None = None
    """What DDP's broadcasts of buffers take of the exposed transfer; None: a recording of an earlier
    version."""
    sync_ms: float | None = None
    """In the script's own collectives, waiting and moving: no part of exposed communication."""

    @property
    def is_measured(self) -> bool:
        """Whether it is known in some step; else there are sizes of buckets alone."""
        return self.exposed_comm_ms is not None


@dataclass(frozen=True, slots=True)
class BucketSummary:
    """One gradient bucket of the layout that was in use the longest."""

    index: int
    model: int
    group: str
    bytes: int | None
    parameters: int | None
    dtype: str
    hook: str
    collective_ms: float | None
    wait_ms: float | None
    transfer_ms: float | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    skew_ms: float | None
    launches: float | None = None
    """All-reduces of it in a step, over all backward passes: more than 1 where gradients are accumulated
    without `no_sync()`. The times are means over them."""


@dataclass(frozen=True, slots=True)
class StallPeriod(Stall):
    """A stall with its duration, and the diagnosis made when most was known about it."""

    until_s: float | None = None
    """Unix seconds at which the run went on; None: it did not within the recording."""
    lasted_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something to try, and the figure that it is based on."""

    kind: str
    action: str
    because: str
    """The figure, in words."""
    gain_pct: float | None
    """Upper bound in percent of the time in steps, above 100 for what takes longer than all steps; None: it
    saves no time, or the time is unknown."""
    figures: Mapping[str, Scalar]
    """The figures as data."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run from its beginning to its end, or to now.

    `--json` prints `schema` (1) and then these fields under their own names. What is inside them has the
    names of the classes of this file and of `ddptop.frames`, and some of it an older name too (`OLD_NAMES`).
    Units are part of the names (`_ms`, `_s`, `_pct`, `_gbps`, `bytes`). A point in time is in Unix seconds,
    except in `spans`. Unknown is null.

    - `source`: `recording` or `simulated`
    - `run`: RunInfo. `state` is live, finished, failed, lost, or stalled and stale for one still running;
      `card` has DDP's options under `ddp.*`
    - `reading`: Reading, `verdict`: list of Finding (the worst first), `cost`: Cost
    - `stragglers`: list of StragglerSummary (the most costly first), `spans`: list of Span (in order of time)
    - `ranks`: list of RankSummary (by rank), `phases_pct`: share of the step by phase, mean over ranks
    - `communication`: Communication, `buckets`: list of BucketSummary
    - `stalls`: list of StallPeriod, `deaths`: list of Death, `troubles`: list of Alert, those that were
      active at any time (NaN, replica drift, missing records, recording), `events`: list of LoggedEvent
    - `advice`: list of Suggestion (wrong numbers, then stalls, then the largest gain first)
    - `overhead`: Overhead at the end
    - `hosts`: list of HostSummary, in order of the lowest rank; empty on one host
    - `cpu_wait_pct`, `cpu_shortage`: how long ranks waited for a CPU, and why all of them did
    - `sampled`: list of SampledStack, which line takes the time of slow ranks and of long steps
    - `ledger`: as in the snapshot
    """

    source: str
    run: RunInfo
    reading: Reading
    verdict: tuple[Finding, ...]
    cost: Cost
    stragglers: tuple[StragglerSummary, ...]
    spans: tuple[Span, ...]
    ranks: tuple[RankSummary, ...]
    phases_pct: Mapping[str, float]
    communication: Communication
    buckets: tuple[BucketSummary, ...]
    stalls: tuple[StallPeriod, ...]
    deaths: tuple[Death, ...]
    troubles: tuple[Alert, ...]
    events: tuple[LoggedEvent, ...]
    advice: tuple[Suggestion, ...]
    overhead: Overhead
    hosts: tuple[HostSummary, ...] = ()
    cpu_wait_pct: float | None = None
    """Share of the time that every rank waited for a CPU outside exposed communication: the least of all."""
    cpu_shortage: str = ""
    """`3 ranks may use core 0 only`, when last seen; empty: ranks had as many CPUs as they needed."""
    sampled: tuple[SampledStack, ...] = ()
    """The newest of each rank and place."""
    ledger: Ledger | None = None
    """None: no rank has reported."""

    def excess_over_time(self, slow: StragglerSummary) -> list[tuple[Span, float | None]]:
        """Every span with the straggler's mean excess in it, None: not known; empty: known in no span."""
        return [*zip(self.spans, slow.excess_ms, strict=True)] if slow.excess_ms else []


MOMENTS = ("started_at", "since_s", "until_s", "at_s", "unix_s")
"""Fields in Unix seconds, which `tidy` would round to six significant digits."""


def as_data(report: Report) -> dict[str, object]:
    """The report as dicts, lists and scalars for `json.dumps`, in the form that Report documents."""
    data = _plain_value("", replace(report, ledger=None))
    assert isinstance(data, dict)
    ledger = None if report.ledger is None else ledger_as_json(report.ledger, report.sampled)
    return {"schema": SCHEMA, **data, "ledger": ledger}


def _plain_value(name: str, value: object) -> object:
    if isinstance(value, RankSummary):
        rank = {field.name: getattr(value, field.name) for field in fields(value) if field.name != "means"}
        return _plain_value(name, rank | dict(value.means))
    if is_dataclass(value):
        return with_old_names(
            {field.name: _plain_value(field.name, getattr(value, field.name)) for field in fields(value)}
        )
    if isinstance(value, Mapping):
        return {key: _plain_value(key, inner) for key, inner in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain_value(name, inner) for inner in value]
    if name in MOMENTS and isinstance(value, float):
        return round(value, 3)
    return tidy(name, value)
