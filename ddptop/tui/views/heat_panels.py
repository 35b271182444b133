"""The panels beside the heat map: the cell under the cursor in words, how the values are distributed, the
rank over these steps, the ranks in its step, and all metrics of the rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.numbers import RATIO, UNKNOWN, count, counted, fixed, known, loss, percent
from ddptop.frames.statistics import median
from ddptop.render import table
from ddptop.render.line import Line, combine_roles, join_parts
from ddptop.render.rank_table import state_piece
from ddptop.tui.keys import Do
from ddptop.tui.views import heat_figures
from ddptop.tui.views.curve import Curve, Happened, draw_chart
from ddptop.tui.views.heat_figures import name_gravest, name_steps
from ddptop.tui.views.heat_shades import digits
from ddptop.tui.views.heat_state import NOW_FIGURES
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.columns import Column
    from ddptop.tui.scene import Scene
    from ddptop.tui.views.heat_shades import Shades

WIDTH_PART, LEAST_WIDTH = 0.3, 44
"""Share of the page's width that the panels have; and cells that they have at least."""

CELL_LINES, SHADES_LINES, CHART_LINES, MOST_RANKS = 5, 7, 11, 11
"""Lines of the panels with their titles: of the cell, of the distribution, of the chart, and at most of the
ranks in a step."""

NAME_CELLS, VALUE_CELLS = 10, 9
"""Cells of the name and the value of a row with a bar."""

N_SHADES = 5


class MapCells(NamedTuple):
    """What the panels are about: the cells of the map, and the one under the cursor."""

    figure: str
    shades: Shades
    value: Column
    """(rows, columns) the worst of the ranks of each cell; NaN: not known."""
    rank: Column
    """(rows, columns) whose value that is; less than 0: there is no rank."""
    row: int
    column: int
    steps: Sequence[tuple[int, int]] = ()
    """First and last step of each column; empty: columns are local ranks, and rows hosts."""
    folded: int = 1
    """How many ranks the cell under the cursor stands for, or hosts."""
    has_folds: bool = False
    """Whether any row stands for several."""
    gravest: int | None = None
    """The rank for whose state the row is marked; None: all of its ranks are well."""

    @property
    def chosen(self) -> int | None:
        """The rank under the cursor; None: there is none."""
        rank = int(self.rank[self.row, self.column])
        return rank if rank >= 0 else None


def width_of_panels(width: int) -> int:
    """Cells of the panels on a page of this width."""
    return max(LEAST_WIDTH, int(width * WIDTH_PART))


def draw_heat_panels(scene: Scene, cells: MapCells, width: int, height: int) -> PanelColumn:
    """A column of `height` lines."""
    inner = width - BORDER
    shades = _draw_distribution(scene, cells, inner)
    rest = height - CELL_LINES - SHADES_LINES
    cell = Panel(_title_of_cell(cells), _draw_cell(scene, cells, inner), CELL_LINES)
    n_cells = int((np.isfinite(cells.value) | (cells.rank >= 0)).sum())
    panels = [cell, Panel(f"{counted(n_cells, 'cell')} by value", shades, SHADES_LINES)]
    if cells.steps:
        n_rows = min(len(cells.value) + 1, MOST_RANKS)
        n_chart = CHART_LINES if rest - n_rows - CHART_LINES > CHART_LINES else rest - n_rows
        panels += _draw_steps(scene, cells, inner, n_chart, n_rows)
        rest -= n_chart + n_rows
    if rest > 1:
        panels.append(Panel(_title_of_metrics(cells), _draw_metrics(scene, cells, inner, rest - 1)))
    return PanelColumn(width, panels)


def _draw_steps(scene: Scene, cells: MapCells, width: int, n_chart: int, n_rows: int) -> list[Panel]:
    """The row of the cursor as a chart, and its column as a list."""
    chart = _draw_row_curve(scene, cells, width, n_chart)
    ranks = _draw_step(scene, cells, width, n_rows - 1)
    who = "the worst of each row" if cells.has_folds else "all ranks"
    return [
        Panel(f"{_name_row(cells)} over these steps", chart, n_chart),
        Panel(f"{who} in {name_steps(*cells.steps[cells.column])}", ranks, n_rows),
    ]


