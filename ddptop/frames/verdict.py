"""The verdict: the state of the run in one sentence, and a second line with details."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from ddptop.frames.activity_words import activities_phrase, state_word
from ddptop.frames.bill import ledger_place_phrase
from ddptop.frames.causes import cause_phrase, words_of
from ddptop.frames.columns import distinct_texts
from ddptop.frames.conditions import GRAVE_STATES, STALLS, STATES, condition_of, kinds_of, word_of_state
from ddptop.frames.numbers import age, clock, counted, duration, fixed, percent, signed
from ddptop.frames.phrases import (
    IF_HIDDEN,
    RECORDING_ENDS,
    UNEVEN_PCT,
    blamed,
    cpu_shortage_phrase,
    data_loading_phrase,
    in_state,
    interval_error,
    is_measurable,
    median_phrase,
    missing_phrase,
    on_hosts,
    outside_end_phrase,
    recording_stop,
    several_hosts,
    skew_phrase,
    straggler_phrase,
    suspect_phrase,
    what_if_phrase,
)
from ddptop.frames.sampled_stack import samples_phrase, stack_of_straggler
from ddptop.frames.start_words import start_phrase
from ddptop.frames.statistics import median
from ddptop.frames.training_kind import hides_waiting, limits_phrase
from ddptop.protocol.vocabulary import SHARDED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ddptop.frames.conditions import VerdictKind
    from ddptop.frames.frame import Alert, Frame, LoggedEvent, Straggler
    from ddptop.frames.ledger import WaitedFor
    from ddptop.frames.stall import Stall
    from ddptop.protocol.vocabulary import RankStatus, Sign

SIGNS: Mapping[Sign, str] = {"good": "●", "busy": "○", "doubt": "◌", "warning": "▲", "critical": "■"}

ASCII = str.maketrans({"●": "*", "○": "o", "◌": "~", "▲": "!", "■": "X", "±": "+-", "·": "|", "–": "-"})
"""Signs and marks in plain ASCII; each sign differs from the others."""

WINDOW = 100
"""Steps that figures are medians over."""

LONG_WAIT_S = 60.0
"""A run that waits for ranks is a warning from so long after its start on. Before that, importing torch and
making the process group are the usual reason."""

RANKS_APPEAR = "ranks appear once they have imported torch"

ONE_RANK = "one rank: no other rank to wait for"

WRONG_NUMBERS = kinds_of("wrong_numbers")
"""Alerts that are the verdict before any straggler, the gravest first."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of the run in words."""

    kind: VerdictKind
    sign: Sign
    sentence: str
    detail: str
    """The second line, possibly empty."""
    short: str = ""
    """The sentence in fewer words; empty: there are none."""

    def line(self, *, ascii_only: bool = False) -> str:
        """Sign and sentence."""
        text = f"{SIGNS[self.sign]} {self.sentence}"
        return _as_ascii(text) if ascii_only else text

    def second(self, *, ascii_only: bool = False) -> str:
        """The second line, without indent."""
        return _as_ascii(self.detail) if ascii_only else self.detail


def verdict(frame: Frame) -> Verdict:
    """The most severe condition of the frame."""
    alerts: dict[str, Alert] = {alert.kind: alert for alert in frame.alerts}
    by_state = {
        "failed": _judge_failed,
        "lost": _judge_lost,
        "stalled": _judge_stalled,
        "waiting": _judge_waiting,
        "finished": _judge_finished,
        "stale": _judge_stale,
    }
    # How the run is comes before how fast it is: figures of a run that stands still are old.
    run = run_state(frame)
    state = by_state.get(run, _judge_silent if STATES[run].is_silent else None)
    if "ended_from_outside" in alerts and state not in (_judge_finished, _judge_stale):
        return _ended_from_outside(frame, alerts["ended_from_outside"])
    if state is not None:
        return state(frame, alerts)
    # A fast run whose numbers are wrong is lost time: no rank's lateness matters as much.
    for kind in WRONG_NUMBERS:
        if kind in alerts:
            return _wrong_numbers(frame, alerts[kind])
    # A rank that compiles is late once, and for a reason that needs no remedy.
    if "compiling" in alerts:
        return _judge_compiling(frame, alerts["compiling"])
    if frame.activities:
        return _in_long_step(frame)
    late = frame.straggler
    # Too few CPUs make whichever rank is unlucky slow: to blame that rank would send the reader astray.
    if frame.group.cpu_shortage and (
        late is None or (late.cause is not None and words_of(late.cause).by_few_cpus)
    ):
        sentence = cpu_shortage_phrase(frame.group.cpu_shortage, frame.group.cpu_wait_pct)
        return Verdict("cpus", "warning", sentence, step_line(frame))
    if late is not None:
        brief = _describe_straggler(frame, late, short=True)
        lines = (_line_of_straggler(frame, late), _slow_steps(late), step_line(frame))
        detail = " · ".join(part for part in lines if part)
        return Verdict("straggler", "warning", _describe_straggler(frame, late), detail, brief)
    if "skipped_backward" in alerts:
        return Verdict("skipped_backward", "warning", alerts["skipped_backward"].message, step_line(frame))
    if "loss_spread" in alerts:
        return Verdict("loss_spread", "warning", alerts["loss_spread"].message, step_line(frame))
    if "network" in alerts:
        transfer_pct = _exposed_transfer_pct(frame)
        # What is lost delays few steps by much, which a median does not show; a round trip delays each.
        if transfer_pct >= UNEVEN_PCT or alerts["network"].evidence.get("lost"):
            sentence = f"{alerts['network'].message} · transfer {percent(transfer_pct)} of the step"
            return Verdict("network", "warning", sentence, step_line(frame))
    # Versions and networks that differ may do no harm: they are said until the first step.
    if "preflight" in alerts and alerts["preflight"].evidence.get("gpu") and frame.group.step is not None:
        return Verdict("preflight", "warning", alerts["preflight"].message, step_line(frame))
    return _judge_without_straggler(frame)


