"""In which steps the recorder stands aside: shadow blocks, to measure what it costs, and to keep its budget.

Which steps they are follows from the step number, and over budget from a power of two as well, so that ranks
agree without a message. In them the phases, the bucket timing, the loss and the replica checks do nothing.
What remains is one timestamp at the end of the step, the same as in other steps, and what a stall is found
by: the step counter, heartbeats, and the count of batches by which an evaluation is recognised. These steps
have the flag SHADOW and no phases (`ddptop/analysis/health/overhead.py` compares them with their neighbours).

Over budget, of every BLOCK * `every` steps one block of BLOCK steps is recorded (`recorded_block`). What a
rank with a larger `every` records is among what the others record. Which block it is varies, so that work in
every 64th, 512th, ... step is seen as often as any other: the first block of each would always have it, or
never.

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


_FOLDS = (
    (1, 0x5555_5555_5555_5555),
    (2, 0x3333_3333_3333_3333),
    (4, 0x0F0F_0F0F_0F0F_0F0F),
    (8, 0x00FF_00FF_00FF_00FF),
    (16, 0x0000_FFFF_0000_FFFF),
    (32, 0x0000_0000_FFFF_FFFF),
)
"""For each power of two, the bits whose number does not have it: to them the bits that have it are added."""


def _scattered(block: int) -> int:
    """Another number for each block: its bit j is the parity of the block's bits i that have j in them
    (i & j == j): Pascal's triangle modulo 2. To do it twice gives the block again."""
    for shift, mask in _FOLDS:
        block ^= block >> shift & mask
    return block


def recorded_block(block: int, every: int) -> int:
    """The one of the `every` blocks (a power of two) around this one that is recorded.

    It is the one whose scattered number is a multiple of `every`: so those of 2 * `every` are among them.
    Work that comes in each 2^n-th block, from any block on, is seen evenly: of its first `every` blocks one
    is recorded, of the next ones one, and so on. For the first rows of Pascal's triangle in as many
    neighbouring columns have the determinant 1.
    """
    return _scattered(_scattered(block) & -every)


def next_recorded(step: int, every: int) -> int:
    """The first step of the block that holds `step`, if it is recorded, else of the next one that is."""
    block = step // BLOCK
    recorded = recorded_block(block, every)
    if recorded < block:
        recorded = recorded_block(block + every, every)
    return recorded * BLOCK


def is_turn(step: int, every: int) -> bool:
    """Whether this is the one step of `every` (a power of two) that is looked at more closely.

    It is in a block that is recorded. There it is the first one of them or the second, each as often: where
    two optimizers alternate, as in a GAN, the first one would always be of the same model. By the sequence of
    Thue and Morse both have turns also where only each fourth, eighth, ... turn is recorded.
    """
    if (step - ((step // TURN).bit_count() & 1)) % min(every, BLOCK):
        return False
    return every <= BLOCK or next_recorded(step, every // BLOCK) <= step


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
        # Steps are left out until before `end`.
        if every > 1:
            end = next_recorded(step, every)
            can_begin = step < end - 1
        else:
            end = step - step % PERIOD + LENGTH
            can_begin = step % PERIOD == 0 and self._on
        if allowed and can_begin:
            self._is_aside = True
            self.flag, self.next = int(Flag.SHADOW), end - 1
        elif was_aside:
            # The last step of the block: the recorder is back, but has not seen its data phase.
            self.next = step + 1
        else:
            self.flag = 0
            period = BLOCK if every > 1 else PERIOD
            self.next = step - step % period + period if every > 1 or self._on else NEVER
        return self._is_aside

    def steps_until_recorded(self, step: int) -> int:
        """Steps from this one to the next one that is not left out for the budget; 0: it is not itself."""
        return max(0, next_recorded(step, self.every) - step)

    def decide_soon(self, step: int) -> None:
        """Where steps are left out for the budget: have `stands_aside_from` called within BLOCK steps."""
        if self.every > 1:
            self.next = min(self.next, step - step % BLOCK + BLOCK)
