"""What every figure of a rank is, declared once: `FIGURES`. What shows figures iterates over it.

That is: frames as bytes, JSON and its schema, tables of ranks and their order, the heat map, the comparison
of ranks, metrics, the exported ranks, the report, F1 and METRICS.md. To add a figure, declare it here, give
`Ranks` a field of its name, and measure it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from ddptop.frames.numbers import LEAST_SHOWN_MS, count, fixed, loss, plus_minus, ratio, size, whole

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.protocol.vocabulary import RankPhase, RankStatus

Scope: TypeAlias = Literal["rank", "gpu", "computed"]
"""What has the values: `Ranks`, `GpuFacts` of the rank, or a formula over `Ranks`."""

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
    """Of every step where the last gradient is known, else of steps with bucket detail; likewise below."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """The column of a figure in a table of ranks."""

    place: int
    """Columns stand in this order, from the left."""
    keep: int
    """Where the width does not suffice, columns of the smallest number are left out first."""
    keep_beside_own_times: int | None = None
    """The same where own times, which say more, are known of some rank; None: as `keep`."""
    keep_unknown: int | None = None
    """The same where no value is known; None: as `keep`."""
    title: str = ""
    """Empty: that of the figure."""
    shown: Callable[[Column], bool] | None = None
    """Whether a table of ranks with these values has the column; None: always."""


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
    """A figure in the comparison of two ranks."""

    place: int
    """Lines stand in this order."""
    worse: Literal[-1, 0, 1] = 0
    """1: more of it is worse; -1: less of it is; 0: neither."""
    name: str = ""
    """Empty: its words and its unit."""
    text: Callable[[float | None], str] | None = None
    """None: as in tables."""
    shown: Callable[[Column], bool] | None = None
    """Whether there is a line, by the values of all ranks; None: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure as a metric of each rank, in base units, for Prometheus and OTLP."""

    place: int
    """Metrics come in this order."""
    name: str
    """Without the prefix `ddptop_`, unless it is a name of OpenTelemetry's (`hw.`)."""
    help: str
    has_histogram: bool = False
    """Whether large groups also have a histogram of it over all ranks."""


