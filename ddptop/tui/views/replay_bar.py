"""The line above the keys: where a recording stands, that the picture is held, or an internal error."""

from __future__ import annotations

from ddptop.analysis.frames import Playback
from ddptop.tui.paint.line import Line, Role
from ddptop.tui.paint.numbers import clock, count, duration
from ddptop.tui.paint.signs import of_state
from ddptop.tui.paint.text import fit
from ddptop.tui.playing import speed_word
from ddptop.tui.scene import Scene

SHORTEST = 10
"""Cells below which a bar shows no place."""

_MARKS: dict[str, tuple[str, Role]] = {
    "straggler": ("▲", "warn"),
    "stall": ("■", "bad"),
    "stalled": ("■", "bad"),
    "mismatch": ("■", "bad"),
    "lost_rank": ("✖", "bad"),
    "exit": ("✗", "bad"),
    "failed_rank": ("✗", "bad"),
    "failed": ("✗", "bad"),
    "nan": ("▲", "warn"),
    "replica_drift": ("▲", "warn"),
    "loss_spread": ("▲", "warn"),
    "process": ("◌", "warn"),
    "lost_records": ("✗", "warn"),
}

_GRAVITY: tuple[Role, ...] = ("dim", "warn", "bad")
"""Of marks in the same cell the gravest is seen."""


def banner(scene: Scene, width: int) -> Line | None:
    """The line, or None where there is nothing to say."""
    if scene.failure is not None:
        return Line(fit(f" {scene.clean(scene.failure)}", width), ground="banner")
    if scene.frozen:
        return _held(scene, width)
    if scene.frame.playback is not None:
        return replay_bar(scene, scene.frame.playback, width)
    return None


def replay_bar(scene: Scene, played: Playback, width: int) -> Line:
    """Speed, the bar with its marks, and the step; damage of the file is told where the step stands."""
    sign = "▶" if played.playing else "‖"
    speed = speed_word(played.speed)
    head = _buttons(sign, speed).add(clock(_begin(scene, played)) + " ", "dim")
    tail = Line(" ").add(clock(_begin(scene, played) + played.duration_s), "dim")
    tail.add("+" if played.growing else "", "good")
    tail.add(f"  step {count(played.step)}", "strong").add(f" / {count(played.last_step)}", "dim")
    if played.damage:
        tail.add("  ▲ damaged", "warn")
    room = width - head.width - tail.width
    if room < SHORTEST:
        head = _buttons(sign, speed)
        tail = Line(f" step {count(played.step)}", "strong")
        room = width - head.width - tail.width
    if room >= SHORTEST:
        head.extend(_track(played, room))
    return head.extend(tail).cut(width)


def _buttons(sign: str, speed: str) -> Line:
    """A click on the sign plays or holds, one on the speed doubles it."""
    line = Line(f"{sign} {speed} ", "accent")
    return line.spot(0, 2, "pause").spot(2, line.width - 1, "faster(1)")


def _begin(scene: Scene, played: Playback) -> float:
    return scene.frame.unix_s - played.position_s


def _track(played: Playback, width: int) -> Line:
    inside = width - 2
    cells: list[tuple[str, Role]] = [("─", "rule")] * inside
    for share, kind in sorted(played.marks, key=lambda mark: _GRAVITY.index(_mark(mark[1])[1])):
        cells[_cell(share, inside)] = _mark(kind)
    share = played.position_s / played.duration_s if played.duration_s > 0 else 0.0
    here = _cell(share, inside)
    line = Line("├", "rule")
    for at, (sign, role) in enumerate(cells):
        line.add("●" if at == here else sign, "accent" if at == here else role)
    return line.add("┤", "rule").spot(1, 1 + inside, "scrub({share})")


def _mark(kind: str) -> tuple[str, Role]:
    return _MARKS.get(kind, ("┴", "dim"))


def _cell(share: float, cells: int) -> int:
    return min(cells - 1, max(0, int(share * cells)))


def _held(scene: Scene, width: int) -> Line:
    frame, newest = scene.frame, scene.newest or scene.frame
    age = duration(max(0.0, newest.unix_s - frame.unix_s))
    text = f" ‖ PAUSED  picture of {clock(frame.unix_s)}, {age} old"
    if newest.run.state != frame.run.state:
        text += f" · now {of_state(newest.run.state)[0]} {newest.run.state.upper()}"
    text += " · the run goes on" if newest.run.state == "live" and width >= 70 else ""
    text += " · space: show it" if width >= 70 else " · space"
    return Line(fit(text, width), ground="banner")
