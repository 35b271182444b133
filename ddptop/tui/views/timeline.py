"""The timeline: one step, a lane per rank, phases above and every all-reduce below.

During a stall: the step in progress, and the position of each rank in it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.numbers import age, count, counted, fixed, known, percent, size
from ddptop.frames.phrases import on_hosts
from ddptop.frames.training_kind import kind_phrase
from ddptop.frames.verdict import restart_phrase, run_state, verdict
from ddptop.render.chart import TimeAxis, Track
from ddptop.render.hosts import inexact_clock
from ddptop.render.line import Line, combine_roles, draw_rule, join_parts
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.phases import EVALUATION, PARTS, SAVING, StepPart, draw_legend, is_parted
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.render.trouble import trouble_brief
from ddptop.tui.keys import ScreenKey, view_key
from ddptop.tui.scene import Page, PageLayout
from ddptop.tui.view import View
from ddptop.tui.views.panels import has_panels
from ddptop.tui.views.step_panels import BAND, LEAST_BAND, STUCK_BAND, draw_step_panels, draw_stuck_panels
from ddptop.tui.views.timeline_state import FOLLOWED_S, Moment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.detail import Lane, LaneSpan, Timeline
    from ddptop.frames.stall import Stall
    from ddptop.render.line import Piece, Role
    from ddptop.tui.scene import Place, Scene
    from ddptop.tui.screen import Screen
    from ddptop.tui.views.timeline_state import TimelineState

MIN_FOR_WORDS, MIN_FOR_AXIS, MIN_FOR_LEGEND = 3, 5, 12
"""Lines of the page from which these are worth one of them."""

TALL_STUCK = 3
"""Lines of a lane at most, in a step that is stuck."""

TALLEST_LANE = 6
"""Lines of a bar of phases at most."""

MIN_BAR = 12
"""Cells below which a bar is useless beside the words."""

BEFORE = {"data": 0, "forward": 1, "backward": 2, "optimizer": 5, "other": 6}
"""By the phase that a rank is in: how many of `PARTS` it has behind it."""


LOW_STUCK = 14
"""Lines of the page of a stuck step below which the lanes need the room more than the sentence does."""


def draw_stuck_step(scene: Scene, stall: Stall, width: int, height: int) -> list[Line]:
    """A lane per rank, those that the stall is due to first: the phase it is in goes on to the right edge."""
    kept = scene.frame.timeline.kept if scene.frame.timeline is not None else ()
    head = [
        Line("◂ " if kept else "", "accent").add("step ", "dim").add(count(stall.step), "bad"),
        Line(f"under way for {age(scene.frame.unix_s - stall.since_s)}", "bad"),
        Line("last complete step ", "dim").add(count(scene.frame.group.step)),
    ]
    lines = [join_parts(head, width)]
    words = wrap_lines(scene.clean(stall.sentence), width - 2, 3)
    if height < LOW_STUCK:  # one line of it says who and where
        words = wrap_lines(scene.clean(trouble_brief(verdict(scene.frame), width - 2)), width - 2, 1)
    lines += [Line("■ " if index == 0 else "  ", "bad").add(row) for index, row in enumerate(words)]
    foot = [draw_legend(scene.ascii_only, stall.ranks, width)] if height >= MIN_FOR_LEGEND else []
    with_panels = has_panels(width, height)
    room, world = height - len(lines) - len(foot), len(scene.frame.ranks.state)
    tall = min(TALL_STUCK, max(1, (room - STUCK_BAND * with_panels) // max(1, world)))
    if with_panels:
        foot += draw_stuck_panels(scene, width, max(STUCK_BAND, room - tall * world))
    lines += _draw_stuck_lanes(scene, stall, width, height - len(lines) - len(foot), tall)
    return [*lines[: height - len(foot)], *(Line() for _ in range(height - len(lines) - len(foot))), *foot]


def _draw_stuck_lanes(scene: Scene, stall: Stall, width: int, room: int, tall: int) -> list[Line]:
    """In lanes of `tall` lines: the ranks that the stall is due to, then those around the cursor."""
    world, cursor, room = len(scene.frame.ranks.state), scene.place.timeline.rank, room // tall
    first = [rank for rank in stall.ranks if rank < world][: max(1, room // 2)]
    near = sorted(set(range(world)) - set(first), key=lambda rank: (abs(rank - cursor), rank))
    shown = [*first, *sorted(near[: max(0, room - len(first))])]
    texts = [_describe_position(scene, stall, rank) for rank in shown]
    label, longest = len(str(max(shown, default=0))), max(map(text_width, texts), default=0)
    bar = width - label - 6 - longest
    lanes = (
        _draw_stuck_lane(scene, stall, rank, text, (label, bar if bar >= MIN_BAR else 0), (width, tall))
        for rank, text in zip(shown, texts, strict=True)
    )
    return [line for lane in lanes for line in lane]


def _draw_stuck_lane(
    scene: Scene, stall: Stall, rank: int, text: str, cells: tuple[int, int], size: tuple[int, int]
) -> list[Line]:
    """`cells` of the label and of the bar; where a line has no room for the bar, it lies below the words."""
    (label, bar), (width, tall) = cells, size
    chosen, blamed = rank == scene.place.timeline.rank, rank in stall.ranks
    line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
    line.add(f"r{rank}".ljust(label + 2), "bad" if blamed else "strong")
    line.add(*scene.sign(rank, rank + 1)).add(" ")
    line.target = rank
    again = [Line(" " * line.width, ground=line.ground) for _ in range(tall - 1)]
    if bar:
        drawn = _draw_stuck_bar(scene, stall, rank, bar)
        line.extend(drawn).add(" ")
        n_bars = tall - 2 if tall > 2 else 1  # the last line parts it from the next lane
        again[:n_bars] = [below.extend(drawn) for below in again[:n_bars]]
    elif tall > 1:
        drawn = _draw_stuck_bar(scene, stall, rank, width - line.width)
        n_bars = max(1, tall - 2)  # the last line parts it from the next lane
        again[:n_bars] = [below.extend(drawn) for below in again[:n_bars]]
    for below in again:
        below.target = rank
    return [line.add(scene.clean(text), "bad" if blamed else "text"), *again]


def _draw_stuck_bar(scene: Scene, stall: Stall, rank: int, width: int) -> Line:
    """Draw the usual times of the phases that are done, then the current phase. This step has no times
    yet."""
    plain = scene.ascii_only
    phase = "wait" if rank in stall.waiting else scene.frame.ranks.phase[rank]
    names = [part.name for part in PARTS]
    if phase not in names:
        return Line("?" * width, "faint")
    behind = 3 if phase == "wait" else BEFORE[phase]
    usual = np.nan_to_num(scene.breakdown.ms[:behind, rank])
    scale = 0.75 * width / scene.breakdown.full_ms if scene.breakdown.full_ms else 0.0
    line, before = Line(), PARTS[names.index(phase)]
    lengths = [(part, round(ms * scale)) for part, ms in zip(PARTS, usual.tolist(), strict=False)]
    lengths.append((before, width - sum(length for _, length in lengths)))
    for part, length in lengths:
        if length > 0:
            edge = [_draw_edge(part, plain)] if line.width and _needs_edge(before, part) else []
            glyph, before = part.plain if plain else part.glyph, part
            line.signs([*edge, (glyph * (length - len(edge)), combine_roles(part.role, part.role))])
    return line


def _describe_position(scene: Scene, stall: Stall, rank: int) -> str:
    """`backward, 3 buckets sent, waits`; with its own step, where that is another one."""
    ranks = scene.frame.ranks
    rank_step, buckets_sent = float(ranks.step[rank]), float(ranks.bucket[rank])
    parts: list[str] = [ranks.phase[rank]]
    if known(rank_step) and rank_step != stall.step:
        parts.insert(0, f"step {count(rank_step)}")
    elif known(buckets_sent) and buckets_sent >= 0:
        parts.append(f"{counted(int(buckets_sent), 'bucket')} sent")
    parts.append("waiting" if rank in stall.waiting else "missing" if rank in stall.ranks else "")
    return ", ".join(part for part in parts if part)


def _draw_head(scene: Scene, shown: Timeline, state: TimelineState, width: int) -> Line:
    back, on = any(step < shown.step for step in shown.kept), any(step > shown.step for step in shown.kept)
    place = " " * len(ONWARD) if width >= MEAN_FROM else ""
    step = Line("◂ " if back else "  ", "accent").add("step ", "dim").add(count(shown.step), "strong")
    is_held, group = state.step is not None or shown.picked, scene.frame.group
    incarnation = state.held_incarnation if state.step == shown.step else group.incarnation
    step.add(restart_phrase(incarnation), "dim").add(ONWARD if on else place, "accent")
    mode, behind = Line(" held ", "badge"), (group.step or shown.step) - shown.step
    behind = behind if incarnation == group.incarnation else 0
    if not is_held:
        mode = _draw_age(scene, shown, state, LONGEST_AGE if width >= MEAN_FROM else 0)
        is_newest = scene.frame.timeline is not None and shown.step == scene.frame.timeline.step
        is_near = behind <= FOLLOWED_S * (group.steps_per_s or 0.0)
        behind = 0 if is_near or not is_newest else behind  # no newer one is kept
    when = Line(f"{counted(behind, 'step')} ago" if behind > 0 else "", "dim")
    if state.step is not None and state.step != shown.step and state.step in shown.kept:
        when = Line(f"step {count(state.step)} comes", "dim")
    world = len(scene.frame.ranks.state)
    part = len(shown.lanes) < world
    return join_parts(
        [
            step,
            Line(fixed(shown.step_ms), "strong").add(" ms", "dim"),
            mode,
            when,
            _draw_exposed(shown, width) if shown.detailed else Line(),
            Line("overlap ", "dim").add(percent(shown.overlap_pct)) if shown.detailed else Line(),
            Line("zoom ", "dim").add(f"{2**state.level}x", "accent" if state.level else "text"),
            Line(f"{len(shown.lanes)} of {world:,} lanes", "dim") if part else Line(),
        ],
        width,
    )


def _draw_age(scene: Scene, shown: Timeline, state: TimelineState, width: int) -> Line:
    """`newest`, or how long ago the step was that."""
    assert scene.frame.timeline is not None
    shown_s = scene.frame.unix_s - state.followed_at_s
    is_newest = state.followed is None or shown.step == scene.frame.timeline.step or shown_s < 1.0
    return Line(f"{'newest' if is_newest else f'{int(shown_s)} s ago':<{width}}", "dim")


ONWARD = " ▸"
"""There is a later step that can be shown."""

LONGEST_AGE = 8
"""Cells of `30 s ago`."""

MEAN_FROM = 60
"""Columns from which a mean is called one, and parts that come and go have a place of their own."""


def _draw_exposed(shown: Timeline, width: int) -> Line:
    """The mean exposed communication of the step's ranks; each lane has its own."""
    line = Line("exposed ", "dim").add(fixed(shown.exposed_ms, 1, " ms"))
    return line.add(" mean", "dim") if width >= MEAN_FROM else line


