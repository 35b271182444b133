"""The group in plain text: a picture for `--once` and for a mail, a line a second for `--watch`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.activity_words import epoch_phrase, state_word
from ddptop.frames.buckets import a_step_phrase
from ddptop.frames.conditions import (
    RED_STATES,
    SILENT_STATES,
    condition_of,
    tone_of,
    word_of_state,
)
from ddptop.frames.numbers import (
    LEAST_SHOWN_MS,
    RATIO,
    UNKNOWN,
    age,
    clock,
    count,
    counted,
    duration,
    fixed,
    known,
    percent,
)
from ddptop.frames.phrases import buffers_phrase, loss_note, mean_loss_phrase, several_hosts
from ddptop.frames.remedies import next_action
from ddptop.frames.training_kind import limits_phrase
from ddptop.render.bucket_table import bucket_columns
from ddptop.render.context import RenderContext
from ddptop.render.evidence import draw_brief
from ddptop.render.host_table import plain_host_table
from ddptop.render.hosts import by_host, worst_first
from ddptop.render.line import of_activities, of_severity, of_state, paint_text
from ddptop.render.phases import draw_legend
from ddptop.render.process_group_table import ON_HOST, process_group_columns
from ddptop.render.rank_table import plain_rank_columns
from ddptop.render.table import text_lines
from ddptop.render.text import clean_text, to_ascii
from ddptop.render.trouble import as_of, step_now

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame
    from ddptop.render.phases import Breakdown
    from ddptop.render.table import TableColumn

LAST_EVENTS = 6
"""Newest events that are shown; the recording has the rest."""

MAX_CALLS = 12
"""Calls of a stack, innermost first."""

MIN_WIDTH = 60
"""Stacks in fewer columns than this are useless."""

MAX_RANK_ROWS = 64
"""Ranks beyond which healthy ones are only counted."""

MAX_RANKS_OF_HOSTS = 16
"""Hosts whose worst rank has a row, in a run over several hosts with more ranks."""

MAX_BUCKET_ROWS = 32

MAX_BARS = 16
"""Ranks beyond which there is only the table."""

MIN_BAR = 10
MIN_LEGEND = 60
"""A legend that leaves out signs explains nothing."""

_STEPS = "last 100 complete steps"
_LATE = "ms, medians over the last 100 complete steps; late: behind the other ranks;"
_BY_STEPS = "ms, medians over the last 100 complete steps; excess: by how much its own time is longer;"
_PARTS = "data + fwd + bwd + lost + transfer + opt + other = ms/step; lost: waiting for others, not hidden"

_CLOCK_FREE = (
    "ms, medians over the last 100 complete steps; clocks too inexact to say which rank is late, so",
    "~ the shortest collective of all ranks is taken as the transfer, the rest as the wait",
)

NOTHING_RECORDED = ("recording stopped", "not recorded", "nothing is recorded", "nothing more is recorded")
"""Words of an alert about the recording that still applies."""

RANK_KINDS = frozenset(
    ("straggler", "suspect", "recovered", "uneven", "even", "alone", "little_detail", "clocks", "finished")
)
"""Kinds of verdicts beside which a line a second says which rank is slowest; it has all others themselves."""

REPEATED_FOR_S = 60.0
"""Seconds for which a line a second repeats what has passed."""


def draw_frame(frame: Frame, width: int, ascii: bool = False, color: bool = False) -> str:
    """All of the group at the frame's moment: verdict, a row per rank, buckets, alerts, what ddptop costs.

    Tables leave out columns to fit `width`; sentences are never cut. `color` adds ANSI colours, `ascii`
    leaves nothing else than ASCII. Ends without a newline.
    """
    blocks = [
        [*_write_head(frame, color), *_write_verdict(frame, ascii, color)],
        _write_evidence(frame, width, color),
        _write_run(frame),
        plain_host_table(RenderContext(frame), width),
        rank_table(frame, width),
        rank_bars(frame, width, ascii),
        bucket_table(frame, width),
        process_group_table(frame, width),
        [*_write_alerts(frame, color), *_write_events(frame, color)],
        _write_footing(frame),
    ]
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return to_ascii(text) if ascii else text


def watch_line(frame: Frame) -> str:
    """The group at the frame's moment on one line, its columns in the same place from line to line."""
    from ddptop.frames.verdict import restart_phrase, run_state, slowest

    group, grave, state = frame.group, _describe_gravest(frame), run_state(frame)
    refused = [clean_text(alert.message) for alert in frame.alerts if alert.kind == "refused_messages"]
    return "  ".join(
        [
            clock(frame.unix_s),
            f"{word_of_state(state, frame.source):<8}",
            f"step {count(step_now(frame)):>9}{restart_phrase(group.incarnation)}",
            f"{UNKNOWN if state in RED_STATES or frame.activities else fixed(group.steps_per_s):>6}/s",
            f"loss {mean_loss_phrase(frame):>9}",
            f"{fixed(group.step_ms_p50):>7} ms",
            f"wait {fixed(RenderContext(frame).breakdown.mean('wait')):>6} ms",
            f"records missing {count(frame.lost_records)}",
            f"cost {frame.overhead.phrase:>5}",
            grave or f"slowest {slowest(frame) or UNKNOWN}",
            *_silence_lines(frame),
            *refused,
        ]
    )


