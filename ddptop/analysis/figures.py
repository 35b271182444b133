"""Complete steps to windows, history and the named straggler. In batches, which show nowhere."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis import detail, judge, metrics
from ddptop.analysis.members import NS
from ddptop.analysis.window import DetailWindow, StepWindow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.clocks import HostClocks
    from ddptop.analysis.frames import Column
    from ddptop.analysis.groups import Groups
    from ddptop.analysis.happenings import Log
    from ddptop.analysis.history import HistoryStore
    from ddptop.analysis.layouts import Layouts
    from ddptop.analysis.members import Member
    from ddptop.analysis.pairing import CompleteStep

BATCH_STEPS, BATCH_CELLS = 64, 2**18
"""Steps are worked off when there are so many of them, or so many integers in them: numpy's cost per call
is shared, and what waits and the arrays made of it stay at a few MB."""


class Figures:
    """What depends on complete steps alone."""

    def __init__(
        self,
        members: Sequence[Member],
        layouts: Layouts,
        history: HistoryStore,
        log: Log,
        window: int,
        *,
        clocks: HostClocks,
        groups: Groups,
    ) -> None:
        """`members` is the reducer's own list, which it changes in place."""
        self._clocks = clocks
        self._groups = groups
        self._members = members
        self._layouts = layouts
        self._history = history
        self._log = log
        self._window = window
        self.start_ns = 0
        """Unix nanoseconds from which history counts its time."""
        self.restart(0)

    def restart(self, world: int) -> None:
        """A new incarnation of the group: windows and names start again, the history goes on."""
        self.world = world
        self.steps = StepWindow(world, self._window)
        self.detail: DetailWindow | None = None
        self.loss = np.full(world, np.nan)
        """Each rank's last known loss among complete steps."""
        self.loss_told: NDArray[np.bool_] = np.zeros(world, bool)
        """Ranks that have told one: theirs may still be NaN."""
        self.straggler: int | None = None
        self.straggler_since_s = 0.0
        self._waiting: list[CompleteStep] = []
        self._cells = 0

    def take(self, step: CompleteStep) -> None:
        """Add the next complete step."""
        self._waiting.append(step)
        self._cells += self.world * (1 + len(step.rows[0].cells))
        if len(self._waiting) >= BATCH_STEPS or self._cells >= BATCH_CELLS:
            self.settle()

    def settle(self) -> None:
        """Work off all that was taken."""
        if not self._waiting:
            return
        steps, self._waiting, self._cells = self._waiting, [], 0
        with np.errstate(over="ignore", invalid="ignore"):  # a loss of 1e300 is infinite in float32
            self._settle(steps)

    def _settle(self, steps: list[CompleteStep]) -> None:
        columns = _columns(steps)
        losses, known = _losses(steps)
        for i in range(len(steps)):
            self.loss = np.where(known[i], losses[i], self.loss)
        self.loss_told = self.loss_told | known.any(axis=0)
        numbers = np.array([step.step for step in steps], np.float64)
        end_s = self._end_s(steps)
        wall = self.steps.add(numbers, end_s, columns, losses)
        count = known.sum(axis=1)
        total = np.where(known, losses, 0.0).sum(axis=1)
        nothing = np.full(len(steps), np.nan)
        points = {
            "step": numbers,
            "time_s": end_s,
            "loss_mean": np.divide(total, count, out=nothing.copy(), where=count > 0),
            "loss_min": np.fmin.reduce(losses, axis=1),
            "loss_max": np.fmax.reduce(losses, axis=1),
            "step_ms": wall,
            "wait_ms": nothing.copy(),
            "transfer_ms": nothing.copy(),
            "busbw_gbps": nothing.copy(),
        }
        kinds = [(self._layout_of(step), detail.launched(step)) for step in steps]
        for (layout, launched), run in groupby(range(len(steps)), key=kinds.__getitem__):
            if launched is not None:
                self._add_detail([*run], steps, layout, launched, columns, points)
        self._history.append(points)

    @staticmethod
    def _layout_of(step: CompleteStep) -> int:
        return max(batch.layout for batch in step.batches)

    def _end_s(self, steps: list[CompleteStep]) -> Column:
        """When rank 0 ended each step, in seconds since the run started."""
        hello = self._members[0].hello
        assert hello is not None  # it has reported a step
        shift = hello.unix_ns - hello.monotonic_ns - self.start_ns
        ends = [s.batches[0].base_ns + 1000 * (s.rows[0].begin_us + s.rows[0].wall_us) + shift for s in steps]
        return np.array(ends, np.float64) / NS

    def _add_detail(
        self,
        run: list[int],
        steps: list[CompleteStep],
        layout: int,
        launched: tuple[int, ...],
        columns: Column,
        points: dict[str, Column],
    ) -> None:
        """Consecutive detailed steps of one layout and launch sequence; `run` are their indices."""
        buckets = self._layouts.buckets(layout)
        if buckets is None or min(launched) < 0 or max(launched) >= len(buckets):
            return
        if self.detail is None or self.detail.layout != layout:
            self.detail = DetailWindow(self.world, self._window, layout, buckets)
            self._name(None, points["step"][run[0]], points["time_s"][run[0]])
        self.detail.buckets = buckets
        hellos = [member.hello for member in self._members if member.hello is not None]
        timing = detail.timing(
            [steps[i] for i in run],
            launched,
            lanes=metrics.lanes_of(hellos[0].backend),
            aligned=len({hello.host for hello in hellos}) == 1,
        )
        found = detail.figures(timing)
        first = self._history.end
        added = self.detail.columns_of(first + np.array(run), columns[:, run], launched, found)
        points["busbw_gbps"][run] = added.busbw
        at = 0
        while at < len(run):
            stop = min(len(run), at + judge.EVERY - self.detail.count % judge.EVERY)
            self.detail.add(added, at, stop)
            if self.detail.count % judge.EVERY == 0:
                newest = run[stop - 1]
                rank = judge.named(self.detail, self.detail.judged(first + newest + 1), self.straggler)
                self._name(rank, points["step"][newest], points["time_s"][newest])
            at = stop
        points["wait_ms"][run] = metrics.mean(found.exposed_wait)
        points["transfer_ms"][run] = metrics.mean(found.exposed - found.exposed_wait)

    def _name(self, rank: int | None, step: float, time_s: float) -> None:
        """Name a rank, or nobody, from here on."""
        if rank == self.straggler:
            return
        now_s = self.start_ns / NS + float(time_s)
        if self.straggler is not None:
            text = f"rank {self.straggler} no longer holds the others up"
            self._log.add(now_s, "straggler_end", text, rank=self.straggler, step=int(step))
        self.straggler, self.straggler_since_s = rank, now_s
        if rank is not None and self.detail is not None:
            found = judge.straggler(self.detail, self.detail.group.recent(judge.ENOUGH), rank)
            cause = f", {found.cause}" if found is not None and found.cause else ""
            text = f"straggler: rank {rank}{cause}, seen at step {int(step):,}"
            self._log.add(now_s, "straggler", text, severity="warning", rank=rank, step=int(step))


def _columns(steps: list[CompleteStep]) -> Column:
    """(wall and phases, n, ranks) in ms."""
    flat = np.array([row[1:6] for step in steps for row in step.rows], np.float64) / 1000.0
    wall, data, forward, backward, optimizer = flat.reshape(len(steps), -1, 5).transpose(2, 0, 1)
    other = wall - (data + forward + backward + optimizer)
    return np.stack([wall, data, forward, backward, optimizer, other])


def _losses(steps: list[CompleteStep]) -> tuple[Column, Column]:
    """(n, ranks) losses, NaN where not told, and whether they were told (a loss may itself be NaN)."""
    told = [[row.loss for row in step.rows] for step in steps]
    known = np.array([[loss is not None for loss in losses] for losses in told])
    return np.array(told, np.float64), known