def _draw_host(scene: Scene, shown: Timeline, state: TimelineState) -> Line:
    """`rank 137 on gpu-017`: the lane under the cursor, of a run with several hosts."""
    if not shown.lanes:
        return Line()
    nearest = _find_nearest(shown, state)
    where = on_hosts(scene.frame, (nearest,))
    return Line(f"rank {nearest}{scene.clean(where)}", "accent") if where else Line()


def _find_nearest(shown: Timeline, state: TimelineState) -> int:
    """The rank of the lane under the cursor: the frame may have no lane of the chosen one yet."""
    return min((lane.rank for lane in shown.lanes), key=lambda rank: abs(rank - state.rank), default=0)


class _StepNote(NamedTuple):
    """One clause about a step."""

    text: str
    shorter: tuple[str, ...] = ()
    """Forms of the clause in fewer words, the longest first."""
    main_clause: str = ""
    """What stays of it where there is a line for nothing else; empty: all of it."""


class _StepNotes(NamedTuple):
    """What is said of a step."""

    sign: str
    role: Role
    notes: Sequence[_StepNote]

    def text_within(self, width: int, scene: Scene, *, is_low: bool) -> str:
        """As much of it as fits into one line, which leaves what is below where it is; all of it if nothing
        does. `is_low`: there is no second line."""
        *before, last = self.notes
        texts = [
            scene.clean("; ".join([*(note.text for note in before), ending]))
            for ending in (last.text, *last.shorter)
        ]
        first = self.notes[0]
        otherwise = scene.clean(first.main_clause or first.text) if is_low else texts[0]
        return next((text for text in texts if text_width(text) <= width), otherwise)


