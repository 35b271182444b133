"""A frame as metrics: the same figures as the snapshot in base units, few series, in Prometheus's form."""

from __future__ import annotations

import math
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ddptop.agent.round_times import READ_AT_S
from ddptop.analysis.rank_table import HEARTBEAT_S
from ddptop.cli.commands.metrics import FRESH_S
from ddptop.collector.service import TICK_MS
from ddptop.collector.viewers import INTERVAL_NS
from ddptop.export.metrics import MOST_RANKS, WORST, Family, Histogram, metric_families, ranks_shown
from ddptop.frames.frame import GpuFacts
from ddptop.frames.overhead import MeasuredCost
from ddptop.frames.snapshot import snapshot
from ddptop.protocol.limits import NS
from tests.recording.replays import frame_at

if TYPE_CHECKING:
    from ddptop.frames.figures import Ranks
    from ddptop.frames.frame import Frame

DATA = Path(__file__).parents[1] / "recording" / "data"
STEP = 259
MOST_SERIES = 2_000


@pytest.fixture(scope="module")
def frame() -> Frame:
    """The end of a run with a flagged rank."""
    return frame_at(DATA / "columns.ddptop", STEP)


def enlarged(frame: Frame, count: int) -> Frame:
    """The same with so many ranks, which repeat."""
    ranks = frame.ranks
    times = -(-count // len(ranks.host))

    def repeated(column: Any) -> Any:
        return (column * times)[:count] if isinstance(column, tuple) else np.tile(column, times)[:count]

    larger: Ranks = type(ranks)(**{one.name: repeated(getattr(ranks, one.name)) for one in fields(ranks)})
    return replace(frame, ranks=larger)


def with_gpus(frame: Frame) -> Frame:
    about = {one.name: None for one in fields(GpuFacts)}
    about |= {"util_pct": 50.0, "mem_bytes": 1 << 30, "mem_total_bytes": 1 << 34, "temp_c": 60.0}
    about |= {"power_w": 300.0}
    return replace(
        frame, gpus=tuple(GpuFacts(**{**about, "rank": rank}) for rank in range(len(frame.ranks.host)))
    )


def values(frame: Frame) -> dict[str, dict[tuple[str, ...], float]]:
    return {
        one.name: {tuple(sample.labels.values()): sample.value for sample in one.samples}
        for one in metric_families(frame)
        if isinstance(one, Family)
    }


def test_figures_are_those_of_the_snapshot_in_base_units(frame: Frame) -> None:
    shown, found = snapshot(frame), values(frame)
    ranks: Any = shown["ranks"]
    for rank in ranks:
        labels = (str(rank["rank"]), rank["host"])
        assert found["rank_own_time"][labels] == pytest.approx(rank["own_ms"] / 1e3, rel=1e-4)
        assert found["rank_excess"][labels] == pytest.approx(rank["excess_ms"] / 1e3, rel=1e-4)
        assert found["rank_phase"][(*labels, "data")] == pytest.approx(rank["data_ms"] / 1e3, abs=1e-6)
    group: Any = shown["group"]
    assert found["step"][()] == group["step"]
    assert found["step_duration"][("0.5",)] == pytest.approx(group["step_ms"]["p50"] / 1e3, abs=1e-6)
    straggler: Any = shown["straggler"]
    (labels,) = found["straggler_cost"]
    assert labels == (str(straggler["rank"]), ranks[straggler["rank"]]["host"], straggler["cause"])
    assert found["straggler_cost"][labels] == pytest.approx(straggler["cost_pct"] / 100, rel=1e-4)


def test_the_periods_between_a_step_and_a_scrape_are_below_a_second() -> None:
    frames_s = max(FRESH_S, INTERVAL_NS / NS) + TICK_MS / 1000
    # Steps come with every heartbeat where the budget is the usual one.
    assert HEARTBEAT_S + READ_AT_S + frames_s < 1.0


def test_what_is_not_known_has_no_series(frame: Frame) -> None:
    unknown = np.full(len(frame.ranks.host), math.nan)
    bare = replace(
        frame,
        ranks=replace(frame.ranks, own_ms=unknown),
        group=replace(frame.group, overlap_pct=None),
        straggler=None,
    )
    found = values(bare)
    assert found["rank_own_time"] == {} == found["overlap"] == found["straggler_cost"]


def test_of_many_ranks_the_worst_have_series_and_all_are_in_histograms(frame: Frame) -> None:
    many = with_gpus(enlarged(frame, 4096))
    shown = ranks_shown(many)
    assert len(shown) == WORST and many.straggler is not None and many.straggler.rank in shown
    found = list(metric_families(many))
    series = sum(len(one.counts) + 2 if isinstance(one, Histogram) else len(one.samples) for one in found)
    assert WORST < series <= MOST_SERIES
    labels = {
        label for one in found if not isinstance(one, Histogram) for s in one.samples for label in s.labels
    }
    assert {"rank", "host", "phase"} <= labels and not labels & {"step", "bucket"}
    (left_out,) = (
        s.value for one in found if one.name == "ranks_left_out" for s in getattr(one, "samples", ())
    )
    assert left_out == 4096 - WORST
    histograms = {one.name: one for one in found if isinstance(one, Histogram)}
    own = histograms["ranks_own_time"]
    assert own.counts[-1] == 4096 and list(own.counts) == sorted(own.counts)
    assert own.total == pytest.approx(float(many.ranks.own_ms.sum()) / 1e3)
    few = enlarged(frame, MOST_RANKS)
    assert ranks_shown(few) == list(range(MOST_RANKS))
    assert not [one for one in metric_families(few) if isinstance(one, Histogram)]


@pytest.mark.parametrize(("name", "error"), [("pipe", "not replaced"), ("no/file", "No such file")])
def test_a_file_that_cannot_be_written_is_named(frame: Frame, tmp_path: Path, name: str, error: str) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    from ddptop.export.prometheus import write_textfile

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=error) as raised:
        write_textfile(frame, tmp_path / name)
    assert raised.value.filename == str(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo() and len([*tmp_path.iterdir()]) == 1


def test_prometheus_can_read_them(frame: Frame, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'ddptop[metrics]'")
    from prometheus_client.parser import text_string_to_metric_families

    from ddptop.export.prometheus import write_textfile

    for each in (frame, with_gpus(enlarged(frame, 300))):
        path = tmp_path / "ddptop.prom"
        write_textfile(each, path)
        read = {one.name: one for one in text_string_to_metric_families(path.read_text())}
        assert all(name.startswith(("ddptop_", "hw_")) for name in read)
        assert read["ddptop_step"].samples[0].value == each.group.step
        assert read["ddptop_rank_own_time_seconds"].samples[0].labels.keys() == {"rank", "host"}
        assert read["ddptop_records"].type == "counter"
    assert len(read["hw_gpu_memory_usage_bytes"].samples) == WORST
    assert list(tmp_path.iterdir()) == [path]


def test_the_overhead_is_the_one_that_the_screen_shows(frame: Frame) -> None:
    """What is measured, once its interval is narrow; what is counted before."""
    for high, pct in ((1.9, 1.4), (9.0, 0.4)):
        overhead = replace(frame.overhead, measured_pct=0.4, measured=MeasuredCost(1.4, 0.9, high, 20))
        found = values(replace(frame, overhead=overhead))["overhead"]
        assert found == {(): pytest.approx(pct / 100)}
        assert overhead.phrase.startswith(f"{pct}%")
    family = next(one for one in metric_families(frame) if one.name == "overhead")
    assert "measured, or until that is known counted on the worst rank" in family.help
