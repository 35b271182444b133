"""What to try. Every suggestion rests on a figure that it names; without the figure there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.report import advice_comm
from ddptop.analysis.report.content import Suggestion
from ddptop.analysis.report.words import amount, and_more, by_kind, listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ddptop.analysis.report.content import Culprit, Report

DATA_PCT = 10.0
"""Time blocked on the next batch on every rank, as share of the step, from which more workers pay."""

SLOW_SCORE = 0.75
"""Relative score below which a rank is flagged (METRICS)."""

WORTH_PCT = 1.0
"""A rank that cost less of the run than this is not worth anybody's evening."""

FIRST = 1000.0
"""Order of what is wrong, as against what is slow."""

OVER_BUDGET = 1.5
"""Own cost is measured over seconds and wavers about the budget."""


def advice(report: Report) -> tuple[Suggestion, ...]:
    """What is wrong first, then by what it may gain, then what is not a matter of time."""
    found = [*_health(report), *_slow(report), *advice_comm.communication(report), *_recorder(report)]
    return tuple(sorted(found, key=lambda one: -_order(one)))


def _order(one: Suggestion) -> float:
    if one.kind in ("nan", "replica_drift"):
        return FIRST
    return -1.0 if one.gain_pct is None else one.gain_pct


def _health(report: Report) -> Iterator[Suggestion]:
    for alert, count in by_kind(report.troubles):
        if alert.kind == "nan" and alert.rank is not None:
            step = "" if alert.step is None else f" of step {alert.step:,}"
            yield Suggestion(
                "nan",
                f"Look at the batch{step} on rank {alert.rank}; torch.autograd.set_detect_anomaly(True) "
                "names the operation that first gives NaN.",
                alert.message + and_more(count),
                None,
                {"rank": alert.rank, "step": alert.step},
            )
        elif alert.kind == "replica_drift":
            yield Suggestion(
                "replica_drift",
                "Look for code that changes parameters or buffers on some ranks only, and start all ranks "
                "from one checkpoint.",
                alert.message + and_more(count),
                None,
                {"rank": alert.rank, "step": alert.step},
            )


def _slow(report: Report) -> Iterator[Suggestion]:
    for one in report.culprits:
        gain = 100 * one.lost_s / report.cost.step_s if report.cost.step_s > 0 else 0.0
        # Of ranks late in turn, only work that grows with the batch has a remedy that is known.
        known = one.cause in _OF_BATCH if one.pattern == "rotating" else one.cause is not None
        if gain >= WORTH_PCT and known:
            yield _for_culprit(one, gain)
    pct = report.phases_pct.get("data")
    everybody = [rank.data_ms for rank in report.ranks if rank.data_ms is not None]
    least_ms, step_ms = min(everybody, default=0.0), report.communication.step_ms
    if pct is not None and step_ms and 100 * least_ms / step_ms >= DATA_PCT:
        yield Suggestion(
            "data_workers",
            "More DataLoader workers (num_workers, persistent_workers, prefetch_factor), or less work per "
            "sample.",
            f"every rank waits for its next batch, {least_ms:,.1f} ms or more of a step of {step_ms:,.1f} ms",
            100 * least_ms / step_ms,
            {"data_ms": least_ms, "data_pct": 100 * least_ms / step_ms},
        )


def _for_culprit(one: Culprit, gain: float) -> Suggestion:
    cost = f"cost {amount(one.lost_s)}, {gain:.0f}% of the time in steps"
    figures = {
        "rank": one.rank,
        "cost_pct": gain,
        "lost_s": one.lost_s,
        "relative_score": one.relative_score,
        **{f"{phase}_ms": ms for phase, ms in one.parts_ms.items()},
    }
    excess = one.parts_ms.get(one.cause or "")
    more = (
        "" if excess is None else f"{excess:,.1f} ms more than the others in {_PLACE.get(one.cause or '')}; "
    )
    score = ""
    if one.cause in ("forward", "backward") and one.relative_score is not None:
        score = f"relative score {one.relative_score:.2f}; "
    kind, action = _ACTIONS.get(one.cause or "", _ACTIONS[""])
    place = f"{one.host}, {one.device}" if one.host and one.device else one.host or "its host"
    action = action.format(ranks=listed(one.ranks), place=place)
    if one.relative_score is not None and one.relative_score >= SLOW_SCORE and kind == "slow_device":
        action += " Its inputs may also be larger."
    if one.pattern == "rotating":
        kind, action = "even_batches", _EVEN.format(phase=_PLACE.get(one.cause or "", "their steps"))
        return Suggestion(kind, action, f"{listed(one.ranks)}, one after the other: {cost}", gain, figures)
    return Suggestion(kind, action, f"{listed(one.ranks)}: {more}{score}{cost}", gain, figures)


_OF_BATCH = ("data", "forward", "backward")
"""Phases that take as long as the batch is large."""

_PLACE = {
    "data": "waiting for its next batch",
    "forward": "forward",
    "backward": "computing backward",
    "optimizer": "the optimizer",
    "other": "the time outside all phases",
}

_EVEN = (
    "Make the ranks' batches alike (sort or bucket samples by length, drop_last), and look for work that the "
    "ranks do in turn: the time is lost in {phase}."
)

_ACTIONS = {
    "data": (
        "data_workers",
        "Speed up the data loading of {ranks}: num_workers, prefetch_factor, the disk or network mount "
        "of {place}, samples that are larger there.",
    ),
    "forward": (
        "slow_device",
        "Check the device and host of {ranks} ({place}): clocks, heat, other programs on its cores.",
    ),
    "backward": (
        "slow_device",
        "Check the device and host of {ranks} ({place}): clocks, heat, other programs on its cores; and "
        "hooks that run there alone.",
    ),
    "optimizer": (
        "slow_optimizer",
        "See what the optimizer step of {ranks} does more than the others': parameters kept on it alone, "
        "swapping.",
    ),
    "other": (
        "work_between_steps",
        "See what {ranks} does between the phases: logging, metrics with .item(), checkpoints. Do it "
        "every so many steps, or in a thread.",
    ),
    "": (
        "slow_rank",
        "Look at the host of {ranks} ({place}): time goes in several phases, as on a busy machine.",
    ),
}


def _recorder(report: Report) -> Iterator[Suggestion]:
    own = report.overhead
    if own.measured_pct and own.budget_pct and own.measured_pct > OVER_BUDGET * own.budget_pct:
        yield Suggestion(
            "recorder_budget",
            "ddptop takes more than its budget: --ddptop-off shows what the run does without it.",
            f"overhead {own.measured_pct:.1f}% of the step on the worst rank, budget {own.budget_pct:.1f}%",
            own.measured_pct,
            {"measured_pct": own.measured_pct, "budget_pct": own.budget_pct},
        )
    for alert in report.troubles:
        if alert.kind == "recording" and "limit" in alert.message:
            yield Suggestion(
                "recording_limit",
                "Raise --ddptop-record-limit to keep all of the next run.",
                alert.message,
                None,
                {},
            )
