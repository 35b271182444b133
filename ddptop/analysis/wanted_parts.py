"""The parts of a frame that only some viewers want."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.analysis.heat import heat
from ddptop.analysis.timeline import timeline
from ddptop.analysis.wants import WantsTimeline, parse

if TYPE_CHECKING:
    from ddptop.analysis.frames import Frame
    from ddptop.analysis.reducer import Reducer


def with_wanted(reducer: Reducer, frame: Frame, text: str) -> Frame:
    """The frame with what `text` asks for; the same frame where that is nothing."""
    want = parse(text)
    if want is None or not reducer.members:
        return frame
    if isinstance(want, WantsTimeline):
        late = frame.straggler
        return replace(frame, timeline=timeline(reducer, want, late.rank if late is not None else None))
    return replace(frame, heat=heat(reducer, want))
