"""The report as a page of text: verdict, strips, tables, stalls and deaths, and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.bill import NOT_KNOWN
from ddptop.frames.verdict import SIGNS
from ddptop.render.bill import draw_bill
from ddptop.render.line import of_state, paint_text
from ddptop.render.text import clean_text, to_ascii, wrap_lines
from ddptop.report import sentences
from ddptop.report.findings import and_more, by_kind
from ddptop.report.strips import draw_strips
from ddptop.report.tables import bucket_table, host_table, part_shares, rank_table, why_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.stall import Death, RankPosition
    from ddptop.report.content import Report, StallPeriod

MAX_INCIDENTS = 4
"""Most stalls and deaths that are shown; the others are counted."""

MAX_DETAILS = 3

MAX_MESSAGE = 20
"""Lines of an exception's complete message."""

MAX_POSITIONS = 2
"""Ranks of a stall whose stacks are shown: a missing one, and one that waits."""


def incident_lines(report: Report, width: int) -> list[str]:
    """Stalls, deaths and alerts, each in order of time; empty where there were none."""
    lines: list[str] = []
    for stall in report.stalls[:MAX_INCIDENTS]:
        lines += _stall_lines(stall, width)
    lines += _more_line(len(report.stalls), "stalls")
    causes_first = sorted(report.deaths, key=lambda death: death.follows)  # of each attempt
    for death in causes_first[:MAX_INCIDENTS]:
        lines += _death_lines(death, sentences.new_message(death, report), width)
    lines += _more_line(len(report.deaths), "deaths")
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in sentences.DEATHS):
            lines += _wrapped_below_indent(f"{sentences.alert_line(alert)}{and_more(number)}", width, 2)
    return lines


def _more_line(count: int, what: str) -> list[str]:
    return [f"  and {count - MAX_INCIDENTS:,} more {what} (--json has all)"] if count > MAX_INCIDENTS else []


def _stall_lines(period: StallPeriod, width: int) -> list[str]:
    lines = _wrapped_below_indent(sentences.stall_line(period), width, 2)
    followed = (period.followed,) if period.followed else ()
    with_positions = {f"it waits for {position.waits_for}" for position in period.positions[:MAX_POSITIONS]}
    details = [detail for detail in period.detail if detail not in with_positions]
    for detail in (*followed, *details[:MAX_DETAILS]):
        lines += _wrapped_below_indent(f"  {detail}", width, 4)
    for position in period.positions[:MAX_POSITIONS]:
        lines += _position_lines(position, width)
    return lines


def _death_lines(death: Death, message: Sequence[str], width: int) -> list[str]:
    lines = _wrapped_below_indent(sentences.death_line(death), width, 2)
    lines += _position_lines(death.position, width)
    for line in message[:MAX_MESSAGE]:
        lines += _wrapped_below_indent(f"    {line.strip()}", width, 4)
    return lines


def _position_lines(position: RankPosition, width: int) -> list[str]:
    """`rank 1, node0, pid 4312, alive`, what it waits in and for, and its innermost user calls."""
    stack = sentences.stack_lines(position)
    if not stack and not position.operation and not position.waits_for:
        return []
    lines = _wrapped_below_indent(f"  {sentences.position_phrase(position)}", width, 4)
    if position.waits_for:
        lines += _wrapped_below_indent(f"    it waits for {position.waits_for}", width, 4)
    return lines + [f"    {call}"[:width] for call in stack]


