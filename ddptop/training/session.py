"""The recording of one training process: its recorder, its timers, and its publisher thread."""

from __future__ import annotations

import atexit
import contextlib
import mmap
import multiprocessing.util
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist

from ddptop.host.exits import crash_file
from ddptop.host.processes import fill_standard_streams
from ddptop.host.step_counters import new_step_counter
from ddptop.protocol.messages import (
    BAD_WEIGHTS,
    FINISHED,
    LEFT,
    Event,
    Flag,
    Hello,
    Membership,
    Message,
    Scalar,
)
from ddptop.protocol.redaction import redact_words
from ddptop.protocol.vocabulary import SHARDED
from ddptop.training import exit, phases, start_report, warnings
from ddptop.training.bucket_timing import BucketTimer, HostTimer, TimedModel, timed_hook
from ddptop.training.budget import Budget
from ddptop.training.compile_watch import Compilation, CompileWatch
from ddptop.training.device.timing import DeviceTiming, device_card
from ddptop.training.exit import CrashFile, ExitReason, exit_reason
from ddptop.training.guard import guard, run_after_fork
from ddptop.training.hello import make_hello
from ddptop.training.join_run import rank_exchange
from ddptop.training.last_weights import are_weights_bad
from ddptop.training.launcher_variables import environment_number
from ddptop.training.publisher import LoggedScalars, Publisher
from ddptop.training.recorder import Recorder, now
from ddptop.training.replica import ReplicaCheck
from ddptop.training.synchronisation import SynchronisationWatch
from ddptop.training.torch_compat import dynamo
from ddptop.training.torch_compat.ddp import broadcast_bytes, logging_data
from ddptop.training.torch_compat.process_groups import (
    backend_of,
    default_sequence,
    membership_of,
    read_again,
)
from ddptop.training.torch_compat.sharding import training_kind

_NO_OPTIONS = frozenset(
    {"iteration", "num_buckets_reduced", "rank", "prev_iteration_grad_ready_order_indices"}
)
"""What torch's logger gives besides DDP's options: the state of one iteration."""

CLOSE_S = 0.8
"""How long the exit of training may be delayed until the last records are acked."""

LEAVE_S = 0.5
"""The part of it that may be spent before the process group is destroyed: an ack comes within 20 ms."""


