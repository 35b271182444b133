"""The table of ranks: its figures, and the columns of them on the screen and in `--once`.

Where the width does not suffice, columns of the smallest `keep` are left out first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import RATIO, UNKNOWN, count, duration, fixed, known, loss, size
from ddptop.frames.phrases import several_hosts
from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.line import Piece, Role, of_state
from ddptop.render.text import cells, clean
from ddptop.render.trouble import as_of

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.frames.hosts import HostFigures

BOUND = "±"
"""Title of the column beside the lateness: how far that may be wrong."""

STATE_WIDTH, UNREACHABLE_WIDTH = 10, 16
"""`◌ stale 9s`, `✓ finished`; `◇ unreachable 4s`, while a host is."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of every rank: (ranks,) values, NaN where not known, and how one of them is written."""

    values: Column
    text: Callable[[float | None], str] = fixed


def rank_figures(context: RenderContext) -> dict[str, Figure]:
    """By the title of its column. The screen, `--once` and the sort order take them from here."""
    ranks, parts = context.frame.ranks, context.breakdown
    return {
        "step": Figure(ranks.step, count),
        "loss": Figure(ranks.loss, loss),
        "ms/step": Figure(ranks.step_ms),
        "micro": Figure(ranks.micro_steps, count),
        "excess": Figure(ranks.excess_ms),
        "own": Figure(ranks.own_ms),
        "late": Figure(_by_clocks(context, ranks.lateness_ms)),
        BOUND: Figure(_by_clocks(context, ranks.bound_ms), _bound),
        "last%": Figure(_by_clocks(context, ranks.last_pct), _whole),
        **{title: Figure(parts.column(title)) for title in ("data", "fwd", "bwd", "opt", "other", "sync")},
        "wait": Figure(parts.column("wait"), _wait_or_transfer(context)),
        "transfer": Figure(parts.column("transfer"), _wait_or_transfer(context)),
        "relative": Figure(ranks.relative_score, lambda value: fixed(value, RATIO)),
        **_gpu_figures(context),
        "mem": Figure(ranks.rss_bytes, size),
        "cpu%": Figure(ranks.cpu_pct, _whole),
        "lost": Figure(ranks.lost_records, count),
    }


def rank_columns(context: RenderContext) -> list[table.Column]:
    """The columns on the screen, in their order; the table drops those of the least weight until it fits."""
    ranks, figures = context.frame.ranks, rank_figures(context)
    index, by_steps = host_index(ranks.host), context.by_steps
    last = max(0, len(ranks.state) - 1)
    width = state_width(context.frame)
    usual: Role = "dim" if as_of(context.frame) else "text"

    def number(title: str, keep: int, role: Role = usual) -> table.Column:
        return _number(title, figures[title], keep, role)

    return [
        table.Column("rank", max(5, len(str(last))), lambda rank: (str(rank), _name_role(context, rank)), 99),
        _text(context, "host", index.rank_short, 5 if len(index.names) <= 1 else 75, 16),
        _text(context, "dev", ranks.device, 70, 8),
        table.Column("state", width, lambda rank: state_piece(context, rank, width), 98, right=False),
        number("step", 84, "dim"),
        number("loss", 80),
        number("ms/step", 85),
        *([number("micro", 62, "dim")] if accumulates(context) else []),
        *([number("excess", 96), number("own", 43)] if by_steps else []),
        number("late", 37 if by_steps else 96 if np.isfinite(figures["late"].values).any() else 60),
        *(
            [number(BOUND, 36 if by_steps else 59, "faint")]
            if np.isfinite(figures[BOUND].values).any()
            else []
        ),
        number("last%", 35 if by_steps else 42),
        number("data", 58),
        number("fwd", 57),
        number("bwd", 56),
        number("wait", 55),
        number("transfer", 54),
        number("opt", 48),
        number("other", 46),
        *([number("sync", 53)] if context.breakdown.has_sync else []),
        number("relative", 61),
        *([number("gpu%", 52), number("gpumem", 51, "dim")] if context.frame.gpus else []),
        number("mem", 40, "dim"),
        number("cpu%", 39, "dim"),
        number("lost", 38, "dim"),
    ]


