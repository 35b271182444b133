"""Where a rank's step went, as a stacked bar; all ranks on one scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.happenings import NAMED_RANKS, ranks_phrase
from ddptop.tui.paint.line import Line, Role, gather

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Column, Ranks


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of time in a step, in the order in which it comes."""

    name: str
    glyph: str
    plain: str
    """The same in ASCII."""
    role: Role


PARTS = (
    Part("data", "▪", "d", "data"),
    Part("forward", "█", "F", "forward"),
    Part("backward", "▓", "B", "backward"),
    Part("waiting", "·", ".", "waiting"),
    Part("moving", "≈", "~", "moving"),
    Part("optimizer", "▄", "o", "optimizer"),
    Part("other", "░", "x", "other"),
)

_SHORT = {
    "forward": "fwd",
    "backward": "bwd",
    "waiting": "wait",
    "moving": "move",
    "optimizer": "opt",
}

_UNTOLD = Part("unknown", "?", "?", "faint")
"""Time of the step that no known phase holds, while some phase is not known."""


class Breakdown:
    """The parts of every rank's step, in ms; one row per part, `_UNTOLD` last."""

    def __init__(self, ranks: Ranks) -> None:
        self.ms = _parts(ranks)
        ends = self.ms.sum(axis=0)
        self.known = ends > 0
        steps = np.where(np.isnan(ranks.step_ms), ends, ranks.step_ms)
        self.full_ms = float(steps.max(initial=0.0))
        """What the whole width stands for: the slowest rank's step."""
        self._edges = np.vstack([np.zeros_like(ends), np.cumsum(self.ms, axis=0)])

    def bar(self, rank: int, width: int, ascii_only: bool) -> Line:
        """The bar of one rank. Edges are rounded, not lengths, so that equal ranks give equal bars.

        Medians of parts need not add up to the median step: a bar may end a little early, and never
        goes on past the width.
        """
        line = Line()
        if not self.known[rank]:
            return line.add("–", "faint")
        scale = width / self.full_ms if self.full_ms > 0 else 0.0
        edges = np.minimum(np.rint(self._edges[:, rank] * scale), width).astype(int).tolist()
        for part, begin, end in zip((*PARTS, _UNTOLD), edges, edges[1:], strict=False):
            line.add((part.plain if ascii_only else part.glyph) * (end - begin), part.role)
        return line


def backward_parts(backward: Column, exposed: Column, waited: Column) -> tuple[Column, Column, Column]:
    """Backward compute, waiting and moving. Without exposed figures backward stays whole."""
    told = ~(np.isnan(exposed) | np.isnan(waited))
    exposed = np.where(told, np.minimum(exposed, backward), 0.0)
    waiting = np.where(told, np.minimum(waited, exposed), 0.0)
    return backward - exposed, waiting, exposed - waiting


def _parts(ranks: Ranks) -> Column:
    compute, waiting, moving = backward_parts(ranks.backward_ms, ranks.exposed_comm_ms, ranks.exposed_wait_ms)
    rows = np.vstack(
        [ranks.data_ms, ranks.forward_ms, compute, waiting, moving, ranks.optimizer_ms, ranks.other_ms]
    )
    holes = np.isnan(rows).any(axis=0) & ~np.isnan(ranks.step_ms)
    rows = np.clip(np.nan_to_num(rows), 0.0, None)
    holes &= rows.any(axis=0)
    untold = np.where(holes, np.clip(np.nan_to_num(ranks.step_ms) - rows.sum(axis=0), 0.0, None), 0.0)
    return np.vstack([rows, untold])


def legend(ascii_only: bool, waited_for: Sequence[int], width: int) -> Line:
    """Sign and name of every part on one line; the whom of the waiting gives way first."""
    whom = ranks_phrase(list(waited_for), 0 if len(waited_for) <= NAMED_RANKS else len(waited_for))
    named = {"waiting": f"waiting for {whom}"} if waited_for else {}
    for names, gap in ((named, 2), (named, 1), ({}, 2), ({}, 1), (_SHORT, 1)):
        parts = [_entry(part, names.get(part.name, part.name), ascii_only) for part in PARTS]
        if sum(part.width + gap for part in parts) - gap <= width:
            break
    return gather(parts, width, gap)


def _entry(part: Part, name: str, ascii_only: bool) -> Line:
    return Line(part.plain if ascii_only else part.glyph, part.role).add(f" {name}", "dim")
