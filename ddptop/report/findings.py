"""The verdict over the whole run, in sentences: how it ended, where it stood, who was slow, what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.frames.verdict import CAUSES, UNEVEN_PCT
from ddptop.report.content import Finding
from ddptop.report.words import amount, and_more, by_kind, listed

if TYPE_CHECKING:
    from ddptop.frames.stall import Death
    from ddptop.report.content import Culprit, Report, Standstill

NAMED = 3
"""Culprits told in full; the others are in the line of blocks and in the table."""

LITTLE_JUDGED_PCT = 50.0
"""Below, the figures speak for less than half of the run, and the page says so."""

MOST_OF_IT_PCT = 80.0
"""A rank that is named for less of the run is not persistently slow, however even it was meanwhile."""

HEALTH = ("nan", "replica_drift", "loss_spread", "mismatch")
"""Alerts that tell of wrong numbers, the worst first."""


def findings(report: Report) -> tuple[Finding, ...]:
    """The worst first; at least one."""
    found = [*_ending(report), *_stalls(report), *_health(report), *_slow(report)]
    if not report.culprits:
        found.append(_nobody(report))
    return (*found, *_doubts(report))


def ending(death: Death) -> str:
    """`killed by SIGKILL`, `ended with ValueError: no such file`, `exit code 1`; as much as is known."""
    if death.signal:
        return f"killed by {death.signal}"
    if death.reason:
        return f"ended with {death.reason}"
    return "its process is gone" if death.exit_code is None else f"exit code {death.exit_code}"


def _ending(report: Report) -> list[Finding]:
    run, deaths = report.run, report.deaths
    if run.state == "lost" and not deaths:
        alert = next((alert for alert in report.troubles if alert.kind == "lost_rank"), None)
        how = alert.message if alert else "the recording stops in the middle of the run"
        return [Finding("lost", "critical", f"nobody saw how it ended: {how}")]
    if not deaths:
        alert = next((a for a in report.troubles if a.kind in ("failed_rank", "lost_rank")), None)
        if run.state == "failed":
            code = "" if run.exit_code is None else f" with exit code {run.exit_code}"
            who = f": {alert.message}" if alert else ""
            return [Finding("failed", "critical", f"the run failed{code}{who}")]
        return []
    first = deaths[0]
    at = "" if first.step is None else f" in step {first.step:,}"
    others = f"; {listed([d.rank for d in deaths[1:]])} followed" if len(deaths) > 1 else ""
    sentence = f"rank {first.rank} {ending(first)}{at}{others}"
    if run.state not in ("failed", "lost"):
        return [Finding("death", "warning", sentence + ", the run went on")]
    return [Finding(run.state, "critical", sentence)]


def _stalls(report: Report) -> list[Finding]:
    stalls = report.stalls
    if not stalls:
        return []
    longest = max(stalls, key=lambda stall: stall.lasted_s)
    still = " (it still is)" if _standing(longest, report) else ""
    sentence = f"stalled for {amount(report.cost.stalled_s)}{still}: {longest.sentence}"
    if len(stalls) > 1:
        in_all = amount(report.cost.stalled_s)
        sentence = (
            f"stalled {len(stalls)} times, {in_all} in all{still}; "
            f"the longest {amount(longest.lasted_s)}: {longest.sentence}"
        )
    return [Finding("stall", "critical", sentence)]


def _standing(stall: Standstill, report: Report) -> bool:
    return stall.until_s is None and report.run.state == "stalled"


def _health(report: Report) -> list[Finding]:
    found = [(alert, count) for alert, count in by_kind(report.troubles) if alert.kind in HEALTH]
    return [
        Finding(
            alert.kind,
            "critical" if alert.severity == "critical" else "warning",
            alert.message + and_more(count),
        )
        for alert, count in sorted(found, key=lambda one: HEALTH.index(one[0].kind))
    ]


def _slow(report: Report) -> list[Finding]:
    found = [_culprit(one, report) for one in report.culprits[:NAMED]]
    rest = report.culprits[NAMED:]
    if rest:
        lost = amount(sum(one.lost_s for one in rest))
        found.append(
            Finding("stragglers", "warning", f"{listed([one.rank for one in rest])} now and then: {lost}")
        )
    return [*found, *_rest(report)] if found else found


def _rest(report: Report) -> list[Finding]:
    """What late arrivals cost beside the ranks that were named, if that is worth a line."""
    cost, found = report.cost, report.communication
    if cost.uneven_s is None or cost.uneven_pct is None or found.step_ms is None:
        return []
    rest_pct = cost.uneven_pct - (cost.named_pct or 0.0)
    if rest_pct < UNEVEN_PCT or rest_pct / 100 * found.step_ms <= (found.bound_ms or 0.0):
        return []
    lost = (
        f"another {rest_pct:.0f}% of step time lost to skew, {amount(cost.uneven_s - (cost.named_s or 0.0))}"
    )
    return [Finding("uneven", "busy", f"{lost}; no consistent straggler")]


def _culprit(one: Culprit, report: Report) -> Finding:
    who = listed(list(one.ranks)) if len(one.ranks) > 1 else f"rank {one.rank}"
    why = f": {CAUSES.get(one.cause, one.cause)}" if one.cause else ""
    when = f"steps {one.first_step:,} to {one.last_step:,}, {one.named_pct:.0f}% of the time"
    share = 100 * one.lost_s / report.cost.step_s if report.cost.step_s > 0 else 0.0
    cost = f"cost {amount(one.lost_s)}, {share:.0f}% of the time in steps"
    late = f"{one.lateness_ms:,.1f} ±{one.bound_ms:.1f} ms late, last in {one.last_pct:.0f}% of those steps"
    if one.pattern and (one.pattern != "persistent" or one.named_pct >= MOST_OF_IT_PCT):
        late += f", {one.pattern}"
    verb = "were" if len(one.ranks) > 1 else "was"
    turns = " in turn" if one.pattern == "rotating" else ""
    return Finding("straggler", "warning", f"{who} {verb} slow{turns}{why} · {cost}", (when, late))


def _nobody(report: Report) -> Finding:
    reading, cost, run = report.reading, report.cost, report.run
    if reading.steps == 0:
        ranks = "the rank" if run.world_size == 1 else f"all {run.world_size} ranks"
        return Finding("no_step", "doubt", f"no step was finished by {ranks}: nothing can be measured")
    if run.world_size == 1:
        return Finding("alone", "good", "one rank: nobody to wait for")
    if reading.clock_free:
        bound = report.communication.bound_ms
        within = "" if bound is None else f" (they are known to ±{bound:,.1f} ms)"
        return Finding(
            "clocks", "doubt", f"the hosts' clocks cannot tell who comes last{within}: nobody is named"
        )
    if cost.uneven_s is None or cost.uneven_pct is None:
        return Finding("no_detail", "doubt", "ranks cannot be compared: there is too little bucket detail")
    lost = f"{cost.uneven_pct:.1f}% of step time lost to skew, {amount(cost.uneven_s)} in all"
    if cost.uneven_pct >= UNEVEN_PCT and _unclear(report):
        bound = report.communication.bound_ms or 0.0
        return Finding("even", "good", f"no straggler as far as clocks can tell (±{bound:.1f} ms) · {lost}")
    if cost.uneven_pct >= UNEVEN_PCT:
        return Finding("uneven", "busy", f"{lost}; no consistent straggler")
    return Finding("even", "good", f"no straggler · {lost}")


def _unclear(report: Report) -> bool:
    """What late arrivals cost a step is less than what stamps of two ranks may differ by for nothing."""
    found, bound = report.communication, report.communication.bound_ms
    pct = report.cost.uneven_pct
    if pct is None or found.step_ms is None or bound is None:
        return False
    return pct / 100 * found.step_ms <= bound


def _doubts(report: Report) -> list[Finding]:
    """What the figures do not tell."""
    judged = report.reading.judged_pct
    if (
        report.run.world_size < 2
        or judged is None
        or judged >= LITTLE_JUDGED_PCT
        or report.reading.clock_free
    ):
        return []
    if report.cost.uneven_s is None and not report.culprits:
        return []
    return [
        Finding(
            "little_judged",
            "doubt",
            f"ranks could be compared in {judged:.0f}% of the time only: no detail else",
        )
    ]
