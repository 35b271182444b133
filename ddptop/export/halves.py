"""The second half of a large recording is read by a second process, while the first one reads the first half.

The second process also reads the steps that the analysis remembers before its half. At the seam both have
evaluated the same steps, and what they know of them is compared (`Known`). Where it differs, or where the
second process fails, the first one reads on to the end by itself: the tables are the same, only later.
"""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import psutil

from ddptop.analysis.event_log import TOGETHER_S
from ddptop.analysis.steps.windows import LONG, OWN_STEPS
from ddptop.export.reading import EVENTS_KEPT, End
from ddptop.export.rows import step_rows
from ddptop.frames.ledger import LedgerRanks
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.limits import MAX_NS, NS
from ddptop.recording.ahead import start_second
from ddptop.recording.reader import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from typing import IO, TypeAlias

    from ddptop.export.columns import Rows
    from ddptop.export.reading import Selection
    from ddptop.export.tables import Array, TableSink
    from ddptop.frames.frame import LoggedEvent
    from ddptop.frames.ledger import Ledger, WaitedFor
    from ddptop.recording.records import BlockReader

    Make: TypeAlias = Callable[[Recording, Selection, Path], TableSink]

LEAST_BLOCKS = 1024
"""So many take some 9 s; a second process needs half a second to start, and some more to catch up."""

MOST_TWICE = 0.2
"""Largest share of the blocks that are read by both."""

ALIGNED = 64
"""The second process begins at a step that is a multiple of this: the analysis evaluates steps in blocks of
up to 32, some of them counted from the first step on."""

AROUND = 64
"""Blocks before it whose steps may still be incomplete: those of ranks that are ahead."""

SHOWN = ("group", "buckets", "straggler", "suspect", "clocks", "stall", "deaths")
"""The parts of a snapshot that follow from the newest steps. Others count from the first step on."""


class Plan(NamedTuple):
    """Blocks of the recording, by their numbers."""

    start: int
    earlier: int
    """Where the second process begins to read."""
    seam: int
    """Where its half begins."""
    stop: int


STOPPED_S = 5
"""After which a second process that is stopped is given up."""


class Known(NamedTuple):
    """What a process knows at the seam."""

    at_s: float
    """When the last message before the seam arrived, in Unix seconds."""

    state: tuple[object, ...]
    """What follows from the newest steps, and what the analysis keeps of earlier ones."""
    rows: Rows
    """The newest rows of `steps`."""
    events: Sequence[LoggedEvent]
    records: Array
    """(2, ranks) step records received, and lost."""
    refused: int
    """Messages that were not valid."""
    ledger: Ledger | None


class Half(NamedTuple):
    """What the second process has found."""

    known: Known
    end: End
    reader: BlockReader
    """It knows of the damage of the blocks."""


class Request(NamedTuple):
    """What the second process exports."""

    make: Make
    path: Path
    selection: Selection
    folder: Path
    """Where its rows go."""
    plan: Plan


def export(make: Make, recording: Recording, selection: Selection, folder: Path) -> End:
    """Export the tables into a folder, in two processes where that is worth it.

    Raises ExportError, and what the format raises."""
    with closing(make(recording, selection, folder)) as sink:
        blocks = sink.blocks()
        plan = plan_of(recording, blocks)
        if plan is None:
            return sink.export()
        other = folder.with_name(f"{folder.name}.second")
        other.mkdir()
        recording.read_until = recording.bytes * plan.seam // recording.blocks_until(MAX_NS)
        with second_process(Request(make, recording.path, selection, other, plan)) as take:
            sink.begin(plan.start)
            sink.read(plan.start, plan.seam)
            here, half = known(sink, recording, plan.seam), take()
            end = None if half is None else joined(here, half)
            if half is None or end is None:
                recording.read_until = None
                sink.read(plan.seam, plan.stop)
                return sink.end(sink.rest(plan.stop))
            sink.append(other)
            recording.reader.add_noted_by(half.reader)
            spans = (min(sink.span_s[0], end.span_s[0]), max(sink.span_s[1], end.span_s[1]))
            refused = sink.refused + end.refused - half.known.refused
            return sink.end(end._replace(refused=refused, span_s=spans))


