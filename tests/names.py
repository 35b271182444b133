"""Names of figures: what a title on a view may be."""

from __future__ import annotations

from collections.abc import Mapping

IN_WORDS = {
    "ms/step": "step time", "cpu%": "cpu", "gpu%": "gpu", "dev": "device", "bkt": "bucket",
    "coll": "collective", "last": "comes last", "rtt ms": "round trip",
}  # fmt: skip
"""Titles of columns that are shorter than the name of their figure, which is used where there is room."""

UNITS = (" ms", " %", "%", " GB/s", " GB", " C", " s")


def word(title: str) -> str:
    """A title without its unit, blanks and the sign of the clock-free fallback."""
    for unit in UNITS:
        title = title.removesuffix(unit)
    return title.removeprefix("~").replace(" ", "")


def words(fields: Mapping[str, object]) -> set[str]:
    """What these figures may be called: by the title of their column, or by the name it is short for."""
    in_words = {
        title: getattr(figure, "called", "") or IN_WORDS.get(title, title) for title, figure in fields.items()
    }
    return {word(name) for names in in_words.items() for name in names}