class Session:
    """Begun at the first DDP model of a process, or at its first backward; ended with the process."""

    def __init__(self, device: torch.device | None) -> None:
        """Install the phases; `device`: of the first model, the CPU where that is not known."""
        fill_standard_streams()
        self.recorder = Recorder(optimizer_exists=phases.optimizer_exists)
        self.recorder.on_detail.append(self.switch_models)
        self.recorder.evaluation.note_evaluated = self._note_evaluated
        self.recorder.begin_without_ddp()
        self.timing_path = "reducer"
        self.card: dict[str, Scalar] = _card_of_process()
        self.parameters: dict[tuple[int, int], int] = {}
        """Parameters in each bucket, by (model, bucket index), where torch's logger has it."""
        self.memberships: dict[int, Membership] = {}
        """The process group of each DDP model, by its number."""
        self.replicas = ReplicaCheck(self.recorder, self.send)
        self.scalars = LoggedScalars()
        self._models: weakref.WeakKeyDictionary[Any, TimedModel] = weakref.WeakKeyDictionary()
        """Kept beside the models and not in them: a DDP model can be pickled, a process group cannot."""
        self._switched: list[weakref.ref[TimedModel]] = []
        self._next_model = 0
        self.device: DeviceTiming | None = None
        """Timing on the GPU, where the models are on one."""
        self._timers: dict[str, BucketTimer | None] = {}
        self.publisher: Publisher | None = None
        """None: it has not been started, or was closed."""
        self._drain_s = CLOSE_S
        self._crash_file: CrashFile | None = None
        self._ddp_device = device or torch.device("cpu")
        if self._ddp_device.type == "cuda":
            self._time_device(self._ddp_device.index or 0)
        self.last_gradients = phases.LastGradients(self.recorder)
        read_later = None if self.device is None else self.device.take_scalar
        self.gradients = SynchronisationWatch(self.recorder, self._report_before_step)
        phases.install_wrappers(
            self.recorder,
            self.last_gradients,
            self.gradients,
            read_later,
            self._note_training_kind,
            self._note_saved,
        )
        dynamo.keep_dynamo_out()
        compiles = CompileWatch(self.recorder, get_ident(), self._note_compiled)
        dynamo.watch_compilations(compiles.begins, compiles.ends)
        os.register_at_fork(after_in_child=self._after_fork)
        exit.wait_for_gloo_at_exit()
        atexit.register(self.close)

    def ensure_started(self) -> None:
        """Start the publisher where it is not running: at first, and in a forked child that trains itself."""
        if self.publisher is not None:
            return
        budget = Budget.from_environment()
        rank, world_size, backend = _place_in_group()
        before = start_report.hand_over(rank, world_size)
        hello = replace(
            make_hello(rank, world_size, None if before is None else before.session),
            device=str(self._ddp_device),
            backend=backend,
            budget_pct=budget.budget_pct,
        )
        self.recorder.counter = shared_counter(hello)
        self.recorder.counter[0] = self.recorder.step
        sender = None if before is None else before.sender
        self.publisher = Publisher(self, hello, budget, sequence=default_sequence, sender=sender)
        try:
            self.publisher.start()
        except RuntimeError:  # no thread can be started
            self.publisher = None
            raise
        rank_exchange.begin_exchange()
        warnings.collected.report_to(self._send_warning)
        path = crash_file(Path(os.environ["DDPTOP_RUN_DIR"]), hello.session)
        self._crash_file = CrashFile.open_file(path, self._crash_file)
        # Children of multiprocessing leave by os._exit, past atexit, but run these.
        multiprocessing.util.Finalize(None, self.close, exitpriority=100)

    def _note_training_kind(self, optimizer: Any) -> None:
        """Without a DDP model: say what this rank trains with."""
        kind = training_kind(optimizer)
        # gloo's are timed: Python waits for them.
        unseen = kind in SHARDED and self._ddp_device.type != "cpu"
        self.recorder.waits_unseen = int(Flag.WAITS_UNSEEN) if unseen else 0
        if kind == "collectives":
            self.replicas.watch_optimizer(optimizer)
        if self.card.get("training") != kind:
            self.card["training"] = kind
            if self.publisher is not None:
                self.publisher.card_changed = True

    def _begin_anew(self) -> None:
        """Number the steps from 0 again, as another process of this rank would: those before the first DDP
        model may be more on one rank than on another. Waits for an ack, `LEAVE_S` at most."""
        publisher, self.publisher = self.publisher, None
        self.recorder.finish_step()
        if publisher is not None:
            publisher.close(LEAVE_S, ExitReason(LEFT, None))
            read_again()
        self.recorder.restart_in_child()
        self.ensure_started()

    def timer_for(self, ddp: Any) -> BucketTimer | None:
        """The bucket timer for the model's device and backend; None where none is right."""
        device, backend = device_of(ddp), backend_of(ddp.process_group)
        if any(parameter.device != device for parameter in ddp.module.parameters()):
            return None  # its buckets are on several devices
        kind = f"{device} {backend}"
        if kind not in self._timers:
            self._timers[kind] = self._new_timer(device, backend)
        return self._timers[kind]

    def _new_timer(self, device: torch.device, backend: str) -> BucketTimer | None:
        if device.type == "cpu":
            return HostTimer()
        # Events can be compared within a device only.
        if device == self._ddp_device and self.device is not None:
            return self.device.timer_for(backend)
        return None

    def _time_device(self, index: int) -> None:
        """Without events training is still recorded: steps as timed by the host, buckets untimed."""
        try:
            self.device = DeviceTiming.of_device(index)
            self.recorder.marks = self.device.marks
            self.card.update(device_card(index))
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def device_bounds_ns(self) -> tuple[int, int] | None:
        """Error bounds of a bucket's ready and end on the GPU; None where none are known."""
        return None if self.device is None else self.device.bounds_ns()

    def attach_model(self, ddp: Any) -> None:
        """Time and describe a DDP model; again where it has another process group.

        Models are numbered from 0 in order of construction, the same on every rank.
        """
        # It was said before this process had a DDP model.
        self.card.pop("training", None)
        if self.recorder.begin_with_ddp():
            self._begin_anew()
        timed_model = self._models.get(ddp)
        number = self._next_model if timed_model is None else timed_model.number
        if timed_model is None:
            self._next_model += 1
        # Again with each group: its backend may be another one.
        timer = self.timer_for(ddp)
        self._models[ddp] = TimedModel(ddp, number, self.recorder, timer)
        self._switched = [weakref.ref(model) for model in self._models.values()]
        if timed_model is None:
            self._watch_gradients(ddp, number)
        self.replicas.watch_model(ddp, number)
        self.recorder.cpu_wait.waits_for_others |= ddp.process_group.size() > 1
        # Noted while it exists: a script may destroy the group.
        self.memberships[number] = membership_of(ddp.process_group, number)
        self.describe_model(ddp, number)

    def _watch_gradients(self, ddp: Any, number: int) -> None:
        """Only of models on one device, the one whose clock times the steps."""
        self.recorder.several_models = len(self._models) > 1
        if all(parameter.device == self._ddp_device for parameter in ddp.module.parameters()):
            try:
                model = self.gradients.watch_model(ddp, number, ddp.process_group.size())
                note = () if model is None else (model.note_gradient,)
                self.last_gradients.watch_model(ddp, *note)
            except Exception as error:  # noqa: BLE001 - the training boundary
                guard.caught(error)

    def switch_models(self, detail: bool) -> None:
        """Put the recorder between reducers and process groups of all models, or take it out."""
        for reference in self._switched:  # to go through `_models` takes 20 us where caches are cold
            model = reference()
            if model is not None:
                model.switch_detail(detail)

    def timed_hook(self, reducer: Any, hook: Any) -> Any:
        """`hook` as it is registered with the reducer of one of our models: timed."""
        model = next((model for model in self._models.values() if model.owns_reducer(reducer)), None)
        if model is None:
            return hook
        self.replicas.leave_out(model.number, getattr(hook, "__name__", ""))
        if model.timer is None:
            return hook
        timed = timed_hook(hook, model.number, self.recorder, model.timer)
        self.timing_path = "hook"
        return timed

    def describe_model(self, ddp: Any, number: int) -> None:
        """Read the options of a DDP model, and its buckets' parameters, from torch's own logger."""
        facts = logging_data(ddp)
        warnings.check_reducer(facts)
        prefix = "ddp." if number == 0 else f"ddp{number}."
        for name, value in facts.items():
            if isinstance(value, (bool, int, str)) and name not in _NO_OPTIONS and "_time" not in name:
                self.card[prefix + name] = value
        self.card[prefix + "buffer_bytes"] = broadcast_bytes(ddp)
        layout = (
            facts.get("rebuilt_per_bucket_param_indices") or facts.get("initial_bucket_param_indices") or ""
        )
        # One entry for each bucket, of the numbers of its parameters.
        for index, members in enumerate(str(layout).split(",")):
            if members.strip():
                self.parameters[number, index] = len(members.split())
        if self.publisher is not None:
            self.publisher.card_changed = True

    def request_description(self) -> None:
        """Have the training thread read torch's logger again between two steps: no other thread may."""
        if self._describe_models not in self.recorder.between_steps:
            self.recorder.do_between_steps(self._describe_models)

    def _describe_models(self) -> None:
        for ddp, model in list(self._models.items()):
            self.describe_model(ddp, model.number)

    def log_scalar(self, name: str, value: Any) -> None:
        """Take a scalar that the script logs; on the training thread. Raises for what is not a number."""
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                value = None if self.device is None else self.device.take_scalar(value)
            else:
                value = float(value.detach())
        else:
            value = float(value)
        if value is None:
            return
        if name in ("loss", "tokens"):
            self.recorder.see_again()  # else this step would be closed without them
        if name == "loss":
            # A tuple, as for losses that a device has yet to write.
            self.recorder.losses.logged = value if isinstance(value, float) else (value,)
        else:
            self.scalars.note_value(name, value, self.recorder.step)
            if name == "tokens" and isinstance(value, float):
                self.recorder.elements.log_tokens(value, coming=self.recorder.calls_since_forward > 0)

    @contextlib.contextmanager
    def declared_phase(self, name: str) -> Iterator[None]:
        """Report that this rank is in a phase of the user's own, in which steps need not advance."""
        self._report_event("phase_begins", self.recorder.step, {"name": str(name)})
        try:
            yield
        finally:
            self._report_event("phase_ends", self.recorder.step, {"name": str(name)})

    def _note_saved(self, saved_ns: int) -> None:
        """Note that the training thread has saved for so long in the running step, until now."""
        self._report_before_step("saved", self.recorder.step, {"ns": saved_ns})

    def _note_evaluated(self, ended_ns: int, length_ns: int, data_ns: int) -> None:
        """Note that the training thread has evaluated for so long in the running step, until `ended_ns`; for
        `data_ns` of it, it fetched batches."""
        fields: dict[str, Scalar] = {"ns": length_ns, "data_ns": data_ns}
        self._report_before_step("evaluated", self.recorder.step, fields, ended_ns)

    def _note_compiled(self, compilation: Compilation) -> None:
        """Note that the training thread has waited for torch.compile, until now."""
        fields: dict[str, Scalar] = compilation._asdict()
        # Before its forward closes the step that has ended, this is a part of the next one.
        step = self.recorder.step + self.recorder.has_stepped
        self._report_before_step("compiled", step, fields | {"phase": int(compilation.phase)})

    def _send_warning(self, text: str) -> None:
        self._report_event("warning", self.recorder.step, {"message": text})

    def _report_event(self, kind: str, step: int, fields: dict[str, Scalar]) -> None:
        """Send an event of this rank."""
        if self.publisher is not None:
            self.send(Event(kind, now(), self.publisher.rank, step, fields))

    def _report_before_step(
        self, kind: str, step: int, fields: dict[str, Scalar], at_ns: int | None = None
    ) -> None:
        """Send an event of this rank about the running step, of now if `at_ns` is not given: whoever has that
        step has the event."""
        if self.publisher is not None:
            at_ns = now() if at_ns is None else at_ns
            self.publisher.send_before_step(Event(kind, at_ns, self.publisher.rank, step, fields))

    def send(self, message: Message) -> None:
        """Send a message in order with the steps, where this process is a rank; from any thread."""
        if self.publisher is not None:
            self.publisher.send(message)

    def leave_group(self) -> None:
        """Publish the last step and a BYE before the script destroys its process groups in good order.

        Bounded by `LEAVE_S`. A training that continues, with another group, is published as before.
        """
        if self.publisher is None or exit_reason().reason != FINISHED:
            return  # an exception is in flight: it is reported when the process exits
        began = time.monotonic()
        self.recorder.finish_step()
        self._report_bad_weights(self.publisher)
        self.publisher.leave_group(LEAVE_S)
        # CLOSE_S is for this and the exit together.
        self._drain_s = max(CLOSE_S - LEAVE_S, self._drain_s - (time.monotonic() - began))

    def _report_bad_weights(self, publisher: Publisher) -> None:
        """At the end, on the training thread: the losses of the last steps may not have been read."""
        try:
            step = self.recorder.step - 1
            if step >= 0 and are_weights_bad(self.recorder.forwarded()):
                publisher.send(Event(BAD_WEIGHTS, now(), publisher.rank, step))
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def close(self) -> None:
        """Publish the last step and a BYE; bounded by `CLOSE_S`. May be called twice."""
        publisher, self.publisher = self.publisher, None
        if publisher is None:
            return
        try:
            self.recorder.finish_step()
            self._report_bad_weights(publisher)
            self.last_gradients.remove_hooks()
            publisher.close(self._drain_s, exit_reason())
            rank_exchange.end_exchange()
            if self.device is not None:
                self.device.abandon_device(self.recorder)
            if self._crash_file is not None:
                self._crash_file.close()
        except KeyboardInterrupt:  # only our own last messages were waited for
            pass
        except Exception as error:  # noqa: BLE001 - the training boundary
            guard.caught(error)

    def _after_fork(self) -> None:
        """A forked child (a DataLoader worker) must not send as the rank, nor keep its connection."""
        publisher, self.publisher = self.publisher, None
        device, self.device = self.device, None
        steps: list[Callable[[], object]] = [
            self.last_gradients.remove_hooks,
            self.gradients.stop_watching,
            self.recorder.restart_in_child,
        ]
        if publisher is not None:
            steps.insert(0, publisher.close_in_child)
        if device is not None:
            steps.insert(-1, partial(device.abandon_device, self.recorder))
        if self._crash_file is not None:
            steps.append(self._crash_file.disconnect_in_child)
        run_after_fork(*steps)


