"""Parquet, with pyarrow: a file per table, written by row groups."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet

from ddptop.export.columns import TABLES, UNKNOWN
from ddptop.export.tables import TableSink, unknown_values

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ddptop.export.columns import Rows, Table
    from ddptop.export.reading import Selection
    from ddptop.export.tables import Array
    from ddptop.recording.reader import Recording

ROW_GROUP = 1 << 16
"""Rows of a row group: some 7 MB before compression."""


class _RowGroup:
    """The rows of a table that wait to be written."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # Text is kept as the number of its value: few values repeat very often.
        kinds = [(c.name, "int32" if c.kind == "text" else c.kind) for c in table.columns]
        self._columns: dict[str, Array] = {name: np.empty(ROW_GROUP, kind) for name, kind in kinds}
        self._codes: dict[str, dict[str, int]] = {c.name: {} for c in table.columns if c.kind == "text"}
        """By column of text, the code of each value."""
        self.count = 0

    def add_rows(self, rows: Rows, first: int) -> int:
        """Add rows from place `first` on, as many as there is room for; returns the place after the last."""
        places = slice(first, first + ROW_GROUP - self.count)
        for name, column in self._columns.items():
            values = rows[name][places]
            if name in self._codes:
                codes = self._codes[name]
                # Empty text is unknown, as in all tables.
                values = [codes.setdefault(text, len(codes)) if text else UNKNOWN for text in values]
            stop = self.count + len(values)
            column[self.count : stop] = values
        taken, self.count = stop - self.count, stop
        return first + taken

    def take_table(self) -> Any:
        """The rows as an Arrow table, to be used before more are added; nothing waits then."""
        types, arrays = table_schema(self._table), []
        for field in types:
            values = self._columns[field.name][: self.count]
            text = self._codes.get(field.name)
            array = arrow_array(values, pyarrow.int32() if text is not None else field.type)
            if text is not None:
                array = pyarrow.DictionaryArray.from_arrays(array, arrow_texts([*text]))
                # Per row group: a dictionary of all values would grow with the file.
                text.clear()
            arrays.append(array)
        self.count = 0
        return pyarrow.Table.from_arrays(arrays, schema=types)


class ParquetSink(TableSink):
    """Writes a row group whenever there are enough rows."""

    def __init__(self, recording: Recording, selection: Selection, folder: Path) -> None:
        super().__init__(recording, selection)
        self._waiting = {table.name: _RowGroup(table) for table in TABLES}
        self._writers = {}
        with ExitStack() as files:
            for table in TABLES:
                writer = pyarrow.parquet.ParquetWriter(
                    str(folder / f"{table.name}.parquet"),
                    table_schema(table),
                    compression="zstd",
                    # Measured times seldom repeat: a dictionary of them takes time and saves nothing.
                    use_dictionary=[c.name for c in table.columns if not c.kind.startswith("float")],
                )
                self._writers[table.name] = files.enter_context(writer)
            self._open_files = files.pop_all()

    def write_rows(self, table: Table, rows: Rows) -> None:
        """Keep some rows; write a row group when there are enough."""
        waiting, place, stop = self._waiting[table.name], 0, len(rows[table.names[0]])
        while place < stop:
            place = waiting.add_rows(rows, place)
            if waiting.count == ROW_GROUP:
                self._write_row_group(table)

    def close(self) -> None:
        """Write what is left, and the ends of the files."""
        # The writers are closed also where a last row group fails.
        with self._open_files:
            for table in TABLES:
                self._write_row_group(table)

    def _write_row_group(self, table: Table) -> None:
        if self._waiting[table.name].count:
            self._writers[table.name].write_table(self._waiting[table.name].take_table())


def table_schema(table: Table) -> Any:
    """The schema of a table: the unit of a column is metadata of its field."""
    types = {"text": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "bool": pyarrow.bool_()}
    fields = [
        pyarrow.field(c.name, types.get(c.kind, c.kind), metadata={"unit": c.unit}) for c in table.columns
    ]
    return pyarrow.schema(fields, metadata={"table": table.row})


def arrow_array(values: Array, kind: Any) -> Any:
    """A column as an Arrow array of a type, null where it is not known, without a copy of numbers.

    It is made of its buffers: `pyarrow.array` imports pandas where that is installed: 0.3 s and 40 MB.
    """
    missing = unknown_values(values)
    valid = pyarrow.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    data = np.packbits(values, bitorder="little") if values.dtype == bool else values
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(data)])


def arrow_texts(texts: Sequence[str]) -> Any:
    """Texts as an Arrow array."""
    encoded = [text.encode("utf-8", "backslashreplace") for text in texts]
    # 32 bits, as Arrow's plain strings have their offsets.
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))
    return pyarrow.StringArray.from_buffers(len(texts), *buffers)
