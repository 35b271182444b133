"""The bill of a run: where the time of all ranks went, what others waited for, and what the run would take
without each of its largest losses. Made of the ledger; what is shown adds up as it is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.causes import CAUSES, PLACES
from ddptop.frames.ledger import LEDGER_CLASSES
from ddptop.frames.numbers import count, counted, duration, fixed, percent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ddptop.frames.ledger import Ledger, SkewCost, WaitedFor


@dataclass(frozen=True, slots=True)
class ClassWords:
    """How a class of the ledger is shown."""

    title: str
    glyph: str
    plain: str
    """The glyph in ASCII."""
    role: str
    """A `ddptop.render.line.Role`."""
    without: str = ""
    """What the run is without, where it is a loss: `data loading`."""


CLASSES: Mapping[str, ClassWords] = MappingProxyType(
    {
        "start": ClassWords("start-up, to the first step", "▫", "s", "dim", "the start-up"),
        "data": ClassWords("data loading", "▪", "d", "data", "data loading"),
        "first_batch": ClassWords(
            "first batch of an epoch", "▨", "D", "heat3", "waiting for the first batch of each epoch"
        ),
        "forward": ClassWords("forward", "█", "F", "forward"),
        "own_backward": ClassWords("backward", "▓", "B", "backward"),
        "optimizer": ClassWords("optimizer", "▄", "o", "optimizer"),
        "between": ClassWords("other code in the training loop", "░", "x", "other"),
        "gc": ClassWords("garbage collection", "▧", "g", "sync", "garbage collection"),
        "transfer": ClassWords("exposed transfer", "≈", "t", "transfer", "exposed transfer"),
        "waiting": ClassWords("waiting for a later rank", "▒", "w", "wait"),
        "evaluation": ClassWords("evaluation", "◇", "e", "good"),
        "compiling": ClassWords("compiling again", "▩", "c", "torch", "compiling again"),
        "saving": ClassWords("saving checkpoints", "▤", "S", "text", "saving checkpoints"),
        "phase": ClassWords("in declared phases", "◆", "p", "heat1"),
        "stalled": ClassWords("stalled", "■", "#", "bad", "its stalls"),
        "restart": ClassWords("restarts", "↻", "r", "warn", "its restarts"),
        "end": ClassWords("after the last step", "▁", "_", "area"),
        "unknown": ClassWords("not known", "?", "?", "faint"),
    }
)

_PLACE_PHRASES: Mapping[str, str] = MappingProxyType(
    {
        "start": "until its first step",
        "first_batch": "in the first batch of an epoch",
        "evaluation": "in evaluation",
        "compiling": "in torch.compile",
        "saving": "saving checkpoints",
        "phase": "in a declared phase",
        "unknown": "place not known",
    }
)

NOTHING_YET = "nothing to add up yet: the bill begins when the ranks report"

NOT_KNOWN = (
    "where the time went is not known: not all steps since the launch were read, and the recording has no "
    "sums of them (earlier versions recorded none); `ddptop export` reads all steps"
)
"""Instead of the bill, where there are steps and no ledger."""

MUCH_UNKNOWN_PCT = 25.0
"""Share of the run, in %, of which it is said why it is not known."""

MOST_LOSSES = 3

LEAST_LOSS_PCT = 0.5
"""Share of the run, in %: a loss that gives back less is not listed."""


def ledger_place_phrase(place: str) -> str:
    """`after the optimizer`, `in forward`, `in evaluation`: where the others waited for a rank."""
    if place in _PLACE_PHRASES:
        return _PLACE_PHRASES[place]
    words = PLACES.get(place)  # type: ignore[call-overload]  # other places are no keys
    if words is not None:
        return str(words.title)
    return CAUSES[place].where if place in CAUSES else f"in {place.replace('_', ' ')}"


@dataclass(frozen=True, slots=True)
class BillRow:
    """One line of the bill."""

    key: str
    """The class, or the place."""
    title: str
    rank_seconds: float
    share_pct: float
    """Rounded, so that the shares of all rows add up to 100.0."""
    amount: str
    """`rank_seconds` in the bill's unit; the amounts add up to its total."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A part of the run's time without which it would have been shorter."""

    what: str
    """`rank 0 after the optimizer`, `data loading`."""
    rank: int | None
    """The rank that the others waited for; None: all ranks lost it."""
    key: str
    """The class or the place."""
    gives_back_s: float
    """Seconds of the run's time that it gives back at most."""
    elapsed_s: float
    """What the run would take without it."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Where the time of all ranks went."""

    elapsed_s: float
    n_ranks: int
    total_s: float
    """Rank-seconds: what the rows add up to."""
    unit: str
    """`rank-seconds`, `rank-minutes`, `rank-hours`, or `GPU-...`."""
    total: str
    """In this unit."""
    rows: tuple[BillRow, ...]
    """The classes that took time, the largest first, and last what is not known."""
    losses: tuple[Loss, ...]
    """The largest, at most MOST_LOSSES."""


