"""The verdict at the top of the overview: one sentence, and a line of what it means in milliseconds."""

from __future__ import annotations

from ddptop.analysis.verdict import SIGNS, verdict
from ddptop.tui.paint.line import Line, Role
from ddptop.tui.paint.text import cells, wrap
from ddptop.tui.paint.trouble import in_trouble
from ddptop.tui.scene import TO_STALL, Scene

INDENT = 2

GAP = 3
"""Between the verdict and the key that shows more."""

_ROLES: dict[str, Role] = {
    "good": "good",
    "busy": "dim",
    "doubt": "warn",
    "warning": "warn",
    "critical": "warn",
}

_GRAVE = frozenset({"stalled", "lost", "failed"})
"""The only verdicts in red."""


def verdict_lines(scene: Scene, width: int, most: int) -> list[Line]:
    """At most `most` lines; a sentence that is too long for one goes on below, indented."""
    said = verdict(scene.frame)
    grave = said.kind in _GRAVE
    role: Role = "bad" if grave else _ROLES[said.sign]
    sentence = _wrapped(scene, said.sentence, width) if most > 1 else [scene.clean(said.sentence)]
    lines = [Line("  ").add(text, "bad" if grave else "strong") for text in sentence]
    if lines:
        lines[0].pieces[0] = (f"{SIGNS[said.sign]} ", role)
    detail = said.detail
    if cells(detail) > width - INDENT:
        detail = detail.replace("with communication fully overlapped", "fully overlapped")
    lines += [Line("  ").add(text, "dim") for text in _wrapped(scene, detail, width)]
    lines = lines[:most]
    if in_trouble(scene.frame):
        for line in lines:
            line.target = TO_STALL
        return lines if most == 1 else _with_way(lines, width, most)
    return lines


def _with_way(lines: list[Line], width: int, most: int) -> list[Line]:
    """The key that shows more, at the end of the last line or below it."""
    way = Line("7", "accent").add(" shows the stacks", "dim")
    room = width - way.width - GAP
    if lines[-1].width > room and len(lines) < most:
        lines.append(Line(" " * INDENT).extend(way))
    else:
        last = lines[-1].cut(room)
        last.target = TO_STALL
        lines[-1] = last.add(" " * GAP).extend(way)
    lines[-1].target = TO_STALL
    return lines


def _wrapped(scene: Scene, text: str, width: int) -> list[str]:
    return wrap(scene.clean(text), width - INDENT)
