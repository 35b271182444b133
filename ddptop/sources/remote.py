"""A run on another machine: the viewer link through ssh, srun or any command, over its stdin and stdout.

The first connection may ask on the terminal (a password, an unknown host key), before a screen opens. Later
ones are made behind the screen: they ask nothing and have no terminal.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import subprocess
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.frames.numbers import fixed
from ddptop.protocol.codec import encode
from ddptop.protocol.decoding import decode
from ddptop.protocol.errors import ProtocolError
from ddptop.protocol.messages import Credit, State
from ddptop.sources.threads import LEAVE_S
from ddptop.transport import stdio
from ddptop.transport.stdio import FramePipe, FrameReader, RelayError, RelayHello

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FIRST_S = 150.0
"""How long the first connection may take until ddptop answers: sshd gives a user 120 s to log in."""

AGAIN_S = 30.0
"""How long a later connection may take, which asks no question."""

SILENT_S = 2.0
"""A connection counts as broken after this silence. The far end sends at least one beat every BEAT_S."""

GIVE_UP_S = 10.0
"""After this silence the connection is closed, and another one is made."""

PAUSE_S = (0.5, 15.0)
"""First and longest pause between two attempts; it doubles."""

MOST_BEATS, MOST_BEATS_S = 10, 4
"""Beats at once, and in a second of a connection: the far end sends one each BEAT_S."""

HOLD_S = 0.3
"""What the command prints on stderr is shown on the terminal this much later: where it ends by then, its last
line becomes part of ours."""

EXIT_S = 1.0
"""How long the command may take to end by itself, once its stdin is closed or it is asked to."""

MAX_ERROR_BYTES = 1 << 16
ERRORS_S = 0.1
"""At most MAX_ERROR_BYTES of stderr are read every ERRORS_S, and kept: output without end takes no core."""

NOT_FOUND_CODE, REFUSED_CODE = 3, 4
"""Exit codes of the command line."""

_REFUSED = re.compile(r"permission denied|host key verification failed|authentication fail|forbidden", re.I)
_NO_DDPTOP = re.compile(
    r"command not found|unknown command|: not found$|executable file not found|no such file or directory$",
    re.I,
)


class RemoteError(Exception):
    """The run cannot be reached: one line for a person."""

    def __init__(self, text: str, code: int = 1, host: str = "") -> None:
        super().__init__(text)
        self.code = code
        """Exit code for the command."""
        self.host = host
        """Host on which the run is collected, where the far end knows that it is another one."""


@dataclass(frozen=True, kw_only=True)
class Remote:
    """How to start `ddptop relay` at the far end."""

    where: str
    """For texts: the host."""
    first: Sequence[str]
    """The command that reaches it, for the first time."""
    again: Sequence[str]
    """The command that reaches it without any question to the user."""
    program: str = "ddptop"
    """What starts ddptop there."""
    shell: bool = False
    """The far end hands one text to a shell."""

    @property
    def started_program(self) -> str:
        """Name of the program that is started there."""
        # Of `python -m ddptop` it is `python`, which a shell names where it is missing.
        return shlex.split(self.program)[0].rpartition("/")[2]

    def command_words(self, run: str | None, *, first: bool) -> list[str]:
        """The whole command line; `run`: None: the only live run."""
        relay = ["relay"] if run is None else ["relay", run]
        begin = self.first if first else self.again
        if self.shell:
            # ssh joins its arguments with spaces for a shell: they are quoted here.
            return [*begin, f"{self.program} {shlex.join(relay)}"]
        return [*begin, *shlex.split(self.program), *relay]


class RemoteLink:
    """A `sources.live.Link` to a collector elsewhere. It connects again when the connection breaks. For one
    thread at a time."""

    def __init__(self, remote: Remote, run: str | None) -> None:
        self._remote = remote
        self._run = run
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: FramePipe | None = None
        self._hello: RelayHello | None = None
        """What the far end has sent first on this connection; None: nothing yet."""
        self._states: deque[State] = deque()
        self._beats = 0
        self._errors = b""
        """End of what the command printed on stderr."""
        self._errors_due_s = 0.0
        self._running = True
        self._reason, self._code, self._elsewhere = "", 1, ""
        """Why there is no connection; exit code and host of a RemoteError."""
        self._closed = False
        self._pause_s = PAUSE_S[0]
        self._retry_s = self._began_s = self._heard_s = time.monotonic()

    def connect_first(self, show: Callable[[bytes], None] | None) -> RelayHello:
        """Make the first connection. `show`: for what the command prints on stderr until ddptop answers.

        Raises RemoteError.
        """
        self._start_command(first=True)
        shown, held_s = 0, None
        while self._hello is None:
            self._work_pipe(50)
            now_s = time.monotonic()
            if self._process is None:
                raise RemoteError(self._reason, self._code, self._elsewhere)
            held_s = None if len(self._errors) == shown else held_s or now_s
            if show is not None and held_s is not None and now_s - held_s > HOLD_S:
                show(self._errors[shown:])
                shown, held_s = len(self._errors), None
            if now_s - self._began_s > FIRST_S:
                self.close()
                raise RemoteError(f"{self._remote.where}: no ddptop answered in {FIRST_S:g} s")
        return self._hello

    def grant_credit(self, credit: Credit) -> bool:
        """See Link."""
        # Unsent bytes: the pipe is full, and another credit would only wait behind the first.
        if self._pipe is None or self._hello is None or self._pipe.unsent:
            return False
        self._pipe.send_frame(stdio.CREDIT, encode(credit))
        return True

    def receive_frame(self) -> State | None:
        """See Link."""
        return self._states.popleft() if self._states else None

    def wait_for_frame(self, ms: int) -> None:
        """See Link. Where there is no connection, one is made when its time has come."""
        now_s = time.monotonic()
        if self._process is None and not self._closed and now_s >= self._retry_s:
            try:
                self._start_command(first=False)
            # A command that cannot be started is tried again as a broken connection is.
            except RemoteError as error:
                self._drop_connection(str(error))
        if self._process is None:
            time.sleep(min(ms / 1000, max(0.0, self._retry_s - now_s)))
            return
        self._work_pipe(ms)
        now_s = time.monotonic()
        if self._process is not None and now_s - self._heard_s > (GIVE_UP_S if self._hello else AGAIN_S):
            self._drop_connection("nothing arrives")

    def is_running(self) -> bool:
        """See Link; without a connection: as the far end reported it last."""
        return self._running

    def describe_far_end(self) -> str:
        """See Link."""
        return "the collector"

    def why_broken(self) -> str | None:
        """See Link."""
        where, now_s = self._remote.where, time.monotonic()
        if self._hello is not None:
            silent_s = now_s - self._heard_s
            return f"nothing arrives from {where}" if silent_s > SILENT_S else None
        wait_s = self._retry_s - now_s
        again = f"again in {fixed(wait_s, 0)} s" if self._process is None and wait_s >= 1 else "reconnecting"
        reason = self._reason.removeprefix(f"cannot reach {where}: ")
        return f"no connection to {where} ({reason}; {again})"

    def close(self) -> None:
        """See Link. The command ends by itself when its stdin is closed, or it is ended."""
        self._closed = True
        # A quarter each: the command is waited for up to three times.
        self._end_process(LEAVE_S / 4)

    # -- inside ------------------------------------------------------------------------

    def _start_command(self, *, first: bool) -> None:
        words = self._remote.command_words(self._run, first=first)
        self._errors, self._hello, self._code, self._elsewhere = b"", None, 1, ""
        self._began_s = self._heard_s = time.monotonic()
        self._beats = 0
        self._states.clear()
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=not first,  # no terminal: nothing it asks may get onto the screen
            )
        except OSError as error:
            raise RemoteError(f"{words[0]}: {error.strerror}") from None
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        # Read when something is there, and never waited for.
        os.set_blocking(process.stderr.fileno(), False)
        reader = FrameReader(stdio.FROM_FAR, greeted=False)
        self._process = process
        self._pipe = FramePipe(process.stdout.fileno(), process.stdin.fileno(), reader)

    def _work_pipe(self, ms: int) -> None:
        """Wait at most `ms` milliseconds for the command, and take what it has sent."""
        pipe, process = self._pipe, self._process
        assert pipe is not None and process is not None and process.stderr is not None
        poll = select.poll()
        poll.register(pipe.read_fd, select.POLLIN)
        # Not looked at in between: output without end would make every wait return at once.
        if time.monotonic() >= self._errors_due_s:
            poll.register(process.stderr, select.POLLIN)
        if pipe.unsent:
            poll.register(pipe.write_fd, select.POLLOUT)
        ready = dict(poll.poll(ms))
        pipe.flush()
        if process.stderr.fileno() in ready:
            self._read_errors(process)
            self._errors_due_s = time.monotonic() + ERRORS_S
        before = pipe.received_bytes
        try:
            for frame in pipe.receive_frames():
                self._take_pipe_frame(frame)
        except ProtocolError as error:
            self._drop_connection(f"what answers there is no ddptop of this version: {error}")
            return
        except RemoteError as error:
            self._code, self._elsewhere = error.code, error.host
            # The far end answers, and finds no such run any more.
            self._running = self._running and error.code != NOT_FOUND_CODE
            self._drop_connection(str(error))
            return
        # Any byte counts: a large frame may take longer than the pause between two beats.
        if pipe.received_bytes > before:
            self._heard_s = time.monotonic()
        if pipe.ended:
            self._end_process()
            self._drop_connection(self._why_ended(process))

    def _take_pipe_frame(self, frame: stdio.PipeFrame) -> None:
        if frame.kind == stdio.HELLO:
            hello = stdio.from_json(RelayHello, frame.payload)
            if hello.version != stdio.VERSION:
                raise RemoteError(
                    f"{hello.host} has ddptop {hello.ddptop}, which this one does not understand"
                )
            # From now on by its id: a run of the same name that is started later is another one.
            self._hello, self._run = hello, hello.run_id
            self._running = True
        elif frame.kind == stdio.ERROR:
            error = stdio.from_json(RelayError, frame.payload)
            raise RemoteError(error.text, error.code, error.host)
        elif frame.kind == stdio.BEAT:
            self._beats += 1
            # Each beat is taken at once, so beats without end would take a whole core.
            if self._beats > MOST_BEATS + MOST_BEATS_S * (time.monotonic() - self._began_s):
                raise ProtocolError("beats without end")
            self._running = frame.payload == b"1"
        else:
            state = decode(frame.payload)
            if not isinstance(state, State):
                raise ProtocolError("no frame of the group")
            self._states.append(state)
            # A frame shows that the connection works: the next pause is short again.
            self._pause_s = PAUSE_S[0]

    def _read_errors(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        with suppress(OSError):
            data = os.read(process.stderr.fileno(), MAX_ERROR_BYTES)
            # Its end says why it failed.
            self._errors = (self._errors + data)[-MAX_ERROR_BYTES:]

    def _why_ended(self, process: subprocess.Popen[bytes]) -> str:
        """In one line; sets the exit code."""
        lines = [line.strip() for line in self._errors.decode(errors="replace").splitlines()]
        last = next((line for line in reversed(lines) if line), "")
        code, where = process.returncode, self._remote.where
        if self._hello is not None:
            # Connected before: what is wrong is the connection, not the command.
            return last or f"{self._remote.first[0]} ended"
        if _REFUSED.search(last):
            self._code = REFUSED_CODE
            return f"{where}: {last}"
        # srun has a line of its own after the one that says it.
        named = [line for line in lines if self._remote.started_program in line and _NO_DDPTOP.search(line)]
        if code == 127 or named or _NO_DDPTOP.search(last):
            hint = "install it there, or say where it is: --remote-command PATH"
            return f"{where}: no ddptop there ({(named or [last])[-1] or f'exit code {code}'}); {hint}"
        return f"cannot reach {where}: {last or f'{self._remote.first[0]} ended with exit code {code}'}"

    def _drop_connection(self, reason: str) -> None:
        """Close the connection; the next one is due after a pause."""
        self._end_process()
        self._hello = None
        self._reason = reason
        self._retry_s = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S[1])

    def _end_process(self, exit_s: float = EXIT_S) -> None:
        process, self._process, self._pipe = self._process, None, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        with suppress(OSError):
            process.stdin.close()
        # The end of its stdin ends the relay; ssh may hang in a dead connection.
        # By itself, then asked, then forced.
        for end in (None, process.terminate, process.kill):
            if end is not None:
                end()
            with suppress(subprocess.TimeoutExpired):
                process.wait(exit_s)
                break
        # Its last words say best why it ended.
        self._read_errors(process)
        process.stdout.close()
        process.stderr.close()