_UNITS = (("seconds", 1.0, 1_000.0), ("minutes", 60.0, 60_000.0), ("hours", 3600.0, math.inf))
"""Name, seconds, and below how many rank-seconds it is used."""


def _unit_for(seconds: float) -> tuple[str, float]:
    """Name and seconds of the unit in which so many rank-seconds are written."""
    return next((name, length_s) for name, length_s, below_s in _UNITS if not seconds >= below_s)


def rank_time_phrase(rank_seconds: float) -> str:
    """`883.5 rank-minutes`."""
    name, length_s = _unit_for(rank_seconds)
    return f"{fixed(rank_seconds / length_s)} rank-{name}"


def bill_of(ledger: Ledger, *, on_gpus: bool = False) -> Bill:
    """The bill of a run; `on_gpus`: ranks have a GPU each."""
    sums = {name: float(np.nansum(ledger.seconds_of(name))) for name in LEDGER_CLASSES}
    total_s = sum(sums.values())
    unit_prefix = "GPU" if on_gpus else "rank"
    name, length_s = _unit_for(total_s)
    # Of the running step it is not known yet where its time goes: that would change places with every step.
    names = sorted(sums, key=lambda name: (name == "unknown", -sums[name]))
    amounts = round_to_sum([sums[name] / length_s for name in names], 1)
    shares = round_to_sum([100 * sums[name] / total_s if total_s else 0.0 for name in names], 1)
    rows = tuple(
        BillRow(name, CLASSES[name].title, sums[name], share_pct, fixed(amount))
        for name, amount, share_pct in zip(names, amounts, shares, strict=True)
        if amount or share_pct
    )
    n_ranks = len(ledger.ranks.elapsed_s)
    return Bill(
        ledger.elapsed_s,
        n_ranks,
        total_s,
        f"{unit_prefix}-{name}",
        fixed(sum(amounts)),
        rows,
        _losses(ledger, n_ranks)[:MOST_LOSSES],
    )


def _losses(ledger: Ledger, n_ranks: int) -> tuple[Loss, ...]:
    """Every loss, the largest first.

    Of a rank that the others wait for, the run has lost what one of them waited. Of a class, it is what every
    rank has lost: more than that on one rank is what the others wait for.
    """
    losses = [
        _loss(
            ledger,
            f"rank {row.rank} {ledger_place_phrase(row.place)}",
            row.rank,
            row.place,
            row.rank_seconds / max(1, n_ranks - 1),
        )
        for row in ledger.run.waited_for
        if row.place != "unknown"  # "without rank 1, place not known" helps nobody
    ]
    losses += [
        _loss(ledger, CLASSES[name].without, None, name, ledger.least_seconds_of(name))
        for name in LEDGER_CLASSES
        if CLASSES[name].without and n_ranks
    ]
    worth = [loss for loss in losses if loss.gives_back_s >= LEAST_LOSS_PCT / 100 * ledger.elapsed_s > 0]
    return tuple(sorted(worth, key=lambda loss: -loss.gives_back_s))


