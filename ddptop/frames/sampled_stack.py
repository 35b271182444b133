"""Which line takes the time of a slow rank, or of a long step: samples of its training thread's stack."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ddptop.frames.causes import words_of
from ddptop.frames.numbers import percent
from ddptop.protocol.evidence import SAMPLED_PLACES

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class StackShare:
    """A call of the user's own code, or the first one of a library that it has called."""

    file: str
    line: int
    """0: of a library."""
    function: str
    """Name of the function; with its module if it is of a library: `torch.save`."""
    parent: int
    """Index of the call around it, which comes before it; -1: there is none."""
    share_pct: float
    """Share of the samples in which it was on the stack, in %."""


@dataclass(frozen=True, slots=True)
class SampledStack:
    """A series of samples of one rank."""

    rank: int
    place: str
    """The `OwnPlace` in which they were taken; empty: wherever the rank did not wait for others."""
    is_long_step: bool
    """Taken since one step lasted very long; else since the rank is slow."""
    step: int
    """In which the first one was taken."""
    taken_s: float
    """Unix seconds."""
    samples: int
    held_pct: float
    """Share of the time in which no sample could be taken: a C call held the interpreter lock."""
    calls: tuple[StackShare, ...]
    workers: tuple[str, ...]
    """Where its DataLoader workers were, `data.py:41 decode`, read with py-spy; empty: not known."""


LOADER = "torch.utils.data."
"""Calls in which a rank waits for its DataLoader workers: where these are is said in their place."""

RARE = "rare"
"""The pattern of a rank that is slow in few steps by very much: it samples these by itself."""

MOST_SHARE = 0.5
"""A call is followed into a function that has at least this share of its samples."""

ONE_LINE_SHARE, LINE_SHARE = 0.8, 0.1
"""A line with this share of its function's samples is named alone; else all with the second share are."""

HELD_WORDS = "a C call held the interpreter lock, or the process stood still"

HELD_PCT = 20.0
"""From this share on it is said that a C call held the interpreter lock."""

FEW_SAMPLES = 10
"""Below this a share says little."""


def place_to_sample(cause: str | None, place: str | None) -> str | None:
    """The place of the step in which the stack of a slow rank shows why it is slow, one of SAMPLED_PLACES;
    None: no stack shows it, for it waits for a CPU, or collects garbage."""
    if words_of(cause).no_stack_shows_it:
        return None
    within = place if cause == "other" else cause
    return within if within in SAMPLED_PLACES else ""


class Slow(Protocol):
    """A straggler of a frame or of a report."""

    @property
    def pattern(self) -> str | None:
        """As `Straggler` has it; likewise below."""

    @property
    def cause(self) -> str | None:
        """The phase that has its excess."""

    @property
    def place(self) -> str | None:
        """Where its excess lies."""


def stack_of_straggler(stacks: Sequence[SampledStack], slow: Slow, rank: int) -> SampledStack | None:
    """The samples of a slow rank in the place in which it is slow; of one that is slow in few steps by very
    much, those of its last long step. None: there are none."""
    is_rare = slow.pattern == RARE
    place = "" if is_rare else place_to_sample(slow.cause, slow.place)
    fitting = (stack for stack in stacks if (stack.rank, stack.place) == (rank, place))
    return next((stack for stack in fitting if stack.is_long_step == is_rare), None)


