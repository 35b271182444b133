"""Why the step does not move: the verdict on a stall."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.frames import Stall
    from ddptop.analysis.reducer import Reducer


def stall(reducer: Reducer, states: Sequence[str], now_ns: int) -> Stall | None:
    """The verdict on the present stall; None where there is none."""
    return None
