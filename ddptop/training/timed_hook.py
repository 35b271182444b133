"""The timed communication hook: times whatever hook it carries, and returns that hook's own future."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks

from ddptop.training.guard import guard, hide_frame
from ddptop.training.recorder import Recorder
from ddptop.training.timed_group import BucketKey
from ddptop.training.timers import BucketTimer

Hook = Callable[[Any, Any], Any]

_WIRE_BITS: list[tuple[Any, int | None]] = [
    (default_hooks.allreduce_hook, None),
    (default_hooks.fp16_compress_hook, 16),
    (default_hooks.bf16_compress_hook, 16),
    (debugging_hooks.noop_hook, 0),
]
"""Bits that torch's own hooks send per gradient element; None: the gradient as it is."""


def timed_hook(hook: Hook, model: int, recorder: Recorder, timer: BucketTimer) -> Hook:
    """Wrap a DDP communication hook so that each of its buckets is timed.

    `ready` is the call of the hook, `end` the completion of the future that it returns: for a compressing
    hook this includes compressing and decompressing. Use it for any hook; the result is not touched.
    """
    keys = _BucketKeys(hook, model)

    @functools.wraps(hook, updated=())
    def timed(state: Any, bucket: Any) -> Any:
        cpu = recorder.cost_clock
        began = cpu()
        ready = timer.ready()
        spent = cpu() - began
        try:
            future = hook(state, bucket)
        except BaseException as error:
            hide_frame(error)
            raise
        if recorder.detail and ready is not None:
            try:
                began = cpu()
                call = recorder.note(keys.of(bucket), ready)
                if call is not None:
                    timer.watch(call, future)
                recorder.add_cost(spent + cpu() - began)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
        return future

    return timed


class _BucketKeys:
    """The keys of one model's buckets, made once each: listing a bucket's parameters takes time."""

    def __init__(self, hook: Hook, model: int) -> None:
        self._name = getattr(hook, "__name__", type(hook).__name__)
        self._model = model
        self._bits = next((bits for known, bits in _WIRE_BITS if known is hook), -1)
        self._keys: dict[tuple[int, int], BucketKey] = {}

    def of(self, bucket: Any) -> BucketKey:
        """The key of a `GradBucket`."""
        buffer = bucket.buffer()
        place = (bucket.index(), buffer.nbytes)
        key = self._keys.get(place)
        if key is None:
            key = self._keys[place] = BucketKey(
                self._model,
                *place,
                self._wire_bytes(buffer),
                len(bucket.parameters()),
                buffer.dtype,
                self._name,
            )
        return key

    def _wire_bytes(self, buffer: Any) -> int | None:
        if self._bits is None:
            return int(buffer.nbytes)
        return None if self._bits < 0 else buffer.numel() * self._bits // 8
