"""What is known of one rank at a stall or at its end: who it is, what its process does, where it stands."""

from __future__ import annotations

from ddptop.analysis.stall_frames import Call, Testimony, Trace
from ddptop.tui.paint import table
from ddptop.tui.paint.line import Line
from ddptop.tui.paint.numbers import UNKNOWN, count
from ddptop.tui.paint.text import cells, fit, wrap
from ddptop.tui.scene import Scene
from ddptop.tui.views.stack_lines import INDENT, place, stack_lines


def testimony_lines(
    scene: Scene,
    told: Testimony,
    width: int,
    *,
    blamed: bool = False,
    every: bool = False,
    most: int | None = None,
) -> list[Line]:
    """A heading, then the main thread's stack: at most `most` calls of it.

    With `every` all calls of it, and all other threads.
    """
    lines = _heading(scene, told, width, blamed)
    if not told.traces:
        return [*lines, Line(" " * INDENT).add(_silence(told), "dim")]
    main, *others = told.traces
    if every:
        lines.append(_label(scene, main))
    lines += stack_lines(scene, main, width, every=every, most=most)
    for trace in others if every else ():
        lines += [_label(scene, trace), *stack_lines(scene, trace, width, every=True)]
    return lines


def testimony_rows(scene: Scene, testimonies: list[Testimony], width: int) -> list[Line]:
    """A title and a row per rank: where each of them stands."""

    def texts(cell: object) -> list[str]:
        return [cell(told) for told in testimonies]  # type: ignore[operator]  # a function of one testimony

    columns = [
        table.measured("rank", texts(lambda told: str(told.rank)), 99),
        table.measured("process", texts(lambda told: scene.clean(told.process)), 80, right=False, most=18),
        table.measured("step", texts(lambda told: count(told.step)), 60),
        table.measured("sequence", texts(lambda told: count(told.sequence)), 70),
        table.measured(
            "waits in", texts(lambda told: scene.clean(told.operation) or UNKNOWN), 90, right=False, most=36
        ),
        table.measured("called at", texts(lambda told: _called_at(scene, told.user_call)), 85, right=False),
    ]
    columns = table.fitting(columns, width - 2, 2)
    rows = [table.body(columns, at, 2) for at in range(len(testimonies))]
    return [Line("  ").extend(row) for row in (table.head(columns, 2), *rows)]


def _called_at(scene: Scene, call: Call | None) -> str:
    if call is None:
        return UNKNOWN
    return fit(f"{scene.clean(place(call, 18, scene.folder))} {scene.clean(call.function)}", 30).rstrip()


def _where_it_is(scene: Scene, told: Testimony) -> list[str]:
    """Its place in the sequence of collectives, in words, as far as it is known."""
    words = [f"step {count(told.step)}"] if told.step is not None else []
    words += [f"sequence {count(told.sequence)}"] if told.sequence is not None else []
    words += [f"group {scene.clean(told.group)}"] if told.group not in ("", "0") else []
    return [*words, f"in {scene.clean(told.operation)}"] if told.operation else words


def _heading(scene: Scene, told: Testimony, width: int, blamed: bool) -> list[Line]:
    name = f"rank {told.rank}"
    who = ", ".join([name, scene.clean(told.host) or "host unknown", *_pid(told)])
    words = [who, scene.clean(told.process), *_where_it_is(scene, told)]
    first, *rest = wrap(" · ".join(words), width - 2)
    lines = [Line("■ " if blamed else "  ", "bad").add(name, "strong").add(first[cells(name) :], "text")]
    return lines + [Line("  ").add(text, "text") for text in rest]


def _pid(told: Testimony) -> list[str]:
    return [f"pid {told.pid}"] if told.pid is not None else []


def _label(scene: Scene, trace: Trace) -> Line:
    name = scene.clean(trace.thread)
    if trace.main:
        name = (
            "traceback, innermost call first" if name == "traceback" else "main thread, innermost call first"
        )
    else:
        name = f"thread {name}"
    return Line(" " * (INDENT - 1)).add(name, "dim")


def _silence(told: Testimony) -> str:
    if told.process == "stopped":
        return "stopped by a signal (SIGSTOP) or a debugger: it cannot answer"
    if told.process == "alive":
        return "it has not answered yet"
    if told.process == "silent":
        return "it does not answer"
    return "it could not say where it was"
