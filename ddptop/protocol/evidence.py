"""What a rank reports when asked or at its exit: its threads' stacks, process groups and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from ddptop.protocol import limits
from ddptop.protocol.ranges import (
    Count,
    CountOrNone,
    Identifier,
    MostItems,
    Nanoseconds,
    PhaseNumber,
    Text,
    Texts,
)


class StackFrame(NamedTuple):
    """One call on a stack."""

    file: Text
    line: Count
    """0: not known."""
    function: Text
    code: Text
    """The line of source itself, without indent; empty where it cannot be read."""


class Stack(NamedTuple):
    """What one thread is doing, or where an exception came from. Innermost call first."""

    thread: Text
    """Name of the thread; `traceback` for an exception's."""
    main: bool
    frames: Annotated[tuple[StackFrame, ...], MostItems(limits.MAX_DEPTH)]


class GroupState(NamedTuple):
    """A process group as one of its ranks sees it."""

    name: Text
    """The same on all of its ranks: torch's group name, `0` for the default group."""
    backend: Text
    size: Count
    sequence: CountOrNone
    """Collectives that this rank has launched in it; -1 where the backend does not count."""
    completed: CountOrNone
    """The last of them that has completed; -1: not known."""


class Operation(NamedTuple):
    """One collective as torch's flight recorder has it."""

    group: Text
    sequence: CountOrNone
    """Its number within the group, from 1."""
    name: Text
    """`all_reduce`, `broadcast`, ..."""
    sizes: Text
    """Of its inputs: `[[1000]]`."""
    dtype: Text
    done: bool
    age_ms: Count
    """Since it was launched."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Collector to rank: answer with EVIDENCE of this number, once."""

    number: Identifier


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rank is doing at this moment, from its publisher thread while the training thread is stuck."""

    t_ns: Nanoseconds
    number: Identifier
    """Of the ASK that it answers; 0: sent by the rank itself at its exit."""
    step: Count
    phase: PhaseNumber
    bucket: CountOrNone
    """As in PROGRESS."""
    reason: Text
    """Why the process ends (`ValueError: no such file`); empty while it lives."""
    groups: Annotated[tuple[GroupState, ...], MostItems(limits.MAX_OPERATIONS)]
    stacks: Annotated[tuple[Stack, ...], MostItems(limits.MAX_STACKS)]
    """The main thread's first."""
    operations: Annotated[tuple[Operation, ...], MostItems(limits.MAX_OPERATIONS)]
    """The newest, oldest first; none where torch keeps no flight recorder."""
    message: Texts = ()
    """The exception's complete message in lines; empty where `reason` has all of it."""
