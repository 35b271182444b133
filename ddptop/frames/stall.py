"""The part of a frame that explains why a run stands still or why a rank is gone."""

from __future__ import annotations

from dataclasses import dataclass

MAX_POSITIONS = 8
"""Ranks shown with their stacks: a page holds no more, the recording has all."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a stack; `line` 0 and an empty `code` are not known."""

    file: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A thread's stack, or that of an exception; innermost call first."""

    thread: str
    main: bool
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class RankPosition:
    """What is known of one rank at a stall or at its end."""

    rank: int
    host: str
    pid: int | None
    process: str
    """`alive`, `stopped` (SIGSTOP), `silent`, or how it ended: `killed by SIGKILL`, `exit code 1`."""
    step: int | None
    bucket: int | None
    sequence: int | None
    """Collectives launched in the process group in question."""
    group: str
    """That group."""
    operation: str
    """The collective that it has launched and that has not completed: `all_reduce of [[1000]] Float`."""
    user_call: Call | None
    """The innermost call of the main thread in the user's own code."""
    traces: tuple[Trace, ...]
    """The main thread's first; empty where the rank could not answer."""
    at_s: float | None
    """Unix seconds at which it said this; None: it did not answer."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Why the step does not move."""

    kind: str
    """`dead`, `missing`, `mismatch`, `device` (a GPU that does not get on), `transport`, or `asking` while
    the ranks have not answered yet."""
    since_s: float
    """Unix seconds at which the step last moved."""
    step: int | None
    ranks: tuple[int, ...]
    """Who is to blame: gone, missing, or on the smaller side of a mismatch; empty: nobody."""
    waiting: tuple[int, ...]
    """Ranks that have launched the collective and wait in it."""
    sentence: str
    """`rank 1 is missing: it has not entered all_reduce 3 of step 12,480 (sequence 49,923)`."""
    detail: tuple[str, ...]
    """What more there is to say, a line each: who waits where, what the process does."""
    positions: tuple[RankPosition, ...]
    """At most MAX_POSITIONS ranks: those to blame first, then one that waits, then others."""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank's process that ended as it should not."""

    rank: int
    since_s: float
    step: int | None
    exit_code: int | None
    signal: str | None
    """`SIGKILL`; None: no signal, or not known."""
    reason: str
    """`ValueError: no such file`; empty where it could not say."""
    position: RankPosition
    """Its `traces` hold the traceback, or the stacks at a fatal signal."""
