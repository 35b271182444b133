"""Why steps may take long, or not come, without a stall."""

from __future__ import annotations

from ddptop.protocol.limits import MAX_NS


class StallExcuses:
    """When each was last known, and the longest pauses of this run."""

    def __init__(self) -> None:
        self.declared_ns = 0
        """When a rank was last in a declared phase or evaluating: during these, steps need not advance."""
        self.compiling_ns = 0
        """When a rank last gave evidence of compiling."""
        self.restarted_ns = -MAX_NS
        """When the newest collector began in place of one that had ended."""
        self.usual_pauses: dict[str, int] = {}
        """By function: the longest time (ns) that a rank was in it, before the run continued."""
