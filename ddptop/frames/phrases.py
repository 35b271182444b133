"""Phrases that several sentences share: which ranks, and what a signal means."""

from __future__ import annotations

NAMED_RANKS = 4
"""More than this many ranks are counted, not listed: the line must fit 80 columns."""


def ranks_phrase(ranks: list[int], world: int) -> str:
    """`rank 1`, `ranks 1 3`, `9 of 64 ranks`, `64 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == world:
        return f"{world} ranks"
    if len(ranks) <= NAMED_RANKS:
        return "ranks " + " ".join(str(rank) for rank in sorted(ranks))
    return f"{len(ranks)} of {world} ranks"


MEANINGS = {
    "SIGKILL": ("was killed by SIGKILL", " (out of memory?)"),
    "SIGABRT": ("aborted (SIGABRT)", ""),
    "SIGSEGV": ("crashed (SIGSEGV)", ""),
    "SIGBUS": ("crashed (SIGBUS)", " (shared memory full?)"),
    "SIGFPE": ("crashed (SIGFPE)", ""),
    "SIGILL": ("crashed (SIGILL)", ""),
}
"""What is said of a signal, and what it often means."""
