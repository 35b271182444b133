"""The lanes of a timeline: a rank's phases, and below them its all-reduces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.numbers import fixed, size
from ddptop.render.chart import TimeAxis, Track
from ddptop.render.line import Line
from ddptop.render.phases import PARTS, Part
from ddptop.render.text import fit

if TYPE_CHECKING:
    from ddptop.frames.detail import Lane, Timeline
    from ddptop.render.line import Role
    from ddptop.tui.scene import Scene
    from ddptop.tui.views.timeline_state import TimelineState

READY, QUEUED, WAIT, TRANSFER, UNSEEN = (("┊", "|"), ("╌", ":"), ("░", "."), ("≈", "~"), ("?", "?"))
"""Glyphs of an all-reduce: ready, queued behind others, waiting for a rank, in transfer, end not known."""

_SPAN_NAMES = {"wait": "waiting", "transfer": "moving"}
"""Names of spans in a frame, where they are not the name of the part."""

_PARTS: dict[str, Part] = {_SPAN_NAMES.get(part.name, part.name): part for part in PARTS}

SIZE, TIME = 9, 8
"""Widths of the columns at the right: bytes, and a time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Widths of the parts of a lane's lines."""

    rank: int
    bucket: int
    axis: TimeAxis
    size: bool
    times: bool

    @classmethod
    def of(cls, shown: Timeline, state: TimelineState, width: int) -> Plan:
        """Where the axis needs the room, figures are left out, bytes first."""
        rank = max((len(str(lane.rank)) for lane in shown.lanes), default=1)
        bucket = max((len(_name(shown, place)) for place in range(len(shown.reduces))), default=2)
        label = rank + bucket + 4
        sized, timed = (shown.detailed and width >= least for least in (58, 38))
        room = max(1, width - label - (SIZE if sized else 0) - (2 * TIME + 1 if timed else 0))
        begin, share = state.begin * shown.span_ms, state.share * shown.span_ms
        return cls(rank, bucket, TimeAxis(begin, begin + share, room), sized, timed)

    @property
    def left(self) -> int:
        """Cells before the axis."""
        return self.rank + self.bucket + 4

    def head(self) -> Line:
        """The numbers of the axis and the titles of the figures."""
        line = Line(" " * self.left).extend(self.axis.numbers()).pad(self.left + self.axis.width)
        line.add("size".rjust(SIZE) if self.size else "", "dim")
        return line.add("wait".rjust(TIME) + "transfer".rjust(TIME + 1) if self.times else "", "dim")

    def figures(self, line: Line, what: str, wait: str, move: str, role: Role = "text") -> Line:
        """The end of a line."""
        line.add(fit(what, SIZE, right=True) if self.size else "", "dim")
        if self.times:
            line.add(fit(wait, TIME, right=True), role).add(fit(move, TIME + 1, right=True))
        return line


def lane_lines(
    scene: Scene, shown: Timeline, lane: Lane, plan: Plan, *, how: str, chosen: bool
) -> list[Line]:
    """`how`: `all` reduces below the phases, or them `merged` into one line, or `none`."""
    lines = [_phases(scene, shown, lane, plan, chosen)]
    count = len(lane.reduces)
    if how == "all":
        lines += [_reduce(scene, shown, lane, index, plan) for index in range(count)]
    elif how == "merged" and count:
        lines.append(_merged(scene, lane, plan))
    for line in lines:
        line.target = lane.rank
    return lines


def _phases(scene: Scene, shown: Timeline, lane: Lane, plan: Plan, chosen: bool) -> Line:
    late = lane.rank in scene.stragglers
    line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
    line.add(f"r{lane.rank}".ljust(plan.rank + 1), "warn" if late else "strong")
    line.add(*scene.sign(lane.rank, lane.rank + 1))
    line.add(f"{'ph'.ljust(plan.bucket)} ", "dim")
    track = Track(plan.axis)
    exposed = {"waiting": 0.0, "moving": 0.0}
    for span in lane.spans:
        part = _PARTS[span.name]
        track.put(span.begin_ms, span.end_ms, part.plain if scene.ascii_only else part.glyph, part.role)
        if span.name in exposed:
            exposed[span.name] += span.end_ms - span.begin_ms
    line.extend(track.line())
    if not len(lane.reduces):
        return plan.figures(line, "", "", "")
    sign = "~" if shown.clock_free else ""
    wait, transfer = (sign + fixed(exposed[name]) for name in ("waiting", "moving"))
    return plan.figures(line, "exposed", wait, transfer, "strong")


def _reduce(scene: Scene, shown: Timeline, lane: Lane, index: int, plan: Plan) -> Line:
    place = int(lane.reduces[index])
    line = Line(" " * (plan.rank + 3)).add(_name(shown, place).ljust(plan.bucket), "dim").add(" ")
    track = Track(plan.axis)
    _draw(track, lane, index, scene.ascii_only)
    line.extend(track.line())
    start, arrival, end = (float(column[index]) for column in (lane.start_ms, lane.arrival_ms, lane.end_ms))
    sign = "~" if shown.clock_free else ""
    came_last = lane.last[index] == 1
    wait = "last" if came_last else sign + fixed(max(0.0, arrival - start))
    transfer = fixed(max(0.0, end - arrival)) if np.isfinite(end) else "–"
    role: Role = "warn" if came_last else "text"
    return plan.figures(line, size(shown.reduces[place].bytes), wait, sign + transfer, role)


def _merged(scene: Scene, lane: Lane, plan: Plan) -> Line:
    """All of a lane's all-reduces in one row: transfer where there is some, else wait."""
    line = Line(" " * (plan.rank + 3)).add(f"{len(lane.reduces)}b".ljust(plan.bucket)[: plan.bucket], "dim")
    track = Track(plan.axis)
    plain = scene.ascii_only
    for index in range(len(lane.reduces)):
        track.put(float(lane.start_ms[index]), float(lane.arrival_ms[index]), WAIT[plain], "wait")
    for index in range(len(lane.reduces)):
        if np.isfinite(lane.end_ms[index]):
            track.put(float(lane.arrival_ms[index]), float(lane.end_ms[index]), TRANSFER[plain], "transfer")
    return plan.figures(line.add(" ").extend(track.line()), "", "", "")


def _draw(track: Track, lane: Lane, index: int, plain: bool) -> None:
    ready, start, arrival, end = (
        float(column[index]) for column in (lane.ready_ms, lane.start_ms, lane.arrival_ms, lane.end_ms)
    )
    track.put(ready, start, QUEUED[plain], "faint")
    track.put(start, arrival, WAIT[plain], "wait")
    track.mark(ready, READY[plain], "dim")
    if np.isfinite(end):
        track.put(arrival, end, TRANSFER[plain], "transfer", least=1)
    else:
        track.mark(arrival, UNSEEN[plain], "warn")


def _name(shown: Timeline, place: int) -> str:
    """`b3`, or `m1b3` of the second of several models."""
    reduce = shown.reduces[place]
    several = any(drawn.model for drawn in shown.reduces)
    return f"m{reduce.model}b{reduce.bucket}" if several else f"b{reduce.bucket}"
