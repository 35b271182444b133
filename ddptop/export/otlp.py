"""Metrics for an OpenTelemetry collector: OTLP over HTTP, with OpenTelemetry's own exporter."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramPoints
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from ddptop import __version__
from ddptop.export.metrics import Family, Histogram, metric_families
from ddptop.protocol.outlets import safe_text

if TYPE_CHECKING:
    from ddptop.frames.frame import Frame

PREFIX = "ddptop."

TIMEOUT_S = 10.0
"""Longest time of one export, retries included."""

UNITS = {
    "seconds": "s",
    "bytes": "By",
    "ratio": "1",
    "celsius": "Cel",
    "watts": "W",
    "bytes_per_second": "By/s",
}
"""Units as OpenTelemetry writes them (UCUM)."""


class OtlpExporter:
    """Sends frames to one URL."""

    def __init__(self, url: str) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are said by the caller
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=TIMEOUT_S)
        self._begun_ns = time.time_ns()

    def send_frame(self, frame: Frame) -> bool:
        """Whether the figures of the frame have been taken, within TIMEOUT_S."""
        now_ns = time.time_ns()
        metrics = [
            self._make_metric(family, now_ns)
            for family in metric_families(frame)
            if isinstance(family, Histogram) or family.samples
        ]
        resource = Resource.create({"service.name": "ddptop", "ddptop.run": safe_text(frame.run.name)})
        scope = ScopeMetrics(InstrumentationScope("ddptop", __version__), metrics, "")
        data = MetricsData([ResourceMetrics(resource, [scope], "")])
        return self._exporter.export(data, timeout_millis=1000 * TIMEOUT_S) is MetricExportResult.SUCCESS

    def close(self) -> None:
        """Close its connections."""
        # Without waiting for a server that does not answer.
        self._exporter.shutdown(0)

    def _make_metric(self, family: Family | Histogram, now_ns: int) -> Metric:
        name = family.name if family.name.startswith("hw.") else PREFIX + family.name
        data: Gauge | Sum | HistogramPoints
        if isinstance(family, Histogram):
            data = HistogramPoints([_histogram_point(family, now_ns)], AggregationTemporality.CUMULATIVE)
        else:
            # A counter has a begin, from which a rate can be taken; a gauge is of now.
            begin_ns = self._begun_ns if family.kind == "counter" else now_ns
            points = [NumberDataPoint(dict(s.labels), begin_ns, now_ns, s.value) for s in family.samples]
            cumulative = AggregationTemporality.CUMULATIVE
            data = Sum(points, cumulative, True) if family.kind == "counter" else Gauge(points)
        return Metric(name, family.help, UNITS.get(family.unit, family.unit), data)


def _histogram_point(family: Histogram, now_ns: int) -> HistogramDataPoint:
    """The ranks at this moment: a histogram that begins anew each time."""
    bucket_counts = [
        # OTLP counts each bucket by itself, Prometheus all up to a bound.
        after - before
        for before, after in zip((0, *family.counts), family.counts, strict=False)
    ]
    # The last bucket, up to infinity, has no bound in OTLP.
    bounds = [bound for bound in family.bounds if math.isfinite(bound)]
    return HistogramDataPoint(
        attributes={},
        start_time_unix_nano=now_ns,
        time_unix_nano=now_ns,
        count=family.counts[-1],
        sum=family.total,
        bucket_counts=bucket_counts,
        explicit_bounds=bounds,
        # Not known: only the counts are.
        min=math.nan,
        max=math.nan,
    )
