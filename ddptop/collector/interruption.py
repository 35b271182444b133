"""Time in which this process did not run: it was stopped or had no processor time, or the machine slept.

It is reported as an event of the run: what ranks sent meanwhile was read later than it arrived.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ddptop.frames.numbers import fixed
from ddptop.protocol.limits import NS
from ddptop.protocol.messages import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from ddptop.protocol.messages import Scalar

GAP_NS = 2 * NS
"""A round that begins this late was interrupted: by a signal, or for lack of processor time. Four heartbeats
of each rank are due in that time. With a short stall timeout it is half of that, at least LEAST_GAP_NS."""
LEAST_GAP_NS = NS

SUSPEND_NS = NS
"""Least difference between CLOCK_BOOTTIME and CLOCK_MONOTONIC that counts as a suspended machine."""


class InterruptionWatch:
    """Compares the times of the collector's rounds."""

    def __init__(self, report: Callable[[Event, int], None], stall_s: float) -> None:
        """`report` takes an event and the time; `stall_s`: the run's stall timeout."""
        self._report = report
        self._gap_ns = min(GAP_NS, max(LEAST_GAP_NS, int(stall_s * NS / 2)))
        # Begun now: the time before the first round is the start of this process, and no interruption.
        self._round_ns, self._suspended_ns = time.monotonic_ns(), _suspended_ns()

    def check_round(self, now_ns: int) -> bool:
        """Report a long time since the last round, as a round begins now; returns whether there was one."""
        begin_ns, self._round_ns = self._round_ns, now_ns
        suspended_ns, self._suspended_ns = self._suspended_ns, _suspended_ns()
        suspended_ns = self._suspended_ns - suspended_ns
        if suspended_ns >= SUSPEND_NS:  # CLOCK_MONOTONIC, which all ranks read, stopped as well
            text = f"the machine was suspended for {fixed(suspended_ns / NS, 0)} s"
            self._report_interruption(now_ns, now_ns, suspended_ns, text)
        if now_ns - begin_ns < self._gap_ns:
            return False
        text = (
            f"recording interrupted for {fixed((now_ns - begin_ns) / NS, 0)} s: the collector did not run "
            "(stopped, or no processor time); what ranks sent meanwhile was read afterwards"
        )
        self._report_interruption(begin_ns, now_ns, now_ns - begin_ns, text)
        return True

    def _report_interruption(self, begin_ns: int, now_ns: int, lasted_ns: int, text: str) -> None:
        fields: dict[str, Scalar] = {
            "from_ns": begin_ns,
            "seconds": round(lasted_ns / NS, 3),
            "message": text,
        }
        self._report(Event("interruption", now_ns, -1, -1, fields), now_ns)


def _suspended_ns() -> int:
    """How long the machine has been suspended since boot; 0 where the system has no such clock."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.clock_gettime_ns(time.CLOCK_MONOTONIC)