def _describe_step(scene: Scene, shown: Timeline, state: TimelineState) -> _StepNotes:
    """Sign, role and notes on this step; limits of its figures come first."""
    notes: list[_StepNote] = []
    sign, role = ("●", "good")
    if state.step is not None and state.step != shown.step:
        not_kept = f"step {state.step:,} is not kept"
        if state.step not in shown.kept:
            notes.append(_StepNote(f"{not_kept}, this is the newest", main_clause=not_kept))
        elif scene.frozen:
            not_yet = f"press space for step {state.step:,}"
            notes.append(_StepNote(f"the frozen frame has this step only: {not_yet}", main_clause=not_yet))
    if not shown.detailed:
        every = scene.frame.overhead.detail_distance
        often = f" (one step in {every:,} is)" if every is not None and every > 1 else ""
        why = kind_phrase(scene.frame.run) or f"the buckets of this step were not timed{often}"
        return _StepNotes("▲", "warn", [*notes, _StepNote(f"{why}: phases only", main_clause=why)])
    if shown.clock_free:
        sign, role = ("~", "warn")
        why = scene.frame.group.clock_reason or "clocks too inexact to say which rank came last"
        reason = f"{why}{inexact_clock(scene.frame)}"
        notes.append(_StepNote(f"{reason}: every lane begins at its own zero", main_clause=reason))
        notes.append(_StepNote("what the shortest collective leaves is called wait"))
    elif shown.last is not None and known(shown.skew_ms):
        digits = 1 if shown.skew_ms >= 10 else 2  # type: ignore[operator]  # known() has checked
        bound = f" ±{fixed(shown.bound_ms, digits)}" if known(shown.bound_ms) else ""
        clear = not known(shown.bound_ms) or shown.skew_ms > shown.bound_ms  # type: ignore[operator]  # known() has checked
        who = f"rank {shown.last}{on_hosts(scene.frame, (shown.last,))}"
        skew = f"{fixed(shown.skew_ms, digits)}{bound} ms"
        after, came_last = f"{skew} after the first", f"{who} came last"
        shorter = f"{who} last, {after}", came_last
        late = _StepNote(f"{came_last}, {after}", shorter, main_clause=came_last)
        stands_out = "no rank stands out"
        even = _StepNote(f"{stands_out}: all within {skew}", main_clause=stands_out)
        sign, role = ("▸", "warn") if clear else ("●", "good")
        notes.append(late if clear else even)
    else:
        notes.append(_StepNote("no rank came last"))
    if shown.micro_steps > 1:
        notes.append(_StepNote(f"{shown.micro_steps} backward passes, the earlier ones drawn as one"))
    if shown.kept_every > 1:
        notes.append(_StepNote(f"thinned recording: one step in {shown.kept_every:,} is kept"))
    return _StepNotes(sign, role, notes)  # type: ignore[arg-type]  # mypy widens the roles to str


