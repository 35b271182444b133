"""The report's sentences that the page of text and the HTML page share; the verdict's are in `findings`."""

from __future__ import annotations

import time
from pathlib import PurePath
from typing import TYPE_CHECKING

from ddptop.frames.buckets import a_step_phrase
from ddptop.frames.conditions import kinds_of, tone_of
from ddptop.frames.numbers import (
    LEAST_SHOWN_MS,
    RATIO,
    UNKNOWN,
    clock,
    count,
    counted,
    duration,
    fixed,
    percent,
)
from ddptop.frames.phrases import (
    IF_HIDDEN,
    buffers_phrase,
    death_phrase,
    missing_records_phrase,
    recording_stop,
    step_phrase,
    what_if_phrase,
)
from ddptop.frames.training_kind import limits_phrase
from ddptop.frames.verdict import SIGNS
from ddptop.protocol.vocabulary import FAILED_STATES, NOT_ENDED
from ddptop.render.text import clean_text
from ddptop.report.findings import alert_phrase, format_seconds

if TYPE_CHECKING:
    from ddptop.frames.frame import Alert
    from ddptop.frames.stall import Call, Death, RankPosition
    from ddptop.report.content import Finding, Report, StallPeriod, Suggestion

MAX_CALLS = 3
"""Most calls of a stack, the innermost ones."""


DEATHS = kinds_of("death")
"""Kinds of alerts that are left out where the deaths themselves are shown."""


def run_facts(report: Report) -> tuple[str, str]:
    """What ran where, and when, how long and how it ended."""
    run = report.run
    command = run.argv if run.argv[:1] == (run.script,) else (run.script, *run.argv)
    hosts = sorted({rank.host for rank in report.ranks} - {""})
    where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts" if hosts else ""
    what = [clean_text(" ".join(command)) or UNKNOWN, counted(run.world_size, "rank") + where]
    what += [run.backend] if run.backend else []
    what += [limits] if (limits := limits_phrase(run)) else []
    what += [f"torch {run.torch}"] if run.torch else []
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.started_at))
    ran = "so far" if run.state in NOT_ENDED else "long"
    recorded = " recorded" if recording_stop(report.troubles) else ""
    times = [began, f"{duration(run.elapsed_s)} {ran}", counted(report.reading.steps, "step") + recorded]
    times += [] if run.exit_code is None else [f"exit code {run.exit_code}"]
    return " · ".join(what), " · ".join(times)


def shares_phrase(pcts: list[tuple[str, float]]) -> str:
    """Where a usual step goes, in percent: the bill has the sums over all steps."""
    return "medians of usual steps, where they go: " + " · ".join(
        f"{part} {percent(pct)}" for part, pct in pcts
    )


def finding_colour(finding: Finding) -> str:
    """Its colour; empty: that of text."""
    # Uneven steps are a figure, nothing to act on.
    return "" if finding.kind == "uneven" else tone_of(finding.kind, finding.sign)


def communication_lines(report: Report) -> list[str]:
    """The step and its communication; empty where no step is known."""
    comm = report.communication
    if comm.step_ms is None:
        return []
    longest = f", longest {fixed(comm.step_ms_max)} at "
    longest += UNKNOWN if comm.step_of_max is None else step_phrase(comm.step_of_max, comm.incarnation_of_max)
    step = f"step {fixed(comm.step_ms_p50)} ms (p95 {fixed(comm.step_ms_p95)}{longest})"
    if comm.no_straggler_ms is not None and report.run.world_size > 1:
        even = what_if_phrase(comm.no_straggler_ms, comm.no_straggler_low_ms, comm.no_straggler_high_ms)
        step += f" · mean {fixed(comm.step_ms)}, {even} without waiting, {fixed(comm.both_ms)} {IF_HIDDEN}"
    if comm.exposed_comm_ms is not None:
        parts = f"wait {fixed(comm.exposed_wait_ms)}, transfer {fixed(comm.exposed_transfer_ms)}"
        if (comm.buffers_ms or 0.0) >= LEAST_SHOWN_MS:
            parts += f", {fixed(comm.buffers_ms)} of it broadcasts of {buffers_phrase(report.run)}"
        exposed = (
            f"exposed {fixed(comm.exposed_comm_ms)} ms, {percent(comm.exposed_pct)} of the step ({parts})"
        )
        if (comm.sync_ms or 0.0) >= LEAST_SHOWN_MS:
            exposed += f" · in the script's own collectives {fixed(comm.sync_ms)} ms"
        busbw = f"busbw {fixed(comm.busbw_gbps, RATIO)} GB/s"
        busbw += a_step_phrase(comm.all_reduces, comm.wire_bytes)
        return [step, f"{exposed} · overlap {percent(comm.overlap_pct)} · {busbw}"]
    return [step, f"{counted(len(report.buckets), 'bucket')}, none measured: no bucket detail"][
        : 2 if report.buckets else 1
    ]


def stall_line(period: StallPeriod) -> str:
    """When it began, how long it lasted, and its diagnosis."""
    lasted = f"stalled for {format_seconds(period.lasted_s)}"
    if period.until_s is None:
        lasted += ", to the end"
    return f"■ {clock(period.since_s)} {lasted}: {period.sentence}"


