"""The words for what ranks do while a step lasts far longer than usual, and for the position in an epoch."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ddptop.frames.numbers import count, duration
from ddptop.frames.phrases import ranks_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.activity import ActivityKind, EpochProgress, LongActivity


@dataclass(frozen=True, slots=True)
class _Words:
    one: str
    """Of one rank; `{name}` is the activity's."""
    several: str


_WORDS: Mapping[ActivityKind, _Words] = MappingProxyType(
    {
        "declared": _Words('is in "{name}"', 'are in "{name}"'),
        "evaluate": _Words("evaluates", "evaluate"),
        "save": _Words("saves (torch.save)", "save (torch.save)"),
        "data": _Words("waits for its next batch", "wait for their next batch"),
        "forward": _Words("is in forward", "are in forward"),
        "backward": _Words("is in backward", "are in backward"),
        "optimizer": _Words("is in the optimizer", "are in the optimizer"),
        "before_forward": _Words("is between its batch and forward", "are between their batch and forward"),
        "before_backward": _Words("is between forward and backward", "are between forward and backward"),
        "before_optimizer": _Words(
            "is between backward and the optimizer", "are between backward and the optimizer"
        ),
        "after_optimizer": _Words("is after its optimizer step", "are after their optimizer step"),
        "wait": _Words("waits in {name}", "wait in {name}"),
        "other": _Words("is outside all phases", "are outside all phases"),
    }
)

STATE_WORDS: Mapping[ActivityKind, str] = MappingProxyType({"evaluate": "EVALUATING", "save": "SAVING"})
"""In place of the run's state `LIVE`; others are a `LONG STEP`, a declared phase has its own name."""

SHORT_WORDS: Mapping[ActivityKind, str] = MappingProxyType(
    {"declared": "phase", "evaluate": "eval", "save": "saves", "wait": "waits"}
)
"""In a column of ranks; others are `busy`."""

LONGEST_STATE = 16
"""Letters of a declared phase's name in the header."""

MOST_NAMED = 3
"""Groups of ranks in the sentence: the JSON has all."""


def activities_phrase(activities: Sequence[LongActivity], world: int, now_s: float) -> str:
    """`rank 0 evaluates for 18s · ranks 1 to 3 wait in barrier`; the age is of what comes first."""
    parts = []
    for number, activity in enumerate(activities[:MOST_NAMED]):
        words, ranks = _WORDS[activity.kind], activity.ranks
        everybody = len(ranks) == world > 1
        who = f"all {world:,} ranks" if everybody else ranks_range(ranks)
        name = activity.name or ("a collective" if activity.kind == "wait" else "")
        does = (words.one if len(ranks) == 1 else words.several).format(name=name)
        lasts = f" for {duration(max(0.0, now_s - activity.since_s))}" if number == 0 else ""
        parts.append(f"{who} {does}{lasts}")
    return " · ".join(parts)


def state_word(activities: Sequence[LongActivity]) -> str:
    """`EVALUATING`, `SAVING`, `LONG STEP`: the state of a run in these activities."""
    first = activities[0]
    if first.kind == "declared":
        return first.name.upper()[:LONGEST_STATE]
    return STATE_WORDS.get(first.kind, "LONG STEP")


def epoch_phrase(progress: EpochProgress, *, short: bool = False) -> str:
    """`epoch 3 · batch 120/400 · 41s left in it`; `short`: without the time."""
    of_batches = "" if progress.batches is None else f"/{count(progress.batches)}"
    left_s = progress.epoch_left_s
    left_in_it = "" if short or left_s is None else f" · {duration(left_s)} left in it"
    return f"epoch {progress.epoch} · batch {count(progress.batch)}{of_batches}{left_in_it}"
