"""What ddptop shows of eight recordings, figure by figure: a change of the code behind it changes nothing.

The recordings are those of earlier versions (`data/`) and three made-up runs (`frozen/`, `frozen_runs.py`).
Frozen are `--json` at five steps, the report's JSON, each column of the exported tables, the metrics, and the
screen. Sentences are on the screens only. A figure of up to FEW values is kept as it is, one of more as a
checksum. `UPDATE_FROZEN=1` writes all of it again: the commit says which figure has changed, and why.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddptop.export.metrics import metric_families
from ddptop.export.output import write_export
from ddptop.export.reading import Selection
from ddptop.frames.frame import Frame
from ddptop.frames.snapshot import snapshot
from ddptop.recording.reader import Recording
from ddptop.report.build import read_report
from ddptop.report.content import as_data
from ddptop.sources.past import RecordedPast
from ddptop.sources.player import Player
from tests.recording import frozen_runs
from tests.recording.replays import complete_frame, replay_to_steps
from tests.tui.drive import Sketch
from tests.tui.fake import FakeSource
from tests.tui.gallery import PAGES

DATA = Path(__file__).parent / "data"
FROZEN = frozen_runs.FOLDER

SIZE = (100, 30)
STATIC = ("help", "figures", "start")
"""Pages that show nothing of a run that has made steps."""

STEPS = {
    "straggler": (5, 60, 100, 150, 259),
    "stall": (5, 59, 61, 80, 119),
    "rows": (5, 40, 80, 120, 259),
    "columns": (5, 40, 80, 120, 259),
    "sizes": (5, 40, 80, 120, 259),
    "many": (9, 50, 70, 94, 114),
    "two_hosts": (9, 59, 120, 149, 249),
    "restart": (9, 39, 20, 60, 89),
}
"""Five moments of each run."""
DRAWN = ("straggler", "stall", *frozen_runs.RUNS)
"""Runs of which all pages are drawn at the moment in the middle; of the others the overviews."""

FEW = 4
WORDS = frozenset(
    {"sentence", "detail", "message", "line", "action", "text", "try", "why", "because", "gain"}
)
"""Keys whose values are written for people."""


class ReplayedSource(FakeSource):
    """A replay at one step, which gives at once what the screen requests."""

    def __init__(self, player: Player, past: RecordedPast) -> None:
        self.player, self.past = player, past
        self.rank: int | None = None
        self.wanted = ""
        super().__init__(self.complete_frame())

    def complete_frame(self) -> Frame:
        """The frame at the step, as a replay shows it."""
        return complete_frame(self.player, self.past, focus=self.rank, want=self.wanted)

    def focus(self, rank: int | None) -> None:
        """Give the single steps of a rank."""
        self.rank = rank
        self.frame = self.complete_frame()

    def request(self, text: str) -> None:
        """Give one more part of the frame."""
        self.wanted = text
        self.frame = self.complete_frame()


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Paths that are shown are those of any clone, times of day are UTC."""
    with monkeypatch.context() as patch:
        patch.chdir(DATA.parent)
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("name", STEPS)
def test_the_figures_and_the_screen_are_the_frozen_ones(name: str, tmp_path: Path) -> None:
    snapshots, screens, frames = [], [], []
    for step, source in replayed(name):
        frames.append(source.complete_frame())
        snapshots.append(digests(json.loads(json.dumps(snapshot(frames[-1])))))
        screens.append(f"step {step}\n{Sketch(source, (80, 24)).press('1')}")
        if step == STEPS[name][2] and name in DRAWN:
            pages = {page: keys for page, keys in PAGES.items() if page not in STATIC}
            screens += [f"{page}\n{Sketch(source, SIZE).press(*keys)}" for page, keys in pages.items()]
    keys = {key for each in snapshots for key in each}
    figures = {f"snapshot {key}": [each.get(key, "none") for each in snapshots] for key in keys}
    figures |= {f"report {key}": value for key, value in digests(report_of(name)).items()}
    figures |= {
        f"metric {family.name}": checksum(rounded_text(repr(family).replace("MetricSample(", "Sample(")))
        for family in metric_families(frames[-1])
    }
    figures |= exported_columns(name, tmp_path / "csv")
    screen = "\n".join(screens)
    lines = (f"{json.dumps(key)}: {json.dumps(figures[key])}" for key in sorted(figures))
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    if os.environ.get("UPDATE_FROZEN") == "1":
        (FROZEN / f"{name}.json").write_text(text, encoding="utf-8")
        (FROZEN / f"{name}.txt").write_text(screen, encoding="utf-8")
    now = json.loads(text)
    frozen = json.loads((FROZEN / f"{name}.json").read_text(encoding="utf-8"))
    changed = {
        key: {"frozen": frozen.get(key, "none"), "now": now.get(key, "none")}
        for key in sorted({*frozen, *now})
        if frozen.get(key, "none") != now.get(key, "none")
    }
    assert not changed, f"{len(changed)} figures of {name} have changed"
    assert screen == (FROZEN / f"{name}.txt").read_text(encoding="utf-8")


def path_of(name: str) -> Path:
    """The recording, from the folder of the tests."""
    folder = FROZEN if name in frozen_runs.RUNS else DATA
    return (folder / f"{name}.ddptop").relative_to(DATA.parent)


def replayed(name: str) -> Iterator[tuple[int, ReplayedSource]]:
    """The replay at each of its steps."""
    for step, player, past in replay_to_steps(path_of(name), STEPS[name]):
        yield step, ReplayedSource(player, past)


def report_of(name: str) -> Any:
    """The report's JSON."""
    with Recording.open(path_of(name)) as recording:
        return json.loads(json.dumps(as_data(read_report(recording))))


def exported_columns(name: str, folder: Path) -> dict[str, str]:
    """A checksum of each column of each table."""
    with Recording.open(path_of(name)) as recording:
        write_export(recording, "csv", folder, Selection())
    columns = {}
    for table in sorted(folder.iterdir()):
        with table.open(encoding="utf-8", newline="") as file:
            for column, *cells in zip(*csv.reader(file), strict=True):
                if column not in WORDS:
                    columns[f"export {table.stem}.{column}"] = checksum([*map(rounded, cells)])
    return columns


def rounded(cell: str) -> str:
    """Six digits of a number, as the snapshot has: the last bits are those of the machine."""
    try:
        return format(float(cell), ".6g") if "." in cell else cell
    except ValueError:
        return cell


def rounded_text(text: str) -> str:
    """The text with each number as `rounded` has it."""
    return re.sub(r"\d+\.\d+(e[+-]?\d+)?", lambda number: rounded(number[0]), text)


def digests(data: Any) -> dict[str, Any]:
    """By the path of a key all values that stand there, or a checksum of them."""
    values: dict[str, list[Any]] = defaultdict(list)
    for key, value in _values(data):
        values[key].append(value)
    return {key: each if len(each) <= FEW else checksum(each) for key, each in values.items()}


def _values(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for name, below in tree.items():
            if name not in WORDS:
                yield from _values(below, f"{key}.{name}" if key else name)
    elif isinstance(tree, list):
        yield f"{key}.length", len(tree)
        for below in tree:
            yield from _values(below, f"{key}[]")
    else:
        yield key, tree


def checksum(values: Any) -> str:
    """A few letters that are others when a value is."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:10]
