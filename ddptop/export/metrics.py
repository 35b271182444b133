"""A frame as metrics: families of samples in base units, for Prometheus and OTLP.

Labels are rank, host, phase and the like, never step or bucket: each would be a new series for ever. Up to
MOST_RANKS ranks each have their own series; of larger groups the WORST ones have, with histograms over all
ranks and the number that was left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from ddptop.frames.figures import GROUP_FIGURES, figures_shown
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.frames.phrases import blamed
from ddptop.protocol.outlets import safe_data
from ddptop.protocol.vocabulary import NOT_ENDED

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ddptop.frames.figures import Figure, Metric
    from ddptop.frames.frame import Frame

MOST_RANKS = 256
"""A larger group has series of its WORST ranks only."""

WORST = 64
"""Ranks that large groups have metrics of: 4,096 ranks with GPUs stay below 2,000 series."""

MS, PCT = 1e-3, 1e-2
"""Milliseconds as seconds, percent as a ratio."""

Kind: TypeAlias = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value and its labels."""

    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric: its samples have the same labels. Without samples it is not exported."""

    name: str
    """Without the prefix `ddptop_`, unless it is a name of OpenTelemetry's (`hw.`)."""
    unit: str
    """As in OpenMetrics: seconds, bytes, ratio; empty: none."""
    help: str
    samples: tuple[MetricSample, ...]
    kind: Kind = "gauge"


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many ranks are at most at each bound, cumulated; the last bound is infinite."""

    name: str
    unit: str
    help: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    """Sum of the values."""


PHASES = ("data", "forward", "backward", "optimizer", "other")

GROUP = figures_shown(lambda figure: figure.metric, GROUP_FIGURES)
"""Metrics of the whole group."""

RANK = figures_shown(lambda figure: figure.metric)
"""Metrics of each rank; names of its GPU are those of OpenTelemetry's semantic conventions for hardware."""

BASE_UNITS = {
    "ms": ("seconds", MS),
    "%": ("ratio", PCT),
    "°C": ("celsius", 1.0),
    "W": ("watts", 1.0),
    "GB/s": ("bytes_per_second", 1e9),
    "1/s": ("", 1.0),
}
"""By unit of a figure: the unit of its metric, and how many of these it is."""

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf)
"""Seconds."""


def metric_families(frame: Frame) -> Iterator[Family | Histogram]:
    """All metrics of a frame; what is not known has no sample."""
    for family in _unsafe_families(frame):
        yield (
            # Cleaned in one place, whatever family has them.
            family
            if isinstance(family, Histogram)
            else replace(family, samples=tuple(map(_with_safe_labels, family.samples)))
        )


def _with_safe_labels(sample: MetricSample) -> MetricSample:
    """The sample with safe labels (`ddptop.protocol.outlets`)."""
    # Nearly always: no copy of the labels then.
    if all(map(str.isprintable, sample.labels.values())):
        return sample
    return MetricSample(sample.value, safe_data(sample.labels))


def _unsafe_families(frame: Frame) -> Iterator[Family | Histogram]:
    yield from _of_run(frame)
    for figure, how in GROUP:
        value, (unit, factor) = getattr(frame.group, figure.name), base_unit(figure)
        yield Family(how.name, unit, how.help, (MetricSample(value * factor),) if _is_known(value) else ())
    quantiles = (("0.5", frame.group.step_ms_p50), ("0.95", frame.group.step_ms_p95))
    steps = tuple(
        MetricSample(ms * MS, {"quantile": quantile}) for quantile, ms in quantiles if ms is not None
    )
    yield Family("step_duration", "seconds", "Step of the group over the last 100 steps", steps)
    yield from _of_straggler(frame)
    yield from _of_ledger(frame)
    shown = ranks_shown(frame)
    yield from _families_of_ranks(frame, shown)
    if len(frame.ranks.host) > MOST_RANKS:
        yield from _step_histograms(frame)


def ranks_shown(frame: Frame) -> list[int]:
    """The ranks with series of their own, ascending: all, or those that are the worst.

    These are the flagged ones, then those that have ended or are silent, then by excess, else lateness.
    """
    ranks = frame.ranks
    count = len(ranks.host)
    if count <= MOST_RANKS:
        return list(range(count))
    late = np.nan_to_num(ranks.late_ms, nan=-np.inf)
    # A rank whose lateness is not known comes after all others.
    usual = max(set(ranks.state), key=ranks.state.count)
    unusual = np.array([state != usual for state in ranks.state])
    flagged = np.isin(np.arange(count), blamed(frame.straggler))
    # The last key counts first: flagged, then unusual, then late.
    return sorted(np.lexsort((-late, ~unusual, ~flagged))[:WORST].tolist())


