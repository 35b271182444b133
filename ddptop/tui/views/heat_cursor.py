"""What the cell of a heat map under the cursor says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.numbers import count, fixed, known, loss
from ddptop.tui.views.heat_figures import FIGURES

if TYPE_CHECKING:
    from ddptop.tui.scene import Scene


def under_cursor(
    scene: Scene,
    width: int,
    figure: str,
    rank: int,
    value: float,
    fold: int,
    what: str,
    step: int | None = None,
) -> Line:
    """Whose value it is, where that rank is, and of how many (`what` they are) it is the worst."""
    ranks = scene.frame.ranks
    there = rank < len(ranks.host)
    where = f"{scene.clean(ranks.host[rank])} {scene.clean(ranks.device[rank])}".strip() if there else ""
    unit = f" {FIGURES[figure].unit}".rstrip()
    text = loss(value) if figure == "loss" else fixed(value, 2, unit if known(value) else "")
    hint = f"worst of {fold:,}{what}: Enter unfolds" if fold > 1 else "Enter: its page"
    return gather(
        [
            Line("▸ ", "accent").add(f"rank {rank}", "strong"),
            Line(f"{FIGURES[figure].title or figure} ", "dim").add(text, "strong"),
            Line("step ", "dim").add(count(step)) if step is not None else Line(),
            Line(where, "dim"),
            Line(hint, "faint"),
        ],
        width,
    )
