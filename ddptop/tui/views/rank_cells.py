"""The panel beside the table of ranks on a wide screen: a cell for every rank, hosts by local ranks.

Its cells have the shades of the heat map. The cell of the rank under the cursor stands in brackets, and a
click on a cell opens the page of the rank. Each host has a row behind its name; many hosts stand beside each
other, with their names above them or, where these do not fit, without. Where the cells do not fit either, one
stands for several hosts and shows the worst of their ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.columns import folds
from ddptop.frames.conditions import RED_STATES
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import fixed, known
from ddptop.frames.statistics import median
from ddptop.render.line import Line, Role, combine_roles, join_parts, of_state
from ddptop.render.text import fit_tail, text_width
from ddptop.tui.keys import Do
from ddptop.tui.views import heat_figures
from ddptop.tui.views.heat_shades import Shades, digits
from ddptop.tui.views.host_cells import LONGEST_NAME, HostTable, find_row_signs, fold_cells, table_by_host
from ddptop.tui.views.panels import BORDER, PANELS_FROM, Panel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.tui.scene import Scene

SHARE = 3
"""It takes at most the third part of the screen."""

LEAST_WIDTH = 34
"""Its title fits, and what is said of the rank under the cursor."""

CELLS = (5, 4, 2, 1)
"""Terminal cells of a rank, the widest that fit: in wide ones the number of the rank stands."""

TALLEST_HOST_CELLS = 3
"""Lines that the cells of a host have at most, where there are few hosts."""

UNKNOWN_GROUND: Role = "rule"
"""Ground of a rank of which the figure is not known."""

LOUDEST = 4
"""The shade of a straggler, however much it is longer."""

GAP = 2
"""Terminal cells between two blocks."""

CALM_SHARE = 0.25
"""Share of the step that the shades span at least, so that noise gets none."""

LEAST_PANEL = 7
"""Lines of the panel from which it is worth having."""

A_ROW = 4
"""Ranks beside each other where all are on one host."""


class CellPlan(NamedTuple):
    """How the cells are laid out, and which names the hosts have."""

    cell: int
    tall: int
    rows: int
    """Rows of cells, each of one host or of several."""
    down: int
    """Rows below each other; those that are left go on in a block to the right."""
    label: int
    """Cells of a name before its row, or above it; 0: there is none."""
    above: bool = False

    def block_width(self, n_columns: int) -> int:
        """Terminal cells of a row with its name, and its sign before that."""
        name = self.label + 1 if self.label else 0
        return max(name, n_columns * self.cell) if self.above else name + n_columns * self.cell

    @property
    def gap(self) -> int:
        """Terminal cells between two blocks: a name that stands before its row is set apart from the row
        before."""
        return GAP if self.label and not self.above else 1

    @property
    def height(self) -> int:
        """Lines of a row with its name."""
        return self.tall + (self.above and self.label > 0)

    def width(self, n_columns: int) -> int:
        """Terminal cells that all blocks take."""
        n_blocks = -(-self.rows // self.down)
        return n_blocks * (self.block_width(n_columns) + self.gap) - self.gap


def panel_width(scene: Scene, width: int, height: int) -> int:
    """Terminal cells of the panel with its left border beside a table of `height` lines; 0: there is none."""
    if width < PANELS_FROM or len(scene.frame.ranks.state) < 2 or height < 4:
        return 0
    hosts = _table_of_hosts(scene)
    plan = _plan_cells(hosts, width // SHARE - BORDER, height - 3)
    return max(LEAST_WIDTH, min(width // SHARE, plan.width(hosts.ranks.shape[1]) + BORDER))


TITLE_EDGES = 7
"""Cells of a panel's key and rule before and after its title."""


