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

from ddptop.agent.internal_errors import InternalErrors
from ddptop.collector.incidents import AlertIncidents, IncidentChange
from ddptop.frames.frame import Alert
from ddptop.frames.snapshot import alert_fields
from ddptop.host import processes
from ddptop.protocol.limits import MAX_TEXT, NS
from ddptop.protocol.messages import Event, Scalar
from ddptop.protocol.outlets import print_text, safe_data

if TYPE_CHECKING:
    from ddptop.analysis.reducer import Reducer
    from ddptop.protocol.messages import Message

VARIABLE = "DDPTOP_ON_ALERT"
"""The command or URL, in the environment of the collector."""

SENT, FAILED = "alert_sent", "alert_failed"
"""Kinds of events."""

MOST_CALLS, WITHIN_NS = 20, 600 * NS
"""Most calls within this time. Further ones are left out, and counted in the next call."""

CALL_S = 30.0
"""Longest time of one command."""

ANSWER_S = 10.0
"""Longest time of one call of a URL."""

LONGEST_WAIT_S = 120.0
"""An alert that has waited longer behind slow calls is counted and left out: it is no news any more."""

OURS = frozenset({"PYTHONSAFEPATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"})
"""Variables of the collector that a command does not get (`ddptop.host.processes.child_environment`)."""

LAST_S = 20.0
"""How long the calling process goes on after the collector, at most."""


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
        self._incidents = AlertIncidents()
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = b""
        self._called_ns: deque[int] = deque()
        self._left_out = 0
        self._errors = InternalErrors()

    def recall_message(self, message: Message) -> None:
        """Take a message that an earlier collector of this run has recorded."""
        if isinstance(message, Event) and message.kind == SENT:
            self._incidents.recall_change(_recalled_change(message))

    def call_for_changes(self, now_ns: int) -> None:
        """Call for incidents that have begun or ended since the last time, and report calls that failed."""
        self._work_guarded(self._incidents.note_alerts, now_ns)

    def call_at_end(self, now_ns: int, *, well: bool) -> None:
        """Pass on the last calls, as the run has ended. The other process makes them; nobody waits for it."""
        self._work_guarded(partial(self._incidents.note_last_alerts, well=well), now_ns)

    def close(self) -> None:
        """Let the process end, once it has made the calls that it was given."""
        process, self._process = self._process, None
        if process is not None:
            _close_process(process)

    def _work_guarded(
        self, changes: Callable[[Sequence[Alert], int], list[IncidentChange]], now_ns: int
    ) -> None:
        if not self._target:
            return
        try:
            self._read_answers(now_ns)
            self._call_all(changes(self._reducer.alerts(now_ns), now_ns), now_ns)
        except Exception:  # noqa: BLE001 - an error costs one call, not the collector
            self._errors.note_exception()

    def _call_all(self, changes: list[IncidentChange], now_ns: int) -> None:
        for change in changes:
            while self._called_ns and now_ns - self._called_ns[0] > WITHIN_NS:
                self._called_ns.popleft()
            if len(self._called_ns) >= MOST_CALLS:
                # Counted, and said in the next call: its receiver then knows that something is missing.
                self._left_out += 1
                self._report_failure(
                    f"more than {MOST_CALLS} calls in {WITHIN_NS // NS // 60} minutes", now_ns
                )
                continue
            self._called_ns.append(now_ns)
            try:
                self._pass_on(self.encode_change(change, now_ns))
            except OSError as error:
                self._report_failure(str(error), now_ns)
                continue
            # The call that has just left has told of those that were left out.
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

    def encode_change(self, change: IncidentChange, now_ns: int) -> bytes:
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
        line = json.dumps(safe_data(body)).encode() + b"\n"
        # A pipe takes at most PIPE_BUF bytes whole: half a line would spoil this call and the next one.
        if len(line) > select.PIPE_BUF:
            short = replace(alert, message=alert.message[:MAX_TEXT], evidence={})
            line = json.dumps(safe_data(body | {"alert": alert_fields(short)})).encode() + b"\n"
        return line

    def _pass_on(self, body: bytes) -> None:
        """Write a call to the other process, whole or not at all. Raises OSError, also if it does not
        read."""
        if self._process is None or self._process.poll() is not None:
            if self._process is not None:
                _close_process(self._process)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ddptop.collector.alert_calls"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=processes.child_environment() | {VARIABLE: self._target},
            )
            # Neither pipe may block the collector, whose ranks wait for acks.
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
            self._report_failure(line.decode(errors="replace"), now_ns)

    def _report_failure(self, why: str, now_ns: int) -> None:
        self.remark = f"--ddptop-on-alert: {why}"
        self._report(Event(FAILED, now_ns, -1, -1, {"message": why[:MAX_TEXT]}), now_ns)


