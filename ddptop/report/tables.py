"""The report's tables: the worst ranks, the flagged rank beside the others, hosts, buckets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.buckets import times_a_step
from ddptop.frames.causes import blamed_ranks
from ddptop.frames.conditions import UNREACHABLE
from ddptop.frames.differences import events_near
from ddptop.frames.figures import BUCKET_FIGURES, HOST_FIGURES, RANK_FIGURES, figures_shown
from ddptop.frames.numbers import LEAST_SHOWN_MS, UNKNOWN, bounded, clock, size
from ddptop.frames.statistics import median
from ddptop.frames.training_kind import untimed_parts
from ddptop.render.phases import BETWEEN, PARTS, draw_pairs, rank_parts
from ddptop.render.table import measured_column, text_lines
from ddptop.render.text import clean_text, fit_tail, wrap_lines
from ddptop.report.strips import draw_excess_strip
from ddptop.report.summaries import weighted_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column
    from ddptop.frames.figures import Figure
    from ddptop.frames.frame import LoggedEvent
    from ddptop.render.table import TableColumn
    from ddptop.report.content import BucketSummary, HostSummary, RankSummary, Report, StragglerSummary

MAX_RANKS = 5
"""Rows of the table of ranks; `--json` has all."""

MAX_HOSTS = 8
"""Rows of the table of hosts at most."""

MAX_BUCKETS = 8
"""More buckets than this are grouped by size."""

MOST_OF_RUN_PCT = 80.0
"""A rank that is flagged for so much of the run is waited for, and does not wait."""

HOST_WIDTH = 12

BUCKET_COLUMNS = figures_shown(lambda figure: figure.report, BUCKET_FIGURES)
"""Columns of buckets, beside those that say which they are."""

HOST_COLUMNS = figures_shown(lambda figure: figure.report, HOST_FIGURES)
"""The figures that the report's table of hosts shows, and how."""

COLUMNS = figures_shown(lambda figure: figure.report)
LATENESS = RANK_FIGURES["lateness_ms"]
"""The figure that the table has with its bound."""


def rank_table(report: Report, width: int) -> list[str]:
    """The worst ranks: medians of usual steps, in ms. The parts of the step add up to `ms/step`."""
    shown = worst_ranks(report)
    parts = dict(zip((part.name for part in PARTS), rank_times(shown, report), strict=True))
    by_steps = any(rank.has_own_times for rank in shown)
    columns = [
        measured_column("rank", [str(rank.rank) for rank in shown], 99),
        measured_column("host", [_host_label(rank) for rank in shown], 20, right=False),
    ]
    for figure, column in COLUMNS:
        values = parts[figure.part] if figure.part else _means_of_ranks(shown, figure)
        if column.shown is None or column.shown(values):
            texts = [figure.text(value) for value in values.tolist()]
            if figure is LATENESS:
                texts = [bounded(rank.means[figure.name], rank.means[figure.bound]) for rank in shown]
            keep = column.keep_beside_own_times if by_steps else None
            columns.append(measured_column(column.title or figure.title, texts, keep or column.keep))
    lines = text_lines(columns, len(shown), width)
    hidden = len(report.ranks) - len(shown)
    return [*lines, f"and {hidden:,} more ranks, less late (--json has all)"] if hidden > 0 else lines


def _means_of_ranks(ranks: Sequence[RankSummary], figure: Figure) -> Column:
    """(ranks,) means of a figure over the run; NaN: not known."""
    return np.array([rank.means[figure.key] for rank in ranks], np.float64)


OWN_PHASES = ("data", "forward", "backward", "optimizer", "other")

MAX_NEAR = 3


@dataclass(frozen=True, slots=True)
class BesideOthers:
    """The most costly straggler beside the others: own time by phase in ms, NaN unknown."""

    slow: StragglerSummary
    own: dict[str, float]
    usual: dict[str, float]
    """Median of the other ranks."""
    flagged_s: float | None
    """Unix seconds at which it was flagged."""
    near: tuple[LoggedEvent, ...]
    """What happened shortly before."""


