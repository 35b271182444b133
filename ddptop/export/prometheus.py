"""Metrics for Prometheus: over HTTP, or as a file for node-exporter; with its own client library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.exposition import start_http_server, write_to_textfile
from prometheus_client.registry import CollectorRegistry
from prometheus_client.utils import floatToGoString

from ddptop.export.metrics import Family, Histogram, metric_families
from ddptop.export.output import refuse_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from ddptop.frames.frame import Frame

PREFIX = "ddptop_"


class FrameCollector:
    """Answers each scrape from the newest frame."""

    def __init__(self, latest: Callable[[], Frame | None]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Metric]:
        """The families of the newest frame; none without a frame, as at the registration."""
        frame = self._latest()
        for family in () if frame is None else metric_families(frame):
            if isinstance(family, Histogram) or family.samples:
                yield _make_metric(family)


def serve_metrics(
    latest: Callable[[], Frame | None], address: str, port: int
) -> tuple[int, Callable[[], None]]:
    """Serve /metrics in a thread of its own; port 0: any free one. Returns the port and what ends it.

    Raises OSError where the port is taken.
    """
    server, thread = start_http_server(port, address, _make_registry(latest))

    def stop_server() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return server.server_port, stop_server


def write_textfile(frame: Frame, path: Path) -> None:
    """Write the file anew, in one step, so that no half of it is ever read. Raises OSError with its name."""
    refuse_device(path)
    try:
        # A link is followed, so that the file behind it is replaced and not the link.
        write_to_textfile(str(path.resolve()), _make_registry(lambda: frame))
    except OSError as error:  # it names the temporary file
        raise OSError(error.errno, error.strerror, str(path)) from None


def _make_registry(latest: Callable[[], Frame | None]) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FrameCollector(latest))
    return registry


def name_of(family: Family | Histogram) -> str:
    """The name of its series; those of a counter end with `_total` besides."""
    name = family.name.replace(".", "_")
    name = name if name.startswith("hw_") else PREFIX + name
    return f"{name}_{family.unit}" if family.unit else name


def _make_metric(family: Family | Histogram) -> Metric:
    name = name_of(family)
    if isinstance(family, Histogram):
        buckets = [
            (floatToGoString(bound), count) for bound, count in zip(family.bounds, family.counts, strict=True)
        ]
        return GaugeHistogramMetricFamily(name, family.help, buckets, family.total)
    labels = tuple(family.samples[0].labels)
    make = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = make(name, family.help, labels=labels)
    for sample in family.samples:
        metric.add_metric([sample.labels[label] for label in labels], sample.value)
    return metric