class CallGroup(NamedTuple):
    """The calls of one function from the same place, whatever line they were at."""

    call: StackShare
    """The one in most samples."""
    share_pct: float
    """Share of all samples, in %."""
    indices: tuple[int, ...]
    first_line: int
    """First of the lines that have nearly all of its samples: a loop has several."""
    last_line: int
    lines_pct: float
    """Share of the samples in which it was at one of these lines."""

    @classmethod
    def of_calls(cls, stack: SampledStack, indices: Sequence[int]) -> CallGroup:
        """The group of these calls."""
        calls = sorted((stack.calls[index] for index in indices), key=lambda call: -call.share_pct)
        share_pct = sum(call.share_pct for call in calls)
        most = [call for call in calls if call.share_pct >= LINE_SHARE * share_pct]
        lines = calls[:1] if calls[0].share_pct >= ONE_LINE_SHARE * share_pct else most or calls
        first, last = (choose(call.line for call in lines) for choose in (min, max))
        lines_pct = sum(call.share_pct for call in calls if first <= call.line <= last)
        return cls(calls[0], share_pct, tuple(indices), first, last, lines_pct)

    @property
    def text(self) -> str:
        """`train.py:88 tokenize`, `train.py:31-33 decode`; of a library `torch.save`."""
        if not self.call.line:
            return self.call.function
        file = re.split(r"[/\\]", self.call.file)[-1]
        lines = f"{self.first_line}" if self.first_line == self.last_line else self._line_range
        function = "" if self.call.function == "<module>" else f" {self.call.function}"
        return f"{file}:{lines}{function}"

    @property
    def _line_range(self) -> str:
        return f"{self.first_line}-{self.last_line}"


def calls_within(stack: SampledStack, parents: Sequence[int]) -> list[CallGroup]:
    """What is called by these calls (indices; -1: by none), by function, in most samples first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for index, call in enumerate(stack.calls):
        if call.parent in parents:
            groups.setdefault((call.file, call.function), []).append(index)
    merged = [CallGroup.of_calls(stack, indices) for indices in groups.values()]
    return sorted(merged, key=lambda group: -group.share_pct)


def hot_path(stack: SampledStack) -> list[CallGroup]:
    """The calls that lead to the line that takes the time, outermost first: into the function with most
    samples, as long as one has the larger part of them. Empty: there are no samples."""
    path: list[CallGroup] = []
    indices: tuple[int, ...] = (-1,)
    while groups := calls_within(stack, indices):
        if path and groups[0].share_pct < MOST_SHARE * path[-1].share_pct:
            break
        path.append(groups[0])
        indices = groups[0].indices
    return path


def hot_line(stack: SampledStack) -> str:
    """`dataset.py:31 __getitem__ < train.py:88`, `train.py:57 save_checkpoint > torch.save`; empty: no
    sample was taken."""
    path = hot_path(stack)
    if not path:
        return ""
    users = [group for group in path if group.call.line]
    if not users:
        return path[-1].text
    if not path[-1].call.line:
        return f"{users[-1].text} > {path[-1].text}"
    return " < ".join(group.text for group in reversed(users[-2:]))


def hot_share_pct(stack: SampledStack) -> float:
    """Share of the samples that `hot_line` stands for."""
    path = hot_path(stack)
    return path[-1].lines_pct if path else 0.0


def samples_phrase(stack: SampledStack) -> str:
    """`in 82% of samples: dataset.py:31 __getitem__ < train.py:88`; empty: nothing is known."""
    held_phrase = f"not seen for {percent(stack.held_pct)} of the time: {HELD_WORDS}"
    parts = [held_phrase] if stack.held_pct >= HELD_PCT else []
    path = hot_path(stack)
    in_loader = bool(path) and path[-1].call.function.startswith(LOADER)
    if (line := hot_line(stack)) and not (stack.workers and in_loader):
        number = f"{stack.samples} samples" if stack.samples < FEW_SAMPLES else "samples"
        share = f"{percent(hot_share_pct(stack))} of {number}" if stack.samples > 1 else "the only sample"
        parts.insert(0, f"in {share}: {line}")
    if stack.workers:
        parts.insert(0, workers_phrase(stack))
    return " · ".join(parts)


def workers_phrase(stack: SampledStack) -> str:
    """`3 of 4 workers: data.py:41 decode`."""
    most = max(stack.workers, key=stack.workers.count)
    count, total = stack.workers.count(most), len(stack.workers)
    return f"{count} of {total} workers: {most}" if total > 1 else f"its worker: {most}"
