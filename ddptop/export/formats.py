"""The formats of `ddptop export`. Light to import: the command line needs their names."""

from __future__ import annotations

from typing import NamedTuple


class Format(NamedTuple):
    """What an export writes, and with which class."""

    sink: str
    """Module and name of a `reading.Sink`, which is made with recording, selection, and file or folder."""
    ending: str
    """How the name of the output ends."""
    is_folder: bool = False
    """Whether it writes several files, into a folder; its sink then has a `close`."""
    package: str = ""
    """Package that it needs; empty: none. The extra of ddptop with it has the name of the format."""


FORMATS = {
    "perfetto": Format("ddptop.export.perfetto:PerfettoSink", ".pftrace", package="perfetto"),
    "parquet": Format("ddptop.export.parquet:ParquetSink", "-parquet", is_folder=True, package="pyarrow"),
    "csv": Format("ddptop.export.tables:CsvSink", "-csv", is_folder=True),
    "json": Format("ddptop.export.tables:JsonSink", ".jsonl"),
}
"""By the name that `--to` takes. A new format is a line here and a module with its sink."""
