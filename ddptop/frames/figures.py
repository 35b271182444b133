"""What every figure is, declared once. What shows figures iterates over the declarations.

`FIGURES` has those of a rank, `HOST_FIGURES`, `BUCKET_FIGURES`, `PROCESS_GROUP_FIGURES` and `GROUP_FIGURES`
those of a host, of a bucket, of a process group and of the whole group. Frames as bytes, JSON and its schema,
tables and their order, the heat map, the comparison of ranks, metrics, the exported ranks, the report, F1 and
METRICS.md are derived from them.

To add a figure, declare it here, give `Ranks` (`HostFigures`, `BucketFigures`, `GroupFigures`) a field of its
name, and measure it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from ddptop.frames.buckets import times_a_step
from ddptop.frames.numbers import (
    LEAST_SHOWN_MS,
    RATIO,
    UNKNOWN,
    count,
    fixed,
    loss,
    plus_minus,
    ratio,
    signed,
    size,
    whole,
)

if TYPE_CHECKING:
    from ddptop.frames.columns import Column, Mask
    from ddptop.frames.hosts import HostFigures
    from ddptop.protocol.vocabulary import RankPhase, RankStatus

Scope: TypeAlias = Literal["rank", "gpu", "computed", "host", "bucket", "process_group", "group"]
"""What has the values: `Ranks`, `GpuFacts` of the rank, or a formula over `Ranks`; `HostFigures`,
`BucketFigures`, `ProcessGroupFigures`, `GroupFigures`."""

Emphasis: TypeAlias = Literal["text", "dim", "faint"]
"""How loud the values of a column are."""


def some_known(values: Column) -> bool:
    """Whether a value is known."""
    return bool(np.isfinite(values).any())


def some_above_zero(values: Column) -> bool:
    """Whether a value is above 0."""
    return bool((values > 0).any())


def some_above_one(values: Column) -> bool:
    """Whether a value is above 1."""
    return bool((values > 1).any())


def some_shown_ms(values: Column) -> bool:
    """Whether a time is not written as 0.0."""
    return bool((values >= LEAST_SHOWN_MS).any())


REPORTS_APART_MS = 1_000.0
"""The newest reports of two ranks are less apart. So many ms of steps a rank may seem to be behind another
that is in the same one: 0.3 s in a run of two ranks with steps of 5 ms."""


def steps_alike(steps: Column, ranks: Ranks) -> bool:
    """Whether all are in the same step, or in the next one already, as far as their reports tell."""
    step_ms = ranks.step_ms[ranks.step_ms > 0]
    apart = max(1.0, REPORTS_APART_MS / float(step_ms.min())) if len(step_ms) else 1.0
    return bool(np.ptp(steps) <= apart) if len(steps) else False


ALIKE = 0.25
"""Share of the largest time. The median steps of ranks that train together differ by less: by up to 0.18 on a
busy machine."""


def times_alike(times_ms: Column, _: Ranks) -> bool:
    """Whether all take equally long, but for noise."""
    return bool(np.ptp(times_ms) <= ALIKE * times_ms.max()) if len(times_ms) else False


@dataclass(frozen=True, slots=True)
class Ranks:
    """One element per rank in every field. Text first, then columns; names as in the JSON snapshot."""

    host: tuple[str, ...]
    device: tuple[str, ...]
    state: tuple[RankStatus, ...]
    phase: tuple[RankPhase, ...]
    local_rank: Column
    pid: Column
    incarnation: Column
    age_ms: Column
    """Time since the rank's last message."""
    step: Column
    """The step that the rank is in."""
    bucket: Column
    sequence: Column
    loss: Column
    step_ms: Column
    data_ms: Column
    forward_ms: Column
    backward_ms: Column
    optimizer_ms: Column
    other_ms: Column
    collective_ms: Column
    wait_ms: Column
    transfer_ms: Column
    exposed_comm_ms: Column
    """Over every step where the last gradient is known, else over steps with bucket detail; likewise
    below."""
    exposed_wait_ms: Column
    """The part of the backward phase spent waiting for a slower rank and not hidden behind compute."""
    lateness_ms: Column
    bound_ms: Column
    """How far this rank's lateness and wait may be wrong."""
    transfer_bound_ms: Column
    last_pct: Column
    relative_score: Column
    individual_score: Column
    records: Column
    lost_records: Column
    rss_bytes: Column
    cpu_pct: Column
    step_read_bytes: Column
    joined: Column
    """1: in its newest step it had run out of inputs and only answered the others' collectives (`join`)."""
    micro_steps: Column
    """Backward passes in its newest step: more than 1 under gradient accumulation."""
    own_ms: Column
    """Own time of every step: step - exposed communication - what was waited in other collectives. The parts
    of it are the phases without waiting and what lies before, between and after them."""
    own_data_ms: Column
    own_forward_ms: Column
    own_backward_ms: Column
    own_optimizer_ms: Column
    excess_ms: Column
    """Own time - median over the other ranks of its process group."""
    before_forward_ms: Column
    before_backward_ms: Column
    before_optimizer_ms: Column
    after_optimizer_ms: Column
    waited_ms: Column
    """Waited in collectives that are not DDP's: a barrier, a metric's all-reduce."""
    gc_ms: Column
    """Paused for Python's garbage collection: a mean over steps."""
    buffers_ms: Column
    """In DDP's broadcasts of buffers, which each forward begins with."""
    buffers_wait_ms: Column
    """The part of it in which this rank waited for others: what it took longer than the fastest rank."""

    @property
    def compared(self) -> Mask:
        """(ranks,) whether its own time is known, and that of another rank of its process group."""
        return np.isfinite(self.excess_ms)

    @property
    def slower_ms(self) -> Column:
        """(ranks,) excess; 0 of ranks that are not slower than the others, or not compared."""
        return np.fmax(self.excess_ms, 0.0)

    @property
    def late_ms(self) -> Column:
        """(ranks,) excess; where that is not known, lateness."""
        # Lateness is in the same unit and grows with the same fault: ranks can be ordered by a mix of both.
        return np.where(self.compared, self.excess_ms, self.lateness_ms)

    def without_excess(self) -> Ranks:
        """A copy in which no excess is known."""
        return replace(self, excess_ms=np.full_like(self.excess_ms, np.nan))


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """The column of a figure in a table."""

    place: int
    """Columns stand in this order, from the left."""
    keep: int
    """Where the width does not suffice, columns of the smallest number are left out first."""
    keep_beside_own_times: int | None = None
    """`keep` where own times, which say more, are known of some rank; None: the same."""
    keep_unknown: int | None = None
    """`keep` where no value is known; None: the same."""
    keep_alike: int | None = None
    """`keep` where the values are `alike`: the column then repeats itself."""
    alike: Callable[[Column, Ranks], bool] | None = None
    title: str = ""
    """Empty: that of the figure."""
    text: Callable[[float | None], str] | None = None
    """How the report writes a value of a host, and the page of a rank one of a single step; None: as
    everywhere."""
    shown: Callable[[Column], bool] | None = None
    """Whether a table of ranks with these values has the column; None: always."""
    width: int = 0
    """Its cells in tables of hosts, so that columns do not move."""
    most: int | None = None
    """Cells that it takes at most in tables of buckets."""
    empty: str = UNKNOWN
    """What stands for an empty text in tables of buckets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMetric:
    """A figure on the heat map."""

    place: int
    """The key goes through the metrics in this order."""
    key: str
    """What requests and settings call it."""
    unit: str = "ms"
    scale: float = 1.0
    """How many of the figure's own units are one of `unit`."""
    by_step: bool = False
    """Whether it is kept for every rank and step; else it is known as it is now."""
    is_timed: bool = False
    """Whether it is known only in steps whose buckets were timed."""
    small_is_bad: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A figure in the comparison of two ranks; one of the group, in that of two runs."""

    place: int
    """Lines stand in this order."""
    worse: Literal[-1, 0, 1] = 0
    """1: more of it is worse; -1: less of it is; 0: neither."""
    name: str = ""
    """Empty: its words and its unit."""
    text: Callable[[float | None], str] | None = None
    """None: as in tables."""
    decimals: int = 1
    """Decimals of the difference of two runs."""
    shown: Callable[[Column], bool] | None = None
    """Whether there is a line, by the values of all ranks; None: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure as a metric of each rank or of the group, in base units, for Prometheus and OTLP."""

    place: int
    """Metrics come in this order."""
    name: str
    """Without the prefix `ddptop_`, unless it is a name of OpenTelemetry's (`hw.`)."""
    help: str
    has_histogram: bool = False
    """Whether large groups also have a histogram of it over all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePart:
    """A figure in the line beside a rank's bar in the HTML page, where it is known."""

    place: int
    """Figures stand in this order."""
    sentence: str
    """`{value}` is its value."""
    text: Callable[[float], str] = fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDifference:
    """A figure that is named where a slow rank, its GPU or its host differs in it from the others."""

    place: int
    """Differences are named in this order."""
    sentence: str
    """`{own}` is its value, `{usual}` the median of the others."""
    text: Callable[[float | None], str] | None = None
    """None: as in tables."""


