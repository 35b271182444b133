"""The parts of a frame that explain a stall or the death of a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddptop.frames.columns import distinct_texts
from ddptop.frames.conditions import RED_STATES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.conditions import StallKind
    from ddptop.protocol.vocabulary import RankStatus

MAX_POSITIONS = 8
"""Most ranks with stacks in a frame; the recording has all."""


STOPPED_WORKER = "stopped (SIGSTOP)"
"""What `RankPosition.waits_for` says of a worker that a signal has stopped."""

STOPPED_THEN = "stopped, then "
"""Before how a process has ended that was stopped (SIGSTOP) in the stall, in `RankPosition.process`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call on a stack; `line` 0 and an empty `code` are unknown."""

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
    """What is known of one rank at a stall or at its exit."""

    rank: int
    host: str
    pid: int | None
    process: str
    """`alive`, `stopped` (SIGSTOP), `silent`, or how it exited: `killed by SIGKILL`, `exit code 1`,
    `stopped, then killed by SIGKILL`."""
    step: int | None
    bucket: int | None
    sequence: int | None
    """Collectives launched in the process group `group`."""
    group: str
    operation: str
    """The collective that it has launched and that has not completed: `all_reduce of [[1000]] Float`."""
    user_call: Call | None
    """The innermost call of the main thread in the user's own code."""
    traces: tuple[Trace, ...]
    """The main thread's first; empty where the rank could not answer."""
    at_s: float | None
    """Unix seconds of its answer; None: it did not answer."""
    waits_for: str = ""
    """What it waits for that is no rank: `DataLoader worker pid 123 in data.py:41 decode, which sleeps`."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Why the run is stalled."""

    kind: StallKind
    since_s: float
    """Unix seconds at which the stalled step began."""
    step: int | None
    ranks: tuple[int, ...]
    """The ranks that cause it: exited, missing, or in another collective than most; may be empty."""
    waiting: tuple[int, ...]
    """Ranks that have launched the collective and wait in it."""
    sentence: str
    """`rank 1 is missing: it has not entered all_reduce 3 of step 12,480 (sequence 49,923)`."""
    detail: tuple[str, ...]
    """More lines: which ranks wait, where the missing ranks are, what their processes do."""
    positions: tuple[RankPosition, ...]
    """At most MAX_POSITIONS ranks: first those that cause the stall, then one that waits, then others."""
    ended_s: float | None = None
    """Unix seconds at which the first rank, or the run, ended in it: the rest is as it was then. None: it
    lasts."""
    restart: int = 0
    """Number of the elastic restart after which its ranks do not meet again; 0: this is no such stall."""
    start: str = ""
    """What holds up ranks on their way to the first step, by its name in `frames.remedies`; empty: this is no
    such stall."""
    followed: str = ""
    """What the ranks did that waited: `ranks 0 and 2 gave up waiting after 20 s`; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Death:
    """A rank that failed or whose process died."""

    rank: int
    since_s: float
    step: int | None
    exit_code: int | None
    signal: str | None
    """The signal that ended it, `SIGKILL`; None: no signal, or unknown."""
    reason: str
    """The exception, `ValueError: no such file`; empty: unknown."""
    position: RankPosition
    """Its `traces` hold the traceback, or the stacks at a fatal signal."""
    message: tuple[str, ...] = ()
    """The exception's complete message in lines; empty where `reason` has all of it."""
    context: str = ""
    """What is known besides: `the others had ended in good order, one barrier behind`; empty: nothing."""
    follows: bool = False
    """It follows from the exit of another rank, or from a stall."""
    incarnation: int = 0
    """Elastic restarts before it."""


def responsible_ranks(stall: Stall | None, deaths: Sequence[Death]) -> frozenset[int]:
    """Ranks that a stall is due to, and the one that died first with those that died in the same way: the
    others died of it."""
    if stall is not None and stall.ended_s is not None:  # all deaths follow from it
        return frozenset(stall.ranks)
    alike = {death.rank for death in deaths[1:] if death.reason and death.reason == deaths[0].reason}
    causes = {death.rank for death in deaths if not death.follows}
    first = causes or {death.rank for death in deaths[:1]}
    return frozenset((*(stall.ranks if stall is not None else ()), *first, *alike))


def gravest_ranks(
    states: tuple[RankStatus, ...], stall: Stall | None, deaths: Sequence[Death]
) -> frozenset[int]:
    """Ranks whose state says more than any excess: those that a stall or the end is due to; where that is not
    known, all that have failed or are lost or stalled."""
    responsible = responsible_ranks(stall, deaths)
    if responsible or distinct_texts(states).isdisjoint(RED_STATES):
        return responsible
    return frozenset(rank for rank, state in enumerate(states) if state in RED_STATES)
