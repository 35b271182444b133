"""What the heat map shows, where its cursor is, and which cells it has on the screen."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ddptop.frames.detail import HEAT_FIGURES, MOST_COLUMNS, MOST_ROWS, HeatRequest
from ddptop.frames.figures import figures_shown

if TYPE_CHECKING:
    from ddptop.tui.views.heat_shades import Shades

NOW_FIGURES = tuple(how.key for _, how in figures_shown(lambda figure: figure.heat))
"""Metrics of hosts x local ranks, in the order of the key; those of ranks x steps are `HEAT_FIGURES`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the map is, in cells of the page, and which ranks each cell stands for."""

    top: int
    left: int
    rows: int
    columns: int
    cell: int
    """Terminal cells that one cell of the map is wide."""
    tall: int
    """Lines that one row of it takes."""
    folds: tuple[tuple[int, int], ...]
    """The first rank (or host) of every row, and the one after its last."""
    worst: tuple[int | None, ...]
    """Whose value every cell shows, row by row; None: there is no rank."""
    lines: int = 0
    """Rows below each other, where they go on in a block to the right; 0: all."""
    block: int = 0
    """Terminal cells from one block to the next."""
    gravest: tuple[int | None, ...] = ()
    """The rank with the worst state in each row; None: all are well."""
    order: tuple[int, ...] = ()
    """The columns that have a step, in the order of their steps; empty: columns are local ranks."""
    first_steps: tuple[int, ...] = ()
    """The first step of each of these."""

    def find_place(self, step: int | None) -> int:
        """Index in `order` of the column of a step, or of the last one before it; None: the newest step."""
        return len(self.order) - 1 if step is None else max(0, bisect_right(self.first_steps, step) - 1)


@dataclass
class HeatState:
    """Metric, shape, the unfolded ranks, and the cursor."""

    figure: str = "excess"
    hosts: bool = False
    """Hosts x local ranks, as they are now; otherwise ranks x recent steps."""
    row: int = 0
    column: int = 0
    """The local rank of the cursor in the map of hosts."""
    step: int | None = None
    """The step of the cursor in the map of steps; None: the newest one, also when further steps come."""
    inside: list[tuple[int, int]] = field(default_factory=list)
    """Ranks (first, count) that were unfolded, one within the other."""
    height: int = 16
    width: int = 64
    """Rows and columns that there is room for."""
    steps_per_column: int = 0
    """Steps of a column in the last picture of ranks x recent steps; 0: there was none."""
    shades: tuple[tuple[object, ...], Shades] | None = field(default=None, repr=False)
    """What the shades of the last picture were for, and these shades."""
    grid: Grid | None = None
    sought: int | None = None
    """A rank whose row the cursor goes to in the next picture of ranks x recent steps."""

    @property
    def page(self) -> int:
        """Rows of a page."""
        return max(1, self.height)

    @property
    def first(self) -> int:
        """First rank shown."""
        return self.inside[-1][0] if self.inside else 0

    @property
    def count(self) -> int:
        """Ranks shown; 0: all."""
        return self.inside[-1][1] if self.inside else 0

    @property
    def figures(self) -> tuple[str, ...]:
        """The metrics of the present shape."""
        return NOW_FIGURES if self.hosts else HEAT_FIGURES

    def fitted_to(self, world: int, by_steps: bool) -> HeatState:
        """A copy for a picture of `world` ranks: all of them, where the unfolded ranks are not among them.

        `by_steps`: own times are known. Otherwise step time takes the place of the excess.
        """
        inside = [] if not self.hosts and self.first >= world else list(self.inside)
        figure = "step" if self.figure == "excess" and not by_steps else self.figure
        return replace(self, inside=inside, figure=figure)

    def next_figure(self, by: int) -> None:
        """Choose the metric after this one, or before it."""
        index = self.figures.index(self.figure)
        self.figure = self.figures[(index + by) % len(self.figures)]

    def choose(self, figure: str) -> None:
        """Choose a metric by name; one that is not known for each step switches to hosts x local ranks."""
        if figure in NOW_FIGURES:
            self.hosts = self.hosts or figure not in HEAT_FIGURES
            self.figure = figure

    def toggle_shape(self) -> None:
        """Switch to the other shape."""
        self.hosts = not self.hosts
        # A cell of one shape has no counterpart in the other.
        self.row, self.column, self.step, self.inside = 0, 0, None, []
        if self.figure not in self.figures:
            self.figure = self.figures[0]

    def move(self, rows: int, columns: int = 0) -> None:
        """Move the cursor down and to the right, or to later steps. At the newest step it stays with it."""
        grid = self.grid
        if grid is None:
            return
        self.row += rows
        if not columns:
            self.settle()
            return
        if grid.order:
            self.point_at(min(max(grid.find_place(self.step) + columns, 0), len(grid.order) - 1))
            self.settle()
            return
        last = max(0, grid.columns - 1)
        column = min(self.column, last) + columns
        if grid.lines and column > last and self.row + grid.lines < grid.rows:
            self.row, column = self.row + grid.lines, 0
        elif grid.lines and column < 0 <= self.row - grid.lines:
            self.row, column = self.row - grid.lines, last
        self.column = min(max(column, 0), last)
        self.settle()

    def point_at(self, place: int) -> None:
        """Move the cursor to a column of the map of steps, by its index in `Grid.order`. On the column of the
        newest step it follows the newest step."""
        grid = self.grid
        if grid is not None:
            self.step = None if place == len(grid.order) - 1 else grid.first_steps[place]

    def settle(self) -> None:
        """Keep the cursor on the map, whatever its size is now."""
        if self.grid is not None:
            self.row = min(max(self.row, 0), max(0, self.grid.rows - 1))
            self.column = min(self.column, max(0, self.grid.columns - 1))
            if self.grid.order and self.step is not None and self.step < self.grid.first_steps[0]:
                self.step = None  # it is no longer shown

    def cell(self) -> int | None:
        """Place of the cell under the cursor, row by row."""
        grid = self.grid
        if grid is None or not grid.rows or not grid.columns:
            return None
        column = grid.order[grid.find_place(self.step)] if grid.order else min(self.column, grid.columns - 1)
        return min(self.row, grid.rows - 1) * grid.columns + column

    def rank(self) -> int | None:
        """Whose value the cell under the cursor shows."""
        cell = self.cell()
        return None if cell is None or self.grid is None else self.grid.worst[cell]

    def gravest(self) -> int | None:
        """The rank for whose state the row of the cursor is marked; None: all of its ranks are well."""
        grid = self.grid
        return None if grid is None or self.row >= len(grid.gravest) else grid.gravest[self.row]

    def enter(self) -> int | None:
        """Unfold the cell under the cursor; of a cell with one rank that rank, whose page may be opened."""
        cell, grid = self.cell(), self.grid
        if cell is None or grid is None:
            return None
        first, stop = grid.folds[cell // grid.columns]
        worst = grid.worst[cell]
        if stop - first <= 1 or (first, stop - first) == (self.first, self.count):
            return worst
        self.inside.append((first, stop - first))
        rows = min(self.height, stop - first)
        sought = worst if self.gravest() is None else self.gravest()
        inside = 0 if sought is None or self.hosts else sought - first
        self.row, self.grid = ((inside + 1) * rows - 1) // (stop - first), None
        return None

    def leave(self) -> bool:
        """Undo the last unfolding; False where all ranks were shown already."""
        if not self.inside:
            return False
        self.inside.pop()
        self.row, self.grid = 0, None
        return True

    def click(self, x: int, y: int) -> bool:
        """Move the cursor to a cell of the body; True where the map is there."""
        grid = self.grid
        if grid is None:
            return False
        block, inside = divmod(x, grid.block) if grid.block else (0, x)
        line, column = (y - grid.top) // max(1, grid.tall), (inside - grid.left) // max(1, grid.cell)
        row = line + block * grid.lines
        on_map = 0 <= line < (grid.lines or grid.rows) and inside >= grid.left and column < grid.columns
        if not on_map or row >= grid.rows:
            return False
        if grid.order and column not in grid.order:
            return False
        self.row = row
        if grid.order:
            self.point_at(grid.order.index(column))
        else:
            self.column = column
        return True

    def request(self) -> str:
        """What frames have to contain for this view; hosts x local ranks are in every frame."""
        if self.hosts or self.height < 1 or self.width < 1:
            return ""
        rows = min(self.height, MOST_ROWS)
        columns = min(self.width * max(1, self.steps_per_column), MOST_COLUMNS)
        return str(HeatRequest(self.figure, rows, columns, self.first, self.count))
