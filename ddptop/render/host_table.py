"""The table of hosts: their figures, and the columns of them on the screen and in `--once`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ddptop.frames.conditions import PROBLEM_STATES
from ddptop.frames.hosts import host_index, short_names
from ddptop.frames.numbers import RATIO, UNKNOWN, count, duration, fixed, known, signed, size
from ddptop.render import table
from ddptop.render.context import OF_STEP
from ddptop.render.hosts import by_host, host_figures, worst_first
from ddptop.render.line import Piece, Role
from ddptop.render.rank_table import host_state_piece, state_piece, state_width
from ddptop.render.text import cells

if TYPE_CHECKING:
    from ddptop.frames.hosts import HostFigures
    from ddptop.render.context import RenderContext

LONGEST_NAME = 32

WIDE = 120
"""Cells from which names are shown in full."""

MAX_ROWS = 16
"""Hosts in `--once`; the others are counted."""

LONG_OFFSET_MS = 100_000.0
"""An offset from here on is written as a duration: clocks count from when their host was started."""

ALWAYS = ("ranks", "worst", "excess")
"""Columns that are there whether anything is known or not."""


class Figure(NamedTuple):
    """A column of numbers."""

    width: int
    keep: int
    """Columns of the lowest number are left out first."""
    value: Callable[[HostFigures], float | None]
    text: Callable[[float], str]
    role: Role = "text"
    falling: bool = True
    """The largest comes first."""


def _memory_pct(host: HostFigures) -> float | None:
    used, whole = host.memory_used_bytes, host.memory_bytes
    return 100 * used / whole if used is not None and whole else None


def _offset(host: HostFigures) -> float | None:
    return None if host.clock_offset_ms is None else abs(host.clock_offset_ms)


FIGURES: dict[str, Figure] = {
    "ranks": Figure(7, 95, lambda h: h.running - h.ranks, str, falling=False),
    "worst": Figure(5, 92, lambda h: h.worst_rank, str, falling=False),
    "excess": Figure(7, 93, lambda h: h.excess_ms, fixed),
    "ms/step": Figure(8, 60, lambda h: h.step_ms, fixed),
    "rtt ms": Figure(6, 82, lambda h: h.round_trip_ms, lambda v: fixed(v, RATIO)),
    "clock ms": Figure(11, 62, _offset, str),
    "clock±": Figure(7, 73, lambda h: h.clock_bound_ms, lambda v: f"±{fixed(v, RATIO)}", "dim"),
    "drift ppm": Figure(9, 50, lambda h: h.clock_drift_ppm, signed, "dim"),
    "compared": Figure(8, 51, lambda h: h.clock_age_s, lambda v: f"{fixed(v)} s", "dim"),
    "cpu%": Figure(4, 78, lambda h: h.cpu_pct, lambda v: fixed(v, 0)),
    "mem%": Figure(4, 72, _memory_pct, lambda v: fixed(v, 0)),
    "gpus": Figure(4, 55, lambda h: h.gpus or None, count, "dim"),
    "gpu%": Figure(4, 77, lambda h: h.gpu_util_pct, lambda v: fixed(v, 0)),
    "in/s": Figure(8, 81, lambda h: h.received_bytes_s, size),
    "out/s": Figure(8, 80, lambda h: h.sent_bytes_s, size),
    "kept": Figure(6, 65, lambda h: h.kept or None, count),
    "thinned": Figure(7, 64, lambda h: h.thinned or None, count),
}
"""By title. `ranks` is sorted by how many do not run, `clock ms` by the size of the offset."""

SORTS = ("host", "state", *FIGURES)
"""Everything that the hosts can be sorted by."""


def host_columns(context: RenderContext, hosts: Sequence[HostFigures], width: int) -> list[table.TableColumn]:
    """The columns, in their order; row `i` is `hosts[i]`. Those of which nothing is known are left out."""
    short = {}
    if width < WIDE:
        full = tuple(host.name for host in context.frame.hosts) or tuple(host.name for host in hosts)
        short = dict(zip(full, short_names(full), strict=True))
    names = [context.clean(short.get(host.name, host.name)) or UNKNOWN for host in hosts]
    longest = max(map(cells, names), default=0)
    states, leads = state_width(context.frame), _leads(context)
    matters_ms = OF_STEP * (context.frame.group.step_ms_p50 or 0.0)
    shown = [title for title, figure in FIGURES.items() if title in ALWAYS or any(map(_known(figure), hosts))]
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
            "state", states, lambda row: _state(context, hosts[row], leads, states), 98, right=False
        ),
        *(_number(title, FIGURES[title], hosts, matters_ms) for title in shown),
    ]
    notes = [", ".join(host_notes(host)) for host in hosts]
    if any(notes):
        widest = min(24, max(map(len, notes)))
        columns.append(table.TableColumn("", widest, lambda at: (notes[at], "warn"), 90, right=False))
    return columns


def _leads(context: RenderContext) -> dict[str, int]:
    """The worst rank of each host."""
    names = host_index(context.frame.ranks.host).names
    groups = by_host(context.frame, worst_first(context, range(len(context.frame.ranks.state))))
    ranks = groups.ranks[groups.starts[:-1]].tolist()
    return {names[host]: rank for host, rank in zip(groups.hosts.tolist(), ranks, strict=True)}


def _state(context: RenderContext, host: HostFigures, leads: dict[str, int], width: int) -> Piece:
    """The host's state; of one that reports, or whose ranks have ended, that of its worst rank, where that
    needs attention."""
    lead = leads.get(host.name)
    unwell = lead is not None and context.frame.ranks.state[lead] in PROBLEM_STATES
    if lead is not None and unwell and host.state in ("live", "finished"):
        return state_piece(context, lead, width)
    return host_state_piece(host, width)


def _known(figure: Figure) -> Callable[[HostFigures], bool]:
    return lambda host: figure.value(host) is not None


def _number(title: str, figure: Figure, hosts: Sequence[HostFigures], matters_ms: float) -> table.TableColumn:
    """`matters_ms`: an excess below this is not emphasized, nor whose it is."""
    width = figure.width
    if title == "clock ms":
        width = max([width, *(cells(_clock(host)[0]) for host in hosts)])

    def cell(at: int) -> Piece:
        host = hosts[at]
        if title == "ranks":
            missing = host.running < host.ranks and host.state != "finished"
            return f"{host.running}/{host.ranks}", "warn" if missing else "dim"
        if title == "clock ms":
            return _clock(host)
        value = figure.value(host)
        if value is None or not known(value):
            return UNKNOWN, "faint"
        calm = title in ("worst", "excess") and (host.excess_ms or 0.0) < matters_ms
        return figure.text(value), "faint" if calm else figure.role

    return table.TableColumn(title, width, cell, figure.keep)


def _clock(host: HostFigures) -> Piece:
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
    hosts = host_figures(context)
    if len(hosts) < 2:
        return []
    shown = hosts[:MAX_ROWS]
    lines = table.text_lines(host_columns(context, shown, width), len(shown), width)
    left = hosts[MAX_ROWS:]
    if left:
        unwell = sum(host.state not in ("live", "finished") for host in left)
        lines.append(f"and {len(left):,} more hosts, {unwell:,} of them not live (--json has all)")
    return lines