def _draw_lanes(scene: Scene, shown: Timeline, state: TimelineState, plan: LanePlan, room: int) -> list[Line]:
    """Draw the lanes. If they do not fit, those of stragglers stay on top and the others scroll."""
    if not shown.lanes or room < 1:
        return []
    ranks, nearest = [lane.rank for lane in shown.lanes], _find_nearest(shown, state)
    blocks = [
        draw_lane(scene, shown, lane, plan, how=how, chosen=lane.rank == nearest)
        for lane, how in zip(
            shown.lanes, _choose_detail(shown.lanes, nearest, state.all_reduces, room), strict=True
        )
    ]
    if sum(map(len, blocks)) + len(blocks) - 1 <= room:
        blocks = [[*block, Line()] for block in blocks]
        return [line for block in blocks for line in block][:room]
    lead = (
        _count_leading(ranks)
        if room > MIN_FOR_LEGEND and nearest not in ranks[: _count_leading(ranks)]
        else 0
    )
    pinned = [line for block in blocks[:lead] for line in block]
    return pinned + _cut_window(blocks[lead:], ranks[lead:].index(nearest), room - len(pinned))


def _share_out(shown: Timeline, state: TimelineState, room: int, *, panels: bool) -> tuple[int, int]:
    """Lines of a bar of phases, and of the panels below the lanes, if there are any: few lanes have tall
    bars."""
    least, usual = (LEAST_BAND, BAND) if panels else (0, 0)
    n_lanes, most = len(shown.lanes), room - least
    nearest = _find_nearest(shown, state)
    details = _choose_detail(shown.lanes, nearest, state.all_reduces, most) if n_lanes else []
    lines = 0
    for lane, how in zip(shown.lanes, details, strict=True):
        n_reduces = len(lane.reduces)
        lines += 1 + {"all": n_reduces, "merged": min(1, n_reduces), "none": 0}[how]
    if lines + n_lanes - 1 <= most:  # there is a gap between two lanes
        lines += n_lanes - 1
    fitting = [tall for tall in range(2, TALLEST_LANE + 1) if lines + (tall - 1) * n_lanes <= room - usual]
    tall = max(fitting, default=1)
    return tall, max(least, room - lines - (tall - 1) * n_lanes) if panels else 0


def _count_leading(ranks: list[int]) -> int:
    """How many lanes come before those that are neighbours."""
    lead = len(ranks) - 1
    while lead > 0 and ranks[lead - 1] + 1 == ranks[lead]:
        lead -= 1
    return lead


