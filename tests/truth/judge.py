"""Compares the verdicts over a recording with what the script stamped, window by window."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddptop.analysis.reducer import Reducer, raise_again
from ddptop.protocol.message_run import MessageRun
from ddptop.protocol.messages import Received
from tests.truth.rows import Row

EVERY = 5
"""Steps between two frames, at least."""

CALM = 0.05
"""What-if figures are compared where the even windows before and after differ by less than this share."""

BELOW = ("cpu", "gc", "uneven_work")
"""Causes in whatever place: the verdict has them as its place."""

WINDOW = 100
"""Steps that a frame's figures are medians over."""

KEPT = 256
"""Steps in which a change of the verdict is searched: more than between two frames."""

FIRST = 10
"""Steps at the begin of a window with which what-if figures are not compared."""


@dataclass
class Stamps:
    """What the script did: a row per step, a column per rank, in ms."""

    header: dict[str, Any]
    wall: Any
    late: Any
    backward: Any = None
    """None: not known."""

    @classmethod
    def read(cls, folder: Path) -> Stamps:
        """Of the files of all ranks."""
        paths = sorted(folder.glob("rank-*.jsonl"))
        files = [[json.loads(line) for line in path.read_text().splitlines()] for path in paths]
        steps = min(len(lines) for lines in files) - 1
        columns = (
            np.array([[line.get(name, np.nan) for line in lines[1 : steps + 1]] for lines in files]).T
            for name in ("wall_ms", "late_ms", "backward_ms")
        )
        return cls(files[0][0], *columns)

    @property
    def size(self) -> int:
        """Steps of a window."""
        return int(self.header["spec"]["steps"])

    def windows(self) -> int:
        """Whole windows."""
        return len(self.wall) // self.size

    def ranks(self, window: int) -> list[int]:
        """The late ranks."""
        late = self.header["late"]
        return list(late[window]) if window < len(late) else []

    def median_wall(self, begin: int, end: int) -> float:
        """Median over the steps of the median over the ranks."""
        return float(np.median(np.median(self.wall[begin:end], axis=1)))

    def known_ms(self, row: Row, begin: int, end: int) -> float | None:
        """The median of these steps without what the ranks were late, or with all communication hidden.

        None: it is not known, because ranks that compute take time from each other.
        """
        if not row.asleep_ms or self.backward is None:
            return None
        wall, late = self.wall[begin:end], self.late[begin:end]
        own = wall - self.backward[begin:end]
        if row.kind == "no_sync":
            silent = np.arange(len(self.wall)) // self.size % 2 == 1
            return float(np.median(own.max(axis=1)) + np.median(self.backward[silent]))
        gained = own.max(axis=1) - (own - late).max(axis=1)
        return float(np.median(np.median(wall, axis=1) - gained))


class WhatIf(NamedTuple):
    """A what-if figure and its interval of 95 %, in ms; NaN: unknown."""

    ms: float
    low_ms: float
    high_ms: float

    def holds(self, truth_ms: float) -> bool:
        """Whether the interval holds the truth."""
        return bool(self.low_ms <= truth_ms <= self.high_ms)


UNKNOWN = WhatIf(float("nan"), float("nan"), float("nan"))


class Look(NamedTuple):
    """A frame: what was flagged, and the figures that are compared."""

    step: int
    rank: int | None
    ranks: tuple[int, ...] = ()
    pattern: str | None = None
    cause: str | None = None
    place: str | None = None
    late_ms: float = float("nan")
    part_ms: float = float("nan")
    """The part of it in the phase that is the cause; the whole for mixed causes."""
    step_ms: float = float("nan")
    no_straggler: WhatIf = UNKNOWN
    no_exposed: WhatIf = UNKNOWN
    disagrees: bool = False
    detail_every: int | None = None
    changed: int = 0
    """The step whose evaluation made it what it is."""


