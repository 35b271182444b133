"""The GPUs of this host's ranks, read through NVML in a thread of its own: a PCIe reading takes 20 ms.

Needs nvidia-ml-py and a driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ddptop.protocol.machine import GpuReading

THROTTLES = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that mean slower than the silicon could (nvml.h).
Idle, application clocks, sync boost and display settings are intended, and left out."""

UUID = "GPU-"
"""Prefix of a UUID: older torch reports no bus id."""

TEMPERATURE_GPU = 0
CLOCK_SM = 1
PCIE_TX, PCIE_RX = 0, 1
NVLINK_TX_KIB, NVLINK_RX_KIB = 138, 139
"""Cumulative counters (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX)."""
ALL_LINKS = 0xFFFFFFFF
"""As the scope of these fields; without it the driver may report the first link alone."""


class Nvml:
    """The NVML library, loaded and initialised; raises OSError where there is none."""

    def __init__(self) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise OSError("nvidia-ml-py is not installed") from error
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise OSError(str(error)) from error
        self._handles: dict[str, Any] = {}

    def read(self, bus_id: str) -> GpuReading | None:
        """The GPU at a PCI bus id (`00000000:3B:00.0`) or of a UUID (`GPU-...`); None: NVML has none."""
        nvml = self._nvml
        handle = self._handles.get(bus_id)
        if handle is None:
            find = nvml.nvmlDeviceGetHandleByPciBusId
            if bus_id.startswith(UUID):
                find = nvml.nvmlDeviceGetHandleByUUID
            handle = self._query_or_none(lambda: find(bus_id.encode()))
            if handle is None:
                return None
            self._handles[bus_id] = handle
        memory = self._query_or_none(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        use = self._query_or_none(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        milliwatts = self._query_or_none(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        reasons = self._query_or_none(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        sent, received = self._query_nvlink(handle)
        return GpuReading(
            util_pct=None if use is None else float(use.gpu),
            mem_bytes=None if memory is None else int(memory.used),
            mem_total_bytes=None if memory is None else int(memory.total),
            temp_c=self._query_or_none(lambda: nvml.nvmlDeviceGetTemperature(handle, TEMPERATURE_GPU)),
            power_w=None if milliwatts is None else milliwatts / 1000.0,
            clock_mhz=self._query_or_none(lambda: nvml.nvmlDeviceGetClockInfo(handle, CLOCK_SM)),
            max_clock_mhz=self._query_or_none(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, CLOCK_SM)),
            throttle=None if reasons is None else throttle_words(reasons),
            pcie_tx_bytes_s=self._query_kilobytes(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, PCIE_TX)),
            pcie_rx_bytes_s=self._query_kilobytes(lambda: nvml.nvmlDeviceGetPcieThroughput(handle, PCIE_RX)),
            nvlink_tx_bytes=sent,
            nvlink_rx_bytes=received,
        )

    def close(self) -> None:
        """Shut the library down."""
        self._query_or_none(self._nvml.nvmlShutdown)

    def _query_or_none(self, query: Callable[[], Any]) -> Any:
        """The result; None where NVML refuses, which depends on GPU, driver and permissions."""
        try:
            return query()
        except self._nvml.NVMLError:
            return None

    def _query_kilobytes(self, query: Callable[[], Any]) -> int | None:
        value = self._query_or_none(query)
        # NVML gives KB/s of 1,000 bytes, unlike the counters of NVLink.
        return None if value is None else int(value) * 1000

    def _query_nvlink(self, handle: Any) -> tuple[int | None, int | None]:
        values = self._query_or_none(
            lambda: self._nvml.nvmlDeviceGetFieldValues(
                handle, [(field, ALL_LINKS) for field in (NVLINK_TX_KIB, NVLINK_RX_KIB)]
            )
        )
        if values is None or len(values) != 2:
            return None, None
        # Each field has a result of its own: a GPU without NVLink refuses these.
        sent, received = (
            None if value.nvmlReturn != 0 else int(value.value.ullVal) * 1024 for value in values
        )
        return sent, received


def throttle_words(reasons: int) -> str:
    """Why the clocks are throttled, as text; empty: they are not."""
    return ", ".join(word for bit, word in THROTTLES.items() if reasons & bit)


PERIOD_S = 1.0
"""NVML averages utilisation over up to a second."""

CLOSE_S = 1.0


class Reader(Protocol):
    """What reads a GPU; `Nvml`, or a fake."""

    def read(self, bus_id: str) -> GpuReading | None:
        """The GPU at a PCI bus id."""

    def close(self) -> None:
        """Shut it down."""


class GpuSampler:
    """Reads the requested GPUs once a second; without NVML, nothing."""

    def __init__(self, open_reader: Callable[[], Reader] = Nvml) -> None:
        self._open = open_reader
        self._requested: frozenset[str] = frozenset()
        self._newest: dict[str, GpuReading] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        """Why nothing can be read; None: no error."""

    def request_gpus(self, bus_ids: Iterable[str]) -> None:
        """Read these from now on; the thread starts with the first."""
        self._requested = frozenset(bus_ids)
        # A thread only where a GPU is used, as it would load NVML.
        if self._requested and self._thread is None:
            self._thread = threading.Thread(target=self._read_in_thread, name="ddptop-gpus", daemon=True)
            self._thread.start()

    def newest_reading(self, bus_id: str) -> GpuReading | None:
        """The last reading of a GPU; None where there is none."""
        return self._newest.get(bus_id)

    def close(self) -> None:
        """End the thread; a driver that hangs does not delay the end of the run."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _read_in_thread(self) -> None:
        try:
            reader = self._open()
        except OSError as error:
            self.error = str(error)
            return
        try:
            while not self._closing.is_set():
                # `_requested` is replaced as a whole, so that this thread sees one set of them.
                readings = {bus_id: reader.read(bus_id) for bus_id in self._requested}
                # Replaced as a whole: the collector's thread sees the old ones or the new.
                self._newest = {bus_id: value for bus_id, value in readings.items() if value is not None}
                self._closing.wait(PERIOD_S)
        finally:
            reader.close()