def _cut_window(blocks: list[list[Line]], index: int, room: int) -> list[Line]:
    """Cut out the lines around the lane under the cursor, which is shown whole where it fits."""
    begin, total, chosen_lines = sum(map(len, blocks[:index])), sum(map(len, blocks)), len(blocks[index])
    before = (room - chosen_lines) // 2 if chosen_lines < room else 0
    top = max(0, min(begin - before, total - room))
    return [line for block in blocks for line in block][top : top + room]


def _choose_detail(lanes: tuple[Lane, ...], chosen: int, every: bool, room: int) -> list[str]:
    """How much to draw of each lane: everything if that fits or was asked for, else only of the chosen
    one."""
    if every or sum(1 + len(lane.reduces) for lane in lanes) <= room:
        return ["all"] * len(lanes)
    chosen_lines = next(1 + len(lane.reduces) for lane in lanes if lane.rank == chosen)
    unchosen = "merged" if chosen_lines + 2 * (len(lanes) - 1) <= room else "none"
    return ["all" if lane.rank == chosen else unchosen for lane in lanes]


def _draw_legend(scene: Scene, shown: Timeline, width: int) -> list[Line]:
    lines, plain = [draw_legend(scene.ascii_only, (), width)], scene.ascii_only
    drawn = {span.name for lane in shown.lanes for span in lane.spans}
    texts: list[tuple[tuple[str, str], Role, str]] = [
        ((part.glyph, part.plain), part.role, text)
        for part, text in ((EVALUATION, "evaluating"), (SAVING, "saving"))
        if part.name in drawn
    ]
    if shown.detailed:
        texts += [
            (READY, "dim", "bucket ready"),
            (WAIT, "wait", "waits for a rank"),
            (TRANSFER, "transfer", "transfers"),
            (QUEUED, "faint", "is queued"),
        ]
    if texts:
        parts = [Line(signs[plain], role).add(f" {text}", "dim") for signs, role, text in texts]
        lines.append(join_parts(parts, width))
    return lines


READY, QUEUED, WAIT, TRANSFER, UNSEEN = (("┊", "|"), ("╌", ":"), ("━", "."), ("▀", "~"), ("?", "?"))
"""Glyphs of an all-reduce: ready, queued behind others, waiting for a rank, in transfer, end not known. Their
bars hang below those of the phases and stay apart from each other; without colours the height tells them
apart."""

_SPAN_NAMES = {"wait": "waiting", "transfer": "moving"}
"""Names of spans in a frame, where they are not the name of the part."""

_PARTS: dict[str, StepPart] = {
    _SPAN_NAMES.get(part.name, part.name): part for part in (*PARTS, EVALUATION, SAVING)
}

LOW = 14
"""Lines below which a line tells of the step: its first clause, where the others have no room."""

LEAST_CELL = 0.25
"""Part of a cell from which a phase has one of its own, so that a short optimizer does not vanish."""

SIZE, TIME = 9, 8
"""Widths of the columns at the right: bytes, and a time."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """Widths of the parts of a lane's lines."""

    rank: int
    bucket: int
    axis: TimeAxis
    size: bool
    times: bool
    tall: int = 1
    """Lines of the bar of phases."""

    @classmethod
    def of(cls, shown: Timeline, state: TimelineState, width: int) -> LanePlan:
        """The widths for a page. Figures are left out where the axis needs the room, bytes first."""
        rank = max((len(str(lane.rank)) for lane in shown.lanes), default=1)
        bucket = max((len(_name_bucket(shown, place)) for place in range(len(shown.reduces))), default=2)
        label = rank + bucket + 4
        sized, timed = (shown.detailed and width >= least for least in (58, 38))
        room = max(1, width - label - (SIZE if sized else 0) - (2 * TIME + 1 if timed else 0))
        begin, share = state.begin * state.axis_ms, state.share * state.axis_ms
        return cls(rank, bucket, TimeAxis(begin, begin + share, room), sized, timed)

    @property
    def left(self) -> int:
        """Cells before the axis."""
        return self.rank + self.bucket + 4

    def head(self) -> Line:
        """The numbers of the axis and the titles of the figures."""
        line = Line(" " * self.left).extend(self.axis.draw_numbers()).pad(self.left + self.axis.width)
        line.add("size".rjust(SIZE) if self.size else "", "dim")
        return line.add("wait".rjust(TIME) + "transfer".rjust(TIME + 1) if self.times else "", "dim")

    def figures(self, line: Line, what: str, wait: str, move: str, role: Role = "text") -> Line:
        """The end of a line."""
        line.add(fit_text(what, SIZE, right=True) if self.size else "", "dim")
        if self.times:
            line.add(fit_text(wait, TIME, right=True), role).add(fit_text(move, TIME + 1, right=True))
        return line


