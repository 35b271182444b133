"""Stalls, deaths and wrong numbers on a page, each with its evidence."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from ddptop.analysis.report.findings import HEALTH, ending
from ddptop.analysis.report.words import amount, and_more, by_kind
from ddptop.tui.paint.numbers import clock
from ddptop.tui.paint.text import clean, wrap

if TYPE_CHECKING:
    from ddptop.analysis.report.content import Report, Standstill
    from ddptop.analysis.stall_frames import Call, Death, Testimony

MOST = 4
"""Of a kind; the rest is counted. A page is read in a minute."""

CALLS = 3
"""Innermost calls of a stack."""

DETAILS = 3
REASON_LINES = 2
"""Of an exception's message: torch's own go on for half a page."""

WITNESSES = 2
"""Ranks whose stacks are shown: the one to blame, and one that waits."""

SHOWN_ELSEWHERE = frozenset({"lost_rank", "failed_rank"})
"""Alerts that a death tells better."""


def incidents(report: Report, width: int) -> list[str]:
    """All of it, in order of time within each kind; nothing where nothing happened."""
    lines: list[str] = []
    for stall in report.stalls[:MOST]:
        lines += _stall(stall, width)
    lines += _more(len(report.stalls), "stalls")
    for death in report.deaths[:MOST]:
        lines += _death(death, width)
    lines += _more(len(report.deaths), "deaths")
    for alert, count in by_kind(report.troubles):
        if not (report.deaths and alert.kind in SHOWN_ELSEWHERE):
            sign = "■" if alert.kind in (*HEALTH, *SHOWN_ELSEWHERE) else "▲"
            lines += _wrapped(f"{sign} {clock(alert.since_s)} {alert.message}{and_more(count)}", width, 2)
    return lines


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - MOST:,} more {what} (--json has all)"] if count > MOST else []


def _stall(stall: Standstill, width: int) -> list[str]:
    lasted = f"stalled for {amount(stall.lasted_s)}"
    if stall.until_s is None:
        lasted += ", to the end"
    lines = _wrapped(f"■ {clock(stall.since_s)} {lasted}: {stall.sentence}", width, 2)
    for detail in stall.detail[:DETAILS]:
        lines += _wrapped(f"  {detail}", width, 4)
    for witness in stall.testimonies[:WITNESSES]:
        lines += _testimony(witness, width)
    return lines


def _death(death: Death, width: int) -> list[str]:
    at = "" if death.step is None else f" in step {death.step:,}"
    lines = _wrapped(f"✖ {clock(death.since_s)} rank {death.rank} {ending(death)}{at}", width, 2)
    if death.signal and death.reason:
        lines += _wrapped(f"  {death.reason}", width, 4)[:REASON_LINES]
    return [*lines, *_testimony(death.testimony, width)]


def _testimony(said: Testimony, width: int) -> list[str]:
    """`rank 1, node0, pid 4312, alive`, what it waits in, and its innermost calls from the user's code on."""
    calls = _calls(said)
    if not calls and not said.operation:
        return []
    facts = [f"rank {said.rank}", said.host, "" if said.pid is None else f"pid {said.pid}", said.process]
    text = "  " + ", ".join(fact for fact in facts if fact)
    if said.operation:
        text += f", in {said.operation}"
    lines = _wrapped(text, width, 4)
    for call in calls:
        place = f"{PurePath(call.file).name}:{call.line}" if call.line else PurePath(call.file).name
        lines.append(clean(f"    {place:<20} {call.function:<16} {call.code}").rstrip()[:width])
    return lines


def _calls(said: Testimony) -> tuple[Call, ...]:
    """The user's own call and those that led to it; else the innermost ones."""
    if not said.traces:
        return (said.user_call,) if said.user_call is not None else ()
    calls = said.traces[0].calls
    first = calls.index(said.user_call) if said.user_call in calls else 0
    return calls[first : first + CALLS]


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width`; the first keeps its own indent, the others have `indent`."""
    own = len(text) - len(text.lstrip())
    lines = wrap(clean(text), width - indent)
    return [" " * (own if i == 0 else indent) + line for i, line in enumerate(lines)]
