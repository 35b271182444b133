"""The first line: the run, its state, its speed, and the overhead of ddptop."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.activity_words import epoch_phrase, state_word
from ddptop.frames.conditions import STATES
from ddptop.frames.numbers import UNKNOWN, age, count, counted, duration, fixed
from ddptop.frames.phrases import mean_loss_phrase
from ddptop.frames.training_kind import kind_phrase
from ddptop.frames.verdict import restart_phrase, run_state, silent_s
from ddptop.render.line import Line, join_parts, of_activities, of_state
from ddptop.render.text import text_width
from ddptop.render.trouble import step_now, waits_long
from ddptop.tui.keys import Do
from ddptop.tui.scene import Scene

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

SHORTEST_NAME, MIN_NAME = 8, 3
"""Cells of the run's name for which the gap after it shrinks, and below which it is of no use:
the state comes first, however narrow the terminal is."""

GAP = 3

LONGEST_WHERE = 20
"""Cells for the machine on which a remote run is collected; they are the program's name otherwise."""

FAILED = of_state("failed")[0]

MAIN_PARTS = 6
"""Name, state, step, speed, loss, own cost: for these the gaps may shrink."""


def draw_header(scene: Scene, width: int) -> Line:
    """The header: as much as fits of name, state, step, speed, loss, own cost and the rest, in this order of
    importance."""
    forms = [draw_state(scene), draw_state(scene, short=True)]
    badge = next((form for form in forms if form.width <= width - GAP - MIN_NAME), forms[-1]).cut(width)
    name = scene.clean(scene.frame.run.name) or UNKNOWN
    word = (scene.clean(scene.where), "accent") if scene.where else ("ddptop", "dim")
    head = Line(*word).cut(LONGEST_WHERE).add(" ") if width >= 60 else Line()  # type: ignore[arg-type]  # roles
    room = width - head.width - badge.width - GAP
    if text_width(name) > room:
        head = Line()
        room = width - badge.width - (GAP if width - badge.width >= SHORTEST_NAME + GAP else 1)
    if room >= MIN_NAME:
        title = Line(name, "strong").cut(room)
        head.extend(title.spot(0, title.width, Do.PICK()))
    parts = [head, badge, *_draw_figures(scene)]
    return join_parts(parts, width, _widest_gap(parts[:MAIN_PARTS], width))


def _widest_gap(parts: list[Line], width: int) -> int:
    """The widest gap that costs none of the parts that fit with the narrowest."""
    texts = [str(join_parts(parts, width, gap)).replace(" ", "") for gap in range(1, GAP + 1)]
    return max(gap for gap, text in enumerate(texts, 1) if text == texts[0])


def draw_state(scene: Scene, short: bool = False) -> Line:
    """Sign and word of the run's state, emphasized when the picture is not live; `short`: in fewer words."""
    frame, played = scene.frame, scene.frame.playback
    line = Line()
    if scene.failure is not None:
        line.add(f"{FAILED} INTERNAL ERROR", "bad")
    elif scene.frozen:
        line.add(" ‖ PAUSED ", "badge")
    elif played is not None:
        speed = "max" if math.isinf(played.speed) else f"{played.speed:g}x"
        line.add(f"{'▶' if played.playing else '‖'} {'' if short else 'REPLAY '}{speed}", "accent")
        if played.behind and not short:
            line.add(" slowed", "warn")
    if not line.width:
        line = _draw_run_state(frame, short)
    elif scene.failure is None and run_state(frame) != "live":
        line.add(" ").extend(_draw_run_state(frame, short))
    return line.add(" SIMULATED", "accent") if frame.source == "simulated" else line


def _draw_run_state(frame: Frame, short: bool) -> Line:
    run = run_state(frame)
    if run == "live" and frame.activities:
        since_s = frame.activities[0].since_s
        sign, role = of_activities(frame.activities)
        return Line(f"{sign} {state_word(frame.activities)} {age(frame.unix_s - since_s)}", role)
    sign, role = of_state(run)
    role = "warn" if waits_long(frame) else role
    word = Line(f"{sign} {run.upper()}", role)
    if run == "failed" and frame.run.exit_code is not None:
        word.add(f" {'exit' if short else 'exit code'} {frame.run.exit_code}", "text")
    if (lasts := _describe_age(frame)) is not None:
        word.add(f" {lasts}", role)
    return word


def _describe_age(frame: Frame) -> str | None:
    """Time without progress of a stalled run, or since the last update; None where the state has no age."""
    run = run_state(frame)
    if run == "stalled" and frame.stall is not None:
        return age(frame.unix_s - frame.stall.since_s)
    if run == "stale":
        return duration(silent_s(frame))
    if STATES[run].is_silent:
        ages = frame.ranks.age_ms[np.isfinite(frame.ranks.age_ms)]
        if len(ages):
            return duration(float(ages.max()) / 1e3)
    return None


def _draw_figures(scene: Scene) -> list[Line]:
    """Each with room for a digit or two more: what follows it stays where it is."""
    frame, group = scene.frame, scene.frame.group
    rate = group.steps_per_s
    digits = 1 if rate is None or rate >= 1 else 3
    cost = frame.overhead
    if group.step is None:
        return [Line("no step yet", "dim"), *_draw_facts(scene)]
    goes_on = run_state(frame) == "live" and not frame.activities
    figures = [
        Line("step ", "dim")
        .add(count(step_now(frame)), "strong" if frame.stall is None else "bad")
        .add(restart_phrase(group.incarnation), "dim")
        .pad(len("step 9,999")),
        # Without progress the rate of the last steps would be wrong.
        Line(fixed(rate, digits), "strong").add("/s", "dim").pad(len("99.9/s")) if goes_on else Line(),
        Line("loss ", "dim").add(mean_loss_phrase(frame), "strong"),
        Line("overhead ", "dim")
        .add(cost.phrase, "warn" if cost.is_over_budget else "strong")
        .pad(len("overhead 0.9%")),
    ]
    if (progress := frame.progress) is not None:
        longest = replace(progress, batch=progress.batches or progress.batch)
        epoch = Line(epoch_phrase(progress, short=True), "dim")
        figures.append(epoch.pad(len(epoch_phrase(longest, short=True))))
    return figures + _draw_facts(scene)


def _draw_facts(scene: Scene) -> list[Line]:
    run = scene.frame.run
    texts = [
        duration(run.elapsed_s).ljust(len("9 min 59 s")),
        counted(run.world_size, "rank") if run.world_size else "",
        run.backend or "",
        kind_phrase(run),
        f"torch {run.torch}" if run.torch else "",
    ]
    return [Line(scene.clean(text), "dim") for text in texts]
