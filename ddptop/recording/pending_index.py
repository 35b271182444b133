"""The blocks that no INDEX names yet, and when one is due."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.recording.format import INDEX, NO_STEP, BlockEntry, BlockSummary, index_payload, pack_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEX_BLOCKS = 256
INDEX_BYTES = 4 << 20
"""What a reader has to walk over at the end of a file that was not closed."""
INDEX_STEPS = 4_000
"""From one INDEX, with the history behind it, to the next: a reader that goes to a moment reads the steps
since the last one, in less than half a second of CPU time."""


class PendingIndex:
    """The INDEX that is to come."""

    def __init__(self) -> None:
        self.blocks: list[BlockEntry] = []
        self.last_offset = 0
        """Where the last INDEX is; 0: there is none."""
        self.last_step = NO_STEP
        """The newest step in the newest block that has one."""
        self._indexed_step = 0
        """The newest step when the last INDEX was written."""

    def resume(self, blocks: Iterable[BlockEntry], last_offset: int, last_step: int) -> None:
        """Go on with a file that has these blocks behind its last INDEX."""
        self.blocks, self.last_offset, self.last_step = [*blocks], last_offset, last_step

    def add(self, entry: BlockEntry) -> None:
        """Add a block that was written."""
        self.blocks.append(entry)
        if entry.summary.last_step != NO_STEP:
            self.last_step = entry.summary.last_step

    def is_due(self, file_bytes: int, every: int) -> bool:
        """Whether the INDEX is due, in a file of this size of which one in `every` steps is kept. To be asked
        after each `add`."""
        newest = self.blocks[-1].summary.last_step
        if newest != NO_STEP:
            self._indexed_step = min(self._indexed_step, newest)  # a restarted run counts from 0 again
            # Fewer steps are kept near the limit, and the distance grows with them.
            if newest - self._indexed_step >= INDEX_STEPS * every:
                return True
        return len(self.blocks) >= INDEX_BLOCKS or file_bytes - self.last_offset >= INDEX_BYTES

    def payload(self) -> bytes:
        """What to write."""
        return index_payload(self.last_offset, self.blocks)

    def note_written(self, offset: int) -> None:
        """Note that the INDEX was written there: the next one begins."""
        self.last_offset = offset
        steps = (entry.summary.last_step for entry in reversed(self.blocks))
        self._indexed_step = next((step for step in steps if step != NO_STEP), self._indexed_step)
        self.blocks = []

    @property
    def end_bytes(self) -> int:
        """What the frame of the INDEX takes once one more block is added."""
        return EMPTY_INDEX_BYTES + ENTRY_BYTES * (len(self.blocks) + 1)


EMPTY_INDEX_BYTES = len(pack_frame(INDEX, 0, index_payload(0, [])))

ENTRY_BYTES = len(index_payload(0, [BlockEntry(0, BlockSummary(0, 0, 0, 0, 0, 0))])) - len(
    index_payload(0, [])
)
"""What one more block takes in the INDEX that is to come."""
