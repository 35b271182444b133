"""The palette: everything that can be done, by name, found by some of its letters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ddptop.tui.keys import ANSWERS, KEYS, VIEWS, ViewName, meaning
from ddptop.tui.runs import RunChoice
from ddptop.tui.views.heat_state import NOW_FIGURES as HEAT_FIGURES

_RANK = re.compile(r"\s*(?:rank|r)?\s*(\d{1,9})\s*")

_COMPARE = re.compile(r"\s*compare\s+(?:rank\s*)?(\d{1,9})\s*")

_STILL = frozenset(
    (
        *(
            "escape",
            "ctrl+p",
            "colon",
            "up",
            "down",
            "left",
            "right",
            "pageup",
            "pagedown",
            "enter",
            "n",
            "N",
        ),
        *("k", "j", "g", "G", "tab", "shift+tab", "f1", "f10"),
    )
)
"""Keys that mean nothing without the place that they are pressed in, and second keys of an action."""


APART = 3
"""The letters stand apart from each other: the worst likeness."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the palette."""

    name: str
    help: str
    key: str
    """The key that does the same; may be empty."""
    action: str


def entries(
    typed: str,
    view: ViewName,
    *,
    themes: Sequence[str] = (),
    ranks: int = 0,
    choices: Sequence[RunChoice] = (),
    replay: bool = False,
) -> list[Entry]:
    """What matches, the best first: views, what keys do in this one, themes, runs; `rank 17` if there is."""
    ranked = [
        (quality, at, entry)
        for at, entry in enumerate((*_fixed(view, themes, replay), *_runs(choices)))
        if (quality := likeness(typed, entry.name)) is not None
    ]
    # Equals stay in their order: views, keys, themes with ours first, runs.
    ranked.sort(key=lambda found: found[0] if found[0][0] == APART else (found[0][0], found[1]))
    return [*_of_ranks(typed, ranks), *(entry for _, _, entry in ranked)]


def likeness(typed: str, name: str) -> tuple[int, int] | None:
    """How well some letters name something, least first; None: not at all.

    Begins with them, has a word that does, holds them, holds them apart from each other in this order.
    """
    typed, name = typed.lower().strip(), name.lower()
    if not typed:
        return (0, 0)
    at = name.find(typed)
    if at == 0:
        return (0, len(name))
    if at > 0:
        return (1 if name[at - 1] in " -_" else 2, len(name))
    where = -1
    first = 0
    for letter in typed.replace(" ", ""):
        where = name.find(letter, where + 1)
        if where < 0:
            return None
        first = first or where + 1
    return (APART, where - first)


def _fixed(view: ViewName, themes: Sequence[str], replay: bool) -> Iterator[Entry]:
    for number, name in enumerate(VIEWS, 1):
        yield Entry(name, ANSWERS[name], str(number), f"view({name!r})")
    for key in KEYS:
        still = key.keys in _STILL and not key.replay
        if meaning(key.keys, view, replay) is key and not still and not key.action.startswith("view("):
            yield Entry(key.help, "", key.shown, key.action)
    for figure in HEAT_FIGURES:
        yield Entry(f"heat {figure}", f"the heat map of {figure}", "", f"choose_figure({figure!r})")
    for theme in themes:
        yield Entry(f"theme {theme}", "", "", f"theme({theme!r})")


def _runs(choices: Sequence[RunChoice]) -> Iterator[Entry]:
    for at, choice in enumerate(choices):
        yield Entry(f"run {choice.name}", f"{choice.state} {choice.script}".strip(), "", f"switch({at})")


def _of_ranks(typed: str, ranks: int) -> Iterator[Entry]:
    for pattern, name, action in ((_RANK, "rank", "rank"), (_COMPARE, "compare with rank", "compare_with")):
        found = pattern.fullmatch(typed)
        if found is not None and int(found[1]) < ranks:
            yield Entry(f"{name} {int(found[1])}", "", "", f"{action}({int(found[1])})")
