"""How far a recording goes: its index, its size, and whether it still grows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ddptop.recording.disk import is_being_written
from ddptop.recording.format import FOOTER_BYTES, NO_STEP
from ddptop.recording.index import extend, load

if TYPE_CHECKING:
    from ddptop.recording.block_reader import BlockReader
    from ddptop.recording.blocks import Blocks


class Extent:
    """What is known of one file, as it was when it was last looked at."""

    def __init__(self, descriptor: int) -> None:
        """Look for the first time. The descriptor is the caller's to close. Raises OSError."""
        self._descriptor = descriptor
        self.first_step: int | None = None
        """Lowest step number in it; None: it holds no step."""
        self.last_step: int | None = None
        self._ask()
        self.contents = load(descriptor, self.size)
        self._note_steps(self.contents.blocks)

    def look(self) -> None:
        """Take notice of what was written since."""
        self._ask()
        known = len(self.contents.blocks)
        self.contents = extend(self.contents, self._descriptor, self.size)
        self._note_steps(self.contents.blocks.part(known, len(self.contents.blocks)))

    def _ask(self) -> None:
        # Asked before the size: a writer that ends in between has written all that the size says.
        self.growing = is_being_written(self._descriptor)
        """A writer holds it."""
        self.size = os.fstat(self._descriptor).st_size
        """Bytes."""

    def _note_steps(self, added: Blocks) -> None:
        steps = added.first_step != NO_STEP
        if steps.any():
            first, last = int(added.first_step[steps].min()), int(added.last_step[steps].max())
            self.first_step = first if self.first_step is None else min(first, self.first_step)
            self.last_step = last if self.last_step is None else max(last, self.last_step)

    def damage(self, reader: BlockReader) -> str | None:
        """What of the file could not be read, or not as it is there, in words; None: nothing.

        `reader` knows of the blocks that were read so far.
        """
        contents = self.contents
        parts = []
        torn = self.size - contents.end - (FOOTER_BYTES if contents.closed else 0)
        if contents.broken:
            parts.append("its index is damaged: the blocks were searched for")
        if contents.damaged:
            parts.append(f"{contents.damaged:,} bytes in the middle are damaged")
        if reader.unreadable:
            lost = f", {reader.lost:,} messages are lost" if reader.lost else ""
            parts.append(f"{reader.unreadable:,} of {len(contents.blocks):,} blocks cannot be read{lost}")
        if reader.mended:
            blocks = "a block" if reader.mended == 1 else f"{reader.mended:,} blocks"
            parts.append(f"a wrong bit in {blocks} was put right")
        if torn > 0 and not self.growing:
            parts.append(f"the last {torn:,} bytes are cut off or damaged")
        elif not contents.closed and not self.growing:
            parts.append("it was never closed: its last moments may be missing")
        return "; ".join(parts) or None
