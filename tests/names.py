"""Names of figures: what a title on a view may be."""

from __future__ import annotations

from collections.abc import Mapping

from ddptop.frames.figures import Figure

UNITS = (" ms", " %", "%", " GB/s", " GB", " MB", " C", " s")


def word(title: str) -> str:
    """A title without its unit, blanks and the sign of the clock-free fallback."""
    for unit in UNITS:
        title = title.removesuffix(unit)
    return title.removeprefix("~").replace(" ", "")


def words(fields: Mapping[str, Figure]) -> set[str]:
    """What these figures may be called: by the title of their column, or by the name it is short for."""
    return {word(name) for title, figure in fields.items() for name in (title, figure.called)}
