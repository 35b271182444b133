"""The report as a page of text: verdict, strips, tables, stalls and deaths, and advice."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING

from ddptop.frames.phrases import death_phrase, step_phrase, what_if_phrase
from ddptop.frames.verdict import SIGNS
from ddptop.render.line import of_state, paint
from ddptop.render.numbers import UNKNOWN, clock, count, counted, duration, fixed
from ddptop.render.text import clean, to_ascii, wrap
from ddptop.report.findings import HEALTH, alert_phrase, amount, and_more, by_kind
from ddptop.report.tables import bucket_table, host_table, part_shares, rank_table, strips

if TYPE_CHECKING:
    from ddptop.frames.stall import Call, Death, RankPosition
    from ddptop.report.content import Finding, Report, StallPeriod, Suggestion

MAX_INCIDENTS = 4
"""Most stalls and deaths that are shown; the others are counted."""

MAX_CALLS = 3
"""Most calls of a stack, the innermost ones."""

MAX_DETAILS = 3

MAX_POSITIONS = 2
"""Ranks of a stall whose stacks are shown: a missing one, and one that waits."""

OF_DEATHS = frozenset({"lost_rank", "failed_rank"})
"""Kinds of alerts that are left out where the deaths themselves are shown."""


def incidents(report: Report, width: int) -> list[str]:
    """Stalls, deaths and alerts, each in order of time; empty where there were none."""
    lines: list[str] = []
    for stall in report.stalls[:MAX_INCIDENTS]:
        lines += _stall(stall, width)
    lines += _more(len(report.stalls), "stalls")
    for death in report.deaths[:MAX_INCIDENTS]:
        lines += _death(death, width)
    lines += _more(len(report.deaths), "deaths")
    for alert, number in by_kind(report.troubles):
        if not (report.deaths and alert.kind in OF_DEATHS):
            sign = "■" if alert.kind in (*HEALTH, *OF_DEATHS) else "▲"
            lines += _wrapped_below_indent(
                f"{sign} {clock(alert.since_s)} {alert_phrase(alert)}{and_more(number)}", width, 2
            )
    return lines


def _more(count: int, what: str) -> list[str]:
    return [f"  and {count - MAX_INCIDENTS:,} more {what} (--json has all)"] if count > MAX_INCIDENTS else []


def _stall(stall: StallPeriod, width: int) -> list[str]:
    lasted = f"stalled for {amount(stall.lasted_s)}"
    if stall.until_s is None:
        lasted += ", to the end"
    lines = _wrapped_below_indent(f"■ {clock(stall.since_s)} {lasted}: {stall.sentence}", width, 2)
    for detail in stall.detail[:MAX_DETAILS]:
        lines += _wrapped_below_indent(f"  {detail}", width, 4)
    for position in stall.positions[:MAX_POSITIONS]:
        lines += _position(position, width)
    return lines


def _death(death: Death, width: int) -> list[str]:
    at = "" if death.step is None else f", in step {death.step:,}"
    lines = _wrapped_below_indent(f"✖ {clock(death.since_s)} {death_phrase(death)}{at}", width, 2)
    return [*lines, *_position(death.position, width)]


def _position(position: RankPosition, width: int) -> list[str]:
    """`rank 1, node0, pid 4312, alive`, what it waits in, and its innermost calls from the user's code on."""
    calls = _calls(position)
    if not calls and not position.operation:
        return []
    pid = "" if position.pid is None else f"pid {position.pid}"
    facts = [f"rank {position.rank}", position.host, pid, position.process]
    text = "  " + ", ".join(fact for fact in facts if fact)
    if position.operation:
        text += f", in {position.operation}"
    lines = _wrapped_below_indent(text, width, 4)
    for call in calls:
        place = f"{PurePath(call.file).name}:{call.line}" if call.line else PurePath(call.file).name
        lines.append(clean(f"    {place:<20} {call.function:<16} {call.code}").rstrip()[:width])
    return lines


def _calls(position: RankPosition) -> tuple[Call, ...]:
    """The user's own call and those that led to it; else the innermost ones."""
    if not position.traces:
        return (position.user_call,) if position.user_call is not None else ()
    calls = position.traces[0].calls
    first = calls.index(position.user_call) if position.user_call in calls else 0
    return calls[first : first + MAX_CALLS]


def _wrapped_below_indent(text: str, width: int, indent: int) -> list[str]:
    """Lines of at most `width`; the first keeps its own indent, the others have `indent`."""
    own = len(text) - len(text.lstrip())
    lines = wrap(clean(text), width - indent)
    return [" " * (own if i == 0 else indent) + line for i, line in enumerate(lines)]


