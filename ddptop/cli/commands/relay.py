"""`ddptop relay [RUN]`: the far end of `ddptop --connect`, over stdin and stdout.

It is started for each viewer and has to answer soon: it imports neither torch nor Textual, and numpy only
where the run has ended and its last frame is read from the recording.
"""

from __future__ import annotations

import argparse
import os
import secrets
import select
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ddptop import __version__
from ddptop.cli.commands.base import Command
from ddptop.cli.errors import CliError, Exit

if TYPE_CHECKING:
    import zmq

    from ddptop.frames.frame import Frame
    from ddptop.host.runs import RunFile
    from ddptop.protocol.messages import Credit, State
    from ddptop.transport.credit import CreditClient
    from ddptop.transport.stdio import FramePipe

POLL_MS, RETRY_MS = 500, 10
"""Longest wait, and the wait while a credit could not be sent: the collector's socket is still connecting."""

FLUSH_S = 10.0
"""How long the near end may take to read why there is no run."""

SEARCHED = 50
"""Newest recordings that are opened to find one by the id of its run."""


class Relay(Command):
    """Passes the frames of a run of this host on to a viewer elsewhere."""

    name = "relay"
    summary = "Serve a run over stdin and stdout. ddptop --connect starts this on the other machine."
    examples = ("ssh gpu01 ddptop relay train-k7qf",)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the run."""
        parser.add_argument(
            "run",
            nargs="?",
            metavar="RUN",
            help="name or id of a run, or its unique beginning (default: the only live run)",
        )

    def run(self, options: argparse.Namespace) -> int:
        """Serve until stdin is closed. Why there is nothing to serve is sent to the near end as well."""
        if sys.stdin.isatty() or sys.stdout.isatty():
            raise CliError("relay is for ddptop --connect, not for a terminal; see ddptop --help", Exit.USAGE)
        from ddptop.transport.stdio import (
            ERROR,
            FROM_NEAR,
            GREETING,
            HELLO,
            VERSION,
            FramePipe,
            FrameReader,
            RelayError,
            RelayHello,
            to_json,
        )

        # Not every sshd sets it, and the run may have been started where it is set.
        os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
        # What prints by accident must not get between the frames.
        read_fd, write_fd = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        pipe = FramePipe(read_fd, write_fd, FrameReader(FROM_NEAR, greeted=True))
        pipe.send_bytes(GREETING)
        host = socket.gethostname()
        try:
            run = _ServedRun(run_meant(options.run))
        except CliError as error:
            # The near end may then connect to that host itself.
            elsewhere = getattr(error, "host", "")
            pipe.send_frame(ERROR, to_json(RelayError(int(error.code), str(error), elsewhere)))
            _send_unsent(pipe)
            return error.code
        pipe.send_frame(HELLO, to_json(RelayHello(VERSION, __version__, run.run_id, run.name, host)))
        try:
            _serve_run(pipe, run)
        finally:
            run.close()
        return Exit.DONE


class _Elsewhere(CliError):
    """The run is collected on another host; empty: that is not known yet."""

    def __init__(self, run: RunFile) -> None:
        from ddptop.cli.find import collected_elsewhere

        super().__init__(collected_elsewhere(run), Exit.NOT_FOUND)
        self.host = run.collector_host or ""


def run_meant(word: str | None) -> RunFile | Path:
    """The live run that is meant, or the recording of an ended one. Raises CliError (3) unless it is one.

    Nobody can choose here, as on a screen: if several runs fit, none is taken.
    """
    from ddptop.cli.find import find_live, find_recorded, is_of_run, recorded_id, with_collector

    running, host = find_live(), socket.gethostname()
    if word is None:
        matches = list(with_collector(running))
    else:
        matches = [run for run in running if word in (run.name, run.run_id)] or [
            run for run in running if run.name.startswith(word) or run.run_id.startswith(word)
        ]
        matches = list(with_collector(matches))
    if len(matches) == 1:
        return matches[0]
    if matches:
        same = len({run.name for run in matches}) < len(matches)
        names = ", ".join(run.run_id if same else run.name for run in matches)
        raise CliError(f"several live runs on {host}, name one: {names}", Exit.NOT_FOUND)
    if word is None:
        raise CliError(f"no live run on {host}; name one that has ended to see its end", Exit.NOT_FOUND)
    kept = find_recorded(running)
    for item in kept:
        if is_of_run(item, word):
            return item.path
    # By id, which only the recordings themselves have.
    for item in kept[:SEARCHED]:
        if recorded_id(item.path) == word:
            return item.path
    raise CliError(f"no run on {host} is called {word!r}; `ddptop ls` there lists them", Exit.NOT_FOUND)


class _ServedRun:
    """A live run, served from its collector's socket, or an ended one, of which only the last frame is
    served."""

    def __init__(self, run: RunFile | Path) -> None:
        """Raises CliError where it cannot be served from this host."""
        self._run = None if isinstance(run, Path) else run
        self._client: CreditClient | None = None
        self._end: Frame | None = None
        self._epoch = secrets.randbits(62)
        self._states: list[State] = []
        self.run_id = self.name = ""
        if isinstance(run, Path):
            self._read_end(str(run))
            if self._end is None:
                raise CliError(f"the recording {run} has no end: ddptop replay shows it", Exit.NOT_FOUND)
            self.run_id, self.name = self._end.run.id, self._end.run.name
            return
        if run.collector_host is not None:
            raise _Elsewhere(run)
        import zmq

        from ddptop.host.runs import view_endpoint
        from ddptop.transport.credit import CreditClient

        self.run_id, self.name = run.run_id, run.name
        try:
            self._client = CreditClient(view_endpoint(run.directory))
        except zmq.ZMQError as error:
            raise CliError(f"cannot reach the collector of {run.name}: {error}") from None

    @property
    def socket(self) -> zmq.Socket[bytes] | None:
        """The socket to poll for frames; None: there is none."""
        return None if self._client is None else self._client.socket

    def grant_credit(self, credit: Credit) -> bool:
        """Ask for a frame; False: not now."""
        if self._end is None:
            return self._client is not None and self._client.grant_credit(credit)
        from ddptop.frames.codec import encode_frame
        from ddptop.frames.history import HistoryStore

        # The viewer may have a part of the history already: it says how much with its credit.
        points = HistoryStore()
        points.extend(self._end.history)
        same = credit.epoch == self._epoch
        if not same or credit.cursor < points.end:  # else it has everything, and nothing will follow
            history = points.since(credit.cursor if same else 0)
            frame = encode_frame(replace(self._end, history=history))
            from ddptop.protocol.messages import State

            self._states.append(State(self._epoch, 0, frame))
        return True

    def receive_frame(self) -> State | None:
        """The next frame; None if there is none."""
        if self._states:
            return self._states.pop()
        return None if self._client is None else self._client.receive_frame()

    def is_running(self) -> bool:
        """Whether its collector runs. If it does not, and the run has ended, the end of the run is served."""
        from ddptop.host.runs import is_alive, read_run_file

        run = None if self._run is None else read_run_file(self._run.directory)
        if run is not None and is_alive(run):
            return True
        # Its collector has ended without a last frame, as where this process was stopped.
        if self._run is not None and self._run.recording is not None and self._end is None:
            self._read_end(self._run.recording)
        return False

    def close(self) -> None:
        """Close the connection to the collector."""
        if self._client is not None:
            self._client.close()

    def _read_end(self, path: str) -> None:
        from ddptop.sources.live import ended_frame

        self._end = ended_frame(path)


def _serve_run(pipe: FramePipe, run: _ServedRun) -> None:
    """Pass credits to the collector and frames to the near end, until that closes stdin."""
    import zmq

    from ddptop.protocol.codec import encode
    from ddptop.protocol.decoding import decode
    from ddptop.protocol.errors import ProtocolError
    from ddptop.protocol.messages import Credit
    from ddptop.transport.stdio import BEAT, BEAT_S, STATE

    poller = zmq.Poller()
    poller.register(pipe.read_fd, zmq.POLLIN)
    if run.socket is not None:
        poller.register(run.socket, zmq.POLLIN)
    credit: Credit | None = None
    beat_s = time.monotonic()
    while not pipe.ended:
        if pipe.unsent:
            poller.register(pipe.write_fd, zmq.POLLOUT)
        elif pipe.write_fd in poller:
            poller.unregister(pipe.write_fd)
        # A credit that the collector could not take is offered again soon.
        poller.poll(POLL_MS if credit is None else RETRY_MS)
        try:
            messages = [decode(frame.payload) for frame in pipe.receive_frames()]
        except ProtocolError:
            return  # what is at the near end is no ddptop
        # Only the newest credit counts: one that comes later replaces those before it.
        credit = next((message for message in reversed(messages) if isinstance(message, Credit)), credit)
        if credit is not None and run.grant_credit(credit):
            credit = None
        while (state := run.receive_frame()) is not None:
            pipe.send_frame(STATE, encode(state))
        pipe.flush()
        now_s = time.monotonic()
        # No beat behind bytes that are not taken: it would only come later, and show no less.
        if now_s - beat_s >= BEAT_S and not pipe.unsent:
            beat_s = now_s
            pipe.send_frame(BEAT, b"1" if run.is_running() else b"0")


def _send_unsent(pipe: FramePipe) -> None:
    """Send what is left, as long as the other end takes it."""
    end_s = time.monotonic() + FLUSH_S
    while pipe.unsent and not pipe.ended and time.monotonic() < end_s:
        select.select([], [pipe.write_fd], [], RETRY_MS / 1000)
        pipe.flush()
