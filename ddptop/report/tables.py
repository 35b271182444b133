"""The report's tables (the worst ranks, the buckets) and its strips: the run's time as lines of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.numbers import UNKNOWN, clock, fixed, size
from ddptop.render.phases import PARTS, SHORT, rank_parts
from ddptop.render.table import measured, text_lines
from ddptop.render.text import clean, fit_tail
from ddptop.report.summaries import weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column
    from ddptop.report.content import BucketSummary, RankSummary, Report

MAX_RANKS = 5
"""Rows of the table of ranks; `--json` has all."""

MAX_HOSTS = 8
"""Likewise of the table of hosts."""

MAX_BUCKETS = 8
"""More buckets than this are grouped by size."""

MOST_OF_RUN_PCT = 80.0
"""A rank that is flagged for so much of the run is waited for, and does not wait."""

HOST_WIDTH = 12

BUCKET_FIGURES = (
    ("transfer ms", "transfer_ms", 60),
    ("wait ms", "wait_ms", 50),
    ("algbw GB/s", "algbw_gbps", 40),
    ("busbw GB/s", "busbw_gbps", 30),
)
"""Title, field of BucketSummary, and which columns are kept longest on a narrow page."""

PART_TITLES = tuple(SHORT.get(part.name, part.name) for part in PARTS)


def rank_table(report: Report, width: int) -> list[str]:
    """The worst ranks: means over the run, in ms. The parts of the step add up to `ms/step`."""
    shown = worst_ranks(report)
    parts = _parts(shown, report)
    by_steps = any(rank.excess_ms is not None for rank in shown)
    columns = [
        measured("rank", [str(rank.rank) for rank in shown], 99),
        measured("host", [_host(rank) for rank in shown], 20, right=False),
        *([measured("excess ms", [fixed(rank.excess_ms) for rank in shown], 91)] if by_steps else []),
        measured("late ms", [_with_bound(rank) for rank in shown], 60 if by_steps else 90),
        measured("ms/step", [fixed(rank.step_ms) for rank in shown], 89),
        *(
            measured(title, [fixed(float(ms)) for ms in row], 80 - at)
            for at, (title, row) in enumerate(zip(PART_TITLES, parts, strict=True))
        ),
        measured("last %", [fixed(rank.last_pct, 0) for rank in shown], 15),
        measured("score", [fixed(rank.relative_score, 2) for rank in shown], 10),
    ]
    lines = text_lines(columns, len(shown), width)
    hidden = len(report.ranks) - len(shown)
    return [*lines, f"and {hidden:,} more ranks, less late (--json has all)"] if hidden > 0 else lines


def host_table(report: Report, width: int) -> list[str]:
    """The hosts, those that were unreachable first, then by the excess of their worst rank."""
    if len(report.hosts) < 2:
        return []
    order = sorted(report.hosts, key=lambda host: (-host.silences, -(host.excess_ms or 0.0)))
    shown = order[:MAX_HOSTS]
    worst = [UNKNOWN if host.worst_rank is None else str(host.worst_rank) for host in shown]
    columns = [
        measured("host", [fit_tail(host.name, 2 * HOST_WIDTH) for host in shown], 99, right=False),
        measured("ranks", [str(len(host.ranks)) for host in shown], 95),
        measured("worst rank", worst, 90),
        measured("excess ms", [fixed(host.excess_ms) for host in shown], 89),
        measured("ms/step", [fixed(host.step_ms) for host in shown], 80),
        measured("clock ± ms", [fixed(host.clock_bound_ms, 2) for host in shown], 70),
        measured("drift ppm", [fixed(host.clock_drift_ppm) for host in shown], 60),
        measured("unreachable", [f"{host.silences}x" if host.silences else "" for host in shown], 75),
    ]
    lines = text_lines(columns, len(shown), width)
    hidden = len(order) - len(shown)
    return [*lines, f"and {hidden:,} more hosts (--json has all)"] if hidden > 0 else lines


def part_shares(report: Report) -> list[tuple[str, float]]:
    """(part of the step, its share in %) over all ranks; empty where no step is known."""
    parts = np.nansum(_parts(report.ranks, report), axis=1)
    total = float(parts.sum())
    return (
        [(part.name, 100 * float(ms) / total) for part, ms in zip(PARTS, parts, strict=True)] if total else []
    )


def _parts(ranks: Sequence[RankSummary], report: Report) -> Column:
    """(parts, ranks) ms of each part of the step; the same parts as in the screen's table."""

    def column(name: str) -> Column:
        values = [getattr(rank, f"{name}_ms") for rank in ranks]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    flagged = {slow.rank for slow in report.stragglers if slow.flagged_pct >= MOST_OF_RUN_PCT}
    always_last = [at for at, rank in enumerate(ranks) if rank.rank in flagged]
    return rank_parts(column, always_last)[: len(PARTS)]