_BAD = frozenset({"failed", "lost", "stall"})

MAX_ADVICE = 5
"""Most suggestions on the page; `--json` has all."""

MIN_WIDTH = 40


def page(report: Report, width: int, ascii_only: bool = False, color: bool = False) -> str:
    """The whole page without a final newline. `color` adds ANSI colours; `ascii_only` leaves ASCII only."""
    width = max(MIN_WIDTH, width)
    blocks = [
        _head(report, width, color),
        _verdict(report, width, color),
        strips(report, width, ascii_only),
        _titled("Ranks, worst first", _ranks(report, width), color),
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
    for finding in report.verdict:
        first, *rest = _wrapped(f"{SIGNS[finding.sign]} {finding.sentence}", width, 2)
        role = _role(finding)
        lines += [paint(first, role, color), *(paint(line, role, color) for line in rest)]
        for detail in finding.detail:
            lines += ["  " + line for line in wrap(clean(detail), width - 2)]
    return lines


def _role(finding: Finding) -> str:
    if finding.kind in _BAD:
        return "bad"
    if finding.kind == "uneven":  # a figure, nothing to act on
        return ""
    return {"good": "good", "warning": "warn", "doubt": "warn", "critical": "warn"}.get(finding.sign, "")


def _ranks(report: Report, width: int) -> list[str]:
    if not report.ranks or report.communication.step_ms is None:
        return []
    lines = rank_table(report, width)
    shares = [f"{part} {pct:.0f}%" for part, pct in part_shares(report)]
    if shares:
        lines += _wrapped("means over the run, ms; where a step goes: " + " · ".join(shares), width)
    return lines


def _communication(report: Report, width: int) -> list[str]:
    comm = report.communication
    if comm.step_ms is None:
        return []
    longest = f", longest {fixed(comm.step_ms_max)} at "
    longest += UNKNOWN if comm.step_of_max is None else step_phrase(comm.step_of_max, comm.incarnation_of_max)
    step = f"step {fixed(comm.step_ms_p50)} ms (p95 {fixed(comm.step_ms_p95)}{longest})"
    if comm.no_straggler_ms is not None and report.run.world_size > 1:
        even = what_if_phrase(comm.no_straggler_ms, comm.no_straggler_low_ms, comm.no_straggler_high_ms)
        step += (
            f" · mean {fixed(comm.step_ms)}, {even} without skew, "
            f"{fixed(comm.both_ms)} with communication fully overlapped as well"
        )
    lines = _wrapped(step, width)
    if comm.exposed_comm_ms is not None:
        parts = f"wait {fixed(comm.exposed_wait_ms)}, transfer {fixed(comm.exposed_transfer_ms)}"
        lines += _wrapped(
            f"exposed {fixed(comm.exposed_comm_ms)} ms, {fixed(comm.exposed_pct, 0)}% of the step "
            f"({parts}) · overlap {fixed(comm.overlap_pct, 0)}% · busbw {fixed(comm.busbw_gbps, 2)} GB/s",
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
    for number, suggestion in enumerate(report.advice[:MAX_ADVICE], start=1):
        lines += _wrapped(f"{number} {suggestion.action}", width, 2)
        lines += [
            "  " + line for line in wrap(clean(f"because {suggestion.because}{_gain(suggestion)}"), width - 2)
        ]
    rest = len(report.advice) - MAX_ADVICE
    return [*lines, f"and {rest} more (--json has all)"] if rest > 0 else lines


def _gain(suggestion: Suggestion) -> str:
    return "" if suggestion.gain_pct is None else f" · gains at most {suggestion.gain_pct:.0f}%"


def _nothing_to_try(report: Report) -> str:
    """Why there is no suggestion."""
    cost, comm = report.cost, report.communication
    if report.stalls or report.deaths or report.run.state in ("failed", "lost"):
        return "Fix what stopped the run (above); no figure gives reason for anything else."
    if comm.step_ms is None:
        return "No suggestion before the first step is finished."
    if cost.uneven_pct is None or comm.exposed_transfer_pct is None:
        return f"No figure gives reason for a suggestion: a step takes {fixed(comm.step_ms_p50)} ms."
    return (
        f"No suggestion: {cost.uneven_pct:.1f}% of step time is lost to skew, and exposed transfer adds "
        f"{comm.exposed_transfer_pct:.1f}% to each step."
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