def _recalled_change(event: Event) -> IncidentChange:
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
    return IncidentChange(number if isinstance(number, int) else 0, fields.get("begins") is True, alert)


def _close_process(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()


def main() -> int:
    """Make one call for each line of standard input; print a line for each that fails."""
    # Out of the environment, which the command would inherit: a URL may hold a secret.
    target = os.environ.pop(VARIABLE)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # the collector ignores them, which the command would inherit
    calls: queue.SimpleQueue[tuple[float, bytes] | None] = queue.SimpleQueue()
    caller = Caller(target)
    # Read by a thread of its own, so that the time at which a call was passed on is known while another one
    # runs.
    threading.Thread(target=_queue_lines, args=(sys.stdin.buffer, calls, caller), daemon=True).start()
    too_late = 0

    def report_too_late() -> None:
        if too_late:
            _print_failure(f"{too_late} calls waited for more than {LONGEST_WAIT_S:g} s and were left out")

    while (call := calls.get()) is not None:
        passed_s, body = call
        if time.monotonic() - passed_s > LONGEST_WAIT_S:
            too_late += 1
            continue
        report_too_late()
        too_late = 0
        if why := caller.call_target(body):
            _print_failure(why)
    report_too_late()
    return 0


def _print_failure(why: str) -> None:
    with contextlib.suppress(OSError):  # the collector has ended
        print_text(why, flush=True)


def _queue_lines(
    source: IO[bytes], calls: queue.SimpleQueue[tuple[float, bytes] | None], caller: Caller
) -> None:
    """Put each line into `calls`, with the time; at last None. End this process `LAST_S` after that."""
    for line in source:
        calls.put((time.monotonic(), line))
    calls.put(None)
    time.sleep(LAST_S)
    # Nothing of ours is left LAST_S after the run.
    caller.kill_process()
    # The one that is called now is not in the queue, and None is.
    print_text(f"{calls.qsize()} alerts are not sent {LAST_S:g} s after the run", file=sys.stderr, flush=True)
    os._exit(0)


class Caller:
    """Calls a command, or a URL by a process of ours, as a process group that is killed at its deadline."""

    def __init__(self, target: str) -> None:
        self._is_url = target.startswith(("http://", "https://"))
        self._words = ["sh", "-c", target]
        self._environment = {name: value for name, value in os.environ.items() if name not in OURS}
        self._prefix = b""
        if self._is_url:
            self._environment = dict(os.environ)
            self._words = [sys.executable, "-m", "ddptop.collector.post_alert"]
            # A line break would end the first line, which is the URL.
            self._prefix = os.fsencode(target.replace("\n", "")) + b"\n"
        self._process: subprocess.Popen[bytes] | None = None

    def call_target(self, body: bytes, most_s: float | None = None) -> str:
        """Pass `body` on, and wait at most `most_s`, or as is usual. Why that failed, or an empty text."""
        most_s = most_s or (ANSWER_S if self._is_url else CALL_S)
        try:
            self._process = process = subprocess.Popen(
                self._words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if self._is_url else sys.stderr,  # the collector's log
                start_new_session=True,
                env=self._environment,
            )
        except OSError as error:
            return str(error)
        try:
            answer, _ = process.communicate(self._prefix + body, most_s)
        except subprocess.TimeoutExpired:
            self.kill_process()
            # After the kill, to collect the process and close its pipes.
            process.communicate()
            late = "receiver did not answer" if self._is_url else "command did not end"
            return f"the {late} within {most_s:g} s"
        if process.returncode:
            return f"the command ended with exit code {process.returncode}"
        # In one line, since each line that is printed is a failure of its own.
        return " ".join((answer or b"").decode(errors="replace").split())[:MAX_TEXT]

    def kill_process(self) -> None:
        """Kill what is called at the moment."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
