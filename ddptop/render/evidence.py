"""All that is known of a stall and of deaths, as lines: for the page, a file or plain text.

What is known of one rank at a stall or at its end: who it is, what its process does, where it stands.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddptop.frames.phrases import death_phrase, ranks_phrase
from ddptop.frames.stall import Call, Death, RankPosition, Stall, Trace
from ddptop.render import table
from ddptop.render.context import RenderContext
from ddptop.render.line import Line, beside
from ddptop.render.numbers import UNKNOWN, clock, count, counted
from ddptop.render.stacks import INDENT, place, stack_lines
from ddptop.render.text import cells, fit, wrap
from ddptop.render.trouble import stalled_for


def position_lines(
    context: RenderContext,
    told: RankPosition,
    width: int,
    *,
    blamed: bool = False,
    every: bool = False,
    most: int | None = None,
) -> list[Line]:
    """A heading, then the main thread's stack: at most `most` calls of it.

    With `every` all calls of it, and all other threads.
    """
    lines = _heading(context, told, width, blamed)
    if not told.traces:
        return [*lines, Line(" " * INDENT).add(_silence(told), "dim")]
    main, *others = told.traces
    if every:
        lines.append(_label(context, main))
    lines += stack_lines(context, main, width, every=every, most=most)
    for trace in others if every else ():
        lines += [_label(context, trace), *stack_lines(context, trace, width, every=True)]
    return lines


def position_table(context: RenderContext, positions: list[RankPosition], width: int) -> list[Line]:
    """A title and a row per rank: where each of them stands."""

    def texts(cell: object) -> list[str]:
        return [cell(told) for told in positions]  # type: ignore[operator]  # a function of one position

    columns = [
        table.measured("rank", texts(lambda told: str(told.rank)), 99),
        table.measured("process", texts(lambda told: context.clean(told.process)), 80, right=False, most=18),
        table.measured("step", texts(lambda told: count(told.step)), 60),
        table.measured("sequence", texts(lambda told: count(told.sequence)), 70),
        table.measured(
            "waits in", texts(lambda told: context.clean(told.operation) or UNKNOWN), 90, right=False, most=36
        ),
        table.measured("called at", texts(lambda told: _called_at(context, told.user_call)), 85, right=False),
    ]
    columns = table.fitting(columns, width - 2, 2)
    rows = [table.body(columns, at, 2) for at in range(len(positions))]
    return [Line("  ").extend(row) for row in (table.head(columns, 2), *rows)]


def _called_at(context: RenderContext, call: Call | None) -> str:
    if call is None:
        return UNKNOWN
    return fit(
        f"{context.clean(place(call, 18, context.folder))} {context.clean(call.function)}", 30
    ).rstrip()


def _where_it_is(context: RenderContext, told: RankPosition) -> list[str]:
    """Its place in the sequence of collectives, in words, as far as it is known."""
    words = [f"step {count(told.step)}"] if told.step is not None else []
    words += [f"sequence {count(told.sequence)}"] if told.sequence is not None else []
    words += [f"group {context.clean(told.group)}"] if told.group not in ("", "0") else []
    return [*words, f"in {context.clean(told.operation)}"] if told.operation else words


def _heading(context: RenderContext, told: RankPosition, width: int, blamed: bool) -> list[Line]:
    name = f"rank {told.rank}"
    who = ", ".join([name, context.clean(told.host) or "host unknown", *_pid(told)])
    words = [who, context.clean(told.process), *_where_it_is(context, told)]
    first, *rest = wrap(" · ".join(words), width - 2)
    lines = [Line("■ " if blamed else "  ", "bad").add(name, "strong").add(first[cells(name) :], "text")]
    return lines + [Line("  ").add(text, "text") for text in rest]


def _pid(told: RankPosition) -> list[str]:
    return [f"pid {told.pid}"] if told.pid is not None else []


def _label(context: RenderContext, trace: Trace) -> Line:
    name = context.clean(trace.thread)
    if trace.main:
        name = (
            "traceback, innermost call first" if name == "traceback" else "main thread, innermost call first"
        )
    else:
        name = f"thread {name}"
    return Line(" " * (INDENT - 1)).add(name, "dim")


def _silence(told: RankPosition) -> str:
    if told.process == "stopped":
        return "stopped by a signal (SIGSTOP) or a debugger: it cannot answer"
    if told.process == "alive":
        return "it has not answered yet"
    if told.process == "silent":
        return "it does not answer"
    return "it could not say where it was"


SIDE_BY_SIDE = 120
"""Cells from which both sides of a mismatch fit next to each other."""


def evidence(context: RenderContext, width: int, *, every: bool = False) -> list[Line]:
    """All of it, unscrolled; nothing where nothing is stalled and nobody has died. `every`: see below."""
    return _Teller(context, width, every, None).all()


def brief(context: RenderContext, width: int, most: int) -> list[Line]:
    """For a reader who has the verdict already: at most `most` calls of those to blame and of who died."""
    return _Teller(context, width, False, most).all()


@dataclass(frozen=True)
class _Teller:
    context: RenderContext
    width: int
    every: bool
    """All calls of all threads."""
    most: int | None
    """So many calls of a stack, and none of those who only wait."""

    def all(self) -> list[Line]:
        stall, deaths = self.context.frame.stall, self.context.frame.deaths
        lines = self.stall(stall) if stall is not None else []
        told = {one.rank for one in stall.positions if one.traces} if stall is not None else set()
        for at, death in enumerate(deaths):
            lines += [Line()] if lines and (self.most is None or at == 0) else []
            lines += self.death(death, first=at == 0)
            if death.rank not in told and (self.most is None or at == 0):
                lines += self.one(death.position)
        return lines

    def one(self, told: RankPosition, *, blamed: bool = False, width: int | None = None) -> list[Line]:
        return position_lines(
            self.context, told, width or self.width, blamed=blamed, every=self.every, most=self.most
        )

    def stall(self, stall: Stall) -> list[Line]:
        lines: list[Line] = []
        if self.most is None:
            title = stalled_for(stall, self.context.frame.unix_s)
            lines += headline("■", title, self.context.clean(stall.sentence), self.width)
        for text in stall.detail if self.most is None else ():
            lines += [Line("  ").add(part, "dim") for part in wrap(self.context.clean(text), self.width - 2)]
        blamed = [told for told in stall.positions if told.rank in stall.ranks]
        others = [told for told in stall.positions if told.rank not in stall.ranks]
        if stall.kind == "mismatch" and blamed and others:
            return lines + self.sides(blamed, others)
        for told in blamed:
            lines += [*self.gap(lines), *self.one(told, blamed=True)]
        if others and not self.every:
            lines += [*self.gap(lines), *position_table(self.context, others, self.width)]
        return lines + self.others(others)

    def others(self, others: list[RankPosition]) -> list[Line]:
        """One after the other; those whose main thread stands at the same place share its stack."""
        lines: list[Line] = []
        alike: dict[tuple[Call, ...], list[RankPosition]] = {}
        for told in others if self.most is None else ():
            calls = told.traces[0].calls if told.traces and not self.every else ()
            alike.setdefault(calls or (Call("", told.rank, "", ""),), []).append(told)
        for first, *rest in alike.values():
            lines += [Line(), *self.one(first)]
            if rest:
                who = ranks_phrase([told.rank for told in rest], 0)
                verb = "stands" if len(rest) == 1 else "stand"
                lines.append(Line(f"  {who} {verb} at the same place"))
        return lines

    def sides(self, blamed: list[RankPosition], others: list[RankPosition]) -> list[Line]:
        """The two sides of a mismatch, beside or below each other; then who else there is."""
        lines = position_table(self.context, [*blamed, *others], self.width)
        lines = [Line(), *lines, Line()] if self.most is None else [*lines, Line()]
        if self.width >= SIDE_BY_SIDE:
            half = self.width // 2
            left = self.one(blamed[0], blamed=True, width=half - 2)
            lines += beside([line.cut(half - 2) for line in left], self.one(others[0], width=half), half)
        else:
            lines += [*self.one(blamed[0], blamed=True), Line(), *self.one(others[0])]
        for told in blamed[1:] if self.most is None else ():
            lines += [Line(), *self.one(told, blamed=True)]
        return lines + self.others(others[1:])

    def death(self, death: Death, *, first: bool) -> list[Line]:
        sentence = self.context.clean(death_phrase(death))
        lines = headline("✗", "DIED" if first else "died", sentence, self.width)
        where = f"at {clock(death.since_s)}"
        where += f", in step {count(death.step)}" if death.step is not None else ""
        others = len(self.context.frame.deaths) - 1
        if first and others:
            where += f"; the first to die, {counted(others, 'rank')} after it"
        return lines + [Line("  ").add(part, "dim") for part in wrap(where, self.width - 2)]

    @staticmethod
    def gap(lines: list[Line]) -> list[Line]:
        return [Line()] if lines else []


def headline(sign: str, title: str, sentence: str, width: int) -> list[Line]:
    """A loud title and, hanging on it, a sentence."""
    lead = cells(title) + 4
    first, *rest = wrap(f"{'_' * lead} {sentence}", width)
    lines = [Line(f"{sign} {title} ", "bad").add(first[lead:], "strong")]
    return lines + [Line("  ").add(text, "strong") for text in wrap(" ".join(rest), width - 2)]
