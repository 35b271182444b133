"""What to try by the ledger: what the others waited for, and what every rank lost. Sums over the run, so that
what is rare and dear counts as much as what is a little in each step."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from ddptop.frames.bill import dear_phrase, ledger_place_phrase
from ddptop.frames.causes import PLACES, remedy
from ddptop.frames.numbers import percent
from ddptop.frames.phrases import data_loading_phrase
from ddptop.frames.remedies import ALONE_REMEDIES, MORE_WORKERS
from ddptop.report.content import Suggestion
from ddptop.report.findings import format_seconds, ranks_in_short

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ddptop.frames.ledger import Ledger, WaitedFor
    from ddptop.protocol.messages import Scalar
    from ddptop.protocol.vocabulary import LedgerClass, OwnPlace
    from ddptop.report.content import Report, StragglerSummary

WORTH_PCT = 1.0
"""Least part of the run that a suggestion gives back."""

LEAST_START_S = 30.0
"""A start-up that is shorter is that of any run: imports and the process group."""

IN_TURN_PCT = 5.0
"""Least share of the time in steps that equal ranks would give back: some waiting is usual."""

LEAST_DEAR_S = 0.5
MOST_DEAR_SHARE = 0.1
"""Steps are rare and dear if they are at most such a share of all, and a rank has waited so long in each.
That is what one rank does now and then, such as a checkpoint."""

SHORTER_START = (
    "Shorten the start: keep what is prepared there (tokenized data, compiled kernels with "
    "TORCHINDUCTOR_CACHE_DIR) for the next run, have one rank download while the others do not wait, and "
    "take fewer DataLoader workers (num_workers) where the first batch waits until all have started."
)
EQUAL_BATCHES = (
    "Give every rank as many batches as the others: a DistributedSampler does so, data that is divided by "
    "files does not. join() only lets the others go on."
)
IN_TURN = (
    "No rank is slow by itself: each is late now and then, mostly {where}. Give all ranks batches of the "
    "same size, and cores that no other program uses. With accumulated gradients they wait less often."
)

_BY_PLACE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "start": ("start_up", f"Look at what {{who}} does before its first step. {SHORTER_START}"),
        "first_batch": ("persistent_workers", ALONE_REMEDIES["first_batch"]),
        "evaluation": ("evaluate_together", ALONE_REMEDIES["evaluation"]),
        "compiling": ("recompiles", ALONE_REMEDIES["compiling"]),
        "saving": ("one_rank_work", ALONE_REMEDIES["saving"]),
        "phase": ("one_rank_work", ALONE_REMEDIES["phase"]),
    }
)
"""Kind and action of what others wait for outside the usual steps of a rank."""


def step_losses(ledger: Ledger) -> tuple[WaitedFor, ...]:
    """What others waited for in places of a step that a flagged rank's cause explains: not rare and dear."""
    return tuple(row for row in ledger.run.waited_for if not is_rare(row, ledger) and row.place not in ALONE)


ALONE = frozenset({"evaluation", "compiling", "saving", "phase", "first_batch", "start", "unknown"})
"""Places with a suggestion of their own, or none."""


def is_rare(row: WaitedFor, ledger: Ledger) -> bool:
    """Whether most of what was waited lies in few steps."""
    n_dear, n_steps = row.dear_of(ledger.run)
    return 0 < n_dear <= max(1.0, MOST_DEAR_SHARE * n_steps) and row.dear_s >= LEAST_DEAR_S


def seconds_back(rows: Sequence[WaitedFor], ledger: Ledger) -> float:
    """How much shorter the run is, at most, if nobody waits for these: each of the others waited as long."""
    return sum(row.rank_seconds for row in rows) / _n_others(ledger)


def _n_others(ledger: Ledger) -> int:
    return max(1, len(ledger.ranks.elapsed_s) - 1)


def _is_of_usual_steps(row: WaitedFor, ledger: Ledger) -> bool:
    return row.place not in ALONE and not is_rare(row, ledger)


