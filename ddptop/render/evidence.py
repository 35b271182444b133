"""The evidence of a stall and of deaths as lines: the sentence, and the process and stacks of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddptop.frames.conditions import STALLS
from ddptop.frames.numbers import UNKNOWN, count, counted
from ddptop.frames.phrases import death_phrase, ranks_phrase
from ddptop.frames.stall import Call, Death, RankPosition, Stall, Trace
from ddptop.frames.verdict import moment_phrase
from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.line import Line, side_by_side
from ddptop.render.stacks import INDENT, fitted_place, stack_lines
from ddptop.render.text import fit_text, text_width, wrap_lines
from ddptop.render.trouble import stalled_for


def draw_position(
    context: RenderContext,
    position: RankPosition,
    width: int,
    *,
    responsible: bool = False,
    every: bool = False,
    most: int | None = None,
) -> list[Line]:
    """A heading and the main thread's stack, at most `most` calls of it; with `every` all threads and calls.

    `responsible`: the stall is due to it.
    """
    lines = _draw_heading(context, position, width, responsible)
    if position.waits_for:
        text = f"it waits for {context.clean(position.waits_for)}"
        lines += [Line(" " * INDENT).add(part, "strong") for part in wrap_lines(text, width - INDENT)]
    if not position.traces:
        return [*lines, Line(" " * INDENT).add(_no_stack(position), "dim")]
    main, *other_traces = position.traces
    if every:
        lines.append(_draw_label(context, main))
    lines += stack_lines(context, main, width, every=every, most=most)
    for trace in other_traces if every else ():
        lines += [_draw_label(context, trace), *stack_lines(context, trace, width, every=True)]
    return lines


def draw_positions(context: RenderContext, positions: list[RankPosition], width: int) -> list[Line]:
    """A title and a row per rank with its position."""
    processes = [context.clean(position.process) for position in positions]
    operations = [context.clean(position.operation) or UNKNOWN for position in positions]
    calls = [_called_at(context, position.user_call) for position in positions]
    columns = [
        table.measured_column("rank", [str(position.rank) for position in positions], 99),
        table.measured_column("process", processes, 80, right=False, most=18),
        table.measured_column("step", [count(position.step) for position in positions], 60),
        table.measured_column("sequence", [count(position.sequence) for position in positions], 70),
        table.measured_column("waits in", operations, 90, right=False, most=36),
        table.measured_column("called at", calls, 85, right=False),
    ]
    columns = table.fit_columns(columns, width - 2, 2)
    rows = [table.draw_row(columns, row, 2) for row in range(len(positions))]
    return [Line("  ").extend(row) for row in (table.draw_head(columns, 2), *rows)]


def _called_at(context: RenderContext, call: Call | None) -> str:
    if call is None:
        return UNKNOWN
    place = context.clean(fitted_place(call, 18, context.folder))
    return fit_text(f"{place} {context.clean(call.function)}", 30).rstrip()


def _where_it_is(context: RenderContext, position: RankPosition) -> list[str]:
    """Step, sequence number, process group and collective, as far as known."""
    words = [f"step {count(position.step)}"] if position.step is not None else []
    words += [f"sequence {count(position.sequence)}"] if position.sequence is not None else []
    words += [f"group {context.clean(position.group)}"] if position.group not in ("", "0") else []
    return [*words, f"in {context.clean(position.operation)}"] if position.operation else words


def _draw_heading(
    context: RenderContext, position: RankPosition, width: int, responsible: bool
) -> list[Line]:
    name = f"rank {position.rank}"
    who = ", ".join([name, context.clean(position.host) or "host unknown", *_describe_pid(position)])
    words = [who, context.clean(position.process), *_where_it_is(context, position)]
    first, *more_rows = wrap_lines(" · ".join(words), width - 2)
    lines = [
        Line("■ " if responsible else "  ", "bad").add(name, "strong").add(first[text_width(name) :], "text")
    ]
    return lines + [Line("  ").add(text, "text") for text in more_rows]


def _describe_pid(position: RankPosition) -> list[str]:
    return [f"pid {position.pid}"] if position.pid is not None else []


def _draw_label(context: RenderContext, trace: Trace) -> Line:
    name = context.clean(trace.thread)
    if trace.main:
        name = f"{name if name.startswith('traceback') else 'main thread'}, innermost call first"
    else:
        name = f"thread {name}"
    return Line(" " * (INDENT - 1)).add(name, "dim")


def _no_stack(position: RankPosition) -> str:
    if position.process == "stopped":
        return "stopped by a signal (SIGSTOP) or a debugger: it cannot answer"
    if position.process == "alive":
        return "it has not answered yet"
    if position.process == "silent":
        return "it does not answer"
    return "its stack is not known"


MESSAGE_LINES, BRIEF_MESSAGE_LINES = 16, 10
"""Lines of an exception's complete message, unless everything is shown; and in the brief form."""

SIDE_BY_SIDE = 120
"""Width from which both sides of different collectives are drawn next to each other."""


