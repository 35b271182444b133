"""A new figure is declared once and measured once: every surface then shows it.

Counted are the files of the package. Documents, the schema and the tests' own frames are written again
(`.github/CONTRIBUTING.md`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.shape import PACKAGE, ROOT
from tests.frames.surfaces import SURFACES, surfaces_of, tables_without, write_measured_run

RECORDINGS = ROOT / "tests" / "recording"

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
        source="ddptop/training/disk_reads.py",
    ),"""

MEASURED_BESIDE_STEPS = {
    "protocol/machine.py": {"    step_read_bytes: Size\n": "    dummy_ms: Quantity | None = None\n"},
    "training/disk_reads.py": {"return Disk(": "dummy_ms=7.0,"},
    "frames/figures.py": {
        "\nFIGURES = (": DECLARATION,
        "    individual_score: Column\n": "    dummy_ms: Column\n",
    },
}
"""By file, texts and what is inserted after each: what a rank sends, its measurement, and the declaration."""

FIELD = "    dummy: int = -1\n"
MEASURED_IN_EACH_STEP = {
    "training/recorder.py": {"\n                self._first_optimizer,": "7,"},
    "training/step_times.py": {
        "    first_optimizer: int = -1\n": FIELD,
        "closed.first_optimizer,": "closed.dummy,",
    },
    "training/step_record.py": {'in order of appearance; -1: not known."""\n': FIELD},
    "training/packing.py": {
        "\n        first_optimizer,": "dummy,",
        "\n                in_buffers,": "dummy,",
    },
    "protocol/messages.py": {'in DDP\'s broadcasts of buffers. -1:\n    not known."""\n': FIELD},
    "analysis/steps/own_times.py": {
        "MEASURED = {\n": '    "dummy": ("dummy", 1),\n',
        "FIGURE_OF_PART: dict[str, str] = {\n": '    "dummy": "dummy_ms",\n',
    },
    "frames/figures.py": {
        "\nFIGURES = (": DECLARATION.replace("title=", "step_place=1_000, title=", 1).replace(
            'key="dummy"', 'key="dummy", by_step=True'
        ),
        "    individual_score: Column\n": "    dummy_ms: Column\n",
    },
}


@pytest.mark.parametrize(
    ("changes", "surfaces"),
    [
        pytest.param(MEASURED_BESIDE_STEPS, SURFACES, id="beside steps", marks=pytest.mark.slow),
        pytest.param(
            MEASURED_IN_EACH_STEP, SURFACES | {"export of steps", "heat of steps"}, id="in each step"
        ),
    ],
)
def test_a_dummy_figure_that_ranks_measure_is_everywhere_once_it_is_declared_and_sent(
    changes: dict[str, dict[str, str]], surfaces: frozenset[str], tmp_path: Path
) -> None:
    shutil.copytree(PACKAGE, tmp_path / "ddptop", ignore=shutil.ignore_patterns("__pycache__"))
    for name, insertions in changes.items():
        path = tmp_path / "ddptop" / name
        text = path.read_text(encoding="utf-8")
        for before, inserted in insertions.items():
            assert text.count(before) == 1, (name, before)
            text = text.replace(before, before + inserted)
        path.write_text(text, encoding="utf-8")
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    command = [sys.executable, "-m", "tests.frames.surfaces", "dummy_ms", tmp_path / "run.ddptop"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == surfaces


@pytest.mark.parametrize("name", ["allocated_bytes", "reserved_bytes"])
def test_the_memory_of_torchs_allocator_is_everywhere(name: str) -> None:
    assert surfaces_of(name, RECORDINGS / "frozen" / "two_hosts.ddptop") == SURFACES


def test_what_a_rank_reads_from_disk_is_everywhere(tmp_path: Path) -> None:
    write_measured_run(tmp_path / "run.ddptop")
    assert surfaces_of("step_read_bytes", tmp_path / "run.ddptop") == SURFACES


def test_the_tables_that_leave_a_figure_out_are_named() -> None:
    assert tables_without("step_read_bytes", {"json", "once"}) == ["table", "report table"]
    assert tables_without("step_read_bytes", set(SURFACES)) == []


def test_an_unknown_figure_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.frames.surfaces", "no_such_ms", tmp_path / "run.ddptop"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "no figure 'no_such_ms'" in done.stderr and not (tmp_path / "run.ddptop").exists()
