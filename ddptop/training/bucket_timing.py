"""Where a bucket's all-reduce is timed: in a process group below DDP's reducer, or in a communication hook.

`TimedProcessGroup` times each bucket's all-reduce and forwards it. Only the C++ reducer of one DDP model is
given this group; everything else keeps the real one. Without a communication hook the reducer scales
gradients in ways that depend on the world size, on bucket views, on sparsity and on `join()`; a Python hook
cannot repeat all of them to the last bit. Below the reducer nothing of that changes: the same tensor goes to
the same group.

`timed_hook` times whatever communication hook it carries, and returns that hook's own future.

A `BucketTimer` measures when a bucket was ready and when its all-reduce ended, one for each kind of device:
`HostTimer` here, those of CUDA in `device/events.py`. `TimerBoundsReporter` measures, from the timestamps
themselves, how far they may be wrong.
"""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from operator import setitem
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks

from ddptop.protocol.messages import Event
from ddptop.training.guard import guard, hide_frame
from ddptop.training.medians import upper_median
from ddptop.training.recorder import Recorder, now
from ddptop.training.step_record import BucketCall, LeftOutSteps, StepRecord
from ddptop.training.torch_compat.ddp import set_reducer_group
from ddptop.training.torch_compat.dynamo import pause, resume
from ddptop.training.torch_compat.process_groups import adopt_backends, bytes_of


class BucketTimer(Protocol):
    """Times a bucket all-reduce. Called between the reducer and the collective: it must never block."""

    def ready(self) -> Any:
        """The moment the bucket is handed over, in ns of the host's CLOCK_MONOTONIC or as an event of the
        device; None where it must not be timed."""

    def watch(self, call: BucketCall, future: Any) -> None:
        """Fill in `call[2]`, the end, in ns when the collective behind `future` has completed, or at once
        as an event that will happen then."""


class HostTimer:
    """Host clock at the hand-over and in the future's completion callback: gloo, CPU tensors.

    The callback runs on a gloo thread that needs the GIL first, so the end is an upper bound: some 40 us
    late on an idle interpreter. The publisher clamps it to the end of backward, which waits for every bucket.
    It is `next(stores, future)`, which ignores the future and runs no Python code: 3 us less than a method.
    """

    ready = staticmethod(now)

    def watch(self, call: BucketCall, future: Any) -> None:
        stores = map(partial(setitem, call, 2), _TIMES)
        future.add_done_callback(partial(next, stores))


_TIMES = iter(now, None)
"""The present time, at each `next`."""


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
        self._passes = -1
        self._index = 0
        self._allreduce, self._ready, self._watch = group.allreduce, timer.ready, timer.watch
        self._keys: dict[int, tuple[Any, int, BucketKey]] = {}
        """By index: type, elements and key of the dense buckets. To ask a tensor for its bytes and make a key
        takes 15 us where caches are cold."""
        adopt_backends(self, group)

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
        """All-reduce of one bucket: `ready` is timed, the collective is launched, and its end is timed."""
        recorder = self._recorder
        cpu = recorder.cost_clock
        # What has waited before is none of this call's cost.
        recorder.take_blocked()
        began = cpu()
        # As late as possible: what lies between this stamp and the launch counts as communication.
        ready = self._ready()
        spent = cpu() - began - recorder.take_blocked()
        # Not guarded: what the collective raises is the user's, and reaches backward as without ddptop.
        work = self._allreduce(tensors, opts)
        if recorder.detail and ready is not None:
            launched = 0 if cpu is int else now()  # a median needs few
            recorder.take_blocked()
            began = cpu()
            paused = pause()  # a compiled training may be above the reducer
            try:
                self._note_bucket(tensors[0], ready, launched, work)
                if cpu is not int:
                    recorder.add_cost(spent + cpu() - began - recorder.take_blocked())
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
            finally:
                resume(paused)
        return work

    def _note_bucket(self, tensor: torch.Tensor, ready: Any, launched: int, work: Any) -> None:
        recorder = self._recorder
        # Another backward pass: its buckets count from 0 again.
        if recorder.passes != self._passes:
            self._passes, self._index = recorder.passes, 0
        index = self._index
        dtype, elements, key = self._keys.get(index, _NO_KEY)
        if dtype is not tensor.dtype or elements != tensor.numel():
            if tensor.dtype is torch.int32:  # the reducer's map of used parameters: no gradient has this type
                return
            key = self._new_key(index, tensor)
        self._index = index + 1
        call = recorder.note_bucket(key, ready, launched)
        if call is not None:
            self._watch(call, work.get_future())

    def _new_key(self, index: int, tensor: torch.Tensor) -> BucketKey:
        size = bytes_of(tensor)
        key = BucketKey(self._model, index, size, size, None, tensor.dtype, "")
        if not tensor.is_sparse:  # of a sparse one the bytes are others in every step
            self._keys[index] = tensor.dtype, tensor.numel(), key
        return key


_NO_KEY = (None, 0, None)

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
    keys = BucketKeys(hook, model)

    @functools.wraps(hook, updated=())
    def timed(state: Any, bucket: Any) -> Any:
        cpu = recorder.cost_clock
        recorder.take_blocked()
        began = cpu()
        ready = timer.ready() if recorder.detail else None
        spent = cpu() - began - recorder.take_blocked()
        try:
            # As above: an error of the hook is the user's.
            future = hook(state, bucket)
        except BaseException as error:
            hide_frame(error)
            raise
        if recorder.detail and ready is not None:
            try:
                recorder.take_blocked()  # of a collective of the hook's own
                began = cpu()
                call = recorder.note_bucket(keys.key_of(bucket), ready)
                if call is not None:
                    timer.watch(call, future)
                recorder.add_cost(spent + cpu() - began - recorder.take_blocked())
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
        return future

    return timed