def _silence_lines(frame: Frame) -> list[str]:
    """`1 of 64 hosts lost (gpu-063)`, while some are silent; and how many record by themselves."""
    texts = []
    for state in SILENT_STATES:
        names = [clean_text(host.name) for host in frame.hosts if host.state == state]
        ellipsis = ", ..." if len(names) > 1 else ""
        texts += [f"{len(names)} of {len(frame.hosts)} hosts {state} ({names[0]}{ellipsis})"] if names else []
    local = sum(host.local_recording is not None for host in frame.hosts)
    return [*texts, f"{counted(local, 'host')} recording locally"] if local else texts


def _recording_trouble(frame: Frame) -> str:
    """An error of the recording within the last minute, and for as long as nothing is recorded."""
    alert = next((alert for alert in frame.alerts if alert.kind == "recording"), None)
    if alert is None:
        return ""
    lasts = any(words in alert.message for words in NOTHING_RECORDED)
    return clean_text(alert.message) if lasts or frame.unix_s - alert.since_s < REPEATED_FOR_S else ""


def _write_head(frame: Frame, color: bool) -> list[str]:
    from ddptop.frames.verdict import restart_phrase, run_state

    group, state = frame.group, run_state(frame)
    sign, role = of_state(state)
    word = word_of_state(state, frame.source).upper()
    goes_on = state not in RED_STATES
    if state == "live" and frame.activities:
        (sign, role), goes_on = of_activities(frame.activities), False
        word = f"{clean_text(state_word(frame.activities))} {age(frame.unix_s - frame.activities[0].since_s)}"
    parts = [f"ddptop {clean_text(frame.run.name)}", paint_text(f"{sign} {word}", role, color)]
    if frame.source != "live":
        parts.append(frame.source.upper())
    parts += [
        f"step {count(step_now(frame))}{restart_phrase(group.incarnation)}",
        *([f"{fixed(group.steps_per_s)}/s"] if goes_on else []),
        f"loss {mean_loss_phrase(frame)}",
        f"overhead {frame.overhead.phrase}",
    ]
    return ["   ".join(parts)]


def _write_verdict(frame: Frame, ascii_only: bool, color: bool) -> list[str]:
    from ddptop.frames.verdict import verdict

    shown = verdict(frame)
    role = "" if shown.kind == "uneven" else tone_of(shown.kind, shown.sign)
    lines = [paint_text(shown.line(ascii_only=ascii_only), role, color)]
    lines += [f"  {shown.second(ascii_only=ascii_only)}"] if shown.detail else []
    action = next_action(frame)
    return [*lines, f"  try: {clean_text(action)}"] if action else lines


def _write_evidence(frame: Frame, width: int, color: bool) -> list[str]:
    """The ranks a stall is due to, the stacks of their main threads, and how ranks exited."""
    context = RenderContext(frame)
    lines = draw_brief(context, max(MIN_WIDTH, width), MAX_CALLS)
    return ["".join(paint_text(text, role, color) for text, role in line.pieces).rstrip() for line in lines]


def _describe_gravest(frame: Frame) -> str:
    """The verdict, where it is not about which rank is slow, and an error of the recording; or empty."""
    from ddptop.frames.verdict import verdict

    shown = verdict(frame)
    sentence = "" if shown.kind in RANK_KINDS else clean_text(shown.sentence)
    return "  ".join(filter(None, (sentence, _recording_trouble(frame))))


