"""The words for what ranks do while a step lasts far longer than usual, and for the position in an epoch."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ddptop.frames.numbers import count, duration, fixed
from ddptop.frames.phrases import ranks_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.activity import ActivityKind, EpochProgress, LongActivity


_WORDS: Mapping[ActivityKind, str] = MappingProxyType(
    {
        "stopped": "stopped (SIGSTOP)",
        "declared": 'in "{name}"',
        "evaluate": "evaluating",
        "save": "saving",
        "silent": "silent",
        "data": "waiting for {its} next batch",
        "forward": "in forward",
        "backward": "in backward",
        "optimizer": "in the optimizer",
        "before_forward": "between {its} batch and forward",
        "before_backward": "between forward and backward",
        "before_optimizer": "between backward and the optimizer",
        "after_optimizer": "after {its} optimizer step",
        "wait": "waiting in {name}",
        "other": "outside all phases",
    }
)
"""Words after `is` or `has been`; `{name}` is the activity's, `{its}` the rank's or the ranks'."""

STATE_WORDS: Mapping[ActivityKind, str] = MappingProxyType(
    {"stopped": "STOPPED", "evaluate": "EVALUATING", "save": "SAVING"}
)
"""In place of the run's state `LIVE`; others are a `LONG STEP`, a declared phase has its own name."""

SHORT_WORDS: Mapping[ActivityKind, str] = MappingProxyType(
    {
        "stopped": "stopped",
        "declared": "phase",
        "evaluate": "eval",
        "save": "saving",
        "silent": "silent",
        "wait": "waiting",
    }
)
"""In a column of ranks; others are `busy`."""

LONGEST_STATE = 16
"""Letters of a declared phase's name in the header."""

MOST_NAMED = 3
"""Groups of ranks in the sentence: the JSON has all."""


def activities_phrase(activities: Sequence[LongActivity], world: int, now_s: float | None = None) -> str:
    """`rank 0 has been evaluating for 18 s · ranks 1 to 3 are waiting in barrier`: the age of what comes
    first; without `now_s` no age, as in `rank 0 is evaluating`."""
    parts = []
    for number, activity in enumerate(activities[:MOST_NAMED]):
        ranks, alone = activity.ranks, len(activity.ranks) == 1
        who = f"all {world:,} ranks" if len(ranks) == world > 1 else ranks_range(ranks)
        name = activity.name or ("a collective" if activity.kind == "wait" else "")
        does = _WORDS[activity.kind].format(name=name, its="its" if alone else "their")
        if number == 0 and now_s is not None:
            lasts = duration(max(0.0, now_s - activity.since_s))
            parts.append(f"{who} {'has' if alone else 'have'} been {does} for {lasts}")
        else:
            parts.append(f"{who} {'is' if alone else 'are'} {does}")
    return " · ".join(parts)


def state_word(activities: Sequence[LongActivity]) -> str:
    """`EVALUATING`, `SAVING`, `LONG STEP`: the state of a run in these activities."""
    first = activities[0]
    if first.kind == "declared":
        return first.name.upper()[:LONGEST_STATE]
    return STATE_WORDS.get(first.kind, "LONG STEP")


def epoch_phrase(progress: EpochProgress, *, short: bool = False) -> str:
    """`epoch 3 · batch 120/400 · 41s left in it · 2,400 samples/s`; `short`: epoch and batch alone."""
    of_batches = "" if progress.batches is None else f"/{count(progress.batches)}"
    left_s = progress.epoch_left_s
    left_in_it = "" if short or left_s is None else f" · {duration(left_s)} left in it"
    rate = (
        "" if short or progress.samples_per_s is None else f" · {sample_rate_phrase(progress.samples_per_s)}"
    )
    return f"epoch {progress.epoch} · batch {count(progress.batch)}{of_batches}{left_in_it}{rate}"


def sample_rate_phrase(samples_per_s: float) -> str:
    """`2,400 samples/s`, of all ranks together."""
    return f"{fixed(samples_per_s, 0 if samples_per_s >= FEW_SAMPLES else 1)} samples/s"


FEW_SAMPLES = 10.0
"""Below so many samples a second the rate has a decimal."""
