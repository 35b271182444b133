"""What to try. Every suggestion is based on a measured figure, which it contains; without one there is none.

Suggestions are about wrong numbers, stragglers, data loading, communication (the number, size and overlap of
the all-reduces) and ddptop's own overhead.
"""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from ddptop.frames.buckets import launches_of
from ddptop.frames.causes import blamed_ranks, place_phrase, remedy, words_of
from ddptop.frames.conditions import STALLS, condition_of
from ddptop.frames.numbers import RATIO, fixed, known, percent, size
from ddptop.frames.phrases import buffers_phrase, cpu_shortage_phrase
from ddptop.frames.remedies import (
    MORE_CPUS,
    after_outside_end,
    of_death,
    of_start,
    of_worker,
    remedy_of_alert,
)
from ddptop.protocol.vocabulary import FAILED_STATES
from ddptop.report.content import Suggestion
from ddptop.report.findings import (
    HEALTH,
    alert_phrase,
    and_more,
    by_kind,
    final_stall,
    format_seconds,
    ranks_in_short,
    told_stalls,
)
from ddptop.report.ledger_advice import (
    WORTH_PCT,
    of_straggler,
    seconds_back,
    suggest_from_ledger,
    waited_phrase,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddptop.frames.ledger import WaitedFor
    from ddptop.protocol.messages import Scalar
    from ddptop.report.content import BucketSummary, Report, StragglerSummary

EXPOSED_PCT = 5.0
"""Exposed transfer as a share of the step from which suggestions about it are made."""

HEAVY_PCT = 15.0
"""Exposed transfer from which sending less, or less often, can be worth the loss of accuracy."""

BUFFERS_PCT = 2.0
"""Least share of the step that broadcasts of buffers take for a suggestion: one option leaves them out."""

MANY_BUCKETS = 3

TINY_BYTES = 1_000_000
"""Buckets below this are transferred in less than 1 ms at 1 GB/s or more: most of their time is latency."""

MOST_OF_TRANSFER = 0.5
"""Share of the transfer time in tiny buckets from which their number, not their bytes, is what costs."""

WORTH_BYTES = 1_000_000
"""Gradients below this are not worth compressing."""

SMALL_BYTES = 4_000_000
"""Below this, latency is a large part of an all-reduce: 0.1 ms, where 25 MB take 1 ms at 25 GB/s."""

RISES = 2.0
"""Least ratio of the large buckets' busbw to the small ones' at which a larger size helps."""

FEW_BUCKETS = 2
LARGE_BYTES = 2_000_000
"""A bucket of this size can be divided into two of useful size."""

LOW_OVERLAP_PCT = 50.0

VIEW_BYTES = 100_000_000
"""Gradients below this take too little memory to matter."""

LAUNCHES_VARY = 0.2
"""All-reduces of a bucket in a step are a mean over the run: its first steps may have fewer."""

UNCOMPRESSED = frozenset({"", "allreduce_hook"})
"""Communication hooks that send gradients as they are."""

FULL_PRECISION = frozenset({"float", "float32", "torch.float32"})


def suggest_communication(report: Report) -> Iterator[Suggestion]:
    """Suggestions about communication, unordered."""
    yield from _suggest_fewer_buffers(report)
    _, transfer_pct = gradient_transfer(report)
    if transfer_pct is not None and transfer_pct >= EXPOSED_PCT:
        yield from _suggest_no_sync(report, transfer_pct)
        yield from _suggest_larger_buckets(report, transfer_pct)
        yield from _suggest_smaller_buckets(report, transfer_pct)
        if transfer_pct >= HEAVY_PCT:
            yield from _suggest_compression(report, transfer_pct)
            yield from _suggest_accumulation(report, transfer_pct)
    yield from _suggest_ddp_options(report)


def gradient_transfer(report: Report) -> tuple[float | None, float | None]:
    """Exposed transfer of the gradients, in ms and in percent of the step: without broadcasts of buffers."""
    comm = report.communication
    ms, pct = comm.exposed_transfer_ms, comm.exposed_transfer_pct
    if not comm.buffers_ms or ms is None or pct is None:
        return ms, pct
    gradients_ms = max(0.0, ms - comm.buffers_ms)
    return gradients_ms, pct * gradients_ms / ms if ms > 0 else 0.0


def _suggest_fewer_buffers(report: Report) -> Iterator[Suggestion]:
    comm = report.communication
    if not comm.buffers_ms or not comm.step_ms or 100 * comm.buffers_ms / comm.step_ms < BUFFERS_PCT:
        return
    pct = 100 * comm.buffers_ms / comm.step_ms
    yield Suggestion(
        "broadcast_buffers",
        "broadcast_buffers=False in DistributedDataParallel (from torch 2.13 on forward_sync_buffers=False), "
        "where ranks may keep buffers of their own (running means of BatchNorm). Else send them every so "
        "many steps, or register fewer.",
        f"the broadcast of {buffers_phrase(report.run)} in each forward takes {fixed(comm.buffers_ms)} ms of "
        f"a step of {fixed(comm.step_ms)} ms, {percent(pct)}",
        pct,
        {"buffers_ms": comm.buffers_ms, "bytes": report.run.card.get("ddp.buffer_bytes"), "buffers_pct": pct},
    )


def small_and_large(buckets: Sequence[BucketSummary]) -> tuple[float, float] | None:
    """busbw of the smaller and of the larger half of the buckets by bytes; None where they are alike."""
    measured = sorted((b.bytes, b.busbw_gbps) for b in buckets if b.bytes and b.busbw_gbps)
    half = len(measured) // 2
    if half < 1 or measured[0][0] * RISES > measured[-1][0]:
        return None
    small = sum(busbw for _, busbw in measured[:half]) / half
    large = sum(busbw for _, busbw in measured[-half:]) / half
    return small, large


def _of_one_model(buckets: Sequence[BucketSummary]) -> list[BucketSummary]:
    """The buckets of the model with the most: buckets of different models cannot be merged."""
    models: dict[tuple[str, int], list[BucketSummary]] = {}
    for bucket in buckets:
        models.setdefault((bucket.group, bucket.model), []).append(bucket)
    return max(models.values(), key=len, default=[])


def _transfer_phrase(report: Report) -> str:
    ms, pct = gradient_transfer(report)
    return f"transfer adds {fixed(ms or 0)} ms to each step, {percent(pct or 0)}"


def _present_cap_phrase(report: Report) -> str:
    cap = report.run.card.get("ddp.bucket_cap_bytes")
    if not isinstance(cap, (int, float)) or cap <= 0:
        return ""
    mib = cap / 2**20
    return f" (now {fixed(mib, 0 if mib >= 1 else RATIO)})"


def _suggest_larger_buckets(report: Report, transfer_pct: float) -> Iterator[Suggestion]:
    buckets = _of_one_model(report.buckets)
    sizes = sorted(bucket.bytes for bucket in buckets if bucket.bytes)
    if len(sizes) < MANY_BUCKETS or sizes[len(sizes) // 2] > SMALL_BYTES:
        return
    halves = small_and_large(buckets)
    if halves is None or halves[1] < RISES * halves[0]:
        tiny_sizes = [bucket_bytes for bucket_bytes in sizes if bucket_bytes <= TINY_BYTES]
        share = tiny_transfer_share(buckets)
        if share >= MOST_OF_TRANSFER and len(tiny_sizes) >= MANY_BUCKETS:
            yield _suggest_for_tiny_buckets(report, tiny_sizes, transfer_pct * share)
        return
    small, large = halves
    yield Suggestion(
        "larger_buckets",
        f"A larger bucket_cap_mb{_present_cap_phrase(report)}: fewer all-reduces, each mostly latency now.",
        f"busbw {fixed(small, RATIO)} GB/s in the smaller half of {len(sizes)} buckets, "
        f"{fixed(large, RATIO)} in the larger; "
        f"{_transfer_phrase(report)}",
        transfer_pct * (1 - small / large),
        {"buckets": len(sizes), "small_busbw_gbps": small, "large_busbw_gbps": large},
    )


def tiny_transfer_share(buckets: Sequence[BucketSummary]) -> float:
    """Share of the transfer time that buckets of at most TINY_BYTES take, 0 to 1; by their number where no
    bucket was measured."""
    sized = [bucket for bucket in buckets if bucket.bytes]
    measured = [bucket for bucket in sized if bucket.transfer_ms]
    weights = [(b.bytes or 0, b.transfer_ms or 0.0) for b in measured] or [(b.bytes or 0, 1.0) for b in sized]
    total = sum(weight for _, weight in weights)
    tiny = sum(weight for bucket_bytes, weight in weights if bucket_bytes <= TINY_BYTES)
    return tiny / total if total > 0 else 0.0


def _suggest_for_tiny_buckets(report: Report, sizes: Sequence[int], transfer_pct: float) -> Suggestion:
    return Suggestion(
        "larger_buckets",
        f"A larger bucket_cap_mb{_present_cap_phrase(report)}: fewer all-reduces, each mostly latency now.",
        f"{len(sizes)} buckets of {size(sizes[-1])} or less; {_transfer_phrase(report)}",
        transfer_pct * (1 - 1 / len(sizes)),
        {"buckets": len(sizes), "bytes": sizes[-1], "exposed_transfer_pct": transfer_pct},
    )


def _suggest_smaller_buckets(report: Report, transfer_pct: float) -> Iterator[Suggestion]:
    sizes = [bucket.bytes for bucket in report.buckets if bucket.bytes]
    overlap = report.communication.overlap_pct
    if not sizes or len(sizes) > FEW_BUCKETS or max(sizes) < LARGE_BYTES:
        return
    if overlap is None or overlap >= LOW_OVERLAP_PCT:
        return
    count = "one bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
    yield Suggestion(
        "smaller_buckets",
        f"A smaller bucket_cap_mb{_present_cap_phrase(report)}: the first all-reduce then begins while "
        "backward still computes.",
        f"{count} of up to {size(max(sizes))}, overlap {percent(overlap)}; {_transfer_phrase(report)}",
        transfer_pct / 2,
        {"buckets": len(sizes), "bytes": max(sizes), "overlap_pct": overlap},
    )


def _suggest_compression(report: Report, transfer_pct: float) -> Iterator[Suggestion]:
    plain = [b for b in report.buckets if b.dtype in FULL_PRECISION and b.hook in UNCOMPRESSED]
    total = round(sum((bucket.bytes or 0) * launches_of(bucket) for bucket in plain))
    # Of a tiny bucket the latency takes most of the time: half of its bytes would save nothing.
    gain_pct = transfer_pct / 2 * (1 - tiny_transfer_share(plain))
    if total < WORTH_BYTES or gain_pct < WORTH_PCT:
        return
    yield Suggestion(
        "compress",
        "Halve the bytes with the fp16 or bf16 compression hook (torch's ddp_comm_hooks, or "
        'ddptop.wrap(..., comm_hook="fp16")).',
        f"{size(total)} of float32 gradients in each step; {_transfer_phrase(report)}",
        gain_pct,
        {"bytes": total, "exposed_transfer_pct": transfer_pct},
    )


def _suggest_no_sync(report: Report, transfer_pct: float) -> Iterator[Suggestion]:
    """Gradients that are accumulated need one all-reduce of each bucket in a step."""
    launches = max(map(launches_of, report.buckets), default=1.0)
    if launches < 2 - LAUNCHES_VARY:
        return
    late = report.communication.late_no_sync
    needed = sum(bucket.bytes or 1 for bucket in report.buckets)
    sent = sum((bucket.bytes or 1) * launches_of(bucket) for bucket in report.buckets)
    saved = 1 - needed / sent
    saved_ms = saved * (gradient_transfer(report)[0] or 0.0)
    which = "each bucket" if all(launches_of(b) > launches - 1 for b in report.buckets) else "a bucket"
    total = report.communication.wire_bytes
    sizes = "" if total is None else f", {size(total)},"
    yield Suggestion(
        "no_sync",
        "no_sync() must enclose forward too, not backward alone: DDP decides in forward whether backward "
        "all-reduces."
        if late
        else "no_sync() around forward and backward of all micro-steps but the last: gradients are then "
        "all-reduced once in a step. Not for an optimizer with a closure (LBFGS): it needs each all-reduce.",
        f"{fixed(launches, 0)} all-reduces of {which} in a step{sizes} where one is enough; "
        f"{_transfer_phrase(report)}, {fixed(saved_ms)} ms of it for nothing",
        transfer_pct * saved,
        {"launches": launches, "saved_ms": saved_ms, "bytes": total, "encloses_backward_only": late},
    )


def _suggest_accumulation(report: Report, transfer_pct: float) -> Iterator[Suggestion]:
    if any((rank.means["micro_steps"] or 0) > 1 for rank in report.ranks):
        return  # it does already; `_suggest_no_sync` has what is to be said then
    yield Suggestion(
        "accumulate",
        "Accumulate gradients over two batches (no_sync() around the first): half as many all-reduces, at "
        "twice the batch.",
        _transfer_phrase(report),
        transfer_pct / 2,
        {"exposed_transfer_pct": transfer_pct},
    )


def _suggest_ddp_options(report: Report) -> Iterator[Suggestion]:
    """Suggestions about DDP's options, as far as DDP reports them."""
    card = report.run.card
    total = card.get("ddp.total_parameter_size_bytes")
    if _is_off(card.get("ddp.gradient_as_bucket_view")) and isinstance(total, int) and total >= VIEW_BYTES:
        yield Suggestion(
            "gradient_as_bucket_view",
            "gradient_as_bucket_view=True: gradients live in the buckets instead of being copied there.",
            f"it is off, and there are {size(total)} of gradients on each rank, held twice",
            None,
            {"bytes": total},
        )
    if _is_on(card.get("ddp.find_unused_parameters")) and not _is_on(card.get("ddp.static_graph")):
        unused = card.get("ddp.unused_parameter_size")
        if isinstance(unused, int) and unused > 0:
            return
        yield Suggestion(
            "unused_parameters",
            "find_unused_parameters=False if every step uses all parameters, or static_graph=True if it is "
            "always the same ones: DDP then need not walk the graph in each step, and can put its buckets "
            "in the order in which gradients come.",
            f"it is on, and no unused parameter was reported in {report.reading.steps:,} steps",
            None,
            {"find_unused_parameters": True, "steps": report.reading.steps},
        )


def _is_on(value: Scalar) -> bool:
    return value in (1, True)


def _is_off(value: Scalar) -> bool:
    return value in (0, False) and value is not None


SLOW_SCORE = 0.75
"""Relative score below which a slow forward or backward means a slow device, not larger inputs."""

RARE = "rare"
"""Pattern of a rank that is slow in few steps by very much."""

SAVES_BYTES = ("compress", "accumulate", "smaller_buckets")
"""Kinds of suggestions about bytes and overlap. Waiting for a CPU comes before them: it makes transfer slow.
Fewer, larger buckets cost less CPU time too."""

OVER_BUDGET = 1.5
"""Overhead is reported from this factor of the budget on: it is measured over seconds and varies."""


def make_suggestions(report: Report) -> tuple[Suggestion, ...]:
    """Suggestions: what ended the run and wrong numbers first, then stalls, then by gain, then those that
    save no time."""
    suggestions = [
        *_suggest_for_death(report),
        *_suggest_for_health(report),
        *_suggest_for_stalls(report),
        *_suggest_for_outside_end(report),
    ]
    suggestions += [
        *_suggest_more_cpus(report),
        *_suggest_for_slow_ranks(report),
        *_suggest_for_network(report),
    ]
    suggestions += suggest_communication(report)
    return tuple(
        sorted([*suggestions, *_suggest_recorder_limits(report)], key=partial(_sort_key, suggestions))
    )


def _sort_key(suggestions: Sequence[Suggestion], suggestion: Suggestion) -> tuple[int, float]:
    if suggestion.kind == "cpus" and not suggestion.figures["cpu_shortage"]:
        gains = (other.gain_pct or 0.0 for other in suggestions if other.kind in (*SAVES_BYTES, "cpus"))
        return 3, -max(gains) - 1e-6
    order = 2 if suggestion.kind == "cpus" else condition_of(suggestion.kind).advice_order
    if order is not None:
        return order, 0.0
    return 3, 1.0 if suggestion.gain_pct is None else -suggestion.gain_pct


def _suggest_for_death(report: Report) -> Iterator[Suggestion]:
    """The first death, which the others followed; nothing where all follow from a stall."""
    first = next(iter(report.deaths), None)
    if first is not None and final_stall(report) is None and report.run.state in FAILED_STATES:
        because = f"rank {first.rank} was the first to end"
        yield Suggestion("death", of_death(first), because, None, {"rank": first.rank})


def _suggest_for_stalls(report: Report) -> Iterator[Suggestion]:
    """The longest stall, and what all of them cost."""
    stalls = told_stalls(report)
    stall = max(stalls, key=lambda stall: stall.lasted_s, default=None)
    if stall is None:
        return
    whole_s, total = sum(stall.lasted_s for stall in stalls), len(stalls)
    times = "stalled" if total == 1 else f"stalled {total} times"
    gain = 100 * whole_s / report.run.elapsed_s if report.run.elapsed_s > 0 else 0.0
    position = next(
        (rank_position for rank_position in stall.positions if rank_position.rank in stall.ranks), None
    )
    call = None if position is None else position.user_call
    where = "" if call is None else f" at {PurePath(call.file).name}:{call.line} ({call.function})"
    who = ranks_in_short(stall.ranks) if stall.ranks else "the ranks"
    nobody_else = len(stall.ranks) == report.run.world_size
    waited = "" if nobody_else else " while the others waited"
    action = STALLS[stall.kind].advice.format(ranks=who, where=where, waited=waited)
    if position is not None and position.waits_for:
        action = of_worker(position)
    action = of_start(stall) or action
    yield Suggestion(
        "stall",
        action,
        f"{times} for {format_seconds(whole_s)}, {percent(gain)} of the run: {stall.sentence}",
        None,
        {"stalls": total, "stalled_s": whole_s, "stalled_pct": gain},
    )


def _suggest_for_outside_end(report: Report) -> Iterator[Suggestion]:
    for alert in report.troubles:
        if alert.kind == "ended_from_outside" and report.run.state in FAILED_STATES:
            signal = str(alert.evidence["signal"])
            action = after_outside_end(alert.evidence)
            figures = {"signal": signal}
            yield Suggestion(
                "ended_from_outside", action, f"its launcher has received {signal}", None, figures
            )


def _suggest_for_health(report: Report) -> Iterator[Suggestion]:
    kinds = {alert.kind for alert in report.troubles}
    for alert, count in by_kind(report.troubles):
        if alert.kind == "replica_drift" and "not_synchronised" in kinds:
            continue  # that is why they differ
        action = remedy_of_alert(alert)
        if alert.kind in HEALTH and condition_of(alert.kind).advice_order is not None and action:
            because = alert_phrase(alert) if alert.kind == "nan" else alert.message
            figures = {"rank": alert.rank, "step": alert.step}
            yield Suggestion(alert.kind, action, because + and_more(count), None, figures)


CPU_WAIT_PCT = 15.0
"""Share of the time that all ranks wait for a CPU from which more of them come before everything else."""


def _suggest_more_cpus(report: Report) -> Iterator[Suggestion]:
    """Ranks that may use fewer CPUs than they need, or that all wait for one: that comes first."""
    wait_pct = report.cpu_wait_pct
    if not report.cpu_shortage and (wait_pct is None or wait_pct < CPU_WAIT_PCT):
        return
    action = MORE_CPUS
    if not report.cpu_shortage:
        action = (
            "Use fewer ranks, threads (OMP_NUM_THREADS) or DataLoader workers, or stop other programs there."
        )
    yield Suggestion(
        "cpus",
        action,
        cpu_shortage_phrase(report.cpu_shortage, wait_pct).replace("they wait", "ranks wait"),
        wait_pct,
        {"cpu_wait_pct": wait_pct, "cpu_shortage": report.cpu_shortage or None},
    )


def _suggest_for_network(report: Report) -> Iterator[Suggestion]:
    for alert, count in by_kind(report.troubles):
        if alert.kind == "network":
            yield Suggestion(
                "network",
                remedy_of_alert(alert),
                alert.message + and_more(count),
                report.communication.exposed_transfer_pct,
                {"transfer_pct": report.communication.exposed_transfer_pct},
            )


def _suggest_for_slow_ranks(report: Report) -> Iterator[Suggestion]:
    """About flagged ranks, with what the others waited for them by the ledger; then what else it has."""
    ledger = report.ledger
    covered: list[WaitedFor] = []
    for slow in report.stragglers:
        if slow.pattern == RARE:
            continue  # the ledger has it, with its place
        rows = of_straggler(slow, ledger)
        lost_s = seconds_back(rows, ledger) if ledger is not None and rows else slow.lost_s
        gain = min(100.0, 100 * lost_s / report.cost.step_s) if report.cost.step_s > 0 else 0.0
        # For a rotating straggler a remedy is known only for garbage and what depends on the batch.
        in_turn = slow.pattern == "rotating"
        has_remedy = slow.cause is not None and (not in_turn or words_of(slow.cause).known_in_turn)
        if gain >= WORTH_PCT and has_remedy:
            covered += rows
            has_loader = any(rank.means["data_ms"] for rank in report.ranks)
            cost = f"cost {format_seconds(slow.lost_s)}, {percent(gain)} of the time in steps"
            if ledger is not None and rows:
                cost = waited_phrase(rows, ledger)
            yield _suggest_for_straggler(slow, gain, cost, has_loader=has_loader)
    yield from suggest_from_ledger(report, covered)


def _suggest_for_straggler(slow: StragglerSummary, gain: float, cost: str, *, has_loader: bool) -> Suggestion:
    figures = {
        "rank": slow.rank,
        "cost_pct": gain,
        "lost_s": slow.lost_s,
        "relative_score": slow.relative_score,
        **{f"{phase}_ms": ms for phase, ms in slow.parts_ms.items()},
    }
    excess, where = slow.parts_ms.get(slow.cause or ""), place_phrase(slow.cause, slow.place)
    reasons = f"{fixed(excess)} ms more than the others {where}; " if known(excess) and where else ""
    reasons += "bucket arrivals disagree; " if slow.disagrees else ""
    host = f"{slow.host}, {slow.device}" if slow.host and slow.device else slow.host
    who = ranks_in_short(slow.ranks)
    kind, action = remedy(slow.cause, slow.place, slow.pattern, who, host, has_loader=has_loader)
    if slow.pattern == "rotating":
        who = ranks_in_short(slow.ranks) if blamed_ranks(slow.cause, slow.pattern, slow.ranks) else "ranks"
        return Suggestion(kind, action, f"{who}, one after the other: {cost}", gain, figures)
    score = ""
    if kind == "slow_device" and slow.relative_score is not None:
        score = f"relative {fixed(slow.relative_score, RATIO)}; "
        action += " Its inputs may also be larger." if slow.relative_score >= SLOW_SCORE else ""
    return Suggestion(kind, action, f"{ranks_in_short(slow.ranks)}: {reasons}{score}{cost}", gain, figures)


def _suggest_recorder_limits(report: Report) -> Iterator[Suggestion]:
    overhead = report.overhead
    if overhead.exceeds_budget(OVER_BUDGET):
        yield Suggestion(
            "recorder_budget",
            "ddptop takes more than its budget: run with --ddptop-off to compare.",
            f"overhead {overhead.phrase} of the step, budget {percent(overhead.budget_pct)}",
            overhead.taken_pct,
            {"measured_pct": overhead.measured_pct, "budget_pct": overhead.budget_pct}
            | ({"taken_pct": overhead.taken_pct} if overhead.is_measured else {}),
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
