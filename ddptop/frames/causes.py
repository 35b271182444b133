"""Causes of stragglers, declared once: the words for a cause, and what to try.

Verdict, alert, table, report and advice read them here.

To add a cause, declare it here and have `ddptop/analysis/straggler/` find it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from ddptop.protocol.vocabulary import OwnPlace

Cause: TypeAlias = Literal[
    "data", "forward", "backward", "optimizer", "other", "mixed", "cpu", "gc", "uneven_work"
]
"""The phase that holds a straggler's excess; `mixed`: none has enough of it; `cpu`: it waits for a CPU; `gc`:
it collects garbage; `uneven_work`: its batch is larger, so that no rank is to blame."""

NAMES = frozenset(("Cause",))
"""The closed set of this module, as annotations of dataclasses have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseWords:
    """What is said of a cause, and what to try."""

    title: str
    where: str = ""
    """`in forward`: where the excess lies; empty: in several phases."""
    remedy_kind: str
    """The kind of the suggestion in the report's JSON."""
    remedy: str
    """`{ranks}`, `{host}`, `{place}` (host and device) and `{fetching}` are those of the straggler."""
    remedy_in_turn: bool = False
    """Whether the remedy is the same where ranks take turns, whose batches usually differ."""
    known_in_turn: bool = False
    """Whether the report suggests something where ranks take turns: what depends on the batch."""
    sentence: str = ""
    """In place of `{who} takes {size} {often}`, where the cause has a sentence of its own: `{s}` is the
    ending of a verb after `{who}`, `{has}` its `has` or `have`, `{more}` how many more elements."""
    sentence_says_it: bool = False
    """Whether this sentence leaves nothing to add."""
    blames_none_in_turn: bool = False
    """Whether no rank is slow where ranks take turns."""
    by_few_cpus: bool = False
    """Whether too few CPUs explain it, where ranks have too few."""
    no_stack_shows_it: bool = False
    """Whether the line that a rank is in does not explain it."""
    gives_back_cost: bool = False
    """Whether the remedy gives back what the straggler costs, at most."""


_SLOW_DEVICE = "Check the device and host of {ranks} ({place}): clocks, heat, other programs on its cores"

CAUSES: Mapping[str, CauseWords] = MappingProxyType(
    {
        "data": CauseWords(
            title="data loading",
            where="in data loading",
            remedy_kind="data_workers",
            remedy="Speed up the data loading of {ranks}: num_workers, prefetch_factor, the disk or network "
            "mount of {host}, or larger samples there.",
            known_in_turn=True,
        ),
        "forward": CauseWords(
            title="forward",
            where="in forward",
            remedy_kind="slow_device",
            remedy=f"{_SLOW_DEVICE}.",
            known_in_turn=True,
        ),
        "backward": CauseWords(
            title="backward",
            where="in backward",
            remedy_kind="slow_device",
            remedy=f"{_SLOW_DEVICE}; and hooks that run there alone.",
            known_in_turn=True,
        ),
        "optimizer": CauseWords(
            title="optimizer",
            where="in the optimizer",
            remedy_kind="slow_optimizer",
            remedy="Look at what the optimizer of {ranks} does more than on the others: parameters kept on "
            "it alone, swapping.",
        ),
        "other": CauseWords(
            title="outside the phases",
            where="in the time outside all phases",
            remedy_kind="work_between_steps",
            remedy="Look at what {ranks} does between the phases: logging, metrics with .item(), "
            "checkpoints. Do it every so many steps, or in a thread.",
        ),
        "mixed": CauseWords(
            title="mixed causes",
            remedy_kind="slow_rank",
            remedy="Look at the host of {ranks} ({place}): time goes in several phases, as on a busy "
            "machine.",
            by_few_cpus=True,
        ),
        "cpu": CauseWords(
            no_stack_shows_it=True,
            title="waits for a CPU",
            where="while waiting for a CPU",
            remedy_kind="cpu_contention",
            remedy="Find out which other programs run on the cores of {ranks} ({place}), to which cores its "
            "process is pinned, and what CPU quota it has (cpu.max, a container's limit): it could run and "
            "waits for a CPU.",
            sentence="{who} wait{s} {size} for a CPU {often}",
            sentence_says_it=True,
            by_few_cpus=True,
        ),
        "gc": CauseWords(
            no_stack_shows_it=True,
            title="garbage collection",
            where="in garbage collection",
            remedy_kind="garbage_collection",
            remedy="Collect garbage in the same steps on all ranks: gc.freeze() and gc.disable() after the "
            "first steps, gc.collect() every so many steps. Find out which objects {ranks} creates and "
            "keeps.",
            remedy_in_turn=True,
            known_in_turn=True,
            gives_back_cost=True,
        ),
        "uneven_work": CauseWords(
            no_stack_shows_it=True,
            title="uneven work",
            where="in batches of different sizes",
            remedy_kind="even_batches",
            remedy="Give all ranks batches of the same size: bucket samples by length, pack sequences up to "
            "a number of tokens, or share out each step's samples by their sizes. No rank is slow by itself.",
            remedy_in_turn=True,
            known_in_turn=True,
            sentence="{who} {has} {more} elements, {size} {often}",
            blames_none_in_turn=True,
            gives_back_cost=True,
        ),
    }
)