def _write_run(frame: Frame) -> list[str]:
    run, group = frame.run, frame.group
    hosts = sorted(set(frame.ranks.host) - {""})
    where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
    ranks = counted(run.world_size, "rank") if run.world_size else f"{UNKNOWN} ranks"
    facts = [ranks + (f" on {clean_text(where)}" if hosts else "")]
    facts += [run.backend] if run.backend else []
    facts += [f"torch {run.torch}"] if run.torch else []
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frame.unix_s))
    facts.append(f"{moment}, {duration(run.elapsed_s)} in")
    command = run.argv if run.argv[:1] == (run.script,) else (run.script, *run.argv)
    lines = [clean_text(" ".join(command)) or UNKNOWN, " · ".join(facts)]
    lines += [limits] if (limits := limits_phrase(run)) else []
    if group.step_ms_p50 is not None:
        parts = RenderContext(frame).breakdown
        lines += [
            f"step {fixed(group.step_ms_p50)} ms (p95 {fixed(group.step_ms_p95)}) · "
            f"exposed, mean over ranks: wait {fixed(parts.mean('wait'))} · "
            f"transfer {fixed(parts.mean('transfer'))}" + _describe_besides(frame, parts),
            f"in all-reduces {fixed(group.collective_ms)} ms · overlap {percent(group.overlap_pct)} · "
            f"busbw {fixed(group.busbw_gbps, RATIO)} GB/s"
            f"{a_step_phrase(group.all_reduces, group.wire_bytes)}",
        ]
    if frame.progress is not None:
        lines.append(epoch_phrase(frame.progress))
    if note := loss_note(group):
        lines.append(f"loss {note}")
    return lines


def _describe_besides(frame: Frame, parts: Breakdown) -> str:
    """Write what transfer contains of buffer broadcasts, and the waits in the script's own collectives."""
    moved = frame.ranks.buffers_ms - frame.ranks.buffers_wait_ms
    moved = moved[np.isfinite(moved)]
    buffers_ms = float(moved.mean()) if len(moved) else 0.0
    is_shown, what = buffers_ms >= LEAST_SHOWN_MS, buffers_phrase(frame.run)
    text = f" ({fixed(buffers_ms)} of it broadcasts of {what})" if is_shown else ""
    script_waits = f" · in the script's own collectives {fixed(parts.mean('sync'))}" if parts.has_sync else ""
    return text + script_waits


def _write_alerts(frame: Frame, color: bool) -> list[str]:
    lines = []
    for alert in frame.alerts:
        if frame.stall is not None and condition_of(alert.kind).said_by_stall:
            continue  # the verdict has it
        sign, role = of_severity(alert.severity, alert.kind)
        when = f"since {clock(alert.since_s)}, {age(frame.unix_s - alert.since_s)}"
        lines.append(f"{paint_text(sign, role, color)} {when}: {clean_text(alert.message)}")
    return lines


def _write_events(frame: Frame, color: bool) -> list[str]:
    lines = []
    for event in frame.events[-LAST_EVENTS:]:
        sign, role = of_severity(event.severity, event.kind)
        condition, stall = condition_of(event.kind), frame.stall
        in_verdict = stall is not None and condition.said_by_stall and event.unix_s >= stall.since_s
        what = condition.title if in_verdict else clean_text(event.message)
        lines.append(f"{paint_text(sign, role, color)} {clock(event.unix_s)} {what}")
    return lines


def _write_footing(frame: Frame) -> list[str]:
    cost, played = frame.overhead, frame.playback
    every = "every step" if cost.detail_distance == 1 else f"every {count(cost.detail_distance)} steps"
    detail = cost.detail_sentence or f"bucket detail {every}"
    if frame.run.training not in (None, "ddp"):
        detail = "no buckets: DDP alone has them"
    lines = [
        f"ddptop's overhead: {percent(cost.measured_pct)} of the step, {count(cost.us_per_step)} us, "
        f"counted on the worst rank (budget {percent(cost.budget_pct)})",
        "; ".join(part for part in (cost.sampling_sentence, detail) if part) + "; "
        f"{count(frame.records)} records, {count(frame.lost_records)} missing"
        + (f", {cost.failures} failures of ddptop's own" if cost.failures else ""),
    ]
    if cost.measured is not None:
        lines.insert(1, cost.measured.sentence)
    if frame.run.recording:
        lines.append(f"recording {clean_text(frame.run.recording)}")
    if played is not None:
        lines.append(
            f"at {duration(played.position_s)} of {duration(played.duration_s)}, "
            f"steps {count(played.first_step)} to {count(played.last_step)}"
        )
        lines += [f"damage: {clean_text(played.damage)}"] if played.damage else []
    return lines