def run_state(frame: Frame) -> RankStatus:
    """The state of the run, for every view: its own, or that of a rank where this is graver."""
    reported_state = frame.run.state
    if reported_state in ("finished", "failed", "stale"):
        return reported_state
    present = {
        reported_state,
        *distinct_texts(frame.ranks.state),
        *(["stalled"] if frame.stall is not None else []),
    }
    gravest = next((state for state in GRAVE_STATES if state in present), reported_state)
    return "lost" if gravest == "failed" else gravest  # its launcher may start failed ranks again


def run_state_word(frame: Frame) -> str:
    """The word for the state of the run: `live`, `stalled`; of a live run in a long activity `evaluating`."""
    state = run_state(frame)
    if state == "live" and frame.activities:
        return state_word(frame.activities).lower()
    return word_of_state(state, frame.source)


def _exposed_transfer_pct(frame: Frame) -> float:
    """Share of the median step that exposed transfer takes; 0 also where that is unknown."""
    group = frame.group
    if not group.step_ms_p50 or group.no_straggler_ms is None or group.both_ms is None:
        return 0.0
    return 100 * max(0.0, group.no_straggler_ms - group.both_ms) / group.step_ms_p50


def _line_of_straggler(frame: Frame, late: Straggler) -> str:
    """Which line takes the time of the first of the slow ranks; empty: not known."""
    stacks = (stack_of_straggler(frame.sampled, late, rank) for rank in blamed(late)[:1])
    return next((samples_phrase(stack) for stack in stacks if stack is not None), "")


def _describe_straggler(frame: Frame, late: Straggler, *, short: bool = False) -> str:
    return straggler_phrase(late, on_hosts(frame, blamed(late)), short=short)


def _slow_steps(late: Straggler) -> str:
    """`steps 199 and 399`, `steps 199 and 399 (2 recorded, some 17 in all)`; empty where it is slow in more
    than some."""
    if late.rare is None:
        return ""
    steps = [f"{step:,}" for step in late.rare.steps[-LISTED_STEPS:]]
    listed = f"step {steps[0]}" if len(steps) == 1 else f"steps {', '.join(steps[:-1])} and {steps[-1]}"
    return f"{listed} ({late.rare.in_all})" if late.rare.in_all else listed


LISTED_STEPS = 3
"""Newest slow steps on the second line."""


def _wrong_numbers(frame: Frame, alert: Alert) -> Verdict:
    """The verdict about wrong numbers, now or some time ago."""
    kind = cast("VerdictKind", alert.kind)
    if kind == "not_synchronised":
        return Verdict(kind, "critical", alert.message, not_synchronised_phrase(alert))
    if alert.severity == "critical" or kind == "replica_drift":
        sign: Sign = "critical" if alert.severity == "critical" else "warning"
        return Verdict(kind, sign, alert.message, step_line(frame))
    ago = duration(max(0.0, frame.unix_s - alert.since_s))
    return Verdict(kind, "warning", f"{alert.message}, {ago} ago", step_line(frame))


def not_synchronised_phrase(alert: Alert) -> str:
    """`each rank trains a model of its own: their parameters differ since step 1`."""
    differ = alert.evidence.get("differ_step")
    since = "" if differ is None else f": their parameters differ since step {differ:,}"
    return f"each rank trains a model of its own{since}"


def _judge_compiling(frame: Frame, alert: Alert) -> Verdict:
    """A rank compiles while the others wait for it: no stall."""
    for_s = duration(max(0.0, frame.unix_s - alert.since_s))
    call = alert.evidence.get("call")
    detail = f"called at {call} · {_last_step(frame)}" if call else _last_step(frame)
    return Verdict("compiling", "busy", f"{alert.message}, for {for_s}", detail)


_ACTIVITY_KINDS: Mapping[str, VerdictKind] = {
    "stopped": "stopped",
    "evaluate": "evaluating",
    "save": "saving",
}


