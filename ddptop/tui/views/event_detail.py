"""What is known of one alert or event, for the panel beside the list of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.conditions import condition_of
from ddptop.frames.frame import Alert
from ddptop.frames.numbers import age, count, counted, duration, known
from ddptop.frames.remedies import next_action, remedy_of_alert
from ddptop.render.evidence import draw_brief
from ddptop.render.hosts import figures_by_name
from ddptop.render.line import Line, join_parts
from ddptop.render.text import wrap_lines
from ddptop.render.trouble import in_trouble
from ddptop.tui.views.host_detail import draw_host
from ddptop.tui.views.rank_page import draw_facts, draw_samples
from ddptop.tui.views.rank_table import FEW_RANKS, draw_ranks_now
from ddptop.tui.views.why import (
    draw_action,
    draw_advice,
    draw_differences,
    draw_own_time,
    draw_reason,
    draw_waits,
)

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame, LoggedEvent
    from ddptop.tui.scene import Scene

MOST_CALLS = 8
"""Calls of a stack."""


def begin_of(chosen: Alert | LoggedEvent) -> float:
    """Unix seconds at which it began, or was logged."""
    return chosen.since_s if isinstance(chosen, Alert) else chosen.unix_s


def describe_subject(scene: Scene, chosen: Alert | LoggedEvent) -> str:
    """`rank 1 · node0 · cuda:1`, or its host; empty: it is about no one."""
    ranks, rank = scene.frame.ranks, chosen.rank
    if rank is None:
        return scene.clean(_host_of(chosen))
    there = (ranks.host[rank], ranks.device[rank]) if rank < len(ranks.host) else ()
    return " · ".join([f"rank {rank}", *(scene.clean(word) for word in there if word)])


def draw_event_detail(
    scene: Scene, chosen: Alert | LoggedEvent, width: int, height: int, *, is_cut: bool
) -> list[Line]:
    """An alert or event in full, in at most `height` lines: when, where, why, the line of code that takes the
    time, what to try. `is_cut`: the list has no room for the whole message."""
    frame, rank = scene.frame, _rank_of(scene.frame, chosen)
    present = _present_alert(frame, chosen)
    lines = _draw_moment(scene, chosen, width)
    says_it = present is not None and _is_shown(frame, present)  # the evidence of a death has the message
    is_slow = present is not None and rank is not None and rank in scene.stragglers and not says_it
    is_said_below = (says_it and frame.stall is None) or (is_slow and chosen is present)
    if is_cut and not is_said_below:
        lines += [Line(part, "strong") for part in wrap_lines(scene.clean(chosen.message), width)]
    lines.append(Line())
    if says_it:
        lines += draw_brief(scene, width, MOST_CALLS)
        action = draw_advice(scene.clean(next_action(frame)), width, indent=0)
    elif is_slow and rank is not None:
        lines += draw_reason(scene, rank, width)
        action, own_time = draw_action(scene, rank, width), draw_own_time(scene, rank, width, places=False)
        if len(lines) + len(own_time) + len(action) + 2 <= height:
            lines += [Line(), *own_time]
        room = height - len(lines) - len(action) - 2
        lines += [Line(), *draw_samples(scene, rank, width, min(MOST_CALLS, room))]
        lines += draw_differences(scene, rank, width)
    else:
        host = _host_of(chosen)
        if rank is not None:
            lines += [Line(f"rank {rank} now", "dim"), *draw_facts(scene, rank, width)]
        elif host in (figures := figures_by_name(frame)):
            lines += [Line(f"{scene.clean(host)} now", "dim"), *draw_host(scene, figures[host], None, width)]
        remedy = "" if present is None else remedy_of_alert(present)
        action = draw_advice(scene.clean(remedy), width, indent=0) if remedy else []
    waits = [] if rank is None else draw_waits(scene, [rank], width)
    lines += [Line(), *waits] if waits else []
    if not lines[-1].width and not action:  # nothing more is known of it
        tall = 2 if len(frame.ranks.state) <= FEW_RANKS else 1
        lines += draw_ranks_now(scene, width, height - len(lines), tall=tall)
    foot = [Line(), *action] if action else []
    return [*_cut_titles(lines, max(0, height - len(foot))), *foot][:height]


def _cut_titles(lines: list[Line], most: int) -> list[Line]:
    """At most so many lines; the titles of a table that has no room for a row are left out."""
    shown = lines[:most]
    if 1 < most < len(lines) and lines[most].width and not shown[-2].width:
        are_titles = all(role == "dim" for text, role in shown[-1].pieces if text.strip())
        return shown[:-2] if are_titles else shown
    return shown


def _rank_of(frame: Frame, chosen: Alert | LoggedEvent) -> int | None:
    """Its rank, if the run has it and it has reported."""
    rank = chosen.rank
    return (
        rank if rank is not None and rank < len(frame.ranks.state) and known(frame.ranks.pid[rank]) else None
    )


def _host_of(chosen: Alert | LoggedEvent) -> str:
    host = chosen.evidence.get("host") if isinstance(chosen, Alert) else chosen.host
    return str(host or "")


def _present_alert(frame: Frame, chosen: Alert | LoggedEvent) -> Alert | None:
    """The alert itself, or the one that began with the event and still holds."""
    if isinstance(chosen, Alert):
        return chosen
    alike = (alert for alert in frame.alerts if (alert.kind, alert.rank) == (chosen.kind, chosen.rank))
    return next((alert for alert in alike if chosen.unix_s >= alert.since_s), None)


def _is_shown(frame: Frame, present: Alert) -> bool:
    """Whether the stall or the deaths that it is about are in the frame."""
    return condition_of(present.kind).page == "stall" and in_trouble(frame)


def _draw_moment(scene: Scene, chosen: Alert | LoggedEvent, width: int) -> list[Line]:
    """How long ago, how long after the start, in which step, and when it was over."""
    frame, begin_s = scene.frame, begin_of(chosen)
    started = begin_s - frame.run.started_at
    parts = [
        Line() if isinstance(chosen, Alert) else Line(f"{age(frame.unix_s - begin_s)} ago"),
        Line(f"{duration(started)} after the start", "dim") if started > 0 else Line(),
    ]
    if chosen.step is not None:
        step = Line(f"step {count(chosen.step)}")
        since = (frame.group.step or 0) - chosen.step
        if since > 0 and chosen.incarnation == frame.group.incarnation:
            step.add(f", {counted(since, 'step')} ago", "dim")
        parts.append(step)
    if (ended_s := _end_of(frame, chosen)) is not None:
        parts.insert(1, Line(f"over after {age(ended_s - begin_s)}", "good"))
    return [join_parts(parts, width)]


def _end_of(frame: Frame, chosen: Alert | LoggedEvent) -> float | None:
    """Unix seconds at which the end of the same was logged; None: it was not."""
    begin_s = begin_of(chosen)
    ends = (
        event.unix_s
        for event in frame.events
        if (event.kind, event.rank) == (f"{chosen.kind}_end", chosen.rank) and event.unix_s >= begin_s
    )
    return min(ends, default=None)
