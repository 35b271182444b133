"""What only some ranks have to tell: their GPU, and what the script logs of its own accord."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.tui.paint.line import Line, gather
from ddptop.tui.paint.numbers import UNKNOWN, count, fixed, known, size
from ddptop.tui.scene import Scene

if TYPE_CHECKING:
    from ddptop.analysis.frames import GpuFacts, LoggedScalar

MOST_LOGGED = 4
"""Names on a rank's page: what was measured comes first there."""


def rank_extras(scene: Scene, rank: int, width: int) -> list[Line]:
    """A line or two of the GPU, one of the logged values; nothing where nothing was told."""
    gpus = [facts for facts in scene.frame.gpus if facts.rank == rank]
    lines = [gather(parts, width) for facts in gpus for parts in _gpu(scene, facts)]
    lines += [_all_logged(scene, rank, width)] if scene.frame.logged else []
    return [line for line in lines if line.width]


def _all_logged(scene: Scene, rank: int, width: int) -> Line:
    """As many names as fit, and how many more there are."""
    told = scene.frame.logged
    line = Line()
    for shown in range(min(MOST_LOGGED, len(told)), 0, -1):
        more = Line(f"and {len(told) - shown} more" if len(told) > shown else "", "faint")
        parts = [Line("logged", "dim"), *(_logged(scene, one, rank) for one in told[:shown]), more]
        line = gather(parts, width)
        if line.width == gather(parts, 10 * width).width:
            break
    return line


def _gpu(scene: Scene, facts: GpuFacts) -> list[list[Line]]:
    clock = f"{count(facts.clock_mhz)} of {count(facts.max_clock_mhz)} MHz"
    throttle = scene.clean(facts.throttle or "")
    first = [
        Line("gpu ", "dim").add(fixed(facts.util_pct, 0, "%")),
        Line("memory ", "dim").add(f"{size(facts.mem_bytes)} of {size(facts.mem_total_bytes)}"),
        Line(fixed(facts.temp_c, 0, " °C")) if known(facts.temp_c) else Line(),
        Line(fixed(facts.power_w, 0, " W")) if known(facts.power_w) else Line(),
        Line(clock) if facts.clock_mhz is not None else Line(),
        Line("▲ ", "warn").add(f"held down: {throttle}") if throttle else Line(),
    ]
    second = [
        Line("torch holds ", "dim").add(size(facts.allocated_bytes)).add(f" of {size(facts.reserved_bytes)}"),
        Line("peak ", "dim").add(size(facts.peak_bytes)),
        Line("▲ ", "warn").add(f"{count(facts.retries)} allocations had to be retried")
        if facts.retries
        else Line(),
    ]
    told = facts.util_pct is not None or facts.mem_bytes is not None
    return [first if told else [], second if facts.allocated_bytes is not None else []]


def _logged(scene: Scene, one: LoggedScalar, rank: int) -> Line:
    """This rank's value, and the mean of those that logged it."""
    focus = scene.frame.focus
    own = one.focus if focus is not None and focus.rank == rank else None
    line = Line(f"{scene.clean(one.name)} ", "dim").add(_short(own), "strong")
    return line.add(f" (mean {_short(one.mean)})", "faint")


def _short(value: float | None) -> str:
    return f"{value:.4g}" if known(value) else UNKNOWN
