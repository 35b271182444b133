"""What every figure of a rank is, declared once: `FIGURES`. What shows figures iterates over it.

That is: frames as bytes, JSON and its schema, the tables of ranks and what they can be sorted by. To add a
figure, declare it here, give `Ranks` in `ddptop/frames/frame.py` a field of its name, and measure it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypeVar

import numpy as np

from ddptop.frames.numbers import LEAST_SHOWN_MS, count, fixed, loss, plus_minus, ratio, size, whole

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame

Scope: TypeAlias = Literal["rank", "gpu", "part"]
"""What holds the values: `Ranks`, `GpuFacts` of the rank, or the breakdown of its step alone."""

Emphasis: TypeAlias = Literal["text", "dim", "faint"]
"""How loud the values of a column are."""


def some_known(values: Column) -> bool:
    """Whether a value is known."""
    return bool(np.isfinite(values).any())


def some_above_zero(values: Column) -> bool:
    """Whether a value is above 0."""
    return bool((values > 0).any())


def some_above_one(values: Column) -> bool:
    """Whether a value is above 1."""
    return bool((values > 1).any())


def some_shown_ms(values: Column) -> bool:
    """Whether a time is not written as 0.0."""
    return bool((values >= LEAST_SHOWN_MS).any())


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumn:
    """The column of a figure in a table of ranks."""

    place: int
    """Columns stand in this order, from the left."""
    keep: int
    """Where the width does not suffice, columns of the smallest number are left out first."""
    keep_beside_own_times: int | None = None
    """The same where own times, which say more, are known of some rank; None: as `keep`."""
    keep_unknown: int | None = None
    """The same where no value is known; None: as `keep`."""
    title: str = ""
    """Empty: that of the figure."""
    shown: Callable[[Column], bool] | None = None
    """Whether a table of ranks with these values has the column; None: always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of every rank: what it is, and where it is shown."""

    name: str
    """In JSON. It ends with the unit, which says how many decimals it has there."""
    scope: Scope = "rank"
    title: str = ""
    """Of its column in tables; empty: no table has it."""
    text: Callable[[float | None], str] = fixed
    """How a value is written for users."""
    part: str = ""
    """The part of the step that tables show in its place: parts add up to the step (`render/phases.py`)."""
    compares_clocks: bool = False
    """It is unknown where the clocks of several hosts are not synchronized well enough."""
    has_fallback: bool = False
    """There it has a fallback that needs no clocks, which is marked by `~`."""
    in_json: bool = True
    """Whether the JSON snapshot has it."""
    integer: bool = False
    """Whether it is an integer in JSON."""
    as_float64: bool = False
    """Counts and ids need float64 to stay exact. Other columns travel as float32."""
    may_be_infinite: bool = False
    """Whether infinity is a value of it: only of numbers of the training itself."""
    emphasis: Emphasis = "text"
    screen: FigureColumn | None = None
    """Its column on the screen; None: it has none."""
    plain: FigureColumn | None = None
    """Its column in `--once` and `--watch`; None: it has none."""
    largest_first: bool | None = None
    """The order of ranks that are sorted by it; None: they cannot be."""


FIGURES = (
    Figure(name="local_rank", in_json=False, integer=True, as_float64=True),
    Figure(name="pid", in_json=False, integer=True, as_float64=True),
    Figure(name="incarnation", in_json=False, as_float64=True),
    Figure(name="age_ms", as_float64=True),
    Figure(
        name="step",
        title="step",
        text=count,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=10, keep=84),
        plain=FigureColumn(place=10, keep=97),
        largest_first=False,
    ),
    Figure(name="bucket", integer=True, as_float64=True),
    Figure(name="sequence", integer=True, as_float64=True),
    Figure(
        name="loss",
        title="loss",
        text=loss,
        may_be_infinite=True,
        screen=FigureColumn(place=20, keep=80),
        plain=FigureColumn(place=20, keep=80),
        largest_first=True,
    ),
    Figure(
        name="step_ms",
        title="ms/step",
        screen=FigureColumn(place=30, keep=85),
        plain=FigureColumn(place=30, keep=96),
        largest_first=True,
    ),
    Figure(
        name="data_ms",
        title="data",
        part="data",
        screen=FigureColumn(place=100, keep=58),
        plain=FigureColumn(place=50, keep=90),
        largest_first=True,
    ),
    Figure(
        name="forward_ms",
        title="fwd",
        part="forward",
        screen=FigureColumn(place=110, keep=57),
        plain=FigureColumn(place=60, keep=89),
        largest_first=True,
    ),
    Figure(name="backward_ms"),
    Figure(
        name="optimizer_ms",
        title="opt",
        part="optimizer",
        screen=FigureColumn(place=150, keep=48),
        plain=FigureColumn(place=100, keep=60),
        largest_first=True,
    ),
    Figure(
        name="other_ms",
        title="other",
        part="other",
        screen=FigureColumn(place=160, keep=46),
        plain=FigureColumn(place=110, keep=50),
        largest_first=True,
    ),
    Figure(name="collective_ms"),
    Figure(name="wait_ms"),
    Figure(name="transfer_ms"),
    Figure(name="exposed_comm_ms"),
    Figure(
        name="lateness_ms",
        title="late",
        compares_clocks=True,
        screen=FigureColumn(place=70, keep=96, keep_beside_own_times=37, keep_unknown=60),
        plain=FigureColumn(place=140, keep=98, keep_beside_own_times=70),
        largest_first=True,
    ),
    Figure(
        name="last_pct",
        title="last%",
        text=whole,
        compares_clocks=True,
        screen=FigureColumn(place=90, keep=42, keep_beside_own_times=35),
        plain=FigureColumn(place=160, keep=40, title="last %"),
        largest_first=True,
    ),
    Figure(
        name="bound_ms",
        title="±",
        text=plus_minus,
        compares_clocks=True,
        emphasis="faint",
        screen=FigureColumn(place=80, keep=59, keep_beside_own_times=36, shown=some_known),
        plain=FigureColumn(place=150, keep=69, shown=some_known),
    ),
    Figure(name="transfer_bound_ms"),
    Figure(
        name="exposed_wait_ms",
        title="wait",
        part="wait",
        has_fallback=True,
        screen=FigureColumn(place=130, keep=55),
        plain=FigureColumn(place=80, keep=95),
        largest_first=True,
    ),
    Figure(
        name="own_ms",
        title="own",
        screen=FigureColumn(place=60, keep=43, shown=some_known),
        largest_first=True,
    ),
    Figure(
        name="own_backward_ms",
        title="bwd",
        part="backward",
        screen=FigureColumn(place=120, keep=56),
        plain=FigureColumn(place=70, keep=88),
        largest_first=True,
    ),
    Figure(
        name="excess_ms",
        title="excess",
        screen=FigureColumn(place=50, keep=96, shown=some_known),
        plain=FigureColumn(place=130, keep=98, shown=some_known),
        largest_first=True,
    ),
    Figure(
        name="waited_ms",
        title="sync",
        part="sync",
        screen=FigureColumn(place=170, keep=53, shown=some_shown_ms),
        plain=FigureColumn(place=120, keep=92, shown=some_shown_ms),
        largest_first=True,
    ),
    Figure(name="before_forward_ms"),
    Figure(name="before_backward_ms"),
    Figure(name="before_optimizer_ms"),
    Figure(name="after_optimizer_ms"),
    Figure(name="gc_ms"),
    Figure(name="buffers_ms"),
    Figure(name="buffers_wait_ms"),
    Figure(
        name="relative_score",
        title="relative",
        text=ratio,
        screen=FigureColumn(place=180, keep=61),
        plain=FigureColumn(place=170, keep=15),
        largest_first=False,
    ),
    Figure(name="individual_score"),
    Figure(name="records", integer=True, as_float64=True),
    Figure(
        name="lost_records",
        title="lost",
        text=count,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=230, keep=38),
        plain=FigureColumn(place=180, keep=30, shown=some_above_zero),
        largest_first=True,
    ),
    Figure(
        name="rss_bytes",
        title="mem",
        text=size,
        integer=True,
        as_float64=True,
        emphasis="dim",
        screen=FigureColumn(place=210, keep=40),
        largest_first=True,
    ),
    Figure(
        name="cpu_pct",
        title="cpu%",
        text=whole,
        emphasis="dim",
        screen=FigureColumn(place=220, keep=39),
        largest_first=True,
    ),
    Figure(
        name="micro_steps",
        title="micro",
        text=count,
        integer=True,
        emphasis="dim",
        screen=FigureColumn(place=40, keep=62, shown=some_above_one),
        plain=FigureColumn(place=40, keep=65, shown=some_above_one),
    ),
    Figure(name="joined", in_json=False),
    Figure(name="own_data_ms", in_json=False),
    Figure(name="own_forward_ms", in_json=False),
    Figure(name="own_optimizer_ms", in_json=False),
    Figure(
        name="exposed transfer",
        scope="part",
        title="transfer",
        part="transfer",
        has_fallback=True,
        screen=FigureColumn(place=140, keep=54),
        plain=FigureColumn(place=90, keep=94),
        largest_first=True,
    ),
    Figure(
        name="util_pct",
        scope="gpu",
        title="gpu%",
        text=whole,
        screen=FigureColumn(place=190, keep=52, shown=some_known),
    ),
    Figure(
        name="mem_bytes",
        scope="gpu",
        title="gpumem",
        text=size,
        emphasis="dim",
        screen=FigureColumn(place=200, keep=51, shown=some_known),
    ),
)
"""Those of `Ranks` in the order of the JSON snapshot."""

RANK_FIGURES = {figure.name: figure for figure in FIGURES if figure.scope == "rank"}
"""Those that are columns of `Ranks`."""

BY_TITLE = {figure.title: figure for figure in FIGURES if figure.title}


class HasPlace(Protocol):
    """Where a surface shows a figure."""

    @property
    def place(self) -> int: ...


Surface = TypeVar("Surface", bound=HasPlace)


def figures_shown(how_shown: Callable[[Figure], Surface | None]) -> list[tuple[Figure, Surface]]:
    """The figures that a surface shows and how, in the order of their places."""
    shown = [(figure, how) for figure in FIGURES if (how := how_shown(figure)) is not None]
    return sorted(shown, key=lambda figure_and_how: figure_and_how[1].place)


def values_of_ranks(figure: Figure, frame: Frame) -> Column:
    """(ranks,) values of a figure that is no part of the step alone; NaN: not known."""
    if figure.scope == "rank":
        return np.asarray(getattr(frame.ranks, figure.name))
    values = np.full(len(frame.ranks.state), np.nan)
    for facts in frame.gpus:
        value = getattr(facts, figure.name)
        if value is not None and facts.rank < len(values):
            values[facts.rank] = value
    return values
