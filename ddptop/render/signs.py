"""Signs that go with a word, so that no state is told by colour alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.render.line import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

_STATES: dict[str, tuple[str, Role]] = {
    "waiting": ("○", "dim"),
    "live": ("●", "good"),
    "stale": ("◌", "warn"),
    "stalled": ("■", "bad"),
    "lost": ("✖", "bad"),
    "finished": ("✓", "good"),
    "failed": ("✗", "bad"),
}

_SEVERITIES: dict[str, tuple[str, Role]] = {
    "info": ("●", "dim"),
    "warning": ("▲", "warn"),
    "critical": ("■", "warn"),
}

GRAVE = ("failed", "lost", "stalled")
"""States of a rank that are red."""

UNWELL = (*GRAVE, "stale")
"""States that want a look, the worst first."""

_GRAVE_KINDS = frozenset(
    {"stall", "stalled", "mismatch", "lost_rank", "failed_rank", "exit", "lost", "failed"}
)
"""Kinds that are red: something stalled, was lost or failed."""


def of_state(state: str) -> tuple[str, Role]:
    """Sign and role of a run's or a rank's state."""
    return _STATES.get(state, ("?", "warn"))


def of_severity(severity: str, kind: str = "") -> tuple[str, Role]:
    """Sign and role of an alert or a happening."""
    sign, role = _SEVERITIES.get(severity, ("●", "dim"))
    return ("■", "bad") if kind in _GRAVE_KINDS and severity != "info" else (sign, role)


def worst_sign(states: Sequence[str]) -> tuple[str, Role]:
    """Sign and role of the worst state among some ranks; a blank while all are well."""
    there = set(states)
    worst = next((state for state in UNWELL if state in there), None)
    return (" ", "text") if worst is None else of_state(worst)
