"""What a rank reports when asked or at its exit: its threads' stacks, process groups and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class StackFrame(NamedTuple):
    """One call on a stack."""

    file: str
    line: int
    """0: not known."""
    function: str
    code: str
    """The line of source itself, without indent; empty where it cannot be read."""


class Stack(NamedTuple):
    """What one thread is doing, or where an exception came from. Innermost call first."""

    thread: str
    """Name of the thread; `traceback` for an exception's."""
    main: bool
    frames: tuple[StackFrame, ...]


class GroupState(NamedTuple):
    """A process group as one of its ranks sees it."""

    name: str
    """The same on all of its ranks: torch's group name, `0` for the default group."""
    backend: str
    size: int
    sequence: int
    """Collectives that this rank has launched in it; -1 where the backend does not count."""
    completed: int
    """The last of them that has completed; -1: not known."""


class Operation(NamedTuple):
    """One collective as torch's flight recorder has it."""

    group: str
    sequence: int
    """Its number within the group, from 1."""
    name: str
    """`all_reduce`, `broadcast`, ..."""
    sizes: str
    """Of its inputs: `[[1000]]`."""
    dtype: str
    done: bool
    age_ms: int
    """Since it was launched."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Collector to rank: answer with EVIDENCE of this number, once."""

    number: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rank is doing at this moment, from its publisher thread while the training thread is stuck."""

    t_ns: int
    number: int
    """Of the ASK that it answers; 0: sent by the rank itself at its exit."""
    step: int
    phase: int
    bucket: int
    """As in PROGRESS."""
    reason: str
    """Why the process ends (`ValueError: no such file`); empty while it lives."""
    groups: tuple[GroupState, ...]
    stacks: tuple[Stack, ...]
    """The main thread's first."""
    operations: tuple[Operation, ...]
    """The newest, oldest first; none where torch keeps no flight recorder."""
    message: tuple[str, ...] = ()
    """The exception's complete message in lines; empty where `reason` has all of it."""
