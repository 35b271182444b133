"""One line of text for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tests.truth.judge import Judged, Window

COLUMNS = (
    ("row", 19),
    ("step ms", 8),
    ("right", 7),
    ("cause", 7),
    ("all", 6),
    ("flagged after", 14),
    ("cleared", 10),
    ("by rule", 18),
    ("size error", 15),
    ("excess error", 16),
    ("what-if error", 17),
    ("known error", 15),
    ("interval", 8),
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
flagged after, cleared: steps to the first frame that shows it, median and largest; by rule: likewise to the
  evaluations that flag and clear it: ranks report four times a second, which is 25 steps of 10 ms
size error: of the cause's part, against the script's stamps; excess error: of the whole excess, which has
  also what the ranks lose or win otherwise; what-if error: of the step without the straggler, against the
  windows around: median, 90th percentile (windows); known error: likewise where ranks sleep instead of
  computing, against the same steps without what they were late; interval: windows whose interval of 95 %
  holds that
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


def _by_rule(right: Sequence[Window]) -> tuple[list[int | None], list[int | None]]:
    return [window.rule_flagged_after for window in right], [window.rule_cleared_after for window in right]


def line(judged: Judged) -> str:
    """The row's line."""
    faults = judged.faults
    held = [window.held for window in faults if window.held is not None]
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
        " / ".join(_spread(steps) for steps in _by_rule(right)),
        _spread((window.size_error for window in right), pct=True, share=0.9),
        _spread((window.excess_error for window in right), pct=True, share=0.9),
        _spread((window.what_if_error for window in faults), pct=True, share=0.9),
        _spread((window.known_error for window in faults), pct=True, share=0.9),
        f"{sum(held)}/{len(held)}" if held else "-",
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
