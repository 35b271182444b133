"""The breakdown of a rank's step, as a stacked bar; all ranks on one scale."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.figures import some_shown_ms
from ddptop.frames.numbers import UNKNOWN, fixed, signed
from ddptop.frames.phrases import MAX_LISTED_RANKS, ranks_phrase
from ddptop.render.curves import EIGHTHS, LOWER_BLOCKS
from ddptop.render.line import Line, Role, combine_roles, join_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Sequence

    from ddptop.frames.columns import Column, Mask
    from ddptop.frames.figures import Ranks
    from ddptop.protocol.vocabulary import OwnPlace
    from ddptop.render.line import Piece


@dataclass(frozen=True, slots=True)
class StepPart:
    """One kind of time in a step, in the order in which it comes."""

    name: str
    glyph: str
    plain: str
    """The glyph in ASCII."""
    role: Role


PARTS = (
    StepPart("data", "▪", "d", "data"),
    StepPart("forward", "█", "F", "forward"),
    StepPart("backward", "▓", "B", "backward"),
    StepPart("wait", "▒", "w", "wait"),
    StepPart("transfer", "≈", "t", "transfer"),
    StepPart("optimizer", "▄", "o", "optimizer"),
    StepPart("other", "░", "x", "other"),
    StepPart("sync", "≡", "s", "sync"),
)
"""`wait` is waiting for others in DDP's own communication; `sync` is time in collectives of the script's own,
in which waiting and moving are not told apart. It is shown only where there is any."""

EVALUATION, SAVING = StepPart("evaluation", "◇", "e", "accent"), StepPart("saving", "▤", "S", "accent")
"""What a rank does between steps, marked where its heartbeats told of it: in no breakdown of a usual step."""

ALL_PARTS = frozenset(part.name for part in PARTS) | {"unknown"}

SHORT = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
"""Titles of columns, where they are not the part's name."""

PHASES = ("data", "forward", "backward", "optimizer", "other")

_UNKNOWN = StepPart("unknown", "?", "?", "faint")
"""Time of the step that no known phase holds, while some phase is not known."""


_ROWS = {name: row for row, part in enumerate(PARTS) for name in (part.name, SHORT.get(part.name, part.name))}
"""The row of a part in a breakdown, by its name and its column's title."""


class Breakdown:
    """The parts of every rank's step, in ms; one row per part, `_UNKNOWN` last. They add up to the step."""

    def __init__(self, ranks: Ranks, always_last: Sequence[int] = ()) -> None:
        """`always_last`: ranks that the others wait for in most steps."""
        self.ms = rank_parts(lambda name: np.asarray(getattr(ranks, f"{name}_ms")), always_last)
        ends = np.nansum(self.ms, axis=0)
        self.known = ends > 0
        # Before a first complete step there is no step time: then the parts themselves give the width.
        steps = np.where(np.isnan(ranks.step_ms), ends, ranks.step_ms)
        self.full_ms = float(steps.max(initial=0.0))
        """ms of the whole width: the slowest rank's step."""
        self._edges = np.vstack([np.zeros_like(ends), np.cumsum(np.nan_to_num(self.ms), axis=0)])

    def column(self, title: str) -> Column:
        """(ranks,) ms of one part, by its name or its column's title; NaN: not known."""
        return np.asarray(self.ms[_ROWS[title]])

    @property
    def has_sync(self) -> bool:
        """Whether any rank was in a collective of the script's own."""
        return some_shown_ms(self.column("sync"))

    def mean(self, title: str) -> float | None:
        """The mean of one part over the ranks that are known, in ms; None where none is."""
        values = self.column(title)
        finite = values[np.isfinite(values)]
        return float(finite.mean()) if len(finite) else None

    def bar(self, rank: int, width: int, ascii_only: bool) -> Line:
        """The bar of one rank in signs, for text without colours.

        Edges are rounded, not lengths, so that equal ranks give equal bars.
        """
        line = Line()
        if not self.known[rank]:
            return line.add("–", "faint")
        edges = (
            np.minimum(np.rint(self._edges[:, rank] * self._cells_per_ms(width)), width).astype(int).tolist()
        )
        for part, begin, end in zip((*PARTS, _UNKNOWN), edges, edges[1:], strict=False):
            line.add((part.plain if ascii_only else part.glyph) * (end - begin), part.role)
        return line

    def solid_bar(
        self,
        rank: int,
        width: int,
        ascii_only: bool,
        *,
        labelled: Collection[str] = (),
        waits_for: str = "",
    ) -> Line:
        """The bar of one rank in solid colours, its edges exact to an eighth of a cell.

        `labelled`: parts into which their names and ms are written where they have room for it; `waits_for`:
        whom the rank waits for.
        """
        if not self.known[rank]:
            return Line("–", "faint")
        parts = (*PARTS, _UNKNOWN)
        texts = [
            _part_labels(part, float(self.ms[index, rank]), waits_for) if part.name in labelled else ()
            for index, part in enumerate(parts)
        ]
        edges = np.minimum(self._edges[:, rank] * self._cells_per_ms(width), width)
        return draw_parts_bar(edges, parts, texts, ascii_only)

    def _cells_per_ms(self, width: int) -> float:
        return width / self.full_ms if self.full_ms > 0 else 0.0


