"""Phrases that screen, command line, log and report share: which ranks, and how a process exited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddptop.frames.stall import Death

MAX_LISTED_RANKS = 4
"""More ranks than this are counted, not listed, so that the line fits 80 columns."""


def ranks_phrase(ranks: Sequence[int], world: int) -> str:
    """`rank 1`, `ranks 1 3`, `9 of 64 ranks`, `64 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == world:
        return f"{world} ranks"
    if len(ranks) <= MAX_LISTED_RANKS:
        return "ranks " + " ".join(str(rank) for rank in sorted(ranks))
    return f"{len(ranks)} of {world} ranks"


SIGNALS = {
    "SIGKILL": ("was killed by SIGKILL", " (out of memory?)"),
    "SIGABRT": ("aborted (SIGABRT)", ""),
    "SIGSEGV": ("crashed (SIGSEGV)", ""),
    "SIGBUS": ("crashed (SIGBUS)", " (shared memory full?)"),
    "SIGFPE": ("crashed (SIGFPE)", ""),
    "SIGILL": ("crashed (SIGILL)", ""),
}
"""A signal as a phrase, and its usual cause."""

SENT_TO_ALL = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
"""torchrun ends the others with SIGTERM after the first failure; a terminal signals all ranks at once."""


def ended_by_signal(signal: str | None, reason: str) -> bool:
    """Whether the signal is why the process ended: not one sent to all ranks after this one had failed."""
    return signal is not None and not (reason and signal in SENT_TO_ALL)


def exit_phrase(
    signal: str | None, exit_code: int | None, reason: str, *, at: str = "", detail: str = ""
) -> str:
    """The words after `rank 2`: `was killed by SIGKILL at step 340 (out of memory?)`, `failed: KeyError: 7`.

    `reason`: the exception with its message, empty if unknown. `at`: ` at step 340`, left out where the
    reason is known. `detail`: more, as ` (train.py:88 load)`, left out where the signal has a usual cause.
    """
    if signal is not None and ended_by_signal(signal, reason):
        phrase, usual_cause = SIGNALS.get(signal, (f"was ended by {signal}", ""))
        return f"{phrase}{at}{usual_cause or detail}"
    if reason:
        return f"failed: {reason}{detail}"
    if exit_code:
        return f"exited with code {exit_code}{at}"
    if exit_code == 0:
        return f"exited with code 0 before the end of training{at}"
    return "lost: its process is gone"


def death_phrase(death: Death) -> str:
    """`rank 2 was killed by SIGKILL (out of memory?)`, `rank 2 failed: KeyError: 7 (exit code 1)`."""
    detail = f" (exit code {death.exit_code})" if death.exit_code else ""
    if ended_by_signal(death.signal, death.reason):
        detail = f": {death.reason}" if death.reason else ""
    return f"rank {death.rank} {exit_phrase(death.signal, death.exit_code, death.reason, detail=detail)}"
