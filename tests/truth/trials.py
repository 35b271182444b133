"""Which runs of a row are made or replayed, beside how many busy loops, and where they are kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.processes import busy_loops

RowType = TypeVar("RowType", contravariant=True)


@dataclass(frozen=True)
class Trials:
    """What `python -m tests.truth` was asked for."""

    runs: int
    """Of each row; of those that are replayed, at most."""
    seed: int
    load: int
    """Busy loops beside each run."""
    keep: Path | None = None
    replay: Path | None = None
    """Judge the runs that were kept in this folder instead."""

    def of(self, name: str, run: Callable[[Path, int], None]) -> Iterator[Path]:
        """The folders of this row's runs, one after the other; `run(folder, seed)` makes one."""
        name = f"{name}-load-{self.load}"
        if self.replay is not None:
            yield from sorted((self.replay / name).glob("*"), key=lambda path: int(path.name))[: self.runs]
            return
        for seed in range(self.seed, self.seed + self.runs):
            with tempfile.TemporaryDirectory() as temporary:
                folder = (self.keep or Path(temporary)) / name / str(seed)
                folder.mkdir(parents=True)
                with busy_loops(self.load):
                    run(folder, seed)
                yield folder
