"""DistributedDataParallel: the private functions that the recorder wraps, and those that it calls.

Importing this module does not import torch. Checked on torch 2.6, 2.13 and 2.15.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.process import BaseProcess
from types import FunctionType
from typing import Any, NamedTuple

from ddptop.training.guard import guard, hide_frame


def end_of_gradients() -> Callable[[Callable[[], None]], None]:
    """What has the autograd engine call a function once all gradients of the running backward are computed.

    The engine calls what is queued in that order, and on a device with the caller's streams as the current
    ones. DDP's reducer waits for its all-reduces in such a call, queued with its last bucket.
    """
    from torch.autograd import Variable

    queue: Callable[[Callable[[], None]], None] = Variable._execution_engine.queue_callback
    return queue


def graph_node_counter() -> Callable[[], int]:
    """What counts the autograd nodes that the calling thread has made so far: each forward with gradients
    makes some, an optimizer none. -1 where this torch cannot tell."""
    import torch

    counter: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: -1)
    return counter


def reduces_itself(ddp: Any) -> bool:
    """Whether DDP's C++ reducer all-reduces the gradients of a model, not Python hooks to be compiled."""
    return not getattr(ddp, "_use_python_reducer", False)


class Function(NamedTuple):
    """A function of torch that can be replaced: `setattr(owner, name, ...)`."""

    owner: Any
    name: str


class StepFunctions(NamedTuple):
    """The functions of torch that bound the phases of a step."""

    pre_forward: Function
    """Called first by `DDP.forward`; with that replaced, torch.compile would begin at another frame."""
    post_forward: Function
    backward: Function
    next_data: tuple[Function, ...]
    """What fetches a batch in a DataLoader's iterators. Not `__next__`, which warns with a stack level."""
    iterate: Function
    """Where a pass over a DataLoader begins."""
    scale: Function
    """`scale` of GradScaler."""
    waits: tuple[Function, ...]
    """Where Python waits for other ranks, as far as this torch has them: the end of every blocking collective
    that was launched from Python."""
    buffers: tuple[Function, ...]
    """Where DDP's forward sends the buffers of rank 0 to all, if this torch has it."""
    join_step: Function
    """One step of the others, shadowed under `join()` by a rank that has run out of inputs."""
    save: Function


def step_functions() -> StepFunctions:
    """The functions of the loaded torch that are wrapped. Raises AttributeError where it no longer has one of
    them."""
    import torch
    from torch.amp.grad_scaler import GradScaler
    from torch.nn.parallel import distributed
    from torch.utils.data import dataloader

    model = distributed.DistributedDataParallel
    waits = (
        Function(torch.distributed.Work, "wait"),
        Function(torch.distributed.ProcessGroup, "monitored_barrier"),
    )
    buffers = (Function(model, "_distributed_broadcast_coalesced"),)
    iterators = (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter)
    return StepFunctions(
        Function(model, "_pre_forward"),
        Function(model, "_post_forward"),
        Function(torch.autograd, "backward"),
        tuple(Function(iterator, "_next_data") for iterator in iterators),
        Function(dataloader.DataLoader, "__iter__"),
        Function(GradScaler, "scale"),
        tuple(wait for wait in waits if hasattr(*wait)),
        tuple(broadcast for broadcast in buffers if hasattr(*broadcast)),
        Function(distributed._DDPJoinHook, "main_hook"),
        Function(torch, "save"),
    )


def after_construction(module: Any, then: Callable[[Any], None]) -> None:
    """Call `then(ddp)` when a model of `torch.nn.parallel.distributed` has its reducer, or another group.

    Raises AttributeError where this torch has no such function.
    """
    # Not __init__: it warns with stacklevel=2, which a wrapper would shift to a line of ours.
    _call_after(module.DistributedDataParallel, "_ddp_init_helper", then)
    _call_after(module.DistributedDataParallel, "_update_process_group", then)


def before_refusal(
    module: Any, begin: Callable[[Any], None], note_parameters: Callable[[Sequence[Any]], None]
) -> None:
    """Call `begin(device)` before `torch.nn.parallel.distributed` refuses a model, or may do so, and
    `note_parameters(parameters)` before its constructor waits for the other ranks for the first time.

    Functions that a later torch no longer has are left out.
    """
    model = module.DistributedDataParallel
    _call_before(model, "_log_and_throw", lambda ddp, *_: begin(getattr(ddp, "device", None)))
    # A collective: it raises on the ranks whose shapes differ from rank 0's, then rank 0 in the next one.
    verify = "_verify_param_shape_across_processes"

    def before_verification(_group: Any, parameters: Any, *_: Any) -> None:
        note_parameters(parameters)
        begin(parameters[0].device)

    _call_before(module, verify, before_verification)


def around_process_groups(
    dist: Any,
    meets: Callable[[int, int], None],
    mark: Callable[[int, int], None],
    met: Callable[[], None],
) -> None:
    """Call `meets(rank, world_size)` before `init_process_group` looks for the others (-1: as the environment
    says), `mark(rank, world_size)` before `torch.distributed` makes a process group and waits for its other
    ranks, and `met()` once it has.

    Not around `init_process_group`: it warns with stacklevel=2.
    """
    owner, name = dist.distributed_c10d, "_new_process_group_helper"
    _call_before(owner, "rendezvous", lambda _url, rank=-1, world_size=-1, *_: meets(rank, world_size))
    _call_before(owner, name, lambda world_size, rank, *_: mark(rank, world_size))
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            group = original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        try:
            met()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        return group

    setattr(owner, name, wrapper)