def looks(records: Iterable[Received], every: int = EVERY) -> list[Look]:
    """A frame whenever `every` more steps are complete."""
    reducer, seen, newest, cursor = Reducer(), [], -1, 0
    run, n_fed = MessageRun.of([*records]), 0
    while n_fed < len(run):
        n_fed = reducer.feed_run(run, n_fed, raise_again, stop_step=newest + every)
        step = reducer.state.complete_step
        if step is None or step < newest + every:
            continue
        newest = step
        frame = reducer.frame(int(run.heads[0, n_fed - 1]), cursor=cursor)
        cursor = frame.history.start + len(frame.history.step)
        flagged, group = frame.straggler, frame.group
        step_ms = float("nan") if group.step_ms_p50 is None else group.step_ms_p50
        figures = (
            step_ms,
            _what_if(group.no_straggler_ms, group.no_straggler_low_ms, group.no_straggler_high_ms),
            _what_if(group.no_exposed_comm_ms, group.no_exposed_comm_low_ms, group.no_exposed_comm_high_ms),
        )
        detail_every, changed = frame.overhead.detail_every, _changed(reducer)
        if flagged is None:
            none = (None, (), None, None, None, float("nan"), float("nan"))
            seen.append(Look(step, *none, *figures, False, detail_every, changed))
            continue
        ranks, place = flagged.ranks or (flagged.rank,), getattr(flagged, "place", None)
        part = flagged.parts_ms.get(flagged.cause, flagged.lateness_ms)  # type: ignore[call-overload]
        head = (step, flagged.rank, ranks, flagged.pattern, flagged.cause, place, flagged.lateness_ms, part)
        seen.append(Look(*head, *figures, bool(getattr(flagged, "disagrees", False)), detail_every, changed))
    return seen


def _changed(reducer: Reducer) -> int:
    """The number of the step at which the verdict of every step's own times last changed; 0: before those
    that are kept."""
    figures = reducer.state.figures
    since = figures.flags.changes[-1].since
    kept = figures.steps.group.recent(KEPT)
    return int(figures.steps.group.of("number", np.array([since]))[0]) if since in kept else 0


def _what_if(*figures: float | None) -> WhatIf:
    return WhatIf(*(float("nan") if ms is None else ms for ms in figures))


@dataclass
class Window:
    """One window with a fault."""

    number: int
    ranks: list[int]
    flagged_after: int | None = None
    """Steps from the onset to the first look at which a late rank is flagged."""
    cleared_after: int | None = None
    """Steps from the end to the first look at which none of them is flagged."""
    rule_flagged_after: int | None = None
    """Likewise to the evaluation that flags it. Ranks report four times a second: frames are later."""
    rule_cleared_after: int | None = None
    cause_right: bool | None = None
    cause: str = ""
    all_ranks: bool | None = None
    """Whether exactly the late ranks are flagged."""
    wrong: int = 0
    """Looks at which another rank is flagged."""
    flips: int = 0
    """Times that the flag of a late rank is dropped or moves, before the window's end."""
    size_error: float | None = None
    """Of the part of the cause, as a share of the stamps."""
    excess_error: float | None = None
    """Of the lateness: it has what the ranks lose or win otherwise as well."""
    what_if_error: float | None = None
    """Of the step without the straggler (or with all communication hidden), as a share."""
    known_error: float | None = None
    """Likewise, against `Stamps.known_ms` of the same steps."""
    held: bool | None = None
    """Whether the interval of the what-if figure holds that."""
    disagrees: int = 0


@dataclass
class Judged:
    """All windows of a run."""

    row: Row
    step_ms: float
    how: str
    faults: list[Window] = field(default_factory=list)
    even: int = 0
    """Windows without a fault."""
    even_looks: int = 0
    false_flags: list[tuple[int, int, str]] = field(default_factory=list)
    """Flags raised in even windows: (step, rank, pattern)."""
    false_looks: int = 0
    detail_every: list[int] = field(default_factory=list)
    """Of each frame: bucket detail is taken in one of so many steps."""