def _wrapped_below_indent(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width`; the first keeps its own indent, the others have `indent`."""
    own_indent = len(text) - len(text.lstrip())
    lines = wrap_lines(clean_text(text), width - indent)
    return [" " * (own_indent if i == 0 else indent) + line for i, line in enumerate(lines)]


MAX_ADVICE = 5
"""Most suggestions on the page; `--json` has all."""

MIN_WIDTH = 40


def text_page(report: Report, width: int, ascii_only: bool = False, color: bool = False) -> str:
    """The whole page without a final newline. `color` adds ANSI colours; `ascii_only` leaves ASCII only."""
    width = max(MIN_WIDTH, width)
    blocks = [
        _head_lines(report, width, color),
        _verdict_lines(report, width, color),
        _bill_lines(report, width, ascii_only, color),
        draw_strips(report, width, ascii_only),
        _add_title("Ranks, worst first", _rank_lines(report, width), color),
        _add_title("Why", why_lines(report, width, ascii_only), color),
        _add_title("Hosts", host_table(report, width), color),
        _add_title("Communication", _communication_lines(report, width), color),
        _add_title("Stalls, deaths, wrong numbers", incident_lines(report, width), color),
        _add_title("What to try", _advice_lines(report, width), color),
        _footing_lines(report, width),
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return to_ascii(text) if ascii_only else text


def _add_title(title: str, lines: list[str], color: bool) -> list[str]:
    return [paint_text(title, "head", color), *lines] if lines else []


def _head_lines(report: Report, width: int, color: bool) -> list[str]:
    run = report.run
    sign, role = of_state(run.state)
    state = paint_text(f"{sign} {run.state.upper()}", role, color)
    simulated = "   SIMULATED" if report.source == "simulated" else ""
    lines = [f"ddptop report {clean_text(run.name)}   {state}{simulated}"]
    for text in sentences.run_facts(report):
        lines += _wrap_text(text, width)
    return lines


def _verdict_lines(report: Report, width: int, color: bool) -> list[str]:
    lines = []
    for finding in report.verdict:
        first, *further_lines = _wrap_text(f"{SIGNS[finding.sign]} {finding.sentence}", width, 2)
        role = sentences.finding_colour(finding)
        lines += [paint_text(first, role, color), *(paint_text(line, role, color) for line in further_lines)]
        for detail in finding.detail:
            lines += ["  " + line for line in wrap_lines(clean_text(detail), width - 2)]
    return lines


def _bill_lines(report: Report, width: int, ascii_only: bool, color: bool) -> list[str]:
    if report.ledger is None:
        return [] if report.communication.step_ms is None else _wrap_text(NOT_KNOWN, width)
    lines = draw_bill(report.ledger, width, ascii_only, on_gpus=sentences.has_gpus(report))
    roles = {"strong": "head"}  # a title, as of the other blocks
    return [
        "".join(paint_text(text, roles.get(role, role), color) for text, role in line.pieces).rstrip()
        for line in lines
    ]


def _rank_lines(report: Report, width: int) -> list[str]:
    if not report.ranks or report.communication.step_ms is None:
        return []
    lines = rank_table(report, width)
    shares = part_shares(report)
    if shares:
        lines += _wrap_text(sentences.shares_phrase(shares), width)
    return lines


def _communication_lines(report: Report, width: int) -> list[str]:
    lines: list[str] = []
    for text in sentences.communication_lines(report):
        lines += _wrap_text(text, width)
    shows_buckets = report.communication.step_ms is not None and report.communication.is_measured
    return [*lines, *bucket_table(report.buckets, width)] if shows_buckets else lines


def _advice_lines(report: Report, width: int) -> list[str]:
    if not report.advice:
        return _wrap_text(sentences.nothing_to_try(report), width)
    lines = []
    for number, suggestion in enumerate(report.advice[:MAX_ADVICE], start=1):
        lines += _wrap_text(f"{number} {suggestion.action}", width, 2)
        because = f"because {suggestion.because}{sentences.gain_phrase(suggestion, report)}"
        lines += ["  " + line for line in wrap_lines(clean_text(because), width - 2)]
    n_hidden = len(report.advice) - MAX_ADVICE
    return [*lines, f"and {n_hidden} more (--json has all)"] if n_hidden > 0 else lines


def _footing_lines(report: Report, width: int) -> list[str]:
    lines = [line for text in sentences.footing_lines(report) for line in _wrap_text(text, width)]
    source = sentences.recording_phrase(report)  # a path is never wrapped
    return [*lines, source] if source else lines


def _wrap_text(text: str, width: int, indent: int = 0) -> list[str]:
    lines = wrap_lines(clean_text(text), width - indent)
    return [(" " * indent if i else "") + line for i, line in enumerate(lines)]
