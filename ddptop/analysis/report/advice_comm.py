"""What to try about the all-reduces: their number, their size, and what hides them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ddptop.analysis.report.content import Suggestion
from ddptop.analysis.report.words import megabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ddptop.analysis.report.content import BucketSummary, Report
    from ddptop.protocol.messages import Scalar

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