def _in_long_step(frame: Frame) -> Verdict:
    """A step lasts far longer than usual, and it is no stall: what the ranks do in it."""
    sentence = activities_phrase(frame.activities, frame.run.world_size, frame.unix_s)
    usual = median_phrase(frame.group.step_ms_p50, None) if frame.group.step_ms_p50 is not None else ""
    running = [
        stack for stack in frame.sampled if stack.is_long_step and stack.step > (frame.group.step or 0)
    ]
    line = samples_phrase(running[0]) if running else ""
    detail = " · ".join(part for part in (line, _usual_length(frame), _last_step(frame), usual) if part)
    kind: VerdictKind = _ACTIVITY_KINDS.get(frame.activities[0].kind, "long_step")
    brief = activities_phrase(frame.activities, frame.run.world_size)
    return Verdict(kind, "warning" if kind == "stopped" else "busy", sentence, detail, brief)


def _usual_length(frame: Frame) -> str:
    """`evaluating usually takes 18 s`: the median of those before in this run; empty: there were none."""
    present = frame.activities[0]
    lasted_s = [
        span.until_s - span.since_s
        for span in frame.past_activities
        if span.kind == present.kind and span.until_s < present.since_s
    ]
    what = _ACTIVITY_KINDS.get(present.kind)
    return f"{what} usually takes {duration(float(median(np.array(lasted_s))))}" if lasted_s and what else ""


def step_line(frame: Frame) -> str:
    """`median step 46.8 ms · 26.6 ±0.4 without the slow rank · 24.9 if communication were hidden too`.

    Contains the number of steps where that is less than the window. Empty before the first step. The last
    figure has no error: it is shown beside the second, whose error it shares. Where the verdict's cost, which
    is of the sum of all steps, is far more than the median step loses, it says so in place of these figures.
    """
    group = frame.group
    if group.step is None or group.step_ms_p50 is None:
        return ""
    text = median_phrase(group.step_ms_p50, group.steps_per_s)
    if group.window_steps < min(WINDOW, group.step + 1):
        text += f" over the last {counted(group.window_steps, 'step')}"
    late = frame.straggler
    if late is not None and late.group:
        # Known by launches: own times, of which the other figures are made, include the waiting.
        return " · ".join(filter(None, (text, _longer_phase(frame, late))))
    if _is_in_few_steps(frame):
        return f"{text} · {WHILE_SLOW if _had_slow_rank(frame) else IN_FEW_STEPS}"
    if group.no_straggler_ms is not None and group.both_ms is not None and frame.run.world_size > 1:
        without = (
            "waiting"
            if late is None or late.rare is not None
            else "the slow ranks"
            if len(late.ranks) > 1
            else "the slow rank"
        )
        without = without if late is None or blamed(late) else "uneven work"
        even = what_if_phrase(group.no_straggler_ms, group.no_straggler_low_ms, group.no_straggler_high_ms)
        text += f" · {even} without {without}"
        text += f" · {fixed(group.both_ms)} {IF_HIDDEN}"
    return text


NO_RANK_FLAGGED: frozenset[VerdictKind] = frozenset(
    {"alone", "even", "uneven", "recovered", "suspect", "little_detail", "clocks", "data_bound"}
)
"""Verdicts of a run that makes steps and whose ranks are not slow: all ranks may be slow alike."""


def data_pct_of_all(frame: Frame) -> float | None:
    """`Ledger.data_pct_of_all`; None also before FEW_STEPS, and where the sums of the run are not known."""
    ledger = frame.ledger
    return None if ledger is None or ledger.run.steps < FEW_STEPS else ledger.data_pct_of_all


def costs_more_than_waiting(data_pct: float | None, waiting_pct: float | None) -> bool:
    """Whether data loading of all ranks is the loss to name first. None: below DATA_PCT, or not known."""
    return data_pct is not None and data_pct > (waiting_pct or 0.0)


DATA_WARNING_PCT = 25.0
"""From this share of step time on, data loading of all ranks is a warning: a quarter of the run."""


def sign_of_data_loading(pct: float) -> Sign:
    """The sign of the sentence that all ranks load data for so much of step time."""
    return "warning" if pct >= DATA_WARNING_PCT else "busy"


def _judge_without_straggler(frame: Frame) -> Verdict:
    """The bottleneck is the headline: where all ranks lose more by loading data than by waiting, that is the
    sentence, and what is said of the ranks is below. A rank that is about to be flagged, or no longer is,
    comes first, and data loading is below."""
    pct, judged = data_pct_of_all(frame), _no_straggler(frame)
    if pct is None:
        return judged
    loading_clause = data_loading_phrase(pct, frame.run.world_size)
    is_judged = judged.kind in NO_RANK_FLAGGED and judged.kind not in ("suspect", "recovered")
    if not is_judged or not costs_more_than_waiting(pct, shown_cost_pct(frame)):
        return _no_straggler(frame, loading_clause)
    detail = _join_clauses(judged.sentence, judged.detail)
    return Verdict(
        "data_bound", sign_of_data_loading(pct), loading_clause, detail, data_loading_phrase(pct, None)
    )


def _join_clauses(*clauses: str) -> str:
    """`every rank loads data for 61% of step time · median step 26.6 ms`: those that are not empty."""
    return " · ".join(filter(None, clauses))


