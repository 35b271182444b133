"""NCCL's own word on a stall, asked by the collector (never in training) in a thread of its own.

What it says is recorded as Event("ras") and shown beside our verdict and torch's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection

from ddptop.collector import nccl_ras
from ddptop.protocol.messages import Event, Scalar

NOTHING_WRONG = "it finds all processes of the job there, with equal operation counts and without errors"
NOTHING_KNOWN = "it knows of no communicator"

Ask = Callable[[tuple[str, int], Collection[int]], str]


class RasAsker:
    """At most one question at a time. `work` and `close` neither block nor raise."""

    def __init__(
        self,
        say: Callable[[Event, int], None],
        *,
        ask: Ask = nccl_ras.ask,
        where: tuple[str, int] | None = None,
    ) -> None:
        """`say` takes what was found, and the time in ns. `where`: for tests; else as NCCL is told."""
        self._say = say
        self._ask = ask
        self._where = where if where is not None else nccl_ras.address()
        self._thread: threading.Thread | None = None
        self._asked_ns = 0
        self._status: str | None = None
        self._trouble = ""
        self._complained = False

    def work(self, now_ns: int, heard_out: tuple[int, int] | None, pids: Collection[int]) -> None:
        """Ask when ranks have answered for a stall, tell what NCCL said. `heard_out`: when they were asked,
        and the question's number. `pids`: this host's ranks whose group is NCCL's."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            self._tell(now_ns)
        if heard_out is None or not pids or self._where is None or self._thread is not None:
            return
        self._asked_ns, self._status, self._trouble = heard_out[0], None, ""
        self._thread = threading.Thread(
            target=self._run, args=(self._where, frozenset(pids)), name="ddptop-ras", daemon=True
        )
        self._thread.start()

    def _run(self, where: tuple[str, int], pids: Collection[int]) -> None:
        try:
            self._status = self._ask(where, pids)
        except OSError as error:
            self._trouble = str(error)

    def _tell(self, now_ns: int) -> None:
        if self._status is None:
            if not self._complained:  # the verdict does not need it: older NCCL has none
                self._complained = True
                print(f"ddptop collector: NCCL RAS: {self._trouble}", file=sys.stderr)
            return
        fields: dict[str, Scalar] = {"asked_ns": self._asked_ns}
        lines = nccl_ras.findings(self._status)
        if not lines:
            lines = [NOTHING_KNOWN if nccl_ras.NO_COMMUNICATOR in self._status else NOTHING_WRONG]
        fields.update((f"text{number}", line) for number, line in enumerate(lines))
        self._say(Event("ras", now_ns, -1, -1, fields), now_ns)
