"""Reads a recording through the analysis, batch by batch: what every format is made from."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.analysis.reducer import Reducer
from ddptop.analysis.steps.windows import OWN_STEPS
from ddptop.export.columns import UNKNOWN, WAITED_FOR
from ddptop.export.rows import Batch, begins_ns
from ddptop.frames.figures import FIGURES
from ddptop.frames.frame import values_of_ranks
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.protocol.limits import MAX_NS, MAX_STEP
from ddptop.protocol.vocabulary import NOT_ENDED
from ddptop.recording.format import NO_STEP

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ddptop.analysis.steps.evaluate import EvaluatedSteps
    from ddptop.export.columns import Rows, Values
    from ddptop.frames.frame import Frame, LoggedEvent
    from ddptop.protocol.message_run import MessageRun
    from ddptop.recording.reader import Recording

EVENTS_KEPT = 10_000
"""Events of a run that are exported, the newest: some 4 MB. Of a run of a week there are some hundreds."""

HISTORY_POINTS = 1024
"""Points of the group's history that are kept, which no export has: those of a run take 30 MB."""

AT_ONCE = 16
"""Blocks that are read at a time, of 64 kB each: as columns some 8 MB, however many rows a message has."""

TAIL_AT_ONCE = 4
"""Blocks that are read at a time before the first complete step: stalls are searched only after it."""

ALLOCATIONS = 100_000
"""New objects after which the garbage collector runs: steps hold few cycles, and to look for them among all
that is kept takes a tenth of the time."""

STEPS_BEFORE = OWN_STEPS + 64
"""Steps that are read before the first exported one: with them the verdicts are those of the whole run."""


class ExportError(Exception):
    """What was asked for is not in the recording; the text is for a person."""


class End(NamedTuple):
    """What is known once a recording was read."""

    frame: Frame
    """The group at its end."""
    events: Sequence[LoggedEvent]
    """Events in the time of the exported steps; of a whole recording all."""
    refused: int
    """Messages that the analysis could not take."""


class Selection(NamedTuple):
    """What is exported: steps from `first` to before `stop`, of these ranks; None: all."""

    first: int | None = None
    stop: int | None = None
    ranks: Collection[int] | None = None

    def check_recording(self, recording: Recording) -> None:
        """Raises ExportError where the recording has none of these steps or ranks."""
        first, last, world = recording.first_step, recording.last_step, recording.world_size or 0
        if self.of_steps:
            if first is None or last is None:
                raise ExportError(f"{recording.path} holds no step")
            if (self.first or 0) > last or (self.stop is not None and self.stop <= first):
                raise ExportError(f"{recording.path} holds steps {first} to {last}")
        if max(self.ranks or (0,)) >= max(1, world):
            raise ExportError(f"{recording.path} holds ranks 0 to {world - 1}")

    @property
    def of_steps(self) -> bool:
        """Whether not all steps are exported."""
        return self.first is not None or self.stop is not None


