"""The metrics of the heat map: their units, and where a frame has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.figures import figures_shown
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.numbers import RATIO, count, fixed, known, loss
from ddptop.render.context import LEAST_SHARE_OF_STEP
from ddptop.render.line import Line, join_parts

if TYPE_CHECKING:
    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.tui.scene import Scene


FIGURES = {how.key: figure for figure, how in figures_shown(lambda figure: figure.heat)}
METRICS = {how.key: how for _, how in figures_shown(lambda figure: figure.heat)}
"""By key, in the order in which the map has them."""

LEAST_SHARE_OF_USUAL = 0.1
"""Differences below this share of the usual value do not matter."""


def least_range(figure: str, usual: float | None, frame: Frame) -> float:
    """The range of values that gets no colour."""
    share = LEAST_SHARE_OF_USUAL * abs(usual or 0.0)
    if METRICS[figure].unit == "ms":
        return max(share, LEAST_SHARE_OF_STEP * (frame.group.step_ms_p50 or 0.0), 1e-3)
    return max(share, {"%": 10.0, "s": 2.0, "C": 5.0}.get(METRICS[figure].unit, 1e-4))


def title(figure: str, frame: Frame) -> str:
    """`data ms`, `~waiting ms`."""
    by_steps = frame.ranks.compared.any()
    sign = "~" if FIGURES[figure].has_fallback and frame.group.clock_free and not by_steps else ""
    return f"{sign}{FIGURES[figure].called} {METRICS[figure].unit}".rstrip()


def of_ranks(figure: str, frame: Frame) -> Column:
    """(ranks,) as they are now."""
    values = values_of_ranks(FIGURES[figure], frame)
    return np.asarray(values / METRICS[figure].scale, np.float64)


def name_steps(first: int, last: int) -> str:
    """`step 12`, `steps 12 to 15`."""
    return f"step {count(first)}" if first == last else f"steps {count(first)} to {count(last)}"


def under_cursor(
    scene: Scene,
    width: int,
    figure: str,
    rank: int,
    value: float,
    fold: int,
    what: str,
    steps: tuple[int, int] | None = None,
    gravest: int | None = None,
) -> Line:
    """Whose value it is, where that rank is, and of how many (`what` they are) it is the worst.

    `gravest`: the rank of a row of several for whose state the row is marked; it comes first."""
    ranks = scene.frame.ranks
    there = rank < len(ranks.host)
    where = f"{scene.clean(ranks.host[rank])} {scene.clean(ranks.device[rank])}".strip() if there else ""
    unit = f" {METRICS[figure].unit}".rstrip()
    places = 1 if unit else RATIO
    text = loss(value) if figure == "loss" else fixed(value, places, unit if known(value) else "")
    hint = f"worst of {fold:,}{what}: Enter unfolds" if fold > 1 else "Enter: its page"
    called = Line(f"{FIGURES[figure].called} ", "dim").add(text, "strong")
    if fold > 1 and gravest is not None:
        words = Line("▸ ", "accent").extend(name_gravest(scene, gravest))
        whose = called if gravest == rank else called.add(f" of rank {rank}", "dim")
        when = Line(name_steps(*steps), "dim") if steps is not None else Line()
        return join_parts([words, whose, when, Line("Enter unfolds", "faint")], width)
    return join_parts(
        [
            Line("▸ ", "accent").add(f"rank {rank}", "strong"),
            called,
            Line(name_steps(*steps), "dim") if steps is not None else Line(),
            Line(where, "dim"),
            Line(hint, "faint"),
        ],
        width,
    )


def name_gravest(scene: Scene, rank: int) -> Line:
    """`■ rank 2050 stalled`."""
    sign, role = scene.sign(rank, rank + 1)
    return Line(f"{sign} rank {rank} ", role).add(scene.state_word(rank), role)
