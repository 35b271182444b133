"""What a figure is, as it is declared: formula, unit, bound and source."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.figures import (
    BUCKET_FIGURES,
    FIGURES,
    HOST_FIGURES,
    PROCESS_GROUP_FIGURES,
    TEXT_FIGURES,
    figures_shown,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.figures import Figure

FIELDS = {figure.title: figure for figure in (*FIGURES, *TEXT_FIGURES) if figure.title}
"""What the columns of ranks are, by title."""

HEAT_FIELDS = {how.key: figure for figure, how in figures_shown(lambda figure: figure.heat)}
"""What the heat map shows, by key."""

HOST_FIELDS = {figure.title: figure for figure, _ in figures_shown(lambda one: one.screen, HOST_FIGURES)}
"""What the columns of hosts are, by title."""

BUCKET_FIELDS = {figure.title: figure for figure, _ in figures_shown(lambda one: one.screen, BUCKET_FIGURES)}
"""What the columns of buckets are, by title."""

PROCESS_GROUP_FIELDS = {
    figure.title: figure for figure, _ in figures_shown(lambda one: one.screen, PROCESS_GROUP_FIGURES)
}
"""What the columns of process groups are, by title."""


class Meaning(NamedTuple):
    """What F1 says of a figure, as plain text."""

    name: str
    says: str
    """What it says, in a plain sentence; empty: the formula is one."""
    formula: str
    unit: str
    """Empty: a number, a name."""
    bound: str
    """How far the figure may be wrong; empty: it has no bound."""
    source: str
    """The module that computes it."""


def explain_figure(title: str, fields: Mapping[str, Figure] = FIELDS) -> Meaning | None:
    """The meaning of a figure, by its title in one of these tables; None: no figure has this title."""
    figure = fields.get(title)
    if figure is None:
        return None
    bound = f"± {figure.bound}" if figure.bound else ""
    return Meaning(
        figure.documented_as, figure.says, _without_markup(figure.formula), figure.unit, bound, figure.source
    )


def _without_markup(markdown: str) -> str:
    return re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", markdown).replace("`", "").replace("*", "")