def _loss(ledger: Ledger, what: str, rank: int | None, key: str, gives_back_s: float) -> Loss:
    gives_back_s = min(gives_back_s, ledger.elapsed_s)
    return Loss(what, rank, key, gives_back_s, ledger.elapsed_s - gives_back_s)


def round_to_sum(values: Sequence[float], digits: int) -> list[float]:
    """The values rounded to so many decimals, so that they add up to their rounded sum.

    By the largest remainders: no value changes by more than one unit of the last decimal.
    """
    scale = 10**digits
    scaled = [value * scale for value in values]
    floors = [math.floor(value) for value in scaled]
    missing = round(sum(scaled)) - sum(floors)
    order = sorted(range(len(values)), key=lambda place: floors[place] - scaled[place])
    for place in order[: max(0, missing)]:
        floors[place] += 1
    return [floor / scale for floor in floors]


def headline(bill: Bill) -> str:
    """`In all 255.0 rank-seconds: 3 ranks for 1 min 25 s`, of a run that has ended or goes on."""
    return f"In all {total_phrase(bill)}"


def total_phrase(bill: Bill) -> str:
    """`255.0 rank-seconds: 3 ranks for 1 min 25 s`."""
    ranks = counted(bill.n_ranks, "rank")
    return f"{bill.total} {bill.unit}: {ranks} for {duration(bill.elapsed_s)}"


def estimate_phrase(ledger: Ledger) -> str:
    """`73% of it is an estimate: steps that were left out, divided like recorded ones`; where much is not
    known, how many steps were recorded. Empty: neither."""
    unknown_s = float(np.nansum(ledger.seconds_of("unknown")))
    if unknown_s > MUCH_UNKNOWN_PCT / 100 * ledger.total_s and ledger.run.recorded_steps < ledger.run.steps:
        recorded = f"{ledger.run.recorded_steps:,} of {ledger.run.steps:,} steps were recorded"
        share = percent(100 * unknown_s / ledger.total_s)
        return f"{share} of it is not known: {recorded}; --ddptop-detail full records all"
    if all(row.n_dear_in_all <= row.n_dear for row in ledger.run.waited_for):
        return ""
    share = percent(100 * ledger.scaled_s / ledger.total_s)
    return f"{share} of it is an estimate: steps that were left out, divided like recorded ones"


def skew_cost_phrase(cost: SkewCost) -> str:
    """`38% (36% to 40%) of the ranks' time was lost to waiting for each other`."""
    interval = ""
    if cost.low_pct is not None and cost.high_pct is not None:
        interval = f" ({percent(cost.low_pct)} to {percent(cost.high_pct)})"
    return f"{percent(cost.lost_pct)}{interval} of the ranks' time was lost to waiting for each other"


def dear_phrase(row: WaitedFor) -> str:
    """`7 steps, 6.0 s in each`, `1,204 steps, 6.0 s in 7 of them`: how a rank has waited for another. Where
    steps were left out, `12 recorded steps, 100 ms in 5 of them (some 47 in all)`; `12 seen steps`, where
    heartbeats told of some of them."""
    if row.n_dear_in_all > row.n_dear > 0:
        each = _seconds(row.dear_s)
        steps = counted(row.steps, "seen step" if row.n_witnessed else "recorded step")
        return f"{steps}, {each} in {row.n_dear:,} of them (some {row.n_dear_in_all:,} in all)"
    steps = counted(row.steps, "step")
    if row.n_dear < 2:
        return f"{steps}, at most {_seconds(row.longest_s)} in step {count(row.longest_step)}"
    which = "each" if row.n_dear >= row.steps else f"{row.n_dear:,} of them"
    return f"{steps}, {_seconds(row.dear_s)} in {which}"


def _seconds(seconds: float) -> str:
    """`6.0 s`, `2.4 ms`."""
    return duration(seconds) if seconds >= 1 else f"{fixed(1e3 * seconds)} ms"