def time_use_phrase(frame: Frame) -> str:
    """`every rank computes for 82% of step time`: what an even run spends its time on, in the sums of the
    whole run; empty where nothing has so much of it, or it is not certain. Data loading, which has a remedy,
    is said in its place."""
    ledger, n_ranks = frame.ledger, frame.run.world_size
    # Of some trainings it is not known how much of backward is waiting.
    is_divided = not limits_phrase(frame.run) and data_pct_of_all(frame) is None
    if ledger is None or ledger.run.steps < FEW_STEPS or not is_divided:
        return ""
    who = "the rank" if n_ranks == 1 else "every rank"
    if ledger.transfer_pct_of_all is not None:
        return f"{who} transfers gradients for {percent(ledger.transfer_pct_of_all)} of step time"
    computes_pct = ledger.compute_pct_of_all
    return "" if computes_pct is None else f"{who} computes for {percent(computes_pct)} of step time"


LONGER_PHASE_SHARE = 0.5
"""Share of a rank's lateness at collectives by which one of its phases is longer, if that is named."""


def _longer_phase(frame: Frame, late: Straggler) -> str:
    """`its forward takes 20.3 ms longer`: the phase of a rank that comes late to collectives which is longer
    than the others' median by most. Those wait, in whichever phase; it does not. Empty: by too little."""
    late_ranks = np.isin(np.arange(len(frame.ranks.state)), blamed(late))
    if late_ranks.all() or not late_ranks.any():
        return ""
    longer_ms = {}
    for phase in ("data", "forward", "backward", "optimizer"):
        phase_ms = getattr(frame.ranks, f"{phase}_ms")
        more_ms = float(median(phase_ms[late_ranks])) - float(median(phase_ms[~late_ranks]))
        longer_ms[phase] = more_ms if np.isfinite(more_ms) else 0.0
    longest = max(longer_ms, key=lambda phase: longer_ms[phase])
    if longer_ms[longest] <= 0 or longer_ms[longest] < LONGER_PHASE_SHARE * late.lateness_ms:
        return ""
    whose = "its" if late_ranks.sum() == 1 else "their"
    return f"{whose} {words_of(longest).title} takes {fixed(longer_ms[longest])} ms longer"


IN_FEW_STEPS = "a few long steps have most of the waiting"
WHILE_SLOW = "most of the waiting was while a rank was slow"
"""Why the median step is hardly longer for it, although it costs much."""

FEW_STEPS_SHARE = 0.5
"""Most of the cost in percent of all time by which the median step may be longer where few steps have it."""


def _is_in_few_steps(frame: Frame) -> bool:
    """Whether the cost that the verdict names is far more than the median step loses."""
    cost_pct, of_median_pct = shown_cost_pct(frame), skew_pct(frame)
    if cost_pct is None or of_median_pct is None or cost_pct < UNEVEN_PCT or frame.run.world_size < 2:
        return False
    return of_median_pct + (skew_error_pct(frame) or 0.0) < FEW_STEPS_SHARE * cost_pct


def _had_slow_rank(frame: Frame) -> bool:
    """Whether no rank is slow any more that was so in the time whose cost the verdict names."""
    if frame.straggler is not None or frame.ledger is None:
        return False
    since_s = frame.unix_s - frame.ledger.recent.over_s
    return any(event.kind == "straggler_end" and event.unix_s >= since_s for event in frame.events)


def _as_ascii(text: str) -> str:
    """Signs in ASCII; any other character that is not ASCII becomes a question mark."""
    return text.translate(ASCII).encode("ascii", "replace").decode()


def _no_straggler(frame: Frame, loading_clause: str = "") -> Verdict:
    """No straggler is flagged: the ranks are even, or their arrivals cannot be compared. `loading_clause`:
    for how long all ranks load data, if that is to be said below; empty: it is not."""
    group, run = frame.group, frame.run
    if group.step is None or group.step_ms_p50 is None:
        since = duration(run.elapsed_s)
        sentence = f"all {run.world_size:,} ranks are here; they have not all finished a step yet · {since}"
        if run.world_size == 1:
            sentence = f"the rank is here; it has not finished a step yet · {since}"
        if frame.start is not None:
            sentence = start_phrase(frame.start, frame.unix_s)
        detail = "the first steps take longer: compilation, first batches"
        detail = next((alert.message for alert in frame.alerts if alert.kind == "preflight"), detail)
        return Verdict("starting", "busy", sentence, detail)
    if run.world_size == 1:
        return Verdict("alone", "good", ONE_RANK, _join_clauses(loading_clause, step_line(frame)))
    if hides_waiting(run) and frame.suspect is None:
        return _judge_outside(frame, loading_clause)
    if compares_own_times(frame) and group.no_straggler_ms is not None:
        return _judge_skew(frame, loading_clause)  # own times are durations: clocks play no part
    if compares_own_times(frame) and group.window_steps < WINDOW:
        return _too_early(frame, loading_clause)
    if run.nodes > 1 and (not frame.clocks or any(clock.offset_ms is None for clock in frame.clocks)):
        sentence = f"{run.nodes} hosts: their clocks are not compared yet, so no rank is flagged"
        return Verdict("clocks", "doubt", sentence, _join_clauses(loading_clause, step_line(frame)))
    if group.clock_free:
        detail = _join_clauses(loading_clause, step_line(frame))
        return Verdict("clocks", "doubt", _describe_clock_error(frame), detail)
    if group.no_straggler_ms is None:
        every, why = frame.overhead.detail_every, frame.overhead.detail_reason
        often = f": one step in {every} has them" if every and every > 1 else ""
        often += f"{', ' if often else ': '}{why}" if why else ""
        brief = "too few timed buckets yet"
        sentence = f"{brief} to compare the ranks{often}"
        detail = _join_clauses(loading_clause, step_line(frame))
        return Verdict("little_detail", "busy", sentence, detail, brief)
    return _judge_skew(frame, loading_clause)


