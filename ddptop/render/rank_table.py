"""The table of ranks: its figures, and the columns of them on the screen and in `--once`.

Where the width does not suffice, columns of the smallest `keep` are left out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.activity_words import SHORT_WORDS
from ddptop.frames.columns import distinct_texts, keep_newest
from ddptop.frames.conditions import STATES, word_of_state
from ddptop.frames.figures import figures_shown, some_known
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.hosts import host_index
from ddptop.frames.numbers import UNKNOWN, age, duration, known, short_age
from ddptop.frames.phrases import NOT_A_NUMBER, has_nan_losses, several_hosts
from ddptop.frames.training_kind import times_waiting
from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.line import Piece, Role, of_state
from ddptop.render.text import clean_text, text_width
from ddptop.render.trouble import as_of

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.figures import Figure, FigureColumn, Ranks
    from ddptop.frames.frame import Frame
    from ddptop.frames.hosts import HostFigures
    from ddptop.protocol.vocabulary import FrameSource

STATE_WIDTH, STALE_WIDTH, UNREACHABLE_WIDTH = 10, 11, 16
"""`✓ finished`, `◌ stale 12s`; wider while a host is silent, whose state is a long word."""

HAVE_NO_AGE = ("stale", "waiting")
"""States of the run in which a stale rank has no age: the headline tells it, or others have not come yet."""

SCREEN_COLUMNS = figures_shown(lambda figure: figure.screen)
PLAIN_COLUMNS = figures_shown(lambda figure: figure.plain)


def figure_values(context: RenderContext, figure: Figure) -> Column:
    """(ranks,) values of a figure, NaN where not known. The parts of a step add up to it."""
    if figure.part:
        return context.breakdown.column(figure.part)
    return values_of_ranks(figure, context.frame)


def table_values(context: RenderContext, figure: Figure) -> Column:
    """(ranks,) values of a figure as tables show them: NaN also where they would compare clocks that cannot
    be compared."""
    values = figure_values(context, figure)
    is_unknown = figure.compares_clocks and context.frame.group.clock_free
    return np.full_like(values, np.nan) if is_unknown else values


def table_text(context: RenderContext, figure: Figure, value: float) -> str:
    """One of these values; with `~` in front where it is the fallback that needs no clocks."""
    if figure.name == "loss" and not known(value) and has_nan_losses(context.frame):
        return NOT_A_NUMBER
    text = figure.text(value)
    is_fallback = figure.has_fallback and context.clock_free and known(value)
    return f"~{text}" if is_fallback else text


def _keep_of(column: FigureColumn, values: Column, ranks: Ranks, by_steps: bool) -> int:
    """What `Column.keep` is for these values. `by_steps`: own times are known."""
    if by_steps and column.keep_beside_own_times is not None:
        return column.keep_beside_own_times
    if column.keep_unknown is not None and not some_known(values):
        return column.keep_unknown
    if column.keep_alike is not None and column.alike is not None and column.alike(values, ranks):
        return column.keep_alike
    return column.keep


def rank_columns(context: RenderContext) -> list[table.TableColumn]:
    """The columns on the screen, in their order; the table drops those of the least weight until it fits.

    Where waiting is not timed, a column of which nothing is known goes too: nothing will be."""
    ranks, index = context.frame.ranks, host_index(context.frame.ranks.host)
    may_be_known = context.frame.group.step is None or times_waiting(context.frame.run.training)
    last = max(0, len(ranks.state) - 1)
    width = state_width(context.frame)
    return [
        table.TableColumn(
            "rank", max(5, len(str(last))), lambda rank: (str(rank), _name_role(context, rank)), 99
        ),
        _text_column(context, "host", index.rank_short, 5 if len(index.names) <= 1 else 75, 16),
        _text_column(context, "dev", ranks.device, 70, 8),
        table.TableColumn("state", width, lambda rank: state_piece(context, rank, width), 98, right=False),
        *(
            _number_column(context, figure, values, _keep_of(column, values, ranks, context.by_steps))
            for figure, column in SCREEN_COLUMNS
            for values in (table_values(context, figure),)
            if (column.shown is None or column.shown(values)) and (may_be_known or some_known(values))
        ),
    ]


def plain_rank_columns(context: RenderContext, shown: Sequence[int]) -> list[table.TableColumn]:
    """The columns of `--once` for some ranks; row `i` is rank `shown[i]`."""
    ranks, frame = context.frame.ranks, context.frame

    def text_column(title: str, texts: Sequence[str], keep: int) -> table.TableColumn:
        clean_texts = [context.clean(texts[rank]) or UNKNOWN for rank in shown]
        return table.measured_column(title, clean_texts, keep, right=False, most=None)

    by_steps = bool(ranks.compared[list(shown)].any())
    hosts = host_index(ranks.host).rank_short if several_hosts(frame) else ranks.host
    columns = [
        table.measured_column("rank", [str(rank) for rank in shown], 99, most=None),
        text_column("host", hosts, 94 if several_hosts(frame) else 20),
        text_column("device", ranks.device, 10),
        text_column("state", [_plain_state(context, rank) for rank in range(len(ranks.state))], 98),
    ]
    for figure, column in PLAIN_COLUMNS:
        values = table_values(context, figure)[list(shown)]
        if column.shown is None or column.shown(values):
            texts = [table_text(context, figure, value) for value in values.tolist()]
            keep = _keep_of(column, values, ranks, by_steps)
            columns.append(table.measured_column(column.title or figure.title, texts, keep, most=None))
    return columns


def _plain_state(context: RenderContext, rank: int) -> str:
    """The word alone; a rank that does not report also shows for how long."""
    ranks, age_ms = context.frame.ranks, no_progress_ms(context.frame, rank)
    state = context.state_word(rank)
    if is_stopped(context, rank):
        return SHORT_WORDS["stopped"]
    word = "joined" if state == "live" and ranks.joined[rank] > 0 else state
    word = context.activity_words.get(rank, word) if word == "live" else word
    word = word_of_state(word, context.frame.source)
    return f"{word} {short_age(age_ms / 1e3)}" if _is_aged(word) and known(age_ms) else word


def is_stopped(context: RenderContext, rank: int) -> bool:
    """Whether a signal has stopped its process, which says more than that it is stale or stalled."""
    return rank in context.stopped and context.state_word(rank) in ("live", "stale", "stalled", "waiting")


def _is_aged(word: str) -> bool:
    """Whether it is a state that is shown with the time since the last update, or without progress."""
    return word in STATES and STATES[word].is_aged


LONGEST_WORD = max(len(state) for state, words in STATES.items() if not words.is_silent)
"""Cells of the states that the narrow column holds."""


def state_width(frame: Frame) -> int:
    """Width of the column of states."""
    states = {*distinct_texts(frame.ranks.state), *(host.state for host in frame.hosts)}
    if max(map(len, states), default=0) > LONGEST_WORD:
        return UNREACHABLE_WIDTH
    return STALE_WIDTH if "stale" in states and frame.run.state not in HAVE_NO_AGE else STATE_WIDTH


def host_state_piece(host: HostFigures, width: int, source: FrameSource) -> Piece:
    """Sign and word of a host's state; of a silent one also for how long."""
    sign, role = of_state(host.state)
    text = f"{sign} {word_of_state(host.state, source)}"
    if STATES[host.state].is_silent and known(host.age_ms):
        aged = f"{text} {short_age(host.age_ms / 1e3)}"
        text = aged if text_width(aged) <= width else text
    return text, "dim" if host.state in ("live", "finished") else role


