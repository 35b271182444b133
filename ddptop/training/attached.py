"""A process that was started without ddptop, recorded from one of its next steps on (`ddptop attach`).

What is injected runs here on a thread of its own (`begin`, `end`). All it does to the training thread is to
have it call `AtCall` at its next forwards with gradients, or without a DDP model at its next backwards. There
the number of collectives launched in the default process group is the same on every rank: each rank reports
these numbers, `ddptop attach` chooses one to come, and each rank begins its session at the first of these
calls that has reached it. So steps are numbered from 0 alike on all ranks. The command and the ranks write to
one another in files, in the command's folder.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddptop.training import attach, join_run
from ddptop.training.gc_pauses import unwatch_collector
from ddptop.training.torch_compat import ddp as torch_ddp
from ddptop.training.torch_compat import process_groups
from ddptop.training.torch_compat.dynamo import has_compiled, seen_through

GO = "go"
"""The file that names the number of collectives at which ranks begin; -1: they are not to begin."""

DEADLINE_S = 120.0
"""After this long without that file a rank is again as it was. The command gives up before."""

REPORT_S = 0.02
REPORTED = 32
"""Newest forwards (or backwards) that are reported, with different numbers of collectives."""


def begin(folder: str, number: str) -> None:
    """Have this process recorded in the run `number`, once the file GO says from where on. Never raises."""
    report = AttachReport(Path(folder))
    try:
        refusal = _why_not()
        if refusal:
            report.report_refusal(refusal)
            return
        import ddptop.training.session  # noqa: F401 - a tenth of a second, not on the training thread

        models = _live_models()
        beginning = Beginning(report, number, models)
        report.write_facts(state="armed")  # before the training thread writes what follows
        AtCall(_step_call(has_model=bool(models)), beginning.call_begins).install_wrapper()
    except Exception as error:  # noqa: BLE001 - the training boundary
        report.report_refusal(f"{type(error).__name__}: {error}")
    finally:
        # This thread is none of `threading`'s: what an import has noted of it would stay after its end.
        noted = vars(threading).get("_active", {})
        if isinstance(noted.get(threading.get_ident()), threading._DummyThread):
            del noted[threading.get_ident()]


def end(folder: str, _number: str) -> None:
    """End the recording that `begin` has begun, at the next forward with gradients. Never raises."""
    report = AttachReport(Path(folder))
    try:
        if not _attached or attach.current_session() is not _attached[0]:
            report.write_facts(state="detached", was=False)
            return
        report.write_facts(state="armed")  # as above
        has_model = not _attached[-1].recorder.without_ddp
        AtCall(_step_call(has_model=has_model), lambda _: _take_recorder_out(report)).install_wrapper()
    except Exception as error:  # noqa: BLE001 - the training boundary
        report.report_refusal(f"{type(error).__name__}: {error}")


def _why_not() -> str | None:
    module = sys.modules.get("torch.distributed")
    if module is None or "torch.nn.parallel.distributed" not in sys.modules or not module.is_initialized():
        return "it has no process group (yet): is it a rank of a DistributedDataParallel training?"
    if attach.current_session() is not None or attach.is_enabled():
        return "it is recorded by ddptop already"
    if os.environ.get("DDPTOP") == "0":
        return "DDPTOP=0 is in its environment"
    if has_compiled():
        return "it uses torch.compile, which attach leaves alone: start it with ddptop-run"
    return None


def _live_models() -> list[weakref.ref[Any]]:
    """The DDP models of this process, in an order that is the same on every rank; none in a training without
    DDP. Raises ValueError."""
    kind = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    # By type: `isinstance` would run code of proxies among all these objects.
    models = [candidate for candidate in gc.get_objects() if issubclass(type(candidate), kind)]
    models = [model for model in models if getattr(model, "reducer", None) is not None]
    # By the shapes of their parameters: ranks have no other name for a model in common.
    described = {_description(model): model for model in models}
    if len(described) < len(models):
        raise ValueError("it has several DDP models of equal shape: ranks could not tell them apart")
    return [weakref.ref(described[key]) for key in sorted(described)]


def _description(model: Any) -> str:
    return " ".join(f"{name}{tuple(part.shape)}" for name, part in model.module.named_parameters())


class AttachReport:
    """What this process reports to the command: a file that is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / f"rank-{os.getpid()}"

    def write_facts(self, **facts: Any) -> None:
        """Replace what was reported. Raises OSError."""
        # Replaced by a rename, so that the command never reads half of it.
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(facts))
        new.replace(self._path)

    def report_refusal(self, why: str) -> None:
        """Report why nothing is recorded. Never raises."""
        try:
            self.write_facts(state="refused", why=why)
        except OSError:
            return


def _step_call(*, has_model: bool) -> torch_ddp.Function:
    """The function of torch at whose calls ranks agree where to begin: DDP's forward, else `backward()`."""
    functions = torch_ddp.step_functions()
    return functions.pre_forward if has_model else functions.backward


class AtCall:
    """Calls a function at every call of another one with gradients, before the recorder, until it returns
    True. It is given the first argument: the DDP model, or what `backward()` begins at (None: given by
    name)."""

    def __init__(self, function: torch_ddp.Function, then: Callable[[Any], bool]) -> None:
        self._then = then
        self._owner, self._name = function
        self._original = self._following = getattr(self._owner, self._name)

    def install_wrapper(self) -> None:
        """From any thread: a call that is running is not affected."""
        import torch

        grad_enabled = torch.is_grad_enabled

        def call(*inputs: Any, **kwargs: Any) -> Any:
            if self._following is self._original and grad_enabled():
                self._call_then(inputs[0] if inputs else None)
            return self._following(*inputs, **kwargs)

        self._wrapper = seen_through(call, self._original)
        setattr(self._owner, self._name, self._wrapper)

    def _call_then(self, first: Any) -> None:
        try:
            if vars(self._owner).get(self._name) is not self._wrapper:
                return  # someone has wrapped it since: it cannot be taken out
            # Taken out first: what `then` installs goes around torch's own function.
            setattr(self._owner, self._name, self._original)
            if self._then(first):
                self._following = getattr(self._owner, self._name)
            else:
                setattr(self._owner, self._name, self._wrapper)
        except Exception:  # noqa: BLE001 - the training boundary: `then` has reported it
            return