def compares_own_times(frame: Frame) -> bool:
    """Whether the ranks' own times of every step are known: at least two ranks can be compared by them."""
    return int(frame.ranks.compared.sum()) > 1


def _too_early(frame: Frame, loading_clause: str) -> Verdict:
    """Own times are known, but of too few steps to compare the ranks."""
    n_steps = min(frame.group.window_steps, FEW_STEPS)
    sentence = f"measuring: {n_steps} of {FEW_STEPS} steps, too few to compare the ranks"
    return Verdict("little_detail", "busy", sentence, _join_clauses(loading_clause, step_line(frame)))


AGREES = 0.5
"""Share of a suspect's lateness that late ranks cost at least, where both are known well enough."""


FEW_STEPS = 64
"""Below so many steps the rules have not yet looked for every kind of straggler: one that waits for a CPU
takes the longest."""


def _judge_skew(frame: Frame, loading_clause: str) -> Verdict:
    """What is said of the ranks, and below it what cannot be told of a training without DDP."""
    judged, limits = _judge_cost(frame, loading_clause), limits_phrase(frame.run)
    if not limits or frame.run.training not in SHARDED:
        return judged
    return replace(judged, detail=f"{limits} · {judged.detail}" if judged.detail else limits)


def _judge_outside(frame: Frame, loading_clause: str) -> Verdict:
    """No rank is flagged, and in forward and backward none could be."""
    sentence, few = "no rank is slow outside forward and backward", frame.group.window_steps < FEW_STEPS
    if few:
        sentence += f" in {frame.group.window_steps} steps so far"
    detail = _join_clauses(loading_clause, limits_phrase(frame.run), step_line(frame))
    return Verdict("little_detail" if few else "even", "busy" if few else "good", sentence, detail)


def _judge_cost(frame: Frame, loading_clause: str) -> Verdict:
    """No rank is flagged: the cost of late arrivals is a figure, not a warning."""
    cost, error = skew_pct(frame) or 0.0, skew_error_pct(frame)
    lost, brief = skew_phrase(cost, error), skew_phrase(cost, error, short=True)
    detail = _join_clauses(loading_clause, step_line(frame))
    late = frame.suspect
    if late is not None:
        sentence = suspect_phrase(late, on_hosts(frame, (late.rank,)))
        # A share that contradicts the lateness rests on too few steps. Arrivals may be late at no cost.
        cost_ms = cost / 100 * (frame.group.step_ms_p50 or 0.0)
        if late.basis == "arrivals" or cost_ms >= AGREES * late.lateness_ms:
            sentence += f" · {skew_phrase(cost, None, short=True)}"  # in 80 columns
        return Verdict("suspect", "busy", sentence, detail)
    summed = lost_to_skew(frame)
    if summed is not None and frame.ledger is not None:
        # The span is never left out: the line below is about the newest steps.
        cost, error = summed
        lost = brief = skew_phrase(cost, error, whole=frame.ledger.recent_span)
    recovered = _find_recovery(frame)
    if recovered is not None:
        who = f"rank {recovered.rank} is no longer slow" if recovered.rank is not None else recovered.message
        return Verdict("recovered", "good", f"{who} · {lost}", detail, f"{who} · {brief}")
    if not is_measurable(cost, error):
        return Verdict("little_detail", "busy", f"no rank is slow so far · {lost}", detail)
    few = frame.group.window_steps < FEW_STEPS
    so_far = f" in {frame.group.window_steps} steps so far" if few else ""
    if cost < UNEVEN_PCT:
        who = f"no rank is slow{so_far}"
        detail = _join_clauses(time_use_phrase(frame), detail)
        return Verdict("even", "good", f"{who} · {lost}", detail, f"{who} · {brief}")
    who = f"no rank is slow{so_far}" if few else "no rank is consistently slow"
    most = most_waited_for(frame)
    if most is not None:
        # The median step says nothing of what is rare: without this, its figures contradict the cost.
        reason = f"most of it for rank {most.rank} {ledger_place_phrase(most.place)}"
        # What the remedy is about comes first: `next_action` has one of what a rank does alone.
        if most.place in PLACES_ALONE:
            detail = _join_clauses(reason, loading_clause, step_line(frame))
        else:
            detail = _join_clauses(loading_clause, reason, step_line(frame))
    return Verdict("uneven", "good", f"{who} · {lost}", detail, f"{who} · {brief}")


