"""The first line: which run, is it well, how fast, what does ddptop cost."""

from __future__ import annotations

from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.numbers import UNKNOWN, count, counted, duration, fixed, known, loss
from ddptop.tui.paint.signs import of_state
from ddptop.tui.paint.text import cells
from ddptop.tui.scene import Scene

SHORTEST_NAME = 8
"""Cells of the run's name that stay, however narrow the terminal is."""

GAP = 3

MAIN_PARTS = 6
"""Name, state, step, speed, loss, own cost: for these the gaps may shrink."""


def header(scene: Scene, width: int) -> Line:
    """As much as fits, in order of importance: name, state, step, speed, loss, own cost, then the rest."""
    badge = state(scene)
    name = scene.clean(scene.frame.run.name) or UNKNOWN
    head = Line("ddptop ", "dim") if width >= 60 else Line()
    room = width - head.width - badge.width - GAP
    if cells(name) > room:
        head = Line()
        room = max(SHORTEST_NAME, width - badge.width - GAP)
    head.extend(Line(name, "strong").cut(room))
    parts = [head, badge, *_figures(scene)]
    return gather(parts, width, _widest_gap(parts[:MAIN_PARTS], width))


def _widest_gap(parts: list[Line], width: int) -> int:
    """The widest gap that costs none of the parts that fit with the narrowest."""
    texts = [str(gather(parts, width, gap)).replace(" ", "") for gap in range(1, GAP + 1)]
    return max(gap for gap, text in enumerate(texts, 1) if text == texts[0])


def state(scene: Scene) -> Line:
    """Sign and word of the run's state, louder when the picture is not of now."""
    frame = scene.frame
    sign, role = of_state(frame.run.state)
    word = Line(f"{sign} {frame.run.state.upper()}", role)
    if frame.run.state == "failed" and frame.run.exit_code is not None:
        word.add(f" exit code {frame.run.exit_code}", "text")
    if scene.frozen:
        return Line(" ‖ PAUSED ", "badge")
    if frame.playback is not None:
        line = Line("▶ REPLAY" if frame.playback.playing else "‖ REPLAY", "accent")
        return line if frame.run.state == "live" else line.add("  ").extend(word)
    if frame.source == "simulated":
        word.add("  SIMULATED", "accent")
    return word


def _figures(scene: Scene) -> list[Line]:
    frame, group = scene.frame, scene.frame.group
    rate = group.steps_per_s
    digits = 1 if rate is None or rate >= 1 else 3
    cost = frame.overhead
    if group.step is None:
        return [Line("no step yet", "dim"), *_facts(scene)]
    dear = known(cost.measured_pct) and known(cost.budget_pct) and cost.measured_pct > cost.budget_pct  # type: ignore[operator]  # known() has looked
    figures = [
        Line("step ", "dim").add(count(group.step), "strong"),
        # Of a run that does not move, the rate of its last steps would be an untruth.
        Line(fixed(rate, digits), "strong").add("/s", "dim") if frame.run.state == "live" else Line(),
        Line("loss ", "dim").add(loss(group.loss_mean), "strong"),
        Line("own cost ", "dim").add(fixed(cost.measured_pct, 1, "%"), "warn" if dear else "strong"),
    ]
    return figures + _facts(scene)


def _facts(scene: Scene) -> list[Line]:
    run = scene.frame.run
    texts = [
        duration(run.elapsed_s),
        counted(run.world_size, "rank") if run.world_size else "",
        run.backend or "",
        f"torch {run.torch}" if run.torch else "",
    ]
    return [Line(scene.clean(text), "dim") for text in texts]
