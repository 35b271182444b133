"""GPU readings, with a made-up NVML: what it refuses is unknown, what it says is told in words and units."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import astuple
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ddptop.host.gpus import GpuSampler, Nvml, throttle_words
from ddptop.protocol.machine import GpuReading

BUS = "00000000:3B:00.0"


class NVMLError(Exception):
    """As pynvml names it."""


def library(**answers: Any) -> ModuleType:
    """A pynvml that knows one GPU and gives these answers; everything else is not supported."""
    module = ModuleType("pynvml")

    def handle(bus_id: bytes) -> str:
        if bus_id != BUS.encode():
            raise NVMLError("not found")
        return "handle"

    def answer(name: str) -> Any:
        def call(*_: object) -> Any:
            if name not in answers:
                raise NVMLError("not supported")
            return answers[name]

        return call

    def handle_by_uuid(uuid: bytes) -> str:
        if uuid != b"GPU-5d1a":
            raise NVMLError("not found")
        return "handle"

    module.nvmlDeviceGetHandleByUUID = handle_by_uuid  # type: ignore[attr-defined]
    module.NVMLError = NVMLError  # type: ignore[attr-defined]
    module.nvmlInit = module.nvmlShutdown = lambda: None  # type: ignore[attr-defined]
    module.nvmlDeviceGetHandleByPciBusId = handle  # type: ignore[attr-defined]
    for name in (
        *("MemoryInfo", "UtilizationRates", "PowerUsage", "CurrentClocksThrottleReasons", "Temperature"),
        *("ClockInfo", "MaxClockInfo", "PcieThroughput", "FieldValues"),
    ):
        setattr(module, f"nvmlDeviceGet{name}", answer(name))
    return module


def link(kib: int) -> Any:
    return SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(ullVal=kib))


def test_a_reading_is_in_the_units_that_its_names_say(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = library(
        MemoryInfo=SimpleNamespace(used=5 << 30, total=80 << 30),
        UtilizationRates=SimpleNamespace(gpu=97, memory=40),
        PowerUsage=412_500,
        CurrentClocksThrottleReasons=0x4 | 0x1,
        Temperature=83,
        ClockInfo=1200,
        MaxClockInfo=1980,
        PcieThroughput=2_000,
        FieldValues=[link(10), link(20)],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert Nvml().read(BUS) == GpuReading(
        97.0, 5 << 30, 80 << 30, 83, 412.5, 1200, 1980, "power cap", 2_000_000, 2_000_000, 10_240, 20_480
    )


def test_what_a_gpu_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(Temperature=40))
    found = Nvml().read(BUS)
    assert found is not None
    assert found.temp_c == 40
    assert [value for value in astuple(found) if value is not None] == [40]
    assert Nvml().read("00000000:FF:00.0") is None


def test_without_the_library_or_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(OSError, match="not installed"):
        Nvml()
    broken = library()

    def refuse() -> None:
        raise NVMLError("driver not loaded")

    broken.nvmlInit = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pynvml", broken)
    with pytest.raises(OSError, match="driver not loaded"):
        Nvml()


def test_a_gpu_is_found_by_its_uuid_where_torch_tells_no_bus_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library(Temperature=83))
    found = Nvml().read("GPU-5d1a")
    assert found is not None and found.temp_c == 83
    assert Nvml().read("GPU-other") is None


@pytest.mark.parametrize(
    ("reasons", "words"),
    [(0, ""), (1, ""), (0x40, "thermal (hardware)"), (0x24, "power cap, thermal (software)")],
)
def test_only_what_slows_a_gpu_down_is_called_throttling(reasons: int, words: str) -> None:
    assert throttle_words(reasons) == words


class FakeReader:
    """Counts."""

    def __init__(self) -> None:
        self.read_once = threading.Event()
        self.closed = False

    def read(self, bus_id: str) -> GpuReading | None:
        self.read_once.set()
        return GpuReading(50.0, *[None] * 11) if bus_id == BUS else None

    def close(self) -> None:
        self.closed = True


def test_the_sampler_reads_what_it_is_told_of_and_ends() -> None:
    reader = FakeReader()
    sampler = GpuSampler(lambda: reader)
    assert sampler.newest_reading(BUS) is None
    sampler.request_gpus([BUS, "elsewhere"])
    deadline = time.monotonic() + 120
    while sampler.newest_reading(BUS) is None and time.monotonic() < deadline:
        reader.read_once.wait(0.1)
    sampler.close()
    assert sampler.newest_reading(BUS) is not None
    assert sampler.newest_reading("elsewhere") is None
    assert reader.closed


def test_a_host_without_nvml_costs_no_thread_and_raises_nothing() -> None:
    def refuse() -> Any:
        raise OSError("no driver")

    sampler = GpuSampler(refuse)
    sampler.request_gpus([])
    sampler.close()
    assert sampler.error is None
    other = GpuSampler(refuse)
    other.request_gpus([BUS])
    other.close()
    assert other.error == "no driver"
