"""The figures of the page before: what each one means; of a table, which of them are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ddptop.frames.hosts import host_index
from ddptop.render.host_table import FIGURES
from ddptop.render.line import Line, gather, rule
from ddptop.render.metrics import BUCKET_FIELDS, FIELDS, HEAT_FIELDS, HOST_FIELDS, explain
from ddptop.render.rank_table import rank_columns
from ddptop.render.text import cells, fit, wrap
from ddptop.tui.scene import Layout, Page
from ddptop.tui.views.heat_figures import METRICS

if TYPE_CHECKING:
    from ddptop.tui.scene import Scene

MEANING = 5
"""Lines for the formula of the figure under the cursor, and for unit, bound and source."""

BRIEFLY = 2
"""The same where there is little room: the formula alone."""

SIGNS = {None: " ", True: "+", False: "-"}


BY_VIEW: Mapping[str, Mapping[str, str]] = {
    "heat": HEAT_FIELDS,
    "hosts": HOST_FIELDS,
    "buckets": BUCKET_FIELDS,
}
"""The figures of a view by their titles, where they are not those of ranks."""

OF_RANKS = FIELDS | {"clock": HOST_FIELDS["clock±"]}
"""Those of ranks, by host."""


def chooses(before: str) -> bool:
    """Whether the columns of the page before can be chosen."""
    return before not in ("heat", "buckets")


def figure_titles(scene: Scene) -> tuple[str, ...]:
    """The figures of the page before: titles of columns, or metrics of the heat map."""
    before = scene.place.before
    if before == "heat":
        return scene.place.heat.figures
    if before == "hosts":
        return tuple(FIGURES)
    if before == "buckets":
        return tuple(BUCKET_FIELDS)
    titles = [column.title for column in rank_columns(scene) if column.title != "rank"]
    return tuple([*titles, "clock"] if len(host_index(scene.frame.ranks.host).names) > 1 else titles)


def columns_page(scene: Scene, width: int, height: int) -> Page:
    """A line per figure, and below it the meaning of the one under the cursor."""
    place, titles, heat = scene.place, figure_titles(scene), scene.place.before == "heat"
    fields = BY_VIEW.get(place.before, OF_RANKS)
    tall = height >= 2 * MEANING + 2
    below = MEANING + 1 if tall else BRIEFLY if height >= BRIEFLY + 2 else 0
    scroll, shown = place.scroll.fitted(len(titles), height - 1 - below)
    how = " · Enter shows the metric" if heat else " · Enter: + always  - never  blank: where it fits"
    lines = [rule(width, f"figures{'' if place.before == 'buckets' else how}")]
    names = {title: METRICS[title].title or title for title in titles} if heat else {}
    name_width = max(cells(names.get(title, title)) for title in titles)
    for at in shown:
        title, chosen = titles[at], at == scroll.cursor
        sign = SIGNS[place.columns.get(title) if chooses(place.before) else None]
        line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
        line.add(f"{sign} ", "accent")
        on_screen = (
            title == place.heat.figure if heat else title in place.sortable or not chooses(place.before)
        )
        line.add(f"{fit(names.get(title, title), name_width)}  ", "strong" if on_screen else "text")
        meaning = explain(title, fields)
        line.add(meaning.formula if meaning else "", "dim")
        line.target = at
        lines.append(line.cut(width))
    lines += [Line()] * (height - below - len(lines))
    if tall:
        lines += [rule(width), *explanation(titles[scroll.cursor], fields, names, width)]
    elif below and (meaning := explain(titles[scroll.cursor], fields)) is not None:
        lines += [Line("  ").add(text) for text in wrap(meaning.formula, width - 2, BRIEFLY)]
    return Page(lines, Layout(scroll))


def explanation(title: str, fields: Mapping[str, str], names: Mapping[str, str], width: int) -> list[Line]:
    """Formula; then unit, bound, name in the JSON and source. `names`: other titles on the page."""
    meaning = explain(title, fields)
    if meaning is None:
        return [Line("  as it is reported", "dim")]
    formula = wrap(meaning.formula, width - 2, MEANING - 2)
    rest = [
        Line(names.get(title, title), "strong"),
        Line("unit ", "dim").add(meaning.unit or "none"),
        Line("bound ", "dim").add(meaning.bound or "none"),
        Line("name ", "dim").add(meaning.name),
    ]
    source = Line("  from ", "dim").add(meaning.source) if meaning.source else Line()
    return [*(Line("  ").add(text) for text in formula), Line("  ").extend(gather(rest, width - 2)), source]
