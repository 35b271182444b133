"""A recording as typed tables: in memory (`ddptop.read`), as CSV and as JSON."""

from __future__ import annotations

import csv
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ddptop.export.columns import BUCKETS, EVENTS, LEDGER, RANKS, RUN, STEPS, TABLES, UNKNOWN, WAITED_FOR
from ddptop.export.reading import (
    Selection,
    Sink,
    event_rows,
    ledger_rows,
    make_rank_rows,
    run_row,
    waited_for_rows,
)
from ddptop.export.rows import bucket_rows, step_rows
from ddptop.protocol.outlets import safe_data
from ddptop.recording.reader import Recording

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from numpy.typing import NDArray

    from ddptop.export.columns import Rows, Table
    from ddptop.export.reading import End
    from ddptop.export.rows import Batch

    Array: TypeAlias = NDArray[Any]


def typed_columns(table: Table, rows: Rows) -> dict[str, Array]:
    """Rows as arrays of the types of their columns; text as objects."""
    return {c.name: np.asarray(rows[c.name], object if c.kind == "text" else c.kind) for c in table.columns}


def unknown_values(values: Array) -> Array:
    """(n,) which values of a column are not known."""
    if values.dtype.kind == "f":
        return np.asarray(np.isnan(values))
    return np.asarray(values == {"i": UNKNOWN, "O": "", "b": None}[values.dtype.kind], bool)


def safe_rows(table: Table, rows: Rows) -> Rows:
    """The rows with safe texts (`ddptop.protocol.outlets`)."""
    texts = {column.name for column in table.columns if column.kind == "text"}
    return {name: [*map(safe_data, values)] if name in texts else values for name, values in rows.items()}


class TableSink(Sink):
    """Makes the rows of all tables; a format writes them."""

    def write_rows(self, table: Table, rows: Rows) -> None:
        """Write some rows of a table."""
        raise NotImplementedError

    def write_steps(self, batch: Batch) -> None:
        """The next steps."""
        self.write_rows(STEPS, safe_rows(STEPS, step_rows(batch)))
        for rows in bucket_rows(batch):
            self.write_rows(BUCKETS, safe_rows(BUCKETS, rows))

    def write_end(self, end: End) -> None:
        """The tables that are known at the end."""
        self.write_rows(RUN, safe_rows(RUN, run_row(end, self._recording)))
        self.write_rows(RANKS, safe_rows(RANKS, make_rank_rows(end, self._selection.ranks)))
        self.write_rows(EVENTS, safe_rows(EVENTS, event_rows(end)))
        self.write_rows(LEDGER, ledger_rows(end, self._selection.ranks))
        self.write_rows(WAITED_FOR, waited_for_rows(end, self._selection.ranks))


@dataclass(frozen=True, repr=False)
class ColumnTable:
    """A table as numpy columns, all of one length. `table["step_ms"]` is a column."""

    definition: Table
    """Name, type and unit of every column."""
    columns: Mapping[str, Array]

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(self.columns[self.definition.names[0]])

    def to_pandas(self) -> Any:
        """A pandas DataFrame; unknown integers are NA. Raises ImportError where pandas is not installed."""
        import pandas

        frame = pandas.DataFrame(self.columns)
        for name, values in self.columns.items():
            if values.dtype.kind == "i" and (values == UNKNOWN).any():
                # pandas' own integers have NA; numpy's would become floats.
                frame[name] = frame[name].astype(values.dtype.name.title()).mask(values == UNKNOWN)
        return frame

    def to_polars(self) -> Any:
        """A polars DataFrame; what is unknown is null. Raises ImportError where polars is not installed."""
        import polars

        lists = {
            name: np.where(unknown_values(values), None, values).tolist()  # type: ignore[call-overload]
            for name, values in self.columns.items()
        }
        kinds = {"text": "String", "bool": "Boolean"}
        types = {c.name: getattr(polars, kinds.get(c.kind, c.kind.title())) for c in self.definition.columns}
        return polars.DataFrame(lists, schema=types)


