"""The tables of an export: every column with its type and unit. They are defined only here.

What each column means is in `ddptop/export/README.md`, which a test compares with this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from ddptop.frames.figures import FIGURES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Values: TypeAlias = Sequence[Any] | NDArray[Any]
    Rows: TypeAlias = Mapping[str, Values]
    """Some rows of a table: by column its values, all of one length."""

Kind: TypeAlias = Literal["bool", "int32", "int64", "float32", "float64", "text"]

UNKNOWN = -1
"""In columns of integers, none of which can be negative: not known. In columns of floats it is NaN, in text
it is empty. Files have null in its place."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    kind: Kind

    @property
    def unit(self) -> str:
        """Its unit, by the end of its name; empty: it has none."""
        end = self.name.rsplit("_", 1)[-1]
        return end if end in ("ms", "s", "bytes") else "s" if end == "seconds" else ""


class Table(NamedTuple):
    """A table, and what a row of it is."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its columns."""
        return tuple(column.name for column in self.columns)


def _define_table(name: str, row: str, *columns: tuple[Any, str]) -> Table:
    """`columns`: a type, and the names of columns of that type."""
    return Table(
        name,
        row,
        tuple(Column(column_name, kind) for kind, names in columns for column_name in names.split()),
    )


STEP_FIGURES = [(figure.step_place, figure.name) for figure in FIGURES if figure.step_place is not None]
# Beside the figures, since only a step has it.
CPU_WAIT = (140, "cpu_wait_ms")
"""Place and name of a column that only single steps have: a rank has no such figure."""

_KEY = (("int32", "incarnation"), ("int64", "step"), ("int32", "rank"))

TABLES = RUN, RANKS, STEPS, BUCKETS, EVENTS, LEDGER, WAITED_FOR = (
    _define_table(
        "run",
        "the run: one row",
        ("text", "name id state source script backend torch"),
        ("int32", "world_size nodes exit_code"),
        ("float64", "started_unix_s elapsed_s"),
    ),
    _define_table(
        "ranks",
        "one per rank, as it was at the end of the recording",
        *(("int32", "rank"), ("text", "host device state"), ("int32", "local_rank pid")),
        *(("int64" if figure.integer else "float32", figure.key) for figure in FIGURES if figure.is_exported),
        ("float64", "clock_offset_ms clock_bound_ms"),
    ),
    _define_table(
        "steps",
        "one per complete step and rank",
        *(*_KEY, ("float64", "begin_s"), ("int32", "micro_steps optimizer")),
        *(("bool", "joined detailed clock_free"), ("float64", "loss")),
        *(("float32", name) for _, name in sorted([*STEP_FIGURES, CPU_WAIT])),
    ),
    _define_table(
        "buckets",
        "one per bucket all-reduce and rank, in steps with bucket detail",
        *(*_KEY, ("int32", "launch model bucket"), ("text", "group")),
        *(("int64", "bytes"), ("int32", "last_arriver")),
        ("float32", "ready_ms start_ms arrival_ms end_ms collective_ms wait_ms transfer_ms lateness_ms"),
    ),
    _define_table(
        "events",
        "one per event of the log: stalls, exits, stragglers, alerts",
        *(("float64", "time_s"), ("text", "kind severity"), *_KEY, ("text", "message")),
    ),
    _define_table(
        "ledger",
        "one per rank and class, over the whole run: a rank's add up to its life",
        *(("int32", "rank"), ("text", "class"), ("float64", "seconds")),
    ),
    _define_table(
        "waited_for",
        "one per rank and place that other ranks have waited for, over the whole run, the largest first",
        *(("int32", "rank"), ("text", "place"), ("float64", "rank_seconds share_pct")),
        *(("int64", "steps"), ("float64", "longest_s"), ("int64", "longest_step")),
    ),
)
"""In the order in which documents and files have them."""
