"""One line of text for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tests.truth.judge import Judged

COLUMNS = (
    ("row", 19),
    ("step ms", 8),
    ("right", 7),
    ("cause", 7),
    ("all", 6),
    ("flagged after", 14),
    ("cleared", 10),
    ("size error", 15),
    ("excess error", 15),
    ("what-if error", 17),
    ("wrong", 6),
    ("flips", 6),
    ("false in even", 14),
    ("disagrees", 9),
    ("detail every", 12),
)

LEGEND = """\
step ms: median in windows without a fault
right: windows in which a late rank is flagged; cause: of these, with the right cause and place; all: with
  exactly the late ranks
flagged after, cleared: steps, median and largest
size error: of the cause's part, against the script's stamps; excess error: of the whole excess, which has
  also what the ranks lose or win otherwise; what-if error: of the step without the straggler, against the
  windows around: median, 90th percentile (windows)
wrong: frames in which another rank is flagged; flips: times that a right flag is dropped or moves
false in even: flags raised in windows without a fault, of these windows
disagrees: frames in which bucket arrivals contradict the verdict
detail every: bucket detail is taken in one of so many steps, median and largest of all frames"""


def _spread(values: Iterable[float | None], *, pct: bool = False, share: float = 1.0) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    middle, high = float(np.median(known)), float(np.quantile(known, share))
    return f"{100 * middle:.1f}, {100 * high:.1f} % ({len(known)})" if pct else f"{middle:.0f}, {high:.0f}"


def line(judged: Judged) -> str:
    """The row's line."""
    faults = judged.faults
    right = [window for window in faults if window.flagged_after is not None]
    communicates = judged.row.kind not in ("none", "no_sync")
    caused = [window.cause_right for window in right if window.cause_right is not None]
    cells = [
        judged.row.name,
        f"{judged.step_ms:.1f}",
        f"{len(right)}/{len(faults)}" if communicates else "-",
        f"{sum(caused)}/{len(caused)}" if caused else "-",
        f"{sum(bool(w.all_ranks) for w in right)}/{len(right)}" if right else "-",
        _spread(window.flagged_after for window in right),
        _spread(window.cleared_after for window in right),
        _spread((window.size_error for window in right), pct=True, share=0.9),
        _spread((window.excess_error for window in right), pct=True, share=0.9),
        _spread((window.what_if_error for window in faults), pct=True, share=0.9),
        str(sum(window.wrong for window in faults)),
        str(sum(window.flips for window in faults)),
        f"{len(judged.false_flags)}/{judged.even}",
        str(sum(window.disagrees for window in faults)),
        _spread(judged.detail_every),
    ]
    return aligned(cells)


def aligned(cells: Sequence[str]) -> str:
    """Cells in columns."""
    return "  ".join(f"{cell:<{width}}" for cell, (_, width) in zip(cells, COLUMNS, strict=True)).rstrip()


def heading() -> str:
    """The names of the columns."""
    return aligned([name for name, _ in COLUMNS])


def as_json(judged: Judged) -> dict[str, Any]:
    """Everything, for `--json`."""
    return asdict(judged)