class Sink:
    """Reads a recording through the analysis; a format takes the steps that it evaluates."""

    def __init__(self, recording: Recording, selection: Selection) -> None:
        self._recording, self._selection = recording, selection
        # Points of the history are needed by no table.
        self.reducer = Reducer(history_points=HISTORY_POINTS)
        self.reducer.state.log.kept = EVENTS_KEPT
        self.reducer.evaluation.on_steps = self._take
        self._failure: Exception | None = None
        """What the sink raised: within the reducer an exception would cost a message, and nothing more."""
        self._span_s = (float("inf"), float("-inf"))
        """Begin of the first exported step and end of the last one, since the start of the run."""
        self._refused = 0
        """Messages that the analysis could not take."""

    def write_steps(self, batch: Batch) -> None:
        """The next steps."""
        raise NotImplementedError

    def write_end(self, end: End) -> None:
        """All steps were taken."""
        raise NotImplementedError

    def export(self) -> End:
        """Read the recording up to its present end; of blocks without selected steps only what lasts.

        Raises ExportError, and what the format raises."""
        blocks = self._blocks_to_read()
        # Reading begins in the middle: what lasts is then taken from the blocks before.
        self.reducer.state.tail = blocks.start > 0
        self.reducer.state.ledger.is_known = not self._selection.of_steps
        self._feed_runs(self._recording.lasting_runs(0, blocks.start))
        self._read_blocks(blocks.start, blocks.stop)
        end = self._read_end(blocks.stop)
        self.write_end(end)
        return end

    def _read_blocks(self, first: int, stop: int) -> None:
        """Take the messages of these blocks, and evaluate all steps that they complete."""
        state, thresholds = self.reducer.state, gc.get_threshold()
        gc.set_threshold(ALLOCATIONS, *thresholds[1:])
        try:
            while first < stop:
                until = min(first + (AT_ONCE if not state.tail else TAIL_AT_ONCE), stop)
                self._feed_runs(self._recording.runs(first, until))
                # From the first complete step on everything is read as from the start.
                if state.tail and state.complete_step is not None:
                    self.reducer.end_recall()
                first = until
            state.settle()
        finally:
            gc.set_threshold(*thresholds)

    def _read_end(self, stop: int) -> End:
        """What is known at the end of the recording, by what lasts of the blocks from `stop` on.

        Raises ExportError where none of the selected steps was complete."""
        state, recording = self.reducer.state, self._recording
        # Behind the exported blocks only what lasts is read: no stall can be judged there.
        state.tail = state.tail or stop < recording.blocks_until(MAX_NS)
        self._feed_runs(recording.lasting_runs(stop))
        frame = self.reducer.frame(recording.end_ns)
        # After the frame, which evaluates the last steps.
        self._raise_failure()
        events: Sequence[LoggedEvent] = state.log.all()
        if self._selection.of_steps:
            first_s, last_s = frame.run.started_at + np.array(self._span_s)
            if first_s > last_s:
                raise ExportError(f"{recording.path} holds none of these steps of all ranks")
            events = [event for event in events if first_s <= event.unix_s <= last_s]
        return End(frame, events, self._refused)

    def _blocks_to_read(self) -> range:
        """The blocks between the first and the last with a step to be read; all if all steps are.

        Raises ExportError where the recording has none of the selected steps or ranks."""
        self._selection.check_recording(self._recording)
        recording, (first, stop, _) = self._recording, self._selection
        every = range(recording.blocks_until(MAX_NS))
        if not self._selection.of_steps:
            return every
        # The rules compare a step with those before it.
        least, most = (first or 0) - STEPS_BEFORE, MAX_STEP if stop is None else stop - 1
        summaries = ((index, recording.block_summary(index)) for index in every)
        indices = [
            index
            for index, summary in summaries
            if summary.first_step != NO_STEP and summary.last_step >= least and summary.first_step <= most
        ]
        return range(indices[0], indices[-1] + 1) if indices else every[:0]

    def _feed_runs(self, runs: Iterable[MessageRun]) -> None:
        for run in runs:
            index = 0
            while index < len(run):
                index = self.reducer.feed_run(run, index, self._count_refused)
            # After each run: an error of the disk would otherwise be noticed only at the end.
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _count_refused(self) -> None:
        self._refused += 1

    def _take(self, evaluated: EvaluatedSteps) -> None:
        state, (first, stop, ranks) = self.reducer.state, self._selection
        steps = np.array([divided.step.step for divided in evaluated.divided])
        selected = np.flatnonzero((steps >= (first or 0)) & (steps < (MAX_STEP if stop is None else stop)))
        world = np.arange(evaluated.columns.shape[2])
        picked = world if ranks is None else world[np.isin(world, [*ranks])]
        # After a failure nothing more is written.
        if self._failure is not None or not len(selected) or not len(picked):
            return
        try:
            batch = Batch(evaluated, steps, state.incarnation, selected, picked, begins_ns(evaluated, state))
            begin_s = batch.begin_ns[selected] / 1e9
            end_s = float((begin_s + evaluated.columns[0, selected] / 1e3).max())
            self._span_s = (min(self._span_s[0], float(begin_s.min())), max(self._span_s[1], end_s))
            self.write_steps(batch)
        except Exception as error:  # noqa: BLE001 - raised again by `_raise_failure`
            self._failure = error


