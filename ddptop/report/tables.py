"""The tables of a report: the worst ranks, and the buckets by size.

A run's time as lines of blocks, one column for each piece of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.render.numbers import UNKNOWN, clock, fixed, size
from ddptop.render.phases import PARTS, PHASES, SHORT, step_parts
from ddptop.render.table import aligned
from ddptop.render.text import cells, fit_tail
from ddptop.report.means import weighted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column
    from ddptop.report.content import BucketSummary, RankSummary, Report

MOST_RANKS = 5
"""The worst; a person who wants them all takes `--json`."""

MOST_ROWS = 8
"""More buckets than this are grouped by size."""

HOST = 12

PART_TITLES = tuple(SHORT.get(part.name, part.name) for part in PARTS)

LAST_TO_GO = ("rank", "late ms", "ms/step", "data", "fwd", "bwd", "wait", "transfer", "opt", "other")
"""Where the width does not suffice, other columns go first, and from the right."""


def rank_table(report: Report, width: int) -> list[str]:
    """The worst ranks: means over the run, in ms. The parts of the step add up to `ms/step`."""
    shown = worst(report)
    parts = _parts(shown)
    titles = ["rank", "host", "late ms", "ms/step", *PART_TITLES, "last %", "score"]
    rows = [
        [
            str(rank.rank),
            fit_tail(rank.host, HOST).strip() or UNKNOWN,
            _bounded(rank),
            fixed(rank.step_ms),
            *(fixed(float(ms)) for ms in parts[:, at]),
            fixed(rank.last_pct, 0),
            fixed(rank.relative_score, 2),
        ]
        for at, rank in enumerate(shown)
    ]
    lines = _fit(titles, rows, width)
    hidden = len(report.ranks) - len(shown)
    return [*lines, f"and {hidden:,} more ranks, less late (--json has all)"] if hidden > 0 else lines


def part_shares(report: Report) -> list[tuple[str, float]]:
    """(part of the step, its share in %) over all ranks; empty where no step is known."""
    parts = np.nansum(_parts(report.ranks), axis=1)
    total = float(parts.sum())
    return (
        [(part.name, 100 * float(ms) / total) for part, ms in zip(PARTS, parts, strict=True)] if total else []
    )


def _parts(ranks: Sequence[RankSummary]) -> Column:
    """(parts, ranks) ms, as the screen's table has them."""

    def column(name: str) -> Column:
        values = [getattr(rank, f"{name}_ms") for rank in ranks]
        return np.array([np.nan if value is None else value for value in values], np.float64)

    phases = np.vstack([column(name) for name in PHASES])
    return step_parts(column("step"), phases, column("exposed_comm"), column("exposed_wait"))[: len(PARTS)]


def worst(report: Report) -> list[RankSummary]:
    """Those that were named, the dearest first, then the latest of the others; at most MOST_RANKS."""
    place = {one.rank: i for i, one in enumerate(report.culprits)}

    def badness(rank: RankSummary) -> tuple[int, float, int]:
        late = rank.lateness_ms if rank.lateness_ms is not None else float("-inf")
        return place.get(rank.rank, len(place)), -late, rank.rank

    return sorted(report.ranks, key=badness)[:MOST_RANKS]


def bucket_table(buckets: Sequence[BucketSummary], width: int) -> list[str]:
    """A line per bucket, or per size where there are many; times are means over the run."""
    if not buckets:
        return []
    groups = [[bucket] for bucket in buckets]
    if len(buckets) > MOST_ROWS:
        by_size: dict[int, list[BucketSummary]] = {}
        for bucket in buckets:
            by_size.setdefault((bucket.bytes or 0).bit_length(), []).append(bucket)
        groups = [by_size[key] for key in sorted(by_size, reverse=True)]
    titles = ["bucket", "size", "type", "transfer ms", "wait ms", "algbw GB/s", "busbw GB/s"]
    rows = [
        [
            _which(group),
            size(_mean([bucket.bytes for bucket in group])),
            group[0].dtype or UNKNOWN,
            fixed(_mean([bucket.transfer_ms for bucket in group]), 2),
            fixed(_mean([bucket.wait_ms for bucket in group]), 2),
            fixed(_mean([bucket.algbw_gbps for bucket in group]), 2),
            fixed(_mean([bucket.busbw_gbps for bucket in group]), 2),
        ]
        for group in groups
    ]
    return _fit(titles, rows, width)


def _which(group: Sequence[BucketSummary]) -> str:
    if len(group) > 1:
        return f"{len(group)} like"
    bucket = group[0]
    return f"{bucket.model}.{bucket.index}" if bucket.model else str(bucket.index)


def _mean(values: Sequence[float | None]) -> float | None:
    return weighted(values, np.ones(len(values)))


def _bounded(rank: RankSummary) -> str:
    text = fixed(rank.lateness_ms)
    return f"{text} ±{rank.bound_ms:.1f}" if rank.bound_ms is not None and text != UNKNOWN else text


