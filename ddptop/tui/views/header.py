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
    return gather([head, badge, *_figures(scene)], width, GAP)


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
    dear = known(cost.measured_pct) and known(cost.budget_pct) and cost.measured_pct > cost.budget_pct  # type: ignore[operator]  # known() has looked
    figures = [
        Line("step ", "dim").add(count(group.step), "strong"),
        Line(fixed(rate, digits), "strong").add("/s", "dim"),
        Line("loss ", "dim").add(loss(group.loss_mean), "strong"),
        Line("own cost ", "dim").add(fixed(cost.measured_pct, 1, "%"), "warn" if dear else "strong"),
        Line(duration(frame.run.elapsed_s), "dim"),
    ]
    if frame.run.world_size:
        figures.append(Line(counted(frame.run.world_size, "rank"), "dim"))
    if frame.run.backend:
        figures.append(Line(scene.clean(frame.run.backend), "dim"))
    if frame.run.torch:
        figures.append(Line(scene.clean(f"torch {frame.run.torch}"), "dim"))
    return figures
