"""What of a run is missing in what was received of it, and in its recording."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.protocol.messages import Event


class MissingRecords:
    """Steps that were lost, messages that were refused, and what the recording leaves out."""

    def __init__(self) -> None:
        self.lost_since_ns: int | None = None
        """When a step was first known to be lost."""
        self.refused: tuple[int, Event] | None = None
        """When the collector first refused a message, and its newest count of them."""
        self.recording_trouble: tuple[int, str] | None = None
        """Since when the recording has trouble, and which."""
        self.kept_every = 1
        """A thinned recording holds only the steps divisible by this number; 1: all."""

    def note_lost(self, since_ns: int) -> None:
        """Note that steps are missing, which is known since then."""
        if self.lost_since_ns is None or since_ns < self.lost_since_ns:
            self.lost_since_ns = since_ns

    def note_refused(self, counted: Event, t_ns: int) -> bool:
        """Note the newest count of refused messages; returns whether it is the first."""
        is_first = self.refused is None
        self.refused = (t_ns if self.refused is None else self.refused[0], counted)
        return is_first

    @property
    def refused_reason(self) -> str:
        """Why the collector refused messages, the newest; empty: it refused none, or gave none."""
        return "" if self.refused is None else str(self.refused[1].fields.get("reason") or "")

    def note_recording_trouble(self, text: str, t_ns: int) -> bool:
        """Note what is wrong with the recording; returns whether it is news."""
        if self.recording_trouble is not None and self.recording_trouble[1] == text:
            return False
        self.recording_trouble = t_ns, text
        return True
