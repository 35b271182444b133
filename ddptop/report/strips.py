"""The run's time as lines of blocks: step time, waiting, flagged rank, events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.frames.conditions import CONDITIONS, condition_of
from ddptop.frames.numbers import clock, fixed
from ddptop.frames.phrases import death_phrase
from ddptop.frames.training_kind import times_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.report.content import Report, StragglerSummary

BLOCKS, PLAIN = "▁▂▃▄▅▆▇█", "_.-:=+*#"

LABEL_WIDTH = 10
"""Columns for the label before a strip."""

RANGE_WIDTH = 9
"""Columns after a strip, for its lowest and highest value."""

SPIKE = 4.0
"""The scale ends at this multiple of the median span, so that a compilation does not flatten the rest."""

NO_RANK, UNKNOWN_RANK = "·", " "


def draw_strips(report: Report, width: int, ascii_only: bool) -> list[str]:
    """The run's time as lines of blocks: step time, waiting, flagged rank, events, and the time of day."""
    room, wide = _count_places(report, width)
    spans = report.spans[:room]
    if not any(span.step_ms is not None for span in report.spans):
        return []
    lines = []
    figures = [("step ms", [span.step_ms for span in spans], 1)]
    if times_waiting(report.run.training):
        figures.append(("waiting %", [span.wait_pct for span in spans], 0))
    if report.stragglers:  # since when, and how it went on
        figures.append(("cost %", [span.cost_pct for span in spans], 0))
    for label, values, digits in figures:
        lines += _draw_strip(label, values, digits, wide, ascii_only)
    letters, legend = _letters_of_ranks(report)
    if any(span.cost_pct is not None for span in spans) and report.run.world_size > 1:
        flagged = [
            UNKNOWN_RANK if span.cost_pct is None else letters.get(span.rank, NO_RANK) for span in spans
        ]
        lines.append(f"{'slow rank':<{LABEL_WIDTH}}{''.join(letter * wide for letter in flagged)}".rstrip())
    marks, used = _letters_of_events(report, len(spans))
    if used:
        placed = "".join(mark + (" " if mark != "S" else "S") * (wide - 1) for mark in marks)
        lines.append(f"{'events':<{LABEL_WIDTH}}{placed}".rstrip())
        legend = [*legend, *used]
    lines.append(_draw_axis(report, len(spans) * wide))
    if legend:
        lines.append(" " * LABEL_WIDTH + "   ".join(legend))
    return lines


def draw_excess_strip(report: Report, slow: StragglerSummary, width: int, ascii_only: bool) -> list[str]:
    """A straggler's excess in every span, in line with the other strips; empty: it is not known."""
    room, wide = _count_places(report, width)
    values_ms = [ms for _, ms in report.excess_over_time(slow)]
    return _draw_strip("excess ms", values_ms[:room], 1, wide, ascii_only)


def _count_places(report: Report, width: int) -> tuple[int, int]:
    """How many spans have room, and the cells of each."""
    room = max(1, width - LABEL_WIDTH - RANGE_WIDTH - 1)
    return room, max(1, room // max(1, min(room, len(report.spans))))


def _draw_strip(
    label: str, values: Sequence[float | None], digits: int, wide: int, ascii_only: bool
) -> list[str]:
    """One line of blocks with its least and largest value; none where nothing is known."""
    known_values = [value for value in values if value is not None]
    if not known_values:
        return []
    # Shares have a scale of 0 to 100, so that a little waiting is drawn as little.
    top = 100.0 if "%" in label else scale_end(known_values)
    text = "".join(_draw_block(value, top, PLAIN if ascii_only else BLOCKS) * wide for value in values)
    least, most = fixed(min(known_values), digits), fixed(max(known_values), digits)
    between = f"to {most}" if min(known_values) < 0 else f"{least}-{most}"
    return [f"{label:<{LABEL_WIDTH}}{text} {between}".rstrip()]


def scale_end(values: Sequence[float]) -> float:
    """The largest value, or SPIKE times the median if that is less."""
    return min(max(values), SPIKE * sorted(values)[len(values) // 2])


def _draw_block(value: float | None, top: float, levels: str) -> str:
    if value is None:
        return " "
    share = value / top if top > 0 else 0.0
    return levels[min(len(levels) - 1, max(0, int(share * len(levels) - 1e-9)))]


def _letters_of_ranks(report: Report) -> tuple[dict[int | None, str], list[str]]:
    """A character for each flagged rank, its number where all are below 10, else a letter; and the legend."""
    ranks = [straggler.rank for straggler in report.stragglers]
    if all(rank < 10 for rank in ranks):
        return {rank: str(rank) for rank in ranks}, []
    letters: dict[int | None, str] = {
        rank: chr(ord("a") + i) if i < 26 else "+" for i, rank in enumerate(ranks)
    }
    return letters, [f"{letters[rank]} rank {rank}" for rank in ranks[:4]]


@dataclass(frozen=True, slots=True)
class Incident:
    """A stall, a death or another condition with a letter; times in Unix seconds."""

    kind: str
    first_s: float
    last_s: float
    text: str


def list_incidents(report: Report) -> list[Incident]:
    """All of the run, by kind."""
    incidents = [
        Incident("stall", stall.since_s, stall.since_s + stall.lasted_s, stall.sentence)
        for stall in report.stalls
    ]
    incidents += [
        Incident("death", death.since_s, death.since_s, death_phrase(death)) for death in report.deaths
    ]
    for alert in report.troubles:
        is_death = condition_of(alert.kind).family == "death"
        kind = "death" if is_death and not report.deaths else alert.kind
        incidents.append(Incident(kind, alert.since_s, alert.since_s, alert.message))
    incidents += [
        Incident(event.kind, event.unix_s, event.unix_s, event.message)
        for event in report.events
        if condition_of(event.kind).marks_events
    ]
    return [incident for incident in incidents if condition_of(incident.kind).letter]


def _letters_of_events(report: Report, count: int) -> tuple[list[str], list[str]]:
    """A letter per column, and the legend: each letter that is used, with its title."""
    end_s = max(report.spans[-1].end_s, 1e-9)
    start = report.run.started_at
    marks = [" "] * count
    titles = {
        condition.letter: condition.letter_title for condition in CONDITIONS.values() if condition.letter
    }
    order = [*titles]

    def column_of(unix_s: float) -> int:
        return min(count - 1, max(0, int((unix_s - start) / end_s * count)))

    for incident in list_incidents(report):
        letter = condition_of(incident.kind).letter
        for i in range(column_of(incident.first_s), column_of(incident.last_s) + 1):
            if marks[i] == " " or order.index(letter) < order.index(marks[i]):
                marks[i] = letter
    return marks, [f"{letter} {title}" for letter, title in titles.items() if letter in marks]


def _draw_axis(report: Report, room: int) -> str:
    first = clock(report.run.started_at)
    last = clock(report.run.started_at + report.spans[-1].end_s)
    return " " * LABEL_WIDTH + first + last.rjust(max(len(last) + 1, room - len(first)))
