"""Where the recorder enters a training process: at the construction of a DistributedDataParallel model, or
at the first `backward()` of a rank that has none.

Importing this module costs next to nothing. `patch_ddp` touches torch once its `distributed` module is
loaded; everything else is installed when the first DDP model is built, in processes that build one.

A session begins with the first model that DDP takes, or before it refuses one (shapes that differ between
ranks, a lazy module, nothing to train): otherwise the reason why such a process exits would not be reported.

Training may end in a process that continues, or is killed at once: Ray Train has its workers destroy their
group, and then kills them, so that nothing that waits for the interpreter's exit is run. So the last step and
a BYE are sent before the default process group is destroyed.
"""

from __future__ import annotations

import functools
import os
import sys
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from ddptop.training import early_exit, start_report, warnings
from ddptop.training.guard import guard, hide_frame, report_once
from ddptop.training.import_hook import when_imported
from ddptop.training.torch_compat import ddp as torch_ddp

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddptop.training.session import Session


def is_enabled() -> bool:
    """Whether this process belongs to a run that is recorded, or has the variables of `ddptop env`."""
    switch = os.environ.get("DDPTOP")
    if switch == "0" or not (switch == "1" or os.environ.get("DDPTOP_RUN_DIR")):
        return False
    return not is_nested()


STARTED_BY = "DDPTOP_STARTED_BY"
"""Environment variable of what a rank starts while it has a process group: the run's id, the rank's pid and
start, and what `_place_in_job` gives there."""


def is_nested() -> bool:
    """Whether this process was started by a rank of the run and belongs to a training of its own.

    Such as a torchrun, an mp.spawn or an evaluation script that a rank starts. It is no rank of the run,
    whatever numbers it has there. Another rank of the same job may be started by a rank: Lightning does so.
    """
    marker = os.environ.get(STARTED_BY, "").split(" ")
    # Five words: anything else was not written by a rank of this version.
    if len(marker) != 5 or marker[0] != os.environ.get("DDPTOP_RUN_ID", ""):
        return False
    _, pid, start, job, place = marker
    from ddptop.host.processes import process_start

    # `exec` keeps the pid: a rank that executes another program has left the marker for itself.
    if pid == str(os.getpid()) or not pid.isdecimal() or str(process_start(int(pid))) != start:
        return False
    own_job, own_place = _place_in_job()
    # At another place of the same job it is another rank, as Lightning starts them.
    return not job or job != own_job or place == own_place


