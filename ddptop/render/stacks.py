"""Stacks as lines: the user's own calls bright, those of libraries dim, innermost first."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from ddptop.frames.numbers import UNKNOWN, counted
from ddptop.frames.stall import Call, Trace
from ddptop.protocol.user_code import is_users
from ddptop.render.context import RenderContext
from ddptop.render.line import Line, Role
from ddptop.render.text import fit_tail, fit_text, text_width

INDENT = 4

ONE_LINE = 64
"""Width from which place, function and code of a call fit on one line."""

WIDE = 110
"""Width from which more of a file's path is shown."""

SHORTEST_NAME, LONGEST_NAME = 10, 30
"""Cells of a function's name: those of libraries give way to the user's own code."""

FOLDED = 3
"""Library calls in a row that are shown; of more only the first one is."""

_INSTALLED = re.compile(r"^.*[/\\](?:(?:site|dist)-packages|lib(?:64)?[/\\]python[\d.]+)[/\\]")


def stack_lines(
    context: RenderContext, trace: Trace, width: int, *, every: bool = False, most: int | None = None
) -> list[Line]:
    """A line per call; on a narrow screen the code of the user's calls goes below.

    `every`: fold no calls; `most`: maximum number of calls, innermost first.
    """
    shown: list[Call | int | str] = list(trace.calls if every else _fold_calls(trace.calls))
    if most is not None and len(shown) > most:
        shown = [*shown[: most - 1], "..."]
    calls = [entry for entry in shown if isinstance(entry, Call)]
    most_place = 44 if width >= WIDE else 26
    own = [call for call in calls if is_users(call.file)]
    own_name = max((text_width(context.clean(call.function)) for call in own), default=16)
    least_name = LONGEST_NAME if width >= WIDE else max(SHORTEST_NAME, min(16, own_name))
    places = {id(call): context.clean(fitted_place(call, most_place, context.folder)) for call in calls}
    place_width = min(most_place, max((text_width(text) for text in places.values()), default=0))
    code_width = max((text_width(context.clean(call.code)) for call in own), default=0)
    free = width - INDENT - place_width - code_width - 4  # two blanks before each of name and code
    most_name = max(least_name, min(LONGEST_NAME, free))
    name_width = min(most_name, max((text_width(context.clean(call.function)) for call in calls), default=0))
    lines: list[Line] = []
    for entry in shown:
        if not isinstance(entry, Call):
            lines.append(Line(" " * INDENT).add(f"... {_left_out(entry)}", "faint"))
        elif width >= ONE_LINE:
            lines.append(_one_line(context, entry, places[id(entry)], place_width, name_width))
        else:
            lines += _two_lines(context, entry, places[id(entry)], place_width)
    return lines


def _left_out(entry: int | str) -> str:
    return counted(entry, "more library call") if isinstance(entry, int) else "and the calls around it"


def fitted_place(call: Call, room: int, folder: str = "") -> str:
    """`data/tokenize.py:88`: the file's name, with as many of its folders as fit into `room` cells.

    `folder`: that of the script, which is left out.
    """
    line = f":{call.line}" if call.line else ""
    file = _INSTALLED.sub("", call.file.removeprefix(folder))
    *folders, text = re.split(r"[/\\]", file or UNKNOWN)
    while folders and text_width(f"{folders[-1]}/{text}{line}") <= room:
        text = f"{folders.pop()}/{text}"
    return text + line


def _fold_calls(calls: Sequence[Call]) -> Iterator[Call | int]:
    for users_own, run in groupby(calls, key=lambda call: is_users(call.file)):
        together = list(run)
        if users_own or len(together) <= FOLDED:
            yield from together
        else:
            yield together[0]
            yield len(together) - 1


def _choose_roles(call: Call) -> tuple[Role, Role, Role]:
    return ("accent", "strong", "text") if is_users(call.file) else ("dim", "dim", "faint")


def _one_line(context: RenderContext, call: Call, where: str, place_width: int, name_width: int) -> Line:
    place_role, name, code = _choose_roles(call)
    line = Line(" " * INDENT).add(fit_tail(where, place_width), place_role)
    return _with_code(
        context, line.add("  ").add(fit_text(context.clean(call.function), name_width), name), call, code
    )


def _two_lines(context: RenderContext, call: Call, where: str, place_width: int) -> list[Line]:
    place_role, name, code = _choose_roles(call)
    lines = [
        Line("  ")
        .add(fit_tail(where, place_width), place_role)
        .add("  ")
        .add(context.clean(call.function), name)
    ]
    if is_users(call.file) and call.code:
        lines.append(_with_code(context, Line(" " * INDENT), call, code))
    return lines


def _with_code(context: RenderContext, line: Line, call: Call, role: Role) -> Line:
    return line.add("  ").add(context.clean(call.code), role) if call.code else line
