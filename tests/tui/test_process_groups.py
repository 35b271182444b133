"""Process groups whose collectives no hook times: in the view of buckets, and on the page of a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptop.frames.frame import Frame
from ddptop.frames.process_groups import ProcessGroupFigures
from tests.tui.drive import sketch
from tests.tui.fake import FakeSource, live

SHARD = ProcessGroupFigures(
    name="3", description="mesh_dp_shard", backend="gloo", size=2, ranks=(0, 1), collectives=3_246,
    seen_pct=97.5, steps=128, per_step=6.0, step_bytes=34_320.0, operations="4 all_gather, 2 reduce_scatter",
    skew_ms=21.5, bound_ms=0.1, last_arriver=1, last_arriver_pct=96.0, lateness_ms=21.4,
    rank_lateness_ms=(-21.4, 21.4), on_host=False,
)  # fmt: skip
WORLD = replace(
    SHARD, name="0", description="default_pg", backend="nccl", size=4, ranks=(), bound_ms=None,
    last_arriver=None, last_arriver_pct=None, lateness_ms=None, rank_lateness_ms=(), on_host=True,
)  # fmt: skip


@pytest.fixture
def frame() -> Frame:
    return replace(live(), buckets=(), process_groups=(SHARD, WORLD))


def test_the_view_of_buckets_lists_them_where_no_bucket_is_timed(frame: Frame) -> None:
    page = sketch(FakeSource(frame), (140, 30), "3")
    assert "2 process groups · no bucket is timed" in page
    rows = [line for line in page.splitlines() if "mesh_dp_shard" in line or "default_pg" in line]
    first, second = (" ".join(row.replace("▸", "").split()) for row in rows)
    assert first == (
        "mesh_dp_shard 0 and 1 gloo 3,246 98 6× 34.3 kB 21.50 ±0.10 r1 96% 21.4 "
        "4 all_gather, 2 reduce_scatter"
    )
    assert second.startswith("default_pg all 4 nccl")
    assert "NCCL: launches are the host's" in page
    assert "mesh_dp_shard" not in sketch(FakeSource(replace(frame, buckets=live().buckets)), (140, 30), "3")


@pytest.mark.parametrize("size", [(30, 6), (50, 24), (80, 24), (67, 19), (160, 50)])
def test_it_fits_every_size(frame: Frame, size: tuple[int, int]) -> None:
    lines = sketch(FakeSource(frame), size, "3").splitlines()
    assert len(lines) <= size[1] and max(map(len, lines)) <= size[0]


def test_the_page_of_a_rank_says_how_late_it_is_in_each(frame: Frame) -> None:
    page = sketch(FakeSource(frame), (140, 30), "down", "enter")
    assert "late 21.4 ±0.1 ms  at 6 collectives a step of group mesh_dp_shard (ranks 0 and 1)" in page
    assert "comes last 96%" in page
    assert "at 6 collectives" not in sketch(FakeSource(frame), (140, 30), "down", "down", "enter")