def rank_panel(scene: Scene, width: int, height: int, rank: int) -> Panel:
    """`height` lines with the title: the cells, the rank under the cursor and the shades."""
    world = len(scene.frame.ranks.state)
    figure = "excess" if scene.by_steps else "step"
    values = heat_figures.of_ranks(figure, scene.frame)
    usual = float(median(values)) if np.isfinite(values).any() else None
    hosts, room = _table_of_hosts(scene), height - 3
    plan = _plan_cells(hosts, width - BORDER, room)
    edges = folds(len(hosts.names), plan.rows)
    value, who = fold_cells(values, hosts.ranks, edges, down=False)
    calm = CALM_SHARE * (scene.frame.group.step_ms_p50 or 0.0)
    shades = Shades.of(value, usual, max(calm, heat_figures.least_range(figure, usual, scene.frame)))
    lines = [Line() for _ in range(height - 1)]
    signs = find_row_signs(scene, 0, edges)
    levels = shades.levels(value)
    for row in range(plan.rows):
        first, n_folded = int(edges[row]), int(edges[row + 1] - edges[row])
        name = hosts.names[first] + (f"+{n_folded - 1}" if n_folded > 1 else "")
        begin = row // plan.down * (plan.block_width(hosts.ranks.shape[1]) + plan.gap)
        top = row % plan.down * plan.height
        label = Line(*signs[row]).add(fit_tail(name, plan.label), "dim") if plan.label else Line()
        if plan.above and plan.label:
            lines[top].pad(begin).extend(label)
            top += 1
        for line_of_row in range(plan.tall):
            line = lines[top + line_of_row].pad(begin)
            numbered = line_of_row == (plan.tall - 1) // 2
            if not plan.above:
                line.extend(label) if numbered else line.pad(begin + label.width)
            for level, of_cell in zip(levels[row].tolist(), who[row].tolist(), strict=True):
                _add_cell(scene, line, shades, (level, of_cell), plan.cell, (numbered, of_cell == rank))
    lines[-2] = _draw_cursor(scene, figure, values, rank, width - BORDER) if rank < world else Line()
    title = "ranks by host"
    if usual is not None:
        lines[-1] = _draw_shades(scene, shades, figure, width - BORDER)
        name = heat_figures.title(figure, scene.frame)
        title = f"{name} by host and rank"
        title = title if text_width(title) + TITLE_EDGES <= width else f"{name} by rank"
    return Panel(title, lines, key="4", opens=Do.VIEW("heat"))


