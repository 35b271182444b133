"""The bill of the run: where the time of all ranks went, and what the run would take without its losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.bill import NOT_KNOWN, NOTHING_YET, bill_of
from ddptop.frames.numbers import counted
from ddptop.render.bill import draw_bill
from ddptop.render.line import Line, draw_rule
from ddptop.render.text import wrap_lines
from ddptop.tui.keys import SEARCH_KEY, ScreenKey
from ddptop.tui.scene import Page, PageLayout, Scene
from ddptop.tui.view import View
from ddptop.tui.views.text_page import count_below, draw_text

if TYPE_CHECKING:
    from ddptop.frames.bill import Bill
    from ddptop.frames.frame import Frame


class BillView(View):
    """Sums over the whole run, not medians of its newest steps."""

    name = "bill"
    answers = "where the time of all ranks went, and what was lost"
    number = "9"
    short_name = "bill"

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """It is a text."""
        return (SEARCH_KEY,)

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """Bar and tables under each other, scrolled as one text."""
        body = _draw_body(scene.frame, width, scene.ascii_only)
        room = max(1, height - 1)
        lines, scroll = draw_text(scene, body, room)
        hidden = count_below(scroll, body, room)
        head = draw_rule(width, "bill of the whole run", f"{counted(hidden, 'line')} below" if hidden else "")
        return Page([head, *lines], PageLayout(scroll))


def bill_of_frame(frame: Frame) -> Bill | None:
    """The bill of a run so far; None before there is one."""
    return None if frame.ledger is None else bill_of(frame.ledger, on_gpus=_has_gpus(frame))


def _has_gpus(frame: Frame) -> bool:
    return any(device.startswith("cuda") for device in frame.ranks.device)


def _draw_body(frame: Frame, width: int, ascii_only: bool) -> list[Line]:
    if frame.ledger is None:
        words = NOTHING_YET if frame.group.step is None else NOT_KNOWN
        return [Line(text, "dim") for text in wrap_lines(words, width)]
    return draw_bill(frame.ledger, width, ascii_only, on_gpus=_has_gpus(frame))