class Tables(NamedTuple):
    """The tables of a recording, with the columns of `ddptop/export/README.md`."""

    run: ColumnTable
    ranks: ColumnTable
    steps: ColumnTable
    buckets: ColumnTable
    events: ColumnTable
    ledger: ColumnTable
    waited_for: ColumnTable
    damage: str | None
    """What of the file could not be read, as text; None: all was."""


class _Memory(TableSink):
    """Keeps all rows."""

    def __init__(self, recording: Recording, selection: Selection) -> None:
        super().__init__(recording, selection)
        self._pieces = {
            # An empty piece first, so that a table without rows has its columns and types.
            table.name: [typed_columns(table, dict.fromkeys(table.names, ()))]
            for table in TABLES
        }

    def write_rows(self, table: Table, rows: Rows) -> None:
        self._pieces[table.name].append(typed_columns(table, rows))

    def join_pieces(self, table: Table) -> ColumnTable:
        """All rows of a table."""
        # Taken out, so that the pieces of one table at a time exist twice.
        pieces = self._pieces.pop(table.name)
        return ColumnTable(
            table, {name: np.concatenate([piece[name] for piece in pieces]) for name in table.names}
        )


def read(
    file: str | os.PathLike[str],
    *,
    steps: tuple[int | None, int | None] = (None, None),
    ranks: Collection[int] | None = None,
) -> Tables:
    """The tables of a recording, in memory. `file`: a path, or the name of a recording in the folder of
    recordings. `steps`: from the first to before the second; `ranks`: only these.

    Raises OSError; `ddptop.recording.format.RecordingError` when the file is no recording; and
    `ddptop.export.reading.ExportError` where it has no such step or rank.
    """
    path = Path(file)
    if not path.exists() and path.name == str(file):
        from ddptop.host.folders import state_directory

        path = state_directory() / f"{path.name}.ddptop"
    selection = Selection(*steps, ranks)
    with Recording.open(path) as recording:
        memory = _Memory(recording, selection)
        memory.export()
        return Tables._make([*map(memory.join_pieces, TABLES), recording.damage])


DIGITS = 6
"""Decimals of columns in float32: the timers resolve microseconds, three decimals of a millisecond, and what
is computed from them gains a few."""


def _plain_rows(rows: Rows, table: Table) -> Iterator[tuple[Any, ...]]:
    """The rows as scalars; None: not known, or infinite. Booleans are 0 and 1."""
    plain: list[list[Any]] = []
    for values in typed_columns(table, rows).values():
        missing = unknown_values(values) if values.dtype.kind != "f" else ~np.isfinite(values)
        # float32 as Python's float would have digits that were never measured.
        values = values.astype(float).round(DIGITS) if values.dtype == np.float32 else values
        plain.append((values.astype(int) if values.dtype.kind == "b" else values).tolist())
        for row_index in np.flatnonzero(missing).tolist():
            plain[-1][row_index] = None
    return zip(*plain, strict=True)


class CsvSink(TableSink):
    """A file per table: a line of names, then the rows; what is not known is empty."""

    def __init__(self, recording: Recording, selection: Selection, folder: Path) -> None:
        super().__init__(recording, selection)
        self._writers = {}
        with ExitStack() as files:
            for table in TABLES:
                path = folder / f"{table.name}.csv"
                # Names may hold bytes that are no text; csv ends its lines by itself.
                file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="")
                writer = self._writers[table.name] = csv.writer(files.enter_context(file))
                writer.writerow(table.names)
            self._open_files = files.pop_all()

    def write_rows(self, table: Table, rows: Rows) -> None:
        """Write some rows."""
        self._writers[table.name].writerows(_plain_rows(rows, table))

    def close(self) -> None:
        """Close the files."""
        self._open_files.close()


class JsonSink(TableSink):
    """JSON Lines: an object per row, whose first key `table` says of which table."""

    def __init__(self, recording: Recording, selection: Selection, file: IO[bytes]) -> None:
        super().__init__(recording, selection)
        self._file = file

    def write_rows(self, table: Table, rows: Rows) -> None:
        """Write some rows."""
        names = ("table", *table.names)
        for row in _plain_rows(rows, table):
            line = json.dumps(dict(zip(names, (table.name, *row), strict=True)), separators=(",", ":"))
            self._file.write(line.encode() + b"\n")
