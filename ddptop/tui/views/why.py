"""Why a rank is slow, on its page: the cost, its own time beside the others', what changed, what to try."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.bill import ledger_place_phrase, rank_time_phrase
from ddptop.frames.causes import PLACES, cause_phrase, remedy, words_of
from ddptop.frames.differences import differences, events_near
from ddptop.frames.numbers import LEAST_SHOWN_MS, age, clock, count, counted, fixed, known, percent
from ddptop.frames.phrases import (
    first_ranks,
    on_hosts,
    straggler_phrase,
    suspect_phrase,
    window_phrase,
)
from ddptop.frames.remedies import next_action
from ddptop.frames.statistics import median
from ddptop.frames.verdict import step_line, verdict
from ddptop.render.context import LEAST_SHARE_OF_STEP
from ddptop.render.line import Line, of_severity
from ddptop.render.phases import BETWEEN, PARTS, draw_pairs
from ddptop.render.text import wrap_clauses, wrap_lines
from ddptop.tui.views.curve import STACK

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Alert, Frame, Straggler
    from ddptop.tui.scene import Scene

MAX_EVENTS = 3

MAX_PLACES, LEAST_WAIT_S = 3, 0.1
"""Places in which the others have waited for some ranks; and for how long at least."""


def draw_reason(scene: Scene, rank: int, width: int) -> list[Line]:
    """What is wrong with the rank, and what it costs; nothing where it is not flagged."""
    frame = scene.frame
    late, where = frame.straggler, on_hosts(frame, (rank,))
    if late is not None and rank in scene.stragglers:
        lines = [
            Line("▲ ", "warn").add(text, "strong")
            for text in wrap_clauses(scene.clean(straggler_phrase(late, where)), width - 2)
        ]
        cost = " · ".join(step_line(frame).split(" · ")[:2])  # what overlap would bring is not this rank's
        lines += [Line("  ").add(part, "dim") for part in wrap_clauses(scene.clean(cost), width - 2)]
        for line in lines[1:]:
            line.pieces[0] = ("  ", "text")
        return lines
    return []


def describe_suspicion(scene: Scene, rank: int) -> str:
    """`was the slowest in 12 of 12 steps, by 20.3 ms`; empty where it is not suspected, or is flagged."""
    suspect = scene.frame.suspect
    if suspect is None or suspect.rank != rank or rank in scene.stragglers:
        return ""
    return scene.clean(suspect_phrase(suspect)).removeprefix(f"rank {rank} ").replace("; ", " · ")


def draw_own_time(scene: Scene, rank: int, width: int, *, places: bool) -> list[Line]:
    """A line for each part of the step, beside the median of the others; `places`: also those of other. Of an
    intermittent straggler beside its own normal steps: medians do not show what it loses in a few."""
    late = scene.frame.straggler
    seldom = late is not None and rank in scene.stragglers and late.pattern == "intermittent"
    apart = slow_and_normal(scene.frame, rank) if seldom else None
    if apart is not None:
        return _compare_parts(scene, apart, ("slow", "normal", "ms, in its steps"), width)
    parts, known_ranks = scene.breakdown.ms, scene.breakdown.known
    other_ranks = known_ranks & (np.arange(len(known_ranks)) != rank)
    rank_ms = np.where(known_ranks[rank], parts[:, rank], np.nan)
    usual_ms = np.array([float(median(row[other_ranks])) for row in parts])
    lines = _compare_parts(
        scene,
        (rank_ms, usual_ms),
        (f"rank {rank}", "others", f"ms, {window_phrase(scene.frame.group)}"),
        width,
    )
    for place in BETWEEN if places else ():
        column: Column = getattr(scene.frame.ranks, f"{place}_ms")
        if np.isfinite(column).any():
            line = Line(f"    {PLACES[place].short:<18}", "dim").add(f"{fixed(float(column[rank])):>8}")
            lines.append(line.add(f"{fixed(float(median(np.delete(column, rank)))):>8}", "dim").cut(width))
    if late is not None and seldom:
        loses = f"  medians do not show what it loses in {percent(late.last_pct)} of steps"
        lines.append(Line(loses, "dim").cut(width))
    return lines


def _compare_parts(
    scene: Scene, compared: tuple[Column, Column], titles: tuple[str, str, str], width: int
) -> list[Line]:
    """Draw each part of the rank's step beside what it is compared with, below their titles."""
    rank_ms, usual_ms = compared
    pairs = [
        (part, float(part_ms), float(usual_part_ms))
        for part, part_ms, usual_part_ms in zip(PARTS, rank_ms, usual_ms, strict=False)
        if part.name != "sync" or max(part_ms, usual_part_ms) >= LEAST_SHOWN_MS
    ]
    return draw_pairs(pairs, titles, width, scene.ascii_only)


def slow_and_normal(frame: Frame, rank: int) -> tuple[Column, Column] | None:
    """(PARTS,) median ms of a flagged rank's recent slow steps, and of its other ones; None: not known of
    both, from every step's figures."""
    steps, late = frame.focus, frame.straggler
    if steps is None or steps.rank != rank or late is None or late.basis != "every_step":
        return None
    if rank == late.rank:
        slow, normal = steps.divide_by_excess(late.lateness_ms)
    else:  # how late a second one is in its slow steps is not known
        slow, normal = steps.divide_by_excess(None, LEAST_SHARE_OF_STEP * (frame.group.step_ms_p50 or 0.0))
    if not slow.any() or not normal.any():
        return None
    parts = {part: getattr(steps, column) for part, column in STACK.items()}
    parts["sync"] = np.zeros_like(steps.other_ms)  # of single steps it is in the phase in which it was
    slow_ms, normal_ms = (
        np.array([float(median(parts[part.name][steps_of])) for part in PARTS]) for steps_of in (slow, normal)
    )
    return slow_ms, normal_ms