UNITS = {
    "_ms": "ms",
    "_p50": "ms",
    "_p95": "ms",
    "_pct": "%",
    "%": "%",
    "_per_s": "1/s",
    "_bytes_s": "bytes/s",
    "_s": "s",
    "_ppm": "ppm",
    "bytes": "bytes",
    "_c": "°C",
    "_gbps": "GB/s",
    "_w": "W",
    "transfer": "ms",
}
"""By the end of a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of every rank, host or bucket, or of the group: what it is, and where it is shown."""

    name: str
    """In JSON. It ends with the unit, which says how many decimals it has there."""
    scope: Scope = "rank"
    title: str = ""
    """Title of its column in tables; empty: no table has it."""
    words: str = ""
    """What it is called where there is room for words; empty: as its column."""
    says: str = ""
    """What it says, in a plain sentence, which F1 has before the formula; empty: the formula is one."""
    formula: str = ""
    """What it is, in Markdown, as METRICS.md and F1 have it: of a rank a median over the steps of the window,
    unless it says otherwise. Empty: METRICS.md describes it in a sentence."""
    source: str = ""
    """The module that computes it."""
    bound: str = ""
    """The figure that says how far it may be wrong; empty: it has no bound."""
    computed: Callable[[Ranks], Column] | None = None
    """(ranks,) its values, where they follow from other figures of `Ranks`."""
    text: Callable[[float | None], str] = fixed
    """How a value is written for users."""
    part: str = ""
    """The part of the step that tables show in its place: parts add up to the step (`render/phases.py`)."""
    compares_clocks: bool = False
    """It is unknown where the clocks of several hosts are not synchronized well enough."""
    has_fallback: bool = False
    """There it has a fallback that needs no clocks, which is marked by `~`."""
    is_exposed: bool = False
    """Whether it is exposed communication or a part of it: unknown where waiting is not timed
    (`frames/training_kind.py`)."""
    host_value: Callable[[HostFigures], float | None] | None = None
    """What its column in tables of hosts is sorted by, where that is not the value itself."""
    is_text: bool = False
    """Whether tables have it in words, which begin at the left."""
    in_json: bool = True
    """Whether the JSON snapshot has it."""
    json_path: str = ""
    """Where JSON has it, `step_ms.p50`; empty: under its name."""
    integer: bool = False
    """Whether it is an integer in JSON."""
    as_float64: bool = False
    """Counts and ids need float64 to stay exact. Other columns travel as float32."""
    may_be_infinite: bool = False
    """Whether infinity is a value of it: only of numbers of the training itself."""
    emphasis: Emphasis = "text"
    screen: FigureColumn | None = None
    """Its column on the screen; None: it has none."""
    plain: FigureColumn | None = None
    """Its column in `--once` and `--watch`; None: it has none."""
    single_steps: FigureColumn | None = None
    """Its column in the table of single steps on the page of a rank; None: it has none."""
    largest_first: bool | None = None
    """The order of ranks that are sorted by it; None: they cannot be."""
    heat: HeatMetric | None = None
    """How the heat map shows it; None: not at all."""
    compared: Compared | None = None
    """How the comparison of two ranks shows it; None: not at all."""
    difference: NamedDifference | None = None
    """How it is named as a difference between a slow rank and the others; None: not at all."""
    page_place: int | None = None
    """Place in the line of counts on the page of a rank; None: it is not there."""
    metric: Metric | None = None
    """Its metric; None: it has none."""
    is_logged: bool = False
    """Whether loggers have it (TensorBoard, W&B, MLflow), as a figure of the group."""
    is_exported: bool = False
    """Whether the exported table of ranks has it, as it was at the end."""
    step_place: int | None = None
    """Place of its column in the exported table of steps; None: it has none there."""
    in_report: bool = False
    """Whether the report has its mean over the run."""
    report: FigureColumn | None = None
    """Its column in the report's table of ranks, or of hosts; None: it has none."""
    line: LinePart | None = None
    """How the report's HTML page has it beside a rank's bar; None: not at all."""

    @property
    def unit(self) -> str:
        """Its unit, by the end of its name; empty: it has none."""
        return next((unit for end, unit in UNITS.items() if self.name.endswith(end)), "")

    @property
    def key(self) -> str:
        """Its name where it stands beside those of other scopes."""
        return f"gpu_{self.name}" if self.scope == "gpu" else self.name

    @property
    def documented_as(self) -> str:
        """Its name in METRICS.md and F1."""
        return f"gpu.{self.name}" if self.scope == "gpu" else self.path

    @property
    def called(self) -> str:
        """Its name in words."""
        return self.words or self.title

    @property
    def path(self) -> str:
        """Where JSON has it, a dot between the keys."""
        return self.json_path or self.name


def _write_longer(value: float | None) -> str:
    """How much longer than usual a time is, as text; one that is shorter is 0."""
    return fixed(value if value is None else max(value, 0.0))  # NaN stays NaN in this order