def draw_evidence(context: RenderContext, width: int, *, every: bool = False) -> list[Line]:
    """All lines; empty without a stall and without deaths. `every`: all calls of all threads."""
    return EvidencePage(context, width, every, None).draw_all()


def draw_brief(context: RenderContext, width: int, most: int) -> list[Line]:
    """Draw at most `most` calls of the ranks that cause the stall or have died, without the sentence."""
    return EvidencePage(context, width, False, most).draw_all()


@dataclass(frozen=True)
class EvidencePage:
    """All of it as one text, or in three parts: what has happened, the ranks it is due to, and the others."""

    context: RenderContext
    width: int
    every: bool
    """All calls of all threads."""
    most: int | None
    """Maximum number of calls of a stack, then without the ranks that only wait; None: no limit."""

    def draw_all(self) -> list[Line]:
        """One below the other."""
        stall = self.context.frame.stall
        lines = self.draw_stall(stall) if stall is not None else []
        return lines + self.draw_deaths(self.context.frame.deaths, has_gap=bool(lines))

    def draw_head(self) -> list[Line]:
        """What has happened: the stall, else the first death."""
        stall, deaths = self.context.frame.stall, self.context.frame.deaths
        if stall is not None:
            return self.draw_stall_head(stall)
        return self.draw_death_head(deaths[0], first=True) if deaths else []

    def draw_causes(self) -> list[Line]:
        """The stacks of the ranks that the stall is due to, else of the first that died, with its message."""
        stall, deaths = self.context.frame.stall, self.context.frame.deaths
        if stall is not None:
            return self.draw_responsible(_positions_of(stall)[0])
        return [*self.draw_message(deaths[0]), *self.draw_position(deaths[0].position)] if deaths else []

    def draw_others(self) -> list[Line]:
        """The stacks and positions of the ranks that wait, and how other ranks ended."""
        stall, deaths = self.context.frame.stall, self.context.frame.deaths
        if stall is None:
            return self.draw_deaths(deaths[1:], has_first=False)
        waiting = _positions_of(stall)[1]
        lines = self.draw_innocent(waiting)[1:]
        lines += [] if not waiting else [Line(), *draw_positions(self.context, waiting, self.width)]
        return lines + self.draw_deaths(deaths, has_gap=bool(lines))

    def draw_deaths(
        self, deaths: Sequence[Death], *, has_gap: bool = False, has_first: bool = True
    ) -> list[Line]:
        """`has_gap`: there are lines above; `has_first`: the first of these is the first that died."""
        stall = self.context.frame.stall
        shown = {p.rank for p in stall.positions if p.traces} if stall is not None else set()
        lines: list[Line] = []
        for index, alike in enumerate(self.group_deaths(deaths, shown)):
            first, death = has_first and index == 0, alike[0]
            lines += [Line()] if (lines or has_gap) and (self.most is None or index == 0) else []
            lines += self.draw_death(death, first=first, alike=alike)
            if len(alike) > 1 and self.most is None:
                lines.append(Line("  their stacks are not known", "dim"))
            elif death.rank not in shown and (self.most is None or index == 0):
                lines += self.draw_position(death.position)
        return lines

    def group_deaths(self, deaths: Sequence[Death], shown: set[int]) -> list[list[Death]]:
        """In the order of the first of each group: those that were ended alike in the same second and step
        after others, and of which no stack is known. Every other death is alone."""
        alike: dict[tuple[object, ...], list[Death]] = {}
        for death in deaths:
            has_own = self.every or not death.follows or death.position.traces or death.rank in shown
            when = moment_phrase(self.context.frame, death.since_s)
            words = death_phrase(death, "they")
            key = (death.rank,) if has_own else (words, when, death.step)
            alike.setdefault(key, []).append(death)
        return list(alike.values())

    def draw_position(
        self, position: RankPosition, *, responsible: bool = False, width: int | None = None
    ) -> list[Line]:
        return draw_position(
            self.context,
            position,
            width or self.width,
            responsible=responsible,
            every=self.every,
            most=self.most,
        )

    def draw_stall(self, stall: Stall) -> list[Line]:
        lines = self.draw_stall_head(stall) if self.most is None else []
        responsible, innocent = _positions_of(stall)
        if STALLS[stall.kind].has_sides and responsible and innocent:
            return lines + self.draw_sides(responsible, innocent)
        if responsible:
            lines += [*self.make_gap(lines), *self.draw_responsible(responsible)]
        if innocent:
            lines += [*self.make_gap(lines), *self.draw_waiting(innocent)]
        return lines

    def draw_stall_head(self, stall: Stall) -> list[Line]:
        """Since when, the sentence, and what else is known."""
        title = stalled_for(stall, self.context.frame.unix_s)
        lines = draw_headline("■", title, self.context.clean(stall.sentence), self.width)
        for text in (*((stall.followed,) if stall.followed else ()), *stall.detail):
            lines += [
                Line("  ").add(part, "dim") for part in wrap_lines(self.context.clean(text), self.width - 2)
            ]
        return lines

    def draw_responsible(self, positions: list[RankPosition]) -> list[Line]:
        """Their stacks below each other."""
        lines: list[Line] = []
        for position in positions:
            lines += [*self.make_gap(lines), *self.draw_position(position, responsible=True)]
        return lines

    def draw_waiting(self, positions: list[RankPosition]) -> list[Line]:
        """A row for each, then their stacks."""
        if self.every or not positions:
            return self.draw_innocent(positions)[1:]
        return [*draw_positions(self.context, positions, self.width), *self.draw_innocent(positions)]

    def draw_innocent(self, positions: list[RankPosition]) -> list[Line]:
        """One after the other; ranks whose main threads have the same stack share it."""
        lines: list[Line] = []
        alike: dict[tuple[Call, ...], list[RankPosition]] = {}
        for position in positions if self.most is None else ():
            calls = position.traces[0].calls if position.traces and not self.every else ()
            alike.setdefault(calls or (Call("", position.rank, "", ""),), []).append(position)
        for first, *same_place in alike.values():
            lines += [Line(), *self.draw_position(first)]
            if same_place:
                who = ranks_phrase([position.rank for position in same_place], 0)
                verb = "has" if len(same_place) == 1 else "have"
                lines.append(Line(f"  {who} {verb} the same stack"))
        return lines

    def draw_sides(self, responsible: list[RankPosition], positions: list[RankPosition]) -> list[Line]:
        """The two sides of different collectives, beside or below each other; then the other ranks."""
        lines = draw_positions(self.context, [*responsible, *positions], self.width)
        lines = [Line(), *lines, Line()] if self.most is None else [*lines, Line()]
        if self.width >= SIDE_BY_SIDE:
            half = self.width // 2
            left_lines = self.draw_position(responsible[0], responsible=True, width=half - 2)
            lines += side_by_side(
                [line.cut(half - 2) for line in left_lines],
                self.draw_position(positions[0], width=half),
                half,
            )
        else:
            lines += [
                *self.draw_position(responsible[0], responsible=True),
                Line(),
                *self.draw_position(positions[0]),
            ]
        for position in responsible[1:] if self.most is None else ():
            lines += [Line(), *self.draw_position(position, responsible=True)]
        return lines + self.draw_innocent(positions[1:])

    def draw_death(self, death: Death, *, first: bool, alike: Sequence[Death] = ()) -> list[Line]:
        lines = self.draw_death_head(death, first=first, alike=alike)
        return lines + (self.draw_message(death) if first or self.every else [])

    def draw_death_head(self, death: Death, *, first: bool, alike: Sequence[Death] = ()) -> list[Line]:
        """How it ended, and when; with those that ended alike."""
        who = ranks_phrase([dead.rank for dead in alike], 0) if len(alike) > 1 else ""
        sentence = self.context.clean(death_phrase(death, who))
        title = ("✗", "DIED") if death.rank in self.context.responsible else ("○", "ended")
        lines = draw_headline(*title, sentence, self.width)
        where = moment_phrase(self.context.frame, death.since_s)
        where += f", in step {count(death.step)}" if death.step is not None else ""
        n_followers = sum(dead.follows for dead in self.context.frame.deaths)
        if first and n_followers and not death.follows:
            where += f"; it ended first, and {counted(n_followers, 'rank')} after it"
        return lines + [Line("  ").add(part, "dim") for part in wrap_lines(where, self.width - 2)]

    def draw_message(self, death: Death) -> list[Line]:
        """The complete message, where the sentence has a part of it."""
        lines = [
            Line("  ").add(part, "text")
            for line in death.message
            for part in wrap_lines(self.context.clean(line), self.width - 2)
        ]
        room = len(lines) if self.every else MESSAGE_LINES if self.most is None else BRIEF_MESSAGE_LINES
        if len(lines) > room:
            lines = [*lines[: room - 1], Line("  ").add(f"... {len(lines) - room + 1} more lines", "dim")]
        return lines

    @staticmethod
    def make_gap(lines: list[Line]) -> list[Line]:
        return [Line()] if lines else []


def _positions_of(stall: Stall) -> tuple[list[RankPosition], list[RankPosition]]:
    """The positions of the ranks that the stall is due to, and of the others."""
    responsible = [position for position in stall.positions if position.rank in stall.ranks]
    return responsible, [position for position in stall.positions if position.rank not in stall.ranks]


def draw_headline(sign: str, title: str, sentence: str, width: int) -> list[Line]:
    """A title and a sentence, wrapped below the title."""
    lead = text_width(title) + 4
    first, *more_rows = wrap_lines(f"{'_' * lead} {sentence}", width)
    lines = [Line(f"{sign} {title} ", "bad").add(first[lead:], "strong")]
    if sign == "○":
        lines[0].pieces[0] = f"{sign} {title} ", "dim"
    return lines + [Line("  ").add(text, "strong") for text in wrap_lines(" ".join(more_rows), width - 2)]
