"""The pictures of the HTML report as inline SVG: the run over time, ranks, a straggler.

Shapes are stretched to the width of the page; so all text is HTML beside them, and keeps its size on a phone.
Colours are classes named after the roles of `ddptop.render.colours`.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from ddptop.frames.bill import CLASSES
from ddptop.frames.causes import cause_phrase
from ddptop.frames.conditions import tone_of
from ddptop.frames.numbers import clock, fixed, percent
from ddptop.frames.phrases import steps_phrase
from ddptop.render.phases import PARTS
from ddptop.render.text import clean_text
from ddptop.report.strips import list_incidents, scale_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ddptop.frames.bill import Bill
    from ddptop.report.content import Report, Span, StragglerSummary
    from ddptop.report.tables import BesideOthers

WIDTH, HEIGHT = 1000.0, 100.0
"""Size of a picture in its own units."""

REST = "heat1"
"""The role of what is no phase: the rest of a step, and the other ranks' bars beside a straggler's."""

LEAST_MARK = 4.0
"""Width of an event that has no duration."""


def draw_run_over_time(report: Report) -> str:
    """Step time, divided into wait, transfer and the rest; the slow rank; events. Empty without a step."""
    times = [span.step_ms for span in report.spans if span.step_ms is not None]
    if not times:
        return ""
    top = scale_end(times)
    most = f"{fixed(max(times))} ms" if top >= max(times) else f"{fixed(top)} ms (most: {fixed(max(times))})"
    text = f"median step time from {fixed(min(times))} to {fixed(max(times))} ms over the run"
    bars = "".join(
        _draw_step_bar(span, index, len(report.spans), top) for index, span in enumerate(report.spans)
    )
    rows = [_draw_lane(f"step<br><small>0 to {most}</small>", text, bars, "high")]
    slow = [span for span in report.spans if span.rank is not None]
    if slow and report.run.world_size > 1:
        marks = "".join(
            _draw_slow_mark(span, index, len(report.spans)) for index, span in enumerate(report.spans)
        )
        ranks = sorted({span.rank for span in slow if span.rank is not None})
        names = "rank " + ", ".join(map(str, ranks)) if len(ranks) < 4 else f"{len(ranks)} ranks"
        rows.append(_draw_lane(f"slow<br><small>{names}</small>", f"when {names} was slow", marks))
    marks = _draw_event_marks(report)
    if marks:
        rows.append(_draw_lane("events", "when something happened", marks))
    start = report.run.started_at
    axis = f"<span>{clock(start)}</span><span>{clock(start + report.spans[-1].end_s)}</span>"
    return f'{"".join(rows)}<div class="lane"><span></span><div class="axis">{axis}</div></div>'


def draw_excess_over_time(report: Report, slow: StragglerSummary) -> str:
    """A straggler's excess in every span of the run, on the time axis of the run; empty: it is not known."""
    over_time = report.excess_over_time(slow)
    known_ms = [ms for _, ms in over_time if ms is not None]
    top = scale_end(known_ms) if known_ms else 0.0
    if not top > 0:
        return ""
    width, boxes = WIDTH / len(over_time), ""
    for index, (span, ms) in enumerate(over_time):
        if ms is not None:
            height = HEIGHT * min(1.0, max(0.0, ms / top))
            title = f"{_span_phrase(span)}: {fixed(ms)} ms"
            boxes += _draw_box("warn", index * width, width, HEIGHT - height, height, title)
    text = f"excess of rank {slow.rank} from {fixed(min(known_ms))} to {fixed(max(known_ms))} ms over the run"
    return _draw_lane(f"excess<br><small>0 to {fixed(top)} ms</small>", text, boxes, "high")


def draw_legend(names: Iterable[str]) -> str:
    """Colour and name of parts of the step."""
    return "".join(draw_key(name, name) for name in names)


def draw_bill_legend(bill: Bill) -> str:
    """Colour, name and share of the classes of the bill."""
    return "".join(
        draw_key(CLASSES[row.key].role, f"{row.title} {fixed(row.share_pct)}%") for row in bill.rows
    )


def draw_key(role: str, text: str) -> str:
    """A box in the colour of a role, and what it means."""
    box = _draw_box(role, 0, 10, 0, 10)
    return f'<span class="key"><svg viewBox="0 0 10 10" aria-hidden="true">{box}</svg>{escape(text)}</span>'


