"""What a view draws: a frame, and the place of the user in it (view, cursors, filters).

The place is changed by keys and the mouse; its contents come from every new frame.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from ddptop.render.context import RenderContext
from ddptop.render.line import Line
from ddptop.tui import match
from ddptop.tui.prompt import Prompt
from ddptop.tui.views.heat_state import HeatState
from ddptop.tui.views.timeline_state import TimelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ddptop.frames.frame import Frame
    from ddptop.render.chart import Scale
    from ddptop.tui.gpu_past import GpuPast
    from ddptop.tui.runs import RunChoice


HOST_ROWS = -2
"""Rows of hosts count downwards from here: -1 opens the stall page, 0 and more are ranks."""


def host_row(host: int) -> int:
    """The row of a host, by its place in the index of hosts."""
    return HOST_ROWS - host


def host_of(row: int) -> int | None:
    """The host whose row it is; None: a rank's."""
    return HOST_ROWS - row if row <= HOST_ROWS else None


@dataclass(frozen=True)
class TableRows:
    """The rows of the table of ranks, in order."""

    rows: tuple[int, ...] = ()
    """A rank, or `host_row` of a host."""
    order: tuple[int, ...] = ()
    """All ranks that pass the filter, those of folded hosts too, in the order of the table."""
    leads: Mapping[int, int] = field(default_factory=dict)
    """By host: its first rank in this order, the worst one; a folded host shows the figures of this rank.
    Empty: the ranks are not grouped."""
    hosts: Mapping[int, str] = field(default_factory=dict)
    """Names of these hosts."""
    folded: frozenset[int] = frozenset()

    @property
    def grouped(self) -> bool:
        """Whether the table has rows of hosts."""
        return bool(self.leads)

    def rank(self, row: int) -> int:
        """The rank that a row shows: a host's worst."""
        host = host_of(row)
        return row if host is None else self.leads[host]


@dataclass
class HostFolds:
    """What the user has chosen about the grouping by host. Without a choice, it depends on how many ranks
    fit."""

    grouped: bool | None = None
    """Whether ranks are grouped by host; None: where several hosts have more ranks than there are lines."""
    all_folded: bool | None = None
    """None: folded, but hosts with a rank in trouble are unfolded as far as all rows fit."""
    changed: dict[str, bool] = field(default_factory=dict)
    """By name, hosts that a key has folded (True) or unfolded."""

    def fold(self, host: str, folded: bool) -> None:
        """Fold or unfold a host."""
        self.changed[host] = folded

    def fold_all(self, folded: bool) -> None:
        """Fold or unfold all hosts."""
        self.all_folded, self.changed = folded, {}


@dataclass(frozen=True, slots=True)
class Plot:
    """Where a chart is: the cells of its curve on the screen, and its time axis."""

    top: int
    """First line of the curve."""
    left: int
    width: int
    height: int
    begin_s: float
    """Time at the left edge, in seconds since the run began."""
    cell_s: float
    """Seconds that one cell is wide."""
    end_s: float
    """Time of the newest point."""

    def holds(self, x: int, y: int) -> bool:
        """Whether a cell of the screen lies on this curve."""
        return self.left <= x < self.left + self.width and self.top <= y < self.top + self.height


@dataclass(frozen=True, slots=True)
class DrawnCharts:
    """The charts of a picture, and what they were drawn for: the next picture may take them over."""

    of: tuple[object, ...]
    lines: list[Line]
    plots: tuple[Plot, ...]
    titles: tuple[tuple[int, int, int, tuple[Line, ...], tuple[int, ...]], ...] = ()
    """For each chart: the line of its title, its first cell and its width, the title's parts, and which of
    them have figures of the newest step."""
    scales: Mapping[str, tuple[Scale, int]] = field(default_factory=dict)
    """Scale of each chart, by its name, and the cells of its labels."""


MOST_KEPT = 4
"""Drawings of charts that are kept: more than a page has."""