def _format_cell_value(figure: str, value: float) -> str:
    unit = heat_figures.METRICS[figure].unit
    if heat_figures.FIGURES[figure].integer and not unit:
        return count(value)
    return loss(value) if figure == "loss" else fixed(value, 1 if unit else RATIO)


def _with_unit(figure: str, value: float) -> str:
    unit = heat_figures.METRICS[figure].unit
    return f"{_format_cell_value(figure, value)} {unit}".rstrip() if known(value) else UNKNOWN


def _name_row(cells: MapCells) -> str:
    """`rank 3`, or `ranks 62 and 1 more`: the row of the cursor."""
    if cells.chosen is None:
        return "this row"
    return f"rank {cells.chosen}" if cells.folded == 1 else f"the worst of {cells.folded:,} ranks"


def _title_of_cell(cells: MapCells) -> str:
    who = "no rank" if cells.chosen is None else f"rank {cells.chosen}"
    return f"{who} in {name_steps(*cells.steps[cells.column])}" if cells.steps else f"{who} now"


def _draw_cell(scene: Scene, cells: MapCells, width: int) -> list[Line]:
    """Value, place among the others, and where the rank is."""
    figure, value = cells.figure, float(cells.value[cells.row, cells.column])
    rank, ranks = cells.chosen, scene.frame.ranks
    words = Line(f"{heat_figures.FIGURES[figure].called} ", "dim").add(_with_unit(figure, value), "strong")
    where = []
    if rank is not None and rank < len(ranks.host):
        state = state_piece(scene, rank)[0].partition(" ")[2]
        names = (ranks.host[rank], ranks.device[rank], state)
        where = [Line(scene.clean(name), "dim") for name in names]
    others = cells.value[:, cells.column] if cells.steps else cells.value.ravel()
    others = others[np.isfinite(others)]
    lines = [words, join_parts(where, width)]
    if known(value) and len(others) > 1:
        worse = int((others < value).sum() if cells.shades.down else (others > value).sum())
        usual = f"median {_format_cell_value(figure, float(median(others)))}"
        are = "is" if worse == 1 else "are"
        place = (
            f"{worse:,} of {len(others):,} cells {are} worse" if worse else f"worst of {len(others):,} cells"
        )
        lines.append(Line(f"{place}, {usual}", "dim"))
    what = "ranks" if cells.steps else "hosts"
    key = f"unfolds its {cells.folded:,} {what}" if cells.folded > 1 else "opens its page"
    if rank is not None:
        if cells.folded > 1 and cells.gravest is not None:
            lines.append(name_gravest(scene, cells.gravest).add("  Enter ", "accent").add("unfolds", "faint"))
        else:
            lines.append(Line("Enter ", "accent").add(key, "faint"))
    return [line.cut(width) for line in lines]


def _draw_distribution(scene: Scene, cells: MapCells, width: int) -> list[Line]:
    """How many cells have each shade; these lines are the legend of the map, too."""
    levels = cells.shades.levels(cells.value)
    counts = [int((levels == level).sum()) for level in range(N_SHADES)]
    unknown = int(((levels < 0) & (cells.rank >= 0)).sum())
    edges = cells.shades.legend(
        lambda value: fixed(value, digits(cells.shades)),
        heat_figures.METRICS[cells.figure].unit,
        scene.ascii_only,
    )
    of_cursor = int(levels[cells.row, cells.column])
    lines = []
    for level, number in zip((*range(N_SHADES), -1), (*counts, unknown), strict=True):
        chosen = level == of_cursor
        line = Line("▸" if chosen else " ", "accent").extend(edges[level]).pad(2 * NAME_CELLS)
        line.add(f"{number:>{VALUE_CELLS},}", "strong" if chosen else "text" if number else "faint")
        line.add(f"{percent(100 * number / max(1, sum(counts) + unknown)):>7}", "dim")
        lines.append(_add_bar(scene, line, cells.shades, level, number / max(1, *counts, unknown), width))
    return lines


def _add_bar(scene: Scene, line: Line, shades: Shades, level: int, share: float, width: int) -> Line:
    """A bar in the colour of a shade in the rest of the line; of any share at least one cell."""
    room = width - line.width - 1
    n_cells = max(1 if share > 0 else 0, round(share * room)) if room > 0 and np.isfinite(share) else 0
    glyph, _ = shades.sign(level, scene.ascii_only)
    role = shades.role(level)
    return line.add(" ").add(glyph * n_cells, combine_roles(role, role)).cut(width)


