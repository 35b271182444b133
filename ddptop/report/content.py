"""What a report says, as frozen data: the page and `--json` show the same.

A report as plain data, for `--json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING

from ddptop.frames.snapshot import SCHEMA, tidy

if TYPE_CHECKING:
    from ddptop.frames.frame import Alert, Happening, Overhead, RunInfo
    from ddptop.frames.stall import Death, RankPosition
    from ddptop.protocol.messages import Scalar


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of the run the figures rest on."""

    steps: int
    """Steps that the group finished, by their numbers; those of all incarnations added up."""
    read_steps: int
    """Complete steps that were read."""
    judged_pct: float | None
    """Share of the step time in which arrivals could be compared: bucket detail was there, clocks agreed."""
    whole: bool
    """Every message was read; else evenly spread stretches of steps, and all that is no step."""
    clock_free: bool
    """For most of the time the hosts' clocks could not tell who came last."""
    refused: int
    """Messages that could not be taken."""
    damage: str | None
    """What of the file could not be read, in words."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of the verdict. `sign` is good, busy, doubt, warning or critical."""

    kind: str
    sign: str
    sentence: str
    detail: tuple[str, ...] = ()
    """Lines below it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What the run spent. Seconds of wall time of the group, not of all ranks added up."""

    step_s: float
    """Time inside steps."""
    named_s: float | None
    """Lost to ranks while they were named: cost x time, added up. None: nothing could be judged."""
    named_pct: float | None
    """Of the time inside steps."""
    uneven_s: float | None
    """Lost to late arrivals of any rank, named or not."""
    uneven_pct: float | None
    stalled_s: float
    """Time in which the step did not move for so long that it counts as a stall."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A rank that was named as straggler for some of the run; means over that time, in ms."""

    rank: int
    ranks: tuple[int, ...]
    """All that held the others up together with it, itself first."""
    cause: str | None
    pattern: str | None
    lateness_ms: float
    bound_ms: float
    last_pct: float
    cost_pct: float
    """Of every step while it was named."""
    lost_s: float
    """Over the run."""
    named_pct: float
    """Share of the step time in which it was named."""
    first_step: int
    last_step: int
    parts_ms: Mapping[str, float]
    """What it takes longer than the others, by phase."""
    relative_score: float | None
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of the run's time. Seconds count from its start."""

    begin_s: float
    end_s: float
    first_step: int | None
    last_step: int | None
    steps: int
    read_steps: int
    step_ms: float | None
    """Median wall time of its steps."""
    wait_pct: float | None
    """Exposed waiting for slower ranks, as share of the step; mean over ranks."""
    transfer_pct: float | None
    """The same of exposed transfer."""
    no_straggler_ms: float | None
    rank: int | None
    """The rank that was named for the largest part of it."""
    cause: str | None
    cost_pct: float | None
    lost_s: float | None
    """Of the named ranks."""


@dataclass(frozen=True, slots=True)
class RankSummary:
    """One rank over the run: means of the windows' medians."""

    rank: int
    host: str
    device: str
    state: str
    step_ms: float | None
    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    other_ms: float | None
    wait_ms: float | None
    exposed_wait_ms: float | None
    exposed_comm_ms: float | None
    lateness_ms: float | None
    bound_ms: float | None
    last_pct: float | None
    relative_score: float | None
    lost_records: int | None


@dataclass(frozen=True, slots=True)
class Communication:
    """The whole group's all-reduces. Means over ranks and over the run."""

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
    """Exposed communication less the waiting in it: what moving bytes adds to the step."""
    exposed_pct: float | None
    exposed_transfer_pct: float | None
    overlap_pct: float | None
    busbw_gbps: float | None
    no_straggler_ms: float | None
    no_exposed_comm_ms: float | None
    both_ms: float | None
    bound_ms: float | None


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


@dataclass(frozen=True, slots=True)
class Standstill:
    """A stall, as it was understood when it was understood best."""

    kind: str
    """As `Stall.kind`; empty where nothing more than the standing still is known."""
    since_s: float
    """Unix seconds at which the step last moved."""
    until_s: float | None
    """When it moved again; None: it did not within the recording."""
    lasted_s: float
    step: int | None
    sentence: str
    detail: tuple[str, ...]
    ranks: tuple[int, ...]
    waiting: tuple[int, ...]
    positions: tuple[RankPosition, ...]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Something to try, and the figure that it rests on."""

    kind: str
    action: str
    because: str
    """The figure, in words."""
    gain_pct: float | None
    """At most so much of the step time; None: not a matter of time, or not to be told."""
    figures: Mapping[str, Scalar]
    """The same figures as data."""


@dataclass(frozen=True, slots=True)
class Report:
    """A run from its beginning to its end, or to this moment.

    `--json` prints `schema` (1) and then these fields under their own names, with every name inside as in
    the classes of this file and of `ddptop.frames.frame`. Units stand in the names (`_ms`, `_s`, `_pct`,
    `_gbps`, `bytes`), `*_s` of a moment are Unix seconds but for those of `spans`, what is not known is null.

    - `source`: `recording` or `simulated`
    - `run`: RunInfo. `state` is live, finished, failed, lost, or stalled and stale for one still running;
      `card` has DDP's options under `ddp.*`
    - `reading`: Reading, `verdict`: list of Finding (the worst first), `cost`: Cost
    - `culprits`: list of Culprit (the dearest first), `spans`: list of Span (in order of time)
    - `ranks`: list of RankSummary (by rank), `phases_pct`: share of the step by phase, mean over ranks
    - `communication`: Communication, `buckets`: list of BucketSummary
    - `stalls`: list of Standstill, `deaths`: list of Death, `troubles`: list of Alert that held at some time
      (NaN, replicas that drift apart, lost records, recording), `happenings`: list of Happening
    - `advice`: list of Suggestion (the most valuable first), `overhead`: Overhead at the end
    """

    source: str
    run: RunInfo
    reading: Reading
    verdict: tuple[Finding, ...]
    cost: Cost
    culprits: tuple[Culprit, ...]
    spans: tuple[Span, ...]
    ranks: tuple[RankSummary, ...]
    phases_pct: Mapping[str, float]
    communication: Communication
    buckets: tuple[BucketSummary, ...]
    stalls: tuple[Standstill, ...]
    deaths: tuple[Death, ...]
    troubles: tuple[Alert, ...]
    happenings: tuple[Happening, ...]
    advice: tuple[Suggestion, ...]
    overhead: Overhead


KEYS = {"positions": "testimonies", "position": "testimony"}
"""Keys of the JSON that are not the names of their fields: they stay as programs know them."""

MOMENTS = ("started_at", "since_s", "until_s", "at_s", "unix_s")
"""Unix seconds: six digits would be days."""


def as_data(report: Report) -> dict[str, object]:
    """Dicts, lists and scalars that `json.dumps` takes, as Report documents. Unknown is None."""
    data = _plain("", report)
    assert isinstance(data, dict)
    return {"schema": SCHEMA, **data}


def _plain(name: str, value: object) -> object:
    if is_dataclass(value):
        return {
            KEYS.get(field.name, field.name): _plain(field.name, getattr(value, field.name))
            for field in fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _plain(key, own) for key, own in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(name, own) for own in value]
    if name in MOMENTS and isinstance(value, float):
        return round(value, 3)
    return tidy(name, value)
