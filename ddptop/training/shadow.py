"""Shadow blocks: short blocks of steps in which the recorder stands aside, to measure what it costs.

Which steps they are follows from the step number alone, so that all ranks agree without a message. In them
the phases, the bucket timing, the loss and the replica checks do nothing. What remains is one timestamp at
the end of the step, the same as in other steps, and what a stall is found by: the step counter, heartbeats,
and the count of batches by which an evaluation is recognised. Steps of a block have the flag SHADOW and no
phases (`ddptop/analysis/health/overhead.py` compares them with their neighbours).

The recorder stands aside only where a torch optimizer ends the steps, and not in a step that begins inside
an optimizer's closure: there that one timestamp would not be the end of the step.
"""

from __future__ import annotations

import os

from ddptop.protocol.messages import Flag

PERIOD = 509
"""Steps from the begin of a block to that of the next one, and before the first one. A prime: what a script
does in every N-th step, or bucket detail, does not always fall into a block or beside it."""

LENGTH = 10
"""Steps of a block, 1.96 % of all. In the last one the recorder is back, but has not seen its data phase."""

NEVER = 1 << 62


class ShadowBlocks:
    """Where the recorder stands aside. Called on the training thread at the begin of a step."""

    def __init__(self, *, on: bool = False) -> None:
        self.flag = 0
        """Flag.SHADOW in the steps of a block, else 0."""
        self.next = PERIOD if on else NEVER
        """The next step at which something changes: `stands_aside_from` is to be called then."""

    @classmethod
    def from_environment(cls) -> ShadowBlocks:
        """DDPTOP_SHADOW (`on` or `off`), as the launcher has set it."""
        return cls(on=os.environ.get("DDPTOP_SHADOW") != "off")

    def stands_aside_from(self, step: int, allowed: bool) -> bool:
        """Whether the recorder stands aside from this step on. `allowed`: it can."""
        begin = step - step % PERIOD
        if step == begin and allowed:
            self.flag, self.next = int(Flag.SHADOW), begin + LENGTH - 1
            return True
        if self.flag and step == begin + LENGTH - 1:
            self.next = begin + LENGTH
        else:
            self.flag, self.next = 0, begin + PERIOD
        return False
