"""Messages between the two ends of a link, which are not recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ack:
    """Collector to rank: all up to `seq` is safe. `nack`: something after it is missing, send again."""

    epoch: int
    """Random number of the collector process: a new one means that it restarted."""
    seq: int
    nack: bool
    detail_every: int
    """The largest sampling interval of the group, for all ranks to share the same detailed steps."""


@dataclass(frozen=True, slots=True)
class Credit:
    """Viewer to collector: room for one more frame.

    `cursor` is the number of history points the viewer already has, `epoch` whose history that is;
    `focus` is the rank whose single steps it requests as well, -1 for none. `want` requests one more part of
    the frame (`ddptop.frames.detail`), empty: none.
    """

    epoch: int
    cursor: int
    focus: int
    want: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Collector to viewer: one frame of the group (`ddptop.frames.codec`)."""

    epoch: int
    skipped: int
    """Frames that were coalesced because the viewer had given no credit."""
    frame: bytes
