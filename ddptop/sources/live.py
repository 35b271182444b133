"""Frames of a live run, from its collector over the credit link: that of this host, or one elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import zmq

from ddptop.frames.codec import FrameDecoder, FrameError, has_more
from ddptop.frames.history import HistoryStore
from ddptop.host.processes import process_status
from ddptop.host.runs import is_alive, read_run_file, view_endpoint
from ddptop.protocol.messages import Credit
from ddptop.protocol.vocabulary import ENDED
from ddptop.sources.base import Source, WithoutPlayback, error_line, is_over
from ddptop.sources.request_pace import ASK_AGAIN_S, PAUSE_S, RequestPace
from ddptop.sources.threads import new_thread, wait_for_ends
from ddptop.transport.credit import CreditClient
from ddptop.transport.curve import ConnectionMonitor, make_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.frames.frame import Frame
    from ddptop.frames.history import History
    from ddptop.host.runs import RunFile
    from ddptop.protocol.messages import State
    from ddptop.protocol.vocabulary import RankStatus
    from ddptop.transport.curve import ViewerKey

SILENT_S = 1.5
"""After this long without a frame the last one counts as stale: one every SLOWEST_S is asked for."""

AGE_EVERY_S = 0.5
"""How often a frame that no longer changes is handed out again, with a later time."""

MOST_CREDITS = 4
"""Requests that may still be answered: one is repeated where no answer comes in ASK_AGAIN_S."""

GOOD_FOR_S = 30.0
"""If frames could be read for this long, the next pause is the first one again."""


READING_SHARE, READING_S, LONGEST_REST_S = 0.05, 1.0, 15.0
"""Share of a core that the reading thread may take, whatever arrives; seconds of CPU time that it may take at
once, as for a long history; and its longest rest. 4,096 ranks take half of that share."""


class FarEndError(Exception):
    """The other end sends what nobody has asked for: in a few words."""


class CpuAllowance:
    """Limits the CPU time of the calling thread: some seconds at once, and a share of a core over time."""

    def __init__(self, share: float = READING_SHARE, at_once_s: float = READING_S) -> None:
        self._share, self._most_s = share, at_once_s
        self._left_s = at_once_s
        self._now_s, self._taken_s = time.monotonic(), time.thread_time()

    # `thread_time`, because other threads of the viewer draw meanwhile, which is not the reader's cost.
    def rest_s(self) -> float:
        """How long the thread has to rest now; 0 while it may go on."""
        now_s, taken_s = time.monotonic(), time.thread_time()
        earned_s = self._share * (now_s - self._now_s)
        # May become negative: a single long history takes more than is left, and is rested for afterwards.
        self._left_s = min(self._most_s, self._left_s + earned_s) - (taken_s - self._taken_s)
        self._now_s, self._taken_s = now_s, taken_s
        return min(max(0.0, -self._left_s / self._share), LONGEST_REST_S)


class Link(Protocol):
    """A connection to the collector of one run, used by one thread."""

    def grant_credit(self, credit: Credit) -> bool:
        """Ask for one frame; False where that cannot be sent now. Never blocks."""

    def receive_frame(self) -> State | None:
        """The next frame that has arrived, None if there is none. Never blocks."""

    def wait_for_frame(self, ms: int) -> None:
        """Wait until something has arrived, at most `ms` milliseconds."""

    def is_running(self) -> bool:
        """Whether the collector's process runs, as far as is known."""

    def why_broken(self) -> str | None:
        """Why the collector cannot be reached now, in a few words; None: it can."""

    def describe_far_end(self) -> str:
        """`the collector (PID 4310)`, or without the PID where that is not known."""

    def close(self) -> None:
        """Close it; may be called twice."""


