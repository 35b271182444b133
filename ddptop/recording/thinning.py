"""What a recording gives up when it grows past its limit: bucket detail first, then steps, never events."""

from __future__ import annotations

from collections.abc import Iterator

from ddptop.protocol.messages import Flag, Steps

STEPS_FROM = 1.25
"""Past this multiple of the limit whole steps are given up as well."""
HALVE_EVERY = 0.05
"""Every time the file has grown by this share of the limit, half of the steps that were still kept go too:
its growth dies away, and only events and heartbeats remain."""


class Thinner:
    """Decides by the size of the file how much of a STEPS message is kept."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = max(1, limit_bytes)
        self.thins = False
        """Bucket detail is given up."""
        self.every = 1
        """Only steps divisible by this are kept; a power of two, so that all ranks keep the same ones."""

    def look(self, size: int) -> bool:
        """Take notice of the size of the file; True when the rule has changed by it. It never relaxes."""
        thins, every = size > self._limit, 1
        share = size / self._limit
        if share > STEPS_FROM:
            every = 1 << min(40, 1 + int((share - STEPS_FROM) / HALVE_EVERY))
        changed = thins > self.thins or every > self.every
        self.thins, self.every = self.thins or thins, max(self.every, every)
        return changed

    @property
    def note(self) -> str | None:
        """What is given up, for a person."""
        if not self.thins:
            return None
        if self.every == 1:
            return "recording past its limit: bucket detail is left out"
        return f"recording past its limit: bucket detail is left out, and all but one of {self.every:,} steps"

    def thin(self, steps: Steps) -> Iterator[Steps]:
        """What is kept of this message."""
        bare = [row._replace(cells=(), flags=row.flags & ~Flag.DETAIL) for row in steps.rows]
        if self.every == 1:
            yield Steps(steps.generation, steps.first_step, steps.base_ns, tuple(bare))
            return
        for step, row in enumerate(bare, steps.first_step):
            if step % self.every == 0:
                yield Steps(steps.generation, step, steps.base_ns, (row,))