def _table_of_hosts(scene: Scene) -> HostTable:
    """The ranks by host; those of a single host in rows of A_ROW, and of as many as make a square where they
    are more."""
    hosts = table_by_host(scene)
    if len(hosts.names) != 1:
        return hosts
    n_ranks = hosts.ranks.shape[1]
    n_columns = max(A_ROW, round(n_ranks**0.5))
    n_rows = -(-n_ranks // n_columns)
    padded = np.full(n_rows * n_columns, -1, np.int64)
    padded[:n_ranks] = hosts.ranks[0]
    names = (hosts.names[0], *[""] * (n_rows - 1))
    return HostTable(names, padded.reshape(n_rows, n_columns), hosts.longest)


def _plan_cells(hosts: HostTable, width: int, room: int) -> CellPlan:
    """The widest cells with which all hosts are seen, with their names where these fit; else hosts that are
    folded, in the narrowest cells."""
    n_hosts, n_columns = hosts.ranks.shape
    label = min(LONGEST_NAME, hosts.longest) + 1
    digits_of_rank = len(str(int(hosts.ranks.max(initial=0))))
    numbered = [cell for cell in CELLS if cell > 2 and cell >= digits_of_rank + 2]
    for cell, name, above in (
        *((cell, label, False) for cell in numbered),
        *((cell, label - 1, True) for cell in numbered),
        *((cell, *place) for cell in CELLS if cell <= 2 for place in ((label, False), (label - 1, True))),
        (1, 0, True),
    ):
        plan = _fit_hosts(CellPlan(cell, 1, n_hosts, 1, name, above), n_columns, (width, room))
        if plan is not None:
            return plan
    plans = []
    for n_blocks in range(max(1, (width + GAP) // (label + 1 + n_columns + GAP)), 0, -1):
        rows = min(n_hosts, room * n_blocks)
        folded = min(label + len(f"+{n_hosts // max(1, rows)}"), LONGEST_NAME + 1)
        plans.append(CellPlan(1, 1, rows, min(n_hosts, room), folded))
    return next((plan for plan in plans if plan.width(n_columns) <= width), plans[-1])


def _fit_hosts(plan: CellPlan, n_columns: int, room: tuple[int, int]) -> CellPlan | None:
    """The plan with as many blocks as all hosts take, and rows as tall as there is room for; None: they do
    not fit into `room`, cells and lines."""
    width, height = room
    n_blocks = (width + plan.gap) // (plan.block_width(n_columns) + plan.gap)
    down = -(-plan.rows // max(1, n_blocks))
    if not n_blocks or down * plan.height > height:
        return None
    if not plan.above:  # one block of rows behind their names reads best
        down = min(plan.rows, height)
    spare = height // down - (plan.height - plan.tall)
    return plan._replace(
        down=down, tall=max(1, min(TALLEST_HOST_CELLS, spare)) if plan.cell > 2 or plan.above else 1
    )


def _add_cell(
    scene: Scene, line: Line, shades: Shades, cell: tuple[int, int], width: int, how: tuple[bool, bool]
) -> None:
    """Add a cell `(level, rank)`; `how`: whether it has a number, and whether the cursor is on it."""
    (level, rank), (numbered, chosen) = cell, how
    if rank < 0:
        line.add(" " * width)
        return
    glyph, role = shades.sign(level, scene.ascii_only)
    ground: Role = UNKNOWN_GROUND if level < 0 else shades.role(level)
    state = scene.state_word(rank)
    if state in RED_STATES:
        glyph, ground = of_state(state)
        role = combine_roles(ground, ground)
    elif rank in scene.stragglers:
        glyph, role = shades.sign(LOUDEST, scene.ascii_only)
        ground = shades.role(LOUDEST)
    begin = line.width
    if state == "missing":
        text = f"○ {rank}" if width > 2 else "○"
        line.add((text if numbered else "").ljust(width), "warn")
    elif width > 2 and numbered:
        text = f"[{rank}]" if chosen else str(rank)
        line.add(text.center(width - 1), combine_roles("ink", ground)).add(" ")
    elif width > 2:
        line.add((" " if level < 0 else glyph) * (width - 1), combine_roles(ground, ground)).add(" ")
    elif chosen:
        line.add("[]"[:width], combine_roles("ink", ground))
    else:
        line.add(glyph * width, role)
    line.spot(begin, line.width, Do.RANK(rank))


def _draw_cursor(scene: Scene, figure: str, values: NDArray[np.float64], rank: int, width: int) -> Line:
    ranks = scene.frame.ranks
    host, device = scene.clean(host_index(ranks.host).rank_short[rank]), scene.clean(ranks.device[rank])
    value = float(values[rank])
    # As the table beside it writes the figure: a negative excess is 0 in both.
    text = heat_figures.FIGURES[figure].text(value) + (" ms" if known(value) else "")
    line = Line("▸ ", "accent").add(f"rank {rank}", "strong")
    line.add(f"  {text}").add(f"  {host}" if host else "", "dim")
    return line.add(f" {device}" if line.width + 1 + text_width(device) <= width else "", "dim")


def _draw_shades(scene: Scene, shades: Shades, figure: str, width: int) -> Line:
    """The five shades side by side, between the least and the largest edge."""
    low, high = (fixed(shades.edges[edge], digits(shades)) for edge in (0, 3))
    line = Line(f"{'<=' if scene.ascii_only else '≤'}{low} ", "dim")
    for level in range(5):
        glyph, role = shades.sign(level, scene.ascii_only)
        line.add(glyph * 2, role)
    return join_parts([line.add(f" >{high} {heat_figures.METRICS[figure].unit}", "dim")], width)