def rank_table(frame: Frame, width: int) -> list[str]:
    """A line per rank, a legend, and how many ranks were left out."""
    ranks = frame.ranks
    total = len(ranks.host)
    if not total:
        return ["no rank has reported yet"]
    context = RenderContext(frame)
    shown = _worth_showing(context)
    lines = text_lines(plain_rank_columns(context, shown), len(shown), width)
    if len(shown) < total:
        hidden = set(range(total)) - set(shown)
        unwell = sum(ranks.state[rank] != "live" for rank in hidden)
        lines.append(f"and {len(hidden):,} more ranks, {unwell:,} of them not live (--json has all)")
    old = as_of(frame)
    sum_of_parts = _PARTS.replace("+ other", "+ other + sync") if context.breakdown.has_sync else _PARTS
    texts = _CLOCK_FREE if context.clock_free else (_BY_STEPS if context.by_steps else _LATE, sum_of_parts)
    return [*lines, *(text.replace(_STEPS, f"{_STEPS}, {old}") if old else text for text in texts)]


def rank_bars(frame: Frame, width: int, ascii_only: bool) -> list[str]:
    """A stacked bar of its step for each rank, on one scale; nothing while no step is known."""
    context = RenderContext(frame)
    breakdown = context.breakdown
    total = len(breakdown.known)
    if not breakdown.known.any() or total > MAX_BARS:
        return []
    room = max(MIN_BAR, width - len("rank "))
    return [
        f"breakdown of the step{f' {old}' if (old := as_of(frame)) else ''}, "
        f"{fixed(breakdown.full_ms)} ms from edge to edge",
        *(f"{rank:4} {breakdown.bar(rank, room, ascii_only)!s}" for rank in range(total)),
        str(draw_legend(ascii_only, context.stragglers, max(MIN_LEGEND, width), absent=context.absent_parts)),
    ]


def bucket_table(frame: Frame, width: int) -> list[str]:
    """A line per gradient bucket; nothing when none is known."""
    buckets = frame.buckets
    if not buckets:
        return []
    columns = bucket_columns(RenderContext(frame), plain=True, most=MAX_BUCKET_ROWS)
    lines = _first_rows(columns, len(buckets), "buckets", width)
    if frame.group.clock_free:
        why = frame.group.clock_reason or "the clocks are not compared yet"
        lines.append(f"~ without clocks, arrivals are not shown: {why}")
    return lines


def process_group_table(frame: Frame, width: int) -> list[str]:
    """A line per process group whose collectives no hook times; nothing when none is known."""
    groups = frame.process_groups
    if not groups:
        return []
    columns = process_group_columns(RenderContext(frame), plain=True, most=MAX_BUCKET_ROWS)
    lines = _first_rows(columns, len(groups), "process groups", width)
    return [*lines, *([ON_HOST] if any(group.on_host for group in groups) else [])]


def _first_rows(columns: list[TableColumn], n_rows: int, noun: str, width: int) -> list[str]:
    """The first rows of a table, and how many more there are."""
    lines = text_lines(columns, min(n_rows, MAX_BUCKET_ROWS), width)
    if n_rows > MAX_BUCKET_ROWS:
        lines.append(f"and {n_rows - MAX_BUCKET_ROWS:,} more {noun} (--json has them)")
    return lines


def _worth_showing(context: RenderContext) -> list[int]:
    """The ranks to show: all, or of very many those that are not live and the slowest ones."""
    ranks, late_ms = context.frame.ranks, context.frame.ranks.late_ms
    total = len(ranks.host)
    if total <= MAX_RANK_ROWS:
        return list(range(total))
    if several_hosts(context.frame):
        hosts = by_host(context.frame, worst_first(context, range(total)))
        leads = hosts.ranks[hosts.starts[:-1]][:MAX_RANKS_OF_HOSTS].tolist()
        return sorted({*leads, *context.stragglers, *context.responsible})

    def sort_key(rank: int) -> tuple[bool, float]:
        late = float(late_ms[rank])
        return ranks.state[rank] != "live", late if known(late) else float("-inf")

    return sorted(sorted(range(total), key=sort_key, reverse=True)[:MAX_RANK_ROWS])
