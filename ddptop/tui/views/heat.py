"""The heat map of any figure: ranks x recent steps, or hosts x local ranks as they are now.

Hosts are listed below each other, in several blocks beside each other.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from ddptop.frames.columns import folds
from ddptop.frames.detail import MOST_COLUMNS, count_map_steps
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import UNKNOWN, counted, fixed
from ddptop.frames.statistics import median
from ddptop.render.line import Line, combine_roles, join_parts
from ddptop.render.metrics import HEAT_FIELDS
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.phases import join_cells
from ddptop.render.text import fit_tail, fit_text, text_width, wrap_lines
from ddptop.tui.keys import Action, PaletteEntry, ScreenKey, view_key
from ddptop.tui.page_figures import PageFigures
from ddptop.tui.scene import Page, PageLayout
from ddptop.tui.view import View
from ddptop.tui.views import heat_figures
from ddptop.tui.views.heat_columns import (
    arrange_columns,
    choose_steps_per_column,
    find_usual_distance,
    fold_steps,
)
from ddptop.tui.views.heat_figures import under_cursor
from ddptop.tui.views.heat_panels import MapCells, draw_heat_panels, width_of_panels
from ddptop.tui.views.heat_shades import Shades, digits
from ddptop.tui.views.heat_state import NOW_FIGURES, Grid
from ddptop.tui.views.host_cells import LONGEST_NAME, find_row_signs, fold_cells, table_by_host
from ddptop.tui.views.panels import Panel, PanelColumn, draw_band, has_panels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ddptop.frames.columns import Column
    from ddptop.frames.detail import Heat
    from ddptop.render.line import Piece
    from ddptop.tui.scene import Place, Scene
    from ddptop.tui.screen import Screen
    from ddptop.tui.views.heat_columns import HeatColumns
    from ddptop.tui.views.heat_state import HeatState

_Cell = TypeVar("_Cell")

CELL, GAP = 2, 2
"""Terminal cells of a cell of the map, and between two blocks."""

WIDEST, TALLEST_HOST = 48, 16
"""Terminal cells and lines of a cell at most, on a page with panels."""

VALUE_FROM = 6
"""Terminal cells of a cell from which its value stands in it."""

FOLDED = 3
"""Cells for the number of further hosts that a row stands for."""


HOSTS_NOW = ("hosts x local ranks, now",)


class DrawnMap(NamedTuple):
    """The parts of the page that both shapes of the map have."""

    what: tuple[str, ...]
    """Rows and columns in words."""
    shades: Shades
    body: list[Line]
    under: Line
    """About the cell under the cursor."""
    cells: MapCells | None = None
    """What panels beside the map are about; None: there is no rank."""


def draw_host_cells(scene: Scene, state: HeatState, width: int, room: int, *, large: bool) -> DrawnMap:
    """The map of hosts x local ranks; `large`: in larger cells with their values, where all of them fit."""
    names, table, _ = table_by_host(scene)
    if state.count and state.first < len(names):
        stop = state.first + state.count
        names, table = names[state.first : stop], table[state.first : stop]
    values = heat_figures.of_ranks(state.figure, scene.frame)
    small_is_bad = heat_figures.METRICS[state.figure].small_is_bad
    usual = float(median(values)) if np.isfinite(values).any() else None
    least = heat_figures.least_range(state.figure, usual, scene.frame)
    if not len(names):
        state.grid = None
        shades = Shades.of(values, usual, least)
        return DrawnMap(HOSTS_NOW, shades, [], Line("  no rank has reported yet", "dim"))
    label = min(LONGEST_NAME, max(map(text_width, names)) + (FOLDED if len(names) > room else 0)) + 1
    cell, tall = _enlarge_cells(table.shape, label, width, room) if large else (CELL, 1)
    block = label + table.shape[1] * cell + 2
    blocks = max(1, (width + GAP) // (block + GAP))
    edges = folds(len(names), room * blocks)
    value, rank = fold_cells(values, table, edges, small_is_bad)
    shades = _settle_shades(state, Shades.of(value, usual, least, down=small_is_bad), value.size)
    offset = state.first if state.count else 0
    rows, columns = value.shape
    state.grid = Grid(
        top=1,
        left=label + 1,
        rows=rows,
        columns=columns,
        cell=cell,
        tall=tall,
        folds=tuple((int(edges[i]) + offset, int(edges[i + 1]) + offset) for i in range(rows)),
        worst=tuple(int(who) if who >= 0 else None for who in rank.ravel().tolist()),
        gravest=tuple(_find_gravest(scene, table, edges)),
        lines=room if tall == 1 else rows,
        block=block + GAP,
    )
    state.settle()
    host_map = HostMap(names, edges, value, rank, shades)
    lines = _draw_hosts(scene, state, host_map, label, room, state.grid)
    ranks = np.array([-1 if who is None else who for who in state.grid.worst]).reshape(value.shape)
    folded = int(edges[state.row + 1] - edges[state.row])
    cells = MapCells(
        state.figure,
        shades,
        value,
        ranks,
        state.row,
        state.column,
        folded=folded,
        gravest=state.gravest(),
    )
    return DrawnMap(HOSTS_NOW, shades, lines, _draw_under_of_hosts(scene, state, host_map, width), cells)


def _find_gravest(scene: Scene, table: NDArray[np.int64], edges: NDArray[np.int64]) -> Iterator[int | None]:
    """The rank with the worst state in each row; None: all are well."""
    for first, stop in itertools.pairwise(edges.tolist()):
        ranks = table[first:stop].ravel()
        yield scene.gravest(sorted(ranks[ranks >= 0].tolist()))


def _enlarge_cells(shape: tuple[int, ...], label: int, width: int, room: int) -> tuple[int, int]:
    """Terminal cells and lines of a cell with which all hosts fill the room; the usual ones where they do not
    fit."""
    n_hosts, n_columns = shape
    n_blocks = -(-n_hosts // room)
    cell = min(WIDEST, ((width + GAP) // n_blocks - GAP - label - 2) // n_columns)
    if cell <= CELL:
        return CELL, 1
    return cell, min(TALLEST_HOST, room // n_hosts) if n_blocks == 1 else 1


class HostMap(NamedTuple):
    """The values of hosts x local ranks; a row may stand for several hosts."""

    names: tuple[str, ...]
    edges: NDArray[np.int64]
    """(rows + 1,) the first host of every row, and the one after the last."""
    value: NDArray[np.float64]
    """(rows, local ranks) the worst value."""
    rank: NDArray[np.int64]
    """(rows, local ranks) whose value that is; -1: there is no rank."""
    shades: Shades


def _draw_hosts(
    scene: Scene, state: HeatState, host_map: HostMap, label: int, room: int, grid: Grid
) -> list[Line]:
    names, edges, values, rank, shades = host_map
    levels = shades.levels(values)
    signs = find_row_signs(scene, state.first if state.count else 0, edges)
    lines = [Line() for _ in range(min(room, len(values) * grid.tall))]
    for row in range(len(values)):
        # Rows that do not fit below each other go on in a block to the right.
        line, has_cursor = lines[row * grid.tall % room + (grid.tall - 1) // 2], row == state.row
        line.add(" " * GAP if row >= room else "")
        first, stop = int(edges[row]), int(edges[row + 1])
        hidden = f"+{stop - first - 1}" if stop - first > 1 else ""
        name = fit_tail(names[first], label - 1 - len(hidden)) + hidden
        sign: Piece = ("▸", "accent") if has_cursor else signs[row]
        line.add(*sign).add(name, "strong" if has_cursor else "dim")
        local = [level if who >= 0 else None for level, who in zip(levels[row], rank[row], strict=True)]
        cells = shades.cells(local, grid.cell, state.column if has_cursor else None, scene.ascii_only)
        for below in lines[row * grid.tall : (row + 1) * grid.tall] if grid.tall > 1 else ():
            if below is not line:
                below.pad(label).extend(cells)
        line.extend(_with_values(cells, values[row].tolist(), shades, local, grid.cell))
    return lines


def _with_values(
    cells: Line, values: list[float], shades: Shades, levels: list[int | None], cell: int
) -> Line:
    """The cells of a row with their values, where these have room."""
    if cell < VALUE_FROM:
        return cells
    letters: list[Piece] = [(sign, role) for text, role in cells.pieces for sign in text]
    for index, (value, level) in enumerate(zip(values, levels, strict=True)):
        text = "" if level is None or level < 0 else fixed(value, max(1, digits(shades)))
        if level is None or not 0 < len(text) <= cell - 2:
            continue
        begin = 1 + index * cell + (cell - len(text)) // 2
        ink = combine_roles("ink", shades.role(level))
        letters[begin : begin + len(text)] = [(letter, ink) for letter in text]
    return join_cells(letters)


def _draw_under_of_hosts(scene: Scene, state: HeatState, host_map: HostMap, width: int) -> Line:
    rank, edges = state.rank(), host_map.edges
    if rank is None:
        where = f"{host_map.names[int(edges[state.row])]} has no local rank {state.column}"
        return join_parts([Line("▸", "accent"), Line(where, "dim")], width, 1)
    hosts, value = (
        int(edges[state.row + 1] - edges[state.row]),
        float(host_map.value[state.row, state.column]),
    )
    return under_cursor(scene, width, state.figure, rank, value, hosts, " hosts", gravest=state.gravest())


WORST, WORST_AND_HOST = 14, 34
"""Cells for the worst of a row, at the right."""

MIN_FOR_LEGEND, MIN_FOR_AXIS = 7, 5
"""Lines of the page from which these are worth one of them."""

MISSING = "!"
"""Above the first step after some that were lost or thinned out."""

TALLEST_ROW = 10
"""Lines that a row takes at most, where there are few ranks."""


def _draw_whole(scene: Scene, state: HeatState, drawn: DrawnMap, width: int, height: int) -> list[Line]:
    """Title, map, the cell under the cursor, and the legend at the foot."""
    _, shades, body, under, cells = drawn
    shown = scene.frame.heat
    figure = state.figure if state.hosts or shown is None else shown.figure
    head = _draw_head(scene, state, figure, drawn.what, width)
    if cells is not None and has_panels(width, height):
        beside = width_of_panels(width)
        columns = [
            PanelColumn(width - beside, [Panel(None, body)]),
            draw_heat_panels(scene, cells, beside, height - 1),
        ]
        return [head, *draw_band(columns, height - 1)]
    foot = [under]
    if height >= MIN_FOR_LEGEND:
        places = digits(shades)
        unit = heat_figures.METRICS[figure].unit
        foot.append(join_parts(shades.legend(lambda v: fixed(v, places), unit, scene.ascii_only), width))
    lines = [head, *body]
    return [*lines, *(Line() for _ in range(height - len(lines) - len(foot))), *foot]


def _describe_steps(heat: Heat, shown: StepMap, state: HeatState) -> tuple[str, ...]:
    """`ranks x 57 steps`, `4 a column`: as many as are drawn; newest and oldest stand on the axis."""
    timed = "timed step" if heat_figures.METRICS[heat.figure].is_timed else "step"
    n_steps = int(shown.columns.edges[-1] - shown.columns.edges[0])
    a_column = f"{state.steps_per_column} a column" if state.steps_per_column > 1 else ""
    return f"ranks x last {counted(n_steps, timed)}", a_column


def _draw_head(scene: Scene, state: HeatState, figure: str, what: tuple[str, ...], width: int) -> Line:
    part = (
        f"ranks {state.first:,}-{state.first + state.count - 1:,}" if state.count and not state.hosts else ""
    )
    asked = f"{state.figure} was requested" if figure != state.figure else ""
    unknown = scene.frame.group.clock_free and figure == "lateness"
    number = state.figures.index(state.figure) + 1 if state.figure in state.figures else 0
    return join_parts(
        [
            Line(heat_figures.title(figure, scene.frame), "strong"),
            *(Line(words if scene.ascii_only else words.replace(" x ", " × "), "dim") for words in what),
            Line(part, "accent"),
            Line(asked, "warn"),
            Line("clocks too inexact", "warn") if unknown else Line(),
            Line(f"metric {number}/{len(state.figures)}", "faint"),
        ],
        width,
    )


def _make_shades(scene: Scene, state: HeatState, heat: Heat) -> Shades:
    least = heat_figures.least_range(heat.figure, heat.middle, scene.frame)
    small_is_bad = heat_figures.METRICS[heat.figure].small_is_bad
    return _settle_shades(
        state, Shades.of(heat.value, heat.middle, least, down=small_is_bad), heat.value.size
    )


MANY_VALUES = 64
"""Values from which their range is kept: that of fewer tells little about the values to come."""


def _settle_shades(state: HeatState, shades: Shades, n_values: int) -> Shades:
    """These shades, or those of the last picture of the same figure and ranks while they are near to them."""
    of = (state.hosts, state.figure, *state.inside)
    if state.shades is not None and state.shades[0] == of:
        shades = shades.settle(state.shades[1])
    state.shades = (of, shades) if n_values >= MANY_VALUES else None
    return shades


class MapRoom(NamedTuple):
    """The room that a map of ranks x steps has, in cells and lines."""

    label: int
    side: int
    """Cells at the right for the worst of a row; 0: none."""
    rows: int
    tallest: int
    """Lines that a row takes at most."""
    has_axis: bool


class StepMap(NamedTuple):
    """The cells of a map of ranks x steps, in the order of the steps."""

    columns: HeatColumns
    value: Column
    """(rows, columns) the worst of the ranks and steps of each cell; NaN: not known."""
    rank: Column
    """(rows, columns) whose value that is; NaN: not known."""

    @classmethod
    def fold(cls, state: HeatState, heat: Heat, n_rows: int) -> StepMap:
        """`n_rows`: lines that there is room for."""
        # A frame may still have a map for a taller screen, until the next one comes.
        rows = min(len(heat.rows) - 1, n_rows)
        columns = arrange_columns(heat.steps, state.width, state.steps_per_column)
        small_is_bad = heat_figures.METRICS[heat.figure].small_is_bad
        return cls(columns, *fold_steps(heat, columns, rows, worst_is_least=small_is_bad))

    def place(self, cells: Sequence[_Cell], n_columns: int) -> list[_Cell | None]:
        """The cells of a row as they are on a map of so many columns; None: there is no step."""
        row: list[_Cell | None] = [None] * n_columns
        for place, cell in zip(self.columns.places, cells, strict=True):
            row[place] = cell
        return row


def _draw_steps(
    scene: Scene, state: HeatState, heat: Heat, shown: StepMap, shades: Shades, room: MapRoom
) -> list[Line]:
    rows, n_columns = len(shown.value), state.width
    folds = tuple((heat.rows[i], heat.rows[i + 1]) for i in range(rows))
    grid = Grid(
        top=2 if room.has_axis else 1,
        left=room.label + 3,
        rows=rows,
        columns=n_columns,
        cell=1,
        tall=max(1, min(room.tallest, room.rows // max(1, rows))),
        folds=folds,
        worst=tuple(
            rank
            for (first, _), row_ranks in zip(folds, shown.rank.tolist(), strict=True)
            for rank in shown.place([first if np.isnan(who) else int(who) for who in row_ranks], n_columns)
        ),
        gravest=tuple(scene.gravest(range(first, stop)) for first, stop in folds),
        order=shown.columns.places,
        first_steps=tuple(first for first, _ in shown.columns.steps),
    )
    state.grid = grid
    if state.sought is not None:
        sought, state.sought = state.sought, None
        state.row = next((i for i, (first, stop) in enumerate(folds) if first <= sought < stop), state.row)
    state.settle()
    chosen = grid.order[grid.find_place(state.step)]
    lines = [_draw_axis(shown.columns, chosen, room.label, n_columns)] if room.has_axis else []
    if room.has_axis and room.side:
        lines[0].pad(room.label + 4 + n_columns).add("  worst", "dim")
    parted_at = shown.columns.parted_at
    for row, levels in enumerate(shades.levels(shown.value).tolist()):
        has_cursor = row == state.row
        cells_of_row = shown.place(levels, n_columns)
        row_lines = [_draw_row_label(scene, folds[row], room.label, has_cursor)]
        row_lines[0].extend(
            shades.cells(cells_of_row, 1, chosen if has_cursor else None, scene.ascii_only, parted_at)
        )
        below = Line(" " * (room.label + 2)).extend(
            shades.cells(cells_of_row, 1, None, scene.ascii_only, parted_at)
        )
        row_lines += [Line().extend(below) for _ in range(grid.tall - 1)]
        if room.side:
            worst = _describe_worst(scene, shown.value[row], shown.rank[row], shades, room.side)
            marked, (first, stop) = grid.gravest[row], folds[row]
            if marked is None or stop - first == 1:
                row_lines[0].add(worst, "strong" if has_cursor else "dim")
            else:
                row_lines[0].extend(_name_marked(scene, marked, room.side))
        lines += row_lines
    return lines


def _draw_row_label(scene: Scene, ranks: tuple[int, int], label: int, has_cursor: bool) -> Line:
    """The ranks of a row, and the sign of the worst of their states."""
    first, stop = ranks
    name = f"{first}" if stop - first == 1 else f"{first}-{stop - 1}"
    line = Line("▸" if has_cursor else " ", "accent")
    line.add(fit_text(name, label, right=True), "strong" if has_cursor else "dim")
    return line.add(*scene.sign(first, stop))


def _draw_axis(columns: HeatColumns, chosen: int, label: int, n_columns: int) -> Line:
    """The axis of steps: where the cursor is, where steps are missing, and the steps at the ends of both
    parts, the newest steps at the left and older ones at the right."""
    signs: list[Piece] = [(" ", "faint")] * n_columns
    for place in columns.after_hole:
        signs[place] = MISSING, "warn"
    signs[chosen] = "▾", "accent"
    places, steps, n_older = columns.places, columns.steps, columns.n_older
    newest, oldest = ("newest ", "oldest ") if n_columns >= LONG_NAMES_FROM else ("new ", "old ")
    last, first = f"{steps[-1][1]:,}", f"{steps[n_older][0]:,}"
    on_newest = int(chosen == places[-1])
    before = [(places[-1] + 1 - on_newest - len(text), text) for text in (newest + last, last)]
    _put_first(signs, [*before, *((places[-1] + on_newest, text) for _, text in before)])
    _put_first(signs, [(places[n_older], first)])
    if n_older:
        begin, end = f"{steps[0][0]:,}", f"{steps[n_older - 1][1]:,}"
        _put_first(signs, [(places[0], oldest + begin), (places[0], begin)])
        _put_first(signs, [(places[n_older - 1] + 1 - len(end), end)])
    return Line(" " * (label + 3)).extend(join_cells(signs))


LONG_NAMES_FROM = 48
"""Columns of a map from which it has room for whole words."""


def _put_first(signs: list[Piece], texts: Sequence[tuple[int, str]]) -> None:
    """Write the first of these texts, each at its place, that fits beside what is there."""
    for begin, text in texts:
        around = signs[max(0, begin - 1) : begin + len(text) + 1]
        if 0 <= begin <= len(signs) - len(text) and all(sign in " ▾" for sign, _ in around):
            signs[begin : begin + len(text)] = [(sign, "faint") for sign in text]
            return


def _name_marked(scene: Scene, rank: int, width: int) -> Line:
    """`      ■ r2050`, and its host where there is room: in the place of the largest value of its row."""
    sign, role = scene.sign(rank, rank + 1)
    line = Line(f" {sign:>6} r{rank}", role)
    hosts = host_index(scene.frame.ranks.host).rank_short
    return line if width < WORST_AND_HOST else line.add(f" {scene.clean(hosts[rank])}", "dim").cut(width)


def _describe_worst(scene: Scene, values: Column, ranks: Column, shades: Shades, width: int) -> str:
    """` 21.4 r1`, and its host where there is room."""
    values = np.where(np.isnan(ranks), np.nan, values)
    if np.isnan(values).all():
        return f" {UNKNOWN:>6}"
    worst_index = int(np.nanargmin(values) if shades.down else np.nanargmax(values))
    rank = int(ranks[worst_index])
    value = float(values[worst_index])
    text = f" {fixed(value, 0 if abs(value) >= 1_000 else max(1, digits(shades))):>6} r{rank}"
    hosts = host_index(scene.frame.ranks.host).rank_short
    if width < WORST_AND_HOST or rank >= len(hosts):
        return text
    return fit_text(f"{text} {scene.clean(hosts[rank])}", width)


def _draw_under_cursor(scene: Scene, state: HeatState, heat: Heat, shown: StepMap, width: int) -> Line:
    """What the cell under the cursor stands for."""
    grid, cell = state.grid, state.cell()
    if grid is None or cell is None:
        return Line()
    row, place = divmod(cell, grid.columns)
    index = shown.columns.places.index(place)
    first, stop = grid.folds[row]
    rank = grid.worst[cell]
    return under_cursor(
        scene,
        width,
        heat.figure,
        first if rank is None else rank,
        float(shown.value[row, index]),
        stop - first,
        "",
        steps=shown.columns.steps[index],
        gravest=state.gravest(),
    )


def _find_cells(state: HeatState, heat: Heat, shown: StepMap, shades: Shades) -> MapCells | None:
    """The cells of the map of ranks x steps and the place of the cursor; None: there is none."""
    grid, cell = state.grid, state.cell()
    if grid is None or cell is None:
        return None
    row, place = divmod(cell, grid.columns)
    folds = np.array(grid.folds)
    sizes = folds[:, 1] - folds[:, 0]
    ranks = np.where(np.isnan(shown.rank), folds[:, :1], shown.rank)
    return MapCells(
        heat.figure,
        shades,
        shown.value,
        ranks,
        row,
        shown.columns.places.index(place),
        shown.columns.steps,
        int(sizes[row]),
        bool((sizes > 1).any()),
        state.gravest(),
    )


class HeatFigures(PageFigures):
    """The metrics of the map: Enter shows one."""

    fields = HEAT_FIELDS
    hint = " · Enter shows the metric"
    chooses_columns = False

    def titles(self, scene: Scene) -> tuple[str, ...]:
        """The titles of the map in its present shape."""
        return scene.place.heat.figures

    def label(self, title: str) -> str:
        """The title of the metric."""
        return heat_figures.FIGURES[title].called

    def current(self, place: Place) -> str:
        """The metric that is shown."""
        return place.heat.figure

    def is_on_screen(self, place: Place, title: str) -> bool:
        """Whether it is the metric that is shown."""
        return title == place.heat.figure

    def choose(self, screen: Screen, title: str) -> None:
        """Show a metric."""
        screen.place.heat.choose(title)
        screen.open_view("heat")


class HeatView(View):
    """Any metric as a map of ranks by steps, or of hosts by local ranks."""

    name = "heat"
    answers = "all ranks over the last steps, by any metric"
    number = "4"
    in_box = False  # the map has no title that a box could begin with
    always_named = True
    filters_here = True
    figures = HeatFigures()

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """Cursor, metric and shape."""
        return (
            view_key("left", "Left", self.move_cells, "", "the previous cell", -1),
            view_key("right", "Right", self.move_cells, "", "the next cell", 1),
            view_key("m", "m", self.show_next_metric, "metric", "the next metric", 1),
            view_key("M", "M", self.show_next_metric, "", "the previous metric", -1),
            view_key("v", "v", self.toggle_shape, "shape", "ranks by steps, or hosts by local ranks"),
        )

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Map, what is under the cursor, and what the shades mean."""
        world = len(scene.frame.ranks.state)
        state = scene.place.heat.fitted_to(world, scene.by_steps or scene.frame.group.step is None)
        extra = 2 + (height >= MIN_FOR_LEGEND) + (height >= MIN_FOR_AXIS)
        room = max(1, height - extra)
        beside = width_of_panels(width) if has_panels(width, height) else 0
        room = height - (2 if beside and not state.hosts else 1) if beside else room
        left = width - beside
        if state.hosts:
            drawn = draw_host_cells(scene, state, left - (1 if beside else 0), room, large=beside > 0)
            return Page(_draw_whole(scene, state, drawn, width, height), PageLayout(heat=state))
        label = max(5, 2 * len(str(max(0, world - 1))) + 1)
        side = 0 if width < 60 else WORST if width < 110 or beside else WORST_AND_HOST
        state.height, state.width = room, min(max(1, left - label - 4 - side), MOST_COLUMNS)
        group, heat = scene.frame.group, scene.frame.heat
        if state.step is not None and state.step > (group.step or 0):
            state.step = None  # of before a restart, or a later one of the recording
        distance = 1 if heat is None else find_usual_distance(heat.steps)
        state.steps_per_column = choose_steps_per_column(
            state.width,
            count_map_steps(world, group.window_steps),
            distance * (group.step_ms_p50 or 0.0),
            state.steps_per_column,
        )
        if heat is None or not heat.steps:
            state.grid = None
            text = "The map was requested; it comes with the next frame."
            if scene.frozen:
                text = "The frozen frame has no map; press space to continue with the newest one."
            lines = [Line(), *(Line("  ").add(row, "dim") for row in wrap_lines(text, width - 4))]
            if scene.frame.group.step is None or (heat is not None and not heat.steps):
                lines = draw_before_first_step(scene, width, height - 1)
            head = _draw_head(scene, state, state.figure, (), width)
            return Page([head, *lines][:height], PageLayout(heat=state))
        shades, shown = _make_shades(scene, state, heat), StepMap.fold(state, heat, room)
        tallest = room if beside else TALLEST_ROW
        room_of_map = MapRoom(label, side, room, tallest, has_axis=height >= MIN_FOR_AXIS)
        body = _draw_steps(scene, state, heat, shown, shades, room_of_map)
        cells = _find_cells(state, heat, shown, shades)
        under = _draw_under_cursor(scene, state, heat, shown, width)
        drawn = DrawnMap(_describe_steps(heat, shown, state), shades, body, under, cells)
        return Page(_draw_whole(scene, state, drawn, width, height), PageLayout(heat=state))

    def requested_detail(self, place: Place) -> str:
        """The map of ranks by steps; the other one is in every frame."""
        return place.heat.request()

    def palette_entries(self) -> tuple[PaletteEntry, ...]:
        """Every metric."""
        return tuple(
            PaletteEntry(
                f"heat {figure}", f"the heat map of {figure}", "", Action(self.show_metric, (figure,))
            )
            for figure in NOW_FIGURES
        )

    def on_open(self, screen: Screen) -> None:
        """The cursor goes to the row of the rank that was under it elsewhere."""
        screen.place.heat.sought = screen.place.rank

    def step_back(self, place: Place) -> bool:
        """Undo the last unfolding."""
        return place.heat.leave()

    def move(self, screen: Screen, lines: int) -> None:
        """Move the cursor down."""
        screen.place.heat.move(lines)
        screen.repaint()

    def move_pages(self, screen: Screen, pages: int) -> None:
        """Move the cursor by the rows of the map."""
        self.move(screen, pages * screen.place.heat.page)

    def open_chosen(self, screen: Screen) -> None:
        """Unfold the cell under the cursor; where it stands for one rank, open that rank."""
        rank = screen.place.heat.enter()
        screen.open_rank(rank) if rank is not None else screen.repaint()

    def rank_under_cursor(self, place: Place) -> int:
        """The rank whose value the cell shows."""
        rank = place.heat.rank()
        return place.rank if rank is None else rank

    def click(self, screen: Screen, x: int, y: int, *, twice: bool) -> bool:
        """Move the cursor to a cell; a second click opens it."""
        if not screen.place.heat.click(x, y - 1):  # the header is above
            return False
        self.open_chosen(screen) if twice else screen.repaint()
        return True

    def move_cells(self, screen: Screen, by: int) -> None:
        """Move the cursor some cells to the right."""
        screen.place.heat.move(0, by)
        screen.repaint()

    def show_next_metric(self, screen: Screen, by: int) -> None:
        """Show the next metric, or the one before."""
        screen.place.heat.next_figure(by)
        screen.repaint()

    def show_metric(self, screen: Screen, name: str) -> None:
        """Show a metric, by its name."""
        screen.place.heat.choose(name)
        screen.open_view("heat")

    def toggle_shape(self, screen: Screen) -> None:
        """Ranks by steps, or hosts by local ranks."""
        screen.place.heat.toggle_shape()
        screen.repaint()