def worst_ranks(report: Report) -> list[RankSummary]:
    """The flagged ranks, the most costly first, then the others by excess or lateness; at most MAX_RANKS."""
    order = {straggler.rank: i for i, straggler in enumerate(report.stragglers)}

    def badness(rank: RankSummary) -> tuple[int, float, int]:
        late = rank.lateness_ms if rank.excess_ms is None else rank.excess_ms
        late = float("-inf") if late is None else late
        return order.get(rank.rank, len(order)), -late, rank.rank

    return sorted(report.ranks, key=badness)[:MAX_RANKS]


def bucket_table(buckets: Sequence[BucketSummary], width: int) -> list[str]:
    """A line per bucket, or per size where there are many; times are means over the run."""
    if not buckets:
        return []
    groups = [[bucket] for bucket in buckets]
    if len(buckets) > MAX_BUCKETS:
        by_size: dict[int, list[BucketSummary]] = {}
        for bucket in buckets:
            by_size.setdefault((bucket.bytes or 0).bit_length(), []).append(bucket)
        groups = [by_size[key] for key in sorted(by_size, reverse=True)]
    columns = [
        measured("bucket", [_which(group) for group in groups], 99, right=False),
        measured("size", [size(_mean(group, "bytes")) for group in groups], 98),
        measured("type", [clean(group[0].dtype) or UNKNOWN for group in groups], 70, right=False),
        *(
            measured(title, [fixed(_mean(group, name), 2) for group in groups], keep)
            for title, name, keep in BUCKET_FIGURES
        ),
    ]
    return text_lines(columns, len(groups), width)


def _which(group: Sequence[BucketSummary]) -> str:
    if len(group) > 1:
        return f"{len(group)} like"
    bucket = group[0]
    return f"{bucket.model}.{bucket.index}" if bucket.model else str(bucket.index)


def _mean(group: Sequence[BucketSummary], name: str) -> float | None:
    return weighted([getattr(bucket, name) for bucket in group], np.ones(len(group)))


def _host(rank: RankSummary) -> str:
    return clean(fit_tail(rank.host, HOST_WIDTH).strip()) or UNKNOWN


def _with_bound(rank: RankSummary) -> str:
    text = fixed(rank.lateness_ms)
    return f"{text} ±{rank.bound_ms:.1f}" if rank.bound_ms is not None and text != UNKNOWN else text


BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-:=+*#"

LABEL_WIDTH = 10
"""Columns for the label before a strip."""

RANGE_WIDTH = 9
"""Columns after a strip, for its lowest and highest value."""

SPIKE = 4.0
"""The scale ends at this multiple of the median span, so that a compilation does not flatten the rest."""

NO_RANK, UNKNOWN_RANK = "·", " "

EVENT_SIGNS = {
    "stall": "S",
    "death": "X",
    "nan": "N",
    "replica_drift": "D",
    "restart": "R",
    "collector_restart": "C",
    "lost_records": "!",
    "recording": "!",
}
"""Kind of event to sign. Where a column has several, the kind listed first is shown."""

LEGEND = {
    "S": "stall",
    "X": "death",
    "N": "NaN",
    "D": "replicas differ",
    "R": "restart",
    "C": "collector restart",
    "!": "records missing",
}