def death_line(death: Death) -> str:
    """When a rank died, and how."""
    step = "" if death.step is None else f", in {step_phrase(death.step, death.incarnation)}"
    return f"✖ {clock(death.since_s)} {death_phrase(death)}{step}"


def new_message(death: Death, report: Report) -> tuple[str, ...]:
    """The complete message of its exception; empty where an earlier death has the same reason."""
    first = next((other for other in report.deaths if other.reason == death.reason), death)
    return death.message if first is death else ()


def alert_line(alert: Alert) -> str:
    """When something became wrong, and what."""
    sign = SIGNS["critical" if alert.severity == "critical" else "warning"]
    return f"{sign} {clock(alert.since_s)} {alert_phrase(alert)}"


def position_phrase(position: RankPosition) -> str:
    """`rank 1, node0, pid 4312, alive, in all-reduce`."""
    pid = "" if position.pid is None else f"pid {position.pid}"
    parts = [f"rank {position.rank}", position.host, pid, position.process]
    text = ", ".join(part for part in parts if part)
    return f"{text}, in {position.operation}" if position.operation else text


def stack_lines(position: RankPosition) -> list[str]:
    """The user's own call and those that led to it, else the innermost ones: file, line, function, code."""
    lines = []
    for call in _shown_calls(position):
        place = f"{PurePath(call.file).name}:{call.line}" if call.line else PurePath(call.file).name
        lines.append(clean_text(f"{place:<20} {call.function:<16} {call.code}").rstrip())
    return lines


def _shown_calls(position: RankPosition) -> tuple[Call, ...]:
    """The user's own call and those that led to it; else the innermost ones."""
    if not position.traces:
        return (position.user_call,) if position.user_call is not None else ()
    calls = position.traces[0].calls
    first = calls.index(position.user_call) if position.user_call in calls else 0
    return calls[first : first + MAX_CALLS]


def gain_phrase(suggestion: Suggestion, report: Report) -> str:
    """How much a suggestion gives back at most; empty where that is not known."""
    if suggestion.gain_pct is None:
        return ""
    rank_seconds = suggestion.gain_pct / 100 * report.cost.step_s * report.run.world_size
    in_all = f", {format_seconds(rank_seconds)} of all ranks" if rank_seconds >= LEAST_NAMED_S else ""
    if suggestion.gain_pct > 100:  # a long start: its seconds say more than a share of the steps
        return f" · saves at most {format_seconds(rank_seconds)} of all ranks"
    return f" · saves at most {percent(suggestion.gain_pct)} of the time in steps{in_all}"


LEAST_NAMED_S = 1.0
"""Rank-seconds that are named beside a share."""


def nothing_to_try(report: Report) -> str:
    """Why there is no suggestion."""
    cost, comm = report.cost, report.communication
    if report.stalls or report.deaths or report.run.state in FAILED_STATES:
        return "Fix what stopped the run (above). No figure suggests anything else."
    if comm.step_ms is None:
        return "There is no suggestion before the first step is finished."
    if cost.uneven_pct is None or comm.exposed_transfer_pct is None:
        return f"No figure suggests a change: a step takes {fixed(comm.step_ms_p50)} ms."
    return (
        f"No suggestion: waiting costs {percent(cost.uneven_pct)} of each step, and exposed transfer adds "
        f"{percent(comm.exposed_transfer_pct)} to each step."
    )


def footing_lines(report: Report) -> list[str]:
    """How much was read, and what was lost or damaged."""
    reading, overhead = report.reading, report.overhead
    lost = sum(rank.lost_records or 0 for rank in report.ranks)
    text = f"all {count(reading.steps)} steps read"
    if not reading.whole:
        share = 100 * reading.read_steps / max(1, reading.steps)
        text = f"read {count(reading.read_steps)} of {count(reading.steps)} steps, {percent(share)}"
        text += ", evenly spread; all events"
    elif reading.read_steps < reading.steps:
        text = f"{count(reading.read_steps)} of {count(reading.steps)} steps are complete in the recording"
    text += f" · {missing_records_phrase(lost)}"
    budget = f"budget {percent(overhead.budget_pct)}"
    if overhead.measured_pct is not None and not overhead.is_measured:
        text += f" · ddptop took {percent(overhead.measured_pct)} of the step ({budget})"
    lines = [text]
    if overhead.measured is not None:
        lines.append(overhead.measured.sentence + (f"; {budget}" if overhead.is_measured else ""))
    if reading.damage:
        lines.append(f"damage: {reading.damage}")
    for trouble in report.troubles:
        if trouble.kind == "refused_messages":
            lines.append(trouble.message)
    if reading.refused:
        lines.append(f"{counted(reading.refused, 'message')} could not be used")
    return lines


def recording_phrase(report: Report) -> str:
    """The recording, and until when it goes; empty where there is none."""
    if not report.run.recording:
        return ""
    return f"{clean_text(report.run.recording)}, to {clock(report.run.started_at + report.run.elapsed_s)}"


def has_gpus(report: Report) -> bool:
    """Whether the ranks had a GPU each."""
    return any(rank.device.startswith("cuda") for rank in report.ranks)