def run_row(end: End, recording: Recording) -> Rows:
    """The row of `run`."""
    run, code = end.frame.run, end.frame.run.exit_code
    row = {name: getattr(run, name) or "" for name in ("name", "id", "state", "script", "backend", "torch")}
    row |= {name: getattr(run, name) for name in ("world_size", "nodes", "elapsed_s")}
    row |= {
        "source": "simulated" if end.frame.source == "simulated" else "recording",
        # A signal as shells give it: 128 and its number.
        "exit_code": UNKNOWN if code is None else code if code >= 0 else 128 - code,
        "started_unix_s": run.started_at,
    }
    # As a replay shows it: nobody has written the end.
    if not recording.growing and run.state in NOT_ENDED:
        row["state"] = "lost"
    return {name: [value] for name, value in row.items()}


def make_rank_rows(end: End, ranks: Collection[int] | None) -> Rows:
    """The rows of `ranks`."""
    figures, clocks = end.frame.ranks, {clock.host: clock for clock in end.frame.clocks}
    which = [rank for rank in range(len(figures.host)) if ranks is None or rank in ranks]
    rows: dict[str, Values] = {"rank": which}
    for name in ("host", "device", "state"):
        rows[name] = [getattr(figures, name)[rank] for rank in which]
    for name in ("local_rank", "pid"):
        # NaN has no integer: -1 is unknown in these columns.
        rows[name] = np.nan_to_num(getattr(figures, name)[which], nan=UNKNOWN).astype(np.int64)
    for figure in FIGURES:
        if figure.is_exported:
            values = values_of_ranks(figure, end.frame)[which]
            integers = np.nan_to_num(values, nan=UNKNOWN).astype(np.int64)
            rows[figure.key] = integers if figure.integer else values
    of_rank = [clocks.get(figures.host[rank]) for rank in which]
    for name in ("offset_ms", "bound_ms"):
        rows[f"clock_{name}"] = np.array([getattr(clock, name, None) for clock in of_rank], np.float64)
    return rows


def event_rows(end: End) -> Rows:
    """The rows of `events`."""
    rows: dict[str, Values] = {"time_s": [event.unix_s - end.frame.run.started_at for event in end.events]}
    for name in ("kind", "severity", "message", "incarnation", "step", "rank"):
        values = [getattr(event, name) for event in end.events]
        rows[name] = [UNKNOWN if value is None else value for value in values]
    return rows


def ledger_rows(end: End, ranks: Collection[int] | None) -> Rows:
    """The rows of `ledger`."""
    ledger = end.frame.ledger
    n_ranks = 0 if ledger is None else len(ledger.ranks.elapsed_s)
    which = [rank for rank in range(n_ranks) if ranks is None or rank in ranks]
    seconds = [ledger.seconds_of(name)[which] for name in LEDGER_CLASSES] if ledger is not None else []
    return {
        "rank": np.repeat(which, len(LEDGER_CLASSES)).astype(np.int32),
        "class": [*LEDGER_CLASSES] * len(which),
        "seconds": np.stack(seconds, axis=1).ravel() if seconds else np.empty(0),
    }


def waited_for_rows(end: End, ranks: Collection[int] | None) -> Rows:
    """The rows of `waited_for`."""
    rows = () if end.frame.ledger is None else end.frame.ledger.run.waited_for
    rows = tuple(row for row in rows if ranks is None or row.rank in ranks)
    return {name: [getattr(row, name) for row in rows] for name in WAITED_FOR.names}
