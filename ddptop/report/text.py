"""A report as a page of text that a tired person reads in a minute.

Stalls, deaths and wrong numbers on a page, each with its evidence.
"""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING

from ddptop.frames.verdict import SIGNS
from ddptop.render.line import of_state
from ddptop.render.numbers import UNKNOWN, clock, count, counted, duration, fixed
from ddptop.render.text import clean, to_ascii, wrap
from ddptop.report.findings import HEALTH, ending
from ddptop.report.tables import bucket_table, part_shares, rank_table, strips
from ddptop.report.words import amount, and_more, by_kind

if TYPE_CHECKING:
    from ddptop.frames.stall import Call, Death, RankPosition
    from ddptop.report.content import Finding, Report, Standstill, Suggestion

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
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in SHOWN_ELSEWHERE):
            sign = "■" if alert.kind in (*HEALTH, *SHOWN_ELSEWHERE) else "▲"
            lines += _wrapped_below_indent(
                f"{sign} {clock(alert.since_s)} {alert.message}{and_more(number)}", width, 2
            )
    return lines


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - MOST:,} more {what} (--json has all)"] if count > MOST else []


def _stall(stall: Standstill, width: int) -> list[str]:
    lasted = f"stalled for {amount(stall.lasted_s)}"
    if stall.until_s is None:
        lasted += ", to the end"
    lines = _wrapped_below_indent(f"■ {clock(stall.since_s)} {lasted}: {stall.sentence}", width, 2)
    for detail in stall.detail[:DETAILS]:
        lines += _wrapped_below_indent(f"  {detail}", width, 4)
    for witness in stall.positions[:WITNESSES]:
        lines += _position(witness, width)
    return lines


def _death(death: Death, width: int) -> list[str]:
    at = "" if death.step is None else f" in step {death.step:,}"
    lines = _wrapped_below_indent(f"✖ {clock(death.since_s)} rank {death.rank} {ending(death)}{at}", width, 2)
    if death.signal and death.reason:
        lines += _wrapped_below_indent(f"  {death.reason}", width, 4)[:REASON_LINES]
    return [*lines, *_position(death.position, width)]


def _position(said: RankPosition, width: int) -> list[str]:
    """`rank 1, node0, pid 4312, alive`, what it waits in, and its innermost calls from the user's code on."""
    calls = _calls(said)
    if not calls and not said.operation:
        return []
    facts = [f"rank {said.rank}", said.host, "" if said.pid is None else f"pid {said.pid}", said.process]
    text = "  " + ", ".join(fact for fact in facts if fact)
    if said.operation:
        text += f", in {said.operation}"
    lines = _wrapped_below_indent(text, width, 4)
    for call in calls:
        place = f"{PurePath(call.file).name}:{call.line}" if call.line else PurePath(call.file).name
        lines.append(clean(f"    {place:<20} {call.function:<16} {call.code}").rstrip()[:width])
    return lines


def _calls(said: RankPosition) -> tuple[Call, ...]:
    """The user's own call and those that led to it; else the innermost ones."""
    if not said.traces:
        return (said.user_call,) if said.user_call is not None else ()
    calls = said.traces[0].calls
    first = calls.index(said.user_call) if said.user_call in calls else 0
    return calls[first : first + CALLS]


