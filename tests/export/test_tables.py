"""The tables of an export: the figures of the snapshot, in every format, read back by other tools."""

from __future__ import annotations

import csv
import errno
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import ddptop
from ddptop.export import tables as export_tables
from ddptop.export.columns import TABLES
from ddptop.export.output import output_at, write_export
from ddptop.export.reading import ExportError, Selection
from ddptop.frames.snapshot import snapshot
from ddptop.recording.reader import Recording
from ddptop.sources.replay import frame_of
from tests.benchmarks.bench_export import make
from tests.made_up_run import a_run, write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.export.columns import Rows
    from ddptop.export.rows import Batch

STEPS_MADE = 300
SAME = {
    *("step_ms", "data_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms", "own_ms", "excess_ms"),
    *("own_backward_ms", "waited_ms", "before_forward_ms", "before_backward_ms", "before_optimizer_ms"),
    *("after_optimizer_ms", "exposed_comm_ms", "exposed_wait_ms", "collective_ms", "wait_ms", "transfer_ms"),
    *("lateness_ms",),
}
"""Columns that the ranks of the snapshot have by the same names."""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four simulated ranks, bucket detail in every second step."""
    path = tmp_path_factory.mktemp("export") / "train-k7qf.ddptop"
    make(path, 4, STEPS_MADE, 2)
    return path


def exported(path: Path, form: str, to: Path, selection: Selection | None = None) -> Path:
    with Recording.open(path) as recording:
        write_export(recording, form, to, selection or Selection())
    return to


def test_a_step_has_the_figures_of_the_snapshot(recording: Path) -> None:
    tables = ddptop.read(recording)
    with Recording.open(recording) as opened:
        shown: Any = snapshot(frame_of(opened, 250))
    window = (tables.steps["step"] > 150) & (tables.steps["step"] <= 250)
    for rank, row in enumerate(shown["ranks"]):
        mine = window & (tables.steps["rank"] == rank)
        assert mine.sum() == shown["group"]["window_steps"] == 100
        for name in SAME:
            values = tables.steps[name][mine]
            known = values[~np.isnan(values)]
            assert len(known) in (50, 100), name
            assert np.median(known) == pytest.approx(row[name], abs=0.0006), (rank, name)
        assert tables.steps["loss"][mine][-1] == pytest.approx(row["loss"], rel=1e-5)
    there = (tables.buckets["step"] > 150) & (tables.buckets["step"] <= 250)
    for bucket in shown["buckets"]:
        mine = there & (tables.buckets["bucket"] == bucket["index"])
        for name in ("collective_ms", "wait_ms", "transfer_ms"):
            means = tables.buckets[name][mine].reshape(50, 4).mean(axis=1)
            assert np.median(means) == pytest.approx(bucket[name], abs=0.0006), name
        last = tables.buckets["last_arriver"][mine]
        assert np.bincount(last[last >= 0]).argmax() == bucket["last_arriver"]


def test_a_selection_has_the_same_rows_as_the_whole(recording: Path) -> None:
    whole, part = ddptop.read(recording), ddptop.read(recording, steps=(200, 210), ranks={1, 3})
    picked = np.isin(whole.steps["step"], range(200, 210)) & np.isin(whole.steps["rank"], (1, 3))
    assert len(part.steps) == 20
    for name in part.steps.columns:
        np.testing.assert_array_equal(part.steps[name], whole.steps[name][picked])
    assert {*part.buckets["rank"]} == {1, 3}
    assert {*part.buckets["step"]} == {200, 202, 204, 206, 208}


def test_every_format_has_the_same_tables(recording: Path, tmp_path: Path) -> None:
    tables = ddptop.read(recording)
    folder = exported(recording, "csv", tmp_path / "csv")
    lines = exported(recording, "json", tmp_path / "t.jsonl").read_text(encoding="utf-8").splitlines()
    objects = [json.loads(line) for line in lines]
    for table in TABLES:
        columns = getattr(tables, table.name)
        with (folder / f"{table.name}.csv").open(encoding="utf-8", newline="") as file:
            rows = [*csv.DictReader(file)]
        mine = [one for one in objects if one["table"] == table.name]
        assert len(rows) == len(mine) == len(columns)
        for column in table.columns:
            assert columns[column.name].dtype == (object if column.kind == "text" else column.kind)
            for row, line, value in zip(rows, mine, columns[column.name].tolist(), strict=True):
                unknown = value == -1 or value != value
                if unknown or value == "":
                    assert row[column.name] == "" and line[column.name] is None
                elif column.kind == "text":
                    assert row[column.name] == line[column.name] == value
                else:
                    assert (
                        float(row[column.name]) == line[column.name] == pytest.approx(float(value), abs=1e-6)
                    )


def test_parquet_is_read_by_duckdb_and_polars(recording: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = exported(recording, "parquet", tmp_path / "parquet")
    tables = ddptop.read(recording)
    field = parquet.read_schema(folder / "steps.parquet").field("wait_ms")
    assert (str(field.type), field.metadata) == ("float", {b"unit": b"ms"})
    for table in TABLES:
        kinds = parquet.read_schema(folder / f"{table.name}.parquet")
        texts = {c.name for c in table.columns if c.kind == "text"}
        assert {f.name for f in kinds if str(f.type).startswith("dictionary<values=string")} == texts
    duckdb = pytest.importorskip("duckdb")
    query = f"select count(*), count(own_ms), max(step_ms) from '{folder}/steps.parquet' where rank = 1"
    mine = tables.steps["rank"] == 1
    expected = (mine.sum(), mine.sum(), tables.steps["step_ms"][mine].max())
    assert duckdb.sql(query).fetchall()[0] == pytest.approx(expected)
    steps, buckets = (f"'{folder}/{name}.parquet'" for name in ("steps", "buckets"))
    joined = duckdb.sql(f"select count(*) from {steps} join {buckets} using (incarnation, step, rank)")
    assert joined.fetchall()[0] == (len(tables.buckets),)
    polars = pytest.importorskip("polars")
    for table in TABLES:
        read = polars.read_parquet(folder / f"{table.name}.parquet")
        here = getattr(tables, table.name).to_polars()
        texts = [c.name for c in table.columns if c.kind == "text"]
        read = read.with_columns(polars.col(texts).cast(polars.String))
        assert read.equals(here)


def test_pandas_has_the_tables(recording: Path) -> None:
    pytest.importorskip("pandas")
    events = ddptop.read(recording).events.to_pandas()
    assert events["step"].isna().any() and events["kind"].tolist()[0] == "joined"


def test_a_cut_and_a_damaged_recording_are_exported_as_far_as_possible(tmp_path: Path) -> None:
    path = tmp_path / "cut.ddptop"
    write(path, a_run(200, batch=10))
    whole = len(ddptop.read(path).steps)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(data[:middle] + bytes(64) + data[middle + 64 :])
    damaged = ddptop.read(path)
    assert damaged.damage is not None and 0 < len(damaged.steps) < whole
    path.write_bytes(data[:middle])
    cut = ddptop.read(path)
    assert 0 < len(cut.steps) < whole and cut.run["state"].tolist() == ["lost"]


def test_what_is_not_there_is_said(recording: Path) -> None:
    with pytest.raises(ExportError, match="holds steps 0 to 299"):
        ddptop.read(recording, steps=(300, None))
    with pytest.raises(ExportError, match="holds ranks 0 to 3"):
        ddptop.read(recording, ranks=[4])


def test_nothing_is_replaced_unless_asked_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    path, folder = tmp_path / "a.jsonl", tmp_path / "folder"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError), output_at(path, False, folder=False):
        pass
    with pytest.raises(KeyboardInterrupt), output_at(path, True, folder=False) as written:
        written.write_bytes(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"mine"
    with output_at(path, True, folder=False) as written:
        written.write_bytes(b"new")
    assert path.read_bytes() == b"new"
    with pytest.raises(FileExistsError), output_at(tmp_path / "b", False, folder=False) as written:
        written.touch()
        (tmp_path / "b").write_bytes(b"another one, meanwhile")
    assert (tmp_path / "b").read_bytes() == b"another one, meanwhile"
    folder.mkdir()
    (folder / "other").touch()
    for force, is_folder in ((False, True), (True, False)):
        with pytest.raises(FileExistsError), output_at(folder, force, folder=is_folder):
            pass
    with output_at(folder, True, folder=True) as written:
        (written / "steps.csv").touch()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.jsonl", "b", "folder"]
    assert sorted(one.name for one in folder.iterdir()) == ["other", "steps.csv"]


def open_files(folder: Path) -> list[str]:
    """Files in a folder that this process holds open, also if they have been deleted."""
    paths = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one of this listing
            paths.append(str(descriptor.readlink()))
    return [path for path in paths if path.startswith(f"{folder}/")]


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_failed_export_closes_its_files(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
    was_open: list[str] = []

    def fail(batch: Batch) -> Iterator[Rows]:
        was_open.extend(open_files(tmp_path))
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(export_tables, "bucket_rows", fail)
    with pytest.raises(OSError, match="no space left") as failure:
        exported(recording, form, tmp_path / form)
    assert len(was_open) == len(TABLES) and open_files(tmp_path) == []
    assert failure.value.errno == errno.ENOSPC and [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_that_cannot_be_opened_closes_the_others(recording: Path, tmp_path: Path, form: str) -> None:
    if form == "parquet":
        pytest.importorskip("pyarrow")
        from ddptop.export.parquet import ParquetSink as sink_class
    else:
        sink_class = export_tables.CsvSink
    (tmp_path / f"{TABLES[-1].name}.{form}").mkdir()
    with Recording.open(recording) as opened, pytest.raises(OSError) as failure:
        sink_class(opened, Selection(), tmp_path)
    assert open_files(tmp_path) == [], failure


def test_the_document_has_every_column() -> None:
    document = (Path(ddptop.__file__).parent / "export" / "README.md").read_text(encoding="utf-8")
    for table in TABLES:
        _, _, after = document.partition(f"### `{table.name}`: {table.row}\n\n")
        rows = [line.split(" | ") for line in after.partition("\n\n")[0].splitlines()[2:]]
        assert [row[:3] for row in rows] == [[f"| `{c.name}`", c.kind, c.unit] for c in table.columns]
        assert all(len(row) == 4 and len(row[3]) > 3 for row in rows)
