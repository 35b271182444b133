"""Calls what `--ddptop-on-alert` names, a command or a URL, at the begin and the end of each incident.

`AlertCalls` in the collector passes each call to a process of its own (`python -m
ddptop.collector.alert_calls`), which makes them one after another. A command that hangs, or a name server
that does not answer, so never holds up the collector. That process ends by itself within `LAST_S` after the
collector has. The command or URL, which may hold a secret, is on no command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from ddptop.collector.incidents import Change, Incidents
from ddptop.collector.internal_errors import InternalErrors
from ddptop.frames.frame import Alert
from ddptop.frames.snapshot import alert_fields
from ddptop.host import processes
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.messages import Event, Scalar

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.protocol.messages import Message

VARIABLE = "DDPTOP_ON_ALERT"
"""The command or URL, in the environment of the collector."""

SENT, FAILED = "alert_sent", "alert_failed"
"""Kinds of events."""

MOST_CALLS, WITHIN_NS = 20, 600 * NS
"""At most so many calls in so long; what is left out is counted in the next call."""

CALL_S = 30.0
"""Longest time of one command."""

ANSWER_S = 10.0
"""Longest time without an answer from a URL."""

OURS = frozenset({"PYTHONSAFEPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
"""Variables of the collector that a command does not get (`ddptop.host.processes.environment`)."""

LAST_S = 30.0
"""How long the calling process goes on after the collector."""


class AlertCalls:
    """The collector's side. Never blocks or raises."""

    def __init__(
        self,
        target: str,
        reducer: Reducer,
        report: Callable[[Event, int], None],
    ) -> None:
        """`target`: empty for no calls. `report` takes events for the recording."""
        self._target = target
        self._reducer = reducer
        self._report = report
        self.remark: str | None = None
        """Why a call failed, for a person."""
        self._incidents = Incidents()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = b""
        self._called_ns: deque[int] = deque()
        self._left_out = 0
        self._errors = InternalErrors()

    def recall(self, message: Message) -> None:
        """A message that an earlier collector of this run has recorded."""
        if isinstance(message, Event) and message.kind == SENT:
            self._incidents.recall(_recalled(message))

    def check(self, now_ns: int) -> None:
        """Call for what has begun or ended since the last time, and report what has failed."""
        self._work(self._incidents.update, now_ns)

    def end(self, now_ns: int, *, well: bool) -> None:
        """The run has ended. The other process makes the last calls; the end does not wait for them."""
        self._work(partial(self._incidents.end, well=well), now_ns)

    def close(self) -> None:
        """Let the process end, once it has made the calls that it was given."""
        process, self._process = self._process, None
        if process is not None:
            _close(process)

    def _work(self, changes: Callable[[Sequence[Alert], int], list[Change]], now_ns: int) -> None:
        if not self._target:
            return
        try:
            self._read_answers(now_ns)
            self._call_all(changes(self._reducer.alerts(now_ns), now_ns), now_ns)
        except Exception:  # noqa: BLE001 - an error costs one call, not the collector
            self._errors.note()

    def _call_all(self, changes: list[Change], now_ns: int) -> None:
        for change in changes:
            while self._called_ns and now_ns - self._called_ns[0] > WITHIN_NS:
                self._called_ns.popleft()
            if len(self._called_ns) >= MOST_CALLS:
                self._left_out += 1
                self._fail(f"more than {MOST_CALLS} calls in {WITHIN_NS // NS // 60} minutes", now_ns)
                continue
            self._called_ns.append(now_ns)
            try:
                self._pass_on(self._body(change, now_ns))
            except OSError as error:
                self._fail(str(error), now_ns)
                continue
            self._left_out = 0
            alert = change.alert
            fields: dict[str, Scalar] = {
                "alert": alert.kind,
                "incident": change.number,
                "begins": change.begins,
                "severity": alert.severity,
                "since_s": alert.since_s,
                "text": alert.message[:MAX_TEXT],
                "message": f"{alert.kind.replace('_', ' ')} {'began' if change.begins else 'is over'}",
            }
            rank = -1 if alert.rank is None else alert.rank
            self._report(Event(SENT, now_ns, rank, -1, fields), now_ns)

    def _body(self, change: Change, now_ns: int) -> bytes:
        """What the command reads on its standard input, and what the URL is sent (cli/README.md)."""
        state = self._reducer.state
        run, alert = state.run, change.alert
        body: dict[str, object] = {
            "event": "begin" if change.begins else "end",
            "incident": change.number,
            "run": {
                "name": run.name if run is not None else "",
                "id": run.run_id if run is not None else "",
                "host": socket.gethostname(),
                "world_size": state.world,
            },
            "unix_s": round(state.unix_s(now_ns), 3),
            "alert": alert_fields(alert),
            "left_out": self._left_out,
        }
        line = json.dumps(body).encode() + b"\n"
        if len(line) > select.PIPE_BUF:
            short = replace(alert, message=alert.message[:MAX_TEXT], evidence={})
            line = json.dumps(body | {"alert": alert_fields(short)}).encode() + b"\n"
        return line

    def _pass_on(self, body: bytes) -> None:
        """All of it, or none. Raises OSError, also where the process does not read."""
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                _close(self._process)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ddptop.collector.alert_calls"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=processes.environment() | {VARIABLE: self._target},
            )
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
        assert self._process.stdin is not None
        os.write(self._process.stdin.fileno(), body)

    def _read_answers(self, now_ns: int) -> None:
        if self._process is None or self._process.stdout is None:
            return
        with contextlib.suppress(OSError):  # nothing to read
            self._answers += os.read(self._process.stdout.fileno(), 65_536)
        *lines, self._answers = self._answers.split(b"\n")
        for line in lines:
            self._fail(line.decode(errors="replace"), now_ns)

    def _fail(self, why: str, now_ns: int) -> None:
        self.remark = f"--ddptop-on-alert: {why}"
        self._report(Event(FAILED, now_ns, -1, -1, {"message": why[:MAX_TEXT]}), now_ns)