def _alone_s(row: WaitedFor, ledger: Ledger) -> float:
    """Rank-seconds of a row that its rank alone is to blame for. In usual steps every rank is the latest now
    and then: what the others wait for the median of its peers in the same place is nobody's fault."""
    if not _is_of_usual_steps(row, ledger):
        return row.rank_seconds
    peers = [
        peer.rank_seconds
        for peer in ledger.run.waited_for
        if peer.place == row.place and peer.rank != row.rank and _is_of_usual_steps(peer, ledger)
    ]
    unlisted = [0.0] * (_n_others(ledger) - len(peers))
    return max(0.0, row.rank_seconds - float(np.median(peers + unlisted)))


def waited_phrase(rows: Sequence[WaitedFor], ledger: Ledger) -> str:
    """`the others waited 84 s for it in all, 33% of all ranks' time`."""
    seconds = sum(row.rank_seconds for row in rows)
    share = percent(100 * seconds / ledger.total_s if ledger.total_s else 0.0)
    return f"the others waited {format_seconds(seconds)} for it in all, {share} of all ranks' time"


def suggest_from_ledger(report: Report, covered: Sequence[WaitedFor]) -> Iterator[Suggestion]:
    """Suggestions by the ledger, unordered. `covered`: what suggestions about flagged ranks are about."""
    ledger = report.ledger
    if ledger is None or not ledger.elapsed_s:
        return
    has_loader = bool(np.nansum(ledger.ranks.data_s) + np.nansum(ledger.ranks.first_batch_s))
    alone_s = {row: _alone_s(row, ledger) for row in ledger.run.waited_for if row not in covered}
    for row, seconds in alone_s.items():
        given_back_s = seconds / _n_others(ledger)
        if 100 * given_back_s >= WORTH_PCT * ledger.elapsed_s:
            yield from _suggest_for_row(report, ledger, row, given_back_s, has_loader=has_loader)
    yield from _suggest_for_ranks_in_turn(report, ledger, alone_s)
    yield from _suggest_for_classes(report, ledger)
    yield from _suggest_equal_batches(report, ledger)


def _suggest_for_row(
    report: Report, ledger: Ledger, row: WaitedFor, given_back_s: float, *, has_loader: bool
) -> Iterator[Suggestion]:
    who, where = f"rank {row.rank}", ledger_place_phrase(row.place)
    kind, action = _BY_PLACE.get(row.place, ("", ""))
    if is_rare(row, ledger) and row.place in (*PLACES, "optimizer"):
        kind, action = kind or "one_rank_work", action or ALONE_REMEDIES["phase"]
    if kind:
        action = action.format(who=who, where=where)
    elif row.place == "unknown":
        return
    else:
        rank = next((summary for summary in report.ranks if summary.rank == row.rank), None)
        place = "" if rank is None else ", ".join(part for part in (rank.host, rank.device) if part)
        between = next((place_name for place_name in PLACES if place_name == row.place), None)
        cause = "other" if between is not None else row.place
        kind, action = remedy(cause, between, None, who, place, has_loader=has_loader)
    because = f"{who} was {where} in {dear_phrase(row)}; {waited_phrase((row,), ledger)}"
    figures = {"rank": row.rank, "place": row.place, "rank_seconds": row.rank_seconds, "steps": row.steps}
    yield make_suggestion(report, kind, action, because, given_back_s, figures)


def _suggest_for_ranks_in_turn(
    report: Report, ledger: Ledger, alone_s: Mapping[WaitedFor, float]
) -> Iterator[Suggestion]:
    """About what the ranks wait for each other in usual steps, with none of them to blame. `alone_s`: of each
    row that no flagged rank explains, the rank-seconds that its rank is to blame for."""
    explained_s = sum(row.rank_seconds for row in ledger.run.waited_for if row not in alone_s)
    in_turn_s = ledger.run.rank_seconds - explained_s - sum(alone_s.values())
    given_back_s = in_turn_s / len(ledger.ranks.elapsed_s)  # a step would last as its mean rank does
    rows = [row for row in alone_s if _is_of_usual_steps(row, ledger)]
    if not rows or 100 * given_back_s < IN_TURN_PCT * report.cost.step_s:
        return
    seconds_of: dict[OwnPlace, float] = {}
    for row in rows:
        seconds_of[row.place] = seconds_of.get(row.place, 0.0) + row.rank_seconds
    where = ledger_place_phrase(max(seconds_of, key=lambda place: seconds_of[place]))
    share = percent(100 * in_turn_s / ledger.total_s)
    because = f"the ranks waited {format_seconds(in_turn_s)} for each other in turn, {share} of their time"
    figures = {"in_turn_s": in_turn_s}
    yield make_suggestion(report, "even_batches", IN_TURN.format(where=where), because, given_back_s, figures)