def judge(row: Row, stamps: Stamps, seen: list[Look]) -> Judged:
    """Compare the frames with the stamps."""
    size, count = stamps.size, stamps.windows()
    even = [w for w in range(count) if not stamps.ranks(w) and (row.kind != "no_sync" or w % 2 == 0)]
    walls = np.median(np.concatenate([stamps.wall[w * size : (w + 1) * size] for w in even]))
    judged = Judged(row, float(walls), stamps.header["how"])
    judged.detail_every = [look.detail_every for look in seen if look.detail_every is not None]
    held: set[int] = set()  # late in the fault window before, and flagged since then
    for number in range(count):
        begin, end = number * size, (number + 1) * size
        here = [look for look in seen if begin <= look.step < end]
        if number in even:
            judged.even += 1
            judged.even_looks += len(here)
            raised: int | None = None
            for look in here:
                if look.rank not in held:
                    held = set()
                if look.rank is not None and not held:
                    judged.false_looks += 1
                    if look.rank != raised:
                        judged.false_flags.append((look.step, look.rank, str(look.pattern)))
                raised = look.rank
            held = set()
            continue
        after = [look for look in seen if end <= look.step < end + size]
        if row.kind == "no_sync":
            judged.faults.append(Window(number, [], what_if_error=_overlapped(stamps, seen, number)))
            before = [look for look in seen if look.step < begin]
            _compare(judged.faults[-1], row, stamps, before[-1:])
        else:
            judged.faults.append(_window(row, stamps, number, here, after))
            _compare(judged.faults[-1], row, stamps, here[-1:])
        held = {one for one in (*stamps.ranks(number), here[-1].rank if here else None) if one is not None}
    return judged


def _window(row: Row, stamps: Stamps, number: int, here: list[Look], after: list[Look]) -> Window:
    size = stamps.size
    begin, end = number * size, (number + 1) * size
    ranks = [*range(stamps.wall.shape[1])] if row.rotating else stamps.ranks(number)
    window = Window(number, ranks)
    right = [look for look in here if look.rank in ranks and (not row.rotating or look.pattern == "rotating")]
    window.wrong = sum(look.rank is not None and look.rank not in ranks for look in here)
    window.disagrees = sum(look.disagrees for look in here)
    window.flips = sum(a.rank in ranks and b.rank != a.rank for a, b in pairwise(here))
    if not right:
        return window
    window.flagged_after = right[0].step - begin + 1
    clear = next((look for look in after if look.rank not in ranks), None)
    window.rule_flagged_after = right[0].changed - begin + 1
    if clear is not None:
        window.cleared_after, window.rule_cleared_after = clear.step - end + 1, clear.changed - end + 1
    last = right[-1]
    window.cause = last.place or str(last.cause)
    named = row.place if last.place and row.cause not in BELOW else row.cause
    window.cause_right = None if row.cause is None else window.cause == named
    window.all_ranks = set(last.ranks) == set(ranks)
    over = stamps.late[max(begin, last.step - WINDOW + 1) : last.step + 1]
    over = over.max(axis=1) if row.rotating else over[:, last.rank]
    if (over > 0).any() and row.kind == "sleep":
        truth = float(np.median(over[over > 0]))
        window.size_error = abs(last.part_ms - truth) / truth
        window.excess_error = abs(last.late_ms - truth) / truth
    window.what_if_error = _between(stamps, number, here[-1].no_straggler.ms)
    return window


def _compare(window: Window, row: Row, stamps: Stamps, newest: list[Look]) -> None:
    """The what-if figure of a frame with what is known of its steps."""
    for look in newest:
        known_ms = stamps.known_ms(row, max(0, look.step + 1 - WINDOW), look.step + 1)
        figure = look.no_exposed if row.kind == "no_sync" else look.no_straggler
        if known_ms is not None and np.isfinite(figure.ms):
            window.known_error = abs(figure.ms - known_ms) / known_ms
            window.held = figure.holds(known_ms)


def _between(stamps: Stamps, number: int, figure: float) -> float | None:
    """Error of the step without the fault, against the even windows around; None: they differ too much."""
    size = stamps.size
    if number + 2 > stamps.windows() or number < 1 or not np.isfinite(figure):
        return None
    before = stamps.median_wall((number - 1) * size + size - WINDOW, number * size)
    after = stamps.median_wall((number + 1) * size + FIRST, (number + 2) * size)
    truth = (before + after) / 2
    return abs(figure - truth) / truth if abs(before - after) < CALM * truth else None


def _overlapped(stamps: Stamps, seen: list[Look], number: int) -> float | None:
    """Error of the step with all communication hidden, against a window without communication.

    There the ranks do not wait for each other: a step of the group lasts as long as its longest.
    """
    size = stamps.size
    begin, end = number * size + FIRST, (number + 1) * size
    truth = float(np.median(stamps.wall[begin:end].max(axis=1)))
    figures = []
    for last in (number * size - 1, (number + 2) * size - 1):
        found = [look.no_exposed.ms for look in seen if last - EVERY * 6 < look.step <= last]
        figures += found[-1:]
    return abs(float(np.mean(figures)) - truth) / truth if len(figures) == 2 else None