UNITS = {
    "_ms": "ms",
    "_pct": "%",
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
    """A figure of every rank: what it is, and where it is shown."""

    name: str
    """In JSON. It ends with the unit, which says how many decimals it has there."""
    scope: Scope = "rank"
    title: str = ""
    """Of its column in tables; empty: no table has it."""
    words: str = ""
    """What it is called where there is room for words; empty: as its column."""
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
    in_json: bool = True
    """Whether the JSON snapshot has it."""
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
    largest_first: bool | None = None
    """The order of ranks that are sorted by it; None: they cannot be."""
    heat: HeatMetric | None = None
    """How the heat map shows it; None: not at all."""
    compared: Compared | None = None
    """How the comparison of two ranks shows it; None: not at all."""
    metric: Metric | None = None
    """Its metric; None: it has none."""
    is_exported: bool = False
    """Whether the exported table of ranks has it, as it was at the end."""
    in_report: bool = False
    """Whether the report has its mean over the run."""
    report: FigureColumn | None = None
    """Its column in the report's table of ranks; None: it has none."""

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
        return f"gpu.{self.name}" if self.scope == "gpu" else self.name

    @property
    def called(self) -> str:
        """Its name in words."""
        return self.words or self.title


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
        screen=FigureColumn(place=10, keep=84),
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
        title="ms/step",
        words="step time",
        screen=FigureColumn(place=30, keep=85),
        plain=FigureColumn(place=30, keep=96),
        largest_first=True,
        heat=HeatMetric(place=30, key="step", by_step=True),
        compared=Compared(place=30, worse=1, name="ms/step"),
        metric=Metric(
            place=20, name="rank_step_duration", help="Median step of the rank", has_histogram=True
        ),
        in_report=True,
        report=FigureColumn(place=30, keep=89),
        formula="end − begin",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="data_ms",
        title="data",
        part="data",
        screen=FigureColumn(place=100, keep=58),
        plain=FigureColumn(place=50, keep=90),
        largest_first=True,
        heat=HeatMetric(place=40, key="data", by_step=True),
        compared=Compared(place=40, worse=1),
        in_report=True,
        report=FigureColumn(place=40, keep=80),
        formula="time of the training thread in `__next__` of the DataLoader's iterator",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="forward_ms",
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
        formula="from the begin of `DDP.forward` to its return",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="backward_ms",
        words="whole backward",
        heat=HeatMetric(place=60, key="backward", by_step=True),
        in_report=True,
        formula="from the call of `backward()` to its return; nested calls count in the outermost one",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="optimizer_ms",
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
        formula=(
            "from the call of `optimizer.step()` to its return, without a forward or backward in its closure"
        ),
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="other_ms",
        title="other",
        part="other",
        screen=FigureColumn(place=160, keep=46),
        plain=FigureColumn(place=110, keep=50),
        largest_first=True,
        heat=HeatMetric(place=80, key="other", by_step=True),
        compared=Compared(place=46, worse=1),
        in_report=True,
        report=FigureColumn(place=46, keep=74),
        formula="step − (data + forward + backward + optimizer)",
        source="ddptop/training/device/resolver.py",
    ),
    Figure(
        name="collective_ms",
        words="collectives",
        heat=HeatMetric(place=120, key="collective", by_step=True, is_timed=True),
        compared=Compared(place=70),
        formula="length of the union of the intervals [s, e]",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="wait_ms",
        in_report=True,
        formula="length of the union of the intervals [s, A]",
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="transfer_ms",
        formula=("length of the union of the intervals [A, e]. With two lanes wait and transfer may overlap"),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="exposed_comm_ms",
        words="exposed communication",
        heat=HeatMetric(place=110, key="exposed", by_step=True, is_timed=True),
        in_report=True,
        formula=(
            "exposed communication of the step: end of backward − g, summed over the synchronized backwards"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="lateness_ms",
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
        formula=(
            "share of the detailed steps in which the rank comes last at the deciding all-reduce (of "
            "several passes: has the largest sum); null with fewer than 3"
        ),
        source="ddptop/analysis/steps/evaluate_buckets.py",
    ),
    Figure(
        name="bound_ms",
        title="±",
        text=plus_minus,
        compares_clocks=True,
        emphasis="faint",
        screen=FigureColumn(place=80, keep=59, keep_beside_own_times=36, shown=some_known),
        plain=FigureColumn(place=150, keep=69, shown=some_known),
        compared=Compared(place=90, text=fixed),
        in_report=True,
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
        title="wait",
        part="wait",
        has_fallback=True,
        screen=FigureColumn(place=130, keep=55),
        plain=FigureColumn(place=80, keep=95),
        largest_first=True,
        heat=HeatMetric(place=90, key="wait", by_step=True, is_timed=True),
        compared=Compared(place=43),
        in_report=True,
        report=FigureColumn(place=43, keep=77),
        formula="exposed communication − transfer of the step",
        source="ddptop/analysis/steps/evaluate.py",
        bound="bound_ms",
    ),
    Figure(
        name="own_ms",
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
        formula=(
            "own time (o) of a rank in a step: step − exposed communication − `waited_ms` − "
            "`buffers_ms`. It is the sum of its eight *places*"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="own_backward_ms",
        title="bwd",
        words="backward",
        part="backward",
        screen=FigureColumn(place=120, keep=56),
        plain=FigureColumn(place=70, keep=88),
        largest_first=True,
        compared=Compared(place=42, worse=1),
        in_report=True,
        report=FigureColumn(place=42, keep=78),
        formula="backward − exposed communication − what was waited in other collectives during backward",
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="excess_ms",
        title="excess",
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
        formula=(
            "own time of the rank − median of the own times of the *other* ranks in the same step. "
            "Over all ranks, a group of two would show half the difference on each"
        ),
        source="ddptop/analysis/steps/evaluate.py",
    ),
    Figure(
        name="waited_ms",
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
        in_report=True,
    ),
    Figure(
        name="before_backward_ms",
        in_report=True,
    ),
    Figure(
        name="before_optimizer_ms",
        in_report=True,
    ),
    Figure(
        name="after_optimizer_ms",
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
        screen=FigureColumn(place=180, keep=61),
        plain=FigureColumn(place=170, keep=15),
        largest_first=False,
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
        integer=True,
        as_float64=True,
        is_exported=True,
        formula="step records received",
        source="ddptop/analysis/reducer.py",
    ),
    Figure(
        name="lost_records",
        title="lost",
        words="records lost",
        text=count,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=230, keep=38),
        plain=FigureColumn(place=180, keep=30, shown=some_above_zero),
        largest_first=True,
        heat=HeatMetric(place=230, key="lost", unit=""),
        compared=Compared(place=160, worse=1),
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
        screen=FigureColumn(place=210, keep=40),
        largest_first=True,
        heat=HeatMetric(place=180, key="memory", unit="GB", scale=1e9),
        compared=Compared(place=140, name="memory"),
        metric=Metric(place=70, name="rank_resident_memory", help="Resident memory of its process"),
        formula="resident memory",
        source="ddptop/host/kernel_view.py",
    ),
    Figure(
        name="cpu_pct",
        title="cpu%",
        words="cpu",
        text=whole,
        emphasis="dim",
        screen=FigureColumn(place=220, keep=39),
        largest_first=True,
        heat=HeatMetric(place=170, key="cpu", unit="%"),
        compared=Compared(place=150),
        metric=Metric(place=80, name="rank_cpu", help="CPU of its process, 1 is a whole core"),
        formula="CPU of one core since the reading before",
        source="ddptop/host/kernel_view.py",
    ),
    Figure(
        name="micro_steps",
        title="micro",
        text=count,
        integer=True,
        emphasis="dim",
        screen=FigureColumn(place=40, keep=62, shown=some_above_one),
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
        screen=FigureColumn(place=190, keep=52, shown=some_known),
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
        metric=Metric(place=130, name="hw.temperature", help="Temperature of the GPU"),
        formula="NVML: of the chip",
        source="ddptop/host/gpus.py",
    ),
    Figure(
        name="mem_bytes",
        scope="gpu",
        title="gpumem",
        words="gpu memory",
        text=size,
        emphasis="dim",
        screen=FigureColumn(place=200, keep=51, shown=some_known),
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
"""Those of `Ranks` in the order of the JSON snapshot."""

RANK_FIGURES = {figure.name: figure for figure in FIGURES if figure.scope == "rank"}
"""Those that are columns of `Ranks`."""

BY_TITLE = {figure.title: figure for figure in FIGURES if figure.title}


class HasPlace(Protocol):
    """Where a surface shows a figure."""

    @property
    def place(self) -> int: ...


Surface = TypeVar("Surface", bound=HasPlace)


def figures_shown(how_shown: Callable[[Figure], Surface | None]) -> list[tuple[Figure, Surface]]:
    """The figures that a surface shows and how, in the order of their places."""
    shown = [(figure, how) for figure in FIGURES if (how := how_shown(figure)) is not None]
    return sorted(shown, key=lambda figure_and_how: figure_and_how[1].place)