def _place_in_job() -> tuple[str, str]:
    """What the launcher's variables say: the job (empty: nothing), and this rank's place in it."""
    values = [os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")]
    job = "/".join(values) if all(values) else ""
    return job, "/".join(os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK"))


def mark_children() -> None:
    """From now on what this process starts is known to be started by a rank."""
    from ddptop.host.processes import process_start

    start, run_id = process_start(os.getpid()), os.environ.get("DDPTOP_RUN_ID", "")
    job, place = _place_in_job()
    # The marker is divided by spaces: one within a part would make it unreadable.
    if start is not None and " " not in f"{run_id}{job}{place}":
        os.environ[STARTED_BY] = f"{run_id} {os.getpid()} {start} {job} {place}"


def _unmark_children() -> None:
    if os.environ.get(STARTED_BY, "").split(" ")[1:2] == [str(os.getpid())]:
        del os.environ[STARTED_BY]


def attach_when_imported() -> None:
    """Patch `torch.nn.parallel.distributed` when it is imported, or now if it already was. A rank that its
    launcher has started reports from torch's import on."""
    when_imported("torch.nn.parallel.distributed", patch_ddp)
    when_imported("torch", start_report.begin_as_launched)


def patch_ddp(module: Any) -> None:
    """Have `torch.nn.parallel.distributed` report every DDP model to ddptop; a second call does nothing."""
    model = module.DistributedDataParallel
    # A second call would wrap the wrappers.
    if getattr(model, "_ddptop_patched", False):
        return
    try:
        torch_ddp.after_construction(module, _attach_model)
        torch_ddp.replace_comm_hooks(module.dist, _timed_hook)
        torch_ddp.before_refusal(module, functools.partial(_begin_session, module.dist), _note_parameters)
        torch_ddp.around_process_groups(module.dist, _note_meeting, _mark_initialization, _mark_met)
        torch_ddp.before_destruction(module.dist, leave_group)
        keep_exceptions_of_children()
    except AttributeError as error:
        report_once(f"this torch has no {error.name}")
        return
    warnings.listen_to_warnings()
    watch_first_backward()
    model._ddptop_patched = True


def session_at(device: Any) -> Session | None:
    """The recording session of this process, begun at its first DDP model; None where ddptop cannot work.

    `device`: where that model is; None: not known, the CPU.
    """
    global _session
    if not is_enabled():
        return None
    try:
        if _session is None:
            from ddptop.training.join_run import join_by_store
            from ddptop.training.session import Session

            join_by_store()

            _session = Session(device)
        _session.ensure_started()
        mark_children()  # again: the run may have got its id just now
    except Exception as error:  # noqa: BLE001 - the training boundary
        report_once(f"cannot record this process ({type(error).__name__}: {error})")
        # Also for the processes that this one starts: they would fail alike, each with a line on stderr.
        os.environ["DDPTOP"] = "0"
        return None
    return _session


def current_session() -> Session | None:
    """The session of this process if one has begun."""
    return _session


def forget_session() -> None:
    """Make this process as it was before its first model and before `patch_ddp`, whose functions were taken
    out of torch (`attached.py`)."""
    global _session
    _session = None
    _unmark_children()
    model = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    if hasattr(model, "_ddptop_patched"):
        del model._ddptop_patched


_session: Session | None = None


def watch_first_backward() -> None:
    """Have a process that trains without DDP recorded: its session begins at its first `backward()`."""
    import torch.autograd as autograd

    from ddptop.training.torch_compat.dynamo import seen_through

    original = autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        call = original
        # A session takes its wrapper out for some steps, and puts it back only where this one still is.
        if _session is None and autograd.backward is wrapper:
            autograd.backward = original
            _begin_without_ddp(args[0] if args else kwargs.get("tensors"))
            call = autograd.backward
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            hide_frame(error)
            raise

    wrapper = autograd.backward = seen_through(backward, original)


def _begin_without_ddp(tensors: Any) -> None:
    try:
        if _session is None and is_enabled() and _is_rank():
            session_at(getattr(tensors, "device", None))
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def _is_rank() -> bool:
    """Whether this process is a rank: by its process group, by the launcher's variables, or as the only one
    of the run that trains at all."""
    if sys.modules["torch.distributed"].is_initialized():
        return True
    # A process that a rank has started has inherited RANK.
    if "RANK" in os.environ:
        return early_exit.is_ranks_own()
    return _alone.claim_run(os.environ.get("DDPTOP_RUN_DIR", ""))


class _OnlyRank:
    """The claim of a process without a launcher's variables and without a process group."""

    _lock: int | None = None

    def claim_run(self, folder: str) -> bool:
        """Whether no other process has the run. Held until this one ends. Raises OSError."""
        if folder and self._lock is None:
            import fcntl

            from ddptop.host.folders import open_regular

            lock = open_regular(f"{folder}/alone", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a forked child does not have it
            except OSError:
                os.close(lock)
                return False
            self._lock = lock
        return self._lock is not None


_alone = _OnlyRank()


def _begin_session(dist: Any, device: Any) -> None:
    """Begin the session of a process whose model DDP has not taken yet, and perhaps never will."""
    try:
        if is_enabled() and dist.is_initialized():
            session_at(device)
    except Exception as error:  # noqa: BLE001 - the training boundary
        guard.caught(error)


def _note_meeting(rank: int, world_size: int) -> None:
    if is_enabled() and _session is None:
        start_report.note_meeting(rank, world_size)


def _mark_initialization(rank: int, world_size: int) -> None:
    if is_enabled():
        from ddptop.host.start_marks import mark_initialization

        mark_initialization()
        mark_children()
        early_exit.watch_spawned()
        # Only before the first group: later ones are no start.
        if _session is None and not sys.modules["torch.distributed"].is_initialized():
            start_report.begin_report(rank, world_size)
            start_report.note_milestone("store")


def _mark_met() -> None:
    if is_enabled():
        from ddptop.host.start_marks import mark_met

        mark_met()
        start_report.note_milestone("group")


def _note_parameters(parameters: Sequence[Any]) -> None:
    if is_enabled():
        n_bytes = sum(parameter.nbytes for parameter in parameters)
        n_parameters = sum(parameter.numel() for parameter in parameters)
        start_report.note_milestone("ddp", parameters=n_parameters, bytes=n_bytes)


def leave_group() -> None:
    """Have the session leave its process group (`Session.leave_group`) before the script destroys it."""
    _unmark_children()
    if _session is not None:
        _session.leave_group()


def _attach_model(ddp: Any) -> None:
    if getattr(ddp, "reducer", None) is None or not is_enabled():
        return
    from ddptop.training.session import device_of

    session = session_at(device_of(ddp))
    if session is not None:
        session.attach_model(ddp)
        start_report.note_milestone("model")


def _timed_hook(reducer: Any, hook: Any) -> Any:
    """The communication hook that is registered in place of `hook`."""
    return hook if _session is None else _session.timed_hook(reducer, hook)


def keep_exceptions_of_children() -> None:
    """Have the exception that ends a child of multiprocessing kept, where the child is recorded.

    From Python 3.13 on the child's finalizers run when the exception is gone. `_bootstrap` calls the `run()`
    of any subclass and catches what it raises.
    """
    original = getattr(BaseProcess, "_bootstrap", None)
    if sys.version_info < (3, 13) or original is None or hasattr(original, "__wrapped__"):
        return

    @functools.wraps(original)
    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self.run

        def watched_run() -> None:
            vars(self).pop("run", None)
            try:
                run()
            except BaseException as error:
                try:
                    if "ddptop.training.session" in sys.modules:
                        from ddptop.training.exit import keep_for_child

                        keep_for_child(error)
                except Exception as failure:  # noqa: BLE001 - the training boundary
                    guard.caught(failure)
                hide_frame(error)
                raise

        vars(self)["run"] = watched_run
        return original(self, *args, **kwargs)

    BaseProcess._bootstrap = bootstrap