def draw_changes(scene: Scene, rank: int, width: int) -> list[Line]:
    """When a flagged rank became slow, and what happened around then."""
    frame = scene.frame
    if rank not in scene.stragglers:
        return []
    alert = next((alert for alert in frame.alerts if alert.kind == "straggler"), None)
    lines = [] if alert is None else _draw_since(scene, alert, width)
    if alert is not None:
        for event in events_near(frame.events, alert.since_s)[-MAX_EVENTS:]:
            sign, role = of_severity(event.severity, event.kind)
            line = Line("  ").add(clock(event.unix_s), "dim").add(f" {sign} ", role)
            lines.append(line.add(scene.clean(event.message)))
    return [line.cut(width) for line in lines]


def draw_differences(scene: Scene, rank: int, width: int) -> list[Line]:
    """In what the rank's process, GPU and host differ from those of the others."""
    differs = scene.clean(" · ".join(differences(scene.frame, rank)))
    return [Line("  ").add(text) for text in wrap_lines(differs, width - 2)] if differs else []


def _draw_since(scene: Scene, alert: Alert, width: int) -> list[Line]:
    late = scene.frame.straggler
    assert late is not None
    line = Line("since ", "dim").add(clock(alert.since_s), "strong")
    line.add(f", {age(scene.frame.unix_s - alert.since_s)} ago", "dim")
    line.add(f", step {count(alert.step)}" if alert.step is not None else "", "dim")
    excess = (
        late.parts_ms.get(late.cause)
        if late.cause in ("data", "forward", "backward", "optimizer", "other")
        else None
    )
    if not known(excess):
        return [line]
    excess_words = f"{cause_phrase(late.cause, late.place)} +{fixed(excess)} ms"
    fits = line.width + len(excess_words) + 3 <= width
    return [line.add(f" · {excess_words}")] if fits else [line, Line(f"  {excess_words}")]


def draw_waits(scene: Scene, ranks: list[int], width: int) -> list[Line]:
    """How long the others have waited for these ranks over the whole run, by rank and place, the longest
    first."""
    ledger = scene.frame.ledger
    rows = () if ledger is None else ledger.run.waited_for
    lines = []
    for row in [row for row in rows if row.rank in ranks and row.rank_seconds >= LEAST_WAIT_S][:MAX_PLACES]:
        line = Line("others waited ", "dim").add(rank_time_phrase(row.rank_seconds), "strong")
        place = Line(scene.clean(ledger_place_phrase(row.place)))
        lines.append(line.add(" for ", "dim").add(f"rank {row.rank}", "strong"))
        if line.width + 1 + place.width > width:
            lines.append(line := Line(" "))
        line.add(" ").extend(place)
        n_steps = f", {counted(row.steps, 'step')}"
        line.add(n_steps if line.width + len(n_steps) <= width else "", "dim")
    return [line.cut(width) for line in lines]


def draw_action(scene: Scene, rank: int, width: int, most: int | None = None) -> list[Line]:
    """What to try, where the rank is flagged; at most so many lines."""
    late = scene.frame.straggler
    if late is None or rank not in scene.stragglers:
        return []
    action = scene.clean(_describe_action(scene, late, rank, f"rank {rank}"))
    return draw_advice(action, width, most, indent=0)


TRY = "try: "

TRY_INDENT = 2


def draw_first_action(scene: Scene, width: int, most: int = 1) -> list[Line]:
    """What to do next, in at most so many lines: about a run that makes no steps, else about all flagged
    ranks. Up to the last comma, colon, question mark or full stop that fits."""
    late, action = scene.frame.straggler, next_action(scene.frame)
    if not action and late is not None and verdict(scene.frame).kind == "straggler":
        who = f"ranks {first_ranks(late.ranks)}" if len(late.ranks) > 1 else f"rank {late.rank}"
        action = _describe_action(scene, late, late.rank, who)
    action, room = scene.clean(action), (width - len(TRY)) * most
    ends = [end.start() for end in re.finditer(r"[,:;.](?= |$)|(?<=\?)(?= |$)", action[: room + 1])]
    if not action:
        return []
    # Where no clause fits, its begin is one without the place, which is named elsewhere.
    places = [end.start() for end in re.finditer(r" (?=(?:in|on) |\()", action) if end.start() <= room]
    for end in (*reversed(ends), *reversed(places)):
        if len(lines := draw_advice(action[:end], width, indent=0)) <= most:
            return lines
    return draw_advice(action, width, most, indent=0)


def draw_advice(action: str, width: int, most: int | None = None, *, indent: int = TRY_INDENT) -> list[Line]:
    """`try: ...`, in as many lines as it takes, or at most so many."""
    lines = [
        Line(" " * (indent + len(TRY))).add(text, "dim")
        for text in wrap_lines(action[:1].lower() + action[1:], width - indent - len(TRY), most)
    ]
    for line in lines[:1]:
        line.pieces[0] = (" " * indent + TRY, "accent")
    return lines


def _describe_action(scene: Scene, late: Straggler, rank: int, who: str) -> str:
    ranks = scene.frame.ranks
    where = ", ".join(
        name for name in (scene.clean(ranks.host[rank]), scene.clean(ranks.device[rank])) if name
    )
    has_loader = bool((ranks.data_ms > 0).any())
    _, action = remedy(late.cause, late.place, late.pattern, who, where, has_loader=has_loader)
    if words_of(late.cause).gives_back_cost:
        action += f" This gives back up to {percent(late.cost_pct)} of the step."
    return action
