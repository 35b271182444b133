"""Builds a report from messages or a recording. Of a long recording it reads evenly spread stretches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.verdict import compares_own_times
from ddptop.protocol.evidence import Evidence
from ddptop.protocol.limits import MAX_STEP
from ddptop.protocol.vocabulary import NOT_ENDED
from ddptop.recording.format import NO_STEP
from ddptop.render.phases import PARTS
from ddptop.report import summaries
from ddptop.report.advice import make_suggestions
from ddptop.report.content import Communication, Cost, Reading, Report
from ddptop.report.findings import make_findings
from ddptop.report.sampling import SAMPLE_STEPS, RunSampler, sample_interval
from ddptop.report.step_table import (
    MOST_SPANS,
    exclude_stalls,
    make_spans,
    span_count,
    span_of,
    spread_skew,
    spread_unread_steps,
    step_table,
    steps_of_samples,
)
from ddptop.report.tables import rank_times
from ddptop.sources.player import Player, gc_paused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ddptop.frames.columns import Column
    from ddptop.frames.frame import Frame
    from ddptop.frames.history import History
    from ddptop.protocol.since_start import SinceStart
    from ddptop.recording.reader import Recording
    from ddptop.report.content import StragglerSummary
    from ddptop.report.step_table import StepTable

WHOLE_ROWS = 30_000
"""Most rows of steps for which a recording is read whole: at 50 to 75 us a row, 2 s."""

SUMMED_ROWS = 1_000_000
"""Most rows of steps that are added up for the ledger where an earlier version has recorded no sums of it: at
some 4 us a row, without figures and frames, 4 s."""

STRETCH_ROWS = 500
"""Rows of a stretch, for few ranks: 60 of them are 30,000."""

MIN_STRETCH = SAMPLE_STEPS + 20
"""Steps of a stretch, for any number of ranks: one sample with its 100 steps, and some before."""

AFTER_STALL = 4
"""Blocks that are read after a stall, from the first with a step: in them every rank reports that step."""

BEFORE_STALL = 8
"""Blocks that are read before the one with the last step before a stall: in them every rank reports it."""

AROUND_EXIT = 3
"""Blocks that are read before and after an exit, where ranks have sent what they had. With more, most steps
of a run with many restarts would be read for these."""


def read_report(recording: Recording) -> Report:
    """The report of a recording, up to its present end."""
    return read_report_with_steps(recording)[0]


def read_report_with_steps(recording: Recording) -> tuple[Report, list[History]]:
    """The report of a recording, up to its present end, and the steps that were read for it, in order."""
    world = recording.world_size or 1
    steps = recording.count_steps()
    whole = steps * world <= WHOLE_ROWS
    reader = _Reader(recording, whole, steps, max(MIN_STRETCH, STRETCH_ROWS // world))
    with gc_paused():
        reader.read_blocks()
        # Of a recording near its limit steps are missing within what was read, too.
        end = None if whole else _read_end(recording)
        report = make_report(
            reader.sampler,
            growing=recording.growing,
            whole=whole,
            damage=recording.damage,
            recording=str(recording.path),
            refused=reader.refused,
            end=end,
            known=recording.known_at_end(),
        )
    return report, [sample.points for sample in reader.sampler.samples]


def make_report(
    sampler: RunSampler,
    *,
    growing: bool = False,
    whole: bool = True,
    damage: str | None = None,
    recording: str | None = None,
    refused: int = 0,
    end: Frame | None = None,
    known: SinceStart | None = None,
) -> Report:
    """The report of what was sampled. `growing`: the recording is still being written. `end`: the frame at
    the end that a replay shows, where not all steps were sampled. `known`: what the live analysis recorded
    last of all steps."""
    last = _take_last_frame(sampler, growing, recording)
    if end is not None:
        last = replace(last, ledger=end.ledger or last.ledger, overhead=end.overhead)
    samples, incidents = sampler.samples, sampler.incidents
    has_sums = _has_sums(last)
    table = step_table(samples)
    if not has_sums:
        table = exclude_stalls(table, incidents.stalls, sampler.reducer.state.started_s)
    table = spread_skew(table)
    count = span_count(len(table.step))
    duration_s = max(last.run.elapsed_s, float(table.time_s[-1]) if len(table.time_s) else 0.0)
    where = span_of(table, duration_s, count)
    table = spread_unread_steps(table, where)
    per_sample = steps_of_samples(table, len(samples))
    ranks = summaries.rank_summaries(samples, per_sample, last)
    stragglers = summaries.summarize_stragglers(samples, table, where, count, last)
    cost = _summarize_cost(table, sum(stall.lasted_s for stall in incidents.stalls), stragglers)
    # What ranks wait on average is less than what the step loses, for the late one does not wait; and medians
    # of steps do not show rare waits. The step without waiting is shorter by the largest of them.
    uneven_pct = cost.uneven_pct
    if has_sums:
        cost = _with_sums(cost, last)
    shares_pct = [pct for pct in (uneven_pct, cost.uneven_pct, cost.flagged_pct) if pct is not None]
    lost_pct = min(100.0, max(shares_pct)) if shares_pct else None
    report = Report(
        source="simulated" if last.source == "simulated" else "recording",
        run=last.run,
        reading=_summarize_reading(
            table,
            per_sample,
            sampler,
            steps=_count_steps(table, known),
            whole=whole,
            damage=damage,
            refused=refused,
        ),
        verdict=(),
        cost=cost,
        stragglers=stragglers,
        spans=make_spans(table, where, samples, duration_s, count, stragglers),
        ranks=ranks,
        phases_pct=summaries.phases_pct(ranks),
        communication=summaries.summarize_communication(samples, per_sample, table, ranks, lost_pct),
        buckets=summaries.bucket_summaries(samples, per_sample)
        or tuple(summaries.unmeasured_bucket(b) for b in last.buckets),
        stalls=tuple(incidents.stalls),
        deaths=incidents.deaths,
        troubles=incidents.troubles,
        events=incidents.events,
        advice=(),
        overhead=last.overhead,
        hosts=summaries.host_summaries(ranks, samples, last, incidents.events),
        cpu_wait_pct=summaries.weighted_mean([s.frame.group.cpu_wait_pct for s in samples], per_sample),
        cpu_shortage=next(
            (s.frame.group.cpu_shortage for s in samples[::-1] if s.frame.group.cpu_shortage), ""
        ),
        sampled=last.sampled,
        ledger=last.ledger,
    )
    report = replace(report, communication=_as_in_the_breakdown(report))
    report = replace(report, advice=make_suggestions(report))
    return replace(report, verdict=make_findings(report))


def _take_last_frame(sampler: RunSampler, growing: bool, recording: str | None) -> Frame:
    """The frame at the end of the run, with the state in which the run was left."""
    last = sampler.take_sample(hosts=True)
    if sampler.reducer.stalled_since(sampler.last_ns) is not None:
        sampler.incidents.note_stall(last)
    state = "lost" if not growing and last.run.state in NOT_ENDED else last.run.state
    return replace(last, run=replace(last.run, state=state, recording=recording))


def _as_in_the_breakdown(report: Report) -> Communication:
    """Communication with the wait and the transfer of the table of ranks: one figure on the whole page."""
    comm, times = report.communication, rank_times(report.ranks, report)
    if not comm.is_measured or not np.isfinite(times[:-1]).all() or not times.size:
        return comm
    wait_ms, transfer_ms, sync_ms = (
        float(times[part_index].mean())
        for part_index, part in enumerate(PARTS)
        if part.name in ("wait", "transfer", "sync")
    )
    moved = [
        buffers_ms - buffers_wait_ms
        for rank in report.ranks
        if (buffers_ms := rank.means["buffers_ms"]) is not None
        and (buffers_wait_ms := rank.means["buffers_wait_ms"]) is not None
    ]
    return replace(
        comm,
        exposed_comm_ms=wait_ms + transfer_ms,
        exposed_wait_ms=wait_ms,
        exposed_transfer_ms=transfer_ms,
        exposed_pct=summaries.share_pct(wait_ms + transfer_ms, comm.step_ms),
        exposed_transfer_pct=summaries.share_pct(transfer_ms, comm.step_ms),
        buffers_ms=sum(moved) / len(moved) if moved else None,
        sync_ms=sync_ms,
    )


def _summarize_reading(
    table: StepTable,
    per_sample: Column,
    sampler: RunSampler,
    *,
    steps: int,
    whole: bool,
    damage: str | None,
    refused: int,
) -> Reading:
    seconds = float(table.seconds.sum())
    measured = ~np.isnan(table.cost)
    frames = [sample.frame for sample in sampler.samples]
    free = np.array([frame.group.clock_free and not compares_own_times(frame) for frame in frames], bool)
    total = float(per_sample.sum())
    reasons = [frame.group.clock_reason for frame in frames]
    unclear = np.array([reason is not None for reason in reasons], bool)
    mostly = bool(total > 0 and per_sample[unclear].sum() > total / 2)
    return Reading(
        steps=steps,
        read_steps=len(table.step),
        judged_pct=summaries.share_pct(float(table.seconds[measured].sum()), seconds),
        whole=whole,
        clock_free=bool(total > 0 and per_sample[free].sum() > total / 2),
        refused=refused,
        damage=damage,
        clock_reason=next((reason for reason in reversed(reasons) if reason), None) if mostly else None,
    )


def _count_steps(table: StepTable, known: SinceStart | None) -> int:
    """Steps that the group finished. The last of them may have been left out near the recording's limit:
    those that were `known` by then count too."""
    steps = round(float(table.steps.sum()))
    if known is None or not len(table.step) or known.incarnation != int(table.incarnation[-1]):
        return steps
    return steps + max(0, known.step - int(table.step[-1]))


def _summarize_cost(table: StepTable, stalled_s: float, stragglers: Sequence[StragglerSummary]) -> Cost:
    step_s = float(table.seconds.sum())
    flagged_s = _sum_lost_s(table, table.cost)
    rarely_s = sum(slow.lost_s for slow in stragglers if slow.rare is not None)
    flagged_s = (flagged_s or 0.0) + rarely_s if rarely_s else flagged_s
    uneven_s = _sum_lost_s(table, table.uneven)
    return Cost(
        step_s=step_s,
        flagged_s=flagged_s,
        flagged_pct=summaries.share_pct(flagged_s, step_s),
        uneven_s=uneven_s,
        uneven_pct=summaries.share_pct(uneven_s, step_s),
        stalled_s=stalled_s,
    )


def _read_end(recording: Recording) -> Frame | None:
    """The frame at the end of a recording of which not all is read; None: it has no sums of the ledger, and
    is too large to add up all of its steps."""
    recorded = recording.ledgers_until(recording.end_ns, most_rows=MAX_STEP)
    if recorded is not None and recorded.sums:
        return Player(recording, next_ns=recording.end_ns).frame_at_end()
    if recording.count_steps() * (recording.world_size or 1) > SUMMED_ROWS:
        return None
    return Player(recording, whole_rows=SUMMED_ROWS).frame_at_end()


def _has_sums(last: Frame) -> bool:
    """Whether the ledger has what the ranks waited. It has the waits of a stalled step too, once it is
    complete, so the time in steps then includes them."""
    return compares_own_times(last) and last.ledger is not None and last.ledger.run.lost_pct is not None


def _with_sums(cost: Cost, last: Frame) -> Cost:
    """The cost of waiting as the ledger has it: a sum over every step."""
    ledger = last.ledger
    if ledger is None or cost.uneven_s is None:  # else none waits for another
        return cost
    uneven_s = ledger.run.rank_seconds / len(ledger.ranks.elapsed_s)
    return replace(
        cost,
        uneven_s=uneven_s,
        uneven_pct=min(100.0, 100 * uneven_s / cost.step_s) if cost.step_s > 0 else None,
        is_summed=True,
    )


def _sum_lost_s(table: StepTable, share: Column) -> float | None:
    measured = ~np.isnan(share)
    return float(table.lost_s(share)[measured].sum()) if measured.any() else None


class _Reader:
    """Feeds a RunSampler with a recording."""

    def __init__(self, recording: Recording, whole: bool, steps: int, stretch: int) -> None:
        self._recording = recording
        self._whole = whole
        self._stretch = stretch
        self.sampler = RunSampler(sample_interval(steps))
        self.refused = 0

    def read_blocks(self) -> None:
        """Read all of it, or stretches."""
        if self._whole:
            self._feed_blocks(0, None)
            return
        reached, end = 0, self._recording.blocks_until(self._recording.end_ns)
        for blocks in _join_ranges(choose_stretches(self._recording, self._stretch)):
            begin, stop = max(reached, blocks.start), blocks.stop
            if begin > reached:
                self.sampler.skip_rows()
            self._feed_lasting(reached, begin)
            before = self.sampler.reducer.complete_step
            self._feed_blocks(begin, stop)
            # Messages with many steps each: it goes on to where all ranks have sent one.
            while stop < end and stop > begin and self.sampler.reducer.complete_step == before:
                self._feed_blocks(stop, stop + 1)
                stop += 1
            reached = max(reached, stop)
        self._feed_lasting(reached, None)

    def _feed_blocks(self, first: int, stop: int | None) -> None:
        """All messages of these blocks."""
        for run in self._recording.runs(first, stop):
            self.sampler.feed_run(run, self._count_refused)

    def _feed_lasting(self, first: int, stop: int | None) -> None:
        """What is not about single steps in the blocks between two stretches."""
        for run in self._recording.lasting_runs(first, stop):
            self.sampler.feed_run(run, self._count_refused)

    def _count_refused(self) -> None:
        self.refused += 1


def choose_stretches(recording: Recording, steps: int) -> Iterator[range]:
    """Ranges of blocks to read, in order, none twice.

    About `steps` steps at the end of each of 60 equal spans of the time, and the blocks around every stall.
    Stalls are where ranks were asked for evidence. None is searched where the spans leave out nothing.
    """
    spans = [*_join_ranges(_choose_stretches(recording, steps, []))]
    whole = spans == [range(recording.blocks_until(recording.end_ns))]
    yield from spans if whole else _choose_stretches(recording, steps, _find_evidence(recording))


def _choose_stretches(recording: Recording, steps: int, stalls: list[tuple[int, bool]]) -> Iterator[range]:
    done = 0
    length_ns = recording.end_ns - recording.start_ns
    for piece in range(1, MOST_SPANS + 1):
        until_ns = recording.start_ns + length_ns * piece // MOST_SPANS
        stop = max(recording.block_at(until_ns) + 1, recording.blocks_until(until_ns))
        while stalls and stalls[0][0] <= until_ns:
            blocks = _blocks_around(recording, *stalls.pop(0), floor=done)
            if blocks:
                yield blocks
                done = blocks.stop
        begin = _first_block_of_steps(recording, stop, done, steps)
        if begin < stop:
            done = stop if _has_steps(recording, stop - 1) else _next_step(recording, stop)
            yield range(begin, done)


def _join_ranges(ranges: Iterable[range]) -> Iterator[range]:
    """The ranges of blocks, with those that follow each other as one: blocks are decoded together."""
    whole = range(0)
    for blocks in ranges:
        if whole and blocks.start == whole.stop:
            whole = range(whole.start, blocks.stop)
            continue
        if whole:
            yield whole
        whole = blocks
    if whole:
        yield whole


def _find_evidence(recording: Recording) -> list[tuple[int, bool]]:
    """When ranks sent evidence, and whether one sent it by itself at its exit, not asked in a stall."""
    return [
        (received.t_ns, not received.message.number)
        for received in recording.lasting_with(Evidence)
        if isinstance(received.message, Evidence)
    ]


def _first_block_of_steps(recording: Recording, stop: int, floor: int, steps: int) -> int:
    """The first of the blocks that end before `stop` and hold about `steps` steps; at least `floor`."""
    first, last = (column[floor:stop][::-1] for column in recording.steps_of_blocks)
    low = np.minimum.accumulate(np.where(first == NO_STEP, MAX_STEP, first))
    enough = np.flatnonzero(np.maximum.accumulate(last) + 1 - low >= steps)
    return stop - 1 - int(enough[0]) if len(enough) else min(floor, stop)


def _blocks_around(recording: Recording, t_ns: int, is_exit: bool, *, floor: int) -> range | None:
    """The blocks from the last step before this time to the next step after it."""
    block = recording.block_at(t_ns)
    if block < floor:
        return None
    begin = block
    while begin > floor and not _has_steps(recording, begin):
        begin -= 1
    before, after = (AROUND_EXIT, AROUND_EXIT) if is_exit else (BEFORE_STALL, AFTER_STALL)
    return range(max(floor, begin - before), _next_step(recording, block + 1, after))


def _next_step(recording: Recording, index: int, after: int = AFTER_STALL) -> int:
    """The block `after` behind the first one that holds steps, counted from `index`; at most the end."""
    stop = recording.blocks_until(recording.end_ns)
    while index < stop and not _has_steps(recording, index):
        index += 1
    return min(index + after, stop)


def _has_steps(recording: Recording, index: int) -> bool:
    return recording.block_summary(index).first_step != NO_STEP
