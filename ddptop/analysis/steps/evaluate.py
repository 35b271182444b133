"""Complete steps to windows, history and the named straggler. In batches, which show nowhere."""

from __future__ import annotations

from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ranks import NS
from ddptop.analysis.steps.clocks import TimerBounds
from ddptop.analysis.steps.evaluate_buckets import Detailed, Taken, kind_of
from ddptop.analysis.steps.kept import KeptSteps
from ddptop.analysis.steps.pairing import Splitter
from ddptop.analysis.steps.windows import StepWindow
from ddptop.analysis.straggler import rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.health.happenings import Log
    from ddptop.analysis.ranks import RankState
    from ddptop.analysis.steps.clocks import Comparison, HostClocks
    from ddptop.analysis.steps.evaluate_buckets import Kind
    from ddptop.analysis.steps.pairing import CompleteStep, Groups, Layouts, Scope
    from ddptop.analysis.steps.windows import DetailWindow
    from ddptop.frames.columns import Column, Indices
    from ddptop.frames.frame import Straggler
    from ddptop.frames.history import HistoryStore

BATCH_STEPS, BATCH_CELLS = 128, 2**18
"""Steps are worked off when there are so many of them, or so many integers in them: numpy's cost per call
is shared, and what waits and the arrays made of it stay at a few MB."""


