"""The two pipes between the launcher and its collector: when to end, and what there was."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

from ddptop.collector.alone import Linger

MAX_LINE_BYTES = 4096


class LauncherPipe:
    """Standard input, read without blocking: `{"exit_code": N}`, or its end when the launcher was killed.

    A launcher that is killed leaves its ranks behind, as torchrun does: the run then ends with them.

    Before that, how processes ended that the launcher started: `{"exits": [{"pid": P, "exit_code": N}]}`.
    """

    def __init__(
        self, ranks_present: Callable[[], bool], ranks_well: Callable[[], bool], descriptor: int = 0
    ) -> None:
        """`ranks_present`: whether there are processes of ranks on this host; `ranks_well`: whether all have
        ended as they should."""
        self.descriptor = descriptor
        self.ended = False
        """The run has ended: the collector is to come to its end."""
        self.killed = False
        """The launcher is there no longer, and has not said how the run ended."""
        self._ranks_present = ranks_present
        self._ranks_well = ranks_well
        self._linger = Linger()
        self.exit_code: int | None = None
        """Of the run; None: nobody said."""
        self._data = b""
        self._exits: list[tuple[int, int]] = []
        os.set_blocking(descriptor, False)

    @property
    def well(self) -> bool:
        """Whether the run has ended as it should."""
        return self._ranks_well() if self.exit_code is None else self.exit_code == 0

    def look(self, now_ns: int) -> None:
        """Where the launcher was killed, look whether the run has ended; once a second will do."""
        if self.killed:
            self.ended = self._linger.is_over(self._ranks_present(), now_ns)

    def close(self) -> None:
        """Standard input stays open."""

    def read(self) -> None:
        """Take what is there. Lines that say anything else are passed over."""
        try:
            data = os.read(self.descriptor, MAX_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.killed = not data and not self.ended
        *lines, self._data = (self._data + data).split(b"\n")
        self._data = self._data[-MAX_LINE_BYTES:]
        for line in lines:
            self._hear(line)

    def take_exits(self) -> list[tuple[int, int]]:
        """Processes seen to end since this was last asked: pid, and exit code or -signal."""
        exits, self._exits = self._exits, []
        return exits

    def _hear(self, line: bytes) -> None:
        try:
            said = json.loads(line)
        except ValueError:
            return
        if not isinstance(said, dict):
            return
        code = _code(said.get("exit_code"))
        if code is not None:
            self.exit_code = code
            self.ended = True
        exits = said.get("exits")
        for one in exits if isinstance(exits, list) else ():
            pid, code = (
                (one.get("pid"), _code(one.get("exit_code"))) if isinstance(one, dict) else (None, None)
            )
            if type(pid) is int and pid > 0 and code is not None:
                self._exits.append((pid, code))


def _code(value: object) -> int | None:
    return value if type(value) is int and -(2**31) <= value < 2**31 else None


def say(line: Mapping[str, object]) -> None:
    """One JSON line to the launcher, who may be gone."""
    try:
        print(json.dumps(line), flush=True)
    except OSError:
        # The interpreter would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
