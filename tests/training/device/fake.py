"""A made-up GPU: streams that run behind a made-up host clock, and events on them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any


class FakeStream:
    """Work on it ends at `busy_ns` on the host's clock."""

    def __init__(self, device: FakeDevice | None = None) -> None:
        self.busy_ns = 0
        self._device = device

    def query(self) -> bool:
        """Whether it has done all its work."""
        return self._device is None or self.busy_ns <= self._device.now_ns


class FakeEvent:
    """Happens when its stream has done what it was given before."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.at_ns: int | None = None
        self.recorded = 0
        self.recorded_ns = 0

    def record(self, stream: Any = None) -> None:
        chosen = stream or self._device.current
        self.recorded += 1
        self.at_ns = max(self._device.now_ns, chosen.busy_ns)

    def query(self) -> bool:
        self._device.now_ns += self._device.look_ns
        return self.at_ns is not None and self.at_ns <= self._device.now_ns

    def elapsed_time(self, end_event: Any) -> float:
        """As CUDA gives it: a float32 of milliseconds, and an error for an event that is still to come."""
        if self.at_ns is None or end_event.at_ns is None or not (self.query() and end_event.query()):
            raise RuntimeError("device not ready")
        return float(struct.unpack("f", struct.pack("f", (end_event.at_ns - self.at_ns) / 1e6))[0])


class FakeDevice:
    """One GPU and the host's clock beside it."""

    def __init__(self, *, look_ns: int = 1_000) -> None:
        self.now_ns = 1_000_000_000
        self.look_ns = look_ns
        """What a look at an event costs the host."""
        self.current = FakeStream(self)
        self.captures = False
        self.streams: list[FakeStream] = []

    def new_event(self) -> FakeEvent:
        return FakeEvent(self)

    def make_current(self) -> None:
        """One device is always the current one."""

    def capturing(self) -> bool:
        return self.captures

    def stream(self) -> FakeStream:
        return self.current

    def side_stream(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    @contextlib.contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def compute(self, ns: int) -> None:
        """Give the current stream so much work."""
        self.current.busy_ns = max(self.current.busy_ns, self.now_ns) + ns

    def sleep(self, seconds: float) -> None:
        """Of the host."""
        self.now_ns += int(seconds * 1e9)

    def now(self) -> int:
        """The host's clock."""
        return self.now_ns
