"""What happened, newest first, on as many lines as there is room for."""

from __future__ import annotations

from collections.abc import Sequence

from ddptop.analysis.frames import Alert, Happening
from ddptop.tui.paint.line import Line
from ddptop.tui.paint.numbers import age, clock, count
from ddptop.tui.paint.signs import of_severity
from ddptop.tui.paint.trouble import kind_words
from ddptop.tui.scene import Scene

ASIDE = 4
"""Cells between two events on one line."""


def event_lines(scene: Scene, width: int, height: int) -> list[Line]:
    """What the source says and the header does not; then what happened, the newest first.

    One line alone holds two events where they fit.
    """
    said = scene.status if scene.status != f"the run has {scene.frame.run.state}" else None
    lines = [Line("! ", "warn").add(scene.clean(said), "text").cut(width)] if said else []
    happenings = list(reversed(scene.frame.happenings))
    if height == 1 and not lines and happenings:
        line = happening(scene, happenings[0], short=True).cut(width)
        for other in happenings[1:2]:
            second = happening(scene, other, short=True)
            if line.width + ASIDE + second.width <= width:
                line.pad(width - second.width).extend(second)
        return [line]
    lines += [happening(scene, event).cut(width) for event in happenings[: height - len(lines)]]
    return lines[:height] or [Line("nothing has happened yet", "faint")]


def texts_of(events: Sequence[Alert | Happening]) -> list[str]:
    """What a filter looks into, in lower case."""
    return [
        f"{event.kind} {kind_words(event.kind)} {event.severity} {event.message} "
        f"{f'rank {event.rank}' if event.rank is not None else ''} "
        f"{f'step {event.step}' if event.step is not None else ''}".lower()
        for event in events
    ]


def happening(scene: Scene, event: Happening, short: bool = False) -> Line:
    """Time, sign, message and, where it tells more, the step."""
    sign, role = of_severity(event.severity, event.kind)
    line = Line(clock(event.unix_s, seconds=not short), "dim").add(f" {sign} ", role)
    line.add(scene.clean(event.message))
    if event.step is not None and "step" not in event.message and not short:
        line.add(f"  step {count(event.step)}", "faint")
    return line


def alert(scene: Scene, held: Alert, short: bool = False) -> Line:
    """A condition that holds now, and for how long; `short` on a narrow screen."""
    sign, role = of_severity(held.severity, held.kind)
    lasts = age(scene.frame.unix_s - held.since_s)
    when = (
        f"{clock(held.since_s, seconds=False)}, {lasts}" if short else f"since {clock(held.since_s)}, {lasts}"
    )
    line = Line(f"{sign} ", role).add(f"{when}  ", "dim")
    line.add(scene.clean(held.message), "bad" if role == "bad" else "strong")
    if held.step is not None and "step" not in held.message and not short:
        line.add(f"  step {count(held.step)}", "faint")
    return line