def draw_lane(
    scene: Scene, shown: Timeline, lane: Lane, plan: LanePlan, *, how: str, chosen: bool
) -> list[Line]:
    """`how`: `all` reduces below the phases, or them `merged` into one line, or `none`."""
    lines = _draw_phases(scene, shown, lane, plan, chosen)
    count = len(lane.reduces)
    if how == "all":
        lines += [_draw_reduce(scene, shown, lane, index, plan) for index in range(count)]
    elif how == "merged" and count:
        lines.append(_draw_merged(scene, lane, plan))
    for line in lines:
        line.target = lane.rank
    return lines


def _draw_phases(scene: Scene, shown: Timeline, lane: Lane, plan: LanePlan, chosen: bool) -> list[Line]:
    late = lane.rank in scene.stragglers
    line = Line("▸" if chosen else " ", "accent", ground="cursor" if chosen else "")
    line.add(f"r{lane.rank}".ljust(plan.rank + 1), "warn" if late else "strong")
    line.add(*scene.sign(lane.rank, lane.rank + 1))
    line.add(" " * (plan.bucket + 1))
    track = Track(plan.axis)
    exposed = {"waiting": 0.0, "moving": 0.0}
    drawn: list[tuple[LaneSpan, StepPart]] = []
    least_ms = LEAST_CELL * (plan.axis.end_ms - plan.axis.begin_ms) / plan.axis.width
    # Other time first: a short optimizer keeps its cell.
    for span in sorted(lane.spans, key=lambda span: span.name != "other"):
        part = _PARTS[span.name]
        role = part.role if part in (EVALUATION, SAVING) else combine_roles(part.role, part.role)
        sign = part.plain if scene.ascii_only else part.glyph
        is_seen = part.name != "other" and span.end_ms - span.begin_ms >= least_ms
        track.put(span.begin_ms, span.end_ms, sign, role, least=1 if is_seen else 0)
        if is_seen or plan.axis.cell(span.begin_ms) < plan.axis.cell(span.end_ms):
            drawn.append((span, part))
        if span.name in exposed:
            exposed[span.name] += span.end_ms - span.begin_ms
    drawn.sort(key=lambda of_part: of_part[0].begin_ms)
    for (_, before), (span, part) in itertools.pairwise(drawn):
        if _needs_edge(before, part):
            track.mark(span.begin_ms, *_draw_edge(part, scene.ascii_only))
    bar = track.line()
    again = [Line(" " * plan.left, ground=line.ground).extend(bar) for _ in range(plan.tall - 1)]
    line.extend(bar)
    if not len(lane.reduces):
        return [plan.figures(line, "", "", ""), *again]
    sign = "~" if shown.clock_free else ""
    wait, transfer = (sign + fixed(exposed[name]) for name in ("waiting", "moving"))
    return [plan.figures(line, "exposed", wait, transfer, "strong"), *again]


def _needs_edge(before: StepPart, part: StepPart) -> bool:
    """Whether two neighbouring parts are as light as each other: hue alone does not tell them apart."""
    return before.name != part.name and {before, part} <= {*PARTS} and not is_parted(before.role, part.role)


def _draw_edge(part: StepPart, plain: bool) -> Piece:
    """The first cell of a part that is as light as the one before it: a thin line, or its letter."""
    return (part.plain if plain else EDGE), combine_roles("ink", part.role)


EDGE = "▏"
"""An eighth of a cell."""


def _draw_reduce(scene: Scene, shown: Timeline, lane: Lane, index: int, plan: LanePlan) -> Line:
    place = int(lane.reduces[index])
    line = Line(" " * (plan.rank + 3)).add(_name_bucket(shown, place).ljust(plan.bucket), "dim").add(" ")
    track = Track(plan.axis)
    _put_reduce(track, lane, index, scene.ascii_only)
    line.extend(track.line())
    start, arrival, end = (float(column[index]) for column in (lane.start_ms, lane.arrival_ms, lane.end_ms))
    sign = "~" if shown.clock_free else ""
    came_last = lane.last[index] == 1
    wait = "last" if came_last else sign + fixed(max(0.0, arrival - start))
    transfer = fixed(max(0.0, end - arrival)) if np.isfinite(end) else "–"
    role: Role = "warn" if came_last else "text"
    return plan.figures(line, size(shown.reduces[place].bytes), wait, sign + transfer, role)