def words_of(cause: str | None) -> CauseWords:
    """What is said of a cause; of one that is not known, as of mixed ones."""
    return CAUSES.get(cause or "", CAUSES["mixed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceWords:
    """What is said of a place in a step that is in none of its phases."""

    title: str
    short: str
    remedy: str
    """As a cause's."""


PLACES: Mapping[OwnPlace, PlaceWords] = MappingProxyType(
    {
        "before_forward": PlaceWords(
            title="between the batch and forward",
            short="before forward",
            remedy="Look at what {ranks} does between receiving a batch and forward. Copies and augmentation "
            "can move to the workers of its DataLoader (pin_memory, non_blocking=True).",
        ),
        "before_backward": PlaceWords(
            title="between forward and backward",
            short="before backward",
            remedy="Look at what {ranks} does between forward and backward(){fetching}. Work that not every "
            "step needs can run every so many steps.",
        ),
        "before_optimizer": PlaceWords(
            title="between backward and the optimizer",
            short="before optimizer",
            remedy="Look at what {ranks} does between backward and the optimizer. Work that not every step "
            "needs can run every so many steps.",
        ),
        "after_optimizer": PlaceWords(
            title="after the optimizer",
            short="after optimizer",
            remedy="Look at what {ranks} does between the optimizer and its next batch. A checkpoint, an "
            "evaluation or logging can run every so many steps, or in a thread.",
        ),
        "first_batch": PlaceWords(
            title="in the first batch of an epoch",
            short="first batch",
            remedy="Give the DataLoader of {ranks} persistent_workers=True, so that workers start once and "
            "not in each epoch; look at what they read first.",
        ),
        "evaluation": PlaceWords(
            title="in an evaluation",
            short="evaluation",
            remedy="Evaluate on all ranks, each a part of the data, or in a process of its own on saved "
            "weights: the other ranks wait for {ranks}.",
        ),
        "compiling": PlaceWords(
            title="in torch.compile",
            short="compiling",
            remedy="Set TORCH_LOGS=recompiles to see which guard fails on {ranks}. Give it inputs of the "
            "shapes that the others get, or mark the dimension that changes (torch._dynamo.mark_dynamic).",
        ),
        "saving": PlaceWords(
            title="saving checkpoints",
            short="saving",
            remedy="Save in a thread or process of its own (torch.distributed.checkpoint.async_save), in "
            "parts on all ranks, or less often: the other ranks wait for {ranks}.",
        ),
        "phase": PlaceWords(
            title="in a phase that the script declares",
            short="declared phase",
            remedy="Share the work of the declared phase out over all ranks, or run it in a thread or less "
            "often: the other ranks wait for {ranks}.",
        ),
        "between_steps": PlaceWords(
            title="between two steps",
            short="between steps",
            remedy="Look at what {ranks} does before forward, since the optimizer or the last "
            "micro-step{fetching}. A checkpoint, an evaluation or logging can be done every so many steps, "
            "or in a thread.",
        ),
    }
)


def place_of(cause: str | None, place: OwnPlace | None) -> PlaceWords | None:
    """The place that a cause is divided by, where it is in none of the phases; None: it is not."""
    return PLACES.get(place) if cause == "other" and place is not None else None


def cause_phrase(cause: str | None, place: OwnPlace | None, *, short: bool = False) -> str:
    """`data loading`, `between forward and backward`; short: `data`, `before backward`. Empty: unknown."""
    if between := place_of(cause, place):
        return between.short if short else between.title
    if not cause:
        return ""
    return cause.replace("_", " ") if short else words_of(cause).title


def place_phrase(cause: str | None, place: OwnPlace | None) -> str:
    """`in forward`, `between the batch and forward`: where the excess lies; empty: in several phases."""
    between = place_of(cause, place)
    return words_of(cause).where if between is None else between.title


def late_part_phrase(cause: str | None, place: OwnPlace | None, *, short: bool = False) -> str:
    """`in data loading`, `between the batch and forward`: the part of a step that a straggler's lateness is
    of; empty: of its whole own time, or its sentence says it."""
    if not cause or place is None or words_of(cause).sentence:
        return ""
    if not short:
        return place_phrase(cause, place)
    part = cause_phrase(cause, place, short=True)
    return part if place_of(cause, place) else f"in {part}"


def blamed_ranks(cause: str | None, pattern: str | None, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The ranks among the flagged ones that are slow: none where ranks take turns because their batches
    differ."""
    return () if pattern == "rotating" and words_of(cause).blames_none_in_turn else ranks


_BALANCE = (
    "Make the ranks' batches alike (sort or bucket samples by length, drop_last), and look for work that the "
    "ranks do in turn: the time is lost {where}."
)

_UNKNOWN_CAUSE = (
    "Find out what slows {ranks}: larger samples, a slower device, other programs on its cores ({place})."
)

_FETCHING = ": fetching its batch lies there too, for no DataLoader was seen"


def remedy(
    cause: str | None,
    place: OwnPlace | None,
    pattern: str | None,
    ranks: str,
    where: str,
    *,
    has_loader: bool = True,
) -> tuple[str, str]:
    """The kind of the remedy and what to try. `ranks`: `rank 1`; `where`: its host and device; `has_loader`:
    whether a DataLoader was seen."""
    words = words_of(cause)
    if pattern == "rotating" and not words.remedy_in_turn:
        lost_in = place_phrase(cause, place) or "in their steps"
        return "even_batches", _BALANCE.format(where=lost_in)
    between = place_of(cause, place)
    action = (words.remedy if cause else _UNKNOWN_CAUSE) if between is None else between.remedy
    host = where.partition(",")[0] or "its host"
    fetching = "" if has_loader else _FETCHING
    return words.remedy_kind, action.format(ranks=ranks, place=where or host, host=host, fetching=fetching)
