"""What the ranks do while a step lasts far longer than usual, and how far the run is in its DataLoader."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ActivityKind: TypeAlias = Literal[
    "stopped",
    "declared",
    "evaluate",
    "save",
    "silent",
    "data",
    "forward",
    "backward",
    "optimizer",
    "before_forward",
    "before_backward",
    "before_optimizer",
    "after_optimizer",
    "wait",
    "other",
]
"""In the order in which they are named: `wait` is what comes of the others. A rank that is `stopped`
(SIGSTOP) or `silent` sends nothing that tells what it does."""

NAMES = frozenset(("ActivityKind",))
"""The closed set of this module, as annotations of dataclasses have it."""


@dataclass(frozen=True, slots=True)
class LongActivity:
    """What some ranks do in a step that lasts far longer than usual."""

    kind: ActivityKind
    name: str
    """Name of the phase that the script has declared, or of the collective that they wait in; empty: not
    known."""
    ranks: tuple[int, ...]
    """Ascending."""
    since_s: float
    """Unix seconds: when the first of them began."""


@dataclass(frozen=True, slots=True)
class ActivitySpan:
    """A time in which some rank evaluated or saved, as its heartbeats told."""

    kind: ActivityKind
    since_s: float
    until_s: float
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """How far the run is in a pass over its DataLoader: of the lowest rank that trains on one."""

    epoch: int
    """From 0."""
    batch: int
    """Batches taken in it."""
    batches: int | None
    """Batches in all; None: not known."""
    epoch_left_s: float | None
    """At the present rate; None: not known."""
    samples_per_s: float | None = None
    """Samples that all ranks train on, by the size of a full batch; None: not known of every rank."""
