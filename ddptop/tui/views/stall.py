"""The page of a stall or of exited ranks: which ranks, the position of every rank, the stacks.

Also as a text file, for a mail or an issue.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ddptop.frames.conditions import SILENT_STATES, condition_of
from ddptop.frames.numbers import count, counted, duration
from ddptop.frames.phrases import death_phrase, ranks_phrase
from ddptop.frames.remedies import next_action
from ddptop.frames.verdict import SIGNS, run_state, verdict
from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.evidence import EvidencePage, draw_evidence
from ddptop.render.host_table import host_columns
from ddptop.render.hosts import figures_by_trouble
from ddptop.render.line import Line, Piece, draw_rule, of_state
from ddptop.render.milestones import draw_before_first_step
from ddptop.render.stacks import fitted_place
from ddptop.render.text import cut_at_word, wrap_lines
from ddptop.render.trouble import in_trouble
from ddptop.tui.keys import SEARCH_KEY, Do, ScreenKey, view_key
from ddptop.tui.scene import Page, PageLayout, Scene
from ddptop.tui.view import View
from ddptop.tui.views.charts import draw_some_charts
from ddptop.tui.views.events import draw_event, draw_events
from ddptop.tui.views.panels import BORDER, Panel, PanelColumn, draw_band, find_borders, has_panels
from ddptop.tui.views.text_page import count_below, draw_text
from ddptop.tui.views.why import draw_advice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.frame import Frame
    from ddptop.tui.screen import Screen

ROOM_FOR_FOOT = 6
"""Lines from which one is spared for what the keys do."""

ROOM_FOR_ACTION = 14
"""Lines from which what to do next comes before the stacks."""

SMALL = 6
"""Lines below which the place in the code comes before the sentence."""

EARLIER = 5
"""Past stalls and exits listed while nothing is stalled."""


def _insert_action(action: list[Line], body: list[Line]) -> list[Line]:
    """The body with what to do next, below what has happened."""
    grey = [bool(line.pieces) and line.pieces[-1][1] == "dim" for line in body]
    ends = (
        index
        for index in range(1, len(body))
        if not body[index].width or (grey[index - 1] and not grey[index])
    )
    index = next(ends, len(body))
    return [*body[:index], *action, *body[index:]]


def _draw_few_lines(scene: Scene, width: int, body: list[Line]) -> list[Line]:
    """The page where it has few lines: where the first rank is that it is due to, then the sentence, then
    what the body has below its own headline."""
    stall, deaths = scene.frame.stall, scene.frame.deaths
    if stall is not None:
        sign, sentence, positions = "■ ", stall.sentence, stall.positions[:1]
    else:
        sign, sentence, positions = "✗ ", death_phrase(deaths[0]), (deaths[0].position,)
    lines = [Line("  ").add(text, "strong") for text in wrap_lines(scene.clean(sentence), width - 2)]
    for position in positions:
        if (call := position.user_call) is not None:
            line = Line("  ").add(f"rank {position.rank} ", "strong")
            line.add(scene.clean(fitted_place(call, width // 2, scene.folder)), "accent")
            lines.insert(0, line.add(f" {scene.clean(call.function)}", "strong").cut(width))
    lines[0].pieces[0] = (sign, "bad")
    above = (index for index, line in enumerate(body) if not line.width or line.pieces[-1][1] == "dim")
    return [*lines, *body[next(above, 0) :]]


def _mark_cut(line: Line, width: int) -> Line:
    """The last line of the screen, with a sign at its right end that there are more below."""
    if line.width < width:
        return Line().extend(line).pad(width - 1).add("…", "dim")
    return Line(cut_at_word(f"{line}…", width), line.pieces[-1][1])


def _draw_calm(scene: Scene, width: int) -> list[Line]:
    """The page without a stall: that nothing is stalled, or what else is wrong; and what this page is for."""
    frame, shown = scene.frame, verdict(scene.frame)
    grave = shown.sign == "critical" and run_state(frame) != "live"
    unknown = _explain_unknown(frame)
    head = shown.sentence if grave else unknown or "nothing is stalled, and no rank has died"
    lines = [Line("  ").add(text, "strong") for text in wrap_lines(scene.clean(head), width - 2)]
    good: Piece = ("○ ", "dim") if unknown else ("● ", "good")
    lines[0].pieces[0] = (f"{SIGNS[shown.sign]} ", "bad") if grave else good
    if frame.group.step is not None:
        lines.append(Line("  ").add(f"last complete step {count(frame.group.step)}", "dim"))
    words = (
        "When a run makes no progress, this page shows which rank is missing, the stack of its main thread, "
        "and where the others wait; when a process dies, how, and its traceback."
    )
    if not grave:  # a run that stands still is no matter of what would be shown
        lines += [Line(), *(Line("  ").add(text, "dim") for text in wrap_lines(words, width - 2))]
    lines += _draw_silent_hosts(scene, width)
    past = [
        event
        for event in frame.events
        if condition_of(event.kind).page == "stall" and event.severity != "info"
    ]
    if past:
        lines += [Line(), Line("  ").add("earlier in this run", "dim")]
        lines += [
            Line("  ").extend(draw_event(scene, event, width - 2)) for event in reversed(past[-EARLIER:])
        ]
    return lines


def _draw_calm_with_chart(scene: Scene, width: int, height: int) -> list[Line]:
    """The page without a stall, and below it the step times, or how far the ranks have come to their first
    step, where `height` lines have room for them."""
    lines = _draw_calm(scene, width)
    room = height - len(lines) - 1
    if room < LOW_CHART:
        return lines
    if not _has_steps(scene):
        return lines + draw_before_first_step(scene, width, room + 1, says_why=False)
    return [*lines, Line(), *draw_some_charts(scene, ("step",), width, room)]


def _explain_unknown(frame: Frame) -> str:
    """Why a stall or a death would not be seen now; empty: it would."""
    state, silent = run_state(frame), frame.ranks.state.count("waiting")
    if hosts := sum(host.state in SILENT_STATES for host in frame.hosts):
        whose = "its" if hosts == 1 else "their"
        return f"nothing comes from {counted(hosts, 'host')}: of {whose} ranks nothing can be said"
    if state == "stale":
        return "no update comes: at the last one nothing was stalled, and no rank had died"
    if state != "waiting":
        return ""
    if silent == len(frame.ranks.state):
        return "no rank has reported yet: nothing can be said"
    have = "has" if silent == 1 else "have"
    return f"{counted(silent, 'rank')} {have} not reported yet: of these nothing can be said"


def _draw_silent_hosts(scene: Scene, width: int) -> list[Line]:
    """Hosts from which nothing arrives: a stall of their ranks would not be seen here."""
    silent = [host for host in scene.frame.hosts if host.state in SILENT_STATES]
    lines = [Line()] if silent else []
    for host in silent[:EARLIER]:
        sign, role = of_state(host.state)
        text = (
            f"host {scene.clean(host.name)} is {host.state}: last message {duration(host.age_ms / 1e3)} ago"
        )
        parts = wrap_lines(text, width - 2)
        lines.append(Line(f"{sign} ", role).add(parts[0], "strong"))
        lines += [Line("  ").add(part, "strong") for part in parts[1:]]
    if len(silent) > EARLIER:
        lines.append(Line(f"  and {len(silent) - EARLIER:,} more hosts: key 8 shows them", "dim"))
    return lines


def _draw_key_hints(scene: Scene, width: int, below: int) -> Line:
    """What the keys do, and how much there is below."""
    hidden = f"{counted(below, 'line')} below" if below > 0 else ""
    if not in_trouble(scene.frame):
        return draw_rule(width, "", hidden)
    words = ["s saves it", "t less" if scene.place.all_threads else "t all threads"]
    words.append("kept in the recording" if scene.frame.run.recording else "no recording is kept")
    return draw_rule(width, " · ".join(words), hidden)


HEAD_HEIGHT, STACKS_HEIGHT, CALM_HEIGHT = 6, 17, 12
"""Lines at least: of what has happened and what to try, of the stacks, and of what is said in their place
while nothing is stalled."""

BEFORE_HEIGHT, LEAST_CHART, LOW_CHART = 12, 8, 6
"""Lines at least of what was before it, of a chart in a panel, and of one below the words of a calm page."""

MOST_HOSTS = 4


def _draw_panels(scene: Scene, width: int, height: int) -> list[Line]:
    """What has happened, the stacks of the ranks that it is due to beside those of the others, and below them
    the steps before it, the hosts and the events. More than `height` lines where the stacks are long."""
    left = (width + 1) // 2
    left_room, right_room = left - 1, width - left - BORDER
    aside = [*_draw_hosts(scene, right_room), _draw_events(scene, right_room)]
    if not in_trouble(scene.frame):
        calm = _draw_calm(scene, left_room)
        if verdict(scene.frame).sign == "critical":
            calm = _insert_action(draw_advice(scene.clean(next_action(scene.frame)), left_room), calm)
        columns = _halves(width, [Panel("stalls and deaths", calm)], aside)
        lines = draw_band(columns, CALM_HEIGHT)
        room = height - CALM_HEIGHT
        room = room // 2 if _has_steps(scene) else room
        lines += draw_band(
            [PanelColumn(width, [_steps_panel(scene, width, room)])], room, find_borders(columns)
        )
        return lines + _draw_parts(scene, width, height - len(lines))
    evidence = EvidencePage(scene, width, False, None)
    action = draw_advice(scene.clean(next_action(scene.frame)), width)
    head = _insert_action(action, evidence.draw_head())
    head += [Line()] * (HEAD_HEIGHT - len(head))
    causes = replace(evidence, width=left_room).draw_causes()
    others = replace(evidence, width=right_room).draw_others()
    high = max(len(causes) + 1, len(others) + 1, STACKS_HEIGHT)
    columns = _halves(
        width, [Panel(_title_of_causes(scene.frame), causes)], [Panel("the other ranks", others)]
    )
    lines = [*head, *draw_band(columns, high)]
    room = max(BEFORE_HEIGHT, height - len(lines))
    room -= room // 2 if room // 2 >= LEAST_CHART and _has_steps(scene) else 0
    lines += draw_band(
        _halves(width, [_steps_panel(scene, left_room, room)], aside), room, find_borders(columns)
    )
    return lines + _draw_parts(scene, width, height - len(lines), find_borders(columns))


def _halves(width: int, left_panels: list[Panel], right_panels: list[Panel]) -> list[PanelColumn]:
    left = (width + 1) // 2
    return [PanelColumn(left, left_panels), PanelColumn(width - left, right_panels)]


def _title_of_causes(frame: Frame) -> str:
    ranks = frame.stall.ranks if frame.stall is not None else (frame.deaths[0].rank,)
    return f"due to {ranks_phrase(ranks, len(frame.ranks.state))}" if ranks else "due to"


def _has_steps(scene: Scene) -> bool:
    """Whether there is a step to chart. Else the room of both charts shows how far the ranks have come."""
    return len(scene.frame.history.time_s) > 0


def _steps_panel(scene: Scene, width: int, height: int) -> Panel:
    charts = draw_some_charts(scene, ("step",), width, height - 1)
    return Panel("steps", charts or draw_before_first_step(scene, width, height - 1, says_why=False))


def _draw_parts(scene: Scene, width: int, height: int, above: Sequence[int] = ()) -> list[Line]:
    """The parts of the steps, where there is room for them below the rest."""
    if height < LEAST_CHART:
        return []
    parts = Panel("parts of a step", draw_some_charts(scene, ("parts",), width, height - 1))
    return draw_band([PanelColumn(width, [parts])], height, above)


def _draw_events(scene: Scene, width: int) -> Panel:
    events = draw_events(scene, width, BEFORE_HEIGHT)
    return Panel("events", events, key="5", opens=Do.VIEW("events"))


def _draw_hosts(scene: Scene, width: int) -> list[Panel]:
    """The hosts, the worst first; none where nothing is known of them."""
    if not scene.frame.hosts:
        return []
    hosts = figures_by_trouble(scene)[:MOST_HOSTS]
    columns = table.fit_columns(host_columns(scene, hosts, width), width, 2)
    rows = [table.draw_head(columns, 2), *(table.draw_row(columns, row, 2) for row in range(len(hosts)))]
    return [Panel("hosts", rows, len(rows) + 2, key="8", opens=Do.VIEW("hosts"))]


WIDTH = 110
"""Characters of a line of the sentences; lines of code are kept whole, and paths as on a wide screen."""


def evidence_text(frame: Frame) -> str | None:
    """All that is known of the stall and the deaths; None where nothing is stalled and no rank has died."""
    context = RenderContext(frame)
    lines = draw_evidence(context, WIDTH, every=True)
    if not lines:
        return None
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(frame.unix_s))
    head = f"ddptop {context.clean(frame.run.name)}, {moment}: {context.clean(' '.join(frame.run.argv))}"
    return "\n".join([head, "", *(str(line).rstrip() for line in lines)]) + "\n"


class StallView(View):
    """A stall, or how ranks died."""

    name = "stall"
    answers = "a stall or a death: who, where, the stacks"
    number = "7"
    always_named = True

    def own_keys(self) -> tuple[ScreenKey, ...]:
        """The keys of a page of text, of which there may be more."""
        return (SEARCH_KEY, view_key("t", "t", self.toggle_threads, "threads", "all threads, every call"))

    def body(self, scene: Scene, width: int, height: int) -> Page:
        """As much of the page as fits from where it was scrolled to, and at the foot how much more there
        is."""
        if has_panels(width, height) and not scene.place.all_threads:
            room = height - 1
            lines, scroll = draw_text(scene, body := _draw_panels(scene, width, room), room)
            return Page(
                [*lines, _draw_key_hints(scene, width, count_below(scroll, body, room))], PageLayout(scroll)
            )
        body = draw_evidence(scene, width, every=scene.place.all_threads)
        has_action = height >= ROOM_FOR_ACTION and verdict(scene.frame).sign == "critical"
        action = draw_advice(scene.clean(next_action(scene.frame)), width) if has_action else []
        body = body or _draw_calm_with_chart(scene, width, height - 1 - len(action))
        body = _insert_action(action, body)
        if height < SMALL and in_trouble(scene.frame):
            body = _draw_few_lines(scene, width, body)
        room = height - 1 if height >= ROOM_FOR_FOOT else height
        lines, scroll = draw_text(scene, body, room)
        if room == height:
            if count_below(scroll, body, room):
                lines[-1] = _mark_cut(lines[-1], width)
            return Page(lines, PageLayout(scroll))
        lines += [Line()] * (room - len(lines))
        return Page(
            [*lines, _draw_key_hints(scene, width, count_below(scroll, body, room))], PageLayout(scroll)
        )

    def text_to_save(self, frame: Frame) -> str | None:
        """All that is known of the stall."""
        return evidence_text(frame)

    def exists(self, scene: Scene | None) -> bool:
        """While there is something on it."""
        return scene is not None and in_trouble(scene.frame)

    def label(self, scene: Scene | None) -> str:
        """The label of the view, after what it shows."""
        died = scene is not None and scene.frame.stall is None and bool(scene.frame.deaths)
        return "death" if died else self.name

    def toggle_threads(self, screen: Screen) -> None:
        """All threads and every call, or a summary."""
        screen.place.all_threads = not screen.place.all_threads
        screen.repaint()