def replace_comm_hooks(dist: Any, replacement: Callable[[Any, Any], Any]) -> None:
    """Register `replacement(reducer, hook)` where a hook is registered, by the user or by DDP itself.

    Raises AttributeError where this torch has no such function.
    """
    original = dist._register_comm_hook

    @functools.wraps(original)
    def _register_comm_hook(reducer: Any, state: Any, hook: Any) -> Any:
        # Where ours fails, the script's hook is registered as it is.
        carried = hook
        try:
            carried = replacement(reducer, hook)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        try:
            return original(reducer, state, carried)
        except BaseException as error:
            hide_frame(error)
            raise

    dist._register_comm_hook = _register_comm_hook


def before_destruction(dist: Any, leave: Callable[[], None]) -> None:
    """Call `leave()` before `torch.distributed` destroys the default group, and all others with it."""
    name = "destroy_process_group"
    original = getattr(dist, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        try:
            group = args[0] if args else kwargs.get("group")
            if dist.is_initialized() and group in (None, dist.group.WORLD):
                leave()
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        try:
            original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    # Both have the name: a script may call it in either.
    for module in (dist, dist.distributed_c10d):
        if getattr(module, name, None) is original:
            setattr(module, name, destroy_process_group)


class ModelAveragers:
    """Whether the script has made one of torch's model averagers (local SGD).

    Then the replicas differ on purpose between two averagings.
    """

    made = False

    def watch_module(self, module: Any) -> None:
        """`module`: torch.distributed.algorithms.model_averaging.averagers, which has been imported."""
        _call_before(module.ModelAverager, "__init__", self._note_made)

    def _note_made(self, *_: Any) -> None:
        self.made = True


averagers = ModelAveragers()
"""The averagers of this process."""

AVERAGERS = "torch.distributed.algorithms.model_averaging.averagers"

SAVER = "torch.distributed.checkpoint.state_dict_saver"


def save_functions(saver: Any) -> list[Function]:
    """The functions that save a distributed checkpoint, in SAVER and in the package that offers them.

    With `_save_state_dict`, also a `save` that the script imported by name before is seen.
    """
    owners = (saver, sys.modules.get(SAVER.rpartition(".")[0]))
    names = ("save", "async_save", "_save_state_dict")
    return [Function(owner, name) for owner in owners for name in names if name in vars(owner or object)]


def set_reducer_group(reducer: Any, group: Any) -> None:
    """Have the reducer all-reduce in `group` from now on: 0.3 us, between two steps."""
    reducer._update_process_group(group)


def logging_data(ddp: Any) -> Mapping[str, Any]:
    """Options, buckets and times of a model as DDP's own logger has them. On the training thread."""
    facts: Mapping[str, Any] = ddp._get_ddp_logging_data()
    return facts


def broadcast_bytes(ddp: Any) -> int:
    """Bytes of the buffers that each forward of a model begins with sending from rank 0 to all; 0: none."""
    if not getattr(ddp, "broadcast_buffers", False):
        return 0
    return sum(buffer.numel() * buffer.element_size() for buffer in getattr(ddp, "modules_buffers", ()))


def ignore_parameters(model: Any, names: Iterable[str]) -> None:
    """Have DDP leave these parameters and buffers of `model` alone."""
    from torch.nn.parallel import DistributedDataParallel

    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)


def has_comm_hook(ddp: Any) -> bool:
    """Whether a communication hook is registered with a model."""
    return bool(getattr(ddp, "_comm_hooks", None))


def comm_hook_names(ddp: Any) -> list[str]:
    """Names of the communication hooks that are registered with a model."""
    return [getattr(hook, "__name__", "") for hook, _state in getattr(ddp, "_comm_hooks", ())]


def remove_wrappers(folder: str) -> None:
    """Give torch the functions back that code below `folder` has wrapped, and remove its hooks.

    A wrapper that someone else has wrapped since stays below theirs.
    """
    import torch
    from torch.nn.parallel import distributed
    from torch.optim import optimizer

    def is_ours(value: Any) -> bool:
        return type(value) is FunctionType and value.__code__.co_filename.startswith(folder)

    dist, model = torch.distributed, distributed.DistributedDataParallel
    wrapped = [owner for owner, _name in _flat_functions(step_functions())]
    if AVERAGERS in sys.modules:
        wrapped.append(sys.modules[AVERAGERS].ModelAverager)
    if SAVER in sys.modules:
        wrapped += [owner for owner, _name in save_functions(sys.modules[SAVER])]
    for owner in (model, distributed, dist, dist.distributed_c10d, BaseProcess, warnings, *wrapped):
        for name, value in list(vars(owner).items()):
            plain = value
            while is_ours(plain) and hasattr(plain, "__wrapped__"):
                plain = plain.__wrapped__
            if plain is not value:
                setattr(owner, name, plain)
    for hooks in (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks):
        for key in [key for key, hook in hooks.items() if is_ours(hook)]:
            del hooks[key]


def _flat_functions(functions: StepFunctions) -> Iterator[Function]:
    for entry in functions:
        yield from (entry,) if isinstance(entry, Function) else entry


def has_batchnorm(model: Any) -> bool:
    """Whether a module contains a BatchNorm layer."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(part, _BatchNorm) for part in model.modules())


def _call_before(owner: Any, name: str, first: Callable[..., None]) -> None:
    original = getattr(owner, name, None)
    if original is None:
        return

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            first(*args)
        except Exception as error:  # noqa: BLE001 - the training boundary: a later torch may pass other arguments
            guard.caught(error)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    setattr(owner, name, wrapper)


def _call_after(owner: Any, name: str, then: Callable[[Any], None]) -> None:
    """Call `then(self)` when the method `owner.name` has returned; its exceptions are ours to swallow."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise
        try:
            then(self)
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        return result

    setattr(owner, name, wrapper)
