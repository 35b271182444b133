"""The recorder below DDP's reducer: a process group that times each bucket's all-reduce and forwards it.

Only the C++ reducer of one DDP model is handed this group; everything else keeps the real one. Without a
communication hook the reducer scales gradients in ways that depend on the world size, on bucket views, on
sparsity and on `join()`; a Python hook cannot repeat all of them to the last bit. Below the reducer
nothing of that changes: the same tensor goes to the same group.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ddptop.training.guard import guard
from ddptop.training.recorder import Recorder, now
from ddptop.training.timers import BucketTimer
from ddptop.training.torch_compat.dynamo import pause, resume


class BucketKey(NamedTuple):
    """What identifies a bucket in a rank's layout; the publisher gives each key its number."""

    model: int
    index: int  # type: ignore[assignment]  # as in the message `Bucket`
    bytes: int
    wire_bytes: int | None
    parameters: int | None
    dtype: Any
    hook: str


class TimedProcessGroup(dist.ProcessGroup):  # type: ignore[misc]  # torch is not followed by mypy
    """Forwards what a reducer calls to `group`, and notes each gradient all-reduce in `recorder`."""

    def __init__(self, group: Any, model: int, recorder: Recorder, timer: BucketTimer) -> None:
        super().__init__(group.rank(), group.size())
        self._group = group
        self._model = model
        self._recorder = recorder
        self._timer = timer
        self._passes = -1
        self._index = 0
        self._keys: dict[int, tuple[int, BucketKey]] = {}
        """By index: elements and key of the dense buckets. To ask a tensor for its bytes and make a key takes
        15 us where caches are cold."""
        self._adopt_backends()

    def _adopt_backends(self) -> None:
        # Registering a backend overwrites its bound_device_id with ours: take it over first.
        if hasattr(self._group, "bound_device_id"):
            self.bound_device_id = self._group.bound_device_id
        kinds = dist.Backend.backend_type_map
        custom = dist.ProcessGroup.BackendType.CUSTOM
        for device in self._group._device_types:
            backend = self._group._get_backend(device)
            self._register_backend(device, kinds.get(backend.name(), custom), backend)
        self._set_default_backend(kinds.get(self._group.name(), custom))

    # The reducer and its logger ask these of their group.

    def getSize(self) -> int:
        """World size."""
        return int(self._group.size())

    def getRank(self) -> int:
        """This process's rank in the group."""
        return int(self._group.rank())

    def getBackendName(self) -> str:
        """Name of the backend, as the real group gives it."""
        return str(self._group.name())

    def getGroupName(self) -> str:
        """Name of the group, as the real group gives it."""
        return str(self._group.group_name)

    def broadcast(self, tensors: Any, opts: Any) -> Any:
        """Forwarded untimed."""
        return self._group.broadcast(tensors, opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any) -> Any:
        """Forwarded untimed."""
        return self._group.allgather(outputs, inputs, opts)

    def allreduce(self, tensors: Any, opts: Any) -> Any:
        """All-reduce of one bucket: stamped, launched, and its end watched."""
        cpu = self._recorder.cost_clock
        began = cpu()
        ready = self._timer.ready()
        spent = cpu() - began
        work = self._group.allreduce(tensors, opts)
        if self._recorder.detail and ready is not None:
            launched = now()
            began = cpu()
            paused = pause()  # a compiled training may be above the reducer
            try:
                self._note(tensors[0], ready, launched, work)
                self._recorder.add_cost(spent + cpu() - began)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
            finally:
                resume(paused)
        return work

    def _note(self, tensor: torch.Tensor, ready: Any, launched: int, work: Any) -> None:
        if tensor.dtype is torch.int32:  # the reducer's map of used parameters: no gradient has this type
            return
        recorder = self._recorder
        if recorder.passes != self._passes:
            self._passes, self._index = recorder.passes, 0
        call = recorder.note(self._key_of(self._index, tensor), ready, launched)
        self._index += 1
        if call is not None:
            self._timer.watch(call, work.get_future())

    def _key_of(self, index: int, tensor: torch.Tensor) -> BucketKey:
        elements, dtype = tensor.numel(), tensor.dtype
        known = self._keys.get(index)
        if known is not None and known[0] == elements and known[1].dtype is dtype:
            return known[1]
        size = _bytes_of(tensor)
        key = BucketKey(self._model, index, size, size, None, dtype, "")
        if not tensor.is_sparse:  # of a sparse one the bytes are others in every step
            self._keys[index] = elements, key
        return key


def _bytes_of(tensor: torch.Tensor) -> int:
    if tensor.is_sparse:
        return int(tensor._values().nbytes + tensor._indices().nbytes)
    return int(tensor.nbytes)