class Figures:
    """What depends on complete steps alone."""

    def __init__(
        self,
        members: Sequence[RankState],
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
        self._members = members
        self._history = history
        self._log = log
        self._window = window
        self._timers = TimerBounds()
        self._splitter = Splitter(groups, layouts)
        self.start_ns = 0
        """Unix nanoseconds from which history counts its time."""
        self.restart(0)

    def restart(self, world: int) -> None:
        """A new incarnation of the group: windows and names start again, the history goes on."""
        self.world = world
        self.steps = StepWindow(world, self._window)
        self.loss = np.full(world, np.nan)
        """Each rank's last known loss among complete steps."""
        self.loss_told: NDArray[np.bool_] = np.zeros(world, bool)
        """Ranks that have told one: theirs may still be NaN."""
        self.straggler: int | None = None
        self.straggler_since_s = 0.0
        self.kept = KeptSteps()
        """The last detailed steps, row by row."""
        self._detailed = Detailed(world, self._window)
        self._contradicted = False
        self._splitter.restart(world)
        self._compared: tuple[int, int] | None = None
        self._comparisons: dict[Scope, Comparison] = {}
        self._waiting: list[Taken] = []
        self._cells = 0

    @property
    def detail(self) -> DetailWindow | None:
        """The last detailed steps; None before the first."""
        return self._detailed.window

    @property
    def contradicted(self) -> bool:
        """Whether the collectives contradict the hosts' clocks by more than their bound."""
        return self._contradicted

    def set_timer_bounds(self, rank: int, ready_us: float, end_us: float) -> None:
        """A rank tells the bounds of its timers (EVENT `timer`), for the steps completed from now on."""
        self._timers.take(rank, ready_us, end_us)

    def flagged(self, slots: Indices) -> Straggler | None:
        """The flagged rank with its figures over these detailed steps; None: nobody, or no longer so."""
        return None if self.detail is None else self._detailed.naming.straggler(self.detail, slots)

    def flagged_gain(self, straggler: Straggler, slots: Indices) -> Column | None:
        """(n,) ms by which each detailed step had been shorter without the flagged ranks' lateness.

        None where their process group is not all ranks: its steps are not those of the others; and where
        all of them are flagged: nobody is left to compare them with.
        """
        named = self._detailed.naming.now
        assert self.detail is not None and named is not None
        ranks = tuple(named.scope.ranks.index(rank) for rank in straggler.ranks or (straggler.rank,))
        if len(named.scope.ranks) < self.world or len(set(ranks)) >= self.world:
            return None
        return rules.gain(self.detail.scopes[named.scope], slots, ranks)[1]

    def take(self, step: CompleteStep) -> None:
        """Add the next complete step."""
        parts = self._splitter.split(step)
        version = self._splitter.version
        told = (self._clocks.version, self._timers.version)
        if told != self._compared or len(self._comparisons) > 2 * len(parts):
            self._compared, self._comparisons = told, {}
        compared = tuple(self._comparison(part.scope) for part in parts)
        self._waiting.append(Taken(step, parts, compared, version))
        self._cells += self.world * (1 + len(step.rows[0].cells))
        if len(self._waiting) >= BATCH_STEPS or self._cells >= BATCH_CELLS:
            self.settle()

    def _comparison(self, scope: Scope) -> Comparison:
        found = self._comparisons.get(scope)
        if found is None:
            members = [self._members[rank] for rank in scope.ranks]
            found = self._comparisons[scope] = self._timers.compare(scope.ranks, members, self._clocks)
        return found

    def settle(self) -> None:
        """Work off all that was taken."""
        if not self._waiting:
            return
        steps, self._waiting, self._cells = self._waiting, [], 0
        with np.errstate(over="ignore", invalid="ignore"):  # a loss of 1e300 is infinite in float32
            self._settle(steps)

    def _settle(self, taken: list[Taken]) -> None:
        steps = [one.step for one in taken]
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
        kinds = [kind_of(one) for one in taken]
        self.kept.take(taken, kinds)
        detailed = [i for i, kind in enumerate(kinds) if kind.launched]
        for kind, run in groupby(detailed, key=kinds.__getitem__):
            self._add_detail([*run], taken, kind, columns, points)
        self._history.append(points)

    def _end_s(self, steps: list[CompleteStep]) -> Column:
        """When rank 0 ended each step, in seconds since the run started."""
        hello = self._members[0].hello
        assert hello is not None  # it has reported a step
        shift = hello.unix_ns - hello.monotonic_ns - self.start_ns
        ends = [s.batches[0].base_ns + 1000 * (s.rows[0].begin_us + s.rows[0].wall_us) + shift for s in steps]
        return np.array(ends, np.float64) / NS

    def _add_detail(
        self, run: list[int], taken: list[Taken], kind: Kind, columns: Column, points: dict[str, Column]
    ) -> None:
        """Consecutive detailed steps of one kind; `run` are their indices."""
        steps, numbers, times = [taken[i] for i in run], points["step"], points["time_s"]
        detailed = self._detailed
        if detailed.needs_new_window(steps[0], kind):
            detailed.restart(steps[0], kind)
            self._name(numbers[run[0]], times[run[0]])
        hello = self._members[0].hello
        backend = hello.backend if hello is not None else ""
        places = self._history.end + np.array(run)
        prepared = detailed.prepare(steps, kind, backend, columns[:, run], places)
        at = 0
        while at < len(run):
            clock_free = self.detail is not None and self.detail.clock_free
            stop, looked = detailed.add(prepared, at, places, numbers[run])
            chunk = run[at:stop]
            wait, transfer, busbw = prepared.history(at, stop, clock_free=clock_free)
            points["wait_ms"][chunk], points["transfer_ms"][chunk] = wait, transfer
            points["busbw_gbps"][chunk] = busbw
            if looked:
                self._name(numbers[chunk[-1]], times[chunk[-1]])
                self._check_clocks(numbers[chunk[-1]], times[chunk[-1]])
            at = stop

    def _name(self, step: float, time_s: float) -> None:
        """Tell when another rank is named from here on, or nobody any more."""
        naming = self._detailed.naming
        rank = None if naming.now is None else naming.now.global_rank
        if rank == self.straggler:
            return
        now_s = self.start_ns / NS + float(time_s)
        if self.straggler is not None:
            text = f"straggler recovered: rank {self.straggler}"
            self._log.add(now_s, "straggler_end", text, rank=self.straggler, step=int(step))
        self.straggler, self.straggler_since_s = rank, now_s
        if rank is not None and self.detail is not None:
            found = self.flagged(self.detail.group.recent(rules.ENOUGH))
            cause = f", {found.cause}" if found is not None and found.cause else ""
            text = f"straggler: rank {rank}{cause}, seen at step {int(step):,}"
            self._log.add(now_s, "straggler", text, severity="warning", rank=rank, step=int(step))

    def _check_clocks(self, step: float, time_s: float) -> None:
        """Tell when the collectives begin to contradict the clocks: some rank saw an end before the last of
        the others had arrived, by more than offsets and timers can be wrong."""
        now = self.detail is not None and any(w.contradicted for w in self.detail.scopes.values())
        if now and not self._contradicted:
            now_s = self.start_ns / NS + float(time_s)
            text = "the hosts' clocks contradict the collectives by more than their bound: no rank is named"
            self._log.add(now_s, "clocks", text, severity="warning", step=int(step))
        self._contradicted = now


_PHASES_OF = itemgetter(*range(1, 6))
"""Wall and phases of a StepRow."""


def _columns(steps: list[CompleteStep]) -> Column:
    """(wall and phases, n, ranks) in ms."""
    rows = chain.from_iterable(step.rows for step in steps)
    flat = np.fromiter(chain.from_iterable(map(_PHASES_OF, rows)), np.float64) / 1000.0
    wall, data, forward, backward, optimizer = flat.reshape(len(steps), -1, 5).transpose(2, 0, 1)
    other = wall - (data + forward + backward + optimizer)
    return np.stack([wall, data, forward, backward, optimizer, other])


def _losses(steps: list[CompleteStep]) -> tuple[Column, Column]:
    """(n, ranks) losses, NaN where not told, and whether they were told (a loss may itself be NaN)."""
    told = [[row.loss for row in step.rows] for step in steps]
    known = np.array([[loss is not None for loss in losses] for losses in told])
    return np.array(told, np.float64), known
