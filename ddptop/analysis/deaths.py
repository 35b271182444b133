"""Ranks whose processes ended as they should not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.analysis.frames import Death
    from ddptop.analysis.reducer import Reducer


def deaths(reducer: Reducer, now_ns: int) -> tuple[Death, ...]:
    """In order of time: the first is the cause of the others."""
    return ()