class CollectorSource(WithoutPlayback, Source):
    """Reads one run in a thread of its own. `start` and `close` are called once each, all else from any
    thread."""

    def __init__(self, name: str, recording: str | None) -> None:
        """`name`: of the run; `recording`: path on this host, None where there is none."""
        self._name = name
        self._recording = recording
        self._link: Link | None = None
        self._decoder = FrameDecoder()
        self._history = HistoryStore()
        self._epoch = 0
        self._cursor = 0
        self._focus = -1
        self._want = ""
        self._frame: Frame | None = None
        self._taken: Frame | None = None
        """The last frame that was handed out."""
        self._live: Frame | None = None
        self._status: str | None = f"waiting for the collector of {name}"
        self._failure: str | None = None
        self._refused: str | None = None
        """Why what arrived last was no frame; None: it was one."""
        self._received_s = self._aged = time.monotonic()
        self.pace = RequestPace()
        self._credits = 0
        """Frames that may still arrive."""
        self._retry_pause_s, self._began_s = PAUSE_S[0], time.monotonic()
        self._allowance = CpuAllowance()
        self._stop = threading.Event()
        self._thread = new_thread(self._run_thread, "ddptop-live")
        self.skipped = 0
        """Frames that were not sent because none was asked for: the last one is shown still."""

    def _open_link(self) -> Link:
        """A new connection. Raises zmq.ZMQError or OSError where there can be none."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def latest(self) -> Frame | None:
        """The newest frame; None while there is none yet."""
        # Noted as taken, so that the next frame is asked for: nobody needs frames that nobody draws.
        self._taken = self._frame
        return self._taken

    def status(self) -> str | None:
        """Why no frame comes; None while all is well."""
        return self._status

    def failure(self) -> str | None:
        """See Source."""
        return self._failure

    def focus(self, rank: int | None) -> None:
        """Ask for the single steps of this rank in coming frames."""
        self._focus = -1 if rank is None else rank

    def request(self, text: str) -> None:
        """Ask for one more part of coming frames."""
        self._want = text

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        wait_for_ends([self._thread])

    def _run_thread(self) -> None:
        """Read; after an internal error show it, and start over with a new connection."""
        # Made anew in this thread: it measures the CPU time of the thread that it was made in.
        self._allowance = CpuAllowance()
        while not self._stop.is_set():
            try:
                self._read_frames()
            except FarEndError as error:
                self._status = self._refused = f"the connection was closed: {error}"
                self._stop.wait(self._next_pause_s())
            except Exception as error:  # noqa: BLE001  # shown; the last frame is no longer the present
                self._failure = self._status = error_line(error)
                # What is shown is no longer the present, and must not look as if it were.
                if self._live is not None and self._live.run.state not in ENDED:
                    self._frame = aged_frame(self._live, time.monotonic() - self._received_s, "stale")
                # The decoder keeps parts of the frames before: after an error nobody knows which.
                self._decoder, self.pace.is_owed, self._cursor = FrameDecoder(), False, 0
                self._history.clear()
                self._stop.wait(ASK_AGAIN_S)

    def _next_pause_s(self) -> float:
        """How long to wait now; the next time twice as long."""
        pause_s, self._retry_pause_s = self._retry_pause_s, min(2 * self._retry_pause_s, PAUSE_S[1])
        return pause_s

    def _read_frames(self) -> None:
        self._credits, self.pace.is_owed, self._began_s = 0, False, time.monotonic()
        try:
            self._link = link = self._open_link()
        # No connection can be made at all, such as without a file descriptor: another try would fail as well.
        except zmq.ZMQError as error:
            self._status = f"cannot reach the collector of {self._name}: {error}"
            self._stop.set()
            return
        try:
            while not self._stop.is_set():
                self._grant_credit(link)
                link.wait_for_frame(self.pace.ms_until_request(time.monotonic()))
                self._receive_frames(link)
                # Also without a new frame, so that a silence shows.
                self._age_last_frame()
                # A far end that sends without pause must not take a whole core of this machine.
                if rest_s := self._allowance.rest_s():
                    self._received_s += rest_s  # what arrives meanwhile is read after it
                    self._stop.wait(rest_s)
        finally:
            link.close()

    def _grant_credit(self, link: Link) -> None:
        ask_for, now_s = (self._focus, self._want), time.monotonic()
        # Nothing follows after the end; a request would only bring the same frame.
        if self._live is not None and is_over(self._live.run):
            return
        if not self.pace.is_due(ask_for, now_s, is_taken=self._taken is self._frame):
            return
        if link.grant_credit(Credit(self._epoch, self._cursor, *ask_for)):
            self.pace.note_request(ask_for, now_s)
            self._credits = min(self._credits + 1, MOST_CREDITS)

    def _receive_frames(self, link: Link) -> None:
        """Take the frames that have arrived. Raises FarEndError for frames that nobody asked for: without a
        limit they would take a whole core."""
        newest = None
        # All that have arrived: only the newest is shown, but each extends the history.
        while (state := link.receive_frame()) is not None:
            self._credits -= 1
            if self._credits < 0:
                raise FarEndError("more frames arrive than were asked for")
            newest = self._complete_frame(state) or newest
        if newest is not None:
            self._live = self._frame = newest
            self._failure = None
            self._status = f"the run has {newest.run.state}" if newest.run.state in ENDED else None

    def _complete_frame(self, state: State) -> Frame | None:
        """A frame with all its history, or None while some of that is still to come."""
        self.pace.is_owed = False
        try:
            frame = self._decoder.decode(state.frame)
        except FrameError as error:
            self._refused = f"cannot read the collector's frames ({error}): is it another version of ddptop?"
            self._status = self._refused
            self.pace.note_unreadable()
            return None
        if time.monotonic() - self._began_s > GOOD_FOR_S:
            self._retry_pause_s = PAUSE_S[0]
        self._received_s, self._refused = time.monotonic(), None
        self.skipped += state.skipped
        # Another collector process numbers the points of the history anew.
        if state.epoch != self._epoch:
            self._epoch = state.epoch
            self._history.clear()
        history = self._history.extend(frame.history)
        self._cursor = self._history.end
        is_whole = not has_more(frame)
        self.pace.note_frame(is_whole=is_whole)
        return replace(frame, history=history) if is_whole else None

    def _age_last_frame(self) -> None:
        """Hand out the last frame again, marked as stale or lost, when no newer one comes."""
        now_s = time.monotonic()
        if self._link is None or now_s - self._received_s < SILENT_S or now_s - self._aged < AGE_EVERY_S:
            return
        self._aged = now_s
        running, broken = self._link.is_running(), self._link.why_broken()
        last = self._live
        if last is not None and last.run.state in ENDED:
            return  # the final frame of a run is shown until the viewer closes
        # The collector has ended without sending its last frame; the recording says how the run ended.
        if not running and (end := final_frame(last, self._recording)) is not None:
            self._live = self._frame = end
            self._status = f"the run has {end.run.state}"
            return
        if last is None:
            gone = f"the collector of {self._name} is gone"
            far_end = self._link.describe_far_end()
            yet = f"{far_end} of {self._name} does not answer yet" if running else gone
            # Frames that cannot be read explain best why there is no picture, whatever came after them.
            self._status = self._refused or broken or yet
            return
        silent_s = now_s - self._received_s
        reason = (
            broken
            or self._refused
            or f"{self._link.describe_far_end()} {'does not answer' if running else 'is gone'}"
        )
        self._status = f"{reason}; the picture is that of the last update"
        self._frame = aged_frame(last, silent_s, "stale" if running else "lost")


class LiveSource(CollectorSource):
    """Reads a run of this host."""

    def __init__(self, run: RunFile) -> None:
        super().__init__(run.name, run.recording)
        self._run = run

    def _open_link(self) -> Link:
        return LocalLink(self._run)


class RemoteSource(CollectorSource):
    """Reads a run on another machine."""

    def __init__(self, name: str, where: str, link: Link, connect: Callable[[], Link]) -> None:
        """`where`: the machine, as the user named it. `link`: the first connection, made already; `connect`
        makes another one after an internal error."""
        super().__init__(name, None)
        self.where = where
        self._first: Link | None = link
        self._connect = connect

    # The first connection was made before the screen opened, as ssh may have asked for a password.
    def _open_link(self) -> Link:
        link, self._first = self._first, None
        return link or self._connect()

    def close(self) -> None:
        """See Source."""
        super().close()
        if self._first is not None:  # it was never started
            self._first.close()


class LocalLink:
    """The connection to a collector on this host."""

    def __init__(self, run: RunFile) -> None:
        """Raises zmq.ZMQError."""
        self._directory = run.directory
        self._client = CreditClient(view_endpoint(run.directory))
        # The client has exactly these methods: no call in between for each frame.
        self.grant_credit, self.receive_frame = self._client.grant_credit, self._client.receive_frame
        self.close = self._client.close

    def wait_for_frame(self, ms: int) -> None:
        """See Link."""
        self._client.socket.poll(ms)

    def is_running(self) -> bool:
        """See Link."""
        run = read_run_file(self._directory)  # again: a restarted collector has another pid
        return run is not None and is_alive(run)

    def describe_far_end(self) -> str:
        """See Link."""
        run = read_run_file(self._directory)
        if run is None:
            return "the collector"
        status = process_status(run.pid)
        is_stopped = status is not None and status.state in "Tt"
        stopped = f" is stopped: kill -CONT {run.pid}" if is_stopped else ""
        return f"the collector (PID {run.pid}{stopped})"

    def why_broken(self) -> str | None:
        """Never: over ipc a living collector can be reached."""
        return None


class TcpLink:
    """The connection to a collector elsewhere, over TCP. ZeroMQ makes it again when it breaks."""

    def __init__(self, where: str, key: ViewerKey) -> None:
        """`where`: HOST:PORT. Raises zmq.ZMQError, OSError."""
        self._where = where
        self._key = key
        self._client = CreditClient(f"tcp://{where}", self._prepare_socket)
        self.grant_credit, self.receive_frame = self._client.grant_credit, self._client.receive_frame

    def wait_for_frame(self, ms: int) -> None:
        """See Link."""
        self._client.socket.poll(ms)
        self._monitor.read_events()

    def is_running(self) -> bool:
        """See Link: not known without a connection."""
        return True

    def describe_far_end(self) -> str:
        """See Link."""
        return "the collector"

    def why_broken(self) -> str | None:
        """See Link."""
        trouble = self._monitor.trouble
        return None if trouble is None else f"no connection to {self._where} ({trouble})"

    @property
    def is_refused(self) -> bool:
        """Whether one end has not the key that the other one expects."""
        return self._monitor.refused

    def close(self) -> None:
        """See Link."""
        # The monitor belongs to the socket, and must be closed before it; `close` may be called twice.
        if not self._client.socket.closed:
            self._monitor.close()
        self._client.close()

    def _prepare_socket(self, socket: zmq.Socket[bytes]) -> None:
        make_client(socket, self._key.server_key, self._key.keys)
        self._monitor = ConnectionMonitor(socket)


def _span_s(history: History) -> float:
    """Time from its first point to its last; -1: it has none."""
    return float(history.time_s[-1] - history.time_s[0]) if len(history.time_s) else -1.0


def final_frame(last: Frame | None, recording: str | None) -> Frame | None:
    """The last frame of a run that has ended, from its recording, with the history of the `last` one that was
    received; None where there is none.

    Needed where this process was stopped when the run ended, or had no frame yet.
    """
    end = ended_frame(recording)
    if end is None or last is None:
        return end
    history = max(last.history, end.history, key=_span_s)  # the tail may have more points of fewer steps
    return replace(end, source=last.source, history=history)


def ended_frame(recording: str | None) -> Frame | None:
    """The last frame of a run that has ended, as it was live; None where its recording has no end."""
    # Imported here: a viewer of a live run needs no reader, and starts sooner without.
    from ddptop.recording.reader import Recording, RecordingError
    from ddptop.sources.replay import frame_of

    if recording is None:
        return None
    try:
        with Recording.open(Path(recording)) as opened:
            if opened.latest_run.state not in ENDED:
                return None
            end = frame_of(opened, None)
    except (OSError, RecordingError):
        return None
    return replace(end, source="live", playback=None) if end.run.state in ENDED else None


def aged_frame(frame: Frame, silent_s: float, state: RankStatus) -> Frame:
    """The frame after `silent_s` seconds without a newer one: no rank in it is live any more."""
    run = replace(frame.run, state=state, elapsed_s=frame.run.elapsed_s + silent_s)
    ranks = replace(
        frame.ranks,
        # A rank that has ended stays ended, whatever is silent now.
        state=tuple(state if was in ("live", "stalled", "stale") else was for was in frame.ranks.state),
        age_ms=frame.ranks.age_ms + silent_s * 1000,
    )
    hosts = tuple(replace(host, age_ms=host.age_ms + silent_s * 1000) for host in frame.hosts)
    return replace(frame, run=run, ranks=ranks, hosts=hosts, unix_s=frame.unix_s + silent_s)
