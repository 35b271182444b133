"""The verdict on the whole run in sentences: how it ended, its stalls, its stragglers and their cost.

Also the phrases that the report's sentences share: amounts of time, ranks, several alerts of one kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from ddptop.frames.causes import blamed_ranks, cause_phrase, late_part_phrase, place_phrase
from ddptop.frames.conditions import UNREACHABLE, condition_of, kinds_of
from ddptop.frames.numbers import fixed, percent, sized_ms
from ddptop.frames.phrases import (
    NOT_MEASURABLE,
    RECORDING_ENDS,
    UNEVEN_PCT,
    Failure,
    cpu_shortage_phrase,
    data_loading_phrase,
    death_phrase,
    ended_by_signal,
    interval_error,
    is_measurable,
    joined,
    recording_stop,
    repeated_phrase,
    steps_phrase,
    what_if_phrase,
)
from ddptop.frames.sampled_stack import hot_line, samples_phrase, stack_of_straggler
from ddptop.frames.verdict import FEW_STEPS, ONE_RANK, costs_more_than_waiting, sign_of_data_loading
from ddptop.protocol.vocabulary import FAILED_STATES, NOT_ENDED
from ddptop.report.content import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.frames.conditions import FindingKind
    from ddptop.frames.frame import Alert
    from ddptop.frames.ledger import RareSlowness
    from ddptop.frames.stall import Death
    from ddptop.protocol.vocabulary import Sign
    from ddptop.report.content import Report, StallPeriod, StragglerSummary

MAX_IN_UNIT = 100.0
"""From 100 seconds on an amount is in minutes, from 100 minutes on in hours."""

MAX_LISTED_RANKS = 6

MAX_CAUSES = 3
"""Reasons of exits in one sentence; more are counted."""


def format_seconds(seconds: float) -> str:
    """An amount of time: `4.2 s`, `14 min`, `3.4 h`."""
    if seconds < MAX_IN_UNIT:
        return fixed(seconds, 2 if seconds < 1 else 1 if seconds < 10 else 0, " s")
    minutes = seconds / 60
    return f"{fixed(minutes, 0)} min" if minutes < MAX_IN_UNIT else f"{fixed(minutes / 60)} h"


def ranks_in_short(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 1 and 3`, `9 ranks`."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > MAX_LISTED_RANKS:
        return f"{len(ranks)} ranks"
    return f"ranks {joined(ranks)}"


def by_kind(alerts: Sequence[Alert]) -> list[tuple[Alert, int]]:
    """The first alert of each kind and the number of alerts of that kind, in order of time."""
    kinds: dict[str, tuple[Alert, int]] = {}
    for alert in alerts:
        first, count = kinds.get(alert.kind, (alert, 0))
        kinds[alert.kind] = first, count + 1
    return [*kinds.values()]


def alert_phrase(alert: Alert) -> str:
    """The message of an alert; `elastic restart 1: ` before one whose step was counted from 0 again."""
    restart = f"elastic restart {alert.incarnation}: " if alert.incarnation and alert.step is not None else ""
    return f"{restart}{alert.message}"


def and_more(count: int) -> str:
    """` (the first of 7)`; empty for one."""
    return f" (the first of {count:,})" if count > 1 else ""


MAX_STRAGGLERS = 3
"""Stragglers with a finding of their own; the others are in the strip of stragglers and in the table."""

MIN_COMPARED_PCT = 50.0
"""If ranks could be compared in less of the step time, a finding says so."""

MAX_LONG_STEPS = 2
"""Steps that lasted very long whose line is named."""

MAX_PLACES = 3
"""Places of a slow rank whose line is named."""

PERSISTENT_PCT = 80.0
"""A rank that is flagged for less of the run is not called persistent."""

HEALTH = kinds_of("wrong_numbers", "doubtful_numbers")
"""Alerts about wrong numbers, the worst first."""


def make_findings(report: Report) -> tuple[Finding, ...]:
    """All findings, the worst first; at least one."""
    result = [
        *_end_of_run(report),
        *_find_stalls(report),
        *_find_silent_hosts(report),
        *_find_health(report),
        *_find_slow_links(report),
    ]
    if report.cpu_shortage:
        sentence = cpu_shortage_phrase(report.cpu_shortage, report.cpu_wait_pct)
        result.append(Finding("cpus", "warning", sentence))
    result += _find_stragglers(report)
    if not report.stragglers:
        result.append(_lead_with_data_loading(report, _no_straggler(report)))
    result[-1] = replace(result[-1], detail=(*result[-1].detail, *_long_steps(report)))
    return (*result, *_find_doubts(report))


def _long_steps(report: Report) -> list[str]:
    """`rank 0 in step 4,200, which lasted long: train.py:57 save_checkpoint > torch.save`."""
    stacks = [stack for stack in report.sampled if stack.is_long_step]
    return [
        f"rank {stack.rank} in step {stack.step:,}, which lasted long: "
        f"{hot_line(stack) or samples_phrase(stack)}"
        for stack in stacks[:MAX_LONG_STEPS]
    ]


def _end_of_run(report: Report) -> list[Finding]:
    """How the run ended; nothing where it ended well, or goes on."""
    run, deaths, stall = report.run, report.deaths, final_stall(report)
    if run.state in FAILED_STATES:
        outside = next((alert for alert in report.troubles if alert.kind == "ended_from_outside"), None)
        if outside is not None:
            return [_find_outside_end(outside, stall)]
        if stall is not None:
            followed = f"; {stall.followed}" if stall.followed else ""
            return [_ended(report, f"{_stalled_for(stall)}{followed}")]
    if not deaths:
        return _end_without_deaths(report)
    sentence, earlier = _attempts_phrases(deaths)
    if run.state not in FAILED_STATES:
        return [Finding("death", "warning", f"{sentence}, the run went on", earlier)]
    host = next((alert for alert in report.troubles if alert.evidence.get("cause")), None)
    if host is not None:  # what has exited had lost its peers
        return [_ended(report, f"{host.message}; {ranks_in_short([d.rank for d in deaths])} followed")]
    before = _stall_before_failure(report)
    stalled = () if before is None else (f"before that {_stalled_for(before)}",)
    return [_ended(report, sentence, (*earlier, *stalled))]


def _ended(report: Report, sentence: str, detail: tuple[str, ...] = ()) -> Finding:
    """The run ended in its state, one of FAILED_STATES."""
    return Finding(cast("FindingKind", report.run.state), "critical", sentence, detail)


def _find_outside_end(alert: Alert, stall: StallPeriod | None) -> Finding:
    """The launcher received a signal. `stall`: the one that the run was in then."""
    signal = str(alert.evidence["signal"])
    facts = [] if signal in alert.message else [f"by {signal}"]
    facts += [] if stall is None else [f"stalled for {format_seconds(stall.lasted_s)}"]
    facts += [] if alert.step is None else [f"after step {alert.step:,}"]
    return Finding("ended_from_outside", "critical", alert.message, (", ".join(facts),) if facts else ())


def _end_without_deaths(report: Report) -> list[Finding]:
    """The recording stops, or the launcher alone knows that the run has failed."""
    run = report.run
    if run.state == "lost":
        alert = next((alert for alert in report.troubles if _is_lost_at_end(report, alert)), None)
        how = recording_stop(report.troubles) or RECORDING_ENDS
        return [_ended(report, f"how the run ended is unknown: {alert.message if alert else how}")]
    if run.state == "failed":
        alert = next((a for a in report.troubles if condition_of(a.kind).family == "death"), None)
        code = "" if run.exit_code is None else f" with exit code {run.exit_code}"
        return [_ended(report, f"the run failed{code}{f': {alert.message}' if alert else ''}")]
    return []


def _is_lost_at_end(report: Report, alert: Alert) -> bool:
    """Whether ranks are lost, and no host of theirs has reported again."""
    newest = {event.host: event.kind for event in report.events if event.kind in ("host_lost", "host_back")}
    hosts = str(alert.evidence.get("hosts", "")).split()
    are_back = bool(hosts) and all(newest.get(host) == "host_back" for host in hosts)
    return alert.kind == "lost_rank" and not are_back


def _attempts_phrases(deaths: Sequence[Death]) -> tuple[str, tuple[str, ...]]:
    """How the last attempt has failed, and how often it was the same: `failed 4 times at train.py:26 (3
    restarts): rank 2 failed: KeyError: 7, in step 40; ranks 0 and 1 followed`. And how the first one has, if
    that was otherwise: what came after the restarts may follow from them."""
    attempts: dict[int, list[Death]] = {}
    for death in deaths:
        attempts.setdefault(death.incarnation, []).append(death)
    last = attempts[max(attempts)]
    firsts = [
        next((death for death in attempts[number] if not death.follows), attempts[number][0])
        for number in sorted(attempts, reverse=True)
    ]
    failures = [
        Failure.of(death.position.user_call, death.reason, death.position.process) for death in firsts
    ]
    detail: tuple[str, ...] = ()
    if failures[-1] != failures[0]:
        detail = (f"the first failure: {_find_deaths(attempts[min(attempts)])}",)
    repeated = repeated_phrase(failures.count(failures[0]), failures[0].place, max(attempts))
    return repeated + _find_deaths(last), detail


def _find_deaths(deaths: Sequence[Death]) -> str:
    """`rank 2 failed: KeyError: 7, in step 40; ranks 0 and 1 followed`: all that failed for reasons of their
    own, those with the same reason together."""
    alone = [death for death in deaths if not death.follows]
    # All may follow from a stall: then the first, and those like it, stand for all.
    causes = alone or [
        death for death in deaths if death is deaths[0] or death.reason == deaths[0].reason != ""
    ]
    alike: dict[tuple[object, ...], list[Death]] = {}
    for death in causes:
        # A rank that has raised may have been ended by the launcher before it could exit with a code.
        raised = death.reason and not ended_by_signal(death.signal, death.reason)
        how = () if raised else (death.signal, death.exit_code)
        alike.setdefault((death.reason, *how), []).append(death)
    parts = []
    for deaths_alike in [*alike.values()][:MAX_CAUSES]:
        first = next((death for death in deaths_alike if death.exit_code), deaths_alike[0])
        who = ranks_in_short(sorted(death.rank for death in deaths_alike))
        step = "" if first.step is None else f", in step {first.step:,}"
        parts.append(death_phrase(first, who if len(deaths_alike) > 1 else "") + step)
    n_hidden = len(alike) - MAX_CAUSES
    parts += [f"{n_hidden} more for other reasons"] if n_hidden > 0 else []
    followers = sorted(death.rank for death in deaths if death not in causes)
    parts += [f"{ranks_in_short(followers)} followed"] if followers else []
    return "; ".join(parts)


def final_stall(report: Report) -> StallPeriod | None:
    """The stall in which the run has ended, where all exits follow from it."""
    last = report.stalls[-1] if report.stalls else None
    own_reason = any(not death.follows for death in report.deaths)
    return None if last is None or last.ended_s is None or last.until_s is not None or own_reason else last


def told_stalls(report: Report) -> list[StallPeriod]:
    """The stalls, without those that are but the end of a rank, of which its death tells."""
    died = {death.rank for death in report.deaths}
    return [stall for stall in report.stalls if stall.kind != "dead" or not died.intersection(stall.ranks)]


def _stall_before_failure(report: Report) -> StallPeriod | None:
    """The stall from which a rank came out only to fail for a reason of its own."""
    last = next(reversed(told_stalls(report)), None)
    own_reason = any(not death.follows for death in report.deaths)
    if last is None or last.until_s is not None or not own_reason or report.run.state not in FAILED_STATES:
        return None
    return last


def _stalled_for(stall: StallPeriod) -> str:
    return f"stalled for {format_seconds(stall.lasted_s)}: {stall.sentence}"


def _find_stalls(report: Report) -> list[Finding]:
    stalls = told_stalls(report)
    # A stall in which the run ended is part of the first finding.
    ended_in = final_stall(report) or _stall_before_failure(report)
    if not stalls or (len(stalls) == 1 and ended_in is not None):
        return []
    longest = max(stalls, key=lambda stall: stall.lasted_s)
    still = " (still stalled)" if _is_final_stall(longest, report) else ""
    stalled_s = sum(stall.lasted_s for stall in stalls)
    sentence = f"stalled for {format_seconds(stalled_s)}{still}: {longest.sentence}"
    if len(stalls) > 1:
        sentence = (
            f"stalled {len(stalls)} times, {format_seconds(stalled_s)} in total{still}; "
            f"the longest for {format_seconds(longest.lasted_s)}: {longest.sentence}"
        )
    return [Finding("stall", "critical", sentence)]


def _is_final_stall(stall: StallPeriod, report: Report) -> bool:
    return stall.until_s is None and report.run.state == "stalled"


def _find_silent_hosts(report: Report) -> list[Finding]:
    """Hosts from which nothing arrived for some time: which one most often."""
    silent = sorted((host for host in report.hosts if host.silences), key=lambda host: -host.silences)
    if not silent:
        return []
    first = silent[0]
    often = "once" if first.silences == 1 else f"{first.silences} times"
    remark = "" if len(silent) == 1 else f"; {len(silent) - 1} more of {len(report.hosts)} hosts were, too"
    lines = [event.message for event in report.events if event.kind in ("host_lost", "host_back")]
    return [
        Finding("hosts", "warning", f"host {first.name} was {UNREACHABLE} {often}{remark}", tuple(lines[:3]))
    ]


def _find_health(report: Report) -> list[Finding]:
    alerts = {alert.kind: (alert, count) for alert, count in by_kind(report.troubles)}
    result = []
    for kind in HEALTH:
        if kind in alerts:
            alert, count = alerts[kind]
            sign: Sign = "critical" if alert.severity == "critical" else "warning"
            result.append(Finding(cast("FindingKind", kind), sign, alert_phrase(alert) + and_more(count)))
    return result


def _find_slow_links(report: Report) -> list[Finding]:
    """Links between hosts that were slow or lost segments: the first, with its two ends."""
    slow_links = [(alert, count) for alert, count in by_kind(report.troubles) if alert.kind == "network"]
    return [Finding("network", "warning", alert.message + and_more(count)) for alert, count in slow_links]


def _find_stragglers(report: Report) -> list[Finding]:
    stragglers = [straggler for straggler in report.stragglers if not _was_stall(straggler, report)]
    result = [_find_straggler(straggler, report) for straggler in stragglers[:MAX_STRAGGLERS]]
    hidden = stragglers[MAX_STRAGGLERS:]
    if hidden:
        lost = format_seconds(sum(straggler.lost_s for straggler in hidden))
        who = ranks_in_short([straggler.rank for straggler in hidden])
        result.append(Finding("stragglers", "warning", f"{who} now and then: {lost}"))
    return [*result, *_other_skew(report)] if report.stragglers else result


def _was_stall(slow: StragglerSummary, report: Report) -> bool:
    """Whether the few steps in which a rank was slow were stalls, which have a finding of their own."""
    n_stalls = sum(slow.rank in stall.ranks for stall in report.stalls)
    return slow.rare is not None and slow.rare.n_slow <= n_stalls


def _other_skew(report: Report) -> list[Finding]:
    """The cost of late arrivals without that of the flagged ranks, where it is large enough."""
    cost, comm = report.cost, report.communication
    if cost.uneven_s is None or cost.uneven_pct is None or comm.step_ms is None:
        return []
    rest_pct = cost.uneven_pct - (cost.flagged_pct or 0.0)
    if rest_pct < UNEVEN_PCT or rest_pct / 100 * comm.step_ms <= (comm.bound_ms or 0.0):
        return []
    lost = format_seconds(cost.uneven_s - (cost.flagged_s or 0.0))
    sentence = (
        f"no other rank was consistently slow · waiting cost another {percent(rest_pct)} of the time, {lost}"
    )
    return [Finding("uneven", "good", sentence)]


def _find_rarely_slow(slow: StragglerSummary, rare: RareSlowness) -> Finding:
    where = place_phrase(slow.cause, slow.place)
    long = f"{format_seconds(slow.lateness_ms / 1000)}{f' {where}' if where else ''}"
    cost = f"cost {format_seconds(slow.lost_s)}, {percent(slow.cost_pct)} of the run"
    steps = ", ".join(f"{step:,}" for step in rare.steps)
    listed_steps = f"{'the last of them' if rare.n_slow > len(rare.steps) else 'steps'}: {steps}"
    sentence = f"rank {slow.rank} was slow in {rare.often}: {long} · {cost}"
    return Finding("straggler", "warning", sentence, tuple(filter(None, (listed_steps, rare.in_all))))


def _find_straggler(slow: StragglerSummary, report: Report) -> Finding:
    if slow.rare is not None:
        return _find_rarely_slow(slow, slow.rare)
    who = ranks_in_short(slow.ranks) if len(slow.ranks) > 1 else f"rank {slow.rank}"
    who = who if blamed_ranks(slow.cause, slow.pattern, slow.ranks) else "ranks"
    verb = "were" if len(slow.ranks) > 1 else "was"
    turns = " in turn" if slow.pattern == "rotating" else ""
    cause = cause_phrase(slow.cause, slow.place)
    why = f": {cause}" if cause else ""
    share = 100 * slow.lost_s / report.cost.step_s if report.cost.step_s > 0 else 0.0
    cost = f"cost {format_seconds(slow.lost_s)}, {percent(share)} of the time in steps"
    steps = steps_phrase(slow.first_step, slow.last_step, slow.incarnation, slow.last_incarnation)
    lines = [f"{steps}, {percent(slow.flagged_pct)} of the time", _late_phrase(slow)]
    if slow.step_ms is not None and slow.step_without_ms is not None:
        lines.append(_what_if_phrase(slow))
    lines += _lines_of_code(slow, report)
    return Finding("straggler", "warning", f"{who} {verb} slow{turns}{why} · {cost}", tuple(lines))


def _late_phrase(slow: StragglerSummary) -> str:
    """`20.3 ±0.1 ms longer in data loading, the slowest in 96% of those steps, persistent`."""
    late, often = sized_ms(slow.lateness_ms, slow.bound_ms), f"{percent(slow.last_pct)} of those steps"
    if slow.basis == "every_step":
        part = late_part_phrase(slow.cause, slow.place)
        late += f" longer{part and f' {part}'}, the slowest in {often}"
    else:
        where = f" at the collectives of {slow.group}" if slow.group else ""
        late += f" late{where}, last in {often}"
    if slow.pattern and (slow.pattern != "persistent" or slow.flagged_pct >= PERSISTENT_PCT):
        late += f", {slow.pattern}"
    return late + (", bucket arrivals disagree" if slow.disagrees else "")


def _lines_of_code(slow: StragglerSummary, report: Report) -> list[str]:
    """Which line took its time; where it was slow in several places, the line of each."""
    if (stack := stack_of_straggler(report.sampled, slow, slow.rank)) is not None:
        return [samples_phrase(stack)]
    stacks = [stack for stack in report.sampled if stack.rank == slow.rank and not stack.is_long_step]
    return [
        f"{stack.place.replace('_', ' ') or 'elsewhere'}: {samples_phrase(stack)}"
        for stack in stacks[:MAX_PLACES]
    ]


def _what_if_phrase(slow: StragglerSummary) -> str:
    """`a step took 46.8 ms (median); without the slow rank 26.6 ±0.4`."""
    without = what_if_phrase(slow.step_without_ms, slow.step_without_low_ms, slow.step_without_high_ms)
    return f"a step took {fixed(slow.step_ms or 0.0)} ms (median); without the slow rank {without}"


def _lead_with_data_loading(report: Report, finding: Finding) -> Finding:
    """What is said of the ranks, below what they all lose by loading data, where that is more: as on the
    screen (`ddptop/frames/verdict.py`)."""
    ledger = report.ledger
    if ledger is None or ledger.run.steps < FEW_STEPS:
        return finding
    pct = ledger.data_pct_of_all
    if pct is None or not costs_more_than_waiting(pct, report.cost.uneven_pct):
        return finding
    loads = data_loading_phrase(pct, report.run.world_size)
    return Finding("data_bound", sign_of_data_loading(pct), loads, detail=(finding.sentence, *finding.detail))


def _no_straggler(report: Report) -> Finding:
    reading, cost, run = report.reading, report.cost, report.run
    if reading.steps == 0:
        if not run.world_size:
            return Finding("no_step", "doubt", "no rank has reported: nothing can be measured")
        ranks = "the rank" if run.world_size == 1 else f"all {run.world_size} ranks"
        return Finding("no_step", "doubt", f"no step was finished by {ranks}: nothing can be measured")
    if run.world_size == 1:
        return Finding("alone", "good", ONE_RANK)
    if reading.clock_free:
        bound = report.communication.bound_ms
        within = "" if bound is None else f" (bound ±{fixed(bound)} ms)"
        return Finding(
            "clocks",
            "doubt",
            f"the hosts' clocks cannot tell which rank arrives last{within}: no rank is flagged",
        )
    if cost.uneven_s is None and any(alert.kind == "not_synchronised" for alert in report.troubles):
        return Finding("no_detail", "doubt", "ranks cannot be compared: none waits for another")
    if cost.uneven_s is None or cost.uneven_pct is None:
        return Finding("no_detail", "doubt", "ranks cannot be compared: there is too little bucket detail")
    total = f"{format_seconds(cost.uneven_s)} in total"
    if cost.is_summed and report.ledger is not None:
        total = f"{format_seconds(report.ledger.run.rank_seconds)} in total over {run.world_size} ranks"
    lost = f"waiting cost {percent(cost.uneven_pct)} of the time in steps, {total}"
    if not is_measurable(cost.uneven_pct, _skew_error_pct(report)):
        yet = " yet" if report.run.state in NOT_ENDED else ""
        return Finding("no_detail", "doubt", f"no rank was slow · {NOT_MEASURABLE}{yet}")
    if cost.uneven_pct >= UNEVEN_PCT and _is_below_error_bound(report):
        within = f"±{fixed(report.communication.bound_ms or 0.0)} ms"
        error = f"the {'clock' if report.hosts else 'timestamp'} error ({within})"
        return Finding("even", "good", f"no rank was slow by more than {error} · {lost}")
    if cost.uneven_pct >= UNEVEN_PCT:
        return Finding("uneven", "good", f"no rank was consistently slow · {lost}")
    return Finding("even", "good", f"no rank was slow · {lost}")


def _skew_error_pct(report: Report) -> float | None:
    """How far the cost of waiting may be wrong, in percent of the step time; None: unknown."""
    comm = report.communication
    if report.cost.is_summed:
        return None  # a sum over every step
    if not comm.step_ms or comm.no_straggler_ms is None:
        return None
    error_ms = interval_error(comm.no_straggler_ms, comm.no_straggler_low_ms, comm.no_straggler_high_ms)
    return None if error_ms is None else 100 * error_ms / comm.step_ms


def _is_below_error_bound(report: Report) -> bool:
    """Whether the cost of late arrivals per step is below the error bound of a comparison of two clocks."""
    comm, bound = report.communication, report.communication.bound_ms
    pct = report.cost.uneven_pct
    if pct is None or comm.step_ms is None or bound is None:
        return False
    return pct / 100 * comm.step_ms <= bound


def _find_doubts(report: Report) -> list[Finding]:
    """Findings about the limits of the figures: what was not read or not measured."""
    judged = report.reading.judged_pct
    if report.reading.clock_reason is not None and not report.reading.clock_free:
        reason = f"{report.reading.clock_reason}: arrivals are not compared, stragglers rest on own times"
        return [Finding("clocks", "doubt", reason)]
    if report.run.world_size < 2 or judged is None or judged >= MIN_COMPARED_PCT or report.reading.clock_free:
        return []
    if report.cost.uneven_s is None and not report.stragglers:
        return []
    return [
        Finding(
            "little_judged",
            "doubt",
            f"ranks could be compared in {percent(judged)} of the time only: no bucket detail in the rest",
        )
    ]