def beside_others(report: Report) -> BesideOthers | None:
    """None without a straggler, where ranks take turns, and where no time of it is known."""
    slow = report.stragglers[0] if report.stragglers else None
    if slow is None or slow.pattern == "rotating":
        return None
    usual = {phase: _others_ms(report, slow.ranks, phase) for phase in OWN_PHASES}
    own_ms = {phase: usual[phase] + slow.parts_ms.get(phase, math.nan) for phase in OWN_PHASES}
    if not any(map(math.isfinite, own_ms.values())):
        return None
    begin = next((e.unix_s for e in report.events if e.kind == "straggler" and e.rank == slow.rank), None)
    near = [] if begin is None else [e for e in events_near(report.events, begin) if e.severity != "info"]
    return BesideOthers(slow, own_ms, usual, begin, tuple(near[-MAX_NEAR:]))


def events_at_begin(beside: BesideOthers) -> str:
    """What happened as it began; empty: nothing did, or its begin is not known."""
    if not beside.near or beside.flagged_s is None:
        return ""
    events = " · ".join(f"{clock(event.unix_s)} {clean_text(event.message)}" for event in beside.near)
    return f"flagged at {clock(beside.flagged_s)}, shortly after: {events}"


def why_lines(report: Report, width: int, ascii_only: bool) -> list[str]:
    """The most costly straggler: its own time by phase beside the others', its excess over the run, in
    what it differed, and what happened as it began."""
    beside = beside_others(report)
    if beside is None:
        return []
    parts = [part for part in PARTS if part.name in OWN_PHASES]
    pairs = [(part, beside.own[part.name], beside.usual[part.name]) for part in parts]
    what = "ms, in slow steps" if beside.slow.pattern == "intermittent" else "ms, median"
    titles = (f"rank {beside.slow.rank}", "others", what)
    lines = [str(line).rstrip() for line in draw_pairs(pairs, titles, width, ascii_only)]
    lines += draw_excess_strip(report, beside.slow, width, ascii_only)
    return lines + [
        line
        for text in (differences_phrase(beside.slow), events_at_begin(beside))
        for line in wrap_lines(text, width)
    ]


def differences_phrase(slow: StragglerSummary) -> str:
    """In what its process, GPU and host differed from the others'; empty: in nothing that is known."""
    return clean_text(" · ".join(slow.differs))


def _others_ms(report: Report, ranks: Sequence[int], phase: str) -> float:
    """Own time of the other ranks in a phase, the median of their means; NaN: not known."""
    times_ms = [_own_ms(rank, phase) for rank in report.ranks if rank.rank not in ranks]
    return float(median(np.array(times_ms, np.float64)))


def _own_ms(rank: RankSummary, phase: str) -> float | None:
    """Only backward contains DDP's waiting: of other phases it is the whole where own time is not known."""
    if phase == "other":
        # Waits in the script's own collectives are in `other_ms`, but in none of its places.
        places_ms = [ms for place in BETWEEN if (ms := rank.means[f"{place}_ms"]) is not None]
        return sum(places_ms) if len(places_ms) == len(BETWEEN) else rank.means["other_ms"]
    own_ms = rank.means[f"own_{phase}_ms"]
    return own_ms if own_ms is not None or phase == "backward" else rank.means[f"{phase}_ms"]


def host_table(report: Report, width: int) -> list[str]:
    """The hosts, those that were silent first, then by the excess of their worst rank."""
    if len(report.hosts) < 2:
        return []
    shown = worst_hosts(report)[:MAX_HOSTS]
    lines = text_lines(host_columns(shown), len(shown), width)
    hidden = len(report.hosts) - len(shown)
    return [*lines, f"and {hidden:,} more hosts (--json has all)"] if hidden > 0 else lines


def worst_hosts(report: Report) -> list[HostSummary]:
    """The hosts of a report: those that were silent first, then by the excess of their worst rank."""
    return sorted(report.hosts, key=lambda host: host.trouble, reverse=True)


def host_columns(shown: Sequence[HostSummary]) -> list[TableColumn]:
    """The table of hosts."""
    figures = [
        measured_column(
            column.title or figure.title,
            [(column.text or figure.text)(getattr(host, figure.name)) for host in shown],
            column.keep,
        )
        for figure, column in HOST_COLUMNS
    ]
    return [
        measured_column("host", [fit_tail(host.name, 2 * HOST_WIDTH) for host in shown], 99, right=False),
        measured_column("ranks", [str(len(host.ranks)) for host in shown], 95),
        *figures,
        measured_column(UNREACHABLE, [f"{host.silences}x" if host.silences else "" for host in shown], 75),
    ]


