"""Phrases that screen, command line, log and report share: which ranks, who is slow, how a process exited."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ddptop.frames.calls import place
from ddptop.frames.causes import blamed_ranks, cause_phrase, late_part_phrase, place_phrase, words_of
from ddptop.frames.hosts import host_index, without_domain
from ddptop.frames.numbers import FEW_PCT, bounded, counted, duration, fixed, loss, percent, size, sized_ms
from ddptop.frames.process_groups import DEFAULT_GROUP, OTHER_DESCRIPTION

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ddptop.frames.frame import Alert, Frame, GroupFigures, RunInfo, Straggler, Suspect
    from ddptop.frames.ledger import RareSlowness
    from ddptop.frames.stall import Call, Death
    from ddptop.protocol.vocabulary import OwnPlace, RankStatus


RECORDING_ENDS = "the recording stops in the middle of the run"
"""Said of a recording without the end of its run: its collector was killed, or the file is cut off."""


def recording_stop(alerts: Iterable[Alert]) -> str:
    """Why nothing more is in the recording: its disk took nothing any more. Empty: it goes on."""
    stops = (alert for alert in alerts if alert.kind == "recording" and alert.evidence.get("stopped"))
    return next((alert.message for alert in stops), "")


def buffers_phrase(run: RunInfo) -> str:
    """`9.6 MB of buffers`: what DDP sends in each forward; `buffers` where their size is not known."""
    sent = run.card.get("ddp.buffer_bytes")
    return f"{size(sent)} of buffers" if isinstance(sent, int) and sent > 0 else "buffers"


MAX_LISTED_RANKS = 4
"""More ranks than this are counted, not listed, so that the line fits 80 columns."""


def ranks_phrase(ranks: Sequence[int], world: int) -> str:
    """`rank 1`, `ranks 1 and 3`, `9 of 64 ranks`, `64 ranks`. `world`: 0 where some of them are meant."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) == world:
        return f"{world:,} ranks"
    if len(ranks) <= MAX_LISTED_RANKS:
        return f"ranks {joined(sorted(ranks))}"
    return f"{len(ranks):,} of {world:,} ranks" if world else f"{len(ranks):,} ranks"


def missing_records_phrase(n_missing: int) -> str:
    """`3 records missing`: of steps, by `lost_records`. On the screen only time, hosts and ranks are lost."""
    return f"{counted(n_missing, 'record')} missing"


def window_phrase(group: GroupFigures) -> str:
    """`last 100 steps`: of which steps the figures are medians."""
    return f"last {counted(group.window_steps, 'step')}"


def timed_phrase(group: GroupFigures) -> str:
    """`timed steps of last 100`: of which steps the figures of buckets are medians."""
    return f"timed steps of last {group.window_steps:,}"


