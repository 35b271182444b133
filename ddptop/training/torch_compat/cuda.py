"""CUDA streams, without what torch's Python functions do around them.

Private functions of `torch._C`, which `torch.cuda.current_stream` and `torch.cuda.stream` call; where one is
missing, those are used. Named so in torch 2.6, 2.13 and 2.15, and run on a GPU with 2.11.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

_CURRENT = getattr(torch._C, "_cuda_getCurrentStream", None)
_SET = getattr(torch._C, "_cuda_setStream", None)
_DEVICE = getattr(torch._C, "_cuda_getDevice", None)
_CAPTURING = getattr(torch._C, "_cuda_isCurrentStreamCapturing", None)


class Streams:
    """The current streams of one device."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._stream_by_key: dict[tuple[int, int, int], Any] = {}
        self.capturing = _CAPTURING or torch.cuda.is_current_stream_capturing
        """Whether the current stream is being captured into a graph."""

    def current_stream(self) -> Any:
        """The calling thread's current stream of this device."""
        if _CURRENT is None:
            return torch.cuda.current_stream(self._index)
        key = _CURRENT(self._index)
        # Kept: torch makes a new object in each call.
        stream = self._stream_by_key.get(key)
        if stream is None:
            stream = self._stream_by_key[key] = torch.cuda.current_stream(self._index)
        return stream

    def on(self, stream: Any) -> Any:
        """A context in which `stream`, of this device, is the current one."""
        if _CURRENT is None or _SET is None or _DEVICE is None or _DEVICE() != self._index:
            return torch.cuda.stream(stream)  # it also makes the device the current one, and back
        return _On(stream, _CURRENT(self._index))


class _On:
    __slots__ = ("_before", "_stream")

    def __init__(self, stream: Any, before: tuple[int, int, int]) -> None:
        self._stream = (stream.stream_id, stream.device_index, stream.device_type)
        self._before = before

    def __enter__(self) -> None:
        _set_stream(self._stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _set_stream(self._before)


def _set_stream(stream: tuple[int, int, int]) -> None:
    assert _SET is not None
    _SET(stream_id=stream[0], device_index=stream[1], device_type=stream[2])