def strips(report: Report, width: int, ascii_only: bool) -> list[str]:
    """The run's time as lines of blocks: step time, waiting, flagged rank, events, and the time of day."""
    room = max(1, width - LABEL_WIDTH - RANGE_WIDTH - 1)
    spans = report.spans[:room] if len(report.spans) > room else report.spans
    if not any(span.step_ms is not None for span in report.spans):
        return []
    wide = max(1, room // len(spans))
    levels = PLAIN if ascii_only else BLOCKS
    lines = []
    for label, values, digits in (
        ("step ms", [span.step_ms for span in spans], 1),
        ("waiting %", [span.wait_pct for span in spans], 0),
    ):
        known = [value for value in values if value is not None]
        if known:
            # Shares have a scale of 0 to 100, so that a little waiting is drawn as little.
            top = 100.0 if "%" in label else _top(known)
            text = "".join(_block(value, top, levels) * wide for value in values)
            span_text = f"{fixed(min(known), digits)}-{fixed(max(known), digits)}"
            lines.append(f"{label:<{LABEL_WIDTH}}{text} {span_text}".rstrip())
    letters, legend = _letters(report)
    if any(span.cost_pct is not None for span in spans) and report.run.world_size > 1:
        flagged = [
            UNKNOWN_RANK if span.cost_pct is None else letters.get(span.rank, NO_RANK) for span in spans
        ]
        lines.append(f"{'slow rank':<{LABEL_WIDTH}}{''.join(letter * wide for letter in flagged)}".rstrip())
    marks, used = _events(report, len(spans))
    if used:
        placed = "".join(mark + (" " if mark != "S" else "S") * (wide - 1) for mark in marks)
        lines.append(f"{'events':<{LABEL_WIDTH}}{placed}".rstrip())
        legend = [*legend, *(f"{mark} {LEGEND[mark]}" for mark in used)]
    lines.append(_axis(report, len(spans) * wide))
    if legend:
        lines.append(" " * LABEL_WIDTH + "   ".join(legend))
    return lines


def _top(values: Sequence[float]) -> float:
    return min(max(values), SPIKE * sorted(values)[len(values) // 2])


def _block(value: float | None, top: float, levels: str) -> str:
    if value is None:
        return " "
    share = value / top if top > 0 else 0.0
    return levels[min(len(levels) - 1, max(0, int(share * len(levels) - 1e-9)))]


def _letters(report: Report) -> tuple[dict[int | None, str], list[str]]:
    """A character for each flagged rank, its number where all are below 10, else a letter; and the legend."""
    ranks = [straggler.rank for straggler in report.stragglers]
    if all(rank < 10 for rank in ranks):
        return {rank: str(rank) for rank in ranks}, []
    letters: dict[int | None, str] = {
        rank: chr(ord("a") + i) if i < 26 else "+" for i, rank in enumerate(ranks)
    }
    return letters, [f"{letters[rank]} rank {rank}" for rank in ranks[:4]]


def _events(report: Report, count: int) -> tuple[list[str], list[str]]:
    """A mark per column, and the marks that are used."""
    end_s = max(report.spans[-1].end_s, 1e-9)
    start = report.run.started_at
    marks = [" "] * count

    def column(unix_s: float) -> int:
        return min(count - 1, max(0, int((unix_s - start) / end_s * count)))

    def place(kind: str, first: float, last: float) -> None:
        order = list(EVENT_SIGNS.values())
        for i in range(column(first), column(last) + 1):
            if marks[i] == " " or order.index(EVENT_SIGNS[kind]) < order.index(marks[i]):
                marks[i] = EVENT_SIGNS[kind]

    for stall in report.stalls:
        place("stall", stall.since_s, stall.since_s + stall.lasted_s)
    for death in report.deaths:
        place("death", death.since_s, death.since_s)
    for alert in report.troubles:
        kind = "death" if alert.kind in ("lost_rank", "failed_rank") and not report.deaths else alert.kind
        if kind in EVENT_SIGNS:
            place(kind, alert.since_s, alert.since_s)
    for event in report.events:
        if event.kind in ("restart", "collector_restart", "nan"):
            place(event.kind, event.unix_s, event.unix_s)
    used = [mark for mark in dict.fromkeys(EVENT_SIGNS.values()) if mark in marks]
    return marks, used


def _axis(report: Report, room: int) -> str:
    first = clock(report.run.started_at)
    last = clock(report.run.started_at + report.spans[-1].end_s)
    return " " * LABEL_WIDTH + first + last.rjust(max(len(last) + 1, room - len(first)))
