"""torch's own analyser of flight recorder dumps, asked at a stall, in a process of its own that loads torch.

What it finds is recorded as Event("analyser"). The dumps it has read are kept beside the recording, as
`RECORDING.flight`: `torchfrtrace --allow-incomplete-ranks RECORDING.flight` reads them again.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ddptop.protocol.messages import Event, Scalar

NS = 1_000_000_000

DEADLINE_NS = 60 * NS
"""Importing torch takes seconds, on a busy machine with a cold disk tens of them."""

MODULE = "ddptop.runtime.flight_analysis"

MAX_LINES = 3
LINE_CHARACTERS = 300

_SUFFIX = ".flight"


class FlightAnalyser:
    """At most one analysis at a time; a newer question replaces the one under way. Never blocks or raises."""

    def __init__(
        self,
        folder: Path,
        recording: Path | None,
        say: Callable[[Event, int], None],
        *,
        resume: bool = False,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
    ) -> None:
        """`folder`: where ranks write their dumps. `recording`: None where nothing is to be kept.
        `say`: takes what was found, and the time in nanoseconds. `resume`: the run had a collector before;
        else what an earlier run has left there is removed, as its recording is. `command`: for tests."""
        self._folder = folder
        self._kept = None if recording is None else recording.with_name(recording.name + _SUFFIX)
        self._say = say
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._asked_ns = 0
        self._end_ns = 0
        self._complained = False
        if self._kept is not None and not resume:
            _remove(self._kept)

    def work(self, now_ns: int, heard_out: tuple[int, int] | None) -> None:
        """Begin what is due, tell what is found. `heard_out`: when ranks were asked, and the ASK's number,
        once they have answered."""
        if self._process is not None:
            self._look(self._process, now_ns)
        if heard_out is not None and self._has_dumps():
            self.close()
            self._begin(*heard_out, now_ns)

    def close(self) -> None:
        """End what is under way."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _has_dumps(self) -> bool:
        with contextlib.suppress(OSError):
            return any(self._folder.iterdir())
        return False

    def _begin(self, asked_ns: int, number: int, now_ns: int) -> None:
        kept = [] if self._kept is None else [str(self._kept)]
        self._asked_ns, self._end_ns = asked_ns, now_ns + DEADLINE_NS
        try:
            self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by `close`
            self._process = subprocess.Popen(
                [*self._command, str(self._folder), str(number), *kept],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._complain(str(error))

    def _look(self, process: subprocess.Popen[str], now_ns: int) -> None:
        if process.poll() is None:
            if now_ns >= self._end_ns:
                self._complain(f"no answer within {DEADLINE_NS // NS} s")
                self.close()
            return
        assert process.stdout is not None
        try:
            lines = _lines(process.stdout.read()) if process.returncode == 0 else None
        except (ValueError, KeyError, TypeError):
            lines = None
        if lines is None:
            self._complain(self._last_error() or f"exit code {process.returncode}")
        elif lines:
            fields: dict[str, Scalar] = {"asked_ns": self._asked_ns}
            fields.update((f"text{number}", line) for number, line in enumerate(lines))
            self._say(Event("analyser", now_ns, -1, -1, fields), now_ns)
        self.close()

    def _last_error(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return next((line.strip() for line in reversed(self._errors.readlines()) if line.strip()), "")

    def _complain(self, why: str) -> None:
        """Once: the verdict does not need it."""
        if not self._complained:
            self._complained = True
            print(f"ddptop collector: torch's flight recorder analyser: {why}", file=sys.stderr)


def _remove(kept: Path) -> None:
    with contextlib.suppress(OSError):
        for path in kept.glob("*_rank_*"):
            path.unlink()
        kept.rmdir()


def _lines(output: str) -> list[str]:
    """Of what the analyser's process printed. Raises ValueError, KeyError or TypeError for anything else."""
    said = json.loads(output.strip().rpartition("\n")[2])
    return [str(line)[:LINE_CHARACTERS] for line in said["lines"]][:MAX_LINES]
