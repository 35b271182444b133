"""The figures of the page before: what each one means; of a table, which of them are shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ddptop.render.line import Line, draw_rule, join_parts
from ddptop.render.metrics import explain_figure
from ddptop.render.rank_table import SCREEN_COLUMNS
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.tui.keys import Action, PaletteEntry
from ddptop.tui.page_figures import PageFigures
from ddptop.tui.scene import Page, PageLayout, Scroll
from ddptop.tui.view import View, Views

if TYPE_CHECKING:
    from ddptop.render.line import Role
    from ddptop.render.metrics import Meaning
    from ddptop.tui.scene import Scene
    from ddptop.tui.screen import Screen

MEANING = 6
"""Lines for the sentence and the formula of the figure under the cursor, and for unit, bound and source."""

BRIEFLY = 2
"""Lines for the sentence alone, where there is little room."""

WITHOUT_SENTENCE = 3
"""Lines for the formula, and for unit, bound and source."""

FORMULAS_FROM = 120
"""Cells of a page from which each figure has its formula below it, if there are the lines for all."""

NAME_FROM = 5
"""Cells of a line besides the name of its figure, before what this one says."""

SIGNS = {None: " ", True: "+", False: "-"}


class FiguresView(View):
    """A line per figure of the page before, and below it the meaning of the one under the cursor, or of each
    where there is room."""

    name = "columns"
    answers = "what each figure of the page means, and which columns are shown"
    goes_back = True
    left_by_its_key = True

    def __init__(self, views: Views) -> None:
        """`views`: those whose figures it explains."""
        super().__init__()
        self._views = views

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """A list; the meaning in one line or several."""
        place, figures = scene.place, self._views[scene.place.before].figures
        titles = figures.titles(scene)
        name_width = max(text_width(figures.label(title)) for title in titles)
        formulas = [_draw_formula(title, figures, name_width + NAME_FROM, width) for title in titles]
        tall = height >= 2 * MEANING + 2
        # Below them the sentence of the chosen one need not be said again.
        with_formulas = (
            width >= FORMULAS_FROM and len(titles) + sum(map(len, formulas)) + WITHOUT_SENTENCE + 2 <= height
        )
        below = MEANING + 1 if tall else BRIEFLY if height >= BRIEFLY + 2 else 0
        below = WITHOUT_SENTENCE + 1 if with_formulas else below
        in_full = [_draw_in_full(title, figures, name_width + NAME_FROM, width) for title in titles]
        if width >= FORMULAS_FROM and 1 + len(titles) + sum(map(len, in_full)) <= height:
            formulas, with_formulas, tall, below = in_full, True, False, 0
        scroll, shown = place.scroll.fitted(len(titles), height - 1 - below)
        lines = [draw_rule(width, f"{place.name_way('figures', width)}{figures.hint}")]
        for index in shown:
            title, chosen = titles[index], index == scroll.cursor
            sign = SIGNS[place.columns.get(title) if figures.chooses_columns else None]
            line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
            line.add(f"{sign} ", "accent")
            role: Role = "strong" if figures.is_on_screen(place, title) else "text"
            line.add(f"{fit_text(figures.label(title), name_width)}  ", role)
            meaning = explain_figure(title, figures.fields)
            line.add(_cut_meaning(meaning, width - line.width), "dim")
            line.target = index
            lines.append(line.cut(width))
            for part in formulas[index] if with_formulas else []:
                part.target = index
                lines.append(part)
        lines += [Line()] * (height - below - len(lines))
        title = titles[scroll.cursor]
        if tall:
            with_sentence = not (with_formulas and formulas[scroll.cursor])
            lines += [draw_rule(width), *draw_explanation(title, figures, width, with_sentence)]
        elif below and (meaning := explain_figure(title, figures.fields)) is not None:
            words = wrap_lines(_cut_meaning(meaning, BRIEFLY * (width - 2)), width - 2, BRIEFLY)
            lines += [Line("  ").add(text) for text in words]
        return Page(lines, PageLayout(scroll))

    def on_open(self, screen: Screen) -> None:
        """Put the cursor on the figure that the page before is sorted by or shows."""
        place, figures = screen.place, self._views[screen.place.before].figures
        titles, current = figures.titles(screen.scene()), figures.current(place)
        place.scrolls[self.name] = Scroll(titles.index(current) if current in titles else 0)

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """Every figure of the table of ranks, with the begin of its formula."""
        return tuple(
            PaletteEntry(
                f"figure {figure.title}", figure.called, "F1", Action(self.show_figure, (figure.title,))
            )
            for figure, _ in SCREEN_COLUMNS
        )

    def show_figure(self, screen: Screen, title: str) -> None:
        """Open the figures of the table of ranks at one of them."""
        screen.open_view("overview")
        screen.open_view(self.name)
        if screen.shown is None:
            return
        titles = self._views["overview"].figures.titles(screen.scene())
        if title in titles:
            screen.place.scrolls[self.name] = Scroll(titles.index(title))
            screen.repaint()
        else:
            screen.show_note(f"no rank of this run tells {title}")

    def open_chosen(self, screen: Screen) -> None:
        """Map the metric under the cursor, or show its column always, never, or where it fits."""
        if screen.shown is None:
            return
        place, figures = screen.place, self._views[screen.place.before].figures
        titles = figures.titles(screen.scene())
        figures.choose(screen, titles[min(place.scroll.cursor, len(titles) - 1)])


def _draw_formula(title: str, figures: PageFigures, column: int, width: int) -> list[Line]:
    """The begin of the formula of a figure, below its sentence; nothing where one of them is all that is
    said."""
    meaning = explain_figure(title, figures.fields)
    if meaning is None or not meaning.says or not meaning.formula:
        return []
    return [Line(" " * column).add(text, "faint") for text in wrap_lines(meaning.formula, width - column, 1)]


def _draw_in_full(title: str, figures: PageFigures, column: int, width: int) -> list[Line]:
    """The formula of a figure on as many lines as it needs, and its unit, bound, name and source."""
    meaning = explain_figure(title, figures.fields)
    if meaning is None:
        return []
    formula = meaning.formula if meaning.says else ""
    lines = [Line(" " * column).add(text, "faint") for text in wrap_lines(formula, width - column)]
    facts = _list_facts(meaning)
    told = join_parts(facts, width - column)
    if lines and lines[-1].width + 3 + told.width <= width:
        lines[-1].add("   ").extend(told)
        return lines
    return [*lines, Line(" " * column).extend(told)]


def _list_facts(meaning: Meaning) -> list[Line]:
    """Unit, bound, name in the JSON and source."""
    return [
        Line("unit ", "dim").add(meaning.unit or "none"),
        Line("bound ", "dim").add(meaning.bound or "none"),
        Line("name ", "dim").add(meaning.name),
        Line("from ", "dim").add(meaning.source) if meaning.source else Line(),
    ]


def _cut_meaning(meaning: Meaning | None, width: int) -> str:
    """What a figure says, in whole clauses; the one under the cursor is explained in full below."""
    text = "" if meaning is None else meaning.says or meaning.formula
    ends = [end.start() for end in re.finditer("[;,:]", text) if " " in text[: end.start()]]
    ends = [end for end in ends if end <= width]
    return text if text_width(text) <= width or not ends else text[: ends[-1]]


def draw_explanation(title: str, figures: PageFigures, width: int, with_sentence: bool = True) -> list[Line]:
    """The sentence and the formula; then unit, bound, name in the JSON and source."""
    meaning = explain_figure(title, figures.fields)
    if meaning is None:
        return [Line("  as it is reported", "dim")]
    sentence = wrap_lines(meaning.says, width - 2, MEANING - 3) if with_sentence else []
    formula = wrap_lines(meaning.formula, width - 2, MEANING - 2 - len(sentence))
    *facts, source = _list_facts(meaning)
    source = Line("  ").extend(source) if source.width else source
    told = Line("  ").extend(join_parts([Line(figures.label(title), "strong"), *facts], width - 2))
    if width >= FORMULAS_FROM and told.width + source.width <= width:
        told, source = told.extend(source), Line()
    return [
        *(Line("  ").add(text) for text in sentence),
        *(Line("  ").add(text, "dim" if sentence else "text") for text in formula),
        told,
        source,
    ]