_LEFT_BLOCKS = " ▏▎▍▌▋▊▉█"


def _part_cells(eighths: Sequence[int], parts: Sequence[StepPart], ascii_only: bool) -> list[Piece]:
    """Sign and role of each cell of a bar whose parts have so many eighths of a cell.

    A cell has two colours: of three parts in it the smallest gives way.
    """
    cells: list[Piece] = []
    inside: list[tuple[int, StepPart]] = []
    room = EIGHTHS
    for count, part in zip(eighths, parts, strict=True):
        left = count
        while left > 0:
            if not inside and left >= EIGHTHS:
                cells += [_two_parts([(EIGHTHS, part)], ascii_only)] * (left // EIGHTHS)
                left %= EIGHTHS
                continue
            taken = min(left, room)
            inside.append((taken, part))
            left, room = left - taken, room - taken
            if not room:
                cells.append(_two_parts(inside, ascii_only))
                inside, room = [], EIGHTHS
    if inside:
        cells.append(_two_parts([*inside, (room, None)], ascii_only))
    return cells


def _two_parts(inside: Sequence[tuple[int, StepPart | None]], ascii_only: bool) -> Piece:
    """The cell of some parts from left to right, which together have all of its eighths; None: the ground."""
    # The end of the bar is kept: its length is the step.
    kept = sorted(sorted(range(len(inside)), key=lambda at: (inside[at][1] is not None, -inside[at][0]))[:2])
    left = inside[kept[0]][1]
    assert left is not None, "the ground is at the end"
    if len(kept) == 1:
        return (left.plain if ascii_only else left.glyph), combine_roles(left.role, left.role)
    right = inside[kept[1]][1]
    if any(part is not None and _SIGNS.get(part.role, part.glyph) != part.glyph for part in (left, right)):
        # Without colours a cell in two of them would have the sign of another part of this colour.
        part = max(inside, key=lambda taken: (taken[1] is not None, taken[0]))[1] or left
        return (part.plain if ascii_only else part.glyph), combine_roles(part.role, part.role)
    share = sum(count for count, _ in inside[: kept[1]])
    return _LEFT_BLOCKS[share], left.role if right is None else combine_roles(left.role, right.role)


def _part_labels(part: StepPart, ms: float, waits_for: str) -> Sequence[str]:
    """What is written into a part of a bar, the longest first."""
    figure = fixed(ms)
    if part.name == "wait":
        texts = [f"waits {figure} for {waits_for}"] if waits_for else []
        return [*texts, f"wait {figure}", figure]
    return [f"{part.name} {figure}", f"{SHORT.get(part.name, part.name)} {figure}", figure]


LIGHT_ROLES: frozenset[str] = frozenset({"forward", "wait", "optimizer", "sync", "torch"})
DARK_ROLES: frozenset[str] = frozenset({"data", "backward", "transfer", "other"})
"""In each theme every colour of the one set differs from every one of the other by 3:1 in lightness. There is
no room for a third level between the ground and the lightest colour."""


def is_parted(one: Role, other: Role) -> bool:
    """Whether two neighbouring parts differ in lightness."""
    return (one in LIGHT_ROLES and other in DARK_ROLES) or (one in DARK_ROLES and other in LIGHT_ROLES)


def draw_parts_bar(
    edges: Column, parts: Sequence[StepPart], texts: Sequence[Sequence[str]] | None, ascii_only: bool
) -> Line:
    """A bar in solid colours. `edges`: (parts + 1,) in cells, exact to an eighth of one; `texts`: for each
    part, of which the first that fits is written into it. A part that is as light as the one before it has
    its letter at least: hue alone does not part them. None: a further line of the bar, without letters."""
    eighths = np.rint(edges * (1 if ascii_only else EIGHTHS)).astype(int)
    eighths *= EIGHTHS if ascii_only else 1
    sizes = np.diff(eighths).tolist()
    cells = _part_cells(sizes, parts, ascii_only)
    if texts is None:
        return join_cells(cells)
    before: StepPart | None = None
    for index, part in enumerate(parts):
        first, stop = -(-int(eighths[index]) // EIGHTHS), int(eighths[index + 1]) // EIGHTHS
        text = next((text for text in texts[index] if len(text) <= stop - first - 2), "")
        begin = first + (stop - first - len(text)) // 2
        is_alike = before is not None and not is_parted(before.role, part.role)
        if not text and is_alike and stop > first and not ascii_only:
            begin, text = first, part.plain
        before = part if sizes[index] else before
        cells[begin : begin + len(text)] = [(letter, combine_roles("ink", part.role)) for letter in text]
    return join_cells(cells)


def draw_share_bar(percent: float, looks: tuple[Piece, Piece], width: int, ascii_only: bool) -> Line:
    """A bar of two looks, the first of them `percent` of it, exact to an eighth of a cell."""
    first, second = (StepPart("", sign, sign, role) for sign, role in looks)
    unit = EIGHTHS if ascii_only else 1
    eighths = round(percent / 100 * width * EIGHTHS / unit) * unit
    return join_cells(_part_cells([eighths, width * EIGHTHS - eighths], (first, second), ascii_only))


_SIGNS: dict[str, str] = {
    **{part.role: part.glyph for part in PARTS},
    "area": "█",
    "work": "█",
    "edge": "█",
    "torch": "·",
}


def find_plain_letters(text: str, role: Role) -> str:
    """What a piece is where there are no colours: a cell in two of them has the sign of the larger part. A
    block would leave the other part blank, as a dark stripe."""
    front, _, behind = role.partition("/")
    if not {front, behind} <= _SIGNS.keys():
        return text
    if front == behind:  # blank in lines of a bar without its labels
        return text.replace(" ", _SIGNS[front])
    return "".join(
        letter
        if (share := max(_LEFT_BLOCKS.find(letter), LOWER_BLOCKS.find(letter))) <= 0
        else _SIGNS[front if 2 * share > EIGHTHS else behind]
        for letter in text
    )


def join_cells(cells: Sequence[Piece]) -> Line:
    """Cells of one letter each as a line of as few pieces as there are changes of role."""
    runs = itertools.groupby(cells, key=itemgetter(1))
    return Line().signs(("".join(sign for sign, _ in run), role) for role, run in runs)


OWN_PHASES = ("own_data", "own_forward", "own_backward", "own_optimizer")
BETWEEN: tuple[OwnPlace, ...] = ("before_forward", "before_backward", "before_optimizer", "after_optimizer")
_WAIT, _TRANSFER, _OTHER, _SYNC = (
    next(index for index, part in enumerate(PARTS) if part.name == name)
    for name in ("wait", "transfer", "other", "sync")
)


def rank_parts(column: Callable[[str], Column], always_last: Sequence[int] = ()) -> Column:
    """(parts and unknown, ranks) ms of each part of the step, from the columns of `Ranks` without `_ms`.

    Of ranks whose own time is known, from every step (`own_parts`); of others by `step_parts`.
    """
    step, exposed, waited = column("step"), column("exposed_comm"), column("exposed_wait")
    phases = np.vstack([column(name) for name in PHASES])
    buffers_moved = np.nan_to_num(column("buffers") - column("buffers_wait"))
    own_ms = own_parts(
        step,
        np.vstack([column(name) for name in OWN_PHASES]),
        np.vstack([column(name) for name in BETWEEN]),
        np.where(is_untimed := np.isnan(exposed), 0.0, exposed - waited) + buffers_moved,
        np.nan_to_num(column("waited")),
        np.isin(np.arange(len(step)), always_last),
        is_untimed | (exposed == 0) | (len(step) == 1),  # one rank has nobody to wait for
    )
    is_known = np.isfinite(own_ms).all(axis=0)
    # Without a DDP model both are in the script's own collectives.
    own_ms[[[_WAIT], [_TRANSFER]], is_known & is_untimed] = np.nan
    if is_known.all():
        return own_ms
    return np.asarray(np.where(is_known, own_ms, step_parts(step, phases, exposed, waited)))


def own_parts(
    step: Column,
    work: Column,
    between: Column,
    transfer: Column,
    sync: Column,
    always_last: Mask,
    without_ddp: Mask | bool = False,
) -> Column:
    """(parts and unknown, ranks) ms: own time by phase + transfer + sync + wait = step; NaN where one is
    unknown.

    `work`: (OWN_PHASES, ranks), without any waiting; `between`: (BETWEEN, ranks), which adds up to other;
    `transfer`: (ranks,) exposed transfer, broadcasts of buffers included; `sync`: (ranks,) in the script's
    own collectives. What a step has besides these was waited in DDP's communication; of a rank that is
    `always_last` it counts as transfer, of one `without_ddp` as sync, or as other if it has none. All are
    medians: where they alone are longer than the step, they are scaled to it.
    """
    data, forward, backward, optimizer = work
    rows = [data, forward, backward, np.zeros_like(step), transfer, optimizer, between.sum(axis=0), sync]
    parts: Column = np.maximum(0.0, np.vstack([*rows, np.zeros_like(step)]))
    whole = parts.sum(axis=0)
    # Medians of parts need not add up to the median of the step.
    parts *= np.where(whole > step, step / np.where(whole > step, whole, 1.0), 1.0)
    other_ms = np.maximum(0.0, step - parts.sum(axis=0))
    # A rank that comes last waits for nobody: what is left over is communication itself.
    sink = np.where(without_ddp, np.where(sync > 0, _SYNC, _OTHER), np.where(always_last, _TRANSFER, _WAIT))
    parts[sink, np.arange(len(step))] += other_ms
    return parts


def step_parts(step: Column, phases: Column, exposed: Column, waited: Column) -> Column:
    """(parts and unknown, ranks) ms, NaN unknown: data + forward + backward compute + exposed wait + exposed
    transfer + optimizer + other = step.

    `step`, `exposed` communication and what of it was `waited`: (ranks,); `phases`: (PHASES, ranks), with
    all of backward. Where exposed communication is unknown, backward stays whole. All are medians, which need
    not add up to the median step: as in a single step, other is what the rest leaves of it, and where the
    rest alone is longer, all of it is scaled to the step. Of a rank with an unknown phase the remainder is
    unknown.
    """
    data, forward, backward, optimizer, other_ms = phases
    rows = np.vstack([data, forward, *_backward_parts(backward, exposed, waited), optimizer, other_ms])
    rows = np.where(rows < 0, 0.0, rows)
    whole = np.isfinite(step) & np.isfinite(phases).all(axis=0)
    known_part_ms = np.nansum(rows[:-1], axis=0)
    longer = whole & (known_part_ms > step)
    rows[:-1] *= np.where(longer, step / np.where(longer, known_part_ms, 1.0), 1.0)
    rows[-1] = np.where(whole, np.maximum(0.0, step - np.nansum(rows[:-1], axis=0)), rows[-1])
    accounted_ms = np.nansum(rows, axis=0)
    unknown = np.where(
        np.isfinite(step) & ~whole & (accounted_ms > 0), np.maximum(0.0, step - accounted_ms), 0.0
    )
    return np.vstack([rows, np.zeros_like(step), unknown])  # where the script synchronises is not known


def _backward_parts(backward: Column, exposed: Column, waited: Column) -> tuple[Column, Column, Column]:
    """Backward compute, exposed wait and exposed transfer: the last two NaN where they are not known."""
    unknown = np.isnan(exposed) | np.isnan(waited)
    bare = np.where(unknown, 0.0, np.clip(exposed, 0.0, backward))
    # Two estimates of one step may contradict each other; a part is never longer than the whole.
    wait = np.clip(waited, 0.0, bare)
    return backward - bare, np.where(unknown, np.nan, wait), np.where(unknown, np.nan, bare - wait)


PAIR_NAME, PAIR_NUMBER, PAIR_MIN_BAR = 20, 8, 10
"""Cells of a part's name, of a number beside it, and of both bars together from which they are drawn."""


def draw_pairs(
    pairs: Sequence[tuple[StepPart, float, float]],
    titles: tuple[str, str, str],
    width: int,
    ascii_only: bool,
) -> list[Line]:
    """A line for each part with its two times in ms, below their titles: `titles` names the first times, the
    second ones, and what both are."""
    sides = np.nan_to_num([(usual_ms, rank_ms) for _, rank_ms, usual_ms in pairs])
    left_ms, right_ms = sides.max(axis=0, initial=0.0).tolist()
    scale = (left_ms, right_ms)
    lines = [_draw_pairs_head(titles, width, scale)]
    return lines + [_draw_pair(*pair, scale, width, ascii_only) for pair in pairs]


def _draw_pairs_head(titles: tuple[str, str, str], width: int, scale: tuple[float, float]) -> Line:
    """Titles of the lines of `_draw_pair`: of the numbers and, where they fit, of the bars."""
    who, compared_with, what = titles
    numbers = "".join(f"{title:>{PAIR_NUMBER}}" for title in (who, compared_with, "more"))
    line = Line(f"{what:<{PAIR_NAME + 2}}{numbers}", "dim")
    left_cells, right_cells = _pair_room(width - line.width, scale)
    if left_cells < len(compared_with) or right_cells < len(who):
        return line.cut(width)
    return line.add(f"  {compared_with:>{left_cells}}", "dim").add("┃", "rule").add(who, "dim")


def _pair_room(width: int, scale: tuple[float, float]) -> tuple[int, int]:
    """Cells left and right of the axis that both bars have in a room of `width`; zeros: no bars."""
    room, whole = width - 3, sum(scale)
    if room < PAIR_MIN_BAR or not whole > 0:
        return 0, 0
    # In eighths of the room: between two pictures the axis would else move by a cell, and all bars with it.
    left_cells = round(room * min(max(round(8 * scale[0] / whole), 1), 7) / 8)
    return left_cells, room - left_cells


def _draw_pair(
    part: StepPart, rank_ms: float, usual_ms: float, scale: tuple[float, float], width: int, ascii_only: bool
) -> Line:
    """Draw one part of a rank's step and the usual one: numbers, and two bars back to back.

    `scale`: the longest bar of the others and of the rank, in ms; they share the room in about this ratio.
    """
    sign, difference_ms = part.plain if ascii_only else part.glyph, rank_ms - usual_ms
    solid = combine_roles(part.role, part.role)
    line = Line(sign, solid).add(" ").add(f"{part.name:<{PAIR_NAME}}")
    line.add(f"{fixed(rank_ms):>{PAIR_NUMBER}}", "strong").add(f"{fixed(usual_ms):>{PAIR_NUMBER}}", "dim")
    line.add(f"{signed(difference_ms) if math.isfinite(difference_ms) else UNKNOWN:>{PAIR_NUMBER}}", "text")
    left_cells, right_cells = _pair_room(width - line.width, scale)
    if not left_cells + right_cells:
        return line.cut(width)
    cell_ms = max(scale[0] / left_cells, scale[1] / right_cells)
    usual_cells, rank_cells = (round(ms / cell_ms) if math.isfinite(ms) else 0 for ms in (usual_ms, rank_ms))
    line.add(" " * (2 + max(0, left_cells - usual_cells))).add(
        sign * min(usual_cells, left_cells), solid
    ).add("┃", "rule")
    return line.add(sign * min(rank_cells, right_cells), solid)


def draw_legend(
    ascii_only: bool, waited_for: Sequence[int], width: int, *, absent: Container[str] = ("sync",)
) -> Line:
    """Sign and name of every part on one line; the ranks waited for are left out first. `absent`: parts
    that no bar has."""
    shown = [part for part in PARTS if part.name not in absent]
    whom = ranks_phrase(list(waited_for), 0 if len(waited_for) <= MAX_LISTED_RANKS else len(waited_for))
    named = {"wait": f"wait for {whom}"} if waited_for else {}
    for names, gap in ((named, 2), (named, 1), ({}, 2), ({}, 1), (SHORT, 1)):
        parts = [draw_entry(part, names.get(part.name, part.name), ascii_only) for part in shown]
        if sum(part.width + gap for part in parts) - gap <= width:
            break
    return join_parts(parts, width, gap)


def draw_entry(part: StepPart, name: str, ascii_only: bool) -> Line:
    """Sign and name of a part, for a legend."""
    return Line(part.plain if ascii_only else part.glyph, combine_roles(part.role, part.role)).add(
        f" {name}", "dim"
    )