@dataclass
class ChartState:
    """The charts: how the loss is drawn, where the crosshair is, and where the charts are."""

    log_loss: bool | None = None
    """Whether the loss is on a logarithmic axis, where a key has chosen it."""
    at_s: float | None = None
    """Position of the crosshair in seconds since the run began; None: there is none."""
    plots: tuple[Plot, ...] = ()
    """Where every chart was in the last picture that had any."""
    kept: deque[DrawnCharts] = field(
        default_factory=lambda: deque(maxlen=MOST_KEPT), repr=False, compare=False
    )
    """The newest drawings: a cache, which painting fills."""
    strip: tuple[int, int] = (0, 0)
    """Ranks and columns of the excess strip; zeros: there is no room for it."""

    def find_or_draw(
        self,
        drawn_for: tuple[object, ...],
        draw: Callable[[], DrawnCharts],
        is_current: Callable[[DrawnCharts], bool] = lambda _: True,
    ) -> DrawnCharts:
        """The drawing that is kept for this and is current, else a new one, which is kept from now on."""
        drawings = (charts for charts in self.kept if charts.of == drawn_for and is_current(charts))
        drawn = next(drawings, None)
        if drawn is None:
            drawn = draw()
            self.kept.append(drawn)
        return drawn

    def find_scale(self, run: tuple[object, ...], name: str) -> tuple[Scale | None, int]:
        """The scale of the last drawing of a chart of this run, which its drawing began with, and the cells
        of its labels; None and 0: there is none."""
        drawings = (drawn for drawn in reversed(self.kept) if drawn.of[: len(run)] == run)
        return next((drawn.scales[name] for drawn in drawings if name in drawn.scales), (None, 0))

    def toggle(self) -> None:
        """The crosshair at the newest point, or none."""
        self.at_s = None if self.at_s is not None or not self.plots else self.plots[0].end_s

    def off(self) -> bool:
        """No crosshair; False where there was none."""
        was_shown, self.at_s = self.at_s is not None, None
        return was_shown

    def move(self, cells: int) -> bool:
        """Move the crosshair to the right by some cells of the finest chart; return False without a
        crosshair."""
        if self.at_s is None or not self.plots:
            return False
        # So that no point of any chart is passed over.
        finest = min(self.plots, key=lambda plot: plot.cell_s)
        begin_s = min(plot.begin_s for plot in self.plots)
        self.at_s = min(max(self.at_s + cells * finest.cell_s, begin_s), finest.end_s)
        return True

    def hover(self, x: int, y: int) -> bool:
        """Move the crosshair to a cell of the screen; return whether that lies on a chart."""
        for plot in self.plots:
            if plot.holds(x, y):
                self.at_s = min(plot.begin_s + (x - plot.left + 0.5) * plot.cell_s, plot.end_s)
                return True
        return False


@dataclass
class HostsState:
    """The view of hosts: order, filter and cursor."""

    sort: str = ""
    """Title of a column; empty: worst first."""
    inverted: bool = False
    filter: str = ""
    cursor: str = ""
    """Name of the host under the cursor; empty: the first."""
    order: tuple[str, ...] = ()
    """Hosts in the order in which they are shown."""

    def move_to(self, line: int) -> None:
        """Move the cursor to a line of the list."""
        if self.order:
            self.cursor = self.order[min(max(line, 0), len(self.order) - 1)]

    @property
    def moving(self) -> bool:
        """Whether hosts change places as figures change. The cursor then stays in its line, as in htop."""
        return self.sort != "host"