def draw_rank_bar(times_ms: Sequence[float], full_ms: float, who: str) -> str:
    """The breakdown of a rank's step: the parts in their order, NaN unknown; the whole width is `full_ms`."""
    scale, x, boxes, words = WIDTH / full_ms if full_ms > 0 else 0.0, 0.0, "", []
    for part, ms in zip(PARTS, times_ms, strict=True):
        if not ms > 0:
            continue
        words.append(f"{part.name} {fixed(ms)} ms")
        boxes += _draw_box(part.name, x, ms * scale, 0, HEIGHT, f"{who}: {words[-1]}")
        x += ms * scale
    return _draw_svg(f"{who}: {', '.join(words)}", boxes, "bar")


def draw_bill_bar(bill: Bill) -> str:
    """The classes of the bill on one bar, as long as their shares."""
    x, boxes, words = 0.0, "", []
    for row in bill.rows:
        width = WIDTH * row.rank_seconds / bill.total_s
        words.append(f"{row.title} {fixed(row.share_pct)}%")
        boxes += _draw_box(
            CLASSES[row.key].role, x, width, 0, HEIGHT, f"{words[-1]}, {row.amount} {bill.unit}"
        )
        x += width
    return _draw_svg(", ".join(words), boxes, "bar")


def draw_paired_bars(beside: BesideOthers, phase: str) -> str:
    """The others' time in a phase above the straggler's, on one scale for all phases."""
    longest = max((ms for side in (beside.own, beside.usual) for ms in side.values() if ms > 0), default=0.0)
    who, boxes, words = f"rank {beside.slow.rank}", "", []
    for name, ms, y in (("others", beside.usual[phase], 0.0), (who, beside.own[phase], 55.0)):
        if math.isfinite(ms) and longest > 0:
            words.append(f"{name} {fixed(ms)} ms")
            colour = REST if name == "others" else phase
            boxes += _draw_box(colour, 0, ms / longest * WIDTH, y, 45, f"{phase}, {words[-1]}")
    return _draw_svg(f"{phase}: {', '.join(words)}", boxes, "bar")


def _span_phrase(span: Span) -> str:
    return steps_phrase(span.first_step or 0, span.last_step or 0, span.incarnation, span.last_incarnation)


def _draw_step_bar(span: Span, at: int, count: int, top: float) -> str:
    if span.step_ms is None:
        return ""
    width = WIDTH / count
    title = f"{_span_phrase(span)}: {fixed(span.step_ms)} ms"
    shares = [("wait", span.wait_pct), ("transfer", span.transfer_pct)]
    for name, pct in shares:
        title += "" if pct is None else f", {name} {percent(pct)}"
    y, boxes = HEIGHT - min(1.0, span.step_ms / top) * HEIGHT, ""
    for name, pct in shares:
        height = min(HEIGHT - y, (pct or 0.0) / 100 * span.step_ms / top * HEIGHT)
        boxes += _draw_box(name, at * width, width, y, height) if height > 0 else ""
        y += height
    boxes += _draw_box(REST, at * width, width, y, HEIGHT - y)
    return f"<g><title>{escape(title)}</title>{boxes}</g>"


def _draw_slow_mark(span: Span, at: int, count: int) -> str:
    if span.rank is None:
        return ""
    cause = cause_phrase(span.cause, None)
    title = f"{_span_phrase(span)}: rank {span.rank}" + (f": {cause}" if cause else "")
    title += "" if span.cost_pct is None else f", costs {percent(span.cost_pct)} of the step"
    return _draw_box("warn", at * WIDTH / count, WIDTH / count, 0, HEIGHT, title)


def _draw_event_marks(report: Report) -> str:
    start, end_s = report.run.started_at, max(report.spans[-1].end_s, 1e-9)
    marks = ""
    for incident in list_incidents(report):
        x = min(1.0, max(0.0, (incident.first_s - start) / end_s)) * (WIDTH - LEAST_MARK)
        width = max(LEAST_MARK, (incident.last_s - incident.first_s) / end_s * WIDTH)
        role = tone_of(incident.kind, "warning")
        title = f"{clock(incident.first_s)} {incident.text}"
        marks += _draw_box(role, x, min(width, WIDTH - x), 0, HEIGHT, title)
    return marks


def _draw_lane(label: str, text: str, boxes: str, kind: str = "low") -> str:
    """A picture with its label; `label` is HTML."""
    return f'<div class="lane"><span>{label}</span>{_draw_svg(text, boxes, kind)}</div>'


def _draw_svg(text: str, boxes: str, kind: str) -> str:
    return (
        f'<svg class="{kind}" viewBox="0 0 {WIDTH:.0f} {HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(clean_text(text))}">{boxes}</svg>'
    )


def _draw_box(role: str, x: float, width: float, y: float, height: float, title: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    inner = f"<title>{escape(clean_text(title))}</title>" if title else ""
    return f'<rect class="{role}" {place}>{inner}</rect>'
