"""What a rank reports when asked or at its exit: its threads' stacks, process groups and collectives; and
samples of its training thread's stack, where the others wait for it."""

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
    """torch's name of the group, the same on all of its ranks: `0` for the default group."""
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
    """Sizes of its inputs: `[[1000]]`."""
    dtype: Text
    done: bool
    age_ms: Count
    """Since it was launched."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Collector to rank: answer with EVIDENCE of this number, once; or with STACKSAMPLES, where
    `asks_for_samples` says so."""

    number: Identifier


_SAMPLES = 1 << 62
# A bit of the number, not a new message: agents of earlier versions pass it on like any other ASK.
"""Set in the number of an ASK for samples. Other numbers are Unix nanoseconds, which reach it in 2116."""

_PLACE_BITS = 4

SAMPLED_PLACES: tuple[str, ...] = (
    "",
    "data",
    "forward",
    "backward",
    "optimizer",
    "before_forward",
    "before_backward",
    "before_optimizer",
    "after_optimizer",
)
"""Places of a step that samples can be restricted to, names of `OwnPlace`; empty: wherever the rank does not
wait for others. An ASK has the index, so none may move."""


def samples_request(unix_ms: int, place: str) -> int:
    """The number of an ASK for samples of a rank while it is in a place. One that has no samples of its own
    (`cpu`) stands for all places."""
    index = SAMPLED_PLACES.index(place) if place in SAMPLED_PLACES else 0
    # With the time in it, two ASKs for the same place have different numbers.
    return _SAMPLES | (unix_ms << _PLACE_BITS) % _SAMPLES | index


def asks_for_samples(number: int) -> bool:
    """Whether an ASK of this number is to be answered with STACKSAMPLES."""
    return number >= _SAMPLES


def requested_place(number: int) -> str:
    """The place that an ASK for samples names: one of SAMPLED_PLACES."""
    index = number & ((1 << _PLACE_BITS) - 1)
    # A collector of a later version may ask for a place that this version does not have.
    return SAMPLED_PLACES[index] if index < len(SAMPLED_PLACES) else ""


class SampledCall(NamedTuple):
    """One call in a tree of samples."""

    file: Text
    line: Count
    """0: a call of a library, whose lines are taken together."""
    function: Text
    """Name of the function; with its module if it is of a library: `torch.save`."""
    parent: CountOrNone
    """Index of the call around it, which comes before it; -1: there is none."""
    samples: Count
    """In which it was on the stack."""


@dataclass(frozen=True, slots=True)
class StackSamples:
    """Samples of the training thread's stack, folded: the calls of the user's own code, and of each library
    that it has called the first."""

    t_ns: Nanoseconds
    """When the last one was taken."""
    number: Identifier
    """Number of the ASK that they answer; 0: taken by the rank itself, in a step that lasts very long."""
    step: Count
    """In which the first one was taken."""
    place: Text
    """One of SAMPLED_PLACES: samples in which the rank was elsewhere are left out."""
    samples: Count
    lasted_ms: Count
    """From the first look at the training thread to the last one."""
    held_ms: Count
    """The part of it in which the sampling thread could not look, since the training thread held the GIL."""
    calls: Annotated[tuple[SampledCall, ...], MostItems(limits.MAX_SAMPLED_CALLS)]
    """A call comes after the one around it."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a rank is doing at this moment, from its publisher thread while the training thread is stuck."""

    t_ns: Nanoseconds
    number: Identifier
    """Number of the ASK that it answers; 0: sent by the rank itself at its exit."""
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