def plain_rank_columns(context: RenderContext, shown: Sequence[int]) -> list[table.Column]:
    """The columns of `--once` for some ranks; row `i` is rank `shown[i]`."""
    ranks, figures = context.frame.ranks, rank_figures(context)

    def words(title: str, texts: Sequence[str], keep: int) -> table.Column:
        clean_texts = [context.clean(texts[rank]) or UNKNOWN for rank in shown]
        return table.measured(title, clean_texts, keep, right=False, most=None)

    def number(name: str, keep: int, title: str = "") -> table.Column:
        figure = figures[name]
        texts = [figure.text(float(figure.values[rank])) for rank in shown]
        return table.measured(title or name, texts, keep, most=None)

    bounds = figures[BOUND].values[list(shown)]
    by_steps = bool(np.isfinite(figures["excess"].values[list(shown)]).any())
    hosts = host_index(ranks.host).rank_short if several_hosts(context.frame) else ranks.host
    return [
        table.measured("rank", [str(rank) for rank in shown], 99, most=None),
        words("host", hosts, 94 if several_hosts(context.frame) else 20),
        words("device", ranks.device, 10),
        words("state", [_plain_state(context, rank) for rank in range(len(ranks.state))], 98),
        number("step", 97),
        number("loss", 80),
        number("ms/step", 96),
        *([number("micro", 65)] if accumulates(context) else []),
        number("data", 90),
        number("fwd", 89),
        number("bwd", 88),
        number("wait", 95),
        number("transfer", 94),
        number("opt", 60),
        number("other", 50),
        *([number("sync", 92)] if context.breakdown.has_sync else []),
        *([number("excess", 98)] if by_steps else []),
        number("late", 70 if by_steps else 98),
        *([number(BOUND, 69)] if np.isfinite(bounds).any() else []),
        number("last%", 40, "last %"),
        number("relative", 15),
        *([number("lost", 30)] if (ranks.lost_records > 0).any() else []),
    ]


def accumulates(context: RenderContext) -> bool:
    """Whether gradients are accumulated: some rank runs several backward passes in a step."""
    return bool((context.frame.ranks.micro_steps > 1).any())


def _gpu_figures(context: RenderContext) -> dict[str, Figure]:
    """Utilization in % and memory in bytes of the ranks' GPUs, where any rank reports one."""
    if not context.frame.gpus:
        return {}
    load, memory = (np.full(len(context.frame.ranks.state), np.nan) for _ in range(2))
    for gpu in context.frame.gpus:
        if gpu.rank < len(load):
            load[gpu.rank] = np.nan if gpu.util_pct is None else gpu.util_pct
            memory[gpu.rank] = np.nan if gpu.mem_bytes is None else gpu.mem_bytes
    return {"gpu%": Figure(load, _whole), "gpumem": Figure(memory, size)}


def _plain_state(context: RenderContext, rank: int) -> str:
    """The word alone; a rank that does not report also shows for how long."""
    ranks, age_ms = context.frame.ranks, no_progress_ms(context.frame, rank)
    state = context.state_word(rank)
    word = "joined" if state == "live" and ranks.joined[rank] > 0 else state
    return f"{word} {fixed(age_ms / 1e3, 0)}s" if word in AGED_STATES and known(age_ms) else word


AGED_STATES = ("stale", "stalled", "unreachable")
"""States that are shown with the time since the last update, or without progress."""


def state_width(frame: Frame) -> int:
    """Width of the column of states."""
    unreachable = "unreachable" in frame.ranks.state or any(h.state == "unreachable" for h in frame.hosts)
    return UNREACHABLE_WIDTH if unreachable else STATE_WIDTH