FIGURES = (
    Figure(name="local_rank", in_json=False, integer=True, as_float64=True),
    Figure(name="pid", in_json=False, integer=True, as_float64=True),
    Figure(name="incarnation", in_json=False, as_float64=True),
    Figure(
        name="age_ms",
        words="last update",
        text=whole,
        as_float64=True,
        heat=HeatMetric(place=220, key="age", unit="s", scale=1e3),
        compared=Compared(place=130),
        metric=Metric(place=90, name="rank_age", help="Time since the rank's last message"),
        formula="time since its last message",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="step",
        title="step",
        text=count,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=10, keep=84, keep_alike=45, alike=steps_alike),
        plain=FigureColumn(place=10, keep=97),
        largest_first=False,
        compared=Compared(place=10, worse=-1),
        metric=Metric(place=10, name="rank_step", help="Step that the rank is in"),
        formula="the step it is in",
        source="ddptop/training/publisher.py",
    ),
    Figure(
        name="bucket",
        integer=True,
        as_float64=True,
        formula="all-reduces launched in that step; null in a step without detail",
        source="ddptop/training/publisher.py",
    ),
    Figure(
        name="sequence",
        integer=True,
        as_float64=True,
        formula="collectives launched in its process group",
        source="ddptop/training/publisher.py",
    ),
    Figure(
        name="loss",
        title="loss",
        text=loss,
        may_be_infinite=True,
        screen=FigureColumn(place=20, keep=80),
        plain=FigureColumn(place=20, keep=80),
        largest_first=True,
        heat=HeatMetric(place=140, key="loss", unit="", by_step=True),
        compared=Compared(place=20),
        metric=Metric(place=60, name="rank_loss", help="Loss of its newest step"),
        says="the newest known loss, as the script computes or logs it",
        formula=(
            "mean over the micro-steps of the tensors that `backward()` was called on, before the "
            "scaling of a `GradScaler`; multiplied by the number of micro-steps where each was "
            "divided by it (below). `ddptop.log(loss=...)` replaces it. The newest known value, not a"
            " median"
        ),
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="step_ms",
        single_steps=FigureColumn(place=10, keep=95),
        step_place=10,
        title="ms/step",
        words="step time",
        screen=FigureColumn(place=30, keep=85, keep_alike=44, alike=times_alike),
        plain=FigureColumn(place=30, keep=96),
        largest_first=True,
        heat=HeatMetric(place=30, key="step", by_step=True),
        compared=Compared(place=30, worse=1, name="ms/step"),
        metric=Metric(
            place=20, name="rank_step_duration", help="Median step of the rank", has_histogram=True
        ),
        in_report=True,
        report=FigureColumn(place=30, keep=89),
        says="how long a step of the rank takes",
        formula="end − begin",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="data_ms",
        single_steps=FigureColumn(place=20, keep=90),
        step_place=20,
        title="data",
        part="data",
        screen=FigureColumn(place=100, keep=58),
        plain=FigureColumn(place=50, keep=90),
        largest_first=True,
        heat=HeatMetric(place=40, key="data", by_step=True),
        compared=Compared(place=40, worse=1),
        in_report=True,
        report=FigureColumn(place=40, keep=80),
        says="how long it waits for its next batch",
        formula="time of the training thread in `__next__` of the DataLoader's iterator",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="forward_ms",
        single_steps=FigureColumn(place=30, keep=85),
        step_place=30,
        title="fwd",
        words="forward",
        part="forward",
        screen=FigureColumn(place=110, keep=57),
        plain=FigureColumn(place=60, keep=89),
        largest_first=True,
        heat=HeatMetric(place=50, key="forward", by_step=True),
        compared=Compared(place=41, worse=1),
        in_report=True,
        report=FigureColumn(place=41, keep=79),
        says="how long the forward pass takes",
        formula="from the begin of `DDP.forward` to its return",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="backward_ms",
        step_place=40,
        words="whole backward",
        heat=HeatMetric(place=60, key="backward", by_step=True),
        in_report=True,
        says="how long the backward pass takes, with what it waits in it",
        formula="from the call of `backward()` to its return; nested calls count in the outermost one",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="optimizer_ms",
        single_steps=FigureColumn(place=70, keep=60),
        step_place=50,
        title="opt",
        words="optimizer",
        part="optimizer",
        screen=FigureColumn(place=150, keep=48),
        plain=FigureColumn(place=100, keep=60),
        largest_first=True,
        heat=HeatMetric(place=70, key="optimizer", by_step=True),
        compared=Compared(place=45, worse=1),
        in_report=True,
        report=FigureColumn(place=45, keep=75),
        says="how long the optimizer takes",
        formula=(
            "from the call of `optimizer.step()` to its return, without a forward or backward in its closure"
        ),
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="other_ms",
        single_steps=FigureColumn(place=80, keep=50),
        step_place=60,
        title="other",
        part="other",
        screen=FigureColumn(place=160, keep=46),
        plain=FigureColumn(place=110, keep=50),
        largest_first=True,
        heat=HeatMetric(place=80, key="other", by_step=True),
        compared=Compared(place=46, worse=1),
        in_report=True,
        report=FigureColumn(place=46, keep=74),
        says="the rest of the step: other code of the script",
        formula="step − (data + forward + backward + optimizer)",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="collective_ms",
        step_place=180,
        words="collectives",
        heat=HeatMetric(place=120, key="collective", by_step=True, is_timed=True),
        compared=Compared(place=70),
        says="how long some all-reduce is under way, beside computation too",
        formula="length of the union of the intervals [s, e]",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="wait_ms",
        single_steps=FigureColumn(place=50, keep=75, title="wait"),
        step_place=190,
        in_report=True,
        formula="length of the union of the intervals [s, A]",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="transfer_ms",
        single_steps=FigureColumn(place=60, keep=70, title="transfer"),
        step_place=200,
        formula="length of the union of the intervals [A, e]. With two lanes wait and transfer may overlap",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="exposed_comm_ms",
        is_exposed=True,
        step_place=160,
        words="exposed communication",
        heat=HeatMetric(place=110, key="exposed", by_step=True, is_timed=True),
        in_report=True,
        says="communication that no computation hides",
        formula=(
            "exposed communication of the step: end of backward − g, summed over the synchronized backwards"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="lateness_ms",
        single_steps=FigureColumn(place=100, keep=65, keep_beside_own_times=45),
        step_place=210,
        title="late",
        compares_clocks=True,
        screen=FigureColumn(place=70, keep=96, keep_beside_own_times=37, keep_unknown=60),
        plain=FigureColumn(place=140, keep=98, keep_beside_own_times=70),
        largest_first=True,
        heat=HeatMetric(place=130, key="lateness", by_step=True, is_timed=True),
        compared=Compared(place=80, worse=1),
        metric=Metric(place=50, name="rank_lateness", help="How late its buckets arrive"),
        in_report=True,
        report=FigureColumn(place=20, keep=90, keep_beside_own_times=60, title="late ms"),
        line=LinePart(place=30, sentence="late {value} ms"),
        says="how much later it comes to the all-reduce than the others",
        formula=(
            "lateness at the deciding all-reduce, summed over the passes (and its bound with it). Of "
            "a rank in several process groups the largest in size"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
        bound="bound_ms",
    ),
    Figure(
        name="last_pct",
        title="last%",
        words="comes last",
        text=whole,
        compares_clocks=True,
        screen=FigureColumn(place=90, keep=42, keep_beside_own_times=35),
        plain=FigureColumn(place=160, keep=40, title="last %"),
        largest_first=True,
        heat=HeatMetric(place=150, key="last", unit="%"),
        compared=Compared(place=100, worse=1),
        in_report=True,
        report=FigureColumn(place=60, keep=15, title="last %"),
        says="in which share of the steps it is the last, for which all wait",
        formula=(
            "share of the detailed steps in which the rank comes last at the deciding all-reduce (of "
            "several passes: has the largest sum); null with fewer than 3"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="bound_ms",
        step_place=220,
        title="±",
        text=plus_minus,
        compares_clocks=True,
        emphasis="faint",
        screen=FigureColumn(place=80, keep=59, keep_beside_own_times=36, shown=some_known),
        plain=FigureColumn(place=150, keep=69, shown=some_known),
        compared=Compared(place=90, text=fixed),
        in_report=True,
        says="how far lateness and wait may be wrong",
        formula=(
            "how far its lateness and wait may be wrong. In a host: the largest bound of a ready "
            "timestamp over the ranks; 0.1 ms for a rank that has not reported one, never below 0.002"
            " ms. Between hosts: plus both clocks' bounds"
        ),
        source="ddptop/analysis/steps/clocks.py",
    ),
    Figure(
        name="transfer_bound_ms",
        formula=(
            "how far its transfer may be wrong: `bound_ms` + median over steps of how much later than"
            " the first rank it saw the ends, summed over its all-reduces, but at least the median "
            "delay of its completion callbacks. On CUDA that delay is the clock's bound, plus the "
            "median time from the ready timestamp until the host has recorded the end, of ends that "
            "the device reached at once"
        ),
        source="ddptop/analysis/steps/clocks.py",
    ),
    Figure(
        name="exposed_wait_ms",
        is_exposed=True,
        step_place=170,
        title="lost",
        words="wait",
        part="wait",
        has_fallback=True,
        screen=FigureColumn(place=48, keep=95),
        plain=FigureColumn(place=80, keep=95),
        largest_first=True,
        heat=HeatMetric(place=90, key="lost", by_step=True, is_timed=True),
        compared=Compared(place=43),
        in_report=True,
        report=FigureColumn(place=43, keep=77),
        says="how much of each step the rank waits for others",
        formula="exposed communication − transfer of the step",
        source="ddptop/analysis/steps/evaluate.py",
        bound="bound_ms",
    ),
    Figure(
        name="own_ms",
        step_place=70,
        title="own",
        words="own time",
        screen=FigureColumn(place=60, keep=43, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=20, key="own", by_step=True),
        compared=Compared(place=50, worse=1),
        metric=Metric(
            place=30,
            name="rank_own_time",
            help="Median step without waiting and communication",
            has_histogram=True,
        ),
        in_report=True,
        says="what the rank itself takes, without waiting and transfer",
        formula=(
            "own time (o) of a rank in a step: step − exposed communication − `waited_ms` − "
            "`buffers_ms`. It is the sum of its eight *places*"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="own_backward_ms",
        single_steps=FigureColumn(place=40, keep=80),
        step_place=90,
        title="bwd",
        words="backward",
        part="backward",
        screen=FigureColumn(place=120, keep=56),
        plain=FigureColumn(place=70, keep=88),
        largest_first=True,
        compared=Compared(place=42, worse=1),
        in_report=True,
        report=FigureColumn(place=42, keep=78),
        says="how long it computes gradients, without waiting and transfer",
        formula="backward − exposed communication − what was waited in other collectives during backward",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="excess_ms",
        single_steps=FigureColumn(place=90, keep=66, text=fixed, shown=some_known),
        step_place=80,
        title="excess",
        text=_write_longer,
        screen=FigureColumn(place=50, keep=96, shown=some_known),
        plain=FigureColumn(place=130, keep=98, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=10, key="excess", by_step=True),
        compared=Compared(place=60, worse=1),
        metric=Metric(
            place=40,
            name="rank_excess",
            help="Own time beyond the median of the other ranks",
            has_histogram=True,
        ),
        in_report=True,
        report=FigureColumn(place=10, keep=91, title="excess ms", shown=some_known),
        line=LinePart(place=20, sentence="excess {value}", text=_write_longer),
        says="how much longer the rank takes than the others; not longer: 0",
        formula=(
            "own time of the rank − median of the own times of the *other* ranks in the same step. "
            "Over all ranks, a group of two would show half the difference on each"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="waited_ms",
        step_place=150,
        title="sync",
        part="sync",
        screen=FigureColumn(place=170, keep=53, shown=some_shown_ms),
        plain=FigureColumn(place=120, keep=92, shown=some_shown_ms),
        largest_first=True,
        compared=Compared(place=47, worse=1, shown=some_shown_ms),
        in_report=True,
        report=FigureColumn(place=47, keep=73, shown=some_shown_ms),
        formula=(
            "in collectives that are not DDP's (a barrier before a checkpoint, the all-reduce of a "
            "metric), in all phases, waiting and moving: these are not told apart. `sync` in tables"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="before_forward_ms",
        step_place=100,
        in_report=True,
    ),
    Figure(
        name="before_backward_ms",
        step_place=110,
        in_report=True,
    ),
    Figure(
        name="before_optimizer_ms",
        step_place=120,
        in_report=True,
    ),
    Figure(
        name="after_optimizer_ms",
        step_place=130,
        in_report=True,
    ),
    Figure(
        name="gc_ms",
        formula=(
            "how long Python's garbage collections on the training thread took (`gc.callbacks`, "
            "`ddptop/training/gc_pauses.py`): a mean over the steps of the window, since most steps "
            "have none. A part of o, in whatever place"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="buffers_ms",
        in_report=True,
        formula=(
            "in DDP's broadcasts of buffers, with which forwards begin (on CUDA by events where the "
            "phases are marked, else unknown)"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="buffers_wait_ms",
        in_report=True,
        formula=(
            "the part of it that is waiting for others: `buffers_ms` − its least over the ranks, for "
            "the rank that comes last waits for nobody. Rank 0 sends and may go on before others have"
            " received: what all ranks waited at once counts as transfer"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="relative_score",
        title="relative",
        text=ratio,
        plain=FigureColumn(place=170, keep=15),
        heat=HeatMetric(place=160, key="score", unit="", small_is_bad=True),
        compared=Compared(place=110, worse=-1),
        in_report=True,
        report=FigureColumn(place=70, keep=10),
        formula="(min over ranks of median self time) / (own median self time), in (0, 1]",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="individual_score",
        words="vs own best",
        text=ratio,
        compared=Compared(place=120, worse=-1),
        formula=(
            "(own best median self time) / (own median self time). The best is taken over blocks of "
            "32 detailed steps since the layout of buckets was made; null before the first"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="records",
        words="records",
        text=count,
        page_place=10,
        integer=True,
        as_float64=True,
        is_exported=True,
        formula="step records received",
        source="ddptop/analysis/reducer.py",
    ),
    Figure(
        name="lost_records",
        title="records missing",
        text=count,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=230, keep=38, shown=some_above_zero),
        plain=FigureColumn(place=180, keep=30, shown=some_above_zero),
        largest_first=True,
        heat=HeatMetric(place=230, key="records_lost", unit=""),
        compared=Compared(place=160, worse=1),
        page_place=20,
        is_exported=True,
        formula=(
            "step records that the rank numbered and the collector never received. The frame has both"
            " also as sums over ranks"
        ),
        source="ddptop/analysis/reducer.py",
    ),
    Figure(
        name="rss_bytes",
        title="mem",
        words="memory",
        text=size,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=210, keep=64, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=180, key="memory", unit="GB", scale=1e9),
        compared=Compared(place=140, name="memory"),
        difference=NamedDifference(place=20, sentence="memory {own}, the others {usual}"),
        page_place=30,
        metric=Metric(place=70, name="rank_resident_memory", help="Resident memory of its process"),
        says="the memory that its process has on the host",
        formula="resident memory",
        source="ddptop/host/kernel_view.py",
    ),
    Figure(
        name="cpu_pct",
        title="cpu%",
        words="cpu",
        text=whole,
        emphasis="dim",
        screen=FigureColumn(place=220, keep=47),
        largest_first=True,
        heat=HeatMetric(place=170, key="cpu", unit="%"),
        compared=Compared(place=150),
        difference=NamedDifference(
            place=10, sentence="its process uses {own}% of a CPU, the others {usual}%"
        ),
        page_place=40,
        metric=Metric(place=80, name="rank_cpu", help="CPU of its process, 1 is a whole core"),
        says="how much CPU its process uses: 100 % is one core",
        formula="CPU of one core since the reading before",
        source="ddptop/host/kernel_view.py",
    ),
    Figure(
        name="step_read_bytes",
        title="read",
        words="disk read",
        text=size,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=225, keep=33, shown=some_above_zero),
        plain=FigureColumn(place=195, keep=12, shown=some_above_zero),
        largest_first=True,
        heat=HeatMetric(place=185, key="read", unit="MB", scale=1e6),
        compared=Compared(place=155, name="disk read/step", shown=some_known),
        difference=NamedDifference(place=25, sentence="reads {own} a step from disk, the others {usual}"),
        metric=Metric(place=85, name="rank_step_disk_read", help="Read from disk by its process per step"),
        is_exported=True,
        in_report=True,
        report=FigureColumn(place=85, keep=7, shown=some_above_zero),
        formula=(
            "read from disk by its process, per step, since the reading before; what the page cache had is"
            " not counted, and what its DataLoader workers read only when they exit"
        ),
        source="ddptop/training/disk_reads.py",
    ),
    Figure(
        name="micro_steps",
        title="micro",
        text=count,
        integer=True,
        emphasis="dim",
        screen=FigureColumn(place=40, keep=79, shown=some_above_one),
        plain=FigureColumn(place=40, keep=65, shown=some_above_one),
        in_report=True,
        formula="backward passes in its newest step",
        source="ddptop/analysis/ranks.py",
    ),
    Figure(
        name="joined",
        in_json=False,
        formula="its newest step shadowed the others under `join()`",
        source="ddptop/analysis/ranks.py",
    ),
    Figure(
        name="own_data_ms",
        in_json=False,
        in_report=True,
    ),
    Figure(
        name="own_forward_ms",
        in_json=False,
        in_report=True,
    ),
    Figure(
        name="own_optimizer_ms",
        in_json=False,
        in_report=True,
    ),
    Figure(
        name="exposed transfer",
        scope="computed",
        is_exposed=True,
        title="transfer",
        computed=lambda ranks: ranks.exposed_comm_ms - ranks.exposed_wait_ms,
        part="transfer",
        has_fallback=True,
        screen=FigureColumn(place=140, keep=54),
        plain=FigureColumn(place=90, keep=94),
        largest_first=True,
        heat=HeatMetric(place=100, key="transfer", by_step=True, is_timed=True),
        compared=Compared(place=44, worse=1),
        report=FigureColumn(place=44, keep=76),
        says="how long gradients are moved while nothing is computed",
        formula=(
            "exposed communication − exposed wait. All three are shown where the last gradients are unknown"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="util_pct",
        scope="gpu",
        title="gpu%",
        words="gpu",
        text=whole,
        screen=FigureColumn(place=32, keep=82, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=190, key="gpu", unit="%"),
        metric=Metric(place=100, name="hw.gpu.utilization", help="Share of time in which a kernel ran"),
        formula="NVML: share of the last second or less in which a kernel ran",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="temp_c",
        words="gpu temperature",
        scope="gpu",
        heat=HeatMetric(place=210, key="gpu_temp", unit="C"),
        difference=NamedDifference(place=40, sentence="GPU {own} °C, the others {usual}", text=whole),
        metric=Metric(place=130, name="hw.temperature", help="Temperature of the GPU"),
        formula="NVML: of the chip",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="clock_mhz",
        scope="gpu",
        text=whole,
        difference=NamedDifference(place=30, sentence="GPU clock {own} MHz, the others {usual}"),
        formula="NVML: clock of the multiprocessors",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="mem_bytes",
        scope="gpu",
        title="gpumem",
        words="gpu memory",
        text=size,
        emphasis="dim",
        screen=FigureColumn(place=34, keep=81, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=200, key="gpu_memory", unit="GB", scale=1e9),
        metric=Metric(place=110, name="hw.gpu.memory.usage", help="Memory used by all processes"),
        formula="NVML: used by all processes",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="mem_total_bytes",
        scope="gpu",
        metric=Metric(place=120, name="hw.gpu.memory.limit", help="Memory of the GPU"),
        formula="NVML: of the GPU",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="power_w",
        scope="gpu",
        metric=Metric(place=140, name="hw.power", help="Power that the GPU draws"),
        formula="NVML: of the board",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="allocated_bytes",
        scope="gpu",
        title="allocated",
        words="torch allocated",
        text=size,
        integer=True,
        emphasis="dim",
        screen=FigureColumn(place=202, keep=37, shown=some_known),
        plain=FigureColumn(place=190, keep=14, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=202, key="allocated", unit="GB", scale=1e9),
        compared=Compared(place=142, name="torch allocated", shown=some_known),
        metric=Metric(place=150, name="rank_cuda_allocated", help="Held by tensors on its GPU"),
        is_exported=True,
        in_report=True,
        report=FigureColumn(place=80, keep=9, shown=some_known),
        formula="`torch.cuda.memory_allocated`: held by tensors on the GPU of the rank, now",
        source="ddptop/training/device/timing.py",
    ),
    Figure(
        name="reserved_bytes",
        scope="gpu",
        title="reserved",
        words="torch reserved",
        text=size,
        integer=True,
        emphasis="dim",
        screen=FigureColumn(place=203, keep=36, shown=some_known),
        plain=FigureColumn(place=191, keep=13, shown=some_known),
        largest_first=True,
        heat=HeatMetric(place=203, key="reserved", unit="GB", scale=1e9),
        compared=Compared(place=143, name="torch reserved", shown=some_known),
        metric=Metric(place=151, name="rank_cuda_reserved", help="Taken of its GPU by torch's allocator"),
        is_exported=True,
        in_report=True,
        report=FigureColumn(place=81, keep=8, shown=some_known),
        formula="`torch.cuda.memory_reserved`: what torch's allocator has taken of the GPU, now",
        source="ddptop/training/device/timing.py",
    ),
)
"""Figures of a rank. Those that are fields of `Ranks` are in the order of the JSON snapshot."""

TEXT_FIGURES = (
    Figure(
        name="host",
        title="host",
        is_text=True,
        formula=(
            "as the rank reports at its start; of a missing rank presumed from its neighbours' local ranks"
        ),
        source="ddptop/frames/hosts.py",
    ),
    Figure(
        name="device",
        title="dev",
        words="device",
        is_text=True,
        formula="as the rank reports at its start",
        source="ddptop/training/packing.py",
    ),
    Figure(
        name="state",
        title="state",
        is_text=True,
        formula=(
            "what the rank does now, by its last message and its exit; waiting where it has not reported yet"
        ),
        source="ddptop/analysis/ranks.py",
    ),
)
"""Words about a rank that tables have."""

RANK_FIGURES = {figure.name: figure for figure in FIGURES if figure.scope == "rank"}
"""Figures that are columns of `Ranks`, by name."""


def _n_not_running(host: HostFigures) -> float:
    """How many of its ranks do not run, below 0: the host that misses most of them comes first."""
    return host.running - host.ranks


def _size_of_offset(host: HostFigures) -> float | None:
    return None if host.clock_offset_ms is None else abs(host.clock_offset_ms)


def _above_zero(name: str) -> Callable[[HostFigures], float | None]:
    """A count, where it is not 0: a table without any such count has no column of it."""
    return lambda host: getattr(host, name) or None


def _name_number(value: float | None) -> str:
    """A number that names something: a rank, a bucket. Without thousands parted."""
    return UNKNOWN if value is None else str(int(value))


def _plus_minus_ratio(value: float | None) -> str:
    text = ratio(value)
    return text if text == UNKNOWN else f"±{text}"


def _write_signed(value: float | None) -> str:
    return UNKNOWN if value is None else signed(value)


def _write_seconds(value: float | None) -> str:
    return fixed(value, 1, " s")


def always(values: Column) -> bool:
    """Whether or not any value is known."""
    return True


HOST_FIGURES = (
    Figure(
        name="name",
        scope="host",
        is_text=True,
        formula="as its agent and its ranks report it",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="state",
        scope="host",
        is_text=True,
        formula="what the host does now, by the last messages of its agent and ranks",
        source="ddptop/analysis/health/hosts.py",
    ),
    Figure(
        name="ranks",
        scope="host",
        integer=True,
        formula="ranks whose present process runs, or ran, on it",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="running",
        scope="host",
        title="ranks",
        host_value=_n_not_running,
        integer=True,
        largest_first=False,
        screen=FigureColumn(place=10, keep=95, width=7, shown=always),
        formula="how many of its ranks run",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="age_ms",
        scope="host",
        formula="time since the newest message from it",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="worst_rank",
        scope="host",
        title="worst",
        text=_name_number,
        largest_first=False,
        integer=True,
        screen=FigureColumn(place=20, keep=92, width=5, shown=always),
        report=FigureColumn(place=10, keep=90),
        formula="of its ranks the one that a stall is due to or that died first, else the flagged one, else "
        "the one with the largest excess",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="excess_ms",
        scope="host",
        title="excess",
        text=_write_longer,
        largest_first=True,
        screen=FigureColumn(place=30, keep=93, width=7, shown=always),
        report=FigureColumn(place=20, keep=89, title="excess ms"),
        says="how much longer its worst rank takes than others; not longer: 0",
        formula="excess of its worst rank",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="step_ms",
        scope="host",
        title="ms/step",
        words="step time",
        largest_first=True,
        screen=FigureColumn(place=40, keep=60, width=8),
        report=FigureColumn(place=30, keep=80),
        formula="median over its ranks of their step time",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="clock_offset_ms",
        scope="host",
        title="clock ms",
        host_value=_size_of_offset,
        largest_first=True,
        screen=FigureColumn(place=60, keep=62, width=11),
        says="how far the collector's clock is ahead of the host's",
        formula="middle of the limits of the offset",
        source="ddptop/transport/clock_filter.py",
    ),
    Figure(
        name="clock_bound_ms",
        scope="host",
        title="clock±",
        text=_plus_minus_ratio,
        emphasis="dim",
        largest_first=True,
        screen=FigureColumn(place=70, keep=73, width=7),
        report=FigureColumn(place=40, keep=70, title="clock± ms", text=ratio),
        says="how far the offset of the clock may be wrong",
        formula="half the distance of the limits of the offset + what the drift may be wrong by × 2 s",
        source="ddptop/transport/clock_filter.py",
    ),
    Figure(
        name="clock_drift_ppm",
        scope="host",
        title="drift ppm",
        text=_write_signed,
        emphasis="dim",
        largest_first=True,
        screen=FigureColumn(place=80, keep=50, width=9),
        report=FigureColumn(place=50, keep=60, text=fixed),
        says="how much faster the collector's clock goes than the host's",
        formula="middle of the limits of the drift; 0 while it may be wrong by more than 100 ppm",
        source="ddptop/transport/clock_filter.py",
    ),
    Figure(
        name="clock_age_s",
        scope="host",
        title="compared",
        text=_write_seconds,
        emphasis="dim",
        largest_first=True,
        screen=FigureColumn(place=90, keep=51, width=8),
        formula="time since the clock was compared",
        source="ddptop/transport/clock_filter.py",
    ),
    Figure(
        name="round_trip_ms",
        scope="host",
        title="rtt ms",
        words="round trip",
        text=ratio,
        largest_first=True,
        screen=FigureColumn(place=50, keep=82, width=6),
        says="how long a message to the collector and back takes",
        formula="of the newest exchange between its agent and the collector: (t3 − t0) − (t2 − t1)",
        source="ddptop/agent/host_usage.py",
    ),
    Figure(
        name="cpu_pct",
        scope="host",
        title="cpu%",
        words="cpu",
        text=whole,
        largest_first=True,
        screen=FigureColumn(place=100, keep=78, width=4),
        difference=NamedDifference(
            place=10, sentence="its host's CPUs are {own}% busy, the others' {usual}%"
        ),
        formula="of all its processors, since the reading before",
        source="ddptop/agent/host_usage.py",
    ),
    Figure(
        name="cores",
        scope="host",
        integer=True,
        formula="processors that it has",
        source="ddptop/agent/service.py",
    ),
    Figure(
        name="memory_used_bytes",
        scope="host",
        title="mem%",
        host_value=lambda host: host.memory_used_pct,
        text=whole,
        largest_first=True,
        screen=FigureColumn(place=110, keep=72, width=4),
        formula="memory in use; in tables a share of `memory_bytes`",
        source="ddptop/agent/host_usage.py",
    ),
    Figure(name="memory_bytes", scope="host", formula="memory that it has", source="ddptop/agent/service.py"),
    Figure(
        name="received_bytes_s",
        scope="host",
        title="in/s",
        text=size,
        largest_first=True,
        screen=FigureColumn(place=140, keep=81, width=8),
        formula="per second, received through all network interfaces but the loopback",
        source="ddptop/agent/host_usage.py",
    ),
    Figure(
        name="sent_bytes_s",
        scope="host",
        title="out/s",
        text=size,
        largest_first=True,
        screen=FigureColumn(place=150, keep=80, width=8),
        formula="per second, sent through all network interfaces but the loopback",
        source="ddptop/agent/host_usage.py",
    ),
    Figure(
        name="gpus",
        scope="host",
        title="gpus",
        host_value=_above_zero("gpus"),
        text=count,
        emphasis="dim",
        integer=True,
        largest_first=True,
        screen=FigureColumn(place=120, keep=55, width=4),
        formula="GPUs that its ranks use",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="gpu_util_pct",
        scope="host",
        title="gpu%",
        words="gpu",
        text=whole,
        largest_first=True,
        screen=FigureColumn(place=130, keep=77, width=4),
        formula="mean over its GPUs of the share of time in which a kernel ran",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="kept",
        scope="host",
        title="kept",
        host_value=_above_zero("kept"),
        text=count,
        integer=True,
        largest_first=True,
        screen=FigureColumn(place=160, keep=65, width=6),
        formula="messages that its agent keeps because the collector has not acknowledged them",
        source="ddptop/transport/unacked.py",
    ),
    Figure(
        name="local_recording",
        scope="host",
        is_text=True,
        formula="the file that its agent writes while it cannot reach the collector",
        source="ddptop/agent/local_recording.py",
    ),
    Figure(
        name="thinned",
        scope="host",
        title="thinned",
        host_value=_above_zero("thinned"),
        text=count,
        integer=True,
        largest_first=True,
        screen=FigureColumn(place=170, keep=64, width=7),
        formula="step rows without bucket detail because the collector asked for it",
        source="ddptop/collector/backlog.py",
    ),
    Figure(
        name="collector",
        scope="host",
        is_text=True,
        formula="whether the collector runs on it",
        source="ddptop/analysis/to_frame/hosts.py",
    ),
    Figure(
        name="link_peer",
        scope="host",
        is_text=True,
        formula=(
            "of the TCP connections of its ranks, the other host of the worst: the one with most "
            "lost segments, else with the longest least round trip"
        ),
        source="ddptop/host/connections.py",
    ),
    Figure(
        name="link_round_trip_ms",
        scope="host",
        formula="least round trip of the connections to `link_peer` (`tcpi_min_rtt`)",
        source="ddptop/host/connections.py",
    ),
    Figure(
        name="link_lost_pct",
        scope="host",
        formula=(
            "segments sent again and not received twice, as a share of those with data sent in 5 "
            "s, of connections that sent 10 or more"
        ),
        source="ddptop/host/connections.py",
    ),
)
"""Figures of a host: all fields of `HostFigures`, in the order of the JSON snapshot."""

BUCKET_FIGURES = (
    Figure(
        name="index",
        scope="bucket",
        title="bkt",
        words="bucket",
        integer=True,
        text=_name_number,
        screen=FigureColumn(place=30, keep=99),
        plain=FigureColumn(place=30, keep=99, title="bucket"),
        formula="number of the bucket in its model",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="generation",
        scope="bucket",
        integer=True,
        formula="layout of buckets",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="model",
        scope="bucket",
        title="model",
        integer=True,
        text=_name_number,
        screen=FigureColumn(place=10, keep=97),
        plain=FigureColumn(place=10, keep=98),
        formula="DDP model of the process in order of construction",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="group",
        scope="bucket",
        title="group",
        is_text=True,
        screen=FigureColumn(place=20, keep=96, most=40),
        plain=FigureColumn(place=20, keep=96),
        formula="process group (`0`: the default group)",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="bytes",
        scope="bucket",
        title="size",
        text=size,
        screen=FigureColumn(place=40, keep=98),
        plain=FigureColumn(place=40, keep=97),
        says="how much each rank gives to its all-reduce",
        formula="S: what each rank gives to the all-reduce, after compression (null where a hook hides it)",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="parameters",
        scope="bucket",
        title="params",
        text=count,
        integer=True,
        screen=FigureColumn(place=60, keep=70),
        formula="number of parameters",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="dtype",
        scope="bucket",
        title="dtype",
        is_text=True,
        screen=FigureColumn(place=70, keep=65, most=9),
        plain=FigureColumn(place=60, keep=20),
        formula="type of the gradients",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="hook",
        scope="bucket",
        title="hook",
        is_text=True,
        screen=FigureColumn(place=80, keep=60, most=14, empty="none"),
        plain=FigureColumn(place=70, keep=10),
        formula="name of the communication hook (empty: DDP's own all-reduce)",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="collective_ms",
        scope="bucket",
        title="coll",
        words="collective",
        text=ratio,
        screen=FigureColumn(place=90, keep=49),
        plain=FigureColumn(place=80, keep=50, title="collective ms"),
        says="how long its all-reduce takes: waiting, then transfer",
        formula="median over steps of the mean over ranks of D = e − s",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="wait_ms",
        scope="bucket",
        title="wait",
        text=ratio,
        bound="bound_ms",
        has_fallback=True,
        screen=FigureColumn(place=100, keep=95),
        plain=FigureColumn(place=90, keep=90, title="wait ms"),
        report=FigureColumn(place=20, keep=50, title="wait ms"),
        says="how much of that is waiting for the last rank",
        formula="median over steps of the mean over ranks of W = max(0, A − s)",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="transfer_ms",
        scope="bucket",
        title="transfer",
        text=ratio,
        bound="transfer_bound_ms",
        has_fallback=True,
        screen=FigureColumn(place=110, keep=94),
        plain=FigureColumn(place=100, keep=89, title="transfer ms"),
        report=FigureColumn(place=10, keep=60, title="transfer ms"),
        says="how much of that is moving bytes, once all ranks are there",
        formula="median over steps of the mean over ranks of X = e − A",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="algbw_gbps",
        scope="bucket",
        title="algbw",
        text=ratio,
        report=FigureColumn(place=30, keep=40, title="algbw GB/s"),
        formula="S / `transfer_ms`",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="busbw_gbps",
        scope="bucket",
        title="busbw",
        text=ratio,
        screen=FigureColumn(place=130, keep=90),
        plain=FigureColumn(place=120, keep=80, title="busbw GB/s"),
        report=FigureColumn(place=40, keep=30, title="busbw GB/s"),
        says="how fast the bytes move, as nccl-tests count it",
        formula=(
            "algbw × 2(n−1)/n, the all-reduce factor of "
            "[nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md)"
        ),
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="effective_busbw_gbps",
        scope="bucket",
        title="eff",
        text=ratio,
        screen=FigureColumn(place=150, keep=80),
        says="how fast the bytes move if the waiting counts too",
        formula="the same with `collective_ms` in place of `transfer_ms`: waiting included",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="skew_ms",
        scope="bucket",
        title="skew",
        text=ratio,
        bound="bound_ms",
        compares_clocks=True,
        screen=FigureColumn(place=160, keep=50),
        plain=FigureColumn(place=130, keep=40, title="skew ms"),
        says="how long after the first rank the last one comes",
        formula="max s − min s over ranks, median over steps",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="bound_ms",
        scope="bucket",
        title="±",
        text=_plus_minus_ratio,
        screen=FigureColumn(place=170, keep=46),
        plain=FigureColumn(place=140, keep=38),
        says="how far skew and wait may be wrong",
        formula="how far its skew and wait may be wrong: the largest `bound_ms` of its ranks",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="transfer_bound_ms",
        scope="bucket",
        title="±",
        text=_plus_minus_ratio,
        screen=FigureColumn(place=120, keep=45),
        plain=FigureColumn(place=110, keep=36),
        formula=(
            "how far its transfer may be wrong: `bound_ms` plus the delay of the callbacks as in "
            "Bounds, a mean over ranks"
        ),
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="last_arriver",
        scope="bucket",
        is_text=True,
        title="last",
        words="comes last",
        integer=True,
        compares_clocks=True,
        screen=FigureColumn(place=180, keep=75),
        plain=FigureColumn(place=150, keep=70, title="comes last"),
        says="the rank that comes last most often, and how often",
        formula=(
            "the rank that comes last most often; on the screen with the share of the steps "
            "(`last_arriver_pct`)"
        ),
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="launches",
        scope="bucket",
        title="a step",
        text=times_a_step,
        screen=FigureColumn(place=50, keep=93),
        plain=FigureColumn(place=50, keep=88),
        says="how often it is all-reduced in a step",
        formula=(
            "all-reduces of the bucket in a step, mean over steps: more than 1 where gradients "
            "are accumulated without `no_sync()`. The times and bandwidths above are then means "
            "over them"
        ),
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="last_arriver_pct",
        scope="bucket",
        in_json=False,
        formula="share of the steps in which `last_arriver` comes last",
        source="ddptop/analysis/to_frame/tables.py",
    ),
    Figure(
        name="best%",
        scope="bucket",
        title="best%",
        text=whole,
        in_json=False,
        screen=FigureColumn(place=140, keep=72),
        says="how fast they move beside the fastest seen in this run",
        formula="on the screen: `busbw_gbps` in % of the highest of any bucket now and of any step kept",
        source="ddptop/analysis/to_frame/tables.py",
    ),
)
"""Figures of a bucket: all fields of `BucketFigures`, in the order of the JSON snapshot, and `best%` of
tables."""

PROCESS_GROUP_FIGURES = (
    Figure(
        name="name",
        scope="process_group",
        is_text=True,
        formula="torch's name of the group (`0`: the default group)",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="description",
        scope="process_group",
        title="group",
        is_text=True,
        screen=FigureColumn(place=10, keep=99, most=24),
        plain=FigureColumn(place=10, keep=99),
        formula="what a library calls it (`mesh_dp_shard`); tables have the name where it has none",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="backend",
        scope="process_group",
        title="backend",
        is_text=True,
        screen=FigureColumn(place=30, keep=40, most=8),
        plain=FigureColumn(place=30, keep=40),
        formula="`gloo`, `nccl`",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="size",
        scope="process_group",
        integer=True,
        formula="how many ranks it has",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="ranks",
        scope="process_group",
        title="ranks",
        is_text=True,
        screen=FigureColumn(place=20, keep=85, most=20),
        plain=FigureColumn(place=20, keep=85),
        formula="its ranks, ascending; empty: all",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="collectives",
        scope="process_group",
        title="seen",
        text=count,
        integer=True,
        screen=FigureColumn(place=40, keep=60),
        plain=FigureColumn(place=40, keep=60),
        formula="collectives that all ranks have reported and that were compared, over the whole run",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="seen_pct",
        scope="process_group",
        title="seen%",
        text=whole,
        screen=FigureColumn(place=50, keep=70),
        plain=FigureColumn(place=50, keep=70),
        formula="their share of all collectives of the group since the first one",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="steps",
        scope="process_group",
        integer=True,
        formula="the newest steps that the medians below are over, 128 at most",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="per_step",
        scope="process_group",
        title="per step",
        text=times_a_step,
        screen=FigureColumn(place=60, keep=75),
        plain=FigureColumn(place=60, keep=75),
        formula="collectives in a step, mean over the steps of the last report",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="step_bytes",
        scope="process_group",
        title="bytes",
        text=size,
        screen=FigureColumn(place=70, keep=65),
        plain=FigureColumn(place=70, keep=65),
        formula="bytes that a rank gives to them; null where the size of one is not known",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="operations",
        scope="process_group",
        title="collectives",
        is_text=True,
        screen=FigureColumn(place=130, keep=30, most=44),
        plain=FigureColumn(place=130, keep=30),
        formula="which they are, the most frequent first",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="skew_ms",
        scope="process_group",
        title="skew",
        text=ratio,
        bound="bound_ms",
        screen=FigureColumn(place=80, keep=80),
        plain=FigureColumn(place=80, keep=80, title="skew ms"),
        says="how long after the first rank the last one comes",
        formula="last launch − first at the deciding collective of a step, median over steps",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="bound_ms",
        scope="process_group",
        title="±",
        text=_plus_minus_ratio,
        screen=FigureColumn(place=90, keep=78),
        plain=FigureColumn(place=90, keep=78),
        says="how far the skew may be wrong",
        formula=(
            "how far the comparison of two launches may be wrong: the bound of the clocks, and what a "
            "host's wall clock was set by"
        ),
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="last_arriver",
        scope="process_group",
        title="last",
        words="comes last",
        is_text=True,
        integer=True,
        screen=FigureColumn(place=100, keep=95),
        plain=FigureColumn(place=100, keep=95, title="comes last"),
        says="the rank that comes last most often, and how often",
        formula=(
            "the rank that launches the deciding collective last in most steps; null where the bounds "
            "of the clocks are wider than the skew"
        ),
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="last_arriver_pct",
        scope="process_group",
        formula="share of the steps in which it does",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="lateness_ms",
        scope="process_group",
        title="late",
        text=ratio,
        bound="bound_ms",
        screen=FigureColumn(place=110, keep=94),
        plain=FigureColumn(place=110, keep=94, title="late ms"),
        says="how much later than the others that rank comes",
        formula="its lateness there: launch − median of the other ranks, median over steps",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="rank_lateness_ms",
        scope="process_group",
        is_text=True,
        formula="the same of each of its ranks, in their order; empty as `last_arriver` is null",
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
    Figure(
        name="on_host",
        scope="process_group",
        is_text=True,
        formula=(
            "whether launches are moments of the host only (NCCL), which runs ahead of the GPU: then "
            "no rank is flagged by them"
        ),
        source="ddptop/analysis/to_frame/process_groups.py",
    ),
)
"""Figures of a process group whose collectives no hook times: all fields of `ProcessGroupFigures`."""

GROUP_FIGURES = (
    Figure(
        name="step",
        scope="group",
        integer=True,
        metric=Metric(place=10, name="step", help="Newest step that every rank has completed"),
        formula=(
            "number of the newest complete step. In a live frame of 1,024 ranks and more the "
            "other figures, hosts, GPUs and logged values may be those of up to two seconds ago "
            "(`ddptop/collector/viewers.py`)"
        ),
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="incarnation",
        scope="group",
        integer=True,
        formula="elastic restarts before it. Steps of different incarnations are never compared",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="window_steps",
        scope="group",
        integer=True,
        formula="number of steps of the window",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="steps_per_s",
        scope="group",
        compared=Compared(place=30, worse=-1, name="steps/s"),
        is_logged=True,
        metric=Metric(place=20, name="steps_per_second", help="Steps per second of the group"),
        formula=(
            "(last − first step number) / (time between their ends on rank 0), over the window: "
            "of the mean step, which the screen tells beside the median where the two differ by "
            "more than 15 %"
        ),
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="step_ms_p50",
        scope="group",
        compared=Compared(place=10, worse=1, name="step ms"),
        is_logged=True,
        json_path="step_ms.p50",
        formula="median over the window of the median over ranks of `step_ms`",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="step_ms_p95",
        scope="group",
        compared=Compared(place=20, worse=1, name="  p95"),
        is_logged=True,
        json_path="step_ms.p95",
        formula="95 % quantile over the window of the median over ranks of `step_ms`",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_mean",
        scope="group",
        compared=Compared(place=40, worse=1, name="loss", text=loss, decimals=4),
        is_logged=True,
        json_path="loss.mean",
        metric=Metric(place=120, name="loss", help="Loss of the newest step, mean over ranks"),
        formula="mean over ranks of the newest known losses; null where one of them is not finite",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_min",
        scope="group",
        json_path="loss.min",
        formula="least of the newest known losses of the ranks",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_max",
        scope="group",
        json_path="loss.max",
        formula="largest of the newest known losses of the ranks",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_min_rank",
        scope="group",
        json_path="loss.min_rank",
        integer=True,
        formula="the rank with the least loss",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_max_rank",
        scope="group",
        json_path="loss.max_rank",
        integer=True,
        formula="the rank with the largest loss",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_as_given",
        scope="group",
        json_path="loss.as_given",
        integer=True,
        formula=(
            "backward passes whose mean the loss is, as `backward()` was given it: the script may"
            " divide it by their number, or not. 0: it is of one pass, or known"
        ),
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="optimizers_in_turn",
        scope="group",
        json_path="loss.optimizers_in_turn",
        integer=True,
        formula=(
            "how many optimizers step in turn, as in a GAN: the losses are of the first one's steps. 0: one"
        ),
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="loss_of_other",
        scope="group",
        json_path="loss.of_other_optimizer",
        formula="newest loss of a step of another of these optimizers, mean over ranks",
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="collective_ms",
        scope="group",
        compared=Compared(place=50, worse=1, name="collectives ms"),
        is_logged=True,
        formula="mean over ranks",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="wait_ms",
        scope="group",
        is_logged=True,
        formula="mean over ranks",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="transfer_ms",
        scope="group",
        is_logged=True,
        formula="mean over ranks",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="exposed_comm_ms",
        scope="group",
        is_exposed=True,
        compared=Compared(place=60, worse=1, name="exposed ms"),
        is_logged=True,
        formula="mean over ranks",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="overlap_pct",
        scope="group",
        compared=Compared(place=70, worse=-1, name="overlap %"),
        is_logged=True,
        metric=Metric(place=100, name="overlap", help="Share of communication that is hidden behind compute"),
        formula=(
            "100 × (1 − sum over ranks of exposed communication / sum over ranks of collective "
            "time). In a step of several backward passes the exposed communication from the last "
            "gradients counts where it is larger: it also has the passes of different models"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="busbw_gbps",
        scope="group",
        compared=Compared(place=80, worse=-1, name="busbw GB/s", text=ratio, decimals=RATIO),
        is_logged=True,
        metric=Metric(place=110, name="bus_bandwidth", help="Bus bandwidth, as nccl-tests counts it"),
        formula=(
            "bytes of all buckets / mean over ranks of the transfer time × 2(n−1)/n; mean over process groups"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="bound_ms",
        scope="group",
        formula="the largest over ranks",
        source="ddptop/analysis/steps/clocks.py",
    ),
    Figure(
        name="transfer_bound_ms",
        scope="group",
        formula="the largest over ranks",
        source="ddptop/analysis/steps/clocks.py",
    ),
    Figure(
        name="clock_free",
        scope="group",
        formula="whether wait and transfer of buckets are the clock-free fallback",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="clock_reason",
        scope="group",
        is_text=True,
        formula="why `clock_free` is set: the bound and the skew; null: it is not known yet",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="clocks_contradict",
        scope="group",
        formula="whether `clock_free` is set because the collectives contradict the clocks",
        source="ddptop/analysis/steps/windows.py",
    ),
    Figure(
        name="exposed_wait_ms",
        scope="group",
        is_exposed=True,
        metric=Metric(place=50, name="exposed_wait", help="Wait for slower ranks, mean over ranks"),
        formula="mean over ranks",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="exposed_transfer_ms",
        scope="group",
        is_exposed=True,
        metric=Metric(place=60, name="exposed_transfer", help="Transfer not hidden behind compute"),
        formula="transfer of the step (mean over process groups, weighted by their ranks)",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="exposed_comm_pct",
        scope="group",
        is_exposed=True,
        metric=Metric(place=70, name="exposed_communication", help="Exposed communication per step"),
        formula="mean over ranks of exposed communication / median over ranks of the step",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="all_reduces",
        scope="group",
        metric=Metric(
            place=80, name="all_reduces", help="All-reduces of gradients in a step, all backward passes"
        ),
        formula="all-reduces of the step: sum of `launches` over `buckets`",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="wire_bytes",
        scope="group",
        metric=Metric(place=90, name="all_reduced", help="Bytes that a rank gives to them in a step"),
        formula=(
            "bytes that a rank gives to the all-reduces of the step: sum of `launches` × `bytes` over "
            "`buckets`"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="late_no_sync",
        scope="group",
        formula=(
            "whether `no_sync()` enclosed a backward and not its forward in the newest steps. DDP"
            " decides in forward whether backward all-reduces, so that this one did. The event "
            "`no_sync` is logged"
        ),
        source="ddptop/analysis/to_frame/frame.py",
    ),
    Figure(
        name="cpu_wait_pct",
        scope="group",
        formula=(
            "what a rank waited for a CPU / its steps, of the rank for which this is least: "
            "outside exposed communication, over the steps of the window. Null where it is not "
            "known"
        ),
        source="ddptop/analysis/to_frame/cpus.py",
    ),
    Figure(
        name="cpu_shortage",
        scope="group",
        is_text=True,
        formula=(
            "`3 ranks may use core 0 only`: the ranks of a host begin at the same lowest "
            "processor and may use fewer than they are, and fewer than the host has "
            "(`sched_getaffinity` of their main threads, once a second); or more than half of "
            "them have a CPU quota that is used up. It is the verdict where no rank is flagged "
            "for something else (`ddptop/analysis/to_frame/cpus.py`)"
        ),
        source="ddptop/analysis/to_frame/cpus.py",
    ),
    Figure(
        name="no_straggler_ms",
        scope="group",
        compared=Compared(place=90, worse=1, name="without waiting ms"),
        json_path="what_if.no_straggler_ms",
        metric=Metric(place=30, name="step_without_straggler", help="Median step if no rank were slower"),
        formula=(
            "gain of the flagged ranks, had they come no later than the latest of the others; "
            "where none is flagged, of the last arriver"
        ),
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="no_exposed_comm_ms",
        scope="group",
        json_path="what_if.no_exposed_comm_ms",
        metric=Metric(place=40, name="step_without_exposed", help="Median step, all-reduces hidden"),
        formula="all communication hidden: the gain is the smallest exposed communication of any rank",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="both_ms",
        scope="group",
        json_path="what_if.both_ms",
        formula="both, counted once where they overlap; on the screen `if communication were hidden too`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="no_straggler_low_ms",
        scope="group",
        json_path="what_if.no_straggler_low_ms",
        formula="lower end of the 95 % interval of `no_straggler_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="no_straggler_high_ms",
        scope="group",
        json_path="what_if.no_straggler_high_ms",
        formula="upper end of the 95 % interval of `no_straggler_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="no_exposed_comm_low_ms",
        scope="group",
        json_path="what_if.no_exposed_comm_low_ms",
        formula="lower end of the 95 % interval of `no_exposed_comm_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="no_exposed_comm_high_ms",
        scope="group",
        json_path="what_if.no_exposed_comm_high_ms",
        formula="upper end of the 95 % interval of `no_exposed_comm_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="both_low_ms",
        scope="group",
        json_path="what_if.both_low_ms",
        formula="lower end of the 95 % interval of `both_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
    Figure(
        name="both_high_ms",
        scope="group",
        json_path="what_if.both_high_ms",
        formula="upper end of the 95 % interval of `both_ms`",
        source="ddptop/analysis/straggler/cost.py",
    ),
)
"""Figures of the whole group: all fields of `GroupFigures`, in the order of the JSON snapshot."""


class HasPlace(Protocol):
    """Where a surface shows a figure."""

    @property
    def place(self) -> int: ...


Surface = TypeVar("Surface", bound=HasPlace)


def figures_shown(
    how_shown: Callable[[Figure], Surface | None], figures: Sequence[Figure] = FIGURES
) -> list[tuple[Figure, Surface]]:
    """The figures that a surface shows and how, in the order of their places."""
    shown = [(figure, how) for figure in figures if (how := how_shown(figure)) is not None]
    return sorted(shown, key=lambda figure_and_how: figure_and_how[1].place)