class Beginning:
    """One rank's part in the agreement where to begin. On the training thread."""

    def __init__(self, report: AttachReport, number: str, models: Sequence[weakref.ref[Any]]) -> None:
        self._report = report
        self._number = number
        self._models = models
        self._deadline = time.monotonic() + DEADLINE_S
        self._forwards: deque[tuple[int, float]] = deque(maxlen=REPORTED)
        """Number of collectives and time of the first forward, or backward, that has it."""
        self._reported = 0.0
        self._go: int | None = None

    def call_begins(self, first: Any) -> bool:
        """Whether this rank has begun, or will not; False: to be called again at the next forward, of the
        model `first`, or backward."""
        now_s = time.monotonic()
        from torch import distributed as dist

        if getattr(first, "process_group", dist.group.WORLD) is not dist.group.WORLD:
            self._report.report_refusal(
                "its model has a process group of its own: only the default group can be attached to"
            )
            return True
        # Torch counts the collectives of a group alike on every rank, and is asked without one.
        sequence = process_groups.sequence_of(dist.group.WORLD)
        before = self._forwards[-1][0] if self._forwards else None
        if sequence != before:
            self._forwards.append((sequence, now_s))
        if self._go is None:
            self._go = self._read_go()
            if self._go is not None and self._go >= 0 and before is not None and before >= self._go:
                self._report.report_refusal("the step at which ranks begin had passed: try again")
                return True
        if sequence < 0 or self._go == -1 or (self._go is None and now_s > self._deadline):
            self._report.report_refusal("its process group does not count" if sequence < 0 else "called off")
            return True
        if self._go is not None and sequence >= self._go:
            self.begin_recording(first)
            return True
        if self._go is None and now_s - self._reported > REPORT_S:
            self._reported = now_s
            forwards = list(self._forwards)
            self._report.write_facts(
                state="waiting", rank=dist.get_rank(), world=dist.get_world_size(), forwards=forwards
            )
        return False

    def _read_go(self) -> int | None:
        try:
            return int((self._report.folder / GO).read_text())
        except FileNotFoundError:
            # The command has gone, and its folder with it: nobody will say from where on.
            return None if self._report.folder.is_dir() else -1

    def begin_recording(self, first: Any) -> None:
        """Begin the session; `first`: as in `call_begins`. What fails is raised; nothing is left behind."""
        global _dumps_before
        # Kept, since the session enables it, and detaching puts it back.
        _dumps_before = faulthandler.is_enabled()
        try:
            join_run.join_attached(self._number)
            models = [model for model in (ref() for ref in self._models) if model is not None]
            if self._models:
                models = models or [first]
            _begin_session(models, getattr(first, "device", None))
        except Exception as error:
            session = attach.current_session()
            _take_out()
            _end_recording(session, self._report, why=f"{type(error).__name__}: {error}")
            raise
        with suppress(OSError):
            self._report.write_facts(state="recording", folder=os.environ["DDPTOP_RUN_DIR"])


def _begin_session(models: Sequence[Any], device: Any) -> None:
    """Begin the session, as at the construction of these models; without one, as at the first backward, whose
    loss is on this device."""
    from ddptop.training.session import device_of

    session = attach.session_at(device_of(models[0]) if models else device)
    if session is None:
        raise RuntimeError("no session can begin: the training's standard error says why")
    attach.patch_ddp(sys.modules["torch.nn.parallel.distributed"])
    for number, model in enumerate(models):
        session.attach_model(model)
        for name in torch_ddp.comm_hook_names(model):
            session.replicas.leave_out(number, name)
    _attached.append(session)


_attached: list[Any] = []
"""The session of a process that was attached to, while it lasts."""

_dumps_before = False
"""Whether faulthandler was enabled before."""


def _take_out() -> None:
    """Undo what `_begin_recording` has done to torch and to the environment."""
    torch_ddp.remove_wrappers(f"{Path(__file__).parents[1]}/")
    unwatch_collector()
    attach.forget_session()
    join_run.leave_run()
    os.environ.pop("DDPTOP", None)  # `session_at` sets it to 0 where it fails
    _attached.clear()


def _take_recorder_out(report: AttachReport) -> bool:
    """Take the recorder out. On the training thread, between two steps."""
    session = _attached[0]
    try:
        session.recorder.finish_step()
        session.switch_models(False)
        session.last_gradients.remove_hooks()
        _take_out()
        # It waits for the collector's acks, which training must not.
        threading.Thread(target=_end_recording, args=(session, report), daemon=True).start()
    except Exception as error:
        report.report_refusal(f"{type(error).__name__}: {error}")
        raise
    return True


def _end_recording(session: Any, report: AttachReport, why: str = "") -> None:
    """End what is no part of torch; where it waits for the collector, on a thread of its own."""
    try:
        if session is not None:
            session.close()
            atexit.unregister(session.close)
            process_groups.read_again()
        if not _dumps_before:
            faulthandler.disable()
        join_run.collector_keeper.end_membership()
        if why:
            report.report_refusal(why)
        else:
            report.write_facts(state="detached", was=True)
    except Exception as error:  # noqa: BLE001 - the training boundary
        report.report_refusal(f"{type(error).__name__}: {error}")