def host_state_piece(host: HostFigures, width: int) -> Piece:
    """Sign and word of a host's state; of a silent one also for how long."""
    sign, role = of_state(host.state)
    text = f"{sign} {host.state}"
    if host.state in ("unreachable", "lost") and known(host.age_ms):
        aged = f"{text} {fixed(host.age_ms / 1e3, 0)}s"
        text = aged if cells(aged) <= width else text
    return text, "dim" if host.state in ("live", "finished") else role


def state_piece(context: RenderContext, rank: int, width: int = STATE_WIDTH) -> Piece:
    """Sign and word; of a rank without updates also for how long."""
    ranks = context.frame.ranks
    word, age = context.state_word(rank), no_progress_ms(context.frame, rank)
    sign, role = of_state(word)
    if word == "live" and ranks.joined[rank] > 0:  # out of inputs: it only answers the others
        return f"{sign} joined", role
    text = f"{sign} {word}"
    is_aged = word in (*AGED_STATES, "lost") and known(age)
    if is_aged and not (word == context.frame.run.state == "stale"):  # the headline tells that age
        aged = f"{text} {fixed(age / 1e3, 0)}s"
        text = aged if cells(aged) <= width else text
    return text, "dim" if word == "live" and width <= UNREACHABLE_WIDTH else role


def no_progress_ms(frame: Frame, rank: int) -> float:
    """Time since the last update; of a stalled rank, time without progress (NaN: not known)."""
    if frame.ranks.state[rank] != "stalled":
        return float(frame.ranks.age_ms[rank])
    return (frame.unix_s - frame.stall.since_s) * 1e3 if frame.stall is not None else float("nan")


def last_update(age_ms: float) -> str:
    """How long ago the last update was."""
    return f"{duration(age_ms / 1e3)} ago" if known(age_ms) else UNKNOWN


def mark(context: RenderContext, rank: int) -> Piece:
    """Marked for comparison, responsible for a stall, or a straggler."""
    if rank == context.marked:
        return "◆", "accent"
    if rank in context.responsible:
        return "■", "bad"
    return ("▲", "warn") if rank in context.stragglers else (" ", "text")


def _name_role(context: RenderContext, rank: int) -> Role:
    return mark(context, rank)[1] if rank in context.responsible or rank in context.stragglers else "strong"


def _by_clocks(context: RenderContext, column: Column) -> Column:
    """Figures that compare clocks of several hosts; NaN where those are not synchronized well enough."""
    return np.full_like(column, np.nan) if context.frame.group.clock_free else column


def _bound(value: float | None) -> str:
    return f"±{fixed(value)}" if known(value) else UNKNOWN


def _whole(value: float | None) -> str:
    return fixed(value, 0)


def _wait_or_transfer(context: RenderContext) -> Callable[[float | None], str]:
    """`~` in front of values of the clock-free fallback."""
    if not context.clock_free:
        return fixed
    return lambda value: f"~{fixed(value)}" if known(value) else UNKNOWN


def _text(context: RenderContext, title: str, texts: tuple[str, ...], keep: int, most: int) -> table.Column:
    width = min(most, max(cells(title), widest(texts, context.ascii_only)))
    return table.Column(
        title,
        width,
        lambda rank: (context.clean(texts[rank]) or UNKNOWN, "dim"),
        keep,
        right=False,
        tail=True,
    )


@lru_cache(maxsize=4)
def widest(texts: tuple[str, ...], ascii_only: bool) -> int:
    """Hosts and devices of thousands of ranks do not change from picture to picture."""
    return max((cells(clean(text, ascii_only)) for text in set(texts)), default=0)


def _number(title: str, figure: Figure, keep: int, role: Role) -> table.Column:
    column, text = figure.values, figure.text
    finite = column[np.isfinite(column)]
    extremes = (float(finite.min()), float(finite.max())) if len(finite) else ()
    width = max(cells(title) + 1, *(cells(text(value)) for value in (*extremes, None)))

    def cell(rank: int) -> Piece:
        value = float(column[rank])
        return (text(value), role) if known(value) else (UNKNOWN, "faint")

    return table.Column(title, width, cell, keep)
