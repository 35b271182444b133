"""torch's own analyser of flight recorder dumps, run at a stall, in a process of its own that loads torch.

Its result is recorded as Event("analyser"). The dumps it has read are kept beside the recording, in a
folder that is made for them: `RECORDING.ddptop.flight`, with a number appended where something has that name
already. `torchfrtrace --allow-incomplete-ranks RECORDING.ddptop.flight` reads them again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from ddptop.host.folders import RunDirectoryError, open_private
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event, Scalar
from ddptop.protocol.outlets import print_text

DEADLINE_NS = 60 * NS
"""Importing torch takes seconds, on a busy machine with a cold disk tens of them."""

MODULE = "ddptop.training.evidence.flight_analysis"

MAX_LINES = 3
LINE_CHARACTERS = 300

_SUFFIX = ".flight"

MOST_FOLDERS = 100
"""Names that are tried for the folder of kept dumps."""


class FlightAnalyser:
    """Runs one analysis at a time; a newer request replaces the one under way. Never blocks or raises."""

    def __init__(
        self,
        folder: Path,
        recording: Path | None,
        report: Callable[[Event, int], None],
        *,
        command: Sequence[str] = (sys.executable, "-m", MODULE),
    ) -> None:
        """`folder`: where ranks write their dumps. `recording`: None where nothing is to be kept.
        `report` takes the result, and the time in nanoseconds. `command`: for tests."""
        self._folder = folder
        self._recording = recording
        self._kept: int | None = None
        """Descriptor of the folder of kept dumps, once there is one."""
        self._report = report
        self._command = command
        self.process: subprocess.Popen[str] | None = None
        """The analysis under way."""
        self._errors: IO[str] | None = None
        self._asked_ns = 0
        self._end_ns = 0
        self._complained = False

    def work_on_dumps(self, now_ns: int, answered: tuple[int, int] | None) -> None:
        """Begin an analysis that is due, report the result of one that has ended.

        `answered`: when ranks were asked, and the ASK's number; None until they have answered.
        """
        if self.process is not None:
            self._poll_process(self.process, now_ns)
        # Only with dumps on this host: without any there is nothing to analyse.
        if answered is not None and self._has_dumps():
            # A newer answer replaces the analysis under way: the stall may have changed.
            self._end_process()
            self._begin_process(*answered, now_ns)

    def close(self) -> None:
        """End what is under way, for good."""
        self._end_process()
        kept, self._kept = self._kept, None
        if kept is not None:
            os.close(kept)

    def _end_process(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            process.stdout.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _has_dumps(self) -> bool:
        with contextlib.suppress(OSError):
            return any(self._folder.iterdir())
        return False

    def _begin_process(self, asked_ns: int, number: int, now_ns: int) -> None:
        kept = self._folder_to_keep()
        self._asked_ns, self._end_ns = asked_ns, now_ns + DEADLINE_NS
        try:
            self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by `close`
            self.process = subprocess.Popen(
                [*self._command, str(self._folder), str(number), *map(str, kept)],
                pass_fds=kept,
                stdin=subprocess.PIPE,  # its end shows the analyser that this process has ended
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            self._print_trouble_once(str(error))

    def _folder_to_keep(self) -> list[int]:
        """The descriptor of the folder of kept dumps, made if there is none; nothing where it cannot be."""
        if self._kept is None and self._recording is not None:
            try:
                self._kept = _make_new_folder(self._recording.with_name(self._recording.name + _SUFFIX))
            except (OSError, RunDirectoryError) as error:
                # Not tried again: what prevents it, such as a folder of another user, does not go away.
                self._recording = None
                self._print_trouble_once(f"dumps are not kept: {error}")
        return [] if self._kept is None else [self._kept]

    def _poll_process(self, process: subprocess.Popen[str], now_ns: int) -> None:
        if process.poll() is None:
            if now_ns >= self._end_ns:
                self._print_trouble_once(f"no answer within {DEADLINE_NS // NS} s")
                self._end_process()
            return
        assert process.stdout is not None
        try:
            lines = _result_lines(process.stdout.read()) if process.returncode == 0 else None
        # The output is another program's: anything but a result is taken for none.
        except (ValueError, KeyError, TypeError):
            lines = None
        if lines is None:
            self._print_trouble_once(self._last_error() or f"exit code {process.returncode}")
        elif lines:
            fields: dict[str, Scalar] = {"asked_ns": self._asked_ns}
            fields.update((f"text{number}", line) for number, line in enumerate(lines))
            self._report(Event("analyser", now_ns, -1, -1, fields), now_ns)
        self._end_process()

    def _last_error(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return next((line.strip() for line in reversed(self._errors.readlines()) if line.strip()), "")

    def _print_trouble_once(self, why: str) -> None:
        """Print it once: the diagnosis does not need the analyser."""
        if not self._complained:
            self._complained = True
            print_text(f"ddptop collector: torch's flight recorder analyser: {why}", file=sys.stderr)


def _make_new_folder(path: Path) -> int:
    """A descriptor of a new, private folder called `path`, with a number appended where that is taken.

    Raises OSError; RunDirectoryError where another user could replace it.
    """
    # By descriptor from here on, so that nobody can put another folder in its place meanwhile.
    parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(parent)
        # Others may write there only with the sticky bit, as in /tmp: then they cannot replace what is ours.
        open_to_others = status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX
        if status.st_uid not in (0, os.geteuid()) or open_to_others:
            raise RunDirectoryError(f"other users can replace what is in {path.parent}")
        for number in itertools.chain([""], (f"-{count}" for count in range(2, MOST_FOLDERS))):
            name = f"{path.name}{number}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
                with open_private(name, inside=parent) as folder:
                    return os.dup(folder)
        raise RunDirectoryError(f"there are {MOST_FOLDERS} folders {path} already")
    finally:
        os.close(parent)


def _result_lines(output: str) -> list[str]:
    """The lines of a printed result. Raises ValueError, KeyError or TypeError for anything else."""
    # The last line only: torch prints lines of its own before it.
    result = json.loads(output.strip().rpartition("\n")[2])
    return [str(line)[:LINE_CHARACTERS] for line in result["lines"]][:MAX_LINES]
