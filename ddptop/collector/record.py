"""The collector's recording, which may be off or fail at any moment; what an earlier collector has left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ddptop.analysis.ledger.recorded import resume_ledger
from ddptop.host.runs import read_run_file
from ddptop.protocol.hosts import Host
from ddptop.protocol.messages import Bye, Event, Hello, Progress, Received, Scalar
from ddptop.recording.disk import numbered_paths
from ddptop.recording.format import RecordingError
from ddptop.recording.reader import Recording
from ddptop.recording.records import PASSING
from ddptop.recording.writer import HistorySource, Writer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddptop.agent.internal_errors import InternalErrors
    from ddptop.analysis.state import RunState
    from ddptop.protocol.message_run import EncodedRun

PROGRESS_EVERY_NS = 1_000_000_000
"""One heartbeat a second is kept of each rank: a replay shows its own cost and its silences from them."""


def note_kind(note: str) -> str:
    """What kind of trouble a note tells: `recording near its limit`, whatever is left out by now."""
    return re.sub(r"[\d,]+", "", note.partition(":")[0])


class Record:
    """Writes messages, if it can, and tracks which of them would survive this process."""

    def __init__(self, path: Path | None, *, limit_bytes: int, resume: bool) -> None:
        self.path = path
        """Path of the recording, with a number appended where another run had the name first."""
        self._writer: Writer | None = None
        self._error: str | None = None
        self._taken_note: str | None = None
        self._beats = KeptBeats()
        for self.path in numbered_paths(path) if path is not None else ():
            try:
                self._writer = Writer(self.path, limit_bytes=limit_bytes, resume=resume)
            except FileExistsError:
                continue
            except (OSError, RecordingError, RuntimeError) as error:  # the last: no thread can be started
                reason = error.strerror if isinstance(error, OSError) else str(error)
                self._error = f"not recorded: {self.path}: {reason}"
            # Also after an error that is not about the name: the next number would fail as well.
            return

    def set_history(self, past: HistorySource) -> None:
        """Set the source of the group's history for the recording."""
        if self._writer is not None:
            self._writer.history = past

    @property
    def trouble_note(self) -> str | None:
        """Why there is no recording, or why it is incomplete, as text."""
        return self._error or (self._writer.note if self._writer else None)

    def take_new_note(self) -> str | None:
        """The note, where it has changed since it was last taken."""
        if self.trouble_note == self._taken_note:
            return None
        self._taken_note = self.trouble_note
        return self._taken_note

    @property
    def existing_path(self) -> str | None:
        """Path of the recording as text; None where nothing is recorded."""
        return str(self.path) if self._writer is not None and not self._writer.removed else None

    def add_message(self, received: Received, body: bytes) -> None:
        """Keep a message, unless it is a heartbeat soon after another."""
        if self._writer is None:
            return
        if isinstance(received.message, Progress) and not self._beats.note_beat(received):
            return
        self._writer.add(received, body)
        if isinstance(received.message, Bye):
            self.write_all()  # a process waits for this ack before it may end

    def add_run(self, run: EncodedRun, begin: int, stop: int, errors: InternalErrors) -> None:
        """Keep the messages from place `begin` to before `stop`, as `add_message` keeps each, at less cost.

        An exception is counted in `errors`. It costs no more than the message that raises it alone, and
        heartbeats.
        """
        if self._writer is None:
            return
        together, added = np.empty(0, np.int64), 0
        alone: Sequence[int] = range(begin, stop)
        # The usual messages in one call; whatever it could not add is added one by one below.
        with errors:
            together, alone = self._divide_run(run, begin, stop)
        if len(together):
            with errors:
                self._writer.add_passing(run, together)
            # An exception may have come in the middle: nothing is added twice.
            added = self._writer.added
        for place in together[added:].tolist():
            with errors:
                self._writer.add(run.received(place), run.body(place))
        for place in alone:
            with errors:
                self.add_message(run.received(place), run.body(place))

    def _divide_run(self, run: EncodedRun, begin: int, stop: int) -> tuple[NDArray[np.int64], list[int]]:
        """The places of the messages that are kept together, and of those that are kept one by one."""
        passing = np.ones(stop - begin, bool)
        kinds = [(place, type(received.message)) for place, received in run.others_within(begin, stop)]
        alone = [place for place, kind in kinds if kind not in PASSING]
        beats = [np.array([place for place, kind in kinds if kind is Progress], np.int64)]
        beats += [reading.within(begin, stop).places for reading in run.readings if reading.kind is Progress]
        places = np.sort(np.concatenate(beats))
        passing[places - begin] = self._beats.choose_beats(run.heads[2, places], run.heads[0, places])
        passing[np.array(alone, np.int64) - begin] = False
        return begin + np.flatnonzero(passing), sorted(alone)

    def recall_message(self, received: Received) -> None:
        """Note a message that an earlier collector has written."""
        if self._writer is not None:
            self._writer.note_recorded(received)

    @property
    def is_failing(self) -> bool:
        """Whether the disk takes nothing at present, or nothing is recorded."""
        return self._writer is None or self._writer.fails

    def take_missing(self) -> list[Event]:
        """What the recording says, since the last call, of step records that are not in it."""
        return [] if self._writer is None else self._writer.take_missing()

    def write_due(self, now_ns: int) -> None:
        """Write what is due."""
        if self._writer is not None:
            self._writer.write_due(now_ns)

    @property
    def due_ns(self) -> int | None:
        """When something is to be written; None: nothing waits."""
        return None if self._writer is None else self._writer.due_ns

    def check_file(self) -> None:
        """Check that the file has not been deleted; to be called once a second."""
        if self._writer is not None:
            self._writer.restore_if_deleted()

    def write_all(self) -> None:
        """Write everything."""
        if self._writer is not None:
            self._writer.flush()

    @property
    def is_safe(self) -> bool:
        """Whether all that was added would survive the death of this process, or will never be written."""
        return self._writer is None or self._writer.buffered == 0

    def close(self) -> None:
        """Write the end of the recording, and close the file."""
        if self._writer is not None:
            self._writer.close()


