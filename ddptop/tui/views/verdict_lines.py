"""The verdict at the top of the overview: one sentence, and a line of what it means in milliseconds."""

from __future__ import annotations

from ddptop.analysis.verdict import SIGNS, verdict
from ddptop.tui.paint.line import Line, Role
from ddptop.tui.paint.text import wrap
from ddptop.tui.scene import Scene

INDENT = 2

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
    lines += [Line("  ").add(text, "dim") for text in _wrapped(scene, said.detail, width)]
    return lines[:most]


def _wrapped(scene: Scene, text: str, width: int) -> list[str]:
    return wrap(scene.clean(text), width - INDENT)
