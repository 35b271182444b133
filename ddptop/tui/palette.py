"""The palette: everything that can be done, by name, found by some letters of it (Textual's fuzzy match)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from textual.fuzzy import Matcher

from ddptop.tui.keys import ANSWERS, KEYS, VIEWS, Action, Do, ViewName, meaning
from ddptop.tui.runs import RunChoice
from ddptop.tui.views.heat_state import NOW_FIGURES

_RANK = re.compile(r"\s*(?:rank|r)?\s*(\d{1,9})\s*")

_COMPARE = re.compile(r"\s*compare\s+(?:rank\s*)?(\d{1,9})\s*")

_STILL = frozenset(
    (
        *("escape", "ctrl+p", "colon", "up", "down", "left", "right", "pageup", "pagedown", "enter"),
        *("n", "N", "k", "j", "g", "G", "tab", "shift+tab", "f1", "f10"),
    )
)
"""Keys that depend on the cursor, and second keys of an action."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the palette."""

    name: str
    help: str
    key: str
    """The key that does the same; may be empty."""
    action: Action


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
    offered = [*_fixed(view, themes, replay), *_runs(choices)]
    return [*_of_ranks(typed, ranks), *matching(typed, offered)]


def matching(typed: str, offered: Sequence[Entry]) -> list[Entry]:
    """Those whose names hold the typed letters in this order, the best match first; all for no letters."""
    if not typed.strip():
        return list(offered)
    matcher = Matcher(typed.strip())
    scored = [(matcher.match(entry.name), entry) for entry in offered]
    # Equals stay in their order: views, keys, themes with ours first, runs.
    return [entry for score, entry in sorted(scored, key=lambda pair: -pair[0]) if score > 0]


def _fixed(view: ViewName, themes: Sequence[str], replay: bool) -> Iterator[Entry]:
    for number, name in enumerate(VIEWS, 1):
        yield Entry(name, ANSWERS[name], str(number), Do.VIEW(name))
    for key in KEYS:
        still = key.keys in _STILL and not key.replay
        if meaning(key.keys, view, replay) is key and not still and key.action.do is not Do.VIEW:
            yield Entry(key.help, "", key.shown, key.action)
    for figure in NOW_FIGURES:
        yield Entry(f"heat {figure}", f"the heat map of {figure}", "", Do.CHOOSE_METRIC(figure))
    for theme in themes:
        yield Entry(f"theme {theme}", "", "", Do.THEME(theme))


def _runs(choices: Sequence[RunChoice]) -> Iterator[Entry]:
    for at, choice in enumerate(choices):
        yield Entry(f"run {choice.name}", f"{choice.state} {choice.script}".strip(), "", Do.SWITCH(at))


def _of_ranks(typed: str, ranks: int) -> Iterator[Entry]:
    for pattern, name, do in ((_RANK, "rank", Do.RANK), (_COMPARE, "compare with rank", Do.COMPARE_WITH)):
        found = pattern.fullmatch(typed)
        if found is not None and int(found[1]) < ranks:
            yield Entry(f"{name} {int(found[1])}", "", "", do(int(found[1])))
