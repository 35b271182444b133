"""On which surfaces a figure is shown: `python -m tests.frames.surfaces NAME RECORDING` prints them.

RECORDING is written: a made-up run, whose ranks report what this process measures of itself. Tables that
declare the figure, but whose `shown` is false for its values in this run, are named on stderr.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

import ddptop
from ddptop.export.metrics import Family, metric_families
from ddptop.frames.codec import FrameDecoder, encode_frame
from ddptop.frames.figures import FIGURES
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.schema import schema
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.messages import OwnTime, Received, Steps
from ddptop.recording.reader import Recording
from ddptop.render.context import RenderContext
from ddptop.render.metrics import explain_figure
from ddptop.render.rank_table import plain_rank_columns, rank_columns
from ddptop.report.build import read_report
from ddptop.report.content import as_data
from ddptop.report.tables import rank_table
from ddptop.training.disk_reads import DiskReads
from ddptop.training.packing import LayoutTracker, pack_steps
from ddptop.training.recorder import Recorder
from ddptop.training.step_times import StepTimes
from ddptop.tui.views.compare import FIGURES_OF_RANKS
from ddptop.tui.views.heat_figures import FIGURES as HEAT_FIGURES
from ddptop.tui.views.rank_order import SORTS
from tests.frames.figure_documents import metrics_document
from tests.made_up_run import START_NS, a_run, write
from tests.recording.replays import frame_at, replay_to_steps

SURFACES = frozenset(
    {
        *("bytes", "json", "schema", "table", "once", "sort", "heat", "compare", "metrics", "export"),
        *("report json", "report table", "help", "METRICS.md"),
    }
)


def surfaces_of(name: str, path: Path) -> set[str]:
    """The surfaces that show the figure at the end of a recording."""
    figure = next(one for one in FIGURES if one.name == name)
    frame = FrameDecoder().decode(encode_frame(frame_at(path, None)))
    context = RenderContext(frame)
    ranks: Any = snapshot(frame)["ranks"]
    declared = schema()["properties"]["ranks"]["items"]["properties"]
    if figure.scope == "gpu":
        ranks, declared = [rank["gpu"] for rank in ranks], declared["gpu"]["properties"]
    with Recording.open(path) as recording:
        report = read_report(recording)
    of_rank: Any = as_data(report)["ranks"]
    meaning = explain_figure(figure.title)
    document = metrics_document(
        resources.files("ddptop").joinpath("analysis/METRICS.md").read_text(encoding="utf-8")
    )
    exported = ddptop.read(path).ranks.columns
    written = {one.name for one in metric_families(frame) if isinstance(one, Family) and one.samples}
    shown = {
        "bytes": bool(np.isfinite(values_of_ranks(figure, frame)).all()),
        "json": ranks[0].get(name) is not None,
        "schema": name in declared,
        "table": figure.title in [column.title for column in rank_columns(context)],
        "once": figure.title in [column.title for column in plain_rank_columns(context, [0, 1])],
        "sort": figure.title in SORTS,
        "heat": figure in HEAT_FIGURES.values(),
        "heat of steps": figure.heat is not None
        and figure.heat.by_step
        and bool(np.isfinite(_heat_of_last_steps(figure.heat.key, path)).all()),
        "compare": figure in [one for one, _ in FIGURES_OF_RANKS],
        "metrics": figure.metric is not None and figure.metric.name in written,
        "export of steps": figure.step_place is not None
        and bool(np.isfinite(ddptop.read(path).steps[name]).all()),
        "export": figure.key in exported and bool(np.isfinite(exported[figure.key]).all()),
        "report json": of_rank[0].get(figure.key) is not None,
        "report table": figure.title in rank_table(report, 400)[0],
        "help": meaning is not None and meaning.formula != "",
        "METRICS.md": f"| `{figure.documented_as}` |" in document,
    }
    return {surface for surface, is_shown in shown.items() if is_shown}


def tables_without(name: str, surfaces: set[str]) -> list[str]:
    """The tables that declare a figure, but are not among these surfaces: its `shown` was false there."""
    figure = next(one for one in FIGURES if one.name == name)
    declared = {"table": figure.screen, "once": figure.plain, "report table": figure.report}
    return [table for table, column in declared.items() if column is not None and table not in surfaces]


def _heat_of_last_steps(key: str, path: Path) -> Any:
    _, player, _ = next(replay_to_steps(path, [59]))
    heat = player.make_frame(want=f"heat {key} 2 20").heat
    assert heat is not None and len(heat.steps) == 20
    return heat.value


def recorded_own_time() -> OwnTime:
    """What a rank sends of a step beside its phases."""
    recorder = Recorder()
    for _ in range(2):
        recorder.forward_begins(True)
        recorder.forward_ends()
        recorder.backward_begins(None)
        recorder.last_gradient()
        recorder.stamp_due = False
        recorder.backward_ends()
        recorder.optimizer_begins(1)
        recorder.optimizer_ends(1)
    recorder.finish_step()
    *_, steps = pack_steps(StepTimes(recorder.gc_pauses).take_steps(recorder.records), LayoutTracker({}))
    assert isinstance(steps, Steps)
    return steps.rows[-1].own


def write_measured_run(path: Path) -> None:
    """A run of two ranks, each of which has sent a reading of this process and own times of its steps."""
    reads, t_ns = DiskReads(), START_NS + 1_000_000  # before the first steps
    assert reads.take_reading(1) is None
    reading = reads.take_reading(2)
    assert reading is not None
    # At least one byte: a column of zeros is not shown.
    reading = replace(reading, t_ns=t_ns, step_read_bytes=1 + reading.step_read_bytes)
    own = recorded_own_time()
    messages = []
    for received in a_run(60):
        if isinstance(received.message, Steps):
            rows = tuple(row._replace(own=own) for row in received.message.rows)
            received = received._replace(message=replace(received.message, rows=rows))
        messages.append(received)
    readings = [Received(t_ns, rank, 1000 + rank, 99, reading) for rank in range(2)]
    write(path, sorted([*messages, *readings], key=lambda received: received.t_ns))


if __name__ == "__main__":
    if sys.argv[1] not in {figure.name for figure in FIGURES}:
        sys.exit(f"ddptop/frames/figures.py declares no figure {sys.argv[1]!r}: NAME is its `name`")
    write_measured_run(Path(sys.argv[2]))
    surfaces = surfaces_of(sys.argv[1], Path(sys.argv[2]))
    print(json.dumps(sorted(surfaces)))
    if hiding := tables_without(sys.argv[1], surfaces):
        print(
            f"`shown` is false in this run, as where all ranks have 0: {', '.join(hiding)}", file=sys.stderr
        )
