"""Parquet, with pyarrow: a file per table, written by row groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.parquet

from ddptop.export.columns import TABLES
from ddptop.export.tables import TableSink, typed, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from ddptop.export.columns import Rows, Table
    from ddptop.export.reading import Selection
    from ddptop.export.tables import Array
    from ddptop.recording.reader import Recording

ROW_GROUP = 1 << 17
"""Rows of a row group: some 15 MB before compression. Readers take some 100,000 rows at a time."""


class ParquetSink(TableSink):
    """Keeps rows until they make a row group."""

    def __init__(self, recording: Recording, selection: Selection, folder: Path) -> None:
        super().__init__(recording, selection)
        self._waiting: dict[str, list[dict[str, Array]]] = {table.name: [] for table in TABLES}
        self._rows = dict.fromkeys(self._waiting, 0)
        self._writers = {
            table.name: pyarrow.parquet.ParquetWriter(
                str(folder / f"{table.name}.parquet"),
                schema(table),
                compression="zstd",
                # Measured times seldom repeat: a dictionary of them takes time and saves nothing.
                use_dictionary=[c.name for c in table.columns if not c.kind.startswith("float")],
            )
            for table in TABLES
        }

    def write(self, table: Table, rows: Rows) -> None:
        """Keep some rows; write a row group when there are enough."""
        kept = typed(table, rows)
        self._waiting[table.name].append(kept)
        self._rows[table.name] += len(kept[table.columns[0].name])
        if self._rows[table.name] >= ROW_GROUP:
            self._flush(table)

    def close(self) -> None:
        """Write what is left, and the ends of the files."""
        for table in TABLES:
            self._flush(table)
            self._writers[table.name].close()

    def _flush(self, table: Table) -> None:
        pieces, self._waiting[table.name], self._rows[table.name] = self._waiting[table.name], [], 0
        if pieces:
            columns = [np.concatenate([piece[c.name] for piece in pieces]) for c in table.columns]
            arrays = [pyarrow.array(values, mask=unknown(values)) for values in columns]
            self._writers[table.name].write_table(
                pyarrow.table(arrays, names=table.names).cast(schema(table))
            )


def schema(table: Table) -> Any:
    """The schema of a table: the unit of a column is metadata of its field."""
    types = {"text": pyarrow.dictionary(pyarrow.int32(), pyarrow.string()), "bool": pyarrow.bool_()}
    fields = [
        pyarrow.field(c.name, types.get(c.kind, c.kind), metadata={"unit": c.unit}) for c in table.columns
    ]
    return pyarrow.schema(fields, metadata={"table": table.row})