def _suggest_for_classes(report: Report, ledger: Ledger) -> Iterator[Suggestion]:
    """About what every rank lost: more than that on one rank is what the others waited for."""
    classes: tuple[LedgerClass, ...] = ("data", "first_batch", "start", "compiling")
    of_run: dict[str, float] = {name: ledger.least_seconds_of(name) for name in classes}

    def is_worth(name: str) -> bool:
        return 100 * of_run[name] >= WORTH_PCT * ledger.elapsed_s

    def share_phrase(name: str) -> str:
        return f"{format_seconds(of_run[name])}, {percent(100 * of_run[name] / ledger.elapsed_s)} of the run"

    if is_worth("first_batch"):
        because = f"every rank waits for the first batch of each epoch: {share_phrase('first_batch')}"
        yield _suggest_for_class(
            report, "persistent_workers", ALONE_REMEDIES["first_batch"], because, "first_batch", of_run
        )
    if (data_pct := ledger.data_pct_of_all) is not None:
        loading_clause = data_loading_phrase(data_pct, len(ledger.ranks.elapsed_s))
        because = f"{loading_clause}: {format_seconds(of_run['data'])}"
        yield _suggest_for_class(report, "data_workers", MORE_WORKERS, because, "data", of_run)
    if is_worth("compiling"):
        because = f"every rank compiles after its first step: {share_phrase('compiling')}"
        yield _suggest_for_class(
            report, "recompiles", ALONE_REMEDIES["compiling"], because, "compiling", of_run
        )
    if report.reading.steps and is_worth("start") and of_run["start"] >= LEAST_START_S:
        because = f"the start took until the first step: {share_phrase('start')}"
        yield _suggest_for_class(report, "start_up", SHORTER_START, because, "start", of_run)


def _suggest_equal_batches(report: Report, ledger: Ledger) -> Iterator[Suggestion]:
    """About ranks that had no batches left before the others, under `join()`."""
    first_steps = {event.rank: event.step for event in report.events if event.kind == "out_of_batches"}
    ranks = sorted(rank for rank in first_steps if rank is not None)
    idle_s = ledger.ranks.end_s - ledger.least_seconds_of("end")
    without_s = float(np.nansum(idle_s[ranks]))
    given_back_s = without_s / len(idle_s)  # each rank would have its share of what the others did then
    if 100 * given_back_s < WORTH_PCT * ledger.elapsed_s:
        return
    since = min(step for step in first_steps.values() if step is not None)
    because = (
        f"{ranks_in_short(ranks)} had no batches left from step {since:,} on, and only answered the others "
        f"for {format_seconds(without_s)}"
    )
    figures = {"rank": ranks[0], "step": since, "without_batches_s": without_s}
    yield make_suggestion(report, "equal_batches", EQUAL_BATCHES, because, given_back_s, figures)


def _suggest_for_class(
    report: Report, kind: str, action: str, because: str, name: str, of_run: dict[str, float]
) -> Suggestion:
    return make_suggestion(report, kind, action, because, of_run[name], {f"{name}_s": of_run[name]})


def make_suggestion(
    report: Report, kind: str, action: str, because: str, given_back_s: float, figures: Mapping[str, Scalar]
) -> Suggestion:
    """A suggestion that makes the run so many seconds shorter, at most."""
    step_s = report.cost.step_s
    gain_pct = 100 * given_back_s / step_s if step_s > 0 else None
    return Suggestion(kind, action, because, gain_pct, figures)


def of_straggler(slow: StragglerSummary, ledger: Ledger | None) -> tuple[WaitedFor, ...]:
    """What the others waited for in the steps of a flagged rank, or of several that were flagged together."""
    return () if ledger is None else tuple(row for row in step_losses(ledger) if row.rank in slow.ranks)