def _draw_merged(scene: Scene, lane: Lane, plan: LanePlan) -> Line:
    """Draw all of a lane's all-reduces in one row. Transfer covers wait."""
    line = Line(" " * (plan.rank + 3)).add(f"{len(lane.reduces)}b".ljust(plan.bucket)[: plan.bucket], "dim")
    track = Track(plan.axis)
    plain = scene.ascii_only
    for index in range(len(lane.reduces)):
        track.put(float(lane.start_ms[index]), float(lane.arrival_ms[index]), WAIT[plain], "wait")
    for index in range(len(lane.reduces)):
        if np.isfinite(lane.end_ms[index]):
            track.put(float(lane.arrival_ms[index]), float(lane.end_ms[index]), TRANSFER[plain], "transfer")
    return plan.figures(line.add(" ").extend(track.line()), "", "", "")


def _put_reduce(track: Track, lane: Lane, index: int, plain: bool) -> None:
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


def _name_bucket(shown: Timeline, place: int) -> str:
    """`b3`, or `m1b3` of the second of several models."""
    reduce = shown.reduces[place]
    several = any(drawn.model for drawn in shown.reduces)
    return f"m{reduce.model}b{reduce.bucket}" if several else f"b{reduce.bucket}"


MOST_CHANGED = 0.11
"""Share of the cells of the page that another step may change before it is another picture."""


def _share_changed(before: Sequence[str], lines: Sequence[Line], width: int) -> float:
    """Which share of the cells of an earlier picture differ in these lines, its first ones; 1: that had
    fewer."""
    if len(before) < len(lines):
        return 1.0
    changed = sum(
        cell_before != cell
        for line_before, line in zip(before, lines, strict=False)
        for cell_before, cell in zip(line_before.ljust(width), str(line).ljust(width), strict=False)
    )
    return changed / max(1, width * len(before))


def _find_moment(scene: Scene) -> Moment:
    """The moment of the frame. While the run is as healthy and none else is slow, its steps are alike."""
    frame = scene.frame
    state = (run_state(frame), scene.stragglers, frame.group.incarnation)
    return Moment(frame.unix_s, state, frame.group.step_ms_p50)


def _draw_page(
    scene: Scene, state: TimelineState, width: int, height: int, *, with_panels: bool = True
) -> list[Line]:
    """What is known of the step, as many lanes as there is room for, and the panels below them."""
    assert scene.frame.timeline is not None
    shown = state.shown(scene.frame.timeline)
    lines = [_draw_head(scene, shown, state, width)]
    if height >= MIN_FOR_WORDS:
        said = _describe_step(scene, shown, state)
        sign, role = said.sign, said.role
        text = said.text_within(width - 2, scene, is_low=height < LOW)
        rows = wrap_lines(text, width - 2, 1 if height < LOW else 3)
        lines += [Line(f"{sign} " if i == 0 else "  ", role).add(row) for i, row in enumerate(rows)]
        where = _draw_host(scene, shown, state)
        if rows and lines[1].width + where.width + 2 <= width:
            lines[1].pad(width - where.width).extend(where)
    plan = LanePlan.of(shown, state, width)
    if height >= MIN_FOR_AXIS:
        lines.append(plan.head())
    foot = _draw_legend(scene, shown, width) if height >= MIN_FOR_LEGEND else []
    room = height - len(lines) - len(foot)
    tall, below = _share_out(shown, state, room, panels=has_panels(width, height))
    lines += _draw_lanes(scene, shown, state, replace(plan, tall=tall), room - below)
    lines += [Line() for _ in range(height - len(lines) - len(foot) - below)]
    if not below or not with_panels:
        return [*lines, *foot]
    return [*lines, *foot, *draw_step_panels(scene, shown, _find_nearest(shown, state), width, below)]


LANES_A_PAGE = 4
"""Lanes that PgUp and PgDn move by: a lane has several lines."""


