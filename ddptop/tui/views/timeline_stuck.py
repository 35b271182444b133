"""The timeline during a stall: the step that is under way, and where each rank is in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.numbers import age, count, counted, known
from ddptop.tui.paint.phases import PARTS, legend
from ddptop.tui.paint.signs import worst_sign
from ddptop.tui.paint.text import cells, wrap

if TYPE_CHECKING:
    from ddptop.analysis.stall_frames import Stall
    from ddptop.tui.scene import Scene

LEAST_BAR = 12
"""Cells below which a bar tells nothing beside the words."""

LEAST_FOR_LEGEND = 12
"""Lines of the page from which the legend is worth one of them."""

BEFORE = {"data": 0, "forward": 1, "backward": 2, "optimizer": 5, "other": 6}
"""By the phase that a rank is in: how many of `PARTS` it has behind it."""


def stuck_page(scene: Scene, stall: Stall, width: int, height: int) -> list[Line]:
    """A lane per rank, those that the stall is due to first: the phase it is in goes on to the right edge."""
    kept = scene.frame.timeline.kept if scene.frame.timeline is not None else ()
    head = [
        Line("◂ " if kept else "", "accent").add("step ", "dim").add(count(stall.step), "bad"),
        Line(f"under way for {age(scene.frame.unix_s - stall.since_s)}", "bad"),
        Line("newest complete step ", "dim").add(count(scene.frame.group.step)),
    ]
    lines = [gather(head, width)]
    words = wrap(scene.clean(stall.sentence), width - 2)[: 1 if height < 14 else 3]
    lines += [Line("■ " if at == 0 else "  ", "bad").add(row) for at, row in enumerate(words)]
    foot = [legend(scene.ascii_only, stall.ranks, width)] if height >= LEAST_FOR_LEGEND else []
    lines += _lanes(scene, stall, width, height - len(lines) - len(foot))
    return [*lines[: height - len(foot)], *(Line() for _ in range(height - len(lines) - len(foot))), *foot]


def _lanes(scene: Scene, stall: Stall, width: int, room: int) -> list[Line]:
    """The ranks to blame, then those about the cursor."""
    world, cursor = len(scene.frame.ranks.state), scene.place.timeline.rank
    first = [rank for rank in stall.ranks if rank < world][: max(1, room // 2)]
    near = sorted(set(range(world)) - set(first), key=lambda rank: (abs(rank - cursor), rank))
    shown = [*first, *sorted(near[: max(0, room - len(first))])]
    texts = [_where(scene, stall, rank) for rank in shown]
    label, longest = len(str(max(shown, default=0))), max(map(cells, texts), default=0)
    bar = width - label - 6 - longest
    return [
        _lane(scene, stall, rank, text, label, bar if bar >= LEAST_BAR else 0)
        for rank, text in zip(shown, texts, strict=True)
    ]


def _lane(scene: Scene, stall: Stall, rank: int, text: str, label: int, bar: int) -> Line:
    chosen, blamed = rank == scene.place.timeline.rank, rank in stall.ranks
    line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
    line.add(f"r{rank}".ljust(label + 2), "bad" if blamed else "strong")
    line.add(*worst_sign(scene.frame.ranks.state[rank : rank + 1])).add(" ")
    line.target = rank
    if bar:
        line.extend(_bar(scene, stall, rank, bar)).add(" ")
    return line.add(scene.clean(text), "bad" if blamed else "text")


def _bar(scene: Scene, stall: Stall, rank: int, width: int) -> Line:
    """What usually lies behind the rank, then what it is in: no time is known of either in this step."""
    plain = scene.ascii_only
    now = "wait" if rank in stall.waiting else scene.frame.ranks.phase[rank]
    names = [part.name for part in PARTS]
    if now not in names:
        return Line("?" * width, "faint")
    behind = 3 if now == "wait" else BEFORE[now]
    usual = np.nan_to_num(scene.breakdown.ms[:behind, rank])
    scale = 0.75 * width / scene.breakdown.full_ms if scene.breakdown.full_ms else 0.0
    line = Line()
    for part, ms in zip(PARTS, usual.tolist(), strict=False):
        line.add((part.plain if plain else part.glyph) * round(ms * scale), "faint")
    part = PARTS[names.index(now)]
    return line.add((part.plain if plain else part.glyph) * (width - line.width), part.role)


def _where(scene: Scene, stall: Stall, rank: int) -> str:
    """`backward, 3 buckets sent, waits`; with its own step, where that is another one."""
    ranks = scene.frame.ranks
    own, sent = float(ranks.step[rank]), float(ranks.bucket[rank])
    parts = [ranks.phase[rank]]
    if known(own) and own != stall.step:
        parts.insert(0, f"step {count(own)}")
    elif known(sent) and sent >= 0:
        parts.append(f"{counted(int(sent), 'bucket')} sent")
    parts.append("waits" if rank in stall.waiting else "missing" if rank in stall.ranks else "")
    return ", ".join(part for part in parts if part)