PLACES_ALONE = frozenset({"first_batch", "evaluation", "compiling", "saving", "phase"})
"""Places of the ledger outside the phases of a step, where others wait for what one rank does alone."""


def most_waited_for(frame: Frame) -> WaitedFor | None:
    """The rank and place that more than half of the waiting of the last minutes was for; None: there is none,
    or it is not known."""
    if frame.ledger is None or lost_to_skew(frame) is None:
        return None
    recent = frame.ledger.recent
    largest = next(iter(recent.waited_for), None)
    if largest is None or largest.place == "unknown" or largest.rank_seconds <= recent.rank_seconds / 2:
        return None
    return largest


def lost_to_skew(frame: Frame) -> tuple[float, float | None] | None:
    """What ranks have lost by waiting for each other, in percent of their time in the last minutes.

    And how far that may be wrong; None: unknown. Without own times there is no such figure (None): waits are
    then known of sampled steps alone.
    """
    ledger = frame.ledger
    if ledger is None or ledger.recent.lost_pct is None or not compares_own_times(frame):
        return None
    return ledger.recent.lost_pct, ledger.recent.error_pct


def shown_cost_pct(frame: Frame) -> float | None:
    """The share of the time that the verdict names: what the flagged rank costs, else what is lost to
    waiting. None: unknown, or too few steps to compare the ranks."""
    if frame.straggler is not None:
        return frame.straggler.cost_pct
    of_steps = skew_pct(frame)
    summed = lost_to_skew(frame) if frame.suspect is None else None
    return of_steps if of_steps is None or summed is None else summed[0]


def skew_pct(frame: Frame) -> float | None:
    """What the median step would be shorter by, in percent, if no rank were late; None: unknown."""
    step_ms, even_ms = frame.group.step_ms_p50, frame.group.no_straggler_ms
    return 100 * (1 - even_ms / step_ms) if step_ms and even_ms is not None else None


def skew_error_pct(frame: Frame) -> float | None:
    """How far `skew_pct` may be wrong, in percent of the median step; None: unknown."""
    group = frame.group
    step_ms, even_ms = group.step_ms_p50, group.no_straggler_ms
    if not step_ms or even_ms is None:
        return None
    error_ms = interval_error(even_ms, group.no_straggler_low_ms, group.no_straggler_high_ms)
    return None if error_ms is None else 100 * error_ms / step_ms


def _find_recovery(frame: Frame) -> LoggedEvent | None:
    """The event of a straggler that recovered within the last steps, if none was flagged since."""
    group = frame.group
    events = [event for event in frame.events if event.kind in ("straggler", "straggler_end")]
    last = events[-1] if events else None
    if last is None or last.kind != "straggler_end" or last.incarnation != group.incarnation:
        return None
    return last if (group.step or 0) - (last.step or 0) < WINDOW else None


def slowest(frame: Frame) -> str | None:
    """The flagged or suspected rank: `rank 1 +20.3 ms data`, `in turn`, or `none`; None: unknown."""
    late, shown = frame.straggler, verdict(frame)
    kind = _no_straggler(frame).kind if shown.kind == "data_bound" else shown.kind
    if late is not None:
        cause = cause_phrase(late.cause, late.place, short=True)
        where = on_hosts(frame, (late.rank,))
        who = f"rank {late.rank}{where}" if blamed(late) else "in turn"
        return f"{who} {signed(late.lateness_ms)} ms{f' {cause}' if cause else ''}"
    if frame.suspect is not None:
        where = on_hosts(frame, (frame.suspect.rank,))
        return f"rank {frame.suspect.rank}{where} {signed(frame.suspect.lateness_ms)} ms"
    unknown = frame.run.world_size < 2 or skew_pct(frame) is None or kind in ("clocks", "little_detail")
    return None if unknown else "none"


def _describe_clock_error(frame: Frame) -> str:
    """`ranks arrive 1.2 ms apart, less than the clock error (±3.0 ms): no rank is flagged`."""
    if frame.group.clocks_contradict:
        return f"{frame.group.clock_reason}: no rank is flagged"
    skews = [bucket.skew_ms for bucket in frame.buckets if bucket.skew_ms is not None]
    bound = "" if frame.group.bound_ms is None else f" (±{fixed(frame.group.bound_ms)} ms)"
    apart = f"{fixed(max(skews))} ms apart, less than the clock error" if skews else "within the clock error"
    return f"ranks arrive {apart}{bound}: no rank is flagged"


