"""The bill of the run: where the time of all ranks went, and what the run would take without its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.bill import (
    CLASSES,
    MOST_LOSSES,
    NOT_KNOWN,
    NOTHING_YET,
    bill_of,
    estimate_phrase,
    headline,
    ledger_place_phrase,
)
from ddptop.frames.numbers import counted
from ddptop.frames.training_kind import kind_phrase
from ddptop.render.bill import draw_bill, draw_classes, draw_losses, draw_rank_bills, draw_waited_for
from ddptop.render.line import Line, draw_rule
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.sampled_stack import tree_lines
from ddptop.render.text import wrap_lines
from ddptop.tui.keys import SEARCH_KEY, ScreenKey
from ddptop.tui.scene import Page, PageLayout, Scene
from ddptop.tui.view import View
from ddptop.tui.views.charts import draw_some_charts
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, find_borders, has_panels
from ddptop.tui.views.text_page import count_below, draw_text

if TYPE_CHECKING:
    from ddptop.frames.bill import Bill
    from ddptop.frames.frame import Frame
    from ddptop.frames.ledger import Ledger

LEAST_TITLE_WIDTH = 45
"""Cells from which the title has room beside the number of lines below."""


class BillView(View):
    """Sums over the whole run, not medians of its newest steps."""

    name = "bill"
    answers = "where the time of all ranks went, and what was lost"
    number = "9"
    always_named = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The key that searches the text."""
        return (SEARCH_KEY,)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Bar and tables under each other, scrolled as one text."""
        if has_panels(width, height):
            body = _draw_panels(scene, width, height)
            lines, scroll = draw_text(scene, body, height)
            return Page(lines, PageLayout(scroll))
        body = _draw_body(scene.frame, width, scene.ascii_only)
        room = max(1, height - 1)
        if scene.frame.group.step is None and scene.frame.ledger is None:
            body += draw_before_first_step(scene, width, room - len(body))
        lines, scroll = draw_text(scene, body, room)
        hidden = count_below(scroll, body, room)
        below = f"{counted(hidden, 'line')} below" if hidden else ""
        title = "bill of the whole run" if width >= LEAST_TITLE_WIDTH else "bill"
        return Page([draw_rule(width, title, below), *lines], PageLayout(scroll))


def bill_of_frame(frame: Frame) -> Bill | None:
    """The bill of a run so far; None before there is one."""
    return None if frame.ledger is None else bill_of(frame.ledger, on_gpus=_has_gpus(frame))


def _has_gpus(frame: Frame) -> bool:
    return any(device.startswith("cuda") for device in set(frame.ranks.device))


def _draw_body(frame: Frame, width: int, ascii_only: bool) -> list[Line]:
    if frame.ledger is None:
        words = NOTHING_YET if frame.group.step is None else NOT_KNOWN
        return [Line(text, "dim") for text in wrap_lines(words, width)]
    return draw_bill(frame.ledger, width, ascii_only, on_gpus=_has_gpus(frame))


LOSSES_HEIGHT = 2 + MOST_LOSSES
"""Lines of the sentence about the whole run, and of its largest losses below their title."""

CLASSES_WIDTH = 60
"""Cells of the table of the classes: the longest title, and the widest amounts."""

CLASSES_HEIGHT = 3 + len(CLASSES)
"""Lines of all classes with their rule, their titles and the sum."""

WAITED_HEIGHT = 11
"""Lines of what the others waited for, with its rule."""

MOST_RANK_BARS, FEW_RANK_BARS = 8, 3
"""Ranks with a bar at most, and up to how many a bar has two lines."""

LEAST_CHART = 5


def _draw_panels(scene: Scene, width: int, height: int) -> list[Line]:
    """All of it at once: the classes beside what the others waited for, a bar for each rank, and how the
    steps have changed over time."""
    frame, title = scene.frame, "bill of the whole run"
    bill = bill_of_frame(frame)
    if frame.ledger is None or bill is None or not bill.rows:
        words = _draw_body(frame, width, scene.ascii_only)
        lines = draw_band([PanelColumn(width, [Panel(title, words)])], 1 + LOSSES_HEIGHT)
    else:
        lines = _draw_bill_panels(scene, frame.ledger, bill, (width, height))
    room = height - len(lines)
    if room <= LEAST_CHART:
        return lines
    chart = draw_some_charts(scene, ("parts",), width, room - 1)
    chart = chart or draw_before_first_step(scene, width, room - 1)
    return [*lines, *draw_band([PanelColumn(width, [Panel("over time", chart)])], room)]


def _draw_bill_panels(scene: Scene, ledger: Ledger, bill: Bill, size: tuple[int, int]) -> list[Line]:
    width, height = size
    right = width - CLASSES_WIDTH
    summary = Line(headline(bill), "strong")
    if estimate := estimate_phrase(ledger):
        summary = summary.add(f" · {estimate}", "dim").cut(width - BORDER)
    losses = [summary, *draw_losses(bill, width)]
    lines = draw_band([PanelColumn(width, [Panel("bill of the whole run", losses)])], 1 + LOSSES_HEIGHT)
    classes = draw_classes(bill, CLASSES_WIDTH - BORDER, scene.ascii_only)
    waited, places = draw_waited_for(ledger, bill, right - BORDER), _draw_places(scene, right - BORDER)
    waited = waited or [Line(text, "faint") for text in wrap_lines(_say_nobody_waited(scene), right - BORDER)]
    columns = [
        PanelColumn(CLASSES_WIDTH, [Panel("by class", classes)]),
        PanelColumn(right, [Panel("by rank and place", waited, WAITED_HEIGHT), Panel("by line", places)]),
    ]
    lines += draw_band(columns, CLASSES_HEIGHT)
    room = height - len(lines) - LEAST_CHART - 2
    tall = 2 if bill.n_ranks <= FEW_RANK_BARS and 2 * (bill.n_ranks + 1) <= room else 1
    bars = draw_rank_bills(ledger, bill, width, MOST_RANK_BARS, scene.ascii_only, tall=tall)
    n_ranks = counted(bill.n_ranks, "rank")
    which = (
        n_ranks
        if bill.n_ranks <= MOST_RANK_BARS
        else f"{MOST_RANK_BARS} of {n_ranks}: those that waited least"
    )
    ranks = Panel(f"by rank · {which}", bars)
    return lines + draw_band([PanelColumn(width, [ranks])], 1 + len(bars), find_borders(columns))


def _say_nobody_waited(scene: Scene) -> str:
    """Why no row says for whom the others waited."""
    if kind := kind_phrase(scene.frame.run):
        return f"{kind}: waiting is in the classes on the left, and not told apart"
    return "no rank has waited for another"


def _draw_places(scene: Scene, width: int) -> list[Line]:
    """The stacks of the ranks that the others wait for, as far as they were sampled."""
    stacks = scene.frame.sampled
    if not stacks:
        words = "stacks are sampled once a rank is slow, or a step lasts very long"
        return [Line(text, "faint") for text in wrap_lines(words, width)]
    lines: list[Line] = []
    for stack in stacks:
        place = scene.clean(ledger_place_phrase(stack.place))
        name = Line(f"rank {stack.rank} ", "strong").add(place, "dim")
        lines += [name.cut(width), *tree_lines(scene, stack, width, LINES_OF_STACK)]
    return lines


LINES_OF_STACK = 4
"""Lines of the calls of a rank that take the time."""
