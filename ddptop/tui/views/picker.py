"""All runs and recordings of this machine, to choose one from.

What the palette offers, above the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import PurePath

from ddptop.frames.numbers import UNKNOWN, age, count, counted
from ddptop.render import table
from ddptop.render.line import Line, of_state, rule
from ddptop.render.text import cells, clean
from ddptop.tui.keys import Do
from ddptop.tui.palette import Entry
from ddptop.tui.prompt import Prompt
from ddptop.tui.runs import RunChoice
from ddptop.tui.scene import Layout, Page, Place

LONGEST_NAME = 32


def picker(place: Place, width: int, height: int, ascii_only: bool, now_s: float | None = None) -> Page:
    """A row per run: state, name, ranks, script, age, recording; `now_s` in Unix seconds, by default now."""
    if place.choices is None:
        return Page([rule(width, "runs"), Line("  looking for runs and recordings", "dim")])
    listed = place.listed
    live = sum(choice.live for choice in listed)
    words = f"{counted(live, 'live run')}, {counted(len(listed) - live, 'recording')}"
    words += (
        f" of {len(place.choices)} · filter {clean(place.run_filter, ascii_only)}" if place.run_filter else ""
    )
    lines = [rule(width, words)]
    if not listed:
        why = (
            "none matches: Esc clears the filter"
            if place.choices
            else "none yet: start one with ddptop-run SCRIPT"
        )
        return Page([*lines, Line(f"  {why}", "dim")])
    columns = table.fitting(_columns(listed, time.time() if now_s is None else now_s, ascii_only), width - 2)
    lines.append(Line("  ").extend(table.head(columns, 2)))
    scroll, shown = place.scroll.fitted(len(listed), height - len(lines) - 1)
    for at in shown:
        chosen = at == scroll.cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.extend(table.body(columns, at, 2))
        line.target = at
        lines.append(line)
    note = listed[scroll.cursor].note
    lines += [Line()] * (height - len(lines) - 1)
    lines.append(Line("▲ ", "warn").add(clean(note, ascii_only)) if note else Line())
    return Page(lines, Layout(scroll))


def _columns(choices: tuple[RunChoice, ...], now_s: float, ascii_only: bool) -> list[table.Column]:
    def texts(cell: object) -> list[str]:
        return [clean(cell(choice), ascii_only) for choice in choices]  # type: ignore[operator]  # a function of one choice

    states = [of_state(choice.state) for choice in choices]
    words = [f"{sign} {word}" for (sign, _), word in zip(states, texts(lambda c: c.state), strict=True)]
    return [
        table.Column("state", max(map(len, words)), lambda at: (words[at], states[at][1]), 99, right=False),
        table.measured("run", texts(lambda c: c.name), 98, right=False, most=LONGEST_NAME),
        table.measured("ranks", texts(lambda c: count(c.ranks)), 90),
        table.measured(
            "script", texts(lambda c: PurePath(c.script).name or UNKNOWN), 80, right=False, most=24
        ),
        table.measured("age", texts(lambda c: _age(c, now_s)), 95),
        table.measured("recording", texts(lambda c: c.path or UNKNOWN), 60, right=False, most=60, tail=True),
    ]


def _age(choice: RunChoice, now_s: float) -> str:
    return UNKNOWN if choice.started_at is None else age(now_s - choice.started_at)


MAX_LINES = 12
"""Lines: the picture below stays to be seen."""


def palette_list(
    prompt: Prompt, offered: Sequence[Entry], width: int, height: int, ascii_only: bool
) -> list[Line]:
    """At most MAX_LINES lines with a rule above; the chosen one among them."""
    room = min(MAX_LINES, height - 1, max(1, len(offered)))
    if room < 1:
        return []
    cursor = min(prompt.at, max(0, len(offered) - 1))
    top = max(0, min(cursor - room // 2, len(offered) - room))
    lines = [rule(width, "palette", counted(len(offered), "match").replace("matchs", "matches"))]
    for at, entry in enumerate(offered[top : top + room], top):
        chosen = at == cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.add(clean(entry.name, ascii_only), "strong" if chosen else "text")
        if entry.help and line.width + cells(entry.help) + 12 <= width:
            line.add(f"  {clean(entry.help, ascii_only)}", "dim")
        line.pad(width - cells(entry.key) - 1).add(entry.key, "accent")
        line.spot(0, width, Do.RUN_PALETTE(prompt.text, at))
        lines.append(line)
    return lines if offered else [*lines, Line("  no match", "dim")]
