"""Evaluates complete steps in batches, into windows, history and the flagged straggler."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.ledger.rare_events import RareEvents
from ddptop.analysis.steps.bucket_times import backward_passes
from ddptop.analysis.steps.complete_steps import CompleteStep, CompleteSteps, columns_of
from ddptop.analysis.steps.evaluate_buckets import (
    AddedDetail,
    EvaluatedDetail,
    add_detail,
    evaluate_detail,
    kinds_of_steps,
    needs_new_window,
    rules_are_due,
)
from ddptop.analysis.steps.kept import DividedStep, Division, Kind, Splitter
from ddptop.analysis.steps.own_times import OWN_COLUMNS, PART_COLUMNS, compute_own_times
from ddptop.analysis.steps.pairing import begins_of_runs
from ddptop.analysis.steps.windows import (
    BATCH,
    BATCH_CELLS,
    MANY_RANKS,
    OWN_STEPS,
    ROW_INTEGERS,
    DetailWindow,
)
from ddptop.analysis.straggler.agreement import agreements, arrivals_disagree
from ddptop.analysis.straggler.arrival_flags import find_straggler, flag_by_arrivals
from ddptop.analysis.straggler.arrival_rules import FLAG_STEPS
from ddptop.analysis.straggler.cost import measure_straggler, shown_place
from ddptop.analysis.straggler.own_time_flags import StepFlagging
from ddptop.analysis.straggler.own_time_rules import EVERY
from ddptop.frames.causes import cause_phrase
from ddptop.frames.conditions import say
from ddptop.frames.phrases import blamed, which_hosts
from ddptop.frames.statistics import mean, median, reduce_rows
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Flag
from ddptop.protocol.step_columns import BEGIN, FLAGS, MICRO_STEPS, WALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from ddptop.analysis.state import RunState
    from ddptop.analysis.steps.clocks import Comparison
    from ddptop.analysis.steps.complete_steps import StepBlock
    from ddptop.analysis.steps.evaluate_buckets import DetailFigures
    from ddptop.analysis.steps.groups import Scope
    from ddptop.analysis.steps.kept import Part, Peers
    from ddptop.frames.columns import Column, Indices, Mask
    from ddptop.frames.frame import Straggler
    from ddptop.protocol.step_columns import Numbers

    Integers = NDArray[np.int64]


class EvaluatedSteps(NamedTuple):
    """A batch of n complete steps with their figures, each step by itself; times in ms."""

    divided: list[DividedStep]
    block: StepBlock
    columns: Column
    """(wall and PHASES, n, ranks)."""
    own: Column | None
    """(OWN_COLUMNS, n, ranks) and `parts` (PART_COLUMNS, n, ranks); None: no row has an `OwnTime`."""
    parts: Column | None
    points: dict[str, Column]
    """(n,) each: the figures of the group, by the names of `History`."""
    detail: list[EvaluatedDetail]


class _Waiting(NamedTuple):
    """Complete steps that wait for their evaluation, divided by process group in the same way."""

    steps: CompleteSteps | CompleteStep
    """One step where it is divided among several groups."""
    division: Division
    of_parts: tuple[CompleteStep, ...] | None
    """As in `DividedStep`; None: all ranks are one part."""

    @property
    def n_steps(self) -> int:
        """How many steps they are."""
        return 1 if isinstance(self.steps, CompleteStep) else self.steps.n_steps


class _Batch:
    """n complete steps that are evaluated together."""

    def __init__(self, waiting: Sequence[_Waiting]) -> None:
        self.block = columns_of([entry.steps for entry in waiting])
        self.divisions: list[Division] = []
        """(n,)."""
        self.runs_of_peers: list[tuple[slice, list[Peers]]] = []
        """Consecutive steps within whose process groups own times are compared alike, and these groups."""
        for _, alike in groupby(waiting, key=lambda entry: id(entry.division.peers)):
            begin = len(self.divisions)
            for entry in alike:
                self.divisions += [entry.division] * entry.n_steps
            self.runs_of_peers.append((slice(begin, len(self.divisions)), self.divisions[-1].peers))
        numbers = [
            [entry.steps.step] if isinstance(entry.steps, CompleteStep) else entry.steps.numbers
            for entry in waiting
        ]
        self.numbers: Column = np.concatenate(numbers).astype(np.float64)
        """(n,)."""
        ends = np.cumsum([entry.n_steps for entry in waiting])
        self._of_parts = {
            int(end) - 1: entry.of_parts
            for end, entry in zip(ends, waiting, strict=True)
            if entry.of_parts is not None
        }
        self._divided: dict[int, DividedStep] = {}

    def divided(self, number: int) -> DividedStep:
        """One of the steps."""
        if number not in self._divided:
            step = CompleteStep(int(self.numbers[number]), self.block, number)
            of_parts = self._of_parts.get(number)
            self._divided[number] = DividedStep(
                step, (step,) if of_parts is None else of_parts, self.divisions[number]
            )
        return self._divided[number]


class StepEvaluation:
    """Evaluates complete steps into the state's `figures` and history."""

    def __init__(self, state: RunState) -> None:
        self.on_steps: Callable[[EvaluatedSteps], None] | None = None
        """Called with every batch: an export takes the figures of every step, which are not kept for long."""
        self.for_views = True  # whether steps are kept for timelines, and excess for charts of a rank
        self._state = state
        self._figures = state.figures
        self._splitter = Splitter(state.groups, state.layouts)
        self._compared: tuple[int, int] | None = None
        self._comparisons: dict[Scope, Comparison] = {}
        self._last_scope: Scope | None = None
        """Scope of the first part of the newest step; below, how its parts were compared."""
        self._last_compared: tuple[Comparison, ...] = ()
        self._peers: list[Peers] | None = None
        self._flagging = StepFlagging(state.figures.flags)
        self._rare_events = RareEvents(state)
        self._compared_ranks: list[Indices] = []
        self._slots: Indices = np.arange(0)
        """Slot in the window of each step of this batch; of a step that is not in it the slot before."""
        self._waiting: list[_Waiting] = []
        self._completed_ns: list[Integers] = []
        """When each of them became complete, on the collector's clock."""
        self.n_waiting = 0
        """Complete steps that wait to be evaluated."""
        self._cells = 0
        """Cells of these steps."""

    def take(self, steps: CompleteSteps, t_ns: Integers) -> None:
        """Add the next complete steps; `t_ns`: (n,) when each became complete, on the collector's clock."""
        state = self._state
        after = state.ledger.resumes_after
        if after is not None:
            n_before = int(np.searchsorted(steps.numbers, after, side="right"))
            if n_before < steps.n_steps:  # a batch that is evaluated lies before it or behind it
                if n_before:
                    self.take(steps.part(0, n_before), t_ns[:n_before])
                self.settle()
                steps, t_ns = steps.part(n_before, steps.n_steps), t_ns[n_before:]
        if self._figures is not state.figures:  # ranks restarted; no step from before is waiting
            self._figures = state.figures
            self._splitter.restart(state.figures.world)
            self._compared = self._peers = None
            self._flagging = StepFlagging(state.figures.flags)
        self._splitter.update()
        cells = self._figures.world * (ROW_INTEGERS + steps.cells_of_first)
        n_cells = int(cells.sum())
        if self.n_waiting + steps.n_steps < BATCH and self._cells + n_cells < BATCH_CELLS:
            layout = int(steps.largest_layout[0])
            only = self._splitter.only_part(layout)
            if only is not None and (steps.largest_layout == layout).all():  # usually
                self._wait([self._wait_undivided(steps, only)], t_ns, n_cells)
                return
        edges = [*begins_of_runs(steps.largest_layout).tolist(), steps.n_steps]
        for first, stop in pairwise(edges):
            only = self._splitter.only_part(int(steps.largest_layout[first]))
            begin = first
            while begin < stop:
                room = int(np.searchsorted(self._cells + np.cumsum(cells[begin:stop]), BATCH_CELLS)) + 1
                end = min(stop, begin + room, begin + BATCH - self.n_waiting)
                some_steps = steps.part(begin, end)
                waiting = (
                    [*self._divide_by_group(some_steps)]
                    if only is None
                    else [self._wait_undivided(some_steps, only)]
                )
                self._wait(waiting, t_ns[begin:end], int(cells[begin:end].sum()))
                begin = end
                if self.n_waiting >= BATCH or self._cells >= BATCH_CELLS:
                    self.settle()

    def _wait(self, waiting: list[_Waiting], t_ns: Integers, n_cells: int) -> None:
        """Keep steps until they are evaluated."""
        self._waiting += waiting
        self._completed_ns.append(t_ns)
        self.n_waiting += len(t_ns)
        self._cells += n_cells

    def _wait_undivided(self, steps: CompleteSteps, part: Part) -> _Waiting:
        """Steps in which all ranks are one part."""
        return _Waiting(steps, self._make_division((part,)), None)

    def _divide_by_group(self, steps: CompleteSteps) -> Iterator[_Waiting]:
        """Steps that are divided among several process groups."""
        for place, number in enumerate(steps.numbers.tolist()):
            step = CompleteStep(number, columns_of([steps.part(place, place + 1)]))
            parts, of_parts = [], []
            for part, of_part in self._splitter.split(step):
                parts.append(part)
                of_parts.append(of_part)
            yield _Waiting(step, self._make_division(tuple(parts)), tuple(of_parts))

    def _make_division(self, parts: tuple[Part, ...]) -> Division:
        return Division(parts, self._compare(parts), self._splitter.version, self._splitter.peers)

    def _compare(self, parts: tuple[Part, ...]) -> tuple[Comparison, ...]:
        """How the ranks of each part can be compared at this moment."""
        state = self._state
        versions = (state.clocks.version, state.timers.version)
        before, self._compared = self._compared, versions
        if before is None or before[1] != versions[1] or len(self._comparisons) > 2 * len(parts):
            self._comparisons = {}
        elif before[0] != versions[0]:
            self._comparisons = {
                scope: comparison.with_clocks(state.clocks) for scope, comparison in self._comparisons.items()
            }
        elif len(parts) == 1 and parts[0].scope is self._last_scope:  # usually; a scope takes long to hash
            return self._last_compared
        self._last_scope = parts[0].scope if parts else None
        self._last_compared = tuple([self._find_comparison(part.scope) for part in parts])
        return self._last_compared

    def _find_comparison(self, scope: Scope) -> Comparison:
        comparison = self._comparisons.get(scope)
        if comparison is None:
            self._comparisons[scope] = comparison = self.compare_ranks(scope)
        return comparison

    def compare_ranks(self, scope: Scope) -> Comparison:
        """How the ranks of a process group can be compared now."""
        hellos = [self._state.hello(rank) for rank in scope.ranks]
        hosts = [hello.host if hello is not None else "" for hello in hellos]
        return self._state.timers.compare(scope.ranks, hosts, self._state.clocks)

    def settle(self) -> None:
        """Evaluate all steps that wait."""
        if not self._waiting:
            return
        waiting, self._waiting, self.n_waiting, self._cells = self._waiting, [], 0, 0
        completed_ns, self._completed_ns = np.concatenate(self._completed_ns), []
        with np.errstate(over="ignore", invalid="ignore"):  # a loss of 1e300 is infinite in float32
            self._evaluate(_Batch(waiting), completed_ns)

    def _evaluate(self, batch: _Batch, completed_ns: Integers) -> None:
        """Evaluate n steps; `completed_ns`: (n,) when each became complete, on the collector's clock."""
        figures, block, numbers = self._figures, batch.block, batch.numbers
        shadow = block.shadow
        losses, is_known = self._take_losses(block, numbers, completed_ns)
        columns, end_s = _times_ms(block, shadow), self._end_s(block)
        own, parts = compute_own_times(block, columns, batch.runs_of_peers)
        detailed = np.flatnonzero(block.detailed).tolist()
        kinds = kinds_of_steps(block, {index: batch.divided(index) for index in detailed}) if detailed else {}
        if parts is not None:
            _divide_each_pass(batch, kinds, parts)
        dear = self._state.ledger.take(numbers, batch.runs_of_peers, block, columns, parts, end_s)
        if parts is not None:  # else waits are known of sampled steps only
            self._rare_events.take(dear, numbers, end_s)
        exposed, step_parts = _step_parts(columns, parts)
        wall, known_phases = median(columns[0]), ~reduce_rows(np.logical_or, shadow)
        figures.recorded_steps.take(numbers, known_phases)
        every = figures.recorded_steps.every
        figures.shadow_cost.take(numbers, wall, shadow, np.array(block.detailed), every)
        self._check_no_sync(block.integers[FLAGS], numbers, end_s)
        self._slots = figures.steps.ranks.count - 1 + np.cumsum(known_phases)
        recorded = np.flatnonzero(known_phases)
        if len(recorded):
            point = np.float64(self._state.history.end) + recorded
            part = recorded if len(recorded) < len(numbers) else slice(None)  # usually all: nothing is copied
            scalars = (exposed[0][part], exposed[1][part], point)
            figures.steps.add(numbers[part], end_s[part], columns[:, part], losses[part], scalars)
            figures.steps.add_own(*(None if times is None else times[:, part] for times in (own, parts)))
            self._flag_by_own_times(batch.divisions, recorded, numbers[part], end_s[part])
            if self.for_views:
                figures.minutes.add(
                    end_s[part], None if own is None else own[OWN_COLUMNS.index("excess"), part]
                )
        points: dict[str, Column] = {
            "step": numbers,
            "time_s": end_s,
            **_loss_points(losses, is_known),
            "step_ms": wall,
            "busbw_gbps": np.full(len(numbers), np.nan),
            **step_parts,
        }
        waited = None if parts is None else parts[PART_COLUMNS.index("cpu")].copy()
        exposed_of_passes = _find_exposed_of_passes(block, parts)
        for_export = (own, parts) if self.on_steps is not None else (None, None)
        del own, parts  # of many ranks they take as much as bucket detail does next
        detail: list[EvaluatedDetail] = []
        for kind, run in groupby(kinds, key=kinds.__getitem__):
            detail += self._add_detail([*run], batch, kind, columns, points, exposed_of_passes)
        if self.for_views and len(recorded):
            self._keep_activities(batch, kinds, known_phases)
        self._state.history.append(points)
        ends, even = end_s + self._state.started_s, figures.even(self._slots)
        figures.pace.take(self._state.log, numbers, wall, waited, ends, even)
        if self.on_steps is not None:
            divided = [*map(batch.divided, range(len(numbers)))]
            self.on_steps(EvaluatedSteps(divided, block, columns, *for_export, points, detail))

    def _take_losses(self, block: StepBlock, numbers: Column, completed_ns: Integers) -> tuple[Column, Mask]:
        """Take the losses of n steps; returns them, and which of them are known, as `_read_losses`."""
        figures = self._figures
        losses, is_known = self._read_losses(block, int(numbers[-1]))
        newest = len(numbers) - 1 - is_known[::-1].argmax(axis=0)
        last, has = losses[newest, np.arange(is_known.shape[1])], np.asarray(is_known.any(axis=0))
        figures.loss, figures.has_loss = np.where(has, last, figures.loss), figures.has_loss | has
        self._state.loss_spread.take(
            numbers, block.loss, lambda index: self._state.unix_s(int(completed_ns[index]))
        )
        return losses, is_known

    def _keep_activities(self, batch: _Batch, kinds: Mapping[int, Kind], is_recorded: Mask) -> None:
        """Keep the steps whose activities a viewer may ask for. `is_recorded`: (n,) of no shadow block."""
        recorded = [(batch.divided(i), kind) for i, kind in kinds.items() if is_recorded[i]]
        aside = [
            (batch.divided(i), kinds.get(i, Kind(batch.divisions[i].version, ())))
            for i in self._state.past_activities.take_steps(batch.block)
            if is_recorded[i]
        ]
        newest = int(np.flatnonzero(is_recorded)[-1])
        self._figures.kept.take(batch.divided(newest), recorded, aside)

    def _read_losses(self, block: StepBlock, newest: int) -> tuple[Column, Mask]:
        """(n, ranks) losses, and whether they are known: of optimizers in turn only those of the first.

        `newest`: number of the newest step."""
        figures, losses, is_known = self._figures, block.loss, block.known
        before = figures.turns.optimizers
        first_optimizers = block.own_fields["first_optimizer"][:, 0]
        counts = figures.turns.take(first_optimizers, mean(np.where(is_known, losses, np.nan)))
        if not counts.all():
            losses, is_known = np.where(counts[:, None], losses, np.nan), is_known & counts[:, None]
        if figures.turns.optimizers > max(1, before):
            now_s = self._state.started_ns / NS + float(self._end_s(block)[-1])
            text = say("optimizers", optimizers=figures.turns.optimizers)
            self._state.log.add(now_s, "optimizers", text, step=newest)
        if len(places := np.flatnonzero(is_known[:, 0])):
            flags, passes = block.integers[[FLAGS, MICRO_STEPS], places[-1], 0].tolist()
            as_given = not flags & int(Flag.LOSS_LOGGED | Flag.LOSS_UNDIVIDED)
            figures.loss_as_given = passes if as_given and passes > 1 else 0
        return losses, is_known

    def _end_s(self, block: StepBlock) -> Column:
        """When rank 0 ended each step, in seconds since the run started."""
        hello = self._state.hello(0)
        assert hello is not None  # it has reported a step
        shift = hello.unix_ns - hello.monotonic_ns - self._state.started_ns
        ended_us = block.integers[BEGIN, :, 0].astype(np.int64) + block.integers[WALL, :, 0]
        # Added as integers: in nanoseconds these are more than a double has digits for.
        return np.asarray((block.base_ns[:, 0] + 1000 * ended_us + shift).astype(np.float64) / NS)

    def _add_detail(
        self,
        run: list[int],
        batch: _Batch,
        kind: Kind,
        columns: Column,
        points: dict[str, Column],
        exposed_of_passes: Column | None,
    ) -> list[EvaluatedDetail]:
        """Evaluate consecutive detailed steps of one kind.

        `run`: their indices in `batch`; `exposed_of_passes`: as returned by `_find_exposed_of_passes`."""
        figures, steps = self._figures, [*map(batch.divided, run)]
        numbers = points["step"]
        window = figures.detail
        if window is None or needs_new_window(window, steps[0], kind):
            window = figures.detail = DetailWindow(
                figures.world,
                figures.size,
                several_hosts=any(compared.several_hosts for compared in steps[0].compared),
                version=kind.version,
                newest=-1 if window is None else window.newest,
            )
            self._note_arrivals(run[0], numbers[run[0]], points["time_s"][run[0]])
        backend = "" if (hello := self._state.hello(0)) is None else hello.backend
        places = self._state.history.end + np.array(run)
        of_run = columns[:, run], places, None if exposed_of_passes is None else exposed_of_passes[run]
        evaluated = evaluate_detail(window, steps, kind, backend, *of_run)
        due = rules_are_due(numbers[run], window.newest)
        window.newest = int(numbers[run[-1]])
        settled = self._find_settled(window, evaluated, places, run, due)
        added: list[AddedDetail] = []
        for part in add_detail(window, evaluated, places, due[~settled]):
            if np.any((part.first <= due[settled]) & (due[settled] < part.stop)):
                window.flagged, figures.flags.disagrees = None, False
            # Of several groups the rows are in the order of the parts.
            if added and added[-1].clock_free == part.clock_free and len(kind.launched) == 1:
                added[-1] = added[-1]._replace(stop=part.stop)
            else:
                added.append(part)
            if part.is_judged:
                self._judge_arrivals(window, run[part.stop - 1], int(places[part.stop - 1]), points)
        details = [
            EvaluatedDetail(run[first:stop], evaluated, first, clock_free)
            for first, stop, clock_free, _ in added
        ]
        for detail in details:
            _add_sampled(points, detail, columns[3])
        return details

    def _judge_arrivals(
        self, window: DetailWindow, last: int, place: int, points: Mapping[str, Column]
    ) -> None:
        """Apply the rules over bucket arrivals after the detailed step that is `last` in the batch and at
        `place` in the history."""
        if self._own_times_decide(last):
            window.flagged = None
        else:
            flag_by_arrivals(window, window.evaluated(place + 1))
        number, time_s = points["step"][last], points["time_s"][last]
        self._note_arrivals(last, number, time_s)
        self._check_agreement(last, number, time_s)
        self._check_clocks(window, number, time_s)

    def _find_settled(
        self, window: DetailWindow, evaluated: DetailFigures, points: Column, run: list[int], due: Indices
    ) -> Mask:
        """(k,) whether the rules over arrivals need not be applied after each of the detailed steps `due`,
        (k,): own times decide there, and the arrivals agree for certain.

        `points`: as of `add_detail`; `run`: indices of the detailed steps in the batch."""
        figures, settled = self._figures, np.zeros(len(due), bool)
        is_simple = len(window.scopes) == len(evaluated.groups) == 1 and not window.several_hosts
        if len(due) < 2 or not is_simple or not figures.steps.has_own or figures.world >= MANY_RANKS:
            return settled
        verdicts = [figures.flags.at(int(self._slots[run[place]])) for place in due.tolist()]
        group = evaluated.groups[0]
        settled |= agreements(figures, (group.ranks, group.group), points, due + 1, verdicts)
        return settled & [verdict.flag is not None or not verdict.blind for verdict in verdicts]

    def _flag_by_own_times(
        self, divisions: list[Division], added: Indices, numbers: Column, times: Column
    ) -> None:
        """Evaluate the rules over every step's own times, and log when the flag changes.

        `added`: (n,) indices in `divisions` of the steps that were added; the others (n,) of them."""
        figures, steps = self._figures, self._figures.steps
        flags, first = figures.flags, steps.ranks.count - len(added)
        previous = np.concatenate([[flags.newest], numbers[:-1]])
        flags.newest = int(numbers[-1])
        if not steps.has_own:
            return
        due = np.flatnonzero((numbers + 1) // EVERY > (previous + 1) // EVERY)
        slots = first + due
        for n, i in enumerate(due.tolist()):
            if divisions[added[i]].peers is not self._peers:
                self._peers = divisions[added[i]].peers
                members = [np.arange(figures.world)[peers.own_ranks] for peers in self._peers]
                self._compared_ranks = [ranks for ranks in members if len(ranks) > 1]
            changed = self._flagging.evaluate(steps, slots[n:], self._compared_ranks)
            flag, stop, flagged = flags.flag, first + i + 1, None
            if not changed and (flags.blind or flag is not None or figures.straggler is None):
                continue
            if flag is not None:
                judged = np.arange(max(0, flag.since, stop - OWN_STEPS), stop)
                flagged = measure_straggler(steps, flag, judged)
                flagged = replace(flagged, place=shown_place(steps, judged, flagged))
            self._note_flag(None if flag is None else flag.rank, flagged, numbers[i], times[i])

    def _own_times_decide(self, index: int) -> bool:
        """Whether ranks are flagged by every step's own times, and not by arrivals; `index`: of the step in
        the batch."""
        verdict = self._figures.flags.at(int(self._slots[index]))
        return self._figures.steps.has_own and (verdict.flag is not None or not verdict.blind)

    def _note_arrivals(self, index: int, step: float, time_s: float) -> None:
        """Log the flag of the arrivals where they decide. `index`: of the step in the batch."""
        figures, window = self._figures, self._figures.detail
        if self._own_times_decide(index):
            return
        rank = None if window is None or window.flagged is None else window.flagged.global_rank
        if rank == figures.straggler:
            return
        late_rank = None
        if rank is not None and window is not None:
            late_rank = find_straggler(window, window.group.recent(FLAG_STEPS))
        self._note_flag(rank, late_rank, step, time_s)

    def _note_flag(self, rank: int | None, late: Straggler | None, step: float, time_s: float) -> None:
        """Log when the flag goes to another rank, or to none. `late`: the figures of `rank`, if known."""
        figures, log = self._figures, self._state.log
        if rank == figures.straggler:
            return
        now_s = self._state.started_ns / NS + float(time_s)
        if figures.straggler is not None:
            who, slow = figures.straggler_logged
            text = say("straggler_end", who=who, be="are" if slow is None else "is")
            log.add(now_s, "straggler_end", text, rank=slow, step=int(step))
        figures.straggler, figures.straggler_since_s = rank, now_s
        if rank is not None:
            cause = "" if late is None else cause_phrase(late.cause, late.place)
            in_turn = late is not None and not blamed(late)
            where = which_hosts(self._state.presence.host_names, (rank,))
            who = "ranks" if in_turn else f"rank {rank}{where}"
            slow, case = (None, "event_in_turn") if in_turn else (rank, "event")
            figures.straggler_logged = who, slow
            text = say("straggler", case, who=who, cause=f": {cause}" if cause else "", step=int(step))
            log.add(now_s, "straggler", text, rank=slow, step=int(step))

    def _check_no_sync(self, flags: Numbers, numbers: Column, end_s: Column) -> None:
        """Log when `no_sync()` begins to enclose backward alone. `flags`: (n, ranks); the others (n,)."""
        late: Mask = reduce_rows(np.logical_or, flags & int(Flag.LATE_NO_SYNC) != 0)
        recorded = np.flatnonzero(reduce_rows(np.logical_or, flags & int(Flag.SHADOW | Flag.JOINED) == 0))
        if late.any() and not self._figures.late_no_sync:
            first = int(late.argmax())
            now_s = self._state.started_ns / NS + float(end_s[first])
            self._state.log.add(now_s, "no_sync", say("no_sync"), step=int(numbers[first]))
        if len(recorded):
            self._figures.late_no_sync = bool(late[recorded[-1]])

    def _check_agreement(self, index: int, step: float, time_s: float) -> None:
        """Log when bucket arrivals contradict the verdict from every step.

        `index`: of the step in the batch."""
        figures = self._figures
        if not figures.steps.has_own:
            return
        slot = int(self._slots[index])
        disagrees = arrivals_disagree(figures, slot)
        if disagrees and not figures.flags.disagrees:
            now_s = self._state.started_ns / NS + float(time_s)
            flag = figures.flags.at(slot).flag
            who = "no rank" if flag is None else f"rank {flag.rank}"
            self._state.log.add(now_s, "disagreement", say("disagreement", who=who), step=int(step))
        figures.flags.disagrees = disagrees

    def _check_clocks(self, window: DetailWindow, step: float, time_s: float) -> None:
        """Log when the collectives begin to contradict the clocks: a rank stamped an end earlier than the
        last arrival, by more than the bound of offsets and timers."""
        contradicted = next((scope for scope in window.scopes.values() if scope.contradicted), None)
        if contradicted is not None and not self._figures.contradicted:
            now_s = self._state.started_ns / NS + float(time_s)
            text = say("clocks", why=contradicted.clock_reason(self._state.presence.host_names))
            self._state.log.add(now_s, "clocks", text, step=int(step))
        self._figures.contradicted = contradicted is not None


def _add_sampled(points: Mapping[str, Column], detail: EvaluatedDetail, backward: Column) -> None:
    """Put what bucket detail shows of some steps into history points, where the last gradient of some rank is
    not known. `backward`: (n, ranks) ms of all steps."""
    steps, stop = detail.step_indices, detail.first + len(detail.step_indices)
    wait, transfer, busbw = detail.figures.history(detail.first, stop, clock_free=detail.clock_free)
    points["busbw_gbps"][steps] = busbw
    is_unknown = np.isnan(points["wait_ms"][steps])
    own_backward = backward[steps].mean(axis=-1) - wait - transfer
    sampled = {"wait_ms": wait, "transfer_ms": transfer, "own_backward_ms": own_backward}
    for name, values in sampled.items():
        points[name][steps] = np.where(is_unknown, values, points[name][steps])


def _times_ms(block: StepBlock, shadow: Mask) -> Column:
    """(wall and phases, n, ranks) in ms; NaN where a recorder stood aside."""
    columns = np.empty((6, *shadow.shape))
    np.divide(block.integers[WALL : WALL + 5], 1000.0, out=columns[:5])
    columns[1:5, shadow] = np.nan
    wall, data, forward, backward, optimizer, other = columns
    np.subtract(wall, data + forward + backward + optimizer, out=other)
    return columns


def _loss_points(losses: Column, is_known: Mask) -> dict[str, Column]:
    """(n,) mean, least and largest loss of the ranks in each of n steps; NaN where no loss is known."""
    count, total = is_known.sum(axis=1), np.where(is_known, losses, 0.0).sum(axis=1)
    return {
        "loss_mean": np.divide(total, count, out=np.full(len(losses), np.nan), where=count > 0),
        "loss_min": reduce_rows(np.fmin, losses),
        "loss_max": reduce_rows(np.fmax, losses),
    }


def _step_parts(columns: Column, parts: Column | None) -> tuple[tuple[Column, Column], dict[str, Column]]:
    """(n,) exposed wait and exposed transfer of DDP's all-reduces; and the parts of the step, which add up to
    it, by the names of `History`. All are means over ranks.

    Arguments as returned by `_times_ms` and `compute_own_times`. Backward is divided where every rank knows
    its last gradient. A broadcast of buffers is no forward, but wait and transfer, where all ranks know
    theirs."""
    _, data, forward, backward, optimizer, other = columns
    divided = np.full((3, *data.shape), np.nan)
    exposed_parts = divided[1:]
    if parts is not None:
        exposed, wait = (parts[PART_COLUMNS.index(name)] for name in ("exposed", "exposed_wait"))
        np.subtract(backward, exposed, out=divided[0])
        divided[1] = wait
        np.subtract(exposed, wait, out=divided[2])
        divided[:, np.isnan(wait)] = np.nan
        buffers, buffers_wait = (parts[PART_COLUMNS.index(name)] for name in ("buffers", "buffers_wait"))
        if np.any(buffers > 0):
            unknown = np.isnan(buffers_wait) | np.isnan(wait)
            waits, total = (np.where(unknown, 0.0, part) for part in (buffers_wait, buffers))
            in_forward = np.minimum(total, forward)  # the rest in an evaluation's, which is in no phase
            forward, other = forward - in_forward, other - (total - in_forward)
            exposed_parts = divided[1:].copy()
            divided[1] += waits
            divided[2] += total - waits
    own_backward, wait_ms, transfer = mean(divided)
    exposed_wait, exposed_transfer = (wait_ms.copy(), transfer.copy())
    if exposed_parts.base is not divided:
        exposed_wait, exposed_transfer = mean(exposed_parts)
    return (exposed_wait, exposed_transfer), {
        "data_ms": data.mean(axis=-1),  # NaN where a rank does not know it
        "forward_ms": forward.mean(axis=-1),
        "own_backward_ms": own_backward,
        "wait_ms": wait_ms,
        "transfer_ms": transfer,
        "optimizer_ms": optimizer.mean(axis=-1),
        "other_ms": other.mean(axis=-1),
    }


def _find_exposed_of_passes(block: StepBlock, parts: Column | None) -> Column | None:
    """(n, ranks) exposed communication in ms of steps with several backward passes, NaN of others, from the
    ranks' last gradients; None: no such step. Of passes of different models no bucket comes again."""
    several = block.integers[MICRO_STEPS] > 1
    if parts is None or not several.any():
        return None
    return np.where(several, parts[PART_COLUMNS.index("exposed")], np.nan)


def _divide_each_pass(batch: _Batch, kinds: Mapping[int, Kind], parts: Column) -> None:
    """Divide exposed communication into wait and transfer in each backward pass, where bucket detail shows
    several.

    The transfer of a pass is what its last arriver could not hide. Over the whole step another rank may have
    been the last in each, and the least sum would count those waits as transfer. `parts`: as returned by
    `compute_own_times`, changed in place; `kinds`: of the steps with bucket detail, by their indices.
    """
    exposed, wait = (parts[PART_COLUMNS.index(name)] for name in ("exposed", "exposed_wait"))
    for kind, of_kind in groupby(kinds, key=kinds.__getitem__):
        if len(kind.launched) != 1:
            continue
        part, numbers, *_ = kind.launched[0]
        passes = backward_passes(numbers)
        for i in of_kind if passes[-1] else ():
            of_part = batch.divided(i).of_parts[part]
            cells = of_part.launches(len(numbers)).astype(np.float64)[~of_part.joined] / 1000.0
            if cells.min() < 0:
                continue
            ready, ended = cells[..., 1], cells[..., 1] + cells[..., 2]
            transfer = sum(
                (ended[:, of_pass].max(axis=1) - ready[:, of_pass].max(axis=1)).min()
                for of_pass in (passes == number for number in range(passes[-1] + 1))
            )
            members = list(batch.divisions[i].parts[part].scope.ranks)
            wait[i, members] = np.clip(exposed[i, members] - transfer, 0.0, exposed[i, members])