class KeptBeats:
    """Decides which heartbeats are kept: one per process every PROGRESS_EVERY_NS."""

    def __init__(self) -> None:
        self.sessions = np.array([np.iinfo(np.int64).max])
        """(sessions,) ascending: sessions of which a heartbeat was kept lately. The last entry is the largest
        number there is, so that every search finds a place."""
        self._kept_ns = np.array([-PROGRESS_EVERY_NS])
        """(sessions,) when the newest one that is kept arrived."""

    def note_beat(self, received: Received) -> bool:
        """Note a heartbeat; whether it is kept."""
        return bool(self.choose_beats(np.array([received.session]), np.array([received.t_ns]))[0])

    def choose_beats(self, sessions: NDArray[np.int64], t_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) bool: which of n heartbeats are kept, given the session of each and when it arrived."""
        kept = np.zeros(len(sessions), bool)
        if not len(sessions):
            return kept
        columns = self.sessions.searchsorted(sessions)
        if (self.sessions[columns] != sessions).any():
            late = self._kept_ns > t_ns.min() - PROGRESS_EVERY_NS  # the others decide nothing any more
            late[-1] = True
            recent_sessions, known_ns = self.sessions[late], self._kept_ns[late]
            new = np.setdiff1d(sessions, recent_sessions)
            places = recent_sessions.searchsorted(new)
            self._kept_ns = np.insert(known_ns, places, -PROGRESS_EVERY_NS)
            self.sessions = np.insert(recent_sessions, places, new)
            columns = self.sessions.searchsorted(sessions)
        undecided = np.arange(len(columns))
        # A session may have several heartbeats in one run: the first one decides about the next.
        while len(
            undecided := undecided[t_ns[undecided] - self._kept_ns[columns[undecided]] >= PROGRESS_EVERY_NS]
        ):
            first = np.empty(len(self.sessions), np.int64)
            # Written in reverse, so that the earliest of each session is the one that stays.
            first[columns[undecided[::-1]]] = undecided[::-1]
            newly_kept = undecided[
                first[columns[undecided]] == undecided
            ]  # the first of each session, which decides about the next
            kept[newly_kept] = True
            self._kept_ns[columns[newly_kept]] = t_ns[newly_kept]
        return kept


class Counts:
    """Counts of received and missing rows of each rank, which are recorded for a later collector.

    A later collector reads only the end of the recording. Without the counts it would take all rows before
    that for received.
    """

    def __init__(self) -> None:
        self._recorded: dict[int, tuple[int, int, bool]] = {}
        self._counted: NDArray[np.int64] = np.empty((3, 0), np.int64)
        """(3, ranks) of each rank, what decides whether its counts are recorded."""
        self.lost = 0
        """Rows that all ranks have lost, at the last call."""

    def new_events(self, state: RunState, now_ns: int) -> list[Event]:
        """An event for each rank with missing rows, or begun or ended a process, since the last call."""
        events: list[Event] = []
        table = state.table
        # Compared as columns: with thousands of ranks a loop every second would cost.
        counted = np.stack([table.session, table.lost_records, state.presence.running])
        if np.array_equal(counted, self._counted):  # the usual case, quickly seen
            return events
        self._counted, self.lost = counted, int(table.lost_records.sum())
        for rank, member in enumerate(state.ranks):
            if member.hello is None:
                continue
            counts = (member.session, member.lost_records, not member.running)
            before = self._recorded.get(rank, (member.session, 0, False))
            self._recorded[rank] = counts
            session = state.session_of(member)
            if counts != before and session is not None:
                fields: dict[str, Scalar] = {
                    "session": member.session,
                    "records": member.records,
                    "lost": member.lost_records,
                }
                events.append(Event("counts", now_ns, rank, session.next_step, fields))
        return events


ROWS = 40_000
"""Step rows that are read again, over all ranks, for figures and charts: about two seconds of work."""

STEPS = (300, 20_000)
"""Least and most steps among them: what the medians are taken over, and all that a chart can show."""


@dataclass(frozen=True)
class EarlierRun:
    """What an earlier collector of the same run has left."""

    path: Path | None
    """Where the run is recorded, or is to be."""
    started_at: float | None
    """Unix seconds; None: there was none, this is the run's first collector."""
    recording: Recording | None
    """The recording to be continued; None: there is none."""

    def read_end(self, state: RunState) -> Iterator[Received]:
        """The end of its recording: everything that the reducer needs, oldest first. The ledger of its state
        begins with the sums that the earlier collector has recorded."""
        if self.recording is None:
            # Without its recording the sums of an earlier collector are lost, and the totals would be too
            # small.
            state.ledger.is_known = self.started_at is None
            return
        recorded = self.recording.ledgers_until(self.recording.end_ns, most_rows=ROWS)
        resumes = recorded is not None and resume_ledger(state.ledger, recorded.sums)
        from_ns = recorded.from_ns if recorded is not None and resumes else None
        worlds = (
            item.message.world_size
            for item in self.recording.lasting_messages()
            if isinstance(item.message, Hello)
        )
        least, most = STEPS
        steps = min(most, max(least, ROWS // max(worlds, default=1)))
        yield from self.recording.tail(steps=steps, from_ns=from_ns)

    def last_numbers(self) -> dict[int, int]:
        """By session: number of its last message; of the newest process of each rank and agent of each host.

        `read_end` may not go back to the last messages of a host that was out of reach for long. Messages
        that were recorded and not acked come again, and must not be taken twice.
        """
        newest: dict[int | str, int] = {}
        for received in () if self.recording is None else self.recording.lasting_messages():
            if isinstance(received.message, Hello):
                newest[received.rank] = received.session
            elif isinstance(received.message, Host):
                newest[received.message.name] = received.session
        return {} if self.recording is None else self.recording.last_numbers(newest.values())


@contextmanager
def open_earlier(directory: Path, path: Path | None, run_id: str) -> Iterator[EarlierRun]:
    """What is left of this run: its run file, and its recording.

    `path`: the recording, where the run file does not name it.
    """
    run = read_run_file(directory)
    if run is not None and run.run_id != run_id:
        run = None
    started_at = None if run is None else run.started_at
    if run is not None and run.recording is not None:
        recorded = Path(run.recording)
        # A collector's run file names the run's recording. An agent's is of a time before the collector was
        # here.
        if run.collector_host is None or path is None:
            path = recorded
        else:
            _take_over(recorded, path)
    recording = _open_recording(path)
    try:
        # Of another run with the same name: it stays as it is.
        if recording is not None and recording.run.run_id == run_id:
            yield EarlierRun(path, started_at, recording)
        else:
            yield EarlierRun(path, started_at, None)
    finally:
        if recording is not None:
            recording.close()


def _take_over(recorded: Path, path: Path) -> None:
    """Give the recording of this host's agent the collector's name: a rank has reported before it was decided
    that the collector is to be here. Nothing is replaced."""
    with suppress(OSError):
        # A hard link and then a removal: unlike a rename, it never replaces a file of this name.
        path.hardlink_to(recorded)
        recorded.unlink()


def _open_recording(path: Path | None) -> Recording | None:
    try:
        return Recording.open(path) if path is not None else None
    except (OSError, RecordingError):
        return None
