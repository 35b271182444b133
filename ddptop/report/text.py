"""The report as a page of text: verdict, strips, tables, stalls and deaths, and advice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.verdict import SIGNS
from ddptop.render.bill import draw_bill
from ddptop.render.line import of_state, paint
from ddptop.render.text import clean, to_ascii, wrap
from ddptop.report import sentences
from ddptop.report.findings import and_more, by_kind
from ddptop.report.strips import strips
from ddptop.report.tables import bucket_table, host_table, part_shares, rank_table, why

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


def incidents(report: Report, width: int) -> list[str]:
    """Stalls, deaths and alerts, each in order of time; empty where there were none."""
    lines: list[str] = []
    for stall in report.stalls[:MAX_INCIDENTS]:
        lines += _stall(stall, width)
    lines += _more(len(report.stalls), "stalls")
    causes_first = sorted(report.deaths, key=lambda death: death.follows)  # of each attempt
    for death in causes_first[:MAX_INCIDENTS]:
        lines += _death(death, sentences.new_message(death, report), width)
    lines += _more(len(report.deaths), "deaths")
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in sentences.DEATHS):
            lines += _wrapped_below_indent(f"{sentences.alert(alert)}{and_more(number)}", width, 2)
    return lines


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - MAX_INCIDENTS:,} more {what} (--json has all)"] if count > MAX_INCIDENTS else []


def _stall(period: StallPeriod, width: int) -> list[str]:
    lines = _wrapped_below_indent(sentences.stall(period), width, 2)
    followed = (period.followed,) if period.followed else ()
    with_positions = {f"it waits for {position.waits_for}" for position in period.positions[:MAX_POSITIONS]}
    details = [detail for detail in period.detail if detail not in with_positions]
    for detail in (*followed, *details[:MAX_DETAILS]):
        lines += _wrapped_below_indent(f"  {detail}", width, 4)
    for position in period.positions[:MAX_POSITIONS]:
        lines += _position(position, width)
    return lines


def _death(death: Death, message: Sequence[str], width: int) -> list[str]:
    lines = _wrapped_below_indent(sentences.death(death), width, 2)
    lines += _position(death.position, width)
    for line in message[:MAX_MESSAGE]:
        lines += _wrapped_below_indent(f"    {line.strip()}", width, 4)
    return lines


def _position(position: RankPosition, width: int) -> list[str]:
    """`rank 1, node0, pid 4312, alive`, what it waits in and for, and its innermost user calls."""
    stack = sentences.stack(position)
    if not stack and not position.operation and not position.waits_for:
        return []
    lines = _wrapped_below_indent(f"  {sentences.where(position)}", width, 4)
    if position.waits_for:
        lines += _wrapped_below_indent(f"    it waits for {position.waits_for}", width, 4)
    return lines + [f"    {call}"[:width] for call in stack]


def _wrapped_below_indent(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width`; the first keeps its own indent, the others have `indent`."""
    own = len(text) - len(text.lstrip())
    lines = wrap(clean(text), width - indent)
    return [" " * (own if i == 0 else indent) + line for i, line in enumerate(lines)]


MAX_ADVICE = 5
"""Most suggestions on the page; `--json` has all."""

MIN_WIDTH = 40


def page(report: Report, width: int, ascii_only: bool = False, color: bool = False) -> str:
    """The whole page without a final newline. `color` adds ANSI colours; `ascii_only` leaves ASCII only."""
    width = max(MIN_WIDTH, width)
    blocks = [
        _head(report, width, color),
        _verdict(report, width, color),
        _bill(report, width, ascii_only, color),
        strips(report, width, ascii_only),
        _titled("Ranks, worst first", _ranks(report, width), color),
        _titled("Why", why(report, width, ascii_only), color),
        _titled("Hosts", host_table(report, width), color),
        _titled("Communication", _communication(report, width), color),
        _titled("Stalls, deaths, wrong numbers", incidents(report, width), color),
        _titled("What to try", _advice(report, width), color),
        _footing(report, width),
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return to_ascii(text) if ascii_only else text


def _titled(title: str, lines: list[str], color: bool) -> list[str]:
    return [paint(title, "head", color), *lines] if lines else []


def _head(report: Report, width: int, color: bool) -> list[str]:
    run = report.run
    sign, role = of_state(run.state)
    state = paint(f"{sign} {run.state.upper()}", role, color)
    simulated = "   SIMULATED" if report.source == "simulated" else ""
    lines = [f"ddptop report {clean(run.name)}   {state}{simulated}"]
    for text in sentences.facts(report):
        lines += _wrapped(text, width)
    return lines


def _verdict(report: Report, width: int, color: bool) -> list[str]:
    lines = []
    for finding in report.verdict:
        first, *rest = _wrapped(f"{SIGNS[finding.sign]} {finding.sentence}", width, 2)
        role = sentences.role(finding)
        lines += [paint(first, role, color), *(paint(line, role, color) for line in rest)]
        for detail in finding.detail:
            lines += ["  " + line for line in wrap(clean(detail), width - 2)]
    return lines


def _bill(report: Report, width: int, ascii_only: bool, color: bool) -> list[str]:
    if report.ledger is None:
        return []
    lines = draw_bill(report.ledger, width, ascii_only, on_gpus=sentences.on_gpus(report))
    roles = {"strong": "head"}  # a title, as of the other blocks
    return [
        "".join(paint(text, roles.get(role, role), color) for text, role in line.pieces).rstrip()
        for line in lines
    ]


def _ranks(report: Report, width: int) -> list[str]:
    if not report.ranks or report.communication.step_ms is None:
        return []
    lines = rank_table(report, width)
    shares = part_shares(report)
    if shares:
        lines += _wrapped(f"means over the run, ms; {sentences.shares(shares)}", width)
    return lines


def _communication(report: Report, width: int) -> list[str]:
    lines: list[str] = []
    for text in sentences.communication(report):
        lines += _wrapped(text, width)
    measured = report.communication.step_ms is not None and report.communication.exposed_comm_ms is not None
    return [*lines, *bucket_table(report.buckets, width)] if measured else lines


def _advice(report: Report, width: int) -> list[str]:
    if not report.advice:
        return _wrapped(sentences.nothing_to_try(report), width)
    lines = []
    for number, suggestion in enumerate(report.advice[:MAX_ADVICE], start=1):
        lines += _wrapped(f"{number} {suggestion.action}", width, 2)
        because = f"because {suggestion.because}{sentences.gain(suggestion, report)}"
        lines += ["  " + line for line in wrap(clean(because), width - 2)]
    rest = len(report.advice) - MAX_ADVICE
    return [*lines, f"and {rest} more (--json has all)"] if rest > 0 else lines


def _footing(report: Report, width: int) -> list[str]:
    lines = [line for text in sentences.footing(report) for line in _wrapped(text, width)]
    source = sentences.source(report)  # a path is never wrapped
    return [*lines, source] if source else lines


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    lines = wrap(clean(text), width - indent)
    return [(" " * indent if i else "") + line for i, line in enumerate(lines)]
