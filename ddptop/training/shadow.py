"""In which steps the recorder stands aside: shadow blocks, to measure what it costs, and to keep its budget.

Which steps they are follows from the step number, and over budget from a power of two as well, so that ranks
agree without a message. In them the phases, the bucket timing, the loss and the replica checks do nothing.
What remains is one timestamp at the end of the step, the same as in other steps, and what a stall is found
by: the step counter, heartbeats, and the count of batches by which an evaluation is recognised. These steps
have the flag SHADOW and no phases (`ddptop/analysis/health/overhead.py` compares them with their neighbours).

Over budget, of every BLOCK * `every` steps the first BLOCK are recorded. So what a rank with a larger `every`
records is among what the others record.

The recorder stands aside only where a torch optimizer ends the steps, and not in a step that begins inside
an optimizer's closure: there that one timestamp would not be the end of the step.
"""

from __future__ import annotations

import os

from ddptop.protocol.messages import Flag

PERIOD = 509
"""Steps from the begin of a shadow block to that of the next one, and before the first one. A prime: what a
script does in every N-th step, or bucket detail, does not always fall into a block or beside it."""

LENGTH = 10
"""Steps of a shadow block, 1.96 % of all. In the last one the recorder is back, but has not seen its data
phase."""

BLOCK = 16
"""Steps that are recorded one after the other where others are left out. A power of two: bucket detail falls
into them. To begin and to end takes as much as one or two steps."""

NEVER = 1 << 62

TURN = 32
"""Steps after which the odd steps may have their turn, or the even ones. A multiple of BLOCK."""


def is_turn(step: int, every: int) -> bool:
    """Whether this is the one step of `every` (a power of two) that is looked at more closely.

    It is the first one or the second one of them, each as often: where two optimizers alternate, as in a GAN,
    the first one would always be of the same model. By the sequence of Thue and Morse both have turns also
    where only each fourth, eighth, ... turn is recorded.
    """
    return (step - ((step // max(every, TURN)).bit_count() & 1)) % every == 0


class ShadowBlocks:
    """Where the recorder stands aside. Called on the training thread at the begin of a step."""

    def __init__(self, *, on: bool = False) -> None:
        self.flag = 0
        """Flag.SHADOW in the steps in which the recorder stands aside, else 0."""
        self.next = PERIOD if on else NEVER
        """The next step at which something changes: `stands_aside_from` is to be called then."""
        self.every = 1
        """One in so many steps was to be recorded at the last call; a power of two."""
        self._on = on
        self._is_aside = False

    @classmethod
    def from_environment(cls) -> ShadowBlocks:
        """DDPTOP_SHADOW (`on` or `off`), as the launcher has set it."""
        return cls(on=os.environ.get("DDPTOP_SHADOW") != "off")

    def stands_aside_from(self, step: int, allowed: bool, every: int = 1) -> bool:
        """Whether the recorder stands aside from this step on. `allowed`: it can. `every`: one in so many
        steps is to be recorded."""
        was_aside, self._is_aside, self.every = self._is_aside, False, every
        # Steps are left out from `begin` to before `end`.
        if every > 1:
            period = BLOCK * every
            begin, end = step - step % period + BLOCK, step - step % period + period
            can_begin = begin <= step < end - 1
        else:
            period = PERIOD
            begin, end = step - step % period, step - step % period + LENGTH
            can_begin = step == begin and self._on
        if allowed and can_begin:
            self._is_aside = True
            self.flag, self.next = int(Flag.SHADOW), end - 1
        elif was_aside:
            # The last step of the block: the recorder is back, but has not seen its data phase.
            self.next = step + 1
        else:
            self.flag = 0
            self.next = (
                begin if step < begin else begin + period if every == 1 else step - step % BLOCK + BLOCK
            )
            if every == 1 and not self._on:
                self.next = NEVER
        return self._is_aside

    def steps_until_recorded(self, step: int) -> int:
        """Steps from this one to the next one that is not left out for the budget; 0: it is not itself."""
        period = BLOCK * self.every
        return 0 if step % period < BLOCK else period - step % period

    def decide_soon(self, step: int) -> None:
        """Where steps are left out for the budget: have `stands_aside_from` called within BLOCK steps."""
        if self.every > 1:
            self.next = min(self.next, step - step % BLOCK + BLOCK)
