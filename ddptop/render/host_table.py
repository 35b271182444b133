"""The table of hosts: their figures, and the columns of them on the screen and in `--once`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.conditions import PROBLEM_STATES
from ddptop.frames.figures import HOST_FIGURES, always, figures_shown
from ddptop.frames.hosts import host_index, short_names
from ddptop.frames.numbers import RATIO, UNKNOWN, duration, known, signed
from ddptop.render import table
from ddptop.render.context import LEAST_SHARE_OF_STEP
from ddptop.render.hosts import by_host, figures_by_trouble, worst_first
from ddptop.render.line import Piece
from ddptop.render.rank_table import host_state_piece, state_piece, state_width
from ddptop.render.text import text_width

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.figures import Figure, FigureColumn
    from ddptop.frames.hosts import HostFigures
    from ddptop.render.context import RenderContext

LONGEST_NAME = 32

WIDE = 120
"""Cells from which names are shown in full."""

MAX_ROWS = 16
"""Hosts in `--once`; the others are counted."""

LONG_OFFSET_MS = 100_000.0
"""An offset from here on is written as a duration: clocks count from when their host was started."""

COLUMNS = figures_shown(lambda figure: figure.screen, HOST_FIGURES)
"""The columns of figures, and their figures."""

FIGURES = {figure.title: figure for figure, _ in COLUMNS}
"""By title."""

RUNNING, OFFSET = FIGURES["ranks"], FIGURES["clock ms"]
"""Figures whose cells have words of their own."""

EXCESS = FIGURES["excess"]
WORST = (FIGURES["worst"], EXCESS)
"""Figures of the worst rank of each host."""

SORTS = ("host", "state", *FIGURES)
"""Everything that the hosts can be sorted by."""


def host_value(figure: Figure, host: HostFigures) -> float | None:
    """What the table shows of a figure, and is sorted by: `ranks` by how many do not run, `clock ms` by the
    size of the offset. None: not known."""
    value: float | None = getattr(host, figure.name) if figure.host_value is None else figure.host_value(host)
    return value if known(value) else None


def host_columns(context: RenderContext, hosts: Sequence[HostFigures], width: int) -> list[table.TableColumn]:
    """The columns, in their order; row `i` is `hosts[i]`. Those of which nothing is known are left out."""
    short = {}
    if width < WIDE:
        full = tuple(host.name for host in context.frame.hosts) or tuple(host.name for host in hosts)
        short = dict(zip(full, short_names(full), strict=True))
    names = [context.clean(short.get(host.name, host.name)) or UNKNOWN for host in hosts]
    longest = max(map(text_width, names), default=0)
    states, leads = state_width(context.frame), _worst_ranks(context)
    matters_ms = LEAST_SHARE_OF_STEP * (context.frame.group.step_ms_p50 or 0.0)
    shown = [
        (figure, column)
        for figure, column in COLUMNS
        if column.shown is always or any(host_value(figure, host) is not None for host in hosts)
    ]
    columns = [
        table.TableColumn(
            "host",
            max(5, min(longest, LONGEST_NAME)),
            lambda row: (names[row], "strong"),
            100,
            right=False,
            tail=True,
        ),
        table.TableColumn(
            "state", states, lambda row: _state_cell(context, hosts[row], leads, states), 98, right=False
        ),
        *(_number_column(figure, column, hosts, matters_ms) for figure, column in shown),
    ]
    notes = [", ".join(host_notes(host)) for host in hosts]
    if any(notes):
        widest = min(24, max(map(len, notes)))
        columns.append(table.TableColumn("", widest, lambda at: (notes[at], "warn"), 90, right=False))
    return columns


def _worst_ranks(context: RenderContext) -> dict[str, int]:
    """The worst rank of each host."""
    names = host_index(context.frame.ranks.host).names
    groups = by_host(context.frame, worst_first(context, range(len(context.frame.ranks.state))))
    ranks = groups.ranks[groups.starts[:-1]].tolist()
    return {names[host]: rank for host, rank in zip(groups.hosts.tolist(), ranks, strict=True)}


def _state_cell(context: RenderContext, host: HostFigures, leads: dict[str, int], width: int) -> Piece:
    """The host's state; of one that reports, or whose ranks have ended, that of its worst rank, where that
    needs attention."""
    lead = leads.get(host.name)
    unwell = lead is not None and context.frame.ranks.state[lead] in PROBLEM_STATES
    if lead is not None and unwell and host.state in ("live", "finished"):
        return state_piece(context, lead, width)
    return host_state_piece(host, width, context.frame.source)


def _number_column(
    figure: Figure, column: FigureColumn, hosts: Sequence[HostFigures], matters_ms: float
) -> table.TableColumn:
    """`matters_ms`: an excess below this is not emphasized, nor whose it is."""
    width = column.width
    if figure is OFFSET:
        width = max([width, *(text_width(_clock_cell(host)[0]) for host in hosts)])

    def draw_cell(row: int) -> Piece:
        host = hosts[row]
        if figure is RUNNING:
            missing = host.running < host.ranks and host.state != "finished"
            return f"{host.running}/{host.ranks}", "warn" if missing else "dim"
        if figure is OFFSET:
            return _clock_cell(host)
        value = host_value(figure, host)
        if value is None:
            return UNKNOWN, "faint"
        is_calm = figure in WORST and (host_value(EXCESS, host) or 0.0) < matters_ms
        return figure.text(value), "faint" if is_calm else figure.emphasis

    return table.TableColumn(figure.title, width, draw_cell, column.keep)


def _clock_cell(host: HostFigures) -> Piece:
    """The offset of its clock; the collector's is the one that others are compared with."""
    if host.collector:
        return "collector's", "faint"
    if host.clock_offset_ms is None:
        return UNKNOWN, "faint"
    if abs(host.clock_offset_ms) >= LONG_OFFSET_MS:
        text = ("-" if host.clock_offset_ms < 0 else "+") + duration(abs(host.clock_offset_ms) / 1000)
        return text.replace(" ", ""), "text"
    return signed(host.clock_offset_ms, RATIO), "text"


def host_notes(host: HostFigures) -> list[str]:
    """What matters of its agent."""
    return ["records locally"] if host.local_recording is not None else []


def plain_host_table(context: RenderContext, width: int) -> list[str]:
    """The worst hosts, a line each, and how many were left out; nothing for one host."""
    hosts = figures_by_trouble(context)
    if len(hosts) < 2:
        return []
    shown = hosts[:MAX_ROWS]
    lines = table.text_lines(host_columns(context, shown, width), len(shown), width)
    more_hosts = hosts[MAX_ROWS:]
    if more_hosts:
        unwell = sum(host.state not in ("live", "finished") for host in more_hosts)
        lines.append(f"and {len(more_hosts):,} more hosts, {unwell:,} of them not live (--json has all)")
    return lines
