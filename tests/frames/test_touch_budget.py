"""A new figure is declared once and measured once: every surface then shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddptop.protocol.machine import Disk
from ddptop.protocol.messages import Received
from tests.architecture.shape import PACKAGE, ROOT
from tests.frames.surfaces import SURFACES, surfaces_of
from tests.made_up_run import START_NS, a_run, write

RECORDINGS = ROOT / "tests" / "recording"

MOST_FILES = 3
"""Files that a new figure may change, what the rank sends included."""

DECLARATION = """
    Figure(
        name="dummy_ms",
        title="dummy",
        screen=FigureColumn(place=1_000, keep=1),
        plain=FigureColumn(place=1_000, keep=1),
        largest_first=True,
        heat=HeatMetric(place=1_000, key="dummy"),
        compared=Compared(place=1_000),
        metric=Metric(place=1_000, name="rank_dummy", help="A dummy"),
        is_exported=True,
        in_report=True,
        report=FigureColumn(place=1_000, keep=1),
        formula="a dummy",
        source="ddptop/analysis/to_frame/tables.py",
    ),"""

CHANGES = {
    "frames/figures.py": {
        "\nFIGURES = (": f"\nFIGURES = ({DECLARATION}",
        "    individual_score: Column": "    individual_score: Column\n    dummy_ms: Column",
    },
    "analysis/to_frame/tables.py": {
        "return Ranks(": "return Ranks(\n        dummy_ms=np.full(state.world, 7.0, np.float32),",
    },
}
"""By file, each text and what takes its place."""


def test_a_dummy_figure_is_everywhere_though_few_files_name_it(tmp_path: Path) -> None:
    assert len(CHANGES) < MOST_FILES, "what the rank sends is one more"
    shutil.copytree(PACKAGE, tmp_path / "ddptop", ignore=shutil.ignore_patterns("__pycache__"))
    for name, changes in CHANGES.items():
        path = tmp_path / "ddptop" / name
        text = path.read_text(encoding="utf-8")
        for before, after in changes.items():
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, after)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = [sys.executable, "-m", "tests.frames.surfaces", "dummy_ms", RECORDINGS / "data/columns.ddptop"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == SURFACES


@pytest.mark.parametrize("name", ["allocated_bytes", "reserved_bytes"])
def test_the_memory_of_torchs_allocator_is_everywhere(name: str) -> None:
    assert surfaces_of(name, RECORDINGS / "frozen" / "two_hosts.ddptop") == SURFACES


def test_what_a_rank_reads_from_disk_is_everywhere(tmp_path: Path) -> None:
    path, t_ns = tmp_path / "run.ddptop", START_NS + 1_000_000  # before the first steps
    readings = [Received(t_ns, rank, 1000 + rank, 99, Disk(t_ns, 5_000_000)) for rank in range(2)]
    write(path, sorted([*a_run(60), *readings], key=lambda received: received.t_ns))
    assert surfaces_of("step_read_bytes", path) == SURFACES
