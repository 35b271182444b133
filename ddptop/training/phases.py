"""The phases of a training thread's steps, forward, backward, optimizer and data, with no change to its code.

torch's own functions are wrapped. The wrappers do not show: their frames are taken out of tracebacks, and
torch.compile traces the originals (`torch_compat/dynamo.py`). Where torch warns with a stack level
(`DistributedDataParallel.__init__`, a loader's `__next__`) an inner function is wrapped instead.

Inside backward, `LastGradients` notes the moment of the last gradient.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable
from ctypes import c_float
from functools import partial
from threading import get_ident
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, float32
from torch.autograd.graph import get_gradient_edge
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from ddptop.protocol.messages import Flag, Phase
from ddptop.training.gc_pauses import watch_collector
from ddptop.training.guard import guard, hide_frame
from ddptop.training.import_hook import when_imported
from ddptop.training.own_cost import cpu_now
from ddptop.training.recorder import Recorder, StepHook, now
from ddptop.training.synchronisation import SynchronisationWatch
from ddptop.training.torch_compat.ddp import (
    AVERAGERS,
    SAVER,
    Function,
    averagers,
    end_of_gradients,
    reduces_itself,
    save_functions,
    step_functions,
)
from ddptop.training.torch_compat.divisors import divisors_of
from ddptop.training.torch_compat.dynamo import (
    compiles_backward,
    no_torch_function,
    pause,
    resume,
    seen_through,
)

Patched = Callable[..., Any]

_float_at = c_float.from_address

LATE_NO_SYNC = int(Flag.LATE_NO_SYNC)


def install_wrappers(
    recorder: Recorder,
    last_gradients: LastGradients,
    gradients: SynchronisationWatch,
    read_later: Callable[[Any], Any] | None = None,
    note_optimizer: Callable[[Any], None] = lambda _optimizer: None,
    note_saved: Callable[[int], None] = lambda _saved_ns: None,
) -> None:
    """Wrap torch's own functions, once per process. `read_later` takes a loss that is on a GPU;
    `note_optimizer` the optimizers of the first steps without a DDP model; `note_saved` how long this thread
    has saved, at the end of a save."""
    scaled = ScaledLoss(read_later)
    functions = step_functions()
    switched = SwitchedWrappers(last_gradients, scaled)
    switched.wrap_function(functions.pre_forward, partial(make_pre_forward, recorder, gradients))
    switched.wrap_function(functions.post_forward, partial(make_post_forward, recorder))
    switched.wrap_function(functions.backward, partial(make_backward, recorder, scaled, last_gradients))
    for next_data in functions.next_data:
        switched.wrap_function(next_data, partial(make_next_data, recorder, get_ident()))
    switched.wrap_function(functions.scale, scaled.wrap_scale)
    for wait in functions.waits:
        # A class of C++ may take no attribute: those waits count as own time.
        with contextlib.suppress(TypeError):
            switched.wrap_function(wait, partial(make_wait, recorder, last_gradients, get_ident()))
    for broadcast in functions.buffers:
        make = partial(make_wait, recorder, last_gradients, get_ident(), of_buffers=True)
        switched.wrap_function(broadcast, make)
    switched.wrap_meanwhile(functions.iterate, partial(_make_iterate, recorder, get_ident()))
    recorder.unseen.switches.append(switched.take_out)
    _wrap_function(functions.join_step, partial(_shadow_step, recorder))
    make_save = partial(recorder.saves.wrap_save, get_ident(), note_saved)
    _wrap_function(functions.save, make_save)
    when_imported(SAVER, partial(_wrap_saver, make_save))
    watch_collector(recorder.gc_pauses)
    _hook_optimizers(recorder, gradients, note_optimizer)
    when_imported(AVERAGERS, averagers.watch_module)


def optimizer_exists() -> bool:
    """Whether any torch optimizer was ever built in this process (torch marks its class's `step`)."""
    pending = [Optimizer]
    while pending:
        kind = pending.pop()
        if getattr(vars(kind).get("step"), "hooked", False):
            return True
        pending.extend(kind.__subclasses__())
    return False


def _wrap_function(function: Function, make: Callable[[Patched], Patched]) -> None:
    original = getattr(*function)
    setattr(*function, seen_through(make(original), original))


def _wrap_saver(make: Callable[[Patched], Patched], saver: ModuleType) -> None:
    for function in save_functions(saver):
        _wrap_function(function, make)


class SwitchedWrappers:
    """Wrappers that are taken out of torch for *unseen* steps, of which the recorder sees only the end."""

    def __init__(self, last_gradients: LastGradients, scaled: ScaledLoss) -> None:
        self._last_gradients, self._scaled = last_gradients, scaled
        self._functions: list[tuple[Function, Patched, Patched]] = []
        """Each with what torch has in its place in other steps, and in unseen ones."""

    def wrap_function(self, function: Function, make: Callable[[Patched], Patched]) -> None:
        """Wrap a function of torch in all steps but unseen ones."""
        original = vars(function.owner).get(function.name)
        _wrap_function(function, make)
        self._functions.append((function, getattr(*function), original))

    def wrap_meanwhile(self, function: Function, make: Callable[[Patched], Patched]) -> None:
        """Wrap a function of torch in unseen steps alone."""
        original = getattr(*function)
        self._functions.append((function, original, seen_through(make(original), original)))

    def take_out(self, out: bool) -> None:
        """Take the wrappers out for unseen steps, or put them back where not `out`. What somebody else has
        replaced since remains.

        The wrapper that waits for a first `backward()` takes itself out when it is called meanwhile.
        """
        self._scaled.forget_tensors()
        for function, usual, meanwhile in self._functions:
            before, after = (usual, meanwhile) if out else (meanwhile, usual)
            if vars(function.owner).get(function.name) in (before, getattr(before, "__wrapped__", before)):
                setattr(*function, after)
        self._last_gradients.take_out(out)


def make_pre_forward(recorder: Recorder, gradients: SynchronisationWatch, original: Patched) -> Patched:
    """What `DDP.forward` calls first. A forward without gradients (evaluation) is no training step."""
    grad_enabled, on = torch.is_grad_enabled, recorder.on

    def _pre_forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        paused = pause()  # between two steps the recorder reads torch's logger, and checks parameters
        try:
            if grad_enabled():
                recorder.forwarded = weakref.ref(self)
                on.forward_begins(self.require_backward_grad_sync, inputs, kwargs)
                if not recorder.aside:
                    gradients.forward_begins(self)
            else:
                recorder.calls_since_forward += 1
                if recorder.phase is Phase.OTHER:  # else it is a part of a training forward
                    recorder.evaluation.forward_begins(recorder.loader.newest)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        finally:
            resume(paused)
        try:
            return original(self, *inputs, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    return _pre_forward


def make_post_forward(recorder: Recorder, original: Patched) -> Patched:
    """What `DDP.forward` calls last; not reached where the user's module raises."""
    grad_enabled, on = torch.is_grad_enabled, recorder.on

    def _post_forward(self: Any, output: Any) -> Any:
        try:
            result = original(self, output)
        except BaseException as error:
            hide_frame(error)
            raise
        if not grad_enabled():
            recorder.evaluation.forward_ends()
        elif not recorder.aside:
            paused = pause()
            on.forward_ends()
            resume(paused)
        return result

    return _post_forward


def make_backward(
    recorder: Recorder, scaled: ScaledLoss, last_gradients: LastGradients, original: Patched
) -> Patched:
    """`torch.autograd.backward`, with its begin, its loss and its end recorded."""
    on = recorder.on

    def read_loss(tensors: Any) -> Any:
        loss = None
        paused = pause()
        try:
            if recorder.wants_loss:
                given = scaled.take_unscaled(tensors)
                loss = scaled.value_of(given)
                if loss is not None and recorder.losses.wants_divisors:
                    recorder.losses.divisors = divisors_of(given)
            else:
                scaled.forget_tensors()
            if compiles_backward():
                last_gradients.remove_hooks()
            # DDP decides at forward: `no_sync()` around the backward alone changes nothing.
            if recorder.synchronises:
                model = recorder.forwarded()
                if model is not None and not model.require_backward_grad_sync:
                    recorder.step_flags |= LATE_NO_SYNC
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        finally:
            resume(paused)
        return loss

    recorder.read_loss = read_loss

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.without_ddp:
            on.loss_is_ready()
        recording = not recorder.aside
        if recording:
            on.backward_begins(tensors)
        else:
            scaled.forget_tensors()
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException as error:
            if recording:
                on.backward_ends()
            hide_frame(error)
            raise
        if recording:
            on.backward_ends()
        return result

    return backward


def make_next_data(recorder: Recorder, thread: int, original: Patched) -> Patched:
    """`__next__` of a DataLoader's iterator, with the time it takes recorded."""
    on, loader, evaluation = recorder.on, recorder.loader, recorder.evaluation

    def _next_data(self: Any) -> Any:
        if get_ident() != thread:  # a thread that fetches ahead does not block training
            return original(self)
        recording = not recorder.aside
        loader.note_batch(self)
        may_evaluate = loader.newest is not loader.trained
        if may_evaluate:
            evaluation.fetch_begins(loader.newest)
        if recording:
            on.data_begins()
        else:
            recorder.calls_since_forward += 1
        try:
            batch = original(self)
        except BaseException as error:
            if recording:
                on.data_ends()
            if may_evaluate:
                evaluation.fetch_ends(is_exhausted=isinstance(error, StopIteration))
            if isinstance(error, StopIteration):
                # With the first batch of the next epoch it is no evaluation.
                recorder.calls_since_forward -= 1
            hide_frame(error)
            raise
        if recording:
            on.data_ends()
        if may_evaluate:
            evaluation.fetch_ends(is_exhausted=False)
        return batch

    return _next_data


def _make_iterate(recorder: Recorder, thread: int, original: Patched) -> Patched:
    def __iter__(self: Any) -> Any:
        if get_ident() == thread:  # a pass over the data begins, or an evaluation: batches are to be counted
            try:
                recorder.see_again()
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)
        return original(self)

    return __iter__


def make_wait(
    recorder: Recorder,
    last_gradients: LastGradients,
    thread: int,
    original: Patched,
    *,
    of_buffers: bool = False,
) -> Patched:
    """Wrap a function that waits for a collective of the script's own, or for DDP's broadcast `of_buffers`,
    and record how long it waits."""

    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        training = not recorder.aside and get_ident() in (thread, last_gradients.thread)
        began = recorder.wait_begins(of_buffers=of_buffers) if training else 0
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        finally:
            if training:
                recorder.wait_ends(began, of_buffers=of_buffers)

    return wait


def _shadow_step(recorder: Recorder, original: Patched) -> Patched:
    def main_hook(self: Any) -> Any:
        began = now()
        try:
            result = original(self)
        except BaseException as error:
            hide_frame(error)
            raise
        try:
            # Here torch keeps whether the others synchronised their gradients in this iteration.
            if self.ddp.require_forward_param_sync:
                recorder.shadow_step_ends(began)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        return result

    return main_hook


FIRST_STEPS = 2
"""Without a DDP model: steps whose optimizers are looked at."""


CLOCKED_UNSEEN = 4
"""Which of the unseen steps in a row is clocked: in the first ones caches are filled anew, and a shadow block
has nine."""


def make_clocked_end(unseen_end: StepHook, handle: RemovableHandle, costs: deque[int]) -> StepHook:
    """Return the hook of the first unseen steps. It adds the CPU time that `unseen_end` takes in one of them,
    in ns, to `costs`, and has `unseen_end` take its place, which is that of `handle`."""
    n_left = CLOCKED_UNSEEN

    def clocked_end(optimizer: Any, args: Any = (), kwargs: Any = None) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left:
            unseen_end(optimizer, args, kwargs)
            return
        began = cpu_now()
        unseen_end(optimizer, args, kwargs)
        spent_ns = cpu_now() - began
        hooks = handle.hooks_dict_ref()
        # Where this was the last unseen step, another hook has taken the place.
        if hooks is not None and hooks.get(handle.id) is clocked_end:
            hooks[handle.id] = unseen_end
            costs.append(spent_ns)

    return clocked_end


def _hook_optimizers(
    recorder: Recorder, gradients: SynchronisationWatch, note_optimizer: Callable[[Any], None]
) -> None:
    on, unseen_steps = recorder.on, recorder.unseen

    def before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not recorder.aside:
            on.optimizer_begins(id(optimizer))
            if gradients.has_unreduced:
                gradients.optimizer_begins(optimizer)

    def after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        try:
            if unseen_steps.optimizer:
                recorder.unseen_step_ends(id(optimizer))
                return
            if gradients.has_unreduced and not recorder.aside:
                gradients.optimizer_ends(optimizer)
            if recorder.aside:
                recorder.aside_step_ends()
            else:
                on.optimizer_ends(id(optimizer))
            if recorder.without_ddp and recorder.step < FIRST_STEPS:
                note_optimizer(optimizer)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    before = register_optimizer_step_pre_hook(before_step)
    after = register_optimizer_step_post_hook(after_step)

    def choose_hooks(unseen: bool) -> None:
        usual = ((before, before_step), (after, after_step))
        meanwhile: tuple[tuple[RemovableHandle, Any], ...] = ()
        if unseen:
            unseen_end = recorder.make_unseen_end(after_step)
            clocked_end = make_clocked_end(unseen_end, after, recorder.unseen.end_costs)
            meanwhile = ((before, _DO_NOTHING), (after, clocked_end))
        for handle, hook in meanwhile or usual:
            # Its place is kept: torch may be calling all hooks just now.
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = hook

    recorder.unseen.switches.append(choose_hooks)


_DO_NOTHING = (0).__init__  # type: ignore[misc]
"""Takes any arguments and returns None; it is C, and takes a third of what a function of Python does."""


STAMP_NS = 6_000
"""What a stamp costs, most of it inside the autograd engine: 4 to 6 us where caches are cold (measured at a
load of 8 on two cores), and 0.8 us to read how long the thread has waited for a CPU."""


class LastGradients:
    """Has the recorder called at the end of the gradients of each backward, before DDP waits for others.

    Two parameters of each model are watched, the first and the last that are trained: one of them may be
    unused. What is hooked is the node of the autograd graph that accumulates their gradient, ahead of DDP's
    own hook there: nothing of the parameter changes, and nothing of it is copied or pickled. Where neither
    has a gradient, the moment is not known. The first backward of a model is left out: with a static graph
    all of its all-reduces are launched in its end.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.thread = 0
        """The autograd engine's, where it has called last: on a GPU not the training thread."""
        self._hooks: dict[Any, Callable[[Any], None]] = {}
        """By their handles."""

    def watch_model(self, ddp: Any, note: Callable[[], None] = lambda: None) -> None:
        """Watch a model, until it is gone. `note` is called with each gradient of the two parameters."""
        if not reduces_itself(ddp):
            return
        trained = [
            parameter
            for name, parameter in ddp.module.named_parameters()
            if parameter.requires_grad and name not in ddp.parameters_to_ignore
        ]
        hook = self._make_hook(note)
        # With a single parameter the first is also the last.
        for parameter in {id(parameter): parameter for parameter in trained[:1] + trained[-1:]}.values():
            with no_torch_function():
                node = get_gradient_edge(parameter).node
            # The node, and with it the hook, lives as long as someone holds it: the reducer does.
            handle = node.register_prehook(hook)
            self._hooks[handle] = hook
            weakref.finalize(ddp, self._remove_hook, handle).atexit = False

    def remove_hooks(self) -> None:
        """Watch no model any more."""
        for handle in list(self._hooks):
            self._remove_hook(handle)

    def _remove_hook(self, handle: Any) -> None:
        self._hooks.pop(handle, None)
        handle.remove()

    def take_out(self, out: bool) -> None:
        """Take the hooks out for unseen steps, or put them back where not `out`."""
        for handle, hook in list(self._hooks.items()):  # one that is gone meanwhile is taken out of them
            if out:
                handle.remove()
            elif (hooks_of_node := handle.hooks_dict_ref()) is not None:
                hooks_of_node[handle.id] = hook

    def _make_hook(self, note: Callable[[], None]) -> Callable[[Any], None]:
        """Return the hook that the autograd engine calls, on a thread of its own, with the gradients of a
        watched parameter."""
        recorder, at_end = self._recorder, end_of_gradients()
        first = True

        def before_accumulation(_gradients: Any) -> None:
            nonlocal first
            try:
                note()
                if first:
                    first = not (recorder.synchronises or recorder.several_models)
                    recorder.spoil_stamp()
                elif recorder.stamp_due:
                    recorder.stamp_due = False
                    self.thread = get_ident()
                    at_end(recorder.last_gradient)
                    if recorder.cost_clock is not int:
                        recorder.add_cost(STAMP_NS)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)

        return before_accumulation