class TimelineView(View):
    """One step, a lane per rank."""

    name = "timeline"
    answers = "one step: a lane per rank, each all-reduce: wait, transfer"
    number = "2"
    always_named = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The part of the step that is seen, and which step it is."""
        return (
            view_key("left", "Left", self.pan, "", "move left by a quarter of the width", -1),
            view_key("right", "Right", self.pan, "", "move right by a quarter of the width", 1),
            view_key("z", "z", self.zoom, "", "zoom in", 1),
            view_key("Z", "Z", self.zoom, "zoom", "zoom out", -1),
            view_key("0", "0", self.fit, "", "the whole step"),
            view_key("comma", ",", self.pick_step, "", "the previous step that is kept in full", -1),
            view_key("full_stop", ".", self.pick_step, "pick", "the next step; f goes to the newest", 1),
            view_key("f", "f", self.follow_newest, "", "follow the newest step again"),
            view_key("t", "t", self.toggle_all, "all", "the all-reduces of every lane, or of one"),
        )

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """What is known of the step, and as many lanes as there is room for."""
        shown, state, stall = scene.frame.timeline, scene.place.timeline, scene.frame.stall
        if stall is not None and stall.step is not None and state.step is None:
            return Page(draw_stuck_step(scene, stall, width, height))
        if shown is None:
            if scene.frame.group.step is None:
                begin = draw_before_first_step(scene, width, height - 1)
                return Page([draw_rule(width, "timeline"), *begin])
            text = "The step was requested; it comes with the next frame."
            if scene.frozen:
                text = "The frozen frame has no step in full; press space to continue with the newest one."
            words = (Line("  ").add(row, "dim") for row in wrap_lines(text, width - 4))
            return Page([draw_rule(width, "timeline"), Line(), *words])
        state = state.hold(shown, scene.frame.group.incarnation)
        is_live = scene.frame.playback is None and stall is None
        if state.step is not None or not is_live:
            state = replace(state, followed=None)
        else:

            def is_like_shown(taken: TimelineState) -> bool:
                taken = taken.settle_axis(shown.span_ms)
                # The lanes alone first: most steps differ in these, and panels take much longer.
                pictures = (
                    _draw_page(scene, taken, width, height, with_panels=with_panels)
                    for with_panels in (False, True)
                )
                return all(_share_changed(state.drawn, lines, width) <= MOST_CHANGED for lines in pictures)

            state = state.follow(shown, _find_moment(scene), is_like_shown)
        state = state.settle_axis(state.shown(shown).span_ms)
        lines = _draw_page(scene, state, width, height)
        state = replace(state, drawn=tuple(map(str, lines)))
        return Page(lines, PageLayout(timeline=state))

    def requested_detail(self, place: Place) -> str:
        """The step, and the lanes about the cursor."""
        return place.timeline.request()

    def on_open(self, screen: Screen) -> None:
        """The cursor goes along from view to view."""
        screen.place.timeline.rank = screen.place.rank

    def on_close(self, place: Place) -> None:
        """The cursor goes along, unless a rank is followed. The next picture has the step of its moment."""
        place.timeline.followed = None
        if not place.follow and place.rank != place.timeline.rank:
            place.rank, place.pointed = place.timeline.rank, True

    def step_back(self, place: Place) -> bool:
        """Follow the newest step again."""
        return place.timeline.release()

    def move(self, screen: Screen, lines: int) -> None:
        """Move the cursor by lanes."""
        world = len(screen.shown.ranks.state) if screen.shown is not None else 0
        screen.place.timeline.move(lines, world)
        screen.repaint()

    def move_pages(self, screen: Screen, pages: int) -> None:
        """Move the cursor by some lanes."""
        self.move(screen, pages * LANES_A_PAGE)

    def point_at(self, place: Place, target: int) -> None:
        """A click on a lane."""
        place.timeline.rank = target

    def open_chosen(self, screen: Screen) -> None:
        """Open the rank of the lane."""
        screen.open_rank(screen.place.timeline.rank)

    def rank_under_cursor(self, place: Place) -> int:
        """The rank of the lane."""
        return place.timeline.rank

    def zoom(self, screen: Screen, by: int) -> None:
        """Zoom in or out."""
        screen.place.timeline.zoom(by)
        screen.repaint()

    def fit(self, screen: Screen) -> None:
        """The whole step."""
        screen.place.timeline.fit()
        screen.repaint()

    def pan(self, screen: Screen, by: int) -> None:
        """To the right, or to the left."""
        screen.place.timeline.pan(by)
        screen.repaint()

    def pick_step(self, screen: Screen, by: int) -> None:
        """Some steps forward or back among those kept in full."""
        if screen.shown is not None:
            stuck = screen.shown.stall is not None and screen.shown.stall.step is not None
            screen.place.timeline.pick(by, screen.shown.timeline, stuck=stuck)
            screen.repaint()

    def follow_newest(self, screen: Screen) -> None:
        """Follow the newest step again."""
        screen.place.timeline.release()
        screen.repaint()

    def toggle_all(self, screen: Screen) -> None:
        """The all-reduces of every lane, or of one."""
        screen.place.timeline.toggle_all()
        screen.repaint()
