"""What to try. Every suggestion rests on a figure that it names; without the figure there is none.

What to try about the all-reduces: their number, their size, and what hides them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.report.content import Suggestion
from ddptop.report.words import amount, and_more, by_kind, listed, megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddptop.protocol.messages import Scalar
    from ddptop.report.content import BucketSummary, Culprit, Report

EXPOSED_PCT = 5.0
"""Exposed transfer below this share of the step: there is nothing to gain."""

HEAVY_PCT = 15.0
"""From here on, sending less or less often is worth its price in accuracy."""

MANY_BUCKETS = 3

TINY_BYTES = 1_000_000
"""Moved in less than a ms by anything faster than 1 GB/s: what such buckets take is latency."""

WORTH_BYTES = 1_000_000
"""Below, halving the bytes halves nothing that takes time."""

SMALL_BYTES = 4_000_000
"""Below, an all-reduce is mostly its latency: a tenth of a ms against the ms that 25 MB take at 25 GB/s."""

RISES = 2.0
"""The large buckets' busbw over the small ones': below, size is not what limits them."""

FEW_BUCKETS = 2
LARGE_BYTES = 2_000_000
"""Two halves of a bucket of this size are still worth sending."""

LOW_OVERLAP_PCT = 50.0

VIEW_BYTES = 100_000_000
"""Gradients below this are not what fills a device."""

UNCOMPRESSED = frozenset({"", "allreduce_hook"})
"""Communication hooks that send gradients as they are."""

FULL_PRECISION = frozenset({"float", "float32", "torch.float32"})


def communication(report: Report) -> Iterator[Suggestion]:
    """Suggestions about traffic, in no order."""
    moving = report.communication.exposed_transfer_pct
    if moving is not None and moving >= EXPOSED_PCT:
        yield from _larger_buckets(report, moving)
        yield from _smaller_buckets(report, moving)
        if moving >= HEAVY_PCT:
            yield from _compress(report, moving)
            yield from _accumulate(report, moving)
    yield from _options(report)


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
    """The buckets of the model that has most: those of several models can never become one."""
    models: dict[tuple[str, int], list[BucketSummary]] = {}
    for bucket in buckets:
        models.setdefault((bucket.group, bucket.model), []).append(bucket)
    return max(models.values(), key=len, default=[])


def _moving(report: Report) -> str:
    ms, pct = report.communication.exposed_transfer_ms, report.communication.exposed_transfer_pct
    return f"transfer adds {ms or 0:,.1f} ms to each step, {pct or 0:.0f}%"


def _cap(report: Report) -> str:
    cap = report.run.card.get("ddp.bucket_cap_bytes")
    return f" (now {cap / 2**20:g})" if isinstance(cap, (int, float)) and cap > 0 else ""


def _larger_buckets(report: Report, moving: float) -> Iterator[Suggestion]:
    buckets = _of_one_model(report.buckets)
    sizes = sorted(bucket.bytes for bucket in buckets if bucket.bytes)
    halves = small_and_large(buckets)
    if len(sizes) < MANY_BUCKETS or sizes[len(sizes) // 2] > SMALL_BYTES:
        return
    if halves is None:
        yield from _tiny_buckets(report, sizes, moving)
        return
    small, large = halves
    if large < RISES * small:
        return
    yield Suggestion(
        "larger_buckets",
        f"A larger bucket_cap_mb{_cap(report)}: fewer all-reduces, each mostly latency now.",
        f"busbw {small:,.2f} GB/s in the smaller half of {len(sizes)} buckets, {large:,.2f} in the larger; "
        f"{_moving(report)}",
        moving * (1 - small / large),
        {"buckets": len(sizes), "small_busbw_gbps": small, "large_busbw_gbps": large},
    )


def _tiny_buckets(report: Report, sizes: Sequence[int], moving: float) -> Iterator[Suggestion]:
    if sizes[-1] > TINY_BYTES:
        return
    yield Suggestion(
        "larger_buckets",
        f"A larger bucket_cap_mb{_cap(report)}: fewer all-reduces, each mostly latency now.",
        f"{len(sizes)} buckets of {megabytes(sizes[-1])} or less; {_moving(report)}",
        moving * (1 - 1 / len(sizes)),
        {"buckets": len(sizes), "bytes": sizes[-1], "exposed_transfer_pct": moving},
    )


def _smaller_buckets(report: Report, moving: float) -> Iterator[Suggestion]:
    sizes = [bucket.bytes for bucket in report.buckets if bucket.bytes]
    overlap = report.communication.overlap_pct
    if not sizes or len(sizes) > FEW_BUCKETS or max(sizes) < LARGE_BYTES:
        return
    if overlap is None or overlap >= LOW_OVERLAP_PCT:
        return
    count = "one bucket" if len(sizes) == 1 else f"{len(sizes)} buckets"
    yield Suggestion(
        "smaller_buckets",
        f"A smaller bucket_cap_mb{_cap(report)}: the first all-reduce then begins while backward still "
        "computes.",
        f"{count} of up to {megabytes(max(sizes))}, overlap {overlap:.0f}%; {_moving(report)}",
        moving / 2,
        {"buckets": len(sizes), "bytes": max(sizes), "overlap_pct": overlap},
    )


def _compress(report: Report, moving: float) -> Iterator[Suggestion]:
    plain = [b for b in report.buckets if b.dtype in FULL_PRECISION and b.hook in UNCOMPRESSED]
    total = sum(bucket.bytes or 0 for bucket in plain)
    if total < WORTH_BYTES:
        return
    yield Suggestion(
        "compress",
        "Halve the bytes with the fp16 or bf16 compression hook (torch's ddp_comm_hooks, or "
        'ddptop.wrap(..., comm_hook="fp16")).',
        f"{megabytes(total)} of float32 gradients in each step; {_moving(report)}",
        moving / 2,
        {"bytes": total, "exposed_transfer_pct": moving},
    )


def _accumulate(report: Report, moving: float) -> Iterator[Suggestion]:
    yield Suggestion(
        "accumulate",
        "Accumulate gradients over two batches (no_sync() around the first): half as many all-reduces, at "
        "twice the batch.",
        _moving(report),
        moving / 2,
        {"exposed_transfer_pct": moving},
    )


def _options(report: Report) -> Iterator[Suggestion]:
    """DDP's own options, as far as it told them."""
    card = report.run.card
    total = card.get("ddp.total_parameter_size_bytes")
    if _off(card.get("ddp.gradient_as_bucket_view")) and isinstance(total, int) and total >= VIEW_BYTES:
        yield Suggestion(
            "gradient_as_bucket_view",
            "gradient_as_bucket_view=True: gradients live in the buckets instead of being copied there.",
            f"it is off, and there are {megabytes(total)} of gradients on each rank, held twice",
            None,
            {"bytes": total},
        )
    if _on(card.get("ddp.find_unused_parameters")) and not _on(card.get("ddp.static_graph")):
        unused = card.get("ddp.unused_parameter_size")
        if isinstance(unused, int) and unused > 0:
            return
        yield Suggestion(
            "unused_parameters",
            "find_unused_parameters=False if every step uses all parameters, or static_graph=True if it is "
            "always the same ones: DDP then need not walk the graph in each step, and can put its buckets "
            "in the order in which gradients come.",
            f"it is on, and no unused parameter was told in {report.reading.steps:,} steps",
            None,
            {"find_unused_parameters": True, "steps": report.reading.steps},
        )


def _on(value: Scalar) -> bool:
    return value in (1, True)


def _off(value: Scalar) -> bool:
    return value in (0, False) and value is not None


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
    found = [*_health(report), *_slow(report), *communication(report), *_recorder(report)]
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