def _wrapped_below_indent(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width`; the first keeps its own indent, the others have `indent`."""
    own = len(text) - len(text.lstrip())
    lines = wrap(clean(text), width - indent)
    return [" " * (own if i == 0 else indent) + line for i, line in enumerate(lines)]


_ANSI = {"good": "32", "warn": "33", "bad": "1;31", "head": "1"}
"""As in the plain picture; red for stalled, lost and failed alone."""

_BAD = frozenset({"failed", "lost", "stall"})

MOST_ADVICE = 5
"""More than a person tries; `--json` has all."""

LEAST_WIDTH = 40


def page(report: Report, width: int, ascii_only: bool = False, color: bool = False) -> str:
    """The whole page. `color` adds ANSI colours, `ascii_only` leaves nothing else. Ends without a newline."""
    width = max(LEAST_WIDTH, width)
    blocks = [
        _head(report, width, color),
        _verdict(report, width, color),
        strips(report, width, ascii_only),
        _titled("Ranks, worst first", _ranks(report, width), color),
        _titled("Communication", _communication(report, width), color),
        _titled("Stalls, deaths, wrong numbers", incidents(report, width), color),
        _titled("What to try", _advice(report, width), color),
        _footing(report, width),
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return to_ascii(text) if ascii_only else text


def _titled(title: str, lines: list[str], color: bool) -> list[str]:
    return [_paint(title, "head", color), *lines] if lines else []


def _head(report: Report, width: int, color: bool) -> list[str]:
    run = report.run
    sign, role = of_state(run.state)
    state = _paint(f"{sign} {run.state.upper()}", role, color)
    simulated = "   SIMULATED" if report.source == "simulated" else ""
    command = run.argv if run.argv[:1] == (run.script,) else (run.script, *run.argv)
    hosts = sorted({rank.host for rank in report.ranks} - {""})
    where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts" if hosts else ""
    facts = [clean(" ".join(command)) or UNKNOWN, counted(run.world_size, "rank") + where]
    facts += [run.backend] if run.backend else []
    facts += [f"torch {run.torch}"] if run.torch else []
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    ran = "so far" if run.state not in ("finished", "failed", "lost") else "long"
    times = [began, f"{duration(run.elapsed_s)} {ran}", counted(report.reading.steps, "step")]
    times += [] if run.exit_code is None else [f"exit code {run.exit_code}"]
    return [
        f"ddptop report {clean(run.name)}   {state}{simulated}",
        *_wrapped(" · ".join(facts), width),
        *_wrapped(" · ".join(times), width),
    ]


def _verdict(report: Report, width: int, color: bool) -> list[str]:
    lines = []
    for one in report.verdict:
        first, *rest = _wrapped(f"{SIGNS[one.sign]} {one.sentence}", width, 2)
        role = _role(one)
        lines += [_paint(first, role, color), *(_paint(line, role, color) for line in rest)]
        for detail in one.detail:
            lines += ["  " + line for line in wrap(clean(detail), width - 2)]
    return lines


def _role(one: Finding) -> str:
    if one.kind in _BAD:
        return "bad"
    return {"good": "good", "warning": "warn", "doubt": "warn", "critical": "warn"}.get(one.sign, "")


def _ranks(report: Report, width: int) -> list[str]:
    if not report.ranks or report.communication.step_ms is None:
        return []
    lines = rank_table(report, width)
    shares = [f"{part} {pct:.0f}%" for part, pct in part_shares(report)]
    if shares:
        lines += _wrapped("means over the run, ms; where a step goes: " + " · ".join(shares), width)
    return lines


def _communication(report: Report, width: int) -> list[str]:
    found = report.communication
    if found.step_ms is None:
        return []
    longest = f", longest {fixed(found.step_ms_max)} at step {count(found.step_of_max)}"
    step = f"step {fixed(found.step_ms_p50)} ms (p95 {fixed(found.step_ms_p95)}{longest})"
    if found.no_straggler_ms is not None and report.run.world_size > 1:
        step += (
            f" · mean {fixed(found.step_ms)}, {fixed(found.no_straggler_ms)} without skew, "
            f"{fixed(found.both_ms)} with communication fully overlapped as well"
        )
    lines = _wrapped(step, width)
    if found.exposed_comm_ms is not None:
        parts = f"wait {fixed(found.exposed_wait_ms)}, transfer {fixed(found.exposed_transfer_ms)}"
        lines += _wrapped(
            f"exposed {fixed(found.exposed_comm_ms)} ms, {fixed(found.exposed_pct, 0)}% of the step "
            f"({parts}) · overlap {fixed(found.overlap_pct, 0)}% · busbw {fixed(found.busbw_gbps, 2)} GB/s",
            width,
        )
        lines += bucket_table(report.buckets, width)
    elif report.buckets:
        lines.append(f"{counted(len(report.buckets), 'bucket')}, none measured: no bucket detail")
    return lines


def _advice(report: Report, width: int) -> list[str]:
    if not report.advice:
        return _wrapped(_nothing_to_try(report), width)
    lines = []
    for number, one in enumerate(report.advice[:MOST_ADVICE], start=1):
        lines += _wrapped(f"{number} {one.action}", width, 2)
        lines += ["  " + line for line in wrap(clean(f"because {one.because}{_gain(one)}"), width - 2)]
    rest = len(report.advice) - MOST_ADVICE
    return [*lines, f"and {rest} more (--json has all)"] if rest > 0 else lines


def _gain(one: Suggestion) -> str:
    return "" if one.gain_pct is None else f" · gains at most {one.gain_pct:.0f}%"


def _nothing_to_try(report: Report) -> str:
    """Healthy, and by which figure; or that nothing can be told."""
    cost, found = report.cost, report.communication
    if report.stalls or report.deaths or report.run.state in ("failed", "lost"):
        return "See to what stopped it (above); no figure calls for anything else."
    if found.step_ms is None:
        return "Nothing can be said before a step is finished."
    if cost.uneven_pct is None or found.exposed_transfer_pct is None:
        return f"Nothing that a figure calls for: a step takes {fixed(found.step_ms_p50)} ms."
    return (
        f"Nothing: {cost.uneven_pct:.1f}% of step time is lost to skew, and exposed transfer adds "
        f"{found.exposed_transfer_pct:.1f}% to each step."
    )


def _footing(report: Report, width: int) -> list[str]:
    reading, own = report.reading, report.overhead
    lost = sum(rank.lost_records or 0 for rank in report.ranks)
    text = f"all {count(reading.steps)} steps read"
    if not reading.whole:
        share = 100 * reading.read_steps / max(1, reading.steps)
        text = (
            f"read {count(reading.read_steps)} of {count(reading.steps)} steps, {share:.1f}%, evenly spread"
        )
        text += "; all events"
    elif reading.read_steps < reading.steps:
        text = f"{count(reading.read_steps)} of {count(reading.steps)} steps are complete in the recording"
    text += f" · {counted(lost, 'record')} lost"
    if own.measured_pct is not None:
        text += f" · overhead {own.measured_pct:.1f}% (budget {fixed(own.budget_pct)}%)"
    lines = _wrapped(text, width)
    if reading.damage:
        lines += _wrapped(f"damage: {reading.damage}", width)
    for trouble in report.troubles:
        if trouble.kind == "refused_messages":
            lines += _wrapped(trouble.message, width)
    if reading.refused:
        lines.append(f"{counted(reading.refused, 'message')} could not be used")
    if report.run.recording:
        lines.append(
            f"{clean(report.run.recording)}, to {clock(report.run.started_at + report.run.elapsed_s)}"
        )
    return lines


def _wrapped(text: str, width: int, indent: int = 0) -> list[str]:
    lines = wrap(clean(text), width - indent)
    return [(" " * indent if i else "") + line for i, line in enumerate(lines)]


def _paint(text: str, role: str, color: bool) -> str:
    return f"\x1b[{_ANSI[role]}m{text}\x1b[0m" if color and role in _ANSI else text