def _place_in_group() -> tuple[int, int, str]:
    """Rank, world size and backend of the default process group; without one, by the launcher's variables.
    A process without these is one rank alone."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size(), backend_of(dist.group.WORLD)
    rank, world_size = environment_number("RANK"), environment_number("WORLD_SIZE")
    return (rank, world_size, "") if rank < world_size else (0, 1, "")


def shared_counter(hello: Hello) -> memoryview | list[int]:
    """Memory that outlives this process and has the last step after a kill (`host/step_counters.py`).

    A plain list where the system has no such memory.
    """
    try:
        descriptor = new_step_counter(Path(os.environ["DDPTOP_RUN_DIR"]), hello)
    except (AttributeError, OSError):
        return [0]
    try:
        return memoryview(mmap.mmap(descriptor, 8)).cast("Q")
    except (OSError, ValueError):
        return [0]
    finally:
        os.close(descriptor)  # the map has one of its own, by which the collector finds it


def device_of(ddp: Any) -> torch.device:
    """The device of a DDP model's first parameter that is trained; the CPU where there is none."""
    parameter = next((p for p in ddp.module.parameters() if p.requires_grad), None)
    return torch.device("cpu") if parameter is None else parameter.device


def _card_of_process() -> dict[str, Scalar]:
    arguments = os.environ.get("DDPTOP_ARGV") != "off"
    return {
        "torch": torch.__version__,
        "ddptop": sys.modules["ddptop"].__version__,
        "python": sys.version.split()[0],
        "threads": torch.get_num_threads(),
        "argv": " ".join(redact_words(sys.argv) if arguments else sys.argv[:1]),
    }