@dataclass
class Scroll:
    """A cursor in a list, and the first line of it that is on the screen."""

    cursor: int = 0
    top: int = 0
    page: int = 1
    """Lines that are on the screen."""
    hit: int | None = None
    """On a page of text: the line of the current match."""
    action: object = None
    """What Enter does at the current match."""

    def fitted(self, total: int, height: int) -> tuple[Scroll, range]:
        """This scroll position for `total` lines of which `height` can be shown, and the lines to show.

        The lines are as before where possible, and the cursor is always among them.
        """
        page = max(1, height)
        cursor = min(max(self.cursor, 0), max(0, total - 1))
        top = min(max(self.top, cursor - page + 1), cursor)
        top = max(0, min(top, total - page))
        return replace(self, page=page, cursor=cursor, top=top), range(top, min(total, top + height))


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Where things are in a picture, for keys and mouse: computed from the frame and the size.

    A field that is None stays as it was.
    """

    scroll: Scroll | None = None
    """Position of the list or the page of text."""
    table: TableRows | None = None
    """Rows of the rank table."""
    row: int | None = None
    """The row of the rank table under the cursor, where that is not the one that a key has chosen."""
    sortable: tuple[str, ...] | None = None
    """Columns of the table that fit."""
    plots: tuple[Plot, ...] | None = None
    """Where the charts are."""
    strip: tuple[int, int] | None = None
    timeline: TimelineState | None = None
    heat: HeatState | None = None
    hosts: tuple[str, ...] | None = None
    """Hosts in the order in which they are shown."""
    inset: int = 0
    """Cells of the screen at the left of the page."""


class Page(NamedTuple):
    """The lines of a view, and where things are in them."""

    lines: list[Line]
    layout: PageLayout = PageLayout()


WAY_FROM = 100
"""Cells of a page from which its title has the way to it."""


@dataclass
class Place:
    """Where the user is: view, cursors, filters, and how the views are set."""

    view: str = "overview"
    """The name of the view that is open."""
    trail: list[str] = field(default_factory=list)
    """The views to go back to, the last one first to come."""
    rank: int = 0
    """The rank under the cursor."""
    inset: int = 0
    """Cells of the screen at the left of the page."""
    on_host: bool = False
    """In a grouped table: the cursor is on the row of that rank's host."""
    pointed: bool = False
    """A key or the mouse has chosen the rank."""
    folds: HostFolds = field(default_factory=HostFolds)
    prompt: Prompt | None = None
    """Open, it takes the keys."""
    sort: str = "rank"
    inverted: bool = False
    """Reversed order."""
    follow: bool = False
    """The rank is shown even where the filter hides it."""
    marked: int | None = None
    """The rank that another one is to be compared with."""
    filter: str = ""
    """The filter of ranks."""
    event_filter: str = ""
    run_filter: str = ""
    """The filter of the picker."""
    searched: str = ""
    """The last search: its matches are marked, and `n` and `N` go through them."""
    seek: int = 0
    """On a page of text: the next picture goes to the next (1) or the last (-1) line that matches."""
    scrolls: dict[str, Scroll] = field(default_factory=dict)
    """By name, of the views that have been open."""
    sortable: tuple[str, ...] = ()
    """Columns of the rank table that are on the screen."""
    columns: dict[str, bool] = field(default_factory=dict)
    """By title, columns of the tables that are always shown (True) or never; others where they fit."""
    table: TableRows = field(default_factory=TableRows)
    """The rows of the rank table."""
    asked_rank: int | None = None
    """The page of the start: the rank that was asked for its stack."""
    start_is_due: bool = False
    """Whether the page of the start was due in the last frame, and has been opened by itself."""
    all_threads: bool = False
    """The stall page shows all threads and every call."""
    note: str = ""
    """The result of the last key, where the screen does not show it; until the next key."""
    charts: ChartState = field(default_factory=ChartState)
    timeline: TimelineState = field(default_factory=TimelineState)
    heat: HeatState = field(default_factory=HeatState)
    hosts: HostsState = field(default_factory=HostsState)
    choices: tuple[RunChoice, ...] | None = None
    """Runs to choose from; None: they are being looked up."""

    def __post_init__(self) -> None:
        self.open(self.view)

    def open(self, view: str) -> None:
        """Have another view open."""
        self.view, self.seek = view, 0
        self.scrolls.setdefault(view, Scroll())

    @property
    def before(self) -> str:
        """The view to go back to."""
        return self.trail[-1] if self.trail else "overview"

    def name_way(self, title: str, width: int) -> str:
        """`rank 3 > keys`: the way to the page with this title, back along which Esc leads; the
        title alone where there is little room."""
        if width < WAY_FROM:
            return title
        names = (f"rank {self.rank}" if name == "rank" else name for name in self.trail or ["overview"])
        return " > ".join((*names, title))

    @property
    def order(self) -> tuple[int, ...]:
        """Ranks in the order in which the table shows them."""
        return self.table.order

    def point_at(self, row: int) -> None:
        """Move the cursor to a row of the rank table. Moving to another rank ends following."""
        rank = self.table.rank(row)
        # The line where it is painted: rows may change places before the next picture.
        if row in self.table.rows:
            self.scroll.cursor = self.table.rows.index(row)
        self.follow = self.follow and rank == self.rank
        self.rank, self.on_host, self.pointed = rank, host_of(row) is not None, True

    def point_at_host(self, line: int) -> None:
        """Move the cursor to a line of the list of hosts."""
        self.hosts.move_to(line)
        self.scroll.cursor = max(0, min(line, len(self.hosts.order) - 1))

    def reveal(self, rank: int, host: str) -> None:
        """Move the cursor to a rank, and unfold its host where it is folded."""
        folded = {self.table.hosts[index] for index in self.table.folded}
        if host in folded:
            self.folds.fold(host, False)
        self.rank, self.on_host, self.pointed = rank, False, True

    @property
    def cursor_as_shown(self) -> bool:
        """Whether the cursor is on the row of the rank table that it was painted on."""
        rows, cursor = self.table.rows, self.scroll.cursor
        if cursor >= len(rows):
            return False
        return (self.rank, self.on_host) == (self.table.rank(rows[cursor]), host_of(rows[cursor]) is not None)

    @property
    def listed(self) -> tuple[RunChoice, ...]:
        """The runs that the picker's filter lets through, as it lists them."""
        choices = self.choices or ()
        texts = [
            f"{choice.name} {choice.state} {choice.script} {choice.path or ''}".lower() for choice in choices
        ]
        return tuple(choices[index] for index in match.find_matches(self.run_filter, texts))

    @property
    def scroll(self) -> Scroll:
        """The scroll of the view that is open."""
        return self.scrolls[self.view]

    def settle(self, layout: PageLayout) -> None:
        """Take over where things are in the picture that is shown from now on."""
        self.seek = 0
        self.inset = layout.inset
        if layout.scroll is not None:
            self.scrolls[self.view] = layout.scroll
        if layout.table is not None:
            self.table = layout.table
        if layout.row is not None:
            self.rank, self.on_host = self.table.rank(layout.row), host_of(layout.row) is not None
        if layout.sortable is not None:
            self.sortable = layout.sortable
        if layout.plots is not None:
            self.charts.plots = layout.plots
        if layout.strip is not None:
            self.charts.strip = layout.strip
        self.timeline = layout.timeline or self.timeline
        self.heat = layout.heat or self.heat
        if layout.hosts is not None:
            self.hosts.order = layout.hosts
            if self.hosts.cursor:
                self.hosts.move_to(self.scroll.cursor)