class ScaledLoss:
    """Reads the loss that `backward()` is given, and what it was before a GradScaler multiplied it."""

    def __init__(self, read_later: Callable[[Any], Any] | None = None) -> None:
        self._read_later = read_later
        self._scaled: Any = None
        self._unscaled: Any = None

    def wrap_scale(self, original: Patched) -> Patched:
        """Remember the last tensor that `GradScaler.scale` was given."""

        def scale(scaler: Any, outputs: Any) -> Any:
            result = original(scaler, outputs)
            self._scaled, self._unscaled = result, outputs
            return result

        return scale

    def forget_tensors(self) -> None:
        """Let go of the tensors, and with them of their graph."""
        self._scaled = self._unscaled = None

    def take_unscaled(self, tensors: Any) -> Any:
        """What `backward()` is given, before a GradScaler multiplied it."""
        given = tensors
        if self._scaled is not None:
            if given is self._scaled:
                given = self._unscaled
            self.forget_tensors()
        return given

    def value_of(self, loss: Any) -> Any:
        """The loss as a number, read at once (the tensor may change later); None unless it is a scalar.

        On a GPU reading would wait for the device: there it is what `read_later` makes of it.
        """
        # A subclass may run code of the script when it is read.
        if type(loss) is not Tensor or loss.numel() != 1:
            return None
        if not loss.is_cpu:
            return self._read_later(loss) if loss.is_cuda and self._read_later is not None else None
        address = loss.data_ptr() if loss.dtype is float32 and not loss.is_neg() else 0
        if address:  # item() goes twice through the dispatcher; a lazy zero has no address
            return _float_at(address).value
        return float(loss.item())