def state_piece(context: RenderContext, rank: int, width: int = STATE_WIDTH) -> Piece:
    """Sign and word; of a rank without updates also for how long."""
    ranks = context.frame.ranks
    word, lasts_ms = context.state_word(rank), no_progress_ms(context.frame, rank)
    sign, role = of_state(word)
    if is_stopped(context, rank):
        sign, role = of_state("stale" if word == "live" else word)
        return f"{sign} {SHORT_WORDS['stopped']}", role
    if word == "live" and ranks.joined[rank] > 0:  # out of inputs: it only answers the others
        return f"{sign} joined", role
    if word == "live" and rank in context.activity_words:
        does = context.activity_words[rank]
        return f"○ {does}", "dim" if does == SHORT_WORDS["wait"] else "accent"
    text = f"{sign} {word_of_state(word, context.frame.source)}"
    is_aged = (_is_aged(word) or word == "lost") and known(lasts_ms)
    if is_aged and not (word == context.frame.run.state == "stale"):  # the headline tells that age
        lasts = short_age(lasts_ms / 1e3) if width <= UNREACHABLE_WIDTH else age(lasts_ms / 1e3)
        aged = f"{text} {lasts}"
        text = aged if text_width(aged) <= width else text
    return text, "dim" if word == "live" and width <= UNREACHABLE_WIDTH else role


def no_progress_ms(frame: Frame, rank: int) -> float:
    """Time since the last update; of a stalled rank, time without progress (NaN: not known)."""
    if frame.ranks.state[rank] != "stalled":
        return float(frame.ranks.age_ms[rank])
    return (frame.unix_s - frame.stall.since_s) * 1e3 if frame.stall is not None else float("nan")


def last_update(age_ms: float) -> str:
    """How long ago the last update was."""
    return f"{duration(age_ms / 1e3)} ago" if known(age_ms) else UNKNOWN


def rank_mark(context: RenderContext, rank: int) -> Piece:
    """Marked for comparison, responsible for a stall, or a straggler."""
    if rank == context.marked:
        return "◆", "accent"
    if rank in context.responsible:
        return "■", "bad"
    return ("▲", "warn") if rank in context.stragglers else (" ", "text")


def _name_role(context: RenderContext, rank: int) -> Role:
    return (
        rank_mark(context, rank)[1] if rank in context.responsible or rank in context.stragglers else "strong"
    )


def _text_column(
    context: RenderContext, title: str, texts: tuple[str, ...], keep: int, most: int
) -> table.TableColumn:
    width = min(most, max(text_width(title), widest_text(texts, context.ascii_only)))
    return table.TableColumn(
        title,
        width,
        lambda rank: (context.clean(texts[rank]) or UNKNOWN, "dim"),
        keep,
        right=False,
        tail=True,
    )


@keep_newest
def widest_text(texts: tuple[str, ...], ascii_only: bool) -> int:
    """Hosts and devices of thousands of ranks do not change from picture to picture."""
    return max((text_width(clean_text(text, ascii_only)) for text in set(texts)), default=0)


def _number_column(context: RenderContext, figure: Figure, column: Column, keep: int) -> table.TableColumn:
    finite = column[np.isfinite(column)]
    extremes = (float(finite.min()), float(finite.max())) if len(finite) else ()
    texts = [UNKNOWN, *(table_text(context, figure, value) for value in extremes)]
    role: Role = "dim" if figure.emphasis == "text" and as_of(context.frame) else figure.emphasis

    def draw_cell(rank: int) -> Piece:
        value = float(column[rank])
        text = table_text(context, figure, value)
        return (text, role) if known(value) or text == NOT_A_NUMBER else (UNKNOWN, "faint")

    return table.TableColumn(
        figure.title, max(text_width(figure.title) + 1, *map(text_width, texts)), draw_cell, keep
    )
