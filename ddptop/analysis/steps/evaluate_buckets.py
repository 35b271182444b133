"""Detailed steps on their way into the windows, and the looks at these in which a rank is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.steps import bucket_times, formulas
from ddptop.analysis.steps.windows import DETAIL_SCALARS, DETAILED_BACK, DetailWindow
from ddptop.analysis.straggler import rules
from ddptop.analysis.straggler.flagged import Naming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.analysis.steps.bucket_times import StepFigures, Waits
    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.analysis.steps.pairing import CompleteStep, Part, Scope
    from ddptop.analysis.steps.windows import DetailColumns, ScopeColumns, ScopeWindow
    from ddptop.frames.columns import Column


class Taken(NamedTuple):
    """A complete step with what was known when it was complete: what comes later changes no figure of it."""

    step: CompleteStep
    parts: tuple[Part, ...]
    compared: tuple[Comparison, ...]
    """How the ranks of each part can be compared."""
    version: int
    """Of the process groups."""


class Kind(NamedTuple):
    """What consecutive steps must share to be worked off together."""

    version: int
    launched: tuple[tuple[int, tuple[int, ...], int, int, bool], ...]
    """Of each part that can be judged: its number, the buckets launched, layout, the identity of what is
    known of its buckets, and whether its ranks can be compared."""


def kind_of(taken: Taken) -> Kind:
    """With nothing launched where no process group can be judged."""
    found = []
    for i, (part, compared) in enumerate(zip(taken.parts, taken.compared, strict=True)):
        numbers = bucket_times.launched(part.step)
        if numbers is not None and min(numbers) >= 0 and max(numbers) < len(part.buckets):
            found.append((i, numbers, part.layout, id(part.buckets), compared.comparable))
    return Kind(taken.version, tuple(found))


class Judged(NamedTuple):
    """One process group in a run of steps."""

    window: ScopeWindow
    numbers: tuple[int, ...]
    timing: bucket_times.Timing
    found: StepFigures
    free: StepFigures | None
    """Without comparing clocks; None where all is on one host."""
    columns: ScopeColumns


class Prepared(NamedTuple):
    """Steps worked out and not yet added."""

    columns: DetailColumns
    scopes: dict[Scope, ScopeColumns]
    waits: Waits
    free: Waits
    """The same without comparing clocks, where there are several hosts."""

    def history(self, first: int, stop: int, *, clock_free: bool) -> tuple[Column, Column, Column]:
        """(stop - first,) wait and transfer of the steps, means over ranks in ms, and busbw."""
        waits = self.free if clock_free else self.waits
        wait, exposed = waits.exposed_wait[first:stop], waits.exposed[first:stop]
        busbw = self.columns.group[BUSBW_FREE if clock_free else BUSBW, first:stop]
        return formulas.mean(wait), formulas.mean(exposed - wait), busbw


BUSBW, BUSBW_FREE = DETAIL_SCALARS.index("busbw"), DETAIL_SCALARS.index("free_busbw")


class Detailed:
    """The detailed steps of a world."""

    def __init__(self, world: int, size: int) -> None:
        self.window: DetailWindow | None = None
        self.naming = Naming()
        self._world = world
        self._size = size
        self._version = -1
        self._newest = -1
        """Number of the newest detailed step."""

    def needs_new_window(self, taken: Taken, kind: Kind) -> bool:
        """Whether layouts or process groups are others than so far: baselines start again."""
        if self.window is None or kind.version != self._version:
            return True
        known = self.window.scopes
        for i, *_ in kind.launched:
            part = taken.parts[i]
            if part.scope in known and known[part.scope].layout != part.layout:
                return True
        return False

    def restart(self, taken: Taken, kind: Kind) -> None:
        """A new window."""
        several = any(compared.several_hosts for compared in taken.compared)
        self.window = DetailWindow(self._world, self._size, several_hosts=several)
        self.naming = Naming()
        self._version = kind.version

    def prepare(
        self, run: Sequence[Taken], kind: Kind, backend: str, columns: Column, points: Column
    ) -> Prepared:
        """Work out consecutive steps of one kind; (wall and PHASES, n, ranks) in ms, history points (n,).

        `backend`: of process groups that did not tell theirs.
        """
        window = self.window
        assert window is not None
        judged = [self._judge(run, i, numbers, backend, columns) for i, numbers, *_ in kind.launched]
        scopes = [one.window.scope for one in judged]
        if len(judged) == 1 and len(scopes[0].ranks) == self._world:
            waits = judged[0].found.waits
            free = None if judged[0].free is None else judged[0].free.waits
        else:
            united = [(one.window.scope.ranks, one.timing, one.found.met) for one in judged]
            waits, free = bucket_times.together(self._world, united), None
            if any(one.free is not None for one in judged):
                apart = [(one.window.scope.ranks, one.timing, (one.free or one.found).met) for one in judged]
                free = bucket_times.together(self._world, apart)
        parts = [(one.window, one.numbers, one.found, one.free) for one in judged]
        added = window.columns_of(points, columns, waits, free, parts)
        of_scopes = {one.window.scope: one.columns for one in judged}
        return Prepared(added, of_scopes, waits, waits if free is None else free)

    def _judge(
        self, run: Sequence[Taken], i: int, numbers: tuple[int, ...], backend: str, columns: Column
    ) -> Judged:
        """One process group over the run."""
        assert self.window is not None
        part, compared = run[0].parts[i], run[0].compared[i]
        several = compared.several_hosts
        window = self.window.scope(part.scope, part.layout, part.buckets, several_hosts=several)
        offsets = np.stack([taken.compared[i].offset_ns for taken in run]) if several else None
        steps = [taken.parts[i].step for taken in run]
        lanes = formulas.lanes_of(part.backend or backend)
        timing = bucket_times.timing(
            steps, numbers, lanes=lanes, aligned=compared.comparable, offset_ns=offsets
        )
        found = bucket_times.figures(timing)
        free = None
        if several:
            free = bucket_times.figures(bucket_times.apart(timing)) if compared.comparable else found
        wall = columns[0] if len(window.members) == self._world else columns[0][:, window.members]
        compared_each = [taken.compared[i] for taken in run]
        added = window.columns_of(wall, numbers, found, free, compared_each)
        return Judged(window, numbers, timing, found, free, added)

    def add(self, prepared: Prepared, first: int, points: Column, steps: Column) -> tuple[int, bool]:
        """Add prepared steps from `first` on, up to the next look or the end of the run.

        `points`, `steps`: (n,) history points and step numbers. Returns where it stopped, and if it judged.
        """
        window = self.window
        assert window is not None
        due = _look_is_due(steps[first:], self._newest)
        stop = min(
            len(steps),
            first + DETAILED_BACK - window.count % DETAILED_BACK,
            first + 1 + int(due.argmax()) if due.any() else len(steps),
        )
        window.add(prepared.columns, prepared.scopes, first, stop)
        self._newest = int(steps[stop - 1])
        if not due[stop - first - 1]:
            return stop, False
        slots = window.judged(int(points[stop - 1]) + 1)
        for scope in window.scopes.values():
            scope.compare_clocks(slots)
        self.naming.look(window, slots)
        return stop, True


def _look_is_due(steps: Column, before: int) -> Column:
    """(n,) whether ranks are judged after these detailed steps; `before`: the detailed step before them.

    By step number, not by how many were read: the looks are the same however a moment was reached.
    """
    previous = np.concatenate([[before], steps[:-1]])
    every = steps // np.maximum(steps - previous, 1) % rules.EVERY == rules.EVERY - 1
    return np.asarray(every | (steps // rules.EVERY_STEPS > previous // rules.EVERY_STEPS))
