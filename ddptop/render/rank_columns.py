"""The columns of the table of ranks: what stands in them, and which give way first."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.line import Piece, Role
from ddptop.render.numbers import UNKNOWN, count, duration, fixed, known, loss, size
from ddptop.render.signs import of_state
from ddptop.render.text import cells, clean

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame

BOUND = "±"
"""Title of the column beside the lateness: how far that may be wrong."""

STATE_WIDTH = 10
"""`◌ stale 9s`, `✓ finished`."""


def rank_columns(context: RenderContext) -> list[table.Column]:
    """All of them, in their order; the table drops those of the least weight until it fits."""
    ranks = context.frame.ranks
    one_host = len(set(ranks.host)) <= 1
    last = max(0, len(ranks.state) - 1)
    bounds = _told(context, ranks.bound_ms)

    def part(title: str, keep: int) -> table.Column:
        return _number(title, context.breakdown.column(title), fixed, keep, "text")

    columns = [
        table.Column("rank", max(5, len(str(last))), lambda rank: (str(rank), _name_role(context, rank)), 99),
        _text(context, "host", without_domain(ranks.host), 5 if one_host else 75, 16),
        _text(context, "dev", ranks.device, 70, 8),
        table.Column("state", STATE_WIDTH, lambda rank: state_piece(context, rank), 98, right=False),
        _number("step", ranks.step, count, 84, "dim"),
        _number("loss", ranks.loss, loss, 80, "text"),
        _number("ms/step", ranks.step_ms, fixed, 85, "text"),
        *_micro_columns(context),
        _number("late", _told(context, ranks.lateness_ms), fixed, 60, "text"),
        _number(BOUND, bounds, _bound, 59, "faint"),
        _number("last%", _told(context, ranks.last_pct), lambda value: fixed(value, 0), 42, "text"),
        part("data", 58),
        part("fwd", 57),
        part("bwd", 56),
        _number("wait", context.breakdown.column("wait"), _split(context), 55, "text"),
        _number("transfer", context.breakdown.column("transfer"), _split(context), 54, "text"),
        part("opt", 48),
        part("other", 46),
        _number("score", ranks.relative_score, lambda value: fixed(value, 2), 61, "text"),
        *_gpu_columns(context),
        _number("mem", ranks.rss_bytes, size, 40, "dim"),
        _number("cpu%", ranks.cpu_pct, lambda value: fixed(value, 0), 39, "dim"),
        _number("lost", ranks.lost_records, count, 38, "dim"),
    ]
    return [column for column in columns if column.title != BOUND or np.isfinite(bounds).any()]


def _micro_columns(context: RenderContext) -> list[table.Column]:
    """Backward passes in a step, where gradients are accumulated."""
    micro = context.frame.ranks.micro_steps
    return [_number("micro", micro, count, 62, "dim")] if (micro > 1).any() else []


def _gpu_columns(context: RenderContext) -> list[table.Column]:
    """Load and memory of the GPUs, where any rank tells of one."""
    if not context.frame.gpus:
        return []
    load, memory = (np.full(len(context.frame.ranks.state), np.nan) for _ in range(2))
    for facts in context.frame.gpus:
        if facts.rank < len(load):
            load[facts.rank] = np.nan if facts.util_pct is None else facts.util_pct
            memory[facts.rank] = np.nan if facts.mem_bytes is None else facts.mem_bytes
    return [
        _number("gpu%", load, lambda value: fixed(value, 0), 52, "text"),
        _number("gpumem", memory, size, 51, "dim"),
    ]


def state_piece(context: RenderContext, rank: int, width: int = STATE_WIDTH) -> Piece:
    """Sign and word; a silent rank also shows for how long."""
    ranks = context.frame.ranks
    word, age = ranks.state[rank], silent_or_stuck_ms(context.frame, rank)
    sign, role = of_state(word)
    if word == "live" and ranks.joined[rank] > 0:  # out of inputs: it only answers the others
        return f"{sign} joined", role
    text = f"{sign} {word}"
    if word in ("stale", "stalled", "lost") and known(age):
        aged = f"{text} {age / 1e3:.0f}s"
        text = aged if cells(aged) <= width else text
    return text, "dim" if word == "live" and width == STATE_WIDTH else role


def silent_or_stuck_ms(frame: Frame, rank: int) -> float:
    """Since it was heard of; of a stalled rank, since the step last moved (NaN: not known)."""
    if frame.ranks.state[rank] != "stalled":
        return float(frame.ranks.age_ms[rank])
    return (frame.unix_s - frame.stall.since_s) * 1e3 if frame.stall is not None else float("nan")


def silence(age_ms: float) -> str:
    """How long ago something was heard."""
    return f"{duration(age_ms / 1e3)} ago" if known(age_ms) else UNKNOWN


def mark(context: RenderContext, rank: int) -> Piece:
    """To be compared; whom a stall is due to; whom the others wait for at every step."""
    if rank == context.marked:
        return "◆", "accent"
    if rank in context.blamed:
        return "■", "bad"
    return ("▲", "warn") if rank in context.culprits else (" ", "text")


def _name_role(context: RenderContext, rank: int) -> Role:
    return mark(context, rank)[1] if rank in context.blamed or rank in context.culprits else "strong"


def _told(context: RenderContext, column: Column) -> Column:
    """Who came when, where the clocks can tell it; nothing elsewhere."""
    return np.full_like(column, np.nan) if context.frame.group.clock_free else column


def _bound(value: float | None) -> str:
    return f"±{fixed(value)}" if known(value) else UNKNOWN


def _split(context: RenderContext) -> Callable[[float | None], str]:
    """Wait and transfer; a sign in front of what the clock-free fallback found."""
    if not context.frame.group.clock_free:
        return fixed
    return lambda value: f"~{fixed(value)}" if known(value) else UNKNOWN


def _text(context: RenderContext, title: str, texts: tuple[str, ...], keep: int, most: int) -> table.Column:
    width = min(most, max(cells(title), _widest(texts, context.ascii_only)))
    return table.Column(
        title,
        width,
        lambda rank: (context.clean(texts[rank]) or UNKNOWN, "dim"),
        keep,
        right=False,
        tail=True,
    )


@lru_cache(maxsize=2)
def without_domain(hosts: tuple[str, ...]) -> tuple[str, ...]:
    """`gpu017.cluster.local` as `gpu017`, where that still tells all hosts apart."""
    short = {host: host.partition(".")[0] for host in set(hosts)}
    if len(set(short.values())) < len(short) or any(name.isdecimal() for name in short.values()):
        return hosts  # several of one name, or addresses
    return tuple(short[host] for host in hosts)


@lru_cache(maxsize=4)
def _widest(texts: tuple[str, ...], ascii_only: bool) -> int:
    """Hosts and devices of thousands of ranks do not change from picture to picture."""
    return max((cells(clean(text, ascii_only)) for text in set(texts)), default=0)


def _number(
    title: str, column: Column, text: Callable[[float | None], str], keep: int, role: Role
) -> table.Column:
    there = column[np.isfinite(column)]
    extremes = (float(there.min()), float(there.max())) if len(there) else ()
    width = max(cells(title) + 1, *(cells(text(value)) for value in (*extremes, None)))

    def cell(rank: int) -> Piece:
        value = float(column[rank])
        return (text(value), role) if known(value) else (UNKNOWN, "faint")

    return table.Column(title, width, cell, keep)
