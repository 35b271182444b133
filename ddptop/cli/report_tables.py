"""The tables of a report: the worst ranks, and the buckets by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.report.means import weighted
from ddptop.cli.table import aligned
from ddptop.tui.paint.numbers import UNKNOWN, fixed, size
from ddptop.tui.paint.phases import PARTS, PHASES, SHORT, step_parts
from ddptop.tui.paint.text import cells, fit_tail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Column
    from ddptop.analysis.report.content import BucketSummary, RankSummary, Report

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