def part_shares(report: Report) -> list[tuple[str, float]]:
    """(part of the step, its share in %) over all ranks; empty where no step is known."""
    parts = np.nansum(rank_times(report.ranks, report), axis=1)
    total, untimed = float(parts.sum()), untimed_parts(report.run.training)
    return (
        [
            (part.name, 100 * float(ms) / total)
            for part, ms in zip(PARTS, parts, strict=True)
            if (part.name != "sync" or ms / len(report.ranks) >= LEAST_SHOWN_MS) and part.name not in untimed
        ]
        if total
        else []
    )


def rank_times(ranks: Sequence[RankSummary], report: Report) -> Column:
    """(parts, ranks) ms of each part of the step; the same parts as in the screen's table."""

    def column_of(name: str) -> Column:
        values = [rank.means[f"{name}_ms"] for rank in ranks]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    flagged = {slow.rank for slow in report.stragglers if slow.flagged_pct >= MOST_OF_RUN_PCT}
    always_last = [index for index, rank in enumerate(ranks) if rank.rank in flagged]
    return rank_parts(column_of, always_last)[: len(PARTS)]


def worst_ranks(report: Report, most: int = MAX_RANKS) -> list[RankSummary]:
    """The flagged ranks, the most costly first, then the others by excess or lateness."""
    blamed = (slow for slow in report.stragglers if blamed_ranks(slow.cause, slow.pattern, slow.ranks))
    order = {straggler.rank: i for i, straggler in enumerate(blamed)}

    def sort_key(rank: RankSummary) -> tuple[int, float, int]:
        late_ms = float("-inf") if rank.late_ms is None else rank.late_ms
        return order.get(rank.rank, len(order)), -late_ms, rank.rank

    return sorted(report.ranks, key=sort_key)[:most]


def bucket_table(buckets: Sequence[BucketSummary], width: int) -> list[str]:
    """A line per bucket, or per size where there are many; times are means over the run."""
    columns, rows = bucket_columns(buckets)
    return text_lines(columns, rows, width) if rows else []


def bucket_columns(buckets: Sequence[BucketSummary]) -> tuple[list[TableColumn], int]:
    """The table of buckets, and its number of rows."""
    if not buckets:
        return [], 0
    groups = [[bucket] for bucket in buckets]
    if len(buckets) > MAX_BUCKETS:
        by_size: dict[int, list[BucketSummary]] = {}
        for bucket in buckets:
            by_size.setdefault((bucket.bytes or 0).bit_length(), []).append(bucket)
        groups = [by_size[key] for key in sorted(by_size, reverse=True)]
    columns = [
        measured_column("bucket", [_bucket_label(group) for group in groups], 99, right=False),
        measured_column("size", [size(_mean_of_buckets(group, "bytes")) for group in groups], 98),
        *_launch_column(groups),
        measured_column(
            "dtype", [clean_text(group[0].dtype) or UNKNOWN for group in groups], 70, right=False
        ),
        *(
            measured_column(
                column.title,
                [figure.text(_mean_of_buckets(group, figure.name)) for group in groups],
                column.keep,
            )
            for figure, column in BUCKET_COLUMNS
        ),
    ]
    return columns, len(groups)


def _launch_column(groups: Sequence[Sequence[BucketSummary]]) -> list[TableColumn]:
    """All-reduces of a bucket in a step, where any has more than one."""
    counts = [_mean_of_buckets(group, "launches") for group in groups]
    if max((number for number in counts if number is not None), default=1.0) <= 1:
        return []
    return [measured_column("a step", [times_a_step(number) for number in counts], 65)]


def _bucket_label(group: Sequence[BucketSummary]) -> str:
    if len(group) > 1:
        return f"{len(group)} like"
    bucket = group[0]
    return f"{bucket.model}.{bucket.index}" if bucket.model else str(bucket.index)


def _mean_of_buckets(group: Sequence[BucketSummary], name: str) -> float | None:
    return weighted_mean([getattr(bucket, name) for bucket in group], np.ones(len(group)))


def _host_label(rank: RankSummary) -> str:
    return clean_text(fit_tail(rank.host, HOST_WIDTH).strip()) or UNKNOWN
