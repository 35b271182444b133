"""Where the recorder enters a training process: at the construction of a DistributedDataParallel model.

Importing this module costs next to nothing. `patch` touches torch once its `distributed` module is loaded;
everything else is installed when the first DDP model is built, in processes that build one. The private
interfaces of torch that ddptop stands on are all named here, in `timed_group.py` and in `phases.py`
(torch 2.6 to 2.13); where one is gone, ddptop says so once and training runs as under torchrun.

Models that DDP refuses: their process is recorded before DDP has its say, so that its end can be told.

A session begins with the first model that DDP has taken. Where DDP takes none (shapes that differ between
ranks, a lazy module, nothing to train), nobody would hear why the process ends.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ddptop.training import exit_hooks, warnings
from ddptop.training.guard import guard, hide_frame, say_once

if TYPE_CHECKING:
    from ddptop.training.session import Session

Begin = Callable[[Any], None]


def watch(module: Any, begin: Begin) -> None:
    """Have `begin(device)` called before `torch.nn.parallel.distributed` refuses a model, or may do so.

    What a later torch no longer has is left out.
    """
    model = module.DistributedDataParallel
    _precede(model, "_log_and_throw", lambda ddp, *_: begin(getattr(ddp, "device", None)))
    # A collective: it raises on the ranks whose shapes differ from rank 0's, then rank 0 in the next one.
    verify = "_verify_param_shape_across_processes"
    _precede(module, verify, lambda _, parameters, *__: begin(parameters[0].device))


def _precede(owner: Any, name: str, first: Callable[..., None]) -> None:
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


def enabled() -> bool:
    """Whether this process belongs to a run that is recorded."""
    return os.environ.get("DDPTOP") != "0" and bool(os.environ.get("DDPTOP_RUN_DIR"))


def patch(module: Any) -> None:
    """Make `torch.nn.parallel.distributed` tell ddptop of every DDP model; a second call does nothing."""
    model = module.DistributedDataParallel
    if getattr(model, "_ddptop_patched", False):
        return
    try:
        # Not __init__: it warns with stacklevel=2, which a wrapper would shift to a line of ours.
        _after(model, "_ddp_init_helper", _attach)
        _after(model, "_update_process_group", _attach)
        _wrap_register_comm_hook(module.dist)
        watch(module, functools.partial(_begin, module.dist))
        exit_hooks.watch(module.dist, _leave)
        exit_hooks.watch_children()
    except AttributeError as error:
        say_once(f"this torch has no {error.name}")
        return
    warnings.listen()
    model._ddptop_patched = True


def session_at(device: Any) -> Session | None:
    """The recording session of this process, begun at its first DDP model; None where ddptop cannot work.

    `device`: where that model is; None: not known, the CPU.
    """
    global _session
    if not enabled():
        return None
    try:
        if _session is None:
            from ddptop.training.session import Session

            _session = Session(device)
        _session.ensure_started()
    except Exception as error:  # noqa: BLE001 - the training boundary
        say_once(f"cannot record this process ({type(error).__name__}: {error})")
        os.environ["DDPTOP"] = "0"
        return None
    return _session


def current_session() -> Session | None:
    """The session of this process if one has begun."""
    return _session


_session: Session | None = None


class _Attached:
    """One DDP model: its number in the process, and its group as the reducer sees it."""

    def __init__(self, ddp: Any, number: int, session: Session) -> None:
        self.number = number
        self.session = session
        self._reducer = weakref.ref(ddp.reducer)
        self._plain = ddp.process_group
        self.timer = session.timer_for(ddp)
        self._timed: Any = None
        if self.timer is not None:
            from ddptop.training.timed_group import TimedProcessGroup

            self._timed = TimedProcessGroup(self._plain, number, session.recorder, self.timer)
            self.switch(session.recorder.detail)

    def owns(self, reducer: Any) -> bool:
        """Whether this is the model of `reducer`."""
        return self._reducer() is reducer

    def switch(self, detail: bool) -> None:
        """Put the recorder between reducer and group, or take it out: 0.3 us, between two steps."""
        reducer = self._reducer()
        if reducer is not None and self._timed is not None:
            reducer._update_process_group(self._timed if detail else self._plain)


_models: weakref.WeakKeyDictionary[Any, _Attached] = weakref.WeakKeyDictionary()
"""Kept beside the models and not in them: a DDP model can be pickled, a process group cannot."""


def switch_models(detail: bool) -> None:
    """Put the recorder into all models of this process, or take it out."""
    for attached in list(_models.values()):
        attached.switch(detail)


def each_model(visit: Callable[[Any, int], None]) -> None:
    """Call `visit(ddp, number)` for every DDP model of this process that is still alive."""
    for ddp, attached in list(_models.items()):
        visit(ddp, attached.number)


def _begin(dist: Any, device: Any) -> None:
    """Begin the session of a process whose model DDP has not taken yet, and perhaps never will."""
    try:
        if enabled() and dist.is_initialized():
            session_at(device)
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def _leave() -> None:
    if _session is not None:
        _session.leave()


def _attach(ddp: Any) -> None:
    if getattr(ddp, "reducer", None) is None or not enabled():
        return
    from ddptop.training.session import device_of

    session = session_at(device_of(ddp))
    if session is None:
        return
    known = _models.get(ddp)
    number = session.number_of_next_model() if known is None else known.number
    _models[ddp] = _Attached(ddp, number, session)
    session.replicas.watch(ddp, number)
    session.note_group(ddp, number)
    session.describe_model(ddp, number)


def _after(owner: Any, name: str, then: Callable[[Any], None]) -> None:
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


def _wrap_register_comm_hook(dist: Any) -> None:
    """Time the user's communication hook, and those that DDP registers itself."""
    original = dist._register_comm_hook

    @functools.wraps(original)
    def _register_comm_hook(reducer: Any, state: Any, hook: Any) -> Any:
        carried = hook
        try:
            attached = next((model for model in _models.values() if model.owns(reducer)), None)
            if attached is not None:
                attached.session.replicas.leave_out(attached.number, getattr(hook, "__name__", ""))
            if attached is not None and attached.timer is not None:
                from ddptop.training.timed_hook import timed_hook

                carried = timed_hook(hook, attached.number, attached.session.recorder, attached.timer)
                attached.session.road = "hook"
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)
        try:
            return original(reducer, state, carried)
        except BaseException as error:
            hide_frame(error)
            raise

    dist._register_comm_hook = _register_comm_hook
