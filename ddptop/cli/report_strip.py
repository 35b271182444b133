"""A run's time as lines of blocks, one column for each piece of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.tui.paint.numbers import clock, fixed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.report.content import Report

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
