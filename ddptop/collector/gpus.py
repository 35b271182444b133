"""The GPUs of this host's ranks, read in a thread of its own: a PCIe reading alone takes NVML 20 ms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Protocol

from ddptop.collector.nvml import Nvml
from ddptop.protocol.machine import GpuReading

PERIOD_S = 1.0
"""NVML averages utilisation over up to a second."""

CLOSE_S = 1.0


class Reader(Protocol):
    """What reads a GPU; `Nvml`, or a fake."""

    def read(self, bus_id: str) -> GpuReading | None:
        """The GPU at a PCI bus id."""

    def close(self) -> None:
        """Let go of it."""


class GpuSampler:
    """Reads the GPUs it is told of once a second, from the first one on. Where there is no NVML, nothing."""

    def __init__(self, open_reader: Callable[[], Reader] = Nvml) -> None:
        self._open = open_reader
        self._wanted: frozenset[str] = frozenset()
        self._newest: dict[str, GpuReading] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.trouble: str | None = None
        """Why nothing can be read, in words."""

    def want(self, bus_ids: Iterable[str]) -> None:
        """From now on read these; the thread starts with the first."""
        self._wanted = frozenset(bus_ids)
        if self._wanted and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ddptop-gpus", daemon=True)
            self._thread.start()

    def newest(self, bus_id: str) -> GpuReading | None:
        """The last reading of a GPU; None where there is none."""
        return self._newest.get(bus_id)

    def close(self) -> None:
        """End the thread; a driver that hangs does not hold up the end of the run."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            reader = self._open()
        except OSError as error:
            self.trouble = str(error)
            return
        try:
            while not self._closing.is_set():
                readings = {bus_id: reader.read(bus_id) for bus_id in self._wanted}
                # Replaced as a whole: the collector's thread sees the old ones or the new.
                self._newest = {bus_id: found for bus_id, found in readings.items() if found is not None}
                self._closing.wait(PERIOD_S)
        finally:
            reader.close()