def _judge_failed(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    if frame.stall is not None and frame.stall.ended_s is not None:
        return _ended_in_stall(frame, frame.stall, alerts)
    alert = _find_end(frame)
    who = alert.message if alert is not None else "the launcher reports a failure"
    code = frame.run.exit_code
    parts = (
        "" if alert is None else moment_phrase(frame, alert.since_s),
        _last_step(frame),
        "" if code is None else f"exit code {code}",
    )
    differing = _find_mismatch(alerts)
    detail = " · ".join(filter(None, parts)) if differing is None else differing.message
    return Verdict("failed", "critical", f"FAILED · {who}", detail)


def moment_phrase(frame: Frame, unix_s: float) -> str:
    """`at 12:30:50, 12 s ago`; of a recording, which was then, the moment alone."""
    ago = "" if frame.source == "replay" else f", {age(max(0.0, frame.unix_s - unix_s))} ago"
    return f"at {clock(unix_s)}{ago}"


def _ended_in_stall(frame: Frame, stall: Stall, alerts: dict[str, Alert]) -> Verdict:
    """The verdict where all exits follow from a stall: its sentence stays."""
    kind: Literal["failed", "lost"] = "lost" if run_state(frame) == "lost" else "failed"
    sentence = alerts["stall"].message if "stall" in alerts else stall.sentence
    parts = [part for part in (_place_in_stall(alerts, "was"), stall.followed) if part]
    detail = " · ".join(parts) or _last_step(frame)
    differing = _find_mismatch(alerts)
    if differing is not None and not STALLS[stall.kind].has_sides:
        detail = differing.message  # the missing rank has come, to another collective
    return Verdict(kind, "critical", f"{kind.upper()} · {sentence}", detail)


def _ended_from_outside(frame: Frame, alert: Alert) -> Verdict:
    """The launcher has received a signal: `INTERRUPTED by SIGTERM (time limit, scancel, eviction?)`."""
    evidence = alert.evidence
    signal, stall = str(evidence["signal"]), str(evidence.get("stall") or "")
    sentence = f"ENDED · {alert.message}"
    if not evidence.get("unsure"):
        on_host = str(evidence.get("host") or "") if several_hosts(frame) else ""
        sentence = outside_end_phrase(signal, on_host=on_host, stall=stall, verb="INTERRUPTED")
    by = f"by {signal} · " if stall else ""
    code = frame.run.exit_code
    at_end = "" if code is None else f"exit code {code} · "
    if code is None and frame.run.state != "failed":
        at_end = "the launcher ends its ranks · "
    ended = moment_phrase(frame, alert.since_s)
    return Verdict("ended_from_outside", "critical", sentence, f"{by}{at_end}{ended} · {_last_step(frame)}")


def is_cut_off(frame: Frame) -> bool:
    """Whether this is a recording that stops in the middle of the run, for no reason that it holds."""
    if frame.source != "replay" or run_state(frame) != "lost":
        return False
    ended_in_stall = frame.stall is not None and frame.stall.ended_s is not None
    from_outside = any(alert.kind == "ended_from_outside" for alert in frame.alerts)
    is_explained = ended_in_stall or from_outside or _find_end(frame) or recording_stop(frame.alerts)
    return not is_explained and not in_state(frame, "lost")


def _judge_lost(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    if frame.stall is not None and frame.stall.ended_s is not None:
        return _ended_in_stall(frame, frame.stall, alerts)
    alert = _find_end(frame)
    stop = RECORDING_ENDS if is_cut_off(frame) else recording_stop(frame.alerts)
    if alert is None and stop and not in_state(frame, "lost"):
        return Verdict("lost", "critical", f"LOST · how the run ended is unknown: {stop}", _last_step(frame))
    if alert is None:
        who = in_state(frame, "lost") or "the run sends no updates any more"
        return Verdict("lost", "critical", f"LOST · {who}", _last_step(frame))
    runs = "the run has not ended · " if alert.kind == "failed_rank" else ""
    differing = _find_mismatch(alerts)
    ended = moment_phrase(frame, alert.since_s)
    detail = f"{runs}{ended} · {_last_step(frame)}" if differing is None else differing.message
    return Verdict("lost", "critical", f"LOST · {alert.message}", detail)


def _find_end(frame: Frame) -> Alert | None:
    """The alert of failed or lost ranks; the one with the cause comes first."""
    return next(
        (alert for alert in frame.alerts if condition_of(alert.kind).family in ("death", "silence")), None
    )


def _judge_stalled(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    alert = alerts.get("stall")
    if alert is None and frame.stall is not None:  # by a host or a process, which has an alert of its own
        since = duration(frame.unix_s - frame.stall.since_s)
        sentence = f"STALLED {since} · {frame.stall.sentence}"
        return Verdict("stalled", "critical", sentence, _last_step(frame))
    if alert is None:
        sentence = f"STALLED · {in_state(frame, 'stalled') or 'no progress'}"
        return Verdict("stalled", "critical", sentence, _last_step(frame))
    since = duration(frame.unix_s - alert.since_s)
    detail = _place_in_stall(alerts) or _last_step(frame)
    if frame.start is not None and frame.stall is not None and frame.stall.start:
        detail = start_phrase(frame.start, frame.unix_s)  # the sentence has the place
    return Verdict("stalled", "critical", f"STALLED {since} · {alert.message}", detail)


def _place_in_stall(alerts: Mapping[str, Alert], be: Literal["is", "was"] = "is") -> str:
    """`rank 1 is in train.py:88 tokenize`: where the ranks are that a stall is due to; empty: not known."""
    alert, detail = alerts.get("stall"), ""
    if alert is None:
        return ""
    call, phase = alert.evidence.get("call"), alert.evidence.get("phase")
    differing = _find_mismatch(alerts)
    sides = {} if differing is None else differing.evidence
    if sides.get("side0_call") and sides.get("side1_call"):
        first, second = (f"rank {sides[f'side{i}_rank']} {be} in {sides[f'side{i}_call']}" for i in (0, 1))
        detail = f"{first}, {second}"
    elif call:
        detail = f"rank {alert.rank} {be} in {call}"
        if waits_for := alert.evidence.get("waits_for"):
            detail = f"rank {alert.rank} waits for {waits_for}, in {call}"
        if alert.evidence.get("stopped"):
            detail = f"rank {alert.rank} was in {call}; its process is stopped (SIGSTOP)"
    elif alert.evidence.get("stopped"):
        detail = f"the process of rank {alert.rank} is stopped (SIGSTOP)"
    elif phase:
        detail = f"the last heartbeat of rank {alert.rank} was in {phase}"
    return _cause_of_stall(alerts) or detail


def _find_mismatch(alerts: Mapping[str, Alert]) -> Alert | None:
    """The alert of ranks in different collectives."""
    return next((alert for alert in alerts.values() if condition_of(alert.kind).has_sides), None)


def _cause_of_stall(alerts: Mapping[str, Alert]) -> str:
    """What leaves some ranks with fewer all-reduces than the others; empty: nothing is known."""
    for kind in ("skipped_backward", "not_synchronised"):
        if kind in alerts and alerts[kind].rank is not None:
            return alerts[kind].message
    return ""


def _judge_silent(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    """Nothing arrives from a host, which may come back."""
    state = run_state(frame)
    alert = next((alert for kind, alert in alerts.items() if condition_of(kind).family == "silence"), None)
    who = alert.message if alert is not None else in_state(frame, state)
    sentence = f"{state.upper()} · {who or 'nothing arrives from a host'}"
    return Verdict(cast("VerdictKind", state), "warning", sentence, _last_step(frame))


def _judge_waiting(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    states = frame.ranks.state
    detail = alerts["preflight"].message if "preflight" in alerts else RANKS_APPEAR
    missing = [rank for rank, state in enumerate(states) if state == "waiting"]
    if len(missing) == len(states):
        none = f"none of {len(states):,}" if states else "none"
        return Verdict("waiting", "busy", f"waiting for ranks: {none} has reported yet", RANKS_APPEAR)
    if frame.start is not None:
        return Verdict("waiting", "busy", start_phrase(frame.start, frame.unix_s), detail)
    how_many = f"{len(states) - len(missing):,} of {len(states):,} are here"
    return Verdict("waiting", "busy", missing_phrase(missing, frame.ranks.host, how_many), detail)


def _judge_finished(frame: Frame, alerts: dict[str, Alert]) -> Verdict:
    step = frame.group.step
    steps = "no step reported by all ranks" if step is None else f"{step + 1:,} steps"
    finished = _steps_finished(frame)
    if step is not None and finished > step + 1 and recording_stop(frame.alerts):
        steps = f"{finished:,} steps, {step + 1:,} of them recorded"
    detail = step_line(frame)
    if wrong := [alerts[kind].message for kind in WRONG_NUMBERS if kind in alerts]:
        detail = wrong[0]
    elif frame.straggler is not None:
        detail = f"at the end {_describe_straggler(frame, frame.straggler)}"
    steps += restart_phrase(frame.group.incarnation)
    return Verdict("finished", "good", f"finished: {steps} · {duration(frame.run.elapsed_s)}", detail)


def _steps_finished(frame: Frame) -> int:
    """Steps that every rank has finished, whether or not the recording has them; 0: not known."""
    finished = frame.ranks.step
    return int(finished.min()) if len(finished) and np.isfinite(finished).all() else 0


def _judge_stale(frame: Frame, _: dict[str, Alert]) -> Verdict:
    silent = silent_s(frame)
    # Where the viewer gets no frames any more, the ages in its last frame are those at that time.
    since = f"last update {duration(silent)} ago" if silent >= 1.5 else "no fresh data"
    before = verdict(replace(frame, run=replace(frame.run, state="live")))
    detail = _last_step(frame) if frame.group.step is None else f"last known: {before.sentence}"
    return Verdict("stale", "doubt", f"STALE · {since}: the figures may be outdated", detail)


def silent_s(frame: Frame) -> float:
    """Time since the newest message of any rank; 0 where no rank has sent any."""
    known_ms = frame.ranks.age_ms[np.isfinite(frame.ranks.age_ms)]
    return float(known_ms.min()) / 1e3 if len(known_ms) else 0.0


def _last_step(frame: Frame) -> str:
    step = frame.group.step
    if step is None:
        return "no step finished by all ranks"
    if _steps_finished(frame) > step + 1 and recording_stop(frame.alerts):
        return f"recorded up to step {step:,}{restart_phrase(frame.group.incarnation)}"
    return f"last complete step {step:,}{restart_phrase(frame.group.incarnation)}"


def restart_phrase(incarnation: int) -> str:
    """` (restart 1)` after a step number; empty before the first restart."""
    return f" (restart {incarnation})" if incarnation else ""