def _of_run(frame: Frame) -> Iterator[Family]:
    run = frame.run
    about = {"run": run.name, "id": run.id, "source": frame.source}
    about |= {"backend": run.backend or "", "torch": run.torch or ""}
    yield Family("run_info", "", "The run; its source is `live`, or `simulated`", (MetricSample(1.0, about),))
    # A run that has stalled goes on: that is a metric of its own.
    yield Family("up", "", "1 while the run goes on", (MetricSample(float(run.state in NOT_ENDED)),))
    stalled = frame.stall is not None and frame.stall.ended_s is None
    yield Family("stalled", "", "1 while the run is stalled", (MetricSample(float(stalled)),))
    states = {state: frame.ranks.state.count(state) for state in sorted(set(frame.ranks.state))}
    samples = tuple(MetricSample(float(count), {"state": state}) for state, count in states.items())
    yield Family("ranks", "", "Ranks by state", samples)
    kinds = {(alert.kind, alert.severity): 0 for alert in frame.alerts}
    for alert in frame.alerts:
        kinds[alert.kind, alert.severity] += 1
    alerts = tuple(
        MetricSample(float(count), {"kind": kind, "severity": severity})
        for (kind, severity), count in kinds.items()
    )
    yield Family("alerts", "", "Conditions that are present now, by kind", alerts)
    yield Family("records", "", "Step records received", (MetricSample(float(frame.records)),), "counter")
    yield Family(
        "records_lost", "", "Step records missing", (MetricSample(float(frame.lost_records)),), "counter"
    )
    taken_pct = frame.overhead.taken_pct
    cost = () if taken_pct is None else (MetricSample(taken_pct * PCT),)
    help_text = (
        "Share of the step that ddptop takes: measured, or until that is known counted on the worst rank"
    )
    yield Family("overhead", "ratio", help_text, cost)


def _of_straggler(frame: Frame) -> Iterator[Family]:
    slow = frame.straggler
    samples: dict[str, tuple[MetricSample, ...]] = {"cost": (), "excess": ()}
    if slow is not None:
        # A flag that blames no rank has no labels of one.
        rank, host = (str(slow.rank), frame.ranks.host[slow.rank]) if blamed(slow) else ("", "")
        about = {"rank": rank, "host": host, "cause": slow.cause or ""}
        samples = {
            "cost": (MetricSample(slow.cost_pct * PCT, about),),
            "excess": (MetricSample(slow.lateness_ms * MS, about),),
        }
    yield Family("straggler_cost", "ratio", "Share of the step that the flagged rank costs", samples["cost"])
    yield Family("straggler_excess", "seconds", "How much longer it takes, or is late", samples["excess"])


MOST_WAITED_FOR = 8
"""Ranks and places that have series of their own: the largest losses."""


def _of_ledger(frame: Frame) -> Iterator[Family]:
    """Sums over the whole run: the classes of all ranks add up to the rank-seconds of the run."""
    ledger = frame.ledger
    if ledger is None:
        return
    sums = [(name, float(np.nansum(ledger.seconds_of(name)))) for name in LEDGER_CLASSES]
    by_class = tuple(MetricSample(seconds, {"class": name}) for name, seconds in sums)
    yield Family("rank_time", "seconds", "Time of all ranks since the launch, by class", by_class)
    waited_for = tuple(
        MetricSample(row.rank_seconds, {"rank": str(row.rank), "place": row.place})
        # Bounded: each rank and place is a series for ever.
        for row in ledger.run.waited_for[:MOST_WAITED_FOR]
    )
    help_text = "Time that other ranks have waited for a rank, by the place where it was"
    yield Family("waited_for", "seconds", help_text, waited_for)
    for name, cost, over in (
        ("lost_to_skew", ledger.run, "since the launch"),
        ("lost_to_skew_recent", ledger.recent, "over the last minutes"),
    ):
        lost = () if cost.lost_pct is None else (MetricSample(cost.lost_pct * PCT),)
        yield Family(name, "ratio", f"Share of all ranks' time that they waited for each other, {over}", lost)


def _families_of_ranks(frame: Frame, shown: list[int]) -> Iterator[Family]:
    ranks = frame.ranks
    about = {rank: {"rank": str(rank), "host": ranks.host[rank]} for rank in shown}
    left_out = float(len(ranks.host) - len(shown))
    yield Family("ranks_left_out", "", "Ranks without series of their own", (MetricSample(left_out),))
    yield from (_of_figure(frame, figure, how, about) for figure, how in RANK if figure.scope == "rank")
    samples = [
        MetricSample(float(column[rank]) * MS, {**about[rank], "phase": phase})
        for phase in PHASES
        for column in (getattr(ranks, f"{phase}_ms"),)
        for rank in shown
        if _is_known(column[rank])
    ]
    yield Family("rank_phase", "seconds", "Median of each phase of the rank's step", tuple(samples))
    yield from (_of_figure(frame, figure, how, about) for figure, how in RANK if figure.scope == "gpu")


def _of_figure(frame: Frame, figure: Figure, how: Metric, about: Mapping[int, Mapping[str, str]]) -> Family:
    """The metric of a figure. `about`: by rank the labels of its sample."""
    values = values_of_ranks(figure, frame)
    unit, factor = base_unit(figure)
    samples = [
        MetricSample(float(values[rank]) * factor, labels)
        for rank, labels in about.items()
        if _is_known(values[rank])
    ]
    return Family(how.name, unit, how.help, tuple(samples))


def base_unit(figure: Figure) -> tuple[str, float]:
    """The unit of a figure's metric, and how many of these the figure's own unit is."""
    return BASE_UNITS.get(figure.unit, (figure.unit, 1.0))


def _step_histograms(frame: Frame) -> Iterator[Histogram]:
    for figure, how in RANK:
        if how.has_histogram:
            unit, factor = base_unit(figure)
            column = values_of_ranks(figure, frame) * factor
            values = column[np.isfinite(column)]
            counts = tuple(int((values <= bound).sum()) for bound in BOUNDS)
            name = how.name.replace("rank_", "ranks_")
            yield Histogram(name, unit, f"{how.help}, over all ranks", BOUNDS, counts, float(values.sum()))


def _is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
