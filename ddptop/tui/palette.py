"""The palette: everything that can be done, by name, found by some letters of it (Textual's fuzzy match)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from textual.fuzzy import Matcher

from ddptop.frames.numbers import counted
from ddptop.render.line import Line, draw_rule
from ddptop.render.text import clean_text, text_width
from ddptop.tui.all_views import HOSTS, VIEWS
from ddptop.tui.keys import COMMON_KEYS, RECORDING_KEYS, Action, Do, PaletteEntry
from ddptop.tui.prompt import Prompt
from ddptop.tui.runs import RunChoice
from ddptop.tui.settings import list_settings

_RANK = re.compile(r"\s*(?:rank|r)?\s*(\d{1,9})\s*")

_COMPARE = re.compile(r"\s*compare\s+(?:rank\s*)?(\d{1,9})\s*")

_STILL = frozenset(
    (
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
        "k",
        "j",
        "g",
        "G",
        "tab",
        "shift+tab",
        "f1",
        "f10",
    )
)
"""Keys that depend on the cursor, and second keys of an action."""


SAME_WORD = {
    **dict.fromkeys(("settings", "option", "options", "preferences", "config"), "setting"),
    **dict.fromkeys(("colour", "colours", "colors"), "color"),
}
"""What other programs call it, by our word."""


def find_entries(
    typed: str,
    view: str,
    *,
    themes: Sequence[str] = (),
    ranks: int = 0,
    hosts: Sequence[str] = (),
    choices: Sequence[RunChoice] = (),
    replay: bool = False,
) -> list[PaletteEntry]:
    """The entries that match, the best first: views, what keys do in this view, figures, orders, columns,
    themes, settings, runs, hosts, `rank 17`."""
    offered = [*_list_fixed(view, themes, replay), *_list_runs(choices)]
    return [*_list_ranks(typed, ranks), *rank_entries(typed, [*offered, *_list_hosts(typed, hosts)])]


def rank_entries(typed: str, offered: Sequence[PaletteEntry]) -> list[PaletteEntry]:
    """The entries whose names hold the typed letters in this order, the best match first. No letters: all."""
    if not typed.strip():
        return list(offered)
    matcher = Matcher(" ".join(SAME_WORD.get(word.lower(), word) for word in typed.split()))
    scored = [(matcher.match(entry.name), entry) for entry in offered]
    # Equals stay in their order: views, keys, themes with ours first, runs.
    return [entry for score, entry in sorted(scored, key=lambda pair: -pair[0]) if score > 0]


def _list_fixed(view: str, themes: Sequence[str], replay: bool) -> Iterator[PaletteEntry]:
    for numbered in VIEWS.numbered:
        yield PaletteEntry(numbered.name, numbered.answers, numbered.number, numbered.number_key.action)
    for key in (*COMMON_KEYS, *VIEWS[view].keys):
        if key.keys not in _STILL and VIEWS.meaning(key.keys, view, replay=replay) is key:
            yield PaletteEntry(key.help, "", key.shown, key.action)
    for key in RECORDING_KEYS if replay else ():
        if VIEWS.meaning(key.keys, view, replay=replay) is key:
            yield PaletteEntry(key.help, "", key.shown, key.action)
    for any_view in VIEWS:
        yield from any_view.palette_entries()
    for theme in themes:
        yield PaletteEntry(f"theme {theme}", "", "", Do.THEME(theme))
    yield from list_settings()


def _list_runs(choices: Sequence[RunChoice]) -> Iterator[PaletteEntry]:
    for index, choice in enumerate(choices):
        yield PaletteEntry(
            f"run {choice.name}", f"{choice.state} {choice.script}".strip(), "", Do.SWITCH(index)
        )


MAX_HOSTS = 20
"""Hosts that are offered at most: to match letters of thousands one by one takes time."""


def _list_hosts(typed: str, hosts: Sequence[str]) -> Iterator[PaletteEntry]:
    """The hosts whose names hold what is typed."""
    letters = typed.strip().lower().removeprefix("host").strip()
    found = (name for name in hosts if typed.strip() and letters in name.lower())
    for name in itertools.islice(found, MAX_HOSTS):
        action = Action(HOSTS.show_host, (name,))
        yield PaletteEntry(f"host {name}", "its link, clock, load and ranks", "", action)


def _list_ranks(typed: str, ranks: int) -> Iterator[PaletteEntry]:
    for pattern, name, do in ((_RANK, "rank", Do.RANK), (_COMPARE, "compare with rank", Do.COMPARE_WITH)):
        number = pattern.fullmatch(typed)
        if number is not None and int(number[1]) < ranks:
            yield PaletteEntry(f"{name} {int(number[1])}", "", "", do(int(number[1])))


MAX_LINES = 12
"""Lines: the picture below stays to be seen."""


def draw_palette(
    prompt: Prompt, offered: Sequence[PaletteEntry], width: int, height: int, ascii_only: bool
) -> list[Line]:
    """Draw the palette: at most MAX_LINES lines with a rule above, the chosen one among them."""
    room = min(MAX_LINES, height - 1, max(1, len(offered)))
    if room < 1:
        return []
    cursor = min(prompt.at, max(0, len(offered) - 1))
    top = max(0, min(cursor - room // 2, len(offered) - room))
    lines = [draw_rule(width, "palette", counted(len(offered), "match").replace("matchs", "matches"))]
    for index, entry in enumerate(offered[top : top + room], top):
        chosen = index == cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.add(clean_text(entry.name, ascii_only), "strong" if chosen else "text")
        if entry.help and line.width + text_width(entry.help) + 12 <= width:
            line.add(f"  {clean_text(entry.help, ascii_only)}", "dim")
        line.pad(width - text_width(entry.key) - 1).add(entry.key, "accent")
        line.spot(0, width, Do.RUN_PALETTE(prompt.text, index))
        lines.append(line)
    return lines if offered else [*lines, Line("  no match", "dim")]
