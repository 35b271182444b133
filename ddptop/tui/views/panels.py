"""Panels of a wide screen: a title in a rule above each, a thin border between two beside each other.

A page is made of bands below each other, a band of columns beside each other, a column of panels below each
other. A box closes the panels of a page at its sides and its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ddptop.render.line import Line, draw_rule
from ddptop.render.text import text_width

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

INSET = 1
"""Cells at each side of a page in a box."""

PANELS_FROM = 120 - 2 * INSET
"""Cells of a page from which there is room for panels: of a page in a box on a screen of 120."""

HIGH_FROM = 35
"""Lines of a page from which a list shares it with panels, without the last line of the box."""

BORDER = 2
"""Cells at the left of every column but the first: the border and a blank."""

RULE_LEAD = 2
"""Cells of a rule before the title in it."""

_JOINTS = {(True, True): "┼", (True, False): "┤", (False, True): "├", (False, False): "│"}
"""The border where a rule meets it from the left, and from the right."""

_AT_TOP = {"┼": "┬", "├": "┌"}
"""How these borders begin in the first line of a band."""

_RULES = "─┌├┬┴┼"

_BOTTOM = {"│": "┴", "┤": "┴", "├": "┴", "┼": "┴"}
"""The lower side of the box where a border of the last line meets it."""


def has_panels(width: int, height: int) -> bool:
    """Whether a page of this size has panels beside what it lists."""
    return width >= PANELS_FROM and height >= HIGH_FROM


@dataclass(frozen=True, slots=True)
class Panel:
    """A title in a rule, and lines below it."""

    title: str | None
    """None: there is no rule."""
    lines: Sequence[Line]
    height: int | None = None
    """Its lines with the rule; None: all that are left of its column."""
    figure: str = ""
    """At the right end of the rule."""
    key: str = ""
    """Opens the view that shows the same at large."""
    opens: object = None
    """What a click on the rule does."""


class PanelColumn(NamedTuple):
    """Panels below each other."""

    width: int
    """Cells, with the border at its left."""
    panels: Sequence[Panel]


def draw_band(columns: Sequence[PanelColumn], height: int, above: Sequence[int] = ()) -> list[Line]:
    """`height` lines of columns beside each other; `above`: the borders of the band above, which end here.

    A line keeps its target in the first column, for clicks in that column.
    """
    first, *others = columns
    lines, rules = [], []
    for line, is_rule in _draw_column(first, first.width, height):
        whole = Line(ground=line.ground).extend(line.cut(first.width))  # the panel's line may be kept
        whole.target = line.target
        lines.append(whole)
        rules.append(is_rule)
    begin = first.width
    for column in others:
        for row, (part, is_rule) in enumerate(_draw_column(column, column.width - 1, height)):
            joint = _JOINTS[rules[row], is_rule]
            joint = _AT_TOP.get(joint, joint) if row == 0 else joint
            line = lines[row].pad(begin).on_own_ground().add(joint, "rule").add("" if is_rule else " ")
            line.extend(part.cut(begin + column.width - line.width)).pad(begin + column.width)
            line.spot(begin, begin + column.width, None)  # not a click on what the first column lists
            rules[row] = is_rule
        begin += column.width
    for border in above:
        _end_border(lines[0], border)
    return lines


def draw_chart_panels(lines: Sequence[Line], titles: Collection[int], border: int, width: int) -> list[Line]:
    """Two charts beside each other, once or several times, as panels: a border in a cell that is blank in all
    of these lines, and the lines that are titles as words in a rule."""
    drawn = []
    for row, line in enumerate(lines):
        left, right = _split_line(line, border)
        if row in titles:
            left, right = _set_in_rule(left, border), _set_in_rule(right, width - border - 1)
        joint = _JOINTS[_begins_with_rule(left), _begins_with_rule(right)]
        joint = _AT_TOP.get(joint, joint) if row == min(titles) else joint
        drawn.append(left.pad(border).add(joint, "rule").extend(right))
    return drawn


def _split_line(line: Line, cell: int) -> tuple[Line, Line]:
    """What is before a cell and what is after it."""
    left, right, begin = Line(), Line(), 0
    for text, role in line.pieces:
        end = begin + len(text)
        if end <= cell:
            left.add(text, role)
        elif begin > cell:
            right.add(text, role)
        else:
            left.add(text[: cell - begin], role)
            right.add(text[cell + 1 - begin :], role)
        begin = end
    for first, end, action in line.spots:
        side, moved = (left, 0) if first < cell else (right, cell + 1)
        side.spot(first - moved, end - moved, action)
    return left, right


def _set_in_rule(words: Line, width: int) -> Line:
    """The words with a rule before and after them; as they are where there is no room for one."""
    text = str(words)
    words, _ = _split_line(words, len(text.rstrip()))
    lead = "── " if words.width + 5 <= width else "─ " if words.width + 2 <= width else ""
    line = Line(lead, "rule").extend(words).add(" "[: width - words.width - len(lead)])
    return line.add("─" * (width - line.width), "rule") if lead else line


def find_borders(columns: Sequence[PanelColumn]) -> list[int]:
    """The cells of the borders between columns."""
    return [sum(column.width for column in columns[:index]) for index in range(1, len(columns))]


def _draw_column(column: PanelColumn, width: int, height: int) -> list[tuple[Line, bool]]:
    """The lines of a column, and of each whether it is a rule."""
    drawn: list[tuple[Line, bool]] = []
    for panel in column.panels:
        left = height - len(drawn)
        room = left if panel.height is None else min(max(0, panel.height), left)
        lines = [] if panel.title is None else [(_draw_title(panel, panel.title, width), True)]
        lines += [(line, False) for line in panel.lines]
        drawn += [*lines, *((Line(), False) for _ in range(room - len(lines)))][:room]
    return drawn + [(Line(), False) for _ in range(height - len(drawn))]


def _draw_title(panel: Panel, title: str, width: int) -> Line:
    key = f" {panel.key} " if panel.key else ""
    line = Line(key, "accent").extend(draw_rule(width - len(key), title, panel.figure))
    return line if panel.opens is None else line.spot(0, width, panel.opens)


def _end_border(line: Line, cell: int) -> None:
    """End the border of the band above in a rule, unless words are there."""
    begin = 0
    for index, (text, role) in enumerate(line.pieces):
        place = cell - begin
        if 0 <= place < len(text) and role == "rule" and text[place] in "─┬":
            joint = "┼" if text[place] == "┬" else "┴"
            line.pieces[index] = (text[:place] + joint + text[place + 1 :], role)
            return
        begin += len(text)


def draw_box(lines: Sequence[Line], width: int, height: int) -> list[Line]:
    """`height` lines of `width` cells: a page of two cells and a line less, in a box that begins with its
    first rule. What is above that, such as the verdict, stays outside. A page without a rule has no box."""
    first = next((row for row, line in enumerate(lines) if _begins_with_rule(line)), None)
    if first is None:
        return list(lines)
    inside = width - 2 * INSET
    boxed = [*lines, *(Line() for _ in range(height - 1 - len(lines)))][: height - 1]
    if not str(boxed[-1]).strip("─ "):
        boxed[-1] = Line()  # a rule without words, right above the lower side
    ends = "".join(_BOTTOM.get(letter, "─") for letter in _find_borders(boxed[-1], inside))
    for row in range(first, len(boxed)):
        line = boxed[row]
        left = ("┌" if row == first else "├") if _begins_with_rule(line) else "│"
        right = "┐" if row == first else "┤" if _ends_with_rule(line, inside) else "│"
        whole = Line(ground=line.ground).extend(line.cut(inside)).pad(inside).on_own_ground()
        boxed[row] = Line(left, "rule").extend(whole).add(right, "rule")  # the page's own line may be kept
        boxed[row].target = line.target
    return [*boxed, Line(f"└{ends}┘", "rule")]


def _find_borders(line: Line, width: int) -> str:
    """The letters of a line that are borders or rules; blanks for all others."""
    return "".join(text if role == "rule" else " " * text_width(text) for text, role in line.pieces).ljust(
        width
    )


def _begins_with_rule(line: Line) -> bool:
    """Whether it is the title of a panel, or a rule: a key may be before it."""
    roles = [role for _, role in line.pieces[:2]]
    begin = 1 if roles[:1] == ["accent"] else 0
    return roles[begin : begin + 1] == ["rule"] and line.pieces[begin][0][0] in _RULES


def _ends_with_rule(line: Line, width: int) -> bool:
    """Whether a rule reaches its end. The axis of a chart, which begins in a corner, is none."""
    if line.width != width or line.pieces[-1][1] != "rule" or line.pieces[-1][0][-1] not in _RULES:
        return False
    text = str(line)
    return "└" not in text or text.rfind("└") < max(map(text.rfind, "│├┌┬┼"))
