"""All runs and recordings of this machine, to choose one from."""

from __future__ import annotations

import time
from pathlib import PurePath

from ddptop.frames.numbers import UNKNOWN, age, count, counted
from ddptop.render import table
from ddptop.render.line import Line, draw_rule, of_state
from ddptop.render.text import clean_text
from ddptop.tui.keys import Do
from ddptop.tui.runs import RunChoice
from ddptop.tui.scene import Page, PageLayout, Place, Scene
from ddptop.tui.screen import Screen
from ddptop.tui.view import FAR, View

LONGEST_NAME = 32


def draw_picker(place: Place, width: int, height: int, ascii_only: bool, now_s: float | None = None) -> Page:
    """A row per run: state, name, ranks, script, age, recording; `now_s` in Unix seconds, by default now."""
    if place.choices is None:
        return Page([draw_rule(width, "runs"), Line("  looking for runs and recordings", "dim")])
    listed = place.listed
    live = sum(choice.live for choice in listed)
    words = f"{counted(live, 'live run')}, {counted(len(listed) - live, 'recording')}"
    words += (
        f" of {len(place.choices)} · filter {clean_text(place.run_filter, ascii_only)}"
        if place.run_filter
        else ""
    )
    lines = [draw_rule(width, words)]
    if not listed:
        why = (
            "none matches: Esc clears the filter"
            if place.choices
            else "none yet: start one with ddptop-run SCRIPT"
        )
        return Page([*lines, Line(f"  {why}", "dim")])
    columns = table.fit_columns(
        _make_columns(listed, time.time() if now_s is None else now_s, ascii_only), width - 2
    )
    lines.append(Line("  ").extend(table.draw_head(columns, 2)))
    scroll, shown = place.scroll.fitted(len(listed), height - len(lines) - 1)
    for index in shown:
        chosen = index == scroll.cursor
        line = Line("▸ " if chosen else "  ", "accent", ground="cursor" if chosen else "")
        line.extend(table.draw_row(columns, index, 2))
        line.target = index
        lines.append(line)
    note = listed[scroll.cursor].note
    lines += [Line()] * (height - len(lines) - 1)
    lines.append(Line("▲ ", "warn").add(clean_text(note, ascii_only)) if note else Line())
    return Page(lines, PageLayout(scroll))


def _make_columns(choices: tuple[RunChoice, ...], now_s: float, ascii_only: bool) -> list[table.TableColumn]:
    def texts(cell: object) -> list[str]:
        return [clean_text(cell(choice), ascii_only) for choice in choices]  # type: ignore[operator]  # a function of one choice

    states = [of_state(choice.state) for choice in choices]
    words = [f"{sign} {word}" for (sign, _), word in zip(states, texts(lambda c: c.state), strict=True)]
    return [
        table.TableColumn(
            "state", max(map(len, words)), lambda index: (words[index], states[index][1]), 99, right=False
        ),
        table.measured_column("run", texts(lambda c: c.name), 98, right=False, most=LONGEST_NAME),
        table.measured_column("ranks", texts(lambda c: count(c.ranks)), 90),
        table.measured_column(
            "script", texts(lambda c: PurePath(c.script).name or UNKNOWN), 80, right=False, most=24
        ),
        table.measured_column("age", texts(lambda c: _describe_age(c, now_s)), 95),
        table.measured_column(
            "recording", texts(lambda c: c.path or UNKNOWN), 60, right=False, most=60, tail=True
        ),
    ]


def _describe_age(choice: RunChoice, now_s: float) -> str:
    return UNKNOWN if choice.started_at is None else age(now_s - choice.started_at)


class PickerView(View):
    """The runs of this machine, looked up while it is open."""

    name = "picker"
    answers = "all runs and recordings of this machine"
    goes_back = True
    left_by_its_key = True
    lists_runs = True
    filters_here = True
    filter_hint = "runs to list: a name, a script, live, !failed, /regex/"
    marks_matches = False

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """A row per run."""
        return draw_picker(scene.place, width, height, scene.ascii_only)

    def filter_text(self, place: Place) -> str:
        """The filter of runs."""
        return place.run_filter

    def set_filter(self, place: Place, text: str) -> None:
        """Filter the runs."""
        place.run_filter = text

    def open_chosen(self, screen: Screen) -> None:
        """Open the run under the cursor."""
        screen.act(Do.SWITCH())

    def move_to_end(self, screen: Screen, end: int) -> None:
        """To the first or last run, also over a recording."""
        self.move(screen, FAR if end else -FAR)