def plan_of(recording: Recording, blocks: range) -> Plan | None:
    """Where the second process begins; None: one is enough, or two would read too much twice."""
    if len(blocks) < LEAST_BLOCKS or recording.growing or len(os.sched_getaffinity(0)) < 2:
        return None
    middle = blocks[len(blocks) // 2]
    middle_ns = recording.block_summary(middle).first_ns
    steps = LONG * recording.detail_every(before_ns=middle_ns) + 2 * OWN_STEPS
    from_ns = recording.tail_from_ns(before_ns=middle_ns, steps=steps)
    from_ns = min(from_ns, middle_ns - round(2 * TOGETHER_S * NS))
    twice = middle - max(blocks.start, recording.block_at(from_ns))
    if twice > MOST_TWICE * len(blocks):
        return None
    seam = middle + twice // 2  # so that both read as much
    return Plan(blocks.start, seam - twice, seam, blocks.stop)


def known(sink: TableSink, recording: Recording, seam: int) -> Known:
    """What is known once all blocks before the seam were read."""
    state, flagging = sink.reducer.state, sink.reducer.evaluation.flagging
    figures = state.figures
    seam_ns = recording.block_summary(seam - 1).last_ns
    frame = sink.reducer.frame(seam_ns)
    shown = snapshot(frame)
    compared = (
        *(shown[name] for name in SHOWN),
        [(alert.kind, alert.rank, alert.step) for alert in frame.alerts],
        [(host.name, host.state) for host in frame.hosts],
        (state.incarnation, state.complete_step, state.usual_pauses, state.loss_spread.phase),
        (figures.straggler, figures.straggler_logged, figures.contradicted, flagging.remembered()),
        figures.detail and (figures.detail.flagged, figures.detail.last_flagged),
    )
    rows = {} if sink.latest is None else step_rows(sink.latest)
    records = np.stack([frame.ranks.records, frame.ranks.lost_records])
    at_s = state.unix_s(seam_ns)
    return Known(at_s, compared, rows, state.log.all(), records, sink.refused, frame.ledger)


def joined(here: Known, half: Half) -> End | None:
    """The end of the recording as one process would have found it; None: the two do not agree at the seam.

    An event on many ranks is one line for TOGETHER_S: so the second process has to know of those before."""
    there, end = half.known, half.end
    since_s = here.at_s - TOGETHER_S

    def later(events: Sequence[LoggedEvent], is_later: bool = True) -> list[LoggedEvent]:
        return [one for one in events if (one.unix_s >= since_s) is is_later]

    ranks = end.frame.ranks
    if here.state != there.state or not same_rows(here.rows, there.rows):
        return None
    if later(here.events) != later(there.events) or later(there.events, False) != later(end.events, False):
        return None
    if here.records.shape != there.records.shape or here.records.shape[1] != len(ranks.records):
        return None
    records, lost = np.stack([ranks.records, ranks.lost_records]) + here.records - there.records
    ledger = join_ledgers(here.ledger, there.ledger, end.frame.ledger)
    frame = replace(end.frame, ranks=replace(ranks, records=records, lost_records=lost), ledger=ledger)
    events = [*later(here.events, False), *later(end.events)][-EVENTS_KEPT:]
    return end._replace(frame=frame, events=events)


def join_ledgers(here: Ledger | None, there: Ledger | None, end: Ledger | None) -> Ledger | None:
    """The ledger of the whole run: that of the first process at the seam, and what the second one has added
    to its own since then."""
    if here is None or there is None or end is None:
        return None
    parts = ((1, end), (1, here), (-1, there))
    columns = {
        field.name: np.sum([sign * getattr(part.ranks, field.name) for sign, part in parts], axis=0)
        for field in fields(end.ranks)
    }
    total_s = float(columns["elapsed_s"].sum())
    rows = [(sign, {(row.rank, row.place): row for row in part.run.waited_for}) for sign, part in parts]

    def joined_row(key: tuple[int, str]) -> WaitedFor:
        known_rows = [(sign, by_key[key]) for sign, by_key in rows if key in by_key]
        longest = max((row for _, row in known_rows), key=lambda row: row.longest_s)
        rank_seconds = sum(sign * row.rank_seconds for sign, row in known_rows)
        return replace(
            longest,
            rank_seconds=rank_seconds,
            share_pct=100 * rank_seconds / total_s if total_s else 0.0,
            steps=sum(sign * row.steps for sign, row in known_rows),
            n_dear=sum(sign * row.n_dear for sign, row in known_rows),
        )

    waited_for = map(joined_row, {**rows[0][1], **rows[1][1]})
    rank_seconds = sum(sign * part.run.rank_seconds for sign, part in parts)
    run = replace(
        end.run,
        rank_seconds=rank_seconds,
        lost_pct=100 * rank_seconds / total_s if total_s else None,
        steps=sum(sign * part.run.steps for sign, part in parts),
        waited_for=tuple(sorted(waited_for, key=lambda row: -row.rank_seconds)),
    )
    return replace(end, ranks=LedgerRanks(**columns), run=run)


def same_rows(here: Rows, there: Rows) -> bool:
    """Whether the newest rows are the same, as many as both have; there is at least one."""
    n = min((len(rows.get("step", ())) for rows in (here, there)), default=0)
    return n > 0 and all(
        np.array_equal(values[-n:], there[name][-n:], equal_nan=values.dtype.kind == "f")
        for name, values in here.items()
        if isinstance(values, np.ndarray)
    )


@contextmanager
def second_process(request: Request) -> Iterator[Callable[[], Half | None]]:
    """Starts it; it is ended with the block. Yields what waits for its result; None: it has failed."""
    try:
        process = start_second(_CODE, request, stdout=subprocess.PIPE)
    except OSError:
        yield lambda: None
        return
    assert process.stdout is not None
    with process.stdout as stdout:

        def take() -> Half | None:
            if not _answers(process.pid, stdout):
                return None
            with suppress(Exception):  # whatever it has sent: the first process goes on alone
                half: Half = pickle.load(stdout)
                return half
            return None

        try:
            yield take
        finally:
            process.kill()
            process.wait()


def _answers(pid: int, stdout: IO[bytes]) -> bool:
    """Wait until it has written, or ended; False: it has been stopped for STOPPED_S."""
    stopped = 0
    while not select.select([stdout], [], [], 1.0)[0]:
        stopped = stopped + 1 if psutil.Process(pid).status() == psutil.STATUS_STOPPED else 0
        if stopped >= STOPPED_S:
            return False
    return True


_CODE = "from ddptop.export.halves import main; main()"


def main() -> None:
    """The second process: what it exports is pickled in stdin, and its result in stdout."""
    request: Request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_first, daemon=True).start()
    pickle.dump(_half(request), sys.stdout.buffer)


def _half(request: Request) -> Half:
    plan = request.plan
    with Recording.open(request.path) as recording:
        with closing(request.make(recording, request.selection, request.folder)) as sink:
            sink.takes = False
            sink.begin(plan.earlier)
            reported = [
                recording.block_summary(i).last_step
                for i in range(max(0, plan.earlier - AROUND), plan.earlier)
            ]
            sink.reducer.state.pairing.begin_at(-(-max(reported, default=0) // ALIGNED) * ALIGNED + ALIGNED)
            sink.read(plan.earlier, plan.seam)
            here = known(sink, recording, plan.seam)
            sink.takes = True
            sink.read(plan.seam, plan.stop)
            end = sink.rest(plan.stop)
        recording.reader.kept.clear()  # the first process needs only what was noted of damage
        return Half(here, end, recording.reader)


def _end_with_the_first() -> None:
    """End this process where the first one was killed, so that nobody reads its stdout: it writes no more."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # an error is reported unasked
    poll.poll()
    os._exit(1)