def _recalled(event: Event) -> Change:
    """What an event of kind SENT reports."""
    fields = event.fields
    kind, severity = (cast("Any", fields.get(name)) for name in ("alert", "severity"))
    number, since_s = fields.get("incident"), fields.get("since_s")
    alert = Alert(
        kind,
        severity,
        event.rank if event.rank >= 0 else None,
        None,
        float(since_s) if isinstance(since_s, (int, float)) else 0.0,
        str(fields.get("text") or ""),
        {},
    )
    return Change(number if isinstance(number, int) else 0, fields.get("begins") is True, alert)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def main() -> int:
    """Make one call for each line of standard input; print a line for each that fails."""
    target = os.environ.pop(VARIABLE)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the collector ignores them, which the command would inherit
    lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    ends: list[float] = []
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines, ends), daemon=True).start()
    while (line := lines.get()) is not None:
        most_s = min([CALL_S, *(end_s - time.monotonic() for end_s in ends)])
        if most_s <= 0:
            break
        why = _call(target, line, most_s)
        if why is not None:
            with contextlib.suppress(OSError):  # the collector has ended
                print(why, flush=True)
    return 0


def _read(source: IO[bytes], lines: queue.SimpleQueue[bytes | None], ends: list[float]) -> None:
    """Put all lines into `lines`, then the latest time into `ends`: the collector has ended."""
    for line in source:
        lines.put(line)
    ends.append(time.monotonic() + LAST_S)
    lines.put(None)


def _call(target: str, body: bytes, most_s: float) -> str | None:
    """Call with the JSON object `body`; why it failed."""
    import urllib.request  # 6 MB that the collector does without
    from http.client import HTTPException

    try:
        if target.startswith(("http://", "https://")):
            head = {"Content-Type": "application/json", "User-Agent": "ddptop"}
            request = urllib.request.Request(target, body, head, method="POST")
            with urllib.request.urlopen(request, timeout=min(ANSWER_S, most_s)):
                return None
        return _run(target, body, most_s)
    except OSError as error:  # as urllib's own; none of them has the URL in its text
        return str(error)[:MAX_TEXT].replace("\n", " ")
    except (HTTPException, ValueError) as error:  # the text may have it, with a secret
        return type(error).__name__


def _run(command: str, body: bytes, most_s: float) -> str | None:
    """By `sh -c`, as a process group that is killed when it takes too long."""
    process = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        stdout=sys.stderr,  # the collector's log
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name not in OURS},
    )
    try:
        process.communicate(body, most_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return f"the command did not end within {most_s:g} s"
    return None if process.returncode == 0 else f"the command ended with exit code {process.returncode}"


if __name__ == "__main__":
    sys.exit(main())