class BucketKeys:
    """The keys of one model's buckets, made once each: listing a bucket's parameters takes time."""

    def __init__(self, hook: Hook, model: int) -> None:
        self._name = getattr(hook, "__name__", type(hook).__name__)
        self._model = model
        # By identity: a function of the same name may send something else.
        self._bits = next((bits for torch_hook, bits in _WIRE_BITS if torch_hook is hook), -1)
        self._keys: dict[tuple[int, int], BucketKey] = {}

    def key_of(self, bucket: Any) -> BucketKey:
        """The key of a `GradBucket`."""
        buffer = bucket.buffer()
        shape = (bucket.index(), buffer.nbytes)
        key = self._keys.get(shape)
        if key is None:
            key = self._keys[shape] = BucketKey(
                self._model,
                *shape,
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


class TimedModel:
    """One DDP model: its number in the process, and its process group as the reducer sees it."""

    def __init__(self, ddp: Any, number: int, recorder: Recorder, timer: BucketTimer | None) -> None:
        """`timer`: None where no timer of its device and backend is right."""
        self.number = number
        self.timer = timer
        # Weak: the reducer is the model's, and must be freed with it.
        self._reducer = weakref.ref(ddp.reducer)
        self._plain = ddp.process_group
        self._timed: TimedProcessGroup | None = None
        if timer is not None:
            self._timed = TimedProcessGroup(self._plain, number, recorder, timer)
            self.switch_detail(recorder.detail)

    def owns_reducer(self, reducer: Any) -> bool:
        """Whether this is the model of `reducer`."""
        return self._reducer() is reducer

    def switch_detail(self, detail: bool) -> None:
        """Put the recorder between reducer and group, or take it out."""
        reducer = self._reducer()
        if reducer is not None and self._timed is not None:
            set_reducer_group(reducer, self._timed if detail else self._plain)


RECENT_TIMESTAMPS = 256
"""Timestamps that are evaluated: some ten steps of 25 buckets."""

FIRST_TIMESTAMPS = 32
"""Timestamps after which the bounds are reported first; DDP has rebuilt its buckets by then."""

HOOK_READY_BOUND_US = 100.0
"""Where a communication hook is timed there is no second timestamp before the collective to compare the first
with: the hook runs between them. Analysis assumes the same of a rank that has reported nothing."""

LEAST_BOUND_CHANGE_US = 5.0
"""Smaller changes of a bound are noise."""


class TimerBoundsReporter:
    """Measures the bounds of the timestamps of detailed steps, and reports changes. On one thread."""

    def __init__(
        self, handed: deque[int], device_bounds_ns: Callable[[], tuple[int, int] | None] = lambda: None
    ) -> None:
        """`handed`: how long after their ready stamps the last buckets were handed on, in ns.
        `device_bounds_ns`: how far a device's ready and end may be wrong; None: no device."""
        self._handed = handed
        self._device_bounds_ns = device_bounds_ns
        self._late: deque[int] = deque(maxlen=RECENT_TIMESTAMPS)
        self._seen = 0
        self._sent: tuple[float, float] | None = None

    def add_steps(self, records: Iterable[StepRecord | LeftOutSteps]) -> None:
        """Add the completion timestamps of finished steps."""
        for record in records:
            if isinstance(record, LeftOutSteps):
                continue
            latest = record.backward_end
            for _key, ready, end in record.calls:
                if type(end) is int and end and latest >= ready:  # a device's timestamps are no host times
                    self._seen += 1
                    self._late.append(max(0, end - latest))

    def changed_bounds(self, rank: int, step: int) -> Event | None:
        """The bounds as an event, when they are first known and whenever one has doubled or halved."""
        if self._seen < FIRST_TIMESTAMPS:
            return None
        handed = list(self._handed)
        # Figures are medians over steps: what shifts every timestamp by at most its own delay shifts a median
        # by no more than about the median delay. The tail (ms, where the thread is preempted) is not in them.
        handed_us, late_us = (round(upper_median(delays_ns) / 1e3, 1) for delays_ns in (handed, self._late))
        bounds = (handed_us if handed else HOOK_READY_BOUND_US, late_us)
        device_ns = self._device_bounds_ns()
        if device_ns is not None:
            # Under gloo the end is taken on the host, also of tensors on a GPU.
            bounds = (device_ns[0] / 1e3, max(device_ns[1] / 1e3, bounds[1]))
        sent = self._sent
        if sent is not None and not any(
            _has_changed(old, new) for old, new in zip(sent, bounds, strict=True)
        ):
            return None
        self._sent = bounds
        return Event("timer", now(), rank, step, {"ready_us": bounds[0], "end_us": bounds[1]})

    @property
    def are_sent(self) -> bool:
        """Whether `changed_bounds` has reported the bounds."""
        return self._sent is not None

    def forget_sent(self) -> None:
        """Have `changed_bounds` report the bounds again: the collector is another one."""
        self._sent = None


def _has_changed(old: float, new: float) -> bool:
    low, high = sorted((old, new))
    return high - low > LEAST_BOUND_CHANGE_US and high >= 2 * low