def ranks_range(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 1`, `ranks 0 to 2`, `ranks 0, 2 and 5`; of ascending ranks."""
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return ranks_phrase(ranks, 0)


def in_state(frame: Frame, state: RankStatus) -> str:
    """`host gpu-3 is lost`, `rank 2 makes no progress`: hosts in this state, else ranks; empty where there
    are none, or all ranks are."""
    names = [host.name for host in frame.hosts if host.state == state]
    ranks = [rank for rank, rank_state in enumerate(frame.ranks.state) if rank_state == state]
    if names:
        and_more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        return f"host {names[0]}{and_more} {'are' if and_more else 'is'} {state}"
    if not ranks or len(ranks) == len(frame.ranks.state):
        return ""
    is_single, who = len(ranks) == 1, ranks_phrase(ranks, len(frame.ranks.state))
    if state == "stalled":
        return f"{who} {'makes' if is_single else 'make'} no progress"
    return f"{who} {'is' if is_single else 'are'} {state}"


def joined(ranks: Sequence[int]) -> str:
    """`1`, `1 and 3`, `0, 2 and 3`."""
    *but_last, last = map(str, ranks)
    return f"{', '.join(but_last)} and {last}" if but_last else last


def several_hosts(frame: Frame) -> bool:
    """Whether the run has more than one host, as far as it is known."""
    return frame.run.nodes > 1 or len(frame.hosts) > 1


def host_total(frame: Frame) -> int:
    """How many hosts the run has: those of its ranks, and those without ranks whose agents report."""
    of_ranks = set(host_index(frame.ranks.host).names) - {""}
    return len(of_ranks | {host.name for host in frame.hosts})


def on_hosts(frame: Frame, ranks: Sequence[int]) -> str:
    """` on gpu-017`, ` on 3 hosts`: where some ranks are; empty where the run has one host."""
    return which_hosts(frame.ranks.host, ranks) if several_hosts(frame) else ""


def which_hosts(host_of: tuple[str, ...], ranks: Sequence[int]) -> str:
    """As `on_hosts`, from the host of every rank; empty where all of them are on one."""
    index = host_index(host_of)
    with_host = [rank for rank in ranks if 0 <= rank < len(host_of) and host_of[rank]]
    names = {index.short[int(index.of_rank[rank])] for rank in with_host if len(index.names) > 1}
    if len(names) > 1:
        return f" on {len(names)} hosts"
    return f" on {names.pop()}" if names else ""


def first_ranks(ranks: Sequence[int]) -> str:
    """The first four, in their order: `1, 3, 5, 6, ...`. Unlike `ranks_phrase` it neither sorts nor counts:
    of several stragglers the slowest comes first."""
    if len(ranks) <= MAX_LISTED_RANKS:
        return joined(ranks)
    return ", ".join(map(str, ranks[:MAX_LISTED_RANKS])) + ", ..."


def group_phrase(name: str, description: str, ranks: Sequence[int]) -> str:
    """`the default group`, `group mesh_dp_shard (ranks 0 and 1)`, `group 3 (ranks 0, 2)`."""
    if description == DEFAULT_GROUP:
        return "the default group"
    shown_name = description if description not in ("", OTHER_DESCRIPTION) else name
    return f"group {shown_name} (ranks {first_ranks(ranks)})"


def missing_phrase(missing: Sequence[int], host_of: Sequence[str], here: str) -> str:
    """`waiting for ranks 2 and 3 (node1): 2 of 4 are here`; of more than four ranks first how many: `77 ranks
    missing, 4,019 of 4,096 are here · waiting for ranks 12, 13, 14, 20, ... (gpu-001, gpu-002, ...)`."""
    names = without_domain(tuple(dict.fromkeys(host_of[rank] for rank in missing if host_of[rank])))
    hosts = f" ({', '.join([*names[:2], *['...'][: len(names[2:])]])})" if names else ""
    who = f"waiting for {'rank' if len(missing) == 1 else 'ranks'} {first_ranks(missing)}{hosts}"
    return (
        f"{len(missing):,} ranks missing, {here} · {who}"
        if len(missing) > MAX_LISTED_RANKS
        else f"{who}: {here}"
    )


def step_phrase(step: int, incarnation: int) -> str:
    """`step 12`; after an elastic restart, which counts from 0 again, `elastic restart 1, step 12`."""
    return f"elastic restart {incarnation}, step {step:,}" if incarnation else f"step {step:,}"


def begin_phrase(step: int, last_step_before: int) -> str:
    """`step 401`, `a step between 387 and 543`, `step 543 at the latest`: where something began.

    It was first seen in `step`, and was not so yet in `last_step_before`; negative: nobody looked before."""
    if last_step_before == step - 1:  # in the first step of all, too
        return f"step {step:,}"
    if last_step_before < 0:
        return f"step {step:,} at the latest"
    return f"a step between {last_step_before + 1:,} and {step:,}"


def steps_phrase(first: int, last: int, incarnation: int, last_incarnation: int) -> str:
    """`steps 100 to 200`, `elastic restart 1, steps 3 to 50`, `step 900 to elastic restart 1, step 50`."""
    if incarnation != last_incarnation:
        return f"{step_phrase(first, incarnation)} to {step_phrase(last, last_incarnation)}"
    restart = f"elastic restart {incarnation}, " if incarnation else ""
    return f"{restart}steps {first:,} to {last:,}"


def blamed(s: Straggler | None) -> tuple[int, ...]:
    """The ranks that are slow, the main straggler first; empty: none is to blame."""
    return () if s is None else blamed_ranks(s.cause, s.pattern, s.ranks or (s.rank,))


def straggler_phrase(s: Straggler, where: str = "", *, short: bool = False) -> str:
    """`rank 1 takes 20.3 ±0.1 ms longer in data loading · 96% of steps · costs 43%`.

    `where`: the host, ` on gpu-017`, of a run with several; `short`: the cause in one word.
    The size is that of the part named with it; its whole own time may exceed the others' by more. Where no
    part is late by itself, it is that of all: `takes 20.3 ±0.1 ms longer in 96% of steps · mixed causes`.
    Where only the arrivals of buckets are known, it `arrives 20.3 ±0.1 ms late`. Several ranks, an
    intermittent and a rotating straggler have sentences of their own.
    """
    if s.rare is not None:
        return rare_phrase(s, s.rare, where)
    many, by_steps = len(s.ranks) > 1, s.basis == "every_step"
    who = (f"ranks {first_ranks(s.ranks)}" if many else f"rank {s.rank}") + where
    size = f"{sized_ms(s.lateness_ms, s.bound_ms)} {'longer' if by_steps else 'late'}"
    often = f"in {percent(s.last_pct)} of steps"
    words, cause = words_of(s.cause), cause_phrase(s.cause, s.place, short=short)
    verb = ("take" if by_steps else "arrive") + ("" if many else "s")
    sentence = f"{who} {verb} {size} {often}"
    if part := late_part_phrase(s.cause, s.place, short=short):
        size, cause = f"{size} {part}", ""
        sentence = f"{who} {verb} {size} · {percent(s.last_pct)} of steps"
    if s.group:
        sentence = f"{who} {verb} {size} at the collectives of {s.group} {often}"
    if s.pattern == "intermittent" and by_steps:
        sentence = f"{who} now and then {verb} {size}, {often}"
    elif s.pattern == "intermittent":
        sentence = f"{who} {'are' if many else 'is'} now and then {size}, {often}"
    elif s.pattern == "rotating":
        verb = "takes" if by_steps else "is"
        sentence = f"one rank {verb} {size}, a different one over time, now rank {s.rank}{where}"
    if words.sentence:
        who, has = (who, "have" if many else "has") if blamed(s) else ("ranks take turns: the latest", "has")
        times_more = "more" if s.elements_ratio is None else f"{fixed(s.elements_ratio)}x the"
        ending = "" if many else "s"
        sentence = words.sentence.format(who=who, s=ending, has=has, more=times_more, size=size, often=often)
    parts = [sentence, *([cause] if cause and not words.sentence_says_it else [])]
    parts += [s.waits_for] if s.waits_for else []
    parts += [f"its GPU is throttled: {s.throttle}"] if s.throttle else []
    parts.append(f"costs {percent(s.cost_pct)}" + (" on average" if s.pattern == "intermittent" else ""))
    parts += ["bucket arrivals disagree"] if s.disagrees else []
    return " · ".join(parts)


MS_IN_S = 1000.0


def rare_phrase(s: Straggler, rare: RareSlowness, where: str = "") -> str:
    """`rank 0 is slow in 1 of 200 steps: 6.0 s after the optimizer · costs 50% of step time`."""
    size = rare_size_phrase(s.lateness_ms, s.cause, s.place)
    cost = f"costs {percent(s.cost_pct)} of {rare.over}"
    return f"rank {s.rank}{where} is slow in {rare.often}: {size} · {cost}"


def rare_size_phrase(late_ms: float, cause: str | None, place: OwnPlace | None) -> str:
    """`6.0 s after the optimizer`: by how much and where a rank is slow in few steps."""
    size = f"{fixed(late_ms, 0)} ms" if late_ms < MS_IN_S else duration(late_ms / MS_IN_S)
    where = place_phrase(cause, place)
    return f"{size} {where}" if where else size


def straggler_brief(s: Straggler, width: int, where: str = "") -> str:
    """`rank 1 takes 20.3 ms longer in data loading · costs 43%`, where `width` cells hold it; else as much as
    they hold of `rank 1 +20.3 ms data · costs 43%`. The size is left out before the cause and the cost, and
    `where`, as of `straggler_phrase`, before any other word."""
    if s.rare is not None:
        return _rare_brief(s, s.rare, width)
    many = len(s.ranks) > 1
    who = f"ranks {first_ranks(s.ranks)}" if many else f"rank {s.rank}"
    if s.pattern == "rotating" or not blamed(s):
        who = "ranks in turn"
    size = f"{who} +{fixed(s.lateness_ms)} ms"
    cause = [s.cause.replace("_", " ")] if s.cause else []
    cost = f"costs {percent(s.cost_pct)}"
    if s.pattern == "persistent" and not words_of(s.cause).sentence:
        verb, how = ("take", "longer") if s.basis == "every_step" else ("arrive", "late")
        sentence = f"{who} {verb}{'' if many else 's'} {fixed(s.lateness_ms)} ms {how}"
        sentence += " at collectives" if s.group else ""
        part = late_part_phrase(s.cause, s.place)
        sentence, why = (f"{sentence} {part}", "") if part else (sentence, cause_phrase(s.cause, s.place))
        text = " · ".join(filter(None, (sentence, why, cost)))
        for whole in (text.replace(who, f"{who}{where}", 1), text):
            if len(whole) <= width:
                return whole
    size_and_cause = [f"{size} {cause[0]}"] if late_part_phrase(s.cause, s.place) else [size, *cause]
    for parts in ([*size_and_cause, cost], [who, *cause, cost], size_and_cause):
        text = " · ".join(parts)
        if len(text) <= width:
            return text
    return size


def _rare_brief(s: Straggler, rare: RareSlowness, width: int) -> str:
    """`rank 0 is slow in 1 of 200 steps, after the optimizer · costs 50%`, as much of it as `width` holds."""
    who, cost = f"rank {s.rank} is slow", f"costs {percent(s.cost_pct)}"
    often, where = f"{who} in {rare.often}", place_phrase(s.cause, s.place)
    texts = (f"{often}, {where} · {cost}" if where else "", f"{often} · {cost}", f"{who} · {cost}", often)
    return next((text for text in texts if text and len(text) <= width), who)


def suspect_phrase(s: Suspect, where: str = "") -> str:
    """`rank 1 was the slowest in 12 of 12 steps, by 20.3 ±0.1 ms`: in too few steps to flag it. Of one that
    waits for a CPU `rank 1 is last in 98% of steps and waits for a CPU; sure after 20 s, 8 so far`."""
    if s.so_far_s is not None and s.needed_s is not None:
        often = f"rank {s.rank}{where} is last in {percent(100 * s.last / max(1, s.steps))} of steps"
        sure = f"sure after {fixed(s.needed_s, 0)} s, {fixed(min(s.so_far_s, s.needed_s), 0)} so far"
        return f"{often} and {cause_phrase(s.cause, None)}; {sure}"
    size = sized_ms(s.lateness_ms, s.bound_ms)
    if s.basis == "every_step":
        return f"rank {s.rank}{where} was the slowest in {s.last} of {s.steps} steps, by {size}"
    return f"rank {s.rank}{where} came last in {s.last} of {s.steps} measured steps, by {size}"


NOT_MEASURABLE = "the cost of waiting is not measurable"


def skew_phrase(pct: float, error_pct: float | None, *, short: bool = False, whole: str = "each step") -> str:
    """`waiting costs 0.8% ±0.2% of each step`: the share of `whole` that ranks wait for slower ones.

    Short: without ` of each step`. An unknown error is left out; if it is larger than the figure, this is
    `up to 9%`. If the figure would say nothing (`is_measurable`), it is `the cost of waiting is not
    measurable yet`.
    """
    of_whole = "" if short else f" of {whole}"
    digits = 0 if pct >= FEW_PCT else 1
    if not is_measurable(pct, error_pct):
        return f"{NOT_MEASURABLE} yet"
    if error_pct is not None and error_pct > pct:
        return f"waiting costs up to {percent(min(100.0, pct + error_pct), digits)}{of_whole}"
    error = "" if not error_pct or not round(error_pct, digits) else f" ±{percent(error_pct, digits)}"
    return f"waiting costs {percent(pct)}{error}{of_whole}"


def data_loading_phrase(pct: float, n_ranks: int | None) -> str:
    """`every rank loads data for 61% of step time`: the least share of any rank; without `n_ranks` in short,
    `data loading takes 61%`."""
    if n_ranks is None:
        return f"data loading takes {percent(pct)}"
    return f"{'the' if n_ranks == 1 else 'every'} rank loads data for {percent(pct)} of step time"


def cpu_shortage_phrase(shortage: str, wait_pct: float | None) -> str:
    """`3 ranks may use core 0 only · they wait for a CPU 31% of the time`."""
    waits = "" if wait_pct is None else f"they wait for a CPU {percent(wait_pct)} of the time"
    return " · ".join(filter(None, (shortage, waits)))


UNEVEN_PCT = 5.0
"""Least cost of waiting, in percent of the step time, that is a verdict of its own."""

WIDE_PCT = 10.0
"""From this upper end on, in percent of step time, a share that is smaller than its error says nothing."""


def is_measurable(pct: float, error_pct: float | None) -> bool:
    """Whether a share of step time and its error tell the reader anything: the error is below the share, or
    both together are below WIDE_PCT."""
    return error_pct is None or error_pct <= pct or pct + error_pct < WIDE_PCT


MEAN_APART = 0.15
"""Share of the median step by which the mean differs where both are shown: steps per second are of it."""


def median_phrase(median_ms: float, steps_per_s: float | None) -> str:
    """`median step 46.8 ms`; where the steps are uneven `median step 91.8 ms, mean 167`."""
    mean_ms = 1e3 / steps_per_s if steps_per_s else median_ms
    uneven = abs(mean_ms - median_ms) > MEAN_APART * median_ms
    mean = f", mean {fixed(mean_ms, 0 if mean_ms >= 100 else 1)}" if uneven else ""
    return f"median step {fixed(median_ms)} ms{mean}"


IF_HIDDEN = "if communication were hidden too"
"""Words after the step time without waiting for a slow rank and with all communication overlapped."""


def what_if_phrase(ms: float | None, low_ms: float | None = None, high_ms: float | None = None) -> str:
    """`26.6 ±0.4`: a step time as it would have been; the error is the farther end of its interval. Where it
    is larger than the figure: `roughly 27`."""
    if ms is None:
        return "–"
    error_ms = interval_error(ms, low_ms, high_ms)
    if error_ms is not None and error_ms > ms:
        return f"roughly {fixed(ms, 0)}"
    return bounded(ms, error_ms)


def interval_error(value: float, low: float | None, high: float | None) -> float | None:
    """How far the value may be wrong: the distance to the farther end of its interval."""
    return None if low is None or high is None else max(high - value, value - low, 0.0)


class Failure(NamedTuple):
    """How the first rank of an attempt failed: the same in several attempts where a restart does not help."""

    place: str
    """In the user's code, `train.py:26`; empty: not known."""
    how: str
    """`ValueError`, `killed by SIGKILL`."""

    @classmethod
    def of(cls, call: Call | None, reason: str, process: str) -> Failure:
        """`call`: in which it ended; `process`: how, where the `reason` is not known."""
        kind = re.split(r"[:( ]", reason, maxsplit=1)[0]
        return cls("" if call is None else place(call).partition(" ")[0], kind or process)


def repeated_phrase(times: int, place: str, restarts: int) -> str:
    """`failed 4 times at train.py:26 (3 restarts): `, for a failure that is as in the attempts before.

    Empty of the first. `place`: empty where it is not known.
    """
    if times < 2:
        return ""
    where = f" at {place}" if place else " in the same way"
    return f"failed {times} times{where} ({restarts} restart{'' if restarts == 1 else 's'}): "


SIGNALS = {
    "SIGKILL": ("was killed by SIGKILL", " (out of memory?)"),
    "SIGABRT": ("aborted (SIGABRT)", ""),
    "SIGSEGV": ("crashed (SIGSEGV)", ""),
    "SIGBUS": ("crashed (SIGBUS)", " (shared memory full?)"),
    "SIGFPE": ("crashed (SIGFPE)", ""),
    "SIGILL": ("crashed (SIGILL)", ""),
}
"""A signal as a phrase, and its usual cause."""

OUT_OF_MEMORY = "out of memory: the kernel killed it"
"""The reason of a process whose cgroup's count of such kills grew as it was killed."""

NOT_OUT_OF_MEMORY = "not by the kernel's OOM killer"
"""What is said of a process that SIGKILL ended while that count stayed: another process has sent it."""

BY_LAUNCHER = "by its launcher, which was interrupted"
"""The reason of a process that was ended by a signal after its launcher had received one."""

KILLED_LATE = "by its launcher, for SIGTERM had not ended it"
"""The reason of a process that was killed as long after the first exit as launchers wait before that."""

KNOWN_KILLERS = (OUT_OF_MEMORY, NOT_OUT_OF_MEMORY, BY_LAUNCHER, KILLED_LATE)
"""Reasons that say who has killed a process, or who has not."""

SENT_TO_ALL = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"})
"""torchrun ends the others with SIGTERM after the first failure; a terminal signals all ranks at once."""

_OUTSIDE = {
    "SIGINT": " (Ctrl-C)",
    "SIGTERM": " (time limit, scancel, eviction?)",
    "SIGHUP": " (its terminal closed)",
    "SIGQUIT": " (Ctrl-\\)",
}
"""What usually sends such a signal to a launcher."""


def outside_end_phrase(
    signal: str, *, on_host: str = "", stall: str = "", unsure_of: str = "", verb: str = "interrupted"
) -> str:
    """`interrupted by SIGTERM (time limit, scancel, eviction?)`, `interrupted while stalled: rank 1 is
    missing: ...`. `unsure_of`: ranks of which one may have been ended first."""
    if stall:
        return f"{verb} while stalled: {stall}"
    cause = _OUTSIDE.get(signal, "")
    if unsure_of:
        return f"{unsure_of} were ended by {signal}: all of them at once{cause}, or one first"
    return f"{verb} by {signal}{f' on {on_host}' if on_host else ''}{cause}"


def ended_by_signal(signal: str | None, reason: str) -> bool:
    """Whether the signal is why the process ended: not one sent to all ranks after this one had failed."""
    return signal is not None and not (reason not in ("", BY_LAUNCHER) and signal in SENT_TO_ALL)


def exit_phrase(
    signal: str | None, exit_code: int | None, reason: str, *, at: str = "", detail: str = ""
) -> str:
    """The words after `rank 2`: `was killed by SIGKILL at step 340 (out of memory?)`, `failed: KeyError: 7`.

    `reason`: the exception with its message, empty if unknown. `at`: ` at step 340`, left out where the
    reason is known. `detail`: more, as ` (train.py:88 load)`, left out where the signal has a usual cause.
    """
    if signal is not None and ended_by_signal(signal, reason):
        phrase, usual_cause = SIGNALS.get(signal, (f"was ended by {signal}", ""))
        usual_cause = f" ({reason})" if reason in KNOWN_KILLERS else usual_cause
        return f"{phrase}{at}{usual_cause or detail}"
    if reason:
        return f"failed: {reason}{detail}"
    if exit_code:
        return f"exited with code {exit_code}{at}"
    if exit_code == 0:
        return f"exited with code 0 before the end of training{at}"
    return "lost: its process is gone"


def death_phrase(death: Death, who: str = "") -> str:
    """`rank 2 was killed by SIGKILL (out of memory?)`, `rank 2 failed: KeyError: 7 (exit code 1)`. `who`: the
    ranks that died alike, where they are several."""
    detail = f" (exit code {death.exit_code})" if death.exit_code else ""
    if ended_by_signal(death.signal, death.reason):
        detail = f": {death.reason}" if death.reason not in ("", *KNOWN_KILLERS) else ""
    reason = f"{death.context} ({death.reason})" if death.context and death.reason else death.reason
    phrase = exit_phrase(death.signal, death.exit_code, reason, detail=detail)
    context = f", {death.context}" if death.context and not death.reason else ""
    if who and phrase.startswith("was "):
        phrase = f"were {phrase[len('was ') :]}"
    return f"{who or f'rank {death.rank}'} {phrase}{context}"


NOT_A_NUMBER = "nan"
"""What is shown for a loss that is known to be NaN."""


def _n_bad_losses(frame: Frame) -> int:
    """How many ranks' losses are NaN or infinite at the frame's moment, as far as the alert knows. Ranks of
    which only the weights tell do not count: their last loss was not read."""
    lasting = (alert for alert in frame.alerts if alert.kind == "nan" and alert.severity == "critical")
    evidence = next((alert.evidence for alert in lasting), {"ranks": 0})
    n_ranks, n_by_weights = evidence.get("ranks", 1), evidence.get("by_weights", 0)
    return n_ranks - n_by_weights if isinstance(n_ranks, int) and isinstance(n_by_weights, int) else 0


def mean_loss_phrase(frame: Frame) -> str:
    """`0.4125`, the mean loss of the ranks; `nan` or `inf` where a rank's loss is known not to be finite."""
    if frame.group.loss_mean is not None or not _n_bad_losses(frame):
        return loss(frame.group.loss_mean)
    return NOT_A_NUMBER if np.isnan(frame.ranks.loss).any() else "inf"


def has_nan_losses(frame: Frame) -> bool:
    """Whether a rank without a loss is known to have one that is NaN. A column has NaN for what is unknown,
    too: only where the bad losses are as many is it plain."""
    return 0 < int(np.count_nonzero(~np.isfinite(frame.ranks.loss))) == _n_bad_losses(frame)


def rank_loss_phrase(frame: Frame, rank: int) -> str:
    """`0.4125`; `nan` or `inf` where it is known not to be finite."""
    value = float(frame.ranks.loss[rank])
    return NOT_A_NUMBER if np.isnan(value) and has_nan_losses(frame) else loss(value)


def loss_note(group: GroupFigures) -> str:
    """What the loss is, where it is not simply what the script logs; else empty."""
    if group.optimizers_in_turn:
        whose = "of the other" if group.optimizers_in_turn == 2 else "of another"
        of_other = "" if group.loss_of_other is None else f", {loss(group.loss_of_other)} {whose}"
        return f"of the first of {group.optimizers_in_turn} optimizers that step in turn{of_other}"
    if group.loss_as_given:
        return f"as given to backward(), mean of {group.loss_as_given} calls in a step"
    return ""