TO_STALL = -1
"""Target of a line that opens the stall page: no rank and no place in a list."""


@dataclass(frozen=True)
class Scene(RenderContext):
    """A frame, a place in it and how to draw. A new one for every picture."""

    place: Place
    frozen: bool = field(default=False, kw_only=True)
    """The screen is frozen while newer frames come."""
    newest: Frame | None = field(default=None, kw_only=True)
    """The newest frame, while the screen is frozen."""
    status: str | None = field(default=None, kw_only=True)
    """The source's own state in words."""
    failure: str | None = field(default=None, kw_only=True)
    """The internal error that stopped the source's thread."""
    where: str = field(default="", kw_only=True)
    """The machine, as the user named it, of a run that is shown from elsewhere; empty: this one."""
    other: Frame | None = field(default=None, kw_only=True)
    """The frame of a second recording at this moment, where two are shown."""
    guide: str = field(default="", kw_only=True)
    """The demo's explanation of the picture, in a quiet line; empty: none."""
    gpu_past: GpuPast | None = field(default=None, kw_only=True, compare=False)
    """What the screen has seen of the GPUs; None: nothing is kept."""

    @property
    def marked(self) -> int | None:
        """The rank that is marked for a comparison."""
        return self.place.marked

    def at(self, place: Place) -> Scene:
        """The scene with another `Place`."""
        return replace(self, place=place)