def _draw_row_curve(scene: Scene, cells: MapCells, width: int, height: int) -> list[Line]:
    """The values of the row of the cursor as a curve."""
    steps, values = np.asarray([last for _, last in cells.steps], np.float64), cells.value[cells.row]
    unit = heat_figures.METRICS[cells.figure].unit
    title = Line(f"{heat_figures.FIGURES[cells.figure].called} {unit}".rstrip(), "dim")
    finite = values[np.isfinite(values)]
    title.add(
        f"  median {_format_cell_value(cells.figure, float(median(finite)))}" if len(finite) else "", "dim"
    )
    # Steps a second apart, so that each is as wide.
    at_s = float(steps[cells.column] - steps[0])
    happened = Happened(float(steps[0]), events=((at_s, "▾", "accent"),))
    reach = cells.shades.edges[0] if unit == "ms" else None  # jitter must not look like a change
    curve = Curve(
        [title], steps - steps[0], values, "area", zero=unit == "ms", reach=reach, happened=happened
    )
    return draw_chart(curve, width, height - 1, scene.ascii_only).lines


def _draw_step(scene: Scene, cells: MapCells, width: int, height: int) -> list[Line]:
    """The cells of the step of the cursor, the worst first; how many more there are."""
    values, who = cells.value[:, cells.column], cells.rank[:, cells.column]
    sign = 1.0 if cells.shades.down else -1.0
    order = np.argsort(np.where(np.isnan(values), np.inf, sign * values), kind="stable").tolist()
    shown = order if len(order) <= height else order[: height - 1]
    # Up to the last edge of the shades at least: what differs by little has no long bar.
    most = max(float(np.nanmax(np.abs(values), initial=0.0)), abs(cells.shades.edges[-1]))
    levels = cells.shades.levels(values)
    lines = []
    for row in shown:
        value, chosen, rank = float(values[row]), row == cells.row, int(who[row])
        name = f"rank {rank}"
        line = Line("▸" if chosen else " ", "accent").add(
            f"{name:<{NAME_CELLS}}", "strong" if chosen else "text"
        )
        line.add(f"{_format_cell_value(cells.figure, value):>{VALUE_CELLS}}", "strong" if chosen else "text")
        share = max(0.0, value) / most if most and known(value) else 0.0
        line = _add_bar(scene, line, cells.shades, int(levels[row]), share, width)
        lines.append(line.spot(0, width, Do.RANK(rank)))
    hidden = values[order[len(shown) :]]
    hidden = hidden[np.isfinite(hidden)]
    if len(order) > len(shown):
        ends = (
            [_format_cell_value(cells.figure, float(end)) for end in (hidden.min(), hidden.max())]
            if len(hidden)
            else []
        )
        span = ends[0] if len(set(ends)) == 1 else " to ".join(ends)
        lines.append(
            Line(f"  and {len(order) - len(shown):,} more{': ' if ends else ''}{span}", "dim").cut(width)
        )
    return lines


def _title_of_metrics(cells: MapCells) -> str:
    return "every metric" if cells.chosen is None else f"every metric of rank {cells.chosen}, now"


def _draw_metrics(scene: Scene, cells: MapCells, width: int, height: int) -> list[Line]:
    """Each metric of the rank beside the median of all ranks."""
    rank = cells.chosen
    if rank is None:
        return [Line("there is no rank", "faint")]
    rows = []
    for figure in NOW_FIGURES:
        values = heat_figures.of_ranks(figure, scene.frame)
        if rank < len(values) and np.isfinite(values[rank]):
            finite = values[np.isfinite(values)]
            name = f"{heat_figures.FIGURES[figure].called} {heat_figures.METRICS[figure].unit}".rstrip()
            rows.append(
                (
                    name,
                    _format_cell_value(figure, float(values[rank])),
                    _format_cell_value(figure, float(median(finite))),
                )
            )
    columns = [
        table.measured_column("metric", [row[0] for row in rows], 100, right=False),
        table.measured_column(f"rank {rank}", [row[1] for row in rows], 90),
        table.measured_column("median", [row[2] for row in rows], 80),
    ]
    columns = table.fit_columns(columns, width, 2)
    lines = [table.draw_head(columns, 2), *(table.draw_row(columns, row, 2) for row in range(len(rows)))]
    return lines[:height]