def _fit(titles: list[str], rows: list[list[str]], width: int) -> list[str]:
    """The table without as many columns as it takes."""
    titles, rows = list(titles), [list(row) for row in rows]
    left = {"host", "type", "bucket"}
    while True:
        lines = aligned(titles, rows, frozenset(title for title in titles if title not in left))
        spare = [title for title in titles if title not in LAST_TO_GO] or titles[1:]
        if max(map(cells, lines)) <= width or len(titles) == 1:
            return lines
        gone = titles.index(spare[-1])
        for row in (titles, *rows):
            del row[gone]


BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-:=+*#"

LABEL = 10
"""Cells before a strip."""

RANGE = 9
"""Cells after it, for the lowest and the highest value."""

SPIKE = 4.0
"""Drawn no higher than so many times the usual piece: a compilation must not flatten all else."""

NOBODY, UNJUDGED = "·", " "

EVENTS = {
    "stall": "S",
    "death": "X",
    "nan": "N",
    "replica_drift": "D",
    "restart": "R",
    "collector_restart": "C",
    "lost_records": "!",
    "recording": "!",
}
"""Later ones give way to earlier ones in the same column."""

MEANINGS = {
    "S": "stall",
    "X": "death",
    "N": "NaN",
    "D": "replicas differ",
    "R": "restart",
    "C": "collector restart",
    "!": "records missing",
}


def strips(report: Report, width: int, ascii_only: bool) -> list[str]:
    """Step time, waiting, who was named, what happened, and the time of day below."""
    room = max(1, width - LABEL - RANGE - 1)
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
        told = [value for value in values if value is not None]
        if told:
            # Shares are drawn on their own scale of 0 to 100, so that little waiting looks little.
            top = 100.0 if "%" in label else _top(told)
            text = "".join(_block(value, top, levels) * wide for value in values)
            span_text = f"{fixed(min(told), digits)}-{fixed(max(told), digits)}"
            lines.append(f"{label:<{LABEL}}{text} {span_text}".rstrip())
    letters, legend = _letters(report)
    if any(span.cost_pct is not None for span in spans) and report.run.world_size > 1:
        who = [
            UNJUDGED if s.cost_pct is None else NOBODY if s.rank is None else letters.get(s.rank, NOBODY)
            for s in spans
        ]
        lines.append(f"{'slow rank':<{LABEL}}{''.join(letter * wide for letter in who)}".rstrip())
    marks, told_marks = _events(report, len(spans))
    if told_marks:
        placed = "".join(mark + (" " if mark != "S" else "S") * (wide - 1) for mark in marks)
        lines.append(f"{'events':<{LABEL}}{placed}".rstrip())
        legend = [*legend, *(f"{mark} {MEANINGS[mark]}" for mark in told_marks)]
    lines.append(_axis(report, len(spans) * wide))
    if legend:
        lines.append(" " * LABEL + "   ".join(legend))
    return lines


def _top(told: Sequence[float]) -> float:
    usual = sorted(told)[len(told) // 2]
    return min(max(told), SPIKE * usual)


def _block(value: float | None, top: float, levels: str) -> str:
    if value is None:
        return " "
    share = value / top if top > 0 else 0.0
    return levels[min(len(levels) - 1, max(0, int(share * len(levels) - 1e-9)))]


def _letters(report: Report) -> tuple[dict[int, str], list[str]]:
    """A letter per named rank: its number where all have one digit. And what the letters mean."""
    ranks = [one.rank for one in report.culprits]
    if all(rank < 10 for rank in ranks):
        return {rank: str(rank) for rank in ranks}, []
    letters = {rank: chr(ord("a") + i) if i < 26 else "+" for i, rank in enumerate(ranks)}
    return letters, [f"{letters[rank]} rank {rank}" for rank in ranks[:4]]


def _events(report: Report, count: int) -> tuple[list[str], list[str]]:
    """A mark per column, and the marks that are used."""
    end_s = max(report.spans[-1].end_s, 1e-9)
    start = report.run.started_at
    marks = [" "] * count

    def column(unix_s: float) -> int:
        return min(count - 1, max(0, int((unix_s - start) / end_s * count)))

    def place(kind: str, first: float, last: float) -> None:
        order = list(EVENTS.values())
        for i in range(column(first), column(last) + 1):
            if marks[i] == " " or order.index(EVENTS[kind]) < order.index(marks[i]):
                marks[i] = EVENTS[kind]

    for stall in report.stalls:
        place("stall", stall.since_s, stall.since_s + stall.lasted_s)
    for death in report.deaths:
        place("death", death.since_s, death.since_s)
    for alert in report.troubles:
        kind = "death" if alert.kind in ("lost_rank", "failed_rank") and not report.deaths else alert.kind
        if kind in EVENTS:
            place(kind, alert.since_s, alert.since_s)
    for happening in report.happenings:
        if happening.kind in ("restart", "collector_restart", "nan"):
            place(happening.kind, happening.unix_s, happening.unix_s)
    used = [mark for mark in dict.fromkeys(EVENTS.values()) if mark in marks]
    return marks, used


def _axis(report: Report, room: int) -> str:
    first = clock(report.run.started_at)
    last = clock(report.run.started_at + report.spans[-1].end_s)
    return " " * LABEL + first + last.rjust(max(len(last) + 1, room - len(first)))
